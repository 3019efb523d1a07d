#!/usr/bin/env python3
"""Opens memory snapshots with the functions that PyTorch has for them, and prints a line of totals for each.

usage: check_snapshot.py SNAPSHOT.pickle...        needs PyTorch, no GPU

The exit code is 1 if one of the functions fails, or if they do not agree with the snapshot.
"""

import base64
import contextlib
import io
import json
import pickle
import re
import sys

from torch.cuda import _memory_viz as viz


def flamegraph_bytes(text):
    """Returns the sum over the lines of a flame graph: "frame;frame;... BYTES"."""
    return sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines())


def plotted(html):
    """Returns the snapshot inside a page that plots it."""
    (files,) = re.findall(r"const local_files = (\[.*\])", html)
    return pickle.loads(base64.b64decode(json.loads(files)[0]["base64"]))


def check(path):
    with open(path, "rb") as file:
        data = pickle.load(file)
    reserved = sum(s["total_size"] for s in data["segments"])
    events = sum(len(trace) for trace in data["device_traces"])

    def keep(lines):
        return lines

    summary = viz.segsum(data)
    totals = re.findall(r"^(?:segments|total_\w+): .*$", summary, re.MULTILINE)
    print(f"{path}: segsum: {', '.join(totals)}")

    text = viz.trace(data)
    listed = sum(int(n) for n in re.findall(r"^(\d+) entries$", text, re.MULTILINE))
    print(f"{path}: trace: {listed} entries, {len(text.splitlines())} lines")
    assert listed == events, (listed, events)

    for name in ("segments", "memory"):
        total = flamegraph_bytes(getattr(viz, name)(data, format_flamegraph=keep))
        print(f"{path}: {name}: {total} bytes")
        assert total == reserved, (total, reserved)

    with contextlib.redirect_stdout(io.StringIO()):
        new = flamegraph_bytes(viz.compare([], data["segments"], format_flamegraph=keep))
        same = viz.compare(data["segments"], data["segments"], format_flamegraph=keep)
    print(f"{path}: compare: {new} bytes that nothing had, {flamegraph_bytes(same)} that itself had not")
    assert (new, same) == (reserved, "")

    for name in ("trace_plot", "segment_plot"):
        html = getattr(viz, name)(data)
        inside = plotted(html)
        print(f"{path}: {name}: {len(html)} characters of HTML, "
              f"{sum(len(t) for t in inside['device_traces'])} events, "
              f"{len(inside['segments'])} segments")
        assert inside == data


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 2
    for path in sys.argv[1:]:
        check(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

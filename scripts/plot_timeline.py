#!/usr/bin/env python3
"""Draws one iteration: the allocated memory, the kernels and the copies over time.

usage: scripts/plot_timeline.py TRACE PICTURE.png

TRACE is a file that `spillway run WORKLOAD ... --export trace TRACE` wrote. Needs matplotlib (Debian:
python3-matplotlib). Exits with 2 for bad arguments, and with 3 if TRACE is not such a file.
"""

import json
import sys

GIB = 2 ** 30
KERNELS = {"forward": 0, "backward": 1, "update": 3, "run again": 2}  # index of the colour


class BadInput(Exception):
    """A file that `spillway run --export trace` did not write, or that has no kernels."""


def read(path):
    """Returns title, capacity and held memory (GiB), kernels and copies (ms) of a trace file of `spillway run`."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from error
    try:
        origin = document["otherData"]
        events = document["traceEvents"]
        commands = [event for event in events if event["ph"] == "X"]
        held = {event["ts"] / 1e3: event["args"]["allocated"] / GIB for event in events
                if event["ph"] == "C" and event["name"] == "device memory"}  # the last value at each time
        kernels = [(start, length, "run again" if "recompute" in event["cat"] else event["args"]["phase"],
                    event["args"].get("stall_us", 0) / 1e3)
                   for event, start, length in timed(commands) if event["cat"].startswith("kernel")]
        copies = [(start, length, event["args"]["tensor"], event["name"].startswith("offload"))
                  for event, start, length in timed(commands) if event["cat"] == "copy"]
        title = "{workload} under {policy} on {device}".format(**origin)
        capacity = origin["memory_bytes"]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: not written by spillway run --export trace ({error!r})") from error
    if not kernels or not held:
        raise BadInput(f"{path}: the trace has no kernels")
    return title, capacity and capacity / GIB, list(held.items()), kernels, copies


def timed(events):
    """Returns each event with its start and length in milliseconds."""
    return [(event, event["ts"] / 1e3, event["dur"] / 1e3) for event in events]


def draw(title, capacity, memory, kernels, copies):
    import figstyle  # imported here, so that errors in the input are reported without matplotlib

    end = max(start + length for start, length, *_ in kernels + copies)
    fig, (top, middle, bottom) = figstyle.figure(
        7.2, 3.9, nrows=3, sharex=True, height_ratios=[3.2, 0.8, 1.5])
    fig.get_layout_engine().set(h_pad=0.03, hspace=0.02)

    times, sizes = zip(*memory, (end, memory[-1][1]))
    top.fill_between(times, sizes, step="post", color=figstyle.COLOURS[5], alpha=0.45, linewidth=0)
    top.step(times, sizes, where="post", color=figstyle.COLOURS[0], linewidth=0.9)
    if capacity:
        top.axhline(capacity, color=figstyle.COLOURS[6], linewidth=0.9, linestyle=(0, (4, 2)))
        top.annotate(f"all there is: {capacity:.4g} GiB", (end, capacity), (-2, 3),
                     textcoords="offset points", ha="right", fontsize=7)
    top.set_ylim(0, 1.12 * max(capacity or 0, *sizes))
    top.set_ylabel("GiB allocated")
    top.set_title(f"{title}: one iteration takes {end:.4g} ms", fontsize=8.5, loc="left")

    for name, colour in KERNELS.items():
        bars = [(start, length) for start, length, phase, _ in kernels if phase == name]
        if bars:
            middle.broken_barh(bars, (0.08, 0.84), color=figstyle.COLOURS[colour], label=name,
                               edgecolor="white", linewidth=0.25)
    waits = [(start - wait, wait) for start, _, _, wait in kernels if wait > end / 2000]
    for axes in (middle, bottom):
        label = "waits for a copy" if axes is middle and waits else None
        for start, length in waits:
            axes.axvspan(start, start + length, color=figstyle.COLOURS[4], alpha=0.3, linewidth=0,
                         label=label, zorder=0)
            label = None
    middle.set_ylim(0, 1)
    middle.set_yticks([0.5], ["kernels"])
    middle.legend(loc="lower center", bbox_to_anchor=(0.5, 0.9), ncol=5, fontsize=7, handlelength=1.2,
                  borderaxespad=0.2)

    for row, (out, colour) in enumerate(((False, 2), (True, 3))):
        bars = [(start, length, tensor) for start, length, tensor, is_out in copies if is_out == out]
        bottom.broken_barh([bar[:2] for bar in bars], (row + 0.08, 0.84), color=figstyle.COLOURS[colour],
                           edgecolor="white", linewidth=0.25, zorder=2)
        for start, length, tensor in bars:
            if length / end > 0.0083 * len(tensor):  # the bar has room for the name
                bottom.text(start + length / 2, row + 0.5, tensor, ha="center", va="center", fontsize=6,
                            color="white", zorder=3)
    bottom.set_ylim(0, 2)
    bottom.set_yticks([0.5, 1.5], ["copies in", "copies out"])
    bottom.set_xlim(0, end)
    bottom.set_xlabel("ms")
    for axes in (middle, bottom):
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    return fig


def main():
    if len(sys.argv) != 3 or not sys.argv[2].endswith(".png"):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    try:
        contents = read(sys.argv[1])
    except BadInput as error:
        print(f"plot_timeline.py: {error}", file=sys.stderr)
        return 3
    try:
        draw(*contents).savefig(sys.argv[2], dpi=200, metadata={"Software": None})
    except OSError as error:
        print(f"plot_timeline.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Tests reports: each is one file that holds its sources. Wrong input is refused.

usage: report_test.py PATH_OF_SPILLWAY

report_browser_test.py tests how they look.
"""

import base64
import html.parser
import json
import struct

from harness import DirectoryTest, ROOT, main

POLICIES = ("--policy", "network-wide:algo=memory", "--policy", "vdnn-all:algo=memory", "--policy", "mxnet")


class Page(html.parser.HTMLParser):
    """Collects the references, the data and the headings of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.data, self.headings, self.inside = [], {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("src", "href") if name in attrs]
        self.inside = attrs.get("id") if attrs.get("type") == "application/json" else tag if tag == "h2" else None

    def handle_data(self, data):
        if self.inside == "h2":
            self.headings.append(data)
        elif self.inside:
            self.data[self.inside] = json.loads(data)
        self.inside = None


class ReportTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.page = self.directory / "report.html"

    def report(self, *args):
        self.ok("report", *args, "-o", self.page, "--quiet")
        return self.page.read_text("utf-8")

    def sources(self):
        store = self.directory / "r.sqlite"
        self.ok("sweep", "alexnet:{16,32}", "--memory", "1GiB,2GiB", "--policy", "torch,mxnet", "-o", store, "--quiet")
        rows = self.directory / "c.json"
        self.ok("compare", "alexnet:16", "--policy", "torch", "-o", rows, "--quiet")
        return store, rows, ROOT / "experiments" / "evidence" / "validation" / "h200.csv"

    def documents(self):
        """Tests documents that have more than rows."""
        decisions, replay, explained = (self.directory / name for name in ("d.json", "replay.json", "explain.json"))
        self.ok("run", "alexnet:16", "--export", f"decisions:{decisions}", "--quiet")
        self.ok("replay", decisions, "--allocator", "best-fit,first-fit", "--memory", "800MiB", "--out-of-memory-report",
                "-o", replay, "--quiet", code=1)
        self.ok("run", "alexnet:16", "--policy", "vdnn-all", "--explain", "-o", explained, "--quiet")
        return replay, explained

    def test_it_holds_what_the_sources_hold_and_needs_nothing_else(self):
        page = Page(self.report("alexnet:64", *self.sources(), "--memory", "80%", *POLICIES, "--title", "a <b> & c"))
        self.assertEqual([link for link in page.links if link != "data:,"], [])
        self.assertEqual([len(page.data[f"data-{i}"]) for i in (0, 3)], [3, 8])
        self.assertEqual(page.headings[0], "alexnet:64 on NVIDIA H200, PCIe 5 x16")
        self.assertEqual(page.data["data-4"]["rows"], json.loads((self.directory / "c.json").read_text("utf-8"))["rows"])
        self.assertGreater(len(page.data["data-5"]), 200)
        compared = json.loads(self.ok("compare", "alexnet:64", "--memory", "80%", *POLICIES, "--format", "json"))
        self.assertEqual(page.data["data-0"], compared["rows"])

    def test_it_holds_documents_as_they_are(self):
        documents = self.documents()
        page = Page(self.report(*documents))
        for i, document in enumerate(documents):
            self.assertEqual(page.data[f"data-{i}"], json.loads(document.read_text("utf-8")))

    def test_a_timeline_is_the_run_of_the_export(self):
        page = Page(self.report("alexnet:64", "--memory", "80%", "--policy", "vdnn-all:algo=memory"))
        timeline = page.data["data-1"]
        trace = self.directory / "t.json"
        self.ok("run", "alexnet:64", "--memory", "80%", "--policy", "vdnn-all:algo=memory", "--export", f"trace:{trace}")
        events = [e for e in json.loads(trace.read_text("utf-8"))["traceEvents"] if e["ph"] == "X"]
        self.assertEqual(timeline["events"]["count"], len(events))
        tick = timeline["iteration_ms"] * 1e3 / 2 ** 32

        def numbers(group, key):
            return struct.iter_unpack("<I", base64.b64decode(timeline[group][key]))
        for (start,), event in zip(sorted(numbers("events", "start")), sorted(events, key=lambda e: e["ts"])):
            self.assertAlmostEqual(start * tick, event["ts"], delta=2 * tick)
        stalls = sum(length for length, in numbers("stalls", "length")) * tick
        self.assertAlmostEqual(stalls, sum(e["args"].get("stall_us", 0) for e in events), delta=tick * len(events))
        listed = []
        for line in timeline["names"].splitlines():
            listed.append((listed[-1] if listed else "")[:ord(line[0]) - 48] + line[1:])
        names = {listed[i] for i, in numbers("blocks", "name")}
        self.assertLessEqual({"conv1.y", "conv1.weight", "conv1.relu.dy"}, names)
        kinds = base64.b64decode(timeline["blocks"]["kind"])
        of = {listed[i]: timeline["kinds"][kind] for (i,), kind in zip(numbers("blocks", "name"), kinds)}
        self.assertEqual((of["conv1.y"], of["conv1.weight"], of["conv1.relu.dy"]), ("activation", "parameter", "gradient"))
        kernels = [e for e in events if e["cat"] == "kernel"]
        for phase in timeline["phases"]:
            first = min(e["ts"] for e in kernels if e["args"]["phase"] == phase["name"])
            self.assertAlmostEqual(phase["start"] * tick, first, delta=2 * tick)
        self.assertEqual([phase["name"] for phase in timeline["phases"]], ["forward", "backward", "update"])

    def test_the_same_sources_give_the_same_bytes(self):
        sources = ("alexnet:16", *self.sources(), *POLICIES)
        self.assertEqual(self.report(*sources, "--jobs", "1"), self.report(*sources, "--jobs", "4"))

    def test_exit_codes(self):
        self.fails(2, "did you mean 'liveness'?", "report", "alexnet:8", "--policy", "livenes", "-o", self.page)
        self.fails(2, "unknown policy", "report", *self.sources()[:1], "--policy", "nopolicy", "-o", self.page)
        self.assertFalse(self.page.exists())
        # A policy that fails costs its own row.
        self.ok("report", "alexnet:8", "--policy", "liveness,as-recorded", "-o", self.page, code=4)
        self.assertIn('"failed"', self.page.read_text("utf-8"))
        self.ok("report", "alexnet:8", "--policy", "liveness", "--memory", "1MiB", "-o", self.page, code=1)
        self.ok("report", "alexnet:8", "--policy", "liveness", "--memory", "1GiB", "-o", self.page)

    def test_what_is_refused(self):
        for name, text, message in (("none.csv", None, "none.csv"), ("a.csv", "x\n1\n", "a.csv:1: no CSV file"),
                                    ("b.csv", "x,y\n1\n", "b.csv:2: 1 fields under 2 columns"),
                                    ("c.json", '{"schema": "spillway.results/v1"}', "c.json: has neither rows nor a row"),
                                    ("d.sqlite", "nonsense" * 200, "is not a sweep store")):
            with self.subTest(name):
                path = self.directory / name
                if text is not None:
                    path.write_text(text, encoding="utf-8")
                self.fails(3, message, "report", path, "-o", self.page)
                self.assertFalse(self.page.exists())
        self.fails(2, "did you mean 'alexnet'?", "report", "alxnet:1", "-o", self.page)
        self.fails(2, "--output", "report", "alexnet:1")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests --pool, which adds memory outside the device and the host, in results, exports and messages.

usage: pool_test.py PATH_OF_SPILLWAY
"""

import csv
import io
import json
import pathlib
import tempfile

from harness import CommandTest, main

RUN = ("run", "resnet50:16", "--policy", "vdnn-all", "--memory", "30%")
PEER = ("--pool", "peer:size=256MiB")
DISK = ("--pool", "nvme:size=1GiB,in=7GB/s,out=90GB/s,over=own")


class PoolTest(CommandTest):
    def row(self, *args):
        return self.conforms(self.ok(*args, "--check", "--format", "json"), "results")["rows"][0]

    def test_the_fastest_pool_with_room_is_taken(self):
        alone, peer, both = self.row(*RUN), self.row(*RUN, *PEER), self.row(*RUN, *PEER, *DISK)
        self.assertNotIn("peer_peak_bytes", alone)
        self.assertLessEqual(peer["peer_peak_bytes"], 256 << 20)
        self.assertGreater(peer["pinned_peak_bytes"], 0)
        self.assertLess(peer["iteration_ms"], alone["iteration_ms"])
        self.assertEqual(both["pinned_peak_bytes"], 0)
        self.assertEqual(both["peer_offloaded_bytes"] + both["nvme_offloaded_bytes"],
                         both["offloaded_bytes"])
        self.assertEqual(alone["offloaded_bytes"], both["offloaded_bytes"])
        self.assertEqual(self.row(*RUN, "--pool", "host:size=2GiB")["pinned_peak_bytes"],
                         alone["pinned_peak_bytes"])

    def test_tables_say_what_each_pool_held(self):
        text = self.ok(*RUN, *PEER)
        self.assertIn("pool peer:size=256MiB", text)
        self.assertRegex(text, r"policy +pinned GiB +peer GiB +peer out GiB +peer in GiB\n")
        self.assertNotIn("peer", self.ok(*RUN))

    def test_exports_name_the_pool(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            self.ok(*RUN, *PEER, "--export", f"trace:{path}/t.json", "--export", f"memory:{path}/m.csv",
                    "--export", f"decisions:{path}/d.json")
            trace = self.conforms((path / "t.json").read_text("utf-8"), "chrome-trace")
            threads = {e["args"]["name"]: e["tid"] for e in trace["traceEvents"]
                       if e["name"] == "thread_name"}
            self.assertIn("out2 (copies to peer)", threads)
            copies = [e for e in trace["traceEvents"]
                      if e.get("tid") == threads["out2 (copies to peer)"] and e["ph"] == "X"]
            self.assertGreater(len(copies), 0)
            rows = list(csv.DictReader(io.StringIO((path / "m.csv").read_text("utf-8"))))
            self.assertGreater(max(int(row["peer_bytes"]) for row in rows), 0)
            self.assertIn("store", {row["change"] for row in rows})
            arenas = {p["arena"] for p in json.loads((path / "d.json").read_text("utf-8"))["placements"]}
            self.assertEqual(arenas, {"device", "host", "peer"})
            result = self.ok(*RUN, *PEER, "-o", path / "r.json")
            self.assertEqual(result, "")
            self.ok("replay-run", path / "r.json.manifest.json")

    def test_real_bytes_are_as_in_core(self):
        text = self.ok("run", "alexnet:2", "--backend", "cpu", "--policy", "vdnn-all:algo=memory",
                       "--memory", "800MiB", "--against", "liveness", "--pool", "peer:size=2MiB",
                       "--pool", "remote:size=1GiB,in=60GB/s,out=60GB/s", "--drain-seed", "3")
        self.assertIn("same bits as liveness", text)

    def test_explanations_speak_of_copies_to_pools(self):
        self.ok(*RUN, *PEER, "--explain")
        self.conforms(self.ok(*RUN, *PEER, "--explain", "--format", "json"), "explain")

    def test_wrong_pools(self):
        for code, text, pool in (
                (2, "unknown pool 'disk' (valid: host, peer, remote, nvme)", "disk:size=1GiB"),
                (2, "unknown pool 'pear'; did you mean 'peer'?", "pear:size=1GiB"),
                (2, "size: '0B' is too small", "peer:size=0B"),
                (2, "give its size", "peer"),
                (2, "'0' is no other GPU than 0, the device itself", "peer:size=1GiB,gpu=0"),
                (2, "out: '0GB/s' is too small", "nvme:size=1GiB,in=1GB/s,out=0GB/s"),
                (2, "does not say how fast its link is: give in=RATE", "nvme:size=1GiB"),
                (2, "unknown parameter 'latency'", "peer:size=1GiB,latency=1us"),
                (2, "no pool", "")):
            with self.subTest(pool=pool):
                self.fails(code, text, *RUN, "--pool", pool)
        self.fails(2, "a device has at most 2 pools besides the host's", *RUN, *PEER, *DISK,
                   "--pool", "remote:size=1GiB,in=1GB/s,out=1GB/s")


if __name__ == "__main__":
    main()

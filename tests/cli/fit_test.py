#!/usr/bin/env python3
"""Tests spillway fit: its verdicts agree with `run`, its changes make the run fit, and wrong input gets clear messages.

usage: fit_test.py PATH_OF_SPILLWAY
"""

import json
import pathlib
import tempfile

from harness import CommandTest, main

SMALL = ("--device", "gtx_970")
QUICK = ("--policy", "superneurons", "--policy", "mxnet", "--policy", "network-wide:algo=memory")


class FitTest(CommandTest):
    def rows(self, *args, code=0):
        return self.conforms(self.ok("fit", *args, "--format", "json", code=code), "fit")["rows"]

    def run_row(self, workload, row, memory, code=0):
        text = self.ok("run", workload, "--device", row["device"], "--policy", row["policy"], "--allocator",
                       row["allocator"], "--memory", memory, "--format", "json", code=code)
        return json.loads(text)["rows"][0]

    def test_a_verdict_is_that_of_a_run(self):
        (row,) = self.rows("alexnet:32", *SMALL)
        self.assertEqual((row["change"], row["allocator"], row["status"], row["slowdown"]),
                         ("none", "pytorch", "fits", 1))
        run = self.run_row("alexnet:32", row, "unlimited")
        for key in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "iteration_ms"):
            self.assertEqual(row[key], run[key], key)
        self.assertEqual(row["margin_bytes"], row["memory_bytes"] - row["peak_reserved_bytes"])

    def test_changes_were_seen_to_fit_and_the_cheapest_is_first(self):
        rows = self.rows("resnet50:64", "resnet50:16", *SMALL, *QUICK)
        first, *changes = [row for row in rows if row["workload"] == "resnet50:64" or row["change"] == "batch"]
        self.assertEqual((first["change"], first["status"]), ("none", "no"))
        self.assertIn("out of device memory", first["reason"])
        self.run_row("resnet50:64", first, f"{first['memory_bytes']}B", code=1)
        self.assertEqual({row["change"] for row in changes} - {"allocator", "policy and allocator"},
                         {"policy", "batch"})
        self.assertEqual([row["slowdown"] for row in changes], sorted(row["slowdown"] for row in changes))
        for row in changes:
            self.assertNotEqual(row["status"], "no")
            if row["change"] == "batch":
                self.assertEqual(row["workload"], "resnet50:16")
                continue
            run = self.run_row("resnet50:64", row, f"{row['memory_bytes']}B")
            self.assertEqual(row["iteration_ms"], run["iteration_ms"])
            self.assertAlmostEqual(row["slowdown"], row["iteration_ms"] / first["iteration_ms"])

    def test_what_is_outside_counts(self):
        (row,) = self.rows("alexnet:32", *SMALL)
        margin = row["margin_bytes"]
        (row,) = self.rows("alexnet:32", *SMALL, "--outside", f"{margin}B")
        self.assertEqual((row["status"], row["margin_bytes"]), ("fits", 0))
        rows = self.rows("alexnet:32", *SMALL, "--outside", f"{margin + (1 << 28)}B", *QUICK, code=1)
        self.assertEqual(rows[0]["status"], "no")

    def test_every_device_by_default(self):
        devices = self.ok("completion", "devices").split()
        rows = self.rows("alexnet:1")
        self.assertEqual([row["device"] for row in rows], devices)
        text = self.ok("fit", "alexnet:1")
        self.assertIn("Most is requested at", text)

    def test_nothing_helps(self):
        text = self.ok("fit", "vgg16:256", *SMALL, "--policy", "liveness:algo=memory", code=1)
        self.assertIn("Nothing that was tried makes it fit", text)

    def test_any_number_of_jobs_gives_the_same_bytes(self):
        args = ("fit", "resnet50:64", *SMALL, *QUICK, "--format", "csv")
        self.assertEqual(self.ok(*args, "--jobs", "1", code=1), self.ok(*args, "--jobs", "3", code=1))

    def test_written_results_replay(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "fit.json"
            self.ok("fit", "alexnet:1", *SMALL, "-o", path)
            self.conforms(path.read_text("utf-8"), "fit")
            self.ok("replay-run", f"{path}.manifest.json")

    def test_wrong_input(self):
        self.fails(2, "did you mean 'h200'", "fit", "alexnet:1", "--device", "h20")
        self.fails(2, "did you mean 'superneurons'", "fit", "alexnet:1", "--policy", "superneuron")
        self.fails(2, "outside", "fit", "alexnet:1", "--outside", "3 apples")
        self.fails(2, "leaves nothing", "fit", "alexnet:1", *SMALL, "--outside", "8GiB")
        self.fails(3, "missing.json", "fit", "missing.json")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests --memory: its messages, the sizes that it gives, and several sizes and workloads at once.

usage: memory_test.py PATH_OF_SPILLWAY
"""

import csv
import io
import json
import tempfile

from harness import CommandTest, main

VGG = ("vgg16:16", "--policy", "vdnn-all:algo=memory")
ARGS = ("--policy", "liveness:algo=memory", "--policy", "vdnn-all:algo=memory")


class MemoryTest(CommandTest):
    def rows(self, *args, code=0):
        return self.conforms(self.ok(*args, "--format", "json", code=code), "results")["rows"]

    def test_a_result_says_what_was_asked_for_and_what_it_came_to(self):
        (row,) = self.rows("run", *VGG, "--memory", "50%")
        floor, peak = row["memory_floor_bytes"], row["in_core_peak_bytes"]
        self.assertEqual(row["memory_request"], "50%")
        self.assertLess(abs(row["memory_bytes"] - (floor + peak) / 2), 1024)
        self.assertEqual(self.rows("run", *VGG, "--memory", "100%")[0]["memory_bytes"], peak)
        text = self.ok("run", *VGG, "--memory", "50%")
        self.assertIn("memory: 50% was asked for; floor (0%) 1.61 GiB, in-core peak (100%) 3.3 GiB\n", text)
        (in_csv,) = csv.DictReader(io.StringIO(
            self.ok("run", *VGG, "--memory", "50%", "--format", "csv")))
        self.assertEqual(in_csv["memory_request"], "50%")
        self.assertEqual(int(in_csv["memory_floor_bytes"]), floor)
        (row,) = self.rows("run", "alexnet:8")
        self.assertIsNone(row["memory_request"])
        self.assertIn("memory: all of the device; floor", self.ok("run", "alexnet:8"))

    def test_no_size_is_a_usage_error(self):
        for verb in ("run", "compare"):
            self.fails(2, "--memory: no size", verb, "alexnet:8", "--memory", "")
        self.fails(2, "--memory: no size", "limit", "alexnet", "--memory", "")
        self.fails(2, "an empty place", "compare", "alexnet:8", "--memory", "30%,,50%")

    def test_units_that_are_nearly_right(self):
        for text, meant in (("12G", "12GB or 12GiB?"), ("12gib", "12GiB?"), ("1.5 mi", "1.5MiB?"),
                            ("12gb", "12GB?")):
            self.fails(2, f"did you mean {meant}", "run", "alexnet:8", "--memory", text)
        self.assertNotIn("did you mean", self.fails(2, "unknown unit 'parsec'", "run", "alexnet:8",
                                                    "--memory", "12parsec"))

    def test_several_sizes_and_workloads(self):
        args = ("compare", "alexnet:16", "alexnet:32", "--memory", "70%,100%", *ARGS)
        rows = self.rows(*args)
        self.assertEqual([(row["workload"], row["memory_request"], row["policy"]) for row in rows],
                         [(workload, memory, policy) for workload in ("alexnet:16", "alexnet:32")
                          for memory in ("70%", "100%") for policy in ARGS[1::2]])
        for row in rows:
            self.assertEqual([row], self.rows(
                "compare", row["workload"], "--memory", row["memory_request"], "--policy",
                row["policy"], code=0 if row["status"] == "ok" else 1))
        text = self.ok(*args, "--jobs", "1")
        self.assertEqual(text.count("kernel times:"), 4)
        self.assertEqual(text, self.ok(*args, "--jobs", "4"))
        self.assertEqual(len(self.rows("compare", "alexnet:8", "--memory", "vdnn-conv:algo=memory,80%",
                                       "--policy", "vdnn-all:algo=memory")), 2)

    def test_what_is_missing_is_enough(self):
        """With what is missing the run fits; with a tenth of it less it does not, as these policies need a size."""
        for workload, memory, policies in (("gpt2@128:1,optimizer=adamw", "1GiB", "liveness,torch,superneurons"),
                                           ("vgg16:16", "1GiB", "network-wide,vdnn-conv:algo=performance"),
                                           ("resnet50:16", "120MiB", "joint,dtr")):
            rows = self.rows("compare", workload, "--memory", memory, "--policy", policies, code=1)
            for row in rows:
                for share, code in ((0.9, 1), (1, 0)):
                    size = row["memory_bytes"] + int(share * row["missing_bytes"])
                    self.rows("run", workload, "--memory", f"{size}B", "--policy", row["policy"], code=code)
        table = self.ok("run", "llama-8b@2048:1", "--memory", "40GiB", code=1)
        self.assertIn("+ 52.7 GiB", table)

    def test_a_sweep_says_what_is_missing_at_least(self):
        with tempfile.TemporaryDirectory() as directory:
            self.ok("sweep", "llama-8b@2048:1", "--memory", "40GiB", "--policy", "liveness", "-o", f"{directory}/s.sqlite")
            told = self.ok("sweep", "export", f"{directory}/s.sqlite", "--format", "csv")
            (row,) = csv.DictReader(io.StringIO(told))
            self.assertEqual(int(row["missing_bytes"]), int(row["memory_floor_bytes"]) - int(row["memory_bytes"]))

    def fastest(self, policy, workload, memories, *args):
        rows = self.rows("compare", workload, "--memory", ",".join(memories), "--policy", policy, *args)
        return [row["iteration_ms"] for row in rows]

    def test_more_memory_is_not_slower(self):
        """Capuchin and joint try in more memory what they decide in less; between these memories a little may be lost."""
        shares = [f"{share}%" for share in (10, 20, 30, 35, 40, 45, 50, 55, 60, 70, 80, 100)]
        for workload in ("gpt2@1024:8,precision=bf16", "vgg19:64", "bert-base@128:16,optimizer=adamw"):
            times = self.fastest("capuchin", workload, shares)
            for i, time in enumerate(times):
                self.assertLessEqual(time, 1.03 * min(times[:i + 1]), (workload, shares[i]))

    def test_joint_is_not_slower_than_others_where_parameters_do_not_fit(self):
        workload, sizes = "gpt2@512:2,optimizer=adamw", ("750MiB", "1000MiB", "1250MiB", "1500MiB", "1750MiB")
        times = self.fastest("joint:effort=quick", workload, sizes, "--device", "h100")
        others = [self.fastest(f"{policy}:parameters=outside", workload, sizes, "--device", "h100")
                  for policy in ("vdnnpp", "liveness")]
        for i, time in enumerate(times):
            self.assertLessEqual(time, 1.03 * min(times[:i + 1]), sizes[i])
            self.assertLessEqual(time, min(other[i] or time for other in others), sizes[i])

    def test_several_workloads_replay(self):
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/r.csv"
            self.ok("compare", "alexnet:8", "alexnet:16", "--memory", "80%,1GiB", *ARGS, "-o", path)
            with open(path + ".manifest.json", encoding="utf-8") as file:
                manifest = self.conforms(json.load(file), "manifest")
            self.assertEqual([i["name"] for i in manifest["inputs"] if i["role"] == "trace"],
                             ["alexnet:8", "alexnet:16"])
            self.ok("replay-run", path + ".manifest.json")


if __name__ == "__main__":
    main()

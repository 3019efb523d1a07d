#!/usr/bin/env python3
"""Tests the command line's contract: outputs, exit codes, determinism, and clear messages for wrong input.

usage: cli_test.py PATH_OF_SPILLWAY
"""

import csv
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from harness import load_schema, schema_errors

SPILLWAY = None

RESULT_FIELDS = """workload network batch device memory_bytes policy allocator backend status
    iteration_ms compute_ms stall_ms peak_requested_bytes peak_allocated_bytes peak_reserved_bytes
    avg_requested_bytes offloaded_bytes prefetched_bytes recomputed_ops recompute_ms
    pinned_peak_bytes slowdown""".split()


def run(*args, **options):
    return subprocess.run([SPILLWAY, *args], capture_output=True, text=True, check=False, **options)


def measurements():
    """Returns the raw measurements of a machine that follows its laws exactly, in the format of traces/FORMAT.md."""
    def timing(seconds):
        return {"median_ps": round(seconds * 1e12), "spread": 0.01, "repeats": 20}

    def sizes(first, last):
        return [1 << power for power in range(first, last + 1)]

    def copy(size, **fixed):
        return {"size": size} | {key: timing(us * 1e-6 + size / 50e9) for key, us in fixed.items()}

    def calls(size):
        return {"size": size, "allocate": timing(40e-6 + size / 2**20 * 2e-8),
                "release": timing(50e-6 + size / 2**20 * 6e-8)}

    return {
        "format": "spillway-calibration", "version": 1,
        "machine": {"gpu": "ACME GPU", "link": "", "host": "", "driver": "1.2", "cuda": "13.0",
                    "date": "2026-01-02T03:04:05Z", "tool": "spillway 0.1.0", "memory": 2**34,
                    "l2_cache": 2**22},
        "copies": [copy(size, h2d=3, d2h=3, h2d_single=6, d2h_single=6, h2d_both=3, d2h_both=3)
                   for size in sizes(12, 30)],
        "device_copies": [{"size": size, "time": timing(5e-6 + 2 * size / 1e12)}
                          for size in sizes(27, 31)],
        "overlaps": {"kernel_traffic": 2**30, "kernel_flops": 10**10, "copy_size": 2**26, "points": [
            {"load": "none", "h2d": timing(1e-3)}, {"load": "dram", "kernel": timing(1e-3)},
            {"load": "dram", "kernel": timing(1.1e-3), "h2d": timing(1.2e-3)}]},
        "latencies": {key: timing(2e-6) for key in (
            "enqueue_kernel", "enqueue_h2d", "enqueue_d2h", "record_event", "wait_event",
            "kernel_period", "kernel_gap", "kernel_after_event", "kernel_waiting", "copy_after_event",
            "copy_waiting")},
        "device_memory": [calls(size) for size in sizes(9, 32)],
        "pinned_memory": [calls(size) for size in sizes(20, 30)],
        "page_memory": [{"size": size, "map": timing(3e-6 * size / 2**20),
                         "map_new": timing(4e-6 * size / 2**20), "unmap": timing(5e-6 * size / 2**20)}
                        for size in sizes(21, 30)],
        "library_calls": [{"call": "fwd.gemm", "time": timing(2e-4)}],
    }


class CliTest(unittest.TestCase):
    def ok(self, *args, code=0):
        result = run(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout

    def fails(self, code, text, *args):
        result = run(*args)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertIn(text, result.stderr)
        self.assertEqual(result.stdout, "")

    def test_micro_batches_do_not_slow_vdnnpp_down(self):
        for case in (("resnet50:64", "--memory", "40%"), ("alexnet:64", "--memory", "50%")):
            text = self.ok("compare", *case, "--policy", "vdnnpp,vdnnpp:micro=powerOfTwo", "--format", "json")
            plain, divided = (row["iteration_ms"] for row in json.loads(text)["rows"])
            self.assertLessEqual(divided, plain)

    def test_run_json_has_the_documented_fields(self):
        document = json.loads(self.ok("run", "alexnet:32", "--policy", "vdnn-all", "--format", "json"))
        self.assertEqual(document["schema"], "spillway.results/v1")
        (row,) = document["rows"]
        self.assertEqual(list(row)[:len(RESULT_FIELDS)], RESULT_FIELDS)
        self.assertEqual(row["status"], "ok")
        self.assertAlmostEqual(row["iteration_ms"], row["compute_ms"] + row["stall_ms"], places=6)

    def test_out_of_memory_is_a_negative_answer(self):
        stdout = self.ok("run", "vgg19:256", "--memory", "4GiB", "--format", "json", code=1)
        (row,) = json.loads(stdout)["rows"]
        self.assertEqual(row["status"], "oom")
        self.assertIsNone(row["iteration_ms"])
        self.assertIn("largest free block", row["reason"])

    def test_compare_covers_every_policy(self):
        """A policy is left out if it decides by a plan, or if it is not for the mode."""
        listed = set(re.findall(r"^\S+", self.ok("list", "policies"), re.M))
        inference = listed - {"joint", "plan", "as-recorded", "saved-tensors"}
        training = inference - {"mmcnn", "inference-normal", "inference-vdnn"}
        for mode, policies in (("training", training), ("inference", inference)):
            text = self.ok("compare", f"alexnet:16,mode={mode}", "--format", "csv")
            rows = list(csv.DictReader(io.StringIO(text)))
            self.assertEqual({row["policy"].split(":")[0] for row in rows}, policies)
            self.assertTrue(all(float(row["slowdown"]) >= 1 for row in rows))

    def test_compared_policies_share_the_memory_and_a_single_one_is_capped(self):
        args = ("alexnet-plain:16", "--device", "gtx_1080ti", "--format", "json",
                "--policy", "vdnnpp:offload=all")
        (single,) = json.loads(self.ok("run", *args))["rows"]
        both = json.loads(self.ok("compare", *args, "--policy", "vdnn-all"))["rows"]
        self.assertEqual({row["memory_bytes"] for row in both}, {11 * 1024**3})
        self.assertLess(single["memory_bytes"], 11 * 1024**3)
        capped = json.loads(self.ok("compare", *args, "--memory", "vdnn-all"))["rows"]
        self.assertEqual(capped[0]["memory_bytes"], single["memory_bytes"])

    def test_any_number_of_jobs_gives_the_same_bytes(self):
        args = ("compare", "googlenet:16", "--memory", "50%", "--format", "json", "--check")
        one = self.ok(*args, "--jobs", "1")
        self.assertEqual(one, self.ok(*args, "--jobs", "8"))
        self.assertEqual(one, self.ok(*args))

    def test_memory_percentages_span_bound_to_peak(self):
        def peak(memory):
            (row,) = json.loads(self.ok("run", "vgg16:64", "--memory", memory, "--format", "json",
                                        "--policy", "vdnn-dyn"))["rows"]
            return row
        half, full = peak("50%"), peak("100%")
        self.assertLess(half["memory_bytes"], full["memory_bytes"])
        self.assertGreater(half["memory_bytes"], half["bound_layer_bytes"])
        self.assertLessEqual(half["peak_allocated_bytes"], half["memory_bytes"])

    def test_traces_round_trip_and_simulate_alike(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "a.json.zst")
            self.ok("trace", "build", "alexnet:8,preset=vdnn", "-o", path)
            self.assertIn("ok", self.ok("trace", "validate", path))
            plain = os.path.join(directory, "b.json")
            pathlib.Path(plain).write_text(self.ok("trace", "build", path), encoding="utf-8")
            self.assertEqual(pathlib.Path(plain).read_text(encoding="utf-8"),
                             self.ok("trace", "build", "alexnet:8,preset=vdnn"))
            self.assertEqual(sorted(os.listdir(directory)), ["a.json.zst", "b.json"])
            args = ("--policy", "vdnn-all", "--cost", "roofline", "--format", "json")
            ran, built = (json.loads(self.ok("run", workload, *args)) for workload in (plain, "alexnet:8,preset=vdnn"))
            self.assertEqual(ran["rows"][0].pop("file"), plain)
            self.assertEqual(ran, built)
            info = json.loads(self.ok("trace", "info", plain, "--format", "json"))
            self.assertEqual(info["rows"][0]["parameter_bytes"], 61100840 * 4)

    def test_reproduce_prints_the_documented_columns(self):
        document = json.loads(self.ok("reproduce", "vdnn", "--format", "json"))
        for row in document["rows"]:
            self.assertEqual(list(row)[:8], ["paper", "item", "workload", "printed", "ours",
                                             "rel_error", "unit", "evidence"])
        base = {row["item"]: row for row in document["rows"]}["base VGG-16(256) GB"]
        self.assertEqual((base["printed"], base["ours"]), (28, 28))
        (row,) = json.loads(self.ok("reproduce", "base VGG-316(32) GB", "--format", "json"))["rows"]
        self.assertIsNone(row["printed"])
        self.assertGreater(row["ours"], 30)
        everything = json.loads(self.ok("reproduce", "vdnnpp", "--format", "json"))["rows"]
        self.assertNotIn(None, [row["ours"] for row in everything])

    def test_help_values_list_what_exists(self):
        self.assertIn("vdnn-conv", self.ok("run", "alexnet:1", "--policy", "help"))
        self.assertIn("titan_x_maxwell", self.ok("run", "alexnet:1", "--device", "help"))
        self.assertIn("best-fit", self.ok("run", "alexnet:1", "--allocator", "help"))
        everything = self.ok("list")
        for name in ("googlenet", "resnet50", "resnet(n1,n2,n3,n4)", "network-wide", "h200", "best-fit",
                     "vdnn", "torch"):
            self.assertIn(name, everything)

    def test_the_op_table_is_listed(self):
        table = self.ok("list", "ops")
        self.assertRegex(table, r"conv2d +backward +x weight dy bias\?fused_update&bias +dx\?needs_dx")
        rows = json.loads(self.ok("list", "ops", "--format", "json"))["rows"]
        by_step = {(row["type"], row["phase"]): row for row in rows}
        self.assertEqual(len(by_step), len(rows))
        self.assertEqual(by_step["relu", "backward"]["saved"], "y")
        self.assertEqual(by_step["concat", "forward"]["inputs"], "x ...")
        self.assertEqual(by_step["sgd", "update"]["whole_batch"], "always")
        self.assertEqual(by_step["add", "forward"]["overwrites_x"], "add_in_place")
        lines = self.ok("list", "ops", "--format", "csv").splitlines()
        self.assertEqual(lines[0].split(","), list(rows[0]))
        self.assertEqual(len(lines), len(rows) + 1)
        # Plain `list` shows the names for the command line, not the ops.
        self.assertNotIn("dx?needs_dx", self.ok("list"))
        self.fails(2, "--format", "list", "networks", "--format", "json")
        self.fails(2, "opps", "list", "opps")

    def test_networks_can_be_given_a_depth_and_an_image_size(self):
        row = json.loads(self.ok("run", "resnet(1,2,1,1)@64:2", "--format", "json"))["rows"][0]
        self.assertEqual((row["network"], row["batch"], row["status"]), ("resnet(1,2,1,1)@64", 2, "ok"))
        self.fails(2, "resnet(n1,n2,n3,n4)", "run", "resnet(1,2):2")
        self.fails(2, "image size", "run", "vgg16@big:2")
        self.fails(3, "pool1", "run", "vgg16@1:2")

    def test_recorded_times_are_used_where_they_exist(self):
        recorded = self.ok("run", "vgg19:64", "--device", "h200")
        self.assertIn("recorded on NVIDIA H200", recorded)
        self.assertIn("analytic", self.ok("run", "vgg19:3", "--device", "h200"))

    def test_wrong_usage_exits_with_2(self):
        self.fails(2, "did you mean 'vgg19'?", "run", "vgg91:2")
        self.fails(2, "NETWORK:BATCH", "run", "vgg19")
        self.fails(2, "whole number", "run", "vgg19:0")
        self.fails(2, "did you mean 'vdnn-all'?", "run", "vgg19:2", "--policy", "vdnn-al")
        self.fails(2, "did you mean 'h200'?", "run", "vgg19:2", "--device", "h2000")
        self.fails(2, "did you mean 'best-fit'?", "run", "vgg19:2", "--allocator", "bestfit")
        self.fails(2, "did you mean 'torch'?", "run", "vgg19:2,preset=torhc")
        self.fails(2, "10 gigs", "run", "vgg19:2", "--memory", "10 gigs")
        self.fails(2, "percentage", "run", "vgg19:2", "--memory", "x%")
        self.fails(2, "--frobnicate", "run", "vgg19:2", "--frobnicate")
        self.fails(2, "no verb is given", )
        self.fails(2, "item", "reproduce", "nothing")

    def test_bad_input_exits_with_3_and_names_the_place(self):
        self.fails(3, "nowhere.json", "run", "nowhere.json")
        with tempfile.TemporaryDirectory() as directory:
            bad = os.path.join(directory, "bad.json")
            pathlib.Path(bad).write_text('{"format": "spillway-trace", "version": 99}', encoding="utf-8")
            self.fails(3, "version", "trace", "validate", bad)
            pathlib.Path(bad).write_text("{", encoding="utf-8")
            self.fails(3, bad, "trace", "info", bad)
            device = os.path.join(directory, "gpu.toml")
            pathlib.Path(device).write_text('description = "x"\nmemori = 1\n', encoding="utf-8")
            self.fails(3, "gpu.toml", "run", "vgg19:2", "--device", device)
            self.fails(3, bad, "run", "vgg19:2", "--cost", bad)
            for plugin in (bad, directory, os.path.join(directory, "missing.so")):
                self.fails(3, f"{plugin}: cannot load the plugin: ", "run", "vgg19:2", "--policy",
                           f"{plugin}:name")
            self.fails(3, directory, "trace", "build", "alexnet:1", "-o",
                       os.path.join(directory, "no", "such", "dir.json"))

    def test_validation_without_a_gpu_exits_with_5(self):
        if run("validate", "alexnet:1", "--iterations", "5").returncode in (0, 1):
            self.skipTest("this machine has a GPU")
        for args in (("validate", "alexnet:1"), ("run", "alexnet:1", "--backend", "cuda")):
            self.fails(5, "CUDA", *args)
        self.fails(2, "did you mean 'alexnet'?", "validate", "alexnett:1")
        self.fails(2, "did you mean", "validate", "alexnet:1", "--policy", "vdnn-al")
        self.fails(2, "5%", "validate", "alexnet:1", "--tolerance", "five")
        self.fails(2, "a '{' is left open", "validate", "alexnet:{1,2")
        self.fails(2, "'0/2' is no shard", "validate", "alexnet:1", "--shard", "0/2")
        with tempfile.TemporaryDirectory() as directory:
            store = pathlib.Path(directory, "v.sqlite")
            self.fails(5, "CUDA", "validate", "{alexnet,vgg16}:{1,2}", "--memory", "30%,50%",
                       "--policy", "liveness,vdnn-all:algo={memory,performance}", "-o", store)
            self.assertFalse(store.exists())

    def test_recording_without_a_gpu_exits_with_5(self):
        if run("record", "alexnet:1", "-o", tempfile.gettempdir()).returncode == 0:
            self.skipTest("this machine has a GPU")
        self.fails(5, "CUDA", "record", "alexnet:1", "-o", tempfile.gettempdir())
        self.fails(3, "cannot read 'nowhere.json'", "record", "nowhere.json")
        self.fails(2, "inferenc", "record", "alexnet:1,mode=inferenc")
        self.fails(5, "CUDA", "record", "gpt2@8:1,attention=math,precision=bf16,optimizer=adamw", "-o", tempfile.gettempdir())
        self.fails(2, "did you mean 'bf16'?", "record", "gpt2@8:1,precision=bf61")
        with tempfile.TemporaryDirectory() as directory:
            trace, other = os.path.join(directory, "a.json"), os.path.join(directory, "b.json")
            self.ok("trace", "build", "alexnet:1", "-o", trace)
            self.fails(2, "has no recorded step", "record", f"{trace},precision=bf16")
            self.fails(2, "lowered with mode=training", "record", f"{trace},mode=inference")
            self.ok("trace", "build", "alexnet:1,precision=tf32", "-o", other)
            self.fails(2, "are of different arithmetics, fp32 and tf32", "record", trace, other)

    def test_calibrating_without_a_gpu_exits_with_5(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "gpu.toml")
            self.fails(2, "must end in .toml", "calibrate", "-o", directory + "/gpu.json")
            self.fails(2, "did you mean 'h200'?", "calibrate", "-o", path, "--from", "h2000")
            self.fails(3, "no directory", "calibrate", "-o", os.path.join(directory, "no", "x.toml"))
            self.fails(3, "nowhere.json", "calibrate", "-o", path, "--refit", "nowhere.json")
            if run("calibrate", "-o", path, "--quick").returncode == 0:
                self.skipTest("this machine has a GPU")
            self.fails(5, "CUDA", "calibrate", "-o", path)
            self.assertEqual(os.listdir(directory), [])

    def test_calibration_writes_a_device_that_runs(self):
        with tempfile.TemporaryDirectory() as directory:
            raw = os.path.join(directory, "raw.json")
            path = os.path.join(directory, "acme.toml")
            pathlib.Path(raw).write_text(json.dumps(measurements()), encoding="utf-8")
            self.fails(2, "--from", "calibrate", "-o", path, "--refit", raw)
            table = self.ok("calibrate", "-o", path, "--refit", raw, "--from", "titan_x_maxwell")
            self.assertRegex(table, r"link.h2d +50GB/s +19 points, error mean 0.0 % max 0.0 % +yes")
            document = json.loads(self.ok("calibrate", "-o", path, "--refit", raw, "--from",
                                          path, "--format", "json"))
            self.assertEqual(list(schema_errors(document, load_schema("calibration"))), [])
            values = {row["name"]: row["value"] for row in document["rows"]}
            self.assertAlmostEqual(values["link.h2d_latency"] / 3e-6, 1, places=4)
            self.assertAlmostEqual(values["driver.free_per_mib"] / 6e-8, 1, places=3)
            self.assertAlmostEqual(values["driver.map_per_mib"] / 3e-6, 1, places=3)
            self.assertRegex(table, r"pages again 2 MiB +6.00 ")
            self.assertRegex(table, r"fwd.gemm +200.00 +1.0 %")
            self.assertEqual(sorted(os.listdir(directory)), ["acme.toml", "raw.json"])
            self.assertIn("ACME GPU", self.ok("run", "alexnet:4", "--device", path))
            pathlib.Path(raw).write_text(json.dumps(measurements() | {"copies": []}), encoding="utf-8")
            before = pathlib.Path(path).read_bytes()
            self.fails(3, "0 points", "calibrate", "-o", path, "--refit", raw, "--from", path)
            self.assertEqual(pathlib.Path(path).read_bytes(), before)

    def test_bits_do_not_depend_on_policy_budget_or_order(self):
        def execute(*args, allocator="best-fit"):
            stdout = self.ok("run", "googlenet:1", "--backend", "cpu", "--iterations", "2", "--check",
                             "--allocator", allocator, "--format", "json", *args)
            (row,) = json.loads(stdout)["rows"]
            self.assertEqual(row["backend"], "cpu")
            self.assertEqual(row["allocator"], allocator)
            self.assertIsNone(row["iteration_ms"])
            self.assertRegex(row["weights_digest"], r"^[0-9a-f]{64}$")
            return row["loss"], row["weights_digest"]
        reference = execute()
        self.assertEqual(execute("--policy", "vdnn-all", "--drain-seed", "3", allocator="first-fit"), reference)
        self.assertEqual(execute("--policy", "vdnn-conv:algo=memory", "--memory", "60%"), reference)
        self.assertNotEqual(execute("--seed", "2"), reference)
        against = ("run", "googlenet:1", "--backend", "cpu", "--policy", "vdnn-conv:algo=memory",
                   "--memory", "60%", "--against", "liveness")
        self.assertIn("same bits as liveness\n", self.ok(*against))
        (row,) = json.loads(self.ok(*against, "--format", "json"))["rows"]
        self.assertEqual((row["against"], row["same_bits"]), ("liveness", True))
        self.assertIn("nothing to compare: vdnn-conv:algo=memory does not fit",
                      self.ok(*against[:-4], "--memory", "1MiB", "--against", "liveness", code=1))
        self.fails(2, "only with --backend cpu or cuda", "run", "googlenet:1", "--against", "liveness")

    def test_a_check_says_what_it_checked(self):
        checked = "found no violation: live blocks lie apart; every op found its operands"
        for what, args in (("the report", ("run", "alexnet:4")),
                           ("2 of 2 reports", ("compare", "alexnet:4", "--policy", "liveness", "--policy", "mxnet"))):
            with self.subTest(args):
                self.assertIn(f"checked {what}, {checked}", run(*args, "--check").stderr)
                self.assertEqual(run(*args, "--check", "--quiet").stderr, "")
        self.fails(2, "--backend sim", "run", "alexnet:1", "--backend", "cpu", "--explain")
        self.ok("run", "alexnet:1", "--backend", "cpu", "--memory", "1MiB", code=1)

    def test_version_and_help_exit_with_0(self):
        self.assertRegex(self.ok("--version"), r"^spillway \d+\.\d+\.\d+ \(commit (unknown|[0-9a-f]+(-dirty)?)\)\n$")
        self.assertIn("Exit codes", self.ok("--help"))
        for verb in ("run", "compare", "limit", "plan", "list", "trace", "record", "store", "sweep", "validate", "calibrate", "reproduce",
                     "new-policy"):
            self.assertIn("--help", self.ok(verb, "--help"))


if __name__ == "__main__":
    SPILLWAY = sys.argv.pop(1)
    unittest.main()

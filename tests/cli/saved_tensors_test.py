#!/usr/bin/env python3
"""Tests the policy saved-tensors and scripts/export_saved_tensors.py on a recorded iteration of two layers.

    x --a--> h --b--> y --loss--> l      backward of the loss reads y, of b reads h and w, of a reads x

usage: saved_tensors_test.py PATH_OF_SPILLWAY
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from harness import CommandTest, DirectoryTest, ROOT, load_schema, main, schema_errors

MIB = 1 << 20
EXPORT = ROOT / "scripts" / "export_saved_tensors.py"


def tensor(name, kind, mib, **more):
    return {"name": name, "kind": kind, "shape": [mib * MIB // 4], "size": mib * MIB, **more}


def op(name, layer, phase, inputs, outputs, ms=1, **more):
    return {"name": name, "layer": layer, "type": "other", "phase": phase, "batch": 1, "inputs": inputs,
            "outputs": outputs, "slots": [{"name": "op", "signature": name, "flops": 0, "traffic": 0}],
            "recomputable": phase == "forward", **more,
            "recorded": {"time_ns": ms * 10**6, "gap_ns": 0, "host_ns": 0, "workspace": 0}}


TRACE = {
    "format": "spillway-trace", "version": 3, "name": "two:1", "network": "two", "batch": 1, "preset": "recorded",
    "training": True,
    "recording": {"framework": "a test", "device": "NVIDIA H200", "step_ns": 7 * 10**6, "plain_step_ns": 0, "allocated": 0,
                  "reserved": 0},
    "layers": [{"name": name, "type": "other"} for name in ("one/a", "two/b", "loss", "update")],
    "tensors": [tensor("x", "input", 8), tensor("w", "parameter", 4), tensor("h", "activation", 64),
                tensor("y", "activation", 32), tensor("l", "activation", 1), tensor("dy", "gradient", 32),
                tensor("dh", "gradient", 64), tensor("dw", "parameter_gradient", 4), tensor("dx", "gradient", 8)],
    "ops": [op("a", "one/a", "forward", ["x"], ["h"], 5), op("b", "two/b", "forward", ["h", "w"], ["y"]),
            op("loss", "loss", "forward", ["y"], ["l"]), op("loss.bwd", "loss", "backward", ["y"], ["dy"]),
            op("b.bwd", "two/b", "backward", ["h", "w", "dy"], ["dh", "dw"]),
            op("a.bwd", "one/a", "backward", ["x", "dh"], ["dx"]), op("step", "update", "update", ["w", "dw"], ["w"])],
}


class SavedTensorsTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("t.json", TRACE)

    def list_of(self, tensors, **more):
        document = {"format": "spillway-saved-tensors", "version": 1, "workload": "two:1", **more,
                    "tensors": [{"tensor": name, "fate": fate} for name, fate in tensors]}
        self.assertEqual(list(schema_errors(document, load_schema("saved-tensors"))), [])
        return self.file("list.json", document)

    def judge(self, path, device="h200"):
        """Returns (ms, peak MiB, names of the ops that run) of the list at `path`."""
        return self.judge_policy(f"file={path}", device)

    def judge_policy(self, parameters, device="h200"):
        rewritten = self.directory / "rewritten.json"
        text = self.ok("run", self.trace, "--device", device, "--policy", f"saved-tensors:{parameters}", "--check",
                       "--export", f"rewritten:{rewritten}", "--format", "json")
        row = json.loads(text)["rows"][0]
        ops = [op["name"] for op in json.loads(rewritten.read_text("utf-8"))["ops"]]
        return row["iteration_ms"], row["peak_requested_bytes"] / MIB, ops

    def test_nothing_listed_is_as_recorded(self):
        ms, peak, ops = self.judge(self.list_of([]))
        self.assertEqual(ops, [op["name"] for op in TRACE["ops"]])
        self.assertAlmostEqual(ms, 11, delta=0.1)
        # At b.bwd: x, w, h, dy, dh and dw are live.
        self.assertEqual(peak, 8 + 4 + 64 + 32 + 64 + 4)

    def test_offloaded_tensors_cost_their_copies(self):
        ms, peak, ops = self.judge(self.list_of([("h", "offload")]))
        self.assertEqual(ops, ["a", "b", "h.to_host", "loss", "loss.bwd", "h.to_device", "b.bwd", "a.bwd", "step"])
        self.assertAlmostEqual(ms, 11 + 2 * 64 * MIB / 55.3e6, delta=0.2)
        self.assertEqual(peak, 8 + 4 + 64 + 32 + 64 + 4)  # unchanged: h is back at b.bwd

    def test_copies_are_those_of_the_device_that_it_runs_on(self):
        for device, bytes_per_ms in (("h200", 55.3e6), ("v100", 12.5e6)):
            with self.subTest(device):
                kept, offloaded = (self.judge(self.list_of([("h", fate)]), device)[0] for fate in ("save", "offload"))
                self.assertAlmostEqual(offloaded - kept, 2 * 64 * MIB / bytes_per_ms + 0.07, delta=0.6)

    def test_recomputed_tensors_cost_their_ops(self):
        ms, peak, ops = self.judge(self.list_of([("y", "recompute")]))
        self.assertEqual(ops, ["a", "b", "loss", "b.again", "loss.bwd", "b.bwd", "a.bwd", "step"])
        self.assertAlmostEqual(ms, 12, delta=0.1)
        _, _, ops = self.judge(self.list_of([("y", "recompute"), ("h", "recompute")]))
        self.assertEqual(ops, ["a", "b", "loss", "a.again", "b.again", "loss.bwd", "b.bwd", "a.bwd", "step"])

    def test_save_on_cpu_copies_for_each_reader(self):
        path = self.directory / "list.json"
        self.export("save_on_cpu", self.trace, "-o", path)
        self.assertEqual(list(schema_errors(json.loads(path.read_text()), load_schema("saved-tensors"))), [])
        ops = self.judge(path)[2]
        self.assertEqual([name for name in ops if "to_" in name], [
            "x.to_host", "w.to_host", "h.to_host", "y.to_host", "y.to_device", "h.to_device", "w.to_device",
            "x.to_device"])
        sizes = {tensor["name"]: tensor["size"] for tensor in TRACE["tensors"]}
        row, = json.loads(self.ok("run", self.trace, "--policy", f"saved-tensors:file={path}", "--format", "json"))["rows"]
        self.assertEqual(row["offloaded_bytes"], sum(sizes[name] for name in "xwhy"))
        self.assertEqual(row["prefetched_bytes"], row["offloaded_bytes"])

    def test_a_comparison_of_a_recording_has_no_rows_of_algorithms(self):
        rows = json.loads(self.ok("compare", self.trace, "--format", "json"))["rows"]
        policies = [row["policy"] for row in rows]
        self.assertIn("as-recorded", policies)
        self.assertEqual([name for name in policies if ":" in name], [])
        self.assertEqual(len(set(policies)), len(policies))

    def test_checkpoints_keep_what_leaves_a_block(self):
        trace = json.loads(json.dumps(TRACE))
        trace["layers"][0]["name"] = "two/a"
        for one in trace["ops"]:
            one["layer"] = one["layer"].replace("one/a", "two/a")
        self.trace = self.file("blocks.json", trace)
        path = self.directory / "list.json"
        self.export("checkpoint", self.trace, "-o", path)
        fates = {entry["tensor"]: entry["fate"] for entry in json.loads(path.read_text())["tensors"]}
        self.assertEqual(fates, {"y": "save", "h": "recompute"})
        ops = self.judge(path)[2]
        self.assertEqual(ops, ["a", "b", "loss", "loss.bwd", "a.again", "b.bwd", "a.bwd", "step"])

    def test_a_plan_is_its_exported_list(self):
        path = self.directory / "list.json"
        for model in ("gpt2", "resnet50"):
            self.trace = ROOT / "traces" / "recorded" / "pytorch" / f"{model}-h200.json.zst"
            for plan in ("checkpoint", "save_on_cpu"):
                with self.subTest(model=model, plan=plan):
                    self.export(plan, self.trace, "-o", path)
                    self.assertEqual(self.judge_policy(f"plan={plan}"), self.judge(path))

    def test_a_budget_keeps_what_the_compiler_kept(self):
        manifest = self.file("m.json", {"saved_values": [[
            {"name": "primals_1", "input": True, "bytes": 4 * MIB}, {"name": "relu", "input": False, "bytes": 64 * MIB},
            {"name": "mul", "input": False, "bytes": 12}]]})
        path = self.directory / "list.json"
        told = self.export("budget", self.trace, "--manifest", manifest, "-o", path)
        self.assertIn("12 bytes in 1 values", told)
        fates = {entry["tensor"]: entry["fate"] for entry in json.loads(path.read_text())["tensors"]}
        self.assertEqual(fates, {"y": "recompute", "h": "save"})
        self.judge(path)

    def export(self, *args, code=0):
        result = subprocess.run([sys.executable, EXPORT, *map(str, args)], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stderr

    def test_wrong_lists(self):
        def refused(code, text, path):
            self.fails(code, text, "run", self.trace, "--device", "h200", "--policy", f"saved-tensors:file={path}")

        refused(3, "unknown tensor 'hh'; did you mean 'h'?", self.list_of([("hh", "save")]))
        refused(3, "the tensor is listed twice", self.list_of([("h", "save"), ("h", "offload")]))
        refused(3, "the list is for three:1, and this is two:1", self.file("other.json", {
            "format": "spillway-saved-tensors", "version": 1, "workload": "three:1", "tensors": []}))
        refused(3, 'expected "save", "recompute" or "offload"', self.file("fate.json", {
            "format": "spillway-saved-tensors", "version": 1, "workload": "two:1",
            "tensors": [{"tensor": "h", "fate": "swap"}]}))
        refused(3, "missing.json", self.directory / "missing.json")
        self.fails(2, "needs a list", "run", self.trace, "--policy", "saved-tensors")
        self.fails(2, "recorded", "run", "alexnet:1", "--policy", f"saved-tensors:file={self.list_of([])}")
        for parameters, text in (("plan=checkpoint,file=x.json", "not both"), ("plan=offload", "valid: "),
                                 ("plan=checkpoint,blocks=3", "has 2 blocks"), ("plan=save_on_cpu,blocks=1", "belongs to")):
            if "file" in parameters:
                parameters = parameters.replace("x.json", str(self.list_of([])))
            self.fails(2, text, "run", self.trace, "--policy", f"saved-tensors:{parameters}")
        unnamed = json.loads(json.dumps(TRACE).replace("one/a", "a").replace("two/b", "b"))
        self.fails(2, "name no blocks", "run", self.file("unnamed.json", unnamed), "--policy",
                   "saved-tensors:plan=checkpoint")
        trace = json.loads(json.dumps(TRACE))
        trace["ops"][0]["outputs"].append("w")  # the op now changes a persistent tensor
        self.trace = self.file("changes.json", trace)
        refused(3, "cannot be recomputed: op 'a'", self.list_of([("h", "recompute")]))

    def test_wrong_exports(self):
        out = self.directory / "o.json"
        self.assertIn("not a Spillway trace", self.export("save_on_cpu", self.file("e.json", {}), "-o", out, code=1))
        self.assertIn("no block 'three'", self.export("checkpoint", self.trace, "--block", "three", "-o", out, code=1))
        self.assertIn("--manifest", self.export("budget", self.trace, "-o", out, code=2))
        self.assertIn("no saved values", self.export("budget", self.trace, "--manifest", self.file("n.json", {}), "-o",
                                                       out, code=1))
        self.assertFalse(out.exists())


class SavedInTraceTest(CommandTest):
    """Before op 1, autograd saves x and h; before op 2, y. Backward takes y before op 3, h before op 4, and never takes x."""

    SAVED = [{"tensor": "x", "packed": 1, "unpacked": []}, {"tensor": "h", "packed": 1, "unpacked": [4]},
             {"tensor": "y", "packed": 2, "unpacked": [3]}]

    def file(self, saved, version=6):
        path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "t.json"
        path.write_text(json.dumps({"saved": saved, **TRACE, "version": version}), encoding="utf-8")
        return path

    def test_info_counts_what_is_saved(self):
        for saved, count, size in ((self.SAVED, 3, 96 * MIB), (self.SAVED[:2], 2, 64 * MIB), (self.SAVED[:1], 1, 0)):
            (row,) = json.loads(self.ok("trace", "info", self.file(saved), "--format", "json"))["rows"]
            self.assertEqual((row["saved_tensors"], row["saved_bytes"]), (count, size))

    def test_what_is_not_saved_stays(self):
        def moved(saved):
            path = self.file(saved)
            decisions = path.with_name("decisions.json")
            self.ok("run", path, "--device", "h200", "--memory", "1GiB", "--policy", "vdnn-all", "--quiet",
                    "--export", f"decisions:{decisions}")
            return {d["tensor"] for d in json.loads(decisions.read_text())["decisions"] if d["verb"] == "offload" and d["done"]}

        self.assertEqual(moved(self.SAVED) - {"x", "h", "y"}, set())
        self.assertIn("h", moved(self.SAVED))
        self.assertNotIn("h", moved([s for s in self.SAVED if s["tensor"] != "h"]))

    def test_bad_positions(self):
        for saved, message in (([{**self.SAVED[1], "tensor": "z"}], r"t.json:1:\d+: saved\[0\].tensor: there is no tensor 'z'"),
                               ([{**self.SAVED[1], "unpacked": [0]}], r"saved\[0\], tensor 'h': unpacked at 0, expected 1 to"),
                               ([{**self.SAVED[1], "packed": 99}], r"tensor 'h': packed at 99, expected 0 to"),
                               (self.SAVED[1:2] * 2, r"saved\[1\], tensor 'h': packed twice at 1")):
            self.assertRegex(self.fails(3, "t.json", "trace", "validate", self.file(saved)), message)
        self.fails(3, "the key 'saved' needs version 6", "trace", "info", self.file(self.SAVED, 3))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests spillway fit: its verdicts agree with `run`, its changes make the run fit, and wrong input gets clear messages.

usage: fit_test.py PATH_OF_SPILLWAY
"""

import csv
import itertools
import json
import math
import pathlib
import subprocess
import tempfile
import tomllib

from harness import ROOT, CommandTest, main, run

SMALL = ("--device", "gtx_970", "--outside", "0B")
GPT2, RESNET50 = (ROOT / "traces" / "recorded" / "pytorch" / f"{name}-h200.json.zst" for name in ("gpt2", "resnet50"))
QUICK = ("--policy", "superneurons", "--policy", "mxnet", "--policy", "network-wide:algo=memory")


def small_step():
    """Returns a recorded step of training: a product and another op in forward, two in backward, and an update."""
    def tensor(name, kind, mib):
        return {"name": name, "kind": kind, "shape": [mib << 18], "size": mib << 20}

    def op(name, phase, kind, inputs, outputs, flops, mib):
        return {"name": name, "layer": "l", "type": kind, "phase": phase, "batch": 4 if phase != "update" else 1, "inputs": inputs,
                "outputs": outputs, "slots": [{"name": "op", "signature": f"aten::{name}", "flops": flops, "traffic": mib << 20}],
                "recorded": {"time_ns": 0, "gap_ns": 0, "host_ns": 0, "workspace": 0}}
    return {"format": "spillway-trace", "version": 3, "name": "small:4", "network": "small", "batch": 4, "preset": "recorded",
            "training": True,
            "recording": {"framework": "PyTorch 2.11.0", "device": "", "step_ns": 0, "plain_step_ns": 0, "allocated": 0, "reserved": 0},
            "layers": [{"name": "l", "type": "other"}],
            "tensors": [tensor("x", "input", 64), tensor("w", "parameter", 512), tensor("m", "optimizer_state", 512),
                        tensor("y", "activation", 2048), tensor("z", "activation", 2048), tensor("d", "gradient", 2048),
                        tensor("g", "parameter_gradient", 512), tensor("t", "gradient", 256)],
            "ops": [op("mm", "forward", "matmul", ["x", "w"], ["y"], 10**13, 2624), op("gelu", "forward", "other", ["y"], ["z"], 0, 4096),
                    op("gelu_backward", "backward", "other", ["y", "z"], ["d"], 0, 6144),
                    op("mm_backward", "backward", "matmul", ["d", "x"], ["g"], 10**13, 2624),
                    op("scale", "update", "other", ["g"], ["t"], 0, 768),
                    op("add", "update", "other", ["w", "m", "t"], ["w", "m"], 0, 2048)]}


class FitTest(CommandTest):
    def rows(self, *args, code=0):
        return self.conforms(self.ok("fit", *args, "--format", "json", code=code), "fit")["rows"]

    def run_row(self, workload, row, memory, code=0):
        text = self.ok("run", workload, "--device", row["device"], "--policy", row["policy"], "--allocator",
                       row["allocator"], "--memory", memory, "--format", "json", code=code)
        return json.loads(text)["rows"][0]

    def test_devices_are_ranked_by_times_of_one_kind(self):
        asked = ("fit", "gpt2@1024:8,precision=bf16,optimizer=adamw")
        text = self.ok(*asked, "--device", "h200,h100", "--wide")
        self.assertRegex(text, r"(?m)^gpt2@1024:8\S* .* h200 +\* .* analytic ")
        self.assertRegex(text, r"(?m)^gpt2@1024:8\S* .* h100  .* analytic ")
        self.assertIn("were recorded on h200, but not on all of these devices.", " ".join(text.split()))
        rows = {}
        for devices in ("h200,h100", "h200"):
            rows |= {(devices, row["device"]): row for row in json.loads(self.ok(*asked, "--device", devices, "--format", "json"))["rows"]}
        self.assertTrue(rows["h200", "h200"]["cost"].startswith("recorded on NVIDIA H200"))
        analytic, other = (rows["h200,h100", device]["iteration_ms"] for device in ("h200", "h100"))
        self.assertLess(abs(analytic / rows["h200", "h200"]["iteration_ms"] - 1), 0.1)
        self.assertGreater(other, analytic)  # the same multiprocessors with slower memory
        self.assertLess(other, 1.3 * analytic)
        compared = json.loads(self.ok("compare", *asked[1:], "--device", "h200,h100", "--policy", "liveness", "--format", "json"))["rows"]
        self.assertEqual([row["cost"].split()[0] for row in compared], ["analytic"] * 2)
        self.assertIn("note: the kernel times of gpt2@1024:8", run("compare", *asked[1:], "--device", "h200,h100", "--policy", "liveness").stderr)
        alone = self.ok(*asked, "--device", "h200")
        self.assertNotIn("were recorded on", alone)

    def test_a_verdict_is_that_of_a_run(self):
        (row,) = self.rows("alexnet:32", *SMALL)
        self.assertEqual((row["change"], row["allocator"], row["status"], row["slowdown"]),
                         ("none", "pytorch", "fits", 1))
        run = self.run_row("alexnet:32", row, "unlimited")
        for key in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "iteration_ms",
                    "samples_per_second"):
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
        fitting = [row["slowdown"] for row in changes if row["status"] != "no"]
        self.assertEqual(fitting, sorted(fitting))
        batches = {row["workload"]: row for row in changes if row["change"] == "batch"}
        self.assertEqual(batches["resnet50:16"]["batch_source"], "given")
        self.assertEqual(batches["resnet50:64"]["batch_source"], "lowered")
        self.assertGreater(batches["resnet50:64"]["batch"], 16)
        for row in changes:
            if row["status"] == "no":  # a change in PyTorch that helps, but not enough
                self.assertLess(row["peak_reserved_bytes"], first["peak_reserved_bytes"])
                continue
            if row["change"] == "batch":
                continue
            run = self.run_row("resnet50:64", row, f"{row['memory_bytes']}B")
            self.assertEqual(row["iteration_ms"], run["iteration_ms"])
            self.assertAlmostEqual(row["slowdown"], row["iteration_ms"] / first["iteration_ms"])

    def test_a_recorded_step_is_mended_with_pytorch_first(self):
        rows = self.rows(GPT2, *SMALL, *QUICK, code=1)
        first, *others = rows
        self.assertEqual((first["change"], first["batch_source"], first["python"]), ("none", "given", None))
        remedies = [row for row in others if row["remedy"] and row["status"] != "no"]
        self.assertEqual({row["change"] for row in remedies}, {
            "checkpoint", "selective checkpoint", "save_on_cpu", "batch", "micro-batches", "8-bit optimizer",
            "offloaded optimizer", "loss chunks", "spillway"})
        for row in remedies:
            compile(row["python"], "remedy", "exec")
            self.assertLess(row["peak_reserved_bytes"], first["peak_reserved_bytes"])
            if row["change"] == "batch":
                self.assertEqual((row["batch"], row["batch_source"], row["remedy"]), (3, "scaled", "batch 3 (scaled)"))
            elif row["change"] == "micro-batches":
                self.assertEqual((row["batch"], row["remedy"]), (4, "2 micro-batches of 2"))
            elif row["policy"] not in ("as-recorded", "step-plan"):  # else of a changed trace
                run = self.run_row(GPT2, row, f"{row['memory_bytes']}B")
                self.assertEqual(row["peak_allocated_bytes"], run["peak_allocated_bytes"])
        # Fewer checkpoints do not fit.
        some = next(row for row in remedies if " of 12 blocks" in row["remedy"])
        count = int(some["remedy"].split()[1])
        fewer = {**some, "policy": f"saved-tensors:plan=checkpoint,blocks={count - 1}"}
        self.run_row(GPT2, fewer, f"{first['memory_bytes']}B", code=1)
        self.assertIn(f"model.transformer.h[:{count}]", some["python"])

    def test_spillway_moves_activations_and_state_together(self):
        times = []
        for memory in ("3GiB", "3500MiB"):
            rows = self.rows(GPT2, "--memory", memory, *QUICK[:2], code=1)
            row = next(row for row in rows if row["change"] == "spillway")
            if row["status"] != "fits":
                self.assertRegex(row["reason"], "^at least .* are needed at once, .* of them parameters, and .* are there$")
                continue
            budget = int(memory.removesuffix("MiB")) if memory.endswith("MiB") else 1024 * int(memory.removesuffix("GiB"))
            self.assertIn(f'memory="{budget}MiB", early_updates=True', row["python"])
            times.append(row["iteration_ms"])
            self.assertEqual(row["policy"], "step-plan")
        self.assertGreater(len(times), 1)
        self.assertEqual(times, sorted(times, reverse=True))

    def test_a_compiled_step(self):
        step = small_step()
        slots = [op["slots"][0] for op in step["ops"] if op["phase"] != "update"]
        flops, traffic = sum(slot["flops"] for slot in slots), sum(slot["traffic"] for slot in slots if slot["flops"] == 0)
        lives = sum(tensor["size"] for tensor in step["tensors"]
                    if tensor["kind"] in ("parameter", "optimizer_state", "input") and "alias_of" not in tensor)

        def cut(mib, products, others, kernels=200):
            return {"memory": mib << 20, "flops": int(products * flops), "traffic": int(others * traffic), "kernels": kernels}
        own, slow, fast, least = cut(2048, 1, 0.4), cut(1536, 1.5, 0.5), cut(1280, 1.2, 0.5), cut(1024, 1.4, 0.6)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.json"

            def rows(mib, *cuts, args=(), code=1):
                path.write_text(json.dumps({**step, "version": 12, "compiled": cuts} if cuts else step), encoding="utf-8")
                memory = lives + (mib << 20)
                found = {row["change"]: row for row in self.rows(path, "--memory", f"{memory}B", *QUICK[:2], *args, code=code)}
                return [found.get(change) for change in ("none", "compile", "compile within the budget")]

            def ms(*cuts):
                return rows(cuts[-1]["memory"] // (1 << 20) + 64, *cuts)[min(2, len(cuts))]["iteration_ms"]
            # Where PyTorch's own cut fits, it is the row; else the fastest that fits, or the one of least memory.
            whole, compiled, within = rows(2112, own, slow, fast, least)
            self.assertEqual((compiled["status"], compiled["python"].splitlines()[1:], within), ("fits", ["model.compile()"], None))
            self.assertAlmostEqual(compiled["peak_requested_bytes"], lives + own["memory"], delta=1)
            self.assertLess(compiled["slowdown"], 1)
            self.assertEqual((compiled["cost"], compiled["arithmetic"]),
                             (f"estimated from the step without torch.compile: {whole['cost']}", whole["arithmetic"]))
            _, compiled, within = rows(1600, own, slow, fast, least)
            self.assertEqual((compiled["status"], within["status"]), ("no", "fits"))
            self.assertAlmostEqual(within["peak_requested_bytes"], lives + fast["memory"], delta=1)
            budget = int(within["memory_bytes"]) >> 20
            self.assertTrue(within["python"].endswith(f'\nspillway_torch.compile(model, memory="{budget}MiB")'), within["python"])
            self.assertIn("expandable_segments", within["python"])
            compile(within["python"], "remedy", "exec")
            _, compiled, within = rows(900, own, slow, fast, least)
            self.assertEqual((compiled["status"], within["status"]), ("no", "no"))
            self.assertAlmostEqual(within["peak_requested_bytes"], lives + least["memory"], delta=1)
            # The update is that of the recorded step, with the gradient and a temporary tensor, and without the data.
            self.assertEqual(rows(900, cut(520, 1, 1))[1]["peak_requested_bytes"], lives + (704 << 20))
            rows(900, own, slow, fast, least)
            page = " ".join(self.ok("fit", path, "--memory", f"{lives + (900 << 20)}B", *QUICK[:2], code=1).split())
            self.assertIn("It does not fit with torch.compile, which reserves", page)
            self.assertIn("It does not fit with torch.compile within the budget, which reserves", page)
            # Products take as long for their flops as recorded, and other kernels for their bytes; the host may be slower.
            first, more, twice = ms(own), ms(own, cut(1536, 2, 0.4)), ms(own, cut(1536, 3, 0.4))
            self.assertAlmostEqual(more - first, twice - more, delta=1e-6 * twice)
            self.assertGreater(more, first)
            first, more, twice = ms(own), ms(own, cut(1536, 1, 0.8)), ms(own, cut(1536, 1, 1.2))
            self.assertAlmostEqual(more - first, twice - more, delta=1e-6 * twice)
            self.assertGreater(more, first)
            self.assertGreater(ms(cut(2048, 1, 0.4, 10**6)), 7000)
            # Half of the step is not compiled, and takes what it took.
            everything, half = ms(cut(2048, 1, 1)), ms(cut(2048, 0.5, 0.5))
            self.assertAlmostEqual(everything, half, delta=1e-6 * everything)
            # No op of forward or backward can follow an update.
            ops = step["ops"]
            ops.append({**ops[1], "name": "late", "inputs": ["w"], "outputs": ["t"]})
            self.assertEqual(rows(900, own, least)[1:], [None, None])
            ops.pop()
            # The rows are about the step as recorded. Where nothing is known, a line says how to know it.
            said = "records a step with what it takes compiled"
            for args in (), ("--batch", "2"):
                self.assertEqual(rows(100, own, least, args=args)[1:] == [None, None], bool(args), args)
                for cuts in (own,), ():
                    rows(100, *cuts)
                    page = " ".join(self.ok("fit", path, "--memory", f"{lives + (100 << 20)}B", *QUICK[:2], *args, code=1).split())
                    self.assertEqual(said in page, not cuts and not args)
            page = self.ok("fit", "gpt2:8", "--memory", "2GiB", *QUICK[:2], code=1)
            self.assertNotIn(said, " ".join(page.split()))
            # A trace with other ops or another batch has no cuts.
            rows(100, own)
            built = path.with_name("built.json")
            for change, kept in ((",host=7us", True), (",batch=8", False), (",precision=bf16", False)):
                self.ok("trace", "build", f"{path}{change}", "-o", built)
                self.assertEqual(json.loads(built.read_text("utf-8")).get("compiled"), [own] if kept else None, change)

    def test_bf16_takes_the_arithmetic_of_the_card(self):
        rows = self.rows(GPT2, "--memory", "3GiB", *QUICK[:2], code=1)
        row = next(row for row in rows if row["change"] == "bf16")
        self.assertEqual((rows[0]["arithmetic"], row["arithmetic"], row["python"].splitlines()[0]),
                         ("fp32", "bf16", "model.bfloat16()"))
        self.assertLess(row["slowdown"], 1)

    def test_a_workloads_text_asks_for_the_same_changes(self):
        rows = {row["change"]: row for row in self.rows(GPT2, *SMALL, *QUICK, code=1)}
        for change, text in (("8-bit optimizer", "optimizer=8bit"), ("offloaded optimizer", "optimizer=offloaded"),
                             ("loss chunks", "loss-chunks=8"), ("batch", "batch=3"), ("micro-batches", "batch=2,accumulate=2")):
            run = self.run_row(f"{GPT2},{text}", rows[change], "unlimited")
            for key in ("workload", "batch", "iteration_ms", "peak_requested_bytes"):
                self.assertEqual(rows[change][key], run[key] if key != "workload" else str(GPT2), (change, key))
        # Changes can be made together, on the way to a run, a comparison, a sweep or a trace.
        both = f"{GPT2},batch=8,optimizer=8bit,precision=bf16"
        (row,) = self.conforms(self.ok("compare", both, "--policy", "liveness", "--format", "json"), "results")["rows"]
        self.assertEqual((row["batch"], row["optimizer"], row["precision"]), (8, "8bit", "bf16"))
        with tempfile.TemporaryDirectory() as directory:
            trace = pathlib.Path(directory) / "both.json"
            self.ok("trace", "build", both, "-o", trace)
            (built,) = json.loads(self.ok("compare", trace, "--policy", "liveness", "--format", "json"))["rows"]
            self.assertAlmostEqual(built["iteration_ms"], row["iteration_ms"], delta=1e-3)  # a file holds whole ns
            store = pathlib.Path(directory) / "s.sqlite"
            self.ok("sweep", f"{GPT2},batch={{2,8}},precision=bf16", "--policy", "liveness", "-o", store)
            swept = json.loads(self.ok("sweep", "export", store, "--format", "json"))["rows"]
            self.assertEqual([(row["batch"], row["precision"]) for row in swept], [(2, "bf16"), (8, "bf16")])
        self.fails(2, "precision: the device 'k40c' has no rate for bf16", "run", f"{GPT2},precision=bf16", "--device", "k40c")
        self.fails(2, "does not hold two moments for each parameter", "run", f"{RESNET50},optimizer=8bit")

    def test_the_page_of_a_recorded_step(self):
        page = self.ok("fit", GPT2, *SMALL, *QUICK, code=1)
        parts = ["does not fit on", "What makes it fit in PyTorch", "  for b in model.transformer.h", "does not fit with",
                 "Policies of research", "superneurons", "by block:", "transformer.h.*: 12 blocks", "by layer:", "by tensor:"]
        places = [page.find(part) for part in parts]
        self.assertEqual(places, sorted(places), dict(zip(parts, places)))
        self.assertNotIn(-1, places)
        self.assertEqual([line for line in page.splitlines() if len(line) > 80], [])

    def test_what_cannot_be_predicted_is_said(self):
        text = subprocess.run(["zstd", "-dc", GPT2], stdout=subprocess.PIPE, check=True).stdout.decode()
        stuck = json.loads(text)
        ops = [op for op in stuck["ops"] if op["name"].startswith("transformer.h.0/addmm")]
        ops[0]["outputs"].append(ops[0]["inputs"][0])  # it changes a parameter
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "t.json"
            path.write_text(json.dumps(stuck), encoding="utf-8")
            page = self.ok("fit", path, *SMALL, "--policy", "network-wide", code=1)
            self.assertIn("cannot be recomputed", " ".join(page.split()))
            self.assertIn("save_on_cpu", page)
            path.write_text(text.replace("transformer.h.", "transformer_").replace('/', "-"), encoding="utf-8")
            page = self.ok("fit", path, *SMALL, "--policy", "network-wide", code=1)
            self.assertIn("does not name the model's blocks", " ".join(page.split()))
            self.assertNotIn("by block", page)

    def test_checkpoints_of_batch_normalization_are_explained(self):
        for workload, memory, said in ((RESNET50, "2GiB", True), (GPT2, "3500MiB", False)):
            page = self.ok("fit", workload, "--memory", memory, "--device", "h200", code=1)
            self.assertEqual("run batch normalization twice" in " ".join(page.split()), said)

    def test_sums_at_the_peak_are_complete(self):
        for workload in (GPT2, "resnet50:8"):
            row = self.rows(workload, "--device", "h200")[0]
            for key in ("peak_blocks", "peak_layers"):
                self.assertEqual(sum(one["requested_bytes"] for one in row[key]), row["peak_requested_bytes"], key)
        self.assertEqual(self.rows(GPT2, "--device", "h200", "--batch", "4")[0]["batch_source"], "given")

    def test_another_batch(self):
        def row(workload, *args):
            return self.rows(*workload, "--device", "h200", *args)[-1]

        lowered = row(["resnet50:16"], "--batch", "2x")
        self.assertEqual((lowered["batch"], lowered["batch_source"]), (32, "lowered"))
        self.assertEqual(lowered["iteration_ms"], row(["resnet50:32"])["iteration_ms"])
        as_it_is = row([GPT2])
        with tempfile.TemporaryDirectory() as directory:
            twice = row([GPT2], "--batch", "8")
            self.assertEqual((twice["batch"], twice["batch_source"]), (8, "scaled"))
            self.assertIsNone(twice["recorded_reserved_bytes"])
            half = row([GPT2], "--batch", "0.5x")
            self.assertEqual(half["batch"], 2)
            self.assertAlmostEqual(twice["peak_requested_bytes"] - as_it_is["peak_requested_bytes"],
                                   2 * (as_it_is["peak_requested_bytes"] - half["peak_requested_bytes"]), delta=1 << 20)
            # Two recordings: the second is that of a model with more operators, and is of no use for the first.
            self.assertEqual(row([RESNET50, GPT2], "--batch", "0.5x"), half)
            path = pathlib.Path(directory) / "o.json"
            self.ok("fit", GPT2, "--device", "h200", "--batch", "0.5x", "-o", path)
            self.ok("replay-run", f"{path}.manifest.json")
        for text, message in (("0.3x", "1.2 samples of 4"), ("0", "whole number"), ("2y", "neither"), ("", "neither"),
                              ("1e9", "1048576"), ("nan", "whole number")):
            self.fails(2, message, "fit", GPT2, *SMALL, "--batch", text)

    def test_two_recordings_are_interpolated(self):
        trace = json.loads(subprocess.run(["zstd", "-dc", GPT2], stdout=subprocess.PIPE, check=True).stdout)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "twelve.json"
            trace.update(name="gpt2:12", batch=12)
            for tensor in trace["tensors"]:  # as if only activations grew, to twice the size
                if tensor["kind"] == "activation" and "alias_of" not in tensor:
                    tensor["size"] *= 2
            path.write_text(json.dumps(trace), encoding="utf-8")
            at = {batch: self.rows(GPT2, path, "--device", "h200", "--batch", batch)[0] for batch in (4, 8, 12)}
            rows = self.rows(GPT2, path, *SMALL, *QUICK[:2], "--batch", "12", code=1)
        smaller = next(row for row in rows if row["change"] == "batch")
        self.assertIn((smaller["batch"], smaller["batch_source"]), [(n, "interpolated") for n in (1, 2, 3)])
        self.assertEqual([at[batch]["batch_source"] for batch in at], ["given", "interpolated", "interpolated"])
        self.assertEqual({row["batch"] for row in at.values()}, set(at))
        peaks = [at[batch]["peak_requested_bytes"] for batch in (4, 8, 12)]
        self.assertAlmostEqual(peaks[1], (peaks[0] + peaks[2]) / 2, delta=1 << 16)  # the op at the peak may differ

    def varied(self, *args, code=0):
        return self.conforms(self.ok("fit", *args, "--format", "json", code=code), "fit-vary")["rows"]

    def test_the_largest_batch(self):
        rows = self.varied(GPT2, "--vary", "batch", "--memory", "12GiB")
        first = rows[0]
        self.assertEqual((first["change"], first["remedy"], first["batch"]), ("none", None, first["limit"]))
        self.assertEqual({row["change"] for row in rows[1:]}, {
            "allocator", "bf16", "checkpoint", "selective checkpoint", "save_on_cpu", "8-bit optimizer", "offloaded optimizer",
            "loss chunks"})
        self.assertEqual([row["limit"] for row in rows[1:]], sorted((row["limit"] for row in rows[1:]), reverse=True))
        for row in rows:
            self.assertEqual((row["next"], row["batch_source"]), (row["limit"] + 1, "scaled"))
        # It is the verdict of fit --batch.
        for batch, status in ((first["limit"], "fits"), (first["next"], "no")):
            (*_, row) = self.rows(GPT2, "--batch", batch, "--memory", "12GiB", *QUICK[:2], code=status == "no")[:1]
            self.assertEqual((row["status"], row["peak_reserved_bytes"]), (status, first[
                "peak_reserved_bytes" if status == "fits" else "next_reserved_bytes"]))

    def test_the_largest_batch_of_a_network_and_of_nothing(self):
        first, expandable = self.varied("vgg16:32", "--vary", "batch", *SMALL)
        self.assertEqual((first["batch_source"], expandable["change"]), ("lowered", "allocator"))
        self.run_row(f"vgg16:{first['limit']}", first, f"{first['memory_bytes']}B")
        self.run_row(f"vgg16:{first['next']}", first, f"{first['memory_bytes']}B", code=1)
        none = self.varied("vgg16:32", "--vary", "batch", "--memory", "500MiB", code=1)[0]
        self.assertEqual((none["limit"], none["next"], none["batch"], none["status"]), (None, 1, 1, "no"))

    @staticmethod
    def toy(length):
        """Returns a recorded step of 4 samples: y = embed(x, w) of 1024 fp32 for each number of x, and the gradient of w."""
        def op(name, phase, inputs, outputs, flops=0):
            return {"name": name, "layer": name, "type": "other", "phase": phase, "batch": 4, "inputs": inputs, "outputs": outputs,
                    "slots": [{"name": "op", "signature": f"aten::{name}", "flops": flops, "traffic": 4096 * length}],
                    "recorded": {"time_ns": 0, "gap_ns": 0, "host_ns": 0, "workspace": 0}}

        def tensor(name, kind, shape, size, **keys):
            return {"name": name, "kind": kind, "shape": shape, "size": size, **keys}

        return {"format": "spillway-trace", "version": 4, "name": "toy:4", "network": "toy", "batch": 4, "preset": "recorded",
                "training": True, "recording": {"framework": "PyTorch", "device": "", "step_ns": 0, "plain_step_ns": 0,
                                                "allocated": 0, "reserved": 0},
                "layers": [{"name": name, "type": "other"} for name in ("embed", "embed_backward", "add_")],
                "tensors": [tensor("x", "input", [4, length], 32 * length, dtype="int64"),
                            tensor("w", "parameter", [512, 1024], 1 << 21),
                            tensor("y", "activation", [4, length, 1024], 16384 * length),
                            tensor("dw", "parameter_gradient", [512, 1024], 1 << 21)],
                # A trace holds at most 2^60 flops: 13,981 numbers of each sample.
                "ops": [op("embed", "forward", ["x", "w"], ["y"], 75 * length << 40), op("embed_backward", "backward", ["x", "y"], ["dw"]),
                        op("add_", "update", ["dw", "w"], ["w"])]}

    def test_a_step_says_what_the_host_means_for_it(self):
        def written(host_ns, flops):
            step = self.toy(256)
            for op in step["ops"]:
                op["recorded"]["host_ns"] = host_ns
                op["slots"][0] |= {"flops": flops, "traffic": 0}
            path = pathlib.Path(directory) / f"{host_ns}-{flops}.json"
            path.write_text(json.dumps(step), encoding="utf-8")
            return path

        def told(path, options=""):
            """Returns the numbers, which both verbs have, and the sentences of both."""
            rows = []
            for verb in (("run", "--policy", "as-recorded"), ("fit",)):
                command = (verb[0], f"{path}{options}", "--device", "h200", *verb[1:])
                row = self.conforms(self.ok(*command, "--format", "json"), "fit" if verb[0] == "fit" else "results")["rows"][0]
                rows.append([row[name] for name in ("host_bound", "fastest_host_ms", "slowest_host_ms")])
                page = " ".join(self.ok(*command).split())
                self.assertEqual("is host-bound on h200" in page, row["host_bound"], page)
                self.assertEqual("The host's speed is not known" in page, row["fastest_host_ms"] is not None, page)
            self.assertEqual(rows[0], rows[1])
            return row["iteration_ms"], *rows[0]

        with tempfile.TemporaryDirectory() as directory:
            # Three operators: of 7 us, or of 87 us on the slowest host.
            time, bound, fastest, slowest = told(written(0, 0))
            self.assertTrue(bound)
            self.assertEqual(fastest, time)
            self.assertAlmostEqual(slowest - fastest, 3 * 0.08, delta=1e-3)
            time, bound, fastest, slowest = told(written(0, 10**15))
            self.assertFalse(bound)
            self.assertGreater(fastest, 10)
            self.assertAlmostEqual(slowest, time + 0.08, delta=1e-3)  # of the first operator
            # The host is known: measured, or given.
            self.assertEqual(told(written(50_000, 0))[1:], (True, None, None))
            self.assertEqual(told(written(0, 0), ",host=20us")[1:], (True, None, None))
            self.assertEqual(told(written(0, 0), ",host=none")[1:], (False, None, None))
            # Each of several devices has its own.
            page = " ".join(self.ok("fit", written(0, 0), "--device", "h100,h200").split())
            self.assertRegex(page, r"is host-bound on h\d00, h\d00: .* takes [\d.]+ us to [\d.]+ us on h\d00, [\d.]+ us to ")
            # So has each of several policies.
            compared = ("compare", written(0, 0), "--policy", "as-recorded,liveness")
            self.assertEqual([row["fastest_host_ms"] for row in json.loads(self.ok(*compared, "--format", "json"))["rows"]], 2 * [told(written(0, 0))[2]])
            page = " ".join(self.ok(*compared).split())
            self.assertIn("is host-bound under as-recorded, liveness:", page)
            self.assertRegex(page, r" takes [\d.]+ us to [\d.]+ us under as-recorded, [\d.]+ us to [\d.]+ us under liveness\.")

    def test_the_slowest_host_is_that_of_the_evidence(self):
        times = sorted(1e3 * float(row["host_ms_measured"]) / int(row["operators_recorded"])
                       for path in (ROOT / "experiments/evidence/pytorch").glob("recordings-*.csv")
                       for row in csv.DictReader(path.read_text("utf-8").splitlines()) if row.get("host_ms_measured"))
        self.assertEqual(len(times), 67)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "step.json"
            path.write_text(json.dumps(self.toy(256)), encoding="utf-8")
            page = " ".join(self.ok("fit", path, "--device", "h200").split())
        self.assertIn(f"with 7 us to {math.ceil(times[round(0.95 * (len(times) - 1))])} us for an operator", page)

    def test_the_largest_length(self):
        with tempfile.TemporaryDirectory() as directory:
            pair = []
            for length in (256, 512):
                pair.append(pathlib.Path(directory) / f"{length}.json")
                pair[-1].write_text(json.dumps(self.toy(length)), encoding="utf-8")
            vary = ("fit", *pair, "--vary", "length", "--memory", "64MiB")
            first, *others = self.varied(*vary[1:])
            self.assertEqual((first["batch"], first["batch_source"], first["next"]), (4, "interpolated", first["limit"] + 1))
            self.assertEqual(first["peak_requested_bytes"], (1 << 22) + 16416 * first["limit"])
            # PyTorch takes 20 MiB for w and dw, and 2 MiB for x.
            self.assertEqual(first["limit"], (42 << 20) // 16384)
            remedies = {row["remedy"].split(",")[0]: row["limit"] for row in others}
            # Expandable segments grow by 20 MiB: 60 MiB hold w, two gradients and y.
            self.assertEqual(remedies["4 micro-batches of 1"], (54 << 20) // 4096)
            self.assertEqual(remedies["expandable segments"], (56 << 20) // 16384)
            self.assertEqual(set(remedies), {"4 micro-batches of 1", "bf16 weights (other numerics)", "expandable segments",
                                             "save_on_cpu"})
            named = pathlib.Path(directory) / "named.json"
            named.write_text(json.dumps({**self.toy(512), "name": "long:4", "network": "long"}), encoding="utf-8")
            self.assertEqual(self.varied(pair[0], named, *vary[3:])[0]["limit"], first["limit"])
            self.assertIn(f"as it is {first['limit']} {first['next']} ", " ".join(self.ok(*vary).split()))
            page = self.ok("fit", pair[0], "--vary", "batch", "--memory", "64MiB")
            self.assertIn("A scaled batch is an estimate", page)
            self.assertEqual([line for line in page.splitlines() if len(line) > 80], [])
            output = pathlib.Path(directory) / "o.json"
            self.ok(*vary, "-o", output)
            self.ok("replay-run", f"{output}.manifest.json")
            self.fails(2, "have the same batch of 4", "fit", *pair, "--vary", "batch")
            self.fails(2, "are of one network; expected two", "fit", *pair, pair[0], "--vary", "length")
        # A network of the program has any length and any batch, with the options of its text.
        text = "gpt(64,2,4,100)@{}:{},optimizer=adamw"
        for vary, value in (("length", lambda n: text.format(n, 4)), ("batch", lambda n: text.format(16, n))):
            devices = ("gtx_970:memory=64MiB", "k40c:memory=32MiB")
            rows = self.varied(text.format(16, 4), "--vary", vary, "--device", ",".join(devices), "--outside", "0B")
            self.assertEqual([row["device"] for row in rows if row["change"] == "none"], list(devices))
            for row in rows:
                self.assertEqual((row["vary"], row["limit"] + 1, row["batch_source"]), (vary, row["next"], "lowered"))
                if row["change"] != "none":
                    continue
                for number, code in ((row["limit"], 0), (row["next"], 1)):
                    (alone, *_) = self.rows(value(number), "--device", row["device"], "--outside", "0B", *QUICK[:2], code=code)
                    if not code:
                        self.assertEqual(alone["peak_reserved_bytes"], row["peak_reserved_bytes"])
        for message, *args in (("neither batch nor length", GPT2, "--vary", "depth"),
                               ("'vgg16' reads images", "vgg16:2", "--vary", "length"), ("no quantity", GPT2, "--vary", ""),
                               ("two recordings of one program", GPT2, "--vary", "length"),
                               ("have the same length", GPT2, GPT2, "--vary", "length"),
                               ("combined with --batch", GPT2, "--vary", "batch", "--batch", "8"),
                               ("combined with --policy", GPT2, "--vary", "batch", *QUICK[:2])):
            self.fails(2, message, "fit", *args)

    def test_a_network_with_its_loss_in_chunks(self):
        text = "gpt(64,2,4,5000)@64:8,optimizer=adamw"
        rows = {row["change"]: row for row in self.rows(text, "--device", "gtx_970:memory=24MiB", "--outside", "0B", *QUICK[:2], code=1)}
        run = self.run_row(f"{text},loss-chunks=8", rows["loss chunks"], "unlimited")
        self.assertEqual(rows["loss chunks"]["iteration_ms"], run["iteration_ms"])
        self.assertLess(rows["loss chunks"]["peak_reserved_bytes"], 0.65 * rows["none"]["peak_reserved_bytes"])
        self.assertNotIn("loss chunks", {row["change"] for row in self.rows(f"{text},loss-chunks=2", "--device", "gtx_970:memory=24MiB",
                                                                            "--outside", "0B", *QUICK[:2], code=1)})

    def test_the_cheapest_combination_fits_where_no_change_alone_does(self):
        first, *others = self.rows(GPT2, "--memory", "1800MiB", *QUICK[:2], code=1)
        fitting = [row for row in others if row["remedy"] and row["status"] != "no"]
        self.assertEqual([row["change"] for row in fitting], ["combination", "spillway", "spillway"])
        self.assertGreaterEqual(fitting[0]["remedy"].count(" + "), 1)
        self.assertLessEqual(fitting[0]["peak_reserved_bytes"], first["memory_bytes"])
        for part in fitting[0]["remedy"].split(" + "):
            self.assertIn(f"# {part}\n", fitting[0]["python"])
        self.assertIn('allow="chunked_loss"', fitting[1]["python"])

    def test_frozen_weights_on_the_host(self):
        """Eight frozen weights of 6 MiB below a trained one."""
        trace = self.toy(64)
        embed, backward, update = trace["ops"]
        tensors, forward, back = trace["tensors"], [], []
        for layer in range(8):
            tensors += [{"name": f"f{layer}", "kind": "parameter", "shape": [1536, 1024], "size": 6 << 20},
                        {"name": f"z{layer}", "kind": "activation", "shape": [4, 64, 1024], "size": 1 << 20}]
            forward.append({**embed, "name": f"layer{layer}", "inputs": [f"z{layer - 1}" if layer else "y", f"f{layer}"],
                            "outputs": [f"z{layer}"]})
            back.insert(0, {**backward, "name": f"layer{layer}.bwd", "inputs": [f"z{layer}", f"f{layer}"], "outputs": [f"z{layer}"]})
        backward["inputs"] = ["x", "z0"]
        trace["ops"] = [embed, *forward, *back, backward, update]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "frozen.json"
            path.write_text(json.dumps(trace), encoding="utf-8")
            rows = {row["change"]: row for row in self.rows(path, "--memory", "40MiB", *QUICK, code=1)}
            row = rows["spillway"]
            self.assertEqual((row["remedy"], row["status"]), ("Spillway: activations and frozen weights", "fits"))
            self.assertLessEqual(row["peak_reserved_bytes"], 40 << 20)

    def test_a_construction_that_does_not_fit(self):
        """A model that is built in fp32 and then cast: the peak is the construction's, and the first remedy is another one."""
        trace = self.toy(64)
        trace["version"] = 5
        trace["tensors"][1]["request"] = 1
        trace["recording"]["requests"] = [[200 << 20, 2], [1 << 21, -1]]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "cast.json"
            path.write_text(json.dumps(trace), encoding="utf-8")
            first, build, *others = self.rows(path, "--memory", "100MiB", *QUICK, code=1)
            self.assertEqual(first["status"], "no")
            self.assertEqual(first["reason"], "its construction, before the first step, takes 220 MiB at once, of 100 MiB that there "
                                              "are: build it in bf16, or on the CPU")
            self.assertEqual((build["change"], build["status"]), ("construction", "fits"))
            for row in others:
                if row["remedy"] and row["status"] != "no":
                    self.assertTrue(row["python"].startswith(build["python"]), row)
                    self.assertTrue(row["remedy"].endswith(", build in bf16 or on the CPU"), row)
            told = " ".join(self.ok("fit", path, "--memory", "100MiB", *QUICK, code=1).split())
            self.assertIn("Build it in bf16, or on the CPU, first", told)
            self.assertEqual(self.rows(path, "--memory", "256MiB", *QUICK)[0]["status"], "fits")
            # Nothing of this construction goes before the first step.
            trace["recording"]["requests"] = [[200 << 20, -1], [1 << 21, -1]]
            path.write_text(json.dumps(trace), encoding="utf-8")
            self.assertNotIn("on the CPU", self.ok("fit", path, "--memory", "100MiB", *QUICK, code=1))

    def test_room_is_left_for_the_context(self):
        """What CUDA's context and libraries take is left free on a device, and not in a memory that is asked for."""
        for args, outside in ((("--device", "gtx_970"), 760 << 20), (("--memory", "4GiB"), 0),
                              (("--memory", "4GiB", "--outside", "1GiB"), 1 << 30), (SMALL, 0)):
            row = self.rows("alexnet:32", *args)[0]
            self.assertEqual(row["outside_bytes"], outside)
            self.assertEqual(row["margin_bytes"], row["memory_bytes"] - outside - row["peak_reserved_bytes"])

    def test_what_is_outside_counts(self):
        (row,) = self.rows("alexnet:32", *SMALL)
        margin = row["margin_bytes"]
        (row,) = self.rows("alexnet:32", *SMALL[:2], "--outside", f"{margin}B")
        self.assertEqual((row["status"], row["margin_bytes"]), ("fits", 0))
        rows = self.rows("alexnet:32", *SMALL[:2], "--outside", f"{margin + (1 << 28)}B", *QUICK, code=1)
        self.assertEqual(rows[0]["status"], "no")

    def test_every_device_by_default(self):
        devices = self.ok("completion", "devices").split()
        rows = self.rows("alexnet:1")
        self.assertEqual([row["device"] for row in rows], devices)
        text = self.ok("fit", "alexnet:1")
        self.assertIn("Most is requested at", text)

    def test_nothing_helps(self):
        text = self.ok("fit", "vgg416:1", *SMALL[:2], "--policy", "liveness:algo=memory", "--outside", "3GiB", code=1)
        self.assertIn("Nothing that was tried makes it fit", text)
        self.assertIn("predicted for steps that were recorded", " ".join(text.split()))

    def test_any_number_of_jobs_gives_the_same_bytes(self):
        args = ("fit", "resnet50:64", *SMALL, *QUICK, "--format", "csv")
        self.assertEqual(self.ok(*args, "--jobs", "1", code=1), self.ok(*args, "--jobs", "3", code=1))

    def test_written_results_replay(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "fit.json"
            self.ok("fit", "alexnet:1", *SMALL[:2], "--outside", "1MiB", *QUICK, "-o", path)
            row = self.conforms(path.read_text("utf-8"), "fit")["rows"][0]
            manifest = self.conforms(pathlib.Path(f"{path}.manifest.json").read_text("utf-8"), "manifest")
            settings = manifest["configuration"]
            self.assertEqual([settings[key] for key in ("workload", "device", "memory", "allocator", "policy", "outside")],
                             ["alexnet:1", "gtx_970", f"{row['memory_bytes']} B", "pytorch",
                              "liveness superneurons mxnet network-wide:algo=memory", "1MiB"])
            self.assertEqual([i["name"] for i in manifest["inputs"]],
                             ["alexnet:1", "sim/devices/gtx_970.toml", "traces/recorded/gtx_970/alexnet-1.json.zst"])
            self.ok("replay-run", f"{path}.manifest.json")

    def test_a_card_of_ones_own(self):
        card = ("--memory", "10GiB", "--flops", "30TFLOP/s", "--bandwidth", "800GB/s", "--bf16", "120TFLOP/s")
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "mine.toml"
            self.ok("new-device", "mine", *card, "--gpu", "ACME 1", "-o", path)
            text = path.read_text("utf-8")
            for line in ('size = "10GiB"', 'flops = "30TFLOP/s"', 'dram = "700.0GB/s"', 'bf16 = "120TFLOP/s"', 'gpus = ["ACME 1"]'):
                self.assertIn(line, text)
            self.assertTrue(all("#" in line for line in text.splitlines() if " = " in line and not line.startswith((
                "description", "gpus", "compute_capability"))), "a number without a source")
            (row,) = self.rows("alexnet:32", "--device", path)
            self.assertEqual((row["memory_bytes"], row["arithmetic"]), (10 << 30, "fp32"))
            self.fails(2, "exists already", "new-device", "mine", *card, "-o", path)
            self.assertEqual(path.read_text("utf-8"), text)
            other = pathlib.Path(directory) / "other.toml"
            for message, *options in (
                    ("--tf32: 'fast' is not a rate", "--tf32", "fast"), ("--flops: '1' is not a rate: the unit is missing", "--flops", "1"),
                    ("--bf16: '0TFLOP/s' is too small", "--bf16", "0TFLOP/s"), ("--memory: '0GiB' is too small", "--memory", "0GiB"),
                    ("--h2d: '4GB' is not a bandwidth", "--h2d", "4GB"), ("--bandwidth: '9KB/s' is too small", "--bandwidth", "9KB/s"),
                    ("compute_capability: 'nine' is not of the form", "--capability", "nine"),
                    ("--source: expected one line of text", "--source", "a\nb = 3"), ("did you mean 'h200'", "--like", "h2000")):
                values = dict(zip(card[::2], card[1::2])) | {options[0]: options[1]}
                self.fails(2, message, "new-device", "other", *itertools.chain(*values.items()), "-o", other)
            self.fails(2, "the name of the device is empty", "new-device", "", *card, "-o", other)
            self.assertFalse(other.exists())
            self.ok("new-device", "other", *card, "--h2d", "20MB/s", "--d2h", "20MB/s", "--gpu", 'A "B" \\ C', "-o", other)
            written = tomllib.loads(other.read_text("utf-8"))
            self.assertEqual((written["gpus"], written["link"]["duplex"]), (['A "B" \\ C'], "36.7MB/s"))

    def test_a_new_device_has_the_link_of_the_one_that_it_is_like(self):
        def device(*options):
            with tempfile.TemporaryDirectory() as directory:
                path = pathlib.Path(directory) / "b300.toml"
                self.ok("new-device", "b300", "--memory", "268GiB", "--flops", "80TFLOP/s", "--bandwidth", "8TB/s", *options, "-o", path)
                return tomllib.loads(path.read_text("utf-8"))

        def link(*options):
            return device(*options)["link"]

        def known(name):
            return tomllib.loads((ROOT / f"sim/devices/{name}.toml").read_text("utf-8"))

        for name in ("h200", "gh200", "v100"):
            for section in ("link", "beside_copy"):
                self.assertEqual(device("--like", name).get(section), known(name).get(section))
        self.assertEqual(link(), {"h2d": "25GB/s", "h2d_latency": "5us", "d2h": "25GB/s", "d2h_latency": "5us", "duplex": "45.9GB/s"})
        self.assertEqual(link("--like", "h200", "--h2d", "40GB/s"),
                         known("h200")["link"] | {"h2d": "40GB/s", "duplex": "87.5GB/s"})
        self.assertEqual(link("--d2h", "10GB/s")["duplex"], "32.1GB/s")

    def test_wrong_input(self):
        self.fails(2, "did you mean 'h200'", "fit", "alexnet:1", "--device", "h2000")
        self.fails(2, "did you mean 'superneurons'", "fit", "alexnet:1", "--policy", "superneuron")
        self.fails(2, "outside", "fit", "alexnet:1", "--outside", "3 apples")
        self.fails(2, "leaves nothing", "fit", "alexnet:1", *SMALL[:2], "--outside", "8GiB")
        self.fails(3, "missing.json", "fit", "missing.json")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests transformers on the command line: sweeps over length and depth, attention, optimizers, precision, micro-batches,
clipping and the loss in chunks, and clear messages for wrong input.

usage: transformer_test.py PATH_OF_SPILLWAY     SPILLWAY_WHOLE_ZOO=1 adds a test of GPT-2, which takes minutes
"""

import csv
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from harness import CommandTest, ROOT, Spillway, main

GPT = "gpt(16,2,4,30)@9:3"
LLAMA = "llama(16,2,4,2,24,30)@9:3"
IN_PARTS = ("accumulate=2", "clip-norm=0.1", "loss-chunks=3")
# What each policy does with a small transformer in 70 % of the memory, or says.
FITS, TOO_LARGE = "ok", "oom"
POLICIES = {
    "network-wide": TOO_LARGE, "liveness": TOO_LARGE, "as-recorded": "traces of recorded programs only", "vdnn-all": FITS,
    "vdnn-conv": TOO_LARGE, "vdnn-aconv": TOO_LARGE, "vdnn-dyn": FITS, "vdnnpp": FITS, "caffe": TOO_LARGE, "torch": TOO_LARGE,
    "mxnet": FITS, "tensorflow": TOO_LARGE, "superneurons": FITS, "dtr": FITS, "capuchin": FITS, "checkmate": FITS,
    "ucudnn": TOO_LARGE, "mmcnn": FITS, "inference-normal": TOO_LARGE, "inference-vdnn": FITS, "joint": FITS,
    "plan": "needs a plan: plan:file=PATH", "saved-tensors:plan=checkpoint": "was not recorded"}


class TransformerTest(CommandTest):
    def rows(self, *args, code=0):
        return self.conforms(self.ok("compare", *args, "--format", "json", code=code), "results")["rows"]

    def test_the_same_bits_under_every_policy(self):
        for workload in (GPT, LLAMA):
            for attention, *parts in (("fused",), ("math",), ("fused", *IN_PARTS)):
                asked = ",".join((workload, f"attention={attention}", "optimizer=adamw", *parts))
                digests = set()
                for policy in ("liveness", "vdnn-all", "vdnn-conv", "superneurons", "mxnet", "capuchin"):
                    text = self.ok("run", asked, "--backend", "cpu", "--iterations", "3", "--policy", policy, "--memory", policy, "--format", "json")
                    (row,) = self.conforms(text, "results")["rows"]
                    digests.add((row["loss"], row["weights_digest"]))
                    self.assertEqual(row["attention"], attention)
                    self.assertEqual(row["optimizer"], "adamw")
                self.assertEqual(len(digests), 1, (workload, attention))

    @unittest.skipUnless(os.environ.get("SPILLWAY_WHOLE_ZOO"), "takes minutes")
    def test_gpt2_has_the_same_bits_under_three_policies(self):
        for parts in ((), IN_PARTS):
            rows = [json.loads(self.ok("run", ",".join(("gpt2@64:2", *parts)), "--backend", "cpu", "--iterations", "1", "--policy", policy,
                                       "--memory", policy, "--format", "json"))["rows"][0]
                    for policy in ("liveness", "vdnn-all", "mxnet")]
            self.assertEqual(len({row["weights_digest"] for row in rows}), 1, parts)

    def test_each_policy_acts_or_says_why_not(self):
        listed = [line for line in self.ok("list", "policies").splitlines() if not line.startswith(" ")]
        self.assertEqual([policy.partition(":")[0] for policy in POLICIES], listed)
        acting = [policy for policy, result in POLICIES.items() if result in (FITS, TOO_LARGE)]
        for workload in (GPT, LLAMA):
            for backend in ("sim", "cpu"):
                digests = set()
                for policy in acting:
                    text = self.ok("run", workload, "--backend", backend, "--policy", policy, "--memory", "70%", "--format",
                                   "json", "--check", code=0 if POLICIES[policy] == FITS else 1)
                    (row,) = json.loads(text)["rows"]
                    self.assertEqual(row["status"], POLICIES[policy], (workload, policy))
                    if row["status"] == FITS:
                        digests.add(row.get("weights_digest"))  # none if simulated
                self.assertEqual(len(digests), 1, workload)
            for policy, message in POLICIES.items():
                if policy not in acting:
                    self.fails(2, message, "run", workload, "--policy", policy)
            text = self.ok("compare", workload, "--memory", "70%", *(f"--policy={policy}" for policy in acting), code=0)
            for policy in acting:
                if POLICIES[policy] == TOO_LARGE:  # a line says which op needs more than it finds
                    self.assertRegex(text, rf"(?m)^{policy}(:\S+)?: .* needs .*, finds ", workload)

    def test_dropout_drops_the_same_elements_under_every_policy(self):
        gpt = GPT.replace(")", ",dropout=0.3)")
        lines = [re.search("loss .*", self.ok("run", gpt, "--backend", "cpu", "--iterations", "2", "--policy", policy, "--memory",
                                              policy))[0] for policy in ("liveness", "vdnn-all", "mxnet", "capuchin")]
        self.assertEqual(len(set(lines)), 1)
        plain = re.search("loss .*", self.ok("run", GPT, "--backend", "cpu", "--iterations", "2"))[0]
        self.assertNotEqual(lines[0], plain)
        self.assertEqual(plain, re.search("loss .*", self.ok("run", GPT.replace(")", ",dropout=0)"), "--backend", "cpu",
                                                             "--iterations", "2"))[0])
        inference = self.ok("trace", "build", gpt + ",mode=inference")
        self.assertNotIn('"dropout.fwd"', inference)
        for ratio in ("1", "-0.1", "x", "0.1)(", ""):
            self.fails(2, "the ratio of dropout is not a number from 0 and less than 1", "run",
                       GPT.replace(")", f",dropout={ratio})"))

    def test_longer_sequences_and_deeper_networks_take_longer(self):
        rows = self.rows("gpt(64,2,4,100)@64:2", "gpt(64,2,4,100)@128:2", "gpt(64,4,4,100)@128:2", "--policy", "liveness")
        times = [row["iteration_ms"] for row in rows]
        self.assertEqual(times, sorted(times))
        self.assertLess(times[0], times[-1])
        with tempfile.TemporaryDirectory() as directory:
            store = pathlib.Path(directory) / "s.sqlite"
            self.ok("sweep", "gpt(64,{1..3},4,100)@{32..96..32}:2", "--policy", "liveness", "-o", store, "--quiet")
            text = self.ok("sweep", "export", store, "--format", "json")
            self.assertEqual(len({row["workload"] for row in json.loads(text)["rows"]}), 9)

    def test_attention_in_three_ops_holds_the_probabilities(self):
        peaks = [self.rows(GPT.replace("@9", "@99") + f",attention={kind}", "--policy", "liveness")[0]["peak_requested_bytes"]
                 for kind in ("fused", "math")]
        self.assertGreater(peaks[1] - peaks[0], 2 * 3 * 4 * 99 * 99 * 4)

    def test_bf16_needs_less_time_and_memory(self):
        rows = {precision: self.rows(f"gpt2@256:4,precision={precision}", "--policy", "liveness")[0]
                for precision in ("fp32", "tf32", "bf16")}
        self.assertEqual([row["arithmetic"] for row in rows.values()], ["fp32", "tf32", "bf16"])
        self.assertGreater(rows["fp32"]["iteration_ms"], rows["tf32"]["iteration_ms"])
        self.assertGreater(rows["tf32"]["iteration_ms"], rows["bf16"]["iteration_ms"])
        self.assertEqual(rows["fp32"]["peak_requested_bytes"], rows["tf32"]["peak_requested_bytes"])
        self.assertGreater(rows["fp32"]["peak_requested_bytes"], 1.5 * rows["bf16"]["peak_requested_bytes"])

    def test_the_page_of_analytic_times(self):
        evidence = ROOT / "experiments/evidence"
        page = (evidence / "roofline/README.md").read_text(encoding="utf-8")
        table = re.findall(r"\| (\S+@\S+) \| (fp32|bf16) \| (\S+) \| (\S+) \| (\S+) % \|", page)
        with open(evidence / "transformers/h200.csv", encoding="utf-8") as file:
            measured = {(row["workload"], row["precision"]): float(row["measured_iteration_ms"]) for row in csv.DictReader(file)
                        if row["policy"] == "liveness" and row["memory_request"] == "100%"}
        self.assertEqual({(workload, precision) for workload, precision, *_ in table}, set(measured))
        asked = [f"{workload},optimizer=adamw,precision={precision},attention={'math' if precision == 'fp32' else 'fused'}"
                 for workload, precision, *_ in table]
        errors = []
        for (workload, precision, *printed), row in zip(table, self.rows(*asked, "--cost", "roofline", "--policy", "liveness")):
            truth, ours = measured[workload, precision], row["iteration_ms"]
            errors.append(ours / truth - 1)
            self.assertEqual(printed, [f"{truth:.1f}", f"{ours:.1f}", f"{100 * errors[-1]:+.1f}"], workload)
        mean, worst = 100 * sum(map(abs, errors)) / len(errors), 100 * max(map(abs, errors))
        self.assertIn(f"The mean absolute error is {mean:.1f} %, the worst {worst:.1f} %.", page)
        program = pathlib.Path(Spillway.path).with_name("roofline_errors")
        if not program.exists():
            self.skipTest("roofline_errors is not built")
        text = subprocess.run([program, "--transformers"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(text, (evidence / "roofline/transformers.csv").read_text(encoding="utf-8"))
        for key, samples, _, median, p90, *_ in csv.reader(text.partition("\n\n")[0].splitlines()):
            if f"| `{key}` | " in page.partition("## Transformers")[2]:
                self.assertIn(f"| `{key}` | {samples} | {median} | {p90} |", page)

    def test_pages_have_the_errors_of_measured_steps(self):
        evidence = ROOT / "experiments/evidence"

        def page_of(folder, name):
            with open(evidence / folder / name, encoding="utf-8") as file:
                return (evidence / folder / "README.md").read_text(encoding="utf-8"), list(csv.DictReader(file))

        page, rows = page_of("transformers", "h200-blind.csv")
        for workload in dict.fromkeys(row["workload"] for row in rows):
            errors = [100 * float(row["error"]) for row in rows if row["workload"] == workload]
            mean = sum(map(abs, errors)) / len(errors)
            self.assertIn(f"| {workload} | {len(errors)} | {mean:.2f} % | {max(errors, key=abs):+.2f} % |", page)
        page, rows = page_of("pytorch", "h200-images.csv")
        bound = []
        for row in rows:
            truth, ours = float(row["measured_ms"]), float(row["predicted_ms"])
            bound += [ours / truth - 1] if row["bound"] == "GPU" else []
            star = "" if row["bound"] == "GPU" else r" \*"
            self.assertIn(f"| {row['batch']} | {truth:.1f}{star}, {ours:.1f} | {100 * (ours / truth - 1):+.1f} % |", page, row["case"])
        mean, worst = 100 * sum(map(abs, bound)) / len(bound), 100 * max(bound, key=abs)
        said = f"{len(rows)} networks, an H200 bounds {len(bound)}. Their times are {mean:.1f} % off in the mean, and {worst:+.1f} % at worst"
        self.assertIn(said, (evidence / "README.md").read_text(encoding="utf-8"))

    def test_micro_batches_hold_the_activations_of_one(self):
        whole, parts = (self.rows(f"gpt(64,2,4,100)@64:{batch}", "--policy", "liveness")[0]
                        for batch in ("8", "2,accumulate=4"))
        self.assertEqual((whole["batch"], parts["batch"], parts["accumulate"]), (8, 8, "4"))
        self.assertNotIn("accumulate", whole)
        self.assertGreater(whole["peak_requested_bytes"], 2 * parts["peak_requested_bytes"])
        self.assertGreater(parts["iteration_ms"], whole["iteration_ms"])

    def test_a_loss_in_chunks_does_not_hold_all_logits(self):
        network, logits = "gpt(16,1,2,5000)@64:4", 4 * 64 * 5000 * 4
        peaks = [self.rows(network + options, "--policy", "liveness")[0]["peak_requested_bytes"]
                 for options in ("", ",loss-chunks=2", ",loss-chunks=8")]
        # At the peak, scores and probabilities are alive, or probabilities and their gradient.
        self.assertAlmostEqual(peaks[0] - peaks[1], 2 * logits / 2, delta=logits / 10)
        self.assertAlmostEqual(peaks[0] - peaks[2], 2 * logits * 7 / 8, delta=logits / 10)

    def test_options_of_training_are_axes_of_a_sweep(self):
        with tempfile.TemporaryDirectory() as directory:
            store = pathlib.Path(directory) / "s.sqlite"
            self.ok("sweep", "gpt2@64:2,accumulate={1,2},clip-norm={0.5,1},loss-chunks=4", "--policy", "liveness", "-o", store,
                    "--quiet")
            rows = json.loads(self.ok("sweep", "export", store, "--format", "json"))["rows"]
            self.assertEqual(sorted((row["accumulate"], row["clip_norm"], row["loss_chunks"]) for row in rows),
                             [("1", "0.5", "4"), ("1", "1", "4"), ("2", "0.5", "4"), ("2", "1", "4")])

    def test_recorded_tables_are_those_of_the_precision(self):
        for precision, attention in (("fp32", "math"), ("bf16", "fused")):
            (row,) = self.rows(f"gpt2@1024:8,precision={precision},attention={attention},optimizer=adamw", "--device", "h200", "--policy", "liveness")
            self.assertTrue(row["cost"].startswith("recorded on NVIDIA H200"), row["cost"])
            self.assertEqual(row["arithmetic"], precision)

    def test_inference_needs_less(self):
        training, inference = (self.rows(f"{LLAMA},mode={mode}", "--policy", "liveness")[0] for mode in ("training", "inference"))
        self.assertGreater(training["peak_requested_bytes"], inference["peak_requested_bytes"])

    def test_the_comparison_of_policies(self):
        script = ROOT / "experiments/evidence/transformers/run"
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory) / "out"
            subprocess.run([sys.executable, script, Spillway.path, out, GPT, "--memory", "70%,100%"], check=True)
            rows = list(csv.DictReader(out.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
            self.assertEqual(len(rows), 2 * 2 * 8)
            self.assertEqual({(row["precision"], row["policy"]) for row in rows if row["memory_request"] == "100%"
                              and row["iteration_ms"]}, {(row["precision"], row["policy"]) for row in rows})
            if importlib.util.find_spec("matplotlib"):
                self.assertTrue(out.with_suffix(".png").read_bytes().startswith(b"\x89PNG"))

    def test_a_measured_comparison_executes_math_in_fp32(self):
        script = ROOT / "experiments/evidence/transformers/run"
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program"
            program.write_text("""#!/bin/sh
case "$*" in
  "validate a:1,optimizer=adamw,precision=fp32,attention=math "*) row=1,2 ;;
  "validate a:1,optimizer=adamw,precision=bf16 "*) row=3,4 ;;
  *) exit 5 ;;
esac
echo "workload,predicted_iteration_ms,measured_iteration_ms
a:1,$row"
""", encoding="utf-8")
            program.chmod(0o755)
            out = pathlib.Path(directory) / "out"
            subprocess.run([sys.executable, "-S", script, program, out, "a:1", "b:1", "--measured"], check=True, capture_output=True)
            rows = list(csv.DictReader(out.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
            self.assertEqual([(row["precision"], row["iteration_ms"], row["measured_iteration_ms"]) for row in rows],
                             [("fp32", "1", "2"), ("bf16", "3", "4")])

    def test_the_check_of_digests(self):
        script = ROOT / "experiments/evidence/transformers/check_digests"

        asked = f"{GPT},optimizer=adamw"

        def check(program, *args):
            result = subprocess.run([sys.executable, script, program, asked, "--backend", "cpu", "--memory", "70%", *args],
                                    capture_output=True, text=True, check=False)
            return result.returncode, result.stdout.splitlines()[1:]

        self.assertEqual(check(Spillway.path, "--policies", "vdnn-all,torch"),
                         (0, [f"{asked} vdnn-all 70%: equal", f"{asked} torch 70%: oom"]))
        self.assertEqual(check(Spillway.path, "--policies", "torch")[0], 1)  # none ran
        code, (line,) = check(Spillway.path, "--policies", "nope")
        self.assertEqual(code, 1)
        self.assertIn("exit code 2", line)
        with tempfile.TemporaryDirectory() as directory:
            other = pathlib.Path(directory) / "other"  # a program whose digest is the first letter of the policy
            other.write_text("""#!/bin/sh
while [ "$1" != --policy ]; do shift; done
echo '{"rows": [{"status": "ok", "weights_digest": "'"$(echo "$2" | cut -c1)"'"}]}'
""", encoding="utf-8")
            other.chmod(0o755)
            self.assertEqual(check(other, "--policies", "lru,mxnet"),
                             (1, [f"{asked} lru 70%: equal", f"{asked} mxnet 70%: differs: m"]))

    def test_bf16_on_the_cpu_is_near_fp32(self):
        for workload in (GPT, LLAMA):
            for options in ("optimizer=adamw", "attention=math"):
                rows = {}
                for precision in ("fp32", "bf16"):
                    for policy in ("liveness", "vdnn-all", "mxnet"):
                        text = self.ok("run", f"{workload},{options},precision={precision}", "--backend", "cpu", "--iterations",
                                       "3", "--policy", policy, "--memory", policy, "--format", "json")
                        (row,) = json.loads(text)["rows"]
                        rows.setdefault(precision, set()).add((row["loss"], row["weights_digest"]))
                self.assertEqual([len(found) for found in rows.values()], [1, 1])
                (fp32, first), (bf16, second) = (next(iter(found)) for found in rows.values())
                self.assertNotEqual(first, second)
                self.assertAlmostEqual(fp32, bf16, delta=3 * 2**-8 * fp32)  # a few units of bf16's last place

    def test_wrong_input(self):
        self.fails(3, "layer 'h0.attn': a width of 10 does not divide into 4 heads", "run", "gpt(10,1,4,5):1")
        self.fails(3, "a width of 4 does not divide into 8 heads", "run", "gpt(4,1,8,5):1")
        self.fails(3, "the CPU backend computes in fp32 and bf16 only", "run", f"{GPT},precision=tf32", "--backend", "cpu")
        self.fails(2, "expected gpt(width,layers,heads,vocabulary)", "run", "gpt(10,1,5):1")
        self.fails(2, "the length '0' is not a whole number", "run", "gpt2@0:1")
        self.fails(2, "built in are bert-base, bert-large", "run", "bert-huge:1")
        self.fails(2, "fused", "run", f"{GPT},attention=flash")
        self.fails(2, "adamw", "run", f"{GPT},optimizer=lion")
        self.fails(2, "needs another preset", "run", f"{GPT},optimizer=adam,preset=vdnn")
        with tempfile.TemporaryDirectory() as directory:
            trace = pathlib.Path(directory) / "gpt.json"
            self.ok("trace", "build", f"{GPT},attention=math", "-o", trace)
            self.ok("run", trace, "--policy", "liveness")
            self.fails(2, "is for networks that spillway builds", "run", f"{trace},attention=fused")
            self.fails(2, "has no recorded step", "run", f"{trace},loss-chunks=2")

    def test_parameters_and_state_that_find_no_room_are_counted(self):
        adamw = ("run", "llama-8b@2048:1,optimizer=adamw", "--memory", "24GiB", "--policy", "joint:effort=1", "--device")
        page = " ".join(self.ok(*adamw, "rtx4090", code=1).split())
        self.assertIn("take 89.7 GiB, 1.75 GiB more than the 24 GiB of the device and the 64 GiB outside: no policy fits", page)
        self.assertNotIn("no policy fits", self.ok(*adamw, "rtx4090:host=128GiB"))

    def test_wrong_options_of_training(self):
        for option in ("accumulate", "loss-chunks"):
            for text in ("0", "-1", "1.5", "70000", "x"):
                self.fails(2, f"'{text}' is not a whole number from 1 to 65536", "run", f"{GPT},{option}={text}")
        for text in ("0", "-1", "inf", "nan", "x"):
            self.fails(2, f"clip-norm: '{text}' is not a positive number", "run", f"{GPT},clip-norm={text}")
        self.fails(2, "a batch of 3 with 9 tokens each has 27; expected 1 to 27 chunks", "run", f"{GPT},loss-chunks=28")
        for workload in ("vgg16:2", "vit-b16:1"):
            self.fails(2, "such as gpt2, bert-base and llama-1b", "run", f"{workload},loss-chunks=2")
        for option in IN_PARTS:
            name = option.partition("=")[0]
            self.fails(2, f"{name}: the preset 'vdnn' updates", "run", f"{GPT},{option},preset=vdnn")
            self.fails(2, f"{name}: the option is for training", "run", f"{GPT},{option},mode=inference")


if __name__ == "__main__":
    main()

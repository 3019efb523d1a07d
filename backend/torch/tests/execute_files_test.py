"""Tests of the files that the program shares: the trace of a recorded step, and plans."""

import json
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn

from spillway_torch import ProgramError, SpillwayError, read_plan, write_plan, write_step
from spillway_torch.base.program import find_program
from spillway_torch.plan.clock import host_clock
from spillway_torch.plan.planned_step import planned_step
from spillway_torch.plan.planner import document_of, make_plan, predict
from spillway_torch.tape.costs import HostCosts
from spillway_torch.run.executor import executor_of
from stepping import MODELS, QUICK, SCHEMAS, Stepping, candidates, check_schema, different, random_plan


class TraceTest(unittest.TestCase):
    def setUp(self):
        self.stepping = Stepping(MODELS["vit"])
        self.tape = self.stepping.record()
        self.eager = make_plan(self.tape, 1 << 40)

    def test_the_trace_for_the_program_has_the_memory_of_the_step(self):
        trace = planned_step(self.tape, candidates(self.tape)).trace()
        sizes = {t["name"]: t["size"] for t in trace["tensors"]}
        stays = {t["name"] for t in trace["tensors"] if t["kind"] in ("parameter", "optimizer_state")}
        uses = {}
        for at, op in enumerate(trace["ops"]):
            for name in (*op["inputs"], *op["outputs"]):
                self.assertTrue(name in uses or name in op["outputs"] or
                                next(t for t in trace["tensors"] if t["name"] == name)["kind"] in ("parameter", "input"), name)
                uses.setdefault(name, [at, at])[1] = at
        held = [sum(sizes[n] for n in stays) + op["recorded"]["workspace"] +
                sum(sizes[n] for n, (first, last) in uses.items() if n not in stays and first <= at <= last)
                for at, op in enumerate(trace["ops"])]
        self.assertAlmostEqual(max(held) / self.eager.peak, 1, delta=0.05)
        self.assertEqual({s["tensor"] for s in trace["saved"]}, {f"s{s.storage}" for s in candidates(self.tape)})
        for saved in trace["saved"]:  # backward takes it where the next op is one of backward that the node runs
            self.assertLessEqual(uses[saved["tensor"]][0], saved["packed"])
            self.assertEqual([trace["ops"][at]["phase"] for at in saved["unpacked"]], ["backward"] * len(saved["unpacked"]))

    def test_an_op_that_recomputes_reads_only_what_its_chain_reads(self):
        tape = Stepping(MODELS["llama, autocast"]).record()
        chains = {f"s{s.storage}": s.chain for s in candidates(tape)}
        ops = [op for op in planned_step(tape, candidates(tape)).trace()["ops"] if op.get("recomputable")]
        self.assertGreater(len(ops), 10)
        for op in ops:
            chain = chains[op["outputs"][0]]
            self.assertEqual(set(op["inputs"]), {f"s{s}" for s in (*(value[0] for value in chain.sources), *chain.held)})

    def test_what_a_node_of_autograd_reads_is_there_until_it_ends(self):
        tape = Stepping(MODELS["llama, autocast"]).record()
        movable = {s.storage for s in candidates(tape)}
        ops = planned_step(tape, candidates(tape)).operators
        only_held = 0
        for unpack in tape.unpacks:
            storage, last = unpack.pack.value[0], max(unpack.last - 1, unpack.op)
            if storage in movable:
                op = next(op for op in reversed(ops) if op.number <= last)
                self.assertIn(storage, [operand.storage.number for operand in op.inputs])
                only_held += storage not in tape.ops[last].reads
        self.assertGreater(only_held, 0)

    def test_policies_that_go_by_layers_plan(self):
        """In backward, vDNN++ brings back what the layers below saved, as far as to the next product."""
        tape = Stepping(MODELS["gpt"]).record()
        eager = make_plan(tape, 1 << 40)
        ops = planned_step(tape, candidates(tape)).trace()["ops"]
        forward = {op["layer"] for op in ops if op["phase"] == "forward"}
        layers = [op["layer"] for op in ops if op["phase"] == "backward" and op["type"] == "matmul"]
        self.assertGreater(len(layers), 10)
        self.assertLessEqual(set(layers), forward)
        budget = (eager.floor.bytes + 9 * eager.peak) // 10
        plan = make_plan(tape, budget, policy="vdnnpp:offload=all,release=eager,algo=performance")
        self.assertIn("offload", plan.actions.values())

    def test_the_trace_has_the_times_of_the_step(self):
        costs = HostCosts(packed=1e-6, unpacked=2e-6)
        for op in self.tape.ops:
            op.host, op.entries = 5e-6, 1
        with mock.patch.object(self.tape, "costs", costs), mock.patch.object(self.tape, "device", "cuda"):
            trace = planned_step(self.tape, candidates(self.tape)).trace()
            ends = host_clock(self.tape, costs)[-1]
        ops, hooks = trace["ops"], trace["hooks"]
        packed, unpacked = len(self.tape.packs), len(self.tape.positions) - len(self.tape.packs)
        self.assertAlmostEqual(sum(op["recorded"]["host_ns"] for op in ops) / 1e9, ends, delta=1e-8)
        self.assertEqual([sum(place[i] for place in hooks["places"]) for i in (1, 2)], [packed, unpacked])
        self.assertEqual((hooks["pack_ns"], hooks["unpack_ns"]), (1000, 2000))
        self.assertAlmostEqual(sum(op["recorded"]["time_ns"] for op in ops) / 1e9 / sum(op.seconds for op in self.tape.ops), 1, delta=0.01)
        self.assertTrue(all(op["recorded"]["host_ns"] >= 0 for op in ops))


def wide():
    """Returns a model whose storages are much larger than a block of memory."""
    layers = [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    model, x = nn.Sequential(*layers, nn.Linear(128, 10)), torch.randn(512, 128)
    return model, lambda: model(x).square().mean()


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.stepping = Stepping(wide)
        self.tape = self.record()
        eager = make_plan(self.tape, 1 << 40)
        self.budget = (eager.floor.bytes + eager.peak) // 2
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "plan.json"
        write_step(self.tape, self.folder / "step.json")

    def record(self):
        tape = self.stepping.record()
        tape.bandwidth = 55e9  # of the device below
        return tape

    def run_program(self, verb, *arguments):
        """Returns the first row of the results."""
        try:
            program = find_program()
        except ProgramError as error:
            self.skipTest(str(error))
        done = subprocess.run([program, verb, "step.json", "--memory", f"{self.budget}B", *arguments, "--format", "json"],
                              cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["rows"][0]

    def test_the_program_predicts_a_plan_of_the_package(self):
        for plan in (make_plan(self.tape, self.budget, policy=QUICK), predict(random_plan(self.tape, 3), self.budget)):
            self.assertGreater(len(plan.actions), 0)
            write_plan(plan, self.file)
            row = self.run_program("plan", "--predict", "plan.json")
            self.assertAlmostEqual(row["iteration_ms"] / 1e3 / plan.seconds, 1)
            self.assertAlmostEqual(row["eager_ms"] / 1e3 / plan.eager_seconds, 1)
            self.assertEqual((row["peak_allocated_bytes"], row["eager_peak_bytes"]), (plan.peak, plan.eager_peak))

    def test_the_package_runs_a_plan_of_the_program(self):
        want = self.stepping.steps()
        row = self.run_program("plan", "-o", "plan.json", "--policy", QUICK)
        plan = read_plan(self.file, self.record())
        self.assertGreater(len(plan.actions), 0)
        self.assertLessEqual(plan.peak, self.budget)
        self.assertEqual(row["peak_allocated_bytes"], plan.peak)
        self.assertAlmostEqual(row["iteration_ms"] / 1e3 / plan.seconds, 1)
        self.assertEqual(different(want, self.stepping.steps(plan)), [])
        self.assertEqual(executor_of(plan).deviations, [])

    @unittest.skipUnless((SCHEMAS / "step-plan.json").exists(), "there is no schema of plans")
    def test_plans_follow_their_schema(self):
        for seed in range(4):
            check_schema(self, "step-plan", document_of(random_plan(self.tape, seed)))
        self.run_program("plan", "-o", "plan.json", "--policy", QUICK)
        check_schema(self, "step-plan", json.loads(self.file.read_text(encoding="utf-8")))

    def test_the_package_runs_the_plan_of_any_policy(self):
        want = self.stepping.steps()
        for policy in ("dtr", "capuchin", "vdnnpp", "superneurons", QUICK):
            with self.subTest(policy):
                plan = make_plan(self.record(), self.budget, policy=policy)
                self.assertGreater(len(plan.actions), 0)
                self.assertLessEqual(plan.peak, self.budget)
                self.assertLess(predict(plan).peak, 1.02 * self.budget)
                self.assertEqual(different(want, self.stepping.steps(plan)), [])
                self.assertEqual(executor_of(plan).deviations, [])

    def test_a_plan_that_was_written_is_read_again(self):
        for name, make in MODELS.items():
            stepping = Stepping(make)
            tape = stepping.record()
            for seed in range(4):
                with self.subTest(name, seed=seed):
                    plan = predict(random_plan(tape, seed))
                    write_plan(plan, self.file)
                    self.assertEqual(document_of(read_plan(self.file, tape)), document_of(plan))
                    again = read_plan(self.file, stepping.record())
                    self.assertEqual(document_of(again)["storages"], document_of(plan)["storages"])
                    self.assertEqual(different(stepping.steps(count=2), stepping.steps(again, count=2)), [])

    def test_files_that_are_no_plan_of_the_step_are_refused(self):
        plan = predict(random_plan(self.tape, 3))
        first = next(s for s in candidates(self.tape) if s.chain is None)
        for change, text in (
                (lambda d: d.update(format="x"), "format 'x' version 1; expected 'spillway-step-plan' version 1"),
                (lambda d: d.update(version=2), "format 'spillway-step-plan' version 2; expected 'spillway-step-plan' version 1"),
                (lambda d: d["storages"][0].update(fate="burn"), r"has the fate 'burn' \(valid: offload, evict\)"),
                (lambda d: d["storages"][0].update(tensor="s0"), "'s0' is not a storage that plans may move"),
                (lambda d: d["storages"].append({"tensor": f"s{first.storage}", "fate": "evict", "drops": []}), "cannot be recomputed: "),
                (lambda d: d["storages"][0].pop("drops"), "not a plan .*drops"),
                (lambda d: d["storages"][0].update(drops=[10**6]), "the step has no position 1000000"),
                (lambda d: d["storages"][0].update(fate="offload", hops=[1]), "hops"),
                (lambda d: d.pop("storages"), "not a plan .*storages"),
                (lambda d: d.pop("memory_bytes"), "not a plan .*memory_bytes"),
                (lambda d: d.update(memory_bytes=1000), "bytes under the plan, which may take 1,000"),
                (lambda d: d.update(memory_bytes="much"), "not a plan .*much")):
            data = document_of(plan)
            change(data)
            self.file.write_text(json.dumps(data), encoding="utf-8")
            with self.assertRaisesRegex(SpillwayError, text):
                read_plan(self.file, self.tape)
        for text in "{", "[]":
            self.file.write_text(text, encoding="utf-8")
            with self.assertRaisesRegex(SpillwayError, "not a plan"):
                read_plan(self.file, self.tape)
        write_plan(plan, self.file)
        with self.assertRaisesRegex(SpillwayError, "memory 'much'"):
            read_plan(self.file, self.tape, "much")
        with self.assertRaisesRegex(SpillwayError, "the plan is for step-.*:1, and this is step-.*:1"):
            read_plan(self.file, Stepping(MODELS["resnet"]).record())
        missing = self.folder / "none"
        for attempt in (lambda: read_plan(missing, self.tape), lambda: write_plan(plan, missing / "plan.json"),
                        lambda: write_step(self.tape, missing / "step.json")):
            with self.assertRaisesRegex(SpillwayError, "none.*: No such file or directory"):
                attempt()


if __name__ == "__main__":
    unittest.main()

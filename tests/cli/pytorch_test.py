#!/usr/bin/env python3
"""Tests the parts of scripts/compare_pytorch.py that need no PyTorch: its blocks, and the calls that it makes."""

import subprocess
import sys
import types
from unittest import mock

from harness import CommandTest, ROOT, Spillway, main

SCRIPT = ROOT / "scripts" / "compare_pytorch.py"
sys.path.insert(0, str(SCRIPT.parent))
import compare_pytorch  # noqa: E402


class Recorder:
    """Stands in for torch: a value is a text that shows how it was computed."""

    class Value(str):
        def flatten(self, _):
            return self

        def __add__(self, other):
            return Recorder.Value(f"add({str(self)},{str(other)})")

    def __init__(self):
        self.nn = types.SimpleNamespace(functional=self)

    def __getattr__(self, name):
        def call(x, *_, **__):
            return self.Value(f"{name}({','.join(x) if isinstance(x, list) else x})")
        return call


class PyTorchTest(CommandTest):
    def plan(self, workload):
        return compare_pytorch.load_plan(Spillway.path, workload)

    def test_blocks_hand_on_one_activation(self):
        for workload, count in (("alexnet:2", 4), ("resnet50:2", 19), ("googlenet:2", 15)):
            plan = self.plan(workload)
            blocks = plan.blocks()
            self.assertEqual(len(blocks), count, workload)
            self.assertEqual([op for block in blocks for op in block], plan.steps[:-1])
            for before, block in zip(blocks, blocks[1:]):
                made = {plan.output(op) for op in block}
                read = {name for op in block for name in op["inputs"] if plan.tensors[name]["kind"] == "activation"}
                self.assertEqual(read - made, {plan.output(before[-1])}, workload)

    def test_blocks_compute_what_eager_does(self):
        calls = []
        checkpoint = types.ModuleType("torch.utils.checkpoint")
        checkpoint.checkpoint = lambda run, x, use_reentrant: calls.append(x) or run(x)
        sys.modules["torch.utils.checkpoint"] = checkpoint
        self.addCleanup(sys.modules.pop, "torch.utils.checkpoint")
        for module in ("torch", "torch.utils"):
            sys.modules[module] = types.ModuleType(module)
            self.addCleanup(sys.modules.pop, module)
        for workload in ("alexnet:2", "googlenet:2", "resnet18:2"):
            trainer = object.__new__(compare_pytorch.Trainer)
            trainer.torch, trainer.plan = Recorder(), self.plan(workload)
            trainer.last_use = {name: op for op in trainer.plan.steps for name in op["inputs"]}
            trainer.data = {t["name"]: Recorder.Value(t["name"]) for t in trainer.plan.inputs()}
            trainer.parameters = {t["name"]: t["name"] for t in trainer.plan.parameters()}
            calls.clear()
            self.assertEqual(trainer.forward_by_blocks(), trainer.forward(), workload)
            self.assertEqual(len(calls), len(trainer.plan.blocks()) - 1)

    def test_budgets_are_shares(self):
        for budgets in ("2", "x", "0.5,-1"):
            result = subprocess.run([sys.executable, SCRIPT, "alexnet:2", "--spillway", Spillway.path, "--plan-only",
                                     f"--budgets={budgets}"], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2, budgets)
            self.assertIn("--budgets", result.stderr)
        self.assertEqual(compare_pytorch.budgets("1,0.25"), [1, 0.25])
        self.assertEqual(compare_pytorch.budgets(""), [])

    def test_a_graph_is_compiled_once_and_never_asked_for_its_length(self):
        class Graph:  # like the graph of torch.compile for a module without __len__
            def __len__(self):
                raise TypeError

            def __call__(self):
                return mock.Mock()

        trainer = object.__new__(compare_pytorch.Trainer)
        trainer.method, trainer.graph, trainer.data = compare_pytorch.COMPILED + "0.5", None, {}
        trainer.short = []
        trainer.optimizer, trainer.compiled = mock.Mock(), mock.Mock(return_value=Graph())
        trainer.iterate()
        trainer.iterate()
        self.assertEqual(trainer.compiled.call_count, 1)

    def test_rows_are_known_as_soon_as_they_are_timed(self):
        def spillway(binary, *arguments):
            if arguments[0] == "validate":
                raise SystemExit("no GPU")
            return subprocess.run([binary, *arguments], capture_output=True, text=True, check=True).stdout

        arguments = types.SimpleNamespace(spillway=Spillway.path, budgets=[], iterations=1, math="fp32",
                                          any_table=False, in_core=False, cost=None)
        rows = []
        with mock.patch.object(compare_pytorch, "spillway", spillway), \
                mock.patch.object(compare_pytorch, "time_pytorch", lambda *_: ([2.0 + len(rows)], 7)), \
                self.assertRaises(SystemExit):
            torch = mock.Mock()
            torch.cuda.OutOfMemoryError = MemoryError
            for row in compare_pytorch.compare(torch, arguments, "alexnet:2"):
                rows.append(row)
        self.assertEqual([row["method"] for row in rows][:2], ["eager", "eager, autotuned"])
        self.assertEqual([row["time_over_eager"] for row in rows][:3], [1, 1.5, 2])


if __name__ == "__main__":
    main()

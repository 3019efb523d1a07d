"""Tests the curve of memory against time, and the command that prints it."""

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import cases
from spillway_torch import SpillwayError, explain, make_plan, read_plan, record, write_step
from spillway_torch.base.program import run_program
from spillway_torch.__main__ import main
from spillway_torch.base.errors import NoPlanError
from spillway_torch.plan.plan import useful_moves
from spillway_torch.tape.chains import stuck
from spillway_torch.tape.tape_recorder import record_tape
from stepping import MODELS, Stepping, check_schema

FILE = """
import torch

model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())


def step():
    optimizer.zero_grad()
    model(torch.ones(256, 32)).pow(2).mean().backward()
    optimizer.step()


def fails():
    model(torch.ones(3))


def saves_nothing():
    return 1


if __name__ == "__main__":
    raise SystemExit(9)
"""


class CurveTest(unittest.TestCase):
    def test_rows_lie_between_the_floor_and_the_peak_without_a_plan(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                tape = Stepping(make).record()
                eager = make_plan(tape, 1 << 40, moves=useful_moves("cpu"))
                curve = explain(tape)
                rows = curve.rows
                self.assertEqual((rows[0].budget, rows[-1].budget), (eager.floor.bytes, eager.eager_peak))
                self.assertEqual(sorted({row.budget for row in rows}), [row.budget for row in rows])
                self.assertEqual((rows[-1].best, rows[-1].offloaded, rows[-1].evicted, rows[-1].times), (None, 0, 0, 1))
                self.assertEqual(rows[-1].peak, eager.eager_peak)
                self.assertAlmostEqual(rows[-1].seconds, eager.eager_seconds, delta=1e-12)
                for row in rows:
                    if row.best is not None:
                        self.assertGreater(row.best, row.budget)
                    else:
                        self.assertLessEqual(row.peak, row.budget)
                        self.assertEqual((row.offloaded, row.evicted > 0), (0, row is not rows[-1]))
                        self.assertGreaterEqual(row.times, 1)
                self.assertGreaterEqual(curve.moment, 0)
                self.assertEqual(curve.phase, "backward")
                self.assertLessEqual(curve.without[0], curve.floor.bytes)
                self.assertNotEqual(curve.without[1], curve.floor.operator)
                check_schema(self, "torch-explain", curve.object())

    def test_offloading_beside_recomputing_reaches_as_low(self):
        tape = Stepping(MODELS["vit"]).record()
        recomputed, both = explain(tape), explain(tape, ("offload", "evict"))
        self.assertIsNotNone(recomputed.rows[0].best)
        self.assertGreater(both.rows[-2].offloaded + both.rows[-2].evicted, 0)
        self.assertLessEqual(*(next(row.peak for row in curve.rows if row.best is None) for curve in (both, recomputed)))

    def test_the_knee_lies_below_the_line_from_the_first_plan_to_the_last(self):
        curve = explain(Stepping(MODELS["vit"]).record())
        planned = [row for row in curve.rows if row.best is None]
        first, last, knee = planned[0], planned[-1], curve.rows[curve.knee]

        def below(row):
            share = (row.budget - first.budget) / (last.budget - first.budget)
            return first.seconds + share * (last.seconds - first.seconds) - row.seconds

        self.assertGreater(below(knee), 0)
        self.assertAlmostEqual(below(knee), max(map(below, planned)))

    def test_a_floor_in_the_update(self):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step():
            optimizer.zero_grad()
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()

        record_tape(step, "cpu")
        curve = explain(record_tape(step, "cpu"))
        self.assertEqual((curve.phase, curve.object()["floor"]["phase"]), ("update", "update"))
        self.assertRegex(curve.text(), "It belongs to the update: another optimizer")
        self.assertNotIn("A smaller batch", curve.text())

    def test_the_text(self):
        curve = explain(Stepping(MODELS["vit"]).record())
        text = curve.text()
        for pattern in ("floor\n", "  knee\n", "  without a plan\n", "no plan was found; one takes",
                        "The times of a CPU are estimates",
                        r"No plan takes less than the floor, [0-9.]+ KiB, which aten::\w+.* \(operator \d+ of \d+\) needs:",
                        r"If aten::\w+.* needed less, .* the floor would be [0-9.]+ KiB, held by aten::\w+.*\."):
            self.assertRegex(text, pattern)
        least = next(row.peak for row in curve.rows if row.best is None)
        found = min(least, *(row.best for row in curve.rows if row.best is not None))
        self.assertIn(f"The least memory in which a plan was found is {found / 1024:,.1f} KiB.\n", text)
        reached = [dataclasses.replace(row, best=None, peak=curve.floor.bytes) for row in curve.rows]
        self.assertNotIn("in which a plan was found", dataclasses.replace(curve, rows=reached).text())
        same = dataclasses.replace(curve, without=(curve.floor.bytes, "aten::two"))
        self.assertIn("aten::two needs as much: a change to one", same.text())
        curve.rows[-1].host_bound = True
        self.assertRegex(curve.text(), "without a plan, host-bound\n")


def recorded_transformer():
    model = cases.Transformer(dropout=0.1, layers=2)
    tokens = torch.randint(50, (4, 40))

    def step():
        model.zero_grad()
        F.cross_entropy(model(tokens=tokens).flatten(0, 1), tokens.flatten()).backward()

    return record(step, "cpu", values=True)


class LengthsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tape = recorded_transformer()

    def test_rows_rise_and_the_longest_is_found(self):
        memory = self.tape.eager_peak() * 3 // 4
        curve = explain(self.tape, memory=memory)
        lengths = curve.lengths
        self.assertEqual((lengths.inputs, lengths.recorded), (((4, 40),), 40))
        self.assertEqual({row.length for row in lengths.rows}, {10, 20, 40, 80, 160, lengths.longest})
        for a, b in itertools.pairwise(lengths.rows):
            self.assertLess((a.length, a.eager_peak, a.floor, a.eager_seconds), (b.length, b.eager_peak, b.floor, b.eager_seconds))
            if b.best is None:
                self.assertLessEqual(a.seconds, b.seconds)
        for row in lengths.rows:
            self.assertEqual(row.best is None, row.length <= lengths.longest)
            self.assertLessEqual(row.peak, memory)
            self.assertGreater(row.best or memory + 1, memory)
            if row.best is None:
                self.assertGreaterEqual(row.times, 1)
        self.assertLessEqual(lengths.too_long - lengths.longest, max(1, lengths.longest // 50))
        single = make_plan(self.tape, memory, moves=useful_moves("cpu"))
        row = next(row for row in lengths.rows if row.length == 40)
        self.assertEqual((row.peak, row.seconds, row.floor), (single.peak, single.seconds, single.floor.bytes))
        check_schema(self, "torch-explain", curve.object())
        text = curve.text()
        for pattern in (r"In [\d.,]+ KiB, with other lengths than the 40 of the inputs' shapes, \[4, 40\]:", "  fits without a plan\n",
                        "  recorded\n", "  the longest\n", "below the floor\n",
                        f"Length {lengths.longest} fits, and {lengths.too_long} does not.\n$"):
            self.assertRegex(text, pattern)
        self.assertIn("a plan was found; one takes 9.0".replace("a plan", "no plan"),
                      dataclasses.replace(lengths, rows=[dataclasses.replace(row, best=9216)]).text(1024, "KiB"))

    def test_a_length_of_ones_own_and_its_ends(self):
        lengths = explain(self.tape, memory=1 << 50, lengths=[2], dimension=4).lengths
        self.assertEqual([row.length for row in lengths.rows], [2, 4, lengths.longest])
        self.assertEqual((lengths.longest, lengths.too_long), (256, None))
        self.assertIn("Each length fits that was tried, up to 256.", lengths.text(1024, "KiB"))
        lengths = explain(self.tape, memory=1000, lengths=[9]).lengths
        self.assertEqual((lengths.longest, lengths.too_long), (None, 1))
        self.assertIn("No length fits that was tried, the shortest of which is 1.", lengths.text(1024, "KiB"))

    def test_the_program_plans_the_lengths_that_a_file_has(self):
        with tempfile.TemporaryDirectory() as folder:
            step, plan = pathlib.Path(folder) / "step.json", pathlib.Path(folder) / "plan.json"
            write_step(self.tape, step, lengths=[20, 60])
            memory = self.tape.eager_peak() * 3 // 4
            arguments = "plan", str(step), "--memory", f"{memory}B", "--format", "json"
            rows = json.loads(run_program(*arguments, "--family", "all", "-o", str(plan)))["rows"]
            self.assertEqual([(row["size"], row["status"]) for row in rows], [("20", "ok"), ("40", "ok"), ("60", "ok")])
            alone = json.loads(run_program(*arguments))["rows"][0]
            self.assertEqual({**alone, "size": "40"}, rows[1])
            larger = read_plan(plan.with_name("plan-60.json"), self.tape)  # it is good for the recorded size
            self.assertLessEqual(larger.peak, memory)
            self.assertLessEqual(rows[1]["iteration_ms"], rows[2]["iteration_ms"])

    def test_errors(self):
        for arguments, text in (({"lengths": [0]}, "size 0 of the inputs: expected a number from 1"),
                                ({"dimension": 7}, r"dimension 7: no input of the step has it \(valid: 4, 40\)"),
                                ({"memory": "8XB"}, "memory '8XB': expected a number of bytes above 0")):
            with self.assertRaisesRegex(SpillwayError, text):
                explain(self.tape, **{"memory": 1 << 20, **arguments})
        weights = torch.ones(64, 64, requires_grad=True)
        without = record(lambda: (weights.tanh() @ weights).sum().backward(), "cpu", values=True)
        with self.assertRaisesRegex(SpillwayError, "are not known, because it calls no module with a tensor"):
            explain(without, memory=1 << 20)


def _has_transformers():
    return importlib.util.find_spec("transformers") is not None


class StuckTest(unittest.TestCase):
    """What cannot be recomputed is said, with the reason."""

    class Net(nn.Module):
        def __init__(self, frozen):
            super().__init__()
            self.embedding, self.layers = nn.Embedding(10, 64), nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
            self.embedding.requires_grad_(not frozen)

        def forward(self, tokens):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = x + layer(x).tanh()
            return x.square().mean()

    def recorded(self, frozen):
        torch.manual_seed(0)
        model, tokens = self.Net(frozen), torch.randint(10, (1024,))
        return record_tape(lambda: model(tokens).backward(), "cpu")

    def test_modules_share_a_reason(self):
        model, x = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Dropout(0.1)))), torch.ones(256, 64)
        (group,) = stuck(record_tape(lambda: model(x).sum().backward(), "cpu"))
        self.assertEqual((group.bytes, group.operator), (3 * 256 * 64 * 4, "aten::empty_like in module '5'"))

    def test_bytes_and_reasons(self):
        trained, frozen = self.recorded(False), self.recorded(True)
        self.assertEqual(stuck(trained), [])
        self.assertNotIn("cannot be recomputed", explain(trained).text())
        (group,) = stuck(frozen)
        self.assertEqual((group.bytes, group.operator), (1024 * 64 * 4, "aten::embedding in module 'embedding'"))
        curve = explain(frozen)
        self.assertIn(f"256.0 KiB that autograd saves, such as from {group.operator}, cannot be recomputed: {group.reason}.\n", curve.text())
        check_schema(self, "torch-explain", curve.object())
        self.assertEqual(curve.object()["not_recomputed"], [dataclasses.asdict(group)])
        said = f"; 262,144 bytes that autograd saves, such as from {group.operator}, cannot be recomputed: {group.reason}"
        for budget, kind in ((curve.floor.bytes - 1, SpillwayError), (curve.floor.bytes, NoPlanError)):
            with self.assertRaises(kind) as caught:
                make_plan(frozen, budget, moves=("evict",))
            self.assertIn(said, str(caught.exception))
            if kind is SpillwayError:
                below = str(caught.exception)
        # The error below the floor names the least memory of a plan, too.
        self.assertGreater(caught.exception.best, curve.floor.bytes)
        self.assertIn(f"; the least memory in which a plan was found is {caught.exception.best:,} bytes;", below)
        self.assertLessEqual(make_plan(frozen, caught.exception.best, moves=("evict",)).peak, caught.exception.best)

    def test_a_tensor_that_the_program_holds_stays(self):
        kept = []
        layer, x = nn.Linear(64, 64), torch.ones(64, 64)

        def step():
            y = layer(x).tanh()
            kept[:] = [y]
            y.exp().sum().backward()

        self.assertIn((64 * 64 * 4, "the program holds it until backward reads it"),
                      [(group.bytes, group.reason) for group in stuck(record_tape(step, "cpu"))])

    @unittest.skipUnless(_has_transformers(), "transformers is missing")
    def test_the_page_on_frozen_weights(self):
        page = (pathlib.Path(__file__).parents[1] / "README.md").read_text("utf-8").split("### Frozen weights")[1].split("\n### ")[0]
        program, shown = re.findall(r"```(?:python|console)\n(.*?)```", page, re.S)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lora.py"
            path.write_text(program, encoding="utf-8")
            found = {}
            for part in shown.split("$ ")[1:]:
                command, *lines = part.splitlines()
                function = command.rpartition(":")[2]
                self.assertEqual(command, f"python3 -m spillway_torch explain lora.py:{function}")
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    self.assertEqual(main(["explain", f"{path}:{function}"]), 0)
                printed = [" ".join(line.split()) for line in out.getvalue().splitlines()]
                self.assertEqual([line for line in lines if " ".join(line.split()) not in printed], [])
                found[function] = {line.rpartition("  ")[2]: float(line.split()[1]) for line in lines if line.endswith("without a plan")}
        least = float(re.search(r"a plan was found is ([\d.]+) MiB", shown)[1])
        self.assertLess(least, found["checkpointed"]["without a plan"])
        self.assertRegex(page, "The step takes {} MiB, with a checkpoint around each layer {}, and with plans down to {}.".format(
            found["step"]["without a plan"], found["checkpointed"]["without a plan"], least))


class CommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "train.py"
        self.file.write_text(FILE, encoding="utf-8")

    def run_command(self, *arguments, code=0):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                self.assertEqual(main(["explain", *map(str, arguments)]), code)
            except SystemExit as stopped:
                self.assertEqual(stopped.code, code)
        return out.getvalue() if code == 0 else error.getvalue()

    def test_a_step_of_a_file(self):
        text = self.run_command(self.file)
        self.assertEqual(text, self.run_command(f"{self.file}:step", "--device", "cpu"))
        self.assertIn("without a plan", text)
        document = json.loads(self.run_command(self.file, "--format", "json"))
        check_schema(self, "torch-explain", document)
        weights = 4 * (32 * 32 + 32) * 4
        self.assertGreater(document["floor"]["throughout_bytes"], 3 * weights)  # with the optimizer's state
        self.assertEqual(document["times"], "estimated")

    def test_lengths_of_a_file(self):
        exported = self.file.with_name("step.json")
        text = self.run_command(self.file, "--memory", "400KiB", "--lengths", "128,512", "--export-step", exported)
        self.assertRegex(text, r"with other lengths than the 256 of the inputs' shapes, \[256, 32\]:")
        self.assertIn("Length ", text)
        self.assertEqual([size["name"] for size in json.loads(exported.read_text("utf-8"))["sizes"]], ["128", "256", "512"])
        text = self.run_command(self.file, "--memory", "400KiB", "--lengths", "256:100", "--format", "json")
        self.assertEqual([row["length"] for row in json.loads(text)["lengths"]["rows"]][:2], [100, 256])

    def test_a_model(self):
        self.assertIn("without a plan", self.run_command(
            "gpt2", "--batch", 1, "--layers", 1, "--width", 32, "--heads", 2, "--vocabulary", 50, "--sequence", 16))
        self.assertIn("without a plan", self.run_command(
            "mistral", "--batch", 1, "--layers", 1, "--width", 32, "--heads", 2, "--vocabulary", 50, "--sequence", 16))

    def test_errors(self):
        for arguments, code, text in (
                ((f"{self.file}:none",), 3, r"train.py: no function 'none' \(functions: fails, saves_nothing, step\)"),
                ((f"{self.file}:",), 3, "no function ''"),
                ((f"{self.file}:fails",), 3, r"train.py:15: RuntimeError: .*shape"),
                ((f"{self.file}:saves_nothing",), 3, "the step saved no tensor for a backward"),
                (("none.py",), 3, "none.py: no such file; expected FILE.py or FILE.py:FUNCTION"),
                (("no_model",), 5, "neither torchvision nor transformers knows it"),
                (("t5",), 5, "model 't5': transformers has no causal language model of this kind"),
                (("mistral", "--layers", 1, "--width", 30, "--heads", 4, "--vocabulary", 50), 3, "mistral: RuntimeError: The size of"),
                ((self.file, "--device", "cuda"), 5, "--device cuda: this machine has no GPU"),
                ((self.file, "--format", "xml"), 2, "invalid choice: 'xml'"),
                ((self.file, "--lengths", "64"), 2, "--lengths: they need --memory, or --export-step"),
                ((self.file, "--memory", "8"), 2, "argument --memory: memory '8': expected a number of bytes above 0"),
                *((("--memory", "1MiB", self.file, "--lengths", wrong), 2, f"'{wrong}' is not a list of whole numbers above 0, such as")
                  for wrong in ("0", "x", "8:", "8,", "0:8", "8:4:2")),
                (("--memory", "1MiB", self.file, "--lengths", "7:4"), 3, r"dimension 7: no input of the step has it \(valid: 32, 256\)"),
                ((), 2, "the following arguments are required: model")):
            self.assertRegex(self.run_command(*arguments, code=code), text)
        for text, error in (("x = (", "train.py:1: SyntaxError"), ("\n1 / 0", "train.py:2: ZeroDivisionError"),
                            ("raise SystemExit(0)", "train.py:1: SystemExit: 0"),
                            ("import none_such", "train.py:1: ModuleNotFoundError")):
            self.file.write_text(text, encoding="utf-8")
            self.assertRegex(self.run_command(self.file, code=3), error)

    def test_the_program_is_needed(self):
        with mock.patch.dict(os.environ, {"SPILLWAY": "/no/program"}):
            self.assertRegex(self.run_command(self.file, code=5), "SPILLWAY=/no/program is not a program")

    def test_a_tape_without_a_step_is_refused(self):
        with self.assertRaisesRegex(SpillwayError, "saved no tensor"):
            explain(record_tape(lambda: None, "cpu"))


if __name__ == "__main__":
    unittest.main()

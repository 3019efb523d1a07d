"""What a recorded step takes under torch.compile, and what `spillway fit` says of that."""

import contextlib
import dataclasses
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import spillway_torch
from spillway_torch import SpillwayError
from spillway_torch.__main__ import Trainee, main
from spillway_torch.base.document import read_document
from spillway_torch.base.program import rows_of
from spillway_torch.compiled.joint import Joint, Rates
from spillway_torch.fit.compiled_step import CompiledStep

PROGRAM = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (
    torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 64))))
model.register_buffer("scale", torch.ones(1000))
forward = torch.compile(lambda x: model(x) * model.scale[:64])
optimizer = torch.optim.AdamW(model.parameters())


def step(batch=8192):
    optimizer.zero_grad()
    forward(torch.randn(batch, 64)).square().mean().backward()
    optimizer.step()


def smaller():
    step(4096)
"""
DATA = 8192 * 64 * 4 + 1000 * 4  # bytes that exist beside what `explain_compiled` counts on a CPU


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def stepped(forward, model, batch=32):
    """Returns a step that trains a model."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        forward(torch.randn(batch, 16)).square().mean().backward()
        optimizer.step()
    return step


class CutsTest(unittest.TestCase):
    def setUp(self):
        torch.compiler.reset()
        self.addCleanup(torch.compiler.reset)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file, self.trace = pathlib.Path(folder.name, "train.py"), pathlib.Path(folder.name, "step.json")
        self.file.write_text(PROGRAM, encoding="utf-8")

    def explained(self, named, *options, code=0):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(main(["explain", str(named), "--compile", "--device", "cpu", *options]), code, err.getvalue())
        return out.getvalue() if code == 0 else err.getvalue()

    def test_fit_has_the_rows_of_the_compiled_step(self):
        explained = json.loads(self.explained(self.file, "--export-step", str(self.trace), "--format", "json"))["rows"]
        document = read_document(self.trace)
        self.assertEqual((document["version"], len(document["compiled"])), (12, len({row["peak_bytes"] for row in explained})))
        eager = sum(slot["flops"] for op in document["ops"] if op["phase"] != "update" for slot in op["slots"])
        self.assertEqual(document["compiled"][0]["flops"], eager)
        self.assertFalse([op["name"] for op in document["ops"] if "_orig_mod" in op["name"]])

        def rows(memory):
            found = {row["change"]: row for row in rows_of("fit", str(self.trace), "--memory", f"{memory}B", "--policy", "as-recorded")}
            return found["none"], found.get("compile"), found.get("compile within the budget")
        own = explained[-1]["peak_bytes"]
        whole, compiled, within = rows(own + DATA + (8 << 20))  # the allocator takes 2 MiB and more at once
        self.assertGreater(whole["peak_requested_bytes"], own + DATA)
        self.assertEqual((whole["status"], compiled["status"], within), ("no", "fits", None))
        most = max(row["peak_requested_bytes"] for row in rows(own // 2)[1:])
        self.assertEqual(most, own + DATA)
        for row in explained[2], explained[4]:
            _, compiled, within = rows(row["peak_bytes"] + DATA + 1)
            self.assertIn(within["peak_requested_bytes"], [one["peak_bytes"] + DATA for one in explained])
            self.assertEqual(compiled["status"], "no")

    def test_a_model_that_is_named_has_no_data(self):
        def build(_, device):
            torch.manual_seed(1)
            with torch.device(device):
                model = nn.Sequential(Block(1024), Block(1024))
            return Trainee(model, lambda: torch.randn(4096, 1024, device=device), lambda forward, x: forward(x).square().mean(), "adamw")
        with mock.patch("spillway_torch.__main__.build", build):
            self.explained("blocks", "--batch", "4096", "--export-step", str(self.trace))
        document = read_document(self.trace)
        self.assertEqual((document["network"], document["batch"], document["recording"]["device"]), ("blocks", 4096, ""))
        self.assertEqual(document["compiled"][0]["flops"], sum(op["slots"][0]["flops"] for op in document["ops"]))
        lives = sum(t["size"] for t in document["tensors"] if t["kind"] in ("parameter", "optimizer_state", "input")
                    and "alias_of" not in t and not t["name"].startswith("unused."))  # gradients of the step before
        memory = lives + document["compiled"][-1]["memory"] + (32 << 20)
        rows = {row["change"]: row for row in rows_of("fit", str(self.trace), "--memory", f"{memory}B", "--policy", "as-recorded")}
        within = rows["compile within the budget"]
        self.assertEqual((rows["none"]["status"], within["status"]), ("no", "fits"))
        self.assertIn(within["peak_requested_bytes"] - lives, range(document["compiled"][-1]["memory"], document["compiled"][0]["memory"]))

    def test_recorded_without_torch_compile(self):
        model = nn.Sequential(Block(16), Block(16))
        eager = spillway_torch.record(stepped(model, model), "cpu", model=model)
        compiled = torch.compile(model)
        step = stepped(compiled, model)
        with self.assertRaisesRegex(SpillwayError, "record it without torch.compile"):
            spillway_torch.record(step, "cpu")
        with torch.compiler.set_stance("force_eager"):
            again = spillway_torch.record(step, "cpu")
        self.assertEqual([(o.name, o.module, o.phase) for o in again.operators], [(o.name, o.module, o.phase) for o in eager.operators])
        self.assertEqual((again.blocks, again.peak_requested), (eager.blocks, eager.peak_requested))

    def test_work_is_what_the_outcome_times(self):
        model = nn.Sequential(Block(16), Block(16))
        found = CompiledStep(stepped(torch.compile(model), model), "cpu")
        curve = found.curve()
        peaks = sorted({row.peak for row in curve.rows}, reverse=True)
        outside = peaks[0] - curve.cuts.cuts[0].memory
        self.assertEqual([cut.memory for cut in curve.cuts.cuts], [peak - outside for peak in peaks])
        never, slow = float("inf"), 1e-3
        for graph in found._found:
            for choice in graph.choice, dataclasses.replace(graph.choice, keep=frozenset()):
                def seconds(rates):
                    return Joint(*graph.joint._made_of, rates).outcome(set(choice.keep), choice.near).seconds
                work = graph.joint.work(set(choice.keep), choice.near)
                self.assertEqual(work.kernels, seconds(Rates(never, {}, never, 1.0, 1.0)))
                self.assertEqual(work.flops, seconds(Rates(never, {}, 1.0, 1e-99, 1.0)))
                self.assertAlmostEqual(work.traffic, seconds(Rates(1.0, {}, slow, 1e-99, 1.0)) - work.flops / slow, delta=1)

    def test_graph_breaks_and_parts_that_are_not_compiled(self):
        model = nn.Sequential(Block(16), nn.Tanh(), Block(16))
        parts = [torch.compile(part) if isinstance(part, Block) else part for part in model]
        step = stepped(lambda x: parts[2](parts[1](parts[0](x))), model)
        curve = spillway_torch.explain_compiled(step, "cpu")
        cuts = curve.cuts
        lives = 2 * sum(p.nbytes for p in model.parameters())  # with momentum; gradients come and go
        self.assertEqual([cut.memory for cut in cuts.cuts], sorted({row.peak - lives for row in curve.rows}, reverse=True))
        with torch.compiler.set_stance("force_eager"):
            recorded = spillway_torch.record(step, "cpu", model=model)
        recorded.write(self.trace, compiled=cuts)
        eager = sum(op.flops for op in recorded.operators)
        self.assertEqual(cuts.cuts[0].flops, eager)
        self.assertEqual(read_document(self.trace)["compiled"], [dataclasses.asdict(cut) for cut in cuts.cuts])

    def test_refusals(self):
        self.assertIn("no such file or directory", self.explained(self.file, "--export-step", "/no/such/step.json", code=3).lower())
        with self.assertRaisesRegex(SpillwayError, r"device 'cuda:sm_90' \(valid: cuda, cpu\)"):
            spillway_torch.explain_compiled(print, "cuda:sm_90")
        model = Block(16)
        cuts = spillway_torch.explain_compiled(stepped(torch.compile(model), model), "cpu").cuts
        with self.assertRaisesRegex(SpillwayError, "its graphs read 2,048 bytes at once, which the recorded step does not have"):
            spillway_torch.record(stepped(model, model, 24), "cpu").write(self.trace, compiled=cuts)
        other = Block(24)
        with self.assertRaisesRegex(SpillwayError, "give the cuts of the same step, with the same batch and types"):
            spillway_torch.record(lambda: other(torch.randn(32, 24)).sum().backward(), "cpu").write(self.trace, compiled=cuts)
        self.assertFalse(self.trace.exists())


if __name__ == "__main__":
    unittest.main()

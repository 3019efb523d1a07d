"""Tests the plans of `fit` for steps whose inputs have other sizes, and other operators, from step to step."""

import copy
import dataclasses
import gc
import logging
import math
import random
import unittest
import weakref
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import cases
from spillway_torch import Plan, fit, make_plan
from spillway_torch.plan import planner
from spillway_torch.plan.plan import EVICT
from spillway_torch.plan.planner import make_ladder, predict
from spillway_torch.tape.scaled import _Changes, name_of, ratios_of, scaled, sizes_of
from spillway_torch.tape.tape_recorder import record_tape
from stepping import different


class Deep(nn.Module):
    """Blocks of which a step may leave out some."""

    def __init__(self, width=32, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(blocks))

    def forward(self, x, left_out=()):
        for at, block in enumerate(self.blocks):
            x = x if at in left_out else x + block(x)
        return x


def train(sizes, budget=None, left_out=lambda at: ()):
    """Returns losses and weights after steps with batches of these sizes, and what `fit` made."""
    torch.manual_seed(0)
    model = Deep()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    fitted = fit(model, optimizer, budget) if budget is not None else None
    seen, runs = [], []
    for at, size in enumerate(sizes):
        optimizer.zero_grad()
        loss = model(torch.randn(size, 32), left_out(at)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
        runs.append(fitted.last if fitted is not None else None)
    return [*seen, *(p.detach().clone() for p in model.parameters())], fitted, runs


class ScaledTest(unittest.TestCase):
    def test_the_memory_of_other_sizes_is_foreseen(self):
        model = cases.Transformer(dropout=0.0, layers=2)

        def record(batch, length):
            model.zero_grad()
            tokens = torch.randint(50, (batch, length))
            return record_tape(lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward(), "cpu", model)

        one = record(5, 13)
        for batch, length in ((5, 13), (7, 13), (5, 31), (11, 23), (3, 7)):
            with self.subTest(batch=batch, length=length):
                other, foreseen = record(batch, length), scaled(one, ((5, 13),), ((batch, length),))
                self.assertAlmostEqual(foreseen.eager_peak() / other.eager_peak(), 1.0, delta=0.03)
        self.assertEqual(one.eager_peak(), record(5, 13).eager_peak())

    def test_ratios(self):
        self.assertEqual(ratios_of(((4, 8), (4,)), ((4, 8), (4,))), {})
        self.assertEqual(ratios_of(((4, 8), (4,)), ((6, 8), (8,))), {4: 2.0})
        self.assertEqual(ratios_of(((4, 1),), ((2, 9),)), {4: 0.5})

    def test_dimensions_that_are_near_to_a_size_grow_with_it(self):
        def growth(shape, now, was=(4, 52), fixed=()):
            return [round(ratio, 3) for ratio in _Changes((was,), (now,), fixed).of(shape)]

        self.assertEqual(growth((4, 51, 51), (4, 65)), [1, 1.255, 1.255])  # tokens but the first
        self.assertEqual(growth((204, 96), (4, 65)), [1.255, 1])  # of all texts
        self.assertEqual(growth((4, 51), (3, 65)), [0.75, 1.255])
        self.assertEqual(growth((4, 52, 51), (4, 65)), [1, 1.25, 1])  # 51 is another size here
        self.assertEqual(growth((16, 52, 52), (8, 65)), [2, 1.25, 1.25])  # batch and heads
        self.assertEqual(growth((16, 52, 52), (3, 65)), [1, 1.25, 1.25])  # never too little
        self.assertEqual(growth((3, 51), (8, 52)), [1, 1])
        self.assertEqual(growth((3, 24, 32), (4, 20), (4, 16), {32, 96}), [1, 1, 1])  # 16 divides a width of the model
        self.assertEqual(growth((3, 24, 51), (4, 65), fixed={51}), [1, 1, 1])
        self.assertEqual(growth((3, 80, 48), (3, 80, 48, 8), (3, 80, 48, 16)), [1, 1, 1])  # 48 may be an input's, or 3 * 16
        self.assertEqual(growth((3, 80, 48), (3, 80, 48, 20), (3, 80, 48, 16)), [1, 1, 1.25])
        self.assertEqual(growth((3, 16, 8), (4, 5), (4, 16), {16}), [1, 1, 1])  # 16 may be a width, and gets no smaller
        self.assertEqual(growth((3, 16, 8), (4, 20), (4, 16), {16}), [1, 1.25, 1])

        model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 200))

        def record(length):
            model.zero_grad()
            tokens = torch.randint(50, (4, length))
            return record_tape(lambda: F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward(), "cpu", model)

        foreseen = scaled(record(24), ((4, 24),), ((4, 61),)).eager_peak()
        self.assertAlmostEqual(foreseen / record(61).eager_peak(), 1.0, delta=0.02)

    def test_a_ladder_has_the_plans_of_its_sizes_and_none_of_a_larger_size_is_faster(self):
        for seed in range(3):
            draw = random.Random(seed)
            model = cases.Transformer(dropout=0.1, layers=draw.randrange(1, 3))
            shape = draw.randrange(2, 6), draw.randrange(9, 30)
            tokens = torch.randint(50, shape)
            tape = record_tape(lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward(), "cpu", model)
            lengths = sorted(draw.randrange(4, 40) for _ in range(3))
            steps = {name: scaled(tape, tape.inputs, shapes) for name, shapes in sizes_of(tape, lengths, shape[1]).items()}
            budget = int(tape.eager_peak() * draw.uniform(0.6, 1))
            largest = steps[max(steps, key=int)]
            ladder = make_ladder(largest, steps, budget, moves=(EVICT,))
            took = []
            for name in sorted(steps, key=int):
                with self.subTest(seed=seed, length=name):
                    self.assertEqual(tape.inputs, (shape,))
                    plan = ladder[name]
                    took.append(plan.seconds if isinstance(plan, Plan) else math.inf)
                    if isinstance(plan, Plan):
                        self.assertLessEqual(plan.peak, budget)
                        again = dataclasses.replace(plan)
                        predict(again)
                        self.assertAlmostEqual(plan.seconds, again.seconds, delta=1e-12)
                        self.assertEqual(plan.peak, again.peak)
                    else:
                        self.assertRegex(str(plan), "below the floor of|no plan within")
            self.assertEqual(took, sorted(took))
            budget = int(0.8 * largest.eager_peak())
            alone, same = make_plan(largest, budget, moves=(EVICT,)), make_ladder(largest, steps, budget, moves=(EVICT,))[max(steps, key=int)]
            self.assertEqual((alone.actions, alone.peak, alone.seconds), (same.actions, same.peak, same.seconds))

    def test_the_sizes_of_inputs(self):
        model = nn.Linear(32, 64)
        data = torch.randn(3, 40, 32)
        tape = record_tape(lambda: model(data).tanh().sum().backward(), "cpu", model)
        self.assertEqual(tape.inputs, ((3, 40, 32),))
        self.assertEqual(sizes_of(tape, [80]), {"40": ((3, 40, 32),), "80": ((3, 80, 32),)})
        self.assertEqual(sizes_of(tape, [5, 1], 3), {"1": ((1, 40, 32),), "3": ((3, 40, 32),), "5": ((5, 40, 32),)})
        self.assertEqual(name_of(((3, 40, 32), (7,), ())), "3x40x32+7+")

    def test_more_never_takes_less(self):
        model = Deep()
        data = torch.randn(64, 32)
        tape = record_tape(lambda: model(data).square().mean().backward(), "cpu", model)
        peaks = [scaled(tape, ((64, 32),), ((rows, 32),)).eager_peak() for rows in (1, 8, 63, 64, 65, 100, 1000)]
        self.assertEqual(peaks, sorted(peaks))


class FamilyTest(unittest.TestCase):
    def budget(self, size):
        """Returns a budget in which a step of this size needs a plan."""
        _, fitted, _ = train([size] * 2, 1 << 40)
        plan = fitted.plan
        fitted.remove()
        return (plan.floor.bytes + 2 * plan.eager_peak) // 3

    def test_steps_of_any_size_are_planned_from_one_recording(self):
        sizes = [96, 80, 128, 100, 33, 1, 128, 150]
        want, budget = train(sizes)[0], self.budget(110)
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            got, fitted, runs = train(sizes, budget)
        self.assertEqual(different(want, got), [])
        self.assertEqual(fitted._structures.recordings, 1)
        self.assertEqual([run.deviation for run in runs[1:]], [None] * 7)
        self.assertTrue(all(runs[at].recomputed for at in (2, 6, 7)))  # the larger ones
        self.assertFalse(any(runs[at].recomputed for at in (4, 5)))
        self.assertEqual(len(logs.output), 1)  # for all plans of a structure
        for rung in fitted._state.family.rungs:
            self.assertLessEqual(rung.plan.peak, budget)
        lines = fitted.report().splitlines()
        self.assertRegex(lines[0], r"budget [\d.,]+ KiB; 8 steps: 7 planned \(88%\), 0 as they are \(0%\), 1 recorded \(12%\)")
        self.assertRegex(lines[0], r"; [1-9]\d* operators ran again, .* and 0 KiB because memory was short$")
        self.assertEqual(len(lines), 1 + len(fitted._state.family.rungs))
        rows = [int(line.removeprefix("inputs of [").split(",")[0]) for line in lines[1:]]
        self.assertEqual(rows, sorted(rows))
        self.assertIn("inputs of [96, 32] and smaller ones: predicted peak", "\n".join(lines))
        fitted.remove()

    def test_all_plans_are_made_anew_in_one_call(self):
        sizes = [96, 96, 128, 150]
        _, fitted, _ = train(sizes, self.budget(110))
        family = fitted._state.family
        known = [rung.shapes for rung in family.rungs]
        self.assertGreater(len(known), 1)
        with mock.patch.object(planner, "rows_of", wraps=planner.rows_of) as asked, self.assertLogs("spillway_torch", logging.INFO) as logs:
            family.plan_for(family.shapes, "state came", renew=True)
        self.assertEqual((asked.call_count, len(logs.output)), (1, 1))
        self.assertEqual([rung.shapes for rung in family.rungs], known)
        self.assertIn("state came, planned in", logs.output[0])
        took = [rung.plan.seconds for rung in family.rungs]
        self.assertEqual(took, sorted(took))
        fitted.remove()

    def test_structures_that_take_turns_have_plans(self):
        sizes, left_out = [96] * 10, lambda at: (1, 2) if at % 2 else ()
        want, budget = train(sizes, left_out=left_out)[0], self.budget(80)
        with self.assertLogs("spillway_torch", logging.INFO):
            got, fitted, runs = train(sizes, budget, left_out)
        self.assertEqual(different(want, got), [])
        self.assertEqual(fitted._structures.recordings, 3)  # the second one was of the first one's structure
        self.assertEqual([run.deviation for run in runs[5:]], [None] * 5)
        self.assertTrue(all(run.recomputed for run in runs[6::2]))
        fitted.remove()

    def test_a_size_that_cannot_be_planned_is_named_once_and_runs(self):
        sizes = [96, 96, 20000, 96, 20000]
        want = train(sizes)[0]
        with self.assertLogs("spillway_torch", logging.WARNING) as logs:
            got, fitted, _ = train(sizes, self.budget(96))
        self.assertEqual(different(want, got), [])
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], r"there is no plan for inputs of \[20000, 32\], and such steps run under the plan that saves most and may take more than the budget: a budget of .* below the floor of")
        fitted.remove()

    def test_a_refusal_holds_nothing_of_the_program(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

        def run(sizes):
            mine = torch.ones(1)
            train(sizes, self.budget(96))
            return weakref.ref(mine)

        for sizes in [96, 20000], [20, 96, 2000, 20]:
            with self.subTest(sizes):
                self.assertIsNone(run(sizes)())

    def test_parts_of_a_model_are_called_in_its_place(self):
        class Container(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = torch.nn.ModuleList([Deep()])

        for make, call, recorded in (Container, lambda model, x: model.parts[0](x), 0), (Deep, lambda model, x: Deep.forward(model, x), 1):
            model = make()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            fitted = fit(model, optimizer, 1 << 40)
            with self.subTest(make), self.assertNoLogs("spillway_torch", logging.WARNING):
                for at in range(4):
                    self.assertEqual(fitted.stats()["recorded"], at > recorded)
                    call(model, torch.randn(4, 32)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                copy.deepcopy(model)
            self.assertEqual(fitted.stats()["planned"], 3 - recorded)
            fitted.remove()

    def test_a_model_of_which_nothing_is_called_is_said(self):
        model = torch.nn.Linear(32, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fitted = fit(model, optimizer, 1 << 40)
        with self.assertLogs("spillway_torch", logging.WARNING) as logs:
            for _ in range(4):
                torch.nn.functional.linear(torch.randn(4, 32), model.weight).sum().backward()
                optimizer.step()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("nothing is planned, because the model was updated 2 times and its forward was never called", logs.output[0])
        fitted.remove()


if __name__ == "__main__":
    unittest.main()

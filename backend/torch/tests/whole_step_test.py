"""Tests that `fit` plans whole steps: what they save outside of the model's forward, too."""

import contextlib
import gc
import logging
import random
import threading
import unittest
import warnings
import weakref

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from guard_test import Guarded, counted
from spillway_torch import SpillwayError, fit
from spillway_torch.tape.tape_recorder import record_tape
from stepping import different


def network(width=16):
    return nn.Sequential(*(m for _ in range(4) for m in (
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))))


def active():
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def margin(one, other):
    return F.softplus(torch.tanh(one).exp() - torch.sigmoid(other).sqrt()).mean()


def plain(model, x, _):
    return torch.log_softmax(model(x) * 3, 1).exp().square().mean()


def preferences(model, x, _):
    return margin(model(x), model(x.flip(0) + 1))


def penalty(model, x, _):
    x = x.clone().requires_grad_()
    y = model(x).square().mean(1)
    slope, = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.mean() + (slope.square().sum(1).sqrt() - 1).square().mean()


def attack(model, x, _):
    x = x.clone().requires_grad_()
    slope, = torch.autograd.grad(plain(model, x, 0), x)
    return plain(model, (x + 0.1 * slope.sign()).detach(), 0)


def evaluation(model, x, at):
    y = model(x)
    with torch.no_grad():
        best = model(x + at).mean()
    return margin(y, y * best)


def transform(model, x, at):
    y = model(x)
    slope = torch.func.grad(lambda t: torch.tanh(t).square().sum())(x)
    return margin(y, y * slope)


def hooks(model, x, at):
    y = model(x)
    with torch.autograd.graph.save_on_cpu():
        return margin(y, torch.tanh(model(x * 2)))


def hooks_that_stay(model, x, at):
    y = model(x)
    with torch.autograd.graph.save_on_cpu():
        loss = margin(y, torch.tanh(y))
        loss.backward(retain_graph=True)
    return loss


def nobody_uses(model, x, at):
    model(x + 1)
    return plain(model, x, at)


def failure(model, x, at):
    with contextlib.suppress(ZeroDivisionError):
        margin(model(x), 1 / 0)
    with contextlib.suppress(RuntimeError):
        model(x[:, :3])
    return plain(model, x, at)



def counts(fitted):
    """Returns how many steps were planned, guarded and recorded."""
    stats = fitted.stats()
    return stats["planned"], stats["guarded"], stats["recorded"]

class Inner(nn.Module):
    """A model with a backward in its forward."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        x = x.clone().requires_grad_()
        slope, = torch.autograd.grad(self.model[0](x).square().sum(), x)
        return self.model(x + slope)


def checkpoint(model, x, at):
    return margin(model(x), torch.utils.checkpoint.checkpoint(lambda t: model(t).tanh(), x, use_reentrant=False))


def two_losses(model, x, at):
    y = model(x)
    y.square().mean().backward(retain_graph=True)
    return margin(y, y.exp())


def generator(model, x, at):
    def results():
        for rows in x.split(20):
            yield model(rows)

    return margin(*(torch.cat(list(results()), 0) for _ in range(2)))


READ_TWICE = (hooks_that_stay, penalty, two_losses)  # all that they save is needed until the second backward
STEPS = (plain, preferences, attack, evaluation, transform, hooks, nobody_uses, failure, checkpoint, generator,
         *READ_TWICE)


class Loop:
    """A loop of training steps whose parts may be drawn."""

    def __init__(self, parts, seed=0, accumulate=1):
        torch.manual_seed(seed)
        self.model, self.parts, self.accumulate = network(), parts, accumulate
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.runs, self.peaks = [], []

    def run(self, steps=5, fitted=None, rows=lambda at: 40, device=None):
        torch.manual_seed(1)
        seen = []
        for at in range(steps):
            self.optimizer.zero_grad()
            for _ in range(self.accumulate):
                for part in self.parts:
                    loss = part(self.model, torch.randn(rows(at), 16), at)
                    loss.backward()
                    self.runs.append(fitted.last if fitted is not None else None)
                    with _disable_current_modes():
                        seen.append(loss.detach().clone())
                    del loss
            if device is not None:
                self.peaks.append(device.peak)
            with _disable_current_modes():
                seen += [p.grad.clone() for p in self.model.parameters()]
            self.optimizer.step()
            if device is not None:
                device.peak = device.allocated
        return seen

    def budget(self, share=0.5):
        """Returns a budget between the floor and what a step takes without a plan."""
        other = Loop(self.parts, accumulate=self.accumulate)
        fitted = fit(other.model, other.optimizer, 1 << 40)
        other.run(2)
        plan = fitted.plan
        fitted.remove()
        share = 1 if set(self.parts) & set(READ_TWICE) else share
        return plan.floor.bytes + int(share * (plan.eager_peak - plan.floor.bytes))


class WholeStepTest(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.addCleanup(lambda: self.assertIsNone(_get_current_dispatch_mode()))
        self.addCleanup(lambda: self.assertIsNone(active()))

    def planned(self, loop, budget, **options):
        fitted = fit(loop.model, loop.optimizer, budget)
        seen = loop.run(fitted=fitted, **options)
        fitted.remove()
        self.assertIsNone(active())
        return seen, fitted

    def test_whatever_a_step_does_its_results_are_the_same(self):
        for part in STEPS:
            with self.subTest(part.__name__):
                loop = Loop([part])
                got, fitted = self.planned(loop, Loop([part]).budget())
                self.assertEqual(different(Loop([part]).run(), got), [])
                self.assertEqual(any(run is not None and run.recomputed for run in loop.runs), part not in READ_TWICE)
                self.assertEqual([run.deviation for run in loop.runs[-2:]], [None, None])

    def test_what_is_saved_outside_of_the_forward_is_recomputed(self):
        def loss(model, x, _):
            y = model(x)
            for _ in range(8):
                y = torch.tanh(y.repeat(1, 8) + 1)[:, :16]
            return y.square().mean()

        loop = Loop([loss])
        got, fitted = self.planned(loop, Loop([loss]).budget(0.3))
        self.assertEqual(different(Loop([loss]).run(), got), [])
        again = {tape.ops[at].name for tape in [loop.runs[-1]._executor.plan.tape] for saved, action in loop.runs[-1]._executor._recipes
                 if action == "evict" for at in saved.chain.ops}
        self.assertIn("aten::tanh", again)

    def test_a_second_forward_is_in_the_same_plan(self):
        for share in 0.3, 0.7:
            loop = Loop([preferences])
            got, fitted = self.planned(loop, Loop([preferences]).budget(share))
            self.assertEqual(different(Loop([preferences]).run(), got), [])
            self.assertEqual(fitted._structures.recordings, 1)
            self.assertEqual(counts(fitted), (4, 0, 1))

    def test_a_backward_in_the_forward_ends_no_step(self):
        budget, want = 1 << 40, None
        for _ in range(2):
            loop = Loop([plain])
            loop.model = Inner(loop.model)
            got, fitted = self.planned(loop, budget)
            self.assertEqual(counts(fitted), (4, 0, 1))
            self.assertEqual([run.deviation for run in loop.runs[1:]], [None] * 4)
            self.assertEqual(loop.runs[-1].recomputed > 0, want is not None)
            self.assertEqual(different(want or got, got), [])
            plan = loop.runs[-1]._executor.plan
            want, budget = got, (plan.floor.bytes + plan.eager_peak) // 2

    def test_later_calls_with_larger_inputs_are_foreseen(self):
        def loss(model, x, at):
            return margin(model(x[:8]).mean(0), model(x))

        loop = Loop([loss])
        budget = Loop([loss]).budget(1.3)
        fitted = fit(loop.model, loop.optimizer, budget)
        rows = [40, 40, 80, 80, 20, 80]
        got = loop.run(6, rows=rows.__getitem__, fitted=fitted)
        self.assertEqual(different(Loop([loss]).run(6, rows=rows.__getitem__), got), [])
        self.assertEqual([run.recomputed > 0 for run in loop.runs[1:]], [False, False, True, True, True])
        self.assertEqual(fitted._state.last.rung.shapes[0], (8, 16))
        self.assertGreaterEqual(fitted._state.last.rung.shapes[1], (80, 16))
        fitted.remove()

    def test_what_waits_for_a_later_backward_counts(self):
        model, x, kept = network(), torch.randn(40, 16), []

        def step(keep):
            y = model(x)
            if keep:
                kept.append(model(x + 1))
            y.sum().backward()

        one, two = (record_tape(lambda keep=keep: step(keep), "cpu", model).eager_peak() for keep in (False, True))
        self.assertGreater(two - one, 4 * 2 * 40 * 64 * 4)  # of each layer, two wide tensors

    def test_each_micro_batch_is_planned_by_itself(self):
        loop = Loop([plain], accumulate=3)
        got, fitted = self.planned(loop, Loop([plain], accumulate=3).budget(), rows=lambda at: 40 - at)
        self.assertEqual(different(Loop([plain], accumulate=3).run(rows=lambda at: 40 - at), got), [])
        self.assertEqual(counts(fitted), (14, 0, 1))
        self.assertEqual([run.deviation for run in loop.runs[1:]], [None] * 14)

    def test_drawn_loops(self):
        for seed in range(6):
            draw = random.Random(seed)
            parts = [draw.choice(STEPS) for _ in range(draw.choice((1, 2)))]
            sizes = [draw.choice((40, 33, 24)) for _ in range(12)]
            with self.subTest(seed=seed, parts=[part.__name__ for part in parts]):
                options = {"steps": 8, "rows": sizes.__getitem__}
                loop = Loop(parts)
                got, _ = self.planned(loop, Loop(parts).budget(draw.uniform(0.3, 0.9)), **options)
                self.assertEqual(different(Loop(parts).run(**options), got), [])

    def test_budgets_are_kept_where_the_device_counts(self):
        for part in plain, preferences, attack, evaluation, nobody_uses:
            for share in 0.5, 0.8:
                with self.subTest(part.__name__, share=share):
                    budget, device, loop = self.budget(part, share), Guarded(), Loop([part])
                    want = Loop([part]).run()
                    with counted(device):
                        got, fitted = self.planned(loop, budget, device=device)
                    self.assertEqual(different(want, got), [])
                    self.assertLessEqual(max(loop.peaks), budget)

    @staticmethod
    def budget(part, share):
        """Returns a budget on a device that counts: between the parameters, and what a step takes without a plan."""
        device, loop = Guarded(), Loop([part])
        with counted(device):
            fitted = fit(loop.model, loop.optimizer, 1 << 40)
            loop.run(3, device=device)
            plan = fitted.plan
        fitted.remove()
        return plan.floor.bytes + int(share * (plan.eager_peak - plan.floor.bytes))

    def test_a_step_after_a_backward_that_failed_in_the_recorded_one(self):
        """It is recorded, though the failed one could be read again."""
        def fail(_):
            raise ZeroDivisionError

        peaks = []
        for budget in None, True:
            device = Guarded()
            with counted(device):
                loop = Loop((plain,))
                model, optimizer = loop.model, loop.optimizer
                fitted = fit(model, optimizer, int(0.6 * peaks[0])) if budget else None
                handle = model[6].weight.register_hook(fail)
                loss = plain(model, torch.randn(400, 16), 0)
                with self.assertRaises(ZeroDivisionError):
                    loss.backward()
                handle.remove()
                for _ in range(3):
                    device.peak = device.allocated
                    optimizer.zero_grad()
                    plain(model, torch.randn(400, 16), 0).backward()
                    peaks.append(device.peak)
                    optimizer.step()
                del loss
        self.assertLessEqual(max(peaks[3:]), int(0.6 * peaks[0]))
        self.assertEqual(counts(fitted), (2, 0, 2))
        fitted.remove()

    def test_calls_with_tensors_that_are_no_parameters(self):
        """Those of torch.func.functional_call are planned; those in transforms are ordinary ones."""
        def train(budget=None):
            torch.manual_seed(0)
            model, seen = network(), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            fitted = fit(model, optimizer, budget) if budget is not None else None
            for _ in range(4):
                optimizer.zero_grad()
                fast = {name: p * 1.01 for name, p in model.named_parameters()}
                x = torch.randn(40, 16)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # such as about gradients of what is no leaf
                    torch.func.functional_call(model, fast, (x,)).square().mean().backward()
                each = torch.func.vmap(torch.func.grad(lambda p, row: torch.func.functional_call(model, p, (row[None],)).sum()), (None, 0))(
                    {name: p.detach() for name, p in model.named_parameters()}, x[:2])
                optimizer.step()
                seen += [*(p.detach().clone() for p in model.parameters()), *each.values()]
            return seen, fitted

        want, _ = train()
        _, fitted = train(1 << 40)
        plan = fitted.plan
        fitted.remove()
        got, fitted = train((plan.floor.bytes + plan.eager_peak) // 2)
        self.assertEqual(different(want, got), [])
        self.assertEqual(counts(fitted), (3, 0, 1))
        self.assertGreater(fitted.last.recomputed, 0)
        fitted.remove()

    def test_nothing_is_active_in_a_backward_and_after_it(self):
        loop, seen = Loop([plain]), []
        loop.model[0].weight.register_hook(lambda _: seen.append(active()))
        fitted = fit(loop.model, loop.optimizer, 1 << 40)
        loop.run()
        self.assertEqual(seen, [None] * 5)
        self.assertIsNone(active())
        y = loop.model(torch.randn(4, 16))
        self.assertIsNotNone(active())
        torch.func.grad(lambda t: t.square().sum())(torch.randn(3))
        self.assertIsNotNone(active())
        y.sum().backward()
        self.assertIsNone(active())
        self.assertEqual(torch.autograd.graph.disable_saved_tensors_hooks.__module__, "torch.autograd.graph")
        fitted.remove()

    def test_a_step_that_is_open_when_its_budget_goes(self):
        loop = Loop([plain])
        fitted = fit(loop.model, loop.optimizer, 1 << 40)
        loop.run(3)
        loop.model(torch.randn(4, 16))
        self.assertIsNotNone(active())
        gone = weakref.ref(fitted)
        del fitted, loop
        gc.collect()
        self.assertIsNone(gone())
        self.assertIsNone(active())

    def test_a_forward_that_nobody_uses_is_no_part_of_a_step(self):
        loop = Loop([plain])
        fitted = fit(loop.model, loop.optimizer, 1 << 40)
        loop.run(3)
        with self.assertNoLogs("spillway_torch"):
            loop.model(torch.randn(40, 16))
            loop.run(1)
        self.assertIsNone(fitted.last.deviation)
        self.assertEqual(counts(fitted), (4, 0, 1))
        fitted.remove()

    def test_hooks_below_others_are_left_when_they_are_on_top(self):
        loop, x = Loop([plain]), torch.randn(40, 16)
        fitted = fit(loop.model, loop.optimizer, 1 << 40)
        loop.run(3)
        y = loop.model(x)
        run = fitted._part().run
        with torch.autograd.graph.save_on_cpu():
            y.sum().backward(retain_graph=True)
        self.assertIsNotNone(active())
        packs = run.packs
        (y * y).exp()
        self.assertEqual(run.packs, packs)
        plain(loop.model, x, 0).backward()
        self.assertIsNone(active())
        fitted.remove()

    def test_a_step_of_another_thread(self):
        loop = Loop([plain])
        fitted = fit(loop.model, loop.optimizer, 1 << 40)
        loop.run(2)
        left = []
        thread = threading.Thread(target=lambda: left.append(loop.model(torch.randn(40, 16))))
        thread.start()
        thread.join()
        part = fitted._part()
        plain(loop.model, torch.randn(40, 16), 0).backward()  # it is not planned
        self.assertIs(fitted._part(), part)
        self.assertEqual(part.later, ())
        left.clear()
        plain(loop.model, torch.randn(40, 16), 0).backward()
        self.assertIsNot(fitted.last, part.run)
        self.assertIsNone(fitted.last.deviation)
        fitted.remove()

    def test_two_budgets_that_meet_in_a_step_are_refused(self):
        one, other = Loop([plain]), Loop([plain])
        budgets = [fit(loop.model, loop.optimizer, 1 << 40) for loop in (one, other)]
        for loop in one, other:
            loop.run(3)
        one.run(1)
        with self.assertRaisesRegex(SpillwayError, r"open already: give all models .* to one `fit`, as in fit\(\[one, other\]"):
            other.model(one.model(torch.randn(4, 16)))
        for fitted in budgets:
            fitted.remove()


if __name__ == "__main__":
    unittest.main()

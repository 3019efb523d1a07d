"""Tests `fit` where steps have several models."""

import logging
import unittest

import torch
from torch import nn
from torch.nn import functional as F

from guard_test import Guarded, counted
from spillway_torch import SpillwayError, fit
from stepping import different


def block(width=16):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Tanh())


class Quiet(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.addCleanup(lambda: self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False)))


class Pair:
    """Two models that are trained together, or in turns."""

    def __init__(self, how):
        torch.manual_seed(0)
        self.one, self.other, self.how = nn.Sequential(block(), block()), nn.Sequential(block(), nn.Linear(16, 1)), how
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (self.one, self.other)]

    def run(self, steps=5, fitted=None):
        torch.manual_seed(1)
        seen, runs = [], []
        for _ in range(steps):
            for loss, optimizers in self.how(self, torch.randn(40, 16)):
                loss.backward()
                runs.append(fitted.last if fitted is not None else None)
                for optimizer in optimizers:
                    optimizer.step()
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                seen.append(loss.detach())
        return [*seen, *self.one.state_dict().values(), *self.other.state_dict().values()], runs


def together(pair, x):
    yield F.softplus(pair.other(pair.one(x))).mean(), pair.optimizers


def teacher(pair, x):
    with torch.no_grad():
        wanted = pair.other[0](pair.other[0](x)) + pair.one(x)
    yield (pair.one(x) - wanted).square().mean(), pair.optimizers[:1]


def frozen(pair, x):
    for p in pair.other.parameters():
        p.requires_grad_(False)
    yield pair.other(pair.one(x)).square().mean(), pair.optimizers[:1]


class PairsTest(Quiet):
    def test_several_models_have_one_budget(self):
        for how in together, teacher, frozen:
            with self.subTest(how.__name__):
                budget = 1 << 40
                for _ in range(2):
                    pair = Pair(how)
                    fitted = fit((pair.one, pair.other), pair.optimizers, budget)
                    got, runs = pair.run(8, fitted)
                    self.assertEqual(different(Pair(how).run(8)[0], got), [])
                    self.assertEqual([run.deviation for run in runs[-6:]], [None] * 6)
                    self.assertEqual(any(run is not None and run.recomputed for run in runs), budget < 1 << 40)
                    plans = [family.rungs[0].plan for family in fitted._structures.all()]
                    self.assertEqual(len(plans), 1)
                    tight = max(plans, key=lambda plan: plan.eager_peak)
                    budget = (tight.floor.bytes + 3 * tight.eager_peak) // 4
                    fitted.remove()

    def test_budgets_are_kept_where_the_device_counts(self):
        for how in together, teacher:
            budget, want = 1 << 40, Pair(how).run(6)[0]
            for _ in range(2):
                pair, device, peaks = Pair(how), Guarded(), []
                for optimizer in pair.optimizers:
                    optimizer.register_step_pre_hook(lambda *_: peaks.append(device.peak))
                    optimizer.register_step_post_hook(lambda *_: setattr(device, "peak", device.allocated))
                with counted(device):
                    fitted = fit([pair.one, pair.other], pair.optimizers, budget)
                    got = pair.run(6)[0]
                self.assertEqual(different(want, got), [])
                self.assertLessEqual(max(peaks), budget)
                plans = [family.rungs[0].plan for family in fitted._structures.all()]
                tight = max(plans, key=lambda plan: plan.eager_peak)
                self.assertEqual(any(plan.actions for plan in plans), budget < 1 << 40)
                budget = (tight.floor.bytes + 3 * tight.eager_peak) // 4
                fitted.remove()

    def test_the_plan_sees_the_memory_of_all_models_and_optimizers(self):
        class Both(nn.Module):
            def __init__(self, pair):
                super().__init__()
                self.one, self.other = pair.one, pair.other

            def forward(self, x):
                return F.softplus(self.other(self.one(x))).mean()

        peaks = []
        for several in True, False:
            pair = Pair(together)
            model = Both(pair)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            fitted = fit([pair.one, pair.other], pair.optimizers, 1 << 40) if several else fit(model, optimizer, 1 << 40)
            for _ in range(4):
                (together(pair, torch.randn(40, 16)).__next__()[0] if several else model(torch.randn(40, 16))).backward()
                for of in pair.optimizers if several else (optimizer,):
                    of.step()
                    of.zero_grad()
            peaks.append(fitted.plan.eager_peak)
            fitted.remove()
        self.assertAlmostEqual(*peaks, delta=1000)

    def test_what_is_refused(self):
        pair = Pair(together)
        with self.assertRaisesRegex(SpillwayError, "the model is a int; expected a torch.nn.Module, or a list of them"):
            fit([pair.one, 3])
        both = torch.optim.SGD([*pair.one.parameters(), *pair.other.parameters()], lr=0.1)
        fitted = fit(pair.one, both, 1 << 40)
        with self.assertRaisesRegex(SpillwayError, r"the SGD has a budget already: give all models .* to one `fit`, as in fit\("):
            fit(pair.other, both, 1 << 40)
        fitted.remove()
        fit([pair.one, pair.other], both, 1 << 40).remove()


if __name__ == "__main__":
    unittest.main()

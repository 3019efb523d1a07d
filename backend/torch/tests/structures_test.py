"""Tests `fit` where steps have several structures, and several models."""

import contextlib
import logging
import random
import types
import unittest

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from guard_test import Guarded, counted
from spillway_torch import SpillwayError, fit
from spillway_torch.fit import structures
from spillway_torch.fit.structures import Structures
from stepping import different


def block(width=16):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Tanh())


class Branches(nn.Module):
    """Layers of which a step runs some, and two heads."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.heads = nn.ModuleList((nn.Linear(16, 1), nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 5), nn.LogSoftmax(1))))

    def forward(self, x, layers=4, head=0):
        for layer in self.blocks[:layers]:
            x = x + layer(x)
        return self.heads[head](x)


def turns(at, _):
    return {"head": at % 2}


def sometimes(at, draw):
    return {"head": int(draw.random() < 0.15)}


def layer_drop(_, draw):
    return {"layers": 4 - (draw.random() < 0.2)}


def exits(at, _):
    return {"layers": (4, 2, 4, 3)[at % 4]}


def rare(at, _):
    return {"head": int(at % 6 == 5)}


def endless(_, draw):
    return {"layers": draw.randrange(1, 5), "head": draw.randrange(2)}


def train(choice, steps, budget=None, evaluate=False):
    """Returns gradients and losses of steps that each choose what they run, and their runs."""
    torch.manual_seed(0)
    model, draw = Branches(), random.Random(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fitted = fit(model, optimizer, budget) if budget is not None else None
    seen, runs = [], []
    for at in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(40, 16), **choice(at, draw)).square().mean()
        loss.backward()
        runs.append(fitted.last if fitted is not None else None)
        optimizer.step()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        if evaluate:
            model.eval()
            seen.append(model(torch.randn(9, 16)).detach())  # with gradients, which nobody uses
            model.train()
    return seen, runs, fitted


def budget_of(choice, share):
    _, _, fitted = train(choice, 2, 1 << 40)
    plan = fitted.plan
    fitted.remove()
    return plan.floor.bytes + int(share * (plan.eager_peak - plan.floor.bytes))


class Quiet(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.addCleanup(lambda: self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False)))


class StructuresTest(Quiet):
    def test_frequent_structures_have_plans(self):
        budget = budget_of(lambda *_: {}, 0.7)
        for choice, most_recordings, unplanned in ((turns, 3, 0), (sometimes, 3, 8), (layer_drop, 3, 10), (exits, 5, 2), (rare, 3, 1),
                                                   (endless, structures.MOST_RECORDINGS, 30)):
            with self.subTest(choice.__name__):
                want = train(choice, 50)[0]
                got, runs, fitted = train(choice, 50, budget)
                self.assertEqual(different(want, got), [])
                self.assertLessEqual(fitted._structures.recordings, most_recordings)
                self.assertLessEqual(sum(run is None or run.deviation is not None for run in runs[20:]), unplanned)
                self.assertTrue(any(run is not None and run.recomputed for run in runs))
                self.assertLessEqual(len(fitted._structures.all()), structures.MOST_STRUCTURES)
                fitted.remove()

    def test_an_evaluation_with_gradients_is_no_structure(self):
        budget = budget_of(turns, 0.7)
        want = train(turns, 12, evaluate=True)[0]
        got, runs, fitted = train(turns, 12, budget, evaluate=True)
        self.assertEqual(different(want, got), [])
        self.assertEqual([run.deviation for run in runs[8:]], [None] * 4)
        self.assertEqual(len(fitted._structures.all()), 2)
        self.assertTrue(all(training for (_, training, *_), _ in fitted._structures._steps))
        fitted.remove()


    def toggled(self, change, budget=None):
        """Returns what steps compute, and their peaks on a device that counts; `change` changes the model before each step."""
        torch.manual_seed(0)
        seen, peaks, device = [], [], Guarded()
        with counted(device):
            model = nn.Sequential(*(block() for _ in range(4)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            fitted = fit(model, optimizer, budget) if budget is not None else None
            for at in range(8):
                optimizer.zero_grad()
                device.peak = device.allocated
                with change(model, at):
                    loss = model(torch.randn(64, 16)).float().square().mean()
                loss.backward()
                peaks.append(device.peak)
                optimizer.step()
                with _disable_current_modes():
                    seen += [loss.detach().clone(), *(p.detach().clone() for p in model.parameters())]
                del loss
        return seen, peaks, fitted

    def test_what_is_known_before_a_step_tells_its_structure(self):
        """The first step with other parameters that get gradients, or in another type, is recorded, so that it keeps the budget."""
        def unfreeze(model, at):
            for layer in model[:-1 - at // 3]:
                layer.requires_grad_(False)
            for layer in model[-1 - at // 3:]:
                layer.requires_grad_(True)
            return contextlib.nullcontext()

        def cast(model, at):
            return torch.autocast("cpu", torch.bfloat16, enabled=at % 3 != 2)

        for change, recordings in ((unfreeze, 3), (cast, 2)):
            with self.subTest(change.__name__):
                want, eager, _ = self.toggled(change)
                budget = int(0.7 * max(eager))
                got, peaks, fitted = self.toggled(change, budget)
                self.assertEqual(different(want, got), [])
                self.assertLessEqual(max(peaks), budget)
                self.assertEqual(fitted._structures.recordings, recordings)
                fitted.remove()


class ForetellTest(unittest.TestCase):
    @staticmethod
    def family(signature, close=lambda: None):
        return types.SimpleNamespace(tape=types.SimpleNamespace(signature=signature), deviated=False, settled=False, close=close)

    def recordings(self, runs, records):
        """Returns how many of some steps are recorded; their signatures are those of `runs`, or of `records` if they are recorded."""
        known = Structures()
        for run, recorded in zip(runs, records):
            family = known.choose(("kind",))
            if family is None:
                known.recordings += 1
                known.add(("kind",), self.family(recorded))
            else:
                known.note(("kind",), run, family, False)
        return known.recordings

    def test_structures_that_never_come_again_are_not_recorded(self):
        self.assertEqual(self.recordings(range(100), range(100)), structures.FEW)
        self.assertEqual(self.recordings([0, 0, 1] * 30, [0, 0, 1] * 30), 2)

    def test_recordings_that_show_something_else_are_enough_at_some_time(self):
        self.assertEqual(self.recordings([6] * 100, [5] * 100), 1 + structures.USELESS)

    def share(self, sequence, kind=lambda of: ""):
        """Returns which steps of the second half of a sequence are foretold."""
        known, right = Structures(), []
        for at, of in enumerate(sequence):
            right.append(known._expected(kind(of)) == (kind(of), of))
            known.note(kind(of), of, types.SimpleNamespace(), False)
        half = right[len(right) // 2:]
        return sum(half) / len(half)

    def test_an_order_is_foretold(self):
        for order in ("ab", "aab", "aaab", "abc", "aabb", "abac", "aaaaab", "abcdab"):
            self.assertEqual(self.share(order * 20), 1.0, order)
        self.assertEqual(self.share("aAbBbBaA" * 10, str.isupper), 1.0)

    def test_without_an_order_the_most_frequent_one_is_foretold(self):
        for rare in 0.1, 0.2, 0.3:
            draw = random.Random(1)
            self.assertGreater(self.share(["ab"[draw.random() < rare] for _ in range(600)]), 0.93 * (1 - rare))

    def test_the_structure_that_was_used_last_stays(self):
        known, closed = Structures(), []

        def family(signature):
            return self.family(signature, lambda: closed.append(signature))

        for signature in range(structures.MOST_STRUCTURES):
            known.add(("kind", signature), family(signature))
        known.choose(("kind", 0))
        known.add(("kind", 9), family(9))
        self.assertEqual(closed, [1])
        again = family(9)
        self.assertIsNot(known.add(("kind", 9), again), again)
        self.assertEqual(closed, [1, 9])


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


def adversaries(pair, x):
    """As a generator and a discriminator are trained."""
    made = pair.one(x)
    yield F.softplus(-pair.other(x + 1)).mean() + F.softplus(pair.other(made.detach())).mean(), pair.optimizers[1:]
    yield F.softplus(-pair.other(pair.one(x))).mean(), pair.optimizers[:1]


def adversaries_of_three_backwards(pair, x):
    """As in PyTorch's example: the tensors of the generator wait for the third backward."""
    yield F.softplus(-pair.other(x + 1)).mean(), ()
    made = pair.one(x)
    yield F.softplus(pair.other(made.detach())).mean(), pair.optimizers[1:]
    yield F.softplus(-pair.other(made)).mean(), pair.optimizers[:1]


class PairsTest(Quiet):
    def test_several_models_have_one_budget(self):
        for how in together, teacher, frozen, adversaries, adversaries_of_three_backwards:
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
                    self.assertEqual(len(plans), {adversaries: 2, adversaries_of_three_backwards: 3}.get(how, 1))
                    tight = max(plans, key=lambda plan: plan.eager_peak)
                    budget = (tight.floor.bytes + 3 * tight.eager_peak) // 4
                    fitted.remove()

    def hold(self, how, budget, want):
        """Trains a pair within a budget on a device that counts. Returns the pair, and what `fit` has made."""
        pair, device, peaks = Pair(how), Guarded(), []
        for optimizer in pair.optimizers:
            optimizer.register_step_pre_hook(lambda *_: peaks.append(device.peak))
            optimizer.register_step_post_hook(lambda *_: setattr(device, "peak", device.allocated))
        with counted(device):
            fitted = fit([pair.one, pair.other], pair.optimizers, budget)
            got = pair.run(6)[0]
        self.assertEqual(different(want, got), [])
        self.assertLessEqual(max(peaks), budget)
        return pair, fitted

    def test_state_leaves_where_another_step_is_recorded(self):
        self.hold(adversaries, 80_700, Pair(adversaries).run(6)[0])[1].remove()

    def test_state_of_parameters_that_an_optimizer_gets_later_counts(self):
        with counted(Guarded()):
            pair = Pair(together)
            later = pair.optimizers[0].param_groups[0]["params"][4:]
            del pair.optimizers[0].param_groups[0]["params"][4:]
            fitted = fit([pair.one, pair.other], pair.optimizers, 1 << 40)
            pair.run(4)
            before = fitted.plan.eager_peak
            pair.optimizers[0].add_param_group({"params": later})
            pair.run(2)
            state = sum(v.nbytes for p in later for v in pair.optimizers[0].state[p].values())
            self.assertAlmostEqual(fitted.plan.eager_peak - before, state, delta=8)
            fitted.remove()

    def test_budgets_are_kept_where_the_device_counts(self):
        for how in together, adversaries:
            budget, want = 1 << 40, Pair(how).run(6)[0]
            for _ in range(2):
                pair, fitted = self.hold(how, budget, want)
                state = sum(v.nbytes for of in pair.optimizers for slots in of.state.values() for v in slots.values())
                for family in fitted._structures.all():  # each recorded another part of it
                    self.assertEqual(sum(family.states.values()) + family.more[0], state)
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
        whole = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        for models in [whole, whole], [whole, whole[0]], [whole[0], whole]:
            with self.assertRaisesRegex(SpillwayError, "a (Sequential|Linear) is given twice, or is a part of another model in the list"):
                fit(models, None, 1 << 20)
        with self.assertRaisesRegex(SpillwayError, "the model is a int; expected a torch.nn.Module, or a list of them"):
            fit([pair.one, 3])
        both = torch.optim.SGD([*pair.one.parameters(), *pair.other.parameters()], lr=0.1)
        fitted = fit(pair.one, both, 1 << 40)
        with self.assertRaisesRegex(SpillwayError, r"the SGD has a budget already: give all models .* to one `fit`, as in fit\("):
            fit(pair.other, both, 1 << 40)
        fitted.remove()
        fit([pair.one, pair.other], both, 1 << 40).remove()

    def test_early_updates_in_distributed_data_parallel(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        model = block()
        fitted = fit(model, torch.optim.SGD(model.parameters(), 0.1), 1 << 40, early_updates=True)
        wrapped = nn.parallel.DistributedDataParallel(model)
        with self.assertRaisesRegex(SpillwayError, "early_updates: the model runs in a DistributedDataParallel; its gradients are reduced"):
            wrapped(torch.randn(2, 16))
        fitted.remove()
        wrapped(torch.randn(2, 16)).sum().backward()

    def test_a_model_that_is_wrapped_later(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        found, budget = [], 1 << 40
        for fits in True, True, False:
            torch.manual_seed(0)
            model = nn.Sequential(*(block() for _ in range(3)))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            fitted = fit(model, optimizer, budget) if fits else None
            wrapped = nn.parallel.DistributedDataParallel(model)
            for _ in range(4):
                wrapped(torch.randn(40, 16)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append([p.detach().clone() for p in model.parameters()])
            if fitted is not None:
                self.assertEqual(fitted.last.recomputed > 0, budget < 1 << 40)
                budget = (fitted.plan.floor.bytes + fitted.plan.eager_peak) // 2
                fitted.remove()
        self.assertTrue(all(torch.equal(one, other) for one, other in zip(*found[1:])))


if __name__ == "__main__":
    unittest.main()

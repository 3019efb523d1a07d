"""Tests budgets of `fit` that have state of the optimizer on the host: what they take, what they refuse, and when state comes back."""

import contextlib
import gc
import tempfile
import unittest
import weakref
from unittest import mock

import torch

from guard_test import Guarded, counted
from spillway_torch import fit, make_plan, read_plan, write_plan
from spillway_torch.base.device import host_memory
from spillway_torch.base.errors import SpillwayError
from spillway_torch.fit.family import Family
from spillway_torch.plan.planner import predict
from spillway_torch.tape.tape import Update
from spillway_torch.tape.tape_recorder import record_tape
from updates_test import KINDS, same


class Wide(torch.nn.Module):
    """A model whose parameters take more than what a step saves."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
                                          for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class FitTest(unittest.TestCase):
    def train(self, make, budget=None, device=None, rows=(128,) * 6, **options):
        """Returns parameters and state after some steps, the optimizer, and what `fit` made, on a device that counts if there is a budget."""
        torch.manual_seed(0)
        with counted(device) if device is not None else contextlib.nullcontext():
            model = Wide()
            optimizer = make(model.parameters())
            fitted = fit(model, optimizer, budget, **options) if budget is not None else None
            for count in rows:
                optimizer.zero_grad()
                model(torch.randn(count, 64)).square().mean().backward()
                optimizer.step()
        state = [value for p in model.parameters() for _, value in sorted(optimizer.state[p].items())]
        return [v.clone() for v in (*model.parameters(), *state)], optimizer, fitted

    def test_a_budget_below_the_state_is_kept(self):
        parameters = sum(p.nbytes for p in Wide().parameters())
        for name in ("adamw", "sgd"):
            want, *_ = self.train(KINDS[name])
            state = parameters * (2 if name == "adamw" else 1)
            with self.subTest(name):
                budget = 2 * parameters + state  # without what is saved
                got, optimizer, fitted = self.train(KINDS[name], budget, Guarded())
                self.assertTrue(same(want, got))
                plan = fitted.plan
                self.assertGreater(plan.state, 0)
                self.assertLess(plan.state, state + 4096)
                self.assertLessEqual(plan.peak, budget)
                self.assertIn("of the optimizer's state are on the host", fitted.report())
                hosted = fitted._states._hosted[optimizer]
                self.assertGreaterEqual(hosted.existing()[1], plan.state)
                fitted.remove()
                self.assertEqual(hosted.existing()[1], 0)

    def test_state_makes_room_for_evaluations(self):
        """Calls without gradients take more than steps; the first ones come before there is state, which then has to leave for them."""
        parameters = sum(p.nbytes for p in Wide().parameters())

        def train(budget=None):
            device, peaks = Guarded(), []
            torch.manual_seed(0)
            with counted(device):
                model = Wide()
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                fitted = fit(model, optimizer, budget) if budget is not None else None
                for step in range(7):
                    if step in (0, 4, 5):
                        device.peak = device.allocated
                        with torch.no_grad():
                            values = [model(torch.randn(1000, 64)).square().mean().item() for _ in range(3)]
                        peaks.append(device.peak)
                    model(torch.randn(128, 64)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if fitted is not None:
                    self.assertGreaterEqual(fitted.stats()["most_bytes"], max(peaks))
                    self.assertEqual(fitted.stats()["planned"], 6)
                    fitted.remove()
            state = [value for p in model.parameters() for _, value in sorted(optimizer.state[p].items())]
            return [v.clone() for v in (*model.parameters(), *state)], values, peaks

        want, values, peaks = train()
        budget = int(peaks[0] + 0.5 * parameters)  # evaluations fit without the state, which takes twice the parameters
        self.assertGreater(peaks[1], budget)
        got, same_values, peaks = train(budget)
        self.assertTrue(same(want, got))
        self.assertEqual(values, same_values)
        self.assertLessEqual(max(peaks), budget)

    def test_what_is_on_the_host_is_predicted(self):
        """On a device that counts, the first step already keeps a budget in which the state does not fit."""
        parameters = sum(p.nbytes for p in Wide().parameters())
        for name in ("adamw", "adam", "amsgrad", "sgd"):
            want, *_ = self.train(KINDS[name])
            for share in (2.9, 3.2, 3.6):
                with self.subTest(name, share=share):
                    budget, device = int(share * parameters), Guarded()
                    got, _, fitted = self.train(KINDS[name], budget, device)
                    self.assertTrue(same(want, got))
                    self.assertLessEqual(device.peak, budget)
                    part = max(size for hosted in fitted._states._hosted.values() for size in hosted.sizes)
                    if name != "adam":  # whose update takes memory for all parameters, so that more state leaves than the plan says
                        self.assertLess(abs(fitted.plan.peak - device.most), 2 * part + 4096)  # all parts of a parameter leave together

    def test_steps_before_the_plan_keep_the_budget(self):
        """State leaves where saved tensors on the host are not enough."""
        parameters = sum(p.nbytes for p in Wide().parameters())
        rows = (512,) * 6
        want, *_ = self.train(KINDS["adamw"], rows=rows)
        for early in (False, True):
            with self.subTest(early=early), mock.patch.object(Family, "plan_for"), mock.patch.object(Family, "_try"):
                device = Guarded()
                got, optimizer, fitted = self.train(KINDS["adamw"], int(5.4 * parameters), device, rows, early_updates=early)
                self.assertTrue(same(want, got))
                self.assertLessEqual(device.peak, int(5.4 * parameters))
                self.assertGreater(fitted._states.outside(optimizer), 0)

    def test_early_updates_take_less_memory_and_time(self):
        """Gradients go, and state comes and goes while backward runs."""
        parameters = sum(p.nbytes for p in Wide().parameters())
        want, *_ = self.train(KINDS["adamw"])
        for share in (2.8, 3.2, 3.8, 4.5):
            with self.subTest(share):
                budget, plans = int(share * parameters), []
                for early in (False, True):
                    device = Guarded()
                    got, _, fitted = self.train(KINDS["adamw"], budget, device, early_updates=early)
                    self.assertTrue(same(want, got))
                    self.assertLessEqual(device.peak, budget)
                    self.assertLessEqual(device.most, 1.001 * fitted.plan.peak)
                    plans.append(fitted.plan)
                self.assertLess(plans[1].floor.bytes, plans[0].floor.bytes)
                self.assertLess(plans[1].seconds, plans[0].seconds)

    def test_updates_take_their_time(self):
        _, _, fitted = self.train(KINDS["adamw"], int(3.2 * sum(p.nbytes for p in Wide().parameters())), Guarded(), early_updates=True)
        plan = fitted.plan
        plan.state = 0
        before = predict(plan, 1 << 40).seconds
        for update in plan.tape.updates:
            self.assertIsNotNone(update.at)
            update.seconds = 0.01
        self.assertAlmostEqual(predict(plan, 1 << 40).seconds - before, 0.01 * len(plan.tape.updates), delta=0.001)

    def test_gradients_that_do_not_fit_together(self):
        """The first step already updates parameters while backward runs."""
        parameters = sum(p.nbytes for p in Wide().parameters())
        rows = (16,) * 6
        want, *_ = self.train(KINDS["adamw"], rows=rows)
        with self.assertRaisesRegex(SpillwayError, "and so does early_updates=True, if the program neither clips"):
            self.train(KINDS["adamw"], int(0.9 * parameters), Guarded(), rows)  # less than the gradients
        for share in (2.1, 2.4, 2.5, 2.6, 2.7, 2.8):
            with self.subTest(share):
                device = Guarded()
                got, _, fitted = self.train(KINDS["adamw"], int(share * parameters), device, rows, early_updates=True)
                self.assertTrue(same(want, got))
                self.assertLessEqual(device.peak, int(share * parameters))
                self.assertLessEqual(device.most, 1.001 * fitted.plan.peak)
                self.assertLess(fitted.plan.peak - device.most, 0.5 * parameters)
                fitted.report()
                self.assertEqual(fitted._taken.most, device.peak)
        device = Guarded()
        *_, fitted = self.train(KINDS["adam"], int(2.1 * parameters), device, (1,), early_updates=True)
        self.assertEqual(fitted._taken.most, device.peak)  # an update took it
        device = Guarded()
        device.allocated = 2 * parameters  # that are no tensors of the step
        *_, fitted = self.train(KINDS["adamw"], int(4.1 * parameters), device, rows, early_updates=True)
        self.assertLessEqual(device.peak, int(4.1 * parameters))  # the state that the first step made counts
        self.assertLessEqual(device.most, 1.001 * fitted.plan.peak)
        self.assertLess(fitted.plan.peak - device.most, 0.25 * parameters)  # gradients die in the recorded step, too

    def test_more_memory_never_lacks_a_plan(self):
        parameters = sum(p.nbytes for p in Wide().parameters())
        for share in (2.3, 2.35, 2.4, 2.5, 2.6, 2.65):
            with self.subTest(share):
                _, _, fitted = self.train(KINDS["adamw"], int(share * parameters), Guarded(), (64,) * 2, early_updates=True)
                self.assertLessEqual(fitted.plan.peak, int(share * parameters))

    def test_state_comes_back_with_a_plan(self):
        """The first update takes memory for all gradients, which early ones do not."""
        parameters = sum(p.nbytes for p in Wide().parameters())
        want, *_ = self.train(KINDS["adamw"], rows=(16,) * 6)
        device = Guarded()
        got, optimizer, fitted = self.train(KINDS["adamw"], int(3.9 * parameters), device, (16,) * 6, early_updates=True)
        self.assertTrue(same(want, got))
        self.assertLessEqual(device.peak, int(3.9 * parameters))
        self.assertEqual((fitted.plan.state, fitted._states.outside(optimizer)), (0, 0))

    def test_gradients_that_are_clipped_later(self):
        """The step in which the program first looks at them raises an error."""
        with counted(Guarded()):
            model = Wide()
            optimizer = torch.optim.AdamW(model.parameters())
            fit(model, optimizer, 1 << 40, early_updates=True)
            for step in range(4):
                optimizer.zero_grad()
                model(torch.randn(16, 64)).square().mean().backward()
                if step == 3:
                    with self.assertRaisesRegex(SpillwayError, "early_updates: gradients are used between backward and the update"):
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    def test_a_model_and_an_optimizer_that_are_forgotten(self):
        """Hooks of parameters hold neither; another optimizer then updates the model as without a budget."""
        want, got = [], []
        for seen in (want, got):
            torch.manual_seed(0)
            with counted(Guarded()):
                model = Wide()
                optimizer = torch.optim.AdamW(model.parameters())
                if seen is got:
                    fit(model, optimizer, 1 << 40, early_updates=True)
                for step in range(6):
                    if step == 3:
                        optimizer = torch.optim.AdamW(model.parameters())
                    optimizer.zero_grad()
                    model(torch.randn(16, 64)).square().mean().backward()
                    optimizer.step()
                seen += [p.detach().clone() for p in model.parameters()]
                parameter = weakref.ref(next(model.parameters()))
                del model, optimizer
                gc.collect()
                self.assertIsNone(parameter())
        self.assertTrue(same(want, got))

    def test_a_model_that_is_called_before_its_early_update(self):
        """Its parameters are not those that an ordinary step has there."""
        with counted(Guarded()):
            model = Wide()
            optimizer = torch.optim.AdamW(model.parameters())
            fit(model, optimizer, 1 << 40, early_updates=True)
            for step in range(4):
                model(torch.randn(16, 64)).square().mean().backward()
                with torch.no_grad():
                    if step == 3:
                        with self.assertRaisesRegex(SpillwayError, "early_updates: a model is called between backward and the update"):
                            model(torch.randn(16, 64))
                    optimizer.step()
                    model(torch.randn(16, 64))

    def test_steps_of_other_sizes(self):
        """One ladder of plans; a larger step takes more state to the host."""
        parameters = sum(p.nbytes for p in Wide().parameters())
        want, *_ = self.train(KINDS["adamw"], rows=(128, 64, 200, 128, 160, 200, 64))
        device = Guarded()
        got, _, fitted = self.train(KINDS["adamw"], int(3.6 * parameters), device, rows=(128, 64, 200, 128, 160, 200, 64))
        self.assertTrue(same(want, got))
        self.assertLessEqual(device.peak, int(3.6 * parameters))
        family, = fitted._structures.all()
        self.assertGreater(len({rung.plan.state for rung in family.rungs}), 1)

    def test_a_host_without_room(self):
        self.assertGreater(host_memory(), 1 << 20)
        parameters = sum(p.nbytes for p in Wide().parameters())
        with mock.patch("spillway_torch.run.updates.host_memory", lambda: 1000):
            with self.assertRaisesRegex(SpillwayError, "bytes of the state of AdamW have to be on the host, which has 1,000 bytes free"):
                self.train(KINDS["adamw"], 4 * parameters, Guarded())

    def test_wrong_options(self):
        for wrong in (True, 1, "yes"):
            with self.assertRaisesRegex(SpillwayError, f"early_updates is {wrong!r}, and the optimizer NoneType; expected False, or True with"):
                fit(Wide(), memory="1GiB", early_updates=wrong)

    def test_state_in_lists_counts(self):
        class Remembering(torch.optim.SGD):
            """Keeps the last gradients of each parameter in a list."""

            def step(self, closure=None):
                for p in self.param_groups[0]["params"]:
                    self.state[p]["past"] = {"gradients": [p.grad.clone() for _ in range(3)]}
                return super().step(closure)

        peaks = []
        for kind in torch.optim.SGD, Remembering:
            with counted(Guarded()):
                model = Wide()
                optimizer = kind(model.parameters(), 0.1)
                fitted = fit(model, optimizer, 1 << 40)
                for _ in range(3):
                    model(torch.randn(16, 64)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            peaks.append(fitted.plan.eager_peak)
            fitted.remove()
        self.assertAlmostEqual(peaks[1] - peaks[0], 3 * sum(p.nbytes for p in model.parameters()), delta=8192)

    def test_what_grows_later(self):
        """The log says that the budget was exceeded, and a later step is planned for less; what stays, the guard sees at once."""
        parameters, peaks = sum(p.nbytes for p in Wide().parameters()), []
        device = Guarded()
        with counted(device), mock.patch("spillway_torch.fit.fitted.AGAIN", 4), self.assertLogs("spillway_torch", "INFO") as logs:
            model = Wide()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            fitted = fit(model, optimizer, int(3.8 * parameters))
            for step in range(14):
                if step == 5:
                    averages = torch.zeros(parameters // 16)
                device.peak = device.allocated
                optimizer.zero_grad()
                loss = model(torch.randn(256, 64)).square().mean()
                if step >= 7:
                    torch.zeros(parameters // 7)  # behind what autograd saves, so that no guard sees it
                loss.backward()
                optimizer.step()
                peaks.append(device.peak)
        del averages
        fitted.remove()
        over = [at for at, peak in enumerate(peaks) if peak > int(3.8 * parameters)]
        self.assertTrue(over and min(over) == 7 and max(over) < 12, over)
        text = "\n".join(logs.output)
        self.assertRegex(text, r"WARNING:spillway_torch:spillway: tensors took [0-9,]+ bytes, [0-9,]+ over the budget, in a step or since")
        self.assertEqual(text.count("tensors took"), 1)
        self.assertRegex(text, r"a step took [0-9,]+ bytes, [0-9,]+ over the budget, which are left out now")

    def test_what_stays_is_named(self):
        parameters = sum(p.nbytes for p in Wide().parameters())
        with self.assertRaisesRegex(SpillwayError, "of which [0-9,]+ are state of Adagrad, which stays on the device"):
            self.train(lambda p: torch.optim.Adagrad(p), int(2.8 * parameters), Guarded())

    def test_no_plan_is_slower_than_one_of_a_kind(self):
        """State and saved tensors together are at least as fast as each alone."""
        tape, parameters = record_tape(self.loss(), "cpu"), sum(p.nbytes for p in Wide().parameters())
        tape.used = [used + 2 * parameters for used in tape.used]
        alone = make_plan(tape, 1 << 40)
        tape.updates = [Update(parameters // 8)] * 16
        seconds = []
        for share in (0.05, 0.3, 0.6, 0.9):
            budget = alone.floor.bytes - 2 * parameters + int(share * (alone.peak - alone.floor.bytes + 2 * parameters))
            both = make_plan(tape, budget)
            self.assertLessEqual(both.peak, budget)
            seconds.append(both.seconds)
            if budget >= alone.floor.bytes:
                tape.updates, kept = [], tape.updates
                self.assertLessEqual(both.seconds, 1.01 * make_plan(tape, budget).seconds)
                tape.updates = kept
            again = read(both, tape)
            self.assertEqual((again.state, again.peak, again.actions), (both.state, both.peak, both.actions))
        self.assertEqual(seconds, sorted(seconds, reverse=True))

    def loss(self):
        model, data = Wide(), torch.randn(128, 64)
        return lambda: model(data).square().mean().backward()


def read(plan, tape):
    """Returns the plan from its file."""
    with tempfile.TemporaryDirectory() as folder:
        write_plan(plan, f"{folder}/plan.json")
        return read_plan(f"{folder}/plan.json", tape)


if __name__ == "__main__":
    unittest.main()

"""Tests trained weights that are on the host while neither an operator nor an update needs them."""

import contextlib
import copy
import io
import os
import unittest
from unittest import mock

import torch
from torch.nn import functional as F

from adversary import Adversary
from guard_test import Guarded, counted
from spillway_torch import fit
from spillway_torch.base.device import CpuDevice, Queue
from spillway_torch.base.errors import SpillwayError
from spillway_torch.fit.weights import Weights
from spillway_torch.run.updates import HostedState
from spillway_torch.run.weights import HostedWeights
from spillway_torch.tape.weights import LATE, RecordedWeight, chosen, visits
from weights_test import Training, same

COMPUTE, OUT, IN = Queue.COMPUTE, Queue.OUT, Queue.IN
# The waits: the function, the queue that waits, and the queue that is waited for.
WAITS = {
    "a weight is updated before it came": (("_begin",), COMPUTE, IN),
    "a weight leaves before its update was done": (("_copy_out",), OUT, COMPUTE),
    "a weight comes before its update was on the host": (("_fetch",), IN, OUT),
    "memory is given up before its weight has left": (("_end_leaving",), COMPUTE, OUT),
}


class Model(torch.nn.Module):
    """Layers of different sizes, and an embedding that the head shares."""

    def __init__(self, layers=6, width=48):
        super().__init__()
        self.embed = torch.nn.Embedding(40, width)
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(width, 3 * width), torch.nn.GELU(), torch.nn.Linear(3 * width, width))
                                          for _ in range(layers))
        self.head = torch.nn.Linear(width, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True, amsgrad=True),
    "fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01),
}


class Trained(Training):
    def __init__(self, optimizer="adamw"):
        super().__init__(make=Model)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.lengths = 1

    @property
    def weights(self):
        return sum(p.nbytes for p in self.model.parameters())


def ordinary(optimizer="adamw", steps=5, between=lambda training: None):
    training = Trained(optimizer)
    for _ in range(steps):
        training.step()
        between(training)
    return training.values()


class TrainedTest(unittest.TestCase):
    def run_steps(self, share, early, optimizer="adamw", steps=5, between=lambda training: None, device=None):
        """share: the budget, of the bytes of all weights."""
        device = device if device is not None else Guarded()
        with counted(device):
            training = Trained(optimizer)
            fitted = fit(training.model, training.optimizer, int(share * training.weights), early_updates=early)
            for _ in range(steps):
                training.step()
                between(training)
                if training.at == 1:
                    device.peak = device.allocated  # the model was on the device
        return training, fitted, device

    def test_a_budget_below_the_weights_is_kept(self):
        """Where updates follow backward, all gradients exist, too."""
        cases = ((True, 0.8, "adamw"), (True, 1.1, "foreach"), (True, 0.8, "fused"), (True, 0.8, "momentum"), (False, 1.75, "adamw"),
                 (False, 1.9, "foreach"), (False, 1.75, "momentum"))
        for early, share, optimizer in cases if os.environ.get("SPILLWAY_SLOW") else cases[1::2]:
            with self.subTest(early=early, optimizer=optimizer):
                training, fitted, device = self.run_steps(share, early, optimizer)
                self.assertTrue(same(ordinary(optimizer), training.values()))
                self.assertGreater(fitted.plan.weight_bytes, 0.5 * training.weights)
                self.assertLessEqual(device.peak, share * training.weights)
                self.assertLess(abs(fitted.plan.peak / device.peak - 1), 0.12)

    def test_the_first_step_stays_in_the_budget(self):
        """All weights leave the device before it."""
        device, record = Guarded(), Weights.record

        def recording(weights, *given):
            record(weights, *given)
            device.peak = device.allocated  # the model was on the device
        with counted(device), mock.patch.object(Weights, "record", recording):
            training = Trained()
            budget = int(0.9 * training.weights)
            fit(training.model, training.optimizer, budget, early_updates=True)
            training.step()
        self.assertLessEqual(device.peak, budget)

    def test_each_planted_race_is_caught(self):
        """The weights leave without a plan, on a device that runs copies as badly as events allow."""
        def train(device, early):
            training = Trained("fused")
            hosted = HostedWeights(training.model, device, 1, training.model.parameters)
            state = HostedState(training.optimizer, device, early)
            state.weights = hosted
            state.start_early()
            names = [weight.name for weight in hosted.weights]
            for _ in range(4):
                hosted.begin(names)
                state.move(1 << 30)
                state.settle()
                training.step()
            self.assertGreater(hosted.absent(), 0)
            return training.values()

        want = ordinary("fused", 4)
        for early in False, True:
            for seed in range(3):
                device = Adversary(seed)
                self.assertTrue(same(want, train(device, early)))
                self.assertEqual(device.violations, [])
        for name, omit in WAITS.items():
            with self.subTest(name):
                caught = omitted = 0
                for seed in range(20):
                    device = Adversary(seed, omit)
                    caught += not same(want, train(device, seed % 2 == 1)) or bool(device.violations)
                    omitted += device.omitted
                    if caught:
                        break
                self.assertGreater(omitted, 0)
                self.assertGreater(caught, 0)

    def test_the_next_weight_comes_behind_an_update(self):
        """It is on the device for all operators of its own update, and for these alone."""
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(4)))
        hosted = HostedWeights(model, CpuDevice(), 1, model.parameters)
        names = [weight.name for weight in hosted.weights]
        hosted.begin(names, [*((name, False) for name in names), *((name, True) for name in reversed(names))])
        model(torch.ones(2, 16))
        for at in 3, 2:
            with torch.no_grad(), hosted.updating([model[at].weight]):
                for _ in range(2):
                    model[at].weight.mul_(2)
                    self.assertEqual([weight.name for weight in hosted.weights if weight.here], [names[at]])
            self.assertEqual([weight.name for weight in hosted.weights if weight.here], [names[at - 1]])

    def test_a_weight_stays_while_views_exist(self):
        """Operators that are given views from before could not be seen."""
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(4)))
        hosted = HostedWeights(model, CpuDevice(), 1, model.parameters)
        names = [weight.name for weight in hosted.weights]
        view = model[1].weight.t()
        hosted.begin(names)
        self.assertEqual(hosted.names, [name for name in names if name != "1.weight"])
        self.assertTrue(torch.equal(view, model[1].weight.t()))
        del view
        hosted.begin(names)
        self.assertEqual(hosted.names, names)

    def test_what_programs_do_between_steps(self):
        def evaluates(training):
            training.model.eval()
            with torch.no_grad():
                training.losses.append(training.model(torch.arange(6).view(1, 6)).sum())
            training.model.train()

        def saves(training):
            file = io.BytesIO()
            torch.save([training.model.state_dict(), training.optimizer.state_dict()], file)
            file.seek(0)
            model, optimizer = torch.load(file)
            training.losses += [*model.values(), *copy.deepcopy(training.model).parameters(), optimizer["state"][3]["exp_avg"]]

        def loads(training):
            torch.manual_seed(training.at)
            training.model.load_state_dict(Model().state_dict())

        def averages(training):
            with torch.no_grad():
                for parameter in training.model.parameters():
                    parameter.lerp_(torch.ones_like(parameter), 0.01)

        def freezes(training):
            training.model.layers[2].requires_grad_(training.at % 2 == 0)

        def grows(training):
            training.optimizer.param_groups[0]["lr"] *= 0.9
            if training.at == 2:
                added = torch.nn.Parameter(torch.ones(48))
                training.model.layers[1][2].extra = added
                training.optimizer.add_param_group({"params": [added]})

        def replaces(training):
            linear = training.model.layers[3][0]
            linear.weight.data = linear.weight.data * 1.01

        for at, between in enumerate((evaluates, saves, loads, averages, freezes, grows, replaces)):
            early = at % 2 == 0
            with self.subTest(between.__name__, early=early):
                training, fitted, _ = self.run_steps(1.1 if early else 1.75, early, steps=4, between=between)
                self.assertTrue(same(ordinary(steps=4, between=between), training.values()))
                self.assertGreater(fitted._weights._hosted.outside, 0)

    def test_what_uses_gradients_runs_behind_backward(self):
        def train(budget):
            with counted(Guarded()) if budget is not None else contextlib.nullcontext():
                training = Trained()
                fitted = fit(training.model, training.optimizer, int(budget * training.weights)) if budget is not None else None
                for at in range(5):
                    tokens = torch.arange(8).view(2, 4) + at
                    for part in tokens:  # gradients add up
                        F.cross_entropy(training.model(part), part).backward()
                    torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
                    training.optimizer.step()
                    training.optimizer.zero_grad()
            return training.values(), fitted

        want, _ = train(None)
        got, fitted = train(2.2)
        self.assertTrue(same(want, got))
        self.assertGreater(fitted._weights._hosted.outside, 0)

    def test_the_end_of_it(self):
        training, fitted, device = self.run_steps(0.8, True)
        hosted = fitted._weights._hosted
        self.assertGreater(hosted.absent(), 0)
        with counted(device):
            fitted.remove()
            self.assertEqual(hosted.absent(), 0)
            training.step()
        self.assertTrue(same(ordinary(steps=6), training.values()))

    def test_what_has_no_room_on_the_device_in_the_end(self):
        training, fitted, device = self.run_steps(0.8, True)
        hosted, to = fitted._weights._hosted, torch.Tensor.to

        def full(tensor, place, **options):
            if place != "cpu":
                raise torch.OutOfMemoryError
            return to(tensor, place, **options)

        with counted(device), mock.patch.object(torch.Tensor, "to", full), mock.patch.object(
                hosted, "_come_back", side_effect=torch.OutOfMemoryError), self.assertLogs("spillway_torch", "WARNING") as logs:
            fitted.remove()
        self.assertRegex("\n".join(logs.output), "688,128 bytes of the state of AdamW are on the CPU now, because the device has no room for "
                                                 "them\n.* bytes of weights are on the CPU now")
        training.step()
        self.assertTrue(same(ordinary(steps=6), training.values()))

    def test_a_model_that_is_larger_than_the_device(self):
        """It begins on the CPU, and only what an eighth of the budget holds is on the device at once."""
        for steps in (0, 2):
            with self.subTest(before=steps):
                training, device = Trained(), Guarded()
                for _ in range(steps):
                    training.step()
                budget = int(0.9 * training.weights)
                with mock.patch("spillway_torch.fit.fit.device_type", lambda *_: "cpu"), counted(device):
                    fitted = fit(training.model, training.optimizer, budget, device="cuda", early_updates=True)
                    self.assertLess(device.peak, budget // 4 if not steps else 4 * training.weights)
                    for _ in range(5 - steps):
                        training.step()
                self.assertTrue(same(ordinary(), training.values()))
                if not steps:  # otherwise, gradients and state of earlier steps came to the device, too
                    self.assertLessEqual(device.peak, budget)
                self.assertGreater(fitted.plan.weight_bytes, 0)

    def test_weights_stay_where_they_need_not_leave(self):
        """State leaves before them, and optimizers whose state stays have their parameters on the device."""
        _, fitted, _ = self.run_steps(3.0, False)
        self.assertGreater(fitted.plan.state, 0)
        self.assertEqual(fitted.plan.weights, ())
        device = Guarded()
        with counted(device):
            training = Trained()
            optimizer = torch.optim.Adagrad(training.model.parameters(), 0.01)
            hosted = fit(training.model, optimizer, 1 << 40)._weights
            for _ in range(2):
                training.model(torch.arange(6).view(1, 6)).square().mean().backward()
                optimizer.step()
            self.assertEqual(list(hosted._hosted.weights), [])

    def test_a_budget_that_cannot_be_kept_names_the_weights(self):
        with self.assertRaisesRegex(SpillwayError, "below the floor.*; 344,064 bytes are weights that can be on the host, where 344,064 of"):
            self.run_steps(0.4, True)


class PlannedTest(unittest.TestCase):
    """Two weights of 100 bytes, which the operators 0 and 1 read, and 2 and 3 in backward."""

    def weights(self, *updates):
        return [RecordedWeight(str(at), at, 100, (at, 3 - at), True, (updates[at],)) for at in range(2)]

    def found(self, weights):
        return [(visit.weight.storage, visit.fetched, visit.reads, visit.written) for visit in visits(weights, lambda at: at)]

    def test_early_updates(self):
        self.assertEqual(self.found(self.weights((3, 2), (2, 1))), [
            (0, (-1, 0), [(0, 0)], False), (1, (0, 0), [(1, 0), (2, 0), (2, 1)], True), (0, (2, 1), [(3, 0), (3, 2)], True)])

    def test_late_updates(self):
        self.assertEqual(self.found(self.weights((LATE, 1), (LATE, 2))), [
            (0, (-1, 0), [(0, 0)], False), (1, (0, 0), [(1, 0), (2, 0)], False), (0, (2, 0), [(3, 0), (LATE, 1)], True),
            (1, (LATE, 1), [(LATE, 2)], True)])

    def test_trained_weights_leave_last(self):
        weights = [RecordedWeight(str(at), at, 10, (at, 31 - at), at < 8) for at in range(16)]
        self.assertEqual({w.storage for w in chosen(weights, 80)}, set(range(8, 16)))
        self.assertEqual(len(chosen(weights, 100)), 10)


if __name__ == "__main__":
    unittest.main()

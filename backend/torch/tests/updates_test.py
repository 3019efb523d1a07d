"""Tests optimizers whose state is on the host between updates: the bits, the order of copies, and what others see of it."""

import contextlib
import copy
import gc
import io
import itertools
import statistics
import tempfile
import unittest
import weakref
from unittest import mock

import torch

from adversary import Adversary
from guard_test import Guarded, counted
from spillway_torch import fit, make_plan, read_plan, write_plan
from spillway_torch.base.device import CpuDevice, Queue, host_memory
from spillway_torch.base.errors import SpillwayError
from spillway_torch.fit.family import Family
from spillway_torch.plan.planner import predict
from spillway_torch.run.updates import HostedState, can_host
from spillway_torch.tape.tape import Update
from spillway_torch.tape.tape_recorder import record_tape

COMPUTE, OUT, IN = Queue.COMPUTE, Queue.OUT, Queue.IN
KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1),
    "fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
}
# The waits of an update: the function, the queue that waits, and the queue that is waited for.
WAITS = {
    "state is used before it came": (("take",), COMPUTE, IN),
    "state leaves before its update": (("leave",), OUT, COMPUTE),
    "memory comes back while its last owner uses it": (("fetch",), IN, COMPUTE),
    "memory is used again before its state has left": (("fetch",), IN, OUT),
    "memory is given up before its state has left": (("end",), COMPUTE, OUT),
}


class Training:
    """A model of odd sizes, one parameter of which gets no gradient in some steps, in two groups."""

    def __init__(self, make, seed=0):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last), torch.nn.Flatten(),
                                         torch.nn.Linear(5 * 4 * 4, 37), torch.nn.Tanh(), torch.nn.Linear(37, 11))
        self.model.extra = torch.nn.Parameter(torch.randn(301))
        parameters = list(self.model.parameters())
        self.optimizer = make([{"params": parameters[:3]}, {"params": parameters[3:], "lr": 0.01}])
        self.at = 0
        self.others = []  # tensors that hooks of the optimizer make

    def step(self):
        torch.manual_seed(100 + self.at)
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 3, 6, 6)).square().mean()
        if self.at % 3:
            loss = loss + self.model.extra.square().sum()
        loss.backward()
        self.optimizer.step()
        self.at += 1

    def values(self):
        state = [value for p in self.model.parameters() for _, value in sorted(self.optimizer.state[p].items())]
        return [v.clone() if isinstance(v, torch.Tensor) else v for v in (*self.model.parameters(), *self.others, *state)]


def same(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) and a.stride() == b.stride() if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other))


class UpdatesTest(unittest.TestCase):
    def run_steps(self, make, device, size=1 << 40, steps=5):
        training = Training(make)
        hosted = HostedState(training.optimizer, device)
        hosted.move(size)
        for _ in range(steps):
            hosted.settle()
            training.step()
        return training, hosted

    def test_the_bits_are_those_of_the_optimizer(self):
        for name, make in KINDS.items():
            want = Training(make)
            for _ in range(5):
                want.step()
            total = sum(HostedState(want.optimizer, CpuDevice()).sizes)
            later = Training(make)
            for _ in range(6):
                later.step()
            for seed in range(3):
                with self.subTest(name, seed=seed):
                    device = Adversary(seed)
                    training, hosted = self.run_steps(make, device, total * seed // 2)
                    self.assertTrue(same(want.values(), training.values()))
                    self.assertEqual(device.violations, [])
                    self.assertGreaterEqual(hosted.outside, total * seed // 2)
                    hosted.close()
                    self.assertEqual(hosted.outside, 0)
                    training.step()
                    self.assertTrue(same(later.values(), training.values()))

    def test_each_planted_race_is_caught(self):
        want = Training(KINDS["adamw"])
        for _ in range(5):
            want.step()
        for name, omit in WAITS.items():
            with self.subTest(name):
                caught = omitted = 0
                for seed in range(40):
                    device = Adversary(seed, omit)
                    training, _ = self.run_steps(KINDS["adamw"], device)
                    caught += not same(want.values(), training.values()) or bool(device.violations)
                    omitted += device.omitted
                    if caught:
                        break
                self.assertGreater(omitted, 0)
                self.assertGreater(caught, 0)

    def test_state_of_sparse_gradients_stays(self):
        def train(device=None, early=False, begin=0):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Embedding(40, 8, sparse=True), torch.nn.Linear(8, 5))
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            hosted = HostedState(optimizer, device, early) if device is not None else None
            for at in range(5):
                if hosted is not None and at >= begin:
                    for size in (0, 1 << 40):  # it leaves anew in each step
                        hosted.move(size)
                    hosted.settle()
                    if at == 1:
                        hosted.start_early()
                optimizer.zero_grad()
                model(torch.randint(40, (6,))).square().mean().backward()
                optimizer.step()
            state = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
            return [v.detach().to_dense().clone() for v in (*model.parameters(), *state)], hosted and hosted.existing(), state

        want, *_ = train()
        for early, begin in ((False, 0), (False, 2), (True, 0)):
            with self.subTest(early=early, begin=begin):
                got, existing, state = train(Adversary(1), early, begin)
                self.assertTrue(same(want, got))
                self.assertEqual([value.is_sparse for value in state], [True, False, False])
                self.assertEqual(existing, (0, sum(value.nbytes for value in state[1:])))

    def early(self, make, device, share=1.0, steps=5):
        training = Training(make)
        hosted = HostedState(training.optimizer, device, early=True)
        for at in range(steps):
            if at == 1:
                self.assertEqual([update.at for update in hosted.updates()], [None] * len(hosted.sizes))
                hosted.start_early()
                hosted.move(int(share * sum(hosted.sizes)))
            hosted.settle()
            training.step()
        return training, hosted

    def test_early_updates_have_the_same_bits(self):
        for name, make in KINDS.items():
            want = Training(make)
            for _ in range(5):
                want.step()
            for seed, share in enumerate((0, 0.5, 1)):
                with self.subTest(name, share=share):
                    device = Adversary(seed)
                    training, _ = self.early(make, device, share)
                    self.assertTrue(same(want.values(), training.values()))
                    self.assertEqual(device.violations, [])
                    self.assertGreater(sum(p.grad is None for p in training.model.parameters()), 4)

    def test_races_of_early_updates_are_caught(self):
        want = Training(KINDS["adamw"])
        for _ in range(5):
            want.step()
        for name, omit in WAITS.items():
            with self.subTest(name):
                caught = False
                for seed in range(40):
                    device = Adversary(seed, omit)
                    training, _ = self.early(KINDS["adamw"], device)
                    caught |= not same(want.values(), training.values()) or bool(device.violations)
                    if caught:
                        break
                self.assertTrue(caught)

    def test_what_early_updates_would_change_is_refused(self):
        def clip(training):
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3)

        def add(training):
            training.model(torch.randn(4, 3, 6, 6)).square().mean().backward()

        def scale(training):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(()))
            scaler.unscale_(training.optimizer)

        def look(training):
            next(p.grad for p in training.model.parameters() if p.grad is not None).norm().item()

        used, added = "gradients are used between backward and the update", "gradients add up over several backwards"
        for (change, message), begun in itertools.product(((clip, used), (scale, used), (look, used), (add, added)), (False, True)):
            with self.subTest(change.__name__, begun=begun):
                training = Training(KINDS["adamw"])
                hosted = HostedState(training.optimizer, CpuDevice(), early=True)
                if begun:
                    hosted.settle()
                    training.step()
                hosted.start_early()
                hosted.settle()
                training.optimizer.zero_grad()
                training.model(torch.randn(4, 3, 6, 6)).square().mean().backward()
                with self.assertRaisesRegex(SpillwayError, "early_updates: " + message):
                    change(training)
                hosted.close()
                self.assertTrue(all(p.grad is None for p in training.model.parameters()))
        training = Training(KINDS["adamw"])
        hosted = HostedState(training.optimizer, CpuDevice(), early=True)
        hosted.settle()
        training.model(torch.randn(4, 3, 6, 6)).square().mean().backward()
        with self.assertRaisesRegex(SpillwayError, "early_updates: no step of the optimizer followed a backward"):
            hosted.settle()  # another forward begins

    def test_what_changes_between_backward_and_an_early_update_is_refused(self):
        def schedule(training):
            training.optimizer.param_groups[1]["lr"] = 0.02

        def decay(training):
            with torch.no_grad():
                training.model[2].weight.mul_(0.9)

        def make(p):
            return torch.optim.AdamW(p, torch.tensor(0.1), betas=(0.9, 0.99))

        def scale(training):
            training.optimizer.param_groups[0]["lr"].fill_(0.2)

        for change, message in ((schedule, r"settings of the optimizer \(lr\)"), (scale, r"settings of the optimizer \(lr\)"),
                                (decay, "parameters"), (lambda _: None, None)):
            with self.subTest(message, change=change):
                training = Training(make)
                training.optimizer.param_groups[1]["lr"] = 0.01
                hosted = HostedState(training.optimizer, CpuDevice(), early=True)
                hosted.start_early()
                for at in range(3):
                    hosted.settle()
                    training.optimizer.param_groups[1]["lr"] *= 0.5  # as a schedule does before a backward
                    training.optimizer.zero_grad()
                    training.model(torch.randn(4, 3, 6, 6)).square().mean().backward()
                    if at == 2:
                        change(training)
                    if at == 2 and message is not None:
                        with self.assertRaisesRegex(SpillwayError, f"early_updates: {message} changed between backward and the update"):
                            training.optimizer.step()
                    else:
                        training.optimizer.step()

    def test_a_hook_that_reads_a_gradient_that_is_gone(self):
        training = Training(KINDS["adamw"])
        hosted = HostedState(training.optimizer, CpuDevice(), early=True)
        hosted.start_early()
        hosted.settle()
        training.model[2].weight.register_post_accumulate_grad_hook(lambda p: p.grad.norm())
        with self.assertRaisesRegex(SpillwayError, "early_updates: gradients are used .* as by clipping, a GradScaler or a hook"):
            training.model(torch.randn(4, 3, 6, 6)).square().mean().backward()

    def test_state_comes_back(self):
        """At once for the first time, and only after several steps that need less once it had to leave again."""
        want = Training(KINDS["adamw"])
        for _ in range(2):
            want.step()
        for early in (False, True):
            with self.subTest(early=early):
                training = Training(KINDS["adamw"])
                device = Adversary(3)
                hosted = HostedState(training.optimizer, device, early)
                hosted.start_early()
                shares = []
                for at, share in enumerate((1, 0, 0.05, 1, 0.03, 1, 0.03, 0.03, 1)):
                    total = sum(hosted.sizes)  # less, once it is known that a parameter has no state
                    hosted.move(int(share * total))
                    shares.append(hosted.outside / total)
                    hosted.settle()
                    training.step()
                    if at == 1:
                        self.assertTrue(same(want.values(), training.values()))
                        self.assertEqual((hosted.existing()[1], hosted._hosts), (0, []))
                self.assertEqual([shares[at] for at in (0, 1, 3, 4, 5, 6, 8)], [1, 0, 1, 1, 1, 1, 1])
                self.assertTrue(0.05 <= shares[2] < 1 and 0.03 <= shares[7] < 1)
                self.assertEqual(device.violations, [])

    def test_updates_are_timed_in_a_recorded_step(self):
        class Marking(CpuDevice):
            def mark(self):
                return object()

            def between(self, first, last):
                return 0.5

        for outside in (False, True):
            with self.subTest(outside=outside):
                training = Training(KINDS["adamw"])
                hosted = HostedState(training.optimizer, Marking(), early=True)
                recorder = mock.Mock()
                recorder.ledger.find.return_value.born = -1
                hosted.record(recorder)
                hosted.move(1 << 40 if outside else 0)
                hosted.settle()
                training.step()
                hosted.finished = {of: (at, at) for at, of in enumerate(hosted._buckets_of) if of.tensor.grad is not None}
                updates = [update for update in hosted.updates() if update.at is not None]
                sizes = [sum(unit.bytes for unit in bucket.units) for bucket in hosted._buckets]
                all_ = sum(of.tensor.nbytes for of in hosted.finished)  # in one update, or each part by its own
                want = 0.5 * all_ * statistics.median(1 / size for size in sizes) if outside else 0.5
                self.assertAlmostEqual(sum(update.seconds for update in updates), want, delta=0.05 * want)
                self.assertGreater(min(update.host for update in updates), 0)
                self.assertEqual({update.seconds for update in hosted.updates()}, {0.0})  # they are not those of the recorded step

    def test_state_dicts_are_those_of_the_optimizer(self):
        for name in ("adamw", "sgd"):
            make = KINDS[name]
            want = Training(make)
            for _ in range(4):
                want.step()
            with self.subTest(name):
                training, _ = self.run_steps(make, Adversary(1), steps=2)
                file = io.BytesIO()
                torch.save((training.model.state_dict(), training.optimizer.state_dict()), file)
                file.seek(0)
                weights, state = torch.load(file)
                ordinary = Training(make, seed=7)  # continues without a budget
                ordinary.model.load_state_dict(weights)
                ordinary.optimizer.load_state_dict(state)
                other = Training(make, seed=8)  # continues with one, which was there before
                hosted = HostedState(other.optimizer, Adversary(2))
                hosted.move(1 << 40)
                other.step()
                other.model.load_state_dict(copy.deepcopy(weights))
                other.optimizer.load_state_dict(copy.deepcopy(state))
                other.at = ordinary.at = 2
                for _ in range(2):
                    ordinary.step()
                    hosted.settle()
                    other.step()
                self.assertTrue(same(want.values(), ordinary.values()))
                self.assertTrue(same(want.values(), other.values()))
                self.assertTrue(all(of.has(value) for of in {unit.of for bucket in hosted._buckets for unit in bucket.units}
                                    for name, value in other.optimizer.state[of.tensor].items() if name in of.names))

    def variant(self, change, hosts):
        """Runs steps that `change` changes; returns the values, the bytes on the host in the end, and those of all state."""
        training, hosted = Training(KINDS["adamw"]), None
        if hosts:
            hosted = HostedState(training.optimizer, Adversary(3))
            hosted.move(1 << 40)
        step = change(training)
        for _ in range(4):
            if hosted is not None:
                hosted.settle()
            step()
            training.at += 1
        return training.values(), hosted and (hosted.outside, sum(hosted.sizes))

    def loss(self, training):
        torch.manual_seed(100 + training.at)
        return training.model(torch.randn(4, 3, 6, 6)).square().mean()

    def test_loops_of_others(self):
        def clipping(training):
            def step():
                training.optimizer.zero_grad(set_to_none=False)
                self.loss(training).backward()
                torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3)
                training.optimizer.step()
            return step

        def clipping_in_a_hook(training):
            training.optimizer.register_step_pre_hook(
                lambda *_: torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3) and None)
            return accumulating(training)

        def averaging(training):
            average = torch.optim.swa_utils.AveragedModel(training.model)
            training.optimizer.register_step_post_hook(lambda *_: average.update_parameters(training.model))
            training.others = list(average.parameters())
            return accumulating(training)

        def scheduled(training):
            scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
            inner = accumulating(training)
            return lambda: (inner(), scheduler.step())

        def accumulating(training):
            def step():
                training.optimizer.zero_grad()
                for _ in range(2):
                    self.loss(training).backward()
                training.optimizer.step()
            return step

        def scaling(training):
            scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

            def step():
                training.optimizer.zero_grad()
                loss = self.loss(training)
                scaler.scale(loss * (float("inf") if training.at == 1 else 1)).backward()  # one step is skipped
                scaler.step(training.optimizer)
                scaler.update()
            return step

        def closure(training):
            def compute():
                training.optimizer.zero_grad()
                loss = self.loss(training)
                loss.backward()
                return loss
            return lambda: training.optimizer.step(compute)

        def another_group(training):
            inner = accumulating(training)

            def step():
                if training.at == 2:
                    training.model.more = torch.nn.Parameter(torch.ones(5))
                    training.optimizer.add_param_group({"params": [training.model.more]})
                    training.model.register_forward_hook(lambda module, _, result: result * module.more.sum())
                inner()
            return step

        def late_hook(training):
            inner = accumulating(training)

            def step():
                if training.at == 2:
                    clipping_in_a_hook(training)
                inner()
            return step

        for change in (clipping, clipping_in_a_hook, averaging, scheduled, accumulating, scaling, closure, another_group, late_hook):
            with self.subTest(change.__name__):
                want, _ = self.variant(change, False)
                got, (outside, all_) = self.variant(change, True)
                self.assertTrue(same(want, got))
                self.assertEqual(outside, 0 if change is closure else all_)

    def test_what_has_no_state_on_the_host(self):
        parameters = [torch.nn.Parameter(torch.ones(3))]
        self.assertFalse(can_host(torch.optim.Adagrad(parameters)))
        self.assertFalse(can_host(torch.optim.AdamW(parameters, differentiable=True, foreach=False)))
        self.assertEqual(HostedState(torch.optim.SGD(parameters, 0.1), CpuDevice()).sizes, [])


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
                        self.assertLess(abs(fitted.plan.peak - device.most), part + 4096)  # all parts of a parameter leave together

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
            self.train(KINDS["adamw"], int(2.1 * parameters), Guarded(), rows)
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
        """The log says that the budget was exceeded, and a later step is planned for less."""
        parameters, kept, peaks = sum(p.nbytes for p in Wide().parameters()), [], []
        device = Guarded()
        with counted(device), mock.patch("spillway_torch.fit.fitted.AGAIN", 4), self.assertLogs("spillway_torch", "INFO") as logs:
            model = Wide()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            fitted = fit(model, optimizer, int(3.8 * parameters))
            for step in range(14):
                if step == 5:
                    kept.append(torch.zeros(parameters // 16))  # such as averages of the parameters
                device.peak = device.allocated
                optimizer.zero_grad()
                model(torch.randn(256, 64)).square().mean().backward()
                optimizer.step()
                peaks.append(device.peak)
        fitted.remove()
        over = [at for at, peak in enumerate(peaks) if peak > int(3.8 * parameters)]
        self.assertTrue(over and max(over) < 12, over)
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

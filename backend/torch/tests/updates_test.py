"""Tests optimizers whose state is on the host between updates: the bits, the order of copies, and what others see of it."""

import copy
import io
import itertools
import statistics
import unittest
from unittest import mock

import torch

from adversary import Adversary
from counting import Counting
from spillway_torch.base.device import CpuDevice, Queue
from spillway_torch.base.errors import SpillwayError
from spillway_torch.run.updates import HostedState, can_host

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

    def test_temporary_tensors_of_an_update_are_foreseen(self):
        makers = [*KINDS.values(), *(lambda p, of=of, rest=rest: of(p, 0.1, foreach=False, **rest) for of, rest in itertools.product(
            (torch.optim.Adam, torch.optim.AdamW), ({"weight_decay": 0.1}, {"weight_decay": 0}, {"weight_decay": 0, "maximize": True})))]
        for make, parameters in itertools.product(makers, (1, 4)):
            with Counting() as device:
                trained = [torch.nn.Parameter(torch.ones(1 << 10)) for _ in range(parameters)]
                optimizer = make(trained)
                for _ in range(2):
                    for p in trained:
                        p.grad = torch.ones_like(p)
                    before = device.peak = device.allocated
                    optimizer.step()
                foreseen = HostedState(optimizer, device).temporaries()[1]
            with self.subTest(optimizer, parameters=parameters):
                self.assertEqual(device.peak - before, foreseen)

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


if __name__ == "__main__":
    unittest.main()

"""Tests functions of forward and backward that are captured, on a device whose graphs run the program again."""

import fractions
import logging
import random
import unittest
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from guard_test import Guarded, counted
from spillway_torch import SpillwayError, fit
from spillway_torch.fit.capture import MOST_DROPS, MOST_GRAPHS
from spillway_torch.fit.progress import Removed
from spillway_torch.tape.chains import saved_storages


class Graphs(Guarded):
    """A device whose graphs do what a GPU's do: nothing while they are captured, and the same to the same memory each time they run."""

    has_graphs = True

    def __init__(self):
        super().__init__()
        self.fitted, self.replays = None, 0
        self.workspace = 0  # bytes that a graph takes besides

    def graph(self, run):
        model = self.fitted.model
        with _disable_current_modes():
            buffers, drawn = [(t, t.clone()) for t in model.buffers()], torch.get_rng_state()
        self.capturing, empty_like = True, torch.empty_like

        def with_values(tensor):  # operators run, and need them
            made = empty_like(tensor)
            with _disable_current_modes():
                return made.copy_(tensor)

        workspace = torch.empty(self.workspace, dtype=torch.uint8)
        try:
            with mock.patch.object(torch, "empty_like", with_values):
                made = run()
            del workspace
        finally:
            self.capturing = False
        with _disable_current_modes():
            for tensor, value in buffers:
                tensor.copy_(value)
            torch.set_rng_state(drawn)
            made_of = [(p, p.grad) for p in model.parameters() if p.grad is not None]
            memory = {id(tensor): tensor.detach().clone() for tensor in (*made[0], *pytree.tree_leaves(made[1]), *(g for _, g in made_of))}
            inputs, results = ([memory[id(tensor)] for tensor in pytree.tree_leaves(of)] for of in made[:2])
            gradients = [(p, memory[id(g)]) for p, g in made_of]

        def replay():
            self.replays += 1
            planned, self.fitted._state = self.fitted._state, Removed()
            given = iter(inputs)
            with _disable_current_modes(), mock.patch.object(torch, "empty_like", lambda _: next(given)):
                again = run()[1]
                with torch.no_grad():
                    for static, new in zip(results, pytree.tree_leaves(again)):
                        static.copy_(new)
                    for p, static in gradients:
                        static.copy_(p.grad)
                        p.grad = None
            self.fitted._state = planned

        return made, replay, lambda tensor: memory[id(tensor)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32))
                                    for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class Training:
    """Steps whose forward and backward are a function."""

    def __init__(self, budget=None, device=None, **options):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.device = device
        self.fitted = None if budget is None else fit(self.model, self.optimizer, budget, **options)
        self.work = self.loss if self.fitted is None else self.fitted.capture(self.loss)
        self.extra = lambda x: 1.0
        if device is not None:
            device.fitted = self.fitted

    def loss(self, x, scale=1.0):
        loss = float(scale) * self.extra(x) * self.model(x).square().mean()
        loss.backward()
        return loss

    def step(self, *inputs, **named):
        self.optimizer.zero_grad()
        loss = [self.work(x, **named) for x in inputs][-1]
        self.optimizer.step()
        return loss

    def bits(self):
        return [t.detach().clone() for t in (*self.model.parameters(), *self.model.buffers())]


def data(step, rows=64):
    return torch.randn(rows, 32, generator=torch.Generator().manual_seed(step))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other))


class CaptureTest(unittest.TestCase):
    def equal(self, step, steps=12, budget=700 << 10):
        """Runs steps without and with captured functions, and compares their bits; returns the second training and its device."""
        torch.manual_seed(1)
        plain = Training()
        want = [step(plain, at) for at in range(steps)]
        torch.manual_seed(1)
        device = Graphs()
        with counted(device):
            planned = Training(budget, device)
            got = [step(planned, at) for at in range(steps)]
        self.assertTrue(same(want, got))
        self.assertTrue(same(plain.bits(), planned.bits()))
        return planned, device

    def test_calls_are_replayed_once_they_run_as_planned(self):
        with self.assertLogs("spillway_torch", logging.INFO) as log:
            planned, device = self.equal(lambda training, at: training.step(data(at)))
        self.assertEqual(device.replays, 7)
        self.assertEqual(planned.fitted.stats()["replayed"], 7)
        self.assertEqual(planned.fitted.stats()["steps"], 12)
        self.assertIn("7 of them as CUDA graphs", planned.fitted.report())
        self.assertEqual(sum("captured a call of 'loss' with inputs of [64, 32]" in line for line in log.output), 1)
        self.assertGreater(planned.fitted.plan.actions and planned.fitted.last.recomputed, 0)

    def test_each_size_and_number_has_a_graph(self):
        _, device = self.equal(lambda training, at: training.step(data(at, (64, 48)[at % 2]), scale=1.0 + at % 2), steps=24, budget=2 << 20)
        self.assertGreater(device.replays, 10)

    def test_gradients_add_up(self):
        _, device = self.equal(lambda training, at: training.step(data(at), data(-at)), steps=12)
        self.assertEqual(device.replays, MOST_DROPS)  # of first calls, which make room for second ones

    def test_gradients_that_are_held_stay(self):
        held = {}

        def step(training, at):
            loss = training.step(data(at))
            self.assertTrue(same(*held.get(training, ([], []))))
            with _disable_current_modes():
                values = [p.grad.clone() for p in training.model.parameters()]
            held[training] = [p.grad for p in training.model.parameters()], values
            return loss

        _, device = self.equal(step, budget=2 << 20)
        self.assertEqual(device.replays, 4)  # and each step behind one of them runs as ever

    def test_results_stay(self):
        kept = []
        planned, _ = self.equal(lambda training, at: kept.append(training.step(data(at))) or kept[-1].clone())
        self.assertFalse(any(loss.requires_grad for loss in kept[12:]))
        self.assertTrue(same(kept[:12], kept[12:]))
        self.assertEqual(len({loss.data_ptr() for loss in kept[12:]}), 12)
        planned.fitted.remove()

    def test_what_changes_beside_the_call(self):
        """A graph is not replayed where parameters lie elsewhere, or modules are in another mode."""
        def step(training, at):
            if at == 8:
                training.model.blocks[1][0].weight.data = training.model.blocks[1][0].weight.data.clone()
            training.model.blocks[2][2].train(at != 10)  # which is not looked at
            return training.step(data(at))

        _, device = self.equal(step, steps=14)
        self.assertEqual(device.replays, 6)  # of steps 5 to 7, and 11 to 13

    def test_random_numbers_are_not_drawn_again(self):
        planned, _ = self.equal(lambda training, at: training.step(data(at)), steps=2)
        tape = planned.fitted.plan.tape
        reasons = [saved.reason for saved in saved_storages(tape).values() if saved.chain is None and saved.reason]
        self.assertTrue(any("draws random numbers, which a captured step cannot draw again" in reason for reason in reasons))

    def test_state_on_the_host(self):
        planned, device = self.equal(lambda training, at: training.step(data(at)), budget=450 << 10)
        self.assertGreater(planned.fitted.plan.state, 0)
        self.assertGreater(device.replays, 6)

    def test_a_graph_has_to_fit(self):
        grown = []

        def step(training, at):
            if at == 8 and training.device is not None:
                grown.append(torch.zeros(1 << 18))
            if at == 10:
                grown.clear()
            return training.step(data(at))

        _, device = self.equal(step)
        self.assertEqual(device.replays, 5)

    def test_plans_leave_room_for_a_graph(self):
        def step(training, at):
            if training.device is not None:
                training.device.workspace = 60 << 10
            return training.step(data(at))

        with self.assertLogs("spillway_torch", logging.INFO) as log:
            _, device = self.equal(step, steps=20)
        self.assertTrue(any("because memory was short in a graph" in line for line in log.output))
        self.assertGreater(device.replays, 0)

    def test_what_is_not_given_is_named(self):
        x = data(0)
        with self.assertLogs("spillway_torch", logging.WARNING) as log:
            device = Graphs()
            with counted(device):
                planned = Training(700 << 10, device)
                planned.work = planned.fitted.capture(lambda: planned.loss(x))
                for _ in range(6):
                    planned.optimizer.zero_grad()
                    planned.work()
                    planned.optimizer.step()
        self.assertIn("reads tensors that it is not given, and that have to stay where they are, with new values in their place: "
                      "float32[64, 32] (in aten::", log.output[-1])

    def test_what_cannot_be_captured_runs_as_ever(self):
        def hooked(training, at):
            if at == 0:
                training.model.blocks[0][0].weight.register_post_accumulate_grad_hook(lambda p: None)
            return training.step(data(at))

        for step, words in ((hooked, "a parameter has a hook that runs behind its gradient"),
                            (lambda training, at: training.step(data(at).requires_grad_()), "without gradients of their own"),
                            (lambda training, at: training.step(data(at), scale=fractions.Fraction(1)), "it is given a Fraction")):
            with self.subTest(words), self.assertLogs("spillway_torch", logging.WARNING) as log:
                _, device = self.equal(step, steps=6)
                self.assertEqual(device.replays, 0)
                self.assertEqual(sum(words in line for line in log.output), 1)

    def test_numbers_that_the_program_reads(self):
        """What is equal in all calls is not asked of a graph; what follows from data is refused, and so are the host's random numbers."""
        def constant(training, at):
            training.extra = lambda x: 1.0 if (torch.arange(len(x)) >= 0).all() else 2.0
            return training.step(data(at))

        _, device = self.equal(constant)
        self.assertEqual(device.replays, 7)
        for extra, words in ((lambda x: float(x[0, 0]), "it reads a number that follows from its inputs"),
                             (lambda x: torch.rand([]).item(), "or from random numbers"),
                             (lambda x: random.Random(1).random() + 0 * random.random(), "it draws random numbers of the host")):
            def step(training, at):
                training.extra = extra
                return training.step(data(at))

            with self.subTest(words), self.assertLogs("spillway_torch", logging.WARNING) as log:
                _, device = self.equal(step, steps=8)
                self.assertEqual(device.replays, 0)
                self.assertEqual(sum(words in line for line in log.output), 1)

    def test_a_part_that_is_compiled(self):
        def step(training, at):
            if at == 1 and training.fitted is not None:
                training.fitted.plan.tape.compiled = True  # as if it was
            return training.step(data(at))

        with mock.patch("spillway_torch.fit.capture.SLOW", 5), self.assertLogs("spillway_torch", logging.WARNING) as log:
            _, device = self.equal(step, steps=8)
        self.assertEqual(device.replays, 0)
        self.assertIn("5 kinds of calls have run, and a part of it is compiled", log.output[-1])

    def test_a_capture_that_fails(self):
        def fail(device, run):
            run()
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

        with mock.patch.object(Graphs, "graph", fail), self.assertLogs("spillway_torch", logging.WARNING) as log:
            torch.manual_seed(1)
            device = Graphs()
            with counted(device):
                planned = Training(700 << 10, device)
                planned.model.eval()  # a capture that fails has run here
                for at in range(8):
                    planned.step(data(at))
        self.assertEqual([line.rpartition(": ")[2] for line in log.output], ["operation not permitted when stream is capturing"])
        self.assertEqual(planned.fitted.stats()["replayed"], 0)
        self.assertIsNone(planned.fitted._parts)

    def test_only_so_many_graphs(self):
        _, device = self.equal(lambda training, at: training.step(data(at, 40 + at % 12)), steps=40)
        self.assertLessEqual(len(next(iter(device.fitted._captured))._graphs), MOST_GRAPHS)

    def test_wrong_uses(self):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for options, words in ((dict(early_updates=True), "no early_updates"), (dict(hook_forward=False), "no hook_forward=False")):
            fitted = fit(model, optimizer, "1GiB", **options)
            with self.assertRaisesRegex(SpillwayError, words):
                fitted.capture(lambda x: x)
            fitted.remove()
        planned = Training("1GiB")
        planned.step(data(0))
        with self.assertRaisesRegex(SpillwayError, "call it before the first step"):
            planned.fitted.capture(planned.loss)
        planned.fitted.remove()
        with self.assertRaisesRegex(SpillwayError, "capture follows .* remove"):
            planned.fitted.capture(planned.loss)
        planned = Training("1GiB")

        def update(x):
            loss = planned.loss(x)
            planned.optimizer.step()
            return loss

        work = planned.fitted.capture(update)
        with self.assertRaisesRegex(SpillwayError, "updates the model: leave the optimizer's step to its caller"):
            work(data(0))
        planned.fitted.remove()

    def test_on_a_cpu_and_after_remove(self):
        planned = Training("1GiB")
        plain = Training()
        torch.manual_seed(3)
        got = [planned.step(data(at)) for at in range(3)]
        planned.fitted.remove()
        got.append(planned.step(data(3)))
        torch.manual_seed(3)
        self.assertTrue(same(got, [plain.step(data(at)) for at in range(4)]))
        self.assertFalse(any(loss.requires_grad for loss in got))
        self.assertEqual(planned.work.__name__, "loss")


if __name__ == "__main__":
    unittest.main()

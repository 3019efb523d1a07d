"""Tests that a budget is kept where a step does not run as planned, on a device that counts its memory."""

import contextlib
import copy
import functools
import logging
import unittest
import weakref
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from counting import Counting
from spillway_torch import fit
from spillway_torch.base.device import CpuDevice
from spillway_torch.plan.planner import assemble
from spillway_torch.run.executor import Executor
from spillway_torch.run.library import steps_library
from spillway_torch.tape.hooks import hooks_here
from spillway_torch.tape.tape_recorder import record_tape
from stepping import MODELS, Stepping, different


class Guarded(Counting):
    def in_use(self):
        return self.allocated


@contextlib.contextmanager
def using(device):
    """Within it, `fit` uses a device."""
    with mock.patch("spillway_torch.tape.tape_recorder.device_of", lambda _: device), \
            mock.patch("spillway_torch.run.executor.device_of", lambda _: device), \
            mock.patch("spillway_torch.fit.fitted.device_of", lambda _: device), \
            mock.patch("spillway_torch.fit.weights.device_of", lambda _: device):
        yield


class Telling:
    """The library, which tells a device that counts where a weight loses the memory that the program gave it."""

    def __init__(self, device):
        native = steps_library().Weights

        class Weights(native):
            @staticmethod
            def give_up(tensor):
                key = tensor.untyped_storage()._cdata
                if key in device.sizes:
                    device.give_back(key)
                return native.give_up(tensor)

        self.Weights = Weights


@contextlib.contextmanager
def counted(device):
    """Within it, `fit` uses a device, which counts what operators allocate."""
    with using(device), mock.patch("spillway_torch.run.weights.steps_library", lambda: Telling(device)), device:
        yield


class Residual(torch.nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class GuardTest(unittest.TestCase):
    def steps(self, share, rows=256, block=torch.nn.Sequential):
        """Runs steps of a model whose plan moves nothing; returns what they took, the budget, the bytes that moved, and gradients.

        share: the budget, between what a step takes before its forward and what it takes without a budget.
        rows: those of its batch; the recorded one has 256.
        block: of three layers.
        """
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(block(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)) for _ in range(6)))
        data = torch.randn(1024, 16)
        tape = record_tape(lambda: model(data[:256]).square().mean().backward(), "cpu")
        device, peaks, gradients = Guarded(), [], []
        for budget in (1 << 40, None):
            with device:
                for p in model.parameters():
                    p.grad = None
                    device.sizes.setdefault(p.untyped_storage()._cdata, None)
                before = device.allocated
                if budget is None:
                    budget = before + int(share * (peaks[0] - before))
                executor = Executor(assemble(tape, {}, int(budget / 0.9975) + 1), device)
                device.peak = device.allocated
                with executor.step() as run:
                    loss = model(data[:rows]).square().mean()
                loss.backward()
                peaks.append(device.peak)
                gradients.append([p.grad.clone() for p in model.parameters()])
                for p in model.parameters():
                    device.sizes.pop(p.untyped_storage()._cdata, None)
                del loss
        return peaks[1], budget, run.guarded, gradients

    def test_saved_tensors_go_to_the_host_when_memory_is_short(self):
        for share in (0.5, 0.7, 0.9):
            with self.subTest(share):
                peak, budget, moved, (want, got) = self.steps(share)
                self.assertLessEqual(peak, budget)
                self.assertGreater(moved, 0)
                self.assertEqual(different(want, got), [])

    def test_what_autograd_keeps_is_no_room_for_operators(self):
        for share in (0.5, 0.6, 0.7, 0.8, 0.9):
            with self.subTest(share):
                peak, budget, _, (want, got) = self.steps(share, block=Residual)
                self.assertLessEqual(peak, budget)
                self.assertEqual(different(want, got), [])

    def test_what_a_backward_saves_for_another_one_goes_to_the_host(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(16, 64), torch.nn.Softplus(), torch.nn.Linear(64, 16))))
        data = torch.randn(256, 16)

        def loss():
            x = data.clone().requires_grad_()
            slope, = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            return (slope.square().sum(1).sqrt() - 1).square().mean()

        tape = record_tape(lambda: loss().backward(), "cpu")
        device, peaks, gradients = Guarded(), [], []
        for budget in 1 << 40, None:
            for p in model.parameters():
                p.grad = None
            with device:
                executor = Executor(assemble(tape, {}, budget or int(device.allocated + 0.7 * peaks[0]) + 1), device)
                before = device.peak = device.allocated
                run = executor.begin(stay=True)
                made = loss()
                moved = run.guarded
                self.assertIs(hooks_here(), run.hooks)  # it is no end that a backward makes a graph
                made.backward()
                self.assertIsNone(hooks_here())
                run.end()
                peaks.append(device.peak - before)
                del made
            gradients.append([p.grad.clone() for p in model.parameters()])
        self.assertEqual(different(*gradients), [])
        self.assertLessEqual(peaks[1], 0.7 * peaks[0])
        self.assertGreater(moved, 0)

    def test_what_backward_has_read_is_gone_before_gradients_are_summed(self):
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
        tape = record_tape(lambda: model(torch.ones(8, 16)).sum().backward(), "cpu")
        for device, retain, gone in ((None, False, False), (Guarded(), False, True), (CpuDevice(), False, True), (Guarded(), True, False)):
            with self.subTest(device=type(device).__name__, retain=retain):
                alive, saved = [], []

                class Sums(TorchDispatchMode):
                    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                        if func._schema.name == "aten::sum" and saved:
                            alive.append(saved[0]() is not None)
                        return func(*args, **(kwargs or {}))

                def note(_, inputs):
                    saved.append(weakref.ref(inputs[0].untyped_storage()))

                handle = model[2].register_forward_pre_hook(note)
                with Executor(assemble(tape, {}, 1 << 40), device).step() if device is not None else contextlib.nullcontext():
                    loss = model(torch.ones(8, 16)).sum()
                with Sums():
                    loss.backward(retain_graph=retain)
                handle.remove()
                self.assertEqual(alive[0], not gone)

    def test_nothing_moves_where_memory_is_enough(self):
        peak, budget, moved, (want, got) = self.steps(1.2)
        self.assertLessEqual(peak, budget)
        self.assertEqual(moved, 0)
        self.assertEqual(different(want, got), [])


class Heads(torch.nn.Module):
    """Blocks, each with a head of its own."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            Residual(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32), torch.nn.LayerNorm(32)) for _ in range(5))
        self.heads = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.Tanh(), torch.nn.Linear(128, 8))
                                         for _ in range(3))

    def forward(self, x):
        made = []
        for block in self.blocks:
            x = block(x)
            made.append(x)
        return [head(x) for head, x in zip(self.heads, made[-3:])], made


class Loop:
    """Steps of a training that saves more than backward reads, or holds more than the recorded step. `rest` is what the program keeps."""

    def __init__(self, rows=256, optimizer=functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)):
        torch.manual_seed(0)
        self.model, self.rows, self.rest = Heads(), rows, []
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.parameters = list(self.model.parameters())
        self.optimizer = optimizer(self.parameters)

    def run(self):
        """Returns the results of the heads and of the blocks."""
        return self.model(torch.randn(self.rows, 32))

    def loss(self, head=-1):
        return self.run()[0][head].square().mean()


class Outer(torch.optim.Optimizer):
    """Has another optimizer do the update, as sharpness-aware minimization does."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base_optimizer = torch.optim.AdamW(self.param_groups)

    def step(self, closure=None):
        self.base_optimizer.step()


class Bare(torch.optim.Optimizer):
    """Is none that PyTorch has made, as lookahead often is."""

    def __init__(self, parameters):
        self.base = torch.optim.AdamW(parameters)

    def step(self, closure=None):
        self.base.step()

    def zero_grad(self, set_to_none=True):
        self.base.zero_grad(set_to_none)


def one_loss(loop, at):
    loop.loss().backward()


def unread_heads(loop, at):
    loop.loss(at % 2).backward()


def dropped_results(loop, at):
    heads, made = loop.run()
    dropped = [torch.sigmoid(x.exp().tanh()).mean() for x in made]
    heads[-1].square().mean().backward()
    del dropped


def kept_results(loop, at):
    heads, made = loop.run()
    loop.rest = [torch.log_softmax(heads[-1].repeat(1, 32), 1).exp().tanh().mean()]
    heads[-1].square().mean().backward()


def several_losses(loop, at):
    heads, _ = loop.run()
    for number, head in enumerate(heads):
        head.square().mean().backward(retain_graph=number < 2)


def sharpness(loop, at):
    loop.loss().backward()
    with torch.no_grad():
        moved = [0.01 * (p.grad if p.grad is not None else torch.zeros_like(p)) for p in loop.parameters]
        torch._foreach_add_(loop.parameters, moved)
    loop.optimizer.zero_grad()
    loop.loss().backward()
    torch._foreach_sub_([p.data for p in loop.parameters], moved)


def closure_behind_backward(loop, at):
    loop.loss().backward()
    loop.optimizer.step(lambda: loop.loss().backward())


def task_gradients(loop, at):
    tasks = [torch.autograd.grad(loop.loss(head), loop.parameters, allow_unused=True) for head in range(3)]
    for p, *gradients in zip(loop.parameters, *tasks):
        p.grad = sum(g if g is not None else torch.zeros_like(p) for g in gradients)
    return tasks


def held_gradients(loop, at):
    loop.rest.clear()
    loop.rest += task_gradients(loop, at)


def move_target(loop):
    for p, q in zip(loop.target.parameters(), loop.parameters):
        p.data = p.data * 0.99 + q.data * 0.01


def target_network(loop, at):
    move_target(loop)
    x = torch.randn(loop.rows, 32)
    with torch.no_grad():
        wanted = loop.target(x)[0][-1]
    (loop.model(x)[0][-1] - wanted).square().mean().backward()


def momentum_encoder(loop, at):
    x, wanted = torch.randn(loop.rows, 32), []

    @torch.no_grad()
    def encode(*_):
        move_target(loop)
        wanted.append(loop.target(x)[0][-1])

    handle = loop.model.register_forward_pre_hook(encode)
    made = loop.model(x)[0][-1]
    handle.remove()
    (made - wanted[0]).square().mean().backward()


class WholeStepsTest(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)

    def peaks(self, step, budget=None, **options):
        """Returns the bytes that each step takes, and the parameters."""
        device, peaks = Guarded(), []
        with counted(device):
            loop = Loop(**options)
            fitted = fit([loop.model, loop.target], loop.optimizer, budget) if budget is not None else None
            for at in range(5):
                device.peak = device.allocated
                loop.optimizer.zero_grad()
                step(loop, at)
                loop.optimizer.step()
                peaks.append(device.peak)
            loop.rest.clear()
            if fitted is not None:
                fitted.remove()
        return peaks, loop.parameters

    def hold(self, step, share, **options):
        """A step with this share of the memory that it takes otherwise keeps it, from the first one on."""
        with self.subTest(step.__name__, share=share):
            eager, want = self.peaks(step, **options)
            budget = int(share * max(eager))
            peaks, got = self.peaks(step, budget, **options)
            self.assertLessEqual(max(peaks), budget)
            self.assertEqual(different(want, got), [])

    def test_what_no_backward_reads_counts(self):
        for step in unread_heads, dropped_results, kept_results:
            self.hold(step, 0.42)

    def test_several_backwards_of_a_step(self):
        for step, share in (several_losses, 0.5), (sharpness, 0.47), (closure_behind_backward, 0.5):
            self.hold(step, share)

    def test_gradients_beside_those_of_parameters(self):
        self.hold(task_gradients, 0.485)

    def test_state_leaves_where_the_program_holds_gradients_until_an_update(self):
        for step in held_gradients, task_gradients:
            self.hold(step, 0.8, rows=32, optimizer=torch.optim.AdamW)

    def test_state_of_an_optimizer_within_another_one_leaves(self):
        for optimizer in Outer, Bare:
            self.hold(one_loss, 0.7, rows=32, optimizer=optimizer)

    def test_what_is_taken_before_another_step_is_recorded_counts(self):
        with counted(Guarded()):
            loop = Loop(rows=8)
            fitted = fit([loop.model, loop.target], loop.optimizer, 1 << 24)
            for _ in range(3):
                loop.loss().backward()
                loop.optimizer.step()
            torch.empty(1 << 24)
            with self.assertLogs("spillway_torch", "WARNING") as lines:
                loop.target(torch.randn(8, 32, requires_grad=True))[0][-1].sum().backward()
            self.assertIn("spillway: tensors took ", lines.output[0])
            self.assertGreater(fitted.stats()["most_bytes"], 1 << 26)
            fitted.remove()

    def test_frozen_weights_that_get_other_memory_in_each_step(self):
        self.hold(target_network, 0.45)
        self.hold(target_network, 0.41, optimizer=torch.optim.AdamW)
        self.hold(momentum_encoder, 0.5, rows=64)


if __name__ == "__main__":
    unittest.main()

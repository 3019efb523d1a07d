"""Compiled models whose sizes vary from step to step, in a budget."""

import logging
import re
import subprocess
import sys
import types
import unittest
from unittest import mock

import torch
from torch import nn

from spillway_torch import SpillwayError, fit
from spillway_torch.base.device import CpuDevice
from spillway_torch.compiled import pytorch
from spillway_torch.compiled.code import outcome_of
from spillway_torch.compiled.joint import Outcome
from spillway_torch.fit import compiled as fitting
from spillway_torch.fit.compiled_graph import Call, Cut, Graph, SizedStep
from cases import slow
from compiled_test import Block, Breaks, ByOperators, Counted, Layers, Training, page

WIDTH = 16
ROWS = (20, 30, 46, 64, 50, 100, 160, 200, 150, 32, 180, 200, 24)


class Attention(nn.Module):
    """A block whose scores grow as the square of the length, with sizes that are computed in the graph."""

    def __init__(self):
        super().__init__()
        self.norm, self.three, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key, value = self.three(self.norm(x)).view(2, -1, 3, 2, WIDTH // 2).permute(2, 3, 0, 1, 4)
        scores = (query @ key.transpose(-2, -1)).softmax(-1)
        return x + self.out((scores @ value).permute(1, 2, 0, 3).reshape(-1, WIDTH))


class Two(nn.Module):
    """Two graphs, of which the second one also reads rows that the first one does not."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.more = Layers(Block(WIDTH), Block(WIDTH)), Layers(Block(WIDTH), Block(WIDTH)), 0

    def compile(self, **options):
        self.first.compile(**options)
        self.second.compile(**options)

    def forward(self, x):
        return self.second(torch.cat([self.first(x), torch.ones(self.more, WIDTH)]))


class FitTest(ByOperators):
    """Compiled models in training, with other sizes in each step."""

    def fitted(self, make, budget, **options):
        torch.compiler.reset()
        training = Training(make)
        training.model.compile(dynamic=True)
        fitted = fit(training.model, training.optimizer, budget, **options)
        self.addCleanup(fitted.remove)
        return training, fitted

    def most(self, fitted):
        """Returns what a step takes with the sizes that its graphs have."""
        step = fitted._graphs[-1].step
        return fitted._budget + fitted._most_over(step.events(), step.cuts[0].more)

    def train(self, make, budget, rows=ROWS):
        """Returns losses, what backward held in each step, parameters, and by step the bytes that each graph was said to save."""
        training, fitted = self.fitted(make, budget)
        losses, saved, said = [], [], []
        for seed, training.rows in enumerate(rows):
            with self.assertNoLogs("spillway_torch", "WARNING"):
                loss, held = training.step(seed)
            losses.append(loss)
            saved.append(held)
            said.append([graph.outcome.saved for graph in fitted._graphs])
        return losses, saved, [p.detach().clone() for p in training.model.parameters()], said, fitted

    @slow
    def test_lengths_rise_and_fall(self):
        for make in (lambda: Layers(*(Block(WIDTH, 0.2) for _ in range(4)))), (lambda: Breaks(WIDTH)), (
                lambda: Layers(*(part for _ in range(2) for part in (Attention(), Block(WIDTH))))):
            losses, plain, values, _, free = self.train(make, 1 << 40)
            self.assertEqual([len(graph.known) for graph in free._graphs], [1] * len(free._graphs))
            graph = free._graphs[0]
            self.assertEqual(graph.sizes, (200,))
            most = (1 << 40) + free._most_over(graph.step.events(), 0) + graph.step.cuts[0].more
            budget = int(0.8 * most)
            found, saved, others, said, fitted = self.train(make, budget)
            self.assertEqual(found, losses)
            self.assertTrue(all(map(torch.equal, values, others)))
            self.assertLessEqual(fitted.stats()["predicted_bytes"], budget)
            step = fitted._graphs[0].step
            self.assertIn(len(step.cuts), (2, 3))
            self.assertEqual(*([held for held, rows in zip(of[1:], ROWS[1:]) if rows <= 100] for of in (saved, plain)))
            self.assertLess(saved[7], plain[7])  # 200 rows
            self.assertEqual(saved[11], saved[7])
            for cut in step.cuts:  # all that is known to fit does
                for sizes in cut.fits:
                    fitted._resize(sizes)
                    for graph, made in cut.made.items():
                        graph.use(made)
                    self.assertLessEqual(fitted._most_over(step.events(), cut.more), 0)
                    for graph in step.graphs:
                        numbers = {at for at in graph.joint.needed if graph.joint.is_number[at]}
                        self.assertLessEqual(numbers, set(graph.joint.split(set())[0]))  # what makes them need not run again
            fitted._resize({graph: (200,) for graph in step.graphs})
            if len(step.graphs) == 1:
                self.assertEqual(graph.outcome.saved, saved[7])

    def test_a_second_length_makes_sizes_vary(self):
        """Without `dynamic`, torch.compile finds a graph with fixed sizes first."""
        make = lambda: Layers(*(Block(WIDTH) for _ in range(3)))

        def train(budget):
            torch.compiler.reset()
            training = Training(make)
            training.model.compile()
            fitted = fit(training.model, training.optimizer, budget)
            self.addCleanup(fitted.remove)
            losses = []
            for seed, training.rows in enumerate((100, 120, 60, 200, 100)):
                losses.append(training.step(seed)[0])
            return losses, fitted
        losses, fitted = train(1 << 40)
        self.assertEqual([graph.sizes for graph in fitted._graphs], [(), (200,)])
        fitted._resize({fitted._graphs[1]: (200,)})
        most = self.most(fitted)
        found, fitted = train(int(0.9 * most))
        self.assertEqual(found, losses)
        self.assertEqual([int(sizes) for sizes in re.findall("nodes with sizes up to ([0-9]+) saves", fitted.report())],
                         [120, fitted._graphs[1].step.largest()[fitted._graphs[1]][0]])

    def test_sizes_that_do_not_follow_from_the_first_graph(self):
        def train(budget):
            training, fitted = self.fitted(Two, budget, compiled=True)
            losses, saved = [], []
            for seed, (training.rows, training.model.more) in enumerate(((100, 4), (100, 4), (120, 4), (100, 150), (100, 150), (100, 4))):
                loss, held = training.step(seed)
                losses.append(loss)
                saved.append(held)
            return losses, saved, fitted
        losses, plain, fitted = train(1 << 40)
        self.assertEqual(len(fitted._graphs), 2)
        fitted._resize({fitted._graphs[0]: (100,), fitted._graphs[1]: (250,)})
        most = self.most(fitted)
        with mock.patch.object(fitting.CompiledFitted, "_renew", autospec=True, side_effect=fitting.CompiledFitted._renew) as renewed:
            found, saved, fitted = train(int(0.93 * most))
        self.assertEqual(found, losses)
        self.assertEqual(saved[1:3], plain[1:3])
        for at in 3, 4, 5:  # the last one is expected to be as large as the one before
            self.assertLess(saved[at], plain[at])
        self.assertEqual([len(call.args[3]) for call in renewed.call_args_list], [1])  # the first graph had run

    def test_gradients_that_add_up_over_several_lengths(self):
        def train(budget):
            training, fitted = self.fitted(lambda: Layers(*(Block(WIDTH) for _ in range(3))), budget)
            losses = []
            for seed, lengths in enumerate(((40, 60), (40, 60), (200, 50), (50, 200), (40, 40))):
                torch.manual_seed(seed)
                for rows in lengths:
                    loss = training.model(torch.randn(rows, WIDTH)).square().mean()
                    loss.backward()
                    losses.append(loss.item())
                training.optimizer.step()
                training.optimizer.zero_grad()
            return losses, fitted
        losses, fitted = train(1 << 40)
        self.assertEqual(len(fitted._graphs[0].step.calls), 2)
        most = self.most(fitted)
        found, fitted = train(int(0.9 * most))
        self.assertEqual(found, losses)
        self.assertGreater(len(fitted._graphs[0].step.cuts), 1)

    def test_sizes_for_which_there_is_no_plan(self):
        make = lambda: Layers(*(Block(WIDTH) for _ in range(3)))
        training, fitted = self.fitted(make, 150_000)
        for training.rows in 20, 30:
            training.step(0)
        for _ in range(2):
            with self.assertRaisesRegex(SpillwayError, "no plan within 150,000 bytes was found for inputs with sizes of 4000, where 30"):
                training.rows = 4000
                training.step(0)
        training.rows = 20
        training.step(0)
        device = Counted()
        with mock.patch.object(fitting, "device_of", lambda _: device):
            training, fitted = self.fitted(make, 2_000_000)
            for training.rows in 20, 30:
                training.step(0)
            with mock.patch.object(fitting.CompiledFitted, "_settle", lambda *_: (1, 0)):
                training.rows = 900
                with device, self.assertLogs("spillway_torch", "WARNING") as logged:
                    device.peak = 0
                    training.step(0)
                    training.step(0)
        self.assertEqual([record.getMessage() for record in logged.records], [
            "spillway: no plan within 1.907 MiB was found for sizes of 900: such a step runs operator by operator, with what autograd saves "
            "on the host"])
        self.assertLessEqual(device.peak, 2_000_000)  # it ran with what autograd saves on the host

    def test_what_the_compiler_decides_by_sizes_is_checked(self):
        default = pytorch.default_halves

        def decides(graph, inputs, **options):
            size = next(value for value in inputs[0] if isinstance(value, torch.SymInt))
            self.assertIn(bool(size <= 100), (True, False))
            return default(graph, inputs, **options)
        with mock.patch.object(pytorch, "default_halves", decides):
            *_, fitted = self.train(lambda: Layers(Block(WIDTH)), 1 << 40, (20, 30, 99, 101, 150, 60, 200))
        graph = fitted._graphs[0]
        self.assertEqual([[made.symbols.hold((rows,)) for rows in (60, 100, 101, 1)] for made in graph.known],
                         [[True, True, False, False], [False, False, True, False]])
        self.assertEqual(len(graph.step.cuts), 2)

    def test_there_are_no_cuda_graphs(self):
        training = Training(lambda: Layers(Block(WIDTH)), rows=20)
        training.model.compile(mode="reduce-overhead")
        fitted = fit(training.model, training.optimizer, "1GiB")
        self.addCleanup(fitted.remove)
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            training.step(0)
        self.assertEqual([graph.settings["triton.cudagraphs"] for graph in fitted._graphs], [False])
        self.assertEqual(sum("compiled without CUDA graphs" in line for line in logs.output), 1)

    def test_numbers_that_are_no_sizes(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Block(WIDTH)

            def forward(self, x, by):
                return self.block(x) * by

        model = Scaled()
        model.compile()
        optimizer = torch.optim.AdamW(model.parameters())
        self.addCleanup(fit(model, optimizer, "1GiB").remove)
        with self.assertLogs("spillway_torch", "WARNING") as logged:
            for by in 1.5, 2.5, 3.5:
                model(torch.ones(8, WIDTH), by).sum().backward()
                optimizer.step()
        self.assertEqual(len(logged.output), 1)
        self.assertIn("a graph is cut as PyTorch cuts it: numbers vary in it that are no sizes: give them in tensors", logged.output[0])


class SizedStepTest(unittest.TestCase):
    """Sizes of the graphs of a step."""

    def step(self):
        self.one, self.other = (Graph(None, None, {}, "cpu", sizes=sizes) for sizes in ((10, 4), (10, 20)))
        calls = Call(self.one, 100, 130, 120, forward_varies=20, after_varies=40, backward_varies=10), Call(self.other, 110, 110, 110)
        return SizedStep([(calls[0], False), (calls[1], False), (calls[1], True), (calls[0], True)], [self.one, self.other], 0, 0)

    def test_expected_sizes(self):
        step = self.step()
        self.assertEqual(step.expected(self.one, (15, 4)), {self.one: (15, 4), self.other: (15, 30)})
        self.assertEqual(step.expected(self.other, (5, 20)), {self.one: (5, 4), self.other: (5, 20)})
        step.note((self.one, (15, 4)), {self.one: (15, 4), self.other: (15, 99)})
        self.assertEqual(step.expected(self.one, (15, 4))[self.other], (15, 99))

    def test_larger_sizes(self):
        step = self.step()
        step.cuts.append(Cut({}, 0, [{self.one: (10, 4), self.other: (10, 20)}, {self.one: (12, 3), self.other: (12, 3)}]))
        sizes = {self.one: (14, 4), self.other: (9, 20)}
        self.assertEqual([found[self.one] for found in step.larger(sizes, sizes)], [(18, 4), (15, 4), (14, 4)])
        exact = {**sizes, self.one: (2, 2)}
        self.assertEqual(step.larger(sizes, exact)[-1], exact)

    def test_held_calls(self):
        step = self.step()
        self.assertEqual([step.held(made) for made in range(4)], [[], [0], [], [2]])

    def test_what_varies_outside_grows_with_inputs(self):
        def joint(size):
            return types.SimpleNamespace(size=[40, size, 999], is_input=[True] * 3, forward=[True, True, False])
        self.one, self.other = (Graph(None, None, {}, "cpu", sizes=(10,), joint=joint(80)) for _ in range(2))
        call = Call(self.one, 100, 130, 120, forward_varies=20, after_varies=40, backward_varies=10)
        step = SizedStep([(call, False), (call, True)], [self.one, self.other], 0, 0)
        self.other.joint = joint(120)
        (made, _), (same, _) = step.events()
        self.assertIs(made, same)
        self.assertEqual((made.forward, made.after, made.backward), (110, 140, 135))
        self.other.joint = joint(40)
        self.assertEqual(step.events()[0][0].forward, 100)  # less is not believed


class CodeTest(unittest.TestCase):
    """The same with the compiler's own code."""

    FORWARD = """
def call(args):
    primals_1, primals_2 = args
    args.clear()
    s0 = primals_1
    assert_size_stride(primals_2, (s0, 4), (4, 1))
    buf0 = empty_strided_cpu((s0, 1 + 2*s0), (1 + 2*s0, 1), torch.float32)
    buf1 = empty_strided_cpu((8*((7 + s0) // 8), ), (1, ), torch.float32)
    return (buf0, s0)
"""
    BACKWARD = """
def call(args):
    primals_1, tangents_1 = args
    s0 = primals_1
    args.clear()
    buf0 = empty_strided_cpu((s0, 4), (4, 1), torch.float32)
    return (None, buf0)
"""

    def test_sizes_in_code(self):
        found = {}

        def backend(graph, inputs):
            found["inputs"], found["symbols"] = pytorch.with_symbols(graph, (7,))
            return graph
        torch.compiler.reset()
        given = torch.ones(7, 4)
        torch._dynamo.mark_dynamic(given, 0)
        torch.compile(lambda x: x + 1, backend=backend)(given)
        codes = [pytorch.Code(True, ["primals_1", "tangents_1"], found["inputs"], ["None", "x"], self.BACKWARD),
                 pytorch.Code(False, ["primals_1", "primals_2"], found["inputs"], ["x", "primals_1"], self.FORWARD)]
        for size, padded in (7, 8), (9, 16):
            forward = 4 * (size * (1 + 2 * size) + padded)
            self.assertEqual(outcome_of(codes, CpuDevice(), 1.0, found["symbols"].numbers((size,))),
                             Outcome(0, forward, 4 * size * 4 + size * 4 * 4, 1.0))
        with self.assertRaisesRegex(SpillwayError, r"a size is 1, and may vary \(valid: 2 or more\)"):
            pytorch.with_symbols(None, (1,))

    @slow
    def test_the_page_shows_what_its_program_prints(self):
        program, shown = re.search(r"## Sizes that vary\n.*?```python\n(.*?)```\n\n```\n(.*?)```", page(), re.DOTALL).groups()
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        lines = [line for line in done.stdout.splitlines(keepends=True) if line.startswith(("spillway: ", "budget ", "a graph ", "length "))]
        times = re.compile(r"(?<= in )[\d.]+(?= s\n)")
        self.assertEqual(times.sub("", "".join(lines)), times.sub("", shown), done.stdout)

    @slow
    def test_steps_take_what_the_code_says(self):
        def empty(size, stride, dtype):
            return torch.empty_strided(size, stride, dtype=dtype)  # which a device counts
        self.enterContext(mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cpu", empty))
        rows = 20, 24, 40, 64, 48, 18, 64, 30

        def train(budget):
            torch.compiler.reset()
            training = Training(lambda: Layers(*(Block(WIDTH, 0.2) for _ in range(2))))
            training.model.compile(dynamic=True)
            fitted = fit(training.model, training.optimizer, budget)
            training.rows = rows[0]
            training.step(0)
            before = sum(t.nbytes for p in training.model.parameters() for t in (p, *training.optimizer.state[p].values()))
            losses, peaks, said = [], [], []
            graph = fitted._graphs[0]
            for seed, training.rows in enumerate(rows):
                with Counted() as device:
                    losses.append(training.step(seed)[0])
                peaks.append(before - (training.rows * WIDTH * 4 + 8) + device.peak)  # without the batch, the loss and its gradient
                fitted._resize({graph: (training.rows,)})
                said.append(budget + fitted._most_over(graph.step.events(), graph.step.cuts[0].more))
            values = [p.detach().clone() for p in training.model.parameters()]
            cuts = len(graph.step.cuts)
            fitted.remove()
            return losses, peaks, said, values, cuts
        losses, plain, said, values, cuts = train(1 << 40)
        self.assertEqual((plain, cuts), (said, 1))
        budget = int(0.95 * max(plain))
        found, peaks, said, others, cuts = train(budget)
        self.assertEqual((peaks, cuts), (said, 2))
        self.assertLessEqual(max(peaks), budget)
        self.assertEqual([peak for peak, most in zip(peaks, plain) if most <= budget], [most for most in plain if most <= budget])
        self.assertEqual(found, losses)
        self.assertTrue(all(map(torch.equal, values, others)))


if __name__ == "__main__":
    unittest.main()

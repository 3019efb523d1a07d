"""Compiled models in a budget, with the compiler's own code: what it tells of its memory, and what it takes."""

import os
import random
import re
import subprocess
import sys
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import spillway_torch
from spillway_torch import fit
from spillway_torch.base.device import CpuDevice
from spillway_torch.compiled import pytorch
from spillway_torch.compiled.code import outcome_of
from spillway_torch.compiled.joint import ALWAYS, Joint, Outcome
from spillway_torch.compiled.planning import Choice
from spillway_torch.fit import compiled as fitting
from spillway_torch.fit.compiled_graph import Graph
from cases import slow
from compiled_test import Block, Counted, Layers, Training, joint_of, page


class CodeTest(unittest.TestCase):
    """What generated code tells, read without a compiler."""

    FORWARD = """
async_compile.wait(globals())
class Runner:
    def call(self, args):
        primals_1, primals_2 = args
        args.clear()
        assert_size_stride(primals_1, (100, 8), (8, 1))
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((100, 8), (8, 1), torch.float32)
            stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(primals_1, buf0, 800, stream=stream0)
            buf1 = torch.ops.aten.sort.default(buf0, -1)
            buf2 = buf1[0]
            buf3 = buf1[1]
            del buf1
            buf4 = buf0; del buf0  # reuse
            triton_poi_fused_mul_1.run(buf2, buf4, 800, stream=stream0)
        return (buf4, buf3, reinterpret_tensor(primals_2, (4, 2), (2, 1), 0), )
"""
    BACKWARD = """
def call(args):
    getitem_1, view, tangents_1 = args
    args.clear()
    buf0 = empty_strided_cpu((1000, ), (1, ), torch.float32)
    buf1 = empty_strided_cuda((1000, ), (1, ), torch.float32)
    del getitem_1
    del tangents_1
    buf2 = empty_strided_cuda((2000, ), (1, ), torch.float32)
    return (buf2, None)
"""

    def told(self, forward=FORWARD, backward=BACKWARD):
        device = mock.Mock(type="cuda", block=lambda size: -(-size // 512) * 512)
        with pytorch.no_data():
            inputs = [torch.empty(size, device="cuda") for size in ((100, 8), (8,))]
            later = [torch.empty(100, 8, dtype=torch.int64, device="cuda"), torch.empty(4, 2, device="cuda"),
                     torch.empty(100, 8, device="cuda")]
        return outcome_of([pytorch.Code(True, ["getitem_1", "view", "tangents_1"], later, ["add", "None"], backward),
                           pytorch.Code(False, ["primals_1", "primals_2"], inputs, ["mul", "getitem_1", "view"], forward)], device, 2.0)

    def test_bytes(self):
        block = 3584  # of 3,200 bytes
        self.assertEqual(self.told(), Outcome(6656, 2 * block + 6656, block + 4096 + 8192, 2.0))  # the gradient of a result stays

    def test_code_of_another_kind(self):
        for forward, backward in (("", self.BACKWARD), (self.FORWARD.replace("buf3 = buf1[1]", "buf3 = partition_0(buf1)"), self.BACKWARD),
                                  (self.FORWARD, self.BACKWARD.replace("del getitem_1", "if view: pass"))):
            with self.assertLogs("spillway_torch", "DEBUG") as logged:
                self.assertIsNone(self.told(forward, backward))
            self.assertIn("the code of a graph does not tell its memory", logged.output[0])


class InductorTest(unittest.TestCase):
    """The same with the compiler's own code."""

    @classmethod
    def setUpClass(cls):
        def empty(size, stride, dtype):
            return torch.empty_strided(size, stride, dtype=dtype)  # which a device counts
        patch = mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cpu", empty)
        patch.start()
        cls.addClassCleanup(patch.stop)

    def told(self, function, given, joint, choice, default):
        """Compiles a function of a choice. Returns it, and what its code tells."""
        graph, codes = Graph(None, None, {}, "cpu", joint=joint, default=default, choice=choice), []
        torch.compiler.reset()
        run = torch.compile(function, backend=lambda *traced: pytorch.compiled(*traced, {}, graph.split, graph.key(), codes))
        run(*given)
        return run, outcome_of(codes, CpuDevice(), choice.outcome.seconds)

    def test_the_code_tells_what_a_graph_takes(self):
        drawn = random.Random(5)
        makes = [lambda: Layers(Block(16), Block(16, 0.2)), lambda: Layers(Block(24), nn.Linear(24, 24), nn.Softmax(-1))]
        for make in makes if os.environ.get("SPILLWAY_SLOW") else makes[:1]:
            torch.manual_seed(0)
            model = make()
            given = torch.randn(256, model[0].up.in_features)

            def function(x, model=model):
                result = model(x)
                return result.square().mean(), result
            found = joint_of(function, [given])
            joint, default = found["joint"], found["default"]
            keep = frozenset(i for i in joint.values() if joint.draws[joint.maker(i)] or drawn.random() < 0.5)
            for choice in Choice(frozenset(default), ALWAYS, joint.outcome(default)), Choice(keep, 16, joint.outcome(set(keep), 16)):
                run, told = self.told(function, [given], joint, choice, default)
                with Counted() as device:
                    loss = run(given)[0]
                    forward, saved = device.peak, device.allocated - loss.nbytes
                    device.peak = device.allocated
                    loss.backward()
                self.assertEqual(told, Outcome(saved, forward, device.peak - loss.nbytes, told.seconds))
                for parameter in model.parameters():
                    parameter.grad = None

    def test_the_first_compiled_step_stays_in_the_budget(self):
        """Where the model of a graph's memory says too little, its code does not."""
        outcome = Joint.outcome

        def less(self, keep, near=ALWAYS):
            said = outcome(self, keep, near)
            return Outcome(said.saved // 2, said.forward // 2, said.backward // 2, said.seconds)

        def train(budget):
            torch.compiler.reset()
            training = Training(lambda: Layers(*(Block(16) for _ in range(4))), rows=64)
            training.model.compile()
            with self.assertLogs("spillway_torch", "INFO") as logged:
                fitted = fit(training.model, training.optimizer, budget)
                training.step(0)
            before = sum(t.nbytes for p in training.model.parameters() for t in (p, *training.optimizer.state[p].values()))
            with Counted() as device:
                training.step(1)
            before -= training.rows * training.width * 4 + 8  # the batch, the loss and its gradient, which a CPU does not count
            predicted = fitted.stats()["predicted_bytes"]
            fitted.remove()
            return predicted, before + device.peak, logged.output
        predicted, peak, _ = train(1 << 40)
        self.assertEqual(predicted, peak)
        with mock.patch.object(Joint, "outcome", less):
            for share in 0.95, 0.9:
                budget = int(share * predicted)
                said, peak, lines = train(budget)
                self.assertLessEqual(peak, budget)
                self.assertEqual(said, peak)
                self.assertTrue(any("the code of the graphs takes" in line for line in lines), lines)

    def test_the_recorded_step_stays_in_the_budget(self):
        """Operator by operator, a loss takes its logits three times, and compiled once or twice."""
        class Classified(Layers):
            def forward(self, x):
                return F.cross_entropy(super().forward(x), torch.arange(len(x), device=x.device))

        def train(budget):
            torch.compiler.reset()
            device, training = Counted(), Training(lambda: Classified(Block(16), nn.Linear(16, 2000)), rows=256)
            training.model.compile()
            with mock.patch.object(fitting, "device_of", lambda _: device):
                fitted = fit(training.model, training.optimizer, budget)
            self.addCleanup(fitted.remove)
            training.model(torch.randn(256, 16))  # finds the graph
            fitted._events.clear()
            with device:
                losses = [training.step(0)[0]]
            return device.peak, fitted.stats()["predicted_bytes"], [*losses, *(training.step(seed)[0] for seed in range(1, 4))]
        self.enterContext(mock.patch("compiled_test.saved_bytes"))  # it brings them back
        peak, predicted, losses = train(1 << 40)
        budget = 99 * predicted // 100
        self.assertGreater(peak, budget)
        with mock.patch.object(Graph, "compile", autospec=True, side_effect=Graph.compile) as compiled:
            peak, _, same = train(budget)
        self.assertLessEqual(peak, budget)
        self.assertEqual(compiled.call_count, 1)  # the plan of the whole step, whose state of the optimizer comes later, is the same one
        for one, other in zip(losses, same):
            self.assertAlmostEqual(one, other, places=4)  # the compiler's own code adds up in another order

    @slow
    def test_the_page_shows_what_its_program_prints(self):
        program, shown = re.search(r"## An example\n\n```python\n(.*?)```\n\n```\n(.*?)```", page(), re.DOTALL).groups()
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        lines = [line for line in done.stdout.splitlines(keepends=True) if line.startswith(("spillway: ", "budget ", "a graph "))]
        times = re.compile(r"(?<= in )[\d.]+(?= s\n)")
        self.assertEqual(times.sub("", "".join(lines)), times.sub("", shown), done.stdout)

    @slow
    def test_dropout(self):
        def train(budget):
            torch.compiler.reset()
            training = Training(lambda: Layers(*(Block(16, 0.3) for _ in range(2))))
            training.model.compile()
            fitted = spillway_torch.fit(training.model, training.optimizer, budget)
            result = training.run(3)
            predicted = fitted.stats()["predicted_bytes"]
            fitted.remove()
            return result, predicted
        (losses, saved, values), predicted = train(1 << 40)
        (found, less, others), _ = train(int(0.85 * predicted))
        self.assertEqual(found, losses)
        self.assertLess(less, saved)
        self.assertTrue(all(map(torch.equal, values, others)))


if __name__ == "__main__":
    unittest.main()

"""Compiled models in a budget. Most tests run the compiler's graphs operator by operator, because generated code takes long to build."""

import contextlib
import gc
import io
import json
import logging
import pathlib
import random
import re
import runpy
import sys
import tempfile
import types
import unittest
import weakref
from unittest import mock

import torch
from torch import fx, nn
from torch._inductor import compile_fx as inductor
from torch._inductor.fx_passes import pad_mm
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway_torch
from spillway_torch import SpillwayError, fit
from spillway_torch.__main__ import main
from spillway_torch.compiled import pytorch
from spillway_torch.compiled.joint import Joint
from spillway_torch.compiled.planning import choose
from spillway_torch.compiled.rates import CPU
from spillway_torch.fit import compiled as fitting
from spillway_torch.fit import compiled_graph
from spillway_torch.fit.compiled import CompiledFitted
from spillway_torch.fit.compiled_graph import Call, Graph
from spillway_torch.run.buckets import is_dense
from guard_test import Guarded
from stepping import check_schema


def operators(graph, _inputs, **_options):
    """Stands for the compiler's last part."""
    def run(given):
        values = list(given)
        given.clear()
        return fx.Interpreter(graph).boxed_run(values)
    run._boxed_call = True
    return run


@contextlib.contextmanager
def by_operators():
    """Within it, compiled graphs run operator by operator."""
    plain = inductor.compile_fx

    def compiled(graph, inputs, config_patches=None, **_others):
        return plain(graph, inputs, inner_compile=operators, config_patches=config_patches)
    kind = torch._TorchCompileInductorWrapper
    with mock.patch.object(pytorch, "compile_fx", compiled), mock.patch.object(
            kind, "__call__", lambda self, graph, inputs: compiled(graph, inputs, self.config)), \
            torch._inductor.config.patch(fallback_random=True):
        torch.compiler.reset()
        yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.down(self.dropout(F.gelu(self.up(self.norm(x)))))


class Layers(nn.Sequential):
    def forward(self, x):  # torch.compile leaves the one of nn.Sequential out
        for layer in self:
            x = layer(x)
        return x


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Squared(nn.Module):
    def forward(self, x):
        return torch.tanh(Square.apply(x))


class Breaks(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = Layers(Block(width), Block(width)), Layers(Block(width), Block(width))

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(torch.tanh(x))


class Counted(Guarded):
    """Counts what compiled graphs allocate, too; torch.compile finds none within it, and those that it found run."""

    @classmethod
    def ignore_compile_internals(cls):
        return True


class Branches(Layers):
    """Blocks in a loop that depends on data, so that torch.compile cannot take the whole; the head runs behind them."""

    def __init__(self, *blocks, head=None):
        super().__init__(*blocks)
        self.extra = [head] if head is not None else []

    def forward(self, x):
        for block in self:
            x = block(x)
            if x.sum() > 1e9:
                x = x / 2
        return self.extra[0](x) if self.extra else x


class Training:
    """Steps of a model with drawn data, the same each time."""

    def __init__(self, make, rows=512, width=16, autocast=False):
        torch.manual_seed(0)
        self.model, self.rows, self.width, self.autocast = make(), rows, width, autocast
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, seed):
        torch.manual_seed(seed)
        given = torch.randn(self.rows, self.width)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.model(given).square().mean()
        saved = saved_bytes(loss, [given, *self.model.parameters()])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), saved

    def run(self, steps=4):
        found = [self.step(seed) for seed in range(steps)]
        return [loss for loss, _ in found], found[-1][1], [p.detach().clone() for p in (*self.model.parameters(), *self.model.buffers())]


def saved_bytes(loss, beside):
    """Returns the bytes that the backward of compiled graphs holds, without the tensors `beside`."""
    own = {p.untyped_storage()._cdata for p in beside}
    found, waiting, seen = {}, [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
        for tensor in node.saved_tensors if "CompiledFunction" in node.name() else ():
            if tensor.untyped_storage()._cdata not in own:
                found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(found.values())


def joint_of(function, inputs):
    """Returns the joint graph of a function, what PyTorch saves, and the graph that torch.compile found, with its inputs."""
    found = {}

    def backend(module, given):
        found.update(module=module, given=given)
        pytorch.joint_graph(module, given, {}, look)
        return module

    def look(graph, given, **options):
        seen = Graph(None, graph, {}, "cpu")
        seen.look(graph, given, **options)
        found.update(joint=seen.joint, default=seen.default, graph=graph, outputs=options["num_fwd_outputs"])
    torch.compiler.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found


def page():
    return (pathlib.Path(__file__).resolve().parents[1] / "COMPILED.md").read_text(encoding="utf-8")


class ByOperators(unittest.TestCase):
    """Compiled graphs run operator by operator."""

    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.WARNING)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.enterContext(by_operators())


class FitTest(ByOperators):
    """Compiled models in training."""

    def train(self, make, budget=None, **options):
        training = Training(make, autocast=options.pop("autocast", False))
        training.model.compile()
        fitted = fit(training.model, training.optimizer, budget, **options) if budget else None
        if fitted is not None:
            self.addCleanup(fitted.remove)
        return (*training.run(), fitted)

    def check(self, make, shares=(0.95, 0.9), **options):
        """Compares steps in budgets with steps that are cut as PyTorch cuts them, after the first, which runs operator by operator."""
        losses, saved, values, fitted = self.train(make, 1 << 40, **options)
        predicted = fitted.stats()["predicted_bytes"]
        for share in shares:
            budget = int(share * predicted)
            with self.assertNoLogs("spillway_torch", "WARNING"):
                found, less, others, fitted = self.train(make, budget, **options)
            self.assertEqual(found, losses)
            self.assertTrue(all(map(torch.equal, values, others)))
            self.assertLess(less, saved)
            self.assertLessEqual(fitted.stats()["predicted_bytes"], budget)
            if len(fitted._graphs) == 1:
                self.assertEqual(fitted._graphs[0].choice.outcome.saved, less)
            self.assertIn("saves", fitted.report())

    def test_results_and_saved_bytes_of_drawn_models(self):
        drawn = random.Random(3)
        for _ in range(2):
            layers = drawn.randint(3, 5)
            self.check(lambda layers=layers: Layers(*(Block(16) for _ in range(layers))))

    def test_dropout_repeats_its_numbers(self):
        make = lambda: Layers(*(Block(16, 0.3) for _ in range(4)))
        self.check(make)
        with mock.patch.object(pytorch, "draws", lambda node: False), self.assertRaises(AssertionError):
            self.check(make)  # fresh numbers are noticed

    def test_frozen_tied_and_normalized_weights_and_functions_with_their_own_backward(self):
        def frozen():
            model = Layers(*(Block(16) for _ in range(4)))
            for part in model[0], model[2].up:
                part.requires_grad_(False)
            return model

        def tied():
            model = Layers(*(Block(16) for _ in range(4)))
            model[3].up, model[2].down.weight = model[0].up, model[1].down.weight
            return model

        def normalized():
            return Layers(*(layer for _ in range(3) for layer in (Block(16), nn.BatchNorm1d(16))))  # whose statistics change, once a step

        def squared():
            return Layers(*(layer for _ in range(4) for layer in (Block(16), Squared())))
        for make in frozen, tied, normalized, squared:
            with self.subTest(make.__name__):
                self.check(make, (0.95,))

    def test_two_optimizers(self):
        def train(budget):
            training = Training(lambda: Layers(*(Block(16) for _ in range(4))))
            training.model.compile()
            first, others = list(training.model[0].parameters()), list(training.model[1:].parameters())
            training.optimizer, other = torch.optim.AdamW(first, lr=1e-2), torch.optim.SGD(others, lr=1e-2, momentum=0.9)
            fitted = fit(training.model, [training.optimizer, other], budget)
            self.addCleanup(fitted.remove)
            training.optimizer.register_step_post_hook(lambda *_: other.step())
            return training.run(), fitted.stats()
        (losses, saved, values), plain = train(1 << 40)
        (found, less, others), stats = train(int(0.95 * plain["predicted_bytes"]))
        self.assertEqual(found, losses)
        self.assertLess(less, saved)
        self.assertTrue(all(map(torch.equal, values, others)))

    def test_autocast(self):
        self.check(lambda: Layers(*(Block(16) for _ in range(4))), autocast=True)

    def test_graph_breaks_share_one_budget(self):
        self.check(lambda: Breaks(16))

    def test_results_of_padded_matrices(self):
        """Their rows have gaps, which later graphs are made for: in the recorded step, too."""
        class Classified(Layers):
            def forward(self, x):
                logits = super().forward(x.view(2, -1, 16))
                torch._dynamo.graph_break()
                return F.cross_entropy(logits.flatten(0, 1), torch.arange(len(x)) % 9)

        def trace(graph, plain=Graph.trace):
            torch.rand(1)  # the compiler may try kernels on drawn numbers
            plain(graph)

        make = lambda: Classified(Block(16, 0.3), nn.Linear(16, 9))
        with mock.patch.multiple(pad_mm, check_device=lambda *_: True, has_triton=lambda: True), mock.patch.object(Graph, "trace", trace), \
                torch._inductor.config.patch(force_shape_pad=True), self.assertNoLogs("spillway_torch", "WARNING"):
            losses, saved, values, _ = self.train(make)
            found, same, others, fitted = self.train(make, 1 << 40)
        self.assertEqual((same, len(fitted._graphs)), (saved, 2))
        torch.testing.assert_close([*values, *map(torch.tensor, losses)], [*others, *map(torch.tensor, found)])
        joint = fitted._graphs[0].joint
        self.assertFalse(is_dense(joint.nodes[joint.results[0]].meta["val"]))

    def test_what_was_on_the_host_has_its_strides(self):
        class Keep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, *kept):
                ctx.save_for_backward(*kept)
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                found.extend(ctx.saved_tensors)
                return gradient, *[None] * len(found)

        found, kept = [], [torch.randn(6, 4).t(), torch.randn(8, 1040)[:, :1025], torch.randn(3, 1).expand(3, 5), torch.empty(0, 3),
                           torch.randn(4, 2, 8)[1:, :, ::2], torch.randn(())]
        with fitting._saved_on_host("cpu", []):
            result = Keep.apply(torch.ones(1, requires_grad=True), *kept)
        result.sum().backward()
        self.assertEqual([t.stride() for t in found], [t.stride() for t in kept])
        self.assertTrue(all(map(torch.equal, found, kept)))
        self.assertTrue({t.untyped_storage()._cdata for t in found}.isdisjoint(t.untyped_storage()._cdata for t in kept))

    def test_a_value_that_is_not_saved_is_noticed(self):
        cut = Joint.cut

        def less(joint, keep, near):
            def size(keep):
                return sum(joint.size[i] for i in cut(joint, keep, near)[0] if not joint.is_input[i])
            lost = next(i for i in cut(joint, keep, near)[0] if size(keep - {i}) != size(keep))
            return cut(joint, keep - {lost}, near)
        with mock.patch.object(Joint, "cut", less), self.assertRaises(AssertionError):
            self.check(lambda: Layers(*(Block(16) for _ in range(4))))

    def test_blocks_that_are_compiled(self):
        make = lambda: Layers(*(Block(16) for _ in range(4)))

        def train(budget):
            training = Training(make)
            for block in training.model:
                block.compile()
            fitted = fit(training.model, training.optimizer, budget, compiled=True)
            self.addCleanup(fitted.remove)
            return (*training.run(), fitted)
        losses, saved, values, fitted = train(1 << 40)
        budget = int(0.95 * fitted.stats()["predicted_bytes"])
        found, less, others, fitted = train(budget)
        self.assertEqual((found, len(fitted._graphs)), (losses, 2))  # the first block's input needs no gradient
        self.assertLess(less, saved)
        self.assertLessEqual(fitted.stats()["predicted_bytes"], budget)
        self.assertTrue(all(map(torch.equal, values, others)))

    def test_blocks_that_fit_compiles(self):
        def train(budget, **options):
            training = Training(lambda: Branches(*(Block(16) for _ in range(4))))
            fitted = fit(training.model, training.optimizer, budget, **options) if budget else None
            for block in () if fitted else training.model:
                block.compile()
            found = training.run()
            stats = fitted.stats() if fitted else {}
            if fitted:
                fitted.remove()
                self.assertTrue(all(block._compiled_call_impl is None for block in training.model))
                parameter = weakref.ref(next(training.model.parameters()))
                del training
                gc.collect()
                self.assertIsNone(parameter())
            return *found, stats
        losses, saved, _, _ = train(None)
        same, _, values, stats = train(1 << 40, compile="blocks")  # its first step runs operator by operator, as that in a budget
        budget = int(0.95 * stats["predicted_bytes"])
        found, less, others, stats = train(budget, compile="blocks")
        self.assertEqual((found, same, stats["graphs"]), (losses, losses, 2))  # the first block's input needs no gradient
        self.assertLess(less, saved)
        self.assertLessEqual(stats["predicted_bytes"], budget)
        self.assertTrue(all(map(torch.equal, values, others)))

    def test_what_runs_between_blocks_counts(self):
        device = Counted()
        with mock.patch.object(fitting, "device_of", lambda _: device):
            training = Training(lambda: Branches(*(Block(16) for _ in range(4)), head=nn.Linear(16, 2048)))
            fitted = fit(training.model, training.optimizer, 1 << 40, compile="blocks")
            self.addCleanup(fitted.remove)
            training.model(torch.randn(512, 16))  # finds the graphs
            fitted._events.clear()
            with device:
                training.step(0)
            training.step(1)
            with device:
                before, device.peak = device.allocated, 0
                training.step(2)
        predicted = fitted.stats()["predicted_bytes"]
        self.assertGreater(device.peak, 512 * 2048 * 4)
        self.assertLess(abs(predicted - device.peak), 0.03 * device.peak, (predicted, before))

    def test_a_larger_batch_of_a_graph_without_a_plan_stays_in_the_budget(self):
        def peak(guard, budget=1_500_000):
            torch.compiler.reset()
            device, training = Counted(), Training(lambda: Branches(*(Block(16) for _ in range(6))), rows=128)
            with mock.patch.object(fitting, "device_of", lambda _: device), mock.patch.object(CompiledFitted, "_guard", guard):
                fitted = fit(training.model, training.optimizer, budget, compile="blocks")
                training.step(0)
                training.step(1)
                training.rows = 512
                with mock.patch.object(pytorch, "own_marks", return_value=True):
                    training.step(2)  # finds the graphs
                training.step(3)  # compiles them
                with device:
                    device.peak = 0
                    loss = training.step(4)[0]
            self.assertEqual([graph.refused for graph in fitted._graphs], [False, False, True, True])
            fitted.remove()
            return device.peak, loss, [p.detach().clone() for p in training.model.parameters()]
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        without, loss, values = peak(lambda *_: contextlib.nullcontext())
        for budget in 1_500_000, 2_000_000:
            self.assertGreater(without, budget)
            within, same, others = peak(CompiledFitted._guard, budget)
            self.assertLessEqual(within, budget)
            self.assertEqual(loss, same)
            self.assertTrue(all(map(torch.equal, values, others)))

    def test_state_of_the_optimizer_makes_room(self):
        """Where nothing more can be recomputed, it goes to the host between updates."""
        def train(budget):
            torch.compiler.reset()
            device, training = Counted(), Training(lambda: Branches(*(Block(64) for _ in range(4))), rows=32, width=64)
            with mock.patch.object(fitting, "device_of", lambda _: device):
                fitted = fit(training.model, training.optimizer, budget, compile="blocks")
                losses = [training.step(seed)[0] for seed in range(4)]
            values = [p.detach().clone() for p in training.model.parameters()]
            found = losses, values, fitted.stats()["predicted_bytes"], fitted.report()
            fitted.remove()
            return found
        losses, values, most, report = train(1 << 40)
        own = sum(value.nbytes for value in values)
        self.assertNotIn("of the optimizer's state", report)
        for share in (0.5, 1.5):
            same, others, predicted, report = train(int(most - share * own))
            self.assertLessEqual(predicted, most - share * own)
            self.assertIn("of the optimizer's state are on the host between updates", report)
            self.assertEqual(losses, same)
            self.assertTrue(all(map(torch.equal, values, others)))
        with self.assertRaisesRegex(SpillwayError, "no plan within"):
            train(own // 10)

    def test_state_leaves_no_more_room_than_it_needs(self):
        """The memory through which it comes and goes exists during the update alone, when little else does."""
        def leaves(outside, lost=(0.0,), parts=(25,) * 4, more=0):
            """lost: seconds that the graph loses with the least state on the host, and with each of 25 bytes more."""
            graph = types.SimpleNamespace(joint=types.SimpleNamespace(gradients=[0], size=[200]), lost=0.0)
            fitted = object.__new__(CompiledFitted)
            fitted._budget, fitted._hosted, fitted._device = 1000, 0, "cpu"
            fitted._states = types.SimpleNamespace(all_outside=lambda: 0, parts=parts)

            def fit_in(graphs, events, more):
                graph.lost = lost[max(0, -more) // 25]
                return 5 + more
            fitted._fit_in = mock.Mock(side_effect=fit_in)
            last = Call(graph, outside, outside)
            over, left = fitted._decide([], [(last, False), (last, True)], more, True)
            self.assertEqual((over, fitted._hosted), (5 + left, more - left))
            self.assertTrue(parts or fitted._fit_in.call_count == 1)  # nothing else is tried where there is no state
            return fitted._hosted
        self.assertEqual(leaves(500), 5)
        self.assertEqual(leaves(750, (0.0, 0.0)), 25)  # with 200 of gradients, three parts of 25 do not fit beside them
        copies = 2 * 25 / CPU.link
        self.assertEqual(leaves(500, (9 * copies, 7 * copies, 6.5 * copies)), 30)  # the second part would gain less than it costs
        self.assertEqual(leaves(500, (0.9 * copies, 0.0)), 5)
        self.assertEqual(leaves(500, (9 * copies,), (), -10), 0)

    def test_plans_as_files(self):
        make = lambda: Breaks(16)
        predicted = self.train(make, 1 << 40)[3].stats()["predicted_bytes"]
        budget = int(0.93 * predicted)
        losses, saved, values, fitted = self.train(make, budget)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            spillway_torch.write_plan(fitted.plan, path)
            with mock.patch.object(compiled_graph, "choose", side_effect=AssertionError):
                found, same, others, again = self.train(make, budget, plan=path)
            self.assertEqual((found, same, again.stats(), again.plan), (losses, saved, fitted.stats(), fitted.plan))
            self.assertTrue(all(map(torch.equal, values, others)))
            for other, reason in ((lambda: Breaks(24), r"graph 1 of the plan, of \d+ nodes, is another one than that of the step"),
                                  (lambda: Layers(Block(16)), "the plan is for 2 graphs, and the step has 1")):
                with self.assertRaisesRegex(SpillwayError, reason):
                    training = Training(other, width=24 if other().state_dict().popitem()[1].numel() == 24 else 16)
                    training.model.compile()
                    self.addCleanup(fit(training.model, training.optimizer, budget, plan=path).remove)
                    training.step(0)
            with self.assertRaisesRegex(SpillwayError, "no plan within"):
                self.train(make, budget // 2, plan=path)
            document = json.loads(path.read_text(encoding="utf-8"))
            document["graphs"][0]["recomputed"].reverse()
            path.write_text(json.dumps(document), encoding="utf-8")
            with self.assertRaisesRegex(SpillwayError, "graph 1 of the plan recomputes what no plan of this version does"):
                self.train(make, budget, plan=path)
            with self.assertRaisesRegex(SpillwayError, "a plan for compiled graphs, which"):
                spillway_torch.read_plan(path, None)
            path.write_text("{}", encoding="utf-8")
            with self.assertRaisesRegex(SpillwayError, r"plan.json: not a plan \(KeyError: 'format'\)"):
                self.train(make, budget, plan=path)
            with self.assertRaisesRegex(SpillwayError, "missing.json: No such file"):
                self.train(make, budget, plan=pathlib.Path(folder, "missing.json"))
        with self.assertRaisesRegex(SpillwayError, "plan is for compiled models"):
            fit(Block(16), memory="1GiB", plan="plan.json")

    def test_a_loss_that_is_compiled(self):
        def train(budget):
            training = Training(lambda: Layers(*(Block(16) for _ in range(4))))
            loss = torch.compile(lambda x: training.model(x).tanh().square().mean())
            fitted = fit(training.model, training.optimizer, budget, compiled=True)
            self.addCleanup(fitted.remove)
            losses = []
            for seed in range(4):
                torch.manual_seed(seed)
                value = loss(torch.randn(training.rows, training.width))
                value.backward()
                training.optimizer.step()
                training.optimizer.zero_grad()
                losses.append(value.item())
            return losses, fitted.stats()
        losses, plain = train(1 << 40)
        found, stats = train(int(0.9 * plain["predicted_bytes"]))
        self.assertEqual(found, losses)
        self.assertEqual((stats["graphs"], stats["planned"]), (1, 2))
        self.assertLess(stats["predicted_bytes"], plain["predicted_bytes"])

    def test_marks_of_the_program_are_kept(self):
        class Marked(nn.Sequential):
            def forward(self, x):
                for block in self:
                    x = checkpoint(block, x, use_reentrant=False)
                return x
        for make in lambda: Marked(Block(16), Block(16)), lambda: Branches(Marked(Block(16)), Marked(Block(16)), Marked(Block(16))):
            with self.assertLogs("spillway_torch", "WARNING") as logged, mock.patch.object(
                    pytorch, "compiled", side_effect=pytorch.compiled) as compiled:
                training = Training(make)
                for block in training.model if isinstance(training.model, Branches) else [training.model]:
                    block.compile()
                fitted = fit(training.model, training.optimizer, 1 << 40, compiled=True)
                self.addCleanup(fitted.remove)
                training.step(0)
                traced = compiled.call_count
                training.step(1)
            self.assertEqual((traced, compiled.call_count), (len(fitted._graphs), 2 * len(fitted._graphs)))  # none runs compiled before
            self.assertIn("a graph is cut as PyTorch cuts it: the program says itself what is recomputed", logged.output[0])

    def test_a_budget_that_is_too_small(self):
        training = Training(lambda: Layers(Block(16), Block(16)))
        training.model.compile()
        fitted = fit(training.model, training.optimizer, 1000)
        with mock.patch.object(compiled_graph, "choose", wraps=choose) as chosen, self.assertRaisesRegex(
                SpillwayError, r"no plan within 1,000 bytes was found for the compiled step \(one takes [\d,]+\)"):
            training.step(0)
        rooms = [call.args[2] for call in chosen.call_args_list]
        self.assertEqual(len(rooms), len(set(rooms)))  # none is searched for twice
        training.run()  # as without a budget
        self.assertEqual(fitted.stats()["graphs"], 0)

    def test_a_model_that_is_not_compiled_in_truth(self):
        model = nn.Sequential(nn.Linear(16, 16))
        model.compile()  # compiles nothing, since PyTorch leaves its own containers out
        training = Training(lambda: model)
        self.addCleanup(fit(model, training.optimizer, "1GiB").remove)
        with self.assertLogs("spillway_torch", "WARNING") as logged:
            training.run()
        self.assertEqual(len(logged.output), 1)
        self.assertIn("nothing is planned, because torch.compile found no graph", logged.output[0])

    def test_a_budget_ends_with_its_model(self):
        training = Training(lambda: Layers(Block(16), Block(16)))
        model = spillway_torch.compile(training.model, "1GiB", training.optimizer)
        self.assertIs(model, training.model)
        training.run()
        with self.assertRaisesRegex(SpillwayError, "a Layers has a budget already: call `remove` of what the earlier `fit` returned"):
            fit(model, training.optimizer, "1GiB")
        parameter = weakref.ref(next(model.parameters()))
        del training, model
        torch.compiler.reset()
        gc.collect()
        self.assertIsNone(parameter())

    def test_other_versions_of_pytorch(self):
        model = Layers(Block(16))
        model.compile()
        with mock.patch.object(torch, "__version__", "2.10.0+cpu"):
            with self.assertLogs("spillway_torch", "WARNING") as logged:
                fit(model, memory="1GiB").remove()
            self.assertEqual([record.getMessage() for record in logged.records], [
                "spillway: compiled models are planned with what PyTorch 2.11 has, and this is 2.10.0+cpu, with which that was not tested"])
            with mock.patch.dict(sys.modules, {"spillway_torch.compiled.pytorch": None}), \
                    mock.patch.object(spillway_torch.compiled, "pytorch", create=True):
                del spillway_torch.compiled.pytorch
                with self.assertRaisesRegex(SpillwayError, "compiled models need PyTorch 2.11, and this is 2.10.0.cpu, whose compiler"):
                    fit(model, memory="1GiB")

    def test_refusals(self):
        model = Layers(Block(16))
        model.compile()
        for options in {"policy": "dtr"}, {"verify": 2}, {"report_every": 1}, {"hook_forward": False}:
            with self.assertRaisesRegex(SpillwayError, "a compiled model has a budget without hook_forward, policy"):
                fit(model, memory="1GiB", **options)
        with self.assertRaisesRegex(SpillwayError, "the whole model is compiled, .* leave compiled=False out"):
            fit(model, memory="1GiB", compiled=False)
        with self.assertRaisesRegex(SpillwayError, "a Layers is compiled already: leave compile='blocks' out"):
            fit(model, memory="1GiB", compile="blocks")
        for options in {"compile": "layers"}, {"compile": "blocks", "compiled": False}:
            with self.assertRaisesRegex(SpillwayError, "expected compile='blocks', without compiled=False, or None"):
                fit(Layers(Block(16)), memory="1GiB", **options)
        for without in Layers(Block(16), Block(16)), nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))):
            with self.assertRaisesRegex(SpillwayError, "compile='blocks': the model has no repeated blocks"):
                fit(without, memory="1GiB", compile="blocks")


class ExplainTest(unittest.TestCase):
    """What `explain` says of compiled steps."""

    def setUp(self):
        torch.compiler.reset()
        self.addCleanup(torch.compiler.reset)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = pathlib.Path(self.folder.name, "train.py")
        file, self.shown = re.search(
            r"## What memory costs\n.*?```python\n(.*?)```\n\n```\n\$[^\n]*\n(.*?)```", page(), re.DOTALL).groups()
        self.file.write_text(f"{file}\n\ndef eager():\n    model._orig_mod(torch.randn(512, 64)).square().mean().backward()\n",
                             encoding="utf-8")

    def printed(self, *arguments, code=0):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(main(["explain", *arguments, "--compile", "--device", "cpu"]), code, err.getvalue())
        return out.getvalue() + err.getvalue()

    def test_the_page_shows_what_its_command_prints(self):
        self.assertEqual(self.printed(str(self.file)), self.shown)

    def test_rows_are_what_budgets_lead_to(self):
        found = json.loads(self.printed(str(self.file), "--format", "json"))
        check_schema(self, "torch-explain-compiled", found)
        rows = found["rows"]
        self.assertGreater(len(rows), 3)
        self.assertEqual(rows[-1]["times"], 1)
        self.assertEqual([row["budget_bytes"] for row in (rows[0], rows[-1])], [row["peak_bytes"] for row in (rows[0], rows[-1])])
        for low, high in zip(rows, rows[1:]):
            self.assertLessEqual(low["peak_bytes"], low["budget_bytes"])
            self.assertGreaterEqual(low["times"], high["times"])
        for row in rows[1], rows[-1]:
            named = runpy.run_path(str(self.file))
            with mock.patch.object(CompiledFitted, "_compile", return_value=0):  # `explain` has no code
                fitted = fit(named["model"], named["optimizer"], row["budget_bytes"])
                named["step"]()
            self.assertEqual(fitted.stats()["predicted_bytes"], row["peak_bytes"])
            self.assertEqual([graph.choice.outcome.saved for graph in fitted._graphs], row["saved_bytes"])
            fitted.remove()

    def test_a_step_without_data_says_the_same(self):
        def curve():
            named = runpy.run_path(str(self.file))
            return spillway_torch.explain_compiled(named["step"], "cpu").text()
        with pytorch.no_data():
            without = curve()
        self.assertEqual(curve(), without)

    def test_refusals(self):
        self.assertIn("torch.compile found no graph of a model that learns: compile the model in the step",
                      self.printed(f"{self.file}:eager", code=3))
        for options in ("--memory", "8GiB"), ("--lengths", "4"):
            with self.assertRaises(SystemExit) as ended:
                self.printed(str(self.file), *options)
            self.assertEqual(ended.exception.code, 2)
        with self.assertRaisesRegex(SpillwayError, r"device 'cuda:sm_90' \(valid: cuda, cpu\)"):
            spillway_torch.explain_compiled(print, "cuda:sm_90")


if __name__ == "__main__":
    unittest.main()

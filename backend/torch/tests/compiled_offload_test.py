"""Values of compiled graphs that are on the host between forward and backward: the operators, the graphs, and the choice."""

import dataclasses
import gc
import json
import logging
import pathlib
import random
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import spillway_torch
from spillway_torch import SpillwayError, fit
from spillway_torch.base.device import CpuDevice, Queue
from spillway_torch.base.target import Target
from spillway_torch.compiled import operators, planning, pytorch
from spillway_torch.compiled.joint import ALWAYS, Joint, Room, Trip
from spillway_torch.compiled.operators import Places, Transfers
from spillway_torch.compiled.planning import Choice, choose
from spillway_torch.compiled.rates import CPU
from spillway_torch.fit import compiled as fitting
from spillway_torch.fit import compiled_graph
from spillway_torch.fit.compiled_graph import Graph
from spillway_torch.plan.plan import EVICT, OFFLOAD
from adversary import Adversary
from compiled_choice_test import walk
from compiled_test import Block, Breaks, Layers, Training, by_operators, joint_of
from stepping import check_schema

TARGET = Target("cpu", False, torch.device("cpu"))
HERE = torch.device("cpu")
RACES = (("offload", Queue.OUT, Queue.COMPUTE), ("release", Queue.COMPUTE, Queue.OUT), ("reload", Queue.IN, Queue.COMPUTE),
         ("wait", Queue.COMPUTE, Queue.IN))
spillway = torch.ops.spillway


def device(seed=0, race=None):
    """Within it, a device that copies as late as it can; a `race` is a wait that does nothing."""
    made = Adversary(seed, ({race[0]}, *race[1:]) if race else None)
    return made, mock.patch.dict(operators._TRANSFERS, {HERE: Transfers(made)})


def drawn_trips(joint, keep, draw):
    """Returns trips of many of the values that are saved if `keep` may be, with drawn places."""
    made = [at for at in joint.missing(joint.results, lambda _: True) if joint.storage[at] is not None and not joint.is_input[at]]
    back = [at for at in joint.backward_order if joint.storage[at] is not None and not joint.is_input[at]]
    return tuple(Trip(at, draw.choice([n for n in made if n >= at] or [at]), draw.choice([None, *back]))
                 for at in joint.split(keep)[0] if at in joint.values() and joint.can_leave(at) and draw.random() < 0.7)


def drawn_choice(seed):
    """Returns a function in the place of `choose`, which recomputes some values, and has many of the others on the host."""
    def choice(joint, default, *_):
        draw = random.Random(seed)
        keep = {at for at in default if draw.random() < 0.9} | {at for at in joint.values() if joint.draws[joint.maker(at)]}
        trips, near = drawn_trips(joint, keep, draw), draw.choice((ALWAYS, 16))
        return Choice(frozenset(keep), near, joint.outcome(keep, near, trips), trips)
    return choice


class Attention(nn.Module):
    """Its saved values are views, and parts of the results of operators."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        normed = self.norm(x)
        parts = (inner(normed).view(-1, 32, 2, x.shape[-1] // 2).transpose(1, 2) for inner in self.inner)
        return x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape))


class OperatorsTest(unittest.TestCase):
    def sequence(self, seed, race=None):
        """Runs a drawn order of the operators as graphs do. Returns whether all values came back as they were."""
        draw, (made, known) = random.Random(seed), device(seed, race)
        torch.manual_seed(seed)
        with known:
            values = [torch.randn(draw.randint(1, 3000), 4).to(draw.choice((torch.float32, torch.bfloat16, torch.bool))) for _ in range(12)]
            values = [value.t() if draw.random() < 0.5 else value for value in values]
            plain, tokens, back, same = [value.clone() for value in values], {}, {}, True
            steps = [(at, stage) for at in range(len(values)) for stage in range(4)]
            while steps:
                at, stage = draw.choice([step for step in steps if not any(other[0] == step[0] and other < step for other in steps)])
                steps.remove((at, stage))
                if stage == 0:
                    tokens[at] = spillway.offload(values[at])
                elif stage == 1:
                    spillway.release(tokens[at], values[at], values[at])
                    values[at] = values[at].fill_(0)  # as the next owner of its memory
                elif stage == 2:
                    back[at] = spillway.reload(tokens[at], None, plain[at].shape, plain[at].stride(), plain[at].dtype, HERE)
                else:
                    spillway.wait(back[at], tokens[at], None)
                    same &= torch.equal(back[at], plain[at]) and back[at].stride() == plain[at].stride()
                    del tokens[at], back[at]  # the next value may take the place on the host
            self.assertEqual(operators._TRANSFERS[HERE].places.taken, 0)
        return same and not made.violations

    def test_values_come_back_as_they_were(self):
        self.assertTrue(all(self.sequence(seed) for seed in range(10)))

    def test_each_wait_is_needed(self):
        for race in RACES:
            with self.subTest(race[0]):
                self.assertFalse(all(self.sequence(seed, race) for seed in range(10)))

    def test_a_place_that_is_free_before_the_copy_landed_is_noticed(self):
        def early(transfers, token):
            value = transfers._value(token)
            transfers._settle(value)
            transfers.places.give_back(value.place)
        with mock.patch.object(Transfers, "release", early), mock.patch.object(Transfers, "_end", lambda *_: None), \
                self.assertRaises(AssertionError):
            self.test_values_come_back_as_they_were()

    def test_places_do_not_overlap_and_join_again(self):
        draw, places, taken = random.Random(1), Places(CpuDevice()), []
        for _ in range(300):
            if taken and draw.random() < 0.5:
                places.give_back(taken.pop(draw.randrange(len(taken)))[1])
            else:
                taken.append(places.take(draw.choice((1, 5000, 3 << 20, 80 << 20))))
            spans = sorted((memory.data_ptr(), memory.data_ptr() + memory.numel()) for memory, _ in taken)
            self.assertTrue(all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:])))
            self.assertEqual(places.taken, len(taken))
        for _, place in taken:
            places.give_back(place)
        self.assertEqual([(begin, size) for _, begin, size in places._free], [(0, host.bytes.numel()) for host in places._pieces])
        kept = places.take(1)[1]
        places.close()
        self.assertTrue(places._pieces)  # a value is there
        places.give_back(kept)
        places.close()
        self.assertEqual((places._pieces, places._free), ([], []))

    def test_what_an_exception_leaves_behind(self):
        made, known = device()
        with known:
            for release, reload in (False, False), (True, True):
                value = torch.randn(1000)
                token = spillway.offload(value)
                if release:
                    spillway.release(token, value, value)
                back = spillway.reload(token, None, value.shape, value.stride(), value.dtype, HERE) if reload else None
                del token, value, back
                gc.collect()
                self.assertEqual((operators._TRANSFERS[HERE].places.taken, operators._TRANSFERS[HERE]._values), (0, {}))
            while any(made.work.values()):
                made.advance()
        self.assertEqual(made.violations, [])

    def test_a_token_that_is_gone(self):
        token = spillway.offload(torch.randn(8)).clone()
        with self.assertRaisesRegex(SpillwayError, "a value that a compiled graph has on the host is gone, .* such as save_on_cpu"):
            spillway.reload(token, None, (8,), (1,), torch.float32, HERE)


class GraphTest(unittest.TestCase):
    """Graphs that run operator by operator, with drawn trips, and the device that copies as late as it can."""

    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.WARNING)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.enterContext(by_operators())

    def train(self, make, seed=None, race=None, steps=4, run=None, **options):
        """Returns the losses, saved bytes and values of a training, and what `fit` returned, with drawn trips if there is a seed."""
        torch.compiler.reset()
        made, known = device(seed or 0, race)
        chosen = drawn_choice(seed) if seed is not None else choose
        training = Training(make, **options)
        training.model.compile()
        with known, mock.patch.object(compiled_graph, "choose", chosen), self.assertNoLogs("spillway_torch", "WARNING"):
            fitted = fit(training.model, training.optimizer, 1 << 40)
            self.addCleanup(fitted.remove)
            found = training.run(steps) if run is None else run(training)
            gc.collect()
            self.assertEqual(operators._TRANSFERS[HERE].places.taken, 0)
        if seed is not None:
            self.assertGreater(made.copies, 0)
            self.assertEqual(made.violations, [])
        return (*found, fitted)

    def check(self, make, seeds=(0, 1), race=None, **options):
        losses, _, values, _ = self.train(make, **options)
        for seed in seeds:
            found, saved, others, fitted = self.train(make, seed, race, **options)
            self.assertEqual(found, losses)
            self.assertTrue(all(map(torch.equal, values, others)))
            if len(fitted._graphs) == 1:
                choice = fitted._graphs[0].choice
                self.assertEqual(choice.outcome.saved + 8 * len(choice.trips), saved)  # a token has 8 bytes

    def test_results_and_saved_bytes(self):
        self.check(lambda: Layers(*(Block(16) for _ in range(5))), range(4))

    def test_dropout_views_and_parts(self):
        self.check(lambda: Layers(*(layer for _ in range(3) for layer in (Attention(16), Block(16, 0.3)))), range(3))

    def test_autocast(self):
        self.check(lambda: Layers(*(Block(16) for _ in range(4))), autocast=True)

    def test_graph_breaks(self):
        self.check(lambda: Breaks(16))

    def test_each_wait_is_needed(self):
        for race in RACES:
            with self.subTest(race[0]), self.assertRaises(AssertionError):
                self.check(lambda: Layers(*(Block(16) for _ in range(3))), range(3), race)

    def test_a_value_that_is_read_before_it_is_back_is_noticed(self):
        def late(back, node, add=pytorch._Back.add):
            before = len(back._graph.nodes)
            add(back, node)
            for wait in [new for new in list(back._graph.nodes)[before:] if new.target is spillway.wait.default]:
                back._env[node].append(wait)
        with mock.patch.object(pytorch._Back, "add", late), self.assertRaises(AssertionError):
            self.test_results_and_saved_bytes()

    def test_several_forwards_before_their_backwards_and_one_without(self):
        def run(training):
            losses = []
            for seed in range(6):
                torch.manual_seed(seed)
                several = [training.model(torch.randn(512, 16)).square().mean() for _ in range(1 if seed == 0 else 3)]
                (several[0] if seed == 0 else several[0] + several[2]).backward()  # the second one has none
                losses += [loss.item() for loss in several]
                training.optimizer.step()
                training.optimizer.zero_grad()
            return losses, 0, [p.detach().clone() for p in training.model.parameters()]
        make = lambda: Layers(*(Block(16) for _ in range(4)))
        losses, _, values, _ = self.train(make, run=run)
        found, _, others, _ = self.train(make, 1, run=run)
        self.assertEqual(found, losses)
        self.assertTrue(all(map(torch.equal, values, others)))

    def test_two_backwards_of_one_forward(self):
        def run(training):
            for seed in range(4):
                torch.manual_seed(seed)
                loss = training.model(torch.randn(512, 16)).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
                training.optimizer.step()
                training.optimizer.zero_grad()
            return [loss.item()], 0, [p.detach().clone() for p in training.model.parameters()]
        make = lambda: Layers(*(Block(16) for _ in range(4)))
        with torch._functorch.config.patch(donated_buffer=False):
            losses, _, values, _ = self.train(make, run=run)
            found, _, others, _ = self.train(make, 1, run=run)
        self.assertEqual(found, losses)
        self.assertTrue(all(map(torch.equal, values, others)))

    def test_where_values_stay(self):
        joint = joint_of(Block(16), [torch.randn(64, 16, requires_grad=True)])
        for kind, places, settings, moves in (
                ("cpu", [], {}, (EVICT,)), ("cuda", [], {}, (OFFLOAD, EVICT)), ("cuda", [0], {}, (EVICT,)),
                ("cuda", [], {"triton.cudagraphs": True}, (EVICT,)), ("cuda", [], {"cpp_wrapper": True}, (EVICT,))):
            self.assertEqual(Graph(None, joint["graph"], settings, kind, places=places).moves, moves)

    def test_plans_as_files(self):
        make = lambda: Layers(*(Block(16) for _ in range(4)))
        _, _, values, fitted = self.train(make, 2)

        def run(training, path):
            torch.compiler.reset()
            training.model.compile()
            again = fit(training.model, training.optimizer, 1 << 40, plan=path)
            self.addCleanup(again.remove)
            return (*training.run(), again)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            spillway_torch.write_plan(fitted.plan, path)
            both = mock.patch.object(Graph, "moves", (OFFLOAD, EVICT))
            with both, mock.patch.object(compiled_graph, "choose", side_effect=AssertionError):
                _, _, others, again = run(Training(make), path)
            self.assertTrue(all(map(torch.equal, values, others)))
            self.assertEqual(again.plan, fitted.plan)
            self.assertTrue(again.plan.graphs[0].offloaded)
            document = json.loads(path.read_text(encoding="utf-8"))
            with self.assertRaisesRegex(SpillwayError, "graph 1 of the plan has values on the host that this step keeps on the device"):
                run(Training(make), path)  # a CPU has no other memory
            for value in "missing", *fitted.plan.graphs[0].recomputed[:1]:
                changed = json.loads(json.dumps(document))
                changed["graphs"][0]["offloaded"][0][0] = value
                path.write_text(json.dumps(changed), encoding="utf-8")
                with both, self.assertRaisesRegex(SpillwayError, "has values on the host that"):
                    run(Training(make), path)
            path.write_text(json.dumps({**document, "version": 1}), encoding="utf-8")
            with self.assertRaisesRegex(SpillwayError, r"a plan for compiled graphs of version 1 \(valid: 2\): plan the step anew"):
                run(Training(make), path)


class ChoiceTest(unittest.TestCase):
    """What a trip takes, and when it is chosen."""

    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        model = Layers(*(layer for _ in range(3) for layer in (Attention(16), Block(16))))
        with by_operators():
            cls.found = joint_of(lambda x: model(x).square().mean(), [torch.randn(64, 16)])

    def joint(self, **rates):
        """Returns the graph with other rates than a CPU's."""
        joint = self.found["joint"]
        graph, outputs, static = joint._made_of
        return Joint(graph, outputs, static, dataclasses.replace(CPU, **rates))

    def test_bytes_are_those_of_a_walk_over_the_two_halves(self):
        joint = self.joint()
        joint.fusible = [False] * len(joint.nodes)
        for seed in range(4):
            draw = random.Random(seed)
            keep = {at for at in joint.values() if draw.random() < 0.7}
            trips, near = drawn_trips(joint, keep, draw), draw.choice((ALWAYS, 16))
            taken = joint.outcome(keep, near, trips)
            saved, order = joint.cut(keep, near)
            away = [pytorch.Away(*(None if at is None else joint.nodes[at] for at in dataclasses.astuple(trip))) for trip in trips]
            with mock.patch.object(pytorch, "is_fusible", lambda _: False):
                forward, backward = pytorch.halves(self.found["graph"], [joint.nodes[at] for at in saved],
                                                   [joint.nodes[at] for at in order], self.found["outputs"], away)
            tokens = 8 * len(trips)
            values = [n for n in backward.graph.find_nodes(op="placeholder") if not n.name.startswith("primals")]
            with self.subTest(seed):
                self.assertLessEqual(taken.forward, walk(forward, ()))
                self.assertLessEqual(walk(forward, ()), taken.forward + tokens)
                self.assertLessEqual(taken.backward, walk(backward, values))
                self.assertLessEqual(walk(backward, values), taken.backward + tokens)

    def test_seconds_are_those_of_a_naive_clock(self):
        """Of one value: its copies, and the kernels, of which those before the copy back and those that wait are known."""
        fast, slow = self.joint(link=1e30), self.joint(link=1.0)
        keep = self.found["default"]
        value = max((at for at in fast.split(keep)[0] if at in fast.values() and fast.can_leave(at)), key=fast.size.__getitem__)
        trip = Trip(value, value, None)
        self.assertAlmostEqual(fast.outcome(keep, ALWAYS, (trip,)).seconds, fast.outcome(keep).seconds, places=12)
        copies = slow.outcome(keep, ALWAYS, (trip,)).seconds - 2 * planning.BESIDE * slow.size[value]
        self.assertLess(abs(copies - 2 * slow.size[value]), slow.outcome(keep).seconds)  # both copies are waited for
        late = Trip(value, max(slow.results), None)
        self.assertLessEqual(slow.outcome(keep, ALWAYS, (late,)).seconds, slow.outcome(keep, ALWAYS, (trip,)).seconds)

    def test_a_fast_link_makes_small_budgets_cheaper(self):
        for link, share, better in (1e13, 0.45, True), (1e3, 0.45, False):
            joint = self.joint(link=link, bytes_per_second=2e9)
            default, plain = self.found["default"], joint.outcome(self.found["default"])
            room = Room(*(int(share * max(plain.forward, plain.backward)),) * 3)
            without = choose(joint, default, room, TARGET, 0)
            within = choose(joint, default, room, TARGET, 0, (OFFLOAD, EVICT))
            with self.subTest(link):
                self.assertEqual(bool(within.trips), better)
                self.assertLessEqual(within.outcome.over(room), max(0, without.outcome.over(room)))
                if better:
                    self.assertLess(within.outcome.seconds, without.outcome.seconds)
                self.assertEqual(choose(joint, default, room, TARGET, 0), without)  # it has no trips

    def test_the_curve_of_explain(self):
        model = Layers(*(layer for _ in range(3) for layer in (Attention(16), Block(16))))
        model.compile()
        parameters = list(model.parameters())

        def step():
            model(torch.randn(64, 16)).square().mean().backward()
            for parameter in parameters:
                parameter.grad = None
        fast = dataclasses.replace(CPU, link=1e13, bytes_per_second=2e9)
        with by_operators(), mock.patch.multiple(compiled_graph, useful_moves=lambda _: (OFFLOAD, EVICT), rates_of=lambda _: fast):
            curve = spillway_torch.explain_compiled(step, "cpu")
        check_schema(self, "torch-explain-compiled", curve.object())
        self.assertEqual((sum(curve.rows[-1].hosted), curve.rows[-1].staying), (0, 1.0))
        gains = [row for row in curve.rows if sum(row.hosted)]
        self.assertTrue(gains)
        self.assertTrue(all(not row.staying or row.times < row.staying for row in gains))
        text = curve.text()
        self.assertIn("   times   staying  KiB that each graph saves, with what is on the host\n", text)
        self.assertRegex(text, r"\d +\d\.\d{3} +(\d\.\d{3}|none)  [\d.]+ \+ [\d.]+")
        self.assertIn("staying: the time if nothing of the graphs may be on the host.\n", text)


if __name__ == "__main__":
    unittest.main()

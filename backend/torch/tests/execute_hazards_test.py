"""Tests that steps which differ from the recorded one, or do unusual things, are right under a plan or fail by name.

Each case runs under plans that rebuild all they can, that offload all they can, and that mix both.
"""

import contextlib
import gc
import logging
import threading
import unittest
import weakref
from unittest import mock

import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.nn import functional as F

from spillway_torch import NotRecordableError, SpillwayError
from spillway_torch.execute import CpuDevice, Executor, assemble, hashes, record_tape, step
from stepping import Dropout, candidates, different

WAYS = ("rebuild", "offload", "mixed")
SEEN = r"aten::\w+ is operator \d+ of the step, and (aten::\w+ was|had other arguments in the) recorded"  # by the library


def plan_of(tape, way):
    actions = {}
    for at, saved in enumerate(candidates(tape)):
        wanted = way if way != "mixed" else ("rebuild", "offload")[at % 2]
        actions[saved.storage] = wanted if wanted == "offload" or saved.chain is not None else "keep"
    return assemble(tape, actions, 0)


class Case:
    """A model of layers, and a forward that reads `self.now` for what changes between steps."""

    def __init__(self, forward, now=None):
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.model = nn.ModuleList([self.a, self.b, self.c, self.norm])
        self.x = torch.randn(6, 8)
        self.now = now
        self.kept = []
        self.forward = lambda: forward(self)

    def run(self, context=contextlib.nullcontext, between=lambda: None):
        """Returns the loss, gradients and the state of random numbers; or the error."""
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(3)
        with context():
            loss = self.forward()
        between()
        loss.backward()
        return [loss.detach().clone(), *(p.grad.clone() for p in self.model.parameters() if p.grad is not None), torch.get_rng_state()]

    def record(self):
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(3)
        return record_tape(lambda: self.forward().backward(), "cpu")


class HazardTest(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)

    def plans(self, tape):
        return [plan_of(tape, way) for way in WAYS]

    def deviates(self, forward, before, after, text=None):
        """After a change between steps, each plan has to give eager's results; one that rebuilds has to notice, if a text is given."""
        case = Case(forward, before)
        tape = case.record()
        for plan in self.plans(tape):
            case.now = before
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(plan.executor.deviations, [])
            case.now = after
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            if text is not None and "offload" not in plan.actions.values():
                self.assertRegex("\n".join(plan.executor.deviations), f"{text}|{SEEN}" if plan.executor.hashes is not None else text)
                self.assertEqual(len(plan.executor.deviations), 1)
            case.now = before
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    # ---- what a hook does not see ----

    def test_numbers_that_autograd_saves(self):
        self.deviates(lambda s: s.c(torch.tanh(s.a(s.x)).add(s.b(s.x), alpha=s.now)).pow(2).sum(), 1.0, 2.0, "alpha = 2.0, and 1.0")
        self.deviates(lambda s: s.c(F.leaky_relu(s.a(s.x), s.now)).pow(2).sum(), 0.1, 0.2, "negative_slope = 0.2")

    def test_numbers_that_autograd_does_not_save(self):
        self.deviates(lambda s: s.c(torch.tanh(s.a(s.x)) + s.now).pow(2).sum(), 1.0, 2.0, "call .*add")
        self.deviates(lambda s: s.c(s.a(s.x) * s.now).pow(2).sum(), 1.0, 2.0, "call .*mul")
        self.deviates(lambda s: s.c(F.layer_norm(s.a(s.x), (8,), s.norm.weight, s.norm.bias, s.now)).pow(2).sum(), 1e-5, 1e-2,
                      "call .*layer_norm")
        self.deviates(lambda s: s.c(s.a(s.x).masked_fill(s.x > 0, s.now)).pow(2).sum(), 0.0, 1.0)

    def test_another_type_in_between(self):
        self.deviates(lambda s: s.c(torch.tanh(s.a(s.x)).to(s.now).float()).pow(2).sum(), torch.bfloat16, torch.float16,
                      "ToCopyBackward0 made torch.float16, and torch.bfloat16")
        self.deviates(lambda s: s.c(torch.softmax(s.a(s.x), -1, dtype=s.now).float()).pow(2).sum(), torch.float32, torch.float64)

    def test_a_bias_that_was_not_there(self):
        self.deviates(lambda s: s.c(torch.tanh(F.conv1d(s.a(s.x)[:, None], s.b.weight[:, None, :1], s.now)).sum(1)).pow(2).sum(), None,
                      torch.ones(8))

    def test_another_operator_of_the_same_shape(self):
        self.deviates(lambda s: s.c(s.now(s.a(s.x))).pow(2).sum(), torch.tanh, torch.sigmoid, "SigmoidBackward0 ran in the place of Tanh")

    def test_another_tensor_of_the_same_shape(self):
        def forward(s):
            both = torch.tanh(s.a(s.x)), torch.tanh(s.b(s.x))
            return s.c(torch.exp(-both[s.now])).pow(2).sum() + both[0].sum() + both[1].sum()

        self.deviates(forward, 0, 1, "another input")

        def saved_twice(s):
            both = torch.exp(s.a(s.x)), torch.exp(s.b(s.x))
            return s.c(both[s.now]).pow(2).sum() + both[0].sum() + both[1].sum()

        self.deviates(saved_twice, 0, 1)
        self.deviates(lambda s: s.c(torch.exp(s.a(s.x)) * s.b(s.x).sub(s.x) if s.now else
                                    torch.exp(s.a(s.x)) * s.x.sub(s.b(s.x))).pow(2).sum(), False, True)

    def test_another_parameter_of_the_same_shape(self):
        def forward(s):
            return s.c(F.silu(F.layer_norm(s.a(s.x), (8,), s.norm.weight, s.norm.weight if s.now else s.norm.bias))).pow(2).sum()

        self.deviates(forward, False, True, "another input")

    def test_another_order_of_inputs(self):
        def forward(s):
            both = s.a(s.x), s.b(s.x)
            return s.c(torch.tanh(torch.sub(*(both[::-1] if s.now else both)))).pow(2).sum()

        self.deviates(forward, False, True, "another input")

    def test_a_change_in_place(self):
        def forward(s):
            h = s.a(s.x)
            if s.now:
                h.mul_(2.0)
            return s.c(torch.tanh(h)).pow(2).sum()

        self.deviates(forward, False, True, "node|saves more")

    def test_a_change_in_place_that_autograd_does_not_see(self):
        def forward(s):
            h = s.a(s.x)
            if s.now:
                h.detach().mul_(2.0)
            return s.c(torch.tanh(h)).pow(2).sum()

        if hashes.step_hashes(1) is None:
            self.skipTest("Python does not see it either")
        self.deviates(forward, False, True, SEEN)

    def test_without_gradient(self):
        def forward(s):
            with torch.set_grad_enabled(not s.now):
                h = torch.tanh(s.a(s.x))
            return s.c(torch.exp(h) * s.b(s.x)).pow(2).sum()

        self.deviates(forward, False, True, "gradient|saved|node")

    def test_without_autocast(self):
        def forward(s):
            with torch.autocast("cpu", torch.bfloat16, enabled=s.now):
                h = s.b(torch.tanh(s.a(s.x))).float()
            return s.c(torch.exp(h)).pow(2).sum()

        self.deviates(forward, True, False, "recorded step|another number")
        self.deviates(forward, False, True, "recorded step|another number")

    def test_another_type_of_autocast(self):
        def forward(s):
            with torch.autocast("cpu", s.now):
                h = s.b(torch.tanh(s.a(s.x))).float()
            return s.c(torch.exp(h)).pow(2).sum()

        self.deviates(forward, torch.bfloat16, torch.float16, "recorded step|made torch.float16")

    def test_casts_that_autocast_kept_from_an_earlier_step(self):
        case = Case(lambda s: s.c(torch.tanh(torch.mm(s.x, s.a.weight))).float().pow(2).sum())

        def twice(context):
            made = []
            with torch.autocast("cpu", torch.bfloat16):
                for _ in range(2):
                    made += case.run(context)
                    with torch.no_grad():
                        case.a.weight.mul_(1.5)
            with torch.no_grad():
                case.a.weight.div_(2.25)
            return made

        with torch.autocast("cpu", torch.bfloat16):
            tape = case.record()
        for plan in self.plans(tape):
            for _ in range(3):
                weight = case.a.weight.detach().clone()
                want = twice(contextlib.nullcontext)
                case.a.weight.data.copy_(weight)
                self.assertEqual(different(want, twice(lambda: step(plan))), [])
                case.a.weight.data.copy_(weight)

    def test_an_operator_that_nothing_follows_from_is_no_deviation(self):
        def forward(s):
            h = torch.tanh(s.a(s.x * 1.0))
            if s.now:
                s.x.mean().item()
                torch.zeros(3).add_(1.0)
            return s.c(F.gelu(s.norm(h))).pow(2).sum()

        case = Case(forward, False)
        for plan in self.plans(case.record()):
            for case.now in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(plan.executor.deviations, [])

    def test_a_number_before_a_saved_tensor_is_no_deviation(self):
        case = Case(lambda s: s.c(torch.tanh(s.norm(torch.exp(s.a(s.x * s.now)) * 2.0))).pow(2).sum(), 1.0)
        for plan in self.plans(case.record()):
            for case.now in (1.0, 2.0, 3.0):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_python_compares_again_where_the_hashes_change_in_each_step(self):
        case = Case(lambda s: s.c(torch.tanh(s.a(s.x) + s.now)).pow(2).sum(), 0.0)
        plan = plan_of(case.record(), "rebuild")
        if hashes.step_hashes(1) is None:
            self.skipTest("there is no library")
        known = []
        for case.now in (0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            known.append(plan.executor.hashes.known)
        self.assertEqual(known, [True, False, True, True, False, True, False, False])

    def test_a_mask_that_is_another_one(self):
        def forward(s):
            mask = (s.x > 0, s.x < 0)
            h = torch.exp(s.a(s.x)) * mask[s.now].float()
            return s.c(torch.tanh(h)).pow(2).sum()

        case = Case(forward, 0)
        for plan in self.plans(case.record()):
            for case.now in (0, 1, 0):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_tensor_without_gradient_that_is_another_one(self):
        def forward(s):
            masks = (s.x > 0).float(), (s.x < 0).float()
            h = s.a(s.x)
            return (h * masks[0]).sum() + (s.b(s.x) * masks[1]).sum() + s.c(torch.exp(h + masks[s.now])).pow(2).sum()

        case = Case(forward, 0)
        for plan in self.plans(case.record()):
            for case.now in (0, 1, 0):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_saved_tensor_that_the_recorded_step_changes(self):
        def forward(s):
            h = s.a(s.x)
            _ = h * h  # it saves h, and has no backward
            loss = s.c(torch.sigmoid(h + 1.0)).pow(2).sum()
            h.data.mul_(2.0)
            return loss

        case = Case(forward)
        for plan in self.plans(case.record()):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_change_before_backward_while_recording(self):
        for change in (lambda h: h.detach().mul_(2.0), lambda h: h.data.mul_(2.0)):
            def forward(s):
                h = torch.exp(s.a(s.x))
                loss = s.c(h).pow(2).sum()
                change(h)
                return loss

            with self.assertRaisesRegex(NotRecordableError, r"a saved tensor, torch.float32 \[6, 8\], was changed in place"):
                Case(forward).record()
            self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))

    def test_a_parameter_changed_before_backward(self):
        case = Case(lambda s: s.c(torch.sigmoid(torch.exp(s.norm(s.x)) + s.b.bias)).pow(2).sum())
        tape = case.record()

        def change():
            with torch.no_grad():
                case.b.bias.add_(1.0)  # eager allows it: no node saved it

        def again():
            with torch.no_grad():
                case.b.bias.copy_(bias)

        bias, refused = case.b.bias.detach().clone(), 0
        for plan in self.plans(tape):
            again()
            try:
                got = case.run(lambda: step(plan), change)
            except RuntimeError as error:
                self.assertRegex(str(error), r"a parameter of shape \[8\] was changed in place between forward and backward")
                refused += 1
            else:
                again()
                self.assertEqual(different(case.run(between=change), got), [])
        self.assertGreater(refused, 0)

    def test_the_data_of_a_parameter_replaced_before_backward(self):
        case = Case(lambda s: s.c(torch.sigmoid(torch.exp(s.norm(s.x) + s.b.bias))).pow(2).sum())
        tape = case.record()
        old = case.b.bias.data

        def change():
            case.b.bias.data = old + 1

        for plan in self.plans(tape):
            case.b.bias.data = old
            want = case.run(between=change)
            case.b.bias.data = old
            self.assertEqual(different(want, case.run(lambda: step(plan), change)), [])

    def test_a_source_changed_before_backward(self):
        def forward(s):
            h = s.a(s.x)
            s.kept[:] = [h]
            return s.c(torch.sigmoid(F.gelu(h))).pow(2).sum()

        case = Case(forward)
        tape = case.record()

        def change():
            case.kept[0].detach().mul_(2.0)

        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            case.run(between=change)
        for plan in self.plans(tape):
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                case.run(lambda: step(plan), change)

    def test_a_saved_tensor_changed_in_forward(self):
        def forward(s):
            h = torch.exp(s.a(s.x))
            y = s.c(h)
            if s.now:
                h.detach().mul_(2.0)
            return y.pow(2).sum() + s.b(s.x).pow(2).sum()

        case = Case(forward, False)
        tape = case.record()
        for plan in self.plans(tape):
            case.now = True
            try:
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            except RuntimeError as error:
                self.assertRegex(str(error), "modified by an inplace operation")
            case.now = False
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_tensor_changed_between_two_times_that_it_is_saved(self):
        def forward(s):
            h = torch.exp(s.a(s.x))
            if s.now:
                h.detach().mul_(2.0)
            return s.c(h).pow(2).sum()

        case = Case(forward, False)
        for plan in self.plans(case.record()):
            case.now = True
            with contextlib.suppress(RuntimeError):
                case.run(lambda: step(plan))
            self.assertRegex(plan.executor.deviations[0], "changed between two times")
            case.now = False
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_random_numbers_drawn_elsewhere(self):
        def forward(s):
            if s.now:
                torch.rand(3)
            return s.c(torch.tanh(s.drop(s.a(s.x)))).pow(2).sum()

        case = Case(forward, False)
        case.drop = Dropout()
        tape = case.record()
        for plan in self.plans(tape):
            for case.now in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_generator_that_changes_between_two_saved_tensors(self):
        def forward(s):
            h = torch.exp(s.a(s.x))
            if s.now:
                torch.default_generator.manual_seed(9)  # no call that a plan would see
            return s.c(torch.tanh(s.drop(h))).pow(2).sum()

        class Counting(CpuDevice):
            """Says, as a GPU does, how many numbers were drawn."""

            def drawn(self, before, after):
                (seed, first), (other, last) = (
                    [int.from_bytes(bytes(state[at:at + 8].tolist()), "little") for at in (0, 16)] for state in (before, after))
                return last - first if seed == other else -1

        case = Case(forward, False)
        case.drop = Dropout()
        with mock.patch.object(CpuDevice, "drawn", Counting.drawn):
            tape = case.record()
            for plan in self.plans(tape):
                for case.now in (False, True, False):
                    self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
                if "offload" not in plan.actions.values():
                    self.assertEqual(plan.executor.deviations, ["other random numbers are drawn"])
        case.now = False
        tape = case.record()
        for plan in self.plans(tape):
            case.now = True
            want = case.run()
            if "offload" in plan.actions.values():
                continue
            with self.assertRaisesRegex(SpillwayError, "random numbers were drawn in another order"):
                case.run(lambda: step(plan))
            case.now = False
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    # ---- other steps ----

    def test_a_short_batch(self):
        self.deviates(lambda s: s.c(torch.tanh(s.norm(s.a(s.x[:s.now])))).pow(2).sum(), 6, 4, "recorded step")

    def test_fewer_and_more_layers(self):
        def forward(s):
            h = s.x
            for _ in range(s.now):
                h = F.gelu(s.norm(s.a(h)))
            return s.c(h).pow(2).sum()

        for other in (1, 3):
            self.deviates(forward, 2, other, "in the recorded step|saved|another number")

    def test_a_frozen_parameter(self):
        case = Case(lambda s: s.c(torch.tanh(s.norm(s.a(s.x)))).pow(2).sum())
        tape = case.record()
        for plan in self.plans(tape):
            for frozen in (False, True, False):
                case.a.requires_grad_(not frozen)
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_complex_numbers(self):
        def forward(s):
            h = torch.complex(s.a(s.x), s.b(s.x))
            h = torch.exp(h.conj() * 0.1) @ h.mH
            return (h.imag.tanh() * h.real).sum() + s.c(s.x).sum()

        case = Case(forward)
        for plan in self.plans(case.record()):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(plan.executor.deviations, [])

    def test_sparse_gradients(self):
        case = Case(lambda s: s.c(torch.tanh(s.norm(F.embedding(s.now, s.table, sparse=True)))).pow(2).sum(), torch.tensor([0, 2, 1, 2]))
        case.table = nn.Parameter(torch.randn(4, 8))
        for plan in self.plans(case.record()):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(plan.executor.deviations, [])
            self.assertTrue(case.table.grad.is_sparse)

    def test_another_stream(self):
        class Device(CpuDevice):
            def current(self):
                return False

        case = self.case()
        for plan in self.plans(case.record()):
            plan.executor = Executor(plan, Device())
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertRegex(plan.executor.deviations[0], "another stream")

    def test_in_evaluation(self):
        def forward(s):
            return s.c(torch.tanh(F.dropout(F.batch_norm(s.a(s.x), s.mean, s.variance, training=s.now), 0.3, s.now))).pow(2).sum()

        case = Case(forward, True)
        case.mean, case.variance = torch.zeros(8), torch.ones(8)
        tape = case.record()
        case.now = False  # a normalisation that is frozen in training
        frozen = case.record()
        for plan in (*self.plans(tape), *self.plans(frozen)):
            for case.now in (True, False, True):
                case.mean.zero_()
                case.variance.fill_(1)
                want = [*case.run(), case.mean.clone(), case.variance.clone()]
                case.mean.zero_()
                case.variance.fill_(1)
                self.assertEqual(different(want, [*case.run(lambda: step(plan)), case.mean, case.variance]), [])

    # ---- other uses of autograd ----

    def case(self):
        return Case(lambda s: s.c(torch.tanh(s.norm(F.gelu(s.a(s.x))))).pow(2).sum())

    def test_two_forwards_before_their_backwards(self):
        case = self.case()

        def both(context):
            case.model.zero_grad(set_to_none=True)
            with context():
                one = case.forward()
            case.x.neg_()
            try:
                with context():
                    two = case.forward()
                two.backward()
            finally:
                case.x.neg_()
            one.backward()
            return [p.grad.clone() for p in case.model.parameters() if p.grad is not None]

        case.forward = lambda: case.c(torch.tanh(case.norm(F.gelu(case.a(case.x * 1))))).pow(2).sum()
        tape = case.record()
        for plan in self.plans(tape):
            self.assertEqual(different(both(contextlib.nullcontext), both(lambda: step(plan))), [])
            self.assertEqual(len(plan.executor.deviations), 1 if "offload" in plan.actions.values() else 0)

    def test_two_forwards_in_one_block(self):
        case = self.case()
        tape = case.record()
        forward = case.forward
        for plan in self.plans(tape):
            case.forward = lambda: forward() + 2 * forward()
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertRegex(plan.executor.deviations[0], "saves more tensors")

    def test_backward_twice(self):
        case = self.case()
        tape = case.record()

        def twice(context):
            case.model.zero_grad(set_to_none=True)
            with context():
                loss = case.forward()
            loss.backward(retain_graph=True)
            loss.backward()
            return [p.grad.clone() for p in case.model.parameters() if p.grad is not None]

        for plan in self.plans(tape):
            for _ in range(2):
                self.assertEqual(different(twice(contextlib.nullcontext), twice(lambda: step(plan))), [])

    def test_double_backward(self):
        case = self.case()
        tape = case.record()

        def penalty(context, inside):
            case.model.zero_grad(set_to_none=True)
            with context():
                loss = case.forward()
                if inside:
                    gradients = torch.autograd.grad(loss, [case.a.weight, case.norm.weight], create_graph=True)
            if not inside:
                gradients = torch.autograd.grad(loss, [case.a.weight, case.norm.weight], create_graph=True)
            (loss + sum(g.pow(2).sum() for g in gradients)).backward()
            return [p.grad.clone() for p in case.model.parameters() if p.grad is not None]

        for plan in self.plans(tape):
            for inside in (False, True):
                self.assertEqual(different(penalty(contextlib.nullcontext, inside), penalty(lambda: step(plan), inside)), [])
                self.assertEqual(plan.executor.deviations, [])

    def test_backward_of_a_part(self):
        case = self.case()
        tape = case.record()

        def part(context):
            with context():
                loss = case.forward()
            return list(torch.autograd.grad(loss, [case.c.weight], retain_graph=True)) + list(
                torch.autograd.grad(loss, [case.a.weight, case.norm.bias]))

        for plan in self.plans(tape):
            self.assertEqual(different(part(contextlib.nullcontext), part(lambda: step(plan))), [])

    def test_a_look_at_a_saved_tensor(self):
        case = self.case()
        tape = case.record()
        for plan in self.plans(tape):
            with step(plan):
                loss = case.forward()
            self.assertEqual(loss.grad_fn.next_functions[0][0]._saved_self.shape, (6, 8))
            case.model.zero_grad(set_to_none=True)
            loss.backward()
            got = [p.grad.clone() for p in case.model.parameters() if p.grad is not None]
            self.assertEqual(different(case.run()[1:-1], got), [])

    def test_hooks_inside_the_step(self):
        def forward(s):
            h = torch.tanh(s.a(s.x))
            with torch.autograd.graph.save_on_cpu() if s.now else contextlib.nullcontext():
                h = F.gelu(s.norm(h))
            return s.c(h).pow(2).sum()

        self.deviates(forward, True, False)
        self.deviates(forward, False, True)

    def test_hooks_around_the_step_are_refused(self):
        case = self.case()
        plan = plan_of(case.record(), "mixed")
        with torch.autograd.graph.save_on_cpu():
            with self.assertRaisesRegex(SpillwayError, "saved-tensor hooks are active"), step(plan):
                pass
            with self.assertRaisesRegex(SpillwayError, "saved-tensor hooks are active"):
                case.record()
        with step(plan), self.assertRaisesRegex(SpillwayError, "saved-tensor hooks are active"), step(plan):
            pass

    def test_functions_of_the_program(self):
        class Stash(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(x)
                ctx.half = torch.sigmoid(x)
                ctx.factor = factor
                return x * ctx.half * factor

            @staticmethod
            def backward(ctx, gradient):
                x, = ctx.saved_tensors
                return gradient * ctx.factor * ctx.half * (1 + x * (1 - ctx.half)), None

        case = Case(lambda s: s.c(torch.tanh(Stash.apply(s.a(s.x), s.now))).pow(2).sum(), 1.0)
        for plan in self.plans(case.record()):
            for case.now in (1.0, 2.0, 1.0):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_checkpointing_inside(self):
        for reentrant in (False, True):
            def forward(s):
                h = torch.tanh(s.a(s.x))
                h = checkpointing.checkpoint(lambda t: F.gelu(s.norm(s.drop(s.b(t)))), h, use_reentrant=reentrant)
                return s.c(h).pow(2).sum()

            case = Case(forward)
            case.drop = Dropout()
            for plan in self.plans(case.record()):
                for _ in range(2):
                    self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
                self.assertEqual(plan.executor.deviations, [])

    def test_inference_in_between(self):
        def forward(s):
            with torch.no_grad():
                s.norm(s.a(s.x))
            h = torch.tanh(s.norm(s.a(s.x)))
            with torch.inference_mode():
                s.norm(s.a(s.x))
            return s.c(h).pow(2).sum()

        case = Case(forward)
        for plan in self.plans(case.record()):
            for _ in range(2):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
                with step(plan):
                    case.forward()  # no backward
                with torch.no_grad():
                    case.forward()

    def test_exceptions(self):
        def forward(s):
            h = torch.tanh(s.norm(F.gelu(s.a(s.x))))
            if s.now:
                raise KeyError("mine")
            return s.c(h).pow(2).sum()

        case = Case(forward, False)
        for plan in self.plans(case.record()):
            for _ in range(2):
                case.now = True
                with self.assertRaisesRegex(KeyError, "mine"):
                    case.run(lambda: step(plan))
                case.now = False
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

        def fail(_):
            raise KeyError("in backward")

        for plan in self.plans(case.record()):
            with step(plan):
                loss = case.forward()
            handle = case.norm.weight.register_hook(fail)
            with self.assertRaisesRegex(KeyError, "in backward"):
                loss.backward()
            handle.remove()
            del loss
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_threads(self):
        case, other = self.case(), self.case()
        want = other.run()[:-1]
        for plan in self.plans(case.record()):
            want_here = case.run()[:-1]
            got, errors = [], []

            def train():
                try:
                    got[:] = other.run()[:-1]
                except BaseException as error:  # pylint: disable=broad-except
                    errors.append(error)

            with step(plan):
                thread = threading.Thread(target=train)
                thread.start()
                thread.join()
                case.model.zero_grad(set_to_none=True)
                loss = case.forward()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            self.assertEqual(errors, [])
            self.assertEqual(different(want, got), [])
            self.assertEqual(different(want_here, [loss.detach(), *(p.grad for p in case.model.parameters() if p.grad is not None)]), [])

    def test_two_threads_under_one_plan(self):
        case = self.case()
        want = case.run()[1:-1]
        parameters = [p for p in case.model.parameters() if p.grad is not None]
        for plan in self.plans(case.record()):
            results, barrier = [None, None], threading.Barrier(2)

            def train(at):
                with step(plan):
                    barrier.wait()
                    loss = case.forward()
                barrier.wait()
                results[at] = torch.autograd.grad(loss, parameters)

            threads = [threading.Thread(target=train, args=(at,)) for at in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for result in results:
                self.assertEqual(different(want, list(result)), [])
            self.assertEqual(len(plan.executor.deviations), 1)

    def test_nothing_stays_alive(self):
        made = []

        def forward(s):
            h = s.a(s.x)
            made.append(weakref.ref(h.untyped_storage()))
            h = torch.tanh(h)
            made.append(weakref.ref(h.untyped_storage()))
            h = s.norm(F.gelu(h))
            made.append(weakref.ref(h.untyped_storage()))
            return s.c(h).pow(2).sum()

        case = Case(forward)
        tape = case.record()
        gc.disable()
        self.addCleanup(gc.enable)
        for plan in self.plans(tape):
            case.run(lambda: step(plan))
            self.assertTrue(all(reference() is None for reference in made))
            with step(plan) as run:
                loss = case.forward()
            del loss
            self.assertTrue(all(reference() is None for reference in made))
            self.assertEqual(run.saved.alive(), 0)
        self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))


if __name__ == "__main__":
    unittest.main()

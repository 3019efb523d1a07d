"""Tests that other uses of autograd than one forward and one backward are right under a plan, or refused by name."""

import contextlib
import gc
import threading
import types
import unittest
import weakref
from unittest import mock

import torch
import torch.utils.checkpoint as checkpointing
from torch.nn import functional as F

from spillway_torch import SpillwayError
from spillway_torch.run.executor import executor_of, step
from spillway_torch.tape.tape_recorder import record_tape, refuse_hooks
from stepping import Case, Dropout, PlansTest, different, plan_of


class AutogradTest(PlansTest):
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
            self.assertEqual(executor_of(plan).deviations, [])

    def test_a_backward_after_the_recording(self):
        case = self.case()
        kept = []

        def both():
            kept.append(case.forward())
            case.forward().backward()

        case.model.zero_grad(set_to_none=True)
        tape = record_tape(both, "cpu")
        case.model.zero_grad(set_to_none=True)
        read = len(tape.unpacks)
        kept.pop().backward()
        self.assertEqual(len(tape.unpacks), read)
        self.assertEqual(different(case.run()[1:-1], [p.grad for p in case.model.parameters() if p.grad is not None]), [])

    def test_two_forwards_in_one_block(self):
        case = self.case()
        tape = case.record()
        forward = case.forward
        for plan in self.plans(tape):
            case.forward = lambda: forward() + 2 * forward()
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertRegex(executor_of(plan).deviations[0], "saves more tensors")

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
                self.assertEqual(executor_of(plan).deviations, [])

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

        self.varies(forward, True, False)
        self.varies(forward, False, True)

    def test_hooks_around_the_step_are_refused(self):
        case = self.case()
        plan = plan_of(case.record(), "mixed")
        with torch.autograd.graph.save_on_cpu():
            with self.assertRaisesRegex(SpillwayError, "saved-tensor hooks are active"), step(plan):
                pass
            with self.assertRaisesRegex(SpillwayError, "saved-tensor hooks are active"):
                case.record()
        with step(plan), self.assertRaisesRegex(SpillwayError, "a step under a plan, or a recorded one, is open already"), step(plan):
            pass

    def test_an_early_version_of_pytorch_has_no_plans(self):
        autograd = types.SimpleNamespace()  # without what shows active hooks
        with mock.patch.object(torch._C, "_autograd", autograd), \
                self.assertRaisesRegex(SpillwayError, "plans need a later version of PyTorch than .*; they are tested with 2.11"):
            refuse_hooks()

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
                self.assertEqual(executor_of(plan).deviations, [])

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
            self.assertEqual(executor_of(plan).deviations, [])

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

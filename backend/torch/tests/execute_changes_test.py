"""Tests that a plan is right, or fails by name, where tensors or random numbers change between two uses in one step."""

import contextlib
import unittest

import torch
from torch.nn import functional as F

from spillway_torch import NotRecordableError
from spillway_torch.plan.planner import assemble
from spillway_torch.run.executor import executor_of, step
from spillway_torch.tape.tape import Geometry, overlap
from stepping import Case, Dropout, PlansTest, candidates, different


class ChangesTest(PlansTest):
    def test_a_change_in_place(self):
        def forward(s):
            h = s.a(s.x)
            if s.now:
                h.mul_(2.0)
            return s.c(torch.tanh(h)).pow(2).sum()

        self.varies(forward, False, True)

    def test_a_change_in_place_that_autograd_does_not_see(self):
        def forward(s):
            h = s.a(s.x)
            if s.now:
                h.detach().mul_(2.0)
            return s.c(torch.tanh(h)).pow(2).sum()

        self.varies(forward, False, True, True)

    def test_a_source_that_is_read_before_autograd_saves_it(self):
        for way in ("changed in place", "changed by its data", "another tensor", "negative", "copy"):
            def forward(s, way=way):
                h, k = s.a(s.x), s.b(s.x)
                t = h + 1.0  # reads h, and saves nothing
                if s.now and way == "changed in place":
                    h.mul_(2.0)
                if s.now and way == "changed by its data":
                    h.data.mul_(2.0)
                saved = {"another tensor": k, "negative": -h, "copy": h.clone().mul_(3)}.get(way, h) if s.now else h
                return F.gelu(saved).sum() + s.c(torch.tanh(t)).pow(2).sum() + k.sum()

            with self.subTest(way):
                self.varies(forward, False, True)
                case = Case(forward, False)
                tape = case.record()
                plan = assemble(tape, {s.storage: "evict" for s in candidates(tape)
                                       if s.chain is not None and s.chain.sources and len(s.chain.ops) == 2})
                for case.now in (False, True, False):
                    self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
                self.assertEqual(len(executor_of(plan).deviations), 1)

    def test_a_source_that_forward_changes_later(self):
        for change in (lambda h: h.detach().mul_(2.0), lambda h: h.data.mul_(2.0)):
            def forward(s, change=change):
                h = s.a(s.x)
                _ = h * h  # it saves h, and has no backward
                loss = s.c(torch.sigmoid(h + 1.0)).pow(2).sum()
                if s.now:
                    change(h)
                return loss

            case = Case(forward, False)
            tape = case.record()
            plan = assemble(tape, {s.storage: "evict" for s in candidates(tape) if s.chain is not None and s.chain.sources})
            self.assertGreater(len(plan.actions), 0)
            for case.now in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_number_given_as_a_tensor(self):
        case = self.case()
        floor = torch.tensor(5.0)
        case.forward = lambda: case.c(torch.tanh(F.threshold(case.a(case.x), 0.1, floor))).pow(2).sum()
        for plan in self.plans(case.record()):
            for value in (5.0, 6.0, 5.0):
                floor.fill_(value)
                want = case.run()
                self.assertEqual(different(want, case.run(lambda: step(plan), lambda: floor.fill_(9.0))), [])
            floor.fill_(5.0)

    def test_parameters_that_move_and_share_a_storage(self):
        case = self.case()
        tape = case.record()
        vector = torch.nn.utils.parameters_to_vector(case.model.parameters())
        torch.nn.utils.vector_to_parameters(vector.detach().clone(), case.model.parameters())  # views of one tensor
        for plan in self.plans(tape):
            for factor in (1.0, 0.5):
                with torch.no_grad():
                    case.norm.weight.mul_(factor)
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])

    def test_a_recomputed_tensor_changed_before_backward(self):
        def forward(s):
            s.kept[:] = [torch.tanh(s.a(s.x))]
            return s.c(s.kept[0]).pow(2).sum()

        case = Case(lambda s: s.c(torch.tanh(s.a(s.x))).pow(2).sum())
        tape, case.forward = case.record(), lambda: forward(case)
        for plan in self.plans(tape):
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                case.run(lambda: step(plan), lambda: case.kept[0].detach().mul_(2.0))

    def test_an_operator_that_needs_gradients_enabled(self):
        case = self.case()
        rnn = torch.nn.LSTM(8, 8, batch_first=True)
        data = torch.randn(3, 4, 8)
        case.forward = lambda: rnn(torch.tanh(data @ case.a.weight))[0].pow(2).sum()
        for plan in self.plans(case.record()):
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

    def test_parts_of_a_storage_that_are_changed_apart(self):
        def forward(s):
            left, right = torch.unsafe_chunk(s.a(s.x), 2, 1)
            return s.c(torch.cat([left.sigmoid_(), right.tanh_()], 1)).pow(2).sum()

        case = Case(forward)
        for plan in self.plans(case.record()):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])

    def test_parts_of_a_storage_that_share_bytes(self):
        def part(size, stride, offset, dtype=torch.float32):
            return Geometry(torch.Size(size), stride, offset, dtype)

        left, right = part((6, 4), (8, 1), 0), part((6, 4), (8, 1), 4)
        for other, shares in ((left, True), (right, False), (part((6,), (8,), 3), True), (part((6,), (8,), 4), False),
                              (part((0, 4), (8, 1), 0), False), (part((1,), (1,), 4, torch.float16), True)):
            self.assertEqual((overlap(left, other), overlap(other, left)), (shares, shares))

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
                self.assertRegex(str(error), r"a parameter or buffer of shape \[8\] was changed in place between forward and backward")
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
            self.assertRegex(executor_of(plan).deviations[0], "changed between two times")
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

        case = Case(forward, False)
        case.drop = Dropout()
        for plan in self.plans(case.record()):
            for case.now in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])


if __name__ == "__main__":
    unittest.main()

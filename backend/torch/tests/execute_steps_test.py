"""Tests that steps which differ from the recorded one are right under a plan: what is recomputed follows from each step itself."""

import contextlib
import random
import unittest

import torch
from torch import nn
from torch.nn import functional as F

from spillway_torch.base.device import CpuDevice
from spillway_torch.run.executor import EXECUTORS, Executor, executor_of, step
from stepping import Case, PlansTest, different

DRAWN = 25  # programs


class Drawn:
    """A program of drawn operators, whose sizes, numbers and branches are drawn anew for each step."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.parts = [draw.choice((
            lambda s, h: s.a(h), lambda s, h: s.norm(s.b(h)), lambda s, h: torch.tanh(h), lambda s, h: F.gelu(h),
            lambda s, h: torch.exp(h * s.now["number"] * 0.1), lambda s, h: s.a(h).mul_(s.now["number"]),
            lambda s, h: torch.native_dropout(h, s.now["rate"], True)[0], lambda s, h: h.masked_fill(h > s.now["number"], s.now["rate"]),
            lambda s, h: torch.cat([h[:1], h[1:] * 2.0]), lambda s, h: h + s.b(h).detach().sigmoid_(),
            lambda s, h: s.c(h.t().reshape(-1, 8)) if s.now["branch"] else s.c(h), lambda s, h: h.to(torch.bfloat16).float(),
            lambda s, h: F.layer_norm(h, (8,), s.norm.weight, s.norm.bias, s.now["rate"]),
            lambda s, h: torch.where(h > 0, h, h * s.now["rate"]), lambda s, h: h * torch.full((), s.now["number"])))
            for _ in range(draw.randint(4, 10))]
        self.steps = [{"rows": draw.randint(1, 9), "number": draw.uniform(0.5, 2.0), "rate": draw.uniform(0.1, 0.9),
                       "branch": draw.random() < 0.3} for _ in range(6)]

    def forward(self, s):
        h = torch.exp(s.a(s.data[:s.now["rows"]]) * 0.1)
        for part in self.parts:
            h = part(s, h)
        return s.c(torch.tanh(h)).pow(2).mean()


class StepsTest(PlansTest):
    def test_drawn_programs(self):
        recomputed = 0
        for seed in range(DRAWN):
            program = Drawn(seed)
            case = Case(program.forward, program.steps[0])
            case.data = torch.randn(9, 8)
            for plan in self.plans(case.record()):
                for at, case.now in enumerate(program.steps):
                    with self.subTest(seed=seed, step=at):
                        want = case.run()
                        self.assertEqual(different(want, case.run(lambda: step(plan))), [])
                with step(plan) as run:
                    loss = case.forward()
                loss.backward()
                recomputed += run.recomputed
        self.assertGreater(recomputed, 3 * DRAWN)

    def test_numbers_that_autograd_saves(self):
        self.varies(lambda s: s.c(torch.tanh(s.a(s.x)).add(s.b(s.x), alpha=s.now)).pow(2).sum(), 1.0, 2.0, False)
        self.varies(lambda s: s.c(F.leaky_relu(s.a(s.x), s.now)).pow(2).sum(), 0.1, 0.2, False)

    def test_numbers_that_autograd_does_not_save(self):
        self.varies(lambda s: s.c(torch.tanh(s.a(s.x)) + s.now).pow(2).sum(), 1.0, 2.0, False)
        self.varies(lambda s: s.c(s.a(s.x) * s.now).pow(2).sum(), 1.0, 2.0, False)
        self.varies(lambda s: s.c(F.layer_norm(s.a(s.x), (8,), s.norm.weight, s.norm.bias, s.now)).pow(2).sum(), 1e-5, 1e-2,
                    False)
        self.varies(lambda s: s.c(s.a(s.x).masked_fill(s.x > 0, s.now)).pow(2).sum(), 0.0, 1.0, False)

    def test_another_type_in_between(self):
        self.varies(lambda s: s.c(torch.tanh(s.a(s.x)).to(s.now).float()).pow(2).sum(), torch.bfloat16, torch.float16, False)
        self.varies(lambda s: s.c(torch.softmax(s.a(s.x), -1, dtype=s.now).float()).pow(2).sum(), torch.float32, torch.float64)

    def test_a_bias_that_was_not_there(self):
        self.varies(lambda s: s.c(torch.tanh(F.conv1d(s.a(s.x)[:, None], s.b.weight[:, None, :1], s.now)).sum(1)).pow(2).sum(), None,
                      torch.ones(8))

    def test_another_operator_of_the_same_shape(self):
        self.varies(lambda s: s.c(s.now(s.a(s.x))).pow(2).sum(), torch.tanh, torch.sigmoid, True)

    def test_another_tensor_of_the_same_shape(self):
        def forward(s):
            both = torch.tanh(s.a(s.x)), torch.tanh(s.b(s.x))
            return s.c(torch.exp(-both[s.now])).pow(2).sum() + both[0].sum() + both[1].sum()

        self.varies(forward, 0, 1)

        def saved_twice(s):
            both = torch.exp(s.a(s.x)), torch.exp(s.b(s.x))
            return s.c(both[s.now]).pow(2).sum() + both[0].sum() + both[1].sum()

        self.varies(saved_twice, 0, 1)
        self.varies(lambda s: s.c(torch.exp(s.a(s.x)) * s.b(s.x).sub(s.x) if s.now else
                                    torch.exp(s.a(s.x)) * s.x.sub(s.b(s.x))).pow(2).sum(), False, True)

    def test_another_parameter_of_the_same_shape(self):
        def forward(s):
            return s.c(F.silu(F.layer_norm(s.a(s.x), (8,), s.norm.weight, s.norm.weight if s.now else s.norm.bias))).pow(2).sum()

        self.varies(forward, False, True)

    def test_another_order_of_inputs(self):
        def forward(s):
            both = s.a(s.x), s.b(s.x)
            return s.c(torch.tanh(torch.sub(*(both[::-1] if s.now else both)))).pow(2).sum()

        self.varies(forward, False, True)

    def test_without_gradient(self):
        def forward(s):
            with torch.set_grad_enabled(not s.now):
                h = torch.tanh(s.a(s.x))
            return s.c(torch.exp(h) * s.b(s.x)).pow(2).sum()

        self.varies(forward, False, True, True)

    def test_without_autocast(self):
        def forward(s):
            with torch.autocast("cpu", torch.bfloat16, enabled=s.now):
                h = s.b(torch.tanh(s.a(s.x))).float()
            return s.c(torch.exp(h)).pow(2).sum()

        self.varies(forward, True, False)
        self.varies(forward, False, True)

    def test_casts_of_a_weight_beside_others(self):
        def forward(s):
            with torch.autocast("cpu", torch.bfloat16):
                h = torch.addmm(s.a.bias, s.norm(torch.tanh(s.b(s.x)).float()), s.a.weight)
            return s.c(torch.exp(h.float() * s.now)).pow(2).sum()

        self.varies(forward, 1.0, 0.5, False)

    def test_another_type_of_autocast(self):
        def forward(s):
            with torch.autocast("cpu", s.now):
                h = s.b(torch.tanh(s.a(s.x))).float()
            return s.c(torch.exp(h)).pow(2).sum()

        self.varies(forward, torch.bfloat16, torch.float16, False)

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
            self.assertEqual(executor_of(plan).deviations, [])

    def test_a_number_before_a_saved_tensor_is_no_deviation(self):
        case = Case(lambda s: s.c(torch.tanh(s.norm(torch.exp(s.a(s.x * s.now)) * 2.0))).pow(2).sum(), 1.0)
        for plan in self.plans(case.record()):
            for case.now in (1.0, 2.0, 3.0):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

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

    def test_a_short_batch(self):
        self.varies(lambda s: s.c(torch.tanh(s.norm(s.a(s.x[:s.now])))).pow(2).sum(), 6, 4, False)

    def test_fewer_and_more_layers(self):
        def forward(s):
            h = s.x
            for _ in range(s.now):
                h = F.gelu(s.norm(s.a(h)))
            return s.c(h).pow(2).sum()

        for other in (1, 3):
            self.varies(forward, 2, other)

    def test_a_frozen_parameter(self):
        case = Case(lambda s: s.c(torch.tanh(s.norm(s.a(s.x)))).pow(2).sum())
        tape = case.record()
        for plan in self.plans(tape):
            for frozen in (False, True, False):
                case.a.requires_grad_(not frozen)
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_what_only_a_recorded_step_does_is_no_deviation(self):
        forwards = {"reshape makes a view": lambda s: s.a(s.x).t().reshape(8, 2, 3).transpose(0, 2).reshape(6, 8),
                    "a size that a node notes late": lambda s: torch.linalg.svdvals(s.a(s.x)).sigmoid()[:, None] * s.x}
        for name, forward in forwards.items():
            case = Case(lambda s, forward=forward: s.c(torch.tanh(s.norm(forward(s)))).pow(2).sum())
            for plan in self.plans(case.record()):
                with self.subTest(name):
                    for _ in range(2):
                        self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
                    self.assertEqual(executor_of(plan).deviations, [])

    def test_complex_numbers(self):
        def forward(s):
            h = torch.complex(s.a(s.x), s.b(s.x))
            h = torch.exp(h.conj() * 0.1) @ h.mH
            return (h.imag.tanh() * h.real).sum() + s.c(s.x).sum()

        case = Case(forward)
        for plan in self.plans(case.record()):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])

    def test_sparse_gradients(self):
        case = Case(lambda s: s.c(torch.tanh(s.norm(F.embedding(s.now, s.table, sparse=True)))).pow(2).sum(), torch.tensor([0, 2, 1, 2]))
        case.table = nn.Parameter(torch.randn(4, 8))
        for plan in self.plans(case.record()):
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])
            self.assertTrue(case.table.grad.is_sparse)

    def test_another_stream(self):
        class Device(CpuDevice):
            def current(self):
                return False

        case = self.case()
        for plan in self.plans(case.record()):
            EXECUTORS[plan] = Executor(plan, Device())
            self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertRegex(executor_of(plan).deviations[0], "another stream")

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


if __name__ == "__main__":
    unittest.main()

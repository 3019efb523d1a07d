"""Tests what the message of a budget below the floor names, and its bytes."""

import re
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from guard_test import Guarded, counted
from spillway_torch import SpillwayError, fit, make_plan
from spillway_torch.fit.weights import Weights
from spillway_torch.tape.tape_recorder import record_tape


BF16 = "torch.autocast with bfloat16"
CHECKPOINT = "no torch.utils.checkpoint, in whose place plans recompute"
EARLY = "fit(..., early_updates=True)"
IDLE = "requires_grad_(False) for parameters that no optimizer updates"


class Again(torch.autograd.Function):
    """Runs a block again in backward, as reversible layers and adjoint methods do."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.save_for_backward(x)
        ctx.block = block
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            made = ctx.block(x)
        made.backward(gradient)
        return x.grad, None


class Blocks(nn.Module):
    def __init__(self, inner=256, blocks=4, checkpoints=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, inner), nn.GELU(), nn.Linear(inner, 64)) for _ in range(blocks))
        self.checkpoints = checkpoints

    def forward(self, x):
        for block in self.blocks:
            x = x + (Again.apply(x.requires_grad_(), block) if self.checkpoints == "own" else
                     checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x))
        return x


def tape_of(model, rows=128, cast=False, loss=lambda y: y.square().mean()):
    x = torch.randn(rows, 64)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            made = loss(model(x))
        made.backward()
    model.zero_grad()
    return record_tape(step, "cpu", model)


def named(call):
    """Returns the bytes that a refused budget's message names, in their order, by what it names."""
    try:
        call()
    except SpillwayError as error:
        if "is below the floor" not in str(error):
            raise
        return {text: int(size.replace(",", "")) for size, text in re.findall(r"\n  ([\d,]+) bytes by ([^:]*):", str(error))}
    raise AssertionError("the budget was not refused")


class RemediesTest(unittest.TestCase):
    def test_half_of_the_batch(self):
        tapes = [tape_of(Blocks(), rows) for rows in (1024, 512)]
        found = named(lambda: make_plan(tapes[0], 1))
        floors = [make_plan(tape, 1 << 40).floor.bytes for tape in tapes]
        less = found["a batch of 512 in place of 1024"]
        self.assertLess(abs(floors[0] - floors[1] - less), 0.01 * less)
        self.assertEqual(list(found), ["a batch of 512 in place of 1024", BF16])  # the most first
        self.assertNotIn("a batch of 0 in place of 1", named(lambda: make_plan(tape_of(Blocks(), 1), 1)))

    def test_autocast(self):
        plain, cast = tape_of(Blocks(), 1024), tape_of(Blocks(), 1024, cast=True)
        floors = [make_plan(tape, 1 << 40).floor.bytes for tape in (plain, cast)]
        self.assertEqual(named(lambda: make_plan(plain, 1))[BF16], floors[0] - floors[1])
        self.assertNotIn(BF16, named(lambda: make_plan(cast, 1)))
        none = torch.zeros(1024, dtype=torch.int64)
        for loss, casts in ((lambda y: F.cross_entropy(y @ torch.ones(64, 500), none), (False, True)),  # it leaves a loss in float32
                            (lambda y: (y.repeat(1, 9) * y.repeat(1, 9)).mean(), (False, True)),  # and a sum of what is
                            (lambda y: (y @ torch.ones(64, 500)).float().tanh().tanh().sum(), (True,))):
            for cast in casts:
                tape = tape_of(Blocks(64, 1), 1024, cast, loss)
                self.assertNotIn(BF16, named(lambda: make_plan(tape, 1)))  # noqa: B023 pylint: disable=cell-var-from-loop

    def test_checkpoints(self):
        without, tape = tape_of(Blocks(64)), tape_of(Blocks(64, checkpoints=True))
        found = named(lambda: make_plan(tape, 1))[CHECKPOINT]
        self.assertEqual(found, 2 * 128 * 64 * 4)  # the first layer's result and that of GELU, while the gradient of the last weight is made
        self.assertGreater(make_plan(tape, 1 << 40).floor.bytes, make_plan(without, 1 << 40).floor.bytes)
        for other in without, tape_of(Blocks(64, checkpoints="own")):
            self.assertNotIn(CHECKPOINT, named(lambda: make_plan(other, 1)))  # noqa: B023 pylint: disable=cell-var-from-loop

    def train(self, budget, unused=False, early=False, accumulate=1, given=True):
        with counted(Guarded()), mock.patch.object(Weights, "_trained", lambda _: []):  # they would make room
            model = Blocks()
            if unused:
                model.blocks.append(nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64)))
            optimizer = torch.optim.AdamW(model.blocks[:4].parameters(), foreach=False)
            fitted = fit(model, optimizer if given else None, budget, early_updates=early)
            self.addCleanup(fitted.remove)
            for _ in range(3):
                for _ in range(accumulate):
                    model(torch.randn(128, 64)).square().mean().backward()
                optimizer.step()
                model.zero_grad()
            return fitted

    def named_below(self, **options):
        """Returns what is named for a budget just below the floor, and the plan for a larger one."""
        plan = self.train(1 << 40, **options).plan
        return named(lambda: self.train(plan.floor.bytes - 1, **options)), plan

    def test_gradients(self):
        found, plan = self.named_below()
        kept = 2 * max(update.bytes for update in plan.tape.updates)
        self.assertEqual(found[EARLY], plan.tape.gradients()[-1] - kept)  # the update needs the floor
        self.assertNotIn(IDLE, found)
        self.assertNotIn(EARLY, self.named_below(accumulate=2)[0])
        early = self.train(1 << 40, early=True).plan
        self.assertLess(early.floor.bytes, plan.floor.bytes)
        self.assertEqual((early.tape.early, self.train(1 << 40, given=False).plan.tape.early), (None, None))

    def test_gradients_that_nobody_uses(self):
        found = self.named_below(unused=True)[0]
        self.assertEqual(found[IDLE], sum(p.nbytes for p in (*nn.Linear(64, 512).parameters(), *nn.Linear(512, 64).parameters())))
        self.assertEqual(self.train(1 << 40, unused=True, given=False).plan.tape.idle, set())  # others may be updated later
        model = Blocks()
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.blocks[:2], model.blocks[2:])]
        fitted = fit(model, optimizers, 1 << 40)
        model(torch.randn(8, 64)).square().mean().backward()
        optimizers[0].step()  # it plans, before the other one updates its part
        self.assertEqual(fitted.plan.tape.idle, set())
        fitted.remove()


if __name__ == "__main__":
    unittest.main()

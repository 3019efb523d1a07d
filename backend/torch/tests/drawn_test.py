"""Tests drawn programs under `fit`, whose sizes, numbers, views and branches are drawn anew in each step, on a device that counts."""

import logging
import random
import unittest

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from guard_test import Guarded, counted
from spillway_torch import fit
from spillway_torch.base.errors import NoPlanError
from stepping import different

DRAWN = 12  # programs
WIDTH, ROWS, STEPS = 48, 64, 7

PARTS = (lambda m, h, now: m.a(h), lambda m, h, now: m.norm(m.b(h)), lambda m, h, now: torch.tanh(h), lambda m, h, now: F.gelu(h),
         lambda m, h, now: torch.exp(h * now["number"] * 0.01), lambda m, h, now: m.a(h).mul_(now["number"]),
         lambda m, h, now: torch.native_dropout(h, now["rate"], True)[0], lambda m, h, now: h.masked_fill(h > now["number"], now["rate"]),
         lambda m, h, now: h * m.number, lambda m, h, now: torch.sigmoid(h) + torch.tensor(now["rate"]),
         lambda m, h, now: m.b(h) if now["branch"] else m.a(torch.tanh(h)), lambda m, h, now: torch.cat([h[:1], torch.tanh(h[1:])]),
         lambda m, h, now: h * m.pool[now["offset"]:now["offset"] + len(h)], lambda m, h, now: h.to(torch.bfloat16).float(),
         lambda m, h, now: torch.where(h > 0, h, h * now["rate"]),
         lambda m, h, now: F.layer_norm(h, (WIDTH,), m.norm.weight, m.norm.bias, now["rate"]))


class Model(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.parts = [draw.choice(PARTS) for _ in range(draw.randint(6, 14))]
        self.register_buffer("number", torch.tensor(1.0))  # a tensor of no dimension, which each step changes
        self.register_buffer("pool", torch.randn(2 * ROWS, WIDTH))
        if draw.random() < 0.4:
            self.b.requires_grad_(False)

    def forward(self, x, now):
        h = self.a(x)
        for part in self.parts:
            h = part(self, h, now)
        return self.a(torch.tanh(h))


class Program:
    """A drawn program. The same seed makes the same one."""

    def __init__(self, seed, largest=False):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.model, self.data = Model(draw), torch.randn(2 * ROWS, WIDTH)
        self.optimizer = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
        self.twice, self.evaluates, self.accumulates = draw.random() < 0.4, draw.random() < 0.4, draw.choice((1, 1, 2, 3))
        rows = draw.random() < 0.8
        self.steps = [[{"rows": ROWS if largest or not rows else draw.randint(4, ROWS), "number": draw.uniform(0.5, 1.5),
                        "rate": draw.uniform(0.1, 0.6), "branch": draw.random() < 0.3, "offset": draw.randint(0, ROWS)}
                       for _ in range(self.accumulates)] for _ in range(STEPS)]

    def run(self, device, fitted=None):
        """Returns what the steps computed, and the most memory of each."""
        torch.manual_seed(1)
        seen, peaks, runs = [], [], []
        for step in self.steps:
            self.optimizer.zero_grad()
            if self.evaluates:
                self.model.eval()
                with torch.no_grad():
                    self.model(self.data[:2], step[0])
                self.model.train()
            device.peak = device.allocated
            for now in step:
                with torch.no_grad():
                    self.model.number.fill_(now["number"])
                x = self.data[now["offset"]:now["offset"] + now["rows"]]
                loss = self.model(x, now).square().mean()
                if self.twice:
                    loss = loss + self.model(x + 1, now).square().mean()
                loss.backward()
                runs.append(fitted.last if fitted is not None else None)
                with _disable_current_modes():
                    seen.append(loss.detach().clone())
                del loss
            self.optimizer.step()
            peaks.append(device.peak)
            with _disable_current_modes():
                seen += [p.detach().clone() for p in self.model.parameters()]
        return [*seen, torch.get_rng_state()], peaks, runs


class DrawnTest(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)

    def carry_out(self, seed, budget=None, largest=False):
        device = Guarded()
        with counted(device):
            program = Program(seed, largest)
            fitted = fit(program.model, program.optimizer, budget) if budget is not None else None
            seen, peaks, runs = program.run(device, fitted)
        plan = fitted.plan if fitted is not None else None
        if fitted is not None:
            fitted.remove()
        return seen, peaks, runs, plan

    def test_drawn_programs_keep_results_and_budget_from_the_first_step(self):
        recomputed = 0
        for seed in range(DRAWN):
            want, eager, _, _ = self.carry_out(seed)
            plan = self.carry_out(seed, 1 << 40, largest=True)[3]
            floor = plan.floor.bytes + sum(update.bytes for update in plan.tape.updates)  # with all state on the device
            for share in 0.4, 0.8:
                with self.subTest(seed=seed, share=share):
                    budget = floor + int(share * max(0, max(eager) - floor))
                    try:
                        got, peaks, runs, _ = self.carry_out(seed, budget)
                    except NoPlanError:  # a CPU has no copies on the host
                        continue
                    self.assertEqual(different(want, got), [])
                    self.assertLessEqual(max(peaks), budget)
                    recomputed += sum(run.recomputed for run in runs if run is not None)
        self.assertGreater(recomputed, 10 * DRAWN)


if __name__ == "__main__":
    unittest.main()

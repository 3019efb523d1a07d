"""Tests what `fit` says of its steps, and the steps that it verifies."""

import logging
import unittest
from unittest import mock

import torch
from torch import nn

from counting import Counting
from fit_test import Script, budget_of
from spillway_torch import SpillwayError, fit


def layers():
    """Returns a model whose plans run linear layers again: the results of tanh alone are saved."""
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 32), nn.Tanh())))


class VerifyTest(unittest.TestCase):
    def setUp(self):
        self.x = torch.randn(200, 32)
        self.model = layers()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fitted(self, **options):
        whole = fit(self.model, self.optimizer, 1 << 40)
        self.step()
        plan = whole.plan
        whole.remove()
        fitted = fit(self.model, self.optimizer, (plan.floor.bytes + plan.eager_peak) // 2, **options)
        self.addCleanup(fitted.remove)
        self.step()
        return fitted

    def step(self, change=False):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        if change:
            for layer in self.model:
                if isinstance(layer, nn.Linear):
                    layer.weight.data.mul_(1.5)  # PyTorch does not see it
        loss.backward()
        self.optimizer.step()

    def test_each_step_of_so_many_is_compared(self):
        fitted = self.fitted(verify=2)
        verified = []
        for _ in range(6):
            self.step()
            self.assertGreater(fitted.last.recomputed, 0)
            verified.append(fitted.last.verified > 0)
        self.assertIn(verified, ([True, False] * 3, [False, True] * 3))
        self.assertGreater(fitted.stats()["verified_storages"], 0)
        self.assertIn("storages were verified", fitted.report())

    def test_other_bits_are_an_error(self):
        for verify in 0, 1:
            with self.subTest(verify=verify):
                fitted = self.fitted(verify=verify)
                self.step()
                self.assertGreater(fitted.last.recomputed, 0)
                if verify:
                    with self.assertRaisesRegex(RuntimeError, r"made other bits than in forward \(\d+ of \d+ bytes differ\)"):
                        self.step(change=True)
                else:
                    self.step(change=True)
                fitted.remove()

    def test_values_that_are_no_numbers_are_equal_to_themselves(self):
        fitted = self.fitted(verify=1)
        self.x[0] = float("nan")
        self.step()
        self.assertGreater(fitted.last.verified, 0)


class ReportTest(unittest.TestCase):
    def test_wrong_numbers_of_steps(self):
        for name in "verify", "report_every":
            for wrong in -1, 1.5, True, "3":
                with self.subTest(name, wrong=wrong), self.assertRaisesRegex(SpillwayError, f"{name} is {wrong!r}; expected a number of"):
                    fit(nn.Linear(2, 2), None, 1 << 20, **{name: wrong})

    def test_a_line_after_so_many_steps(self):
        budget, _ = budget_of()
        script = Script()
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            fitted = fit(script.model, script.optimizer, budget, report_every=3)
            script.run(10)
        lines = [line for line in logs.output if " steps: " in line]
        self.assertEqual([line.split("; ")[1].split(":")[0] for line in lines], ["3 steps", "6 steps", "9 steps"])
        self.assertRegex(lines[0], r"3 steps: 2 planned \(67%\), 0 as they are \(0%\), 1 recorded \(33%\); a step takes [0-9.]+ ms; ")
        stats = fitted.stats()
        self.assertEqual([stats[name] for name in ("steps", "planned", "guarded", "recorded", "budget_bytes")], [10, 9, 0, 1, budget])
        self.assertGreater(stats["recomputed_operators"] + stats["offloaded_bytes"], 0)
        fitted.remove()

    def test_the_most_memory_is_that_of_the_device(self):
        budget, _ = budget_of()
        device, script, peaks = Counting(), Script(), []
        script.optimizer.register_step_pre_hook(lambda *_: peaks.append(device.peak))
        with mock.patch("spillway_torch.tape.tape_recorder.device_of", lambda _: device), \
                mock.patch("spillway_torch.run.executor.device_of", lambda _: device), device:
            fitted = fit(script.model, script.optimizer, budget)
            script.run(6)
            self.assertEqual(fitted.stats()["most_bytes"], max(peaks))
        fitted.remove()


if __name__ == "__main__":
    unittest.main()

"""Tests steps whose plans are made in the background, while a guard keeps the budget."""

import contextlib
import logging
import threading
import unittest
from unittest import mock

import torch
from torch.nn import functional as F

import cases
from guard_test import Guarded, counted
from spillway_torch import fit
from spillway_torch.fit import family
from stepping import different


@contextlib.contextmanager
def background():
    """Within it, plans are made in the background, as for a GPU."""
    plain = family.Family.__init__

    def make(self, *given):
        plain(self, *given)
        self._waits = False

    with mock.patch.object(family.Family, "__init__", make):
        yield


class Steps:
    """Training steps of a Transformer, on a device that counts its memory."""

    def __init__(self, budget=None):
        torch.manual_seed(0)
        self.model = cases.Transformer(dropout=0.0, layers=3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.fitted = fit(self.model, self.optimizer, memory=budget) if budget is not None else None

    def run(self, device, length=23):
        """Returns the most bytes of the device."""
        device.peak = device.allocated
        self.optimizer.zero_grad()
        tokens = torch.randint(50, (5, length), generator=torch.Generator().manual_seed(length))
        F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten()).backward()
        self.optimizer.step()
        return device.peak

    def bits(self):
        return [p.detach().clone() for p in self.model.parameters()]


class BackgroundTest(unittest.TestCase):
    def setUp(self):
        self.released = threading.Event()
        self.asked, self.made = 0, threading.Semaphore(0)  # plans that were asked for, and that were made
        self.addCleanup(self.released.set)

    def planning(self, waits):
        """Makes plans wait for `released` from the one of this number on."""
        plain = family.make_plan

        def make_plan(*given, **named):
            self.asked += 1
            if self.asked > waits:
                self.released.wait()
            try:
                return plain(*given, **named)
            finally:
                self.made.release()

        return mock.patch.object(family, "make_plan", make_plan)

    def eager(self, lengths):
        """Returns the most bytes of steps without a budget, and the bits that they make."""
        device = Guarded()
        with counted(device):
            steps = Steps()
            peaks = [steps.run(device, length) for length in lengths]
        return max(peaks), steps.bits()

    def test_steps_are_guarded_until_there_is_a_plan(self):
        most, want = self.eager([23] * 8)
        device, budget = Guarded(), int(0.8 * most)
        with background(), self.planning(1), counted(device):
            steps = Steps(budget)
            peaks = [steps.run(device)]
            self.made.acquire(timeout=60)
            for _ in range(7):
                peaks.append(steps.run(device))
        self.assertLessEqual(max(peaks), budget)
        self.assertEqual(different(want, steps.bits()), [])
        self.assertEqual(self.asked, 1)
        self.assertGreater(steps.fitted.stats()["planned"], 4)
        self.assertEqual(len(steps.fitted.report().splitlines()), 2)
        steps.fitted.remove()

    def test_gradients_that_add_up_make_state_leave(self):
        """Without a plan, the backward of a second batch has gradients beside what the recorded one took, and later ones state."""
        def train(budget=None):
            device, peaks = Guarded(), []
            torch.manual_seed(0)
            with counted(device):
                model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 3000))
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                fitted = fit(model, optimizer, memory=budget) if budget is not None else None
                for _ in range(4):
                    device.peak = device.allocated
                    for _ in range(2):
                        F.cross_entropy(model(torch.randn(400, 64)), torch.randint(3000, (400,))).backward()
                    peaks.append(device.peak)
                    optimizer.step()
                    optimizer.zero_grad()
            return peaks, [p.detach().clone() for p in model.parameters()], fitted

        peaks, want, _ = train()
        state = 2 * sum(p.nbytes for p in want)
        with background(), self.planning(0):
            budget = int(peaks[-1] - 0.6 * state)
            peaks, got, fitted = train(budget)
            self.assertEqual(fitted.stats()["planned"], 0)
            self.released.set()
            fitted.remove()
        self.assertLessEqual(max(peaks), budget)
        self.assertEqual(different(want, got), [])

    def test_plans_leave_out_what_the_guard_had_to_move(self):
        """Where more exists besides than while the step was recorded, the guard keeps the budget in a planned step, and then a plan does."""
        most, want = self.eager([23] * 9)
        device, budget, moved = Guarded(), int(0.8 * most), []
        with counted(device), self.assertLogs("spillway_torch", logging.INFO) as logs:
            steps = Steps(budget)
            peaks = [steps.run(device)]
            more = torch.empty(budget // 20, dtype=torch.uint8)
            for _ in range(8):
                peaks.append(steps.run(device))
                moved.append(steps.fitted.last.guarded)
        self.assertLessEqual(max(peaks), budget)
        self.assertEqual(different(want, steps.bits()), [])
        self.assertGreater(moved[0], 0)
        self.assertEqual(moved[4:], [0] * 4)
        self.assertIn("because memory was short in planned steps", "".join(logs.output))
        steps.fitted.remove()
        del more

    def test_a_plan_that_was_asked_for_before_all_were_made_anew_is_not_taken(self):
        most, _ = self.eager([23])
        device = Guarded()
        with background(), self.planning(1), counted(device):
            steps = Steps(int(0.8 * most))
            steps.run(device)
            self.made.acquire(timeout=60)
            steps.run(device, 40)  # another plan is searched for
            plans = steps.fitted._state.family
            plans._renewed += 1  # what was planned so far does not count
            plans._since = None
            known = list(plans.rungs)
            self.released.set()
            self.made.acquire(timeout=60)
            threads = [thread for thread in threading.enumerate() if thread.name == "spillway plan"]
            for thread in threads:
                thread.join()
            steps.run(device)
        self.assertEqual(plans.rungs, known)
        self.assertEqual(list(plans._made), [])
        steps.fitted.remove()

    def test_it_is_said_why_steps_have_no_plan(self):
        most, want = self.eager([23] * 12)
        device, budget = Guarded(), int(0.8 * most)
        with background(), self.planning(0), counted(device):
            steps = Steps(budget)
            with self.assertLogs("spillway_torch", logging.WARNING) as logs:
                peaks = [steps.run(device) for _ in range(12)]
        self.assertLessEqual(max(peaks), budget)
        self.assertEqual(different(want, steps.bits()), [])
        self.assertRegex("\n".join(logs.output), r"10 steps ran without a plan: a plan has been searched for in the background for")
        self.assertRegex(steps.fitted.report(), r"inputs of \[5, 23\]: a plan has been searched for in the background for")
        steps.fitted.remove()

    def test_an_error_of_the_planner_is_raised(self):
        device = Guarded()
        failed = threading.Event()

        def make_plan(*_, **__):
            failed.set()
            raise KeyError("a fault")

        with background(), mock.patch.object(family, "make_plan", make_plan), counted(device):
            steps = Steps("1GiB")
            steps.run(device)
            failed.wait()
            with self.assertRaisesRegex(KeyError, "a fault"):
                for _ in range(100):
                    steps.run(device)
        steps.fitted.remove()

    def test_guarded_steps_of_other_sizes_keep_the_budget(self):
        lengths = [23, 40, 33, 9, 48, 26]
        most, want = self.eager(lengths)
        for share in 0.6, 0.8:
            with self.subTest(share), background(), mock.patch.object(family.Family, "plan_for", lambda *_, **__: None):
                device, budget = Guarded(), int(share * most)
                with counted(device):
                    steps = Steps(budget)
                    peaks = [steps.run(device, length) for length in lengths]
                self.assertLessEqual(max(peaks), budget)
                self.assertGreater(steps.fitted.stats()["guarded_bytes"], 0)
                self.assertEqual(different(want, steps.bits()), [])
                steps.fitted.remove()

    def test_what_operators_of_a_step_without_a_plan_take_besides_is_left_out_later(self):
        most, want = self.eager([23] * 8)
        device, budget = Guarded(), int(0.7 * most)
        with background(), mock.patch.object(family.Family, "plan_for", lambda *_, **__: None), counted(device):
            steps = Steps(budget)
            peaks = [steps.run(device) for _ in range(2)]
            device.scratch["aten::native_layer_norm_backward"] = budget // 20  # the recorded one took none
            peaks += [steps.run(device) for _ in range(6)]
        self.assertEqual([peak > budget for peak in peaks[:3]], [False, False, True])
        self.assertLessEqual(peaks[-1], budget)
        self.assertEqual(different(want, steps.bits()), [])
        steps.fitted.remove()


if __name__ == "__main__":
    unittest.main()

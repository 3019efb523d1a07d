"""Tests the order of copies on a device that runs them as badly as events allow, and that planted races are caught there."""

import unittest

import torch

from adversary import Adversary
from spillway_torch.base.device import Queue
from spillway_torch.base.errors import NoPlanError
from spillway_torch.plan.planner import make_plan
from spillway_torch.run.executor import EXECUTORS, Executor, executor_of, step
from stepping import MODELS, QUICK, Stepping, different, random_plan

COMPUTE, OUT, IN = Queue.COMPUTE, Queue.OUT, Queue.IN

# The waits of the executor: the call for the library, the queue that waits, and the queue that is waited for.
WAITS = {
    "memory is given up, and comes back, before its copy to the host is done": (("give_up",), COMPUTE, OUT),
    "memory is read before its copy from the host is done": (("fetch",), COMPUTE, IN),
    "memory is given up while a copy from the host writes to it": (("end",), COMPUTE, IN),
    "memory is copied before its operator is done": (("copy_out",), OUT, COMPUTE),
    "memory comes back while its last owner uses it": (("copy_in",), IN, COMPUTE),
}


class RacesTest(unittest.TestCase):
    def setUp(self):
        self.stepping = Stepping(MODELS["vit"])
        self.tape = self.stepping.record()
        self.want = self.stepping.steps(count=2)

    def right(self, seed, omit=None):
        """Runs steps, one of them without a whole backward; returns whether all went well, and the device."""
        plan = random_plan(self.tape, seed)
        device = Adversary(seed, omit)
        EXECUTORS[plan] = Executor(plan, device)
        self.stepping.reset()
        with step(plan):
            loss = self.stepping.loss()
        torch.autograd.grad(loss, list(self.stepping.model.parameters())[-2:], retain_graph=True)
        del loss
        good = different(self.want, self.stepping.steps(plan, count=2)) == []
        self.assertEqual(executor_of(plan).deviations, [])
        for queue in (OUT, IN):
            while device.run(queue):
                pass
        return good and not device.violations, device

    def test_any_order_gives_the_same_results(self):
        copies = 0
        for seed in range(12):
            with self.subTest(seed=seed):
                good, device = self.right(seed)
                self.assertTrue(good, device.violations)
                copies += device.copies
        self.assertGreater(copies, 500)

    def test_each_planted_race_is_caught(self):
        for name, omit in WAITS.items():
            with self.subTest(name):
                caught = omitted = 0
                for seed in range(24):
                    good, device = self.right(seed, omit)
                    caught += not good
                    omitted += device.omitted
                    if caught:
                        break
                self.assertGreater(omitted, 0)
                self.assertGreater(caught, 0)

    def test_all_models_under_budgets(self):
        for name in ("resnet", "gpt, fused dropout", "llama, autocast"):
            stepping = Stepping(MODELS[name])
            want, tape = stepping.steps(), stepping.record()
            eager = make_plan(tape, 1 << 40)
            for seed in range(3):
                with self.subTest(name, seed=seed):
                    budget = eager.floor.bytes + (seed + 1) * (eager.peak - eager.floor.bytes) // 4
                    try:
                        plan = make_plan(tape, budget, moves=("offload",), policy=QUICK)
                    except NoPlanError:  # a step whose floor is near its peak
                        plan = random_plan(tape, seed)
                    device = Adversary(seed)
                    self.assertEqual(different(want, stepping.steps(plan, device=device)), [])
                    self.assertEqual((device.violations, executor_of(plan).deviations), ([], []))


if __name__ == "__main__":
    unittest.main()

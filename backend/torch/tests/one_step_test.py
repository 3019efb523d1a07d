"""Tests that one recorded step can be asked whether it fits, planned, explained and run."""

import tempfile
import unittest

import torch

import cases
from spillway_torch import SpillwayError, explain, make_plan, pretend, record, step, write_step


class OneStepTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.model, self.step = cases.mlp("cpu", optimizer=torch.optim.AdamW)

    def test_a_step_with_values_answers_all(self):
        recorded = record(self.step, "cpu", model=self.model, name="mlp", batch=16, values=True)
        plain = record(self.step, "cpu", model=self.model, name="mlp", batch=16)
        self.assertEqual({op.module for op in recorded.operators}, {op.module for op in plain.operators})
        self.assertEqual([row.device for row in recorded.fit(["h200"])], ["h200"])
        self.assertAlmostEqual(recorded.peak_requested / plain.peak_requested, 1, delta=0.01)
        self.assertEqual(len(recorded.trace()["saved"]), len(plain.trace()["saved"]))
        plan = make_plan(recorded, "1GiB")
        with step(plan):
            self.step()
        self.assertEqual(explain(recorded).rows[-1].peak, plan.eager_peak)

    def test_a_step_without_values_cannot_be_planned(self):
        with pretend("cuda:sm_90"):
            model, run = cases.mlp("cuda")
            pretended = record(run, model=model)
        for recorded in (pretended, record(self.step, "cpu", model=self.model)):
            for attempt in (lambda: make_plan(recorded, "1GiB"), lambda: explain(recorded), lambda: self.written(recorded)):
                with self.assertRaisesRegex(SpillwayError, "without the values of its tensors, which a plan needs: .* values=True"):
                    attempt()

    @staticmethod
    def written(recorded):
        with tempfile.TemporaryDirectory() as folder:
            write_step(recorded, f"{folder}/step.json")

    def test_a_pretended_device_has_no_values(self):
        with self.assertRaisesRegex(SpillwayError, "target 'cuda:sm_90' has no values"):
            record(self.step, "cuda:sm_90", values=True)


if __name__ == "__main__":
    unittest.main()

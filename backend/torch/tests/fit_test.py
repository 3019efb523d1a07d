"""Tests `fit` on training scripts that stay as they are."""

import contextlib
import copy
import dataclasses
import gc
import io
import logging
import os
import unittest
import weakref
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from counting import Counting
from spillway_torch import ProgramError, SpillwayError, fit
from spillway_torch.base.device import Host, Memory
from spillway_torch.plan import planner
from spillway_torch.plan.plan import in_unit, parse_bytes
from stepping import Vit, different


class Script:
    """A training script: steps with data of its own, and losses and weights as its result."""

    def __init__(self, make=Vit, optimizer=torch.optim.AdamW, accumulate=1, late=False):
        torch.manual_seed(0)
        self.model = make()
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.accumulate = accumulate
        self.late = late  # gradients go after the forward

    def run(self, steps=4, batch=lambda at: 3, evaluate=False):
        torch.manual_seed(2)
        seen = []
        for at in range(steps):
            if not self.late:
                self.optimizer.zero_grad()
            for _ in range(self.accumulate):
                x, y = torch.randn(batch(at), 3, 16, 16), torch.randint(10, (batch(at),))
                loss = F.cross_entropy(self.model(x), y) / self.accumulate
                if self.late:
                    self.optimizer.zero_grad()
                loss.backward()
                seen.append(loss.detach())
            self.optimizer.step()
            if evaluate:
                self.model.eval()
                with torch.no_grad():
                    seen.append(self.model(x).clone())
                self.model.train()
        return [*seen, *(t.clone() for t in self.model.state_dict().values()), torch.get_rng_state()]


def budget_of(**options):
    """Returns a budget between the floor and what a step takes without a plan."""
    script = Script(**options)
    fitted = fit(script.model, script.optimizer, 1 << 40)
    script.run(2)
    plan = fitted.plan
    fitted.remove()
    return (plan.floor.bytes + plan.eager_peak) // 2, plan


class FitTest(unittest.TestCase):
    def test_a_script_has_the_same_results(self):
        for name, options, run in (("as it is", {}, {}), ("accumulation", {"accumulate": 2}, {}),
                                   ("evaluation in between", {}, {"evaluate": True}),
                                   ("SGD", {"optimizer": torch.optim.SGD}, {})):
            with self.subTest(name):
                budget, _ = budget_of(**options)
                want = Script(**options).run(**run)
                script = Script(**options)
                fitted = fit(script.model, script.optimizer, budget)
                with self.assertLogs("spillway_torch", logging.INFO) as logs:
                    self.assertEqual(different(want, script.run(**run)), [])
                self.assertEqual(len(logs.output), 2 if name == "accumulation" else 1, logs.output)
                self.assertRegex(logs.output[0], r"recorded \d+ operators, planned in .* s: predicted peak [\d.]+ KiB of [\d.]+ KiB \(without a "
                                                 r"plan .*, floor .*\); 0 storages go to the host and \d+ are recomputed, from the next")
                self.assertGreater(len(fitted.plan.actions), 0)
                self.assertGreater(fitted.last.recomputed, 0)
                fitted.remove()
                self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))

    def test_a_cpu_keeps_no_copies_of_the_recorded_step(self):
        script, before, taken = Script(), Host.taken, []
        fitted = fit(script.model, script.optimizer, 1 << 40)
        script.optimizer.register_step_pre_hook(lambda *_: taken.append(Host.taken - before))
        script.run(2)
        self.assertEqual(taken, [0, 0])
        fitted.remove()

    def test_a_policy_of_the_program_chooses(self):
        budget, _ = budget_of()
        want = Script().run()
        script = Script()
        fitted = fit(script.model, script.optimizer, budget, policy="dtr")
        with mock.patch.object(planner, "ask", wraps=planner.ask) as ask:
            self.assertEqual(different(want, script.run()), [])
        self.assertEqual(ask.call_args[0][-2:], ("--policy", "dtr"))
        self.assertGreater(len(fitted.plan.actions), 0)
        self.assertGreater(fitted.last.recomputed, 0)
        fitted.remove()

    def test_a_program_that_is_missing_is_needed(self):
        script = Script()
        fitted = fit(script.model, script.optimizer, 1 << 40)
        with mock.patch.dict(os.environ, {"SPILLWAY": "", "PATH": ""}), \
                self.assertRaisesRegex(ProgramError, "the program 'spillway' is not on PATH.*, or set the variable SPILLWAY"):
            script.run()
        fitted.remove()

    def test_a_short_batch_has_the_plan_of_a_full_one(self):
        budget, _ = budget_of()
        batch = lambda at: 2 if at == 3 else 3  # noqa: E731
        want = Script().run(6, batch)
        script = Script()
        fitted = fit(script.model, None, budget)
        with self.assertNoLogs("spillway_torch", logging.WARNING):
            self.assertEqual(different(want, script.run(6, batch)), [])
        self.assertEqual(fitted._structures.recordings, 1)
        fitted.remove()

    def test_a_model_that_is_called_twice_in_each_step(self):
        def run(script):
            torch.manual_seed(2)
            seen = []
            for _ in range(4):
                script.optimizer.zero_grad()
                loss = F.mse_loss(*(script.model(torch.randn(3, 3, 16, 16)) for _ in range(2)))
                loss.backward()
                seen += [loss.detach(), *(p.grad.clone() for p in script.model.parameters())]
                script.optimizer.step()
            return seen

        want, budget = run(Script()), 1 << 40
        for _ in range(2):
            script = Script()
            fitted = fit(script.model, script.optimizer, budget)
            with self.assertNoLogs("spillway_torch", logging.WARNING):
                self.assertEqual(different(want, run(script)), [])
            self.assertEqual(fitted.last.recomputed > 0, budget < 1 << 40)
            budget = (fitted.plan.floor.bytes + 2 * fitted.plan.eager_peak) // 3
            fitted.remove()

    def test_updates_inside_backward(self):
        def run(budget=None):
            script = Script()
            optimizers = {p: torch.optim.SGD([p], lr=0.01, momentum=0.9) for p in script.model.parameters()}

            def update(p):
                optimizers[p].step()
                optimizers[p].zero_grad()

            for p in optimizers:
                p.register_post_accumulate_grad_hook(update)
            fitted = fit(script.model, None, budget) if budget is not None else None
            script.optimizer.step = lambda: None
            return script.run(), fitted

        want, budget = run()[0], 1 << 40
        for _ in range(2):
            got, fitted = run(budget)
            self.assertEqual(different(want, got), [])
            self.assertEqual(fitted.last.recomputed > 0, budget < 1 << 40)
            budget = fitted.plan.eager_peak - 1000
            fitted.remove()
            self.assertIsNone(_get_current_dispatch_mode())

    def test_a_forward_that_nobody_uses(self):
        budget, _ = budget_of()
        script = Script()
        fitted = fit(script.model, script.optimizer, budget)
        script.model(torch.randn(3, 3, 16, 16))
        with self.assertLogs("spillway_torch", logging.WARNING) as logs:
            script.run()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "this step was not recorded: the step saved no tensor for a backward that ran in it")
        self.assertGreater(fitted.last.recomputed, 0)
        fitted.remove()

    def test_two_budgets_in_a_step(self):
        one, other = nn.Linear(8, 8), nn.Linear(8, 8)
        budgets = [fit(model, None, 1 << 40) for model in (one, other)]
        with self.assertRaisesRegex(SpillwayError, "another recording runs already: give all models that a step calls to one `fit`, as in fit"):
            other(one(torch.randn(2, 8)))
        with self.assertRaisesRegex(SpillwayError, "module '0' has a budget already: call `remove`"):
            fit(nn.Sequential(one))
        for fitted in budgets:
            fitted.remove()
        fit(nn.Sequential(one)).remove()
        self.assertIsNone(_get_current_dispatch_mode())

    def test_a_first_step_that_differs_is_recorded_again(self):
        class Caching(Vit):
            warm = False

            def forward(self, image):
                made = super().forward(image)
                if self.warm:
                    return made
                self.warm = True
                return made * torch.ones(1)

        budget, _ = budget_of(make=Caching)
        want = Script(Caching).run(5)
        script = Script(Caching)
        fitted = fit(script.model, script.optimizer, budget)
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            self.assertEqual(different(want, script.run(5)), [])
        self.assertEqual(["spillway: recorded" in line for line in logs.output], [True, False, True])
        self.assertIsNone(fitted.last.deviation)
        fitted.remove()

    def test_the_state_of_an_optimizer_and_gradients_count_when_they_come(self):
        weights = sum(p.nbytes for p in Vit().parameters())
        once = budget_of()[1]
        for options in {"accumulate": 2}, {"late": True}:
            plan = budget_of(**options)[1]
            # When most is saved, backward has made few of them, and in the end all.
            self.assertAlmostEqual(plan.eager_peak - once.eager_peak, weights, delta=weights // 10)
            self.assertAlmostEqual(plan.tape.used[-1], once.tape.used[-1], delta=weights // 10)
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            budget_of(accumulate=2)
        self.assertRegex(logs.output[1], "[0-9,]+ bytes of gradients or of the optimizer's state came, planned in")

    def test_a_closure(self):
        def run(script, fitted=None):
            torch.manual_seed(2)

            def closure():
                script.optimizer.zero_grad()
                x, y = torch.randn(3, 3, 16, 16), torch.randint(10, (3,))
                loss = F.cross_entropy(script.model(x), y)
                loss.backward()
                return loss

            return [*(script.optimizer.step(closure).detach() for _ in range(4)), *script.model.state_dict().values()]

        want, plan, budget = run(Script()), budget_of()[1], 1 << 40
        for _ in range(2):
            script = Script()
            fitted = fit(script.model, script.optimizer, budget)
            self.assertEqual(different(want, run(script)), [])
            self.assertAlmostEqual(fitted.plan.eager_peak, plan.eager_peak, delta=1000)
            self.assertEqual(fitted.last.recomputed > 0, budget < 1 << 40)
            budget = (fitted.plan.floor.bytes + fitted.plan.eager_peak) // 2
            fitted.remove()

    def test_other_optimizers_end_no_step(self):
        other = nn.Linear(2, 2)
        updates = torch.optim.SGD(other.parameters(), lr=0.1)
        budget, _ = budget_of()
        script = Script()
        fitted = fit(script.model, None, budget)
        script.model.patch.weight.register_hook(lambda _: updates.step())
        script.run()
        self.assertGreater(fitted.last.recomputed, 0)
        self.assertEqual(fitted.plan.eager_peak, budget_of()[1].eager_peak)
        fitted.remove()

    def test_copies_and_files_of_the_model_have_no_plan(self):
        budget, _ = budget_of()
        script = Script()
        fitted = fit(script.model, script.optimizer, budget)
        script.run(2)
        stored = io.BytesIO()
        torch.save(script.model, stored)
        stored.seek(0)
        last = fitted.last
        for other in (copy.deepcopy(script.model), torch.load(stored, weights_only=False)):
            other(torch.randn(3, 3, 16, 16)).sum().backward()
        self.assertIs(fitted.last, last)
        fitted.remove()

    def test_the_line_of_a_gpu_has_times(self):
        _, plan = budget_of()
        tape = mock.Mock(device="cuda")
        times = {"tape": tape, "seconds": 0.0844, "eager_seconds": 0.0801}
        self.assertRegex(dataclasses.replace(plan, **times, host_seconds=0.05).summary(),
                         r"\), 84\.4 ms, 5\.4 % over 80\.1 ms, which no plan beats; ")
        self.assertRegex(dataclasses.replace(plan, **times, host_seconds=0.0844).summary(), r", 84\.4 ms \(host-bound\), 5\.4 % over")

    def test_a_budget_below_the_floor(self):
        script = Script()
        fitted = fit(script.model, script.optimizer, "64 KiB")
        with self.assertRaisesRegex(SpillwayError, "a budget of 65,536 bytes is below the floor of [0-9,]+ bytes: aten::.* needs them "
                                                   ".*; less is needed there:\n  [0-9,]+ bytes by "):
            script.run(1)
        fitted.remove()

    def test_the_optimizer_counts(self):
        _, plain = budget_of(optimizer=torch.optim.SGD)
        _, adam = budget_of(optimizer=torch.optim.AdamW)
        weights = sum(p.nbytes for p in Vit().parameters())
        self.assertAlmostEqual(adam.eager_peak - plain.eager_peak, 2 * weights, delta=1000)

    def test_the_state_of_an_optimizer_counts_once(self):
        script = Script()
        script.run(1)
        fitted = fit(script.model, None, 1 << 40)
        script.run(2)
        self.assertEqual(fitted.plan.eager_peak, budget_of()[1].eager_peak)
        fitted.remove()

    def test_the_step_of_the_optimizer_has_to_fit(self):
        script = Script()
        fitted = fit(script.model, script.optimizer, 1 << 30)
        script.optimizer.register_step_pre_hook(lambda *_: setattr(fitted._state.device, "memory", lambda: Memory(0, 1 << 31, 0, 0)))
        with self.assertRaisesRegex(SpillwayError, "below the 2,147,483,648 bytes that the step of AdamW takes"):
            script.run(1)
        fitted.remove()

    def without_collections(self):
        """Turns the collector of garbage off, which runs at any time."""
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def test_what_has_no_budget_any_more_is_freed(self):
        Script().run(1)  # PyTorch loads its compiler, and holds what exists then
        for options in {}, {"allow": "chunked_loss"}:
            for steps in 0, 4:
                self.without_collections()
                script = Script()
                fitted = fit(script.model, script.optimizer, 1 << 40, **options)
                script.run(steps)
                fitted.remove()
                parameter = weakref.ref(next(script.model.parameters()))
                del script
                self.assertIsNone(parameter())
                self.assertIn("steps: ", fitted.report())
                fitted.begin(torch.zeros(2))

    def test_garbage_does_not_count(self):
        plain = self.on(Counting(), 1 << 40)[0]
        self.without_collections()
        device, circle = Counting(), []
        with device:
            circle += [circle, torch.empty(1 << 20)]
        del circle
        self.assertEqual(self.on(device, 1 << 40)[0].peak, plain.peak)

    @staticmethod
    def on(device, budget, steps=4):
        """Trains on a device that counts; returns the last plan, and the peak of each step."""
        script, peaks = Script(), []
        script.optimizer.register_step_pre_hook(lambda *_: peaks.append(device.peak))
        script.optimizer.register_step_post_hook(lambda *_: setattr(device, "peak", 0))
        with mock.patch("spillway_torch.tape.tape_recorder.device_of", lambda _: device), \
                mock.patch("spillway_torch.run.executor.device_of", lambda _: device), device:
            fitted = fit(script.model, script.optimizer, budget)
            script.run(steps)
            plan = fitted.plan
        fitted.remove()
        return plan, peaks

    def test_what_operators_take_counts(self):
        plain = self.on(Counting(), 1 << 40)[0]
        for options in ({"scratch": {"aten::gelu": 1 << 18}}, {"scratch": {"aten::gelu_backward": 1 << 18}},
                        {"stays": {"aten::convolution_backward": 1 << 18}}):
            with self.subTest(str(options)), self.assertLogs("spillway_torch", logging.INFO) as logs:
                plan = self.on(Counting(**options), 1 << 40)[0]
                self.assertGreater(plan.eager_peak, plain.eager_peak)
                budget = (plan.floor.bytes + plan.eager_peak) // 2
                plan, peaks = self.on(Counting(**options), budget)
                self.assertGreater(len(plan.actions), 0)
                self.assertLessEqual(max(peaks[1:]), plan.peak * 1.01)
                self.assertEqual(len(logs.output), 2)

    def test_a_step_that_takes_more_than_predicted_is_planned_again(self):
        plan = self.on(Counting(), 1 << 40)[0]
        budget = plan.floor.bytes + 3 * (plan.eager_peak - plan.floor.bytes) // 4
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            plan, peaks = self.on(Counting(waste=200), budget)
        self.assertGreater(peaks[1], budget)
        self.assertLessEqual(max(peaks[-2:]), budget)
        self.assertLessEqual(plan.peak, budget)
        self.assertRegex(logs.output[1], "a step took [0-9,]+ bytes, [0-9,]+ over the budget, which are left out now, planned in")

    def test_a_step_of_a_faster_host_is_planned_again(self):
        plan = self.on(Counting(), 1 << 40)[0]
        budget = (plan.floor.bytes + plan.eager_peak) // 2

        def faster(plan, took, ahead):
            self.assertFalse(ahead)  # a CPU is never behind
            plan.tape.host_share *= 0.5
            return plan.tape.host_share > 0.3

        with mock.patch("spillway_torch.fit.family.learn_host_speed", faster), self.assertLogs("spillway_torch", logging.INFO) as logs:
            plan, peaks = self.on(Counting(), budget, steps=6)
        self.assertEqual(plan.tape.host_share, 0.25)
        self.assertLessEqual(max(peaks[1:]), budget)
        self.assertEqual(["the host takes 50% of its recorded time, planned in" in line for line in logs.output], [False, True])

    def test_an_exception_in_the_first_backward(self):
        budget, _ = budget_of()
        script = Script()
        fitted = fit(script.model, script.optimizer, budget)

        def fail(_):
            raise KeyError("mine")

        handle = script.model.patch.weight.register_hook(fail)
        with self.assertRaisesRegex(KeyError, "mine"):
            script.run(1)
        handle.remove()
        with self.assertLogs("spillway_torch", logging.WARNING) as logs:
            self.assertEqual(different(Script().run(), script.run()), [])
        self.assertRegex("\n".join(logs.output), "this step was not recorded: backward failed")
        self.assertGreater(fitted.last.recomputed, 0)
        fitted.remove()

    def test_an_exception_in_the_first_forward(self):
        script = Script()
        fitted = fit(script.model, script.optimizer, 1 << 40)
        good, script.model.head.forward = script.model.head.forward, lambda x: 1 / 0
        with self.assertRaises(ZeroDivisionError):
            script.run(1)
        self.assertIsNone(_get_current_dispatch_mode())
        script.model.head.forward = good
        fitted.remove()
        with contextlib.suppress(AttributeError):
            del script.model.head.forward
        script.optimizer.zero_grad()
        self.assertEqual(different(Script().run(2), script.run(2)), [])

    def test_an_exception_in_a_planned_forward(self):
        budget, _ = budget_of()
        script = Script()
        fitted = fit(script.model, script.optimizer, budget)
        script.run(2)
        plan, good = fitted.plan, script.model.head.forward
        script.model.head.forward = lambda x: 1 / 0
        with self.assertNoLogs("spillway_torch"):
            with self.assertRaises(ZeroDivisionError):
                script.run(1)
            script.model.head.forward = good
            script.run(2)
        self.assertIs(fitted.plan, plan)
        self.assertGreater(fitted.last.recomputed, 0)
        fitted.remove()

    def test_models_that_are_refused(self):
        class Own(nn.Parameter):
            pass

        replicas = nn.DataParallel(nn.Linear(2, 2))
        replicas.device_ids = [0, 1]

        for model, text in ((nn.Sequential(replicas), "'0' is a DataParallel, which is not planned: its replicas run"),
                            (nn.Linear(2, 2, device="meta"), "on 'meta' .valid: cpu, cuda"),
                            (nn.ReLU(), "on no device; expected one device"),
                            (torch.jit.script(nn.Linear(2, 2)), "the whole model is a ScriptModule, .* script its blocks one by one"),
                            (nn.LazyLinear(2), "'weight' is a UninitializedParameter, which is not planned: call the model once before"),
                            (nn.ParameterList([Own(torch.ones(2))]), "parameter '0' is a Own, which is not planned"),
                            (None, "the model is a NoneType; expected a torch.nn.Module")):
            with self.assertRaisesRegex(SpillwayError, text):
                fit(model)
        for optimizer, kind in (("8GiB", "str"), ([3], "int"), (torch.optim.SGD, "type")):
            model = nn.Linear(2, 2)
            for _ in range(2):  # nothing remains of the first one
                with self.assertRaisesRegex(SpillwayError, f"the optimizer is a {kind}; expected one of torch.optim, a list of them, or None "
                                                           "for all"):
                    fit(model, optimizer)

    def test_sizes(self):
        for text, size in (("8GiB", 8 << 30), ("1.5 MB", 1500000), (7, 7), ("12 B", 12)):
            self.assertEqual(parse_bytes(text), size)
        for text in ("8", "8 gb", "", "-1GiB", 0, -3, None, 1.5, True, "0GiB", "0.5B"):
            with self.assertRaisesRegex(SpillwayError, "expected a number of bytes above 0, or a number and a unit"):
                parse_bytes(text)
        for budget, text in (("500MB", "1.5 MB"), ("1GiB", "0.001397 GiB"), ("3000 KB", "1,500 KB"), ("8388608B", "1,500,000 B"), (1 << 30, "0.001397 GiB"),
                             ((1 << 30) - 1, "1.431 MiB"), (4096, "1,465 KiB")):
            self.assertEqual(in_unit(1500000, parse_bytes(budget)), text)

    def test_messages_speak_in_the_unit_of_the_budget(self):
        script = Script()
        with self.assertLogs("spillway_torch", logging.INFO) as logs:
            fitted = fit(script.model, script.optimizer, "500MB")
            script.run(3)
        for text in (*logs.output, fitted.report()):
            self.assertRegex(text, r" of 500 MB \(without a plan [\d.]+ MB, floor [\d.]+ MB\)")
            self.assertNotRegex(text, "[KMG]iB")
        self.assertRegex(fitted.report(), "^budget 500 MB; .* 0 MB went to the host as planned")
        fitted.remove()


if __name__ == "__main__":
    unittest.main()

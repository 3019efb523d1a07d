"""Tests what plans do not run, with the real thing: it is refused by name, or keeps its tensors; and that README says so.

A table of README is the list; each of its rows has tests, here or elsewhere.
"""

import logging
import pathlib
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _get_current_dispatch_mode

import execute_autograd_test
import execute_changes_test
import capture_test
import compiled_test
import distributed_fit_test
import execute_compiled_test as of_blocks
import execute_steps_test
import execute_test as equality
import fit_test as fitting
import guard_test
import structures_test
import whole_step_test
from spillway_torch import NotRecordableError, SpillwayError, fit
from spillway_torch.base.device import CudaDevice
from spillway_torch.run.executor import Executor, step
from spillway_torch.tape.tape_recorder import TapeRecorder, record_tape
from stepping import Case, different, plan_of

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"

class LimitsTest(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.addCleanup(lambda: self.assertIsNone(_get_current_dispatch_mode()))
        self.addCleanup(lambda: self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False)))

    def distributed(self):
        """Makes this process a group of one, for the test; returns its mesh of devices."""
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        return init_device_mesh("cpu", (1,))

    def test_distributed_modules(self):
        mesh = self.distributed()
        block = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))  # noqa: E731
        both = init_device_mesh("cpu", (1, 1), mesh_dim_names=("shards", "parts"))
        parts = parallelize_module(block(), both["parts"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for made, text in ((distribute_module(nn.Linear(8, 8), mesh), "'weight' is a DTensor, which is not planned, as tensor parallelism"),
                           (fully_shard(parts, mesh=both["shards"]), "module '' shards a DTensor of tensor parallelism, which is not planned"),
                           (fully_shard(block(), mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)), "has a CPUOffloadPolicy"),
                           (FullyShardedDataParallel(block(), device_id="cpu"), "'' is a FullyShardedDataParallel, .* by fully_shard")):
            with self.assertRaisesRegex(SpillwayError, text):
                fit(made)
        for made in DistributedDataParallel(block()), nn.Sequential(fully_shard(block(), mesh=mesh)):
            with self.assertRaisesRegex(SpillwayError, "early_updates: module '0?' is a (Distr.*|FSDPModule); its gradients are reduced behind"):
                fit(made, torch.optim.SGD(made.parameters(), 0.1), early_updates=True)
        with self.assertRaisesRegex(SpillwayError, "module '0' is a FSDPModule, which has no budget where it is compiled: compile nothing"):
            fit(made, compiled=True)
        x = torch.randn(4, 8, requires_grad=True)
        with self.assertRaisesRegex(NotRecordableError, "on DTensor.*: tensors of special types are not recorded"):
            record_tape(lambda: torch.exp(distribute_tensor(x, mesh)).to_local().sum().backward(), "cpu")

    def test_a_stage_of_a_pipeline(self):
        self.distributed()
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        schedule = ScheduleGPipe(PipelineStage(model, 0, 1, torch.device("cpu")), 2, loss_fn=F.mse_loss)
        fitted = fit(model)
        with self.assertRaises(RuntimeError) as raised:
            schedule.step(torch.randn(4, 8), target=torch.randn(4, 8))
        self.assertRegex(str(raised.exception.__cause__), "the model is a stage of torch.distributed.pipelining, which is not planned")
        fitted.remove()
        schedule.step(torch.randn(4, 8), target=torch.randn(4, 8))

    def test_a_plan_in_which_an_operator_communicates(self):
        plan = plan_of(Case(lambda s: torch.exp(torch.tanh(s.a(s.x))).sum(), False).record(), "evict")
        for op in plan.tape.ops:
            op.once = f"{op.place} communicates with other processes"
        with self.assertRaisesRegex(SpillwayError, r"aten::\w+ .*cannot run again: aten::\w+ .*communicates with other processes"):
            Executor(plan)

    def test_a_distributed_tensor_in_a_planned_step(self):
        mesh = self.distributed()

        def forward(s):
            h = torch.tanh(s.a(s.x))
            if s.now:
                h = torch.exp(DTensor.from_local(h, mesh, [Replicate()])).to_local()
            return s.c(h).pow(2).sum()

        case = Case(forward, False)
        for way in ("evict", "offload"):
            plan = plan_of(case.record(), way)
            for case.now in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_compiled_parts(self):
        compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend="aot_eager")
        case = Case(lambda s: s.c((compiled if s.now else lambda x: torch.tanh(x) * 2)(s.norm(F.gelu(s.a(s.x))))).pow(2).sum(), True)
        with self.assertRaisesRegex(NotRecordableError, "a region of torch.compile"):
            case.record()
        self.assertIsNone(_get_current_dispatch_mode())
        for way in ("evict", "offload"):
            case.now = False
            plan = plan_of(case.record(), way)
            for case.now in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_compiled_models(self):
        whole = nn.Linear(8, 8)
        whole.compile(backend="aot_eager")
        for model in (torch.compile(nn.Linear(8, 8), backend="aot_eager"), whole):
            with self.assertRaisesRegex(SpillwayError, "the whole model is compiled, .* leave compiled=False out"):
                fit(model, compiled=False)

    def test_transforms_of_functions(self):
        case = Case(lambda s: s.c(torch.func.grad(lambda h: h.sin().sum())(s.a(s.x))).sum())
        with self.assertRaisesRegex(NotRecordableError, "torch.func.grad, .* use torch.autograd.grad in the step, or call them outside"):
            case.record()
        self.assertIsNone(_get_current_dispatch_mode())
        case.run()

    def test_a_captured_graph(self):
        with mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True):
            with self.assertRaisesRegex(SpillwayError, "a CUDA graph is being captured: a plan cannot run in it"):
                CudaDevice.begin(mock.Mock(index=0))
            recorder = TapeRecorder("cpu")
            recorder.device = mock.Mock(begin=lambda: CudaDevice.begin(mock.Mock(index=0)))
            with self.assertRaisesRegex(SpillwayError, "a CUDA graph is being captured"):
                recorder.begin()


def tests_of_rows():
    """Returns the tests of each row, by its first words."""
    blocks = of_blocks.CompiledTest
    steps, uses = execute_steps_test.StepsTest, execute_autograd_test.AutogradTest
    several, whole = structures_test.PairsTest, whole_step_test.WholeStepTest
    changes, equal, fitted = execute_changes_test.ChangesTest, equality.EqualityTest, fitting.FitTest
    return {
        "random numbers": (equal.test_random_plans_change_nothing, changes.test_random_numbers_drawn_elsewhere,
                           steps.test_in_evaluation),
        "inputs of other sizes": (steps.test_a_short_batch, fitted.test_a_short_batch_has_the_plan_of_a_full_one,
                                  steps.test_numbers_that_autograd_saves, steps.test_numbers_that_autograd_does_not_save),
        "other operators": (steps.test_fewer_and_more_layers, steps.test_another_operator_of_the_same_shape),
        "several forwards": (uses.test_two_forwards_before_their_backwards, uses.test_two_forwards_in_one_block,
                             fitted.test_a_model_that_is_called_twice_in_each_step,
                             whole.test_a_second_forward_is_in_the_same_plan),
        "`retain_graph`": (uses.test_backward_twice, uses.test_backward_of_a_part, uses.test_double_backward,
                           guard_test.GuardTest.test_what_a_backward_saves_for_another_one_goes_to_the_host),
        "updates inside backward": (fitted.test_updates_inside_backward,),
        "gradient checkpointing": (uses.test_checkpointing_inside,),
        "saved-tensor hooks": (uses.test_hooks_inside_the_step, uses.test_hooks_around_the_step_are_refused),
        "your own `autograd.Function`": (uses.test_functions_of_the_program,),
        "inference": (uses.test_inference_in_between, fitted.test_a_script_has_the_same_results),
        "exceptions": (uses.test_exceptions, equal.test_random_deviations_and_exceptions_change_nothing,
                       fitted.test_an_exception_in_the_first_forward, fitted.test_an_exception_in_the_first_backward),
        "other threads": (uses.test_threads, uses.test_two_threads_under_one_plan),
        "another CUDA stream": (steps.test_another_stream,),
        "several models": (several.test_several_models_have_one_budget, several.test_the_plan_sees_the_memory_of_all_models_and_optimizers,
                           several.test_what_is_refused, whole.test_two_budgets_that_meet_in_a_step_are_refused),
        "DistributedDataParallel": (distributed_fit_test.DistributedFitTest.test_steps_of_distributed_data_parallel_have_their_results,
                                    distributed_fit_test.DistributedFitTest.test_steps_of_fully_shard_have_their_results),
        "FSDP1": (LimitsTest.test_distributed_modules, fitted.test_models_that_are_refused, LimitsTest.test_a_stage_of_a_pipeline,
                  several.test_early_updates_in_distributed_data_parallel),
        "DTensor": (LimitsTest.test_distributed_modules, LimitsTest.test_a_distributed_tensor_in_a_planned_step),
        "blocks under `torch.compile`": (blocks.test_random_plans_change_nothing, blocks.test_another_graph_in_a_later_step,
                                         blocks.test_a_checkpoint_around_a_compiled_block_is_refused),
        "`torch.compile` of a whole model": (LimitsTest.test_compiled_models, compiled_test.FitTest.test_graph_breaks_share_one_budget),
        "`torch.compile` of functions": (LimitsTest.test_compiled_parts, compiled_test.FitTest.test_a_loss_that_is_compiled),
        "`torch.func.grad`": (LimitsTest.test_transforms_of_functions, whole.test_nothing_is_active_in_a_backward_and_after_it),
        "CUDA graphs": (LimitsTest.test_a_captured_graph, capture_test.CaptureTest.test_calls_are_replayed_once_they_run_as_planned),
        "a saved tensor changed": (changes.test_a_source_changed_before_backward, changes.test_a_change_before_backward_while_recording),
        "a parameter or buffer changed": (changes.test_a_parameter_changed_before_backward,),
        "a seed that the step sets": (changes.test_a_generator_that_changes_between_two_saved_tensors,),
    }


class ReadmeTest(unittest.TestCase):
    def test_each_row_has_tests(self):
        table = README.read_text("utf-8").split("| case | what happens |\n")[1].split("\n\n")[0]
        rows = [line.split("|")[1].strip() for line in table.splitlines()[1:]]
        tests = tests_of_rows()
        self.assertEqual(len(rows), len(tests))
        for row, begins in zip(rows, tests):
            self.assertTrue(row.startswith(begins), row)


if __name__ == "__main__":
    unittest.main()

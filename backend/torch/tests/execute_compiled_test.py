"""Tests of plans for models whose blocks run under torch.compile one by one, with a backend that needs no compiler."""

import logging
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

import fit_test as fitting
from spillway_torch import NotRecordableError, fit
from spillway_torch.run.executor import executor_of, step
from spillway_torch.tape.chains import saved_storages
from spillway_torch.tape.regions import compiled_graphs
from stepping import MODELS, WAYS, Case, Stepping, different, plan_of, random_plan


class Block(nn.Module):
    """A block that a test can change between steps."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.changed = self.broken = False

    def forward(self, x):
        h = torch.tanh(self.first(x)) if not self.changed else torch.sigmoid(self.first(x))
        if self.broken:
            torch._dynamo.graph_break()
        return x + torch.tanh(self.second(h))


class Around(nn.Module):
    """A module around another one: torch.compile does nothing for PyTorch's own ones."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def compiled(make, wrap):
    """Returns a maker of the model with compiled blocks: each is wrapped, or compiled where it is."""
    def made():
        model, loss = make()
        blocks = getattr(model, "layers", None) or model.blocks
        for at, block in enumerate(blocks):
            if wrap:
                blocks[at] = torch.compile(block, backend="aot_eager")
            else:
                block.compile(backend="aot_eager")
        return model, loss

    return made


class CompiledTest(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        self.addCleanup(torch._dynamo.reset)
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.addCleanup(lambda: self.assertIsNone(_get_current_dispatch_mode()))
        self.addCleanup(lambda: self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False)))

    def case(self, **attributes):
        block = Block()
        vars(block).update(attributes)
        block.compile(backend="aot_eager")
        case = Case(lambda s: s.c(F.gelu(s.b(block(F.gelu(s.a(s.x)))))).pow(2).sum())
        case.model.append(block)
        case.run()  # compiles
        return case, block

    def plans(self, tape):
        return [plan_of(tape, way) for way in WAYS]

    def test_random_plans_change_nothing(self):
        for name, wrap in (("gpt", True), ("llama, float32", False), ("vit", False)):  # blocks of the last one are not compiled
            stepping = Stepping(compiled(MODELS[name], wrap))
            want = stepping.steps()
            tape = stepping.record()
            graphs = compiled_graphs()
            for seed in range(6):
                with self.subTest(name, seed=seed):
                    plan = random_plan(tape, seed)
                    self.assertEqual(different(want, stepping.steps(plan)), [])
                    self.assertEqual(executor_of(plan).deviations, [])
            self.assertEqual(compiled_graphs(), graphs)

    def test_a_compiled_block_is_one_operator_that_does_not_run_again(self):
        case, _ = self.case()
        tape = case.record()
        parts = [at for at, op in enumerate(tape.ops) if op.name.startswith("compiled::")]
        self.assertEqual([tape.ops[at].name for at in parts], ["compiled::Block", "compiled::Block_backward"])
        saved = saved_storages(tape)
        inside = [s for s in saved.values() if tape.storages[s.storage].born == parts[0]]
        self.assertEqual([s.chain for s in inside], [None] * 3)
        self.assertEqual([s.dies is not None for s in inside], [True] * 3)
        self.assertEqual({p.op for s in inside for p in s.packs[:1]}, {parts[0] + 1})  # saved at its end
        self.assertEqual(sum(any(tape.unpacks[u].op == parts[1] for u in s.unpacks) for s in inside), 2)  # the third is its result
        lasts = {tape.unpacks[u].last for s in inside for u in s.unpacks if tape.unpacks[u].op == parts[1]}
        self.assertEqual(lasts, {parts[1] + 1})  # it needs all until its end
        outside = [s for s in saved.values() if s.chain is not None]
        self.assertFalse(any(set(parts) & set(s.chain.ops) for s in outside))
        self.assertGreaterEqual(len(outside), 2)  # the result of each gelu
        self.compiles_nothing(case, tape)

    def test_memory_and_numbers_come_from_the_block_as_a_whole(self):
        case, block = self.case()
        tape = case.record()
        forward = next(op for op in tape.ops if op.name == "compiled::Block")
        self.assertEqual(sorted(tape.storages[s].size for s in forward.reads), sorted([*(p.nbytes for p in block.parameters()), 6 * 8 * 4]))
        self.assertEqual(sum(tape.storages[s].size for s in forward.fresh), 3 * 6 * 8 * 4)

    def test_another_graph_in_a_later_step(self):
        case, block = self.case()
        tape = case.record()
        for plan in self.plans(tape):
            for block.changed in (False, True, False):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])

    def test_a_block_of_several_graphs(self):
        case, _ = self.case(broken=True)
        tape = case.record()
        self.assertEqual(sum(op.name == "compiled::Block_backward" for op in tape.ops), 2)
        block = next(at for at, op in enumerate(tape.ops) if op.name == "compiled::Block")
        deaths = [tape.storages[p.value[0]].died for p in tape.packs if tape.storages[p.value[0]].born == block]
        self.assertEqual(min(deaths), block)  # while the second graph runs, what the first one saved exists
        self.compiles_nothing(case, tape)

    def test_numbers_beside_a_block_are_those_of_the_step(self):
        case, block = self.case()
        case.forward = lambda: case.c(torch.tanh(case.b(block(torch.tanh(case.a(case.x) + case.now))) + case.now)).pow(2).sum()
        case.now = 0.5
        tape = case.record()
        for plan in self.plans(tape):
            for case.now in (0.5, 1.5):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])

    def compiles_nothing(self, case, tape):
        graphs = compiled_graphs()
        for plan in self.plans(tape):
            for _ in range(3):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])
        self.assertEqual(compiled_graphs(), graphs)

    def test_a_step_that_compiles_is_not_recorded(self):
        case, block = self.case()
        block.changed = True
        with self.assertRaisesRegex(NotRecordableError, "parts of the model were compiled in it, .* a later step can be recorded"):
            case.record()
        self.assertTrue(case.record().compiled)

    def test_fit_plans_from_the_step_after(self):
        def compiled_script():
            script = fitting.Script()
            script.model.blocks = nn.ModuleList(Around(block) for block in script.model.blocks)
            for block in script.model.blocks:
                block.compile(backend="aot_eager")
            return script

        want = compiled_script().run(5)
        torch._dynamo.reset()
        script = compiled_script()
        fitted = fit(script.model, script.optimizer, 1 << 40)
        with self.assertLogs("spillway_torch", "WARNING") as lines:
            got = script.run(5)
        self.assertEqual(different(want, got), [])
        self.assertEqual(len(lines.output), 1)
        self.assertIn("was not recorded: parts of the model were compiled in it", lines.output[0])
        self.assertTrue(fitted.plan.tape.compiled)
        fitted.remove()

    def test_a_checkpoint_around_a_compiled_block_is_refused(self):
        case, block = self.case()
        case.forward = lambda: case.c(checkpoint(block, F.gelu(case.a(case.x)), use_reentrant=False)).pow(2).sum()
        case.run()
        with self.assertRaisesRegex(NotRecordableError, "compiled::Block runs again in backward, as in a checkpoint: compile what"):
            case.record()

    def test_exceptions_leave_nothing_behind(self):
        case, _ = self.case()
        with mock.patch.object(Block, "forward", side_effect=ZeroDivisionError):
            with self.assertRaises(ZeroDivisionError):
                case.record()
        self.assertIs(nn.Module.__call__, nn.Module._wrapped_call_impl)
        self.assertTrue(case.record().compiled)


if __name__ == "__main__":
    unittest.main()

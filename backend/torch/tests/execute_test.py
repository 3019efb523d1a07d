"""Tests that steps under a plan have the results of ordinary steps, bit by bit, on small models and random plans."""

import contextlib
import dataclasses
import logging
import os
import random
import types
import unittest
import weakref
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adversary import Adversary
from spillway_torch import ProgramError, SpillwayError
from spillway_torch.base.device import CpuDevice, block_of
from spillway_torch.base.errors import NoPlanError
from spillway_torch.fit.host import host_costs, measure_host
from spillway_torch.plan.plan import Moments
from spillway_torch.plan.planner import assemble, learn_host_speed, make_plan, predict
from spillway_torch.run.executor import EXECUTORS, Executor, executor_of, step
from spillway_torch.step.recorder import tensors_in
from spillway_torch.tape.costs import HostCosts
from spillway_torch.tape.measured import smooth
from spillway_torch.tape.tape_recorder import record_tape
from stepping import MODELS, QUICK, Stepping, candidates, different, random_plan

PLANS = 8


def random_moments(tape, draw):
    """Returns moments at random positions, also where nothing can happen to the storage."""
    moments, everywhere = Moments(), range(len(tape.positions))
    reads = [unpack.position for unpack in tape.unpacks]

    def some(positions):
        return sorted(draw.choices(positions, k=3)) if draw.random() < 0.8 else []

    for saved in candidates(tape):
        moments.add(saved.storage, release=some(everywhere)[:1], prefetches=some(everywhere), drops=some(reads))
    return moments


class EqualityTest(unittest.TestCase):
    def test_recording_is_an_ordinary_step(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                stepping = Stepping(make)
                want = stepping.steps(count=1)[:-1]
                stepping.record()
                got = [p.grad for p in stepping.model.parameters()]
                self.assertEqual(different(want[1:1 + len(got)], got), [])

    def test_an_operator_whose_kernels_are_loaded_late_runs_twice_at_first(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                stepping = Stepping(make)
                want = stepping.steps(count=1)[:-1]
                with mock.patch.object(CpuDevice, "loads_late", True):
                    tape = stepping.record()
                got = [p.grad for p in stepping.model.parameters()]
                self.assertEqual(different(want[1:1 + len(got)], got), [])
                twice = stepping.record()
                self.assertEqual([(op.name, op.fresh, op.reads) for op in tape.ops], [(op.name, op.fresh, op.reads) for op in twice.ops])
                self.assertEqual(tape.used, twice.used)

    def test_an_operator_is_timed_again_if_the_gpu_waited_for_the_host(self):
        class Stalled:  # for the GPU's clock: the host is held up for a second at one operator
            at, number, now, dry = -1, 0, 0.0, False

            def __init__(self, _):
                pass

            def event(self):
                return types.SimpleNamespace(now=self.now, elapsed_time=lambda later, began=self.now: later.now - began)

            def busy_event(self):
                began = self.event()
                self.dry, self.number = self.number == self.at, self.number + 1
                self.now += 1000 if self.dry else 1
                return began

            def ran_dry(self):
                return self.dry

        def times():
            with mock.patch("spillway_torch.tape.measured.CudaDevice", CpuDevice), mock.patch("torch.cuda.synchronize"), \
                    mock.patch("spillway_torch.tape.measured.Timer", Stalled), \
                    mock.patch("spillway_torch.tape.host_pieces.CudaDevice", CpuDevice):
                return [(op.name, op.time_ns) for op in Stepping(MODELS["resnet"]).record().ops]

        usual = times()
        self.assertEqual({time for _, time in usual}, {10**6})
        for at in range(0, len(usual), 5):
            with self.subTest(at=at), mock.patch.object(Stalled, "at", at):
                self.assertEqual(times(), usual)

    def test_random_plans_change_nothing(self):
        for name, make in MODELS.items():
            stepping = Stepping(make)
            want = stepping.steps()
            tape = stepping.record()
            for seed in range(PLANS):
                with self.subTest(name, seed=seed):
                    plan = random_plan(tape, seed)
                    self.assertEqual(different(want, stepping.steps(plan)), [])
                    self.assertEqual(executor_of(plan).deviations, [])

    def test_random_moments_change_nothing(self):
        for name, make in MODELS.items():
            stepping = Stepping(make)
            want = stepping.steps()
            tape = stepping.record()
            for seed in range(PLANS):
                with self.subTest(name, seed=seed):
                    plan = assemble(tape, random_plan(tape, seed).actions, 1 << 40, random_moments(tape, random.Random(seed)))
                    self.assertEqual(different(want, stepping.steps(plan)), [])
                    self.assertEqual(executor_of(plan).deviations, [])

    def test_ten_steps_have_the_results_of_ordinary_ones(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                stepping = Stepping(make)
                want = stepping.steps(count=10)
                plan = random_plan(stepping.record(), 1)
                self.assertEqual(different(want, stepping.steps(plan, count=10)), [])
                self.assertEqual(executor_of(plan).deviations, [])

    def test_the_memory_of_the_host_is_what_the_plan_says(self):
        stepping = Stepping(MODELS["gpt"])
        tape = stepping.record()
        for seed in range(PLANS):
            plan = random_plan(tape, seed)
            stepping.steps(plan)
            sizes = [tape.storages[s].size for s, action in plan.actions.items() if action == "offload"]
            self.assertEqual(sum(host.bytes.numel() for host in executor_of(plan).host.pieces), plan.host_bytes)
            self.assertLessEqual(sum(sizes), plan.host_bytes)
            self.assertLess(plan.host_bytes, sum(sizes) + 4096 * len(sizes) + 1)
            self.assertEqual("(which keeps" in plan.summary(), bool(sizes))
            executor_of(plan).close()
            self.assertEqual(executor_of(plan).host.pieces, [])

    def test_random_deviations_and_exceptions_change_nothing(self):
        class Mine(Exception):
            pass

        def fail(*_):
            raise Mine

        def script(stepping, plan, seed):
            """Runs steps in which a module now and then scales its result, or fails; returns gradients and what stays."""
            draw, seen = random.Random(seed), []
            modules = [m for m in stepping.model.modules() if not list(m.children())]
            stepping.reset()
            for change in (None, draw.choice(("scale", "fail")), None, draw.choice(("scale", "fail")), None):
                stepping.model.zero_grad()
                hook = {"scale": lambda m, i, o: o * 1.5, "fail": fail}.get(change)
                handle = draw.choice(modules).register_forward_hook(hook) if hook else None
                with contextlib.suppress(Mine):
                    with contextlib.nullcontext() if plan is None else step(plan):
                        loss = stepping.loss()
                    loss.backward()
                    del loss
                if handle is not None:
                    handle.remove()
                seen += [p.grad.clone() for p in stepping.model.parameters() if p.grad is not None]
            return [*seen, *(t.clone() for t in stepping.model.state_dict().values()), torch.get_rng_state()]

        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)
        for name, make in MODELS.items():
            stepping = Stepping(make)
            tape = stepping.record()
            for seed in range(4):
                with self.subTest(name, seed=seed):
                    plan = random_plan(tape, seed)
                    EXECUTORS[plan] = Executor(plan, Adversary(seed))
                    self.assertEqual(different(script(stepping, None, seed), script(stepping, plan, seed)), [])
                    self.assertEqual(executor_of(plan).device.violations, [])

    def test_most_of_what_is_saved_can_be_recomputed(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                found = candidates(Stepping(make).record())
                recomputed = sum(s.bytes for s in found if s.chain is not None)
                self.assertGreater(recomputed, (0.6 if name == "gpt" else 0.95) * sum(s.bytes for s in found),
                                   [(s.bytes, s.reason) for s in found if s.chain is None])


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that are alive while operators run, without those in `ignored`."""

    def __init__(self, ignored):
        super().__init__()
        self.ignored = ignored
        self.alive = {}  # weak references by storage, with sizes
        self.peak = 0
        self.random = torch.get_rng_state().nbytes  # of the host, also where the device is a GPU

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in([args, result], tensors_in(list((kwargs or {}).values()), [])):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.ignored and storage._cdata not in self.alive and storage.nbytes() != self.random:
                key = storage._cdata
                self.alive[key] = (weakref.ref(storage, lambda _, key=key: self.alive.pop(key)), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


class MemoryTest(unittest.TestCase):
    def live(self, stepping, plan):
        stepping.reset()
        executor = EXECUTORS[plan] = Executor(plan)
        mode = Live({host.bytes.untyped_storage()._cdata for host in executor.host.pieces})
        with mode:
            with step(plan):
                loss = stepping.loss()
            loss.backward()
        self.assertEqual(executor.deviations, [])
        return mode.peak

    def test_memory_is_as_predicted(self):
        for name, make in MODELS.items():
            stepping = Stepping(make)
            tape = stepping.record()
            eager = make_plan(tape, 1 << 40)
            start = sum(t.nbytes for t in stepping.model.state_dict().values())
            with self.subTest(name):
                self.assertAlmostEqual(self.live(stepping, eager) / eager.peak, 1, delta=0.03)
            plans = [random_plan(tape, seed) for seed in range(3)]
            plans += [assemble(tape, plan.actions, 1 << 40, random_moments(tape, random.Random(at))) for at, plan in enumerate(plans)]
            plans = [predict(plan) for plan in plans]
            for share in (0.6, 0.3, 0.1):
                with contextlib.suppress(NoPlanError):
                    plans.append(make_plan(tape, int(eager.floor.bytes + share * (eager.peak - eager.floor.bytes)), policy=QUICK))
            for at, plan in enumerate(plans):
                with self.subTest(name, plan=at):
                    live = self.live(stepping, plan)
                    self.assertLessEqual(live, 1.03 * plan.peak + 512)  # an op of the trace stands for several operators
                    self.assertGreater(live - start, 0.75 * (plan.peak - start))

    def test_what_is_recomputed_on_the_way_goes_as_soon_as_it_was_read(self):
        def make():
            model = torch.nn.Linear(64, 64)

            def loss():
                h = model(torch.ones(256, 64))
                for _ in range(8):
                    h = torch.tanh(h)
                return h.sum()

            return model, loss

        stepping = Stepping(make)
        want, tape = stepping.steps(), stepping.record()
        chain = [saved for saved in candidates(tape) if tape.ops[tape.producer[saved.value]].name == "aten::tanh"]
        self.assertEqual(len(chain), 8)
        moments = Moments()
        for at, saved in enumerate(chain[1:], 1):
            for other in chain[1:at + 1]:
                moments.add(other.storage, drops=[tape.unpacks[saved.unpacks[0]].position])
        plan = predict(assemble(tape, {saved.storage: "evict" for saved in chain[1:]}, 1 << 40, moments))
        self.assertLess(plan.peak, 0.6 * plan.eager_peak)
        self.assertLessEqual(self.live(stepping, plan), 1.03 * plan.peak + 512)
        EXECUTORS.pop(plan)
        self.assertEqual(different(want, stepping.steps(plan)), [])


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.stepping = Stepping(MODELS["vit"])
        self.tape = self.stepping.record()
        self.eager = make_plan(self.tape, 1 << 40)

    def test_a_copy_comes_back_while_it_is_absent(self):
        for name in ("gpt", "llama, autocast"):
            tape = Stepping(MODELS[name]).record()
            eager = make_plan(tape, 1 << 40)
            for bandwidth in (1e6, 1e9):  # slow copies start early
                tape.bandwidth = bandwidth
                for policy in (QUICK, "vdnnpp", "capuchin"):
                    plan = make_plan(tape, (eager.floor.bytes + 9 * eager.peak) // 10, moves=("offload",), policy=policy)
                    absent, used = set(), {unpack.position: unpack.pack.value[0] for unpack in tape.unpacks}
                    self.assertGreater(len(plan.moments["release"]), 0)
                    for position in range(len(tape.positions)):
                        with self.subTest(name, bandwidth=bandwidth, policy=policy, position=position):
                            absent.update(plan.moments["release"].get(position, ()))
                            self.assertLessEqual(set(plan.moments["prefetches"].get(position, ())), absent)
                            absent.difference_update((*plan.moments["prefetches"].get(position, ()), used.get(position)))
                            absent.update(s for s in plan.moments["drops"].get(position, ()) if plan.actions[s] == "offload")

    def test_budgets_down_to_the_floor_are_kept(self):
        want = self.stepping.steps()
        previous = 0
        for share in (0.8, 0.5, 0.2):
            budget = int(self.eager.floor.bytes + share * (self.eager.peak - self.eager.floor.bytes))
            plan = make_plan(self.tape, budget, policy=QUICK)
            self.assertLessEqual(plan.peak, budget)
            self.assertGreaterEqual(len(plan.actions), previous)
            self.assertEqual(different(want, self.stepping.steps(plan)), [])
            previous = len(plan.actions)
        self.assertEqual(self.eager.actions, {})

    def test_policies_of_the_program_plan(self):
        want = self.stepping.steps()
        budget = self.eager.floor.bytes + 3 * (self.eager.peak - self.eager.floor.bytes) // 4
        for policy in (None, QUICK, "dtr"):
            with self.subTest(policy):
                plan = make_plan(self.tape, budget, policy=policy)
                self.assertLessEqual(plan.peak, budget)
                self.assertGreater(len(plan.actions), 0)
                self.assertEqual(different(want, self.stepping.steps(plan)), [])
        with self.assertRaisesRegex(ProgramError, "exit code 2: .*none_such"):
            make_plan(self.tape, budget, policy="none_such")

    def test_the_least_memory_of_a_plan_is_known_where_none_is_found(self):
        budget = self.eager.floor.bytes + 100
        with self.assertRaisesRegex(NoPlanError, f"no plan within {budget:,} bytes was found .one takes [0-9,]+; the floor is "
                                                 f"{budget - 100:,}.: give a larger budget") as raised:
            make_plan(self.tape, budget, policy="dtr")
        self.assertGreaterEqual(raised.exception.best, budget)

    def test_a_program_that_is_missing_is_needed(self):
        with mock.patch.dict(os.environ, {"SPILLWAY": "/no/program"}), self.assertRaisesRegex(ProgramError, "SPILLWAY=/no/program is not"):
            make_plan(self.tape, 1 << 40)
        with mock.patch.dict(os.environ, {"SPILLWAY": "", "PATH": ""}), \
                self.assertRaisesRegex(ProgramError, "the program 'spillway' is not on PATH.*, or set the variable SPILLWAY"):
            make_plan(self.tape, 1 << 40)
        with mock.patch.dict(os.environ, {"SPILLWAY": "/bin/false"}), self.assertRaisesRegex(ProgramError, "spillway plan printed no rows"):
            make_plan(self.tape, 1 << 40)

    def test_the_host_limits_a_step_that_the_gpu_would_run_faster(self):
        tape = self.tape
        costs = HostCosts(packed=1, unpacked=2, compared=10, started=20, recomputed=40, left=3, came=5, recorded=1)
        saved = next(s for s in candidates(tape) if s.chain is not None and len(s.packs) == len(s.unpacks) == 1
                     and all(t.storage != v[0] for v in s.chain.sources for t in candidates(tape)))
        for op in tape.ops:
            op.host, op.entries, op.seconds = 3.0, 1, 0.0
        with mock.patch.object(tape, "costs", costs), mock.patch.object(tape, "device", "cuda"):
            def seconds(actions, least=0.0):
                for op in tape.ops:
                    op.seconds = least
                plan = predict(assemble(tape, actions))
                self.assertEqual(plan.host_bound, plan.seconds < 1.2 * plan.host_seconds)
                return plan.seconds

            eager = seconds({})
            self.assertAlmostEqual(eager, 2 * len(tape.ops))  # without the recorder's own second
            hooks = len(tape.packs) + 2 * (len(tape.positions) - len(tape.packs))
            self.assertAlmostEqual(seconds({saved.storage: "offload"}), eager + hooks + 3 + 5, delta=1e-3)
            self.assertAlmostEqual(seconds({saved.storage: "evict"}), eager + hooks + 10 + 20 + 40 * len(saved.chain.ops), delta=1e-3)
            self.assertAlmostEqual(seconds({}, 10.0), 10 * len(tape.ops), delta=10)  # the GPU is the limit
            seconds({})
            slow = predict(assemble(tape, {saved.storage: "offload"}))
            self.assertAlmostEqual(slow.forward_seconds, 2 * tape.unpacks[0].op + len(tape.packs) + 3)
            for near in (0.9, 1.2, float("inf")):  # the last one was not measured
                self.assertFalse(learn_host_speed(slow, near * slow.forward_seconds))
            with mock.patch.object(tape, "host_share", 1.0):
                self.assertFalse(learn_host_speed(slow, 2 * slow.forward_seconds, ahead=True))  # it may have waited for the device
                self.assertTrue(learn_host_speed(slow, slow.forward_seconds / 2, ahead=True))
                self.assertAlmostEqual(seconds({}), eager / 2)
                self.assertTrue(learn_host_speed(slow, 2 * slow.forward_seconds))
                self.assertAlmostEqual(seconds({}), eager)

    def test_a_device_that_is_behind_is_not_taken_for_a_slow_host(self):
        class Device(CpuDevice):
            def between(self, first, last):
                return last - first

        tape = self.tape
        executor = Executor(assemble(tape, {}), Device())
        self.assertFalse(executor.host_was_ahead())  # nothing was timed
        for seconds, marks, ahead in ((2.0, [1.0, 3.01], False), (3.0, [1.0, 9.0], False), (1.9, [1.0, 3.0], True), (1.0, [1.0, 2.01], False)):
            executor.note_forward(seconds, marks)  # a longer forward says nothing
            self.assertEqual(executor.host_was_ahead(), ahead)
        self.assertEqual(executor.forward_seconds, 1.0)

    def test_operators_of_a_gpu_take_longer_beside_copies(self):
        tape = self.tape
        saved = next(s for s in candidates(tape) if len(s.unpacks) == 1 and tape.unpacks[s.unpacks[0]].op - s.packs[0].op > 20)
        tape.bandwidth = 1e3 * tape.rounded(saved.storage)  # a copy takes a millisecond
        for op in tape.ops:
            op.host, op.seconds = 0.0, 1e-3
        read = tape.unpacks[saved.unpacks[0]]
        release = next(at for at, op in enumerate(tape.positions) if op >= saved.dies)
        prefetch = max(at for at, op in enumerate(tape.positions) if op < read.op - 3)
        for device, beside in (("cuda", 0.03), ("cpu", 0.0)):
            with mock.patch.object(tape, "device", device):
                moments = Moments()
                moments.add(saved.storage, release=[release], prefetches=[prefetch])
                plan = predict(assemble(tape, {saved.storage: "offload"}, moments=moments))
                took = round(1e3 * (plan.seconds - plan.eager_seconds), 6)
                self.assertTrue(beside <= took <= 2.1 * beside, took)

    def test_the_cost_of_the_host_is_measured(self):
        costs = dataclasses.asdict(measure_host("cpu"))
        self.assertTrue(all(0 <= seconds < 60 for seconds in costs.values()), costs)
        self.assertEqual(set(dataclasses.asdict(host_costs("cpu")).values()), {0.0})

    def test_times_in_which_the_host_was_held_up_are_replaced(self):
        for op in self.tape.ops:
            op.host, op.seconds, op.entries = 1.0, 1.0, 1
        equal = [op for op in self.tape.ops if op.name == "aten::gelu"]
        equal[0].host = equal[0].seconds = 100.0
        self.tape.ops[0].host = 100.0
        smooth(self.tape)
        self.assertEqual({op.seconds for op in self.tape.ops}, {1.0})
        self.assertEqual({op.host for op in self.tape.ops if op.name != self.tape.ops[0].name}, {1.0})
        self.assertLessEqual(self.tape.ops[0].host, 3)

    def test_blocks_of_a_gpu(self):
        mib = 1 << 20
        for size, block in ((1, 512), (mib - 1, mib), (3 * mib, 3 * mib),  # six in 20 MiB, and 2 MiB for others
                            (6.5 * mib, 6.5 * mib + mib // 6), (11 * mib, 12 * mib), (12 * mib, 12 * mib), (10.5 * mib, 10.5 * mib),
                            (147.75 * mib, 148 * mib)):
            self.assertEqual(block_of(int(size)), int(block), size / mib)
            self.assertLess(block_of(int(size), True) - size, 512)

    def test_a_budget_below_the_floor_is_refused(self):
        floor = self.eager.floor
        with self.assertRaisesRegex(SpillwayError, f"{floor.bytes - 1:,} bytes is below the floor of {floor.bytes:,} bytes: "
                                                   rf"{floor.operator} needs them .* recomputed.*; less is needed there:\n  [\d,]+ bytes by "):
            make_plan(self.tape, floor.bytes - 1)
        self.assertEqual(make_plan(self.tape, "1024GiB").budget, 1 << 40)

    def test_a_plan_of_a_gpu_leaves_a_little_of_its_budget(self):
        with mock.patch.object(self.tape, "name", "H200"):
            budget = (self.eager.floor.bytes + self.eager.peak) // 2
            plan = make_plan(self.tape, budget, policy=QUICK)
            self.assertEqual(plan.budget, budget)
            self.assertGreater(len(plan.actions), 0)
            self.assertLessEqual(plan.peak, budget - budget // 400)

    def test_a_step_without_backward_is_refused(self):
        with self.assertRaisesRegex(SpillwayError, "saved no tensor"):
            record_tape(lambda: torch.ones(3) + 1, "cpu")


if __name__ == "__main__":
    unittest.main()

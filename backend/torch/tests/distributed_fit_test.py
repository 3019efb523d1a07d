"""Tests `fit` on each of two processes: DistributedDataParallel and FSDP2, whose collectives are real."""

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import unittest
import weakref
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError as error:
    raise unittest.SkipTest("this PyTorch has no fully_shard") from error

from adversary import Adversary
from guard_test import Guarded, counted, using
from spillway_torch import SpillwayError, fit
from spillway_torch.base.device import CudaDevice, free_memory, host_memory, host_share
from spillway_torch.plan.plan import EVICT, OFFLOAD
from spillway_torch.step.distributed import sharded
from spillway_torch.tape.chains import saved_storages, stuck
from spillway_torch.tape.scaled import scaled
from spillway_torch.tape.tape_recorder import record_tape

STEPS, ROWS, WIDTH = 10, 100, 32
ABSENT = "it follows from a parameter that is not gathered then"


@torch.library.custom_op("spillway_test::averaged", mutates_args=())
def averaged(x: torch.Tensor) -> torch.Tensor:
    """An operator of the program's own, which communicates."""
    made = x.clone()
    dist.all_reduce(made)
    return made / dist.get_world_size()


averaged.register_autograd(lambda ctx, gradient: gradient / dist.get_world_size())


class Block(nn.Module):
    def __init__(self, normalised=False):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if normalised else nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.dropout(nn.functional.gelu(self.up(self.norm(x))), 0.1))


class Stack(nn.Module):
    def __init__(self, spare=False, normalised=False, averages=False):
        super().__init__()
        torch.manual_seed(0)
        self.averages = averages
        self.blocks = nn.ModuleList(Block(normalised) for _ in range(4))
        self.spare = nn.Linear(WIDTH, WIDTH) if spare else None  # not each step uses it
        self.steps = 0

    def forward(self, x):
        for block in self.blocks:
            x = block(averaged(x).tanh() if self.averages else x)
        self.steps += 1
        return self.spare(x) if self.spare is not None and self.steps % 3 == 0 else x


class Resized(Guarded):
    """A device that also counts the memory of storages that FSDP2 empties and fills again."""

    def resized(self, untyped):
        key = untyped._cdata
        if key in self.sizes:
            self.give_back(key)
        self.sizes[key] = untyped.nbytes(), self.block(untyped.nbytes()), weakref.ref(untyped, lambda _: self.give_back(key))
        self.take(*self.sizes[key][:2])


# ---- one process of two ----

def ddp(hook=None, spare=False, normalised=False, averages=False, **options):
    """Returns the wrapped model, and the context in which gradients are not reduced."""
    model = Stack(spare, normalised, averages)
    run = DistributedDataParallel(model, bucket_cap_mb=0.05, **options)
    if hook is not None:
        run.register_comm_hook(None, hook)
    return run, run.no_sync


def fsdp(mesh=(2,), mixed=False, reshard=True):
    model = Stack()
    options = {"mesh": init_device_mesh("cpu", mesh, mesh_dim_names=("copies", "shards")[-len(mesh):]), "reshard_after_forward": reshard}
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)

    @contextlib.contextmanager
    def apart():
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    return model, apart


CASES = {
    "ddp": ddp,
    "ddp, views": functools.partial(ddp, gradient_as_bucket_view=True),
    "ddp, static": functools.partial(ddp, static_graph=True),
    "ddp, no_sync, views": functools.partial(ddp, gradient_as_bucket_view=True),
    "ddp, hook": functools.partial(ddp, hook=bf16_compress_hook),
    "ddp, unused": functools.partial(ddp, spare=True, find_unused_parameters=True),
    "ddp, features": ddp,
    "ddp, averages": functools.partial(ddp, averages=True),
    "ddp, buffers": functools.partial(ddp, normalised=True),
    "fsdp": fsdp,
    "fsdp, kept": functools.partial(fsdp, reshard=False),
    "fsdp, no_sync": fsdp,
    "fsdp, mixed": functools.partial(fsdp, mixed=True),
    "fsdp, replicas, clipped": functools.partial(fsdp, mesh=(2, 1)),
}
GUARDED = "guarded ddp, views", "guarded fsdp", "guarded fsdp, mixed"


def train(name, budget=None, steps=STEPS, device=Resized()):
    """Returns losses and parameters after some steps, the last plan, and by step how many operators ran again and the peak of a device."""
    model, apart = CASES[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    fitted = fit(model, optimizer, budget) if budget is not None else None
    torch.manual_seed(1 + dist.get_rank())
    seen, recomputed, peaks = [], [], []
    for _ in range(steps):
        device.peak = device.allocated
        for first in (True, False) if "no_sync" in name else (False,):
            with apart() if first else contextlib.nullcontext():
                made = model(torch.randn(ROWS, WIDTH))
                if "features" in name:  # as contrastive losses gather them
                    made = torch.tanh(torch.cat(all_gather(torch.sigmoid(made))))
                loss = made.square().mean()
                loss.backward()
            seen.append(loss.detach())
        if "clipped" in name:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        if fitted is not None and fitted.last is not None:
            recomputed.append(fitted.last.recomputed)
        peaks.append(device.peak)
    seen += [(p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]
    plan = fitted.plan if fitted is not None else None
    if fitted is not None:
        fitted.remove()
    return [*seen, torch.get_rng_state()], plan, recomputed, peaks


@functools.cache
def plain(name):
    return train(name)[0]


def different(name, got):
    """Returns the places at which losses and parameters differ from those of steps without a budget."""
    return [at for at, (one, other) in enumerate(zip(plain(name), got, strict=True)) if not torch.equal(one, other)]


def guarded(name):
    """Returns what the test asks for about steps on a device that counts its memory, and on one whose copies run late."""
    seen, budget = [], 1 << 40
    for steps in 2, STEPS:
        device = Resized()
        with counted(device), sharded(device), mock.patch("spillway_torch.fit.family.useful_moves", lambda _: (OFFLOAD, EVICT)):
            state, plan, _, peaks = train(name, budget, steps, device)
        seen.append((plan.peak, max(peaks)))
        budget = (3 * plan.floor.bytes + plan.eager_peak) // 4 if steps == 2 else budget
    with using(Adversary(1)), mock.patch("spillway_torch.fit.family.useful_moves", lambda _: (OFFLOAD, EVICT)):
        _, other, *_ = train(name, 1 << 40, 2)
        late, other, *_ = train(name, (3 * other.floor.bytes + other.eager_peak) // 4)
    return {"different": different(name, state), "late": different(name, late), "free": seen[0], "budget": budget, "peak": seen[1][1],
            "state": plan.state, "offloaded": [list(p.actions.values()).count(OFFLOAD) for p in (plan, other)],
            "gathered": sorted(plan.tape.gathered.keys() & plan.actions.keys())}


def work(rank, folder, names):
    """Prints, for each case, what the test asks for."""
    torch.set_num_threads(1)
    logs = []
    handler = logging.Handler()
    handler.emit = lambda record: logs.append(record.getMessage())
    logging.getLogger("spillway_torch").addHandler(handler)
    logging.getLogger("spillway_torch").setLevel(logging.INFO)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(os.path.join(folder, "store"), 2))
    found = {}
    for name in names:
        if name in GUARDED:
            logs.clear()
            found[name] = {**guarded(name.removeprefix("guarded ")), "logs": list(logs)}
            continue
        _, free, *_ = train(name, 1 << 40, 2)
        logs.clear()
        got, plan, recomputed, _ = train(name, (free.floor.bytes + free.eager_peak) // 2)
        tape = plan.tape
        saved = saved_storages(tape)
        chains = [saved[storage].chain for storage, action in plan.actions.items() if action == EVICT]
        found[name] = {
            "different": different(name, got), "evicted": len(chains), "recomputed": recomputed, "logs": list(logs),
            "again": sorted({tape.ops[at].name for s in saved.values() if s.chain is not None for at in s.chain.ops}),
            "gathered": len(tape.gathered), "saved": sorted(tape.gathered.keys() & saved.keys()),
            "read": sum(storage in tape.gathered for chain in chains for storage in chain.held),
            "reasons": [group.reason for group in stuck(tape)]}
    print(json.dumps(found))
    dist.destroy_process_group()


# ---- the tests ----

@functools.cache
def results(file=__file__):
    """Returns what each of two processes that run a file printed about the cases."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = []
        for rank in range(2):
            process = stack.enter_context(subprocess.Popen([sys.executable, file, str(rank), folder], stdout=subprocess.PIPE, text=True,
                                                           env={**os.environ, "LOCAL_WORLD_SIZE": "2"}))
            stack.callback(process.kill)
            processes.append(process)
        return [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in processes]


def cases_of(kind):
    """Yields the process, the name and the findings of all cases of a kind."""
    for rank, found in enumerate(results()):
        yield from ((rank, name, case) for name, case in found.items() if name.startswith(kind))


class DistributedFitTest(unittest.TestCase):
    def check(self, kind):
        for rank, name, case in cases_of(kind):
            with self.subTest(name, rank=rank):
                self.assertEqual(case["different"], [])
                self.assertGreater(case["evicted"], 0)
                self.assertGreater(len(case["recomputed"]), STEPS // 2)
                self.assertGreater(min(case["recomputed"][-3:]), 0)
                self.assertTrue(all(line.startswith(f"spillway: rank {rank}: ") for line in case["logs"]), case["logs"])

    def test_steps_of_distributed_data_parallel_have_their_results(self):
        self.check("ddp")

    def test_steps_of_fully_shard_have_their_results(self):
        self.check("fsdp")

    def test_gathered_parameters_are_read_where_they_are_gathered_and_never_planned(self):
        for _, name, case in cases_of("fsdp"):
            with self.subTest(name):
                self.assertGreater(case["gathered"], 0)
                self.assertEqual(case["saved"], [])
                self.assertGreater(case["read"], 0)
                self.assertEqual(ABSENT in case["reasons"], name != "fsdp, kept")

    def test_budgets_on_a_device_that_counts(self):
        """Copies to the host change no bits, nor those of the optimizer's state, and steps take the memory that is predicted."""
        for rank, name, case in cases_of("guarded"):
            with self.subTest(name, rank=rank):
                self.assertEqual((case["different"], case["late"]), ([], []))
                self.assertGreater(min(case["offloaded"]), 0)
                self.assertEqual(case["gathered"], [])
                self.assertEqual(case["state"] > 0, "ddp" in name)
                self.assertLess(abs(case["free"][0] - case["free"][1]), 0.001 * case["free"][1])
                self.assertLessEqual(case["peak"], case["budget"])
                self.assertRegex("\n".join(case["logs"]),
                                 rf"spillway: rank {rank}: .* of the host, a rank may take [\d,.]+ [KMG]iB, as one of 2, from")

    def test_the_share_of_a_process(self):
        with mock.patch("spillway_torch.base.device.local_ranks", lambda: 4):
            self.assertLessEqual(host_memory(), host_share())
            self.assertLess(host_share(), free_memory() / 3)
            with self.assertRaisesRegex(SpillwayError, r"more bytes have to be on the host, where this process has [\d,]+ of the [\d,]+ "
                                                       "that are its share, as one of 4: give a larger budget"):
                CudaDevice.host(mock.Mock(index=0), 1 << 60)
        with self.assertRaisesRegex(SpillwayError, r"more bytes have to be on the host, which has [\d,]+ bytes free: give a larger budget"):
            CudaDevice.host(mock.Mock(index=0), 1 << 60)

    def test_state_that_stays_is_named(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        device = Resized()
        with counted(device), sharded(device), self.assertRaisesRegex(SpillwayError, r"are state of AdamW \(DTensor\), which stays on the"):
            model = fsdp((1,))[0]
            optimizer = torch.optim.AdamW(model.parameters())
            fit(model, optimizer, 3 * sum(p.nbytes for p in model.parameters()))
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()

    def test_parameters_and_buckets_do_not_grow_with_the_batch(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        for made in functools.partial(fsdp, (1,)), ddp, functools.partial(ddp, gradient_as_bucket_view=True):
            peaks = []
            for rows in 100, 200:
                device = Resized()
                with counted(device), sharded(device):
                    model = made()[0]
                    tape = record_tape(lambda: model(torch.randn(rows, WIDTH)).square().mean().backward(), "cpu")
                peaks.append((scaled(tape, ((100, WIDTH),), ((200, WIDTH),)) if rows == 100 else tape).eager_peak())
            with self.subTest(made):
                self.assertLess(abs(peaks[0] - peaks[1]), 0.002 * peaks[1])

    def test_a_parameter_that_is_not_gathered_when_it_is_needed(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        model = fsdp((1,))[0]
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def losses(budget, steps):
            fitted = fit(model, optimizer, budget)
            for _ in range(steps):
                loss = model(torch.randn(ROWS, WIDTH)).square().mean()
                yield fitted, loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            fitted.remove()

        plan = [fitted.plan for fitted, _ in losses(1 << 40, 2)][-1]
        for fitted, loss in losses((plan.floor.bytes + plan.eager_peak) // 2, 3):
            if fitted.plan is None:
                continue
            nodes = [loss.grad_fn]
            for node in nodes:
                nodes += [other for other, _ in node.next_functions if other is not None and other not in nodes]
            with self.assertRaisesRegex(RuntimeError, r"a parameter of shape \[\d+(, \d+)?\] has no memory when aten::addmm.* runs again"):
                for node in nodes:  # outside of a backward, which gathers them
                    if node.name() == "GeluBackward0":
                        getattr(node, "_saved_self")

    def test_what_communicates_does_not_run_again(self):
        operators = {"ddp, averages": "spillway_test::averaged", "ddp, features": "c10d::allgather_"}
        for _, name, case in cases_of("ddp"):
            self.assertEqual([again for again in case["again"] if not again.startswith("aten::")], [])
            if name in operators:
                self.assertTrue(any(reason.startswith(operators[name]) and reason.endswith("communicates with other processes")
                                    for reason in case["reasons"]), case["reasons"])


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], sys.argv[3:] or [*CASES, *GUARDED])

"""Tests that the program makes the step of a process among others (`world=`), or with other sharding, as it is recorded there."""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from sharded_test import GPU, shard, stack, train, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from spillway_torch import record

BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
SHORT = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
SAME = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


def blocks(width, count=3):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, 3 * width), nn.LayerNorm(3 * width), nn.GELU(), nn.Linear(3 * width, width))
                           for _ in range(count))).cuda()


def sharded(width=96, clip=False, optimizer=None, count=3, **options):
    def make(_):
        model = shard(blocks(width, count), **options)
        return model, train(model, width, clip=clip, optimizer=optimizer and optimizer(model.parameters()))
    return make


def checkpointed(count=3, mp_policy=BFLOAT16, **options):
    def make(_):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        model = shard(nn.Sequential(*(checkpoint_wrapper(block) for block in blocks(96, count))), mp_policy=mp_policy, **options)
        return model, train(model, 96, clip=True)
    return make


def accumulated(always=False, **options):
    def make(_):
        model = shard(blocks(96), **options)

        @contextlib.contextmanager
        def sync(last):
            model.set_requires_gradient_sync(last or always)
            yield
        return model, train(model, 96, batches=3, sync=sync)
    return make


def replicas(batches=1, shards=4, **options):
    def make(size):
        mesh = init_device_mesh("cuda", (size // shards, shards), mesh_dim_names=("replicas", "shards"))
        model = shard(blocks(96), mesh=mesh, **options)
        return model, train(model, 96, batches=batches)
    return make


def short(**options):
    def make(_):
        model = shard(blocks(96).bfloat16(), **options)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(2, 96, device="cuda", dtype=torch.bfloat16)

        def step():
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, step
    return make


def buckets(_):
    model = stack(4, 64).cuda()
    return model, train(model, 64, DistributedDataParallel(model, gradient_as_bucket_view=True))


def parts_of_shards(**options):
    def make(size):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
                                for _ in range(3))).cuda()
        mesh = init_device_mesh("cuda", (size // 2, 2), mesh_dim_names=("shards", "parts"))
        for block in model:
            parallelize_module(block, mesh["parts"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        shard(model, mesh=mesh["shards"], **options)
        return model, train(model, 64)
    return make


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(tokens, width), nn.ModuleList(Block(width) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, tokens, labels=None):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return logits if labels is None else nn.functional.cross_entropy(logits, labels)


def language_model(inner=False, several=False, frozen=0, loss_inside=True, mp_policy=BFLOAT16, **options):
    def make(_):
        options["mp_policy"] = mp_policy
        model = LanguageModel(96, 200).cuda()
        for module in model.embedding, *model.blocks[:frozen]:
            module.requires_grad_(not frozen)
        if several:
            fully_shard([model.norm, model.head], **options)
        for block in model.blocks:
            if inner:
                fully_shard(block.up, **options)
            fully_shard(block, **options)
        fully_shard(model, mp_policy=mp_policy)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

        def step():
            tokens = torch.randint(200, (64,), device="cuda")
            loss = model(tokens, tokens) if loss_inside else nn.functional.cross_entropy(model(tokens), tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, step
    return make


def parts(size):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Linear(256, 16384, bias=False)).cuda()
    parallelize_module(model, init_device_mesh("cuda", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, train(model, 256)


def updated_by_owners(_):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = stack(4, 64).cuda()
    return model, train(model, 64, DistributedDataParallel(model), optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))


def alone(_):
    model = blocks(96)
    return model, train(model, 96)


class StepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def recorded(self, make, size, rank=0, name=""):
        path = self.folder / f"{name}{size}.json"
        with world(size, rank):
            model, step = make(size)
            record(step, GPU, model=model, warm_up=2).write(path)
        return path

    def run_step(self, workload):
        ran = subprocess.run([os.environ["SPILLWAY"], "run", workload, "--policy", "as-recorded", "--allocator", "pytorch", "--device",
                              "h100", "--format", "json"], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)["rows"][0]

    def refused(self, workload, device="h100"):
        ran = subprocess.run([os.environ["SPILLWAY"], "run", workload, "--device", device], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 2, ran.stdout)
        return ran.stderr

    def assert_same(self, made, there):
        """Checks that two workloads have the same peaks, in bytes, and take the same time."""
        made, there = self.run_step(made), self.run_step(there)
        self.assertEqual([made[key] for key in SAME], [there[key] for key in SAME])
        for key in "iteration_ms", "communication_ms":
            self.assertAlmostEqual(made[key], there[key], delta=1e-4 * there[key])

    def changes(self, workload, memory):
        """Returns the rows of a step that does not fit, by their changes."""
        ran = subprocess.run([os.environ["SPILLWAY"], "fit", workload, "--device", "h100", "--memory", memory, "--policy", "as-recorded",
                              "--format", "json"], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 1, ran.stderr)
        return {row["change"]: row for row in json.loads(ran.stdout)["rows"]}


class OtherWorldTest(StepTest):
    def test_the_step_is_that_of_a_recording_there(self):
        cases = {
            "types": (sharded(mp_policy=BFLOAT16), 4, 32, 0), "one type": (sharded(clip=True), 4, 16, 3),
            "back": (sharded(mp_policy=BFLOAT16, clip=True), 32, 2, 0), "kept": (sharded(reshard_after_forward=False), 4, 8, 0),
            "rounded": (sharded(mp_policy=BFLOAT16), 8, 40, 0), "more than rows": (sharded(48), 4, 96, 0),
            "rounded in one type": (sharded(80), 4, 12, 2),
            "some": (sharded(reshard_after_forward=2), 8, 16, 0),
            "several operators": (sharded(optimizer=lambda p: torch.optim.AdamW(p, foreach=True)), 4, 16, 0),
            "checkpoints": (checkpointed(), 4, 32, 0), "accumulation": (accumulated(), 2, 8, 1), "replicas": (replicas(), 8, 32, 5),
            "buckets": (buckets, 2, 64, 0), "parts of shards": (parts_of_shards(), 8, 32, 6)}
        for name, (make, size, other, rank) in cases.items():
            with self.subTest(name):
                made, there = f"{self.recorded(make, size, rank)},world={other}", str(self.recorded(make, other, rank))
                self.assert_same(made, there)
                self.assertEqual(self.run_step(made)["workload"], f"{self.run_step(there)['workload']},world={other}")

    def test_what_only_a_recording_says_is_refused(self):
        for make, text in (parts, "is part of a computation that 4 processes share"), (updated_by_owners, "which ones that are"), (
                alone, "no collectives of several processes"):
            with self.subTest(text):
                self.assertIn(text, self.refused(f"{self.recorded(make, 4)},world=8"))

    def test_shards_are_those_of_a_recording(self):
        for size, shards, more in (8, 2, 4), (8, 2, 8), (24, 3, 6):
            with self.subTest(more):
                before, there = (str(self.recorded(replicas(shards=number), size, size - 1, name))
                                 for name, number in (("few", shards), ("more", more)))
                self.assertGreater(self.run_step(before)["peak_requested_bytes"], self.run_step(there)["peak_requested_bytes"])
                self.assert_same(f"{before},shards={more}", there)

    def test_sizes_are_checked(self):
        path = self.recorded(replicas(), 8)
        self.assertIn("shared out among 4 of 8 processes, of which 6 is neither", self.refused(f"{path},shards=6"))
        self.assertIn("no replicas of shards", self.refused(f"{self.recorded(sharded(), 4)},shards=2"))
        self.assertIn("6 processes are not a multiple of the 4 of the inner dimensions", self.refused(f"{path},world=6"))
        self.assertIn("'0' is not a whole number", self.refused(f"{path},world=0"))
        self.assertIn("cannot be combined with world", self.refused(f"{path},world=8,nodes=2"))
        self.assertIn("does not say how many GPUs a host has", self.refused(f"{path},nodes=2", "v100"))
        self.assertIn("world", self.refused("gpt2:8,world=8"))

    def test_fit_answers_for_several(self):
        path = self.recorded(sharded(), 4)
        ran = subprocess.run([os.environ["SPILLWAY"], "fit", path, "--device", "h100", "--world", "8,64", "--nodes", "2", "--format", "json"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = json.loads(ran.stdout)["rows"]
        self.assertEqual([row["world"] for row in rows], [8, 64, 16])
        self.assertGreater(rows[0]["peak_requested_bytes"], rows[1]["peak_requested_bytes"])
        self.assertGreater(rows[1]["communication_ms"], rows[0]["communication_ms"])

    def test_fit_asks_for_more_processes(self):
        path = self.recorded(sharded(1024), 4)
        rows = self.changes(path, "215MiB")
        self.assertNotIn("construction", rows)  # the steps before the recorded one are none
        row = rows["more GPUs"]
        self.assertEqual((row["world"], row["status"], row["remedy"]), (16, "reclaims", "16 GPUs (FSDP over 4 times as many)"))
        self.assertEqual(row["python"], 'mesh = init_device_mesh("cuda", (16,))  # torchrun --nnodes=2 --nproc_per_node=8')
        there = self.run_step(f"{path},world=16")
        for key in "peak_requested_bytes", "peak_allocated_bytes", "iteration_ms":
            self.assertEqual(row[key], there[key])
        row = self.changes(path, "100MiB")["more GPUs"]  # the most that is tried helps
        self.assertEqual((row["world"], row["status"]), (64, "no"))
        rows = self.changes(self.recorded(replicas(), 8), "60MiB")
        self.assertNotIn("more GPUs", rows)  # more replicas do not
        self.assertEqual([rows["more shards"][key] for key in ("status", "remedy", "python")], [
            "no", "2 times as many shards, fewer replicas", 'mesh = init_device_mesh("cuda", (1, 8,))'])

    def test_fit_says_why_it_does_not_ask_for_more(self):
        ran = subprocess.run([os.environ["SPILLWAY"], "fit", self.recorded(parts, 4), "--device", "h100", "--memory", "60MiB"],
                             capture_output=True, text=True, check=False)
        self.assertIn("More GPUs were not tried: world: 'all_reduce.3' is part of a computation", " ".join(ran.stdout.split()))


class OtherShardingTest(StepTest):
    KEPT, FREED = {"reshard_after_forward": False}, {"reshard_after_forward": True}

    def test_parameters_are_freed_as_in_a_recording(self):
        cases = {
            "types": (functools.partial(sharded, mp_policy=BFLOAT16, clip=True, count=6), 4),
            "one type": (functools.partial(sharded, 80), 4),
            "checkpoints": (functools.partial(checkpointed, count=6), 4), "accumulation": (accumulated, 2), "replicas": (replicas, 8),
            "parts of shards": (parts_of_shards, 8), "language model": (language_model, 4),
            "modules in modules": (functools.partial(language_model, inner=True), 4),
            "several modules": (functools.partial(language_model, several=True), 4),
            "parts without gradients": (functools.partial(language_model, frozen=2), 4),
            "loss outside": (functools.partial(language_model, loss_inside=False), 4)}
        for name, (make, size) in cases.items():
            with self.subTest(name):
                kept, freed = (str(self.recorded(make(**options), size, size - 2, name))
                               for name, options in (("kept", self.KEPT), ("freed", self.FREED)))
                self.assertGreater(self.run_step(kept)["peak_requested_bytes"], self.run_step(freed)["peak_requested_bytes"])
                self.assert_same(f"{kept},reshard=forward", freed)

    def test_gradients_are_reduced_as_in_a_recording(self):
        cases = {
            "blocks": (sharded, 4), "kept": (functools.partial(sharded, **self.KEPT), 4), "parts of shards": (parts_of_shards, 8),
            "checkpoints": (checkpointed, 4), "accumulation": (functools.partial(accumulated, always=True), 2), "replicas": (replicas, 8),
            "accumulation and replicas": (functools.partial(replicas, batches=2), 8), "parameters in bf16": (short, 4),
            "parts without gradients": (functools.partial(language_model, frozen=2), 4)}
        for name, (make, size) in cases.items():
            with self.subTest(name):
                long, short_one = (str(self.recorded(make(mp_policy=policy), size, size - 2, name))
                                   for name, policy in (("long", BFLOAT16), ("short", SHORT)))
                self.assertGreater(self.run_step(long)["communication_ms"], self.run_step(short_one)["communication_ms"])
                self.assert_same(f"{long},reduce=bf16", short_one)

    def test_what_cannot_be_reduced_is_refused(self):
        for make, text in (sharded(), "the step reduces no gradients in fp32 of parameters in bf16"), (
                accumulated(mp_policy=BFLOAT16), "reduces gradients that were added up, or made, in fp32"):
            with self.subTest(text):
                self.assertIn(text, self.refused(f"{self.recorded(make, 4)},reduce=bf16"))

    def test_what_cannot_be_freed_is_refused(self):
        other = sharded(shard_placement_fn=lambda p: Shard(p.dim() - 1), **self.KEPT)
        for make, text in (sharded(), "gathers no parameters in forward, or frees them behind it already"), (
                buckets, "gathers no parameters"), (other, "shards of another dimension of parameters than the first"):
            with self.subTest(text):
                self.assertIn(text, self.refused(f"{self.recorded(make, 4)},reshard=forward"))

    def test_fit_reduces_in_bf16(self):
        path = self.recorded(sharded(1024, mp_policy=BFLOAT16), 4)
        row = self.changes(path, "200MiB")["bf16 reduction"]
        there = self.run_step(f"{path},reduce=bf16")
        self.assertEqual([row["remedy"].split(",")[0], row["peak_requested_bytes"], row["iteration_ms"]],
                         ["reduce gradients in bf16 (other numerics)", there["peak_requested_bytes"], there["iteration_ms"]])
        self.assertNotIn("reshard", self.changes(path, "200MiB"))

    def test_fit_frees_them(self):
        kept = self.recorded(sharded(1024, **self.KEPT), 4)
        row = self.changes(kept, "215MiB")["reshard"]
        there = self.run_step(f"{kept},reshard=forward")
        self.assertEqual([row["remedy"].split(",")[0], row["peak_requested_bytes"], row["iteration_ms"]],
                         ["reshard after forward", there["peak_requested_bytes"], there["iteration_ms"]])
        with world(4):
            model, _ = sharded(**self.KEPT)(4)
            exec(row["python"].split("os.environ")[0], {"model": model, "FSDPModule": FSDPModule})  # pylint: disable=exec-used
            self.assertTrue(all(block._get_fsdp_state()._fsdp_param_group._reshard_after_forward for block in model))
        self.assertNotIn("reshard", self.changes(self.recorded(sharded(1024), 4), "200MiB"))
        together = self.changes(self.recorded(sharded(512, count=8, **self.KEPT), 4), "110MiB")["combination"]["remedy"].split(" + ")
        self.assertIn("reshard after forward", together)


if __name__ == "__main__":
    unittest.main()

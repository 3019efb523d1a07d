"""Tests `plan_sharding`: its rows against recordings one by one, deeper models against recordings of them, and what it refuses."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint as checkpointed

from spillway_torch import ProgramError, SpillwayError, plan_sharding, pretend, record
from spillway_torch.__main__ import main
from spillway_torch.plan.sharding import Sharding

try:
    from torch.distributed.fsdp import fully_shard
except ImportError as error:  # before PyTorch 2.6
    raise unittest.SkipTest("this PyTorch has no fully_shard") from error

WIDTH, ROWS = 256, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self, layers, checkpoint):
        super().__init__()
        self.blocks, self.checkpoint = nn.ModuleList(Block() for _ in range(layers)), checkpoint
        self.head = nn.Linear(WIDTH, 8 * WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = checkpointed(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.head(x).float().logsumexp(-1).sum()


def build(mesh, micro_batch, checkpoint, layers=4):
    model = Model(layers, checkpoint).cuda()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        model(torch.randn(micro_batch, ROWS, WIDTH, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def split(mesh, micro_batch, checkpoint, tensor):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    model = Model(2, checkpoint).cuda()
    for block in model.blocks if tensor is not None else ():
        parallelize_module(block, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh)

    def step():
        model(torch.randn(micro_batch, ROWS, WIDTH, device="cuda")).backward()

    return model, step


def alone(sharding, device="h100", **options):
    """Returns the row of `spillway run` for a recording of one way."""
    dist.init_process_group("fake", rank=0, world_size=sharding.replicas * sharding.shards)
    try:
        with pretend("cuda:sm_90"), tempfile.TemporaryDirectory() as folder:
            mesh = init_device_mesh("cuda", (sharding.replicas, sharding.shards)[sharding.replicas == 1:],
                                    mesh_dim_names=("replicas", "shards")[sharding.replicas == 1:])
            model, step = build(mesh, sharding.micro_batch, sharding.checkpoint, **options)
            record(step, model=model).write(f"{folder}/step.json")
            ran = subprocess.run([os.environ["SPILLWAY"], "run", f"{folder}/step.json", "--device", device, "--policy", "as-recorded",
                                  "--allocator", "pytorch", "--format", "json"], capture_output=True, text=True, check=True)
            return json.loads(ran.stdout)["rows"][0]
    finally:
        dist.destroy_process_group()


class PlanShardingTest(unittest.TestCase):
    def test_rows_are_those_of_recordings_one_by_one(self):
        found = plan_sharding(build, 4, "h100", micro_batches=(1, 4), gpus=2)
        ways = [Sharding(4 // shards, shards, 1, micro, checkpoint) for shards in (1, 2, 4) for micro in (1, 4)
                for checkpoint in (False, True)]
        self.assertEqual({row.sharding for row in found.rows}, set(ways))
        self.assertEqual(len(found.rows), len(ways))
        self.assertEqual([row.samples_per_second for row in found.rows], sorted((r.samples_per_second for r in found.rows), reverse=True))
        rows = {row.sharding: row for row in found.rows}
        for way in ways[::3]:
            with self.subTest(way):
                one, row = alone(way), rows[way]
                for name in "peak_requested_bytes", "peak_reserved_bytes", "iteration_ms", "communication_ms", "exposed_ms":
                    self.assertEqual(getattr(row, name), one[name], name)
                self.assertEqual((row.status, row.recorded, row.margin_bytes), ("fits", True, (81079 << 20) - one["peak_reserved_bytes"]))
                self.assertAlmostEqual(row.samples_per_second, one["iteration_ms"] ** -1 * way.micro_batch * 1000)
        self.assertIn("fits", found.text())
        self.assertNotIn("composed", found.text())

    def test_deeper_models_are_composed(self):
        found = plan_sharding(build, 8, layers=32, shards=(2,), micro_batches=(11,))  # whose peak is elsewhere with 12 layers
        self.assertTrue(found.rows[0].recorded)
        self.assertIn("composed", found.text())
        for row in found.rows:
            with self.subTest(row.sharding):
                whole = alone(row.sharding, layers=32)
                self.assertEqual(row.peak_requested_bytes, whole["peak_requested_bytes"])
                for name, part in ("peak_reserved_bytes", 0.1), ("iteration_ms", 0.03), ("communication_ms", 0.03), ("exposed_ms", 0.05):
                    self.assertAlmostEqual(getattr(row, name) / whole[name], 1, delta=part, msg=name)

    def test_parts_of_layers(self):
        found = plan_sharding(split, 8, tensor=(1, 2), shards=(2, 4), checkpoints=(False,), micro_batches=(2,))
        ways = [row.sharding for row in found.rows]
        self.assertEqual({(way.replicas, way.shards, way.tensor) for way in ways}, {(4, 2, 1), (2, 4, 1), (2, 2, 2), (1, 4, 2)})
        for row in found.rows:
            self.assertAlmostEqual(row.samples_per_second, 2000 / row.iteration_ms / row.sharding.tensor)

    def test_batches_grow_until_one_does_not_fit(self):
        found = plan_sharding(build, 8, memory="160MiB", shards=(8,))
        for checkpoint in False, True:
            batches = {row.sharding.micro_batch: row.status for row in found.rows if row.sharding.checkpoint is checkpoint}
            self.assertEqual(sorted(batches), [1 << n for n in range(len(batches))])
            self.assertEqual([batch for batch, status in batches.items() if status == "no"], [max(batches)])
        self.assertNotIn("Nothing fits", found.text())

    def test_nothing_fits(self):
        found = plan_sharding(build, 8, memory="4MiB", shards=(1, 8))
        self.assertEqual({row.status for row in found.rows}, {"no"})
        self.assertEqual(found.rows[0].margin_bytes, max(row.margin_bytes for row in found.rows))
        self.assertRegex(found.text(), r"Nothing fits: replicas=1, shards=8, tensor=1, micro_batch=1, checkpoint=\w+ lacks 0.\d\d GiB")

    def test_devices_without_links(self):
        found = plan_sharding(build, 2, "v100", shards=(2,), micro_batches=(1,))
        self.assertIsNone(found.rows[0].exposed_ms)
        self.assertIn("Collectives are not timed on v100, whose file has no [cluster]", found.text())

    def refused(self, kind, text, *arguments, make=build, **options):
        with self.assertRaisesRegex(kind, text):
            plan_sharding(make, *arguments, **options)
        self.assertFalse(dist.is_initialized())

    def test_what_is_refused(self):
        def fails(mesh, micro_batch, checkpoint):
            raise ValueError("no such width")
        self.refused(ProgramError, "unknown device 'h10'.*h100", 8, "h10")
        self.refused(ProgramError, "80XB", 8, memory="80XB")
        self.refused(SpillwayError, "world is 12, with 8 GPUs of a host", 12)
        self.refused(SpillwayError, "world is 1,", 1)
        self.refused(SpillwayError, r"shards are \[3\].*divides 8", 8, shards=(3,))
        self.refused(SpillwayError, "no parameter tensor", 8, tensor=(2,))
        self.refused(SpillwayError, "layers is 4; .*parameter layers", 8, make=split, layers=4)
        self.refused(SpillwayError, r"micro_batches are \[0\]", 8, micro_batches=(0,))
        self.refused(SpillwayError, "replicas=1, shards=2, tensor=1, micro_batch=1, checkpoint=False: .*plan_sharding_test.py:[0-9]+: "
                                    "ValueError: no such width", 2, make=fails, shards=(2,))
        dist.init_process_group("fake", rank=0, world_size=2)
        try:
            with self.assertRaisesRegex(SpillwayError, "before init_process_group"):
                plan_sharding(build, 2)
        finally:
            dist.destroy_process_group()

    def test_the_verb(self):
        arguments = ["plan-sharding", __file__, "--world", "8", "--shards", "8", "--micro-batches", "1,2", "--checkpoints", "no"]
        for more, code, said in (((), 0, " fits "), (("--memory", "4MiB"), 1, "Nothing fits"), (("--device", "h10"), 5, "unknown device"),
                                 (("--shards", "3"), 3, "divides 8")):
            with self.subTest(more), contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                self.assertEqual(main([*arguments, *more]), code)
                self.assertIn(said, out.getvalue())


class PageTest(unittest.TestCase):
    """What MANY_GPUS.md shows is what the program prints."""

    def test_the_example(self):
        page = (pathlib.Path(__file__).parents[1] / "MANY_GPUS.md").read_text()
        part = page.split("## Which sharding")[1]
        code = part.split("```python\n")[1].split("```")[0]
        command, _, printed = part.split("```console\n$ python3 ")[1].split("```")[0].partition("\n")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            pathlib.Path(folder, "build.py").write_text(code)
            _, _, *arguments = command.split()
            main([a if a != "build.py" else f"{folder}/build.py" for a in arguments])
        self.assertEqual(out.getvalue(), printed)

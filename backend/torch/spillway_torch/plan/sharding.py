"""Which sharding of a model over many GPUs fits and is the fastest: each is recorded without a GPU, and simulated."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist

from ..base.errors import SpillwayError
from ..base.program import rows_of
from ..base.stepfile import guarded
from ..base.target import parse_target
from ..step.data import StepData
from ..step.pretended import active, pretend
from ..step.recording import record_plainly
from ..step.step import Step
from .plan import parse_bytes

DEPTHS = 4, 12  # layers of the two recordings from which deeper models are composed: two at each end, and eight more
STATUSES = "fits", "reclaims", "no"  # the words of `spillway fit`


@dataclasses.dataclass(frozen=True)
class Sharding:
    """One way to train a model on many GPUs."""

    replicas: int  # the copies of the model
    shards: int  # the groups of `tensor` GPUs that share a copy
    tensor: int  # the GPUs that share each layer
    micro_batch: int  # the samples that such a group takes in a step
    checkpoint: bool

    def __str__(self) -> str:
        return (f"replicas={self.replicas}, shards={self.shards}, tensor={self.tensor}, micro_batch={self.micro_batch}, "
                f"checkpoint={self.checkpoint}")


@dataclasses.dataclass(frozen=True)
class ShardingRow:
    """What a step of one process takes, of memory in bytes and of time. Without `recorded`, it is composed of two smaller depths."""

    sharding: Sharding
    recorded: bool
    memory_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    iteration_ms: float
    communication_ms: Optional[float]  # of all collectives; None if the device has no links to others
    exposed_ms: Optional[float]  # the part in which nothing else runs

    @property
    def margin_bytes(self) -> int:
        return self.memory_bytes - self.peak_reserved_bytes

    @property
    def status(self) -> str:
        """"fits"; "reclaims" if the allocator has to give cached memory back, whose time is not predicted; or "no"."""
        return STATUSES[(self.peak_reserved_bytes > self.memory_bytes) + (self.peak_requested_bytes > self.memory_bytes)]

    @property
    def samples_per_second(self) -> float:
        """The samples of a second, divided by all GPUs."""
        return 1e3 * self.sharding.micro_batch / self.sharding.tensor / self.iteration_ms

    @property
    def order(self) -> tuple[float, ...]:
        """Sorts rows: what fits by its speed, and what does not by the bytes that it lacks."""
        return STATUSES.index(self.status), -(self.margin_bytes if self.status == "no" else self.samples_per_second)


@dataclasses.dataclass(frozen=True)
class Shardings:
    """The answer of `plan_sharding`. Of the rows, those that fit come first, and of these the fastest."""

    device: str
    rows: list[ShardingRow]

    def text(self) -> str:
        """Returns a table for people."""
        gib = 1 << 30
        size = self.rows[0].memory_bytes / gib
        lines = [f"Sizes are in GiB, of {size:.2f} on each {self.device}. Samples are those of a second and GPU.", "",
                 f"{'replicas':>8} {'shards':>6} {'tensor':>6} {'micro-batch':>11} {'checkpoint':>10}  {'fits':8} {'samples':>8} "
                 f"{'time ms':>9} {'exposed ms':>10} {'requested':>9} {'reserved':>8} {'margin':>8}"]
        for row in self.rows:
            s, exposed = row.sharding, "-" if row.exposed_ms is None else f"{row.exposed_ms:.1f}"
            lines.append(f"{s.replicas:8} {s.shards:6} {s.tensor:6} {s.micro_batch:11} {'yes' if s.checkpoint else 'no':>10}  "
                         f"{row.status:8} {row.samples_per_second:8.4g} {row.iteration_ms:9.1f} {exposed:>10} "
                         f"{row.peak_requested_bytes / gib:9.2f} {row.peak_reserved_bytes / gib:8.2f} {row.margin_bytes / gib:8.2f}"
                         f"{'' if row.recorded else '  composed'}")
        if self.rows[0].status == "no":
            lines.append(f"Nothing fits: {self.rows[0].sharding} lacks {-self.rows[0].margin_bytes / gib:.2f} GiB.")
        if any(row.status == "reclaims" for row in self.rows):
            lines.append("What reclaims fits because the allocator gives cached memory back to the driver, which takes time that is not "
                         "predicted.")
        if not all(row.recorded for row in self.rows):
            lines.append(f"What is composed follows from recordings of {DEPTHS[0]} and {DEPTHS[1]} layers.")
        if self.rows[0].exposed_ms is None:
            lines.append(f"Collectives are not timed on {self.device}, whose file has no [cluster].")
        return "\n".join(lines)


def plan_sharding(build: Callable[..., tuple[torch.nn.Module, Callable[[], Any]]], world: int, device: str = "h100",
                  memory: Optional[int | str] = None, *, layers: Optional[int] = None, shards: Sequence[int] = (),
                  tensor: Sequence[int] = (), micro_batches: Sequence[int] = (), checkpoints: Sequence[bool] = (False, True),
                  gpus: int = 8, target: str = "cuda:sm_90", assume: Optional[Mapping[str, Any]] = None) -> Shardings:
    """Returns which ways to shard a model over GPUs fit, and how long a step takes. Each one is recorded without a GPU, as process 0.

    build: `build(mesh, micro_batch, checkpoint)` returns a model on "cuda" and its step, which takes `micro_batch` samples. It runs on a
        pretended GPU. `mesh` has the dimension "shards", and before it "replicas" if there are several. With a parameter `layers`, it
        gets a depth, and with a parameter `tensor`, the mesh of tensor parallelism, or None.
    world: the number of GPUs.
    device, memory: as `spillway run` takes them; by default all memory of the device.
    layers: the depth of the model. A deeper one than 12 is composed of recordings of 4 and 12 layers, and the fastest row is recorded.
    shards, tensor: sizes of groups. By default all that divide `world`, and fill a host, a part of it or several.
    micro_batches: by default 1, 2, 4 and so on, until one does not fit.
    checkpoints: what `build` gets as `checkpoint`.
    gpus: of one host.
    target, assume: as `record` takes them.

    Raises `SpillwayError` if an argument is out of range, or `build` or its step fails, and `ProgramError` if the program `spillway`
    is missing or refuses the device or the memory.
    """
    grid = list(_grid(build, world, gpus, shards, tensor))
    if layers is not None and (layers < 1 or "layers" not in inspect.signature(build).parameters):
        raise SpillwayError(f"layers is {layers}; expected at least 1, and a function with the parameter layers")
    if min(micro_batches, default=1) < 1 or not checkpoints:
        raise SpillwayError(f"micro_batches are {list(micro_batches)} and checkpoints {list(checkpoints)}; expected numbers of at least 1, "
                            "and True, False or both")
    if active() is not None or dist.is_initialized():
        raise SpillwayError("plan_sharding: it pretends GPUs and makes process groups of its own; call it outside pretend, and before "
                            "init_process_group")
    asked = [] if memory is None else ["--memory", f"{memory}B" if isinstance(memory, int) else memory]
    size = rows_of("run", "alexnet:1", "--policy", "liveness", "--device", device, *asked)[0]["memory_bytes"]
    trial = _Trial(build, device, parse_bytes(size), target, assume)
    rows: list[ShardingRow] = []
    for (replicas, parts, split), checkpoint in itertools.product(grid, checkpoints):
        for micro_batch in micro_batches or (1 << n for n in itertools.count()):
            rows.append(trial.row(Sharding(replicas, parts, split, micro_batch, checkpoint), layers))
            if not micro_batches and rows[-1].status == "no":
                break
    rows.sort(key=lambda row: row.order)
    while not rows[0].recorded and rows[0].status != "no":
        rows[0] = trial.recorded(rows[0].sharding, layers)[0]
        rows.sort(key=lambda row: row.order)
    return Shardings(device, rows)


def _grid(build: Callable[..., Any], world: int, gpus: int, shards: Sequence[int], tensor: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields copies of the model, GPUs that share each, and GPUs that share a layer."""
    if world < 2 or gpus < 1 or (world % gpus and gpus % world):
        raise SpillwayError(f"world is {world}, with {gpus} GPUs of a host; expected at least 2, and a multiple or a part of a host")
    splits = tensor or ([n for n in range(1, gpus + 1) if gpus % n == 0] if "tensor" in inspect.signature(build).parameters else [1])
    if max(splits) > 1 and "tensor" not in inspect.signature(build).parameters:
        raise SpillwayError(f"tensor is {list(tensor)}, but the function has no parameter tensor")
    found = False
    for split in splits:
        for parts in shards or range(1, world + 1):
            together = split * parts
            if split >= 1 and parts >= 1 and world % together == 0 and (shards or together % gpus == 0 or gpus % together == 0):
                found = True
                yield world // together, parts, split
    if not found:
        raise SpillwayError(f"shards are {list(shards)} and tensor {list(splits)}; expected numbers whose product divides {world}")


@dataclasses.dataclass
class _Trial:
    """Records and runs steps."""

    build: Callable[..., tuple[torch.nn.Module, Callable[[], Any]]]
    device: str
    memory: int
    target: str
    assume: Optional[Mapping[str, Any]]

    def row(self, sharding: Sharding, layers: Optional[int]) -> ShardingRow:
        if layers is None or layers <= DEPTHS[1]:
            return self.recorded(sharding, layers)[0]
        (low, low_step), (high, high_step) = (self.recorded(sharding, depth) for depth in DEPTHS)

        def line(one: float, other: float) -> float:
            return one + (other - one) * (layers - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])

        # A peak may be elsewhere in deeper models. So each place has its own line.
        small, large = _held(low_step), _held(high_step)
        requested = int(max(line(small[place], large[place]) for place in small.keys() & large.keys())) + high_step.workspace
        times: dict[str, Any] = {name: None if getattr(low, name) is None else max(line(getattr(low, name), getattr(high, name)), 0.0)
                                 for name in ("iteration_ms", "communication_ms", "exposed_ms")}
        reserved = max(requested, int(line(low.peak_reserved_bytes, high.peak_reserved_bytes)))
        return dataclasses.replace(low, recorded=False, peak_requested_bytes=requested, peak_reserved_bytes=reserved, **times)

    def recorded(self, sharding: Sharding, layers: Optional[int]) -> tuple[ShardingRow, Step]:
        try:
            step = guarded(inspect.getsourcefile(self.build) or "", lambda: self.record(sharding, layers))
        except SpillwayError as error:
            raise SpillwayError(f"{sharding}{'' if layers is None else f', layers={layers}'}: {error}") from error
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.json")
            step.write(path)
            row = rows_of("run", path, "--device", self.device, "--memory", "unlimited", "--allocator", "pytorch",
                          "--policy", "as-recorded")[0]
        timed = row["communication_ms"] > 0 or not any(o.collective is not None for o in step.operators)
        return ShardingRow(sharding, True, self.memory, row["peak_requested_bytes"], row["peak_reserved_bytes"], row["iteration_ms"],
                           row["communication_ms"] if timed else None, row["exposed_ms"] if timed else None), step

    def record(self, sharding: Sharding, layers: Optional[int]) -> Step:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import debug
        sizes = {"replicas": sharding.replicas, "shards": sharding.shards, "tensor": sharding.tensor}
        names = tuple(name for name, size in sizes.items() if size > 1 or name == "shards")
        options: dict[str, Any] = {} if layers is None else {"layers": layers}
        dist.init_process_group("fake", rank=0, world_size=sharding.replicas * sharding.shards * sharding.tensor)
        try:
            with pretend(self.target):
                mesh = init_device_mesh("cuda", tuple(sizes[name] for name in names), mesh_dim_names=names)
                if "tensor" in inspect.signature(self.build).parameters:
                    options["tensor"] = mesh["tensor"] if sharding.tensor > 1 else None
                data = tuple(name for name in names if name != "tensor")
                model, step = self.build(mesh if data == names else mesh[data], sharding.micro_batch, sharding.checkpoint, **options)
                return record_plainly(step, parse_target(self.target), model, "sharded", sharding.micro_batch, 1, self.assume)
        finally:
            dist.destroy_process_group()
            getattr(debug, "_clear_sharding_prop_cache")()  # an equal mesh of the next way has other groups


def _held(step: StepData) -> dict[tuple[Any, ...], int]:
    """Returns the most bytes that are held at each place of a step: operators of a kind, in a module and phase. Of a list of blocks, the
    first half is numbered from the beginning, and the second one from the end.
    """
    lists: dict[str, list[str]] = {}
    for block in sorted(step.blocks, key=lambda name: (len(name), name)):
        lists.setdefault(block.rpartition(".")[0], []).append(block)
    numbers = {block: n if 2 * n < len(blocks) else n - len(blocks) for blocks in lists.values() for n, block in enumerate(blocks)}
    found: dict[tuple[Any, ...], int] = {}
    for operator, held in zip(step.operators, step.held_bytes(1)):
        block = step.block_of(operator.module)
        place = operator.phase, numbers.get(block), operator.module[len(block):], operator.packet
        found[place] = max(found.get(place, 0), held)
    return found

"""The data of a recorded step: which operators ran, in which modules, on which storages."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..base.device import GRANULE
from ..base.ledger import Storage
from ..base.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as an operator used it. `offset` and `size` are bytes in its storage; a strided tensor counts as one piece."""

    storage: Storage
    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """What a chain of operators takes when it runs again."""

    time_ns: int
    host_ns: int
    workspace: int  # bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """A communication of processes."""

    kind: str  # a name in `table.COLLECTIVES`
    group: str  # the name of the group of processes
    ranks: tuple[int, ...]  # the processes in it; of a message, its sender or receiver and this one
    bytes: int  # what the operator's largest argument or result has: a gather's result, a scatter's input
    asynchronous: bool  # it runs on its group's lane, not on the current stream


@dataclasses.dataclass(slots=True)
class Operator:
    """One operator of the program, in the order in which the host ran it."""

    name: str  # "aten::addmm"
    module: str  # path of the module in whose forward it ran, or that its backward belongs to; empty if none
    phase: str  # forward, backward or update
    inputs: list[Operand]
    outputs: list[Operand]
    flops: int
    random: bool
    layer: int  # number of the forward operator whose backward it is, otherwise its own
    scratch: int = 0  # bytes that it held in addition to its operands, as far as they are known
    attributes: dict[str, int] = dataclasses.field(default_factory=dict)  # its shape (attributes.py)
    tf32: bool = False  # its products of numbers in float32 may run in TF32
    time_ns: int = 0  # the time of the GPU, if it was measured
    host_ns: int = 0  # the time of the host, if it is known for each operator
    number: int | None = None  # in the step as it was recorded, if this one was made from it
    again: Again | None = None  # it stands for a chain of operators, which makes its result again
    lane: int = 0  # the stream on which it runs (`streams.py`)
    after: tuple[int, ...] = ()  # the numbers of operators of other lanes that it waits for
    collective: Collective | None = None

    @property
    def packet(self) -> str:
        """The name without namespace: "addmm"."""
        return self.name.split("::")[-1]

    @property
    def place(self) -> str:
        """The name, and the module, for messages."""
        return self.name + in_module(self.module)


def in_module(path: str) -> str:
    """Returns the part of a message that names a module; empty if there is none."""
    return f" in module '{path}'" if path else ""


@dataclasses.dataclass(slots=True)
class Saved:
    """A tensor that autograd kept for backward. Positions are numbers of operators that had run."""

    operand: Operand
    packed: int
    unpacked: list[int] = dataclasses.field(default_factory=list)

    @property
    def storage(self) -> Storage:
        return self.operand.storage


@dataclasses.dataclass(frozen=True)
class Measured:
    """A step as it ran without the recorder: medians in ns. A time is 0 if it is not known."""

    device: str = ""  # the GPU as its driver calls it
    step_ns: int = 0  # from the GPU's first to its last instruction
    host_ns: int = 0  # until the step returned; 0 also if the host waited for the GPU
    reserved: int = 0  # bytes: the most that PyTorch's allocator has held so far


@dataclasses.dataclass(frozen=True)
class CompiledCut:
    """What the graphs of a step take under torch.compile, if they save certain values for backward (traces/FORMAT.md)."""

    memory: int  # the most bytes at once, beside parameters, the optimizer's state and the step's data
    flops: int  # of matrix products, convolutions and attention
    traffic: int  # bytes that other kernels read and write
    kernels: int


@dataclasses.dataclass(frozen=True)
class CompiledCuts:
    """Several cuts of the graphs of one step: PyTorch's own, and then others that take less memory each."""

    reads: frozenset[int]  # the bytes of the parameters and data that the graphs read
    cuts: tuple[CompiledCut, ...]


@dataclasses.dataclass(eq=False)
class StepData:
    """One step: what it ran, and the memory of the device that it used. Sizes are bytes as the program requests them."""

    network: str
    batch: int
    target: Target
    operators: list[Operator] = dataclasses.field(default_factory=list, repr=False)
    storages: dict[int, Storage] = dataclasses.field(default_factory=dict, repr=False)  # by number: all that existed during the step
    saved: list[Saved] = dataclasses.field(default_factory=list, repr=False)
    # The workspaces of libraries: the number of the operator that makes them allocate it, and its size
    workspaces: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    # The requests before the first step, for a pretended device: the size, how many had been made when the memory was given
    # back, or -1 if it was not, and the lane.
    requests: list[list[int]] = dataclasses.field(default_factory=list, repr=False)
    blocks: set[str] = dataclasses.field(default_factory=set, repr=False)  # paths of the model's blocks
    measured: Measured = Measured()  # without the recorder; empty if the step did not run on a GPU
    hooks: dict[str, Any] | None = None  # what plans need to know about autograd's hooks (traces/FORMAT.md), if the step can be planned

    def __post_init__(self) -> None:
        self.device = self.target.shown.type

    @property
    def workspace(self) -> int:
        """The bytes of all workspaces of libraries."""
        return sum(size for _, size in self.workspaces)

    @property
    def peak_requested(self) -> int:
        """The most bytes that storages, scratch memory of operators as far as it is known (`scratch.py`) and workspaces take."""
        return self._peak(1)

    @property
    def peak_allocated(self) -> int:
        """The same, each rounded up as PyTorch's allocator does."""
        return self._peak(GRANULE)

    def block_of(self, path: str) -> str:
        """Returns the block that a module belongs to; empty if none."""
        parts = path.split(".")
        heads = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        return next((head for head in heads if head in self.blocks), "")

    def lives(self) -> list[Storage]:
        """Returns the storages of the program itself, as they live in an ordinary step."""
        return sorted(self.storages.values(), key=lambda s: s.number)

    def _peak(self, granule: int) -> int:
        return max(self.held_bytes(granule)) + self.workspace

    def held_bytes(self, granule: int) -> list[int]:
        """Returns the bytes that exist while each operator runs, and after the last one, without workspaces; each size is rounded up.

        At equal times, storages are released before others are allocated.
        """
        changes: dict[int, list[int]] = {}
        for storage in self.lives():
            size = -(-storage.size // granule) * granule
            if storage.died == storage.born and storage.died is not None:
                continue  # it existed between two operators
            changes.setdefault(max(storage.born, 0), [0, 0])[0] += size
            if storage.died is not None and storage.died >= 0:
                changes.setdefault(storage.died, [0, 0])[1] += size
        held, found = 0, []
        for time in range(len(self.operators) + 1):
            allocated, released = changes.get(time, (0, 0))
            held += allocated - released
            scratch = self.operators[time].scratch if time < len(self.operators) else 0
            found.append(held + -(-scratch // granule) * granule)
        return found

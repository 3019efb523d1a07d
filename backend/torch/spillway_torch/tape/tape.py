"""A recorded step, parts of which can run again: operators with their arguments, saved tensors, and memory over time."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, Optional

import torch

from ..base import table
from ..base.ledger import Storage
from ..base.target import parse_target
from ..step.data import Operator, Saved
from ..step.step import Step
from .costs import HostCosts
from .weights import RecordedWeight

Shapes = tuple[tuple[int, ...], ...]  # of the tensors that a model is given
Value = tuple[int, int]  # number of a storage, and how many operators had written it

SMALL = 4096  # bytes of a storage that a step may keep, whether or not the program does

# Arguments that do not change the results of an operator as the executor runs it: running statistics go to scratch memory.
IGNORED = {name: frozenset(("momentum", "exponential_average_factor")) for name in table.HIDDEN_WRITES}


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where a tensor lies in its storage, in elements."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Ref:
    """A tensor as an argument or result of an operator."""

    value: Value
    geometry: Geometry


@dataclasses.dataclass(kw_only=True)
class Op(Operator):
    """An operator that made or wrote storages, with what it takes to run it again."""

    func: Any = None
    args: Any = None  # with `Ref` in the place of tensors of the device
    kwargs: Any = None
    results: list[Optional[Ref]] = dataclasses.field(default_factory=list)  # in order; None for other values than tensors
    fresh: frozenset[int] = frozenset()  # storages that it allocated
    written: tuple[Value, ...] = ()  # as they are afterwards
    once: str = ""  # why it cannot run again
    reads: tuple[int, ...] = ()  # storages; a saved tensor that came back counts as the one that was saved
    position: int  # the position of the program before it
    backward: bool  # it ran in a backward, also if that updates the model
    seconds: float = 0.0
    used: int = 0  # bytes of the device while it ran; `scratch` of them neither existed before nor after
    host: float = 0.0  # seconds of the host since the operator before
    replayed: bool = False  # a checkpoint of the program ran it again, in backward
    entries: int = 1  # operators since then that the recorder saw, with those that only made views


@dataclasses.dataclass(kw_only=True)
class Pack(Saved):
    """A tensor that autograd saved."""

    position: int
    value: Value
    geometry: Geometry
    leaf: bool
    changes: int  # how often its storage was changed before
    compiled: bool = False  # a compiled part saved it
    gone: int = 0  # operators that had run when autograd let go of it, if no backward read it as the last one

    @property
    def op(self) -> int:
        """Returns how many operators had run."""
        return self.packed


@dataclasses.dataclass
class Unpack:
    """A saved tensor that backward read; it was needed until `last` operators had run."""

    position: int
    op: int
    pack: Pack
    last: int = 0


@dataclasses.dataclass
class Update:
    """An update of some parameters."""

    bytes: int  # of the optimizer's state
    at: Optional[int] = None  # the operator behind which it can run; None: behind the step
    gradients: list[int] = dataclasses.field(default_factory=list)  # storages that nobody needs behind it
    seconds: float = 0.0  # of the device
    host: float = 0.0  # seconds of the host
    parameters: tuple[int, ...] = ()  # their storages, as PyTorch knows them
    scratch: int = 0  # bytes that it takes in addition to that state and the gradients


def leaving_order(count: int) -> list[int]:
    """Returns the order in which the states of so many updates leave the device, as their numbers.

    However many are on the host, they lie at about equal distances, as those that `spillway plan` has there: the order is that of the
    numbers' binary digits, read backwards.
    """
    digits = max(count - 1, 0).bit_length()
    return sorted(range(count), key=lambda at: f"{at:0{digits}b}"[::-1])


class Tape(Step):
    """A step that was recorded with the values of its tensors and the arguments of its operators, so that it can be planned.

    A position counts the tensors that autograd has packed and unpacked.
    """

    operators: list[Op]  # type: ignore[assignment]
    saved: list[Pack]  # type: ignore[assignment]

    def __init__(self, device: str, network: str = "step", batch: int = 1) -> None:
        super().__init__(network, batch, parse_target(device))
        self.name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        self.ops = self.operators
        self.packs = self.saved
        self.unpacks: list[Unpack] = []
        self.positions: list[int] = []  # for each position, the operators that had run
        self.captured = False  # steps may become CUDA graphs
        self.inputs: Shapes = ()  # what the first module was given that the step called, if it is known
        self.ended = 0  # operators that had run when the last backward ended
        self.packed = 0  # positions at which autograd packed a tensor, also of other devices
        self.parameters: set[int] = set()  # storages of parameters and buffers
        # By storage: the first one in the same tensors, if the program gave its memory back and took other memory, as FSDP2 does.
        self.gathered: dict[int, int] = {}
        self.producer: dict[Value, int] = {}  # the operator that made a value
        self.version: dict[int, int] = {}  # how many operators wrote a storage
        self.writes: dict[int, list[int]] = {}  # which ones
        self.origin: dict[int, int] = {}  # the saved storage of one that came back
        self.compiled = False  # parts of it ran under torch.compile
        self.signature = 0  # what the library makes of all saved tensors (`Mix` in run_steps.cc); 0 if it was not asked
        self.signatures: dict[int, int] = {}  # by position: the same of the tensors until then
        self.waiting: set[int] = set()  # saved storages that a backward may still read after the step
        self.used: list[int] = []  # bytes of the device during each operator, without saved tensors that came back
        self.movable: Any = None  # what `saved_storages` found
        self.bandwidth = 0.0  # bytes per second between host and device, in each direction
        self.costs = HostCosts()  # they are 0 until they are measured
        self.host_share = 1.0  # steps take the host this share of its recorded time
        self.updates: list[Update] = []  # those of the optimizer whose state can be on the host, in their order
        self.weights: list[RecordedWeight] = []  # weights that can be on the host
        self.leaving = 0  # bytes of them that have to be there, because an update takes more than the budget otherwise
        self.allowed: frozenset[str] = frozenset()  # what the program lets `fit` change
        self.early: Optional[int] = None  # bytes of gradients that early updates would keep, where they could be made and are not
        self.idle: set[int] = set()  # storages of gradients of parameters that no optimizer updates
        self.staying = ""  # for messages: the optimizer's state that has to be on the device
        self.block: Callable[[int], int] = lambda size: size  # bytes that the device takes for a storage

    def note_writes(self, storages: Iterable[int], at: int) -> tuple[Value, ...]:
        """Notes that the operator `at` writes these storages; returns their values afterwards."""
        written = []
        for storage in dict.fromkeys(storages):
            self.version[storage] += 1
            self.writes.setdefault(storage, []).append(at)
            written.append((storage, self.version[storage]))
        return tuple(written)

    def lives(self) -> list[Storage]:
        # By storage: operators that have run when backward has read it.
        ends: dict[int, int] = dict.fromkeys(self.waiting, len(self.ops))
        read = ((unpack.pack, unpack.last) for unpack in self.unpacks)
        for pack, end in itertools.chain(read, ((pack, pack.gone) for pack in self.packs)):
            if pack.value[0] not in self.gathered:  # else what backward reads has other memory
                ends[pack.value[0]] = max(ends.get(pack.value[0], 0), end)
        return [s if s.died is None else dataclasses.replace(s, died=max(s.died, ends.get(s.number, s.died)))
                for s in super().lives() if s.number not in self.origin]

    def held(self, ref: Ref, at: int) -> bool:
        """Returns whether a step can keep the tensor that the operator `at` reads, to read it again in backward.

        It was made before the step, and is a parameter or a buffer, which does not change until the last backward has read what was
        saved, or is small. Or it is a parameter that the step gathers: `is_gathered` says when it is there.
        """
        storage, version = ref.value
        if storage in self.gathered:
            return storage in self.parameters and version >= 0
        if self.storages[storage].born >= 0 or version < 0:
            return False
        changes = any(at <= write < self.unpacks[-1].op for write in self.writes.get(storage, ()))
        return self.storages[storage].size <= SMALL if storage not in self.parameters else not changes

    def is_gathered(self, storage: int, at: int) -> bool:
        """Returns whether a parameter that the step gathers has its memory, and its values in it, when the operator `at` runs."""
        first = self.gathered[storage]
        return any(of == first and min(self.writes.get(life, (at,))) < at and
                   (self.storages[life].died or len(self.ops) + 1) > at for life, of in self.gathered.items())

    def headroom(self, dropped: Collection[int] = ()) -> list[int]:
        """Returns, for each position, by how many bytes the step grows at most until the next one, while autograd keeps what it saved.

        dropped: saved storages that autograd does not keep.
        """
        own = {storage: self.storages[storage] for storage in dropped}
        alive, born = self._alive(own.get(storage.number, storage) for storage in self.lives())
        ends = [*self.positions[1:], len(self.ops)]
        return [max(0, max((alive[at] + self.ops[at].scratch for at in range(begin, end)), default=0) - alive[begin] + born[begin])
                for begin, end in zip(self.positions, ends)]

    def alive(self) -> list[int]:
        """Returns the bytes of the storages that the program itself holds while each operator runs."""
        return self._alive(self.storages.values())[0]

    def eager_peak(self) -> int:
        """Returns the most bytes that an ordinary step takes, in which autograd keeps what it saved."""
        kept = self._alive(self.lives())[0]
        return max(used + all_ - own for used, all_, own in zip(self.used, kept, self.alive()))

    def _alive(self, storages: Iterable[Storage]) -> tuple[list[int], list[int]]:
        """Returns the bytes of storages that exist while each operator runs, and of those that it makes."""
        change, born = [0] * (len(self.ops) + 1), [0] * (len(self.ops) + 1)
        for storage in storages:
            if storage.number in self.origin:  # a saved tensor that came back
                continue
            size, first = self.rounded(storage.number), max(storage.born, 0)
            born[first] += size
            change[first] += size
            if storage.died is not None:
                change[max(storage.died, 0)] -= size
        return list(itertools.accumulate(change)), born

    def gradients(self) -> list[int]:
        """Returns, for each operator, the bytes that backward made before it and that stay after the step."""
        made = [0] * (len(self.ops) + 1)
        for storage in self.storages.values():
            stays = storage.died is None or storage.died >= len(self.ops)
            if stays and 0 <= storage.born < len(self.ops) and storage.number not in self.origin and self.ops[storage.born].backward:
                made[storage.born + 1] += self.rounded(storage.number)
        return list(itertools.accumulate(made))[:-1]

    def rounded(self, storage: int) -> int:
        """Returns the bytes that a storage takes."""
        return self.block(self.storages[storage].size)


def fingerprint(tape: Tape) -> str:
    """Returns a text that two tapes share if the same plans fit them."""
    parts = [(p.position, p.value, tuple(p.geometry.size), p.geometry.stride, p.geometry.offset, str(p.geometry.dtype))
             for p in tape.packs]
    named = [(op.name, op.position) for op in tape.ops]
    return hashlib.sha256(repr((parts, named, [(u.position, u.pack.position) for u in tape.unpacks])).encode()).hexdigest()[:16]


def structure(tape: Tape) -> int:
    """Returns a number that tapes share if they have the same operators and save the same results, of any sizes."""
    return hash((tuple((op.name, op.position) for op in tape.ops), tuple((p.position, p.value) for p in tape.packs)))


def has_sign(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor stands for the conjugate or the negative of what lies in its storage."""
    return tensor.is_conj() or tensor.is_neg()


def geometry_of(tensor: torch.Tensor) -> Geometry:
    return Geometry(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def overlap(one: Geometry, other: Geometry) -> bool:
    """Returns whether two tensors of a storage share bytes; tensors of different types count as if they did."""
    if one.dtype != other.dtype or one == other:
        return True
    if 0 in (*one.size, *other.size):
        return False
    ends = [g.offset + 1 + sum((n - 1) * s for n, s in zip(g.size, g.stride)) for g in (one, other)]
    taken = torch.zeros(max(ends), dtype=torch.bool)
    taken.as_strided(one.size, one.stride, one.offset).fill_(True)
    return bool(taken.as_strided(other.size, other.stride, other.offset).any())


def view_in(tensor: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Returns a tensor in the storage of another one; that tensor itself if it lies there."""
    if tensor.dtype != geometry.dtype:
        return view_of(tensor.untyped_storage(), geometry)
    if (tensor.shape == geometry.size and tensor.stride() == geometry.stride and tensor.storage_offset() == geometry.offset):
        return tensor
    return tensor.as_strided(geometry.size, geometry.stride, geometry.offset)


def view_of(storage: torch.UntypedStorage, geometry: Geometry) -> torch.Tensor:
    """Returns a tensor in the storage, with a version counter of its own."""
    return torch.empty(0, dtype=geometry.dtype, device=storage.device).set_(
        storage, geometry.offset, geometry.size, geometry.stride)

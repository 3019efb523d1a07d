"""Parameters in buckets whose state comes to the device and leaves together, and the memory through which it does."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from ..base.device import Device, Host, Queue
from ..tape.tape import geometry_of, view_of

ALIGNED = 64  # bytes, at a multiple of which each tensor begins
BUCKET = 64 << 20  # bytes of state in a bucket at most, if there are not too many then
BUCKETS = 16  # there are at least so many, if parameters can be divided
MANY = 128  # there are about so many at most: each costs the host the time of an update
STAGES = 3  # buckets on the device at once: one comes, one is used, and one leaves


@dataclasses.dataclass(eq=False)
class Parameter:
    """A parameter, and where its state is."""

    tensor: torch.Tensor
    group: int  # the number of its group in the optimizer
    names: tuple[str, ...]  # of its state
    host: Optional[Host] = None  # None: its state is on the device
    at: int = 0  # the first byte there
    given_up: Optional[torch.Tensor] = None  # what stands for its gradient, once there was an early update

    @property
    def room(self) -> int:
        """The bytes of one of its states."""
        return rounded(self.tensor.nbytes)

    def hosted(self, name: str) -> torch.Tensor:
        """Returns the state's tensor on the host."""
        assert self.host is not None
        return _view(self.host.bytes, self.at + self.names.index(name) * self.room, self.tensor)

    def has(self, state: Any) -> bool:
        """Returns whether a tensor of the optimizer's state lies on the host."""
        return (self.host is not None and isinstance(state, torch.Tensor) and state.device.type == "cpu"
                and state.untyped_storage().data_ptr() == self.host.bytes.untyped_storage().data_ptr())


@dataclasses.dataclass(eq=False)
class Unit:
    """The elements [begin, end) of a parameter, and their place in a bucket."""

    of: Parameter
    begin: int
    end: int
    at: int  # the first byte of its state

    @property
    def whole(self) -> bool:
        return self.end - self.begin == self.of.tensor.numel()

    @property
    def bytes(self) -> int:
        """Those of its elements."""
        return (self.end - self.begin) * self.of.tensor.element_size()

    @property
    def room(self) -> int:
        """The bytes of one of its states."""
        return rounded(self.bytes)

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns what the unit has of a tensor that is like the parameter."""
        return tensor if self.whole else tensor.detach().reshape(-1)[self.begin:self.end]

    def staged(self, stage: torch.Tensor, name: str) -> torch.Tensor:
        """Returns one of its states in memory for the bucket."""
        return _view(stage, self.at + self.of.names.index(name) * self.room, self.part(self.of.tensor))


@dataclasses.dataclass(eq=False)
class Bucket:
    """What is updated at once: whole parameters, or one part of a large one."""

    units: list[Unit] = dataclasses.field(default_factory=list)
    bytes: int = 0

    @property
    def outside(self) -> bool:
        return self.units[0].of.host is not None

    @property
    def parameters(self) -> list[Parameter]:
        return list(dict.fromkeys(unit.of for unit in self.units))

    def ranges(self, exists: Callable[[Parameter, str], bool]) -> list[tuple[torch.Tensor, int]]:
        """Returns pieces of the host's memory, and where they begin in the bucket, for the states that exist."""
        found: list[list[Any]] = []  # memory, the first bytes there and here, and the bytes
        for unit in self.units:
            assert unit.of.host is not None
            item = unit.of.tensor.element_size()
            for number, name in enumerate(unit.of.names):
                if not exists(unit.of, name):
                    continue
                there, here = unit.of.at + number * unit.of.room + unit.begin * item, unit.at + number * unit.room
                size = (unit.end - unit.begin) * item
                last = found[-1] if found else None
                if last is not None and last[0] is unit.of.host and there - last[1] == here - last[2]:
                    last[3] = there + size - last[1]  # one copy for both
                else:
                    found.append([unit.of.host, there, here, size])
        return [(host.bytes[there:there + size], here) for host, there, here, size in found]


class Pipeline:
    """Memory of the device through which buckets come and go."""

    def __init__(self, device: Device, size: int, count: int) -> None:
        device.begin()
        self._device = device
        self._stages = [device.empty(size) for _ in range(count)]
        self._left: list[Any] = [None] * count  # events: the bucket that was there is on the host
        self._coming: dict[Bucket, tuple[int, Any]] = {}
        self._turn = 0

    def fetch(self, bucket: Bucket, exists: Callable[[Parameter, str], bool], behind: Optional[Bucket] = None) -> None:
        """Starts to bring the state of a bucket, if it is not on its way. Where there is no room, one gives way that was not taken.

        behind: the one that is taken before.
        """
        if bucket in self._coming:
            return
        if len(self._coming) == len(self._stages):  # backward made no gradients for what was brought
            del self._coming[next(other for other in self._coming if other is not behind)]
        taken = [stage for stage, _ in self._coming.values()]
        stage = next(at % len(self._stages) for at in itertools.count(self._turn) if at % len(self._stages) not in taken)
        self._turn = stage + 1
        if self._left[stage] is not None:
            self._device.wait(Queue.IN, self._left[stage])
        for there, here in bucket.ranges(exists):
            self._device.wait(Queue.IN, self._device.record(Queue.COMPUTE))
            self._device.copy(Queue.IN, self._stages[stage][here:here + there.numel()], there)
        self._coming[bucket] = stage, self._device.record(Queue.IN)

    def take(self, bucket: Bucket) -> tuple[int, torch.Tensor]:
        """Returns the number of a stage, and its memory, once the state of the bucket is there."""
        stage, came = self._coming.pop(bucket)
        self._device.wait(Queue.COMPUTE, came)
        return stage, self._stages[stage]

    def leave(self, bucket: Bucket, stage: int) -> None:
        """Starts to take the state of a bucket to the host."""
        for there, here in bucket.ranges(lambda *_: True):
            self._device.wait(Queue.OUT, self._device.record(Queue.COMPUTE))
            self._device.copy(Queue.OUT, there, self._stages[stage][here:here + there.numel()])
        self._left[stage] = self._device.record(Queue.OUT)

    def end(self) -> None:
        """Ends the use of the memory, which is given up then. What came and was not taken is given up, too."""
        for event in (*self._left, *(came for _, came in self._coming.values())):
            if event is not None:
                self._device.wait(Queue.COMPUTE, event)
        self._coming.clear()


def divided(parameters: Sequence[Parameter]) -> list[Bucket]:
    """Returns parameters in buckets, in their order. Each part of a large one has a bucket of its own."""
    total = sum(of.room * len(of.names) for of in parameters)
    most = max(ALIGNED, min(max(BUCKET, total // MANY), total // BUCKETS))
    buckets: list[Bucket] = []
    for of in parameters:
        count, item = of.tensor.numel(), of.tensor.element_size()
        pieces = -(-of.room * len(of.names) // most) if of.tensor.is_contiguous() else 1
        length = rounded(-(-count // pieces) * item) // item
        for begin in range(0, count, length):
            unit = Unit(of, begin, min(begin + length, count), 0)
            size = unit.room * len(of.names)
            if not buckets or pieces > 1 or not buckets[-1].units[-1].whole or buckets[-1].bytes + size > most:
                buckets.append(Bucket())
            unit.at = buckets[-1].bytes
            buckets[-1].units.append(unit)
            buckets[-1].bytes += size
    return buckets


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether the elements of a tensor lie side by side, in some order."""
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1 == tensor.numel()


def rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _view(memory: torch.Tensor, at: int, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the form of another one that begins at a byte of the memory."""
    return view_of(memory.untyped_storage(), dataclasses.replace(geometry_of(like), offset=at // like.element_size()))

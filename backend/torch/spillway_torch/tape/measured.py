"""What the operators of a recorded step take: time, and memory of the device."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..base.device import SLEEP, CudaDevice, Device, Memory, Timer
from ..base.ledger import Storage
from ..step.recorder import Call
from .tape import Op, Tape, Unpack

OUTLIER = 3  # times the host's usual time for an operator; it was held up once, such as by loading a kernel


class Times:
    """The times of operators: the host's own between two of them, and on a GPU those between two events."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._timer: Timer | None = None  # on a GPU
        self._events: list[tuple[Op, Any, Any]] = []
        self._loaded: set[Any] = set()  # kinds of operators whose kernels are loaded
        self._program = 0.0  # seconds of the host since the last recorded operator, without the recorder's
        self.entries = 0  # operators since then
        self._left = 0.0  # when the program went on
        self._began: Any = None  # event: the compiled part that runs began, or went on

    def begin(self) -> None:
        """Begins to time operators. REQUIRES: the device has begun."""
        if isinstance(self._device, CudaDevice):
            self._timer = Timer(self._device)

    def enter(self, part: Op | None = None) -> None:
        """Ends a time of the program's own, in which a compiled part may have run."""
        self._program += time.perf_counter() - self._left
        if part is not None and self._timer is not None:
            self._events.append((part, self._began, self._timer.event()))

    def leave(self, part: Op | None = None) -> None:
        """Begins a time of the program's own, in which a compiled part may run."""
        if part is not None and self._timer is not None:
            self._began = self._timer.busy_event()
        self._left = time.perf_counter()

    def load(self, call: Call) -> None:
        """Runs an operator once without its time, if it did not run yet. REQUIRES: nothing else than its result follows from it."""
        kind = call.func, *((t.shape, t.stride(), t.dtype) for t in call.inputs)
        if self._device.loads_late and kind not in self._loaded:
            self._loaded.add(kind)
            call.func(*call.args, **call.kwargs)

    def run(self, call: Call) -> tuple[Any, Any]:
        """Returns the result of an operator and, on a GPU, the events around it."""
        self.entries += 1
        if self._timer is None:
            return call.func(*call.args, **call.kwargs), None
        before = self._timer.busy_event()
        began = time.perf_counter()
        result = call.func(*call.args, **call.kwargs)
        self._program += time.perf_counter() - began
        return result, (before, self._timer.event())

    def ran_dry(self) -> bool:
        """Returns whether the last events may have timed the host."""
        return self._timer is not None and self._timer.ran_dry()

    def run_again(self, call: Call) -> tuple[Any, Any]:
        """Runs an operator once more, whose events timed the host, and returns the events around it. REQUIRES: as for `load`."""
        assert self._timer is not None
        before = self._timer.busy_event()
        call.func(*call.args, **call.kwargs)
        return before, self._timer.event()

    def note(self, op: Op, events: tuple[Any, Any] | None = None) -> None:
        """Notes the host's time since the operator before, and the events around this one if they time it."""
        op.host, op.entries = self._program, self.entries
        self._program, self.entries = 0.0, 0
        if events is not None:
            self._events.append((op, *events))

    def busy_mark(self) -> Any:
        """Returns the device's mark before an update, for which the device does not wait on the host's account."""
        return self._timer.busy_event(SLEEP) if self._timer is not None else self._device.mark()

    def finish(self, tape: Tape) -> None:
        """Notes the times of a GPU in the tape."""
        if not self._events:
            return
        torch.cuda.synchronize()
        for op, before, after in self._events:
            op.seconds += before.elapsed_time(after) / 1e3  # with 2.5 us of the events, about what lies between two operators
        smooth(tape)
        for op in tape.ops:
            op.time_ns = round(1e9 * op.seconds)


def smooth(tape: Tape) -> None:
    """Replaces times by usual ones, where the host was held up, such as by loading a kernel for the first time.

    The GPU's time is compared with that of equal operators. The host's is the least of all operators of the name: it is also held
    up where the queue of the GPU is full, or where others use the host.
    """
    equal: dict[Any, list[Op]] = {}
    named: dict[Any, list[Op]] = {}
    for op in tape.ops:
        sizes = tuple(tape.storages[s].size for s in op.reads)
        made = tuple((ref.geometry.size, ref.geometry.dtype) for ref in op.results if ref is not None)
        equal.setdefault((op.name, sizes, made), []).append(op)
        named.setdefault(op.name, []).append(op)
    for ops in equal.values():
        usual = statistics.median_low(op.seconds for op in ops)
        for op in ops:
            op.seconds = op.seconds if op.seconds < OUTLIER * usual else usual
    most = OUTLIER * statistics.median(op.host / op.entries for op in tape.ops)
    for ops in named.values():
        host = min(most, *(op.host / op.entries for op in ops))
        for op in ops:
            op.host = host * op.entries


def moving(tensors: list[torch.Tensor]) -> float:
    """Returns the seconds for reading or writing tensors once, on a CPU that is like no other."""
    return 1e-6 + sum(t.numel() * t.element_size() for t in tensors) / 100e9


class MemoryUse:
    """The memory of the device during each operator."""

    def __init__(self, device: Device, tape: Tape) -> None:
        self._device, self._tape = device, tape
        self.most = 0  # bytes of the device while an operator or an update ran
        self.absent: Callable[[], int] = lambda: 0  # bytes of weights that are on the host while an operator runs, and count
        self._updates = 0  # bytes of the state that updates in this step made, and of the memory through which it goes
        self._grown: list[int] = []  # for each operator, the bytes that it took without a tensor, and that stay
        self._returned: list[tuple[Storage, list[Unpack], int]] = []

    def count(self, op: Op, before: Memory | None, after: Memory | None) -> None:
        """Notes the memory of the next operator of the tape; None where the device does not count it."""
        if before is None or after is None:
            self._grown.append(0)
            return
        fresh = [self._tape.storages[s] for s in op.fresh]
        made = sum(storage.size for storage in fresh)
        grown = max(0, after.requested - before.requested - sum(storage.size for storage in fresh if storage.died is None))
        self.most = max(self.most, after.most)
        op.used = after.most + self.absent() - self._updates
        op.scratch = max(0, after.most_requested - before.requested - made - grown)
        self._grown.append(grown)

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Within it, parameters are updated: the memory that this leaves behind is not the step's."""
        before, absent = self._device.memory(), self.absent()
        yield
        after = self._device.memory()
        if before is not None and after is not None:
            self._updates += after.allocated - before.allocated + self.absent() - absent
            self.most = max(self.most, after.most)

    def bring_back(self, storage: Storage, unpacks: list[Unpack], size: int) -> None:
        """Notes that a saved tensor came back for backward, and takes so many bytes."""
        self._returned.append((storage, unpacks, size))

    def finish(self) -> None:
        """Notes in the tape the bytes of the device while each operator ran, without tensors that came back for backward."""
        tape = self._tape
        changes = [0] * (len(tape.ops) + 2)
        end = len(tape.ops)
        counted = self._device.memory() is not None
        if not counted:
            for storage in tape.storages.values():
                changes[max(storage.born, 0)] += storage.size
                changes[end if storage.died is None else max(storage.died, 0)] -= storage.size
        for storage, unpacks, size in self._returned:
            last = end if storage.died is None else storage.died
            if counted or storage.number in tape.storages:
                changes[storage.born] -= size
                changes[last] += size
            for unpack in unpacks:
                unpack.last = last
        held = 0
        growth = sum(self._grown)  # such as the workspaces of libraries: later steps have them from their beginning on
        for at, op in enumerate(tape.ops):
            held += changes[at]
            growth -= self._grown[at]
            tape.used.append(held + growth + op.used)

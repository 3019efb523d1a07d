"""The devices that plans run on: three queues, events between them, copies, and the state of random numbers.

Operators of the program run on the queue COMPUTE. OUT carries copies to the host and IN copies from it. A queue runs its
work in order; between queues only events order it.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import functools
import os
import pathlib
import time
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from .errors import SpillwayError
from .ranks import local_ranks


MEASURED = 128 << 20  # bytes of a copy whose time is measured
MIB = 1 << 20
GRANULE = 512  # bytes; PyTorch's allocator of GPUs rounds up to a multiple
CYCLES = 2e9  # of a GPU in a second, at least
SLEEP = 5e-3  # seconds that it sleeps at a time
AHEAD = 1e-3  # seconds that the host takes for an operator at most
BESIDE = 0.95  # copies beside operators reach this share of their bandwidth alone


class Queue(enum.Enum):
    COMPUTE = "compute"
    OUT = "out"
    IN = "in"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of tensors on a device: now, and the most since the last question."""

    allocated: int  # as the allocator rounds them
    most: int
    requested: int
    most_requested: int


class Device(abc.ABC):
    """A device as the executor uses it. Bytes are tensors of uint8."""

    type: str  # the type of its tensors: "cuda" or "cpu"
    place: torch.device  # where its tensors are
    loads_late = False  # an operator takes longer at first, because its kernels are loaded then
    has_graphs = False  # `graph` works
    capturing = False  # `graph` is at work

    @abc.abstractmethod
    def begin(self) -> None:
        """Takes the calling thread's current stream for COMPUTE. Raises `SpillwayError` where copies cannot run."""

    @abc.abstractmethod
    def current(self) -> bool:
        """Returns whether the calling thread's current stream is still the one of COMPUTE."""

    @abc.abstractmethod
    def host(self, size: int) -> Host:
        """Returns memory of the host, from which and to which copies run beside the operators."""

    @abc.abstractmethod
    def empty(self, size: int) -> torch.Tensor:
        """Returns memory of the device in the order of COMPUTE."""

    @abc.abstractmethod
    def copy(self, queue: Queue, into: torch.Tensor, source: torch.Tensor) -> None:
        """Appends a copy of bytes to OUT or IN. The caller keeps both tensors until COMPUTE has waited for it."""

    @abc.abstractmethod
    def record(self, queue: Queue) -> Any:
        """Returns an event that is done when all that the queue holds now is done."""

    @abc.abstractmethod
    def wait(self, queue: Queue, event: Any) -> None:
        """Makes what is appended to the queue from now on wait for the event."""

    @abc.abstractmethod
    def random_state(self) -> Any:
        """Returns the state of the generator of random numbers."""

    @abc.abstractmethod
    def set_random_state(self, state: Any) -> None: ...

    @abc.abstractmethod
    def same_random_state(self, one: Any, other: Any) -> bool: ...

    def graph(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None], Callable[[torch.Tensor], torch.Tensor]]:
        """Notes what `run` gives to all queues, and does nothing of it. Raises what PyTorch raises where something cannot be noted.

        Returns its result; what does it all, each time that it is called; and what takes a tensor that `run` has made, and returns one in the
        same memory, which keeps the graph. The next graph may be given that memory once the tensor itself is gone.
        """
        raise NotImplementedError

    def in_use(self) -> int:
        """Returns the bytes that tensors take; -1 if the device does not count them."""
        return -1

    def bandwidth(self) -> float:
        """Returns the bytes per second of copies between host and device beside operators, in the slower direction."""
        return 10e9

    def memory(self) -> Memory | None:
        """Returns what is allocated; None if the device does not count it."""
        return None

    def peak_bytes(self) -> int:
        """Returns the most bytes since `memory` was asked; 0 if the device does not count them."""
        return 0

    def block(self, size: int) -> int:
        """Returns the bytes that the allocator takes for a storage of `size` bytes."""
        return size

    def now(self) -> float | None:
        """Returns the time in seconds once all work is done; None where times are only estimated."""
        return None

    def mark(self) -> Any:
        """Returns an event that tells when the device has done what COMPUTE was given."""
        return None

    def between(self, first: Any, last: Any) -> float:
        """Returns the seconds between two marks; 0 where the host itself computes."""
        return 0.0


class Host:
    """Memory of the host. `bytes` is one tensor of uint8."""

    taken = 0  # bytes of all of this process

    def __init__(self, size: int) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8, device="cpu")  # also where another device is the default
        Host.taken += size

    def close(self) -> None:
        """Gives the memory back; no copy may be running."""
        Host.taken -= self.bytes.numel()
        self.bytes = torch.empty(0, dtype=torch.uint8, device="cpu")


_shared: dict[int, int] = {}  # by the number of processes that share the host: the bytes that were free at first


def host_share() -> int:
    """Returns the bytes of the host that this process may take in all: an equal share of what was free when it was first asked for."""
    ranks = local_ranks()
    return _shared.setdefault(ranks, free_memory()) // ranks


def host_memory() -> int:
    """Returns the bytes of the host that this process can still take: what is free, and in its share if there are other processes."""
    return free_memory() if local_ranks() == 1 else min(free_memory(), max(0, host_share() - Host.taken))


def free_memory() -> int:
    """Returns the bytes of the host that are free, within the limit of the process's cgroup (version 2).

    Files that the host keeps in memory give way.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    group = pathlib.Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError, StopIteration):  # no limit is no number
        most, used = (int((group / f"memory.{name}").read_text(encoding="ascii")) for name in ("max", "current"))
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        files = sum(int(line.split()[1]) for line in lines if line.startswith(("active_file ", "inactive_file ")))
        free = min(free, max(0, most - used + files))
    return free


class _RegisteredHost(Host):
    """Pages that the GPU reads and writes itself. They are registered once, in one piece, without rounding."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        if size:
            self.bytes.zero_()  # registering pages that exist is faster
            failed = int(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), size, 0))
            if failed:
                super().close()
                raise RuntimeError(f"cudaHostRegister of {size} bytes failed with code {failed}")

    def close(self) -> None:
        if self.bytes.numel():
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
        super().close()

    def __del__(self) -> None:
        self.close()  # pages that are given back while they are registered cannot be registered again


class _Event:
    """An event of the GPU, which another one takes over when nobody holds this one: waiting refers to the last `record` before."""

    __slots__ = ("inner", "_pool")

    def __init__(self, pool: list[Any]) -> None:
        self._pool = pool
        try:
            self.inner = pool.pop()
        except IndexError:
            self.inner = torch._C._CudaEventBase()  # without the layers of torch.cuda.Event

    def __del__(self) -> None:
        self._pool.append(self.inner)


class _Memory:
    """Bytes of a GPU that belong to another object."""

    def __init__(self, owner: Any, storage: torch.UntypedStorage) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {"data": (storage.data_ptr(), False), "shape": (storage.nbytes(),), "typestr": "|u1", "version": 3}


def _borrow(owner: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the same memory of a GPU, which keeps the owner in the place of that memory."""
    if tensor.device.type != "cuda":
        return tensor
    storage = tensor.untyped_storage()
    memory = torch.as_tensor(_Memory(owner, storage), device=tensor.device)
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory.untyped_storage(), tensor.storage_offset(), tensor.shape,
                                                                         tensor.stride())


class CudaDevice(Device):
    """A GPU: the current stream, and two side streams for copies. Nothing calls `record_stream`."""

    type = "cuda"
    loads_late = True
    has_graphs = True

    def __init__(self) -> None:
        self.index = torch.cuda.current_device()
        self.place = torch.device("cuda", self.index)
        self._streams = {Queue.COMPUTE: torch.cuda.current_stream(), Queue.OUT: torch.cuda.Stream(),
                         Queue.IN: torch.cuda.Stream()}
        self._ids = {queue: (stream.stream_id, stream.device_index, stream.device_type) for queue, stream in self._streams.items()}
        self.copy_streams = self._ids[Queue.OUT], self._ids[Queue.IN]
        self._events: list[Any] = []
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._generator = torch.cuda.default_generators[self.index]
        self._expandable = "expandable_segments:True" in (os.environ.get("PYTORCH_ALLOC_CONF", "")
                                                          + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))

    def begin(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise SpillwayError("a CUDA graph is being captured: a plan cannot run in it; give the function to the `capture` of what fit returns")
        self._streams[Queue.COMPUTE] = torch.cuda.current_stream(self.index)
        self._current = self._streams[Queue.COMPUTE].cuda_stream

    def current(self) -> bool:
        return bool(torch._C._cuda_getCurrentRawStream(self.index) == self._current)

    def stream(self) -> Any:
        """Returns the current stream."""
        return self._streams[Queue.COMPUTE] if self.current() else torch.cuda.current_stream(self.index)

    def host(self, size: int) -> Host:
        free = host_memory()
        if size > free:  # otherwise the system may end the process
            room = (f"which has {free:,} bytes free" if local_ranks() == 1 else
                    f"where this process has {Host.taken:,} of the {host_share():,} that are its share, as one of {local_ranks()}")
            raise SpillwayError(f"{size:,} more bytes have to be on the host, {room}: give a larger budget, or free memory of the host")
        if self.capturing:
            raise SpillwayError(f"{size:,} more bytes have to be on the host, which cannot be registered while a CUDA graph is captured")
        with torch.cuda.device(self.index):
            return _RegisteredHost(size)

    def graph(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None], Callable[[torch.Tensor], torch.Tensor]]:
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in self._graphs), None) or torch.cuda.graph_pool_handle()  # one graph runs at a time
        self.capturing, drawn = True, self._generator.clone_state()
        torch._C._cuda_clearCublasWorkspaces()  # a graph has some of its own, in its memory
        failed: BaseException | None = None
        try:
            # Programs that ask run other operators in a graph than before: transformers makes masks that it does not need.
            with torch.cuda.graph(graph, pool=pool), mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False):
                try:
                    made = run()
                except BaseException as error:
                    failed = error  # which makes the end of the capture fail, too
                    raise
        except BaseException as error:  # PyTorch goes on as if it captured
            self._generator.graphsafe_set_state(drawn)
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.index, pool)
            raise failed or error
        finally:
            self.capturing = False
            torch._C._cuda_clearCublasWorkspaces()
        self._graphs.add(graph)
        return made, graph.replay, functools.partial(_borrow, graph)

    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.place)

    def copy(self, queue: Queue, into: torch.Tensor, source: torch.Tensor) -> None:
        device, stream = torch._C._cuda_getDevice(), torch._C._cuda_getCurrentStream(self.index)
        torch._C._cuda_setStream(*self._ids[queue])  # without the layers of the context torch.cuda.stream
        try:
            into.copy_(source, non_blocking=True)
        finally:
            torch._C._cuda_setStream(*stream)
            if device != self.index:
                torch._C._cuda_setDevice(device)

    def record(self, queue: Queue) -> Any:
        event = _Event(self._events)
        event.inner.record(self._streams[queue])
        return event

    def wait(self, queue: Queue, event: Any) -> None:
        event.inner.wait(self._streams[queue])

    def random_state(self) -> Any:
        return self._generator.initial_seed(), self._generator.get_offset()

    def set_random_state(self, state: Any) -> None:
        if self._generator.initial_seed() != state[0]:
            self._generator.manual_seed(state[0])
        self._generator.set_offset(state[1])

    def same_random_state(self, one: Any, other: Any) -> bool:
        return bool(one == other)

    def in_use(self) -> int:
        return int(torch.cuda.memory_allocated(self.index))

    def bandwidth(self) -> float:
        host, there = self.host(MEASURED), self.empty(MEASURED)
        least = [float("inf")] * 2  # seconds, of each direction
        for _ in range(4):
            for way, (queue, into, source) in enumerate(((Queue.OUT, host.bytes, there), (Queue.IN, there, host.bytes))):
                torch.cuda.synchronize()
                began = time.perf_counter()
                self.copy(queue, into, source)
                torch.cuda.synchronize()
                least[way] = min(least[way], time.perf_counter() - began)
        host.close()
        return BESIDE * MEASURED / max(least)

    def memory(self) -> Memory | None:
        stats = torch._C._cuda_memoryStats(self.index)
        torch._C._cuda_resetPeakMemoryStats(self.index)
        allocated, requested = stats["allocated_bytes"]["all"], stats["requested_bytes"]["all"]
        return Memory(allocated["current"], allocated["peak"], requested["current"], requested["peak"])

    def peak_bytes(self) -> int:
        return int(torch._C._cuda_memoryStats(self.index)["allocated_bytes"]["all"]["peak"])

    def block(self, size: int) -> int:
        return block_of(size, self._expandable)

    def now(self) -> float | None:
        torch.cuda.synchronize(self.index)
        return time.perf_counter()

    def mark(self) -> Any:
        event = torch._C._CudaEventBase(enable_timing=True)
        event.record(self.stream())
        return event

    def between(self, first: Any, last: Any) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


class Timer:
    """Events that time operators of the current stream. The GPU sleeps where it could wait for the host, whose time they would measure."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._busy = 0.0  # until when the GPU sleeps at least
        slept = self.event()
        torch.cuda._sleep(int(SLEEP * CYCLES))
        done = self.event()
        done.synchronize()
        self._cycles = max(CYCLES, SLEEP * CYCLES / (slept.elapsed_time(done) / 1e3))  # in a second

    def event(self) -> Any:
        """Returns an event that is done when the GPU has done all that it was given."""
        return self._device.mark()

    def busy_event(self, ahead: float = AHEAD) -> Any:
        """Returns an event of a GPU that the host cannot keep waiting until the next operator has begun.

        On another stream than that of the step, where FSDP2 communicates, the GPU does not sleep.

        ahead: seconds that the host takes for what follows, at most `SLEEP`.
        """
        now = time.perf_counter()
        if self._busy < now + ahead and self._device.current():
            torch.cuda._sleep(int(SLEEP * self._cycles))
            self._busy = max(now, self._busy) + SLEEP
        return self.event()

    def ran_dry(self) -> bool:
        """Returns whether the GPU may have waited for the host since the last `busy_event`."""
        return self._device.current() and self._busy < time.perf_counter()


def block_of(size: int, expandable: bool = False) -> int:
    """Returns the bytes of the block that PyTorch's allocator of GPUs takes for a storage, in memory that it got for such storages.

    It takes memory from the GPU in pieces, of 20 MiB, or from 10 MiB on of as many MiB as are needed, rounded up to an even number. What
    remains of a piece goes with the last block, and counts, if it is at most 1 MiB, unless segments are expandable.
    """
    size = -(-size // GRANULE) * GRANULE
    if size <= MIB or expandable:
        return size
    pieces = 20 * MIB // size if size < 10 * MIB else 1
    rest = 20 * MIB - pieces * size if size < 10 * MIB else -size % (2 * MIB)
    return size + rest // pieces if rest <= MIB else size


class CpuDevice(Device):
    """The CPU in the place of a GPU: a copy runs when it is appended."""

    type = "cpu"
    place = torch.device("cpu")

    def begin(self) -> None:
        pass

    def current(self) -> bool:
        return True

    def host(self, size: int) -> Host:
        return Host(size)

    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.place)

    def copy(self, queue: Queue, into: torch.Tensor, source: torch.Tensor) -> None:
        into.copy_(source)

    def record(self, queue: Queue) -> Any:
        return None

    def wait(self, queue: Queue, event: Any) -> None:
        pass

    def random_state(self) -> Any:
        return torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state)

    def same_random_state(self, one: Any, other: Any) -> bool:
        return torch.equal(one, other)


def device_of(kind: str) -> Device:
    """Returns the device for tensors of type "cuda" or "cpu"; raises `SpillwayError` for other types."""
    if kind not in ("cuda", "cpu"):
        raise SpillwayError(f"device '{kind}' (valid: cuda, cpu)")
    return CudaDevice() if kind == "cuda" else CpuDevice()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole storage of a tensor as bytes, with a version counter of its own."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))

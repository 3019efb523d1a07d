"""Measures steps and single operators on this machine's GPU."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from ..base.target import Target
from .data import Measured

_AHEAD_NS = 200_000  # the GPU waits so long before an operator; meanwhile the host launches all of it
_TENSOR_NS = 5_000  # time that the host takes for one tensor of an operator over lists
_STEPS = (3, 10)  # the least and the most plain steps that are timed
_STEPS_NS = 2_000_000_000  # after this time no further step is timed

Mark = Any  # the events before and behind an operator


class Meter:
    """Measures on one GPU. Operators are timed by events, while the GPU is behind the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = torch.cuda.get_device_name(device)
        self.empty = 0  # ns between two events with nothing between them
        self.cycles = 0  # cycles of the GPU's clock in `_AHEAD_NS`
        for _ in range(20):  # the clock rises meanwhile
            mark = self._begin(0)
            torch.cuda._sleep(1 << 20)
            self._end(mark)
        self.cycles = (_AHEAD_NS << 20) // max(self.elapsed([mark])[0], 1)
        self.empty = int(statistics.median(self.elapsed([self._end(self._begin(1)) for _ in range(50)])))

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any, timed: bool) -> tuple[Any, int, Optional[Mark]]:
        """Runs an operator. Returns its result, the bytes that it requested and gave back, and if `timed` a mark."""
        torch.cuda.reset_peak_memory_stats(self.device)
        if timed:
            tensors = max((len(value) for value in args if isinstance(value, (list, tuple))), default=0)
            mark = self._begin(1 + tensors * _TENSOR_NS // _AHEAD_NS)
            result = func(*args, **kwargs)
            self._end(mark)
        else:
            mark, result = None, func(*args, **kwargs)
        requested = torch._C._cuda_memoryStats(self.device.index)["requested_bytes"]["all"]
        return result, requested["peak"] - requested["current"], mark

    def _begin(self, waits: int) -> Mark:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self.cycles:
            torch.cuda._sleep(self.cycles * waits)
        start.record()
        return start, end

    @staticmethod
    def _end(mark: Mark) -> Mark:
        mark[1].record()
        return mark

    def elapsed(self, marks: Sequence[Mark]) -> list[int]:
        """Returns the GPU's time of each mark in ns, without that of the events. Waits for the GPU."""
        torch.cuda.synchronize(self.device)
        return [max(round(start.elapsed_time(end) * 1e6) - self.empty, 0) for start, end in marks]

    def peak(self, call: Callable[[], Any]) -> int:
        """Calls a function and returns by how many bytes the allocated memory rose meanwhile, at most."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        return torch.cuda.max_memory_allocated(self.device) - before

    def release(self, most: int) -> None:
        """Gives memory back to the GPU if PyTorch's allocator holds more than `most` bytes."""
        if torch.cuda.memory_reserved(self.device) > most:
            torch.cuda.empty_cache()

    def steps(self, step: Callable[[], Any]) -> Measured:
        """Runs a step a few times and returns what was measured. The first time is not measured."""
        step()
        gpu: list[int] = []
        host: list[int] = []
        while len(gpu) < _STEPS[0] or (len(gpu) < _STEPS[1] and sum(gpu) < _STEPS_NS):
            torch.cuda.synchronize(self.device)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            begun = time.perf_counter_ns()
            step()
            host.append(time.perf_counter_ns() - begun)
            end.record()
            torch.cuda.synchronize(self.device)
            gpu.append(round(start.elapsed_time(end) * 1e6))
        step_ns, host_ns = int(statistics.median(gpu)), int(statistics.median(host))
        waits = host_ns > 0.9 * step_ns or _synchronizes(step)  # for results, or for room in the queue of launches
        return Measured(self.name, step_ns, 0 if waits else host_ns, torch.cuda.max_memory_reserved(self.device))


def _synchronizes(step: Callable[[], Any]) -> bool:
    """Runs a step and returns true if the host waits for the GPU in it."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    return any("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def meter_of(target: Target) -> Optional[Meter]:
    """Returns the meter of a GPU of this machine; None for other devices."""
    return Meter(target.shown) if target.real and target.cuda else None

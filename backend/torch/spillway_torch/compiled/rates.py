"""How fast a device runs the kernels of a compiled graph."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from .joint import Rates

SIDE = 4096  # of the matrices whose product is timed
COPIED = 64 << 20  # bytes
RUNS = 8  # of an operator, which are timed together, so that the GPU does not wait for the host
TRIES = 5
CPU = Rates(2e10, {}, 1e11, 1e-6, 1e10)  # they serve to compare plans, and no time is predicted from them


@functools.cache
def rates_of(device: str) -> Rates:
    """Returns the rates of a type of device, which are measured on a GPU in about 0.1 s."""
    if device != "cuda":
        return CPU
    flops = {}
    for dtype in torch.bfloat16, torch.float16, torch.float32:
        a = torch.ones(SIDE, SIDE, dtype=dtype, device=device)
        out = torch.empty_like(a)
        flops[dtype] = 2 * SIDE ** 3 / _least_seconds(functools.partial(torch.mm, a, a, out=out))
    source = torch.empty(COPIED, dtype=torch.uint8, device=device)
    into = torch.empty_like(source)
    bandwidth = 2 * COPIED / _least_seconds(lambda: into.copy_(source))
    host = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
    link = COPIED / _least_seconds(lambda: into.copy_(host, non_blocking=True))
    return Rates(bandwidth, flops, flops[torch.float32], 2.5e-6, link)


def _least_seconds(work: Callable[[], object]) -> float:
    least = float("inf")
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(TRIES):
        began.record()
        for _ in range(RUNS):
            work()
        ended.record()
        ended.synchronize()
        least = min(least, began.elapsed_time(ended) / 1e3 / RUNS)
    return least

"""How fast a device runs the kernels of a compiled graph."""

from __future__ import annotations

import functools
import time

import torch

from .joint import Rates

SIDE = 4096  # of the matrices whose product is timed
COPIED = 64 << 20  # bytes
TRIES = 5
CPU = Rates(2e10, {}, 1e11, 1e-6)  # they serve to compare plans, and no time is predicted from them


@functools.cache
def rates_of(device: str) -> Rates:
    """Returns the rates of a type of device, which are measured on a GPU in about 50 ms."""
    if device != "cuda":
        return CPU
    flops = {}
    for dtype in torch.bfloat16, torch.float16, torch.float32:
        a = torch.ones(SIDE, SIDE, dtype=dtype, device=device)
        out = torch.empty_like(a)
        flops[dtype] = 2 * SIDE ** 3 / _least_seconds(lambda a=a, out=out: torch.mm(a, a, out=out))
    source = torch.empty(COPIED, dtype=torch.uint8, device=device)
    into = torch.empty_like(source)
    bandwidth = 2 * COPIED / _least_seconds(lambda: into.copy_(source))
    return Rates(bandwidth, flops, flops[torch.float32], 2.5e-6)


def _least_seconds(work: object) -> float:
    least = float("inf")
    for _ in range(TRIES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()  # type: ignore[operator]
        torch.cuda.synchronize()
        least = min(least, time.perf_counter() - began)
    return least

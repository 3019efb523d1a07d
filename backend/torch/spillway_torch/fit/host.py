"""Measures how long the host of a GPU takes for what a plan does, and for the recorder itself."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from ..plan.plan import EVICT, OFFLOAD, Moments, Plan
from ..run.executor import Executor
from ..tape.chains import Saved, saved_storages
from ..tape.costs import HostCosts
from ..tape.tape import Tape
from ..tape.tape_recorder import record_tape

BLOCKS = 8  # the model that is measured has so many
REPEATS = 20  # the fastest one counts


@functools.cache
def host_costs(device: str) -> HostCosts:
    """Returns the costs of a type of device. They are measured once, in well under a second; those of a CPU do not matter: 0."""
    return measure_host(device) if device == "cuda" else HostCosts()


def measure_host(device: str) -> HostCosts:
    """Measures with steps of a model whose operators do almost nothing, plain, recorded, and under plans."""
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        loss = _model(device)
        record_tape(lambda: loss().backward(), device)  # the first time takes longer
        tape = record_tape(lambda: loss().backward(), device)
        saved = [s for s in saved_storages(tape).values() if s.dies is not None]
        short = [s for s in saved if s.chain is not None and len(s.chain.ops) == 1]
        long = [s for s in saved if s.chain is not None and len(s.chain.ops) > 2]
        executors = [_executor(tape, of, action) for of, action in (
            (saved[:1], OFFLOAD), (saved, OFFLOAD), (short, EVICT), (long, EVICT))]
        plain, some, all_, shorter, longer = _times(loss, device, [None, *(executor.begin for executor in executors)])
        for executor in executors:
            executor.close()
    # `some` has one copy, which counts little.
    more = len(saved) - 1
    left, came = (all_[0] - some[0]) / more, (all_[1] - some[1]) / more
    packed, unpacked = (some[0] - plain[0] - left) / len(tape.packs), (some[1] - plain[1] - came) / len(tape.unpacks)
    compared = (shorter[0] + longer[0] - 2 * some[0] + 2 * left) / (len(short) + len(long))
    again = [(took[1] - some[1] + came) / len(of) for took, of in ((shorter, short), (longer, long))]  # the seconds for each chain
    length = sum(len(s.chain.ops) for s in long if s.chain is not None) / len(long)
    recomputed = max(0.0, again[1] - again[0]) / (length - 1)
    backward = [op for op in tape.ops if op.backward]
    recorded = max(0.0, sum(op.host for op in backward) - plain[1]) / sum(op.entries for op in backward)
    return HostCosts(**{name: max(0.0, seconds) for name, seconds in {
        "packed": packed, "unpacked": unpacked, "compared": compared, "started": again[0] - recomputed, "recomputed": recomputed,
        "left": left, "came": came, "recorded": recorded}.items()})


def _model(device: str) -> Callable[[], torch.Tensor]:
    """Returns the forward of a model, which draws no random numbers."""
    weight = torch.eye(8, device=device).requires_grad_()
    x = torch.ones(8, 8, device=device)

    def loss() -> torch.Tensor:
        h = x
        for _ in range(BLOCKS):
            h = torch.tanh(torch.nn.functional.linear(h, weight))
            h = torch.nn.functional.layer_norm(h, (8,))
            h = torch.sigmoid(h)
            h = torch.exp(((h + h) + h) + h)
            h = torch.tanh(h)
        return h.sum()

    return loss


def _times(loss: Callable[[], torch.Tensor], device: str, begins: list[Callable[[], Any] | None]) -> list[tuple[float, float]]:
    """Returns the least seconds that the host takes for a forward and a backward, for each of several ways to begin a step.

    The ways take turns, because the host is slower for seconds at a time.
    """
    least = [(float("inf"), float("inf"))] * len(begins)
    for _ in range(REPEATS + 2):
        for way, begin in enumerate(begins):
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            run = begin() if begin is not None else None
            value = loss()
            if run is not None:
                run.end()
            middle = time.perf_counter()
            value.backward()
            least[way] = min(least[way][0], middle - began), min(least[way][1], time.perf_counter() - middle)
    return least


def _executor(tape: Tape, saved: list[Saved], action: str) -> Executor:
    """Returns one whose plan gives storages up when forward ends, and never again."""
    moments = Moments()
    for storage in [s.storage for s in saved if action == OFFLOAD]:
        moments.add(storage, release=[tape.packs[-1].position])
    return Executor(Plan(0, {s.storage: action for s in saved}, moments, 0, 0, 0.0, 0.0, None, tape))

"""The time that this machine's host takes for operators of each kind, and the host times of a step that was recorded without a GPU."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import nn
from torch.nn import functional as F

from ..base import table
from ..base.document import write_document
from ..base.errors import SpillwayError
from ..base.target import parse_target
from .data import Operator, StepData
from .pretended import pretend
from .recording import record_plainly

FORMAT = "spillway-host"
_ROUNDS = 20  # steps; the median counts, after a quarter of them
_BLOCKS = (2, 8)  # of the models that are measured
_UPDATED = 1 << 24  # numbers of the parameter that an optimizer updates on the host, which no cache holds with its state
_TRAFFIC = 28  # bytes for each of them: parameter, gradient and two moments are read, and all but the gradient written


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """Seconds of the host for what a step does. The times are medians."""

    forward: float  # an operator of forward, with the calls of modules around it
    backward: float  # an operator of backward, with autograd's own work
    autocast: float  # in addition, an operator of forward that autocast wraps
    update: float  # an operator of an optimizer's update over lists of tensors, without these
    tensor: float  # in addition, each tensor of such a list, with Python's work of the optimizer
    plain: float = table.PLAIN  # a tiny operator of forward on the CPU, in multiples of which the work of DTensor and FSDP2 is known
    device: str = ""  # the device that was driven

    def write(self, path: str | os.PathLike[str]) -> None:
        write_document({"format": FORMAT, "version": 1, **dataclasses.asdict(self)}, path)


def read_host(path: str | os.PathLike[str]) -> HostTimes:
    """Raises `SpillwayError` if the file is none that `calibrate-host` wrote."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found.pop("format") != FORMAT or found.pop("version") != 1:
            raise ValueError("another format")
        times = HostTimes(**found)
        wrong = [name for name, value in found.items() if name != "device" and not (isinstance(value, float) and 0 <= value < 1)]
        if wrong:
            raise ValueError(f"'{wrong[0]}' is no time in seconds")
        return times
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpillwayError(f"{os.fspath(path)}: no host times of `python3 -m spillway_torch calibrate-host`: {error}") from error


def calibrate_host(device: Optional[str] = None) -> HostTimes:
    """Measures this machine's host with training steps that compute almost nothing, on its GPU or, if it has none, on the CPU.

    Launching a kernel on a GPU takes the host longer than running a tiny operator on the CPU, so that times without a GPU are too
    short by a few microseconds for each operator.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    small, large = (_measured(blocks, device, False) for blocks in _BLOCKS)
    half = _measured(_BLOCKS[1], device, True)
    lists, tensors = large.lists, large.tensors - small.tensors
    tensor = max(large.update - small.update, 0.0) / (lists * tensors)
    return HostTimes(large.forward / large.operators, large.backward / large.gradients,
                     max(half.forward - large.forward, 0.0) / half.wrapped,
                     max(small.update / lists - small.tensors * tensor, 0.0), tensor, _plain(),
                     torch.cuda.get_device_name() if device == "cuda" else "cpu")


def _plain() -> float:
    """Returns the seconds of a tiny operator of forward on the CPU, as experiments/evidence/collectives/fsdp_host has it."""
    layers, took = 32, []
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(16, 16, bias=False), nn.ReLU()))).bfloat16()
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        model(x)
        took.append(time.perf_counter() - began)
    return min(took) / (2 * layers)


def update_rate() -> float:
    """Returns the bytes per second that an update by PyTorch's fused AdamW in float32 moves on this host's cores.

    It is `update` in the section [host] of a device file, by which `spillway fit` knows how long an optimizer on the host takes.
    """
    parameter = nn.Parameter(torch.zeros(_UPDATED))
    parameter.grad = torch.ones(_UPDATED)
    optimizer, took = torch.optim.AdamW([parameter], fused=True), []
    for _ in range(6):
        began = time.perf_counter()
        optimizer.step()
        took.append(time.perf_counter() - began)
    return _TRAFFIC * _UPDATED / min(took)


class _Block(nn.Module):
    """A layer of a transformer, and one of a network for images."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.read, self.project = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow, self.drop = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.1)
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.read(self.before(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        x = x + self.project(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        x = x + self.narrow(self.drop(F.gelu(self.wide(self.after(x)))))
        plane: torch.Tensor = x.view(4, 4, 4, 16)
        return (F.relu(self.norm(self.convolution(plane))) + plane).view_as(x)


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Seconds of the parts of a step, and the operators and tensors of each."""

    forward: float
    backward: float
    update: float
    operators: int
    wrapped: int
    gradients: int
    lists: int
    tensors: int


def _measured(blocks: int, device: str, half: bool) -> _Measured:
    def build(device: str) -> tuple[nn.Module, Callable[[], list[float]]]:
        model = nn.Sequential(*(_Block() for _ in range(blocks))).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.ones(4, 16, 16, device=device)

        def step() -> list[float]:
            moments = [time.perf_counter()]
            with torch.autocast(device, torch.bfloat16, enabled=half):
                loss = model(x).float().sum()
            moments.append(time.perf_counter())
            loss.backward()
            moments.append(time.perf_counter())
            optimizer.step()
            optimizer.zero_grad()
            moments.append(time.perf_counter())
            return [after - before for before, after in zip(moments, moments[1:])]

        return model, step

    kind = "cuda" if device == "cuda" else "cpu"
    target = "cuda:sm_90" if kind == "cuda" else "cpu:pretended"
    with pretend(target):
        _, step = build(kind)
        operators = record_plainly(step, parse_target(target), None, "host", 1, 1).operators
    _, step = build(device)
    found = []
    for _ in range(_ROUNDS):
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(step())
    forward, backward, update = (statistics.median(part) for part in zip(*found[_ROUNDS // 4:]))
    lists = [op.attributes["tensors"] for op in operators if op.phase == "update" and "tensors" in op.attributes]
    own = [op for op in operators if op.phase == "forward"]
    return _Measured(forward, backward, update, len(own), sum(map(_is_wrapped, own)), sum(op.phase == "backward" for op in operators),
                     len(lists), max(lists))


# Operators that autocast wraps in most programs: products, convolutions and attention.
_WRAPPED = ("mm", "conv", "attention", "linear")


def _is_wrapped(op: Operator) -> bool:
    return any(part in op.packet for part in _WRAPPED)


def set_host_times(step: StepData, times: HostTimes) -> None:
    """Gives each operator of a step the time that the host takes for it, for `spillway run` and `spillway fit`."""
    half = any(o.dtype in (torch.bfloat16, torch.float16) for op in step.operators for o in op.inputs)
    for op in step.operators:
        if op.phase == "update" and "tensors" in op.attributes:
            seconds = times.update + times.tensor * op.attributes["tensors"]
        elif op.phase == "backward":
            seconds = times.backward
        else:
            seconds = times.forward + times.autocast * (half and _is_wrapped(op))
        others: float = op.attributes.get("operators", 1) - 1
        if op.name not in table.FSDP_WORK:
            others *= table.APART / table.TAKEN_APART
        op.host_ns = max(round((seconds + others * times.plain) * 1e9), 1)


def main(arguments: list[str]) -> int:
    """`python3 -m spillway_torch calibrate-host`."""
    parser = argparse.ArgumentParser(
        prog="python3 -m spillway_torch calibrate-host",
        description="Measures how long this machine's host takes for operators of each kind, in a few seconds. "
                    "record(..., host=FILE), and --host FILE of `python3 -m spillway_torch`, take the file. Prints the rate of an "
                    "optimizer's update on the host, too, which is a line of a device file for `spillway fit`.")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file, for example host.json")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU, if PyTorch can use one")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no GPU that PyTorch can use")
    times = calibrate_host(options.device)
    try:
        times.write(options.output)
    except OSError as error:
        parser.exit(3, f"calibrate-host: {error}\n")
    for field in dataclasses.fields(times)[:-1]:
        print(f"{field.name:15s}{1e6 * getattr(times, field.name):8.1f} us")
    print(f'In the section [host] of a device file: update = "{update_rate() / 1e9:.3g}GB/s", which AdamW moves on this host')
    return 0

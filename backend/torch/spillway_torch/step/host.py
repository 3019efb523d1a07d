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

from ..base.document import write_document
from ..base.errors import SpillwayError
from .data import StepData

FORMAT = "spillway-host"
_ROUNDS = 7  # the median counts
_OPERATORS = 200  # of a round
_TENSORS = 300  # of an optimizer's step


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """Seconds of the host for what a step does. The times are medians."""

    operator: float  # one that autograd does not see
    differentiated: float  # in addition, one that autograd records
    backward: float  # an operator of backward, with autograd's own work
    module: float  # the call of a module
    autocast: float  # in addition, an operator that autocast wraps
    update: float  # an operator of an optimizer's update over lists of tensors, without these
    tensor: float  # in addition, each tensor of such a list, with Python's work of the optimizer
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
    """Measures this machine's host with operators that do almost nothing, on its GPU or, if it has none, on the CPU.

    Launching a kernel on a GPU takes the host longer than running a tiny operator on the CPU, so that times without a GPU are too
    short by a few microseconds for each operator.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def seconds(prepare: Callable[[], Any], run: Callable[[Any], Any], count: int) -> float:
        found = []
        for _ in range(_ROUNDS + 2):
            given = prepare()
            wait()
            began = time.perf_counter()
            run(given)
            found.append((time.perf_counter() - began) / count)
        return statistics.median(found[2:])

    weight = torch.eye(8, device=device)
    x = torch.ones(8, 8, device=device)
    chain = _OPERATORS // 4

    def operators(h: torch.Tensor) -> torch.Tensor:
        for _ in range(chain):
            h = torch.layer_norm(torch.mm(torch.tanh(h + x), weight), (8,))
        return h

    def learned() -> torch.Tensor:
        return x.clone().requires_grad_()

    def without(h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return operators(h)

    plain = seconds(learned, without, _OPERATORS)
    recorded = seconds(learned, operators, _OPERATORS)
    backward = seconds(lambda: operators(learned()).sum(), lambda loss: loss.backward(), _OPERATORS)
    identity = nn.Sequential(*(nn.Identity() for _ in range(_OPERATORS)))
    module = seconds(lambda: x, identity, _OPERATORS)
    half = torch.eye(8, device=device, dtype=torch.bfloat16)

    def products(h: torch.Tensor) -> torch.Tensor:
        for _ in range(_OPERATORS):
            h = F.linear(h, half)
        return h

    def cast(h: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return products(h)

    wrapped = seconds(lambda: half, cast, _OPERATORS) - seconds(lambda: half, products, _OPERATORS)

    def update(count: int) -> tuple[float, int]:
        parameters = [torch.ones(4, device=device, requires_grad=True) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.ones(4, device=device)
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        lists = 12  # the operators over lists of one step
        return seconds(lambda: None, lambda _: optimizer.step(), lists), lists

    few, many = update(8)[0], update(_TENSORS)[0]
    tensor = max(many - few, 0.0) / (_TENSORS - 8)
    return HostTimes(plain, max(recorded - plain, 0.0), backward, module, max(wrapped, 0.0), max(few - 8 * tensor, 0.0), tensor,
                     torch.cuda.get_device_name() if device == "cuda" else "cpu")


# Operators that autocast wraps in most programs: products, convolutions and attention.
_WRAPPED = ("mm", "conv", "attention", "linear")


def set_host_times(step: StepData, times: HostTimes) -> None:
    """Gives each operator of a step the time that the host takes for it, for `spillway run` and `spillway fit`."""
    half = any(o.dtype in (torch.bfloat16, torch.float16) for op in step.operators for o in op.inputs)
    module = ""
    for op in step.operators:
        seconds = times.operator
        if op.phase == "update" and "tensors" in op.attributes:
            seconds = times.update + times.tensor * op.attributes["tensors"]
        elif op.phase == "backward":
            seconds = times.backward
        elif op.phase == "forward":
            seconds += times.differentiated
            if half and any(part in op.packet for part in _WRAPPED):
                seconds += times.autocast
            if op.module != module:
                seconds += times.module * (1 + op.module.count(".") - os.path.commonprefix([module, op.module]).count("."))
            module = op.module
        op.host_ns = max(round(seconds * 1e9), 1)


def main(arguments: list[str]) -> int:
    """`python3 -m spillway_torch calibrate-host`."""
    parser = argparse.ArgumentParser(
        prog="python3 -m spillway_torch calibrate-host",
        description="Measures how long this machine's host takes for operators of each kind, in about twenty seconds. "
                    "record(..., host=FILE), and --host FILE of `python3 -m spillway_torch`, take the file.")
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
    return 0

"""`record`: a step as it is, or with what a plan needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import torch

from ..base.errors import SpillwayError
from ..base.target import parse_target
from ..step.host_times import read_host, set_host_times
from ..step.recording import record_plainly
from ..step.step import Step
from ..tape.tape_recorder import record_tape
from .accepted import check_compiler
from .host import host_costs

if TYPE_CHECKING:
    from .compiled_step import CompiledCurve


def record(step: Callable[[], Any], target: str = "cuda:sm_90", *, model: Optional[torch.nn.Module] = None,
           name: str = "step", batch: int = 1, warm_up: int = 1, values: bool = False,
           assume: Optional[Mapping[str, Any]] = None, host: Optional[str | os.PathLike[str]] = None) -> Step:
    """Runs `step` and returns what it did on the device `target`.

    step: one iteration of training or inference, its data included; takes no argument.
    target: a pretended device ("cuda:sm_90", "cpu:pretended"), where the step runs without data and the model has to be made
        inside `pretend`; or a device of this machine ("cuda", "cpu"), where it runs as it is.
    model: the module whose paths name the operators; by default the first module that the step calls.
    name, batch: what the trace says of itself.
    warm_up: number of steps that run before the recorded one. Optimizers make their state in the first step. Unless it is 0,
        a GPU of this machine runs up to a dozen steps more, whose times are measured, if `values` are not asked for.
    values: records the values of tensors and the edges of the autograd graph, too, on a device of this machine, so that `make_plan`,
        `explain` and `write_step` take the result. All saved tensors are on the host meanwhile, so that the step need not fit as it
        is; its results are those of an ordinary step.
    assume: for a pretended device, numbers that the program computes there and decides by, by the line that asks, as the error names it:
        {"train.py:31": 3}. The value is the number; for a result whose shape depends on data (a selection by a mask, `nonzero`,
        `unique`) it is the result as nested lists, or only its length; or it is a function that returns one of these at each call.
    host: for a pretended device, the file of `python3 -m spillway_torch calibrate-host`, so that predicted times know how long the host
        takes for each operator; by default it is assumed to take 7 us.

    Raises `NotRecordableError` if the step depends on data or does what a recording cannot follow. Whatever `step` raises
    passes through. In both cases nothing of the recorder stays active.
    """
    wanted = parse_target(target)
    if wanted.real and (assume or host is not None):
        raise SpillwayError(f"{'assume' if assume else 'host'}: target '{target}' is no pretended device, so that it has its own")
    times = read_host(host) if host is not None else None
    if not values:
        recorded = record_plainly(step, wanted, model, name, batch, warm_up, assume)
        if times is not None:
            set_host_times(recorded, times)
        return recorded
    if not wanted.real:
        raise SpillwayError(f"target '{target}' has no values; record on 'cuda' or 'cpu' with values=True")
    for _ in range(warm_up):
        record_tape(step, target)
    tape = record_tape(step, target, model, name, batch)
    tape.costs = host_costs(target)
    return tape


def explain_compiled(step: Callable[[], Any], device: str = "cuda") -> CompiledCurve:
    """Plans a step whose model is compiled for several budgets, as `fit` would. The rows have peaks, times, and what each graph saves.

    step: one iteration of training. It runs twice: its graphs operator by operator, with what autograd saves of them on the host.
    device: where its tensors are, "cuda" or "cpu".

    Raises `SpillwayError` if torch.compile finds no graph in it that can be planned, and `ProgramError` if the program `spillway`,
    which plans, is missing or fails.
    """
    if device not in ("cuda", "cpu"):
        raise SpillwayError(f"device '{device}' (valid: cuda, cpu)")
    check_compiler()
    from .compiled_step import CompiledStep  # PyTorch's compiler takes seconds to load
    return CompiledStep(step, device).curve()

"""Records steps as they are."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..base import table
from ..base.errors import NotRecordableError, SpillwayError
from ..base.ranks import rank
from ..base.target import Target
from .meter import meter_of
from .modules import Modules
from .numbers import sizes_named
from .pretended import active, pretend
from .data import Measured, Operator
from .distributed import sharded
from .recorder import Recorder, Take
from .step import Step

def record_plainly(step: Callable[[], Any], wanted: Target, model: torch.nn.Module | None, name: str, batch: int, warm_up: int,
                   assume: Mapping[str, Any] | None = None) -> Step:
    """See `spillway_torch.record`."""
    if warm_up < 0 or batch < 1:
        raise SpillwayError(f"warm_up is {warm_up} and batch is {batch}; expected at least 0 and 1")
    if active() is not None and wanted.real:
        raise SpillwayError(f"target '{wanted.name}' cannot be recorded inside pretend")
    meter = meter_of(wanted)
    measured = Measured(meter.name) if meter is not None else Measured()
    with contextlib.ExitStack() as stack:
        stack.enter_context(refuse_compiled())
        stack.enter_context(sizes_named())
        if meter is not None and warm_up > 0:
            measured = meter.steps(step)
        if wanted.real:
            recorder = stack.enter_context(Recorder(wanted.shown.type, wanted, meter))
            stack.enter_context(sharded(recorder))
        else:
            recorder = stack.enter_context(pretend(wanted.name)).recorder
        recorder.ledger.start()
        recorder.numbers.assume(assume)
        recorder.modules = modules = Modules()
        if model is not None:
            modules.add_root(model)
        stack.callback(setattr, recorder, "modules", Modules())
        stack.enter_context(modules.watched())
        recorder.ledger.started = rank() is None  # the first steps of several processes take memory that later ones do not
        for _ in range(warm_up):
            step()
        recorder.ledger.started = True
        trial = Take(Step(name, batch, wanted), modules)
        if meter is not None and warm_up > 0:
            _run(step, recorder, trial)
        recorded = Step(name, batch, wanted, measured=measured)
        take = Take(recorded, modules)
        _run(step, recorder, take)
        recorder.numbers.report()
    # A storage that came back in between has other memory, which autograd did not save.
    recorded.saved = [s for s in recorded.saved if s.storage.died is None or all(at <= s.storage.died for at in s.unpacked)]
    if not take.operators:
        raise SpillwayError(f"the step ran no operator on '{wanted.name}': make the model inside spillway_torch.pretend, or move it "
                            "there, and the step's data, too")
    if meter is not None:
        times = [meter.elapsed(take.marks)]
        if [(o.name, o.attributes) for o in trial.operators] == [(o.name, o.attributes) for o in take.operators]:
            times.append(meter.elapsed(trial.marks))  # a kernel may have been loaded, or memory allocated, in one of them
        for operator, measured_ns in zip(take.operators, zip(*times)):
            operator.time_ns = min(measured_ns)
    recorded.storages = {number: storage for number, storage in recorded.storages.items() if not storage.nowhere}
    recorded.blocks = modules.blocks
    recorded.workspaces = _workspaces(take.operators, wanted.capability) if wanted.cuda else []
    recorded.requests = [] if wanted.real else [list(request) for request in recorder.ledger.requests]
    return recorded


def _run(step: Callable[[], Any], recorder: Recorder, take: Take) -> None:
    """Runs the step and records it."""
    take.step.storages.update((storage.number, storage) for storage in recorder.ledger.renew())
    with contextlib.ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(lambda *_: setattr(take, "updating", True)).remove)
        stack.callback(register_optimizer_step_post_hook(lambda *_: setattr(take, "updating", False)).remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(recorder.pack, recorder.unpack))
        recorder.lanes.begin()
        recorder.take = take
        stack.callback(setattr, recorder, "take", None)
        stack.callback(recorder.ledger.renew)
        step()


def _workspaces(operators: list[Operator], capability: int) -> list[tuple[int, int]]:
    """Returns the memory that cuBLAS and cuBLASLt take at an operator and keep: the operator's number and the bytes."""
    found = []
    for backward in (False, True):  # each thread has its own
        for packets, size in ((table.PRODUCTS, table.cublas_workspace(capability)),
                              (table.BIASED_PRODUCTS, table.CUBLASLT_WORKSPACE)):
            first = next((i for i, op in enumerate(operators)
                          if op.packet in packets and (op.phase == "backward") == backward), None)
            if first is not None:
                found.append((first, size))
    return sorted(found)


@contextlib.contextmanager
def refuse_compiled() -> Iterator[None]:
    """Makes torch.compile, and compiled modules and functions that are called, raise `NotRecordableError`.

    Within `torch.compiler.set_stance("force_eager")`, what is compiled runs as if it was not, and is recorded.
    """
    def refuse(callback: Any = None, *_: Any, **__: Any) -> Any:
        if callback is None or callback is False:  # torch.compiler.disable
            return callback
        raise NotRecordableError("the step runs a region of torch.compile, whose kernels and memory a recording cannot follow; "
                                 "record it without torch.compile")

    frames = sys.modules.get("torch._dynamo.eval_frame")  # absent if nothing is compiled
    if getattr(getattr(frames, "_stance", None), "stance", "") == "force_eager":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `torch.compile")  # which then runs global hooks once more: there are the recorder's
            yield
        return
    names = [name for name in ("_callback_from_stance", "maybe_set_eval_frame", "set_eval_frame") if hasattr(frames, name)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "compile", refuse))
        if names:
            stack.enter_context(mock.patch.object(frames, names[0], refuse))
        yield

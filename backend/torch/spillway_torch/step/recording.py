"""Recordings of steps."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..base import table
from ..base.document import write_document
from ..base.errors import NotRecordableError, SpillwayError
from ..base.target import Target, parse_target
from .meter import Measured, meter_of
from .pretended import active, pretend
from .recorded import Recorded
from .recorder import Operator, Tape, Watch
from .trace import to_trace
from .verdict import FitRow, LargestRow, ask_fit, ask_largest

GRANULE = 512  # bytes; PyTorch's allocator rounds blocks up to a multiple


class Recording(Recorded):
    """A recorded step, as files and as answers of `spillway fit`."""

    def trace(self) -> dict[str, Any]:
        """Returns the object of the trace file (traces/FORMAT.md)."""
        return to_trace(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace for `spillway`. The ending .gz or .zst compresses it."""
        write_document(self.trace(), path)

    def fit(self, device: str | Sequence[str] = (), *, memory: int | str | None = None, outside: int | str = 0,
            batch: int | str | None = None) -> list[FitRow]:
        """Returns whether the step fits on each device, each followed by the changes of the program that make it fit, those
        that cost the least time first, and by those that help without sufficing.

        device: names or files as `--device` of `spillway fit` takes them; by default all devices that come with it.
        memory, outside: bytes or texts ("24GiB") in place of the device's memory, and used outside PyTorch's allocator.
        batch: another batch than the recorded one, 8 or "2x"; everything that is proportional to the batch is scaled.

        Raises `ProgramError` if `spillway` is missing or refuses the arguments.
        """
        return ask_fit(self, device, memory=memory, outside=outside, batch=batch)

    def largest(self, quantity: str, other: Optional[Recording] = None, device: str | Sequence[str] = (), *,
                memory: int | str | None = None, outside: int | str = 0) -> list[LargestRow]:
        """Returns the largest batch or length with which the step fits on each device, as it is and with each change.

        quantity: "batch" or "length".
        other: a recording of the same program that differs in this quantity alone. A length needs it; a batch is else scaled.
        device, memory, outside: as for `fit`.

        Raises `ProgramError` if `spillway` is missing or refuses the recordings or arguments.
        """
        recordings = [self] if other is None else [self, other]
        return ask_largest(quantity, recordings, device, memory=memory, outside=outside)


def record(step: Callable[[], Any], target: str = "cuda:sm_90", *, model: Optional[torch.nn.Module] = None,
           name: str = "step", batch: int = 1, warm_up: int = 1) -> Recording:
    """Runs `step` and returns what it did on the device `target`.

    step: one iteration of training or inference, its data included; takes no argument.
    target: a pretended device ("cuda:sm_90", "cpu:pretended"), where the step runs without data and the model has to be made
        inside `pretend`; or a device of this machine ("cuda", "cpu"), where it runs as it is.
    model: the module whose paths name the operators; by default the first module that the step calls.
    name, batch: what the trace says of itself.
    warm_up: number of steps that run before the recorded one. Optimizers make their state in the first step. Unless it is 0,
        a GPU of this machine runs up to a dozen steps more, whose times are measured.

    Raises `NotRecordableError` if the step depends on data or does what a recording cannot follow. Whatever `step` raises
    passes through. In both cases nothing of the recorder stays active.
    """
    if warm_up < 0 or batch < 1:
        raise SpillwayError(f"warm_up is {warm_up} and batch is {batch}; expected at least 0 and 1")
    wanted = parse_target(target)
    if active() is not None and wanted.real:
        raise SpillwayError(f"target '{target}' cannot be recorded inside pretend")
    meter = meter_of(wanted)
    measured = Measured(meter.name) if meter is not None else Measured()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_refuse_compiled())
        if meter is not None and warm_up > 0:
            measured = meter.steps(step)
        if wanted.real:
            watch = stack.enter_context(Watch(wanted.shown.type, wanted, meter))
        else:
            watch = stack.enter_context(pretend(target)).watch
        watch.ledger.started = True
        for _ in range(warm_up):
            step()
        trial = Tape()
        if meter is not None and warm_up > 0:
            _run(step, watch, trial)
        tape = Tape()
        if model is not None:
            tape.modules.add_root(model)
        _run(step, watch, tape)
    if not tape.operators:
        raise SpillwayError(f"the step ran no operator on '{target}': make the model inside spillway_torch.pretend, or move it "
                            "there, and the step's data, too")
    if meter is not None:
        times = [meter.elapsed(tape.marks)]
        if [(o.name, o.attributes) for o in trial.operators] == [(o.name, o.attributes) for o in tape.operators]:
            times.append(meter.elapsed(trial.marks))  # a kernel may have been loaded, or memory allocated, in one of them
        for operator, measured_ns in zip(tape.operators, zip(*times)):
            operator.time_ns = min(measured_ns)
    return _finish(tape, watch, name, batch, measured)


def _run(step: Callable[[], Any], watch: Watch, tape: Tape) -> None:
    """Runs the step on the tape."""
    tape.storages = {storage.number: storage for storage in watch.ledger.renew()}

    def begin_update(*_: Any) -> None:
        tape.updating = True

    def end_update(*_: Any) -> None:
        tape.updating = False

    with contextlib.ExitStack() as stack:
        stack.enter_context(tape.modules.watched())
        for handle in (register_optimizer_step_pre_hook(begin_update), register_optimizer_step_post_hook(end_update)):
            stack.callback(handle.remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack))
        watch.tape = tape
        stack.callback(setattr, watch, "tape", None)
        stack.callback(watch.ledger.renew)
        step()


def _finish(tape: Tape, watch: Watch, name: str, batch: int, measured: Measured) -> Recording:
    storages = sorted(tape.storages.values(), key=lambda s: s.number)
    workspaces = _workspaces(tape.operators, watch.target.capability) if watch.target.cuda else []
    workspace = sum(size for _, size in workspaces)
    return Recording(name, batch, watch.target, f"PyTorch {torch.__version__}", tape.operators, storages, tape.saved,
                     peak_of(tape, 1) + workspace, peak_of(tape, GRANULE) + workspace, workspaces,
                     [] if watch.target.real else [list(r) for r in watch.ledger.requests], tape.modules.block_of, measured)


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


def peak_of(tape: Tape, granule: int) -> int:
    """Returns the largest sum of sizes, each rounded up, of storages and scratch memory that exist at one time.

    At equal times, storages are released before others are allocated.
    """
    changes: dict[int, list[int]] = {}
    for storage in tape.storages.values():
        size = -(-storage.size // granule) * granule
        if storage.died == storage.born and storage.died is not None:
            continue  # it existed between two operators
        changes.setdefault(max(storage.born, 0), [0, 0])[0] += size
        if storage.died is not None and storage.died >= 0:
            changes.setdefault(storage.died, [0, 0])[1] += size
    held = peak = 0
    for time in range(len(tape.operators) + 1):
        allocated, released = changes.get(time, (0, 0))
        held += allocated - released
        scratch = tape.operators[time].scratch if time < len(tape.operators) else 0
        peak = max(peak, held + -(-scratch // granule) * granule)
    return peak


@contextlib.contextmanager
def _refuse_compiled() -> Iterator[None]:
    """Makes torch.compile, and compiled modules and functions that are called, raise `NotRecordableError`."""
    def refuse(callback: Any = None, *_: Any, **__: Any) -> Any:
        if callback is None or callback is False:  # torch.compiler.disable
            return callback
        raise NotRecordableError("the step runs a region of torch.compile, whose kernels and memory a recording cannot follow; "
                                 "record it without torch.compile")

    frames = sys.modules.get("torch._dynamo.eval_frame")  # absent if nothing is compiled
    names = [name for name in ("_callback_from_stance", "maybe_set_eval_frame", "set_eval_frame") if hasattr(frames, name)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "compile", refuse))
        if names:
            stack.enter_context(mock.patch.object(frames, names[0], refuse))
        yield

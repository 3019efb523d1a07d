"""Files that the program `spillway` shares: a recorded step as a trace, and plans for it."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from ..base.document import write_document
from ..base.errors import SpillwayError
from ..tape.scaled import scaled, sizes_of
from ..tape.tape import Tape
from .plan import EVICT, OFFLOAD, Plan, parse_bytes
from .planner import document_of, ladder_trace, movable_storages, plan_from, predict
from .planned_step import planned_step


def write_step(tape: Tape, path: str | os.PathLike[str], *, lengths: Sequence[int] = (), dimension: int | None = None) -> None:
    """Writes the step as a trace, on which the program plans and runs any policy; policies may move what plans may move.

    The ending .zst compresses it.

    lengths: of the inputs, which `spillway plan --family` may name beside the recorded one.
    dimension: the one that is the length, as for `explain`.

    Raises `SpillwayError` if the file cannot be written, and for lengths of a step whose inputs are not known.
    """
    if not lengths:
        _write(planned_step(tape, movable_storages(tape)).trace(), path)
        return
    steps = {name: scaled(tape, tape.inputs, shapes) for name, shapes in sizes_of(tape, lengths, dimension).items()}
    _write(ladder_trace(tape, steps, steps[max(steps, key=int)], (OFFLOAD, EVICT)), path)


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes the plan as `spillway plan` does (experiments/schemas/step-plan.json). Raises `SpillwayError` if it cannot."""
    _write(document_of(plan), path)


def _write(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    try:
        write_document(document, path)
    except OSError as error:
        raise SpillwayError(f"{path}: {error.strerror}") from error


def read_plan(path: str | os.PathLike[str], tape: Tape, memory: str | int | None = None) -> Plan:
    """Reads a plan for `tape` or an equal one: a file of `write_plan`, or one of `spillway plan` on the step's trace.

    memory: most bytes of the device, such as "8GiB", by default as the file says.

    Raises `SpillwayError` for any other file, and if the step does not allow what the plan does, or takes more memory under it.
    """
    try:
        plan = plan_from(json.loads(pathlib.Path(path).read_text(encoding="utf-8")), tape)
        plan.budget = parse_bytes(memory) if memory is not None else plan.budget
    except OSError as error:
        raise SpillwayError(f"{path}: {error.strerror}") from error
    except SpillwayError as error:
        raise SpillwayError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpillwayError(f"{path}: not a plan ({type(error).__name__}: {error})") from error
    predict(plan)
    if plan.peak > plan.budget:
        raise SpillwayError(f"{path}: the step takes {plan.peak:,} bytes under the plan, which may take {plan.budget:,}")
    return plan

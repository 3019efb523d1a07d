"""Files that the program `spillway` shares: a recorded step as a trace, and plans for it."""

from __future__ import annotations

import bisect
import itertools
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from ..base.document import write_document
from ..base.errors import SpillwayError
from ..tape.chains import Saved
from ..tape.tape import Tape
from .ask import carried_out
from .plan import EVICT, OFFLOAD, Plan, parse_bytes
from .planner import assemble, least_size, movable_storages
from .step_trace import StepTrace, operator_of, step_name, storage_name

PLAN, DECISIONS = "spillway-plan", "spillway-decisions"
FATES = (OFFLOAD, EVICT)


def write_step(tape: Tape, path: str | os.PathLike[str]) -> None:
    """Writes the step as a trace, on which the program runs any policy; policies may move what plans may move.

    The ending .zst compresses it. Raises `SpillwayError` if the file cannot be written.
    """
    _write(StepTrace(tape, movable_storages(tape)).object(), path)


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes the plan as the program does (experiments/schemas/plan.json). Raises `SpillwayError` if it cannot.

    The file says what happens to storages and when copies start to come back, but not that a storage goes again between two uses in
    backward, or when the step waits for copies to the host: the program and `read_plan` decide on that.
    """
    _write(plan_object(plan), path)


def _write(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    try:
        write_document(document, path)
    except OSError as error:
        raise SpillwayError(f"{path}: {error.strerror}") from error


def plan_object(plan: Plan) -> dict[str, Any]:
    """Returns the object of the file."""
    tape, movable = plan.tape, movable_storages(plan.tape)
    small = plan.actions.keys() - {saved.storage for saved in movable}
    if small:
        raise SpillwayError(f"storage {min(small)} has {tape.storages[min(small)].size:,} bytes, and a trace lets only storages from "
                            f"{least_size(tape):,} bytes on move")
    trace = StepTrace(tape, movable).object()
    ops = trace["ops"]
    numbers = [operator_of(op["name"]) for op in ops]
    starts: dict[int, list[int]] = {}  # by storage: the ops before which copies start to come back
    for position in sorted(plan.prefetches):
        for storage in plan.prefetches[position]:
            starts.setdefault(storage, []).append(bisect.bisect_left(numbers, tape.positions[position]))
    again = {storage for given_up in plan.drops.values() for storage in given_up}
    storages: list[dict[str, Any]] = []
    for storage, (left, needed) in _gaps(ops, plan.actions).items():
        if plan.actions[storage] == EVICT:
            storages.append({"tensor": storage_name(storage), "fate": "evict", "again": storage in again})
        elif storage in starts:  # otherwise its copy is done too late, and it stays
            start = max((at for at in starts[storage] if left < at <= needed), default=needed)
            storages.append({"tensor": storage_name(storage), "fate": "offload", "prefetch": ops[start]["name"]})
    return {"format": PLAN, "version": 1, "workload": trace["name"], "memory_bytes": plan.budget - plan.unforeseen, "policy": None,
            "storages": storages, "kernels": []}


def _gaps(ops: list[dict[str, Any]], storages: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Returns, for each storage, between which two of its uses the most time passes: in this gap, the program moves it."""
    clock = [0, *itertools.accumulate(op["recorded"]["time_ns"] for op in ops)]
    uses: dict[str, list[int]] = {}
    for at, op in enumerate(ops):
        for name in {*op["inputs"], *op["outputs"]}:
            uses.setdefault(name, []).append(at)
    gaps: dict[int, tuple[int, int]] = {}
    for storage in sorted(storages):
        used = uses.get(storage_name(storage), [])
        idle = [(a, b) for a, b in zip(used, used[1:]) if b > a + 1]
        if idle:
            gaps[storage] = max(idle, key=lambda gap: clock[gap[1]] - clock[gap[0] + 1])
    return gaps


def read_plan(path: str | os.PathLike[str], tape: Tape, memory: str | int | None = None) -> Plan:
    """Reads a plan for `tape` or an equal one, and predicts what it takes.

    path: a file of `write_plan`, or one of the program's `run --export plan` or `--export decisions` on the step's trace. For a plan,
        the package chooses when copies start and when storages go; decisions say it.
    memory: most bytes of the device, such as "8GiB". By default, it is what the file says; decisions do not say it.

    Raises `SpillwayError` for any other file, and if the step does not allow an action, or takes more memory under the plan.
    """
    try:
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if (data["format"], data["version"]) not in ((PLAN, 1), (DECISIONS, 1)):
            raise SpillwayError(f"format '{data['format']}' version {data['version']}; expected '{PLAN}' or '{DECISIONS}', version 1")
        if data["workload"] != f"{step_name(tape)}:1":
            raise SpillwayError(f"the plan is for {data['workload']}, and this is {step_name(tape)}:1")
        if memory is None and "memory_bytes" not in data:
            raise SpillwayError("the file does not say how much memory the step may take; give `memory`")
        movable = movable_storages(tape)
        actions, moments = (carried_out(data["decisions"], movable, tape) if data["format"] == DECISIONS else
                            (_planned_actions(data, movable), None))
        budget = parse_bytes(memory if memory is not None else data["memory_bytes"])
    except OSError as error:
        raise SpillwayError(f"{path}: {error.strerror}") from error
    except SpillwayError as error:
        raise SpillwayError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpillwayError(f"{path}: not a plan ({type(error).__name__}: {error})") from error
    plan = assemble(tape, actions, budget, moments)
    if plan.peak > budget:
        raise SpillwayError(f"{path}: the step takes {plan.peak:,} bytes under the plan, which may take {budget:,}")
    return plan


def _planned_actions(data: dict[str, Any], movable: list[Saved]) -> dict[int, str]:
    """Returns the actions, by storage, of the object of a plan. Raises `SpillwayError` if the step does not allow one."""
    if data["policy"] is not None:
        raise SpillwayError(f"the policy {data['policy']} decides in its place: give the file of --export decisions")
    if data.get("micro") is not None:
        raise SpillwayError("micro-batches are not carried out in PyTorch")
    known = {storage_name(saved.storage): saved for saved in movable}
    actions: dict[int, str] = {}
    for item in data["storages"]:
        name, fate = item["tensor"], item["fate"]
        if name not in known:
            raise SpillwayError(f"'{name}' is not a storage that plans may move")
        if fate not in FATES:
            raise SpillwayError(f"'{name}' has the fate '{fate}' (valid: {', '.join(FATES)})")
        saved = known[name]
        if fate == EVICT and saved.chain is None:
            raise SpillwayError(f"'{name}' cannot be recomputed: {saved.reason}")
        actions[saved.storage] = fate
    return actions

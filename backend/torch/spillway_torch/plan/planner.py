"""Asks the program `spillway` for plans of a recorded step: it alone decides and predicts."""

from __future__ import annotations

import bisect
import copy
import itertools
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, Union

from ..base.document import write_document
from ..base.errors import FloorError, NoPlanError, SpillwayError
from ..base.ledger import Storage
from ..base.program import rows_of
from ..step.trace import operator_of, storage_name
from ..tape.chains import Saved, saved_like, saved_storages, stuck
from ..tape.tape import Tape, leaving_order
from ..tape.weights import RecordedWeight
from .plan import EVICT, KEEP, OFFLOAD, SMALLEST, Floor, Moments, Plan, parse_bytes
from .planned_step import planned_step, step_name
from .remedies import advice
from .weights import fastest

FORMAT = "spillway-step-plan"
AGREES = 0.8  # times the predicted time of the host: where steps take less, or more by as much, they may have a better plan


def movable_storages(tape: Tape, smallest: int | None = None) -> list[Saved]:
    """Returns the storages that plans may move, in the order in which autograd saves them.

    smallest: bytes of the smallest storage that is worth it, by default 1 MiB on a GPU and 0 on a CPU.
    """
    least = (SMALLEST if tape.device == "cuda" else 0) if smallest is None else smallest
    movable = [s for s in saved_storages(tape).values() if s.dies is not None and s.bytes >= least]
    return sorted(movable, key=lambda s: s.packs[0].position)


def make_plan(tape: Tape, memory: Union[str, int], *, moves: tuple[str, ...] = (OFFLOAD, EVICT), smallest: int | None = None,
              policy: str | None = None, unforeseen: int = 0) -> Plan:
    """Returns a plan whose predicted peak is at most `memory`: bytes, or a text such as "8GiB".

    tape: a step that `record` made with its values.
    moves: what may happen to storages.
    smallest: bytes of the smallest storage that is worth it, by default 1 MiB on a GPU and 0 on a CPU.
    policy: a policy of the program `spillway` that decides ("dtr", "joint:effort=2000"), by default `joint`.
    unforeseen: bytes that steps take, and that the tape does not show.

    Raises `SpillwayError`, which names the floor, for a smaller budget, `NoPlanError` if no plan is found, and `ProgramError` if
    the program is missing or fails.
    """
    budget, candidates = parse_bytes(memory), movable_storages(tape, smallest)

    def plan_with(weights: Sequence[RecordedWeight]) -> Plan | FloorError | NoPlanError:
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "plan.json")
            arguments = ["--memory", text_of_size(budget - unforeseen), "-o", path, *(("--policy", policy) if policy is not None else ())]
            names = tuple(weight.name for weight in weights)
            row = ask(planned_step(tape, candidates, moves, names).trace(), folder, *arguments)[0]
            try:
                return _plan_of(row, path, tape, budget, unforeseen, names)
            except (FloorError, NoPlanError) as error:
                return error.with_traceback(None)  # its frames would hold what the program has

    found = fastest(tape, budget, plan_with)
    try:
        if not isinstance(found, Plan):
            raise found
        return found
    finally:
        del found  # the error has this frame


def make_ladder(tape: Tape, sizes: dict[str, Tape], memory: Union[str, int], *, moves: tuple[str, ...] = (OFFLOAD, EVICT),
                policy: str | None = None, unforeseen: int = 0) -> dict[str, Plan | SpillwayError]:
    """Returns plans for several sizes of a step, by name, each as `make_plan` does, or the error that it would raise.

    A plan is good for all smaller sizes, whose plans are not predicted to take longer.

    tape: one whose tensors are at least as large as those of the others.
    """
    budget = parse_bytes(memory)
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--memory", text_of_size(budget - unforeseen), "--family", "all", "-o", str(pathlib.Path(folder) / "plan.json")]
        rows = ask(ladder_trace(tape, sizes, tape, moves), folder, *arguments, *(("--policy", policy) if policy is not None else ()))
        plans: dict[str, Plan | SpillwayError] = {}
        for row in rows:
            name = row["size"]
            try:
                plans[name] = _plan_of(row, str(pathlib.Path(folder) / f"plan-{name}.json"), sizes[name], budget, unforeseen)
            except SpillwayError as error:
                plans[name] = error.with_traceback(None)
    for name in [name for name, plan in plans.items() if sizes[name].weights and (sizes[name].leaving or isinstance(plan, SpillwayError))]:
        try:
            plans[name] = make_plan(sizes[name], budget, moves=moves, policy=policy, unforeseen=unforeseen)
        except SpillwayError as error:
            plans[name] = error.with_traceback(None)
    return plans


def ladder_trace(tape: Tape, sizes: dict[str, Tape], widest: Tape, moves: tuple[str, ...]) -> dict[str, Any]:
    """Returns the trace of a step with its numbers at several sizes, by name (traces/FORMAT.md).

    widest: a size of it with tensors that are at least as large as those of the others; what can be recomputed there can be in all.
    """
    found, movable = saved_storages(widest), [saved.storage for saved in movable_storages(widest)]

    def trace_of(step: Tape) -> dict[str, Any]:
        step.movable = saved_like(step, found)
        return planned_step(step, [step.movable[storage] for storage in movable], moves).trace()

    listed = []
    for name, step in sizes.items():
        at = trace_of(step)
        costs = [op["recorded"] for op in at["ops"]]
        listed.append({"name": name, "tensors": [tensor["size"] for tensor in at["tensors"]],
                       "ops": [[cost["time_ns"], cost["workspace"]] for cost in costs],
                       "again": [[cost["again"]["time_ns"], cost["again"]["workspace"]] for cost in costs if "again" in cost]})
    trace = trace_of(copy.copy(tape))
    return {**trace, "version": max(8, trace["version"]), "sizes": listed}


def _plan_of(row: dict[str, Any], path: str, tape: Tape, budget: int, unforeseen: int, weights: tuple[str, ...] = ()) -> Plan:
    """Returns the plan of a row and a file that `spillway plan` made; raises the errors of `make_plan`."""
    floor = floor_of(tape, row, unforeseen)
    also = tape.staying + _hosted(tape, weights) + "".join(
        f"; {group.bytes:,} bytes that autograd saves, such as from {group.operator}, cannot be recomputed: "
                                  f"{group.reason}" for group in stuck(tape))
    best = (row["least_bytes"] or row["eager_peak_bytes"]) + unforeseen
    if budget < floor.bytes:
        found = f"; the least memory in which a plan was found is {best:,} bytes" if best > floor.bytes else ""
        raise FloorError(floor.sentence(budget) + found + also + advice(tape, floor.at, _named(tape, row)), floor.bytes)
    if row["status"] != "ok":
        raise NoPlanError(f"no plan within {budget:,} bytes was found (one takes {best:,}; the floor is {floor.bytes:,}): give a "
                          f"larger budget{also}", best)
    plan = plan_from(json.loads(pathlib.Path(path).read_text(encoding="utf-8")), tape)
    plan.budget, plan.floor, plan.unforeseen = budget, floor, unforeseen
    plan.state_seconds = row["update_ms"] / 1e3 if plan.state else 0.0
    plan.peak, plan.eager_peak = plan.peak + unforeseen, plan.eager_peak + unforeseen
    _set_weights(plan, weights)
    return plan


def _set_weights(plan: Plan, weights: tuple[str, ...]) -> None:
    """Notes weights that a plan has on the host, as a step without a plan has not."""
    if weights:
        plan.weights, plan.eager_peak = weights, plan.tape.eager_peak() + plan.unforeseen
        plan.eager_seconds = min(plan.eager_seconds, plan.seconds,
                                 sum(op.seconds for op in plan.tape.ops) + sum(update.seconds for update in plan.tape.updates)
                                 + plan.update_seconds)


def _hosted(tape: Tape, weights: tuple[str, ...]) -> str:
    """Returns a part of a message: the bytes of weights that can be on the host."""
    size = sum(weight.bytes for weight in tape.weights)
    there = sum(weight.bytes for weight in tape.weights if weight.name in weights)
    return f"; {size:,} bytes are weights that can be on the host, where {there:,} of them are then" if size else ""


def ask(trace: dict[str, Any], folder: str, *arguments: str) -> list[dict[str, Any]]:
    """Returns the rows that `spillway plan` prints for the trace of a planned step, which it leaves in the folder."""
    path = str(pathlib.Path(folder) / "step.json")
    write_document(trace, path)
    return rows_of("plan", path, *arguments)


def text_of_size(memory: int) -> str:
    """Returns bytes as an option of the program, which takes 10^18 at most."""
    return f"{min(max(1, memory), 10**18)}B"


def predict(plan: Plan, memory: int | None = None) -> Plan:
    """Fills in what a plan is predicted to take, and returns it."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        write_document(document_of(plan), path)
        budget = memory if memory is not None else plan.budget
        step = planned_step(plan.tape, movable_storages(plan.tape, 0), weights=plan.weights)
        row = ask(step.trace(), folder, "--memory", text_of_size(budget), "--predict", str(path))[0]
    plan.peak, plan.eager_peak = row["peak_allocated_bytes"], row["eager_peak_bytes"]
    plan.seconds, plan.eager_seconds = row["iteration_ms"] / 1e3, row["eager_ms"] / 1e3
    plan.host_seconds, plan.forward_seconds = row["host_ms"] / 1e3, row["forward_host_ms"] / 1e3
    plan.state_seconds = row["update_ms"] / 1e3 if plan.state else 0.0
    plan.floor = floor_of(plan.tape, row, 0)
    _set_weights(plan, plan.weights)
    return plan


def assemble(tape: Tape, actions: dict[int, str], memory: int = 1 << 40, moments: Moments | None = None) -> Plan:
    """Returns the plan that carries out the given actions, without a prediction (`predict`). REQUIRES: the tape allows them.

    By default, a storage leaves as soon as the program lets go of it, comes back where backward reads it, and leaves between reads.
    """
    if moments is None:
        moments = Moments()
        for saved in movable_storages(tape, 0):
            release = bisect.bisect_left(tape.positions, saved.dies or 0)
            reads = sorted((tape.unpacks[u].position, tape.unpacks[u].op) for u in saved.unpacks)
            drops = [at for (at, op), (_, later) in zip(reads, reads[1:]) if op != later]  # it is there once for each operator
            if actions.get(saved.storage, KEEP) != KEEP:
                leaves = actions[saved.storage] == OFFLOAD and release < reads[0][0]
                moments.add(saved.storage, release=[release] if leaves else [], drops=[*drops, reads[-1][0]])
    moved = {s: a for s, a in actions.items() if a != KEEP}
    _end_sources(tape, moved, moments)
    return Plan(memory, moved, moments, 0, 0, 0.0, 0.0, None, tape)


def _end_sources(tape: Tape, actions: dict[int, str], moments: Moments) -> None:
    """Gives up what came back only for others to be recomputed from it, behind the last read of its own."""
    saved = {s.storage: s for s in movable_storages(tape, 0)}
    reads = {s: sorted({tape.unpacks[u].position for u in of.unpacks}) for s, of in saved.items()}
    for storage in [s for s, action in actions.items() if action == EVICT]:
        sources: dict[int, None] = {}
        waiting = [storage]
        while waiting:
            at = waiting.pop()
            chain = saved[at].chain if actions[at] == EVICT else None
            for source, _ in chain.sources if chain is not None else ():
                if source in actions and source in saved and source not in sources:
                    sources[source] = None
                    waiting.append(source)
        for position in reads[storage]:
            for source in sources:
                if position > reads[source][-1] and source not in moments["drops"].get(position, ()):
                    moments.add(source, drops=[position])


def floor_of(tape: Tape, row: dict[str, Any], unforeseen: int) -> Floor:
    """Returns the floor that a row of `spillway plan` has."""
    at = operator_of(row["floor_op"])
    return Floor(row["floor_bytes"] + unforeseen, tape.ops[at].place if at < len(tape.ops) else "the update", at, [
        ("parameters and others from before the step", row["floor_throughout_bytes"]),
        *((f"{str(s.dtype).replace('torch.', '')}{list(s.shape)}", s.size) for s in _named(tape, row))])


def _named(tape: Tape, row: dict[str, Any]) -> list[Storage]:
    """Returns the largest storages that exist at the floor."""
    numbers = [int(name[1:]) for name in row["floor_storages"].split() if not name.startswith("state")]
    return [tape.storages[number] for number in numbers if number in tape.storages]  # others are weights that came


def document_of(plan: Plan) -> dict[str, Any]:
    """Returns the object of a plan's file (experiments/schemas/step-plan.json)."""
    storages: list[dict[str, Any]] = []
    for storage, fate in sorted(plan.actions.items()):
        if fate == KEEP:
            continue
        made: dict[str, Any] = {"tensor": storage_name(storage), "fate": fate, "drops": []}
        if fate == OFFLOAD:
            made["prefetches"] = []
        for move, positions in plan.moments.items():
            at = [position for position, moved in sorted(positions.items()) if storage in moved]
            if at and (fate == OFFLOAD or move == "drops"):
                made[move] = at[0] if move == "release" else at
        storages.append(made)
    return {"format": FORMAT, "version": 1, "workload": f"{step_name(plan.tape)}:1", "memory_bytes": plan.budget - plan.unforeseen,
            "policy": "as given", "peak_bytes": plan.peak - plan.unforeseen, "eager_peak_bytes": plan.eager_peak - plan.unforeseen,
            "step_s": plan.seconds - plan.update_seconds, "eager_step_s": plan.eager_seconds - plan.update_seconds,
            "host_s": plan.host_seconds, "forward_host_s": plan.forward_seconds, **({"state": _parts(plan)} if plan.state else {}),
            "storages": storages}


def _parts(plan: Plan) -> list[str]:
    """Returns the names of the parts of the optimizer's state that are on the host, in the order of their updates."""
    order = leaving_order(len(plan.tape.updates))
    ends = list(itertools.accumulate((plan.tape.updates[at].bytes for at in order), initial=0))
    return [storage_name(-2 - at) for at in sorted(order[:bisect.bisect_left(ends, plan.state)])]


def plan_from(document: dict[str, Any], tape: Tape) -> Plan:
    """Returns the plan of a file's object. Raises `SpillwayError` if the step does not allow it."""
    if (document["format"], document["version"]) != (FORMAT, 1):
        raise SpillwayError(f"format '{document['format']}' version {document['version']}; expected '{FORMAT}' version 1, which "
                            "`spillway plan` writes")
    if document["workload"] != f"{step_name(tape)}:1":
        raise SpillwayError(f"the plan is for {document['workload']}, and this is {step_name(tape)}:1")
    known = {storage_name(saved.storage): saved for saved in movable_storages(tape, 0)}
    moments, actions = Moments(), {}
    for item in document["storages"]:
        name, fate = item["tensor"], item["fate"]
        if name not in known:
            raise SpillwayError(f"'{name}' is not a storage that plans may move")
        if fate not in (OFFLOAD, EVICT):
            raise SpillwayError(f"'{name}' has the fate '{fate}' (valid: {OFFLOAD}, {EVICT})")
        if fate == EVICT and known[name].chain is None:
            raise SpillwayError(f"'{name}' cannot be recomputed: {known[name].reason}")
        storage = known[name].storage
        actions[storage] = fate
        moves = {move: item[move] for move in ("drops", *item) if move not in ("tensor", "fate")}
        moments.add(storage, **{move: at if isinstance(at, list) else [at] for move, at in moves.items()})
    _end_sources(tape, actions, moments)
    return Plan(int(document["memory_bytes"]), actions, moments, document["peak_bytes"],
                document["eager_peak_bytes"], document["step_s"], document["eager_step_s"], None, tape, document["host_s"],
                document["forward_host_s"],
                state=sum(tape.updates[int(name.removeprefix("state."))].bytes for name in document.get("state", ())),
                weights=_known_weights(document.get("weights", []), tape))


def _known_weights(names: list[str], tape: Tape) -> tuple[str, ...]:
    """Returns the names of weights in a plan's file. Raises `SpillwayError` for others."""
    unknown = [name for name in names if name not in {weight.name for weight in tape.weights}]
    if unknown:
        raise SpillwayError(f"'{unknown[0]}' is not a weight of the step that can be on the host")
    return tuple(names)


def learn_host_speed(plan: Plan, took: float, ahead: bool = False) -> bool:
    """Corrects the host's time on the tape if a forward under the plan took the host much less, or much more, than predicted.

    took: the least seconds of a forward; infinity if none was timed.
    ahead: whether the device was behind the host then. It may be the device that took so long: the host waits where a queue is full.

    Returns whether it did: then another plan may be better.
    """
    if not plan.forward_seconds or took == float("inf") or AGREES <= took / plan.forward_seconds <= 1 / AGREES:
        return False
    if ahead and took > plan.forward_seconds:
        return False
    plan.tape.host_share *= took / plan.forward_seconds
    return True

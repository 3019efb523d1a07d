"""Files that the program `spillway` shares: a recorded step as a trace, and plans for it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Optional, Union

from ..base.document import write_document
from ..base.errors import SpillwayError
from ..tape.scaled import scaled, sizes_of
from ..tape.tape import Tape
from .plan import EVICT, OFFLOAD, Plan, parse_bytes
from .planner import FORMAT, document_of, ladder_trace, movable_storages, plan_from, predict
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


def write_plan(plan: Union[Plan, CompiledPlan], path: str | os.PathLike[str]) -> None:
    """Writes the plan as `spillway plan` does (experiments/schemas/step-plan.json), and one of a compiled step for `fit(..., plan=path)`.

    Raises `SpillwayError` if it cannot.
    """
    if isinstance(plan, CompiledPlan):
        return _write(plan.document(), path)
    _write({**document_of(plan), **({"weights": list(plan.weights)} if plan.weights else {})}, path)


@dataclasses.dataclass(frozen=True)
class GraphPlan:
    """What a graph of torch.compile saves, and what its backward computes again, in order, by the names of nodes."""

    digest: str  # of the joint graph
    nodes: int  # that it has
    saved: Optional[list[str]]  # None: what PyTorch saves
    recomputed: list[str]


@dataclasses.dataclass(frozen=True)
class CompiledPlan:
    """A plan for the graphs of a compiled step, in the order of their first calls. `write_plan` writes it, and `fit` takes the file."""

    budget: int
    peak: int  # bytes of the step, predicted
    graphs: list[GraphPlan]

    def document(self) -> dict[str, Any]:
        """Returns the object of its file."""
        return {"format": FORMAT, "version": 1, "memory_bytes": self.budget, "peak_bytes": self.peak,
                "graphs": [dataclasses.asdict(graph) for graph in self.graphs]}


def read_compiled_plan(path: str | os.PathLike[str]) -> CompiledPlan:
    """Reads a plan for compiled graphs. Raises `SpillwayError` for any other file."""
    try:
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if (document["format"], document["version"]) != (FORMAT, 1) or "graphs" not in document:
            raise SpillwayError(f"{path}: not a plan for compiled graphs, which `write_plan` writes of what `fit` returns for a compiled model")
        return CompiledPlan(document["memory_bytes"], document["peak_bytes"], [GraphPlan(**graph) for graph in document["graphs"]])
    except OSError as error:
        raise SpillwayError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpillwayError(f"{path}: not a plan ({type(error).__name__}: {error})") from error


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
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if "graphs" in document:
            raise SpillwayError("a plan for compiled graphs, which fit(..., plan=path) takes")
        plan = plan_from(document, tape)
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

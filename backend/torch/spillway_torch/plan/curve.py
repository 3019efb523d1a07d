"""What memory costs in time: plans for budgets between the floor and the peak without a plan."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from typing import Any, Optional, Union

from ..step.trace import operator_of
from ..tape.chains import Stuck, stuck
from ..tape.tape import Tape
from .lengths import Lengths, explain_lengths
from .plan import HOST_BOUND, Floor, parse_bytes, useful_moves
from .planned_step import planned_step
from .planner import ask, floor_of, movable_storages

FORMAT = "spillway-torch-explain"


@dataclasses.dataclass
class Row:
    """A budget in bytes, and what the plan for it takes. Without a plan, `best` is the least memory with which one was found."""

    budget: int
    best: Optional[int] = None  # None: there is a plan
    peak: int = 0
    seconds: float = 0.0
    times: float = 0.0  # it as a multiple of the time without a plan
    offloaded: int = 0  # bytes of storages
    evicted: int = 0
    host_bound: bool = False


@dataclasses.dataclass
class Curve:
    """The answer of `explain`. The last row has the memory of a step without a plan."""

    tape: Tape = dataclasses.field(repr=False)
    rows: list[Row]
    knee: Optional[int]  # index of the row that lies farthest below the line from the first plan to the last one
    floor: Floor
    at: int  # index of the operator that holds the floor
    throughout: int  # bytes that exist during the whole step
    gradients: int  # bytes that backward made until then and that stay
    stuck: list[Stuck]  # what autograd saves and no plan recomputes
    without: tuple[int, str]  # the floor if no operator of this name needed more than others do, and the operator that holds it

    lengths: Optional[Lengths] = None  # if a memory was given

    def text(self) -> str:
        """Returns a table, sentences on the floor, and a table of lengths if there is one, for people."""
        eager, tape, floor = self.rows[-1], self.tape, self.floor
        unit, name = (1 << 20, "MiB") if self.floor.bytes >= 10 << 20 else (1 << 10, "KiB")
        lines = [f"{f'budget {name}':>12}{f'peak {name}':>12}{'ms':>10}{'times':>8}{'offloaded':>12}{'recomputed':>12}"]
        for at, row in enumerate(self.rows):
            line = f"{row.budget / unit:12,.1f}"
            if row.best is not None:
                line += f"  no plan was found; one takes {row.best / unit:,.1f}"
            else:
                line += (f"{row.peak / unit:12,.1f}{row.seconds * 1e3:10.2f}{row.times:8.2f}"
                         f"{row.offloaded / unit:12,.1f}{row.evicted / unit:12,.1f}")
            notes = [note for note, holds in (
                ("floor", row.budget == floor.bytes), ("knee", at == self.knee), ("without a plan", row is eager),
                ("host-bound", row.host_bound)) if holds]
            lines.append(line + "  " * bool(notes) + ", ".join(notes))
        if tape.device == "cpu":
            lines.append("The times of a CPU are estimates from sizes.")
        held = ", ".join(f"{size / unit:,.1f} of {what}" for what, size in floor.held[1:])
        lines += ["", f"No plan takes less than the floor, {floor.bytes / unit:,.1f} {name}, which {floor.operator} (operator "
                      f"{self.at + 1} of {len(tape.ops)}) needs:",
                  f"{self.throughout / unit:12,.1f}  exist during the whole step: parameters, the optimizer's state, data",
                  f"{self.gradients / unit:12,.1f}  are gradients that backward made before",
                  f"{self.moment / unit:12,.1f}  are other tensors of this moment; the largest: {held or 'none'}"]
        least = min((row.peak if row.best is None else row.best) for row in self.rows)
        if least > floor.bytes:
            lines.append(f"The least memory in which a plan was found is {least / unit:,.1f} {name}.")
        for group in self.stuck:
            lines.append(f"{group.bytes / unit:,.1f} {name} that autograd saves, such as from {group.operator}, cannot be recomputed: "
                         f"{group.reason}.")
        size, operator = self.without
        if size < floor.bytes:
            lines.append(f"If {floor.operator} needed less, such as in pieces or in another form, the floor would be "
                         f"{size / unit:,.1f} {name}, held by {operator}.")
        else:
            lines.append(f"{operator} needs as much: a change to one operator does not lower the floor.")
        if self.phase == "update":
            lines.append("It belongs to the update: another optimizer, or its option foreach=False, lowers it, and a smaller batch does not.")
        else:
            lines.append(f"A smaller batch lowers the data, and what grows with it in the {self.moment / unit:,.1f} {name} of this moment.")
        if self.lengths is not None:
            lines += ["", self.lengths.text(unit, name).rstrip()]
        return "\n".join(lines) + "\n"

    @property
    def phase(self) -> str:
        """Returns in which part of the step the operator runs that holds the floor."""
        if self.at >= self.tape.ended:
            return "update"
        return "backward" if self.tape.ops[self.at].backward else "forward"

    @property
    def moment(self) -> int:
        """Returns the bytes at the floor that neither exist during the whole step nor are gradients."""
        return self.floor.bytes - self.throughout - self.gradients

    def object(self) -> dict[str, Any]:
        """Returns what `text` says, in bytes and seconds (experiments/schemas/torch-explain.json)."""
        def described(at: int, row: Row) -> dict[str, Any]:
            numbers: dict[str, Any] = {"peak_bytes": row.peak, "step_s": row.seconds, "times": row.times, "offloaded_bytes": row.offloaded,
                       "recomputed_bytes": row.evicted, "host_bound": row.host_bound}
            if row.best is not None:
                numbers = dict.fromkeys(numbers)
            return {"budget_bytes": row.budget, "least_bytes": row.best, **numbers, "knee": at == self.knee}

        return {"format": FORMAT, "version": 1, "device": self.tape.name, "operators": len(self.tape.ops),
                "times": "estimated" if self.tape.device == "cpu" else "measured",
                "floor": {"bytes": self.floor.bytes, "operator": self.floor.operator, "operator_index": self.at, "phase": self.phase,
                          "throughout_bytes": self.throughout, "gradients_bytes": self.gradients,
                          "held": [{"name": name, "bytes": size} for name, size in self.floor.held[1:]],
                          "without_operator": {"bytes": self.without[0], "operator": self.without[1]}},
                "not_recomputed": [dataclasses.asdict(group) for group in self.stuck],
                "rows": [described(at, row) for at, row in enumerate(self.rows)],
                **({"lengths": self.lengths.object()} if self.lengths is not None else {})}


def explain(tape: Tape, moves: tuple[str, ...] | None = None, *, memory: Union[str, int, None] = None, lengths: Sequence[int] = (),
            dimension: int | None = None) -> Curve:
    """Plans a recorded step for budgets from its floor to its peak without a plan, and for lengths of its inputs in one memory.

    moves: what may happen to storages, by default what saves memory of the tape's device.
    memory: bytes, or a text such as "8GiB", in which the step is planned for several lengths; by default it is not.
    lengths: those that the table has, by default the recorded one and its half, double, fourth part and fourfold.
    dimension: of the inputs of the first module that the step calls, which is the length; by default the longest that no parameter has.

    Raises `SpillwayError` for lengths of a step whose inputs are not known, and `ProgramError` if the program `spillway`, which plans,
    is missing or fails.
    """
    moves = useful_moves(tape.device) if moves is None else moves
    planned = planned_step(tape, movable_storages(tape), moves)
    with tempfile.TemporaryDirectory() as folder:
        found = ask(planned.trace(), folder, "--curve")
    rows = []
    for row in found:
        if row["status"] != "ok":
            rows.append(Row(row["memory_bytes"], row["least_bytes"] or row["eager_peak_bytes"]))
            continue
        seconds, host = row["iteration_ms"] / 1e3, row["host_ms"] / 1e3
        rows.append(Row(row["memory_bytes"], None, row["peak_allocated_bytes"], seconds, row["slowdown"], row["offloaded_bytes"],
                        row["evicted_bytes"], host >= HOST_BOUND * seconds > 0))
    first = found[0]
    knee = next((at for at, row in enumerate(found) if row["knee"]), None)
    without = (first["floor_without_bytes"] or 0, tape.ops[operator_of(first["floor_without_op"] or "none.0")].place)
    floor = floor_of(tape, first, 0)
    curve = Curve(tape, rows, knee, floor, floor.at, first["floor_throughout_bytes"], first["floor_gradients_bytes"], stuck(tape),
                  without)
    if memory is not None:
        curve.lengths = explain_lengths(tape, parse_bytes(memory), lengths, dimension, moves)
    return curve

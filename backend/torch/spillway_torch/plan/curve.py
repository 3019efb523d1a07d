"""What memory costs in time: plans for budgets between the floor and the peak without a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from ..base.errors import NoPlanError
from ..tape.tape import Tape
from .plan import EVICT, OFFLOAD, Floor, Plan, useful_moves
from .planner import least_memory, make_plan, make_plans

FORMAT = "spillway-torch-explain"
SHARES = (0.02, 0.07, 0.2, 0.4, 0.7, 1.0)  # of the way from the least to the peak without a plan; the least costs most


@dataclasses.dataclass
class Row:
    """A budget in bytes, and the plan for it. If the planner found none, it is None, and `best` the least peak that was tried."""

    budget: int
    plan: Optional[Plan]
    best: int = 0

    def moved(self, action: str) -> int:
        """Returns the bytes of the storages with an action."""
        assert self.plan is not None
        return sum(self.plan.tape.storages[s].size for s, a in self.plan.actions.items() if a == action)

    @property
    def times(self) -> float:
        """Returns the predicted time as a multiple of the one without a plan."""
        assert self.plan is not None
        return self.plan.seconds / self.plan.eager_seconds


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
    without: tuple[int, str]  # the floor if no operator of this name needed more than others do, and the operator that holds it

    def text(self) -> str:
        """Returns a table, and sentences on the floor, for people."""
        eager, tape, floor = self.rows[-1], self.tape, self.floor
        unit, name = (1 << 20, "MiB") if self.floor.bytes >= 10 << 20 else (1 << 10, "KiB")
        lines = [f"{f'budget {name}':>12}{f'peak {name}':>12}{'ms':>10}{'times':>8}{'offloaded':>12}{'recomputed':>12}"]
        for at, row in enumerate(self.rows):
            line = f"{row.budget / unit:12,.1f}"
            if row.plan is None:
                line += f"  no plan was found; the best takes {row.best / unit:,.1f}"
            else:
                line += (f"{row.plan.peak / unit:12,.1f}{row.plan.seconds * 1e3:10.2f}{row.times:8.2f}"
                         f"{row.moved(OFFLOAD) / unit:12,.1f}{row.moved(EVICT) / unit:12,.1f}")
            notes = [note for note, holds in (
                ("floor", row.budget == floor.bytes), ("knee", at == self.knee), ("without a plan", row is eager),
                ("host-bound", row.plan is not None and row.plan.host_bound)) if holds]
            lines.append(line + "  " * bool(notes) + ", ".join(notes))
        if tape.device == "cpu":
            lines.append("The times of a CPU are estimates from sizes.")
        held = ", ".join(f"{size / unit:,.1f} of {what}" for what, size in floor.held[1:])
        lines += ["", f"No plan takes less than the floor, {floor.bytes / unit:,.1f} {name}, which {floor.operator} (operator "
                      f"{self.at + 1} of {len(tape.ops)}) needs:",
                  f"{self.throughout / unit:12,.1f}  exist during the whole step: parameters, the optimizer's state, data",
                  f"{self.gradients / unit:12,.1f}  are gradients that backward made before",
                  f"{self.moment / unit:12,.1f}  are other tensors of this moment; the largest: {held or 'none'}"]
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
            plan = row.plan
            numbers: dict[str, Any] = dict.fromkeys(("peak_bytes", "step_s", "times", "offloaded_bytes", "recomputed_bytes", "host_bound"))
            if plan is not None:
                numbers = {"peak_bytes": plan.peak, "step_s": plan.seconds, "times": row.times, "offloaded_bytes": row.moved(OFFLOAD),
                           "recomputed_bytes": row.moved(EVICT), "host_bound": plan.host_bound}
            return {"budget_bytes": row.budget, "least_bytes": row.best if plan is None else None, **numbers,
                    "knee": at == self.knee}

        return {"format": FORMAT, "version": 1, "device": self.tape.name, "operators": len(self.tape.ops),
                "times": "estimated" if self.tape.device == "cpu" else "measured",
                "floor": {"bytes": self.floor.bytes, "operator": self.floor.operator, "operator_index": self.at, "phase": self.phase,
                          "throughout_bytes": self.throughout, "gradients_bytes": self.gradients,
                          "held": [{"name": name, "bytes": size} for name, size in self.floor.held[1:]],
                          "without_operator": {"bytes": self.without[0], "operator": self.without[1]}},
                "rows": [described(at, row) for at, row in enumerate(self.rows)]}


def explain(tape: Tape, moves: tuple[str, ...] | None = None) -> Curve:
    """Plans a recorded step for budgets from its floor to its peak without a plan.

    moves: what may happen to storages, by default what saves memory of the tape's device.

    Raises `SpillwayError` if a step without a plan cannot be predicted.
    """
    moves = useful_moves(tape.device) if moves is None else moves

    def planned(budgets: list[int]) -> Iterator[Row]:
        for budget, made in zip(budgets, make_plans(tape, budgets, moves)):
            yield Row(budget, None, made.best) if isinstance(made, NoPlanError) else Row(budget, made)

    eager = make_plan(tape, 1 << 62, moves=moves)
    first = next(planned([eager.floor.bytes]))
    start = first.budget if first.plan is not None else first.best
    budgets = {round(start + share * (eager.eager_peak - start)) for share in SHARES} | ({start} if first.plan is None else set())
    rows = [first, *sorted(planned(sorted(budgets - {first.budget}, reverse=True)), key=lambda row: row.budget)]
    least = least_memory(tape)
    at = min(least.index(max(least)), len(tape.ops) - 1)
    others = [(memory, op.place) for memory, op in zip(least, tape.ops) if op.name != tape.ops[at].name]
    return Curve(tape, rows, _knee(rows), eager.floor, at, min(least), tape.gradients()[at], max(others, default=(0, "nothing")))


def _knee(rows: list[Row]) -> int | None:
    """Returns the row farthest below the line from the first plan to the last one; None if no row lies below it."""
    points = [(at, row.budget, row.plan.seconds) for at, row in enumerate(rows) if row.plan is not None]
    (_, left, high), (_, right, low) = points[0], points[-1]
    if left == right or high <= low:
        return None
    below, knee = max((high - (high - low) * (budget - left) / (right - left) - seconds, -at) for at, budget, seconds in points)
    return -knee if below > 0 else None

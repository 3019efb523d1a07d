"""What the steps of a budget took so far."""

from __future__ import annotations

import collections
import dataclasses
import logging
import statistics
import time
from typing import NamedTuple

from ..base.device import Device
from ..plan.plan import OFFLOAD, Plan, in_unit
from ..run.executor import _Run

LAST = 20  # steps whose time counts
TOLD = 1.1  # times the bytes that a line has named, or for which a plan was made, for another one

log = logging.getLogger("spillway_torch")


class Ran(NamedTuple):
    """What a part of a step did that ran as planned."""

    plan: Plan
    signature: int
    recomputed: int  # operators
    deviation: str | None = None
    guarded: int = 0
    verified: int = 0


@dataclasses.dataclass
class Taken:
    """Counts parts of steps, each with a forward and its backward."""

    budget: int  # bytes
    planned: int = 0
    guarded: int = 0  # without a plan
    recorded: int = 0
    replayed: int = 0  # of those planned: from CUDA graphs
    most: int = 0  # bytes of the device; 0 if it does not count them
    recomputed: int = 0  # operators
    offloaded: int = 0  # bytes that went to the host as planned
    short: int = 0  # the same, because memory was short
    verified: int = 0  # storages
    plan: Plan | None = None  # of the last step, if it had one
    guards: bool = True  # whether the device counts its memory, so that steps without a plan are guarded
    told: int = 0  # the most bytes that a line about the budget has named, or for which other plans were made
    _began: float | None = None
    _seconds: collections.deque[float] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=LAST))

    @property
    def steps(self) -> int:
        return self.planned + self.guarded + self.recorded

    def begin(self, plan: Plan | None) -> None:
        """Counts a step that begins, and the time since the one before, if that had the same plan."""
        now = time.perf_counter()
        if plan is not self.plan:
            self._seconds.clear()
        elif self._began is not None:
            self._seconds.append(now - self._began)
        self.plan, self._began = plan, now
        self.planned += plan is not None
        self.guarded += plan is None

    def record(self) -> None:
        """Counts a step that is recorded."""
        self.recorded += 1
        self._began = None

    def end(self, run: _Run | Ran) -> None:
        """Counts what a step did, whose backward has run."""
        self.recomputed += run.recomputed
        self.short += run.guarded
        self.verified += run.verified
        if run.deviation is None:
            self.offloaded += sum(run.plan.tape.storages[s].size for s, action in run.plan.actions.items() if action == OFFLOAD)

    def note(self, most: int, device: Device) -> None:
        """Counts the most bytes of what ran since the device's peak was asked for."""
        self.most = max(self.most, most)
        self.tell(most, device)

    def tell(self, most: int, device: Device) -> None:
        """Says that tensors took more than the budget, unless a line has named about as many bytes."""
        if most > (TOLD * self.told if self.told else self.budget):
            self.told = most
            log.warning("spillway: tensors took %s bytes, %s over the budget, in a step or since the one before; %s of them exist now, "
                        "before the next one", f"{most:,}", f"{most - self.budget:,}", f"{device.in_use():,}")

    def numbers(self) -> dict[str, float]:
        """Returns the counts by name. Times are ms; `step_ms` is a median, and `predicted_ms` stands beside it on a GPU."""
        found: dict[str, float] = {"steps": self.steps, "planned": self.planned, "guarded": self.guarded, "recorded": self.recorded, "replayed": self.replayed,
                                   "budget_bytes": self.budget, "recomputed_operators": self.recomputed, "offloaded_bytes": self.offloaded,
                                   "guarded_bytes": self.short, "verified_storages": self.verified}
        if self.most:
            found["most_bytes"] = self.most
        if self._seconds:
            found["step_ms"] = 1e3 * statistics.median(self._seconds)
        if self._seconds and self.plan is not None and self.plan.tape.device == "cuda":
            found["predicted_ms"] = 1e3 * self.plan.seconds
        return found

    def line(self) -> str:
        """Returns the counts for people."""
        shares = ", ".join(f"{count} {name} ({count / max(1, self.steps):.0%})" for name, count in (
            ("planned", self.planned), ("guarded" if self.guards else "as they are", self.guarded), ("recorded", self.recorded)))
        budget, most, offloaded, short = (in_unit(size, self.budget) for size in (self.budget, self.most, self.offloaded, self.short))
        most = f", of which steps took at most {most}" if self.most else ""
        numbers, times = self.numbers(), ""
        if "step_ms" in numbers:
            predicted = f" (predicted {numbers['predicted_ms']:.1f})" if "predicted_ms" in numbers else ""
            times = f"; a step takes {numbers['step_ms']:.1f} ms{predicted}"
        replayed = f", {self.replayed} of them as CUDA graphs" if self.replayed else ""
        verified = f", and {self.verified} storages were verified" if self.verified else ""
        return (f"budget {budget}{most}; {self.steps} steps: {shares}{replayed}{times}; {self.recomputed} operators ran again, {offloaded} went to the "
                f"host as planned and {short} because memory was short{verified}")

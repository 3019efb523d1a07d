"""Plans: what happens to each saved storage, and when."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Optional, Union

from ..base.errors import SpillwayError
from ..tape.tape import Tape

KEEP, OFFLOAD, EVICT = "keep", "offload", "evict"
SMALLEST = 1 << 20  # bytes of a storage that is worth a plan on a GPU
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PAGE = 4096  # bytes, at which each copy on the host begins
HOST_BOUND = 0.8  # of a step's time: where the host takes more, it may limit parts of the step


class Bytes(int):
    """A number of bytes, with the unit in which the user gave it."""

    unit: str


def in_unit(size: int, budget: int) -> str:
    """Returns bytes for people, in the unit of a budget: the user's, or, if that is a whole number, the largest one that is not more."""
    unit = budget.unit if isinstance(budget, Bytes) else next(unit for unit in ("GiB", "MiB", "KiB", "B") if budget >= UNITS[unit])
    value = size / UNITS[unit]
    return f"{value:,.0f} {unit}" if value >= 1000 or unit == "B" else f"{value:.4g} {unit}"


def parse_bytes(text: Union[str, int]) -> int:
    """Returns the bytes that "8GiB", "512 MB" or a whole number says. Raises `SpillwayError` for anything else."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text) if isinstance(text, str) else None
    size = Bytes(float(match[1]) * UNITS.get(match[2], 0)) if match is not None else Bytes(0)
    if match is None or size == 0:
        raise SpillwayError(f"memory {text!r}: expected a number of bytes above 0, or a number and a unit ({', '.join(UNITS)}), "
                            "such as '8GiB'")
    size.unit = match[2]
    return size


def useful_moves(device: str) -> tuple[str, ...]:
    """Returns the actions that save memory of a device: a copy on the host saves none of the host's."""
    return (EVICT,) if device == "cpu" else (OFFLOAD, EVICT)


@dataclasses.dataclass
class Floor:
    """The least memory that any plan of the tape needs, and the operator that needs it."""

    bytes: int
    operator: str
    at: int  # its index in the tape
    held: list[tuple[str, int]]  # what exists then: a name and bytes

    def sentence(self, budget: int) -> str:
        """Says why a budget is too small."""
        held = ", ".join(f"{size:,} of {name}" for name, size in self.held)
        return (f"a budget of {budget:,} bytes is below the floor of {self.bytes:,} bytes: {self.operator} needs them "
                f"({held} exist then), whatever is offloaded or recomputed")


class Moments(dict[str, dict[int, list[int]]]):
    """The positions at which storages move: by the name of a kind of moves in files of plans, for each position, the storages."""

    def __missing__(self, move: str) -> dict[int, list[int]]:
        return {}

    def add(self, storage: int, **moves: Iterable[int]) -> None:
        """Adds the positions of a storage."""
        for move, positions in moves.items():
            for position in positions:
                self.setdefault(move, {}).setdefault(position, []).append(storage)


@dataclasses.dataclass(eq=False)
class Plan:
    """A plan for the steps that follow a tape.

    Positions count the tensors that autograd packs and unpacks in a step, from 0. At a position, a "release" waits for the
    storage's copy to the host and drops it, and "prefetches" start to bring it back; both happen before the tensor is
    handled. "drops" happen after it: a storage that came back, or was recomputed, is given up until its next use. So a
    storage that is used twice can be absent between the uses.
    """

    budget: int
    actions: dict[int, str]  # by storage; those not named stay
    moments: Moments
    peak: int  # bytes, predicted
    eager_peak: int  # bytes, without a plan
    seconds: float  # of a step, predicted
    eager_seconds: float
    floor: Optional[Floor]
    tape: Tape = dataclasses.field(repr=False)
    host_seconds: float = 0.0  # of `seconds`, at least: the host takes them to start operators and copies for the GPU
    forward_seconds: float = 0.0  # of `host_seconds`, until forward ends
    unforeseen: int = 0  # bytes of `peak`, `eager_peak` and `floor` that steps took and that the tape does not show
    update_seconds: float = 0.0  # of `seconds` and of `eager_seconds`: the optimizer's update, where it was not recorded
    state: int = 0  # bytes of the optimizer's state that are on the host but while an update uses them
    weights: tuple[str, ...] = ()  # names of the weights that are on the host but while operators use them
    state_seconds: float = 0.0  # of `seconds`: what follows backward, because they come and go

    def add_update(self, seconds: float) -> None:
        """Counts an update of the model that follows the recorded step, and during which the state comes and goes as planned."""
        seconds = max(0.0, seconds - self.state_seconds)
        self.update_seconds += seconds
        self.seconds += seconds
        self.eager_seconds += seconds

    @property
    def host_bound(self) -> bool:
        """Returns whether the host, not the GPU, is predicted to limit the step, or parts of it."""
        return self.host_seconds >= HOST_BOUND * self.seconds > 0

    @property
    def weight_bytes(self) -> int:
        """Returns the bytes of weights that are on the host."""
        return sum(weight.bytes for weight in self.tape.weights if weight.name in self.weights)

    @property
    def host_bytes(self) -> int:
        """Returns the bytes of the host that copies take. All of them exist when forward ends, so each has a place of its own."""
        return sum(-(-self.tape.storages[s].size // PAGE) * PAGE for s, action in self.actions.items() if action == OFFLOAD)

    def summary(self) -> str:
        """Returns what the plan is predicted to take, and what bounds it, in one line."""
        counts = {action: sum(1 for a in self.actions.values() if a == action) for action in (OFFLOAD, EVICT)}
        times = ""
        if self.tape.device == "cuda":  # the times of a CPU follow from sizes, and are good for nothing else than plans
            over = 100 * (self.seconds / self.eager_seconds - 1)
            times = (f", {self.seconds * 1e3:.1f} ms{' (host-bound)' if self.host_bound else ''}, {over:.1f} % over "
                     f"{self.eager_seconds * 1e3:.1f} ms, which no plan beats")
        peak, budget, eager, host = (in_unit(size, self.budget) for size in (self.peak, self.budget, self.eager_peak, self.host_bytes))
        floor = f", floor {in_unit(self.floor.bytes, self.budget)}" if self.floor is not None else ""
        state = f", and {in_unit(self.state, self.budget)} of the optimizer's state are on the host between updates" if self.state else ""
        weights = f", and {in_unit(self.weight_bytes, self.budget)} of weights are on the host" if self.weights else ""
        there = f" (which keeps {host} for them)" if counts[OFFLOAD] else ""
        return (f"predicted peak {peak} of {budget} (without a plan {eager}{floor}){times}; {counts[OFFLOAD]} storages go to the "
                f"host{there} and {counts[EVICT]} are recomputed{state}{weights}")

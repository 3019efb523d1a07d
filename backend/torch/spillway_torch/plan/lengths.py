"""What a longer input costs in memory and time: plans for several sizes of a step in one budget."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from ..tape.scaled import dimension_of, scaled, sizes_of
from ..tape.tape import Shapes, Tape
from .planner import ask, ladder_trace, text_of_size

SHARES = (0.25, 0.5, 1, 2, 4)  # of the recorded length, for which there are rows
MOST = 64  # times the recorded length; longer ones are not tried
NEAR = 50  # the longest that fits is found to one part in so many


@dataclasses.dataclass
class LengthRow:
    """A length, and what steps of it take, in bytes and seconds. Without a plan, `best` is the least memory with which one was found."""

    length: int
    eager_peak: int
    floor: int
    eager_seconds: float
    best: Optional[int] = None  # None: there is a plan
    peak: int = 0
    seconds: float = 0.0

    @property
    def times(self) -> float:
        """Returns the plan's time as a multiple of that without a plan."""
        return self.seconds / self.eager_seconds if self.eager_seconds else 1.0


@dataclasses.dataclass
class Lengths:
    """The rows ascend. `longest` was found to fit, and `too_long`, which is at most two per cent more, or one more, was not."""

    memory: int
    inputs: Shapes
    recorded: int  # the dimension of the inputs that varies
    rows: list[LengthRow]
    longest: Optional[int]  # None: no length that was tried fits
    too_long: Optional[int]  # None: all that were tried fit

    def text(self, unit: int, name: str) -> str:
        """Returns a table for people, in bytes of the unit."""
        shapes = ", ".join(str(list(shape)) for shape in dict.fromkeys(self.inputs))
        lines = [f"In {self.memory / unit:,.1f} {name}, with other lengths than the {self.recorded:,} of the inputs' shapes, {shapes}:",
                 f"{'length':>12}{'without ' + name:>14}{'floor ' + name:>12}{'plan ' + name:>12}{'ms':>10}{'times':>8}"]
        for row in self.rows:
            line = f"{row.length:12,}{row.eager_peak / unit:14,.1f}{row.floor / unit:12,.1f}"
            if row.best is None:
                line += f"{row.peak / unit:12,.1f}{row.seconds * 1e3:10.2f}{row.times:8.2f}"
            else:
                below = "below the floor" if self.memory < row.floor else f"no plan was found; one takes {row.best / unit:,.1f}"
                line += f"  {below}"
            notes = [note for note, holds in (("recorded", row.length == self.recorded), ("the longest", row.length == self.longest),
                                              ("fits without a plan", row.best is None and row.eager_peak <= self.memory)) if holds]
            lines.append(line + "  " * bool(notes) + ", ".join(notes))
        if self.longest is None:
            lines.append(f"No length fits that was tried, the shortest of which is {self.too_long:,}.")
        elif self.too_long is None:
            lines.append(f"Each length fits that was tried, up to {self.longest:,}.")
        else:
            lines.append(f"Length {self.longest:,} fits, and {self.too_long:,} does not.")
        return "\n".join(lines) + "\n"

    def object(self) -> dict[str, Any]:
        """Returns what `text` says, in bytes and seconds."""
        def described(row: LengthRow) -> dict[str, Any]:
            fits = row.best is None
            return {"length": row.length, "eager_peak_bytes": row.eager_peak, "floor_bytes": row.floor, "eager_step_s": row.eager_seconds,
                    "least_bytes": row.best, "peak_bytes": row.peak if fits else None, "step_s": row.seconds if fits else None,
                    "times": row.times if fits else None}

        return {"memory_bytes": self.memory, "inputs": [list(shape) for shape in self.inputs], "recorded": self.recorded,
                "longest": self.longest, "too_long": self.too_long, "rows": list(map(described, self.rows))}


def explain_lengths(tape: Tape, memory: int, lengths: Sequence[int], dimension: int | None, moves: tuple[str, ...]) -> Lengths:
    """Plans a recorded step in `memory` bytes for lengths of its inputs, and looks for the longest that fits.

    lengths: those that have rows, by default the recorded one and its half, double, fourth part and fourfold.
    dimension: as for `sizes_of`.
    """
    recorded = dimension_of(tape, dimension) if tape.inputs else 0
    tried: dict[int, LengthRow] = {}

    def try_(more: Iterable[int]) -> None:
        tried.update(_rows(tape, memory, sorted({*more} - tried.keys()), recorded or None, moves))

    def bounds() -> tuple[int, int | None]:
        fits = max((length for length, row in tried.items() if row.best is None), default=0)
        return fits, min((length for length, row in tried.items() if length > fits), default=None)

    shown = sorted({recorded, *(lengths or (max(1, int(share * recorded)) for share in SHARES))})
    try_(shown)
    longest, too_long = bounds()
    while too_long is None and longest < MOST * recorded:
        try_([2 * longest])
        longest, too_long = bounds()
    while too_long is not None and too_long - longest > max(1, longest // NEAR):
        try_({longest + max(1, (too_long - longest) * part // 4) for part in (1, 2, 3)})
        longest, too_long = bounds()
    rows = [tried[length] for length in sorted({*shown, longest} - {0})]
    return Lengths(memory, tape.inputs, recorded, rows, longest or None, too_long)


def _rows(tape: Tape, memory: int, lengths: Sequence[int], dimension: int | None, moves: tuple[str, ...]) -> dict[int, LengthRow]:
    sizes = {name: shapes for name, shapes in sizes_of(tape, lengths, dimension).items() if int(name) in lengths}
    steps = {name: scaled(tape, tape.inputs, shapes) for name, shapes in sizes.items()}
    with tempfile.TemporaryDirectory() as folder:
        found = ask(ladder_trace(tape, steps, steps[max(steps, key=int)], moves), folder, "--memory", text_of_size(memory), "--family", "all")
    rows = {}
    for row in found:
        made = LengthRow(int(row["size"]), row["eager_peak_bytes"], row["floor_bytes"], row["eager_ms"] / 1e3)
        if row["status"] == "ok":
            made.peak, made.seconds = row["peak_allocated_bytes"], row["iteration_ms"] / 1e3
        else:
            made.best = row["least_bytes"] or row["eager_peak_bytes"]
        rows[made.length] = made
    return rows

"""Whether a recorded step fits, and which changes of the program make it fit: `spillway fit`."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, Optional

from ..base.document import write_document
from ..base.program import rows_of
from .data import StepData
from .trace import to_trace


@dataclasses.dataclass(frozen=True)
class Holder:
    """A holder of memory at the peak: a block or layer of the model, or if it has no name, all tensors of a kind of no block."""

    name: Optional[str]
    kind: Optional[str]
    tensors: int
    requested_bytes: int


@dataclasses.dataclass(frozen=True)
class FitRow:
    """The prediction for a step on one device, as it is (`change` is "none") or with one change.

    The fields are columns of `spillway fit --format json`. A device that the step fits on has no row of a change. The
    holders of the peak, the largest first, are those of the step as it is.
    """

    device: str
    memory_bytes: int
    batch: int
    batch_source: str
    change: str
    remedy: Optional[str]  # the change in words
    python: Optional[str]  # its code
    status: str
    margin_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    iteration_ms: float
    samples_per_second: float
    slowdown: float  # time per sample over that of the step as it is
    arithmetic: str
    reason: Optional[str]  # why it does not fit
    host_bound: bool
    fastest_host_ms: Optional[float]  # the range of `iteration_ms` by the host's speed; None for a change, or if that is known
    slowest_host_ms: Optional[float]
    peak_blocks: tuple[Holder, ...] = ()
    peak_layers: tuple[Holder, ...] = ()

    @property
    def fits(self) -> bool:
        return self.status in ("fits", "reclaims")


@dataclasses.dataclass(frozen=True)
class LargestRow:
    """The largest value of a batch or length with which a step fits on one device, as it is or with one change.

    The fields are columns of `spillway fit --vary --format json`. Numbers without another word are those of the limit.
    """

    device: str
    change: str
    remedy: Optional[str]  # the change in words
    python: Optional[str]  # its code
    vary: str
    limit: Optional[int]  # None if not even 1 fits; the numbers are then those of 1
    next: Optional[int]  # the value after it, which does not fit
    next_reserved_bytes: Optional[int]
    margin_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    iteration_ms: float
    samples_per_second: float


def ask_fit(recordings: Sequence[StepData], device: str | Sequence[str], memory: int | str | None, outside: int | str,
            *options: str) -> list[dict[str, Any]]:
    """Returns the rows that `spillway fit` prints for recordings on devices; see `Step.fit`."""
    def size(value: int | str) -> str:
        return f"{value}B" if isinstance(value, int) else value

    devices = [device] if isinstance(device, str) else device
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / f"step{number}.json" for number in range(len(recordings))]
        for path, recording in zip(paths, recordings):
            write_document(to_trace(recording), path)
        return rows_of("fit", *map(str, paths), *(["--device", *devices] if devices else []),
                       *([] if memory is None else ["--memory", size(memory)]), "--outside", size(outside), *options)


def fields_in(row: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Returns the columns of a row that a class has fields for."""
    return {field.name: row[field.name] for field in dataclasses.fields(kind) if field.name in row}


def fit_row(row: dict[str, Any]) -> FitRow:
    """Returns the row that `spillway fit` printed."""
    holders = {key: tuple(Holder(**holder) for holder in row.get(key, ())) for key in ("peak_blocks", "peak_layers")}
    return FitRow(**{**fields_in(row, FitRow), **holders})

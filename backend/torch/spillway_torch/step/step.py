"""Recorded steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

from ..base.document import write_document
from .data import StepData
from .trace import to_trace
from .verdict import FitRow, LargestRow, ask_fit, fields_in, fit_row


class Step(StepData):
    """A recorded step: its data, its trace, and the answers of `spillway fit`."""

    def trace(self) -> dict[str, Any]:
        """Returns the object of the trace file (traces/FORMAT.md)."""
        return to_trace(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace for `spillway`. The ending .zst compresses it."""
        write_document(self.trace(), path)

    def fit(self, device: str | Sequence[str] = (), *, memory: int | str | None = None, outside: int | str = 0,
            batch: int | str | None = None) -> list[FitRow]:
        """Returns what the verb `spillway fit` predicts (the function `spillway_torch.fit` keeps training in a budget, and is another one):
        whether the step fits on each device, each followed by the changes of the program that make it fit, those
        that cost the least time first, and by those that help without sufficing.

        device: names or files as `--device` of `spillway fit` takes them; by default all devices that come with it.
        memory, outside: bytes or texts ("24GiB") in place of the device's memory, and used outside PyTorch's allocator.
        batch: another batch than the recorded one, 8 or "2x"; everything that is proportional to the batch is scaled.

        Raises `ProgramError` if `spillway` is missing or refuses the arguments.
        """
        # The only policy is that of the step as it is: no policy of research is tried, since PyTorch does not run them.
        options = ["--policy", "as-recorded", *([] if batch is None else ["--batch", str(batch)])]
        return [fit_row(row) for row in ask_fit([self], device, memory, outside, *options)]

    def largest(self, quantity: str, other: Optional[Step] = None, device: str | Sequence[str] = (), *,
                memory: int | str | None = None, outside: int | str = 0) -> list[LargestRow]:
        """Returns the largest batch or length with which the step fits on each device, as it is and with each change.

        quantity: "batch" or "length".
        other: a recording of the same program that differs in this quantity alone. A length needs it; a batch is else scaled.
        device, memory, outside: as for `fit`.

        Raises `ProgramError` if `spillway` is missing or refuses the recordings or arguments.
        """
        recordings = [self] if other is None else [self, other]
        rows = ask_fit(recordings, device, memory, outside, "--vary", quantity)
        return [LargestRow(**fields_in(row, LargestRow)) for row in rows]

"""Recorded steps."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Optional

from ..base.document import write_document
from ..base.errors import SpillwayError
from .data import CompiledCuts, StepData
from .trace import to_trace
from .verdict import FitRow, LargestRow, ask_fit, fields_in, fit_row


class Step(StepData):
    """A recorded step: its data, its trace, and the answers of `spillway fit`."""

    def trace(self) -> dict[str, Any]:
        """Returns the object of the trace file (traces/FORMAT.md)."""
        return to_trace(self)

    def write(self, path: str | os.PathLike[str], *, compiled: Optional[CompiledCuts] = None) -> None:
        """Writes the trace for `spillway`. The ending .zst compresses it.

        compiled: what the same step takes under torch.compile, as `cuts` of `explain_compiled` says, for `spillway fit`.

        Raises OSError if the file cannot be written, and `SpillwayError` if the compiled step reads what this one does not have, because
        it is another one, or has another batch.
        """
        document = self.trace()
        if compiled is not None:
            others = compiled.reads - {storage.size for storage in self.storages.values()}
            if others:
                raise SpillwayError(f"compiled: its graphs read {max(others):,} bytes at once, which the recorded step does not have: "
                                    "give the cuts of the same step, with the same batch and types")
            document |= {"version": 12, "compiled": [dataclasses.asdict(cut) for cut in compiled.cuts]}
        write_document(document, path)

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

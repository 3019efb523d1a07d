"""The data of a recorded step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..base.ledger import Storage
from ..base.target import Target
from .meter import Measured
from .recorder import Operator, Saved


@dataclasses.dataclass
class Recorded:
    """One step: what it ran, and the memory of the device that it used.

    Sizes are bytes as the program requests them. `peak_requested` includes `workspace`, the memory that libraries hold
    throughout, and the scratch memory of operators as far as it is known (`scratch.py`).
    """

    network: str
    batch: int
    target: Target
    framework: str
    operators: list[Operator]
    storages: list[Storage]  # all that existed during the step
    saved: list[Saved]
    peak_requested: int
    peak_allocated: int
    workspaces: list[tuple[int, int]]  # of libraries: the number of the operator that makes them allocate it, and its size
    # The requests before the first step, for a pretended device: the size, and how many had been made when the memory was
    # given back, or -1 if it was not.
    requests: list[list[int]] = dataclasses.field(repr=False)
    block_of: Callable[[str], str] = dataclasses.field(repr=False)
    measured: Measured = Measured()  # without the recorder; empty if the step did not run on a GPU

    @property
    def workspace(self) -> int:
        """The bytes of all workspaces of libraries."""
        return sum(size for _, size in self.workspaces)

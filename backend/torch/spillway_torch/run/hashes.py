"""Compares steps with one that Python compared, by a hash for each saved tensor: in the library, by compare_steps.cc.

What Python reads from the autograd graph and from the calls of functions takes milliseconds of a step. A step that Python found
equal to the recorded one teaches the hashes; a later step with the same hashes is equal to it.
"""

from __future__ import annotations

import functools
import logging
from typing import Optional

import torch

from . import recompute

log = logging.getLogger("spillway_torch")
LAYOUT, MADE, AGAIN = range(3)  # how a saved tensor is compared: by how it lies in memory, and how it was made, or is saved again
MOST_MISSES = 2  # after so many steps in a row that differ, Python compares all


class Hashes:
    """The hashes of the steps of one plan. One step at a time is watched."""

    def __init__(self, positions: int) -> None:
        self.known = False
        self._misses = 0
        self._hashes = torch.classes.spillway_compare.Hashes(positions)
        self.handle = self._hashes.handle()
        self.learn = functools.partial(torch.ops.spillway_compare.learn._op, self.handle)  # (tensor, position, kind)
        self.save = functools.partial(torch.ops.spillway_compare.save._op, self.handle)  # the same; returns the tensor, detached, or None

    def begin(self, parameters: list[Optional[torch.Tensor]]) -> None:
        """Watches the operators of this thread. Each parameter has one number in all steps."""
        self._hashes.begin(parameters)

    def end(self, equal: bool) -> None:
        """Ends the watch of this thread. The step was `equal` to the recorded one, as far as it was compared."""
        self._hashes.end(equal and not self.known)
        if equal:
            self._misses = 0 if self.known else self._misses
            self.known = self._misses < MOST_MISSES

    def difference(self) -> str:
        """Returns how the step differs from the one that taught the hashes. Python compares the next step."""
        self.known = False
        self._misses += 1
        return str(self._hashes.difference())


def step_hashes(positions: int) -> Hashes | None:
    """Returns what compares steps of a plan; None without the library."""
    return Hashes(positions) if recompute._library() is not None else None

"""Calls of models without gradients. Nothing of theirs can leave the device; the optimizer's state, which no update needs yet, can."""

from __future__ import annotations

from ..base.device import Device
from .report import Taken
from .states import States


class Evaluation:
    """Has state on the host while calls without gradients would take more than the budget otherwise, once some have shown what they take."""

    def __init__(self, budget: int, states: States, taken: Taken) -> None:
        self._budget, self._states, self._taken = budget, states, taken
        self._more = 0  # the most bytes that such calls took, one after the other, beside those that existed before the first one
        self._before: tuple[Device, int] | None = None  # the bytes that existed before those that run now; None if none do

    def begin(self, device: Device, planned: int | None) -> None:
        """Makes room for a call.

        planned: the bytes of state that the step before has on the host; None if it has no plan.
        """
        memory = device.memory()
        if memory is None:
            return
        self._note(memory.most, device)  # of steps, or of the call before
        if self._before is None:
            self._before = device, memory.allocated
        lacking = self._before[1] + self._more - self._budget
        if lacking > 0:
            there = self._states.all_outside()
            self._states.begin(max(planned or 0, there + lacking))
            device.memory()
            self._before = device, self._before[1] - (self._states.all_outside() - there)

    def end(self) -> None:
        """Ends what calls took: a step begins, or somebody asks for numbers."""
        if self._before is not None:
            device, _ = self._before
            self._note(device.peak_bytes(), device)
            self._before = None

    def _note(self, most: int, device: Device) -> None:
        if self._before is not None:
            self._more = max(self._more, most - self._before[1])
        self._taken.note(most, device)

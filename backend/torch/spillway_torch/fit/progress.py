"""How far the steps of a budget are: `Waiting`, `Recording`, `Recorded`, `Planned` or `Removed`."""

from __future__ import annotations

import dataclasses
from typing import Optional

from ..base.device import Device, Host
from ..run.executor import _Run
from ..tape.hooks import Hooks
from ..tape.tape import Shapes, Tape
from ..tape.tape_recorder import TapeRecorder
from .family import Family, Rung
from .report import Taken
from .states import Bytes
from .structures import Kind


@dataclasses.dataclass
class Waiting:
    """No step runs under a plan yet; the next one is recorded."""

    unseen: int | None = None  # updates of the model before its forward was called; None since then


@dataclasses.dataclass
class Recording:
    """A step is recorded."""

    recorder: TapeRecorder
    gradients: int  # bytes of them before the step
    outside: int  # bytes that were on the host before it, of state and of what a recorded step saved for a later backward
    states: Bytes  # those of all state before it
    kind: Kind
    shapes: Shapes
    later: Shapes = ()  # those of the inputs of calls after the first one

    @property
    def hooks(self) -> Hooks:
        return self.recorder.hooks

    @property
    def ended(self) -> bool:
        """Returns whether the part of the step has ended whose saved tensors are recorded."""
        return self.hooks.left

    def end_call(self) -> None:
        """Notes that a model's call has returned, and was in no other one."""
        self.hooks.transforms = True

    def recorded(self, tape: Tape) -> Recorded:
        """Returns what follows from the tape of the recording, which has ended."""
        hosts = self.recorder.hosts()
        if self.recorder.device.in_use() < 0:  # nothing leaves a CPU, where what the recording copied would count
            for host in hosts:
                host.close()
            hosts.clear()
        return Recorded(tape, [used + self.outside for used in tape.used], self.outside + max(op.used for op in tape.ops), self.gradients,
                        self.states, self.recorder.device, self.kind, (*self.shapes, *self.later), self.later, hosts)


@dataclasses.dataclass
class Recorded:
    """A step was recorded, and its plan follows the next update."""

    tape: Tape
    used: list[int]  # bytes during each operator
    most: int  # bytes that the step took
    gradients: int  # bytes of them before the step
    states: Bytes
    device: Device
    kind: Kind
    shapes: Shapes
    later: Shapes
    hosts: list[Host]  # memory of the host that the recording took


@dataclasses.dataclass(eq=False)
class PlannedPart:
    """A part of a step that runs under a plan, or has run."""

    family: Family
    rung: Optional[Rung]  # its plan; None if there was none for it
    kind: Kind
    run: _Run
    checking: bool  # its memory is still to be compared with the budget
    later: Shapes = ()  # those of the inputs of calls after the first one
    counted: bool = False  # what it did

    @property
    def hooks(self) -> Hooks:
        return self.run.hooks

    def end_call(self) -> None:
        """Notes that a model's call has returned, and was in no other one."""
        self.run.end_forward()


@dataclasses.dataclass
class Planned:
    """Steps run under plans."""

    device: Device
    family: Family  # of the last step
    open: Optional[PlannedPart] = None
    last: Optional[PlannedPart] = None  # the last part that has ended
    updating: bool = False  # an update runs whose memory is compared with the budget
    update_began: float | None = None
    most: int = 0  # bytes while backwards ran, and before them, since a part was compared with the budget; 0 if none was noted

    @property
    def checking(self) -> bool:
        """Returns whether the memory of the part that began last is still to be compared with the budget."""
        part = self.open or self.last
        return part is not None and part.checking

    def waits(self) -> bool:
        """Returns whether the backward of the last part has not run yet."""
        return self.last is not None and self.last.run.waits()

    def note_backward(self) -> None:
        """Notes the memory until the end of a backward, so that the peak behind it is known."""
        memory = self.device.memory()
        self.most = max(self.most, memory.most if memory is not None else 0)

    def count(self, taken: Taken) -> None:
        """Counts what the last part did, unless its backward has not run yet, and the most memory that steps took."""
        taken.most = max(taken.most, self.device.peak_bytes(), self.most)
        if self.last is not None and not self.last.counted and not self.waits():
            taken.end(self.last.run)
            self.last.counted = True


@dataclasses.dataclass
class Removed:
    """Steps are ordinary ones for good."""


WITHOUT = {Waiting: "no step was recorded yet", Recording: "a step is being recorded", Recorded: "the plan follows the next update"}

"""The weights of a budget, as plans divide them between the device and the host."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import torch

from ..base.device import Device, device_of
from ..plan.plan import SMALLEST, Plan
from ..run.weights import HostedWeights
from ..tape.regions import is_compiled
from ..tape.tape import Tape, Update
from ..tape.tape_recorder import TapeRecorder
from ..tape.weights import LATE, WINDOWS, Moment, chosen, order_of, window_of
from .accepted import are_reduced
from .states import UNPLANNED, States


class Weights:
    """Weights, some of which are on the host if that has other memory than the device: frozen ones, and those that are updated in parts."""

    def __init__(self, model: torch.nn.Module, budget: int, states: States) -> None:
        self._model, self._budget, self._states = model, budget, states
        self._hosted: HostedWeights | None = None
        self._unplanned: list[str] = []  # those that are on the host in steps without a plan

    def bring(self, kind: str) -> None:
        """Moves the model from the CPU to a device. Frozen weights leave it again, before others come that do not fit in an eighth of the
        budget, until the first step begins; and so do trained ones if they take more than half of it.

        Raises `SpillwayError` if the host has no room.
        """
        device = device_of(kind)
        self._states.find(device, ())
        hosted = self._hosted = self._hosted_by(device)
        trained = {id(p): p.nbytes for p in self._trained()}
        many = sum(trained.values()) > self._budget // 2
        moving: list[torch.Tensor] = [t for t in (*self._model.parameters(), *self._model.buffers()) if t.device.type == "cpu"]
        leaves = [isinstance(t, torch.nn.Parameter) and (not t.requires_grad or many and id(t) in trained) and t.nbytes >= hosted.smallest
                  for t in moving]
        _move([t for t, leaving in zip(moving, leaves) if not leaving], device.place)
        came: list[torch.Tensor] = []
        for weight in (t for t, leaving in zip(moving, leaves) if leaving):
            if came and sum(p.nbytes for p in (*came, weight)) > self._budget // WINDOWS:
                hosted.take(came)
                came.clear()
            _move([weight], device.place)
            came.append(weight)
        hosted.take(came)
        hosted.tell()

    def record(self, recorder: TapeRecorder, gradients: int) -> None:
        """Begins a step that is recorded. Weights leave before the first one if a budget has no room for all of them.

        gradients: bytes of those that come, and exist all at once.
        """
        device = recorder.device
        if device.in_use() < 0 or any(map(is_compiled, self._model.modules())):  # compiled kernels take addresses
            return
        if self._hosted is None:
            self._hosted = self._hosted_by(device)
        else:
            self._hosted.find()
        coming = device.in_use() + gradients
        self._hosted.begin(self._hosted.some(coming - self._budget // 2) if coming > self._budget else self._hosted.names)
        self._hosted.apart, recorder.memory.absent = recorder.apart, self._hosted.absent

    def end_recording(self) -> None:
        """Notes that a recording has ended."""
        if self._hosted is not None:
            self._hosted.apart = contextlib.nullcontext

    def note(self, recorder: TapeRecorder, tape: Tape) -> None:
        """Notes in the tape of a recorded step which weights it can have on the host."""
        tape.weights = self._hosted.recorded(recorder.ledger, tape) if self._hosted is not None else []

    def note_updates(self, tape: Tape, updates: Sequence[Update]) -> None:
        """Notes in the tape when its weights are updated. What is trained otherwise stays on the device."""
        moments: dict[int, list[Moment]] = {}
        for number, update in enumerate(updates):
            for storage in dict.fromkeys(update.parameters):
                moments.setdefault(storage, []).append((LATE if update.at is None else update.at, 1 + number))
        keys = {weight.name: weight.key for weight in self._hosted.weights} if self._hosted is not None else {}
        tape.weights = [dataclasses.replace(weight, updates=tuple(sorted(moments[keys[weight.name]]))) if weight.trained else weight
                        for weight in tape.weights if not weight.trained or keys.get(weight.name) in moments]

    def take_less(self, tape: Tape, update: int, trained: bool) -> bool:
        """Has weights on the host in each step that follows, because an update took so many bytes; returns whether that is enough.

        trained: whether those that are trained may leave, too.
        """
        size = sum(weight.bytes for weight in tape.weights if trained or not weight.trained)
        outside = self._hosted.outside if self._hosted is not None else 0
        tape.leaving = max(tape.leaving, min(size, outside + update - self._budget))
        return update - (size - outside) <= self._budget

    def foresee(self, tape: Tape, most: int) -> None:
        """Has weights on the host in steps without a plan if they do not fit in the budget otherwise.

        most: the bytes of a step in which all that was saved went to the host, and no weight.
        """
        over = most - int(UNPLANNED * self._budget)
        one = max((weight.bytes for weight in tape.weights), default=0)  # that an operator reads, beside those that come
        self._unplanned = [w.name for w in chosen(tape.weights, over * WINDOWS // (WINDOWS - 1) + one)] if over > 0 else []

    def unguarded(self, tape: Tape) -> int:
        """Returns the bytes that steps without a plan may take between two saved tensors, because weights come meanwhile."""
        return window_of(sum(weight.bytes for weight in tape.weights if weight.name in self._unplanned))

    def begin(self, plan: Plan, planned: bool) -> None:
        """Begins a step. Raises `SpillwayError` if the host has no room.

        planned: whether the plan is for the step; else it is the one that the step follows as far as it goes.
        """
        if self._hosted is None:
            return
        names = plan.weights if planned or len(plan.weights) >= len(self._unplanned) else self._unplanned
        self._hosted.begin(names, [(weight.name, update > 0) for (_, update), weight in order_of(plan.tape.weights)] if names else ())

    def show(self) -> None:
        """Takes all weights to the device until the next step."""
        if self._hosted is not None:
            self._hosted.show()

    def close(self) -> None:
        """Takes all weights back to the device, and lets go of the model."""
        if self._hosted is not None:
            self._hosted.close()
        self._model, self._hosted = torch.nn.ModuleDict(), None

    def _hosted_by(self, device: Device) -> HostedWeights:
        hosted = HostedWeights(self._model, device, SMALLEST if device.type == "cuda" else 1, self._trained)
        self._states.note_weights(hosted)
        return hosted

    def _trained(self) -> list[torch.Tensor]:
        """Returns the trained parameters that may leave: processes that reduce gradients keep theirs."""
        return [] if are_reduced(self._model) else self._states.parameters()


def _move(tensors: Sequence[torch.Tensor], place: torch.device) -> None:
    """Gives tensors, and their gradients, memory of a device."""
    for tensor in tensors:
        tensor.data = tensor.data.to(place, copy=True)
        gradient, tensor.grad = tensor.grad, None
        tensor.grad = gradient.to(place, copy=True) if gradient is not None else None

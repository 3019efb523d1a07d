"""The frozen weights of a budget, as plans divide them between the device and the host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from ..base.device import Device, device_of
from ..plan.plan import SMALLEST, Plan
from ..run.frozen import HostedWeights
from ..tape.frozen import WINDOWS, chosen, order_of, window_of
from ..tape.regions import is_compiled
from ..tape.tape import Tape
from ..tape.tape_recorder import TapeRecorder
from .states import UNPLANNED


class Weights:
    """Frozen weights, some of which are on the host if that has other memory than the device."""

    def __init__(self, model: torch.nn.Module, budget: int) -> None:
        self._model, self._budget = model, budget
        self._hosted: HostedWeights | None = None
        self._unplanned: list[str] = []  # those that are on the host in steps without a plan

    def bring(self, kind: str) -> None:
        """Moves the model from the CPU to a device. Frozen weights leave it again, before others come that do not fit in an eighth of the
        budget, until the first step begins.

        Raises `SpillwayError` if the host has no room.
        """
        device = device_of(kind)
        hosted = self._hosted = _hosted_by(self._model, device)
        moving: list[torch.Tensor] = [t for t in (*self._model.parameters(), *self._model.buffers()) if t.device.type == "cpu"]
        leaves = [isinstance(t, torch.nn.Parameter) and not t.requires_grad and t.nbytes >= hosted.smallest for t in moving]
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

    def record(self, recorder: TapeRecorder) -> None:
        """Begins a step that is recorded. Weights leave before the first one if a budget has no room for all of them."""
        device = recorder.device
        if device.in_use() < 0 or any(map(is_compiled, self._model.modules())):  # compiled kernels take addresses
            return
        if self._hosted is None:
            self._hosted = _hosted_by(self._model, device)
        else:
            self._hosted.find()
        over = device.in_use() > self._budget
        self._hosted.begin(self._hosted.some(device.in_use() - self._budget // 2) if over else self._hosted.names)
        self._hosted.apart, recorder.absent = recorder.apart, self._hosted.absent

    def end_recording(self) -> None:
        """Notes that a recording has ended."""
        if self._hosted is not None:
            self._hosted.apart = contextlib.nullcontext

    def note(self, recorder: TapeRecorder, tape: Tape) -> None:
        """Notes in the tape of a recorded step which weights it can have on the host."""
        tape.frozen = self._hosted.frozen(recorder.ledger, tape) if self._hosted is not None else []

    def take_less(self, tape: Tape, update: int) -> bool:
        """Has weights on the host in each step that follows, because an update took so many bytes; returns whether that is enough."""
        outside = self._hosted.outside if self._hosted is not None else 0
        tape.leaving = max(tape.leaving, outside + update - self._budget)
        return update - (sum(w.bytes for w in tape.frozen) - outside) <= self._budget

    def foresee(self, tape: Tape, most: int) -> None:
        """Has weights on the host in steps without a plan if they do not fit in the budget otherwise.

        most: the bytes of a step in which all that was saved went to the host, and no weight.
        """
        over = most - int(UNPLANNED * self._budget)
        one = max((weight.bytes for weight in tape.frozen), default=0)  # that an operator reads, beside those that come
        self._unplanned = [w.name for w in chosen(tape.frozen, over * WINDOWS // (WINDOWS - 1) + one)] if over > 0 else []

    def unguarded(self, tape: Tape) -> int:
        """Returns the bytes that steps without a plan may take between two saved tensors, because weights come meanwhile."""
        return window_of(sum(weight.bytes for weight in tape.frozen if weight.name in self._unplanned))

    def begin(self, plan: Plan, planned: bool) -> None:
        """Begins a step. Raises `SpillwayError` if the host has no room.

        planned: whether the plan is for the step; else it is the one that the step follows as far as it goes.
        """
        if self._hosted is None:
            return
        names = plan.weights if planned or len(plan.weights) >= len(self._unplanned) else self._unplanned
        self._hosted.begin(names, [weight.name for _, weight in order_of(plan.tape.frozen)] if names else ())

    def show(self) -> None:
        """Takes all weights to the device until the next step."""
        if self._hosted is not None:
            self._hosted.show()

    def close(self) -> None:
        """Takes all weights back to the device, and lets go of the model."""
        if self._hosted is not None:
            self._hosted.close()
        self._model, self._hosted = torch.nn.ModuleDict(), None


def _hosted_by(model: torch.nn.Module, device: Device) -> HostedWeights:
    return HostedWeights(model, device, SMALLEST if device.type == "cuda" else 1)


def _move(tensors: Sequence[torch.Tensor], place: torch.device) -> None:
    """Gives tensors, and their gradients, memory of a device."""
    for tensor in tensors:
        tensor.data = tensor.data.to(place, copy=True)
        gradient, tensor.grad = tensor.grad, None
        tensor.grad = gradient.to(place, copy=True) if gradient is not None else None

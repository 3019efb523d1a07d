"""`fit`: a memory budget for a training script that stays as it is."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..errors import NotRecordableError, SpillwayError
from .executor import Executor, _Run
from .plan import REBUILD, Plan
from .planner import make_plan
from .tape import Tape, TapeRecorder

log = logging.getLogger("spillway_torch")

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MOST_RECORDINGS = 3  # a first step may do what later ones do not, such as filling caches


def parse_bytes(text: Union[str, int]) -> int:
    """Returns the bytes that "8GiB", "512 MB" or a whole number says. Raises `SpillwayError` for anything else."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text) if isinstance(text, str) else None
    if match is None or match[2] not in UNITS or float(match[1]) == 0:
        raise SpillwayError(f"memory {text!r}: expected a number of bytes above 0, or a number and a unit ({', '.join(UNITS)}), "
                            "such as '8GiB'")
    return int(float(match[1]) * UNITS[match[2]])


class Fitted:
    """A model whose forwards run under a plan, once there is one. `remove` ends that."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, budget: int, device: str) -> None:
        self.plan: Optional[Plan] = None
        self.last: Optional[_Run] = None  # the last forward under the plan
        self._model = model
        self._budget = budget
        self._device = device
        self._recorder: TapeRecorder | None = None
        self._ran = False  # the forward of the recording has ended
        self._recordings = 0
        self._open: _Run | None = None
        self._tape: Tape | None = None
        self._gradients = 0  # bytes that accumulation holds during a forward
        self._before_update = 0  # bytes of the optimizer's state before its step
        self._used: Callable[[], int | None] = lambda: None
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._before, prepend=True),
            model.register_forward_hook(self._after, always_call=True)]
        if optimizer is not None:
            self._handles += [optimizer.register_step_pre_hook(lambda of, *_: self._end_recording(of)),
                              optimizer.register_step_post_hook(lambda of, *_: self._make_plan(of))]
        else:
            self._handles += [
                register_optimizer_step_pre_hook(lambda of, *_: self._end_recording(of)),
                register_optimizer_step_post_hook(lambda of, *_: self._make_plan(of))]

    def remove(self) -> None:
        """Makes later forwards ordinary ones, and gives the memory of the host back."""
        for handle in self._handles:
            handle.remove()
        if self._recorder is not None:
            self._recorder.cancel()
            self._recorder = None
        if self.plan is not None and self.plan.executor is not None:
            self.plan.executor.close()
        self.plan = None

    def _before(self, *_: Any) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1 or self._open is not None:
            return
        if self._recorder is not None and self._ran:  # no optimizer ran: gradients add up
            self._end_recording(None)
            self._gradients = sum(p.grad.nbytes for p in self._model.parameters() if p.grad is not None)
            self._make_plan(None)
        if self._tape is not None or self._recorder is not None:
            return
        again = self.last is not None and self.last.deviation is not None and self._recordings < MOST_RECORDINGS
        if self.plan is None or again and self.plan.executor is not None and not self.last_waits():
            self._forget()
            recorder = TapeRecorder(self._device)
            recorder.begin()
            self._recorder, self._ran = recorder, False
            self._recordings += 1
        elif self.plan.executor is not None:
            self._open = self.plan.executor.begin()

    def last_waits(self) -> bool:
        """Returns whether the backward of the last forward under the plan has not run yet."""
        return self.last is not None and self.last.holds_host()

    def _forget(self) -> None:
        if self.plan is not None and self.plan.executor is not None:
            self.plan.executor.close()
        self.plan = self.last = None

    def _after(self, *_: Any) -> None:
        if self._open is not None:
            self._open.end()
            self.last, self._open = self._open, None
        elif self._recorder is not None and torch._C._current_graph_task_id() == -1:
            self._recorder.end_forward()
            self._ran = True

    def _state(self, optimizer: torch.optim.Optimizer | None) -> int:
        """Returns the bytes of the optimizer's state on the device."""
        return sum(v.nbytes for slots in (optimizer.state.values() if optimizer is not None else ()) for v in slots.values()
                   if isinstance(v, torch.Tensor) and v.device.type == self._device)

    def _end_recording(self, optimizer: torch.optim.Optimizer | None) -> None:
        if self._recorder is None or not self._ran:
            return
        recorder, self._recorder = self._recorder, None
        try:
            self._tape = recorder.finish()
            # A GPU's memory was measured. On a CPU, only what the step used was seen, and that is not the optimizer's state.
            self._before_update = self._state(optimizer) if self._device == "cuda" else 0
            self._used = recorder.device.used_bytes
            self._used()
        except NotRecordableError as error:
            log.warning("spillway: this step was not recorded: %s", error)
            if self._recordings >= MOST_RECORDINGS:
                raise

    def _make_plan(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Plans once the optimizer has its state. Raises `SpillwayError` if the budget is too small."""
        if self._tape is None:
            return
        tape, self._tape = self._tape, None
        began = time.perf_counter()
        update = self._used() or 0
        if optimizer is not None and update > self._budget:
            raise SpillwayError(f"a budget of {self._budget:,} bytes is below the {update:,} bytes that the step of "
                                f"{type(optimizer).__name__} takes; another optimizer, or its option foreach=False, lowers it")
        more = self._state(optimizer) - self._before_update + self._gradients
        tape.used = [used + more for used in tape.used]
        moves = (REBUILD,) if self._device == "cpu" else ("offload", REBUILD)  # a copy of the host's memory saves none of it
        plan = make_plan(tape, self._budget, moves=moves)
        plan.executor = Executor(plan)
        self.plan = plan
        counts = {action: sum(1 for a in plan.actions.values() if a == action) for action in ("offload", "rebuild")}
        # The times of a CPU follow from sizes, and are good for nothing else than plans.
        times = f", {plan.seconds * 1e3:.1f} ms (without a plan {plan.eager_seconds * 1e3:.1f})" if self._device == "cuda" else ""
        log.info("spillway: recorded %d operators, planned in %.1f s: predicted peak %.3f GiB of %.3f GiB (without a plan %.3f, "
                 "floor %.3f)%s; %d storages go to the host and %d are rebuilt, from the next step on",
                 len(tape.ops), time.perf_counter() - began, plan.peak / UNITS["GiB"], self._budget / UNITS["GiB"],
                 plan.eager_peak / UNITS["GiB"], plan.floor.bytes / UNITS["GiB"], times, counts["offload"], counts["rebuild"])


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, memory: Union[str, int] = "8GiB") -> Fitted:
    """Makes training steps of `model` stay within a budget; the script stays as it is.

    The first step records, its optimizer's step plans, and later forwards run under the plan. What a forward saves outside the
    model, such as a loss function applied to its result, is not planned.

    optimizer: the one whose step ends a step; by default any.
    memory: most bytes of the device that tensors may take, such as "8GiB".

    Raises `SpillwayError` for a model that cannot be planned; the optimizer's step raises it for a budget below the floor.
    """
    budget = parse_bytes(memory)
    refuse_model(model)
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "no device"
        raise SpillwayError(f"the model's parameters are on {found}; expected one device")
    kind = next(iter(devices)).type
    if kind not in ("cpu", "cuda"):
        raise SpillwayError(f"the model is on '{kind}' (valid: cpu, cuda)")
    return Fitted(model, optimizer, budget, kind)


REFUSED = {"DistributedDataParallel": "its gradients are averaged by hooks that a plan does not know",
           "FullyShardedDataParallel": "its parameters come and go during a step",
           "FSDPModule": "its parameters come and go during a step",
           "DataParallel": "its replicas run in several threads",
           "OptimizedModule": "a compiled graph saves what it likes; compile parts of the model's forward after `fit`, or none"}


def refuse_model(model: torch.nn.Module) -> None:
    """Raises `SpillwayError` for kinds of modules that a plan cannot run."""
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in REFUSED:
                raise SpillwayError(f"module '{name}' is a {kind.__name__}, which is not planned: {REFUSED[kind.__name__]}")
    for name, parameter in model.named_parameters():
        if type(parameter) is not torch.nn.Parameter or type(parameter.data) is not torch.Tensor:
            raise SpillwayError(f"parameter '{name}' is a {type(parameter.data).__name__}, which is not planned")

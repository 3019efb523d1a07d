"""`fit`: a memory budget for a training script that stays as it is."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..base.device import Memory
from ..base.errors import NotRecordableError, SpillwayError
from ..plan.plan import Plan, parse_bytes, useful_moves
from ..plan.planner import learn_host_speed, make_plan
from ..run.executor import Executor, _Run
from ..tape.regions import is_compiled
from ..tape.tape import Tape
from ..tape.tape_recorder import TapeRecorder
from .host import host_costs

log = logging.getLogger("spillway_torch")

MOST_CORRECTIONS = 2  # plans for less, where steps took more than predicted
CHECKED = 2  # the first steps of a plan, whose memory is compared with the budget; memory settles in them
MOST_RECORDINGS = 3  # a first step may do what later ones do not, such as filling caches


class Fitted:
    """A model whose steps run under a plan, once there is one. `remove` ends that.

    The part of a step that is planned lies between `begin` and `end`. Hooks of the model call them around its forward; a training
    loop that plans more calls them itself.
    """

    plan: Optional[Plan] = None
    last: Optional[_Run] = None  # the last forward under the plan
    _model: torch.nn.Module | None = None  # a copy of the model has the hooks of a `Fitted` without one: they do nothing

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, budget: int, device: str,
                 hook_forward: bool, policy: str | None) -> None:
        self._model = model
        self._budget = budget
        self._policy = policy
        self._device = device
        self._recorder: TapeRecorder | None = None
        self._ran = False  # the forward of the recording has ended
        self._recordings = 0
        self._open: _Run | None = None
        self._executor: Executor | None = None  # of the plan
        self._tape: Tape | None = None  # waits for a plan
        self._recorded: list[int] = []  # bytes during each operator
        self._states: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()  # bytes in `_recorded`
        self._gradients = 0  # bytes in `_recorded`
        self._accumulated = 0  # most bytes of gradients before a forward
        self._more = (0, 0)  # bytes of state and gradients before a forward that the plan adds to `_recorded`
        self._updates = 0  # of the model since there is a plan
        self._memory: Callable[[], Memory | None] = lambda: None  # of the device
        self._now: Callable[[], float | None] = lambda: None  # of the device
        self._checks = 0  # steps of the plan whose memory was compared with the budget
        self._checking = False
        self._unforeseen = 0  # bytes that planned steps took and that no recording shows
        self._corrections = 0
        self._update_began: float | None = None
        self._handles: list[Any] = []
        if hook_forward:
            self._handles += [model.register_forward_pre_hook(self._before, prepend=True),
                              model.register_forward_hook(self._after, always_call=True)]
        before = register_optimizer_step_pre_hook if optimizer is None else optimizer.register_step_pre_hook
        after = register_optimizer_step_post_hook if optimizer is None else optimizer.register_step_post_hook
        self._handles += [before(lambda of, *_: self.before_update(of)), after(lambda of, *_: self._after_update(of))]

    def __getstate__(self) -> dict[str, Any]:
        return {}  # copies and files of the model have no plan

    def remove(self) -> None:
        """Makes later steps ordinary ones, and gives the memory of the host back."""
        for handle in self._handles:
            handle.remove()
        self._cancel()
        self.end()
        self._forget()

    def begin(self) -> None:
        """Starts the part of a step that is planned, or recorded; does nothing without gradients, and within such a part."""
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1 or self._open is not None:
            return
        if self._recorder is not None and self._ran and not self._recorder.waits():  # no optimizer ran: gradients add up
            self._end_recording()
            if self._tape is not None:
                self._make_plan(self._more_bytes())
        if self._tape is not None or self._recorder is not None:
            return
        again = self.last is not None and self.last.deviation is not None and self._recordings < MOST_RECORDINGS
        if self.plan is None or again and not self.last_waits():
            self._record()
            return
        self._check()
        if self._updates < 2 and not self.last_waits():  # gradients and the optimizer's state may come later
            more = self._more_bytes()
            if sum(more) > sum(self._more):
                self._make_plan(more)
        if self._executor is not None:
            self._checking = self._checks < CHECKED and self._memory() is not None
            self._open = self._executor.begin()

    def end(self) -> None:
        """Ends the part that `begin` started, if it did."""
        if self._open is not None:
            self._open.end()
            self.last, self._open = self._open, None
        elif self._recorder is not None and torch._C._current_graph_task_id() == -1:
            self._recorder.end_forward()
            self._ran = True

    def last_waits(self) -> bool:
        """Returns whether the backward of the last forward under the plan has not run yet."""
        return self.last is not None and self.last.holds_host()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a recording before an optimizer updates the model. The optimizer's hook calls it too, but before a closure."""
        inside = torch._C._current_graph_task_id() != -1  # backward updates the model: the next forward ends a recording
        if inside and optimizer in self._states or not self._concerns(optimizer):
            return
        if optimizer not in self._states:
            self._states[optimizer] = self._recorded_state(optimizer)
        if inside:
            return
        if self._recorder is not None and self._ran:
            self._end_recording()
        self._check()
        if self.plan is not None and not self.plan.update_seconds:
            self._update_began = self._now()

    def _check(self) -> None:
        """Compares a planned step, whose backward has ended, with the budget and the prediction; plans again where that helps."""
        if not self._checking or self.last_waits() or self.plan is None:
            return
        self._checking = False
        memory = self._memory()
        if memory is None or self.last is None or self.last.deviation is not None:
            return
        self._checks += 1
        if self._corrections >= MOST_CORRECTIONS:
            return
        before, over = self._unforeseen, memory.most - self._budget
        if over > 0:
            self._unforeseen += memory.most - self.plan.peak
            why = f"a step took {memory.most:,} bytes, {over:,} over the budget, which are left out now"
        elif self._checks == CHECKED and self._executor is not None and learn_host_speed(self.plan, self._executor.forward_seconds):
            why = f"the host takes {self.plan.tape.host_share:.0%} of its recorded time"
        else:
            return
        self._corrections += 1
        try:
            self._make_plan(self._more, why)
        except SpillwayError as error:
            self._unforeseen = before
            if over > 0:
                log.warning("spillway: a step took %s bytes, %s over the budget, and no other plan takes less: %s", f"{memory.most:,}",
                            f"{over:,}", error)

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if module is self._model:
            self.begin()

    def _after(self, module: torch.nn.Module, _: Any, result: Any) -> None:
        if module is not self._model:
            return
        failed = result is None and sys.exc_info()[1] is not None
        if failed and self._open is not None:
            self._open.deviation = "its forward failed"
        if failed:
            self._cancel()
        self.end()
        if failed:
            self.last = None  # what it lacks is no reason to record again

    def _record(self) -> None:
        self._forget()
        self._gradients = self._gradient_bytes() if self._device == "cuda" else 0
        for optimizer in self._states:
            self._states[optimizer] = self._recorded_state(optimizer)
        recorder = TapeRecorder(self._device, self._model)
        recorder.begin()
        self._recorder, self._ran = recorder, False
        self._recordings += 1

    def _cancel(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.cancel()

    def _forget(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self.plan = self.last = self._executor = None
        self._updates = 0

    def _concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an update by the optimizer matters: it has parameters of the model, and the plan is not settled."""
        if self._recorder is None and self._tape is None and self._updates >= 2:
            return False
        ours = {id(p) for p in self._model.parameters()} if self._model is not None else set()
        return any(id(p) in ours for group in optimizer.param_groups for p in group["params"])

    def _state_bytes(self, optimizer: torch.optim.Optimizer) -> int:
        """Returns the bytes of the optimizer's state on the device."""
        return sum(v.nbytes for slots in optimizer.state.values() if isinstance(slots, dict) for v in slots.values()
                   if isinstance(v, torch.Tensor) and v.device.type == self._device)

    def _recorded_state(self, optimizer: torch.optim.Optimizer) -> int:
        """Returns the bytes of state that a recording counts: it measures a GPU's memory, and sees tensors that are used on a CPU."""
        return self._state_bytes(optimizer) if self._device == "cuda" else 0

    def _gradient_bytes(self) -> int:
        return sum(p.grad.nbytes for p in self._model.parameters() if p.grad is not None) if self._model is not None else 0

    def _new_state(self) -> int:
        return sum(self._state_bytes(optimizer) - known for optimizer, known in self._states.items())

    def _more_bytes(self) -> tuple[int, int]:
        """Returns how many bytes of state and of gradients exist before a forward that did not exist before the recorded one."""
        self._accumulated = max(self._accumulated, self._gradient_bytes())
        return self._new_state(), max(0, self._accumulated - self._gradients)

    def _end_recording(self) -> None:
        assert self._recorder is not None
        recorder, self._recorder = self._recorder, None
        try:
            self._tape = recorder.finish()
            self._recorded = self._tape.used
            self._memory, self._now = recorder.device.memory, recorder.device.now
            self._memory()
        except NotRecordableError as error:
            log.warning("spillway: this step was not recorded: %s", error)
            if self._recordings >= MOST_RECORDINGS:
                raise

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Plans once the optimizer has its state. Raises `SpillwayError` if the budget is too small."""
        if torch._C._current_graph_task_id() != -1 or not self._concerns(optimizer):
            return
        if self._update_began is not None and self.plan is not None:
            began, self._update_began = self._update_began, None
            self.plan.add_update((self._now() or began) - began)
            log.info("spillway: the update takes %.1f ms; with it, a step is predicted to take %.1f ms", self.plan.update_seconds * 1e3,
                     self.plan.seconds * 1e3)
        if self._recorder is not None and self._ran:  # the optimizer ran the step in a closure, and then its update
            self._end_recording()
            if self._tape is not None:
                after = len(self._recorded) - self._tape.ended
                self._recorded[self._tape.ended:] = self._recorded[self._tape.ended - 1:self._tape.ended] * after
        if self._tape is not None:
            memory = self._memory()
            update = memory.most if memory is not None else 0
            if update > self._budget:
                self._tape = None
                raise SpillwayError(f"a budget of {self._budget:,} bytes is below the {update:,} bytes that the step of "
                                    f"{type(optimizer).__name__} takes; another optimizer, or its option foreach=False, lowers it")
            self._make_plan((self._new_state(), 0))
        self._updates += self.plan is not None

    def _make_plan(self, more: tuple[int, int], why: str | None = None) -> None:
        """Plans the recorded step with more bytes of state, and of gradients before it. Raises `SpillwayError` if they do not fit."""
        tape = self._tape or (self.plan.tape if self.plan is not None else None)
        assert tape is not None
        if why is None:
            why = (f"recorded {len(tape.ops)} operators" if self._tape is not None else
                   f"{sum(more) - sum(self._more):,} bytes of gradients or of the optimizer's state came")
        self._tape = None
        state, gradients = more  # the step adds to the gradients where it made others while it was recorded
        tape.used = [used + state + max(0, gradients - made) for used, made in zip(self._recorded, tape.gradients())]
        update = self.plan.update_seconds if self.plan is not None else 0.0
        began = time.perf_counter()
        tape.costs = host_costs(self._device)
        plan = make_plan(tape, self._budget, moves=useful_moves(self._device), policy=self._policy,
                         unforeseen=self._unforeseen)
        plan.add_update(update)
        self._forget()
        self._more, self._checks = more, 0
        self._executor = Executor(plan)
        self.plan = plan
        log.info("spillway: %s, planned in %.1f s: %s, from the next step on", why, time.perf_counter() - began, plan.summary())


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, memory: Union[str, int] = "8GiB",
        hook_forward: bool = True, policy: str | None = None) -> Fitted:
    """Makes training steps of `model` stay within a budget; the script stays as it is.

    The first step records, its optimizer's step plans, and later forwards run under the plan. What a forward saves outside the
    model, such as a loss function applied to its result, is not planned.

    optimizer: the one that updates the model; by default any that has parameters of it.
    memory: most bytes of the device that tensors may take, such as "8GiB".
    hook_forward: otherwise the caller encloses the part of a step that is planned in the result's `begin` and `end`.
    policy: as for `make_plan`.

    Raises `SpillwayError` for a model that cannot be planned; the optimizer's step raises it for a budget below the floor.
    """
    budget = parse_bytes(memory)
    if not isinstance(model, torch.nn.Module):
        raise SpillwayError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    if optimizer is not None and not hasattr(optimizer, "register_step_pre_hook"):
        raise SpillwayError(f"the optimizer is a {type(optimizer).__name__}; expected one of torch.optim, or None for several")
    refuse_model(model)
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "no device"
        raise SpillwayError(f"the model's parameters are on {found}; expected one device")
    kind = next(iter(devices)).type
    if kind not in ("cpu", "cuda"):
        raise SpillwayError(f"the model is on '{kind}' (valid: cpu, cuda)")
    return Fitted(model, optimizer, budget, kind, hook_forward, policy)


REFUSED = {"DistributedDataParallel": "its gradients are averaged by hooks that a plan does not know",
           "FullyShardedDataParallel": "its parameters come and go during a step",
           "FSDPModule": "its parameters come and go during a step",
           "DataParallel": "its replicas run in several threads"}


def refuse_model(model: torch.nn.Module) -> None:
    """Raises `SpillwayError` for kinds of modules that a plan cannot run."""
    for name, module in model.named_modules():
        if not name and is_compiled(module):
            raise SpillwayError("the whole model is compiled, which is not planned, because nothing is seen of what it runs: compile its "
                                "blocks one by one")
        if not name and isinstance(module, torch.jit.ScriptModule):
            raise SpillwayError("the whole model is a ScriptModule, on which PyTorch allows no hooks: script its blocks one by one")
        if any(getattr(getattr(hook, "__self__", None), "_model", None) is module for hook in module._forward_pre_hooks.values()):
            raise SpillwayError(f"module '{name}' has a budget already: call `remove` of what the earlier `fit` returned")
        for kind in type(module).__mro__:
            if kind.__name__ in REFUSED:
                raise SpillwayError(f"module '{name}' is a {kind.__name__}, which is not planned: {REFUSED[kind.__name__]}")
    for name, parameter in model.named_parameters():
        if type(parameter) is not torch.nn.Parameter or type(parameter.data) is not torch.Tensor:
            raise SpillwayError(f"parameter '{name}' is a {type(parameter.data).__name__}, which is not planned")

"""`fit`: a memory budget for a training script that stays as it is."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
import weakref
from typing import Any, Optional, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..base.device import Device
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
UPDATES = 2  # after so many updates of the model, the optimizer has its state
CHECKED = 2  # the first steps of a plan, whose memory is compared with the budget; memory settles in them
MOST_RECORDINGS = 3  # a first step may do what later ones do not, such as filling caches


@dataclasses.dataclass
class Waiting:
    """The next step is recorded."""


@dataclasses.dataclass
class Recording:
    """A step is recorded."""

    recorder: TapeRecorder
    gradients: int  # bytes of them before the step
    ended: bool = False  # its forward


@dataclasses.dataclass
class Recorded:
    """A step was recorded, and its plan follows the next update."""

    tape: Tape
    used: list[int]  # bytes during each operator
    gradients: int  # bytes of them before the step
    device: Device
    accumulated: int = 0  # most bytes of gradients before a forward
    unforeseen: int = 0  # bytes that planned steps took and that the recording does not show
    corrections: int = 0


@dataclasses.dataclass
class Settled:
    """Steps run under a plan, which stays."""

    plan: Plan
    executor: Executor
    open: Optional[_Run] = None
    last: Optional[_Run] = None  # the last forward under the plan

    def waits(self) -> bool:
        """Returns whether the backward of the last forward has not run yet."""
        return self.last is not None and self.last.holds_host()


@dataclasses.dataclass(kw_only=True)
class Planned(Settled):
    """Steps run under a plan, which another one replaces if they take more memory than predicted, or another time."""

    recorded: Recorded
    more: tuple[int, int]  # bytes of state and gradients before a forward that the plan adds to the recorded ones
    updates: int = 0  # how often the model was updated
    checks: int = 0  # steps whose memory was compared with the budget
    checking: bool = False
    update_began: float | None = None


@dataclasses.dataclass
class Removed:
    """Steps are ordinary ones for good."""


class Fitted:
    """A model whose steps run under a plan, once there is one. `remove` ends that.

    The part of a step that is planned lies between `begin` and `end`. Hooks of the model call them around its forward; a training
    loop that plans more calls them itself.
    """

    _state: Waiting | Recording | Recorded | Settled | Removed = Removed()
    _model: torch.nn.Module | None = None  # a copy of the model has the hooks of a `Fitted` without one: they do nothing

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, budget: int, device: str,
                 hook_forward: bool, policy: str | None) -> None:
        self._model = model
        self._budget = budget
        self._policy = policy
        self._device = device
        self._state = Waiting()
        self._recordings = 0
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()  # recorded bytes
        self._handles: list[Any] = []
        if hook_forward:
            self._handles += [model.register_forward_pre_hook(self._before, prepend=True),
                              model.register_forward_hook(self._after, always_call=True)]
        before = register_optimizer_step_pre_hook if optimizer is None else optimizer.register_step_pre_hook
        after = register_optimizer_step_post_hook if optimizer is None else optimizer.register_step_post_hook
        self._handles += [before(lambda of, *_: self.before_update(of)), after(lambda of, *_: self._after_update(of))]

    def __getstate__(self) -> dict[str, Any]:
        return {}  # copies and files of the model have no plan

    @property
    def plan(self) -> Plan | None:
        """The plan of the steps, once there is one."""
        return self._state.plan if isinstance(self._state, Settled) else None

    @property
    def last(self) -> _Run | None:
        """The last forward under the plan."""
        return self._state.last if isinstance(self._state, Settled) else None

    def remove(self) -> None:
        """Makes later steps ordinary ones, and gives the memory of the host back."""
        for handle in self._handles:
            handle.remove()
        self._cancel()
        self.end()
        self._become(Removed())

    def begin(self) -> None:
        """Starts the part of a step that is planned, or recorded; does nothing without gradients, and within such a part."""
        if not torch.is_grad_enabled() or _in_backward():
            return
        if isinstance(self._state, Recording) and self._state.ended and not self._state.recorder.waits():
            self._end_recording()  # no optimizer ran: gradients add up
            if isinstance(self._state, Recorded):
                self._make_plan(self._state, self._more_bytes(self._state))
        state = self._state
        if isinstance(state, Settled):
            again = state.last is not None and state.last.deviation is not None and self._recordings < MOST_RECORDINGS
            if state.open is not None:
                return
            if not again or state.waits():
                self._run()
                return
        if isinstance(state, (Waiting, Settled)):
            self._record()

    def end(self) -> None:
        """Ends the part that `begin` started, if it did."""
        state = self._state
        if isinstance(state, Settled) and state.open is not None:
            state.open.end()
            state.last, state.open = state.open, None
        elif isinstance(state, Recording) and not _in_backward():
            state.recorder.end_forward()
            state.ended = True

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a recording before an optimizer updates the model. The optimizer's hook calls it too, but before a closure."""
        inside = _in_backward()  # backward updates the model: the next forward ends a recording
        if inside and optimizer in self._optimizers or not self._concerns(optimizer):
            return
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = self._recorded_state(optimizer)
        if inside:
            return
        if isinstance(self._state, Recording) and self._state.ended:
            self._end_recording()
        if isinstance(self._state, Planned):
            state = self._check(self._state)
            if not state.plan.update_seconds:
                state.update_began = state.recorded.device.now()

    def _run(self) -> None:
        """Starts a forward under the plan. It is checked first: gradients and the optimizer's state may come later."""
        state = self._state
        assert isinstance(state, Settled)
        if isinstance(state, Planned):
            state = self._check(state)
            if state.updates < UPDATES and not state.waits():
                more = self._more_bytes(state.recorded)
                if sum(more) > sum(state.more):
                    state = self._make_plan(state.recorded, more, f"{sum(more) - sum(state.more):,} bytes of gradients or of the "
                                                                  "optimizer's state came")
            state.checking = state.checks < CHECKED and state.recorded.device.memory() is not None
            if state.updates >= UPDATES and not state.checking:
                self._state = state = Settled(state.plan, state.executor, last=state.last)
        state.open = state.executor.begin()

    def _check(self, state: Planned) -> Planned:
        """Compares a step, whose backward has ended, with the budget and the prediction; plans again where that helps."""
        if not state.checking or state.waits():
            return state
        state.checking = False
        recorded = state.recorded
        memory = recorded.device.memory()
        if memory is None or state.last is None or state.last.deviation is not None:
            return state
        state.checks += 1
        if recorded.corrections >= MOST_CORRECTIONS:
            return state
        before, over = recorded.unforeseen, memory.most - self._budget
        if over > 0:
            recorded.unforeseen += memory.most - state.plan.peak
            why = f"a step took {memory.most:,} bytes, {over:,} over the budget, which are left out now"
        elif state.checks == CHECKED and learn_host_speed(state.plan, state.executor.forward_seconds):
            why = f"the host takes {state.plan.tape.host_share:.0%} of its recorded time"
        else:
            return state
        recorded.corrections += 1
        try:
            return self._make_plan(recorded, state.more, why)
        except SpillwayError as error:
            recorded.unforeseen = before
            if over > 0:
                log.warning("spillway: a step took %s bytes, %s over the budget, and no other plan takes less: %s", f"{memory.most:,}",
                            f"{over:,}", error)
            return state

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if module is self._model:
            self.begin()

    def _after(self, module: torch.nn.Module, _: Any, result: Any) -> None:
        if module is not self._model:
            return
        failed = result is None and sys.exc_info()[1] is not None
        if failed:
            self._cancel()
            if isinstance(self._state, Settled) and self._state.open is not None:
                self._state.open.deviation = "its forward failed"
        self.end()
        if failed and isinstance(self._state, Settled):
            self._state.last = None  # what it lacks is no reason to record again

    def _record(self) -> None:
        self._become(Waiting())
        for optimizer in self._optimizers:
            self._optimizers[optimizer] = self._recorded_state(optimizer)
        recorder = TapeRecorder(self._device, self._model)
        recorder.begin()
        self._state = Recording(recorder, self._gradient_bytes() if self._device == "cuda" else 0)
        self._recordings += 1

    def _cancel(self) -> None:
        """Ends a recording without a result."""
        if isinstance(self._state, Recording):
            recorder, self._state = self._state.recorder, Waiting()
            recorder.cancel()

    def _become(self, state: Waiting | Removed) -> None:
        """Leaves a plan, if there is one, for another state."""
        if isinstance(self._state, Settled):
            self._state.executor.close()
        self._state = state

    def _concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an update by the optimizer matters: it has parameters of the model, and the plan is not settled."""
        state = self._state
        settled = isinstance(state, Settled) and not (isinstance(state, Planned) and state.updates < UPDATES)
        if settled or self._model is None:
            return False
        ours = {id(p) for p in self._model.parameters()}
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
        return sum(self._state_bytes(optimizer) - known for optimizer, known in self._optimizers.items())

    def _more_bytes(self, recorded: Recorded) -> tuple[int, int]:
        """Returns how many bytes of state and of gradients exist before a forward that did not exist before the recorded one."""
        recorded.accumulated = max(recorded.accumulated, self._gradient_bytes())
        return self._new_state(), max(0, recorded.accumulated - recorded.gradients)

    def _end_recording(self) -> None:
        state = self._state
        assert isinstance(state, Recording)
        self._state = Waiting()
        try:
            tape = state.recorder.finish()
        except NotRecordableError as error:
            log.warning("spillway: this step was not recorded: %s", error)
            if self._recordings >= MOST_RECORDINGS:
                raise
            return
        state.recorder.device.memory()
        self._state = Recorded(tape, tape.used, state.gradients, state.recorder.device)

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Plans once the optimizer has its state. Raises `SpillwayError` if the budget is too small."""
        if _in_backward() or not self._concerns(optimizer):
            return
        state = self._state
        if isinstance(state, Planned) and state.update_began is not None:
            state.plan.add_update((state.recorded.device.now() or state.update_began) - state.update_began)
            state.update_began = None
            log.info("spillway: the update takes %.1f ms; with it, a step is predicted to take %.1f ms", state.plan.update_seconds * 1e3,
                     state.plan.seconds * 1e3)
        if isinstance(state, Recording) and state.ended:  # the optimizer ran the step in a closure, and then its update
            self._end_recording()
            state = self._state
            if isinstance(state, Recorded):
                ended = state.tape.ended
                state.used[ended:] = state.used[ended - 1:ended] * (len(state.used) - ended)
        if isinstance(state, Recorded):
            memory = state.device.memory()
            update = memory.most if memory is not None else 0
            if update > self._budget:
                self._state = Waiting()
                raise SpillwayError(f"a budget of {self._budget:,} bytes is below the {update:,} bytes that the step of "
                                    f"{type(optimizer).__name__} takes; another optimizer, or its option foreach=False, lowers it")
            state = self._make_plan(state, (self._new_state(), 0))
        if isinstance(state, Planned):
            state.updates += 1

    def _make_plan(self, recorded: Recorded, more: tuple[int, int], why: str | None = None) -> Planned:
        """Plans the recorded step with more bytes of state, and of gradients before it. Raises `SpillwayError` if they do not fit."""
        tape, (state, gradients) = recorded.tape, more
        if self._state is recorded:
            self._state = Waiting()
        # The step adds to the gradients where it made others while it was recorded.
        tape.used = [used + state + max(0, gradients - made) for used, made in zip(recorded.used, tape.gradients())]
        began = time.perf_counter()
        tape.costs = host_costs(self._device)
        plan = make_plan(tape, self._budget, moves=useful_moves(self._device), policy=self._policy, unforeseen=recorded.unforeseen)
        plan.add_update(self.plan.update_seconds if self.plan is not None else 0.0)
        self._become(Waiting())  # the memory of the host is free for the next one
        planned = self._state = Planned(plan, Executor(plan), recorded=recorded, more=more)
        log.info("spillway: %s, planned in %.1f s: %s, from the next step on", why or f"recorded {len(tape.ops)} operators",
                 time.perf_counter() - began, plan.summary())
        return planned


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, memory: Union[str, int] = "8GiB",
        hook_forward: bool = True, policy: str | None = None) -> Fitted:
    """Makes training steps of `model` stay within a budget; the script stays as it is.

    The first step records, its optimizer's step plans, and later forwards run under the plan. Tensors that a forward saves outside
    the model, such as those of a loss function applied to its result, are not planned.

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

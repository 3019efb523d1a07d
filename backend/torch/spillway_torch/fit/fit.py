"""`fit`: a memory budget for a training script that stays as it is."""

from __future__ import annotations

import collections
import dataclasses
import logging
import weakref
from typing import Any, Optional, Union

import torch
import torch.utils._pytree
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..base.device import Device, Host
from ..base.errors import NotRecordableError, SpillwayError
from ..plan.plan import GIB, Plan, parse_bytes
from ..plan.planner import learn_host_speed
from ..run.executor import _Run
from ..run.library import steps_library
from ..tape.regions import is_compiled
from ..tape.scaled import Shapes
from ..tape.tape import Tape, structure
from ..tape.tape_recorder import TapeRecorder
from .family import Family, Rung, text_of
from .host import host_costs

log = logging.getLogger("spillway_torch")

MOST_CORRECTIONS = 2  # plans for less, where steps took more than predicted
UNSEEN = 2  # after so many updates without a forward, a line says that nothing is planned
UPDATES = 2  # after so many updates of the model, the optimizer has its state
CHECKED = 2  # the first steps of a plan, whose memory is compared with the budget; memory settles in them
MOST_STRUCTURES = 4  # steps with other operators, or inputs of other kinds, that have plans at a time
MOST_RECORDINGS = 8  # steps that are recorded, over the life of a budget; a first step may do what later ones do not

CALL, STATE = "_call_impl", "__getstate__"  # what a model has of its own while it has a budget
Kind = tuple[Any, ...]  # what tells structures apart before a step runs: the kinds of its inputs


@dataclasses.dataclass
class Waiting:
    """No step runs under a plan yet; the next one is recorded."""


@dataclasses.dataclass
class Recording:
    """A step is recorded."""

    recorder: TapeRecorder
    gradients: int  # bytes of them before the step
    kind: Kind
    shapes: Shapes
    ended: bool = False  # its forward


@dataclasses.dataclass
class Recorded:
    """A step was recorded, and its plan follows the next update."""

    tape: Tape
    used: list[int]  # bytes during each operator
    gradients: int  # bytes of them before the step
    device: Device
    kind: Kind
    shapes: Shapes
    hosts: list[Host]  # memory of the host that the recording took


@dataclasses.dataclass
class Planned:
    """Steps run under plans."""

    device: Device
    family: Family  # of the last step
    rung: Optional[Rung] = None  # its plan; None if there was none for it
    open: Optional[_Run] = None
    last: Optional[_Run] = None  # the last forward
    updates: int = 0  # how often the model was updated
    checking: bool = False
    update_began: float | None = None

    def waits(self) -> bool:
        """Returns whether the backward of the last forward has not run yet."""
        return self.last is not None and self.last.waits()


@dataclasses.dataclass
class Removed:
    """Steps are ordinary ones for good."""


class Fitted:
    """A model whose steps run under plans, once there are some. `remove` ends that.

    The part of a step that is planned lies between `begin` and `end`. A call of the model calls them around its forward; a training
    loop that plans more calls them itself.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, budget: int, device: str,
                 hook_forward: bool, policy: str | None) -> None:
        self._model: torch.nn.Module | None = model
        self._budget = budget
        self._policy = policy
        self._device = device
        self._state: Waiting | Recording | Recorded | Planned | Removed = Waiting()
        self._recordings = 0
        self._steps = {"planned": 0, "guarded": 0, "recorded": 0}
        self._ran = {"recomputed": 0, "guarded": 0}
        self._accumulated = 0  # most bytes of gradients before a forward
        self._unseen = 0  # updates of the model before its forward was called
        self._families: collections.OrderedDict[Kind, list[Family]] = collections.OrderedDict()  # the last one was used last
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()  # recorded bytes
        self._handles: list[Any] = []
        if hook_forward:
            vars(model).update({CALL: self._call, STATE: self._state_of_model})
        before = register_optimizer_step_pre_hook if optimizer is None else optimizer.register_step_pre_hook
        after = register_optimizer_step_post_hook if optimizer is None else optimizer.register_step_post_hook
        this = weakref.ref(self)  # the hooks of all optimizers outlive the model

        def before_update(of: torch.optim.Optimizer, *_: Any) -> None:
            fitted = this()
            if fitted is not None:
                fitted.before_update(of)

        def after_update(of: torch.optim.Optimizer, *_: Any) -> None:
            fitted = this()
            if fitted is not None:
                fitted._after_update(of)

        self._handles = [before(before_update), after(after_update)]
        weakref.finalize(self, _remove, self._handles)

    def _call(self, *given: Any, **named: Any) -> Any:
        """Calls the model, in the place of its `_call_impl`."""
        model = self._model
        assert model is not None
        if torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
            raise SpillwayError("the model runs under torch.compile, which is not planned: compile its blocks one by one, before `fit`")
        self.begin((given, named))
        try:
            result = type(model)._call_impl(model, *given, **named)
        except BaseException:  # also where the user interrupts it
            self._fail()
            raise
        self.end()
        return result

    setattr(_call, "_torchdynamo_disable", True)  # torch.compile leaves it as it is

    def _state_of_model(self) -> dict[str, Any]:
        """Returns the model's state for copies and files, in the place of its `__getstate__`: they have no plan."""
        model = self._model
        assert model is not None
        own = getattr(type(model), STATE, None)
        state = dict(own(model) if own is not None else vars(model))
        return {name: value for name, value in state.items() if name not in (CALL, STATE)}

    @property
    def plan(self) -> Plan | None:
        """The plan for the sizes of the recorded step; None if there is none yet."""
        if not isinstance(self._state, Planned):
            return None
        family = self._state.family
        return next((rung.plan for rung in family.rungs if rung.shapes == family.shapes), family.rungs[0].plan if family.rungs else None)

    @property
    def last(self) -> _Run | None:
        """The last forward under a plan."""
        return self._state.last if isinstance(self._state, Planned) else None

    def report(self) -> str:
        """Returns what steps took so far: how many ran under a plan, under the guard alone, or as ordinary ones, and what moved."""
        count = max(1, sum(self._steps.values()))
        shares = ", ".join(f"{count_} {kind} ({count_ / count:.0%})" for kind, count_ in self._steps.items())
        lines = [f"budget {self._budget / GIB:.4g} GiB; {sum(self._steps.values())} steps: {shares}",
                 f"{self._ran['recomputed']} operators ran again, and {self._ran['guarded'] / GIB:.4g} GiB went to the host because memory "
                 "was short"]
        for family in self._all():
            lines += [f"inputs of {text_of(rung.shapes)} and smaller ones: {rung.plan.summary()}" for rung in family.rungs]
        return "\n".join(lines)

    def remove(self) -> None:
        """Makes later steps ordinary ones, and gives the memory of the host back."""
        _remove(self._handles)
        if self._model is not None and vars(self._model).get(CALL) == self._call:
            del vars(self._model)[CALL], vars(self._model)[STATE]
        self._cancel()
        self.end()
        self._state = Removed()
        for family in self._all():
            family.close()
        self._families.clear()

    def begin(self, inputs: Any = ()) -> None:
        """Starts the part of a step that is planned, or recorded; does nothing without gradients, and within such a part.

        inputs: what the model is given, in lists, tuples and dicts; the shapes of its tensors choose the plan.
        """
        if not torch.is_grad_enabled() or _in_backward():
            return
        self._unseen = UNSEEN
        state = self._state
        if isinstance(state, Recording) and state.ended and not state.recorder.waits():
            self._end_recording()  # no optimizer ran: gradients add up
            if isinstance(self._state, Recorded):
                self._make_plan(self._state, self._more_bytes(self._state.gradients))
            state = self._state
        if isinstance(state, Planned):
            if state.open is not None:
                return
            self._check(state)
        if isinstance(state, (Waiting, Planned)):
            kind, shapes = _kind_of(inputs)
            family = self._family(kind)
            if family is not None and isinstance(state, Planned):
                self._run(state, family, shapes)
            elif not isinstance(state, Planned) or not state.waits():
                self._record(kind, shapes)

    def end(self) -> None:
        """Ends the part that `begin` started, if it did."""
        state = self._state
        if isinstance(state, Planned) and state.open is not None:
            state.open.end()
            state.family.deviated = state.open.deviation is not None and not state.family.settled
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
            self._check(self._state)
            if not self._state.family.update_seconds:
                self._state.update_began = self._state.device.now()

    def _all(self) -> list[Family]:
        return [family for families in self._families.values() for family in families]

    def _family(self, kind: Kind) -> Family | None:
        """Returns the plans of the structure that the next step is expected to have; None if it has to be recorded."""
        families = self._families.get(kind, [])
        if families:
            self._families.move_to_end(kind)
        fitting = [family for family in families if not family.deviated]
        if fitting:
            return fitting[-1]
        if self._recordings < MOST_RECORDINGS:
            return None
        return families[-1] if families else next(reversed(self._all()), None)

    def _run(self, state: Planned, family: Family, shapes: Shapes) -> None:
        """Starts a forward under a plan. Gradients and the optimizer's state may come later than the recorded step."""
        if state.updates < UPDATES and not state.waits():
            more = self._more_bytes(family.gradients)
            if sum(more) > sum(family.more):
                came, family.more = sum(more) - sum(family.more), more
                family.plan_for(family.shapes, f"{came:,} bytes of gradients or of the optimizer's state came", renew=True)
        self._count(state.last)
        state.family = family
        state.rung, executor, scale = family.run_for(shapes)
        state.checking = state.rung is not None and state.rung.checks < CHECKED and state.device.memory() is not None
        self._steps["planned" if state.rung is not None else "guarded"] += 1
        state.open = executor.begin(scale)

    def _check(self, state: Planned) -> None:
        """Compares a step, whose backward has ended, with the budget and the prediction; plans again where that helps."""
        if not state.checking or state.waits():
            return
        state.checking = False
        family, rung, memory = state.family, state.rung, state.device.memory()
        if memory is None or rung is None or state.last is None or state.last.deviation is not None:
            return
        rung.checks += 1
        if family.corrections >= MOST_CORRECTIONS:
            return
        before, over = family.unforeseen, memory.most - self._budget
        if over > 0:
            family.unforeseen += memory.most - rung.plan.peak
            why = f"a step took {memory.most:,} bytes, {over:,} over the budget, which are left out now"
        elif rung.checks == CHECKED and learn_host_speed(rung.plan, rung.executor.forward_seconds):
            family.tape.host_share = rung.plan.tape.host_share
            why = f"the host takes {family.tape.host_share:.0%} of its recorded time"
        else:
            return
        family.corrections += 1
        try:
            family.plan_for(rung.shapes, why, renew=over > 0)
        except SpillwayError as error:
            family.unforeseen = before
            if over > 0:
                log.warning("spillway: a step took %s bytes, %s over the budget, and no other plan takes less: %s", f"{memory.most:,}",
                            f"{over:,}", error)

    def _fail(self) -> None:
        """Ends what `begin` started, because the forward failed."""
        self._cancel()
        state = self._state
        if isinstance(state, Planned) and state.open is not None:
            state.open.deviation = "its forward failed"
            self.end()
            state.family.deviated = False  # what it lacks is no reason to record again
            state.last = None

    def _record(self, kind: Kind, shapes: Shapes) -> None:
        for optimizer in self._optimizers:
            self._optimizers[optimizer] = self._recorded_state(optimizer)
        recorder = TapeRecorder(self._device, self._model)
        recorder.begin()
        self._state = Recording(recorder, self._gradient_bytes() if self._device == "cuda" else 0, kind, shapes)
        self._recordings += 1
        self._steps["recorded"] += 1

    def _count(self, run: _Run | None) -> None:
        """Counts what a step did once its backward has run."""
        if run is not None:
            self._ran["recomputed"] += run.recomputed
            self._ran["guarded"] += run.guarded

    def _cancel(self) -> None:
        """Ends a recording without a result."""
        if isinstance(self._state, Recording):
            recorder, self._state = self._state.recorder, Waiting()
            recorder.cancel()
            for host in recorder.hosts():
                host.close()

    def _concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an update by the optimizer matters: it has parameters of the model, and not all is known of its state."""
        state = self._state
        if isinstance(state, Planned) and state.updates >= UPDATES and not state.checking or self._model is None:
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

    def _more_bytes(self, recorded: int) -> tuple[int, int]:
        """Returns how many bytes of state and of gradients exist before a forward that did not exist before the recorded one."""
        self._accumulated = max(self._accumulated, self._gradient_bytes())
        return self._new_state(), max(0, self._accumulated - recorded)

    def _end_recording(self) -> None:
        state = self._state
        assert isinstance(state, Recording)
        self._state = Waiting()
        try:
            tape = state.recorder.finish()
        except NotRecordableError as error:
            for host in state.recorder.hosts():
                host.close()
            log.warning("spillway: this step was not recorded: %s", error)
            if self._recordings >= MOST_RECORDINGS:
                raise
            return
        state.recorder.device.memory()
        self._state = Recorded(tape, tape.used, state.gradients, state.recorder.device, state.kind, state.shapes,
                               state.recorder.hosts())

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Plans once the optimizer has its state. Raises `SpillwayError` if the budget is too small."""
        if _in_backward() or not self._concerns(optimizer):
            return
        state = self._state
        if isinstance(state, Waiting):
            self._unseen += 1
            if self._unseen == UNSEEN:
                log.warning("spillway: nothing is planned, because the model was updated %d times and its forward was never called: give the "
                            "budget to the module that the step calls, and compile before", UNSEEN)
        if isinstance(state, Planned) and state.update_began is not None:
            family = state.family
            family.update_seconds = (state.device.now() or state.update_began) - state.update_began
            for rung in family.rungs:
                rung.plan.add_update(family.update_seconds)
            state.update_began = None
            if family.rungs:
                log.info("spillway: the update takes %.1f ms; with it, a step is predicted to take %.1f ms", family.update_seconds * 1e3,
                         family.rungs[0].plan.seconds * 1e3)
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

    def _make_plan(self, recorded: Recorded, more: tuple[int, int]) -> Planned:
        """Plans a recorded step, with more bytes of state, and of gradients before it. Raises `SpillwayError` if they do not fit."""
        self._state = Waiting()
        family = Family(recorded.tape, recorded.shapes, recorded.used, recorded.gradients, recorded.device, self._budget, self._policy,
                        recorded.hosts)
        family.more = more
        family.plan_for(recorded.shapes, f"recorded {len(recorded.tape.ops)} operators")
        known = self._families.setdefault(recorded.kind, [])
        family.settled = any(structure(other.tape) == structure(family.tape) for other in known)
        known.append(family)
        self._families.move_to_end(recorded.kind)
        while len(self._all()) > MOST_STRUCTURES:
            oldest = next(iter(self._families))
            self._families[oldest].pop(0).close()
            if not self._families[oldest]:
                del self._families[oldest]
        planned = self._state = Planned(recorded.device, family)
        return planned


def _kind_of(inputs: Any) -> tuple[Kind, Shapes]:
    """Returns what tells the structures of steps apart, as far as the inputs say, and the shapes of their tensors."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return tuple((t.dim(), t.dtype) for t in tensors), tuple(tuple(t.shape) for t in tensors)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, memory: Union[str, int] = "8GiB",
        hook_forward: bool = True, policy: str | None = None) -> Fitted:
    """Makes training steps of `model` stay within a budget; the script stays as it is.

    The first step records, its optimizer's step plans, and later forwards run under the plan, also where their inputs have other
    sizes: a larger one gets a plan of its own. On a GPU, plans are made in the background; until then, and wherever a step differs from
    what is planned, saved tensors go to the host as soon as memory comes near the budget. Tensors that a forward saves outside the
    model, such as those of a loss function applied to its result, are not planned.

    optimizer: the one that updates the model; by default any that has parameters of it.
    memory: most bytes of the device that tensors may take, such as "8GiB".
    hook_forward: otherwise the caller encloses the part of a step that is planned in the result's `begin` and `end`.
    policy: as for `make_plan`.

    Raises `SpillwayError` for a model that cannot be planned, and if the library of the package is missing; for a budget below the
    floor, the optimizer's step raises it, or a later step on a GPU.
    """
    budget = parse_bytes(memory)
    if not isinstance(model, torch.nn.Module):
        raise SpillwayError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer  # type: ignore[union-attr]  # as accelerate wraps it
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
    steps_library()  # it may have to be built, which takes longer than a step
    host_costs(kind)
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
        if CALL in vars(module):
            raise SpillwayError(f"module '{name}' has a budget already: call `remove` of what the earlier `fit` returned")
        for kind in type(module).__mro__:
            if kind.__name__ in REFUSED and not (kind.__name__ == "DataParallel" and len(getattr(module, "device_ids", ())) < 2):
                raise SpillwayError(f"module '{name}' is a {kind.__name__}, which is not planned: {REFUSED[kind.__name__]}")
    for name, parameter in model.named_parameters():
        if type(parameter) is not torch.nn.Parameter or type(parameter.data) is not torch.Tensor:
            raise SpillwayError(f"parameter '{name}' is a {type(parameter.data).__name__}, which is not planned")

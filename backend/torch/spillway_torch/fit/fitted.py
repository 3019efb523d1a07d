"""Models whose steps run under plans, once a step has been recorded: what `fit` returns."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base.device import Device, device_of
from ..base.errors import NotRecordableError, SpillwayError
from ..plan.plan import Plan
from ..run.chunked_loss import ChunkedLosses
from ..run.executor import _Run
from ..run.library import steps_library
from ..step.distributed import local_bytes
from ..tape.hooks import Hooks, in_backward, watch_backward
from ..tape.tape import Shapes
from ..tape.tape_recorder import TapeRecorder
from .accepted import are_reduced, refuse_kinds, refuse_running
from .calls import Calls, called, state_of
from .capture import Captured, Part
from .evaluation import Evaluation
from .family import CHECKED, Family, text_of
from .progress import WITHOUT, Planned, PlannedPart, Recorded, Recording, Removed, Waiting
from .report import Taken
from .states import Optimizers, States, hook_updates
from .structures import MOST_RECORDINGS, Kind, Structures, kind_of
from .weights import Weights

log = logging.getLogger("spillway_torch")

AGAIN = 20  # one step of so many is compared with the budget, too: what exists besides may grow
UNSEEN = 2  # after so many updates without a forward, a line says that nothing is planned
SLOW = 10  # after so many steps without a plan, a line says why


class Fitted:
    """Models whose steps run under plans, once there are some. `remove` ends that.

    The part of a step that is planned begins with the first call of a model. It ends when a backward reads what it saved, unless that
    makes a graph for another backward, and at the update. A call that comes before is in the same part if anything in it may still be
    read. A training loop that plans something else calls `begin` and `end` itself.
    """

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], budget: int, device: str,
                 hook_forward: bool, policy: str | None, report_every: int, verify: int, early_updates: bool,
                 allowed: frozenset[str] = frozenset()) -> None:
        self._models = list(dict.fromkeys(part for model in models for part in (called(model) if hook_forward else [model])))
        self._model = models[0] if len(models) == 1 else torch.nn.ModuleDict({str(at): model for at, model in enumerate(models)})
        self._parameters: list[weakref.ref[torch.Tensor]] = [weakref.ref(p) for p in self._model.parameters()]
        self._budget = budget
        self._policy = policy
        self._device = device
        self._early = early_updates
        self._state: Waiting | Recording | Recorded | Planned | Removed = Waiting(unseen=0)
        self._structures = Structures()
        self._taken = Taken(budget)
        self._report_every, self._verify = report_every, verify
        self._recorder: weakref.ref[TapeRecorder] | None = None  # the last one
        self._states = States(optimizers, budget, early_updates)
        self._optimizers = Optimizers(self._model, device, self._states, self._taken)
        self._weights = Weights(self._model, budget, self._states)
        self._evaluation = Evaluation(budget, self._states, self._taken)
        self._unplanned: Device | None = None  # the device, for calls before a step was recorded
        self._allowed = allowed
        self._losses = ChunkedLosses(models, self._state_of) if "chunked_loss" in allowed else None
        self._open: list[Hooks] = []  # those of the part that is open
        self._captured: weakref.WeakSet[Captured] = weakref.WeakSet()
        self._parts: list[Part] | None = None  # those of a call of a captured function that runs
        self._calls = Calls(self._models, self._begin, self._end_call, self._fail, self._state_of) if hook_forward else None
        self._handles = hook_updates(self, optimizers, type(self)._after_update, type(self).before_update)
        weakref.finalize(self, _remove, self._handles, self._open)

    def _state_of(self, model: torch.nn.Module) -> dict[str, Any]:
        """Returns the model's state for copies and files, whose weights are on the device."""
        self._weights.show()
        return state_of(model)

    def bring(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Moves the models, and the state of optimizers, from the CPU to the device. Raises `SpillwayError` if the host has no room."""
        try:
            self._weights.bring(self._device)
        except BaseException:
            self.remove()
            raise
        for optimizer in optimizers:
            if optimizer.state:
                optimizer.load_state_dict(optimizer.state_dict())  # each value goes to its parameter

    @property
    def plan(self) -> Plan | None:
        """The plan for the sizes of the recorded step; None if there is none yet."""
        if not isinstance(self._state, Planned):
            return None
        family = self._state.family
        return next((rung.plan for rung in family.rungs if rung.shapes == family.shapes), family.rungs[0].plan if family.rungs else None)

    @property
    def last(self) -> _Run | None:
        """The last part of a step under a plan."""
        self._settle()
        return self._state.last.run if isinstance(self._state, Planned) and self._state.last is not None else None

    def report(self) -> str:
        """Returns what steps took so far: how many ran under a plan, under the guard alone, or were recorded, what moved, and the plans."""
        self._look()
        lines = [self._taken.line()]
        for family in self._structures.all():
            lines += [f"inputs of {text_of(rung.shapes)} and smaller ones: {rung.plan.summary()}" for rung in family.rungs]
            if not family.rungs:
                lines.append(f"inputs of {text_of(family.shapes)}: {family.lacks()}")
        if isinstance(self._state, (Waiting, Recording, Recorded)):
            lines.append(WITHOUT[type(self._state)])
        return "\n".join(lines)

    def stats(self) -> dict[str, float]:
        """Returns the numbers of `report` by name, for loggers: see `Taken.numbers`."""
        self._look()
        return self._taken.numbers()

    def capture(self, function: Callable[..., Any]) -> Captured:
        """Returns a function that runs forward and backward in its place, as CUDA graphs where they run as planned.

        function: it runs forward and backward, and not the update. The tensors that it is given, and what it returns, are those of one
            call. What it reads otherwise, but for parameters and buffers, has to stay where it is, and its Python does not run again.

        It may be a decorator. On a CPU, calls run as ever. Raises `SpillwayError` once a step was recorded, with `early_updates`, `verify` or
        `hook_forward=False`, and for models of DistributedDataParallel and `fully_shard`.
        """
        if not isinstance(self._state, Waiting) or self._structures.recordings:
            raise SpillwayError("capture follows steps that were recorded, or remove: call it before the first step")
        if self._early or self._verify or self._calls is None or are_reduced(self._model):
            raise SpillwayError("capture takes no early_updates, no verify, no hook_forward=False, and no model that several processes train: "
                                "leave them out, or do not capture")
        captured = Captured(self, function)
        self._captured.add(captured)
        return captured

    def remove(self) -> None:
        """Makes later steps ordinary ones, and gives the memory of the host back. The optimizer's state and the
        weights come back to the device."""
        for captured in self._captured:
            captured.close()
        _remove(self._handles, self._open)
        if self._calls is not None:
            self._calls.close()
        if self._losses is not None:
            self._losses.close()
        self._cancel()
        self._end()
        self._state = Removed()
        self._structures.close()
        self._states.close()
        self._weights.close()
        self._optimizers.close()
        self._models.clear()
        self._model = torch.nn.ModuleDict()

    def begin(self, inputs: Any = ()) -> None:
        """Starts the part of a step that is planned, or recorded; does nothing without gradients, and within such a part.

        inputs: what the model is given, in lists, tuples and dicts; the shapes of its tensors choose the plan.
        """
        self._begin(0, inputs, stay=False)

    def end(self) -> None:
        """Ends the part that `begin` started, if it did."""
        self._end(complete=True)

    def _begin(self, first: int, inputs: Any, stay: bool = True) -> Hooks | None:
        """Starts a part of a step with a call of a model, or adds it to the one that is open. Returns the hooks if they are this thread's.

        stay: whether the part is open until a backward reads what it saved.
        """
        if in_backward() or isinstance(self._state, Removed) or torch._C._functorch.peek_interpreter_stack() is not None:
            return None  # transforms of torch.func allow no hooks
        if not torch.is_grad_enabled():
            self._states.refuse_call(self._models[first])
            self._evaluate()
            return None
        if isinstance(self._state, Waiting):
            self._state.unseen = None
        self._settle()
        self._evaluation.end()
        state, part = self._state, self._part()
        kind, shapes = kind_of(first, self._models[first], inputs, self._parameters, self._device)
        if part is not None and not part.hooks.are_useless():
            if not part.hooks.are_here():
                return None
            if not part.hooks.calls:
                part.later += shapes
                part.hooks.transforms = isinstance(state, Planned)
            return part.hooks
        if part is not None:
            self._end()  # nobody uses what it made
            state = self._state
        refuse_running(self._early)
        if isinstance(state, Recording):
            if state.recorder.waits():
                return None
            self._end_recording()  # no optimizer ran: gradients add up
        if isinstance(self._state, Recorded):  # otherwise a closure follows a step outside of it
            self._make_plan(self._state, self._optimizers.more_bytes(self._state.states, self._state.gradients))
        state = self._state
        if isinstance(state, Planned):
            self._check(state)
        if isinstance(state, (Waiting, Planned)):
            family = self._structures.choose(kind)
            if family is not None and isinstance(state, Planned):
                self._run(state, family, kind, shapes, stay)
            else:
                self._record(kind, shapes, stay)
        part = self._part()
        self._open[:] = [part.hooks] if part is not None else []
        return part.hooks if part is not None else None

    def _evaluate(self) -> None:
        """Makes room for a model's call without gradients, unless it is in a part of a step, or in a recording."""
        self._settle()
        state = self._state
        if isinstance(state, Planned) and state.open is None and not state.waits():
            self._check(state)
            planned = self.plan.state if self.plan is not None else None
            if state.last is None:
                self._states.begin(planned)  # as the first step under the plan will
            self._evaluation.begin(state.device, planned)
        elif isinstance(state, Waiting):
            self._unplanned = self._unplanned or device_of(self._device)
            self._evaluation.begin(self._unplanned, None)

    def _part(self) -> PlannedPart | Recording | None:
        """Returns what runs, or records, the part of a step that is open; None if there is none."""
        state = self._state
        if isinstance(state, Planned):
            return state.open
        return state if isinstance(state, Recording) and not state.ended else None

    def _end_call(self) -> None:
        """Notes that a model's call has returned, and was in no other one."""
        part = self._part()
        if part is not None:
            part.end_call()

    def _settle(self) -> None:
        """Ends a part whose hooks a backward has left."""
        if isinstance(self._state, Planned) and self._state.open is not None and self._state.open.hooks.left:
            self._end()

    def _end(self, complete: bool = False) -> None:
        """Ends the part that is open.

        complete: whether it was all that a step saves, even if no backward has read it.
        """
        state = self._state
        if isinstance(state, Planned) and state.open is not None:
            part, run = state.open, state.open.run
            state.last, state.open = part, None
            run.end(complete or run.read)
            if complete or run.read:
                self._structures.note(part.kind, run.signature, part.family, run.deviation is not None)
                part.family.add_later(part.later)
            if self._parts is not None:
                self._parts.append(Part(part.family, part.rung, part.kind, run))
        elif isinstance(state, Recording) and not in_backward():
            state.recorder.end_forward()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a step, or a recording, before an optimizer updates the model. The optimizer's hook calls it too, but before a closure."""
        inside = in_backward()  # backward updates the model: the next forward ends a recording
        concerns, known = self._concerns(optimizer), optimizer in self._optimizers
        if inside and known or not concerns and not known:
            return
        if not known:
            self._optimizers.note(optimizer)
        if inside:
            return
        part = self._part()
        if part is not None and part.hooks.stay and not part.hooks.calls:
            self._end()
        if not concerns:
            return
        if self._parts is not None:
            raise SpillwayError("a function that was given to capture updates the model: leave the optimizer's step to its caller")
        if self._losses is not None:
            self._losses.tell()
        if isinstance(self._state, Recording) and self._state.ended:
            self._end_recording()
        between = 0
        if isinstance(self._state, Planned):
            between = self._state.device.peak_bytes() if self._state.most else 0
            self._state.updating = (not self._optimizers.has_state(optimizer) or self._state.checking) and not self._state.waits()
            self._check(self._state)
            if not self._state.family.update_seconds:
                self._state.update_began = self._state.device.now()
        state = self._state
        if isinstance(state, Recorded) or isinstance(state, Planned) and (state.updating or between):
            if not self._early and state.device.in_use() >= 0:
                self._states.find(state.device, self._optimizers)
                self._states.foresee_update(state.device.in_use(), between)

    # ---- Captured functions ----

    @property
    def device(self) -> Device | None:
        """The device on which steps run under plans; None if there are none yet."""
        return self._state.device if isinstance(self._state, Planned) else None

    @property
    def model(self) -> torch.nn.Module:
        """All models."""
        return self._model

    @property
    def parameters(self) -> list[weakref.ref[torch.Tensor]]:
        """Those of all models when they were given."""
        return self._parameters

    def observe(self, function: Callable[[], Any]) -> tuple[Any, list[Part]]:
        """Calls a function, and returns its result and what has run under plans in it."""
        self._parts = []
        try:
            result = function()
            self._settle()
            return result, self._parts
        finally:
            self._parts = None

    def plan_for_less(self, parts: list[Part]) -> bool:
        """Makes other plans if these were short of memory while they were captured; returns whether there are some, or may be."""
        made = [part.family.plan_for_less(part.rung) for part in parts if part.rung is not None and part.run.guarded]
        return any(made)

    def may_replay(self, size: int) -> bool:
        """Returns whether a graph fits that takes so many bytes."""
        device = self.device
        return device is not None and device.in_use() + size <= self._budget

    def has_room(self, size: int) -> bool:
        """Returns whether so many bytes fit in the budget beside a planned step."""
        return self.plan is not None and self.plan.peak + size <= self._budget

    def has_state(self, parts: list[Part]) -> bool:
        """Returns whether the plans of these are still in use, and has the optimizer's state where they want it."""
        if any(part.rung is None or part.rung not in part.family.rungs for part in parts):
            return False
        for part in parts:
            assert part.rung is not None
            self._states.begin(part.rung.plan.state)
        return True

    def note_replay(self, parts: list[Part], again: bool) -> None:
        """Begins parts of a step that run as a graph; `again` if they did not begin when it was captured."""
        self._taken.replayed += len(parts)
        if self._losses is not None:
            self._losses.chunked += 1  # as when it was captured
        for family, rung, kind, run in parts if again else ():
            assert rung is not None
            self._report()
            self._states.begin(rung.plan.state)
            self._taken.begin(rung.plan)
            self._taken.end(run)
            self._structures.note(kind, run.signature, family, False)

    def _report(self) -> None:
        """Counts the last step, and writes the line of each `report_every` steps."""
        self._look()
        if self._report_every and self._taken.steps and self._taken.steps % self._report_every == 0:
            log.info("spillway: %s", self._taken.line())

    def _run(self, state: Planned, family: Family, kind: Kind, shapes: Shapes, stay: bool) -> None:
        """Starts a part under a plan. Gradients and the optimizer's state may come later than the recorded step."""
        complete = self._optimizers.are_complete()  # not if an optimizer got other parameters
        if not (family.complete and complete) and not state.waits():
            family.complete = complete
            more = self._optimizers.more_bytes(family.states, family.gradients)
            if sum(more) > sum(family.more):
                came, family.more = sum(more) - sum(family.more), more
                self._states.foresee_backward(family.most + sum(more))
                family.plan_for(family.shapes, f"{came:,} bytes of gradients or of the optimizer's state came", renew=True)
        self._report()
        self._taken.tell(state.device.peak_bytes(), state.device)
        state.family = family
        rung, executor = family.run_for((*shapes, *family.later))
        self._states.begin(rung.plan.state if rung is not None else None)
        self._weights.begin(executor.plan, rung is not None)
        checked = rung is None or rung.checks < CHECKED or self._taken.steps % AGAIN == 0
        checking = checked and state.device.memory() is not None
        self._taken.begin(rung.plan if rung is not None else None)
        if self._taken.guards and self._taken.guarded == SLOW and not self._taken.planned:
            log.warning("spillway: %d steps ran without a plan: %s", SLOW, family.lacks())
        run = executor.begin(stay, bool(self._verify) and self._taken.steps % self._verify == 0)
        state.open = PlannedPart(family, rung, kind, run, checking)
        watch_backward(state.note_backward if checking else None)

    def _check(self, state: Planned) -> None:
        """Compares a step, whose backward has ended, with the budget and the prediction; plans again where that helps."""
        part = state.last
        if part is None or not part.checking or state.waits():
            return
        part.checking = False
        family, rung, memory = part.family, part.rung, state.device.memory()
        if memory is None:
            return
        most, taken, state.most = max(memory.most, state.most), self._taken, 0
        taken.most = max(taken.most, most)
        if rung is None and most > self._budget:
            family.leave_out(most - self._budget)
            taken.told = max(taken.told, most)
        if rung is None or part.run.deviation is not None:
            taken.tell(most, state.device)
            return
        rung.checks += 1
        if 0 < family.corrected <= most:  # what plans move did not help
            self._move_state(most)
        if not family.correct(rung, part.run, most):
            taken.tell(most, state.device)
        elif most > self._budget:
            taken.told = max(taken.told, most)

    def _fail(self) -> None:
        """Ends what `begin` started, because the forward failed."""
        self._cancel()
        state = self._state
        if isinstance(state, Planned) and state.open is not None:
            state.open.run.deviation = "its forward failed"
            self._end()
            state.last = None

    def _record(self, kind: Kind, shapes: Shapes, stay: bool) -> None:
        refuse_kinds(self._model, early=self._early)
        if isinstance(self._state, Planned):  # the recording asks for a peak of its own
            self._look()
            self._taken.tell(self._state.device.peak_bytes(), self._state.device)
        gc.collect()  # otherwise plans count what later steps do not have
        recorder = TapeRecorder(self._device)
        counts = self._taken.guards = recorder.device.in_use() >= 0
        states = self._optimizers.recorded()
        self._states.find(recorder.device, self._optimizers)
        trained = sum(local_bytes(p) for p in self._model.parameters() if p.requires_grad)
        self._weights.record(recorder, 0 if self._early or not counts else trained - self._optimizers.gradient_bytes())
        self._states.foresee(recorder.device.in_use(), self._optimizers.gradient_bytes(), trained)
        known = max((rung.plan.eager_peak for family in self._structures.all() for rung in family.rungs), default=0)
        self._states.begin(self._states.leaving(self._budget - known))
        self._states.record(recorder)
        recorder.mix = steps_library().mix
        try:
            recorder.begin(self._model, stay)
        except BaseException:
            self._weights.end_recording()
            self._states.record(None)
            raise
        last = self._recorder() if self._recorder is not None else None
        outside = self._states.all_outside() + (last.waiting_bytes() if last is not None else 0) if counts else 0
        self._state = Recording(recorder, self._optimizers.gradient_bytes() if counts else 0, outside, states, kind, shapes)
        self._recorder = weakref.ref(recorder)
        self._structures.recordings += 1
        self._taken.record()

    def _look(self) -> None:
        """Counts what the last step did, unless its backward has not run yet, and the most memory that steps took."""
        self._settle()
        self._evaluation.end()
        if isinstance(self._state, Planned):
            self._state.count(self._taken)

    def _move_state(self, most: int) -> None:
        """Has more of the optimizer's state on the host if tensors took more than the budget where autograd's saved ones do not help."""
        if most > self._budget and not self._early:
            self._states.take_less(most)

    def _cancel(self) -> None:
        """Ends a recording without a result."""
        if isinstance(self._state, Recording):
            recorder = self._state.recorder
            self._give_up_recording()
            recorder.cancel()
            for host in recorder.hosts():
                host.close()

    def _give_up_recording(self) -> None:
        families = self._structures.all()
        assert isinstance(self._state, Recording)
        self._weights.end_recording()
        self._states.record(None)
        self._state = Planned(self._state.recorder.device, families[-1]) if families else Waiting()

    def _concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an update by the optimizer matters: it has parameters of the model, and not all is known of its state."""
        settled = isinstance(self._state, Planned) and self._optimizers.has_state(optimizer) and not self._state.checking
        return not settled and self._optimizers.concerns(optimizer)

    def _end_recording(self) -> None:
        state = self._state
        assert isinstance(state, Recording)
        self._give_up_recording()
        try:
            tape = state.recorder.finish()
        except NotRecordableError as error:
            for host in state.recorder.hosts():
                host.close()
            log.warning("spillway: this step was not recorded: %s", error)
            self._structures.note_useless()
            if self._structures.recordings >= MOST_RECORDINGS and not self._structures.all():
                raise
            return
        tape.allowed, tape.idle = self._allowed, self._optimizers.idle(state.recorder)
        tape.captured = bool(self._captured) and state.recorder.device.has_graphs
        self._weights.note(state.recorder, tape)
        self._taken.most = max(self._taken.most, state.recorder.memory.most)
        state.recorder.device.memory()
        self._state = state.recorded(tape)

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Plans once the optimizer has its state. Raises `SpillwayError` if the budget is too small."""
        if in_backward() or not self._concerns(optimizer):
            return
        state = self._state
        if isinstance(state, Waiting) and state.unseen is not None:
            state.unseen += 1
            if state.unseen == 1 and self._calls is not None:  # the program calls parts of the models, as in `model.encode(x)`
                parts = [part for model in self._models for child in model.children() for part in called(child)]
                more = [part for part in dict.fromkeys(parts) if part not in self._models]
                self._calls.add(more)
                self._models += more
            elif state.unseen == UNSEEN:
                log.warning("spillway: nothing is planned, because the model was updated %d times and its forward was never called with "
                            "gradients, outside of torch.func: give the budget to the module that the step calls, and compile before", UNSEEN)
        if isinstance(state, Planned) and state.update_began is not None:
            state.family.add_update((state.device.now() or state.update_began) - state.update_began)
            state.update_began = None
        if isinstance(state, Recording) and state.ended:  # the optimizer ran the step in a closure, and then its update
            self._end_recording()
            state = self._state
            if isinstance(state, Recorded):
                ended = state.tape.ended
                state.used[ended:] = state.used[ended - 1:ended] * (len(state.used) - ended)
        if isinstance(state, Recorded):
            memory = state.device.memory()
            update = memory.most if memory is not None else 0
            self._taken.most = max(self._taken.most, update)
            if update > self._budget and not (
                    self._weights.take_less(state.tape, update, trained=False) or self._states.take_less(update)
                    or self._weights.take_less(state.tape, update, trained=True)):
                self._state = Waiting()
                early = "" if state.gradients or are_reduced(self._model) or self._states.early_gradients is None else (
                    ", and so does early_updates=True, if the program neither clips gradients nor adds them up")
                raise SpillwayError(f"a budget of {self._budget:,} bytes is below the {update:,} bytes that the step of "
                                    f"{type(optimizer).__name__} takes{self._optimizers.staying()}; another optimizer, or its option "
                                    f"foreach=False, lowers it{early}")
            state = self._make_plan(state, (self._optimizers.new_state(state.states), 0))
        if isinstance(state, Planned):
            if state.updating:
                self._move_state(state.device.peak_bytes())
            state.updating = False
            self._optimizers.note_update(optimizer)

    def _make_plan(self, recorded: Recorded, more: tuple[int, int]) -> Planned:
        """Plans a recorded step, with more bytes of state, and of gradients before it. Raises `SpillwayError` if they do not fit."""
        self._state = Waiting()
        family = Family(recorded.tape, recorded.shapes, recorded.used, recorded.gradients, recorded.states, recorded.device, self._budget,
                        self._policy, recorded.hosts)
        family.more, family.later = more, recorded.later
        self._states.find(recorded.device, self._optimizers)
        recorded.tape.staying = self._optimizers.staying()
        recorded.tape.early = None if recorded.gradients or more[1] or are_reduced(self._model) else self._states.early_gradients
        family.updates = self._states.updates()
        self._weights.note_updates(recorded.tape, family.updates)
        family.unforeseen = self._states.unforeseen + max((captured.given for captured in self._captured), default=0)
        family.unguarded = self._states.unguarded
        family.most = recorded.most
        self._states.foresee_backward(recorded.most + more[0])
        self._weights.foresee(recorded.tape, recorded.most + more[0] + family.unguarded - sum(self._states.parts))
        family.unguarded += self._weights.unguarded(recorded.tape)
        known = self._structures.add(recorded.kind, family)
        if known is family:
            family.plan_for(recorded.shapes, f"recorded {len(recorded.tape.ops)} operators")
        planned = self._state = Planned(recorded.device, known)
        return planned


def _remove(handles: list[Any], hooks: list[Hooks]) -> None:
    for handle in handles:
        handle.remove()
    for open_ in hooks:
        open_.leave()

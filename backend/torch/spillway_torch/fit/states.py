"""The optimizers of a budget, some of whose state plans keep on the host."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..base.device import Device, host_memory
from ..run.buckets import STAGES
from ..run.updates import GivenUp, HostedState, can_host
from ..run.weights import HostedWeights
from ..step.distributed import is_taken_apart, local_bytes
from ..tape.tape import Update
from ..tape.tape_recorder import TapeRecorder
from .accepted import BUDGET
from .report import Taken

Bytes = weakref.WeakKeyDictionary[torch.optim.Optimizer, int]  # of the state of optimizers

UPDATES = 2  # after so many updates of the model, the optimizer has its state
MARGIN = 1.02  # of the state that leaves before a first update: what that takes is an estimate
UNPLANNED = 0.99  # of the budget, which steps without a plan may take: sizes that follow from data are not known before


class States:
    """The state of all optimizers of a budget, as plans divide it between the device and the host."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], budget: int, early: bool) -> None:
        """early: whether they update parameters while backward runs."""
        self._given = [weakref.ref(optimizer) for optimizer in optimizers]
        self._budget, self._early = budget, early
        self._least = 0  # bytes that are on the host whatever a plan says, because an update takes more
        self._without_plan = 0  # bytes that are on the host in steps without a plan
        self._hosted: weakref.WeakKeyDictionary[torch.optim.Optimizer, HostedState] = weakref.WeakKeyDictionary()

    def record(self, recorder: TapeRecorder | None) -> None:
        """Notes what records the steps that follow; None if nothing does."""
        for hosted in self._hosted.values():
            hosted.record(recorder)

    def find(self, device: Device, known: Iterable[torch.optim.Optimizer]) -> None:
        """Finds optimizers whose state can be on the host, if that has other memory, among those that were given and those known."""
        for optimizer in (*(given() for given in self._given), *known) if device.in_use() >= 0 else ():
            if optimizer is not None and optimizer not in self._hosted and can_host(optimizer):
                self._hosted[optimizer] = HostedState(optimizer, device, self._early)

    @property
    def given(self) -> list[torch.optim.Optimizer]:
        """The optimizers that the program has named."""
        return [optimizer for optimizer in (reference() for reference in self._given) if optimizer is not None]

    def parameters(self) -> list[torch.Tensor]:
        """Returns the parameters that are updated in parts if state of them is on the host, or they themselves are."""
        return [parameter for hosted in self._hosted.values() for parameter in hosted.parameters]

    def note_weights(self, weights: HostedWeights) -> None:
        """Notes the parameters that may be on the host themselves."""
        for hosted in self._hosted.values():
            hosted.weights = weights

    @property
    def parts(self) -> list[int]:
        """The bytes of the parts in which state can leave, in their order."""
        return [size for hosted in self._hosted.values() for size in hosted.sizes]

    def outside(self, optimizer: torch.optim.Optimizer) -> int:
        """Returns the bytes of an optimizer's state that are on the host."""
        return self._hosted[optimizer].existing()[1] if optimizer in self._hosted else 0

    def all_outside(self) -> int:
        """Returns the bytes of state that are on the host."""
        return sum(map(self.outside, list(self._hosted)))

    def leaving(self, left: int) -> int | None:
        """Returns the bytes of state that are on the host in a step that nobody knows: all, if it takes more than known steps have left.

        The host keeps half of its free memory for other purposes.
        """
        state = sum(self.parts)
        return max(self._without_plan, min(state, self.all_outside() + host_memory() // 2)) if state > left else None

    def begin(self, planned: int | None = None) -> None:
        """Begins a step.

        planned: the bytes of state that its plan has on the host at least; None if it has no plan.
        """
        for hosted in self._hosted.values():
            hosted.refuse_skipped()
        self._move(max(self._without_plan if planned is None else planned, self._least))
        for hosted in self._hosted.values():
            hosted.settle()

    def refuse_call(self, model: torch.nn.Module) -> None:
        """Raises `SpillwayError` if parameters of a model were updated early, and the update has not followed."""
        for hosted in self._hosted.values():
            hosted.refuse_call(model)

    def foresee(self, in_use: int, gradients: int, trained: int) -> None:
        """Has state on the host if a first update does not fit in the budget otherwise.

        in_use, gradients: bytes now, and those of them that are gradients.
        trained: bytes of all parameters that get gradients.
        """
        state = sum(self.parts)
        one, all_ = (sum(sizes) for sizes in zip((0, 0), *(hosted.temporaries() for hosted in self._hosted.values())))
        over = in_use + trained - gradients + state - sum(hosted.existing()[0] for hosted in self._hosted.values()) + all_ - self._budget
        if over > 0 and state > 0:  # what leaves is not updated together with the others
            self._least = max(self._least, math.ceil(MARGIN * over * state / (state + all_ - one)) + STAGES * max(self.parts))
        if in_use + trained - gradients + self.unguarded + one > self._budget:  # also if all state leaves
            for hosted in self._hosted.values():
                hosted.start_early()

    def foresee_update(self, in_use: int, most: int) -> None:
        """Has state on the host now if the update that follows does not fit in the budget otherwise, or what runs before the next one.

        in_use: bytes now, gradients among them.
        most: bytes that existed between the last backward and now.
        """
        self.foresee(in_use, 0, 0)
        coming = sum(self.parts) - sum(sum(hosted.existing()) for hosted in self._hosted.values())
        if most + coming > self._budget:
            self._least = max(self._least, most + coming - self._budget + self.all_outside())
        self._move(max(self._least, sum(hosted.outside for hosted in self._hosted.values())))

    def _move(self, size: int) -> None:
        """Has at least so many bytes of state on the host, those of the first optimizers."""
        size = max(0, size)
        for hosted in self._hosted.values():
            hosted.move(size)
            size = max(0, size - sum(hosted.sizes)) if size else 0

    def foresee_backward(self, most: int) -> None:
        """Has state on the host in steps without a plan if they do not fit in the budget otherwise.

        most: the bytes of a step in which all that was saved went to the host, and no state.
        """
        self._without_plan = max(self._without_plan, most + self.unguarded - int(UNPLANNED * self._budget))

    def take_less(self, update: int) -> bool:
        """Has more state on the host from the next step on, because an update took so many bytes; returns whether there was more."""
        if self._least >= sum(self.parts):
            return False
        self._least += update - self._budget + STAGES * max(self.parts)
        return True

    def updates(self) -> list[Update]:
        """Returns the updates as plans know them, and makes early ones from now on if they are asked for."""
        made = [update for hosted in self._hosted.values() for update in hosted.updates()]
        for hosted in self._hosted.values():
            hosted.start_early()
        if self._early:  # plans know all that an early update takes
            self._without_plan, self._least = max(self._without_plan, self._least), 0
        return made

    @property
    def unforeseen(self) -> int:
        """The bytes that a step takes, and that the updates do not show: while backward runs, memory for several parts exists."""
        return (STAGES - 1) * max(self.parts, default=0) if self._early else 0

    @property
    def unguarded(self) -> int:
        """The bytes that a step without a plan takes while backward runs: parts of state, and what the optimizer takes to update one."""
        return (STAGES + 1) * max(self.parts, default=0) if self._early else 0

    @property
    def early_gradients(self) -> int | None:
        """The bytes that exist at once if updates are early; None if they are already, or if an optimizer that was given does not allow it."""
        if self._early or not self.given or not all(optimizer in self._hosted for optimizer in self.given):
            return None
        return (STAGES - 1) * max(self.parts, default=0)

    def close(self) -> None:
        """Takes all state back to the device."""
        for hosted in self._hosted.values():
            hosted.close()


class Optimizers:
    """The optimizers that update a model. Their state, and gradients that add up, may come later than a step that was recorded."""

    def __init__(self, model: torch.nn.Module, device: str, states: States, taken: Taken) -> None:
        self._model, self._device, self._states, self._taken = model, device, states, taken
        self._known: Bytes = weakref.WeakKeyDictionary()  # the bytes of their state that was recorded before they were known
        # Updates of the model, and the number of parameters that they had.
        self._updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._accumulated = 0  # most bytes of gradients before a forward

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        """Yields those that are known, because they have updated the model."""
        return iter(list(self._known))

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes that an optimizer will update the model for the first time."""
        self._known[optimizer] = self._recorded(optimizer)

    def note_update(self, optimizer: torch.optim.Optimizer) -> None:
        updates, count = self._updates.get(optimizer, (0, 0))
        self._updates[optimizer] = updates + 1 if count == _count(optimizer) else 1, _count(optimizer)

    def has_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an optimizer has made all of its state, or will make none for the model."""
        updates, count = self._updates.get(optimizer, (0, 0))
        return updates >= UPDATES and count == _count(optimizer)

    def concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an optimizer has parameters of the model."""
        ours = {id(p) for p in self._model.parameters()}
        if any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            return True
        self._updates[optimizer] = UPDATES, _count(optimizer)  # all is known of it
        return False

    def are_complete(self) -> bool:
        """Returns whether no more state comes."""
        return bool(self._known) and all(map(self.has_state, self._known))

    def recorded(self) -> Bytes:
        """Returns the bytes of all state that a recording counts, which begins now."""
        return weakref.WeakKeyDictionary({of: self._recorded(of) for of in (*self._states.given, *self._known)})

    def staying(self) -> str:
        """Returns a part of a message: which optimizers have to have their state on the device."""
        staying = {_described(o): self._state_bytes(o) for o in self._known if not can_host(o) and self._state_bytes(o)}
        return "".join(f", of which {size:,} are state of {kind}, which stays on the device (the state of SGD, Adam and AdamW can leave it)"
                       for kind, size in staying.items())

    def idle(self, recorder: TapeRecorder) -> set[int]:
        """Returns the storages of gradients that a recorded step made for parameters that no optimizer updates, if all optimizers are
        known."""
        updated = {id(p) for o in (*self._states.given, *self._known) for group in o.param_groups for p in group["params"]}
        made = [recorder.ledger.find(p.grad) for p in self._model.parameters()
                if p.grad is not None and id(p) not in updated and not is_taken_apart(type(p.grad))]
        return {storage.number for storage in made if storage.born >= 0} if self._states.given else set()

    def gradient_bytes(self) -> int:
        """Returns the bytes of gradients that have memory of their own, as views of a bucket of DistributedDataParallel have not."""
        gradients = (p.grad for p in self._model.parameters() if p.is_leaf and p.grad is not None and not isinstance(p.grad, GivenUp))
        return sum(local_bytes(gradient) for gradient in gradients if is_taken_apart(type(gradient)) or not gradient._is_view())

    def new_state(self, states: Bytes) -> int:
        """Returns the bytes of state that did not exist before the recorded step, when there were those of `states`."""
        return sum(self._state_bytes(optimizer) - states.get(optimizer, known) for optimizer, known in self._known.items())

    def more_bytes(self, states: Bytes, gradients: int) -> tuple[int, int]:
        """Returns the bytes of state and of gradients that exist before a forward, and did not before the recorded one."""
        self._accumulated = max(self._accumulated, self.gradient_bytes())
        return self.new_state(states), max(0, self._accumulated - gradients)

    def close(self) -> None:
        """Lets go of the model."""
        self._model = torch.nn.ModuleDict()

    def _state_bytes(self, optimizer: torch.optim.Optimizer) -> int:
        """Returns the bytes that the optimizer's state takes if all of it is on the device."""
        there = self._states.outside(optimizer) if self._device == "cuda" else 0
        leaves = torch.utils._pytree.tree_leaves([slots for slots in optimizer.state.values() if isinstance(slots, dict)])
        return there + sum(local_bytes(v) for v in leaves if isinstance(v, torch.Tensor) and v.device.type == self._device)

    def _recorded(self, optimizer: torch.optim.Optimizer) -> int:
        """Returns the bytes of state that a recording counts: it measures a GPU's memory, and sees tensors that are used on a CPU."""
        return self._state_bytes(optimizer) if self._taken.guards else 0


def hook_updates(fitted: Any, optimizers: Sequence[torch.optim.Optimizer], after: Callable[[Any, torch.optim.Optimizer], None],
                 before: Callable[[Any, torch.optim.Optimizer], None] | None = None) -> list[Any]:
    """Has methods of a budget called before and after each update of some optimizers, or of all if none is given.

    Returns the handles of the hooks. They do not keep the budget: those of all optimizers outlive its models.
    """
    this = weakref.ref(fitted)

    def hook(method: Callable[[Any, torch.optim.Optimizer], None]) -> Callable[..., None]:
        def call(of: torch.optim.Optimizer, *_: Any) -> None:
            budget = this()
            if budget is not None:
                method(budget, of)
        setattr(call, BUDGET, this)
        return call

    handles = [of.register_step_post_hook(hook(after)) for of in optimizers] or [register_optimizer_step_post_hook(hook(after))]
    if before is not None:
        handles += [of.register_step_pre_hook(hook(before)) for of in optimizers] or [register_optimizer_step_pre_hook(hook(before))]
    return handles


def _count(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _described(optimizer: torch.optim.Optimizer) -> str:
    """Returns the kind of an optimizer whose state stays on the device, and why it does if other ones of its kind need not."""
    sharded = any(is_taken_apart(type(p)) for group in optimizer.param_groups for p in group["params"])
    return f"{type(optimizer).__name__}{' (DTensor)' if sharded else ''}"

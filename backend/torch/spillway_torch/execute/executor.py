"""Executes plans in the program's own step, with saved-tensor hooks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import SpillwayError
from .calls import ComparedCalls
from .chains import Saved, edge_walk, saved_storages
from .device import Device, Host, Queue, bytes_of, device_of
from .graph import Walk, current_number
from .hashes import AGAIN, LAYOUT, MADE, Hashes, step_hashes
from .plan import KEEP, OFFLOAD, PAGE, REBUILD, Plan
from .regions import without_compilation
from .replay import Replay
from .tape import Geometry, has_sign, refuse_hooks, view_in, view_of

log = logging.getLogger("spillway_torch")
_MAKING = threading.Lock()

CHANGED = ("one of the variables needed for gradient computation has been modified by an inplace operation: {} is at version {}; "
           "expected version {}")


@dataclasses.dataclass
class _Recipe:
    """All steps treat a storage in this way."""

    storage: int
    action: str
    walk: Walk  # to the operator that made it, or, of a rebuilt storage, to its sources
    shared: bool  # autograd saves it several times
    size: int
    geometry: Geometry  # as it is saved first
    region: tuple[int, int] = (0, 0)  # in the memory of the host
    replay: Optional[Replay] = None
    calls: int | None = None  # watched calls of PyTorch's functions before it, if its value depends on them
    source: bool = False
    sources: tuple[int, ...] = ()  # storages from which it is rebuilt


@dataclasses.dataclass
class _Entry:
    """A tensor that autograd saves, as recorded."""

    recipe: _Recipe
    geometry: Geometry
    node: int
    first: bool
    kind: int = LAYOUT  # how hashes compare it


def _dead() -> None:
    """Stands for the weak reference of a slot that never was."""


class _Slot:
    """A storage in one step. It lives as long as autograd holds a tensor in it, or one that is rebuilt from it."""

    __slots__ = ("recipe", "device", "tensor", "version", "key", "host", "left", "arrived", "sources", "parameters", "marks",
                 "__weakref__")

    def __init__(self, recipe: _Recipe, device: Device, tensor: torch.Tensor, known: bool) -> None:
        self.recipe = recipe
        self.device = device
        self.tensor: torch.Tensor | None = tensor
        self.version = tensor._version
        self.key = StorageWeakRef(tensor.untyped_storage()) if recipe.shared and not known else None  # hashes tell it
        self.host: torch.Tensor | None = None  # its copy
        self.left: Any = None  # event: the copy to the host is done
        self.arrived: Any = None  # event: the copy from the host is done, and COMPUTE has not waited for it
        self.sources: list[_Slot] = []
        self.parameters: list[tuple[int, torch.Tensor, int, torch.Tensor]] = []
        self.marks: dict[int, Any] = {}

    def check(self) -> None:
        """Raises RuntimeError, as autograd does, if the tensor was changed."""
        assert self.tensor is not None
        if self.tensor._version != self.version:
            raise RuntimeError(CHANGED.format("a saved tensor", self.tensor._version, self.version))

    def put(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = tensor._version

    def give_up(self) -> None:
        """Drops the tensor if it can come back, once copies from and to it are done.

        A tensor that was changed stays, so that reading it fails, as it does without a plan.
        """
        if self.tensor is None or self.tensor._version != self.version or self.recipe.action == KEEP:
            return
        self.settle()
        if self.left is not None:
            self.device.wait(Queue.COMPUTE, self.left)
        self.tensor = None

    def settle(self) -> None:
        """Makes COMPUTE wait for a copy that is still writing to the tensor."""
        if self.arrived is not None:
            self.device.wait(Queue.COMPUTE, self.arrived)
            self.arrived = None

    def bring_back(self) -> None:
        """Starts the copy from the host."""
        assert self.host is not None
        tensor = self.device.empty(self.recipe.size)
        # The memory may have had another owner, and COMPUTE has waited for the copy to the host: `give_up` did.
        self.device.wait(Queue.IN, self.device.record(Queue.COMPUTE))
        self.device.copy(Queue.IN, tensor, self.host)
        self.arrived = self.device.record(Queue.IN)
        self.put(view_of(tensor.untyped_storage(), self.recipe.geometry))

    def __del__(self) -> None:
        # Memory that a copy still writes must not go to others. So all copies from the host are over, in the order of
        # COMPUTE, when the next step overwrites the memory of the host.
        self.settle()


class Executor:
    """Runs steps under one plan. It owns the memory of the host."""

    def __init__(self, plan: Plan, device: Device | None = None) -> None:
        """Raises `SpillwayError` if the plan asks for what its tape does not allow."""
        tape = plan.tape
        self.plan = plan
        self.device = device if device is not None else device_of(tape.device)
        self.entries: list[Optional[_Entry]] = [None] * len(tape.positions)
        self.deviations: list[str] = []  # of all steps
        self._recipes = self._make_recipes(saved_storages(tape))
        self._host: Host = self.device.host(self._place())
        self._last: Callable[[], _Run | None] = lambda: None
        self._lock = threading.Lock()
        self.hashes: Hashes | None = None if tape.compiled else step_hashes(len(self.entries))  # compiled code has no operators to hash
        self.parameters = [tape.parameters[p] for p in sorted({
            p for r in self._recipes.values() if r.replay is not None for p in r.replay.chain.parameters})]
        self.moments = plan.releases.keys() | plan.prefetches.keys()
        self.marks = frozenset(m for r in self._recipes.values() if r.replay is not None for m in r.replay.marks)

    def _make_recipes(self, saved: dict[int, Saved]) -> dict[int, _Recipe]:
        recipes: dict[int, _Recipe] = {}
        tape = self.plan.tape
        waiting = [s for s, action in self.plan.actions.items() if action in (OFFLOAD, REBUILD)]
        planned = set(waiting)
        while waiting:
            storage = waiting.pop()
            if storage in recipes:
                continue
            of = saved.get(storage)
            action = self.plan.actions.get(storage, KEEP)
            if of is None or storage in planned and of.dies is None:
                raise SpillwayError(f"storage {storage} cannot be planned: it is not saved with one value, or the program holds it")
            recipe = _Recipe(storage, action, edge_walk(tape, of), len(of.packs) > 1, of.bytes,
                             of.packs[0].geometry)
            if action == REBUILD:
                if of.chain is None:
                    raise SpillwayError(f"storage {storage} cannot be rebuilt: {of.reason}")
                recipe.walk = of.chain.walk
                recipe.replay = Replay(tape, of, of.chain)
                waiting += [value[0] for value in of.chain.sources]
            recipes[storage] = recipe
            for pack in of.packs:
                self.entries[pack.position] = _Entry(recipe, pack.geometry, pack.node, pack is of.packs[0])
        rebuilt = [(recipe, recipe.replay.chain) for recipe in recipes.values() if recipe.replay is not None]
        self.watched = frozenset(tape.calls[at][0] for _, chain in rebuilt for at in chain.calls)
        self.calls = [call for call in tape.calls if call[0] in self.watched]
        before = [0, *itertools.accumulate(call[0] in self.watched for call in tape.calls)]
        for recipe, chain in rebuilt:
            recipe.sources = tuple(value[0] for value in chain.sources)
            for storage in recipe.sources:
                recipes[storage].source = True
            if chain.calls:
                recipe.calls = before[saved[recipe.storage].packs[0].calls]
        for entry in self.entries:
            if entry is not None:
                entry.kind = AGAIN if not entry.first else MADE if entry.recipe.action == REBUILD else LAYOUT
        return recipes

    def _place(self) -> int:
        """Gives each offloaded storage its region; returns the bytes of all."""
        end = 0
        for recipe in self._recipes.values():
            if recipe.action == OFFLOAD:
                recipe.region = end, recipe.size
                end += -(-recipe.size // PAGE) * PAGE
        return end

    def region(self, recipe: _Recipe) -> torch.Tensor:
        return self._host.bytes[recipe.region[0]:recipe.region[0] + recipe.region[1]]

    def close(self) -> None:
        """Gives the memory of the host back. Steps whose backward has not run lose their tensors."""
        self._host.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[_Run]:
        """Runs the calling thread's operators under the plan.

        Raises `SpillwayError` if saved-tensor hooks are active already.
        """
        run = self.begin()
        try:
            yield run
        finally:
            run.end()

    def begin(self) -> _Run:
        """Starts a step. Its `end` ends it."""
        refuse_hooks()
        self.device.begin()
        run = _Run(self)
        with self._lock:
            last = self._last()
            if last is not None and last.holds_host():
                run.deviate("an earlier step still waits for its backward, or another thread runs one, and holds the memory of "
                            "the host")
            else:
                self._last = weakref.ref(run)
            run.enter()
        return run


class _Run:
    """One step under a plan."""

    def __init__(self, executor: Executor) -> None:
        self.deviation: str | None = None  # why the rest of the step keeps its tensors
        self.position = 0
        self.packs = 0
        self.rebuilt = 0  # operators that ran again
        self._executor = executor
        self._device = executor.device
        self._plan = executor.plan
        self._entries = executor.entries
        self._base = current_number()
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._slots: dict[int, weakref.ref[_Slot]] = {}
        self._marks: dict[int, Any] = {}
        self._open = False
        self._parameters: dict[int, tuple[int, torch.Tensor, int, torch.Tensor]] = {}  # by storage: as it is in this step
        self._hashes = executor.hashes
        self._known = self._hashes is not None and self._hashes.known  # otherwise Python compares this step
        self._calls: ComparedCalls | None = None
        self._hooks: Any = None

    def enter(self) -> None:
        self._open = True
        if not any(self._entries):
            return  # the plan changes nothing
        if self._hashes is not None and self.deviation is None:
            self._hashes.begin([parameter() for parameter in self._executor.parameters])
        if self._executor.watched and not self._known:
            self._calls = ComparedCalls(self._base, self._executor.watched, self._executor.calls)
            self._calls.__enter__()
        # The hooks live in saved variables, which this object must not hold.
        hooks = (self._pack, self._unpack)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(*(without_compilation(*hooks) if self._plan.tape.compiled else hooks))
        self._hooks.__enter__()
        if -1 in self._executor.marks:
            self._marks[-1] = self._device.random_state()

    def end(self) -> None:
        """Ends the part of the step whose tensors are planned; backward may follow later."""
        if not self._open:
            return
        self._open = False
        if self._hooks is None:
            return
        self._hooks.__exit__(None, None, None)
        self._hooks = None
        if self._calls is not None:
            self._calls.__exit__(None, None, None)
            self._calls = None
        if self.deviation is None and self.packs < self._plan.tape.packed:
            self.deviate(f"it saved {self.packs} tensors, and the recorded step {self._plan.tape.packed}")
        if self._hashes is not None:
            self._hashes.end(self.deviation is None)
        if self.deviation is not None:
            for slot in self._alive(list(self._slots)):
                slot.give_up()

    def holds_host(self) -> bool:
        """Returns whether it writes memory of the host, or a backward may still read it."""
        return self._open or any(slot.host is not None for slot in self._alive(list(self._slots)))

    def deviate(self, reason: str) -> None:
        """Keeps all tensors from now on. Those that were given up before come back as planned."""
        if self.deviation is None:
            self.deviation = reason
            self._executor.deviations.append(reason)
            log.warning("spillway: this step keeps its tensors from here on, because it differs from the recorded one: %s", reason)

    def _alive(self, storages: Sequence[int]) -> Iterator[_Slot]:
        for storage in storages:
            slot = self._slots[storage]() if storage in self._slots else None
            if slot is not None:
                yield slot

    def _begin_position(self) -> int:
        """Does what the plan wants at this position, and returns it."""
        at = self.position
        self.position = at + 1
        if at in self._executor.moments and self.deviation is None:
            for slot in self._alive(self._plan.releases.get(at, ())):
                slot.give_up()
            for slot in self._alive(self._plan.prefetches.get(at, ())):
                if slot.tensor is None and slot.host is not None:
                    slot.bring_back()
        return at

    # ---- saving ----

    def _pack(self, tensor: torch.Tensor) -> Any:
        if torch._C._current_graph_task_id() != -1 or threading.get_ident() != self._thread or not self._open:
            return tensor.detach(), tensor._version, False  # backward saves it, or another thread
        if self._calls is None:
            return self._save(tensor)
        with torch._C.DisableTorchFunction():  # its own calls are not the program's
            return self._save(tensor)

    def _save(self, tensor: torch.Tensor) -> Any:
        at = self._begin_position()
        self.packs += 1
        if at in self._executor.marks and self.deviation is None:
            self._marks[at] = self._device.random_state()
        entry = self._entries[at] if at < len(self._entries) and self.deviation is None else None
        if entry is None:
            if self.packs > self._plan.tape.packed:
                self.deviate("it saves more tensors")
            return tensor.detach(), tensor._version, True
        kept = None
        if self._known:
            assert self._hashes is not None
            kept = self._hashes.save(tensor, at, entry.kind)
            difference = self._lacks(entry, tensor) if kept is not None else (
                self._misfit(entry, tensor) or self._hashes.difference())
        else:
            if self._hashes is not None:
                self._hashes.learn(tensor, at, entry.kind)
            difference = self._difference(entry, tensor) or self._lacks(entry, tensor)
        if difference is not None:
            self.deviate(difference)
            return tensor.detach(), tensor._version, True
        if entry.first:
            return self._open_slot(entry.recipe, kept if kept is not None else tensor.detach()), entry.geometry, True
        return self._slots[entry.recipe.storage](), entry.geometry, True

    def _misfit(self, entry: _Entry, tensor: torch.Tensor) -> str | None:
        """Returns how a saved tensor lies in memory in another way than the recorded one; None if it does not."""
        geometry, recipe = entry.geometry, entry.recipe
        if (tensor.shape != geometry.size or tensor.dtype != geometry.dtype or tensor.stride() != geometry.stride
                or tensor.storage_offset() != geometry.offset or tensor.device != self._device.place or has_sign(tensor)):
            return (f"a saved tensor is {tensor.dtype} {tuple(tensor.shape)}, and {geometry.dtype} {tuple(geometry.size)} in the "
                    "recorded step, or lies differently in memory")
        if tensor.untyped_storage().nbytes() != recipe.size or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return "a saved tensor lies in another storage than in the recorded step"
        return None

    def _difference(self, entry: _Entry, tensor: torch.Tensor) -> str | None:
        """Returns how a saved tensor, and what it follows from, differs from the recorded one; None if it does not."""
        misfit = self._misfit(entry, tensor)
        if misfit is not None:
            return misfit
        if current_number() - self._base != entry.node:
            return "the step made another number of autograd nodes"
        recipe = entry.recipe
        if not entry.first:
            return None
        if recipe.action == REBUILD or recipe.source:
            difference = recipe.walk.difference(tensor, self._base)
            if difference is not None:
                return difference
        if recipe.calls is not None:
            assert self._calls is not None
            if self._calls.difference is not None:
                return self._calls.difference
            if self._calls.count != recipe.calls:
                return f"{self._calls.count} calls of PyTorch ran, and {recipe.calls} in the recorded step"
        return None

    def _lacks(self, entry: _Entry, tensor: torch.Tensor) -> str | None:
        """Returns what the plan lacks to treat a saved tensor that is as recorded; None if it lacks nothing."""
        recipe = entry.recipe
        if not self._device.current():
            return "the step runs on another stream than the one on which it began"
        if not entry.first:
            slot = self._slots[recipe.storage]() if recipe.storage in self._slots else None
            if slot is None or not self._known and (
                    slot.key is None or slot.key.cdata != tensor.untyped_storage()._cdata):
                return "a tensor is saved again that lay in another storage in the recorded step"
            if tensor._version != slot.version:
                return "a tensor was changed between two times that it was saved"
        elif recipe.replay is not None:
            for storage in recipe.sources:
                if self._slots.get(storage, _dead)() is None:
                    return "a tensor from which another one is rebuilt is gone"
            for storage in recipe.replay.chain.parameters:
                if storage not in self._parameters and not self._note_parameter(storage):
                    return "a parameter from which a tensor is rebuilt is gone"
            if recipe.replay.marks and not recipe.replay.draws(self._device, self._marks):
                return "other random numbers are drawn"
        return None

    def _note_parameter(self, storage: int) -> bool:
        """Notes a parameter as it is now, from which tensors are rebuilt; returns False if it is gone."""
        parameter = self._plan.tape.parameters[storage]()
        if parameter is None:
            return False
        self._parameters[storage] = storage, parameter, parameter._version, parameter.detach()
        return True

    def _open_slot(self, recipe: _Recipe, tensor: torch.Tensor) -> _Slot:
        slot = _Slot(recipe, self._device, tensor, self._known)
        self._slots[recipe.storage] = weakref.ref(slot)
        if recipe.action == OFFLOAD:
            slot.host = self._executor.region(recipe)
            self._device.wait(Queue.OUT, self._device.record(Queue.COMPUTE))
            self._device.copy(Queue.OUT, slot.host, bytes_of(tensor))
            slot.left = self._device.record(Queue.OUT)
        elif recipe.replay is not None:
            slot.sources = list(self._alive(recipe.sources))
            slot.parameters = [self._parameters[storage] for storage in recipe.replay.chain.parameters]
            if recipe.replay.marks:
                slot.marks = {m: self._marks[m] for m in recipe.replay.marks}
            slot.tensor = None
        return slot

    # ---- reading ----

    def _unpack(self, packed: Any) -> torch.Tensor:
        with self._lock:
            held, how, counted = packed
            if not counted or torch._C._current_graph_task_id() == -1:  # or the program looks at a node's tensor
                return self._view(held, how)
            at = self._begin_position()
            tensor = self._view(held, how)
            if at in self._plan.drops:
                for slot in self._alive(self._plan.drops[at]):
                    slot.give_up()
            return tensor

    def _view(self, held: Any, how: Any) -> torch.Tensor:
        if type(held) is not _Slot:
            if held._version != how:
                raise RuntimeError(CHANGED.format(f"{held.dtype} {list(held.shape)}", held._version, how))
            return held
        return view_in(self._fetch(held), how)

    def _fetch(self, wanted: _Slot) -> torch.Tensor:
        """Returns the tensor of a slot, in the order of COMPUTE. It comes back, or is rebuilt, if it is absent."""
        tensor = wanted.tensor
        if tensor is not None and wanted.arrived is None and tensor._version == wanted.version:
            return tensor
        waiting = [wanted]
        while waiting:
            slot = waiting[-1]
            if slot.tensor is None and slot.host is not None:
                slot.bring_back()
            if slot.tensor is None:
                absent = [s for s in slot.sources if s.tensor is None]
                if absent:
                    waiting += absent
                    continue
                self._rebuild(slot)
            slot.check()
            slot.settle()
            waiting.pop()
        assert wanted.tensor is not None
        return wanted.tensor

    def _rebuild(self, slot: _Slot) -> None:
        replay = slot.recipe.replay
        assert replay is not None
        storages = {source.recipe.storage: self._fetch(source) for source in slot.sources}
        for storage, parameter, version, detached in slot.parameters:
            if parameter._version != version:
                raise RuntimeError(f"a parameter of shape {list(parameter.shape)} was changed in place between forward and "
                                   "backward, and the plan rebuilds a tensor from it: change it after backward")
            storages[storage] = detached
        slot.put(replay.run(self._device, storages, slot.marks))
        self.rebuilt += replay.length


def step(plan: Plan) -> contextlib.AbstractContextManager[_Run]:
    """Returns a context in which the operators of the calling thread run under the plan.

    The block has to hold the same forward as the recorded step; the backward may be in it or follow it. A step that differs keeps
    its tensors, says so in the log "spillway_torch", and has the same results.
    """
    with _MAKING:
        if plan.executor is None:
            plan.executor = Executor(plan)
    return plan.executor.step()

"""Handles the tensors that autograd saves in the steps of a plan: in the library of run_steps.cc, or in Python."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..base.device import CudaDevice, Device, Queue, bytes_of
from ..base.errors import SpillwayError
from ..plan.plan import KEEP, OFFLOAD, Plan
from ..tape.graph import Walk
from ..tape.tape import Geometry, view_in, view_of
from . import recompute
from .hashes import LAYOUT, Hashes
from .recompute import Recompute

CHANGED = ("one of the variables needed for gradient computation has been modified by an inplace operation: {} is at version {}; "
           "expected version {}")


@dataclasses.dataclass
class Recipe:
    """All steps treat a storage in this way."""

    storage: int
    action: str
    walk: Walk  # to the operator that made it, or, of a recomputed storage, to its sources
    shared: bool  # autograd saves it several times
    size: int
    geometry: Geometry  # as it is saved first
    region: tuple[int, int] = (0, 0)  # in the memory of the host
    recompute: Optional[Recompute] = None
    calls: int | None = None  # watched calls of PyTorch's functions before it, if its value depends on them
    source: bool = False
    sources: tuple[int, ...] = ()  # storages from which it is recomputed


@dataclasses.dataclass
class Entry:
    """A tensor that autograd saves, as recorded."""

    recipe: Recipe
    geometry: Geometry
    node: int
    first: bool
    kind: int = LAYOUT  # how hashes compare it


@dataclasses.dataclass
class Table:
    """The data that all steps of a plan share."""

    plan: Plan
    device: Device
    entries: list[Optional[Entry]]  # by position
    recipes: dict[int, Recipe]  # by storage
    hashes: Hashes | None
    parameters: list[int]  # storages of parameters from which others are recomputed

    def __post_init__(self) -> None:
        self.moments = self.plan.releases.keys() | self.plan.prefetches.keys()
        self.marks = frozenset(m for r in self.recipes.values() if r.recompute is not None for m in r.recompute.marks)


def changed(tensor: torch.Tensor | None, expected: int, version: int | None = None) -> None:
    """Raises RuntimeError, as autograd does, about a tensor that was changed; None if it is one of the plan."""
    what = "a saved tensor" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
    raise RuntimeError(CHANGED.format(what, version if tensor is None else tensor._version, expected))


class _Calls:
    """The calls with which the library uses a device that it does not know. Each wait has its own name, so that tests can leave out one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.current, self.empty, self.drawn = device.current, device.empty, device.drawn
        self.random_state, self.set_random_state = device.random_state, device.set_random_state
        self.same_random_state = device.same_random_state

    def copy_out(self, host: torch.Tensor, source: torch.Tensor) -> Any:
        self._device.wait(Queue.OUT, self._device.record(Queue.COMPUTE))
        self._device.copy(Queue.OUT, host, source)
        return self._device.record(Queue.OUT)

    def copy_in(self, into: torch.Tensor, host: torch.Tensor) -> Any:
        self._device.wait(Queue.IN, self._device.record(Queue.COMPUTE))
        self._device.copy(Queue.IN, into, host)
        return self._device.record(Queue.IN)

    def give_up(self, event: Any) -> None:
        self._device.wait(Queue.COMPUTE, event)

    def fetch(self, event: Any) -> None:
        self._device.wait(Queue.COMPUTE, event)

    def end(self, event: Any) -> None:
        self._device.wait(Queue.COMPUTE, event)


def library_table(table: Table, region: Callable[[Recipe], torch.Tensor]) -> Any:
    """Returns the table in the library; None if there is none, or it does not take a chain of the plan."""
    library, hashes, device, plan = recompute.steps_library(), table.hashes, table.device, table.plan
    natives = {r.storage: r.recompute.native for r in table.recipes.values() if r.recompute is not None}
    if library is None or hashes is None or None in natives.values():
        return None
    known = library.Gpu(device.index, *device.copy_streams) if type(device) is CudaDevice else library.PythonDevice(_Calls(device))
    made = library.Table(plan.tape.packed, hashes.handle, known, SpillwayError, changed, [hashes, *natives.values()], len(table.entries))
    numbers = {storage: number for number, storage in enumerate(table.recipes)}
    for recipe in table.recipes.values():
        place = torch.empty(recipe.size, dtype=torch.uint8, device="meta")
        native = natives.get(recipe.storage)
        parameters = recipe.recompute.chain.parameters if recipe.recompute is not None else []
        made.add(recipe.action == OFFLOAD, native.handle if native is not None else 0, native.names if native is not None else [],
                 recipe.shared, view_of(place.untyped_storage(), recipe.geometry), place,
                 region(recipe) if recipe.action == OFFLOAD else None, [numbers[s] for s in recipe.sources],
                 [table.parameters.index(s) for s in parameters], native.draws if native is not None else [])
    for at, entry in enumerate(table.entries):
        if entry is not None:
            place = torch.empty(entry.recipe.size, dtype=torch.uint8, device="meta")
            made.enter(at, numbers[entry.recipe.storage], view_of(place.untyped_storage(), entry.geometry), entry.first, entry.kind)
        made.move(at, *([numbers[s] for s in moves.get(at, ()) if s in numbers] for moves in (plan.releases, plan.prefetches, plan.drops)))
    for mark in table.marks:
        made.mark(mark)
    return made


def _dead() -> None:
    """Stands for the weak reference of a slot that never was."""


class _Slot:
    """A storage in one step. It lives as long as autograd holds a tensor in it, or one that is recomputed from it."""

    __slots__ = ("recipe", "device", "tensor", "version", "key", "host", "left", "arrived", "sources", "parameters", "marks",
                 "__weakref__")

    def __init__(self, recipe: Recipe, device: Device, tensor: torch.Tensor, known: bool) -> None:
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
            changed(None, self.version, self.tensor._version)

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


class SavedTensors:
    """The saved tensors of one step. Autograd keeps this object alive, by its hooks, and it holds no saved tensor."""

    def __init__(self, table: Table, region: Callable[[Recipe], torch.Tensor], known: bool, parameters: Sequence[Optional[torch.Tensor]],
                 compare: Callable[[torch.Tensor, int], str | None], deviate: Callable[[str], None]) -> None:
        """Begins a step.

        known: whether the hashes are; otherwise Python compares the step.
        parameters: those of the table.
        compare: returns how a saved tensor, at a position, differs from the recorded one; None if it does not.
        deviate: takes the reason.
        """
        self.deviated = False
        self.packs = 0
        self.recomputed = 0  # operators that ran again
        self._table, self._region, self._known = table, region, known
        self._device, self._plan = table.device, table.plan
        self._compare: Any = compare
        self._deviate: Any = deviate
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._position = 0
        self._slots: dict[int, weakref.ref[_Slot]] = {}
        self._marks: dict[int, Any] = {-1: self._device.random_state()} if -1 in table.marks else {}
        self._open = True
        self._given = dict(zip(table.parameters, parameters))
        self._parameters: dict[int, tuple[int, torch.Tensor, int, torch.Tensor]] = {}  # by storage: as it is in this step

    @property
    def hooks(self) -> tuple[Any, Any]:
        """Returns the functions that autograd calls."""
        return self._pack, self._unpack

    def end(self) -> None:
        """Ends the part of the step whose tensors are planned."""
        self._open = False
        self._compare = self._deviate = None  # they refer to what refers to this
        self._given = {}

    def give_up(self) -> None:
        """Drops what can come back."""
        for slot in self._alive(list(self._slots)):
            slot.give_up()

    def holds_host(self) -> bool:
        """Returns whether it writes memory of the host, or a backward may still read it."""
        return self._open or any(slot.host is not None for slot in self._alive(list(self._slots)))

    def alive(self) -> int:
        """Returns how many storages of the plan are not yet forgotten."""
        return len(list(self._alive(list(self._slots))))

    def _differ(self, reason: str) -> None:
        if not self.deviated:
            self.deviated = True
            self._deviate(reason)

    def _alive(self, storages: Sequence[int]) -> Iterator[_Slot]:
        for storage in storages:
            slot = self._slots[storage]() if storage in self._slots else None
            if slot is not None:
                yield slot

    def _begin_position(self) -> int:
        """Does what the plan wants at this position, and returns it."""
        at = self._position
        self._position = at + 1
        if at in self._table.moments and not self.deviated:
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
        if self._known:
            return self._save(tensor)
        with torch._C.DisableTorchFunction():  # its own calls are not the program's
            return self._save(tensor)

    def _save(self, tensor: torch.Tensor) -> Any:
        at = self._begin_position()
        self.packs += 1
        if at in self._table.marks and not self.deviated:
            self._marks[at] = self._device.random_state()
        entry = self._table.entries[at] if at < len(self._table.entries) and not self.deviated else None
        if entry is None:
            if self.packs > self._plan.tape.packed:
                self._differ("it saves more tensors")
            return tensor.detach(), tensor._version, True
        kept, hashes = None, self._table.hashes
        if self._known:
            assert hashes is not None
            kept = hashes.save(tensor, at, entry.kind)
        elif hashes is not None:
            hashes.learn(tensor, at, entry.kind)
        difference = (self._compare(tensor, at) if kept is None else None) or self._lacks(entry, tensor)
        if difference is not None:
            self._differ(difference)
            return tensor.detach(), tensor._version, True
        if entry.first:
            return self._open_slot(entry.recipe, kept if kept is not None else tensor.detach()), entry.geometry, True
        return self._slots[entry.recipe.storage](), entry.geometry, True

    def _lacks(self, entry: Entry, tensor: torch.Tensor) -> str | None:
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
        elif recipe.recompute is not None:
            for storage in recipe.sources:
                if self._slots.get(storage, _dead)() is None:
                    return "a tensor from which another one is recomputed is gone"
            for storage in recipe.recompute.chain.parameters:
                if storage not in self._parameters and not self._note_parameter(storage):
                    return "a parameter from which a tensor is recomputed is gone"
            if recipe.recompute.marks and not recipe.recompute.draws(self._device, self._marks):
                return "other random numbers are drawn"
        return None

    def _note_parameter(self, storage: int) -> bool:
        """Notes a parameter as it is now, from which tensors are recomputed; returns False if it is gone."""
        parameter = self._given.get(storage)
        if parameter is None:
            return False
        self._parameters[storage] = storage, parameter, parameter._version, parameter.detach()
        return True

    def _open_slot(self, recipe: Recipe, tensor: torch.Tensor) -> _Slot:
        slot = _Slot(recipe, self._device, tensor, self._known)
        self._slots[recipe.storage] = weakref.ref(slot)
        if recipe.action == OFFLOAD:
            slot.host = self._region(recipe)
            self._device.wait(Queue.OUT, self._device.record(Queue.COMPUTE))
            self._device.copy(Queue.OUT, slot.host, bytes_of(tensor))
            slot.left = self._device.record(Queue.OUT)
        elif recipe.recompute is not None:
            slot.sources = list(self._alive(recipe.sources))
            slot.parameters = [self._parameters[storage] for storage in recipe.recompute.chain.parameters]
            if recipe.recompute.marks:
                slot.marks = {m: self._marks[m] for m in recipe.recompute.marks}
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
                changed(held, how)
            return held
        return view_in(self._fetch(held), how)

    def _fetch(self, wanted: _Slot) -> torch.Tensor:
        """Returns the tensor of a slot, in the order of COMPUTE. It comes back, or is recomputed, if it is absent."""
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
                self._recompute(slot)
            slot.check()
            slot.settle()
            waiting.pop()
        assert wanted.tensor is not None
        return wanted.tensor

    def _recompute(self, slot: _Slot) -> None:
        recompute = slot.recipe.recompute
        assert recompute is not None
        storages = {source.recipe.storage: self._fetch(source) for source in slot.sources}
        for storage, parameter, version, detached in slot.parameters:
            if parameter._version != version:
                raise RuntimeError(f"a parameter of shape {list(parameter.shape)} was changed in place between forward and "
                                   "backward, and the plan recomputes a tensor from it: change it after backward")
            storages[storage] = detached
        slot.put(recompute.run(self._device, storages, slot.marks))
        self.recomputed += recompute.length

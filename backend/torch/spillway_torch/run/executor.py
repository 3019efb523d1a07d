"""Executes plans in the program's own step, with saved-tensor hooks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch

from ..base.device import Device, Host, device_of
from ..base.errors import SpillwayError
from ..plan.plan import KEEP, OFFLOAD, PAGE, EVICT, Plan
from ..tape.calls import ComparedCalls
from ..tape.chains import Saved, edge_walk, saved_storages
from ..tape.graph import current_number
from ..tape.regions import without_compilation
from ..tape.tape import has_sign
from ..tape.tape_recorder import refuse_hooks
from . import recompute
from .hashes import AGAIN, LAYOUT, MADE, Hashes, step_hashes
from .recompute import Recompute
from .slots import Entry, Recipe, SavedTensors, Table, library_table

log = logging.getLogger("spillway_torch")
_MAKING = threading.Lock()


class Executor:
    """Runs steps under one plan. It owns the memory of the host."""

    def __init__(self, plan: Plan, device: Device | None = None) -> None:
        """Raises `SpillwayError` if the plan asks for what its tape does not allow."""
        tape = plan.tape
        self.plan = dataclasses.replace(plan)  # a copy, because `EXECUTORS` holds an executor as long as its plan lives
        self.device = device if device is not None else device_of(tape.device)
        self.entries: list[Optional[Entry]] = [None] * len(tape.positions)
        self.deviations: list[str] = []  # the reasons of all steps
        self.forward_seconds = float("inf")  # the least that the host took for a forward that Python did not compare
        self._recipes = self._make_recipes(saved_storages(tape))
        self._host: Host = self.device.host(self._place())
        self._last: Callable[[], Any] = lambda: None  # what the last step saved
        self._lock = threading.Lock()
        self.hashes: Hashes | None = None if tape.compiled else step_hashes(len(self.entries))  # compiled code has no operators to hash
        parameters = sorted({p for r in self._recipes.values() if r.recompute is not None for p in r.recompute.chain.parameters})
        self.parameters = [tape.parameters[p] for p in parameters]
        table = Table(self.plan, self.device, self.entries, self._recipes, self.hashes, parameters)
        self._library = None if tape.compiled else library_table(table, self.region)
        self.make_saved: Callable[..., Any] = functools.partial(SavedTensors, table, self.region)  # makes those of a step
        if self._library is not None:
            self.make_saved = functools.partial(recompute.steps_library().Run, self._library)

    def _make_recipes(self, saved: dict[int, Saved]) -> dict[int, Recipe]:
        recipes: dict[int, Recipe] = {}
        tape = self.plan.tape
        waiting = [s for s, action in self.plan.actions.items() if action in (OFFLOAD, EVICT)]
        planned = set(waiting)
        while waiting:
            storage = waiting.pop()
            if storage in recipes:
                continue
            of = saved.get(storage)
            action = self.plan.actions.get(storage, KEEP)
            if of is None or storage in planned and of.dies is None:
                raise SpillwayError(f"storage {storage} cannot be planned: it is not saved with one value, or the program holds it")
            recipe = Recipe(storage, action, edge_walk(tape, of), len(of.packs) > 1, of.bytes,
                             of.packs[0].geometry)
            if action == EVICT:
                if of.chain is None:
                    raise SpillwayError(f"storage {storage} cannot be recomputed: {of.reason}")
                recipe.walk = of.chain.walk
                recipe.recompute = Recompute(tape, of, of.chain)
                waiting += [value[0] for value in of.chain.sources]
            recipes[storage] = recipe
            for pack in of.packs:
                self.entries[pack.position] = Entry(recipe, pack.geometry, pack.node, pack is of.packs[0])
        recomputed = [(recipe, recipe.recompute.chain) for recipe in recipes.values() if recipe.recompute is not None]
        self.watched = frozenset(tape.calls[at][0] for _, chain in recomputed for at in chain.calls)
        self.calls = [call for call in tape.calls if call[0] in self.watched]
        before = [0, *itertools.accumulate(call[0] in self.watched for call in tape.calls)]
        for recipe, chain in recomputed:
            recipe.sources = tuple(value[0] for value in chain.sources)
            for storage in recipe.sources:
                recipes[storage].source = True
            if chain.calls:
                recipe.calls = before[saved[recipe.storage].packs[0].calls]
        for entry in self.entries:
            if entry is not None:
                entry.kind = AGAIN if not entry.first else MADE if entry.recipe.action == EVICT else LAYOUT
        return recipes

    def _place(self) -> int:
        """Gives each offloaded storage its region; returns the bytes of all."""
        end = 0
        for recipe in self._recipes.values():
            if recipe.action == OFFLOAD:
                recipe.region = end, recipe.size
                end += -(-recipe.size // PAGE) * PAGE
        return end

    def region(self, recipe: Recipe) -> torch.Tensor:
        return self._host.bytes[recipe.region[0]:recipe.region[0] + recipe.region[1]]

    def close(self) -> None:
        """Gives the memory of the host back. Steps whose backward has not run lose their tensors."""
        if self._library is not None:
            self._library.close()
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
                self._last = weakref.ref(run.saved)
            run.enter()
        return run


class _Run:
    """One step under a plan."""

    def __init__(self, executor: Executor) -> None:
        self.deviation: str | None = None  # why the rest of the step keeps its tensors
        self._executor = executor
        self._base = current_number()
        self._hashes = executor.hashes
        self._known = self._hashes is not None and self._hashes.known  # otherwise Python compares this step
        self._calls: ComparedCalls | None = None
        self._hooks: Any = None
        self._given = [parameter() for parameter in executor.parameters]
        self._began = time.perf_counter()
        self.saved: Any = executor.make_saved(self._known, self._given, self._compare, self.deviate)

    @property
    def packs(self) -> int:
        """Returns how many tensors autograd saved."""
        return int(self.saved.packs)

    @property
    def recomputed(self) -> int:
        """Returns how many operators ran again."""
        return int(self.saved.recomputed)

    def holds_host(self) -> bool:
        """Returns whether it writes memory of the host, or a backward may still read it."""
        return bool(self.saved.holds_host())

    def enter(self) -> None:
        executor = self._executor
        if not any(executor.entries):
            return  # the plan changes nothing
        if self._hashes is not None and self.deviation is None:
            self._hashes.begin(self._given)
        if executor.watched and not self._known:
            self._calls = ComparedCalls(self._base, executor.watched, executor.calls)
            self._calls.__enter__()
        hooks = self.saved.hooks
        self._hooks = torch.autograd.graph.saved_tensors_hooks(*(without_compilation(*hooks) if executor.plan.tape.compiled else hooks))
        self._hooks.__enter__()

    def end(self) -> None:
        """Ends the part of the step whose tensors are planned; backward may follow later."""
        self._given = []
        self.saved.end()
        if self._hooks is None:
            return
        self._hooks.__exit__(None, None, None)
        self._hooks = None
        if self._calls is not None:
            self._calls.__exit__(None, None, None)
            self._calls = None
        if self.deviation is None and self.packs < self._executor.plan.tape.packed:
            self.deviate(f"it saved {self.packs} tensors, and the recorded step {self._executor.plan.tape.packed}")
        if self._hashes is not None:
            self._hashes.end(self.deviation is None)
        if self._known and self.deviation is None:
            self._executor.forward_seconds = min(self._executor.forward_seconds, time.perf_counter() - self._began)
        if self.deviation is not None:
            self.saved.give_up()

    def deviate(self, reason: str) -> None:
        """Keeps all tensors from now on. Tensors that were given up before come back as planned."""
        self.saved.deviated = True
        if self.deviation is None:
            self.deviation = reason
            self._executor.deviations.append(reason)
            log.warning("spillway: this step keeps its tensors from here on, because it differs from the recorded one: %s", reason)

    def _compare(self, tensor: torch.Tensor, at: int) -> str | None:
        """Returns how the tensor saved at a position differs from the recorded one; None if it does not."""
        entry = self._executor.entries[at]
        assert entry is not None
        if self._known:
            assert self._hashes is not None
            return self._misfit(entry, tensor) or self._hashes.difference()
        with torch._C.DisableTorchFunction():  # these calls are not the program's
            return self._difference(entry, tensor)

    def _misfit(self, entry: Entry, tensor: torch.Tensor) -> str | None:
        """Returns how a saved tensor lies in memory in another way than the recorded one; None if it does not."""
        geometry, recipe = entry.geometry, entry.recipe
        if (tensor.shape != geometry.size or tensor.dtype != geometry.dtype or tensor.stride() != geometry.stride
                or tensor.storage_offset() != geometry.offset or tensor.device != self._executor.device.place or has_sign(tensor)):
            return (f"a saved tensor is {tensor.dtype} {tuple(tensor.shape)}, and {geometry.dtype} {tuple(geometry.size)} in the "
                    "recorded step, or lies differently in memory")
        if tensor.untyped_storage().nbytes() != recipe.size or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return "a saved tensor lies in another storage than in the recorded step"
        return None

    def _difference(self, entry: Entry, tensor: torch.Tensor) -> str | None:
        """Returns how a saved tensor, and what it follows from, differs from the recorded one; None if it does not."""
        misfit = self._misfit(entry, tensor)
        if misfit is not None:
            return misfit
        if current_number() - self._base != entry.node:
            return "the step made another number of autograd nodes"
        recipe = entry.recipe
        if not entry.first:
            return None
        if recipe.action == EVICT or recipe.source:
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


EXECUTORS: weakref.WeakKeyDictionary[Plan, Executor] = weakref.WeakKeyDictionary()


def step(plan: Plan) -> contextlib.AbstractContextManager[_Run]:
    """Returns a context in which the operators of the calling thread run under the plan.

    The block has to hold the same forward as the recorded step; the backward may be in it or follow it. A step that differs keeps
    its tensors, says so in the log "spillway_torch", and has the same results.
    """
    return executor_of(plan).step()


def executor_of(plan: Plan) -> Executor:
    """Returns the executor of the steps under the plan, which lives as long as the plan."""
    with _MAKING:
        if plan not in EXECUTORS:
            EXECUTORS[plan] = Executor(plan)
        return EXECUTORS[plan]

"""Executes plans in the program's own step, with saved-tensor hooks."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..base.device import CudaDevice, Device, Host, Queue, device_of
from ..base.errors import SpillwayError
from ..plan.plan import EVICT, KEEP, OFFLOAD, SMALLEST, Plan
from ..tape.chains import Saved, operands_of, saved_storages
from ..tape.hooks import Hooks, refuse_hooks
from ..tape.regions import without_compilation
from ..tape.tape import Op, Ref, Tape
from .library import steps_library

log = logging.getLogger("spillway_torch")
_MAKING = threading.Lock()
OUTSIDE = object()  # stands for any tensor that is no storage of the plan
MADE, SAVED, HELD, COPIED, SCRATCH = range(5)  # kinds of operands (step_library.h)
GUARDED = 0.9975  # of the budget, beyond which saved tensors go to the host
UNLIMITED = (1 << 63) - 1
AHEAD = 1.05  # times as long as the host: by more, the device took longer for a forward because it was behind
NEAR = 1000  # operators before one that may lie between the same two saved tensors
CHANGED = ("one of the variables needed for gradient computation has been modified by an inplace operation: {} is at version {}; "
           "expected version {}")


def changed(tensor: torch.Tensor | None, expected: int, version: int | None = None) -> None:
    """Raises RuntimeError, as autograd does, about a tensor that was changed; None if it is one of the plan."""
    what = "a saved tensor" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
    raise RuntimeError(CHANGED.format(what, version if tensor is None else tensor._version, expected))


class _Calls:
    """The calls with which the library uses a device that it does not know. Each wait has its own name, so that tests can leave out one."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.place, self.current, self.empty = device.place, device.current, device.empty
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

    def in_use(self) -> int:
        return self._device.in_use()


class HostMemory:
    """Memory of the host for the steps of one or several plans, one step after another."""

    def __init__(self, spare: list[Host] | None = None) -> None:
        """spare: memory that it takes over, so that it need not be made."""
        self.pieces: list[Host] = []
        self.spare = spare if spare is not None else []
        self._shared: Any = None

    def shared(self, device: Device) -> Any:
        """Returns it as the library takes it."""
        if self._shared is None:
            self._shared = steps_library().Host(functools.partial(_more_host, device, self.pieces, self.spare))
        return self._shared

    def close(self) -> None:
        """Gives the memory back. Steps whose backward has not run lose their tensors."""
        if self._shared is not None:
            self._shared.close()
        for host in (*self.pieces, *self.spare):
            host.close()
        self.pieces.clear()
        self.spare.clear()


class Executor:
    """Runs steps under one plan."""

    def __init__(self, plan: Plan, device: Device | None = None, host: HostMemory | None = None, like: Tape | None = None) -> None:
        """Raises `SpillwayError` if the plan asks for what its tape does not allow.

        host: memory that it shares with others; by default, it has memory of its own.
        like: the plan's tape, with the sizes of the steps that are guarded, if those are others.
        """
        self.plan = dataclasses.replace(plan)  # a copy, because `EXECUTORS` holds an executor as long as its plan lives
        self.device = device if device is not None else device_of(plan.tape.device)
        self.deviations: list[str] = []  # the reasons of all steps
        self.forward_seconds = float("inf")  # the least that the host took for a forward without surprises
        self._marks: list[Any] = []  # of the device, around that forward
        self.host = host if host is not None else HostMemory()
        self._recipes = _recipes_of(plan)
        self._library = steps_library()
        self._table = self._make_table(like if like is not None else plan.tape)
        if plan.host_bytes and not self.host.spare:
            self.host.shared(self.device).reserve(plan.host_bytes)

    def note_forward(self, seconds: float, marks: list[Any]) -> None:
        """Notes what the host took for a forward without surprises, between these marks of the device."""
        if seconds < self.forward_seconds:
            self.forward_seconds, self._marks = seconds, marks

    def host_was_ahead(self) -> bool:
        """Returns whether the device was still at work when that forward had ended: the host may have waited for a place in its queue."""
        return len(self._marks) == 2 and self.device.between(*self._marks) > AHEAD * self.forward_seconds

    def _make_table(self, like: Tape) -> Any:
        plan, tape, library, device = self.plan, self.plan.tape, self._library, self.device
        native = library.Gpu(device.index, *device.copy_streams) if type(device) is CudaDevice else library.PythonDevice(_Calls(device))
        chains = [saved.chain for saved, action in self._recipes if action == EVICT and saved.chain is not None]
        ops = sorted({at for chain in chains for at in chain.ops})
        numbers: collections.defaultdict[int, int] = collections.defaultdict(lambda: len(numbers))  # of storages
        for saved, _ in self._recipes:
            numbers[saved.storage]
        added = self._ops(ops, numbers)
        counts = device.in_use() >= 0
        budget, smallest = (int(GUARDED * plan.budget), SMALLEST if tape.device == "cuda" else 1) if counts else (UNLIMITED, UNLIMITED)
        table = library.Table(tape.packed, native, changed, self.host.shared(device), budget, smallest,
                              len(tape.positions), len(numbers), tape.compiled)
        for op in added:
            table.add_op(*op)
        index = {saved.storage: at for at, (saved, _) in enumerate(self._recipes)}
        place = {at: number for number, at in enumerate(ops)}
        for saved, action in self._recipes:
            chain = saved.chain if action == EVICT else None
            table.add(action == OFFLOAD, numbers[saved.storage], saved.value[1], [index[s] for s, _ in chain.sources] if chain else [],
                      [place[at] for at in chain.ops] if chain else [],
                      [[numbers[s] for s in freed if s in numbers] for freed in _freed(tape, saved)] if chain else [],
                      chain.temporary if chain else 0)
            for pack in saved.packs:
                table.enter(pack.position, index[saved.storage])
        headroom = like.headroom([s for s, action in plan.actions.items() if action == EVICT]) if counts else [0] * len(tape.positions)
        passed = _passed(plan)

        def recipes(storages: Iterable[int]) -> list[int]:
            return [index[s] for s in storages if s in index]

        reads = {unpack.position: unpack.pack.position for unpack in tape.unpacks}
        for at, bytes_ in enumerate(headroom):
            moves = {move: recipes(positions[at]) for move, positions in plan.moments.items() if at in positions}
            table.move(at, moves, recipes(passed.get(at, ())), bytes_, tape.signatures.get(at, 0), reads.get(at))
        return table

    def _ops(self, ops: list[int], numbers: dict[int, int]) -> list[tuple[Any, ...]]:
        """Returns operators of the tape as the library takes them; `numbers` are those of storages, to which it adds."""
        tape, added = self.plan.tape, []
        planned = {s for at in ops for s in tape.ops[at].fresh}
        saved = {s.storage: s.packs[0].position for s, _ in self._recipes}
        starts: dict[int, int] = {}  # by operator: the first position at which autograd may save what it reads
        for pack in tape.packs:
            if not pack.compiled:
                starts.setdefault(pack.op, pack.position)
        known: set[int] = set()  # storages that planned operators have read: the library knows them again

        def is_known(operand: Any, position: int) -> bool:
            """Returns whether the library knows the tensor's storage there."""
            if not isinstance(operand, Ref):
                return False
            storage = operand.value[0]
            return storage in planned or storage in known or saved.get(storage, len(tape.positions)) < position

        def tells(operand: Any, at: int) -> Any:
            """Returns what tells a tensor from others where the operator runs; None if nothing does."""
            if not isinstance(operand, Ref) or tape.held(operand, at):
                return OUTSIDE
            return operand.value if is_known(operand, tape.ops[at].position) else None

        def fits(told: list[Any], other: Op) -> bool:
            """Returns whether another operator may read the tensors that are told."""
            read = [operand for operand, _ in operands_of(other)]
            return len(read) == len(told) and all(
                wanted is None or (not is_known(operand, other.position) if wanted is OUTSIDE
                                   else isinstance(operand, Ref) and operand.value == wanted) for wanted, operand in zip(told, read))

        for at in ops:
            op, reads = tape.ops[at], []
            if op.once:
                raise SpillwayError(f"{op.place} cannot run again: {op.once}")
            told = [None if scratch else tells(operand, at) for operand, scratch in operands_of(op)]
            for operand, scratch in operands_of(op):
                if scratch:
                    reads.append((SCRATCH, 0, 0))
                elif not isinstance(operand, Ref):
                    reads.append((COPIED, 0, 0))
                elif tape.held(operand, at):
                    reads.append((HELD if operand.value[0] in tape.parameters else COPIED, 0, 0))
                else:
                    storage, writes = operand.value
                    known.add(storage)
                    reads.append((MADE if storage in planned else SAVED, numbers[storage], writes))
            before = itertools.takewhile(lambda other: other.position == op.position, reversed(tape.ops[max(0, at - NEAR):at]))
            turn = sum(1 for other in before if other.func is op.func and fits(told, other))
            made = [(index, numbers[ref.value[0]]) for index, ref in enumerate(op.results) if ref is not None and ref.value[0] in op.fresh]
            schema = op.func._schema
            added.append((schema.name, schema.overload_name, op.place, starts.get(at, op.position), op.position, turn, reads, made,
                          op.random))
        return added

    def close(self) -> None:
        """Gives the memory of the host back. Steps whose backward has not run lose their tensors."""
        self.host.close()

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

    def begin(self, stay: bool = False, verify: bool = False) -> _Run:
        """Starts a step.

        Its `end` ends it, or, if its hooks should `stay`, the backward that reads what it saved. If it should `verify`, its backward
        raises RuntimeError where a tensor is recomputed with other bits than autograd saved.
        """
        refuse_hooks()
        self.device.begin()
        return _Run(self, self._library.Run, self._table, stay, verify)


def _more_host(device: Device, pieces: list[Host], spare: list[Host], size: int) -> torch.Tensor:
    fitting = next((host for host in spare if host.bytes.numel() >= size), None)
    if fitting is not None:
        spare.remove(fitting)
    pieces.append(fitting if fitting is not None else device.host(size))
    return pieces[-1].bytes


def _recipes_of(plan: Plan) -> list[tuple[Saved, str]]:
    """Returns the storages that the plan moves, or needs for others, each behind those from which it is recomputed."""
    saved = saved_storages(plan.tape)
    found: dict[int, tuple[Saved, str]] = {}
    waiting = [s for s, action in plan.actions.items() if action in (OFFLOAD, EVICT)]
    planned = set(waiting)
    while waiting:
        storage = waiting.pop()
        if storage in found:
            continue
        of, action = saved.get(storage), plan.actions.get(storage, KEEP)
        if of is None or storage in planned and of.dies is None:
            raise SpillwayError(f"storage {storage} cannot be planned: it is not saved with one value, or the program holds it")
        if action == EVICT:
            if of.chain is None:
                raise SpillwayError(f"storage {storage} cannot be recomputed: {of.reason}")
            waiting += [value[0] for value in of.chain.sources]
        found[storage] = of, action
    return sorted(found.values(), key=lambda recipe: recipe[0].packs[0].position)


def _passed(plan: Plan) -> dict[int, set[int]]:
    """Returns, for each position, the storages that are there only for others that are recomputed for the same operator."""
    tape = plan.tape
    read = {(unpack.op, unpack.pack.value[0]) for unpack in tape.unpacks}
    dropped: dict[int, set[int]] = {}  # by the operators that had run
    for position, storages in plan.moments["drops"].items():
        at = tape.positions[position]
        dropped.setdefault(at, set()).update(s for s in storages if (at, s) not in read)
    return {position: dropped[at] for position, at in enumerate(tape.positions) if at in dropped}


def _freed(tape: Tape, saved: Saved) -> list[list[int]]:
    """Returns, for each operator of the chain, the storages that nothing in the chain reads behind it."""
    assert saved.chain is not None
    last: dict[int, int] = {}
    for at in saved.chain.ops:
        op = tape.ops[at]
        read = {o.value[0] for o, scratch in operands_of(op) if isinstance(o, Ref) and not scratch and not tape.held(o, at)}
        for storage in read | set(op.fresh) | {value[0] for value in op.written}:
            last[storage] = at
    return [[s for s, at in last.items() if at == op and s != saved.storage] for op in saved.chain.ops]


class _Run:
    """One step under a plan."""

    def __init__(self, executor: Executor, make: Any, table: Any, stay: bool, verify: bool) -> None:
        self.deviation: str | None = None  # why the plan is not carried out for some storage
        self._executor = executor
        self._began, self._pieces = time.perf_counter(), len(executor.host.pieces)
        self._ended: float | None = None
        self._marks = [executor.device.mark()]
        saved = self.saved = make(table, self.deviate, verify)
        hooks = without_compilation(*saved.hooks) if executor.plan.tape.compiled else saved.hooks
        self.hooks = Hooks(hooks, saved, stay, saved)
        self.hooks.enter()

    @property
    def packs(self) -> int:
        """Returns how many tensors autograd saved."""
        return int(self.saved.packs)

    @property
    def recomputed(self) -> int:
        """Returns how many operators ran again."""
        return int(self.saved.recomputed)

    @property
    def guarded(self) -> int:
        """Returns the bytes that went to the host because memory was short."""
        return int(self.saved.guarded)

    @property
    def verified(self) -> int:
        """Returns how many recomputed storages were compared with what autograd saved."""
        return int(self.saved.verified)

    @property
    def plan(self) -> Plan:
        return self._executor.plan

    def waits(self) -> bool:
        """Returns whether a backward may still read what it saved."""
        return bool(self.saved.waits())

    @property
    def signature(self) -> int:
        """Returns a number that the steps of a structure share (`structure` in tape.py)."""
        return int(self.saved.signature)

    @property
    def read(self) -> bool:
        """Returns whether a backward has read what it saved, and makes no graph for another one."""
        return bool(self.saved.read)

    def end_forward(self) -> None:
        """Notes the time of the host: its forward may have ended."""
        self._ended = time.perf_counter()
        self._marks[1:] = [self._executor.device.mark()]

    def end(self, complete: bool = True) -> None:
        """Ends the part of the step whose tensors are planned; backward may follow later.

        complete: whether it was all that a step saves.
        """
        self.hooks.leave()
        if complete and self.deviation is None and self.packs < self._executor.plan.tape.packed:
            self.deviate(f"it saved {self.packs} tensors, and the recorded step {self._executor.plan.tape.packed}")
        if complete and self.deviation is None and self.guarded == 0 and not self._executor.device.capturing and self._pieces == len(self._executor.host.pieces):
            self._executor.note_forward((self._ended or time.perf_counter()) - self._began, self._marks)

    def deviate(self, reason: str) -> None:
        """Notes why the plan is not carried out for some storage, which stays, or goes to the host where memory is short."""
        if self.deviation is None:
            self.deviation = reason
            log.log(logging.DEBUG if self._executor.deviations else logging.WARNING,
                    "spillway: this step differs from the recorded one, and keeps what the plan cannot treat: %s", reason)
            self._executor.deviations.append(reason)


EXECUTORS: weakref.WeakKeyDictionary[Plan, Executor] = weakref.WeakKeyDictionary()


def step(plan: Plan) -> contextlib.AbstractContextManager[_Run]:
    """Returns a context in which the operators of the calling thread run under the plan.

    The block has to hold the same forward as the recorded step, with tensors of any size; the backward may be in it or follow it. What
    is recomputed follows from the tensors and arguments of each step, so the results are those of an ordinary one. Where the step has
    other operators than the recorded one, it keeps the tensors that follow from them, and says so in the log "spillway_torch".
    """
    return executor_of(plan).step()


def executor_of(plan: Plan) -> Executor:
    """Returns the executor of the steps under the plan, which lives as long as the plan."""
    with _MAKING:
        if plan not in EXECUTORS:
            EXECUTORS[plan] = Executor(plan)
        return EXECUTORS[plan]

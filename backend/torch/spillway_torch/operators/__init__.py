"""Records the times of single operators on this machine's GPU, as a table for `spillway`.

The table is a trace (traces/FORMAT.md) of operators in many sizes, each of which stands in it once, with the median of
its times.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch

from ..base.errors import SpillwayError
from ..base.ledger import BEFORE, Storage
from ..base.target import Target, parse_target
from ..step.data import Measured, Operand, Operator
from ..step.meter import Meter, meter_of
from ..step.recorder import Recorder, Take
from ..step.step import Step
from ..step.trace import arithmetic_of
from .families import FAMILIES
from .grid import Entry, Grid, Maker, Stage, Stages, prepared
from .like import entries_like, types_of

_CACHE = 64 << 20  # bytes of operands that go around, so that none stays in the GPU's cache
_SETS = (3, 6)  # the least and the most sets of operands
_CALLS = 6  # the least calls of an operator; half as many suffice for long ones
_LARGE = 256 << 20  # bytes of all sets of operands of a long one
_MEMORY = 16 << 30  # bytes that the operands of an entry take at most
_RESERVED = 4 << 30  # bytes that PyTorch's allocator may keep between entries
_LONG_LIST = 9  # tensors

Key = tuple[Any, ...]


def record_operators(families: Optional[Iterable[str]] = None, *, like: Iterable[str | os.PathLike[str]] = (),
                     small: bool = False) -> Step:
    """Runs operators of many sizes on this machine's GPU and returns them with their times.

    families: names in `spillway_torch.operators.FAMILIES`; by default all, or none if there is `like`.
    like: traces of recorded steps, whose operators are run in the same sizes.
    small: runs a tiny grid, without times if there is no GPU.

    Progress, and the operators that this PyTorch or this GPU cannot run, go to standard error. Raises `SpillwayError`
    for an unknown family, for a trace that cannot be read, and without a GPU.
    """
    like = list(like)
    names = list(families) if families is not None else [] if like else list(FAMILIES)
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise SpillwayError(f"there is no family of operators '{unknown[0]}' (valid: {', '.join(FAMILIES)})")
    target = parse_target("cpu" if small and not torch.cuda.is_available() else "cuda")
    runner = Runner(target, meter_of(target))
    groups = [(name, list(FAMILIES[name](Grid(small)))) for name in names]
    groups += [(os.fspath(path), list(entries_like(path))) for path in like]
    begun = time.monotonic()
    for name, entries in groups:
        for entry in entries:
            runner.run(entry)
        print(f"{name}: {len(runner.operators)} operators after {time.monotonic() - begun:.0f} s", file=sys.stderr)
    for what, (count, reason) in runner.refused.items():
        print(f"not recorded: {what}{f', {count} times' if count > 1 else ''}: {reason}", file=sys.stderr)
    if not runner.operators:
        raise SpillwayError("no operator was recorded")
    return runner.recording()


class Runner:
    """Runs entries on one device and keeps each operator that it has not seen, with the median of its times."""

    def __init__(self, target: Target, meter: Optional[Meter]) -> None:
        self.target, self.meter = target, meter
        self.recorder = Recorder(target.shown.type, target, meter)
        self.operators: dict[Key, Operator] = {}
        self.refused: dict[str, tuple[int, str]] = {}  # how often, and the first reason, by the name of the entry

    def run(self, entry: Entry) -> None:
        """Runs an entry. Notes in `refused` if it cannot."""
        if entry.expected in self.operators:
            return
        products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        before = products.allow_tf32, convolutions.allow_tf32
        products.allow_tf32 = convolutions.allow_tf32 = entry.tf32
        try:
            found = [(key_of(operator), operator) for operator in self._measured(entry)]
            if entry.expected is not None:
                found = [(key, operator) for key, operator in found if key == entry.expected]
                if not found:
                    raise SpillwayError("it ran in another form")
                self.refused.pop(entry.name, None)
            for key, operator in found:
                self.operators.setdefault(key, operator)
        except (SpillwayError, RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            first = str(error).partition("\n")[0] if entry.expected is None else "its arguments do not follow from the trace"
            count, reason = self.refused.get(entry.name, (0, first))
            self.refused[entry.name] = (count + 1, reason)
        finally:
            products.allow_tf32, convolutions.allow_tf32 = before
        if self.meter is not None:
            self.meter.release(_RESERVED)

    def _measured(self, entry: Entry) -> list[Operator]:
        """Returns the operators of an entry, in their order."""
        new = Maker(self.target.shown)
        sets: list[Stages] = []
        rounds = 1
        if self.meter is None:
            sets.append(entry.make(new))
        else:
            size = self.meter.peak(lambda: sets.append(entry.make(new)))
            wanted = min(max(-(-_CACHE // max(new.bytes, 1)), _SETS[0]), _SETS[1])
            size += self.meter.peak(lambda: _rotate(sets, _call))
            sets += [entry.make(new) for _ in range(min(wanted, max(_MEMORY // max(size, 1), 1)) - 1)]
            _rotate(sets, _call)  # libraries choose their kernels, and the allocator gets its memory
            rounds = -(-_CALLS // len(sets) // (1 + (new.bytes > _LARGE)))
        calls: list[list[Take]] = [[] for _ in sets[0]]  # by stage

        def recorded(stage: Stage, given: Any, number: int) -> Any:
            given = prepared(stage, given)
            take = self.recorder.take = Take(Step("operators", 1, self.target))
            take.updating = entry.updates
            calls[number].append(take)
            try:
                with self.recorder:
                    return stage(given)
            finally:
                self.recorder.take = None

        for _ in range(rounds):
            _rotate(sets, recorded)
        return [operator for takes in calls for operator in self._median(takes)]

    def _median(self, takes: Sequence[Take]) -> list[Operator]:
        """Returns the operators of the first call with the medians of their times over all calls."""
        operators = takes[0].operators
        if self.meter is not None:
            if any([op.name for op in take.operators] != [op.name for op in operators] for take in takes):
                raise SpillwayError("it does not run the same operators at each call")
            times = [self.meter.elapsed(take.marks) for take in takes]
            for operator, measured in zip(operators, zip(*times)):
                operator.time_ns = int(statistics.median(measured))
        return operators

    def recording(self) -> Step:
        """Returns the operators as a step in which each has operands of its own."""
        measured = Measured(self.meter.name) if self.meter is not None else Measured()
        step = Step("operators", 1, self.target, measured=measured)
        for operator in map(_joined, self.operators.values()):
            number = len(step.operators)
            own: dict[int, Storage] = {}
            read = {o.storage.number for o in operator.inputs}

            def renewed(operand: Operand) -> Operand:
                old = operand.storage
                if old.number not in own:
                    born = BEFORE if old.number in read else number
                    own[old.number] = Storage(len(step.storages), old.size, born, number + 1, old.dtype, old.shape)
                    step.storages[len(step.storages)] = own[old.number]
                return dataclasses.replace(operand, storage=own[old.number])

            inputs, outputs = ([renewed(o) for o in side] for side in (operator.inputs, operator.outputs))
            step.operators.append(dataclasses.replace(operator, layer=number, inputs=inputs, outputs=outputs))
        return step


def _joined(operator: Operator) -> Operator:
    """Returns an operator over long lists with one operand for all tensors of one type that it uses in the same way.

    This keeps tables small; the attributes say how many tensors there were.
    """
    if operator.attributes.get("tensors", 0) < _LONG_LIST:
        return operator
    sides = operator.inputs, operator.outputs
    numbers = [{o.storage.number for o in side} for side in sides]
    storages: dict[tuple[torch.dtype, tuple[bool, ...]], Storage] = {}  # by type, and whether it is read and written

    def joined(side: list[Operand]) -> list[Operand]:
        sizes: dict[tuple[torch.dtype, tuple[bool, ...]], int] = {}
        for operand in side:
            use = operand.dtype, tuple(operand.storage.number in used for used in numbers)
            sizes[use] = sizes.get(use, 0) + operand.size
        made = []
        for (dtype, uses), size in sizes.items():
            shape = (size // dtype.itemsize,)
            storage = storages.setdefault((dtype, uses), Storage(len(storages), size, dtype=dtype, shape=shape))
            made.append(Operand(storage, 0, size, shape, dtype))
        return made

    inputs, outputs = map(joined, sides)
    return dataclasses.replace(operator, inputs=inputs, outputs=outputs)


def _rotate(sets: Sequence[Stages], call: Callable[[Stage, Any, int], Any]) -> None:
    """Calls each stage of all sets, with its number, then the next one; a stage gets the result of the one before it."""
    given: list[Any] = [None] * len(sets)
    for number in range(len(sets[0])):
        for i, stages in enumerate(sets):
            given[i] = call(stages[number], given[i], number)


def _call(stage: Stage, given: Any, _: int) -> Any:
    return stage(prepared(stage, given))


def key_of(operator: Operator) -> Key:
    """Returns what makes an operator of the table unique: its name, attributes, types and arithmetic."""
    types = types_of([o.dtype for o in operator.inputs], [o.dtype for o in operator.outputs])
    return operator.name, frozenset(operator.attributes.items()), types, arithmetic_of(operator)

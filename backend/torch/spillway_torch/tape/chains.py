"""Finds out which saved tensors can be recomputed: by which operators, and from which values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from ..base.errors import SpillwayError
from .tape import IGNORED, SMALL, Op, Pack, Ref, Tape, Value

MOST_OPS = 64  # a chain has at most so many


@dataclasses.dataclass
class Saved:
    """A storage that autograd saved, with one value, and that a plan may treat as a whole."""

    value: Value
    bytes: int
    packs: list[Pack]
    unpacks: list[int]  # indices in the tape's list
    dies: int | None  # operators that have run when the program lets go of it; None: it does not before backward
    chain: Chain | None = None  # how to recompute it
    reason: str = ""  # why it cannot be recomputed

    @property
    def storage(self) -> int:
        return self.value[0]


@dataclasses.dataclass
class Chain:
    """Operators that make a value again."""

    ops: list[int]  # in order
    sources: list[Value]  # values that autograd saved before
    held: list[int]  # storages of parameters, of buffers and of small tensors, from which the operators read
    seconds: float
    temporary: int  # most bytes that exist while it runs, in addition to its sources, without the value itself


class _Refused(Exception):
    pass


def saved_storages(tape: Tape) -> dict[int, Saved]:
    """Returns what autograd saved, by storage, as far as each storage has one value that nothing changes until its last use.

    Storages that existed before the step, such as parameters, may be sources, and do not die.
    """
    if not isinstance(tape, Tape):
        raise SpillwayError("the step was recorded without the values of its tensors, which a plan needs: record it with values=True")
    if tape.movable is None:
        tape.movable = _saved_storages(tape)
    return tape.movable


@dataclasses.dataclass
class Stuck:
    """Bytes that autograd saves in the step and that no plan recomputes for one reason.

    Reasons that differ in the module alone are one. The operator, and the module of the reason, are those of the largest storage.
    """

    bytes: int
    operator: str
    reason: str


def stuck(tape: Tape) -> list[Stuck]:
    """Returns all that autograd saves and that cannot be recomputed, the most bytes first."""
    movable = saved_storages(tape)
    groups: dict[str, list[tuple[int, str, str]]] = {}
    for storage in dict.fromkeys(pack.value[0] for pack in tape.packs if not pack.leaf and pack.value[0] not in tape.parameters):
        saved, of = movable.get(storage), tape.storages[storage]
        if of.born < 0 or saved is not None and saved.dies is not None and saved.chain is not None:
            continue
        reason = ("it is saved with several values, or written to until backward has read it" if saved is None else
                  saved.reason or "the program holds it until backward reads it")
        groups.setdefault(re.sub(r" in module '[^']*'", "", reason), []).append((of.size, tape.ops[of.born].place, reason))
    found = [Stuck(sum(size for size, *_ in held), *max(held)[1:]) for held in groups.values()]
    return sorted(found, key=lambda group: -group.bytes)


def _saved_storages(tape: Tape) -> dict[int, Saved]:
    found: dict[int, Saved] = {}
    dropped: set[int] = set()
    for pack in tape.packs:
        if pack.leaf or pack.value[0] in tape.parameters or pack.value[0] in tape.gathered:
            continue
        storage = pack.value[0]
        saved = found.setdefault(storage, Saved(pack.value, tape.storages[storage].size, [], [], None))
        saved.packs.append(pack)
        if saved.value != pack.value:
            dropped.add(storage)
    for at, unpack in enumerate(tape.unpacks):
        if unpack.pack.value[0] in found:
            found[unpack.pack.value[0]].unpacks.append(at)
    for storage, saved in found.items():
        if any(write <= tape.unpacks[-1].op for write in tape.writes.get(storage, [])[saved.value[1]:]):
            dropped.add(storage)  # also if nobody reads it any more: others may be recomputed from it
        born, died = tape.storages[storage].born, tape.storages[storage].died
        if saved.unpacks and born >= 0 and died is not None and died <= tape.unpacks[saved.unpacks[0]].op:
            saved.dies = died
    for storage in dropped:
        del found[storage]
    for saved in found.values():
        try:
            saved.chain = _chain(tape, found, saved)
        except _Refused as refused:
            saved.reason = str(refused)
    _refuse_absent(tape, found)
    return found


def _refuse_absent(tape: Tape, found: dict[int, Saved]) -> None:
    """Refuses chains from parameters that the step gathers, but not for all operators for which the chain may run."""
    wanted: dict[int, set[int]] = {saved.storage: {tape.unpacks[at].op for at in saved.unpacks} for saved in found.values()}
    for saved in sorted(found.values(), key=lambda s: -s.packs[0].position):
        if saved.chain is None:
            continue
        held = [storage for storage in saved.chain.held if storage in tape.gathered]
        if not all(tape.is_gathered(storage, at) for storage in held for at in wanted[saved.storage]):
            saved.chain, saved.reason = None, "it follows from a parameter that is not gathered then"
            continue
        for storage, _ in saved.chain.sources:
            wanted[storage] |= wanted[saved.storage]


def _chain(tape: Tape, found: dict[int, Saved], saved: Saved) -> Chain:
    """Returns how to recompute a value; raises `_Refused`."""
    position = saved.packs[0].position
    ops: set[int] = set()
    sources: dict[Value, None] = {}
    held: dict[int, None] = {}
    waiting = [saved.value]
    while waiting:
        value = waiting.pop()
        made = tape.producer.get(value)
        if made is None:
            raise _Refused("a value that it follows from was not made in the step, and is neither a parameter nor saved nor small")
        if made in ops:
            continue
        ops.add(made)
        if len(ops) > MOST_OPS:
            raise _Refused(f"it takes more than {MOST_OPS} operators")
        op = tape.ops[made]
        if op.once:
            raise _Refused(op.once)
        if op.random and tape.captured:
            raise _Refused(f"{op.place} draws random numbers, which a captured step cannot draw again")
        for operand, scratch in operands_of(op):
            if scratch:
                continue
            if not isinstance(operand, Ref):
                if operand.untyped_storage().nbytes() > SMALL:
                    raise _Refused(f"{op.place} reads a large tensor of the host")
                continue
            other = found.get(operand.value[0])
            if tape.held(operand, made):
                held[operand.value[0]] = None
            elif other is not None and other.value == operand.value and other is not saved and other.packs[0].position < position:
                sources[operand.value] = None
            else:
                waiting.append(operand.value)
    return _at_size(tape, saved, Chain(sorted(ops), list(sources), list(held), 0.0, 0))


def _at_size(tape: Tape, saved: Saved, chain: Chain) -> Chain:
    return dataclasses.replace(chain, seconds=sum(tape.ops[at].seconds for at in chain.ops), temporary=_temporary(tape, chain.ops, saved))


def saved_like(tape: Tape, found: dict[int, Saved]) -> dict[int, Saved]:
    """Returns what autograd saved in a step of another size than that of `found`, to be recomputed by the same operators."""
    return {number: dataclasses.replace(saved, bytes=tape.storages[number].size,
                                        chain=_at_size(tape, saved, saved.chain) if saved.chain is not None else None)
            for number, saved in found.items()}


def operands_of(op: Op) -> Iterator[tuple[Any, bool]]:
    """Yields the tensors that an operator reads, in the order of its arguments, and whether each holds statistics that it writes.

    A tensor of the device is a `Ref`; others are themselves.
    """
    training = op.packet in IGNORED and any(
        argument.name == "training" and (op.args[at] if at < len(op.args) else op.kwargs.get("training"))
        for at, argument in enumerate(op.func._schema.arguments))
    for at, argument in enumerate(op.func._schema.arguments if op.func is not None else ()):
        value = op.args[at] if at < len(op.args) else op.kwargs.get(argument.name)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Ref) or hasattr(item, "untyped_storage"):
                yield item, training and argument.name in ("running_mean", "running_var")


def _temporary(tape: Tape, ops: list[int], saved: Saved) -> int:
    last: dict[int, int] = {}
    for at in ops:
        for operand, scratch in operands_of(tape.ops[at]):
            if isinstance(operand, Ref) and not scratch:
                last[operand.value[0]] = at
    live: dict[int, int] = {}
    most = 0
    for at in ops:
        for storage in (*tape.ops[at].fresh, *(value[0] for value in tape.ops[at].written)):
            live[storage] = tape.rounded(storage)
        most = max(most, sum(live.values()) - live.get(saved.storage, 0) + tape.ops[at].scratch)
        for storage in [s for s in live if s != saved.storage and last.get(s, -1) <= at]:
            del live[storage]
    return most

"""Finds out which saved tensors can be recomputed: by which operators, from which values, and how a step confirms it."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..base.errors import SpillwayError
from .graph import TYPES, Edge, Walk
from .tape import IGNORED, Op, Pack, Ref, Tape, Value

MOST_OPS = 64  # a chain has at most so many
LAYOUT = frozenset(("layout", "memory_format", "device", "pin_memory", "non_blocking"))  # arguments that do not change values


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
    root: int | None = None  # the node of the operator that made it

    @property
    def storage(self) -> int:
        return self.value[0]


@dataclasses.dataclass
class Chain:
    """Operators that make a value again."""

    ops: list[int]  # in order
    sources: list[Value]  # values that autograd saved before
    parameters: list[int]  # storages of parameters that the operators read
    walk: Walk
    calls: list[int]  # calls of PyTorch's functions, which alone show some arguments of the operators
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


def _saved_storages(tape: Tape) -> dict[int, Saved]:
    found: dict[int, Saved] = {}
    dropped: set[int] = set()
    for pack in tape.packs:
        if pack.leaf or pack.value[0] in tape.parameters:
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
    computing = {op.node for op in tape.ops if op.node is not None}
    for saved in found.values():
        made = tape.producer.get(saved.value)
        saved.root = tape.ops[made].node if made is not None else None
        if saved.root is None and isinstance(saved.packs[0].edge, tuple):
            saved.root = saved.packs[0].edge[0]
    for saved in found.values():
        try:
            saved.chain = _chain(tape, found, saved, computing)
        except _Refused as refused:
            saved.reason = str(refused)
    return found


def _chain(tape: Tape, found: dict[int, Saved], saved: Saved, computing: set[int]) -> Chain:
    """Returns how to recompute a value; raises `_Refused`."""
    position = saved.packs[0].position
    ops: set[int] = set()
    sources: dict[Value, None] = {}
    parameters: dict[int, None] = {}
    calls: list[int] = []
    waiting = [saved.value]
    while waiting:
        value = waiting.pop()
        made = tape.producer.get(value)
        if made is None:
            raise _Refused("a value that it follows from was not made in the step, or not saved")
        if made in ops:
            continue
        ops.add(made)
        if len(ops) > MOST_OPS:
            raise _Refused(f"it takes more than {MOST_OPS} operators")
        op = tape.ops[made]
        calls += _needed_calls(tape, op)
        if op.random and sum(o.random and o.position == op.position for o in tape.ops) > 1:
            raise _Refused("several operators draw random numbers between two saved tensors")
        for ref in _read(op):
            other = found.get(ref.value[0])
            if ref.value[0] in tape.parameters:
                if any(write >= made for write in tape.writes.get(ref.value[0], ()) if write < tape.unpacks[-1].op):
                    raise _Refused(f"{op.place} reads a parameter that the step changes")
                parameters[ref.value[0]] = None
            elif other is not None and other.value == ref.value and other is not saved and other.packs[0].position < position:
                if not edge_walk(tape, other).complete:
                    raise _Refused(f"the autograd graph does not show how a source of {op.place} was made")
                sources[ref.value] = None
            else:
                waiting.append(ref.value)
            _confirm(tape, op, ref, other)
    stops = {found[value[0]].root for value in sources}
    inside = {node for node in (tape.ops[at].node for at in ops) if node is not None}
    walk = Walk(tape.graph, saved.packs[0].edge, {s for s in stops if s is not None} - inside, inside, computing)
    if not walk.complete or not inside <= {node.number for node in walk.nodes}:
        raise _Refused("the autograd graph does not show how it was made")
    ordered = sorted(ops)
    return Chain(ordered, list(sources), list(parameters), walk, calls, sum(tape.ops[at].seconds for at in ordered),
                 _temporary(tape, ordered, saved))


def _needed_calls(tape: Tape, op: Op) -> list[int]:
    """Returns the call that shows arguments which the graph does not show; raises `_Refused` if nothing shows them."""
    node = tape.graph.nodes.get(op.node) if op.node is not None else None
    if node is None or node.opaque:
        raise _Refused(f"{op.place} ran without gradient or in a function of the program")
    if op.backward:
        raise _Refused("backward made it")
    packet = op.packet
    if packet in IGNORED and not _argument(op, "training"):
        raise _Refused(f"{op.place} reads running statistics")
    ignored = IGNORED.get(packet, frozenset()) | LAYOUT
    hidden = [a.name for a in op.func._schema.arguments if a.name not in ignored and not _has_tensor(_argument(op, a.name))
              and not node.shows(a.name, _argument(op, a.name))]
    if any(a.name in TYPES for a in op.func._schema.arguments):
        tape.graph.typed.add(node.number)
    if not hidden:
        return []
    if op.call is None or tape.compiled:  # torch.compile makes other code where calls are watched
        raise _Refused(f"nothing shows the argument {hidden[0]} of {op.place}")
    return [op.call]


def _argument(op: Op, name: str) -> Any:
    for at, argument in enumerate(op.func._schema.arguments):
        if argument.name == name:
            return op.kwargs.get(name, op.args[at] if at < len(op.args) else argument.default_value)
    raise _Refused(f"{op.place} has no argument {name}")


def _has_tensor(value: Any) -> bool:
    return isinstance(value, Ref) or isinstance(value, list) and any(isinstance(item, Ref) for item in value)


def _read(op: Op) -> list[Ref]:
    """Returns the tensors that an operator reads, without running statistics."""
    hidden = op.packet in IGNORED
    found: list[Ref] = []
    for at, argument in enumerate(op.args):
        if not (hidden and op.func._schema.arguments[at].name in ("running_mean", "running_var")):
            _refs_in(argument, found, op)
    _refs_in(list(op.kwargs.values()), found, op)
    return found


def _refs_in(value: Any, found: list[Ref], op: Op) -> None:
    if isinstance(value, Ref):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refs_in(item, found, op)
    elif hasattr(value, "untyped_storage"):
        raise _Refused(f"{op.place} reads a tensor of the host")


def _confirm(tape: Tape, op: Op, ref: Ref, saved: Saved | None) -> None:
    """Raises `_Refused` unless a step shows that the operator reads this tensor: its node says so, or saved it."""
    assert op.node is not None
    if ref.edge is not None:
        if ref.edge in tape.graph.nodes[op.node].edges:
            return
    elif saved is not None and any(pack.node == op.node + 1 and pack.value == ref.value and pack.geometry == ref.geometry
                                   for pack in saved.packs):
        return
    raise _Refused(f"nothing shows which tensor {op.place} reads")


def _temporary(tape: Tape, ops: list[int], saved: Saved) -> int:
    last: dict[int, int] = {}
    for at in ops:
        for ref in _read(tape.ops[at]):
            last[ref.value[0]] = at
    live: dict[int, int] = {}
    most = 0
    for at in ops:
        for storage in (*tape.ops[at].fresh, *(value[0] for value in tape.ops[at].written)):
            live[storage] = tape.rounded(storage)
        most = max(most, sum(live.values()) - live.get(saved.storage, 0) + tape.ops[at].scratch)
        for storage in [s for s in live if s != saved.storage and last.get(s, -1) <= at]:
            del live[storage]
    return most


def edge_walk(tape: Tape, saved: Saved) -> Walk:
    """Returns the part of the graph between a saved tensor and the operator that made it."""
    edge: Edge = saved.packs[0].edge
    return Walk(tape.graph, edge, {saved.root} if saved.root is not None else set(), set(), set())

"""What a recorded step would be with inputs of other sizes."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Sequence

from ..base.ledger import Storage
from .tape import Op, Tape

NUMBER = 16  # bytes of a number, at most

Shapes = tuple[tuple[int, ...], ...]  # of the tensors that a model is given


def ratios_of(was: Shapes, now: Shapes) -> dict[int, float]:
    """Returns, for each size that changes, how many times as large it is; the most if it changes in several ways."""
    found: dict[int, float] = {}
    for old, new in zip(itertools.chain(*was), itertools.chain(*now)):
        found[old] = max(found.get(old, 0.0), new / max(old, 1))
    return {size: ratio for size, ratio in found.items() if ratio != 1 and size > 1}


def scaled(tape: Tape, was: Shapes, now: Shapes) -> Tape:
    """Returns a copy of the step as it would be if its inputs had the shapes `now` instead of `was`.

    A tensor grows with each of its dimensions that has the size of a changed dimension of an input, or the product of it and another
    one. A tensor without such a dimension grows once with a changed size that divides one of its dimensions. Parameters and their
    gradients stay. Times grow as the bytes that an operator reads and writes.
    """
    ratios, made = ratios_of(was, now), copy.copy(tape)
    if not ratios:
        return made
    lasting = {tape.storages[s].shape for s in tape.parameters}
    products = {a * b: ratios.get(a, 1.0) * ratios.get(b, 1.0) for a, b in itertools.combinations(sorted({*itertools.chain(*was)}), 2)
                if 1 not in (a, b)}
    made.storages = {number: storage if number in tape.parameters or storage.shape in lasting else
                     dataclasses.replace(storage, size=math.ceil(storage.size * _growth(storage, ratios, products)), shape=tuple(
                         round(size * ratios.get(size, products.get(size, 1.0))) for size in storage.shape))
                     for number, storage in tape.storages.items()}
    most = max(1.0, math.prod(ratios.values()))
    made.operators = made.ops = [_scaled_op(op, made.storages, most) for op in tape.ops]
    made.used = _used(tape, made)
    made.movable = None
    return made


def _growth(storage: Storage, ratios: dict[int, float], products: dict[int, float]) -> float:
    if not storage.shape:  # nothing tells its dimensions, or it is a number
        return max(1.0, *ratios.values()) if storage.size > NUMBER else 1.0
    exact = [ratios.get(size, products.get(size, 1.0)) for size in storage.shape]
    if any(ratio != 1 for ratio in exact):
        return math.prod(exact)
    return math.prod(ratio for size, ratio in ratios.items() if any(dimension % size == 0 for dimension in storage.shape if dimension))


def _scaled_op(op: Op, storages: dict[int, Storage], most: float) -> Op:
    inputs = [dataclasses.replace(o, storage=storages.get(o.storage.number, o.storage)) for o in op.inputs]
    outputs = [dataclasses.replace(o, storage=storages.get(o.storage.number, o.storage)) for o in op.outputs]
    before, after = _bytes([*op.inputs, *op.outputs]), _bytes([*inputs, *outputs])
    ratio = after / before if before else 1.0
    return dataclasses.replace(op, inputs=inputs, outputs=outputs, seconds=op.seconds * ratio, time_ns=round(op.time_ns * ratio),
                               scratch=math.ceil(op.scratch * (most if ratio != 1 else 1.0)))


def _bytes(operands: Sequence[object]) -> int:
    return sum({o.storage.number: o.storage.size for o in operands}.values())  # type: ignore[attr-defined]


def _used(tape: Tape, made: Tape) -> list[int]:
    """Returns the bytes of the device while each operator runs, which change with the storages and with what operators take."""
    return [used + after - before + now.scratch - was.scratch for used, after, before, now, was in zip(
        tape.used, made.alive(), tape.alive(), made.ops, tape.ops)]

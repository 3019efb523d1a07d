"""What a recorded step would be with inputs of other sizes."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence

from ..base.errors import SpillwayError
from ..base.ledger import Storage
from .tape import Op, Shapes, Tape

NUMBER = 16  # bytes of a number, at most
SMALL = 8  # a size up to it is near too many others


def sizes_of(tape: Tape, sizes: Sequence[int], dimension: int | None = None) -> dict[str, Shapes]:
    """Returns the shapes of the step's inputs, by name, with other sizes in the place of one of their dimensions; also the recorded ones.

    dimension: the one that changes, by default the longest that no parameter has.

    Raises `SpillwayError` if the inputs do not have it.
    """
    if not any(tape.inputs):
        raise SpillwayError("the sizes of the step are not known, because it calls no module with a tensor")
    recorded = dimension_of(tape, dimension)
    for size in sizes:
        if size < 1:
            raise SpillwayError(f"size {size} of the inputs: expected a number from 1")
    return {str(size): tuple(tuple(size if n == recorded else n for n in shape) for shape in tape.inputs)
            for size in sorted({recorded, *sizes})}


def dimension_of(tape: Tape, dimension: int | None = None) -> int:
    """Returns the dimension of the inputs that varies: the given one, or the longest that no parameter has, if there is one."""
    all_ = [*itertools.chain(*tape.inputs)]
    if dimension is not None and dimension not in all_:
        valid = ", ".join(map(str, sorted({*all_})))
        raise SpillwayError(f"dimension {dimension}: no input of the step has it (valid: {valid})")
    fixed = {*itertools.chain(*(tape.storages[s].shape for s in tape.parameters))}
    return dimension or max([n for n in all_ if n not in fixed] or all_)


def name_of(shapes: Shapes) -> str:
    """Returns a name of sizes for the program `spillway`."""
    return "+".join("x".join(map(str, shape)) for shape in shapes)


def ratios_of(was: Shapes, now: Shapes) -> dict[int, float]:
    """Returns, for each size that changes, how many times as large it is; the most if it changes in several ways."""
    found: dict[int, float] = {}
    for old, new in zip(itertools.chain(*was), itertools.chain(*now)):
        found[old] = max(found.get(old, 0.0), new / max(old, 1))
    return {size: ratio for size, ratio in found.items() if ratio != 1 and size > 1}


@dataclasses.dataclass(frozen=True)
class _Change:
    """How many times as large a dimension is, because of which sizes of inputs."""

    ratio: float
    sizes: frozenset[int]


class _Changes:
    """The dimensions that grow with the inputs. What may as well be a dimension of a parameter, of `fixed`, does not get smaller."""

    def __init__(self, was: Shapes, now: Shapes, fixed: Collection[int] = ()) -> None:
        self._fixed = fixed
        self.ratios = ratios = {size: max(1.0, ratio) if size in fixed else ratio for size, ratio in ratios_of(was, now).items()}
        sizes = sorted({*itertools.chain(*was)} - {1})
        self._exact = {size: _Change(ratios.get(size, 1.0), frozenset((size,))) for size in sizes}
        for a, b in itertools.combinations(sizes, 2):
            change, other = _Change(ratios.get(a, 1.0) * ratios.get(b, 1.0), frozenset((a, b))), self._exact.get(a * b)
            self._exact[a * b] = change if other is None or change.ratio > other.ratio else other  # never too little
        self._near: dict[int, _Change] = {}  # a size and one, such as of tokens without the first, or with another one
        for size, shift, factor in itertools.product(ratios, (-1, 1), (1, *sizes)):
            if size > SMALL and factor != size:
                ratio = (size * ratios[size] + shift) / (size + shift) * ratios.get(factor, 1.0)
                self._near.setdefault(factor * (size + shift), _Change(max(1.0, ratio), frozenset((size, factor))))

    def of(self, shape: tuple[int, ...]) -> list[float]:
        """Returns how many times as large each dimension is."""
        found = [self._exact.get(size) for size in shape]
        known = {size for change in found if change is not None for size in change.sizes}
        for at, near in enumerate(map(self._near.get, shape)):
            if found[at] is None and near is not None and shape[at] not in self._fixed and not known & near.sizes & self.ratios.keys():
                found[at] = near
        known |= {size for change in found if change is not None for size in change.sizes}
        grown = [change.ratio if change is not None else 1.0 for change in found]
        alone = all(ratio == 1 for ratio in grown)
        for size in self.ratios.keys() - known:  # it may be a part of one: of all, only one grows with it
            grows = next((at for at, (whole, change) in enumerate(zip(shape, found))
                          if change is None and whole and whole % size == 0 and whole not in self._fixed), None)
            if grows is not None:
                grown[grows] *= self.ratios[size] if alone else max(1.0, self.ratios[size])
        return grown


def scaled(tape: Tape, was: Shapes, now: Shapes) -> Tape:
    """Returns a copy of the step as it would be if its inputs had the shapes `now` instead of `was`.

    A tensor grows with each of its dimensions that has the size of a changed dimension of an input, one more or less, or the product of
    such a size and another one. It grows once with a changed size that no dimension has, and that divides one, but for those of
    parameters. Parameters, also gathered ones, and their gradients stay, and so does what was before the step and its forward does not
    read, such as buckets of gradients. Times grow as the bytes that an operator reads and writes.
    """
    lasting = {tape.storages[s].shape for s in tape.parameters}
    changes, made = _Changes(was, now, set(itertools.chain(*lasting))), copy.copy(tape)
    ratios = changes.ratios
    if not ratios:
        return made
    given = {number for op in tape.ops if not op.backward for number in op.reads}
    made.storages = {number: storage if number in tape.parameters or number in tape.gathered or storage.shape in lasting or
                     storage.born < 0 and number not in given else _grown(storage, changes) for number, storage in tape.storages.items()}
    most = max(1.0, math.prod(ratios.values()))
    made.operators = made.ops = [_scaled_op(op, made.storages, most) for op in tape.ops]
    made.used = _used(tape, made)
    made.movable = None
    if was[:len(tape.inputs)] == tape.inputs:
        made.inputs = now[:len(tape.inputs)]
    return made


def _grown(storage: Storage, changes: _Changes) -> Storage:
    if not storage.shape:  # nothing tells its dimensions, or it is a number
        growth = max(1.0, *changes.ratios.values()) if storage.size > NUMBER else 1.0
        return dataclasses.replace(storage, size=math.ceil(storage.size * growth))
    grown = changes.of(storage.shape)
    return dataclasses.replace(storage, size=math.ceil(storage.size * math.prod(grown) - 1e-6),
                               shape=tuple(round(size * ratio) for size, ratio in zip(storage.shape, grown)))


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

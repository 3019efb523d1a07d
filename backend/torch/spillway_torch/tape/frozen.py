"""Frozen weights that may be on the host: which of them leave, and when each of them comes and goes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

WINDOW = 256 << 20  # bytes of weights that come before they are read, at most
WINDOWS = 8  # there is room for so many, if there are fewer bytes

Key = TypeVar("Key")


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A frozen weight of a recorded step, which is on the device."""

    name: str  # of the parameter
    storage: int
    bytes: int
    reads: tuple[int, ...]  # the operators that read it, ascending


def window_of(total: int) -> int:
    """Returns the bytes of weights that come before they are read, if so many bytes of them are on the host."""
    return min(WINDOW, total // WINDOWS)


def ahead(order: Sequence[Key], at: int, size: Callable[[Key], int], window: int) -> dict[Key, None]:
    """Returns the weights that are on the device between two reads: the next ones, as far as they fit in the window, and at least one.

    order: the weights in the order in which a step reads them.
    at: the last read.
    """
    found: dict[Key, None] = {}
    room = window
    for key in itertools.islice(order, at + 1, None):
        if key in found:
            continue
        room -= size(key)
        if found and room < 0:
            break
        found[key] = None
    return found


def order_of(frozen: Sequence[Frozen]) -> list[tuple[int, Frozen]]:
    """Returns the reads of weights, each with its operator, in their order."""
    return sorted(((at, weight) for weight in frozen for at in weight.reads), key=lambda read: (read[0], read[1].storage))


def chosen(frozen: Sequence[Frozen], size: int) -> list[Frozen]:
    """Returns weights of about so many bytes that leave.

    They lie at equal distances in the step, so that their copies do. The last ones to leave are those that would come while nothing else
    runs, because they are larger than what may come ahead; before them, those that are read again before others of as many bytes are.
    """
    ordered = sorted(frozen, key=lambda weight: weight.reads)
    window = window_of(sum(weight.bytes for weight in ordered))
    soon = _read_soon(ordered, window)
    classes: tuple[list[Frozen], ...] = [], [], []
    for weight in ordered:
        classes[2 if weight.bytes > WINDOW else weight in soon].append(weight)
    found: list[Frozen] = []
    for weights in classes:
        all_ = sum(weight.bytes for weight in weights)
        wanted, taken, passed = min(size - sum(weight.bytes for weight in found), all_), 0, 0
        for weight in weights:
            passed += weight.bytes
            if taken * all_ < wanted * passed:
                found.append(weight)
                taken += weight.bytes
    return found


def _read_soon(frozen: Sequence[Frozen], window: int) -> set[Frozen]:
    """Returns the weights that are read again, for the last time, before others of as many bytes as two windows."""
    order = [weight for _, weight in order_of(frozen)]
    places: dict[Frozen, list[int]] = {}
    for at, weight in enumerate(order):
        places.setdefault(weight, []).append(at)
    return {weight for weight, at in places.items() if len(at) > 1 and
            sum(other.bytes for other in {*order[at[0] + 1:at[-1]]} - {weight}) < 2 * window}


@dataclasses.dataclass
class Visit:
    """A time that a weight is on the device."""

    weight: Frozen
    fetched: int  # the operator behind which its copy starts; -1: when the step begins
    reads: list[int] = dataclasses.field(default_factory=list)


def visits(frozen: Sequence[Frozen], place: Callable[[int], int]) -> Iterator[Visit]:
    """Yields the times at which weights on the host are on the device in a step, in the order in which they come.

    place: the operator in the planned step that stands for one of the recorded step.
    """
    order = [(place(at), weight) for at, weight in order_of(frozen)]
    named = [weight for _, weight in order]
    window = window_of(sum(weight.bytes for weight in frozen))
    here: dict[Frozen, Visit] = {}
    made: list[Visit] = []

    def fetch(weight: Frozen, behind: int) -> None:
        if weight not in here:
            here[weight] = Visit(weight, behind)
            made.append(here[weight])

    for weight in ahead(named, -1, lambda w: w.bytes, window):
        fetch(weight, -1)
    for at, (op, weight) in enumerate(order):
        fetch(weight, op - 1)
        here[weight].reads.append(op)
        if at + 1 < len(order) and order[at + 1][0] == op:
            continue  # the operator reads another one, too
        stays = ahead(named, at, lambda w: w.bytes, window)
        for other in [other for other in here if other not in stays]:
            del here[other]
        for other in stays:
            fetch(other, op)
    yield from made

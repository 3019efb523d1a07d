"""Weights that may be on the host: which of them leave, and when each of them comes and goes."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

WINDOW = 256 << 20  # bytes of weights that come before they are read, at most
WINDOWS = 8  # there is room for so many, if there are fewer bytes

Key = TypeVar("Key")


Moment = tuple[int, int]  # an operator of the tape, and 0; or 1 + the number of an update behind it
LATE = sys.maxsize  # stands for the operator of updates that follow the step


@dataclasses.dataclass(frozen=True)
class RecordedWeight:
    """A weight of a recorded step, which is on the device."""

    name: str  # of the parameter
    storage: int
    bytes: int
    reads: tuple[int, ...]  # the operators that read it, ascending
    trained: bool = False
    updates: tuple[Moment, ...] = ()  # when it is written, ascending


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


def order_of(weights: Sequence[RecordedWeight], place: Callable[[int], int] = lambda at: at) -> list[tuple[Moment, RecordedWeight]]:
    """Returns the reads and updates of weights, each with its moment, in their order.

    place: the operator that stands for one of the tape.
    """
    moments = [((place(at), 0), weight) for weight in weights for at in weight.reads]
    moments += [((at if at == LATE else place(at), update), weight) for weight in weights for at, update in weight.updates]
    return sorted(moments, key=lambda moment: (moment[0], moment[1].storage))


def chosen(weights: Sequence[RecordedWeight], size: int) -> list[RecordedWeight]:
    """Returns weights of about so many bytes that leave.

    They lie at equal distances in the step, so that their copies do. The last ones to leave are those that would come while nothing else
    runs, because they are larger than what may come ahead; before them, those that are read again before others of as many bytes are. What
    is trained leaves behind all that is not, because it goes to the host in each step.
    """
    ordered = sorted(weights, key=lambda weight: weight.reads)
    window = window_of(sum(weight.bytes for weight in ordered))
    soon = _read_soon(ordered, window)
    classes: tuple[list[RecordedWeight], ...] = tuple([] for _ in range(6))
    for weight in ordered:
        classes[3 * weight.trained + (2 if weight.bytes > WINDOW else weight in soon)].append(weight)
    found: list[RecordedWeight] = []
    for group in classes:
        all_ = sum(weight.bytes for weight in group)
        wanted, taken, passed = min(size - sum(weight.bytes for weight in found), all_), 0, 0
        for weight in group:
            passed += weight.bytes
            if taken * all_ < wanted * passed:
                found.append(weight)
                taken += weight.bytes
    return found


def _read_soon(weights: Sequence[RecordedWeight], window: int) -> set[RecordedWeight]:
    """Returns the weights that are read again, for the last time, before others of as many bytes as two windows."""
    order = [weight for _, weight in order_of(weights)]
    places: dict[RecordedWeight, list[int]] = {}
    for at, weight in enumerate(order):
        places.setdefault(weight, []).append(at)
    return {weight for weight, at in places.items() if len(at) > 1 and
            sum(other.bytes for other in {*order[at[0] + 1:at[-1]]} - {weight}) < 2 * window}


@dataclasses.dataclass
class Visit:
    """A time that a weight is on the device."""

    weight: RecordedWeight
    fetched: Moment  # behind which its copy starts
    reads: list[Moment] = dataclasses.field(default_factory=list)

    @property
    def written(self) -> bool:
        """Whether it goes to the host behind the last read."""
        return any(update for _, update in self.reads)


def visits(weights: Sequence[RecordedWeight], place: Callable[[int], int]) -> Iterator[Visit]:
    """Yields the times at which weights on the host are on the device in a step, in the order in which they come.

    place: the operator in the planned step that stands for one of the recorded step.
    """
    order = order_of(weights, place)
    named = [weight for _, weight in order]
    window = window_of(sum(weight.bytes for weight in weights))
    here: dict[RecordedWeight, Visit] = {}
    made: list[Visit] = []

    def fetch(weight: RecordedWeight, behind: Moment) -> None:
        if weight not in here:
            here[weight] = Visit(weight, behind)
            made.append(here[weight])

    before: Moment = (-1, 0)
    for weight in ahead(named, -1, lambda w: w.bytes, window):
        fetch(weight, before)
    for at, (moment, weight) in enumerate(order):
        op, update = moment
        fetch(weight, max(before, (op, 0) if update else (op - 1, 0)))
        if here[weight].reads[-1:] != [moment]:
            here[weight].reads.append(moment)
        if at + 1 < len(order) and order[at + 1][0] == moment:
            continue  # the operator reads another one, too
        before, stays = moment, ahead(named, at, lambda w: w.bytes, window)
        for other in [other for other in here if other not in stays]:
            del here[other]
        for other in stays:
            fetch(other, moment)
    yield from made

"""The streams and events of a pretended GPU: they order operators, and run nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from .data import Collective

Mark = tuple[int, int]  # a lane, and the last operator that it has been given


class Lanes:
    """The lane of each operator, and the operators of other lanes that it waits for. A lane is a stream; 0 is the default one.

    Operators are counted over all recordings, so that an event of an earlier step delays nothing.
    """

    def __init__(self) -> None:
        self.Stream = type("Stream", (Stream,), {"lanes": self})
        self.Event = type("Event", (Event,), {"lanes": self})
        self._count = 0
        self._groups: dict[str, int] = {}
        self._placed = self._first = 0  # operators so far, and before this recording
        self._last: dict[int, int] = {}  # by lane: its last operator
        self._waits: dict[int, set[Mark]] = {}  # by lane: what its next operator waits for
        self._reached: dict[tuple[int, int], int] = {}  # by lane and another one: the last operator of the other that it waited for
        self._busy: dict[int, Mark] = {}  # by number of a storage: the last collective on it
        self.default = self.current = self.Stream()

    def begin(self) -> None:
        """Begins a recording: nothing that ran before is waited for."""
        self._first = self._placed
        for known in (self._last, self._waits, self._reached, self._busy):
            known.clear()

    def new(self) -> int:
        self._count += 1
        return self._count - 1

    def lane_of(self, collective: Collective | None) -> int:
        """Returns the lane of an operator: the current stream, or the stream on which a group of processes communicates."""
        if collective is None or not collective.asynchronous:
            return self.current.lane
        if collective.group not in self._groups:
            self._groups[collective.group] = self.new()
        return self._groups[collective.group]

    def mark(self, lane: int) -> Mark | None:
        """Returns what stands for all that the lane has been given so far; None for nothing."""
        return (lane, self._last[lane]) if lane in self._last else None

    def wait(self, lane: int, mark: Mark | None) -> None:
        """Lets the next operator of a lane wait for a mark of another one."""
        if mark is not None and mark[0] != lane and mark[1] >= self._first:
            self._waits.setdefault(lane, set()).add(mark)

    def place(self, collective: Collective | None, storages: Iterable[int]) -> tuple[int, tuple[int, ...]]:
        """Returns the lane of the next operator, and the numbers of the operators that it waits for.

        The stream of a group waits for the current one. What uses a storage waits for the last collective on it: PyTorch's C++ code
        waits where no event shows it.
        """
        lane = self.lane_of(collective)
        self.wait(lane, self.mark(self.current.lane))
        for storage in storages:
            self.wait(lane, self._busy.get(storage))
            if collective is not None:
                self._busy[storage] = lane, self._placed
        after = []
        for other, number in dict(sorted(self._waits.pop(lane, ()))).items():  # the last of each lane
            if number > self._reached.get((lane, other), -1):
                self._reached[lane, other] = number
                after.append(number - self._first)
        self._last[lane] = self._placed
        self._placed += 1
        return lane, tuple(sorted(after))

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """torch.cuda.stream"""
        outer, self.current = self.current, stream or self.current
        try:
            yield
        finally:
            self.current = outer

    def patches(self) -> dict[str, Any]:
        """Returns what stands for the names of torch.cuda."""
        return {"Stream": self.Stream, "Event": self.Event, "stream": self.on, "StreamContext": self.on,
                "set_stream": lambda stream: setattr(self, "current", stream), "current_stream": lambda device=None: self.current,
                "default_stream": lambda device=None: self.default}


class Event:
    """A pretended event."""

    lanes: Lanes

    def __init__(self, *_: Any, **__: Any) -> None:
        self.mark: Mark | None = None

    def record(self, stream: Any = None) -> None:
        self.mark = self.lanes.mark((stream or self.lanes.current).lane)

    def wait(self, stream: Any = None) -> None:
        self.lanes.wait((stream or self.lanes.current).lane, self.mark)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """The host waits for nothing."""

    def elapsed_time(self, _: Any) -> float:
        return float("nan")


class Stream:
    """A pretended stream."""

    lanes: Lanes

    def __init__(self, *_: Any, **__: Any) -> None:
        self.lane = self.stream_id = self.cuda_stream = self.lanes.new()
        self._outer: list[Any] = []

    def wait_event(self, event: Event) -> None:
        self.lanes.wait(self.lane, event.mark)

    def wait_stream(self, stream: Any) -> None:
        self.lanes.wait(self.lane, self.lanes.mark(stream.lane))

    def record_event(self, event: Any = None) -> Any:
        event = event or self.lanes.Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        """The host waits for nothing."""

    def __enter__(self) -> Any:
        self._outer.append(self.lanes.current)
        self.lanes.current = self
        return self

    def __exit__(self, *_: Any) -> None:
        self.lanes.current = self._outer.pop()

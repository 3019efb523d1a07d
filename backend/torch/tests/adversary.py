"""A device on the CPU that runs copies as late, and in as bad an order, as events allow."""

import collections
import random
import sys
import weakref

import torch

from spillway_torch.base.device import CpuDevice, Queue


def is_given_up(storage):
    """Returns whether a storage has no memory."""
    try:
        return not storage.data_ptr()
    except RuntimeError:
        return True


class Event:
    def __init__(self, queue, done):
        self.queue, self.done = queue, done


class Adversary(CpuDevice):
    """Operators run at once; a copy runs at a random time before somebody waits for it.

    A copy from memory that was given up copies garbage. Memory that was just allocated holds garbage, and what a copy writes
    there without waiting for an event of COMPUTE that was recorded since is overwritten with garbage, as by its last owner.
    Copies into memory that was given up are `violations`.

    `omit` plants a race: names of functions of the executor and two queues, whose wait of the first for the second does nothing.
    """

    def __init__(self, seed, omit=None):
        self.draw = random.Random(seed)
        self.work = {Queue.OUT: collections.deque(), Queue.IN: collections.deque()}
        self.seen = {Queue.OUT: None, Queue.IN: None}
        self.latest = Event(Queue.COMPUTE, True)  # the last event of COMPUTE, until a copy used it
        self.slabs = []
        self.violations = []
        self.copies = 0
        self.omit = omit
        self.omitted = 0

    def garbage(self, tensor):
        tensor.copy_(torch.frombuffer(bytearray(self.draw.randbytes(max(tensor.numel(), 1))), dtype=torch.uint8)[:tensor.numel()])

    def host(self, size):
        host = super().host(size)
        self.garbage(host.bytes)
        self.slabs.append(host.bytes.untyped_storage()._cdata)
        return host

    def empty(self, size):
        self.advance()
        made = super().empty(size)
        self.garbage(made)
        self.latest = None  # events recorded before say nothing about this memory
        return made

    def record(self, queue):
        self.advance()
        event = Event(queue, queue is Queue.COMPUTE)
        if queue is Queue.COMPUTE:
            self.latest = event
        else:
            self.work[queue].append(event)
        return event

    def wait(self, queue, event):
        self.advance()
        if self.omit is not None and self.omit[1:] == (queue, event.queue):
            frame = sys._getframe(1)
            if {frame.f_code.co_name, frame.f_back.f_code.co_name}.intersection(self.omit[0]):
                self.omitted += 1
                return
        if queue is Queue.COMPUTE:
            self.finish(event)
        else:
            if event.queue is Queue.COMPUTE:
                self.seen[queue] = event
            self.work[queue].append(("wait", event))

    def copy(self, queue, into, source):
        self.advance()
        self.copies += 1
        race = self.latest is None or self.seen[queue] is not self.latest
        self.latest = None  # the next copy needs an event of its own
        ends = [t if t.untyped_storage()._cdata in self.slabs else (weakref.ref(t.untyped_storage()), t.storage_offset(), t.numel())
                for t in (into, source)]
        self.work[queue].append(("copy", *ends, race))

    def advance(self):
        """Runs some of the work."""
        while self.draw.random() < 0.4:
            self.run(self.draw.choice((Queue.OUT, Queue.IN)))

    def run(self, queue):
        """Runs the first item of a queue, if it need not wait; returns whether it did."""
        if not self.work[queue]:
            return False
        item = self.work[queue][0]
        if isinstance(item, Event):
            item.done = True
        elif item[0] == "wait":
            if not item[1].done:
                return False
        else:
            self.carry_out(*item[1:])
        self.work[queue].popleft()
        return True

    def finish(self, event):
        """Runs as little as possible until the event is done."""
        while not event.done:
            if not self.run(event.queue):
                self.finish(self.work[event.queue][0][1])

    def carry_out(self, into, source, race):
        def memory(end):
            if isinstance(end, torch.Tensor):
                return end
            storage, offset, size = end[0](), *end[1:]
            if storage is None or is_given_up(storage):
                return None
            return torch.empty(0, dtype=torch.uint8).set_(storage, offset, (size,), (1,))

        into, source = memory(into), memory(source)
        if into is None:
            self.violations.append("a copy wrote to memory that was given up")
        elif source is None or race:
            self.garbage(into)
        else:
            into.copy_(source)

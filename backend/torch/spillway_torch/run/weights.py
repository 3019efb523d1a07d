"""Keeps weights on the host, and has each of them on the device for the operators that read it, and for its update.

The memory of such a weight is given up, and the parameter stays as it is: the fallback of the dispatcher (watch.cc) sees each operator
that is given the parameter, or a view of it, in forward, in backward and between steps. Before the operator runs, the weight comes back;
the next ones are on their way, in the order in which the last step read them. Where a step has another order, the operator waits for a
whole copy. What an operator has written goes to the host, too.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch.utils.dlpack import from_dlpack

from ..base.device import Device, Host, Queue, bytes_of, host_memory
from ..base.errors import SpillwayError
from ..base.ledger import Ledger
from ..plan.plan import PAGE
from ..tape.hooks import in_backward
from ..tape.tape import Tape, geometry_of, view_of
from ..tape.weights import RecordedWeight, ahead, chosen, window_of
from .buckets import is_dense
from .library import steps_library

log = logging.getLogger("spillway_torch")

MOST_SEEN = 100_000  # reads in a step that are noted

Trained = Callable[[], Iterable[torch.Tensor]]


@dataclasses.dataclass(eq=False, repr=False)
class Weight:
    """A weight: a parameter, or several in one storage."""

    name: str
    bytes: int
    storage: weakref.ref[torch.UntypedStorage]  # the program may give the parameters other memory
    key: int  # that storage, as the library knows it
    tensors: list[weakref.ref[torch.Tensor]]
    owners: list[tuple[weakref.ref[torch.nn.Module], str]]  # modules that have it, and its name there
    number: int  # as the library knows it
    trained: bool  # an optimizer updates it
    copy: Optional[torch.Tensor] = None  # memory of the host for its bytes
    kept: bool = False  # the copy has been made, and the library tells what operators write
    changed: bool = False  # operators have written since the last copy to the host
    here: bool = True  # it has memory of the device
    arrived: Any = None  # event: the copy from the host is done, and operators have not waited for it
    left: Any = None  # event: the last copy to the host is done, for which the host has not waited
    readers: int = 0  # operators that read it now
    stays: bool = False  # another stream read it: it is not given up before that is done
    held: Optional[torch.Tensor] = None  # its bytes, while it may leave: they hold the storage

    @property
    def base(self) -> torch.Tensor:
        """Its bytes. REQUIRES: the storage still exists."""
        if self.held is not None:
            return self.held
        storage = self.storage()
        assert storage is not None
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    @property
    def tensor(self) -> torch.Tensor | None:
        """One of the parameters that still exist."""
        return next((tensor for tensor in (reference() for reference in self.tensors) if tensor is not None), None)

    def has_its_memory(self) -> bool:
        """Returns whether a parameter that it is has not got other memory since."""
        tensor = self.tensor
        return tensor is not None and tensor.untyped_storage()._cdata == self.key

    def is_as_it_was(self) -> bool:
        """Returns whether the modules still have the parameters, in the same memory, and train them or not, as before."""
        for (owner, name), reference in zip(self.owners, self.tensors):
            module, tensor = owner(), reference()
            if tensor is None or module is None or module._parameters.get(name) is not tensor or tensor.requires_grad != self.trained:
                return False
            if tensor.untyped_storage()._cdata != self.key:
                return False
        return self.storage() is not None


Read = tuple[Weight, bool]  # whether it is an update that reads it


class HostedWeights:
    """The weights of a model, some of which are on the host. They may be read, written, saved and copied as ever."""

    def __init__(self, model: torch.nn.Module, device: Device, smallest: int, trained: Trained = tuple) -> None:
        """smallest: bytes of a weight that may leave.

        trained: returns the parameters that are updated in parts, which may leave, too.
        """
        self._model, self._device, self.smallest, self._trained = weakref.ref(model), device, smallest, trained
        self._weights: dict[str, Weight] = {}
        self._numbers: dict[int, Weight] = {}
        self._found = 0  # weights so far
        self._outside: dict[Weight, None] = {}  # those that leave in this step
        self._order: list[Weight] = []  # as this step is expected to read them
        self._places: dict[Read, list[int]] = {}  # in `_order`
        self._seen: list[Read] = []  # as it does
        self._read = 0  # of these, up to the last one that backward or an update read
        self._at = -1  # the last read, in `_order`
        self._shown = False  # all are on the device until the next step
        self._began = False
        self._hosts: list[Host] = []
        self._free: list[torch.Tensor] = []  # memory there of weights that are gone
        self._leaving: collections.deque[tuple[torch.Tensor, Any]] = collections.deque()  # memory, and the copy to the host that reads it
        self._hooked: weakref.WeakKeyDictionary[torch.nn.Module, set[str]] = weakref.WeakKeyDictionary()  # names there
        self._lock = threading.RLock()
        self.apart: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext  # around copies while a step is recorded
        this = weakref.ref(self)

        def begin(numbers: list[int]) -> None:
            hosted = this()
            if hosted is not None:
                hosted._begin(numbers)

        def end(numbers: list[int], written: list[int]) -> None:
            hosted = this()
            if hosted is not None:
                hosted._end(numbers, written)

        self._library = steps_library().Weights
        self._native = self._library(begin, end)
        self.find()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_native"):
            self.close()

    def find(self) -> None:
        """Finds the weights of the model that others than its modules do not hold: frozen ones, and those that are updated in parts."""
        self._forget()
        model, trained = self._model(), {id(tensor) for tensor in self._trained()}
        found: dict[int, list[tuple[str, torch.nn.Module, str, torch.Tensor]]] = {}
        for prefix, module in model.named_modules() if model is not None else ():
            for name, tensor in module._parameters.items() if not isinstance(module, torch.jit.ScriptModule) else ():
                if type(tensor) is torch.nn.Parameter and tensor.device == self._device.place and tensor.layout == torch.strided:
                    held = found.setdefault(tensor.untyped_storage()._cdata, [])
                    held.append((f"{prefix}.{name}" if prefix else name, module, name, tensor))
        known = {weight.key for weight in self._weights.values()}
        for storage, held in found.items():
            name, tensors = held[0][0], {id(tensor): tensor for *_, tensor in held}
            size = held[0][3].untyped_storage().nbytes()
            if storage in known or size < max(1, self.smallest) or self._library.holders(held[0][3]) > len(tensors) or not all(
                    t.requires_grad == held[0][3].requires_grad and (not t.requires_grad or id(t) in trained) and is_dense(t)
                    for t in tensors.values()):
                continue
            for tensor in tensors.values() if not held[0][3].requires_grad else ():
                self._library.mark(tensor)
            self._weights[name] = self._numbers[self._found] = Weight(
                name, size, weakref.ref(held[0][3].untyped_storage()), storage, [weakref.ref(tensor) for *_, tensor in held],
                [(weakref.ref(module), attribute) for _, module, attribute, _ in held], self._found, held[0][3].requires_grad)
            self._found += 1

    @property
    def weights(self) -> Iterable[Weight]:
        """The weights that may leave."""
        return self._weights.values()

    def recorded(self, ledger: Ledger, tape: Tape) -> list[RecordedWeight]:
        """Returns the weights that a recorded step only reads until its update, by operators that can be seen, where they were before it.

        A weight that autograd saves, and that no operator of backward reads, may be read by a kernel that takes its address.
        """
        found, unpacked = [], {unpack.pack.value[0] for unpack in tape.unpacks}
        readers: dict[int, dict[int, None]] = {}  # by storage: operators
        for at, op in enumerate(tape.ops):
            for read in op.reads:
                readers.setdefault(read, {})[at] = None
        for weight in self._weights.values() if not tape.compiled else ():
            tensor = weight.tensor
            storage = ledger.known(tensor.untyped_storage()) if tensor is not None else None
            if storage is None or storage.born >= 0 or storage.number in tape.writes:
                continue
            reads = tuple(readers.get(storage.number, ()))
            if reads and (storage.number not in unpacked or any(tape.ops[at].backward for at in reads)):
                found.append(RecordedWeight(weight.name, storage.number, weight.bytes, reads, weight.trained))
        return found

    def some(self, size: int) -> list[str]:
        """Returns the names of weights of about so many bytes, of a step that was not recorded yet.

        If frozen ones do not suffice, all leave: what autocast copies of trained ones, and their gradients, are not known before.
        """
        all_ = [RecordedWeight(w.name, at, w.bytes, (at,), w.trained) for at, w in enumerate(self._weights.values())]
        leaving = chosen(all_, size)
        return [weight.name for weight in (all_ if any(weight.trained for weight in leaving) else leaving)]

    @property
    def names(self) -> list[str]:
        """The names of the weights that leave in this step."""
        return [weight.name for weight in self._outside]

    @property
    def outside(self) -> int:
        """The bytes of weights that leave in this step."""
        return sum(weight.bytes for weight in self._outside)

    def leaving(self, tensors: Iterable[torch.Tensor]) -> list[Weight]:
        """Returns the weights of parameters, or of parts of them, that leave in this step."""
        keys = {tensor.untyped_storage()._cdata for tensor in tensors} if self._outside else ()
        return [weight for weight in self._outside if weight.key in keys]

    @contextlib.contextmanager
    def updating(self, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
        """Within it, weights of parameters, or of parts of them, are on the device, so that each comes once for several operators."""
        numbers = [weight.number for weight in self.leaving(tensors)]
        if not numbers:
            yield
            return
        self._begin(numbers, updates=True)
        try:
            yield
        finally:
            self._end(numbers, [])

    def absent(self) -> int:
        """Returns the bytes of weights that have no memory of the device now, as its allocator counts them."""
        return sum(self._device.block(weight.bytes) for weight in self._outside if not weight.here and weight.has_its_memory())

    def begin(self, names: Sequence[str], order: Sequence[tuple[str, bool]] = ()) -> None:
        """Begins a step, in which these weights have memory of the device only when operators need them.

        order: the names as the step reads them, and whether an update does, which is taken where other weights leave than in the step
            before.

        Raises `SpillwayError` if the host has no room.
        """
        before = self.outside
        self._divide(names, order)
        if self.outside > before:
            self.tell()

    def tell(self) -> None:
        """Says in the log how much is on the host."""
        log.info("spillway: %s bytes of weights are on the host", f"{self.outside:,}")

    def _divide(self, names: Sequence[str], order: Sequence[tuple[str, bool]]) -> None:
        with self._lock, torch.no_grad():
            if self._began and not self._device.current():
                self._give_up(())  # memory belongs to the stream of the step before
            self._end_leaving(0)
            if not names and not self._outside:
                return
            self._device.begin()
            self._began, self._shown = True, False
            if self._forget():
                self.find()
            outside = dict.fromkeys(self._weights[name] for name in names if name in self._weights)
            if list(outside) != list(self._outside):
                self._change(outside)
                self._expect([(self._weights[name], updates) for name, updates in order
                              if name in self._weights and self._weights[name] in outside])
            elif self._read:
                self._expect(self._seen[:self._read])
            self._seen, self._read, self._at = [], 0, -1
            self._advance()

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Has these weights leave now, too."""
        self.find()
        taken = {tensor.untyped_storage()._cdata for tensor in tensors}
        self._divide([*self.names, *(w.name for w in self._weights.values() if w.key in taken)], ())

    def close(self) -> None:
        """Takes all weights back to the device, and gives the memory of the host back. What has no room there is on the CPU from now on."""
        with self._lock, torch.no_grad():
            try:
                self._come_back()
            except torch.OutOfMemoryError:
                self._move_to_host()
            for weight in self._weights.values():
                weight.copy, weight.kept = None, False
            self._end_leaving(0)
            self._outside.clear()
            self._free.clear()
            self._native.close()
            for host in self._hosts:
                host.close()
            self._hosts.clear()

    def show(self) -> None:
        """Takes all weights to the device until the next step, so that the model can be saved as an object."""
        with self._lock, torch.no_grad():
            self._shown = True
            self._come_back()

    def _come_back(self) -> None:
        for weight in self._outside:
            if weight.tensor is not None:
                self._fetch(weight)
                self._settle(weight)
        if self._outside:
            self._device.now()

    def _move_to_host(self) -> None:
        """Makes weights without memory of the device tensors of the CPU."""
        self._device.now()  # copies to the host are done
        absent = [weight for weight in self._outside if not weight.here]
        for weight in absent:
            assert weight.copy is not None
            for tensor in (reference() for reference in weight.tensors):
                if tensor is not None:
                    tensor.data = view_of(weight.copy.untyped_storage(), geometry_of(tensor))
        log.warning("spillway: %s bytes of weights are on the CPU now, because the device has no room for them",
                    f"{sum(weight.bytes for weight in absent):,}")

    def _forget(self) -> bool:
        """Forgets weights that the program has replaced, moved or made trainable since, and returns whether there were some."""
        changed = [weight for weight in self._weights.values() if not weight.is_as_it_was()]
        for weight in changed:
            self._outside.pop(weight, None)
            if weight.copy is not None:
                if weight.held is not None and self._library.holders(weight.held) > 1:  # the program has it elsewhere
                    self._fetch(weight)
                    self._settle(weight)
                self._native.remove(weight.key)
                self._device.now()
                self._free.append(weight.copy)
            del self._weights[weight.name], self._numbers[weight.number]
        if changed:
            self._read = 0
            self._expect([])
        return bool(changed)

    def _expect(self, order: list[Read]) -> None:
        self._order, self._places = [weight for weight, _ in order], {}
        for at, read in enumerate(order):
            self._places.setdefault(read, []).append(at)

    def _is_alone(self, weight: Weight) -> bool:
        """Returns whether no view of a trained weight exists. Operators that are given later ones are seen then.

        That costs the host time for each operator, and most trained weights never leave.
        """
        tensors = {id(tensor): tensor for tensor in (reference() for reference in weight.tensors) if tensor is not None}
        if any(self._library.holders(tensor) > len(tensors) for tensor in tensors.values()):
            return False
        for tensor in tensors.values():
            self._library.mark(tensor)
        return True

    def _change(self, outside: dict[Weight, None]) -> None:
        """Lets other weights leave from now on."""
        outside = {weight: None for weight in outside if weight.kept or not weight.trained or self._is_alone(weight)}
        new = [weight for weight in outside if not weight.kept]
        self._reuse(new)
        lacking = [weight for weight in new if weight.copy is None]
        size, free = sum(_pages(weight.bytes) for weight in lacking), host_memory() if lacking else 0
        if size > free:
            raise SpillwayError(f"{size:,} bytes of weights have to be on the host, which has {free:,} bytes free: give a larger "
                                "budget, or free memory of the host")
        for weight in self._outside:
            if weight not in outside:
                self._fetch(weight)
                self._settle(weight)
                weight.held = None
                if weight.trained:  # each update would tell
                    self._native.remove(weight.key)
                    weight.kept = False
        self._outside = {weight: None for weight in self._outside if weight in outside}
        if lacking:
            self._hosts.append(self._device.host(size))
        at = 0
        for weight in lacking:  # each has a storage of its own, as the files that programs write expect
            weight.copy = from_dlpack(self._hosts[-1].bytes[at:at + weight.bytes])
            at += _pages(weight.bytes)
        for weight in outside:
            weight.held = weight.base
        for weight in new:
            self._native.add(weight.base, weight.number)
            self._copy_out(weight, weight.base)
            weight.kept = True
        self._outside = outside
        self._add_hooks()
        if new:
            for weight in new:
                self._leave(weight)
            self._device.now()  # other streams may have used their memory until now

    def _reuse(self, weights: Sequence[Weight]) -> None:
        """Gives weights the memory of the host that those had which are gone."""
        for weight in (weight for weight in weights if weight.copy is None):
            at = next((at for at, free in enumerate(self._free) if free.numel() == weight.bytes), None)
            if at is not None:
                weight.copy = self._free.pop(at)

    # ---- what operators do ----

    def _begin(self, numbers: list[int], updates: bool = False) -> None:
        """Has weights on the device for an operator that reads them, or for all those of an update."""
        with self._lock, self.apart(), torch.no_grad():
            weights = self._known(numbers)
            begun = [weight for weight in weights if not weight.readers]
            for weight in weights:
                weight.readers += 1
            try:
                if not self._device.current() and not all(weight.here for weight in weights):
                    self._device.now()  # the memory that they get belongs to another stream
                self._note(begun, updates)
                for weight in weights:
                    self._fetch(weight)
                    self._settle(weight)
                if not self._device.current():
                    self._device.now()
                    for weight in weights:
                        weight.stays = True
            except BaseException:
                for weight in weights:
                    weight.readers -= 1
                raise

    def _end(self, numbers: list[int], written: list[int]) -> None:
        """Lets weights leave that an operator has read, and starts copies of the next ones."""
        with self._lock, self.apart(), torch.no_grad():
            for weight in self._known(numbers):
                weight.readers -= 1
            in_use = any(weight.readers for weight in self._known(numbers))
            for weight in self._known(written):
                weight.changed = True
                if not self._device.current():
                    self._device.now()
            if self._device.current() and not in_use:
                self._advance()

    def _known(self, numbers: list[int]) -> list[Weight]:
        """Returns weights by number, without those that were forgotten since an operator was given them."""
        return [self._numbers[number] for number in numbers if number in self._numbers]

    def _note(self, weights: Sequence[Weight], updates: bool) -> None:
        """Finds where in the expected order an operator or an update is, which may read its weights in any order."""
        weights = [weight for weight in weights if weight in self._outside]
        if len(self._seen) < MOST_SEEN:
            self._seen += [(weight, updates) for weight in weights]
        if weights and (updates or in_backward()):
            self._read = len(self._seen)
        places = [self._places[weight, updates] for weight in weights if (weight, updates) in self._places]
        self._at = max((at[bisect.bisect_right(at, self._at) % len(at)] for at in places), default=self._at)

    def _advance(self) -> None:
        """Gives up what is not read next, and starts copies of what is."""
        if self._shown:
            return
        next_ = ahead(self._order, self._at, lambda weight: weight.bytes, window_of(self.outside))
        self._give_up(next_)
        for weight in next_:
            try:
                self._fetch(weight)
            except torch.OutOfMemoryError:  # it comes when it is read
                return

    def _give_up(self, stay: Iterable[Weight]) -> None:
        for weight in self._outside:
            if not weight.here or weight.readers or weight in stay:
                continue
            if weight.stays:
                self._device.now()
                weight.stays = False
            self._settle(weight)
            memory, weight.here = self._library.give_up(weight.base), False
            if weight.changed:
                self._copy_out(weight, memory)
                self._leaving.append((memory, weight.left))
                self._end_leaving(window_of(self.outside))

    def _end_leaving(self, most: int) -> None:
        """Makes operators wait for copies to the host, until no more bytes than these are in memory that was given up, or one weight."""
        while self._leaving and (not most or len(self._leaving) > 1 and sum(memory.numel() for memory, _ in self._leaving) > most):
            memory, left = self._leaving.popleft()
            self._device.wait(Queue.COMPUTE, left)
            del memory

    def _settle(self, weight: Weight) -> None:
        """Makes operators wait for a copy that is still writing to a weight."""
        if weight.arrived is not None:
            self._device.wait(Queue.COMPUTE, weight.arrived)
            weight.arrived = None

    def _leave(self, weight: Weight) -> None:
        """Makes operators wait for a copy that is still reading a weight."""
        if weight.left is not None:
            self._device.wait(Queue.COMPUTE, weight.left)

    def _fetch(self, weight: Weight) -> None:
        """Starts the copy of a weight from the host, unless it is on the device, or on its way."""
        if weight.here:
            return
        assert weight.copy is not None
        memory = self._device.empty(weight.bytes)
        try:
            self._device.wait(Queue.IN, self._device.record(Queue.COMPUTE))
            if weight.left is not None:
                self._device.wait(Queue.IN, weight.left)
            self._device.copy(Queue.IN, memory, weight.copy)
            weight.arrived = self._device.record(Queue.IN)
        except BaseException:  # such as that the user interrupts it
            self._device.wait(Queue.COMPUTE, self._device.record(Queue.IN))
            raise
        self._library.put(weight.base, memory)
        weight.here = True

    def _copy_out(self, weight: Weight, memory: torch.Tensor) -> None:
        """Starts the copy of a weight to the host."""
        assert weight.copy is not None
        self._device.wait(Queue.OUT, self._device.record(Queue.COMPUTE))
        self._device.copy(Queue.OUT, weight.copy, memory)
        weight.left, weight.changed = self._device.record(Queue.OUT), False

    # ---- what programs save ----

    def _add_hooks(self) -> None:
        """Has weights on the host as CPU tensors in the `state_dict` of their modules."""
        this = weakref.ref(self)
        for weight in self._outside:
            for owner, name in weight.owners:
                module = owner()
                if module is not None and name not in self._hooked.setdefault(module, set()):
                    self._hooked[module].add(name)
                    module.register_state_dict_post_hook(_Shown(this, name))

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a parameter as a tensor on the host; None if it is not there."""
        with self._lock:
            storage = tensor.untyped_storage()._cdata
            weight = next((weight for weight in self._outside if weight.key == storage), None)
            if weight is None or weight.copy is None:
                return None
            if weight.changed:
                self._copy_out(weight, weight.base)
            if weight.left is not None:
                self._leave(weight)
                self._device.now()
                weight.left = None
            return view_of(weight.copy.untyped_storage(), geometry_of(tensor))


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class _Shown:
    """A hook of `state_dict`, which copies of the module do not need."""

    def __init__(self, hosted: Any, name: str) -> None:
        self._hosted, self._name = hosted, name

    def __call__(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        hosted, key, tensor = self._hosted(), prefix + self._name, module._parameters.get(self._name)
        if hosted is None or tensor is None or not isinstance(state.get(key), torch.Tensor) or state[key] is tensor:
            return
        found = hosted._on_host(tensor)
        if found is not None:
            state[key] = found

    def __reduce__(self) -> Any:
        return _Shown, (_nobody, self._name)


def _nobody() -> None:
    """Stands for weights of which a copy of a module knows nothing."""

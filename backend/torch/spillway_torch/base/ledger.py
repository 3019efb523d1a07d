"""The storages of a device, from allocation to release."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable

import torch

BEFORE = -1  # the birth of a storage that existed before the recording


@dataclasses.dataclass(eq=False)
class Storage:
    """Memory that tensors share.

    Times are numbers of recorded operators: `born` operators had run when it was allocated, `died` when it was released.
    """

    number: int
    size: int  # bytes
    born: int = BEFORE
    died: int | None = None  # None: it outlives the recording
    dtype: torch.dtype | None = None  # the type of the first tensor in it
    shape: tuple[int, ...] = ()  # the shape of the first tensor that covers all of it
    request: int | None = None  # index in `Ledger.requests`
    on_host: bool = False  # the program has it on the host until it moves it to the pretended device
    nowhere: bool = False  # the program has made it on "meta", and no step has used it
    lane: int = 0  # the stream from whose pool PyTorch takes it (`streams.py`)


class Ledger:
    """Knows each storage of one device that a tensor was seen in, and learns at once when it is released."""

    def __init__(self, device: str) -> None:
        self.device = device  # type of the device: "meta", "cpu" or "cuda"
        self.clock: Callable[[], int] = lambda: BEFORE
        self.lane: Callable[[], int] = lambda: 0
        self._alive: dict[int, tuple[Storage, weakref.ref[torch.UntypedStorage]]] = {}
        self._seen = 0
        # The requests until the first step begins: the size, how many had been made when the memory was given back, or
        # -1 if it was not, and the lane.
        self.requests: list[list[int]] = []
        self.started = False  # whether the first step has begun

    def find(self, tensor: torch.Tensor, born: int | None = None) -> Storage:
        """Returns the storage of a tensor; a storage never seen was born at `born`, by default before the recording."""
        untyped = tensor.untyped_storage()
        key = untyped._cdata
        known = self._alive.get(key)
        if known is not None:
            storage = known[0]
            storage.size = max(storage.size, untyped.nbytes())  # resize_
            return storage
        storage = self._add(untyped, BEFORE if born is None else born, tensor.dtype)
        if tensor.numel() * tensor.element_size() == storage.size:
            storage.shape = tuple(tensor.shape)
        return storage

    def _add(self, untyped: torch.UntypedStorage, born: int, dtype: torch.dtype | None) -> Storage:
        key = untyped._cdata
        storage = Storage(self._seen, untyped.nbytes(), born, None, dtype, lane=self.lane())
        self._seen += 1
        self._request(storage)
        self._alive[key] = (storage, weakref.ref(untyped, lambda _: self._end(key)))
        return storage

    def resized(self, untyped: torch.UntypedStorage) -> Storage:
        """Returns what a tensor's storage has become whose memory was given back or replaced by other memory."""
        old = self.known(untyped)
        if old is not None:
            self._end(untyped._cdata)
        return self._add(untyped, self.clock(), old.dtype if old is not None else None)

    def _request(self, storage: Storage, late: bool = False) -> None:
        storage.on_host = storage.nowhere = False
        if (late or not self.started) and storage.size > 0:
            storage.request = len(self.requests)
            self.requests.append([storage.size, -1, storage.lane])

    def keep_on_host(self, storage: Storage, nowhere: bool = False) -> None:
        """Takes the storage that was found last for one that the device does not have yet, but the host, or nothing as on `meta`."""
        if storage.request is not None:
            del self.requests[storage.request:]
            storage.request, storage.on_host, storage.nowhere = None, True, nowhere

    def use(self, storage: Storage) -> None:
        """Notes that a step computes with a storage, which the device has then."""
        if storage.nowhere and self.started:
            self._request(storage, late=True)

    def arrive(self, tensor: torch.Tensor) -> None:
        """Notes that the program moves a tensor to the device."""
        storage = self.find(tensor)
        if storage.on_host:
            self._request(storage)

    def start(self) -> None:
        """Begins the first step, for which all storages are on the device but those made on "meta"."""
        for storage, _ in list(self._alive.values()):
            if storage.on_host and not storage.nowhere:
                self._request(storage)
        self.started = True

    def known(self, untyped: torch.UntypedStorage) -> Storage | None:
        """Returns what is known of a tensor's storage; None if it was never seen."""
        known = self._alive.get(untyped._cdata)
        return known[0] if known is not None else None

    def _end(self, key: int) -> None:
        storage = self._alive.pop(key)[0]
        storage.died = self.clock()
        if storage.request is not None and storage.died == BEFORE:
            self.requests[storage.request][1] = len(self.requests)

    def renew(self) -> list[Storage]:
        """Returns the storages that exist now, as new objects that were born before. Others will not change any more."""
        for key, (old, reference) in self._alive.items():
            self._alive[key] = (dataclasses.replace(old, born=BEFORE), reference)
        return [storage for storage, _ in self._alive.values()]

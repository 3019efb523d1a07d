"""Operators with which compiled graphs have saved values on the host between forward and backward.

`offload` starts the copy of a value to the host, and `release` has later operators wait for it, so that the value's memory is free where
no operator reads it any more. `reload` starts the copy back into new memory, and `wait` has later operators wait for that one. What
order the compiler has to keep follows from what they read and write: `after` is a value that must exist before, and nothing of it is read.

A value on the host is known by the storage of a token, a tensor of eight bytes that forward saves in its place. Its memory on the host is
free as soon as autograd lets go of the token. No operator calls `record_stream`: memory is held until operators have waited for its copy.
The token is on the device, because the compiler takes what follows from tensors of the CPU not to be aligned. Nothing reads it.
"""

from __future__ import annotations

import bisect
import functools
import weakref
from collections.abc import Sequence
from typing import Any, Optional

import torch

from ..base.device import Device, Host, Queue, device_of
from ..base.errors import SpillwayError

PAGE = 4096  # bytes, at which each copy on the host begins
PIECE = 64 << 20  # bytes of the host that are registered at a time, at least

_LIBRARY = torch.library.Library("spillway", "FRAGMENT")
_LIBRARY.define("offload(Tensor x) -> Tensor")
_LIBRARY.define("release(Tensor(a!) token, Tensor x, Tensor after) -> ()")
_LIBRARY.define("reload(Tensor token, Tensor? after, int[] size, int[] stride, ScalarType dtype, Device device) -> Tensor")
_LIBRARY.define("wait(Tensor(a!) x, Tensor token, Tensor? after) -> ()")


class Places:
    """Memory of the host in pieces, of which copies take places. The first one that is large enough is taken."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pieces: list[Host] = []
        self._free: list[list[int]] = []  # of all pieces in order: the number of the piece, where a free part begins, and its bytes
        self.taken = 0

    def take(self, size: int) -> tuple[torch.Tensor, list[int]]:
        """Returns memory for so many bytes, and its place for `give_back`."""
        needed = -(-size // PAGE) * PAGE
        at = next((at for at, part in enumerate(self._free) if part[2] >= needed), None)
        if at is None:
            at = len(self._free)
            self._pieces.append(self._device.host(max(needed, PIECE)))
            self._free.append([len(self._pieces) - 1, 0, max(needed, PIECE)])
        piece, begin, rest = self._free[at]
        self._free[at:at + 1] = [[piece, begin + needed, rest - needed]] if rest > needed else []
        self.taken += 1
        return self._pieces[piece].bytes[begin:begin + size], [piece, begin, needed]

    def give_back(self, place: list[int]) -> None:
        """Frees a place; all copies from it and to it are before those of the next owner."""
        here = bisect.bisect_left(self._free, place)
        self._free.insert(here, place)
        for at in (here, here - 1):  # it joins what follows, and what is before
            if 0 <= at < len(self._free) - 1:
                (piece, begin, size), (other, end, more) = self._free[at:at + 2]
                if piece == other and begin + size == end:
                    self._free[at:at + 2] = [[piece, begin, size + more]]
        self.taken -= 1

    def close(self) -> None:
        """Gives the memory back unless some of it is taken."""
        if not self.taken:
            for host in self._pieces:
                host.close()
            self._pieces, self._free = [], []


class _Value:
    """A value on the host."""

    def __init__(self, host: torch.Tensor, place: list[int], held: torch.Tensor, copied: Any) -> None:
        self.host, self.place = host, place
        self.copies: list[tuple[torch.Tensor, Any]] = [(held, copied)]  # what operators have not waited for, and the memory on the device
        self.token: Any = None  # refers to its storage


class Transfers:
    """Copies of values between a device and the host, in the order of the operators that run on the current stream."""

    def __init__(self, device: Device) -> None:
        self._device, self._begun = device, False
        self._values: dict[int, _Value] = {}  # by token
        self.places = Places(device)

    def _begin(self) -> None:
        if not self._begun or not self._device.current():
            self._device.begin()
            self._begun = True

    def offload(self, x: torch.Tensor) -> torch.Tensor:
        """Starts the copy of a value to the host. Returns its token."""
        self._begin()
        source = _elements(x)
        host, place = self.places.take(source.numel())
        self._device.wait(Queue.OUT, self._device.record(Queue.COMPUTE))
        self._device.copy(Queue.OUT, host, source)
        token = no_token(x)
        key = token.untyped_storage()._cdata
        value = self._values[key] = _Value(host, place, source, self._device.record(Queue.OUT))
        value.token = weakref.ref(token.untyped_storage(), functools.partial(self._end, key))
        return token

    def release(self, token: torch.Tensor) -> None:
        """Has later operators wait for the copy to the host."""
        self._begin()
        self._settle(self._value(token))

    def reload(self, token: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Starts the copy of a value back. Returns it; no operator may read it before `wait`."""
        self._begin()
        value = self._value(token)
        bytes_ = self._device.empty(value.host.numel())
        self._device.wait(Queue.IN, self._device.record(Queue.COMPUTE))
        self._device.copy(Queue.IN, bytes_, value.host)
        value.copies.append((bytes_, self._device.record(Queue.IN)))
        return bytes_.view(dtype).as_strided(size, stride)

    def wait(self, token: torch.Tensor) -> None:
        """Has later operators wait for the copy back."""
        self._begin()
        self._settle(self._value(token))

    def _value(self, token: torch.Tensor) -> _Value:
        value = self._values.get(token.untyped_storage()._cdata)
        if value is None:
            raise SpillwayError("a value that a compiled graph has on the host is gone, because what autograd saves was copied: leave out "
                                "hooks of saved tensors, such as save_on_cpu, around a compiled model that has a budget")
        return value

    def _settle(self, value: _Value) -> None:
        while value.copies:
            self._device.wait(Queue.COMPUTE, value.copies[0][1])
            value.copies.pop(0)

    def _end(self, key: int, _: object) -> None:
        value = self._values.pop(key)
        if value.copies:  # an exception has ended a forward or a backward
            self._begin()
            self._settle(value)
        self.places.give_back(value.place)


_TRANSFERS: dict[torch.device, Transfers] = {}


def _transfers_of(device: torch.device) -> Transfers:
    """Returns the copies of a device, which is the current one of its type where it is used first."""
    if device not in _TRANSFERS:
        _TRANSFERS[device] = Transfers(device_of(device.type))
    return _TRANSFERS[device]


def close() -> None:
    """Gives memory of the host back where no value is there."""
    for transfers in _TRANSFERS.values():
        transfers.places.close()


def _elements(x: torch.Tensor) -> torch.Tensor:
    """Returns the elements of a tensor as bytes. They lie side by side, in some order."""
    return x.detach().as_strided((x.numel(),), (1,)).view(torch.uint8)


def _offload(x: torch.Tensor) -> torch.Tensor:
    return _transfers_of(x.device).offload(x)


def _release(token: torch.Tensor, x: torch.Tensor, after: torch.Tensor) -> None:
    del after
    _transfers_of(x.device).release(token)


def _reload(token: torch.Tensor, after: Optional[torch.Tensor], size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
            device: torch.device) -> torch.Tensor:
    del after
    return _transfers_of(device).reload(token, size, stride, dtype)


def _wait(x: torch.Tensor, token: torch.Tensor, after: Optional[torch.Tensor]) -> None:
    del after
    _transfers_of(x.device).wait(token)


def no_token(x: torch.Tensor) -> torch.Tensor:
    """Returns a token that stands for no value yet."""
    return torch.empty(1, dtype=torch.int64, device=x.device)


def _no_data(token: torch.Tensor, after: Optional[torch.Tensor], size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
             device: torch.device) -> torch.Tensor:
    del token, after
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


for _name, _kernel, _fake in (("offload", _offload, no_token), ("release", _release, lambda *_: None), ("reload", _reload, _no_data),
                              ("wait", _wait, lambda *_: None)):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"spillway::{_name}", _fake, lib=_LIBRARY)

"""The values of small tensors of a pretended device, as far as they are known.

Programs compute positions and masks on the device and look at them (`if mask.all()`). Such values depend on shapes
alone. A tensor that follows only from constants and data of the host, and is small, has a copy with data on the host, in a storage of its
own for each storage of the device, so that views and writes in place stay consistent.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

MOST_BYTES = 4 << 20  # the most bytes of integers and truth values that are known
MOST_FLOAT_BYTES = 64 << 10


# Operators that write all of their first argument.
_OVERWRITES = {torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor, torch.ops.aten.zero_.default,
               torch.ops.aten.copy_.default}


def _whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _worth(tensor: torch.Tensor) -> bool:
    size = tensor.untyped_storage().nbytes()
    return size <= (MOST_FLOAT_BYTES if tensor.dtype.is_floating_point or tensor.dtype.is_complex else MOST_BYTES)


class Values:
    """The known values, by storage."""

    def __init__(self, on_host: bool = False) -> None:
        self.on_host = on_host  # the pretended device is the host, whose draws decide in many programs
        self._random = torch.Generator().manual_seed(0).get_state()
        self._data: dict[int, tuple[torch.UntypedStorage, weakref.ref[torch.UntypedStorage]]] = {}
        self._unknown: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()  # on the host, copied from the device

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a tensor on the host that shares memory with what is known of `tensor`; None if nothing is known."""
        if tensor.device.type != "meta":
            return None if self._unknown and tensor.untyped_storage() in self._unknown else tensor
        known = self._data.get(tensor.untyped_storage()._cdata)
        if known is None:
            return None
        return torch.empty(0, dtype=tensor.dtype).set_(known[0], tensor.storage_offset(), tensor.size(), tensor.stride())

    def forget(self, tensor: torch.Tensor) -> None:
        """Notes that values of `tensor` are no longer known."""
        if tensor.device.type == "meta":
            self.forget_storage(tensor.untyped_storage())
        else:
            self._unknown.add(tensor.untyped_storage())

    def forget_storage(self, untyped: torch.UntypedStorage) -> None:
        self._data.pop(untyped._cdata, None)

    def learn(self, tensor: torch.Tensor, value: torch.Tensor | float) -> None:
        """Notes the values of `tensor`, which covers its storage as far as it is known."""
        if tensor.device.type != "meta" or not _worth(tensor):
            return
        untyped = tensor.untyped_storage()
        key = untyped._cdata
        self._data[key] = (torch.UntypedStorage(untyped.nbytes()),
                           weakref.ref(untyped, lambda _: self._data.pop(key, None)))
        copy = self.of(tensor)
        assert copy is not None
        if isinstance(value, torch.Tensor):
            copy.copy_(value)
        else:
            copy.fill_(value)

    def follow(self, func: Callable[..., Any], args: Any, kwargs: Any, inputs: Sequence[torch.Tensor],
               written: Sequence[torch.Tensor], result: Any, draws: bool, allocates: bool) -> None:
        """Carries the values through an operator that has run without data.

        `inputs` are the tensors among its arguments, `written` those that it writes; `result` is what it returned. Whether it
        `draws` random numbers: those of whole numbers, such as the words of a text, are as good as any others and are drawn on the
        host. Whether it only `allocates`.
        """
        results = result if isinstance(result, (tuple, list)) else (result,)
        outputs = [t for t in results if isinstance(t, torch.Tensor)]
        fresh = [t for t in outputs if all(t.untyped_storage()._cdata != i.untyped_storage()._cdata for i in inputs)]
        if func in _OVERWRITES and _whole(args[0]):
            self.learn(args[0], 0)  # the operator then writes over it
        if all(t.device.type != "meta" for t in [*inputs, *outputs]):  # it ran on the host
            if any(self.of(t) is None for t in inputs):
                for tensor in [*written, *fresh]:
                    self.forget(tensor)
            return
        drawn = draws and all(not t.dtype.is_floating_point or self.on_host for t in outputs)
        known = (drawn or not draws) and not allocates and (bool(written) or any(_worth(t) for t in fresh)) and all(
            self.of(t) is not None for t in inputs)
        real = None
        if known:
            try:
                with self._own_random_numbers() if draws else contextlib.nullcontext():
                    real = self.compute(func, args, kwargs)
            except (RuntimeError, IndexError, ValueError):
                known = False  # the host has no kernel for it, or the program fails on a GPU, too
        if not known:
            for tensor in [*written, *(t for t in fresh if t.device.type != "meta")]:
                self.forget(tensor)
            return
        if not fresh:
            return  # the write in place went to the shared copies
        for tensor, value in zip(results, real if isinstance(real, (tuple, list)) else (real,)):
            if isinstance(tensor, torch.Tensor) and any(tensor is t for t in fresh) and tensor.shape == value.shape:
                self.learn(tensor, value)

    @contextlib.contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """The program's generator stays as it is."""
        state = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(state)

    def compute(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs an operator on the known values of its arguments. REQUIRES: all are known."""
        args, kwargs = tree_map_only(torch.Tensor, self.of, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)

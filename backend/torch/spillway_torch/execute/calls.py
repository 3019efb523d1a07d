"""Compares the calls of PyTorch's functions with those of the recorded step.

The autograd graph does not show every argument: a constant that is added, or the epsilon of a normalisation. Where a rebuilt value
depends on such an argument, the step runs under this mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .graph import current_number

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
          torch.Size, type(Ellipsis))


class _Tensor:
    """Stands for any tensor: the graph says which one it is."""


class _Unknown:
    """Stands for an argument that cannot be compared; it equals nothing."""

    def __eq__(self, other: object) -> bool:
        return False


_TENSOR = _Tensor()


def _shown(value: Any) -> Any:
    """Returns what is compared of an argument."""
    if isinstance(value, torch.Tensor):
        return _TENSOR
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in (tuple, list):
        return [_shown(item) for item in value]
    if kind is dict:
        return [(key, _shown(item)) for key, item in value.items()]
    if kind is slice:
        return [_shown(value.start), _shown(value.stop), _shown(value.step)]
    return _Unknown()


Call = tuple[Any, int, Any]  # the function, the number of the next node, the arguments


class Calls(TorchFunctionMode):
    """Follows the calls of a step; with `expected`, those of the recorded step, it compares them."""

    def __init__(self, base: int, expected: list[Call] | None = None) -> None:
        super().__init__()
        self.made: list[Call] = []
        self.count = 0
        self.difference: str | None = None
        self.inside = False  # a call is running
        self._base = base
        self._expected = expected
        self._paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._paused or self.difference or getattr(func, "__name__", "") == "__get__":
            return func(*args, **(kwargs or {}))
        call = (func, current_number() - self._base, [_shown(args), _shown(kwargs)])
        if self._expected is None:
            self.made.append(call)
        elif self.count >= len(self._expected) or call != self._expected[self.count]:
            name = getattr(func, "__name__", str(func))
            self.difference = f"the call {self.count} of PyTorch, {name}, differs from the recorded step"
        self.count += 1
        self.inside = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside are not the program's."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

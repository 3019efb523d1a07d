"""Compares the calls of PyTorch's functions with those of the recorded step.

The autograd graph does not show every argument: a constant that is added, or the epsilon of a normalisation. Where a recomputed value
depends on such an argument, the step runs under this mode.
"""

from __future__ import annotations

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


class RecordedCalls(TorchFunctionMode):
    """The calls of a step that is recorded. `torch._C.DisableTorchFunction` hides calls that are not the program's."""

    def __init__(self, base: int) -> None:
        super().__init__()
        self.made: list[Call] = []
        self.running: int | None = None  # the index of the call that is running
        self._base = base

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **(kwargs or {}))
        self.running = len(self.made)
        self.made.append((func, current_number() - self._base, [_shown(args), _shown(kwargs)]))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.running = None


class ComparedCalls(TorchFunctionMode):
    """Compares those calls of a step that run one of the watched functions with the recorded ones."""

    def __init__(self, base: int, watched: frozenset[Any], expected: list[Call]) -> None:
        super().__init__()
        self.count = 0
        self.difference: str | None = None
        self._base = base
        self._watched = watched
        self._expected = expected

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._watched and self.difference is None:
            call = (func, current_number() - self._base, [_shown(args), _shown(kwargs)])
            if self.count >= len(self._expected) or call != self._expected[self.count]:
                self.difference = f"the call {self.count} of {func.__name__} and the like differs from the recorded step"
            self.count += 1
        return func(*args, **kwargs) if kwargs else func(*args)

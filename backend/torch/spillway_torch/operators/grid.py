"""The small programs that `record_operators` runs, their operands and their sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

Stage = Callable[[Any], Any]
Stages = Sequence[Stage]  # calls that are timed, one after the other; each gets the result of the one before it


class Maker:
    """Makes operands on a device. `bytes` counts those of the last `reset`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor

    def __call__(self, *shape: int, dtype: torch.dtype = FP32, grad: bool = False) -> torch.Tensor:
        """Returns a tensor of random numbers."""
        return self._counted(torch.empty(shape, dtype=dtype, device=self.device).normal_().requires_grad_(grad))

    def whole(self, below: int, *shape: int) -> torch.Tensor:
        """Returns a tensor of random whole numbers from 0 to below `below`."""
        return self._counted(torch.randint(below, shape, device=self.device))


Make = Callable[[Maker], Stages]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A small program of a few operators. `make` returns its calls on operands of its own."""

    name: str
    make: Make
    tf32: bool = False  # products of numbers in float32 run in TF32
    updates: bool = False  # it is part of an optimizer's step
    expected: Optional[tuple[Any, ...]] = None  # the key of the only operator that is kept; None: all are


class Grid:
    """Sizes: quasi-random, the same in every run, and usual ones. A small grid has only the first or smallest of each kind."""

    def __init__(self, small: bool = False) -> None:
        self.small = small

    @staticmethod
    def _points(count: int, dimensions: int) -> list[list[float]]:
        engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=1)
        points: list[list[float]] = engine.draw(count).double().cpu().tolist()
        return points

    def draw(self, count: int, *ranges: tuple[int, int, int]) -> list[tuple[int, ...]]:
        """Returns tuples of numbers, spread evenly on a logarithmic scale; a range is (least, most, multiple of)."""
        if self.small:
            return [tuple(low for low, _, _ in ranges)]
        return [tuple(max(round(low * (high / low) ** at / step) * step, step)
                      for at, (low, high, step) in zip(point, ranges)) for point in self._points(count, len(ranges))]

    def pick(self, count: int, *choices: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Returns tuples with one of each of the choices, spread evenly over all combinations."""
        if self.small:
            return [tuple(values[0] for values in choices)]
        return [tuple(values[int(at * len(values))] for at, values in zip(point, choices))
                for point in self._points(count, len(choices))]

    def usual(self, sizes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [] if self.small else list(sizes)


def round_numbers(least: int, most: int) -> list[int]:
    """Returns the powers of two, and three times these, from `least` to `most`."""
    return sorted(n for k in range(32) for n in (1 << k, 3 << k) if least <= n <= most)


def shortened(length: int, odd: int) -> int:
    """Returns `length`, or if `odd` is 1 a size that is no round number."""
    return length - odd * (length // 5)


@dataclasses.dataclass(frozen=True)
class _Gradients:
    """The call that computes the gradients of inputs, from a result and its gradient."""

    inputs: list[torch.Tensor]

    def __call__(self, given: Any) -> Any:
        return torch.autograd.grad(given[0], self.inputs, given[1])


def gradients(*inputs: Optional[torch.Tensor]) -> _Gradients:
    return _Gradients([t for t in inputs if t is not None])


def prepared(stage: Stage, result: Any) -> Any:
    """Returns what a call gets after the call with this result: backward gets a gradient, too."""
    return (result, torch.randn_like(result)) if isinstance(stage, _Gradients) else result


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Vocabularies, whose rows begin at multiples of 1, 2, 4, 8 or 16 elements.
VOCABULARIES = (32768, 32001, 50002, 50004, 30001, 50008, 30002, 100001, 128000, 50001)

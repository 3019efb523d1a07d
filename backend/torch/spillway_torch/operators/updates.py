"""Steps of optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from .grid import BF16, FP32, Entry, Grid, Make, Maker, Stages, gradients, short

_OPTIMIZERS: tuple[tuple[Any, dict[str, Any]], ...] = ((torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9}))


def optimizers(grid: Grid) -> Iterator[Entry]:
    """Steps of AdamW and SGD, over lists, fused and one by one; a gradient scaler; and clip_grad_norm_."""
    usual = grid.usual([(148, 1 << 27), (290, 1 << 28), (39, 1 << 28)])
    for i, (tensors, size) in enumerate([*usual, *grid.draw(6, (10, 300, 1), (1 << 16, 1 << 27, 1))]):
        for dtype in (FP32, BF16):
            for way in ("foreach", "fused"):
                for kind, options in _OPTIMIZERS if dtype == FP32 or i % 2 == 0 else ():
                    yield Entry(f"{kind.__name__} ({way}, {short(dtype)})",
                                _stepped(kind, options, way, tensors, size, dtype), updates=True)
        yield Entry("gradient scaler", _scaled(tensors, size))
    for tensors, size in grid.draw(6, (3, 8, 1), (1 << 12, 1 << 26, 1)):
        for kind, options in _OPTIMIZERS:
            yield Entry(f"{kind.__name__} (one by one)", _stepped(kind, options, "", tensors, size, FP32), updates=True)


def _parameters(new: Maker, tensors: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns parameters with gradients: half of them vectors, the others matrices of equal size.

    The widths are even, as those of models, because kernels over lists are slower on tensors of odd sizes.
    """
    matrices = -(-tensors // 2)
    width = max(math.isqrt(size // matrices) // 2 * 2, 2)
    found = [new(width, *((width,) if i < matrices else ()), dtype=dtype, grad=True) for i in range(tensors)]
    for parameter in found:
        parameter.grad = new(*parameter.shape, dtype=dtype) * 1e-3
    return found


def _stepped(kind: Any, options: dict[str, Any], way: str, tensors: int, size: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        ways = {way: True} if way else {"foreach": False}
        optimizer = kind(_parameters(new, tensors, size, dtype), lr=1e-4, **options, **ways)
        optimizer.step()  # makes its state
        return (lambda _: optimizer.step(),)

    return make


def _scaled(tensors: int, size: int) -> Make:
    def make(new: Maker) -> Stages:
        parameters = _parameters(new, tensors, size, FP32)
        gradients = [p.grad for p in parameters if p.grad is not None]
        found, inverse, scale = new(1).zero_(), new(1).fill_(1.0), new(1).fill_(65536.0)
        growth = torch.zeros(1, dtype=torch.int32, device=new.device)
        return (lambda _: torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse),
                lambda _: torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2000),
                lambda _: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True),
                lambda _: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False))

    return make

"""Operators element by element, reductions, copies and operators on whole numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from .grid import BF16, FP16, FP32, Entry, Grid, Make, Maker, Stages, round_numbers, short
from .layers import formed

aten = torch.ops.aten


def elementwise(grid: Grid) -> Iterator[Entry]:
    """Operators that compute each element of their result from one element of each operand."""
    sizes = [(dtype, bits) for dtype in (FP32, BF16) for bits in (4, 14, 18, 20, 22, 24, 25, 26, 28)]
    sizes += [(FP16, 20), (FP16, 25)]
    rows = [row for (row,) in grid.pick(len(sizes), round_numbers(64, 8192))]
    for (dtype, bits), row in zip([(FP32, 10)] if grid.small else sizes, rows):
        row = min(row, 1 << bits)
        count = (1 << bits) // row
        for name, call in _CALLS.items():
            yield Entry(f"{name} ({short(dtype)})", _element(call, count, row, dtype))
        yield Entry(f"dropout ({short(dtype)})", _dropped(count, row, dtype))


@dataclasses.dataclass(frozen=True)
class _Operands:
    x: torch.Tensor
    y: torch.Tensor
    row: torch.Tensor  # one row of x
    column: torch.Tensor  # one value for each row
    scalar: torch.Tensor
    other: torch.dtype  # float32 for half precision, and half precision for float32


_CALLS: dict[str, Callable[[_Operands], Any]] = {
    "add": lambda o: o.x + o.y, "add a number": lambda o: o.x + 1.0, "add a row": lambda o: o.x + o.row,
    "add_": lambda o: o.x.add_(o.y), "sub": lambda o: o.x - o.y, "mul": lambda o: o.x * o.y,
    "mul by a number": lambda o: o.x * 0.5, "mul by a row": lambda o: o.x * o.row,
    "mul by a column": lambda o: o.x * o.column, "mul_ by a scalar": lambda o: o.x.mul_(o.scalar),
    "div": lambda o: o.x / o.y, "div by a number": lambda o: o.x / 8.0, "div_ by a number": lambda o: o.x.div_(1.001),
    "neg": lambda o: -o.x, "pow 2": lambda o: o.x.pow(2), "pow 3": lambda o: o.x.pow(3.0),
    "rsqrt": lambda o: o.x.rsqrt(), "sqrt": lambda o: o.x.sqrt(), "cos": lambda o: o.x.cos(),
    "sin": lambda o: o.x.sin(), "tanh": lambda o: o.x.tanh(), "relu": lambda o: o.x.relu(),
    "relu_": lambda o: o.x.relu_(), "silu": lambda o: F.silu(o.x), "gelu": lambda o: F.gelu(o.x),
    "gelu by tanh": lambda o: F.gelu(o.x, approximate="tanh"),
    "gelu_backward": lambda o: aten.gelu_backward(o.x, o.y),
    "gelu_backward by tanh": lambda o: aten.gelu_backward(o.x, o.y, approximate="tanh"),
    "silu_backward": lambda o: aten.silu_backward(o.x, o.y), "tanh_backward": lambda o: aten.tanh_backward(o.x, o.y),
    "threshold_backward": lambda o: aten.threshold_backward(o.x, o.y, 0),
    "where": lambda o: torch.where(o.x > 0, o.x, o.y), "masked_fill": lambda o: o.x.masked_fill(o.column > 0, 0.0),
    "masked_fill_": lambda o: o.x.masked_fill_(o.column > 0, 0.0), "clone": lambda o: o.x.clone(),
    "copy_": lambda o: o.x.copy_(o.y), "_to_copy": lambda o: o.x.to(o.other), "half": lambda o: o.x.half(),
    "zeros_like": lambda o: torch.zeros_like(o.x), "fill_": lambda o: o.x.fill_(1.0),
    "new_zeros": lambda o: o.x.new_zeros(o.x.shape), "lerp_": lambda o: o.x.lerp_(o.y, 0.1),
    "addcmul_": lambda o: o.x.addcmul_(o.y, o.y, value=0.1), "addcdiv_": lambda o: o.x.addcdiv_(o.y, o.y, value=-0.1),
    "bernoulli_": lambda o: o.x.bernoulli_(0.9), "cat": lambda o: torch.cat([o.x, o.y]),
    "cat of rows": lambda o: torch.cat([o.x, o.y], -1),
    "slice_backward": lambda o: aten.slice_backward(o.x, (o.x.shape[0], 2 * o.x.shape[1]), 1, 0, o.x.shape[1], 1),
    "select_backward": lambda o: aten.select_backward(o.x, (3, *o.x.shape), 0, 1), "cumsum": lambda o: o.x.cumsum(-1),
    "add of two types": lambda o: o.x + o.y.to(o.other), "mul of two types": lambda o: o.x * o.y.to(o.other),
    "cat of two types": lambda o: torch.cat([o.x, o.y.to(o.other)]),
}


def _element(call: Callable[[_Operands], Any], count: int, row: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x, y = (new(count, row, dtype=dtype).abs_().add_(0.1) for _ in range(2))
        operands = _Operands(x, y, new(row, dtype=dtype), new(count, 1, dtype=dtype), new(1)[0].abs(),
                             BF16 if dtype == FP32 else FP32)
        return (lambda _: call(operands),)

    return make


def _dropped(count: int, row: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x, y = new(count, row, dtype=dtype), new(count, row, dtype=dtype)
        return (lambda _: aten.native_dropout(x, 0.1, True),
                lambda found: aten.native_dropout_backward(y, found[1], 1 / 0.9))

    return make


def reductions(grid: Grid) -> Iterator[Entry]:
    """Sums and the like along rows, along columns and of all."""
    calls: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: x.sum(-1), lambda x: x.sum(0), lambda x: x.sum(), lambda x: x.mean(-1, keepdim=True),
        lambda x: x.amax(-1), lambda x: torch.linalg.vector_norm(x), lambda x: x.var(-1), lambda x: x.argmax(-1))
    for dtype in (FP32, BF16):
        for rows, width in grid.draw(8, (4, 131072, 1), (4, 16384, 1)):
            for call in calls:
                shape: tuple[int, ...] = (min(rows, (1 << 27) // width), width)
                yield Entry(f"reduction ({short(dtype)})", _reduced(call, shape, dtype))
        for shape in grid.pick(20, round_numbers(1024, 65536), round_numbers(256, 8192)):
            yield Entry(f"reduction ({short(dtype)})", _reduced(lambda x: x.sum(0), shape, dtype))
        for batch, channels, side in grid.draw(4, (1, 64, 1), (16, 1024, 1), (7, 128, 1)):
            shape = (min(batch, max((1 << 27) // channels // side ** 2, 1)), channels, side, side)
            yield Entry(f"reduction ({short(dtype)})", _reduced(lambda x: x.sum((0, 2, 3)), shape, dtype))
            yield Entry(f"reduction ({short(dtype)})", _reduced(lambda x: x.mean((2, 3), keepdim=True), shape, dtype))


def _reduced(call: Callable[[torch.Tensor], Any], shape: tuple[int, ...], dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x = new(*shape, dtype=dtype)
        return (lambda _: call(x),)

    return make


def copies(grid: Grid) -> Iterator[Entry]:
    """Copies of tensors whose elements do not lie side by side, and operators on such tensors."""
    calls: tuple[Callable[[torch.Tensor], Any], ...] = (  # they take a tensor (batch, length, heads, width)
        lambda x: x.transpose(1, 2).contiguous(), lambda x: x.transpose(1, 2).transpose(2, 3).contiguous(),
        lambda x: x.flatten(0, 2).t().contiguous(), lambda x: x[..., ::2].contiguous(),
        lambda x: x[:, :, ::3].contiguous(), lambda x: -x[..., x.shape[-1] // 2:],
        lambda x: torch.cat([x.transpose(1, 2)[..., x.shape[-1] // 2:], x.transpose(1, 2)[..., :x.shape[-1] // 2]], -1),
        lambda x: x[..., ::2].float(), lambda x: x.transpose(1, 2) * 2.0,
        lambda x: x.transpose(1, 2) + x.transpose(1, 2).contiguous(),
        lambda x: x * x[:1], lambda x: x.transpose(1, 2) * x[0, :, 0],
        lambda x: x.flatten(1, 2)[..., None].transpose(1, 2).contiguous(memory_format=torch.channels_last))
    broadcasts: tuple[Callable[[torch.Tensor], Any], ...] = (  # they take a tensor (batch, heads, length, width)
        lambda x: x * x[0, 0], lambda x: x * x[..., :1].contiguous(), lambda x: x + x[0, 0, 0],
        lambda x: x * x[0, :, :1, :1].contiguous(),
        lambda x: x.view(2, x.shape[2], x.shape[1], 64).transpose(1, 2) * x[0, 0])
    planes: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: x.to(memory_format=torch.channels_last), lambda x: x.copy_(formed(x, True)),
        lambda x: x + formed(x, True), lambda x: aten.threshold_backward(x, formed(x, True), 0),
        lambda x: torch.cat([x, x], 1))
    for dtype in (FP32, BF16):
        for batch, length, heads, width in grid.draw(7, (1, 32, 1), (64, 4096, 1), (4, 64, 4), (32, 128, 32)):
            length = max(min(length, (1 << 27) // (batch * heads * width)), 1)
            for call in calls:
                yield Entry(f"copy ({short(dtype)})", _reduced(call, (batch, length, heads, width), dtype))
        for heads, length in grid.draw(5, (8, 64, 1), (512, 16384, 1)):  # broadcasts as of rotary embeddings
            for call in broadcasts:
                yield Entry(f"broadcast ({short(dtype)})", _reduced(call, (2, heads, length, 64), dtype))
        for batch, channels, side in grid.draw(6, (1, 64, 1), (16, 1024, 8), (7, 128, 1)):
            shape = (min(batch, max((1 << 27) // channels // side ** 2, 1)), channels, side, side)
            for call in planes:
                yield Entry(f"copy ({short(dtype)})", _reduced(call, shape, dtype))


def whole_numbers(grid: Grid) -> Iterator[Entry]:
    """Operators on whole numbers, and those that make tensors."""
    for (size,) in [*grid.draw(3, (1, 65536, 1)), *grid.usual([(1,)])]:
        for name, call in _WHOLE.items():
            yield Entry(f"{name} (int64)", _counted(call, size))
    for (size,) in [*grid.draw(6, (16, 1 << 26, 1)), *grid.usual([(1 << 21,), (1 << 23,)])]:
        for made in (torch.zeros, torch.ones, torch.randn):
            yield Entry(made.__name__, _made(made, size))
    for (size,) in grid.draw(4, (16, 1 << 17, 1)):
        for name, make in (("arange", lambda new, n: torch.arange(n, device=new.device)),
                           ("randint", lambda new, n: torch.randint(100, (n,), device=new.device)),
                           ("pad", lambda new, n: F.pad(torch.ones(4, n, device=new.device).long(), (0, 1)))):
            yield Entry(name, _called(make, size))
    yield Entry("item", _called(lambda new, n: torch.ones(1, device=new.device).item(), 1))


_WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x.add_(1), "add": lambda x: x + x, "sub": lambda x: x - 1, "mul": lambda x: x * 2,
    "floor_divide": lambda x: x // 4, "clamp_": lambda x: x.clamp_(max=5), "ge": lambda x: x >= 1,
    "to int32": lambda x: x.int(), "to bool": lambda x: x.bool(), "sort": lambda x: x.sort(),
    "cumsum": lambda x: x.cumsum(0), "clone": lambda x: x.clone(), "histc": lambda x: x.float().histc(8, 0, 7),
    "index_put_": lambda x: x.index_put_([x.clamp(0, 0)], x.clone()), "sum": lambda x: x.sum(),
    "all": lambda x: x.bool().all(), "where": lambda x: torch.where(x > 0, x, x),
    "topk": lambda x: x[:, None].float().repeat(1, 4).topk(2),
}


def _counted(call: Callable[[torch.Tensor], Any], size: int) -> Make:
    def make(new: Maker) -> Stages:
        x = new.whole(8, size)
        return (lambda _: call(x),)

    return make


def _called(call: Callable[[Maker, int], Any], size: int) -> Make:
    return lambda new: (lambda _: call(new, size),)


def _made(call: Any, size: int) -> Make:
    return lambda new: (lambda _: call(size, device=new.device, dtype=FP32),)

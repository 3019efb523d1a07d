"""Norms, and the layers of networks for images."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from .grid import BF16, FP32, Entry, Grid, Make, Maker, Stages, gradients, round_numbers, short


def norms(grid: Grid) -> Iterator[Entry]:
    """Layer, RMS, group and batch norm, forward and backward."""
    sides = (7, 14, 28, 56, 112, 8, 16, 32, 64, 128, 224)
    for dtype in (FP32, BF16):
        for i, (rows, width) in enumerate([*grid.draw(10, (64, 262144, 1), (64, 8192, 8)),
                                           *grid.pick(40, round_numbers(1024, 786432), round_numbers(64, 8192))]):
            rows = min(rows, (1 << 27) // width)
            yield Entry(f"layer_norm ({short(dtype)})", _row_norm(F.layer_norm, rows, width, dtype, True))
            if i % 3 == 1:
                yield Entry(f"layer_norm ({short(dtype)})", _turned_norm(rows, width, dtype))
            if i % 2 == 0 and hasattr(F, "rms_norm"):
                yield Entry(f"rms_norm ({short(dtype)})", _row_norm(F.rms_norm, rows, width, dtype, False))
        for batch, breadth, side, groups in grid.pick(24, round_numbers(2, 192), _BREADTHS, sides, (8, 32)):
            channels = max(_nearest(breadth / side), 32)
            batch = max(min(batch, (1 << 27) // channels // side ** 2), 2)
            yield Entry(f"group_norm ({short(dtype)})", _plane_norm(batch, channels, side, dtype, False,
                                                                      groups if channels % groups == 0 else 8))
            for last in (False, True):
                yield Entry(f"batch_norm ({short(dtype)})", _plane_norm(batch, channels, side, dtype, last, 0))


_BREADTHS = (1792, 2688, 3584, 5376, 7168, 10752, 14336)  # channels times the side of a plane, in networks for images


def _nearest(channels: float) -> int:
    """Returns the round number of channels that is nearest."""
    return min(round_numbers(16, 2048), key=lambda n: abs(math.log(n / channels)))


def _row_norm(norm: Callable[..., torch.Tensor], rows: int, width: int, dtype: torch.dtype, biased: bool) -> Make:
    def make(new: Maker) -> Stages:
        x = new(rows, width, dtype=dtype, grad=True)
        weights = [new(width, dtype=dtype, grad=True) for _ in range(1 + biased)]
        return lambda _: norm(x, (width,), *weights, eps=1e-5), gradients(x, *weights)

    return make


def _turned_norm(rows: int, width: int, dtype: torch.dtype) -> Make:
    """Layer norm of a tensor whose first two dimensions are exchanged."""
    def make(new: Maker) -> Stages:
        x = new(4, rows // 4, width, dtype=dtype).transpose(0, 1).requires_grad_()
        weight, bias = (new(width, dtype=dtype, grad=True) for _ in range(2))
        gradient = new(4, rows // 4, width, dtype=dtype).transpose(0, 1)
        return (lambda _: F.layer_norm(x, (width,), weight, bias),
                lambda y: torch.autograd.grad(y, [x, weight, bias], gradient))

    return make


def _plane_norm(batch: int, channels: int, side: int, dtype: torch.dtype, last: bool, groups: int) -> Make:
    """Group norm, or batch norm if `groups` is 0."""
    def make(new: Maker) -> Stages:
        x = formed(new(batch, channels, side, side, dtype=dtype), last).requires_grad_()
        # Autocast leaves the weights of batch norm in float32.
        weight, bias = (new(channels, dtype=dtype if groups else FP32, grad=True) for _ in range(2))
        mean, variance = (new(channels).abs_() for _ in range(2))

        def forward(_: Any) -> torch.Tensor:
            if groups:
                return F.group_norm(x, groups, weight, bias)
            return F.batch_norm(x, mean, variance, weight, bias, training=True)

        return forward, gradients(x, weight, bias)

    return make


def formed(tensor: torch.Tensor, last: bool) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if last else tensor


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """A convolution of planes, padded so that only its stride makes them smaller."""

    wide: int  # channels of the input
    out: int
    side: int
    kernel: int
    stride: int
    groups: int = 1
    transposed: bool = False
    dilation: int = 1
    across: int = 0  # the kernel's width; 0: it is a square

    @property
    def values(self) -> int:
        """The numbers in the larger of input and output, for one image."""
        side = self.side * self.stride if self.transposed else self.side // self.stride
        return max(self.wide * self.side ** 2, self.out * side ** 2)

    @property
    def flops(self) -> int:
        """The operations for one image."""
        side = self.side if self.transposed else self.side // self.stride
        return 2 * self.wide * self.out // self.groups * self.kernel * (self.across or self.kernel) * side ** 2


def _convolutions(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields batches and convolutions with and without bias, of sizes as in networks for images."""
    sides = (7, 14, 28, 56, 112, 224, 8, 16, 32, 64, 128)
    batches = (6, 12, 24, 48, 96, 192)
    for kernel, count, ratios, strides in ((3, 160, (1, 1, 2, 0.5), (1, 1, 1, 2)), (2, 8, (2, 1), (2,)),
                                           (1, 144, (4, 0.25, 1, 2, 0.5), (1, 1, 2))):
        for batch, bias, breadth, side, ratio, stride in grid.pick(
                count // (1 + few), batches, (False, True), _BREADTHS, sides, ratios, strides):
            wide = _nearest(breadth / side)
            yield batch, bias, _Convolution(wide, round(wide * ratio), side, kernel, stride)
    for batch, bias, breadth, side, kernel, stride in grid.pick(  # one channel in each group
            64, batches, (True, False), _BREADTHS[:-1], sides[:5] + sides[6:], (7, 3, 7, 5, 7), (1, 1, 1, 2)):
        wide = _nearest(breadth / side)
        yield batch, bias, _Convolution(wide, wide, side, kernel, stride, wide)
    for batch, bias, breadth, side, groups in grid.pick(6, batches, (False, True), _BREADTHS[2:], sides, (4, 16, 32)):
        wide = max(_nearest(breadth / side), 2 * groups)
        yield batch, bias, _Convolution(wide, wide, side, 3, 1, groups)
    for batch, bias, side, out, (kernel, stride) in grid.pick(  # the first of a network
            12, batches, (True, False), (224, 256), (64, 128, 96, 32), ((3, 1), (7, 2), (4, 4), (3, 2), (16, 16), (14, 14))):
        yield batch, bias, _Convolution(3, out * 8 if kernel > 7 else out, side, kernel, stride)
    for batch, side, wide, out in grid.pick(4, batches, (128, 224, 256), (16, 32, 64), (1, 3, 10, 21)):  # the last
        yield batch, True, _Convolution(wide, out, side, 1, 1)
    for batch, bias, breadth, side, kernel in grid.pick(10, batches, (True, False), _BREADTHS[2:], sides[:5] + sides[6:],
                                                        (2, 2, 4)):
        wide = max(_nearest(breadth / side), 32)
        yield batch, bias, _Convolution(wide, wide // 2, side, kernel, 2, transposed=True)


def _grouped(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields convolutions in groups of several channels, and those of a plane's means that weigh its channels."""
    batches, sides = (16, 32, 64, 96, 128, 192, 256), (7, 14, 28, 56, 112, 8, 16, 32, 64)
    for batch, breadth, side, channels, stride in grid.pick(
            240 // (1 + few), batches, _BREADTHS, sides, (4, 8, 16, 24, 32, 48, 56, 64, 112), (1, 1, 2)):
        groups = max(round(breadth / side / channels), 2)
        yield batch, False, _Convolution(groups * channels, groups * channels, side * stride, 3, stride, groups)
    for batch, wide, ratio, bias in grid.pick(24 // (1 + few), batches, (64, 96, 144, 224, 448, 672, 896, 1152, 2016),
                                              (4, 0.25, 24, 1 / 24, 8, 0.125), (True, True, False)):
        yield batch, bias, _Convolution(wide, max(round(wide * ratio), 8) if ratio < 1 else min(round(wide * ratio), 4096), 1, 1, 1)


def _depthwise(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields convolutions of single channels, of any number of them, as in networks for phones."""
    for batch, wide, side, stride in grid.draw(32 // (1 + few), (32, 512, 32), (12, 1280, 2), (7, 112, 7), (1, 2, 1)):
        for kernel in (3, 5):
            yield batch, False, _Convolution(wide, wide, side * stride, kernel, stride, wide)


def _dilated(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields convolutions whose windows have gaps, as in networks that label each pixel."""
    batches, sides = (4, 8, 16, 32, 64), (28, 32, 64, 48, 40, 96)
    for batch, wide, ratio, side, dilation, bias in grid.pick(
            72 // (1 + few), batches, (64, 128, 256, 512, 960, 2048), (1, 1, 0.5, 0.25), sides, (2, 4, 2, 4, 6, 12, 18, 24, 36),
            (False, False, True)):
        yield batch, bias, _Convolution(wide, max(round(wide * ratio), 32), side, 3, 1, dilation=min(dilation, side - 1))
    for batch, wide, side, kernel, dilation in grid.pick(
            20 // (1 + few), batches, (96, 192, 384, 672, 960), sides, (3, 5), (2, 4)):
        yield batch, False, _Convolution(wide, wide, side, kernel, 1, wide, dilation=dilation)


def _large(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields convolutions of many images at once."""
    for values, wide, ratio, side, kernel, bias in grid.pick(
            40 // (1 + few), (224 << 20, 320 << 20, 448 << 20), (64, 128, 256, 512, 32, 96), (1, 2, 1, 0.5, 4), (224, 112, 56, 128, 28),
            (3, 3, 1), (True, False)):
        shape = _Convolution(wide, round(wide * ratio), side, kernel, 1)
        yield values // shape.values, bias, shape


def _narrow(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields convolutions that change the number of channels much, or whose windows are large or no squares."""
    for batch, breadth, side, ratio, (kernel, across), stride in grid.pick(
            160 // (1 + few), (16, 32, 64, 128, 192), _BREADTHS, (7, 14, 17, 28, 35, 56, 71, 112),
            (0.25, 4, 1, 6, 1), ((3, 0), (3, 0), (5, 0), (1, 7), (7, 1), (3, 1), (1, 3)), (1, 1, 1, 2)):
        wide = max(round(breadth / side / 8) * 8, 16)
        yield batch, False, _Convolution(wide, max(round(wide * ratio / 8) * 8, 16), side, kernel, 1 if across else stride, across=across)


def narrow_convolutions(grid: Grid) -> Iterator[Entry]:
    """Convolutions that change the number of channels much, or whose windows are large or no squares, forward and backward."""
    return _convolved_by_kind(grid, _narrow)


def dilated_convolutions(grid: Grid) -> Iterator[Entry]:
    """Convolutions with gaps between the values of a window, forward and backward."""
    return _convolved_by_kind(grid, _dilated)


def large_planes(grid: Grid) -> Iterator[Entry]:
    """Convolutions, batch norms and max pooling of 2^27 to 2^29 values, forward and backward."""
    yield from _convolved_by_kind(grid, _large, 7 << 26)
    for dtype in (FP32, BF16):
        for last in (False, True):
            for values, channels, side in grid.pick(16, (224 << 20, 320 << 20, 448 << 20), (64, 128, 256, 32, 96), (224, 112, 56, 128)):
                batch = 2 if grid.small else values // channels // side ** 2
                yield Entry(f"batch_norm ({short(dtype)})", _plane_norm(batch, channels, side, dtype, last, 0))
                yield Entry(f"max_pool2d ({short(dtype)})", _pooled(batch, channels, side, dtype, batch % 2, last))


def planes(grid: Grid) -> Iterator[Entry]:
    """Planes as networks for images normalize, pool, resample, join and add them, beyond the sizes of other families."""
    for dtype, last in itertools.product((FP32, BF16), (False, True)):
        entry = functools.partial(_of_planes, dtype, last)
        for channels, values, side in (*grid.draw(40, (8, 2048, 8), (1 << 20, 3 << 26, 1), (7, 224, 1)),
                                       *grid.draw(32, (8, 64, 8), (1 << 23, 3 << 26, 1), (28, 224, 1))):
            batch = 2 if grid.small else max(values // channels // side ** 2, 2)
            yield Entry(f"batch_norm ({short(dtype)})", _plane_norm(batch, channels, side, dtype, last, 0))
        for values, channels, side, window, stride in grid.pick(
                20, (1 << 20, 1 << 24, 1 << 26), (32, 192, 288, 768, 2048), (8, 17, 35, 71, 14, 28, 56), (3, 3, 2, 5, 3), (1, 1, 2)):
            batch = 2 if grid.small else max(values // channels // side ** 2, 1)
            yield entry("avg_pool2d", lambda x, window=window, stride=stride: F.avg_pool2d(x, window, stride, window // 2),
                        (batch, channels, side, side))
        for batch, channels, side, part in grid.pick(20, (8, 32, 64), (21, 64, 128, 256, 512), (16, 20, 32, 64, 128), (1, 0, 2)):
            batch = 2 if grid.small else max(min(batch, (1 << 27) // channels // side ** 2), 1)
            yield entry("upsample_bilinear2d", lambda x, side=side: F.interpolate(x, (side, side), mode="bilinear"),
                        (batch, channels, *2 * [side // part if part else 1]))
        for values, channels, side, ratio in grid.pick(6, (1 << 29, 3 << 28, 1 << 30), (21, 64, 150, 256), (64, 96, 128), (4, 8)):
            size = 2 if grid.small else side * ratio
            batch = 2 if grid.small else max(values // channels // size ** 2, 1)
            yield entry("upsample_bilinear2d", lambda x, size=size: F.interpolate(x, (size, size), mode="bilinear"),
                        (batch, channels, size // ratio + 1, size // ratio + 1))
        for batch, classes, side in grid.draw(8, (2, 64, 1), (2, 200, 1), (128, 1024, 1)) if last and dtype == FP32 else ():
            batch = 2 if grid.small else max(min(batch, (1 << 29) // classes // side ** 2), 1)
            yield entry("cross_entropy of images", lambda x: F.cross_entropy(x, x.new_zeros((len(x), *x.shape[2:]), dtype=torch.long)),
                        (batch, classes, side, side))
        for batch, channels, side, least in grid.pick(
                16, (32, 96, 192, 512), (64, 96, 128, 192, 288, 512), (147, 111, 71, 55, 35, 112, 56, 28), (0, 1)):
            batch = 2 if grid.small else max(min(batch, (1 << 28) // channels // side ** 2), 1)
            yield entry("max_pool2d", lambda x, least=least: F.max_pool2d(x, 3, 2, least), (batch, channels, side, side))
        for batch, channels, side, joined in grid.pick(16, (32, 64, 96, 128), (64, 128, 256, 512), (56, 28, 14, 7), (1, 3, 10, 30)):
            batch = 2 if grid.small else batch
            yield entry("cat of planes", lambda *all_: torch.cat(all_, 1), (batch, channels, side, side),
                        *[(batch, 32, side, side)] * joined, trained=False)
            yield entry("add_ to a part", lambda x, y: x[:, :32].add_(y), (batch, channels, side, side), (batch, 32, side, side),
                        trained=False)
        for batch, channels, side in grid.pick(10, (32, 96, 128, 192), (96, 144, 448, 720, 960), (56, 28, 14, 7)):
            shape = 2 if grid.small else batch, channels, side, side
            yield entry("mean of planes", lambda x: x.mean((2, 3), keepdim=True), shape)  # its gradient is a repeated quotient
            yield entry("add_ of two layouts", lambda x, y: x.add_(y), shape, shape, mixed=True, trained=False)
    for dtype, (rows, width) in itertools.product((FP32, BF16), grid.draw(8, (1 << 15, 1 << 21, 1), (16, 128, 16))):
        yield Entry(f"layer_norm ({short(dtype)})", _row_norm(F.layer_norm, rows, width, dtype, True))


def _of_planes(dtype: torch.dtype, last: bool, name: str, call: Callable[..., torch.Tensor], *shapes: tuple[int, ...], mixed: bool = False,
               trained: bool = True) -> Entry:
    """A call on tensors of these shapes. mixed: all but the first have the other layout. trained: forward and backward."""
    def make(new: Maker) -> Stages:
        made = [formed(new(*shape, dtype=dtype), last != (mixed and at > 0)).requires_grad_(trained) for at, shape in enumerate(shapes)]
        return (lambda _: call(*made), *([gradients(*made)] if trained else []))

    return Entry(f"{name} ({short(dtype)})", make)


def depthwise_convolutions(grid: Grid) -> Iterator[Entry]:
    """Convolutions of single channels, forward and backward."""
    return _convolved_by_kind(grid, _depthwise)


def grouped_convolutions(grid: Grid) -> Iterator[Entry]:
    """Convolutions in groups and of single pixels, forward and backward."""
    return _convolved_by_kind(grid, _grouped)


def _convolved_by_kind(grid: Grid, shapes: Callable[[Grid, bool], Iterator[tuple[int, bool, _Convolution]]],
                       most_values: int = 3 << 26) -> Iterator[Entry]:
    kinds = ((FP32, False, False), (FP32, True, False), (BF16, False, False), (BF16, False, True), (FP32, True, True),
             (FP32, False, True))
    for dtype, tf32, last in kinds:
        most = 8e11 if dtype == BF16 else 6e11 if tf32 else 2e11
        for batch, bias, shape in shapes(grid, last and dtype == FP32):
            # Gradients of a convolution with one channel in each group are slow.
            values = most_values >> (2 if shape.groups == shape.wide else 0)
            batch = 2 if grid.small else max(min(batch, int(most / shape.flops), values // shape.values), 1)
            yield Entry(f"convolution ({short(dtype)})", _convolved(batch, shape, dtype, last, bias), tf32)


def convolutions(grid: Grid) -> Iterator[Entry]:
    """Convolutions, forward and backward, and max pooling."""
    yield from _convolved_by_kind(grid, _convolutions)
    for dtype in (FP32, BF16):
        pooled = [*grid.draw(6, (1, 64, 1), (16, 512, 16), (14, 224, 2)),
                  *grid.usual([(8, 32, 224), (8, 64, 112), (8, 128, 56), (16, 64, 112), (64, 64, 112)])]
        for i, (batch, channels, side) in enumerate(pooled):
            batch = min(batch, max((1 << 26) // channels // side ** 2, 1))
            yield Entry(f"max_pool2d ({short(dtype)})", _pooled(batch, channels, side, dtype, i % 2))


def _convolved(batch: int, shape: _Convolution, dtype: torch.dtype, last: bool, biased: bool) -> Make:
    def make(new: Maker) -> Stages:
        x = formed(new(batch, shape.wide, shape.side, shape.side, dtype=dtype), last).requires_grad_(shape.wide > 3)
        sizes = (shape.wide, shape.out) if shape.transposed else (shape.out, shape.wide // shape.groups)
        kernel = shape.kernel, shape.across or shape.kernel
        weight = formed(new(*sizes, *kernel, dtype=dtype), last).requires_grad_()
        bias = new(shape.out, dtype=dtype, grad=True) if biased else None

        def forward(_: Any) -> torch.Tensor:
            if shape.transposed:
                return F.conv_transpose2d(x, weight, bias, stride=shape.stride, padding=shape.kernel // 2 - 1)
            padding = [shape.dilation * (side // 2) if side % 2 else 0 for side in kernel]
            return F.conv2d(x, weight, bias, stride=shape.stride, padding=padding, dilation=shape.dilation, groups=shape.groups)

        return forward, gradients(x if shape.wide > 3 else None, weight, bias)

    return make


def resampling(grid: Grid) -> Iterator[Entry]:
    """Planes that are made larger or smaller: by interpolation, and by means."""
    ways: tuple[tuple[str, Callable[[torch.Tensor, float], torch.Tensor]], ...] = (
        ("upsample_bilinear2d", lambda x, ratio: F.interpolate(x, scale_factor=ratio, mode="bilinear", align_corners=False)),
        ("upsample_nearest2d", lambda x, ratio: F.interpolate(x, scale_factor=ratio, mode="nearest")),
        ("upsample_bicubic2d", lambda x, ratio: F.interpolate(x, scale_factor=ratio, mode="bicubic")),
        ("avg_pool2d", lambda x, ratio: F.avg_pool2d(x, min(max(int(ratio), 1), x.shape[-1]))),
        ("adaptive_avg_pool2d", lambda x, ratio: F.adaptive_avg_pool2d(x, (max(int(x.shape[2] / ratio), 1), max(int(x.shape[3] / ratio), 1)))))
    for number, (name, way) in enumerate(ways):
        for dtype in (FP32, BF16):
            for last in (False, True):
                for batch, channels, side, ratio in grid.pick(
                        48 // (1 + 3 * number), (2, 4, 8, 16, 32, 64), (16, 21, 32, 64, 96, 150, 256, 512),
                        (7, 14, 16, 28, 32, 56, 64, 128), (2, 4, 2, 8, 16)):
                    grown = side * ratio if "upsample" in name else side
                    batch = max(min(batch, (1 << 27) // (channels * grown ** 2)), 1)
                    yield Entry(f"{name} ({short(dtype)})", _resampled(way, batch, channels, side, dtype, last, ratio))


def _resampled(way: Callable[[torch.Tensor, float], torch.Tensor], batch: int, channels: int, side: int, dtype: torch.dtype,
               last: bool, ratio: float) -> Make:
    def make(new: Maker) -> Stages:
        x = formed(new(batch, channels, side, side, dtype=dtype), last).requires_grad_()
        return lambda _: way(x, ratio), gradients(x)

    return make


def _pooled(batch: int, channels: int, side: int, dtype: torch.dtype, overlaps: int, last: bool = False) -> Make:
    def make(new: Maker) -> Stages:
        x = formed(new(batch, channels, side, side, dtype=dtype), last).requires_grad_()
        return lambda _: F.max_pool2d(x, 2 + overlaps, 2, overlaps), gradients(x)

    return make

"""Operators that compute or read scores and rows of a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from .grid import BF16, FP32, VOCABULARIES, Entry, Grid, Make, Maker, Stages, gradients, round_numbers, short

aten = torch.ops.aten


def losses(grid: Grid) -> Iterator[Entry]:
    """Softmax and cross entropy, forward and backward."""
    for dtype in (FP32, BF16):
        for rows, width in grid.draw(12, (256, 262144, 1), (4, 8192, 1)):
            rows = max(min(rows, (1 << 27) // width), 1)
            yield Entry(f"softmax ({short(dtype)})", _softmax(rows, width, dtype))
        words = grid.usual(grid.pick(12, round_numbers(512, 32768), VOCABULARIES))
        for rows, classes in [*grid.draw(10, (64, 16384, 1), (2, 131072, 1)), *words]:
            rows = max(min(rows, (1 << 28) // classes), 1)
            yield Entry(f"cross_entropy ({short(dtype)})", _cross_entropy((rows, classes), dtype))
    for batch, classes, side in grid.draw(6, (1, 32, 1), (2, 64, 1), (32, 256, 1)):
        batch = max(min(batch, (1 << 27) // classes // side ** 2), 1)
        yield Entry("cross_entropy of images", _cross_entropy((batch, classes, side, side), FP32))
    for (size,) in grid.draw(5, (1024, 1 << 25, 1)):
        yield Entry("mse_loss", _mean_squares(size))


def image_losses(grid: Grid) -> Iterator[Entry]:
    """Cross entropy of each pixel, as segmentation has it, forward and backward."""
    for batch, classes, side in grid.draw(24, (2, 64, 1), (2, 200, 1), (128, 1024, 1)):
        batch = max(min(batch, (1 << 29) // classes // side ** 2), 1)
        yield Entry("cross_entropy of images", _cross_entropy((batch, classes, side, side), FP32))


def _softmax(rows: int, width: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x = new(rows, width, dtype=dtype, grad=True)
        return (lambda _: F.softmax(x, -1), gradients(x), lambda _: F.softmax(x.detach(), -1, dtype=FP32),
                lambda _: aten._safe_softmax(x.detach(), -1))

    return make


def _cross_entropy(shape: tuple[int, ...], dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x, chosen = new(*shape, dtype=dtype, grad=True), new.whole(shape[1], shape[0], *shape[2:])
        return lambda _: F.cross_entropy(x, chosen), gradients(x)

    return make


def _mean_squares(size: int) -> Make:
    def make(new: Maker) -> Stages:
        x, y = new(size, grad=True), new(size)
        return lambda _: F.mse_loss(x, y), gradients(x)

    return make


def embeddings(grid: Grid) -> Iterator[Entry]:
    """Embedding forward and backward, and other operators that choose or write rows by number."""
    usual = grid.usual(grid.pick(8, (2, 1024, *VOCABULARIES), round_numbers(512, 4096), round_numbers(512, 32768)))
    for dtype in (FP32, BF16):
        for words, width, count in [*grid.draw(12, (128, 131072, 1), (64, 4096, 8), (64, 65536, 1)), *usual]:
            yield Entry(f"embedding ({short(dtype)})", _embedded(min(words, (1 << 29) // width), width, count, dtype))
        for rows, width, count in grid.draw(8, (256, 32768, 1), (8, 4096, 8), (64, 32768, 1)):
            yield Entry(f"index ({short(dtype)})", _indexed(rows, width, count, dtype))


def _embedded(words: int, width: int, count: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        weight, chosen = new(words, width, dtype=dtype, grad=True), new.whole(words, count)
        return lambda _: F.embedding(chosen, weight), gradients(weight)

    return make


def _indexed(rows: int, width: int, count: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x, chosen, y = new(rows, width, dtype=dtype), new.whole(rows, count), new(count, width, dtype=dtype)
        spread = chosen[:, None].expand(count, width)
        return (lambda _: x[chosen], lambda _: aten.index_put(x, [chosen], y),
                lambda _: aten.index_put(x, [chosen], y, True), lambda _: x.index_put_([chosen], y, accumulate=True),
                lambda _: x.index_select(0, chosen), lambda _: x.index_add_(0, chosen, y),
                lambda _: x.gather(0, spread),
                lambda _: x.scatter(0, spread, y), lambda _: x.scatter_add(0, spread, y))

    return make

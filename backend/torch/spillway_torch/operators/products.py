"""Products of matrices, and attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .grid import (
    BF16, FP16, FP32, VOCABULARIES, Entry, Grid, Make, Maker, Stages, gradients, round_numbers, short, shortened)

_PRECISIONS = ((BF16, False), (FP32, True), (FP32, False), (FP16, False))

_TOKENS = round_numbers(512, 65536)
_WIDTHS = round_numbers(256, 8192)
_RATIOS = ((1, 1), (1, 3), (1, 4), (4, 1), (1, 0.25), (1, 2.67), (2.67, 1))  # depth and columns of layers to their width


def products(grid: Grid) -> Iterator[Entry]:
    """Linear layers with and without bias, forward, gradients of inputs and of weights; and products in batches."""
    for number, (dtype, tf32) in enumerate(_PRECISIONS):
        drawn = [(rows, depth, columns, i % 4) for i, (rows, depth, columns) in enumerate(
            grid.draw((24, 12, 12, 8)[number], (128, 32768, 8), (64, 16384, 64), (64, 16384, 64)))]
        # Rows that do not begin at multiples of 16 bytes.
        drawn[3::4] = [(rows, depth + (i % 3 == 2), columns + 2 ** (i % 4), i % 4)
                       for i, (rows, depth, columns, _) in enumerate(drawn[3::4])]
        layers = grid.pick((128, 88, 88, 40)[number], _TOKENS, (0, 0, 0, 0, 1), _WIDTHS, _RATIOS, (0, 1, 2, 3))
        drawn += [(shortened(rows, odd), round(width * deep / 64) * 64, round(width * broad / 64) * 64, variant)
                  for rows, odd, width, (deep, broad), variant in layers]
        drawn += [(rows, width, words, variant) for rows, width, words, variant in grid.usual(
            grid.pick((40, 24, 24, 24)[number], _TOKENS[:-2], round_numbers(512, 4096), VOCABULARIES, (0, 1)))]
        most = 1.2e12 if dtype != FP32 else 8e11 if tf32 else 3e11
        for rows, depth, columns, variant in drawn:
            rows = max(min(rows, int(most / 2 / depth / columns), (1 << 29) // columns), 1)
            yield Entry(f"linear ({short(dtype)})", _linear(rows, depth, columns, dtype, variant), tf32)
    for dtype, tf32 in _PRECISIONS[:3]:
        heads = grid.pick(24, round_numbers(8, 1024), round_numbers(64, 2048), (0, 0, 0, 1), (64, 80, 96, 128), (1, 1, 1, 2))
        drawn = [(batches, shortened(length, odd), depth, length // part) for batches, length, odd, depth, part in heads]
        for batches, queries, depth, keys in [*drawn, *grid.usual([(1, 32, 1, 768), (1, 64, 1, 2048)])]:
            batches = max(min(batches, (1 << 27) // queries // keys), 1)
            yield Entry(f"bmm ({short(dtype)})", _batched(batches, queries, depth, keys, dtype), tf32)
    for experts, rows, depth, ratio in grid.pick(16, (4, 8, 16), round_numbers(1024, 65536), round_numbers(256, 4096), (0.5, 1, 2, 3.5)):
        yield Entry("_grouped_mm", _grouped(experts, rows // experts, depth, round(depth * ratio)))


def _linear(rows: int, depth: int, columns: int, dtype: torch.dtype, variant: int) -> Make:
    """Variant 0: with bias, 1 and 2: without, 3: with bias and weights that lie as the product reads them."""
    def make(new: Maker) -> Stages:
        x = new(rows, depth, dtype=dtype, grad=True)
        weight = new(*((depth, columns) if variant == 3 else (columns, depth)), dtype=dtype, grad=True)
        bias = new(columns, dtype=dtype, grad=True) if variant in (0, 3) else None

        def forward(_: Any) -> torch.Tensor:
            return torch.addmm(bias, x, weight) if variant == 3 and bias is not None else F.linear(x, weight, bias)

        return forward, gradients(x, weight, bias)

    return make


def _batched(batches: int, queries: int, depth: int, keys: int, dtype: torch.dtype) -> Make:
    """The two products of attention."""
    def make(new: Maker) -> Stages:
        q, k, v = (new(batches, n, depth, dtype=dtype, grad=True) for n in (queries, keys, keys))
        p = new(batches, queries, keys, dtype=dtype, grad=True)
        return (lambda _: torch.bmm(q, k.transpose(1, 2)), gradients(q, k),
                lambda _: torch.bmm(p, v), gradients(p, v))

    return make


def _grouped(experts: int, rows: int, depth: int, columns: int) -> Make:
    def make(new: Maker) -> Stages:
        x = new(experts * rows, depth, dtype=BF16, grad=True)
        weight = new(experts, columns, depth, dtype=BF16, grad=True)
        ends = torch.arange(1, experts + 1, device=new.device, dtype=torch.int32) * rows
        return lambda _: torch._grouped_mm(x, weight.transpose(1, 2), offs=ends), gradients(x, weight)

    return make


def attention(grid: Grid) -> Iterator[Entry]:
    """scaled_dot_product_attention by each of its kernels, forward and backward."""
    cudnn, flash, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    kinds = ((cudnn, BF16, 112), (cudnn, FP16, 12), (flash, BF16, 36), (flash, FP16, 8), (efficient, FP32, 64),
             (efficient, BF16, 12), (SDPBackend.MATH, FP32, 4), (SDPBackend.MATH, BF16, 4))
    for backend, dtype, count in kinds:
        for batch, heads, groups, length, odd, width, causal, dropout, masked in grid.pick(
                count, round_numbers(1, 64), (8, 12, 16, 20, 32), (1, 1, 2, 1, 4, 8), round_numbers(128, 4096), (0, 0, 1),
                (64, 64, 128, 96, 64, 80, 128, 32), (0, 1), (0, 0, 1), (0, 0, 0, 1)):
            length = shortened(length, odd)
            most = 1e11 if dtype == FP32 else 5e11  # operations
            most = min(int(most / width / 4), 1 << (28 if backend == SDPBackend.MATH else 32))  # scores
            batch = max(min(batch, (1 << 22) // (heads * length), most // (heads * length ** 2)), 1)
            # Some take only repeated keys.
            keys = heads // math.gcd(heads, groups) if backend in (cudnn, flash) else heads
            yield Entry(f"scaled_dot_product_attention ({backend.name.lower()}, {short(dtype)})",
                        attended(backend, dtype, batch, (heads, keys), (length, length), width, bool(causal),
                                 bool(dropout), bool(masked and not causal and backend != flash)))


def cross_attention(grid: Grid) -> Iterator[Entry]:
    """Attention whose keys are fewer than its queries: to a text, to a picture that was made smaller, to the frames of speech."""
    cudnn, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    for backend, dtype, count in ((cudnn, BF16, 32), (efficient, FP32, 40), (efficient, BF16, 6)):
        for batch, heads, queries, keys, width in grid.pick(count, (1, 2, 4, 8, 16, 32), (1, 2, 5, 8, 12, 16), round_numbers(256, 16384),
                                                            (64, 80, 128, 256, 256, 512, 1500), (32, 64, 64, 40, 80)):
            batch = max(min(batch, (1 << 23) // (heads * queries)), 1)
            yield Entry(f"scaled_dot_product_attention ({backend.name.lower()}, {short(dtype)})",
                        attended(backend, dtype, batch, (heads, heads), (queries, min(keys, queries)), width, False, False, False))


def attended(backend: Any, dtype: torch.dtype, batch: int, heads: tuple[int, int], lengths: tuple[int, int], width: int,
             causal: bool, dropout: bool, masked: bool) -> Make:
    """Returns what makes an attention; `heads` and `lengths` are those of queries and of keys."""
    def make(new: Maker) -> Stages:
        q, k, v = (new(batch, lengths[i], heads[i], width, dtype=dtype, grad=True) for i in (0, 1, 1))
        mask = new(batch, 1, *lengths, dtype=dtype) if masked else None

        def forward(_: Any) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.1 * dropout, causal,
                    enable_gqa=heads[0] != heads[1])

        return forward, gradients(q, k, v)

    return make

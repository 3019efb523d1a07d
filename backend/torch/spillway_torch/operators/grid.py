"""The operators that `record_operators` runs, by family, and their sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten
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


def _round(least: int, most: int) -> list[int]:
    """Returns the powers of two, and three times these, from `least` to `most`."""
    return sorted(n for k in range(32) for n in (1 << k, 3 << k) if least <= n <= most)


def _shortened(length: int, odd: int) -> int:
    """Returns `length`, or if `odd` is 1 a size that is no round number."""
    return length - odd * (length // 5)


@dataclasses.dataclass(frozen=True)
class _Gradients:
    """The call that computes the gradients of inputs, from a result and its gradient."""

    inputs: list[torch.Tensor]

    def __call__(self, given: Any) -> Any:
        return torch.autograd.grad(given[0], self.inputs, given[1])


def _gradients(*inputs: Optional[torch.Tensor]) -> _Gradients:
    return _Gradients([t for t in inputs if t is not None])


def prepared(stage: Stage, result: Any) -> Any:
    """Returns what a call gets after the call with this result: backward gets a gradient, too."""
    return (result, torch.randn_like(result)) if isinstance(stage, _Gradients) else result


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- products ----

_PRECISIONS = ((BF16, False), (FP32, True), (FP32, False), (FP16, False))

_TOKENS = _round(512, 65536)
_WIDTHS = _round(256, 8192)
_RATIOS = ((1, 1), (1, 3), (1, 4), (4, 1), (1, 0.25), (1, 2.67), (2.67, 1))  # depth and columns of layers to their width
# Vocabularies, whose rows begin at multiples of 1, 2, 4, 8 or 16 elements.
_WORDS = (32768, 32001, 50002, 50004, 30001, 50008, 30002, 100001, 128000, 50001)


def products(grid: Grid) -> Iterator[Entry]:
    """Linear layers with and without bias, forward, gradients of inputs and of weights; and products in batches."""
    for number, (dtype, tf32) in enumerate(_PRECISIONS):
        drawn = [(rows, depth, columns, i % 4) for i, (rows, depth, columns) in enumerate(
            grid.draw((24, 12, 12, 8)[number], (128, 32768, 8), (64, 16384, 64), (64, 16384, 64)))]
        # Rows that do not begin at multiples of 16 bytes.
        drawn[3::4] = [(rows, depth + (i % 3 == 2), columns + 2 ** (i % 4), i % 4)
                       for i, (rows, depth, columns, _) in enumerate(drawn[3::4])]
        layers = grid.pick((128, 88, 88, 40)[number], _TOKENS, (0, 0, 0, 0, 1), _WIDTHS, _RATIOS, (0, 1, 2, 3))
        drawn += [(_shortened(rows, odd), round(width * deep / 64) * 64, round(width * broad / 64) * 64, variant)
                  for rows, odd, width, (deep, broad), variant in layers]
        drawn += [(rows, width, words, variant) for rows, width, words, variant in grid.usual(
            grid.pick((40, 24, 24, 24)[number], _TOKENS[:-2], _round(512, 4096), _WORDS, (0, 1)))]
        most = 1.2e12 if dtype != FP32 else 8e11 if tf32 else 3e11
        for rows, depth, columns, variant in drawn:
            rows = max(min(rows, int(most / 2 / depth / columns), (1 << 29) // columns), 1)
            yield Entry(f"linear ({_short(dtype)})", _linear(rows, depth, columns, dtype, variant), tf32)
    for dtype, tf32 in _PRECISIONS[:3]:
        heads = grid.pick(24, _round(8, 1024), _round(64, 2048), (0, 0, 0, 1), (64, 80, 96, 128), (1, 1, 1, 2))
        drawn = [(batches, _shortened(length, odd), depth, length // part) for batches, length, odd, depth, part in heads]
        for batches, queries, depth, keys in [*drawn, *grid.usual([(1, 32, 1, 768), (1, 64, 1, 2048)])]:
            batches = max(min(batches, (1 << 27) // queries // keys), 1)
            yield Entry(f"bmm ({_short(dtype)})", _batched(batches, queries, depth, keys, dtype), tf32)
    for experts, rows, depth, ratio in grid.pick(16, (4, 8, 16), _round(1024, 65536), _round(256, 4096), (0.5, 1, 2, 3.5)):
        yield Entry("_grouped_mm", _grouped(experts, rows // experts, depth, round(depth * ratio)))


def _linear(rows: int, depth: int, columns: int, dtype: torch.dtype, variant: int) -> Make:
    """Variant 0: with bias, 1 and 2: without, 3: with bias and weights that lie as the product reads them."""
    def make(new: Maker) -> Stages:
        x = new(rows, depth, dtype=dtype, grad=True)
        weight = new(*((depth, columns) if variant == 3 else (columns, depth)), dtype=dtype, grad=True)
        bias = new(columns, dtype=dtype, grad=True) if variant in (0, 3) else None

        def forward(_: Any) -> torch.Tensor:
            return torch.addmm(bias, x, weight) if variant == 3 and bias is not None else F.linear(x, weight, bias)

        return forward, _gradients(x, weight, bias)

    return make


def _batched(batches: int, queries: int, depth: int, keys: int, dtype: torch.dtype) -> Make:
    """The two products of attention."""
    def make(new: Maker) -> Stages:
        q, k, v = (new(batches, n, depth, dtype=dtype, grad=True) for n in (queries, keys, keys))
        p = new(batches, queries, keys, dtype=dtype, grad=True)
        return (lambda _: torch.bmm(q, k.transpose(1, 2)), _gradients(q, k),
                lambda _: torch.bmm(p, v), _gradients(p, v))

    return make


def _grouped(experts: int, rows: int, depth: int, columns: int) -> Make:
    def make(new: Maker) -> Stages:
        x = new(experts * rows, depth, dtype=BF16, grad=True)
        weight = new(experts, columns, depth, dtype=BF16, grad=True)
        ends = torch.arange(1, experts + 1, device=new.device, dtype=torch.int32) * rows
        return lambda _: torch._grouped_mm(x, weight.transpose(1, 2), offs=ends), _gradients(x, weight)

    return make


# ---- attention ----


def attention(grid: Grid) -> Iterator[Entry]:
    """scaled_dot_product_attention by each of its kernels, forward and backward."""
    cudnn, flash, efficient = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
    kinds = ((cudnn, BF16, 112), (cudnn, FP16, 12), (flash, BF16, 36), (flash, FP16, 8), (efficient, FP32, 64),
             (efficient, BF16, 12), (SDPBackend.MATH, FP32, 4), (SDPBackend.MATH, BF16, 4))
    for backend, dtype, count in kinds:
        for batch, heads, groups, length, odd, width, causal, dropout, masked in grid.pick(
                count, _round(1, 64), (8, 12, 16, 20, 32), (1, 1, 2, 1, 4, 8), _round(128, 4096), (0, 0, 1),
                (64, 64, 128, 96, 64, 80, 128, 32), (0, 1), (0, 0, 1), (0, 0, 0, 1)):
            length = _shortened(length, odd)
            most = 1e11 if dtype == FP32 else 5e11  # operations
            most = min(int(most / width / 4), 1 << (28 if backend == SDPBackend.MATH else 32))  # scores
            batch = max(min(batch, (1 << 22) // (heads * length), most // (heads * length ** 2)), 1)
            # Some take only repeated keys.
            keys = heads // math.gcd(heads, groups) if backend in (cudnn, flash) else heads
            yield Entry(f"scaled_dot_product_attention ({backend.name.lower()}, {_short(dtype)})",
                        attended(backend, dtype, batch, (heads, keys), (length, length), width, bool(causal),
                                 bool(dropout), bool(masked and not causal and backend != flash)))


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

        return forward, _gradients(q, k, v)

    return make


# ---- norms ----


def norms(grid: Grid) -> Iterator[Entry]:
    """Layer, RMS, group and batch norm, forward and backward."""
    sides = (7, 14, 28, 56, 112, 8, 16, 32, 64, 128, 224)
    for dtype in (FP32, BF16):
        for i, (rows, width) in enumerate([*grid.draw(10, (64, 262144, 1), (64, 8192, 8)),
                                           *grid.pick(40, _round(1024, 786432), _round(64, 8192))]):
            rows = min(rows, (1 << 27) // width)
            yield Entry(f"layer_norm ({_short(dtype)})", _row_norm(F.layer_norm, rows, width, dtype, True))
            if i % 3 == 1:
                yield Entry(f"layer_norm ({_short(dtype)})", _turned_norm(rows, width, dtype))
            if i % 2 == 0 and hasattr(F, "rms_norm"):
                yield Entry(f"rms_norm ({_short(dtype)})", _row_norm(F.rms_norm, rows, width, dtype, False))
        for batch, breadth, side, groups in grid.pick(24, _round(2, 192), _BREADTHS, sides, (8, 32)):
            channels = max(_nearest(breadth / side), 32)
            batch = max(min(batch, (1 << 27) // channels // side ** 2), 2)
            yield Entry(f"group_norm ({_short(dtype)})", _plane_norm(batch, channels, side, dtype, False,
                                                                      groups if channels % groups == 0 else 8))
            for last in (False, True):
                yield Entry(f"batch_norm ({_short(dtype)})", _plane_norm(batch, channels, side, dtype, last, 0))


_BREADTHS = (1792, 2688, 3584, 5376, 7168, 10752, 14336)  # channels times the side of a plane, in networks for images


def _nearest(channels: float) -> int:
    """Returns the round number of channels that is nearest."""
    return min(_round(16, 2048), key=lambda n: abs(math.log(n / channels)))


def _row_norm(norm: Callable[..., torch.Tensor], rows: int, width: int, dtype: torch.dtype, biased: bool) -> Make:
    def make(new: Maker) -> Stages:
        x = new(rows, width, dtype=dtype, grad=True)
        weights = [new(width, dtype=dtype, grad=True) for _ in range(1 + biased)]
        return lambda _: norm(x, (width,), *weights, eps=1e-5), _gradients(x, *weights)

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
        x = _formed(new(batch, channels, side, side, dtype=dtype), last).requires_grad_()
        # Autocast leaves the weights of batch norm in float32.
        weight, bias = (new(channels, dtype=dtype if groups else FP32, grad=True) for _ in range(2))
        mean, variance = (new(channels).abs_() for _ in range(2))

        def forward(_: Any) -> torch.Tensor:
            if groups:
                return F.group_norm(x, groups, weight, bias)
            return F.batch_norm(x, mean, variance, weight, bias, training=True)

        return forward, _gradients(x, weight, bias)

    return make


def _formed(tensor: torch.Tensor, last: bool) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if last else tensor


# ---- losses ----


def losses(grid: Grid) -> Iterator[Entry]:
    """Softmax and cross entropy, forward and backward."""
    for dtype in (FP32, BF16):
        for rows, width in grid.draw(12, (256, 262144, 1), (4, 8192, 1)):
            rows = max(min(rows, (1 << 27) // width), 1)
            yield Entry(f"softmax ({_short(dtype)})", _softmax(rows, width, dtype))
        words = grid.usual(grid.pick(12, _round(512, 32768), _WORDS))
        for rows, classes in [*grid.draw(10, (64, 16384, 1), (2, 131072, 1)), *words]:
            rows = max(min(rows, (1 << 28) // classes), 1)
            yield Entry(f"cross_entropy ({_short(dtype)})", _cross_entropy((rows, classes), dtype))
    for batch, classes, side in grid.draw(6, (1, 32, 1), (2, 64, 1), (32, 256, 1)):
        batch = max(min(batch, (1 << 27) // classes // side ** 2), 1)
        yield Entry("cross_entropy of images", _cross_entropy((batch, classes, side, side), FP32))
    for (size,) in grid.draw(5, (1024, 1 << 25, 1)):
        yield Entry("mse_loss", _mean_squares(size))


def _softmax(rows: int, width: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x = new(rows, width, dtype=dtype, grad=True)
        return (lambda _: F.softmax(x, -1), _gradients(x), lambda _: F.softmax(x.detach(), -1, dtype=FP32),
                lambda _: aten._safe_softmax(x.detach(), -1))

    return make


def _cross_entropy(shape: tuple[int, ...], dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x, chosen = new(*shape, dtype=dtype, grad=True), new.whole(shape[1], shape[0], *shape[2:])
        return lambda _: F.cross_entropy(x, chosen), _gradients(x)

    return make


def _mean_squares(size: int) -> Make:
    def make(new: Maker) -> Stages:
        x, y = new(size, grad=True), new(size)
        return lambda _: F.mse_loss(x, y), _gradients(x)

    return make


# ---- embeddings and other choices of rows ----


def embeddings(grid: Grid) -> Iterator[Entry]:
    """Embedding forward and backward, and other operators that choose or write rows by number."""
    usual = grid.usual(grid.pick(8, (2, 1024, *_WORDS), _round(512, 4096), _round(512, 32768)))
    for dtype in (FP32, BF16):
        for words, width, count in [*grid.draw(12, (128, 131072, 1), (64, 4096, 8), (64, 65536, 1)), *usual]:
            yield Entry(f"embedding ({_short(dtype)})", _embedded(min(words, (1 << 29) // width), width, count, dtype))
        for rows, width, count in grid.draw(8, (256, 32768, 1), (8, 4096, 8), (64, 32768, 1)):
            yield Entry(f"index ({_short(dtype)})", _indexed(rows, width, count, dtype))


def _embedded(words: int, width: int, count: int, dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        weight, chosen = new(words, width, dtype=dtype, grad=True), new.whole(words, count)
        return lambda _: F.embedding(chosen, weight), _gradients(weight)

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


# ---- element by element ----


def elementwise(grid: Grid) -> Iterator[Entry]:
    """Operators that compute each element of their result from one element of each operand."""
    sizes = [(dtype, bits) for dtype in (FP32, BF16) for bits in (4, 14, 18, 20, 22, 24, 25, 26, 28)]
    sizes += [(FP16, 20), (FP16, 25)]
    rows = [row for (row,) in grid.pick(len(sizes), _round(64, 8192))]
    for (dtype, bits), row in zip([(FP32, 10)] if grid.small else sizes, rows):
        row = min(row, 1 << bits)
        count = (1 << bits) // row
        for name, call in _CALLS.items():
            yield Entry(f"{name} ({_short(dtype)})", _element(call, count, row, dtype))
        yield Entry(f"dropout ({_short(dtype)})", _dropped(count, row, dtype))


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


# ---- reductions ----


def reductions(grid: Grid) -> Iterator[Entry]:
    """Sums and the like along rows, along columns and of all."""
    calls: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: x.sum(-1), lambda x: x.sum(0), lambda x: x.sum(), lambda x: x.mean(-1, keepdim=True),
        lambda x: x.amax(-1), lambda x: torch.linalg.vector_norm(x), lambda x: x.var(-1), lambda x: x.argmax(-1))
    for dtype in (FP32, BF16):
        for rows, width in grid.draw(8, (4, 131072, 1), (4, 16384, 1)):
            for call in calls:
                shape: tuple[int, ...] = (min(rows, (1 << 27) // width), width)
                yield Entry(f"reduction ({_short(dtype)})", _reduced(call, shape, dtype))
        for shape in grid.pick(20, _round(1024, 65536), _round(256, 8192)):
            yield Entry(f"reduction ({_short(dtype)})", _reduced(lambda x: x.sum(0), shape, dtype))
        for batch, channels, side in grid.draw(4, (1, 64, 1), (16, 1024, 1), (7, 128, 1)):
            shape = (min(batch, max((1 << 27) // channels // side ** 2, 1)), channels, side, side)
            yield Entry(f"reduction ({_short(dtype)})", _reduced(lambda x: x.sum((0, 2, 3)), shape, dtype))
            yield Entry(f"reduction ({_short(dtype)})", _reduced(lambda x: x.mean((2, 3), keepdim=True), shape, dtype))


def _reduced(call: Callable[[torch.Tensor], Any], shape: tuple[int, ...], dtype: torch.dtype) -> Make:
    def make(new: Maker) -> Stages:
        x = new(*shape, dtype=dtype)
        return (lambda _: call(x),)

    return make


# ---- copies that change the order of dimensions ----


def copies(grid: Grid) -> Iterator[Entry]:
    """Copies of tensors whose elements do not lie side by side, and operators on such tensors."""
    calls: tuple[Callable[[torch.Tensor], Any], ...] = (  # of a tensor (batch, length, heads, width)
        lambda x: x.transpose(1, 2).contiguous(), lambda x: x.transpose(1, 2).transpose(2, 3).contiguous(),
        lambda x: x.flatten(0, 2).t().contiguous(), lambda x: x[..., ::2].contiguous(),
        lambda x: x[:, :, ::3].contiguous(), lambda x: -x[..., x.shape[-1] // 2:],
        lambda x: torch.cat([x.transpose(1, 2)[..., x.shape[-1] // 2:], x.transpose(1, 2)[..., :x.shape[-1] // 2]], -1),
        lambda x: x[..., ::2].float(), lambda x: x.transpose(1, 2) * 2.0,
        lambda x: x.transpose(1, 2) + x.transpose(1, 2).contiguous(),
        lambda x: x * x[:1], lambda x: x.transpose(1, 2) * x[0, :, 0],
        lambda x: x.flatten(1, 2)[..., None].transpose(1, 2).contiguous(memory_format=torch.channels_last))
    broadcasts: tuple[Callable[[torch.Tensor], Any], ...] = (  # of a tensor (batch, heads, length, width)
        lambda x: x * x[0, 0], lambda x: x * x[..., :1].contiguous(), lambda x: x + x[0, 0, 0],
        lambda x: x * x[0, :, :1, :1].contiguous(),
        lambda x: x.view(2, x.shape[2], x.shape[1], 64).transpose(1, 2) * x[0, 0])
    planes: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: x.to(memory_format=torch.channels_last), lambda x: x.copy_(_formed(x, True)),
        lambda x: x + _formed(x, True), lambda x: aten.threshold_backward(x, _formed(x, True), 0),
        lambda x: torch.cat([x, x], 1))
    for dtype in (FP32, BF16):
        for batch, length, heads, width in grid.draw(7, (1, 32, 1), (64, 4096, 1), (4, 64, 4), (32, 128, 32)):
            length = max(min(length, (1 << 27) // (batch * heads * width)), 1)
            for call in calls:
                yield Entry(f"copy ({_short(dtype)})", _reduced(call, (batch, length, heads, width), dtype))
        for heads, length in grid.draw(5, (8, 64, 1), (512, 16384, 1)):  # broadcasts as of rotary embeddings
            for call in broadcasts:
                yield Entry(f"broadcast ({_short(dtype)})", _reduced(call, (2, heads, length, 64), dtype))
        for batch, channels, side in grid.draw(6, (1, 64, 1), (16, 1024, 8), (7, 128, 1)):
            shape = (min(batch, max((1 << 27) // channels // side ** 2, 1)), channels, side, side)
            for call in planes:
                yield Entry(f"copy ({_short(dtype)})", _reduced(call, shape, dtype))


# ---- convolutions ----

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

    @property
    def values(self) -> int:
        """The numbers in the larger of input and output, for one image."""
        side = self.side * self.stride if self.transposed else self.side // self.stride
        return max(self.wide * self.side ** 2, self.out * side ** 2)

    @property
    def flops(self) -> int:
        """The operations for one image."""
        side = self.side if self.transposed else self.side // self.stride
        return 2 * self.wide * self.out // self.groups * (self.kernel * side) ** 2


def _convolutions(grid: Grid, few: bool) -> Iterator[tuple[int, bool, _Convolution]]:
    """Yields batches and convolutions with and without bias, of sizes as in networks for images."""
    sides = (7, 14, 28, 56, 112, 224, 8, 16, 32, 64, 128)
    batches = (6, 12, 24, 48, 96, 192)
    for kernel, count, ratios, strides in ((3, 64, (1, 1, 2, 0.5), (1, 1, 1, 2)), (2, 8, (2, 1), (2,)),
                                           (1, 40, (4, 0.25, 1, 2, 0.5), (1, 1, 2))):
        for batch, bias, breadth, side, ratio, stride in grid.pick(
                count // (1 + few), batches, (False, True), _BREADTHS, sides, ratios, strides):
            wide = _nearest(breadth / side)
            yield batch, bias, _Convolution(wide, round(wide * ratio), side, kernel, stride)
    for batch, bias, breadth, side, kernel, stride in grid.pick(  # one channel in each group
            32, batches, (True, False), _BREADTHS[:-1], sides[:5] + sides[6:], (7, 3, 7, 5, 7), (1, 1, 1, 2)):
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


def convolutions(grid: Grid) -> Iterator[Entry]:
    """Convolutions, forward and backward, and max pooling."""
    kinds = ((FP32, False, False), (FP32, True, False), (BF16, False, False), (BF16, False, True), (FP32, True, True),
             (FP32, False, True))
    for dtype, tf32, last in kinds:
        most = 8e11 if dtype == BF16 else 6e11 if tf32 else 2e11
        for batch, bias, shape in _convolutions(grid, last and dtype == FP32):
            # Gradients of a convolution with one channel in each group are slow.
            values = 3 << (24 if shape.groups == shape.wide else 26)
            batch = 2 if grid.small else max(min(batch, int(most / shape.flops), values // shape.values), 1)
            yield Entry(f"convolution ({_short(dtype)})", _convolved(batch, shape, dtype, last, bias), tf32)
    for dtype in (FP32, BF16):
        pooled = [*grid.draw(6, (1, 64, 1), (16, 512, 16), (14, 224, 2)),
                  *grid.usual([(8, 32, 224), (8, 64, 112), (8, 128, 56), (16, 64, 112), (64, 64, 112)])]
        for i, (batch, channels, side) in enumerate(pooled):
            batch = min(batch, max((1 << 26) // channels // side ** 2, 1))
            yield Entry(f"max_pool2d ({_short(dtype)})", _pooled(batch, channels, side, dtype, i % 2))


def _convolved(batch: int, shape: _Convolution, dtype: torch.dtype, last: bool, biased: bool) -> Make:
    def make(new: Maker) -> Stages:
        x = _formed(new(batch, shape.wide, shape.side, shape.side, dtype=dtype), last).requires_grad_(shape.wide > 3)
        sizes = (shape.wide, shape.out) if shape.transposed else (shape.out, shape.wide // shape.groups)
        weight = _formed(new(*sizes, shape.kernel, shape.kernel, dtype=dtype), last).requires_grad_()
        bias = new(shape.out, dtype=dtype, grad=True) if biased else None

        def forward(_: Any) -> torch.Tensor:
            if shape.transposed:
                return F.conv_transpose2d(x, weight, bias, stride=shape.stride, padding=shape.kernel // 2 - 1)
            padding = shape.kernel // 2 if shape.kernel % 2 else 0
            return F.conv2d(x, weight, bias, stride=shape.stride, padding=padding, groups=shape.groups)

        return forward, _gradients(x if shape.wide > 3 else None, weight, bias)

    return make


def _pooled(batch: int, channels: int, side: int, dtype: torch.dtype, overlaps: int) -> Make:
    def make(new: Maker) -> Stages:
        x = new(batch, channels, side, side, dtype=dtype, grad=True)
        return lambda _: F.max_pool2d(x, 2 + overlaps, 2, overlaps), _gradients(x)

    return make


# ---- optimizers ----


_OPTIMIZERS: tuple[tuple[Any, dict[str, Any]], ...] = ((torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9}))


def optimizers(grid: Grid) -> Iterator[Entry]:
    """Steps of AdamW and SGD, over lists, fused and one by one; a gradient scaler; and clip_grad_norm_."""
    usual = grid.usual([(148, 1 << 27), (290, 1 << 28), (39, 1 << 28)])
    for i, (tensors, size) in enumerate([*usual, *grid.draw(6, (10, 300, 1), (1 << 16, 1 << 27, 1))]):
        for dtype in (FP32, BF16):
            for way in ("foreach", "fused"):
                for kind, options in _OPTIMIZERS if dtype == FP32 or i % 2 == 0 else ():
                    yield Entry(f"{kind.__name__} ({way}, {_short(dtype)})",
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


# ---- whole numbers, and tensors without operands ----


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


FAMILIES: dict[str, Callable[[Grid], Iterator[Entry]]] = {
    function.__name__: function
    for function in (products, attention, norms, losses, embeddings, elementwise, reductions, copies, convolutions,
                     optimizers, whole_numbers)}

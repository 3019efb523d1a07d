"""The scratch memory inside operators of a GPU, as far as PyTorch's source determines it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# The GPU with the most memory of each compute capability decides; others of that capability differ by their number.
MULTIPROCESSORS = {70: 80, 75: 72, 80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 120: 188}

# Operators of ReduceSumProdKernel.cu, ReduceNormKernel.cu and the like, which reduce in numbers of 4 bytes or, for
# float64 and whole numbers, of 8.
REDUCTIONS = frozenset(("sum", "mean", "prod", "amax", "amin", "linalg_vector_norm"))

# Operators that first copy these arguments if they are not contiguous (expect_contiguous in layer_norm_kernel.cu), until they end.
COPIED = {"native_layer_norm": (0,), "native_layer_norm_backward": (0, 1)}

_THREADS = 512  # a block has so many
_VALUES = (16, 256)  # the least and the most values per thread


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _power(n: int) -> int:
    return 1 << max(n.bit_length() - 1, 0)


def reduction(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int], offset: int, number_size: int,
              multiprocessors: int) -> int:
    """Returns the bytes that a reduction over `dims` takes to join the results of several blocks of threads.

    `strides` and `offset` count elements. Follows setReduceConfig and ReduceConfig::global_memory_size of
    aten/src/ATen/native/cuda/Reduce.cuh.
    """
    reduced = [(strides[d], shape[d]) for d in dims if shape[d] > 1]
    kept = sorted((strides[d], shape[d]) for d in range(len(shape)) if d not in dims and shape[d] > 1)
    if not reduced:
        return 0
    outputs = inputs = 1
    for _, extent in kept:
        outputs *= extent
    for _, extent in reduced:
        inputs *= extent
    if outputs == 0 or inputs == 0:
        return 0
    rows = not kept or min(reduced)[0] < kept[0][0]  # the reduced values lie side by side
    vector = 1
    if not rows and kept[0][0] == 1:
        innermost = 1
        for stride, extent in kept:  # dimensions that lie in one piece are one
            if stride != innermost:
                break
            innermost *= extent
        vector = 4
        for n in (offset, innermost, *(stride for stride, _ in (*reduced, *kept) if stride != 1 and stride >= innermost)):
            while n % vector:
                vector //= 2
    width_most, height_most = (inputs, outputs) if rows else (outputs // vector, inputs)
    if rows and not kept and width_most > 128 and min(reduced)[0] == 1:
        width_most //= 4
    threads = _THREADS // vector
    width_most, height_most = (_power(n) if n < threads else threads for n in (width_most, height_most))
    width = min(width_most, 32)
    height = min(height_most, threads // width)
    width = min(width_most, threads // height)
    step_in, step_out = (width, 1) if rows else (1, width)
    values = _up(inputs, step_in)
    if values < height * _VALUES[0] and values < _VALUES[1]:
        return 0  # one block makes each result
    values = _up(inputs, step_in * height)
    grid = _up(outputs // vector, step_out)
    target = multiprocessors * (2048 // (width * height))
    if values < _VALUES[1] or grid > target:
        return 0
    blocks = max(min(_up(target, grid), _up(values, _VALUES[0])), _up(values, _VALUES[1]))
    if blocks <= 1:
        return 0
    size = number_size * outputs * blocks * (1 if rows else width * vector)
    return size + 4 * grid


def scratch_of(packet: str, args: Sequence[object], capability: int) -> int:
    """Returns the scratch bytes of an operator with these arguments; 0 also if they are not known."""
    if packet in COPIED:
        return sum(t.numel() * t.element_size() for t in (args[at] for at in COPIED[packet])
                   if isinstance(t, torch.Tensor) and not t.is_contiguous())
    if packet not in REDUCTIONS or not args or not isinstance(args[0], torch.Tensor):
        return 0
    x = args[0]
    at = 2 if packet == "linalg_vector_norm" else 1
    given = args[at] if len(args) > at else None
    if isinstance(given, int):
        given = [given]
    dims = [d % x.dim() for d in given] if isinstance(given, (list, tuple)) and given and x.dim() else list(range(x.dim()))
    number_size = 4 if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else 8
    return reduction(x.shape, x.stride(), dims, int(x.storage_offset()), number_size, MULTIPROCESSORS.get(capability, 108))

"""Results without data of operators for which PyTorch cannot make them, or lays them out differently than a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format


def as_cudnn_lays_out(packet: str, args: Any, result: Any) -> Any:
    """Returns the results of a convolution, or of its gradients, with the channels last where cuDNN leaves them last.

    cuDNN computes with the channels last if one of two tensors has them last (aten/src/ATen/native/ConvUtils.h). The gradient of the
    result is first laid out as the input is (aten/src/ATen/native/cudnn/ConvShared.cpp).
    """
    if packet == "convolution":
        return _laid_out(result, *args[:2])
    x, weight = args[1:3]
    return _laid_out(result[0], x, weight), _laid_out(result[1], x), result[2]


def _laid_out(result: Any, *tensors: torch.Tensor) -> Any:
    formats = {suggest_memory_format(t) for t in tensors if t.stride(1) > 0}  # 0: a number that is repeated
    formats &= {torch.channels_last, torch.channels_last_3d}
    if result is None or result.dtype == torch.float64:
        return result
    return torch.empty_like(result, memory_format=formats.pop() if formats else torch.contiguous_format)


CONVOLUTIONS = frozenset(("convolution", "convolution_backward"))


def _efficient_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, keeps_sums: bool,
                         *_: Any, **__: Any) -> Any:
    batch, heads, length = query.shape[:3]
    result = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    sums = query.new_empty(batch, heads, -(-length // 32) * 32 if keeps_sums else 0, dtype=torch.float32)
    return result, sums, *(query.new_empty((), dtype=torch.int64) for _ in range(2))


def _flash_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Any:
    batch, heads, length, width = query.shape
    result = query.new_empty(batch, length, heads, width).transpose(1, 2)
    sums = query.new_empty(batch, heads, length, dtype=torch.float32)
    return (result, sums, None, None, length, key.shape[2], *(query.new_empty((), dtype=torch.int64) for _ in range(2)),
            query.new_empty(0))


SHAPES: dict[str, Callable[..., Any]] = {  # PyTorch 2.4 knows both only of its fake tensors
    "_scaled_dot_product_efficient_attention": _efficient_attention,
    "_scaled_dot_product_flash_attention": _flash_attention,
}

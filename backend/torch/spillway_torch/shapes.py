"""Results without data of operators for which some releases of PyTorch cannot make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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

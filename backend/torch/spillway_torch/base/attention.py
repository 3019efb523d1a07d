"""The kernel that `scaled_dot_product_attention` chooses on a CUDA device.

The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp for dense tensors.
"""

from __future__ import annotations

import os
from typing import Optional

import torch

HALF = (torch.float16, torch.bfloat16)


def prefers_cudnn(capability: int) -> bool:
    """Returns true if cuDNN's kernel goes before flash attention: on Hopper and the B200, with cuDNN 9.15.1 and later."""
    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") or capability not in (90, 100):
        return False
    # A build without cuDNN stands for the same release with it: PyTorch 2.10 and later bring that cuDNN.
    version = torch.backends.cudnn.version()
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return version > 91500 if version else release >= (2, 10)


def choose(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional[torch.Tensor], dropout: float,
           causal: bool, grouped: bool, capability: int) -> str:
    """Returns "cudnn", "flash", "efficient" or "math". Raises `RuntimeError` if all that apply are switched off."""
    shapes_fit = all(t.dim() == 4 and 0 not in t.shape for t in (query, key, value)) and (
        query.shape[0] == key.shape[0] == value.shape[0])
    heads_equal = query.dim() < 3 or query.shape[-3] == key.shape[-3] == value.shape[-3]
    heads_fit = heads_equal or (grouped and shapes_fit and query.shape[1] % key.shape[1] == 0
                                and key.shape[1] == value.shape[1])
    needs_grad = any(t.requires_grad for t in (query, key, value)) and torch.is_grad_enabled()
    widths = (query.shape[-1], key.shape[-1], value.shape[-1])
    half = query.dtype == torch.float16 or (query.dtype == torch.bfloat16 and capability >= 80)
    contiguous = all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (query, key, value))
    mask_contiguous = mask is None or mask.stride(-1) == 1 or mask.shape[-1] == 1
    mask_needs_grad = mask is not None and mask.requires_grad

    def cudnn() -> bool:
        widest = 256 if capability == 90 else 128
        return (torch.backends.cuda.cudnn_sdp_enabled() and shapes_fit and heads_fit and half and capability >= 80
                and contiguous and mask_contiguous and not mask_needs_grad
                and not (torch.are_deterministic_algorithms_enabled()
                         and not torch.is_deterministic_algorithms_warn_only_enabled())
                and max(widths) <= widest and widths[0] % 8 == 0 and widths[2] % 8 == 0 and key.shape[2] != 1
                and not (query.shape[2] == 1 and dropout != 0))

    def flash() -> bool:
        narrow = capability in (86, 89, 120, 121) and needs_grad and (
            192 < widths[0] <= 224 or (widths[0] > 224 and dropout > 0))
        return (torch.backends.cuda.flash_sdp_enabled() and shapes_fit and heads_fit and half and capability >= 80
                and contiguous and mask is None and len(set(widths)) == 1 and widths[0] <= 256 and not narrow
                and not (causal and query.shape[-2] != key.shape[-2]))

    def efficient() -> bool:
        single = query.dtype == torch.float32
        multiple = 8 if half else 4
        return (torch.backends.cuda.mem_efficient_sdp_enabled() and shapes_fit and heads_equal and (half or single)
                and contiguous and mask_contiguous and widths[0] == widths[1] and widths[0] % multiple == 0
                and widths[2] % multiple == 0)

    order = [("flash", flash), ("efficient", efficient)]
    order.insert(0 if prefers_cudnn(capability) else len(order), ("cudnn", cudnn))
    if not prefers_cudnn(capability):
        order.insert(2, ("math", torch.backends.cuda.math_sdp_enabled))  # cuDNN's kernel stands behind it
    else:
        order.append(("math", torch.backends.cuda.math_sdp_enabled))
    for name, usable in order:
        if usable():
            return name
    raise RuntimeError("scaled_dot_product_attention: no kernel that is enabled can run these tensors on the GPU")

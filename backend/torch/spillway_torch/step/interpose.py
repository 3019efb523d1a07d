"""Makes tensors without data take a GPU's way through operators that choose by device, before autograd records them.

The kernels stand at the dispatch key of autocast for private devices, which lies above autograd, has no kernels of its
own, and is off unless a thread switches it on. They run for every caller, also inside PyTorch's C++ code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..base import attention, table
from ..base.errors import NotRecordableError
from ..base.target import Target
from .recorder import Recorder, take_apart

KEY = "AutocastPrivateUse1"
_KEYS = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))
aten = torch.ops.aten
Kernel = Callable[..., Any]


def _overload(name: str) -> Any:
    """Returns the operator "add.Tensor" or "relu"; None if this PyTorch has none of that name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet, None), overload or "default", None)


class Casts:
    """The casts of autocast("cuda"), and the casts of parameters that it keeps until the outermost region ends."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def clear(self) -> None:
        self._kept.clear()

    @staticmethod
    def eligible(value: Any) -> bool:
        return (isinstance(value, torch.Tensor) and value.device.type == "meta" and value.is_floating_point()
                and value.dtype != torch.float64)

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.dtype == dtype:
            return tensor
        keep = (dtype == torch.get_autocast_dtype("cuda") and tensor.dtype == torch.float32 and tensor.requires_grad
                and tensor.is_leaf and not tensor._is_view() and torch.is_autocast_cache_enabled())
        if not keep:
            return tensor.to(dtype)
        kept = self._kept.get(id(tensor))
        if kept is None or kept[0]() is not tensor:
            kept = self._kept[id(tensor)] = (weakref.ref(tensor), tensor.to(dtype))
        return kept[1]

    def arguments(self, policy: str, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Returns the operator, its arguments and its named arguments after the casts of the policy."""
        flat, spec = tree_flatten((args, kwargs))
        eligible = [value for value in flat if self.eligible(value)]
        if policy == "banned" and eligible:
            raise RuntimeError(f"{op} is not safe under autocast: use binary_cross_entropy_with_logits")
        if policy in ("dtype", "norm"):
            if not args or not self.eligible(args[0]):
                return op, args, kwargs
            if policy == "norm":
                if args[0].dtype == torch.float32:
                    return op, args, kwargs
                rest = [a.default_value for a in op._schema.arguments[len(args):] if a.name not in kwargs]
                return _norm_with_dtype(op), (*args, *rest), {**kwargs, "dtype": torch.float32}
            names = [argument.name for argument in op._schema.arguments]
            given = kwargs.get("dtype") or (args[names.index("dtype")] if len(args) > names.index("dtype") else None)
            if given is not None:
                return op, args, kwargs
            return op, args[:names.index("dtype")], {**kwargs, "dtype": torch.float32}
        if policy == "widest":
            dtype = torch.get_autocast_dtype("cuda")
            for value in eligible:
                if value.dtype == torch.float32:
                    dtype = torch.float32
        else:
            dtype = torch.float32 if policy == "float32" else torch.get_autocast_dtype("cuda")
        # PyTorch casts the last argument first: its compilers evaluate the arguments of a call from the right.
        cast = [self.cast(value, dtype) if self.eligible(value) else value for value in reversed(flat)][::-1]
        args, kwargs = tree_unflatten(cast, spec)
        return op, args, kwargs


def _norm_with_dtype(op: Any) -> Any:
    return aten.norm.ScalarOpt_dtype if op is aten.norm.Scalar else aten.norm.ScalarOpt_dim_dtype


def _half_to_float(name: str) -> Kernel:
    """softmax(x, dtype=float32) of a half-precision tensor is one operator on a GPU."""
    fused, plain = getattr(aten, "_" + name).default, getattr(aten, name).int

    def kernel(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if dtype == torch.float32 and x.dtype == torch.float16:
            return fused(x, dim, True)
        return plain(x, dim, dtype)

    return kernel


def _dropout(x: torch.Tensor, p: float, train: bool) -> Any:
    """A GPU has one operator for dropout, which keeps a mask of one byte per element."""
    if train and 0 < p < 1 and x.numel() > 0:
        return aten.native_dropout.default(x, p, train)[0]
    return take_apart(aten.dropout.default, x, p, train)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """PyTorch adds the bias in place unless a mode watches, where it has no product with a bias: of more than two dimensions
    that are not contiguous."""
    if bias is None or x.dim() <= 2 or x.is_contiguous():
        return take_apart(aten.linear.default, x, weight, bias)
    return aten.matmul.default(x, weight.t()).add_(bias)


def _batch_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor | None,
                variance: torch.Tensor | None, training: bool, momentum: float, eps: float, cudnn: bool) -> Any:
    """The conditions of _batch_norm_impl_index (aten/src/ATen/native/Normalization.cpp) for cuDNN's kernel."""
    usable = (cudnn and torch.backends.cudnn.enabled and x.dim() >= 3 and weight is not None and bias is not None
              and (mean is None) == (variance is None) and (mean is not None or training)
              and x.dtype != torch.bfloat16 and weight.dtype != torch.bfloat16
              and (x.dtype != torch.float16 or weight.dtype == torch.float32)
              and x.shape[0] <= (880801 if training else 65535) and eps >= 1e-5)
    if usable:
        return aten.cudnn_batch_norm.default(x, weight, bias, mean, variance, training, momentum, eps)[0]
    return take_apart(aten.batch_norm.default, x, weight, bias, mean, variance, training, momentum, eps, cudnn)


class _FusedRmsNorm(torch.autograd.Function):
    """The GPU's operator, which PyTorch takes apart on other devices before autograd sees it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: float | None) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            y, root = aten._fused_rms_norm.default(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, root)
        ctx.shape = shape
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight, root = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        dx, dweight = aten._fused_rms_norm_backward.default(grad, x, ctx.shape, root, weight, needed)
        return dx, None, dweight, None


def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None) -> Any:
    """From PyTorch 2.9 on, a GPU has one operator for it unless the types differ."""
    if hasattr(aten, "_fused_rms_norm_backward") and (weight is None or weight.dtype == x.dtype):
        return _FusedRmsNorm.apply(x, shape, weight, eps)
    return take_apart(aten.rms_norm.default, x, shape, weight, eps)


def _convert_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    # PyTorch adds a mask: 0 where attention is allowed, minus infinity elsewhere.
    low, zero = (torch.scalar_tensor(value, dtype=dtype, device="meta") for value in (float("-inf"), 0.0))
    return torch.where(mask, zero, low)


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The efficient kernel reads rows of masks at multiples of 16 bytes; PyTorch copies others into such rows."""
    mask = torch.broadcast_to(mask, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
    multiple = 8 if mask.element_size() == 2 else 4
    rest = -key.shape[2] % multiple
    if rest == 0 and mask.storage_offset() % multiple == 0 and all(s % multiple == 0 for s in mask.stride()[:3]):
        return mask
    padded = torch.nn.functional.pad(mask, (0, rest))
    return padded[..., :key.shape[2]]


def _attention(capability: int, recorder: Recorder) -> Kernel:
    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None,
               dropout: float = 0.0, causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Any:
        chosen = attention.choose(query, key, value, mask, dropout, causal, enable_gqa, capability)
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if mask is not None:
            mask = _convert_mask(mask, query.dtype)
        if chosen == "cudnn":
            return aten._scaled_dot_product_cudnn_attention.default(
                query, key, value, mask, needs_grad, dropout, causal, False, scale=scale)[0]
        if chosen == "flash":
            width = query.shape[-1]
            rest = -width % 8
            scale = width ** -0.5 if scale is None else scale
            if rest:
                query, key, value = (torch.nn.functional.pad(t, (0, rest)) for t in (query, key, value))
            result = aten._scaled_dot_product_flash_attention.default(
                query, key, value, dropout, causal, False, scale=scale)[0]
            return result[..., :width] if rest else result
        if chosen == "efficient":
            if mask is not None:
                mask = _aligned(mask, query, key)
            return aten._scaled_dot_product_efficient_attention.default(
                query, key, value, mask, needs_grad, dropout, causal, scale=scale)[0]
        # Its dropout is that of a GPU, and the casts have been made.
        with _interposed(), _without_casts(), recorder.adding_in_place():
            return aten._scaled_dot_product_attention_math.default(query, key, value, mask, dropout, causal, None, scale=scale,
                                                                   enable_gqa=enable_gqa)[0]

    return kernel


@contextmanager
def _interposed() -> Iterator[None]:
    """The calling thread runs operators through the kernels of this module."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(KEY)
    included = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
    torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, False)
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, included)
        torch._C._dispatch_tls_set_dispatch_key_excluded(KEY, excluded)


@contextmanager
def _without_casts() -> Iterator[None]:
    enabled = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", enabled)


def _refuse(name: str, reason: str, place: Callable[[], str]) -> Kernel:
    def kernel(*_: Any, **__: Any) -> Any:
        raise NotRecordableError(f"aten::{name}{place()} cannot be recorded without a GPU: {reason}")

    return kernel


def _kernels(target: Target, recorder: Recorder) -> dict[str, Kernel]:
    """Returns the kernels that stand for the GPU's way through composite operators."""
    return {"dropout": _dropout, "softmax.int": _half_to_float("softmax"), "log_softmax.int": _half_to_float("log_softmax"),
            "batch_norm": _batch_norm, "linear": _linear, "rms_norm": _rms_norm,
            "scaled_dot_product_attention": _attention(target.capability, recorder),
            **{name: _refuse(name, reason, recorder.place) for name, reason in table.REFUSED.items()}}


def _autocast_wraps(name: str) -> bool:
    return _overload(name) is not None and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA")


class Interposer:
    """Registers the kernels for a pretended GPU. `active` switches them on for the calling thread."""

    def __init__(self, target: Target, recorder: Recorder) -> None:
        self.casts = Casts()
        self._fallback = torch._C._dispatch_library("IMPL", "_", KEY, __file__, 0)
        self._fallback.fallback_fallthrough(KEY)  # all operators without a kernel pass through
        self._library = torch.library.Library("aten", "IMPL")
        ways = _kernels(target, recorder)
        policies = {name: policy for policy, names in table.AUTOCAST.items() for name in names if _autocast_wraps(name)}
        for name in dict.fromkeys([*policies, *ways]):
            op = _overload(name)
            if op is not None:
                self._library.impl(name, self._kernel(op, policies.get(name), ways.get(name)), KEY)

    def _kernel(self, op: Any, policy: str | None, way: Kernel | None) -> Kernel:
        def on_device(args: Any) -> bool:
            return bool(args) and isinstance(args[0], torch.Tensor) and args[0].device.type == "meta"

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # This runs the operator with all casts off, as autocast's own wrappers do.
            with torch._C._ExcludeDispatchKeyGuard(_KEYS), torch._C.DisableTorchFunction():
                run = op
                if policy is not None and torch.is_autocast_enabled("cuda"):
                    run, args, kwargs = self.casts.arguments(policy, op, args, kwargs)
                return (way if way is not None and on_device(args) else run)(*args, **kwargs)

        def composite(*args: Any, **kwargs: Any) -> Any:
            # The parts of the operator come through this key again.
            with torch._C.DisableTorchFunction():
                if way is not None and on_device(args):
                    return way(*args, **kwargs)
                return take_apart(op, *args, **kwargs)

        return composite if policy is None else wrapped

    def active(self) -> AbstractContextManager[None]:
        return _interposed()

    def close(self) -> None:
        self._library._destroy()
        del self._fallback
        self.casts.clear()

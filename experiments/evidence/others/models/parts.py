"""Parts that several of the models have."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def type_of(name):
    return getattr(torch, name.removeprefix("torch."))


def group_of(size, stride=1):
    """Returns a process group of `size` GPUs whose ranks are `stride` apart, of which only rank 0 is there.

    Returns None for one GPU.
    """
    if size == 1:
        return None
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=1 << 10)
    return dist.new_group(range(0, size * stride, stride))


class RmsNorm(nn.Module):
    """The norm of transformers' Llama, in float32."""

    def __init__(self, width, eps=1e-6, dtype=torch.float32):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width, dtype=dtype, device="cuda")), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class GatedMlp(nn.Module):
    def __init__(self, width, inner, activation, linear=nn.Linear, bias=False, fused=False):
        super().__init__()
        self.fused = fused
        self.gate, self.up = linear(width, inner, bias=bias), linear(width, inner, bias=bias)
        self.down = linear(inner, width, bias=bias)
        self.activation = activation

    def forward(self, x):
        if self.fused:
            return self.down(GatedProduct.apply(self.gate(x), self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class GatedProduct(torch.autograd.Function):
    """A fused product of an activation and a gate, which keeps its inputs and writes their gradients over them."""

    @staticmethod
    def forward(context, gate, up):
        context.save_for_backward(gate, up)
        return gate * up

    @staticmethod
    def backward(context, gradient):
        gate, up = context.saved_tensors
        return gate.detach().mul_(gradient), up.detach().mul_(gradient)


ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh")}


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin

"""Decoders of torchtune, torchtitan and transformers."""

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from .parts import GatedMlp, RmsNorm, group_of, rotated


class DecoderBlock(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, self.size = o, o["width"] // o["heads"]
        bias = {"bias": False}
        norm = nn.RMSNorm if o["fused"] else RmsNorm
        self.before, self.between = norm(o["width"]), norm(o["width"])
        self.q = nn.Linear(o["width"], o["heads"] * self.size, **bias)
        self.k, self.v = (nn.Linear(o["width"], o["groups"] * self.size, **bias) for _ in range(2))
        self.proj = nn.Linear(o["heads"] * self.size, o["width"], **bias)
        self.mlp = GatedMlp(o["width"], o["ffn"], F.silu, fused=o["fused"])

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.before(x)
        q, k, v = (linear(y).view(b, t, -1, self.size) for linear in (self.q, self.k, self.v))
        if self.o["turns_in_float"]:
            q, k = (turned_in_float(z, cos) for z in (q, k))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        if not self.o["turns_in_float"]:
            q, k = (rotated(z, cos, sin) for z in (q, k))
        if self.o["groups"] != self.o["heads"]:
            k, v = (z.repeat_interleave(self.o["heads"] // self.o["groups"], 1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.between(x))


def turned_in_float(x, angles):
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c, s = angles[..., 0], angles[..., 1]
    return torch.stack([a * c - b * s, b * c + a * s], -1).flatten(3).type_as(x)


def every_second_product(context, operator, *_, **__):
    """torchtitan's selective checkpoint: attention and every second product are kept."""
    from torch.utils.checkpoint import CheckpointPolicy

    if operator == torch.ops.aten.mm.default:
        count = "recomputed" if context.is_recompute else "first"
        every_second_product.counts[count] = every_second_product.counts.get(count, 0) + 1
        save = every_second_product.counts[count] % 2
    else:
        save = "attention" in str(operator)
    return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


def selective(call, *inputs):
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    def contexts():
        every_second_product.counts = {}
        return create_selective_checkpoint_contexts(every_second_product)

    return checkpoint(call, *inputs, use_reentrant=False, context_fn=contexts)


class Head(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.norm = (nn.RMSNorm if o["fused"] else RmsNorm)(o["width"])
        self.head = nn.Linear(o["width"], o["vocabulary"], bias=False)

    def forward(self, x):
        return self.head(self.norm(x))


class Decoder(nn.Module):
    def __init__(self, o, ways):
        super().__init__()
        self.words, self.head = nn.Embedding(o["vocabulary"], o["width"]), Head(o)
        self.blocks = nn.ModuleList(Recomputed(DecoderBlock(o), way) for way in ways)
        if o["tied"]:
            self.head.head.weight = self.words.weight

    def forward(self, tokens, cos, sin):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(x)


def decoder(batch, length, shards=1, recompute="none", optimizer="fused", **options):
    """A step of a Llama in bf16 with flash attention, and its loss in float32.

    shards: number of GPUs over which FSDP2 cuts weights and states, in float32; 1: all of them are bf16.
    recompute: none, full, second (every second layer) or products (see `every_second_product`).
    """
    o = {"turns_in_float": True, "tied": False, "fused": False, **options}
    full = functools.partial(checkpoint, use_reentrant=False)
    ways = [{"none": None, "full": full, "second": full if i % 2 == 0 else None, "products": selective}[recompute]
            for i in range(o["layers"])]
    with torch.device("cuda"):
        model = Decoder(o, ways).to(torch.float32 if shards > 1 else torch.bfloat16)
        if shards > 1:
            mesh = DeviceMesh.from_group(group_of(shards), "cuda")
            mixed = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            for block in (*model.blocks, model):
                fully_shard(block, mesh=mesh, mp_policy=mixed)
        size = o["width"] // o["heads"]
        cos = torch.empty(length, 1, size // 2, 2)
        if not o["turns_in_float"]:
            cos = torch.empty(length, size, dtype=torch.bfloat16)
        sin = torch.empty_like(cos)
    chosen = torch.optim.AdamW(model.parameters(), **{optimizer: True})

    def step():
        chosen.zero_grad()
        tokens, labels = (torch.randint(o["vocabulary"], (batch, length), device="cuda") for _ in range(2))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            logits = model(tokens, cos, sin)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
            del logits
            loss.backward()
        if shards > 1:  # as the frameworks whose rows are sharded do
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()

    return step


class Recomputed(nn.Module):
    """A module, whose forward runs again in backward if there is a `way`."""

    def __init__(self, module, way):
        super().__init__()
        self.module, self.way = module, way

    def forward(self, *inputs):
        return self.way(self.module, *inputs) if self.way else self.module(*inputs)

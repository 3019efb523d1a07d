"""Decoders of torchtune, torchtitan and transformers."""

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .parts import GatedMlp, RmsNorm, rotated


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


class Gather(torch.autograd.Function):
    """Stands for gathering weights of which each GPU has a part, and for summing their gradients in float32."""

    @staticmethod
    def forward(context, shard, owner):
        context.owner = owner
        return owner.gathered()

    @staticmethod
    def backward(context, *gradients):
        owner, context.owner.whole = context.owner, None
        whole = owner.shard.new_empty(owner.total)
        for part, gradient in zip(whole.split([g.numel() for g in gradients]), gradients):
            part.copy_(gradient.reshape(-1))
        return torch.empty_like(owner.shard), None


class Sharded(nn.Module):
    """A module whose weights, in float32, are cut over several GPUs, as FSDP does.

    They are whole while it runs forward and backward, and in between, too, if they `stay`.
    """

    def __init__(self, module, parts, recompute=None, stay=False):
        super().__init__()
        named = dict(module.named_parameters())
        self.shapes, self.total = [p.shape for p in named.values()], sum(p.numel() for p in named.values())
        self.names, self.recompute, self.stay, self.whole = list(named), recompute, stay, None
        self.shard = nn.Parameter(torch.zeros(-(-self.total // parts)))
        self.module = [module]
        for name in self.names:
            owner, _, last = name.rpartition(".")
            owner = module.get_submodule(owner)
            setattr(owner, last, nn.Parameter(torch.empty(()).expand(getattr(owner, last).shape), requires_grad=False))

    def gathered(self):
        return tuple(self.shard.new_empty(shape, dtype=torch.bfloat16) for shape in self.shapes)

    def call(self, *inputs):
        self.weights = Gather.apply(self.shard, self)
        try:
            return torch.func.functional_call(self.module[0], dict(zip(self.names, self.weights)), inputs)
        finally:  # checkpoint leaves a repeated call by an exception
            self.weights = ()

    def forward(self, *inputs):
        if self.recompute:
            return self.recompute(self.call, *inputs)
        if self.stay:
            return self.call(*inputs)
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            return self.call(*inputs)

    def pack(self, t):
        storages = [w.untyped_storage()._cdata for w in self.weights]
        cdata = t.untyped_storage()._cdata
        return (storages.index(cdata), t.size(), t.stride()) if cdata in storages else t

    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        if self.whole is None:
            self.whole = self.gathered()
        return self.whole[kept[0]].as_strided(*kept[1:])


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


def decoder(batch, length, shards=1, recompute="none", optimizer="fused", **options):
    """A step of a Llama in bf16 with flash attention, and its loss in float32.

    shards: number of GPUs over which FSDP cuts weights and states, in float32; 1: all of them are bf16.
    recompute: none, full, second (every second layer) or products (see `every_second_product`).
    """
    o = {"turns_in_float": True, "tied": False, "fused": False, **options}
    full = functools.partial(checkpoint, use_reentrant=False)
    ways = [{"none": None, "full": full, "second": full if i % 2 == 0 else None, "products": selective}[recompute]
            for i in range(o["layers"])]
    with torch.device("cuda"):
        kind = torch.float32 if shards > 1 else torch.bfloat16
        words, head = nn.Embedding(o["vocabulary"], o["width"]).to(kind), Head(o).to(kind)
        blocks = [DecoderBlock(o).to(kind) for _ in range(o["layers"])]
        if o["tied"]:
            head.head.weight = words.weight
        if shards > 1:
            blocks = [Sharded(block, shards, way) for block, way in zip(blocks, ways)]
            ahead = torch.empty(blocks[0].total, dtype=torch.bfloat16)  # the next block's weights
            words, head = Sharded(words, shards, stay=True), Sharded(head, shards, stay=True)
        elif recompute != "none":
            blocks = [Recomputed(block, way) if way else block for block, way in zip(blocks, ways)]
        size = o["width"] // o["heads"]
        cos = torch.empty(length, 1, size // 2, 2)
        if not o["turns_in_float"]:
            cos = torch.empty(length, size, dtype=torch.bfloat16)
        sin = torch.empty_like(cos)
    parameters = {id(p): p for module in (words, *blocks, head) for p in module.parameters() if p.requires_grad}
    chosen = torch.optim.AdamW(list(parameters.values()), **{optimizer: True})

    def step():
        chosen.zero_grad()
        tokens, labels = (torch.randint(o["vocabulary"], (batch, length), device="cuda") for _ in range(2))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            x = words(tokens)
            for block in blocks:
                x = block(x, cos, sin)
            loss = F.cross_entropy(head(x).flatten(0, 1).float(), labels.flatten(0, 1))
            del x
            loss.backward()
        chosen.step()
        return ahead if shards > 1 else None

    return step


class Recomputed(nn.Module):
    def __init__(self, module, way):
        super().__init__()
        self.module, self.way = module, way

    def forward(self, *inputs):
        return self.way(self.module, *inputs)

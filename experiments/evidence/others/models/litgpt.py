"""Fine-tuning with litgpt."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from .parts import ACTIVATIONS, GatedMlp, rotated


class LitNorm(nn.Module):
    """litgpt's RMSNorm, in float32; Gemma's adds 1 to its weight."""

    def __init__(self, width, unit):
        super().__init__()
        self.weight, self.unit = nn.Parameter(torch.ones(width)), unit

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5)
        weight = 1 + self.weight if self.unit else self.weight
        return (y * weight.float()).to(x.dtype)


class LowRank(nn.Module):
    """A linear layer with matrices of low rank beside it, for `parts` of its output, which litgpt pads with zeros."""

    def __init__(self, width, out, bias, rank, dropout, parts=None):
        super().__init__()
        self.linear = nn.Linear(width, out, bias=bias)
        self.out, self.dropout, self.parts = out, dropout, parts
        trained = [part for part, asked in parts if asked] if parts else [out]
        self.trained = trained if rank else []
        if self.trained:
            self.lora_a = nn.Parameter(torch.empty(rank * len(trained), width))
            self.lora_b = nn.Parameter(torch.empty(sum(trained), rank))

    def forward(self, x):
        y = self.linear(x)
        if not self.trained:
            return y
        low = F.linear(F.dropout(x, self.dropout), self.lora_a)
        if self.parts is None:
            return y + low @ self.lora_b.t() * 0.5
        pairs = zip(low.transpose(1, 2).chunk(len(self.trained), 1), self.lora_b.unsqueeze(-1).split(self.trained))
        added = torch.cat([F.conv1d(a, b) for a, b in pairs], 1).transpose(1, 2)
        if len(self.trained) < len(self.parts):
            padded = x.new_zeros(x.shape[0] * x.shape[1], self.out)
            index = torch.arange(sum(self.trained), device=x.device)
            added = padded.index_copy(1, index, added.reshape(-1, sum(self.trained))).view(*x.shape[:2], self.out)
        return y + added * 0.5


class LitBlock(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, size = o, o["size"]
        rank, bias = o["rank"], o["bias"]
        others = rank if o["rank_everywhere"] else 0
        parts = [(o["heads"] * size, True), (o["groups"] * size, o["rank_everywhere"]), (o["groups"] * size, True)]
        self.qkv = LowRank(o["width"], (o["heads"] + 2 * o["groups"]) * size, bias, rank, o["dropout"], parts)
        self.proj = LowRank(o["heads"] * size, o["width"], bias, others, o["dropout"])

        def norm():
            return LitNorm(o["width"], o["unit"]) if o["rms"] else nn.LayerNorm(o["width"])

        self.before, self.between = norm(), None if o["shared_norm"] else norm()
        self.after_attention, self.after_mlp = (norm(), norm()) if o["post_norms"] else (nn.Identity(), nn.Identity())
        linear = functools.partial(LowRank, rank=others, dropout=o["dropout"])
        if o["gated"]:
            self.mlp = GatedMlp(o["width"], o["ffn"], ACTIVATIONS[o["activation"]], linear, bias)
        else:
            self.mlp = nn.Sequential(linear(o["width"], o["ffn"], bias), Activation(o["activation"]),
                                     linear(o["ffn"], o["width"], bias))

    def attention(self, x, cos, sin):
        o, (b, t, _) = self.o, x.shape
        turned = int(o["rotary"] * o["size"])
        q, k, v = self.qkv(x).split([n * o["size"] for n in (o["heads"], o["groups"], o["groups"])], -1)
        q, k, v = (z.view(b, t, -1, o["size"]).transpose(1, 2) for z in (q, k, v))
        q, k = (torch.cat((rotated(z[..., :turned], cos, sin), z[..., turned:]), -1) for z in (q, k))
        if o["groups"] != o["heads"]:
            k, v = (z.repeat_interleave(o["heads"] // o["groups"], 1) for z in (k, v))
        if o["softcap"]:
            scores = torch.tanh(q @ k.mT * 0.1 / 50) * 50
            mask = torch.ones(t, t, dtype=q.dtype, device=q.device).triu(1)
            y = F.softmax(scores + mask, -1, dtype=torch.float).to(q.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x, cos, sin):
        y = self.before(x)
        z = self.after_attention(self.attention(y, cos, sin))
        if self.o["parallel"] and self.between is not None:
            y = self.between(x)
        x = z + x
        if not self.o["parallel"]:
            y = self.between(x)
        return self.after_mlp(self.mlp(y)) + x


class Activation(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.call = ACTIVATIONS[name]

    def forward(self, x):
        return self.call(x)


class LitModel(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.words = nn.Embedding(o["vocabulary"], o["width"])
        self.blocks = nn.ModuleList(LitBlock(o) for _ in range(o["layers"]))
        self.norm = LitNorm(o["width"], o["unit"]) if o["rms"] else nn.LayerNorm(o["width"])
        rank = o["rank"] if o["rank_everywhere"] else 0
        self.head = LowRank(o["width"], o["vocabulary"], o["head_bias"], rank, o["dropout"])

    def forward(self, tokens, cos, sin):
        x = self.words(tokens)
        if self.o["scaled"]:
            x = x * math.sqrt(self.o["width"])
        for block in self.blocks:
            x = block(x, cos, sin)
        return [self.head(part) for part in self.norm(x).split(128, 1)]


def litgpt(batch, length, **options):
    """A step of litgpt's fine-tuning in bf16: of matrices of low rank if `rank` is above 0, else of all weights.

    The last of several micro-batches: gradients of the others are there from the start.
    """
    o = {"bias": False, "head_bias": False, "rms": True, "unit": False, "gated": True, "activation": "silu",
         "parallel": False, "shared_norm": False, "post_norms": False, "softcap": False, "scaled": False,
         "rotary": 1.0, "rank": 0, "rank_everywhere": False, "dropout": 0.05, **options}
    o.setdefault("size", o["width"] // o["heads"])
    with torch.device("cuda"):
        model = LitModel(o).bfloat16()
        cos, sin = (torch.empty(length, int(o["rotary"] * o["size"]), dtype=torch.bfloat16) for _ in range(2))
    if o["rank"]:
        for name, p in model.named_parameters():
            p.requires_grad_("lora_" in name)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def step():
        tokens, labels = (torch.randint(o["vocabulary"], (batch, length), device="cuda") for _ in range(2))
        logits = [part.float() for part in model(tokens, cos, sin)]  # as Fabric converts the results of a model
        logits[-1] = logits[-1][..., :-1, :]
        losses = [F.cross_entropy(part.reshape(-1, part.shape[-1]), label.reshape(-1), reduction="none")
                  for part, label in zip(logits, labels[:, 1:].split(128, 1))]
        (torch.cat(losses).sum() / (labels != -1).sum()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step

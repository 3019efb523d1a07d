"""Small steps of training and inference, by name. A case takes the name of a device and returns (model, step)."""

import contextlib
import os
import unittest
from collections import OrderedDict

import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.nn import functional as F


# Tests of half a minute and more, which CTest has in a test of its own.
slow = unittest.skipUnless(os.environ.get("SPILLWAY_SLOW"), "slow; ctest --preset release -R torch_slow runs it")


def train(model, loss, *optimizers, accumulate=1, around=contextlib.nullcontext):
    def step():
        for optimizer in optimizers:
            optimizer.zero_grad()
        for _ in range(accumulate):
            with around():
                value = loss() / accumulate
            value.backward()
        for optimizer in optimizers:
            optimizer.step()
    return model, step


def mlp(device, optimizer=torch.optim.SGD, inplace=True, **options):
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(inplace=inplace),
                          nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(device)

    def loss():
        x, y = torch.randn(16, 24, device=device), torch.randint(8, (16,), device=device)
        return F.cross_entropy(model(x), y)

    return train(model, loss, optimizer(model.parameters(), lr=0.1), **options)


def convolutions(device, memory_format=torch.contiguous_format):
    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
            self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

        def forward(self, x):
            y = F.relu(self.norm1(self.conv1(x)), inplace=True)
            y = self.norm2(self.conv2(y))
            y += x
            return F.relu(y, inplace=True)

    model = nn.Sequential(OrderedDict(stem=nn.Conv2d(3, 8, 3, stride=2), pool=nn.MaxPool2d(2), blocks=nn.Sequential(Block(8), Block(8)),
                                      mean=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(8, 10)))
    model = model.to(device, memory_format=memory_format)

    def loss():
        x = torch.randn(4, 3, 32, 32, device=device).to(memory_format=memory_format)
        return F.cross_entropy(model(x), torch.randint(10, (4,), device=device))

    return train(model, loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads, self.dropout = heads, nn.Dropout(dropout)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(b, s, w)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self, words=50, width=32, heads=4, layers=2, dropout=0.0, tied=True, checkpoint=None):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.checkpoint = checkpoint

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x) if self.checkpoint is None else checkpointing.checkpoint(
                layer, x, use_reentrant=self.checkpoint)
        return self.head(x)


def transformer(device, optimizer=torch.optim.AdamW, tied=True, checkpoint=None, dropout=0.0, length=16, cast=None, **options):
    model = Transformer(tied=tied, checkpoint=checkpoint, dropout=dropout).to(device)
    if cast is not None:
        model = model.to(cast)

    def loss():
        tokens = torch.randint(50, (3, length), device=device)
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return train(model, loss, optimizer(model.parameters(), lr=0.1), **options)


def two_optimizers(device):
    model = Transformer(tied=False).to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]

    def loss():
        tokens = torch.randint(50, (3, 16), device=device)
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return train(model, loss, torch.optim.AdamW(matrices, lr=0.1), torch.optim.SGD(vectors, lr=0.1))


class LowRank(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def low_rank(device):
    model = Transformer(tied=False).to(device).requires_grad_(False)
    for layer in model.layers:
        layer.qkv = LowRank(layer.qkv).to(device)

    def loss():
        tokens = torch.randint(50, (3, 16), device=device)
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return train(model, loss, torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1))


def inference(device, context=torch.no_grad):
    model = Transformer().to(device).eval()

    def step():
        with context():
            model(torch.randint(50, (3, 16), device=device))

    return model, step


def autocast(device, dtype=torch.bfloat16, **options):
    return transformer(device, around=lambda: torch.autocast(device, dtype), **options)


def grad_scaling(device):
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)

    def step():
        tokens = torch.randint(50, (3, 16), device=device)
        with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return model, step


def views_in_place(device):
    weight = torch.ones(8, 8, device=device, requires_grad=True)
    model = nn.Identity()

    def step():
        x = torch.zeros(8, 8, device=device) * 1
        x[2:4] = weight[0]
        x[:, 1].mul_(2)
        x.view(-1)[:8].add_(weight[1])
        (x * weight).sum().backward()
        weight.grad = None

    return model, step


def outliving(device):
    """Keeps a tensor of each step until the next one is done."""
    model = nn.Linear(16, 16).to(device)
    kept = []

    def step():
        y = model(torch.randn(4, 16, device=device))
        y.sum().backward()
        kept.append(y.detach())
        del kept[:-2]
        model.zero_grad()

    return model, step


def positions(device):
    """Decides by values that follow from shapes alone, as models do with masks and positions."""
    model = nn.Linear(8, 8).to(device)

    def step():
        place = torch.arange(6, device=device)
        mask = (place[None] <= place[:, None])
        assert not mask.all() and (place.cumsum(0)[-1] == 15).item()
        x = torch.randn(6, 8, device=device)
        for row in mask.sum(1).tolist():
            x = model(x[:row])[:1].expand(6, 8) + 1
        model(x[place[mask[3]]]).sum().backward()
        model.zero_grad()

    return model, step


CASES = {
    "mlp": mlp,
    "mlp, momentum": lambda d: mlp(d, optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
    "mlp, accumulation": lambda d: mlp(d, accumulate=3),
    "convolutions": convolutions,
    "transformer": transformer,
    "transformer, Adam one by one": lambda d: transformer(d, optimizer=lambda p, lr: torch.optim.Adam(p, lr=lr, foreach=False)),
    "transformer, not tied": lambda d: transformer(d, tied=False, length=11),
    "transformer, checkpoint": lambda d: transformer(d, checkpoint=False),
    "transformer, reentrant checkpoint": lambda d: transformer(d, checkpoint=True),
    "two optimizers": two_optimizers,
    "low rank": low_rank,
    "inference": inference,
    "views in place": views_in_place,
    "outliving": outliving,
    "positions": positions,
}

# Cases whose operators differ between a CPU and a GPU.
GPU_CASES = {
    "transformer, bfloat16": lambda d: transformer(d, cast=torch.bfloat16),
    "dropout": lambda d: transformer(d, dropout=0.1),
    "autocast": autocast,
    "autocast, checkpoint": lambda d: autocast(d, checkpoint=False, dropout=0.1),
    "autocast, reentrant checkpoint": lambda d: autocast(d, checkpoint=True),
    "gradient scaling": grad_scaling,
    "channels last": lambda d: convolutions(d, memory_format=torch.channels_last),
    "inference mode": lambda d: inference(d, context=torch.inference_mode),
    "fused AdamW": lambda d: transformer(d, optimizer=lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True)),
    "fused SGD": lambda d: mlp(d, optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, fused=True)),
}

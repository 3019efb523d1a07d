"""A GPT and a loop like nanoGPT's: autocast, two micro-batches, clipped gradients, and a schedule of its own.

The sizes are those of GPT-2 with 124M parameters.
"""

import math

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return F.dropout(self.out(y.transpose(1, 2).flatten(2)), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm, self.attention, self.other_norm = nn.LayerNorm(width), Attention(width, heads, dropout), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.other_norm(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, length, width, heads, layers, dropout, checkpoints):
        super().__init__()
        self.checkpoints = checkpoints
        self.tokens, self.places, self.dropout = nn.Embedding(vocabulary, width), nn.Embedding(length, width), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, tokens, targets=None):
        x = self.dropout(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints and self.training else block(x)
        if targets is None:
            return self.head(self.norm(x)[:, [-1]]), None
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def train(run):
    sizes = (50304, 1024, 768, 12, 12) if run.large else (96, 48, 32, 4, 4)  # vocabulary, length, width, heads, layers
    batch, micro_batches = run.batch(4, 8), 2
    model = Gpt(*sizes, 0.1, run.checkpoints).to(run.device)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), fused=run.device == "cuda")
    draw = numpy.random.default_rng(1)
    data = draw.integers(0, sizes[0], 40 * sizes[1])

    def get_batch():
        at = draw.integers(0, len(data) - sizes[1] - 1, batch)
        x, y = (torch.stack([torch.from_numpy(data[i + shift:i + shift + sizes[1]]) for i in at]) for shift in (0, 1))
        if run.device == "cuda":
            return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)
        return x, y

    @torch.no_grad()
    def estimate_loss():
        model.eval()
        losses = torch.zeros(3)
        for k in range(3):
            with cast:
                _, loss = model(*get_batch())
            losses[k] = loss.item()
        model.train()
        return losses.mean()

    cast = torch.autocast(run.device, torch.bfloat16)
    run.fit(model, optimizer)
    x, y = get_batch()
    for step in range(run.steps):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * (step / 5 if step < 5 else 0.5 * (1 + math.cos(math.pi * step / run.steps)))
        if step % 10 == 0:
            run.loss(estimate_loss())
        for _ in range(micro_batches):
            with cast:
                _, loss = model(x, y)
                loss = loss / micro_batches
            x, y = get_batch()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss(loss.item() * micro_batches)
    return model

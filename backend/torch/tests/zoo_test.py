"""Tests that small transformers of `spillway` train as PyTorch's do: the same losses from the same weights and tokens."""

import math
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

SPILLWAY = os.environ["SPILLWAY"]
BATCH, LENGTH, WIDTH, LAYERS, HEADS, KV_HEADS, FFN, VOCABULARY = 3, 7, 16, 2, 4, 2, 24, 19
STEPS = 10


def draw(*shape, scale=0.2, centre=0.0):
    return centre + scale * torch.randn(*shape)


def heads_of(x, heads):
    return x.view(BATCH, LENGTH, heads, -1).transpose(1, 2)


def attend(q, k, v, kv_heads):
    y = F.scaled_dot_product_attention(heads_of(q, HEADS), heads_of(k, kv_heads), heads_of(v, kv_heads), is_causal=True,
                                       enable_gqa=True)
    return y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


class Gpt:
    name = f"gpt({WIDTH},{LAYERS},{HEADS},{VOCABULARY})@{LENGTH}:{BATCH}"

    def __init__(self):
        self.p = {"wte.weight": draw(VOCABULARY, WIDTH), "wpe.weight": draw(LENGTH, WIDTH)}
        for i in range(LAYERS):
            for norm in ("ln_1", "ln_2"):
                self.norm(f"h{i}.{norm}")
            for layer, out, into in (("attn.q", 1, 1), ("attn.k", 1, 1), ("attn.v", 1, 1), ("attn.proj", 1, 1),
                                     ("mlp.fc", 4, 1), ("mlp.proj", 1, 4)):
                self.p[f"h{i}.{layer}.weight"] = draw(out * WIDTH, into * WIDTH)
                self.p[f"h{i}.{layer}.bias"] = draw(out * WIDTH)
        self.norm("ln_f")

    def norm(self, name):
        self.p |= {f"{name}.weight": draw(WIDTH, centre=1.0), f"{name}.bias": draw(WIDTH)}

    def linear(self, name, x):
        return F.linear(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def layer_norm(self, name, x):
        return F.layer_norm(x, (WIDTH,), self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def __call__(self, tokens):
        x = F.embedding(tokens, self.p["wte.weight"]) + self.p["wpe.weight"]
        for i in range(LAYERS):
            h = f"h{i}"
            y = self.layer_norm(f"{h}.ln_1", x)
            q, k, v = (self.linear(f"{h}.attn.{part}", y) for part in "qkv")
            x = x + self.linear(f"{h}.attn.proj", attend(q, k, v, HEADS))
            y = F.gelu(self.linear(f"{h}.mlp.fc", self.layer_norm(f"{h}.ln_2", x)))
            x = x + self.linear(f"{h}.mlp.proj", y)
        return F.linear(self.layer_norm("ln_f", x), self.p["wte.weight"])


class Llama:
    name = f"llama({WIDTH},{LAYERS},{HEADS},{KV_HEADS},{FFN},{VOCABULARY})@{LENGTH}:{BATCH}"

    def __init__(self):
        kv = WIDTH // HEADS * KV_HEADS
        self.p = {"embed.weight": draw(VOCABULARY, WIDTH), "lm_head.weight": draw(VOCABULARY, WIDTH),
                  "norm.weight": draw(WIDTH, centre=1.0)}
        for i in range(LAYERS):
            for part in ("attn", "mlp"):
                self.p[f"h{i}.{part}.norm.weight"] = draw(WIDTH, centre=1.0)
            for layer, out, into in (("attn.q", WIDTH, WIDTH), ("attn.k", kv, WIDTH), ("attn.v", kv, WIDTH),
                                     ("attn.o", WIDTH, WIDTH), ("mlp.gate", FFN, WIDTH), ("mlp.up", FFN, WIDTH),
                                     ("mlp.down", WIDTH, FFN)):
                self.p[f"h{i}.{layer}.weight"] = draw(out, into)

    def linear(self, name, x):
        return F.linear(x, self.p[f"{name}.weight"])

    def rms_norm(self, name, x):
        return F.rms_norm(x, (WIDTH,), self.p[f"{name}.weight"], 1e-5)

    @staticmethod
    def rotary(x, heads):
        half = WIDTH // HEADS // 2
        angle = torch.arange(LENGTH)[:, None] * torch.pow(torch.tensor(500000.0, dtype=torch.float64),
                                                          -torch.arange(half) / half)
        turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
        x = x.view(BATCH, LENGTH, heads, 2, half)
        turned = torch.complex(x[..., 0, :], x[..., 1, :]) * turn[:, None]
        return torch.stack((turned.real, turned.imag), -2).reshape(BATCH, LENGTH, -1)

    def __call__(self, tokens):
        x = F.embedding(tokens, self.p["embed.weight"])
        for i in range(LAYERS):
            h = f"h{i}"
            y = self.rms_norm(f"{h}.attn.norm", x)
            q, k = self.rotary(self.linear(f"{h}.attn.q", y), HEADS), self.rotary(self.linear(f"{h}.attn.k", y), KV_HEADS)
            x = x + self.linear(f"{h}.attn.o", attend(q, k, self.linear(f"{h}.attn.v", y), KV_HEADS))
            y = self.rms_norm(f"{h}.mlp.norm", x)
            y = F.silu(self.linear(f"{h}.mlp.gate", y)) * self.linear(f"{h}.mlp.up", y)
            x = x + self.linear(f"{h}.mlp.down", y)
        return self.linear("lm_head", self.rms_norm("norm", x))


def losses_of(model, optimizer, tokens, labels):
    """Returns the losses of STEPS training steps, with the coefficients that `spillway` has."""
    parameters = [p.requires_grad_() for p in model.p.values()]
    rule = {"sgd": lambda: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4),
            "adam": lambda: torch.optim.Adam(parameters, lr=1e-3),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)}[optimizer]()
    losses = []
    for _ in range(STEPS):
        rule.zero_grad()
        loss = F.cross_entropy(model(tokens).view(-1, VOCABULARY), labels.view(-1))
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


class ZooTest(unittest.TestCase):
    def spillway(self, model, optimizer, attention, tokens, labels, steps):
        """Returns the loss of the last of `steps` training steps."""
        with tempfile.TemporaryDirectory() as directory:
            weights, images = (pathlib.Path(directory) / name for name in ("w.safetensors", "i.safetensors"))
            save_file({name: p.detach().clone() for name, p in model.p.items()}, weights)
            save_file({"tokens": tokens.int(), "labels": labels.int()}, images)
            result = subprocess.run([SPILLWAY, "run", model.name, "--backend", "cpu", "--optimizer", optimizer, "--attention",
                                     attention, "--weights", weights, "--images", images, "--iterations", str(steps)],
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            return float(re.search(r"loss (\S+) after", result.stdout)[1])

    def test_ten_steps_reach_pytorchs_loss(self):
        for make in (Gpt, Llama):
            for optimizer, attention in (("sgd", "math"), ("adam", "fused"), ("adamw", "fused")):
                with self.subTest(model=make.name, optimizer=optimizer):
                    torch.manual_seed(1)
                    model = make()
                    tokens, labels = torch.randint(VOCABULARY, (2, BATCH, LENGTH))
                    got = [self.spillway(model, optimizer, attention, tokens, labels, steps) for steps in (1, STEPS)]
                    losses = losses_of(model, optimizer, tokens, labels)
                    self.assertLess(losses[-1], losses[0] - 0.01)
                    self.assertTrue(math.isclose(got[0], losses[0], rel_tol=1e-5), (got[0], losses[0]))
                    self.assertTrue(math.isclose(got[1], losses[-1], rel_tol=1e-4), (got[1], losses[-1]))


if __name__ == "__main__":
    unittest.main()

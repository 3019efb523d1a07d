"""Tests that small transformers of `spillway` train as PyTorch's do: the same losses from the same weights and tokens."""

import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from spillway_torch import SpillwayError
from spillway_torch.__main__ import main as spillway_torch
from spillway_torch.step.weights import convert

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))
import compare_pytorch  # noqa: E402

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
            result = subprocess.run([SPILLWAY, "run", f"{model.name},optimizer={optimizer},attention={attention}", "--backend",
                                     "cpu", "--weights", weights, "--images", images, "--iterations", str(steps)],
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


def small_gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY, n_positions=LENGTH, activation_function="gelu",
        embd_pdrop=0, attn_pdrop=0, resid_pdrop=0, bos_token_id=None, eos_token_id=None))


def small_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        intermediate_size=FFN, vocab_size=VOCABULARY, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}))


def contents(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class WeightsTest(unittest.TestCase):
    """Models of transformers train in `spillway`, and come back."""

    def test_ten_steps_and_the_way_back(self):
        for make, name in ((small_gpt2, Gpt.name), (small_llama, Llama.name)):
            with self.subTest(model=name), tempfile.TemporaryDirectory() as directory:
                torch.manual_seed(1)
                model = make()
                tokens, labels = torch.randint(VOCABULARY, (2, BATCH, LENGTH))
                theirs, ours, images, trained, back = (os.path.join(directory, file) for file in "12345")
                save_file(contents(model), theirs)
                save_file({"tokens": tokens.int(), "labels": labels.int()}, images)
                self.assertEqual(spillway_torch(["weights", theirs, "-o", ours]), 0)
                result = subprocess.run([SPILLWAY, "run", f"{name},optimizer=adamw", "--backend", "cpu", "--weights", ours,
                                         "--images", images, "--iterations", str(STEPS), "--export", f"weights:{trained}"],
                                        capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)
                rule = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
                for _ in range(STEPS):
                    rule.zero_grad()
                    loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())
                    loss.backward()
                    rule.step()
                self.assertAlmostEqual(float(re.search(r"loss (\S+) after", result.stdout)[1]), loss.item(), delta=1e-3)
                self.assertEqual(spillway_torch(["weights", trained, "-o", back]), 0)
                other = make()
                other.load_state_dict(load_file(back))
                with torch.no_grad():
                    after = [F.cross_entropy(m(tokens).logits.flatten(0, 1), labels.flatten()).item() for m in (model, other)]
                self.assertLess(after[0], loss.item())
                self.assertAlmostEqual(*after, delta=1e-3)

    def test_names_and_shapes_are_those_of_the_network(self):
        with torch.device("meta"):
            models = {"gpt2@8:1": transformers.GPT2LMHeadModel(transformers.GPT2Config()),
                      "bert-base@8:1": transformers.BertForMaskedLM(transformers.BertConfig()),
                      "vit-b16:1": transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)),
                      Llama.name: small_llama()}
        for workload, model in models.items():
            weights = {name: torch.zeros(1).expand(value.shape) for name, value in model.state_dict().items()}
            plan = compare_pytorch.load_plan(SPILLWAY, workload)
            ours = convert(weights)
            self.assertEqual({name: list(value.shape) for name, value in ours.items()} |
                             ({"lm_head.weight": [VOCABULARY, WIDTH]} if workload == Llama.name else {}),
                             {t["name"]: t["shape"] for t in plan.parameters()}, workload)
            self.assertEqual({name: value.shape for name, value in convert(ours).items()},
                             {name: value.shape for name, value in weights.items()}, workload)

    def test_wrong_files(self):
        weights = contents(small_gpt2())
        for change, message in (({"transformer.h.0.more": torch.zeros(1)}, "no place for it"),
                                ({"lm_head.weight": torch.zeros(VOCABULARY, WIDTH)}, "lm_head.weight")):
            with self.assertRaisesRegex(SpillwayError, message):
                convert(weights | change)
        with self.assertRaisesRegex(SpillwayError, "h0.more"):
            convert(convert(weights) | {"h0.more": torch.zeros(1)})
        with self.assertRaisesRegex(SpillwayError, "neither"):
            convert({"conv1.weight": torch.zeros(1)})
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(spillway_torch(["weights", os.path.join(directory, "none"), "-o", os.path.join(directory, "o")]), 3)
            self.assertEqual(os.listdir(directory), [])
            save_file(weights, os.path.join(directory, "m"))
            self.assertEqual(spillway_torch(["weights", os.path.join(directory, "m"), "-o", os.path.join(directory, "no", "o")]), 3)
            pathlib.Path(directory, "m").write_bytes(b"no weights")
            self.assertEqual(spillway_torch(["weights", os.path.join(directory, "m"), "-o", os.path.join(directory, "o")]), 3)
            self.assertEqual(os.listdir(directory), ["m"])


class ComparisonTest(unittest.TestCase):
    """The models of scripts/compare_pytorch.py compute what `spillway` does."""

    def test_losses_and_parameters(self):
        for name, options in ((Gpt.name, ",optimizer=adamw"), (Llama.name, ",attention=math,optimizer=adam"), (Llama.name, "")):
            with self.subTest(model=name, options=options), tempfile.TemporaryDirectory() as directory:
                trainer = compare_pytorch.Trainer(torch, compare_pytorch.load_plan(SPILLWAY, name + options), "eager", "cpu")
                model = {Gpt.name: Gpt, Llama.name: Llama}[name]()
                self.assertEqual(sum(p.numel() for p in trainer.parameters.values()), sum(p.numel() for p in model.p.values()))
                weights, images = (os.path.join(directory, file) for file in "12")
                short = compare_pytorch.Trainer(torch, compare_pytorch.load_plan(SPILLWAY, f"{name}{options},precision=bf16"),
                                                "eager", "cpu")
                self.assertIn(torch.bfloat16, {p.dtype for p in short.parameters.values()})
                losses = {}
                for precision, trained, delta in (("fp32", trainer, 1e-5), ("bf16", short, 2e-3)):
                    save_file({name: value.detach().clone() for name, value in trained.parameters.items()}, weights)
                    save_file({"labels" if name == "labels" else "x": value.int() for name, value in trained.data.items()}, images)
                    losses[precision] = [trained.iterate().item() for _ in range(3)]
                    result = subprocess.run([SPILLWAY, "run", f"{name}{options},precision={precision}", "--backend", "cpu",
                                             "--iterations", "3", "--weights", weights, "--images", images],
                                            capture_output=True, text=True, check=True)
                    self.assertAlmostEqual(float(re.search(r"loss (\S+) after", result.stdout)[1]), losses[precision][-1],
                                           delta=delta)
                trainer = compare_pytorch.Trainer(torch, trainer.plan, compare_pytorch.PER_BLOCK, "cpu")
                self.assertEqual([trainer.iterate().item() for _ in range(3)], losses["fp32"])


if __name__ == "__main__":
    unittest.main()

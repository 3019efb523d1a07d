"""Steps for the tests of plans: small models with a loss, and steps that compare all that training changes."""

import contextlib
import copy
import json
import logging
import pathlib
import random
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import cases
from spillway_torch.tape.tape_recorder import record_tape
from spillway_torch.plan.planner import assemble
from spillway_torch.run.executor import EXECUTORS, Executor, executor_of, step
from spillway_torch.tape.chains import saved_storages


torch.set_num_threads(1)  # the models are small
QUICK = "joint:effort=300"  # a policy that decides at once
SCHEMAS = pathlib.Path(__file__).resolve().parents[3] / "experiments" / "schemas"


class Dropout(nn.Module):
    """The operator that a GPU runs for dropout."""

    def forward(self, x):
        return torch.native_dropout(x, 0.2, self.training)[0]


def resnet():
    model, _ = cases.convolutions("cpu")
    x, y = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    return model, lambda: F.cross_entropy(model(x), y)


def gpt(dropout=nn.Dropout, layers=2):
    model = cases.Transformer(dropout=0.2, layers=layers)
    for layer in model.layers:
        layer.dropout = dropout() if dropout is Dropout else dropout(0.2)
    tokens = torch.randint(50, (3, 16))
    return model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, stride=4)
        self.place = nn.Parameter(torch.randn(1, 17, 32))
        self.first = nn.Parameter(torch.randn(1, 1, 32))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True,
                                                               norm_first=True) for _ in range(2))
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def vit():
    model = Vit()
    x, y = torch.randn(3, 3, 16, 16), torch.randint(10, (3,))
    return model, lambda: F.cross_entropy(model(x), y)


class LlamaLayer(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 48, bias=False), nn.Linear(width, 48, bias=False), nn.Linear(48, width, bias=False)

    @staticmethod
    def norm(x, weight):
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def turn(self, x, cos, sin):
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    def forward(self, x, cos, sin):
        b, s, w = x.shape
        h = self.norm(x, self.norm1)
        q, k, v = (layer(h).view(b, s, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.turn(q, cos, sin), self.turn(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, w))
        h = self.norm(x, self.norm2)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.norm = nn.Parameter(torch.ones(32))
        self.head = nn.Linear(32, 60, bias=False)
        self.register_buffer("frequencies", 1e4 ** (-torch.arange(0, 8, 2) / 8))

    def forward(self, tokens):
        angles = torch.arange(tokens.shape[1])[:, None] * self.frequencies
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(LlamaLayer.norm(x, self.norm))


def llama(dtype=torch.bfloat16):
    model = Llama()
    tokens = torch.randint(60, (3, 12))

    def loss():
        with torch.autocast("cpu", dtype) if dtype is not None else contextlib.nullcontext():
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    return model, loss


MODELS = {"resnet": resnet, "gpt": gpt, "gpt, fused dropout": lambda: gpt(Dropout), "vit": vit, "llama, autocast": llama,
          "llama, float32": lambda: llama(None)}


class Stepping:
    """A model that starts each run of steps from the same state."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model, self.loss = make()
        self.state = copy.deepcopy(self.model.state_dict())

    def reset(self):
        self.model.load_state_dict(self.state)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(5)

    def record(self):
        self.reset()
        return record_tape(lambda: self.loss().backward(), "cpu")

    def steps(self, plan=None, count=3, device=None):
        """Trains for some steps; returns losses, gradients, weights, buffers, and the state of random numbers."""
        self.reset()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        if plan is not None and plan not in EXECUTORS and device is not None:
            EXECUTORS[plan] = Executor(plan, device)
        seen = []
        for _ in range(count):
            optimizer.zero_grad()
            with contextlib.nullcontext() if plan is None else step(plan):
                loss = self.loss()
            loss.backward()
            seen += [loss.detach().clone(), *(p.grad.clone() for p in self.model.parameters())]
            optimizer.step()
        return [*seen, *(t.clone() for t in self.model.state_dict().values()), torch.get_rng_state()]


def different(one, other):
    """Returns the indices at which two lists of tensors are not the same, bit by bit."""
    assert len(one) == len(other)
    return [i for i, (a, b) in enumerate(zip(one, other)) if not torch.equal(a, b)]


def candidates(tape):
    return [saved for saved in saved_storages(tape).values() if saved.dies is not None]


def random_plan(tape, seed):
    """Returns a plan with random actions, whose copies come back where backward reads them, or a few positions before."""
    draw = random.Random(seed)
    choice = draw.choice(("kor", "or", "ko", "kr", "ooor", "rrrko", "o", "r"))
    names = {"k": "keep", "o": "offload", "r": "evict"}
    actions = {}
    for saved in candidates(tape):
        action = names[draw.choice(choice)]
        actions[saved.storage] = "keep" if action == "evict" and saved.chain is None else action
    plan = assemble(tape, actions)
    before = draw.choice((0, 1, 4))
    for saved in candidates(tape) if before else ():
        if actions[saved.storage] == "offload":
            for unpack in map(tape.unpacks.__getitem__, saved.unpacks):
                plan.moments.add(saved.storage, prefetches=[unpack.position - before])
    return plan


def check_schema(test, name, value):
    """Fails unless the keys and names of a document are those of its schema."""
    def compare(kind, value):
        if kind.get("type") == "object":
            test.assertLessEqual(set(kind["required"]), set(value))
            for key, item in value.items():
                compare(kind["properties"][key], item)
        elif kind.get("type") == "array":
            for item in value:
                compare(kind["items"], item)
        elif "const" in kind:
            test.assertEqual(kind["const"], value)
        elif "enum" in kind:
            test.assertIn(value, kind["enum"])
        else:
            known = {"integer": int, "number": float, "string": str, "boolean": bool, "null": type(None)}
            types = kind["type"] if isinstance(kind["type"], list) else [kind["type"]]
            test.assertIn(type(value), [known[t] for t in types] + [int] * ("number" in types))

    compare(json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")), value)


WAYS = ("evict", "offload", "mixed")  # the plans of `PlansTest`


def plan_of(tape, way):
    """Returns a plan that recomputes all it can, that offloads all it can, or that does both in turn."""
    actions = {}
    for at, saved in enumerate(candidates(tape)):
        wanted = way if way != "mixed" else ("evict", "offload")[at % 2]
        actions[saved.storage] = wanted if wanted == "offload" or saved.chain is not None else "keep"
    return assemble(tape, actions)


class Case:
    """A model of layers, and a forward that reads `self.now` for what changes between steps."""

    def __init__(self, forward, now=None):
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.model = nn.ModuleList([self.a, self.b, self.c, self.norm])
        self.x = torch.randn(6, 8)
        self.now = now
        self.kept = []
        self.forward = lambda: forward(self)

    def run(self, context=contextlib.nullcontext, between=lambda: None):
        """Returns the loss, the gradients and the state of random numbers."""
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(3)
        with context():
            loss = self.forward()
        between()
        loss.backward()
        return [loss.detach().clone(), *(p.grad.clone() for p in self.model.parameters() if p.grad is not None), torch.get_rng_state()]

    def record(self):
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(3)
        return record_tape(lambda: self.forward().backward(), "cpu")


class PlansTest(unittest.TestCase):
    """Tests of steps under plans that recompute all they can, that offload all they can, and that mix both."""

    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)

    def plans(self, tape):
        return [plan_of(tape, way) for way in WAYS]

    def varies(self, forward, before, after, differs=None):
        """After a change between steps, each plan has to give eager's results.

        differs: whether the operators are others, so that a plan that recomputes cannot be carried out; None if it depends.
        """
        case = Case(forward, before)
        for plan in self.plans(case.record()):
            for case.now in (before, after, before):
                self.assertEqual(different(case.run(), case.run(lambda: step(plan))), [])
            if differs is not None and ("offload" not in plan.actions.values() or not differs):
                self.assertEqual(len(executor_of(plan).deviations), int(differs), executor_of(plan).deviations)

    def case(self):
        return Case(lambda s: s.c(torch.tanh(s.norm(F.gelu(s.a(s.x))))).pow(2).sum())

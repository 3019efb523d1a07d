"""Training steps that the rows of the tables name, built from PyTorch's own operators.

Each builder runs inside `spillway_torch.pretend` and returns the step, a function without arguments. Options are plain
values, so that they are the key under which a recording is kept.

No step holds data. Functions that stand for fused kernels, or for what other GPUs send, allocate, read and write as
those do, and compute something else.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

BUILDERS = {}


def builder(function):
    BUILDERS[function.__name__] = function
    return function


def type_of(name):
    return getattr(torch, name.removeprefix("torch."))


# ---- single operators, as the benchmarks of Liger-Kernel call them ----


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


class HeadAndLoss(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(x), labels)


ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh")}


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _operands(kernel, o):
    """Returns (call, inputs): the operator without arguments, and the tensors whose gradients the benchmark drops."""
    dtype = type_of(o.get("dtype", "float32"))

    def drawn(*shape, dtype=dtype):
        return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=True)

    if kernel == "cross_entropy":
        x = drawn(o["B"] * o["T"], o["V"], dtype=torch.float32)
        labels = torch.randint(o["V"], (o["B"] * o["T"],), device="cuda")
        return lambda: F.cross_entropy(x, labels), [x]
    if kernel == "fused_linear_cross_entropy":
        x, (module, other) = drawn(o["BT"], o["H"]), (HeadAndLoss(o["H"], o["V"]).to("cuda", dtype) for _ in range(2))
        labels = torch.randint(o["V"], (o["BT"],), device="cuda")
        return lambda unused=other: module(x, labels), [x]
    if kernel == "embedding":
        module, other = (nn.Embedding(o["V"], o["D"], device="cuda", dtype=dtype) for _ in range(2))
        words = torch.randint(o["V"], (o["B"], o["T"]), device="cuda")
        return lambda unused=other: module(words), []
    if kernel in ("geglu", "swiglu"):
        x = drawn(o.get("bsz", o.get("B")), o["T"], o["hidden_size"])
        module = GatedMlp(o["hidden_size"], o["intermediate_size"], ACTIVATIONS[o["hidden_act"]]).to("cuda", dtype)
        return lambda: module(x), [x]
    if kernel == "layer_norm":
        x, module = drawn(o["M"], o["N"]), nn.LayerNorm(o["N"], eps=o["eps"], device="cuda", dtype=dtype)
        return lambda: module(x), [x]
    if kernel == "rms_norm":
        x, module = drawn(o["M"], o["H"]), RmsNorm(o["H"], o["eps"])
        return lambda: module(x), [x]
    assert kernel == "rope"
    length = o.get("seq_len", o.get("T"))
    size = o.get("hidden_size", o.get("H")) // o["num_q_heads"]
    q, k = (drawn(1, length, o[heads], size).transpose(1, 2) for heads in ("num_q_heads", "num_kv_heads"))
    cos, sin = (torch.randn(1, 1, length, size, dtype=dtype, device="cuda") for _ in range(2))
    return lambda: (rotated(q, cos, sin), rotated(k, cos, sin)), [q, k]


@builder
def operator(kernel, mode, keep_gradients, **options):
    """Forward, backward or both of one operator. With `keep_gradients`, those of an earlier call are added to."""
    call, inputs = _operands(kernel, options)
    keeps = kernel not in ("cross_entropy", "embedding", "fused_linear_cross_entropy")  # for another backward
    given = None  # made before the step
    if kernel == "rope":
        given = [torch.randn_like(y) for y in call()]
    elif kernel in ("layer_norm", "rms_norm"):
        given = torch.randn_like(inputs[0])
    kept = call() if mode == "backward" else None

    def backward(result):
        if kernel == "rope":
            torch.autograd.grad(result, inputs, given, retain_graph=keeps)
        else:
            gradient = torch.randn_like(result) if given is None and result.dim() else given
            result.backward(gradient, retain_graph=keeps or kept is not None)

    def step():
        if not keep_gradients:
            for x in inputs:
                x.grad = None
        result = call() if kept is None else kept
        if mode != "forward":
            backward(result)

    return step


# ---- one rank of Megatron-LM's GPT ----


class ParallelLoss(torch.autograd.Function):
    """Megatron's loss, which overwrites one copy of the logits in float32."""

    @staticmethod
    def forward(context, logits, labels):
        y = logits.float()
        y -= y.amax(-1, keepdim=True)
        flat, rows = y.view(-1, y.shape[-1]), torch.arange(labels.numel(), device=labels.device)
        chosen = flat[rows, labels.reshape(-1)].view_as(labels)
        torch.exp(y, out=y)
        total = y.sum(-1)
        y.div_(total.unsqueeze(-1))
        context.save_for_backward(y, labels)
        return total.log() - chosen

    @staticmethod
    def backward(context, gradient):
        y, labels = context.saved_tensors
        flat, rows = y.view(-1, y.shape[-1]), torch.arange(labels.numel(), device=labels.device)
        flat[rows, labels.reshape(-1)] -= 1
        return y.mul_(gradient.unsqueeze(-1)), None


class CopyingLoss(ParallelLoss):
    """nanotron's loss, with two copies of its logits in float32."""

    @staticmethod
    def forward(context, logits, labels):
        y = logits - logits.amax(-1, keepdim=True)
        chosen = y.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        y = y.exp()
        total = y.sum(-1)
        y.div_(total.unsqueeze(-1))
        context.save_for_backward(y, labels)
        return total.log() - chosen


class FusedLoss(torch.autograd.Function):
    """Transformer Engine's loss, which writes the gradient over the logits."""

    @staticmethod
    def forward(context, logits, labels):
        context.save_for_backward(logits)
        return logits.amax(-1).float()

    @staticmethod
    def backward(context, gradient):
        logits, = context.saved_tensors
        return logits.detach().mul_(gradient.to(logits.dtype).unsqueeze(-1)), None


class BiasGelu(torch.autograd.Function):
    """A fused bias and GELU, which keeps its input alone."""

    @staticmethod
    def forward(context, x, bias):
        context.save_for_backward(x, bias)
        return F.gelu(x + bias, approximate="tanh")

    @staticmethod
    def backward(context, gradient):
        x, bias = context.saved_tensors
        dx = torch.ops.aten.gelu_backward(gradient, x + bias, approximate="tanh")
        return dx, dx.sum((0, 1))


class SwiGlu(torch.autograd.Function):
    """A fused SwiGLU of two halves, which keeps its input alone; one pass over memory in each direction."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        gate, up = x.chunk(2, -1)
        return gate * up

    @staticmethod
    def backward(context, gradient):
        x, = context.saved_tensors
        dx = torch.empty_like(x)
        for half, other in zip(dx.chunk(2, -1), x.chunk(2, -1)):
            torch.mul(other, gradient, out=half)
        return dx


class FusedSoftmax(torch.autograd.Function):
    """Megatron's softmax with a mask, which keeps its result."""

    @staticmethod
    def forward(context, x):
        y = torch.softmax(x, -1)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, gradient):
        y, = context.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, y, -1, y.dtype)


def gathered(x, parts):
    """Stands for all_gather of the sequence: memory, and no time."""
    return x if parts == 1 else x.new_empty(x.shape[0] * parts, *x.shape[1:])


def scattered(x, parts):
    return x if parts == 1 else x.new_empty(x.shape[0] // parts, *x.shape[1:])


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(context, x, parts):
        context.parts = parts
        return scattered(x, parts)

    @staticmethod
    def backward(context, gradient):
        return gathered(gradient, context.parts), None


class AllToAll(torch.autograd.Function):
    """Stands for the exchange of a part of the heads for a part of the sequence: memory, and no time."""

    @staticmethod
    def forward(context, x, shape):
        context.shape = x.shape
        return x.new_empty(shape)

    @staticmethod
    def backward(context, gradient):
        return gradient.new_empty(context.shape), None


class Rotate(torch.autograd.Function):
    """A fused rotary position, which keeps the angles alone."""

    @staticmethod
    def forward(context, x, cos, sin):
        context.save_for_backward(cos, sin)
        return torch.addcmul(x.new_empty(()).expand_as(x), x, cos)

    @staticmethod
    def backward(context, gradient):
        cos, _ = context.saved_tensors
        return gradient * cos, None, None


class ParallelProduct(torch.autograd.Function):
    """The product of a linear layer of which each GPU has a slice.

    The sequence of the input is gathered from `gather` parts, in backward again unless it is kept; that of the result
    is cut into `scatter` parts. `sums`, if given, has a tensor for each shape that takes the weight's gradient, where
    the product adds it to Megatron's own sum.
    """

    @staticmethod
    def forward(context, x, weight, gather, scatter, sums, keep):
        whole = gathered(x, gather)
        context.save_for_backward(whole if keep else x, weight)
        context.parts = gather, scatter, sums, keep
        return scattered(torch.matmul(whole, weight.t()), scatter)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        gather, scatter, sums, keep = context.parts
        gradient = gathered(gradient.contiguous(), scatter)
        dx = scattered(torch.matmul(gradient, weight), gather)
        rows = gathered(x, 1 if keep else gather).reshape(-1, weight.shape[1])
        columns = gradient.reshape(-1, weight.shape[0]).t()
        if sums is None:
            return dx, columns.mm(rows), None, None, None, None
        if weight.shape not in sums:
            sums[weight.shape] = torch.empty_like(weight)
        torch.mm(columns, rows, out=sums[weight.shape])
        return dx, None, None, None, None, None


class ParallelLinear(nn.Module):
    def __init__(self, width, out, bias, gather, scatter, sums, keep):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None
        self.parts = gather, scatter, sums, keep

    def forward(self, x, add_bias=True):
        y = ParallelProduct.apply(x, self.weight, *self.parts)
        return y + self.bias if add_bias and self.bias is not None else y


class MegatronLayer(nn.Module):
    def __init__(self, o, sums):
        super().__init__()
        self.o, tp = o, o["tp"]
        bias, self.size = o["bias"], o["width"] // o["heads"]
        self.heads, self.groups = o["heads"] // tp, max(o["groups"] // tp, 1)
        norm = nn.RMSNorm if o["rms"] else nn.LayerNorm
        self.before, self.between = norm(o["width"]), norm(o["width"])
        columns, rows = (o["sp"], 1, sums, o["keeps_gathered"]), (1, o["sp"], sums, False)
        self.qkv = ParallelLinear(o["width"], (self.heads + 2 * self.groups) * self.size, bias, *columns)
        self.proj = ParallelLinear(self.heads * self.size, o["width"], bias, *rows)
        self.up = ParallelLinear(o["width"], o["ffn"] // tp * (2 if o["gated"] else 1), bias, *columns)
        self.down = ParallelLinear(o["ffn"] // tp, o["width"], bias, *rows)

    def attention(self, x, cos, sin, buffer):
        o = self.o
        mixed = self.qkv(x)
        s, b = mixed.shape[:2]
        mixed = mixed.view(s, b, self.groups, -1)
        share = self.heads // self.groups * self.size
        q, k, v = mixed.split((share, self.size, self.size), -1)
        q = q.reshape(s, b, self.heads, self.size)
        if o["rope"]:
            q, k, v = Rotate.apply(q, cos, sin), Rotate.apply(k, cos, sin), v.contiguous()
        if o["cp"] > 1:
            q, k, v = (AllToAll.apply(z, (s * o["cp"], b, z.shape[2] // o["cp"], self.size)) for z in (q, k, v))
        if o["fused"]:
            if o["copies"]:
                q, k, v = (t.transpose(0, 1).contiguous().transpose(1, 2) for t in (q, k, v))
            else:
                q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=o["attention_dropout"], is_causal=True,
                                               enable_gqa=self.groups != self.heads)
            y = y.permute(2, 0, 1, 3)
            if o["cp"] > 1:
                y = AllToAll.apply(y, (s, b, self.heads, self.size))
            return (y.contiguous() if o["copies"] else y).reshape(s, b, -1)
        if self.groups != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.groups, 2) for t in (k, v))
        q, k, v = (t.reshape(s, b * self.heads, self.size).transpose(0, 1) for t in (q, k, v))
        scores = torch.empty(b * self.heads, s, s, dtype=q.dtype, device=q.device) if buffer is None else buffer
        scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=0.0, alpha=self.size ** -0.5)
        weights = F.dropout(FusedSoftmax.apply(scores), o["attention_dropout"])
        y = torch.bmm(weights, v).view(b, self.heads, s, self.size)
        return y.permute(2, 0, 1, 3).contiguous().view(s, b, -1)

    def added(self, x, y, bias):
        return x + F.dropout(y if bias is None else y + bias, self.o["dropout"])

    def forward(self, x, cos, sin, buffer):
        x = self.added(x, self.proj(self.attention(self.before(x), cos, sin, buffer), False), self.proj.bias)
        y = self.up(self.between(x), False)
        if self.o["gated"] and self.o["plain"]:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        elif self.o["gated"]:
            y = SwiGlu.apply(y)
        else:
            y = F.gelu(y, approximate="tanh") if self.up.bias is None else BiasGelu.apply(y, self.up.bias)
        return self.added(x, self.down(y, False), self.down.bias)


class MegatronStage(nn.Module):
    """The layers of one pipeline stage, with the embedding in the first stage and the head in the last one."""

    def __init__(self, o, sums):
        super().__init__()
        self.o, vocabulary = o, o["vocabulary"] // o["tp"]
        words = o["first"] or (o["last"] and o["tied"])
        self.words = nn.Embedding(vocabulary, o["width"]) if words else None
        self.positions = nn.Embedding(o["length"], o["width"]) if o["first"] and not o["rope"] else None
        self.layers = nn.ModuleList(MegatronLayer(o, sums) for _ in range(o["layers"]))
        self.norm = (nn.RMSNorm if o["rms"] else nn.LayerNorm)(o["width"]) if o["last"] else None
        self.head = None
        if o["last"] and not o["tied"]:
            self.head = ParallelLinear(o["width"], vocabulary, False, o["sp"], 1, sums, o["keeps_gathered"])

    def forward(self, data, x, cos, sin, buffer):
        o = self.o
        tokens, labels, places, shares, _ = data
        if o["first"]:
            x = self.words(tokens)
            if self.positions is not None:
                x = x + self.positions(places)
            x = F.dropout(Scatter.apply(x.transpose(0, 1).contiguous(), o["sp"]), o["dropout"])
        for layer in self.layers:
            if o["recompute"]:
                x = checkpoint(layer, x, cos, sin, buffer, use_reentrant=False)
            else:
                x = layer(x, cos, sin, buffer)
        if not o["last"]:
            return x.sum()  # the next stage has the result; this one keeps what backward needs
        x = self.norm(x)
        if self.head is None:
            logits = ParallelProduct.apply(x, self.words.weight, o["sp"], 1, None, o["keeps_gathered"])
        else:
            logits = self.head(x)
        if o["plain"]:
            logits = logits.float()
        kind = FusedLoss if o["fused_loss"] else CopyingLoss if o["plain"] else ParallelLoss
        loss = kind.apply(logits, labels.t().contiguous())
        return (loss.t().contiguous().view(-1) * shares.view(-1)).sum()


@builder
def megatron(batch, dtype, gradients, dp, micro_batches=1, flight=1, keeps_scores=False, fused_sums=False, **options):
    """One rank's step of Megatron. `gradients`: type of their sum, of which 1/`dp` belongs to this rank's optimizer.

    micro_batches: number of them, one after another; flight: how many have run forward before the first runs backward.
    keeps_scores: attention's scores have one buffer for all layers.
    fused_sums: the product adds a weight's gradient to the sum.
    keeps_gathered, plain: inputs of products are kept as gathered; SwiGLU and loss are not fused, as in nanotron.
    """
    o = {"tp": 1, "sp": 1, "cp": 1, "first": True, "last": True, "recompute": False, "fused_loss": False,
         "rope": False, "rms": False, "gated": False, "bias": True, "tied": True, "dropout": 0.0,
         "attention_dropout": 0.0, "copies": False, "mask": True, "keeps_gathered": False, "plain": False, **options}
    kind, sums = type_of(dtype), {} if fused_sums else None
    with torch.device("cuda"):
        stage = MegatronStage(o, sums).to(kind)
        length, size = o["length"], o["width"] // o["heads"]
        buffer = torch.empty(batch * o["heads"] // o["tp"], length, length, dtype=kind) if keeps_scores else None
        cos, sin = (torch.empty(length, 1, 1, size, dtype=kind) for _ in range(2)) if o["rope"] else (None, None)
        parameters = list(stage.parameters())
        total = sum(p.numel() for p in parameters)
        flat = torch.zeros(total, dtype=type_of(gradients))
        shard = nn.Parameter(torch.zeros(-(-total // dp)))
    at = 0
    for p in parameters:
        p.main_grad = flat[at:at + p.numel()].view(p.shape)
        at += p.numel()

        def add(p):
            if p.grad is not None:  # else the product added it
                p.main_grad.add_(p.grad)
                p.grad = None

        p.register_post_accumulate_grad_hook(add)
    optimizer = torch.optim.AdamW([shard], fused=True)

    def forward():
        with torch.device("cuda"):
            tokens, labels, places = (torch.randint(o["vocabulary"] // o["tp"], (batch, length)) for _ in range(3))
            mask = torch.empty(batch, 1, length, length, dtype=torch.bool) if o["mask"] else None
            data = tokens, labels, places, torch.ones(batch, length), mask
            x = None
            if not o["first"]:
                x = torch.empty(length // o["sp"], batch, o["width"], dtype=kind, requires_grad=True)
        return stage(data, x, cos, sin, buffer)

    def step():
        shard.grad = None
        flat.zero_()
        waiting = []
        for _ in range(micro_batches):
            waiting.append(forward())
            if len(waiting) == flight:
                waiting.pop(0).backward()
        while waiting:
            waiting.pop(0).backward()
        shard.grad = flat[:shard.numel()].float()
        shard.grad.mul_(shard.grad.norm())
        optimizer.step()

    return step


# ---- fine-tuning with litgpt ----


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


@builder
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


# ---- decoders of torchtune, torchtitan and transformers ----


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


@builder
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

"""One rank of Megatron-LM's GPT, and models that are cut over GPUs as it is."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .parts import group_of, type_of


def summed(x, group):
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


class ParallelLoss(torch.autograd.Function):
    """Megatron's loss, which overwrites one copy of the logits in float32."""

    @staticmethod
    def forward(context, logits, labels, group):
        y = logits.float()
        y -= summed(y.amax(-1, keepdim=True), group)
        flat, rows = y.view(-1, y.shape[-1]), torch.arange(labels.numel(), device=labels.device)
        chosen = summed(flat[rows, labels.reshape(-1)].view_as(labels), group)
        torch.exp(y, out=y)
        total = summed(y.sum(-1), group)
        y.div_(total.unsqueeze(-1))
        context.save_for_backward(y, labels)
        return total.log() - chosen

    @staticmethod
    def backward(context, gradient):
        y, labels = context.saved_tensors
        flat, rows = y.view(-1, y.shape[-1]), torch.arange(labels.numel(), device=labels.device)
        flat[rows, labels.reshape(-1)] -= 1
        return y.mul_(gradient.unsqueeze(-1)), None, None


class CopyingLoss(ParallelLoss):
    """nanotron's loss, with two copies of its logits in float32."""

    @staticmethod
    def forward(context, logits, labels, group):
        y = logits - summed(logits.amax(-1, keepdim=True), group)
        chosen = summed(y.gather(-1, labels.unsqueeze(-1)).squeeze(-1), group)
        y = y.exp()
        total = summed(y.sum(-1), group)
        y.div_(total.unsqueeze(-1))
        context.save_for_backward(y, labels)
        return total.log() - chosen


class FusedLoss(torch.autograd.Function):
    """Transformer Engine's loss, which writes the gradient over the logits."""

    @staticmethod
    def forward(context, logits, labels, group):
        context.save_for_backward(logits)
        loss = logits.amax(-1).float()
        if group is not None:
            mine = loss.new_empty(3, *loss.shape)  # maximum, sum and logit of the label
            dist.all_gather_into_tensor(mine.new_empty(3 * group.size(), *loss.shape), mine, group)
        return loss

    @staticmethod
    def backward(context, gradient):
        logits, = context.saved_tensors
        return logits.detach().mul_(gradient.to(logits.dtype).unsqueeze(-1)), None, None


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


def gathered(x, group, later=False):
    """Returns x with the sequences of the other GPUs, and the handle to wait for if it comes `later`."""
    whole, work = x, None
    if group is not None:
        x, whole = x.contiguous(), x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
        work = dist.all_gather_into_tensor(whole, x, group, async_op=later)
    return (whole, work) if later else whole


def scattered(x, group, later=False):
    """Returns this GPU's part of the sum of x over the group, and the handle to wait for if it comes `later`."""
    part, work = x, None
    if group is not None:
        part = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
        work = dist.reduce_scatter_tensor(part, x, group=group, async_op=later)
    return (part, work) if later else part


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        return scattered(x, group)

    @staticmethod
    def backward(context, gradient):
        return gathered(gradient, context.group), None


def exchanged(x, shape, group):
    """Returns x after a part of its heads was exchanged for a part of the sequence, or back, with a copy on each side."""
    x = x.clone(memory_format=torch.contiguous_format)
    y = x.new_empty(shape)
    dist.all_to_all_single(y, x, group=group)
    return y.clone()


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(context, x, shape, group):
        context.shape, context.group = x.shape, group
        return exchanged(x, shape, group)

    @staticmethod
    def backward(context, gradient):
        return exchanged(gradient, context.shape, context.group), None, None


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

    The sequence of the input is gathered from the group `gather`, in backward again unless it is kept; that of the
    result is summed and cut over the group `scatter`. Backward gathers the input beside the product that gives its
    gradient, and cuts this gradient beside the other product, as Transformer Engine does. `sums`, if given, has a tensor
    for each shape that stands for the weight's gradient, where the product adds it to Megatron's own sum.
    """

    @staticmethod
    def forward(context, x, weight, gather, scatter, sums, keep):
        whole = gathered(x, gather)
        context.save_for_backward(whole if keep else x, weight)
        context.parts = None if keep else gather, gather, scatter, sums
        context.total = getattr(weight, "main_grad", None)
        return scattered(torch.matmul(whole, weight.t()), scatter)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        again, gather, scatter, sums = context.parts
        gradient = gathered(gradient.contiguous(), scatter)
        rows, coming = gathered(x, again, later=True)
        dx = torch.matmul(gradient, weight)
        if coming is not None:
            coming.wait()
        dx, going = scattered(dx, gather, later=True)
        rows = rows.reshape(-1, weight.shape[1])
        columns = gradient.reshape(-1, weight.shape[0]).t()
        if sums is None:
            total = columns.mm(rows)
        else:
            total = None
            if weight.shape not in sums:
                sums[weight.shape] = torch.empty_like(weight)
            torch.mm(columns, rows, out_dtype=context.total.dtype, out=context.total)
        if going is not None:
            going.wait()
        return dx, total, None, None, None, None


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
        columns, rows = (o["sequence"], None, sums, o["keeps_gathered"]), (None, o["sequence"], sums, False)
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
            q, k, v = (AllToAll.apply(z, (s * o["cp"], b, z.shape[2] // o["cp"], self.size), o["context"])
                       for z in (q, k, v))
        if o["fused"]:
            if o["copies"]:
                q, k, v = (t.transpose(0, 1).contiguous().transpose(1, 2) for t in (q, k, v))
            else:
                q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=o["attention_dropout"], is_causal=True,
                                               enable_gqa=self.groups != self.heads)
            y = y.permute(2, 0, 1, 3)
            if o["cp"] > 1:
                y = AllToAll.apply(y, (s, b, self.heads, self.size), o["context"])
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
            self.head = ParallelLinear(o["width"], vocabulary, False, o["sequence"], None, sums, o["keeps_gathered"])

    def forward(self, data, x, cos, sin, buffer):
        o = self.o
        tokens, labels, places, shares, _ = data
        if o["first"]:
            x = self.words(tokens)
            if self.positions is not None:
                x = x + self.positions(places)
            x = F.dropout(Scatter.apply(x.transpose(0, 1).contiguous(), o["sequence"]), o["dropout"])
        for layer in self.layers:
            if o["recompute"]:
                x = checkpoint(layer, x, cos, sin, buffer, use_reentrant=False)
            else:
                x = layer(x, cos, sin, buffer)
        if not o["last"]:
            return x.sum()  # the next stage has the result; this one keeps what backward needs
        x = self.norm(x)
        if self.head is None:
            logits = ParallelProduct.apply(x, self.words.weight, o["sequence"], None, None, o["keeps_gathered"])
        else:
            logits = self.head(x)
        if o["plain"]:
            logits = logits.float()
        kind = FusedLoss if o["fused_loss"] else CopyingLoss if o["plain"] else ParallelLoss
        loss = kind.apply(logits, labels.t().contiguous(), o["tensor"])
        return (loss.t().contiguous().view(-1) * shares.view(-1)).sum()


def megatron(batch, dtype, gradients, dp, replicas=1, micro_batches=1, flight=1, keeps_scores=False, fused_sums=False,
             **options):
    """One rank's step of Megatron. `gradients`: type of their sum, of which 1/`dp` belongs to this rank's optimizer.

    replicas: number of copies of the model, whose gradients are added up, if each has the whole optimizer.
    micro_batches: number of them, one after another; flight: how many have run forward before the first runs backward.
    keeps_scores: attention's scores have one buffer for all layers.
    fused_sums: the product adds a weight's gradient to the sum.
    keeps_gathered, plain: inputs of products are kept as gathered; SwiGLU and loss are not fused, as in nanotron.
    """
    o = {"tp": 1, "sp": 1, "cp": 1, "first": True, "last": True, "recompute": False, "fused_loss": False,
         "rope": False, "rms": False, "gated": False, "bias": True, "tied": True, "dropout": 0.0,
         "attention_dropout": 0.0, "copies": False, "mask": True, "keeps_gathered": False, "plain": False, **options}
    o.update(tensor=group_of(o["tp"]), sequence=group_of(o["sp"]), context=group_of(o["cp"], o["tp"]))
    copies = group_of(max(dp, replicas), o["tp"])
    kind, sums = type_of(dtype), {} if fused_sums else None
    with torch.device("cuda"):
        stage = MegatronStage(o, sums).to(kind)
        length, size = o["length"], o["width"] // o["heads"]
        buffer = torch.empty(batch * o["heads"] // o["tp"], length, length, dtype=kind) if keeps_scores else None
        cos, sin = (torch.empty(length, 1, 1, size, dtype=kind) for _ in range(2)) if o["rope"] else (None, None)
        parameters = list(stage.parameters())
        own = -(-sum(p.numel() for p in parameters) // dp)
        weights, flat = (torch.zeros(own * dp, dtype=d) for d in (kind, type_of(gradients)))
        shard = nn.Parameter(torch.zeros(own))
    at = 0
    for p in parameters:
        p.data, p.main_grad = (whole[at:at + p.numel()].view(p.shape) for whole in (weights, flat))
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
        flat.norm()  # Megatron looks for numbers that are not finite
        if copies is not None:
            flat.mul_(1 / copies.size())
            if dp > 1:
                dist.reduce_scatter_tensor(flat[:own], flat, group=copies)
            else:
                summed(flat, copies)
        shard.grad = flat[:own].float()
        shard.grad.mul_(shard.grad.norm())
        optimizer.step()
        weights[:own].copy_(shard.detach())
        if dp > 1:
            dist.all_gather_into_tensor(weights, weights[:own], copies)

    return step

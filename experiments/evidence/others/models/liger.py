"""Single operators, as the benchmarks of Liger-Kernel call them."""

import torch
import torch.nn.functional as F
from torch import nn

from .parts import ACTIVATIONS, GatedMlp, RmsNorm, rotated, type_of


class HeadAndLoss(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(x), labels)


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

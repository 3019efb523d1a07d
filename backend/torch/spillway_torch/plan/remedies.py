"""Remedies that lower a floor, each with the bytes that would not exist then while the operator runs that needs the floor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..base.ledger import Storage
from ..tape import losses
from ..tape.scaled import scaled
from ..tape.tape import Tape

PRODUCTS = ("mm", "conv", "attention")  # parts of names of operators that autocast runs in a small type
EXACT = ("softmax", "norm", "loss", "exp", "log", "pow", "sum", "prod")  # those of operators that it leaves in float32


def advice(tape: Tape, at: int, held: Sequence[Storage]) -> str:
    """Returns the end of a message: a line for each thing that helps and is not done yet, with its bytes, the most first.

    at: the operator that needs the floor; behind the last one, an update holds the floor.
    held: the largest storages of that moment.
    """
    idle = sum(tape.rounded(s) for s in tape.idle if tape.storages[s].born < at)
    gradients = tape.gradients()[min(at, len(tape.ops) - 1)]
    found = [(_logits(tape, held), 'fit(..., allow="chunked_loss"): float32 logits'),
             (gradients - idle - tape.early if tape.early is not None else 0,
              "fit(..., early_updates=True): gradients, if the program neither clips them nor adds them up"),
             (idle, "requires_grad_(False) for parameters that no optimizer updates: their gradients"),
             (_replayed(tape, at), "no torch.utils.checkpoint, in whose place plans recompute: what it makes again at a time"),
             (_halves(tape, held), "torch.autocast with bfloat16: half of the largest tensors there"), _batch(tape, at)]
    lines = [f"\n  {size:,} bytes by {text}" for size, text in sorted(found, key=lambda remedy: -remedy[0]) if size > 0]
    return "".join(["; less is needed there:", *lines]) if lines else "; another operator there, or an optimizer with less state, lowers it"


def _logits(tape: Tape, held: Sequence[Storage]) -> int:
    sizes = losses.whole_losses(tape) if "chunked_loss" not in tape.allowed else ()
    return sum(s.size - losses.CHUNK for s in held if s.dtype == torch.float32 and s.size in sizes)


def _replayed(tape: Tape, at: int) -> int:
    """Returns the bytes that exist because a checkpoint runs operators again, beside what the operator makes itself."""
    made = {s for op in tape.ops[:at] if op.replayed for s in op.fresh}
    return sum(tape.rounded(s) for s in made if (tape.storages[s].died or 0) > at)


def _halves(tape: Tape, held: Sequence[Storage]) -> int:
    """Returns the bytes that the storages would have less if autocast ran products of matrices in bfloat16, and what follows from them."""
    low: set[int] = set()
    for op in tape.ops:
        read = {s for s in op.reads if tape.storages[s].dtype == torch.float32}
        if any(name in op.packet for name in PRODUCTS) or read and read <= low and not any(name in op.packet for name in EXACT):
            low |= {s for s in op.fresh if tape.storages[s].died is not None}  # the gradients of parameters have the type of these
    return sum(s.size // 2 for s in held if s.number in low and s.dtype == torch.float32)


def _batch(tape: Tape, at: int) -> tuple[int, str]:
    """Returns the bytes that the operator would need less with half of the batch, which is the first dimension of the inputs."""
    batch = next((shape[0] for shape in tape.inputs if shape), 1)
    if at >= len(tape.ops) or batch < 2:
        return 0, ""
    less = scaled(tape, tape.inputs, tuple((batch // 2, *shape[1:]) if shape and shape[0] == batch else shape for shape in tape.inputs))
    back = [s for s in tape.ops[at].reads if (tape.storages[s].died or at + 1) <= at]  # it comes back for the operator
    found = tape.used[at] - less.used[at] + sum(tape.rounded(s) - less.rounded(s) for s in back)
    return found, f"a batch of {batch // 2} in place of {batch}: what grows with it"

"""Losses of a recorded step whose logits exist as a whole, and need not."""

from __future__ import annotations

import torch

from .tape import Ref, Tape

# Bytes of float32 logits that a loss in chunks computes at a time.
CHUNK = 256 << 20

_MADE_OF = {"_to_copy", "clone", "_unsafe_view"}  # operators of logits whose results are logits
_LINEAR = {"mm", "addmm"}


def whole_losses(tape: Tape) -> set[int]:
    """Returns how many elements the logits have of each cross entropy behind a linear layer that a loss in chunks would make smaller."""
    found, last = set(), None
    for op in tape.ops:
        if op.packet == "_log_softmax" and not op.backward:
            last = op
        elif op.packet == "nll_loss_forward" and last is not None and op.reads[:1] == last.results[0].value[:1]:  # type: ignore[union-attr]
            value = last.args[0].value if isinstance(last.args[0], Ref) else None
            made = tape.producer.get(value)  # type: ignore[arg-type]
            while made is not None and tape.ops[made].packet in _MADE_OF and isinstance(tape.ops[made].args[0], Ref):
                made = tape.producer.get(tape.ops[made].args[0].value)
            size = torch.Size(last.args[0].geometry.size).numel()
            if made is not None and tape.ops[made].packet in _LINEAR and 4 * size > CHUNK:
                found.add(size)
    return found

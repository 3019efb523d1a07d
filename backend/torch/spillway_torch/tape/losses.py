"""Losses of a recorded step whose logits exist as a whole, and need not."""

from __future__ import annotations

import math

from .tape import Op, Ref, Tape

# Bytes of float32 logits that a loss in chunks computes at a time. With the largest vocabularies, of 150,000 words, these are 384 rows: for
# fewer, an H200 waits for the weight, which it reads, and for its gradient, to which it adds, once for each chunk.
CHUNK = 256 << 20

_KEPT = {"_to_copy", "clone"}  # operators that make logits of logits
_LINEAR = {"mm", "addmm"}


def whole_losses(tape: Tape) -> set[int]:
    """Returns the bytes of float32 logits of each cross entropy behind a linear layer that a loss in chunks would make smaller."""
    read = {op.reads[0] for op in tape.ops if op.packet == "nll_loss_forward" and op.reads}
    found = set()
    for op in tape.ops:
        if op.packet == "_log_softmax" and not op.fresh.isdisjoint(read):
            size, maker = 4 * math.prod(op.args[0].geometry.size), _maker(tape, op)
            while maker is not None and maker.packet in _KEPT:
                maker = _maker(tape, maker)
            if maker is not None and maker.packet in _LINEAR and size > CHUNK:
                found.add(size)
    return found


def _maker(tape: Tape, op: Op) -> Op | None:
    """Returns the operator that made the first argument of another one."""
    made = tape.producer.get(op.args[0].value) if isinstance(op.args[0], Ref) else None
    return tape.ops[made] if made is not None else None

"""When the host comes to the operators of a recorded step, and to the hooks of a plan."""

from __future__ import annotations

import itertools

from ..tape.costs import HostCosts
from ..tape.tape import Tape

LEAST_SECONDS = 2e-6  # of the host for an operator


def host_clock(tape: Tape, costs: HostCosts) -> list[float]:
    """Returns when the host has started each operator of the program, and at last when the step ends; 0 where only sizes count."""
    if tape.device == "cpu":
        return [0.0] * (len(tape.ops) + 1)
    each = [max(op.host - op.entries * costs.recorded, LEAST_SECONDS * op.entries) for op in tape.ops]
    return [0.0, *itertools.accumulate(tape.host_share * seconds for seconds in each)]


"""Chooses how many bytes of weights are on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.errors import FloorError, NoPlanError
from ..tape.weights import WINDOWS, RecordedWeight, chosen
from ..tape.tape import Tape
from .plan import Plan

SHARES = 16  # so many parts of the weights are tried
SLOWER = 1.02  # times as slow as a step without a plan


def fastest(tape: Tape, budget: int,
            plan_with: Callable[[Sequence[RecordedWeight]], Plan | FloorError | NoPlanError]) -> Plan | FloorError | NoPlanError:
    """Returns the fastest of three plans: with no more weights on the host than it takes to have one, and with half, or all, of the other
    frozen ones there, too.

    Nothing is compared with a plan that is hardly slower than a step without a plan. Where there is no plan, it returns why.

    plan_with: plans with these weights on the host, or returns why there is no plan.
    """
    size = sum(weight.bytes for weight in tape.weights)
    share = min(SHARES, -(-tape.leaving * SHARES // max(1, size)))
    while True:
        found = plan_with(chosen(tape.weights, size * share // SHARES))
        if isinstance(found, Plan) or not size or share == SHARES:
            break
        lacks = (found.least if isinstance(found, FloorError) else found.best) - budget
        share = min(SHARES, share + max(1, lacks * SHARES * WINDOWS // (WINDOWS - 1) // size))
    there, frozen = size * share // SHARES, sum(weight.bytes for weight in tape.weights if not weight.trained)
    if not isinstance(found, Plan) or there >= frozen or found.seconds <= SLOWER * found.eager_seconds:
        return found
    for leave in (there + frozen) // 2, frozen:
        other = plan_with(chosen(tape.weights, leave))  # it has more room for what autograd saves
        found = min(found, other, key=lambda plan: plan.seconds) if isinstance(other, Plan) else found
    return found

"""Chooses how many bytes of frozen weights are on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base.errors import SpillwayError
from ..tape.frozen import Frozen, chosen
from ..tape.tape import Tape
from .plan import Plan

SHARES = 16  # so many parts of the weights are tried
SLOWER = 1.02  # times as slow as a step without a plan
MORE = 2, 4  # beyond the least share, these parts of the rest


def fastest(tape: Tape, plan_with: Callable[[Sequence[Frozen]], Plan | SpillwayError]) -> Plan | SpillwayError:
    """Returns the fastest plan of those that are tried: without weights on the host, with the fewest with which there is a plan, and more.

    A plan without more of them that is hardly slower than a step without a plan is not compared.

    plan_with: plans with these weights on the host, or returns why there is no plan.
    """
    size = max(1, sum(weight.bytes for weight in tape.frozen))
    first = min(SHARES, -(-tape.leaving * SHARES // size))
    found = plan_with(chosen(tape.frozen, size * first // SHARES))
    if not tape.frozen or isinstance(found, Plan) and found.seconds <= SLOWER * found.eager_seconds:
        return found
    made = {first: found}

    def at(share: int) -> Plan | SpillwayError:
        if share not in made:
            made[share] = plan_with(chosen(tape.frozen, size * share // SHARES))
        return made[share]

    least = first if isinstance(found, Plan) else SHARES
    if isinstance(at(least), SpillwayError):
        return at(least)
    none = first  # there is no plan
    while least - none > 1:
        middle = (none + least) // 2
        none, least = (none, middle) if isinstance(at(middle), Plan) else (middle, least)
    for parts in MORE:  # the least share leaves the least room for what autograd saves
        at(least + (SHARES - least) // parts)
    return min((plan for plan in made.values() if isinstance(plan, Plan)), key=lambda plan: (plan.seconds, plan.weight_bytes))

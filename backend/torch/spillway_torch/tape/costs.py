"""The time that the host of a GPU takes for the parts of a plan and of a recording."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class HostCosts:
    """Seconds of the host."""

    packed: float = 0.0  # a tensor that autograd saves while a plan runs
    unpacked: float = 0.0
    compared: float = 0.0  # a storage that is recomputed, in forward, where its operators are watched
    started: float = 0.0  # the same, in backward
    recomputed: float = 0.0  # an operator that runs again
    left: float = 0.0  # a copy to the host
    came: float = 0.0  # a copy from it
    recorded: float = 0.0  # the recorder itself, for an operator, in what it takes for the program's time

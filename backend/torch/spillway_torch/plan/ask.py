"""Asks the program `spillway` which storages of a tape to offload and which to recompute."""

from __future__ import annotations

import bisect
import dataclasses
import json
import pathlib
import tempfile
from typing import Any

from ..base.document import write_document
from ..base.errors import ProgramError
from ..base.program import run_program
from ..tape.chains import Saved
from ..tape.tape import Tape
from .plan import EVICT, OFFLOAD
from .step_trace import StepTrace, operator_of, storage_name


def ask(tape: Tape, candidates: list[Saved], budget: int, policy: str) -> dict[int, str]:
    """Returns the actions that a policy of the program chooses, by storage; empty if it says that nothing fits.

    The policy (as the option --policy takes it, "joint:effort=2") sees the recorded times of operators, the measured bandwidth of
    copies, and a pool without fragmentation, because a budget counts allocated bytes. It does not see the host's time, which the
    caller counts. Raises `ProgramError` if the program is missing or fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace, decisions = pathlib.Path(folder) / "step.json", pathlib.Path(folder) / "decisions.json"
        write_document(StepTrace(tape, candidates).object(), trace)
        device = str(pathlib.Path(folder) / "device.toml")
        copies = f"{tape.bandwidth:.0f}B/s"
        run_program("new-device", "recorded", "--memory", f"{2 * max(budget, *tape.used)}B", "--flops", "1TFLOP/s", "--bandwidth", "1TB/s",
                    "--h2d", copies, "--d2h", copies, "--source", "the recording", "-o", device)
        allocator = "stitched" if tape.device == "cuda" else "best-fit"
        run_program("run", f"{trace},host=none", "--device", device, "--memory", f"{budget}B", "--allocator", allocator, "--policy", policy,
                    "--export", f"decisions:{decisions}")
        if not decisions.exists():
            return {}
        try:
            made = json.loads(decisions.read_text(encoding="utf-8"))["decisions"]
        except (ValueError, KeyError) as error:
            raise ProgramError(f"spillway run wrote no decisions: {error}") from error
    return carried_out(made, candidates, tape)[0]


@dataclasses.dataclass
class Moments:
    """The positions at which a policy wants storages to go and to come back, by storage."""

    releases: dict[int, int] = dataclasses.field(default_factory=dict)  # in forward
    prefetches: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # ascending
    drops: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # ascending; of a storage that is back


def carried_out(decisions: list[dict[str, Any]], candidates: list[Saved], tape: Tape) -> tuple[dict[int, str], Moments]:
    """Returns the actions, by storage, that follow from the decisions of a run of the step's trace, and their moments.

    Each moment is the last position before the op; a storage that the op uses goes later.
    """
    actions: dict[int, str] = {}
    moments, movable = Moments(), {storage_name(saved.storage): saved for saved in candidates}
    for decision in decisions:
        saved, verb = movable.get(decision.get("tensor") or ""), decision["verb"]
        if saved is None or not decision.get("done", True):
            continue
        storage, at = saved.storage, bisect.bisect_right(tape.positions, operator_of(decision["op"])) - 1
        if verb == "offload":
            actions[storage] = OFFLOAD
        elif verb == "evict" and saved.chain is not None:
            actions.setdefault(storage, EVICT)
        if verb == "prefetch":
            moments.prefetches.setdefault(storage, []).append(at)
        elif verb == "evict" or verb == "release" and storage in moments.releases:
            moments.drops.setdefault(storage, []).append(at)
        elif verb == "release":
            moments.releases[storage] = at
    return actions, moments

"""What a step takes under torch.compile, for `spillway fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base.errors import SpillwayError
from ..step.data import CompiledCuts
from .accepted import check_compiler

if TYPE_CHECKING:
    from .cut_step import CutStep


def compiled_cuts(step: Callable[[], Any], device: str = "cuda") -> CompiledCuts:
    """Finds what a step whose model is compiled takes with several cuts of its graphs. `Step.write` adds them to the recorded step.

    step, device: as for `explain_compiled`, and it raises the same.
    """
    return cut_step(step, device).cuts


def cut_step(step: Callable[[], Any], device: str) -> CutStep:
    """Returns the step, which also has the answer of `explain_compiled`."""
    if device not in ("cuda", "cpu"):
        raise SpillwayError(f"device '{device}' (valid: cuda, cpu)")
    check_compiler()
    from .cut_step import CutStep  # PyTorch's compiler takes seconds to load
    return CutStep(step, device)

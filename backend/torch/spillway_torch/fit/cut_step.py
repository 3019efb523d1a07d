"""What a compiled step takes with PyTorch's own cut of its graphs, and with those that `fit` would make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..step.data import CompiledCut, CompiledCuts
from .compiled_graph import Graph
from .compiled_step import CompiledCurve, CompiledRow, CompiledStep


class CutStep(CompiledStep):
    """A compiled step: the `answer` of `explain_compiled`, and what the kernels of its rows do."""

    def __init__(self, step: Callable[[], Any], device: str) -> None:
        """Raises as `CompiledStep` does."""
        self._reads: set[int] = set()
        self._rows: list[tuple[CompiledRow, CompiledCut]] = []
        super().__init__(step, device)
        self.answer: CompiledCurve = self.curve()

    def _record(self, graph: Graph, given: Sequence[Any]) -> Any:
        for tensor in given:  # only the first graph surely reads data: others may read what no operator of the eager step makes
            if isinstance(tensor, torch.nn.Parameter) or isinstance(tensor, torch.Tensor) and not self._events:
                if tensor.device.type == self._device:
                    self._reads.add(tensor.untyped_storage().nbytes())
        return super()._record(graph, given)

    def _row(self, budget: int) -> CompiledRow:
        row = super()._row(budget)
        called = [call.graph for call, backward in self._step if not backward]
        work = [graph.joint.work(set(graph.choice.keep), graph.choice.near) for graph in called if graph.joint and graph.choice]
        # What exists all the time is parameters, the optimizer's state and, where the device counts it, the step's data.
        outside = min(size for call, _ in self._step for size in (call.forward, call.backward) if size is not None)
        self._rows.append((row, CompiledCut(row.peak - outside, sum(w.flops for w in work), sum(w.traffic for w in work),
                                            sum(w.kernels for w in work))))
        return row

    @property
    def cuts(self) -> CompiledCuts:
        """PyTorch's own cut, and those of the rows that take less memory."""
        (own, first), *others = self._rows
        less = {row.peak: cut for row, cut in sorted(others, key=lambda pair: (-pair[0].peak, -pair[0].times)) if row.peak < own.peak}
        return CompiledCuts(frozenset(self._reads), (first, *less.values()))

"""What memory costs a compiled step in time: its graphs, cut for budgets between the least and what it takes as PyTorch cuts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base.errors import SpillwayError
from ..compiled.rates import rates_of
from ..step.data import CompiledCut, CompiledCuts
from .compiled import CompiledFitted
from .compiled_graph import Graph

FORMAT = "spillway-torch-explain-compiled"
RUNGS = 7  # of the curve


@dataclasses.dataclass
class CompiledRow:
    """A budget in bytes, and what the graphs take that are cut for it."""

    budget: int
    peak: int  # bytes of the whole step, predicted
    times: float  # the time of the graphs as a multiple of that which PyTorch's own cut takes
    saved: list[int]  # bytes that each graph saves
    cut: CompiledCut  # what the graphs take


@dataclasses.dataclass
class CompiledCurve:
    """The answer of `explain` for a compiled step. The first row has the least memory, and the last one PyTorch's own cut."""

    device: str
    nodes: list[int]  # of each graph
    outside: int  # most bytes outside the graphs
    rows: list[CompiledRow]
    reads: frozenset[int]  # the bytes of the parameters and data that the graphs read

    @property
    def cuts(self) -> CompiledCuts:
        """What the graphs take as PyTorch cuts them, and in the rows that take less memory. `Step.write` adds it to the recorded step."""
        *others, own = self.rows
        less = {row.peak: row.cut for row in sorted(others, key=lambda row: (-row.peak, -row.times)) if row.peak < own.peak}
        return CompiledCuts(self.reads, (own.cut, *less.values()))

    def text(self) -> str:
        """Returns a table and what its rows have in common, for people."""
        unit, name = (1 << 20, "MiB") if self.rows[0].peak >= 10 << 20 else (1 << 10, "KiB")
        lines = [f"{f'budget {name}':>12}{f'peak {name}':>12}{'times':>8}  {name} that each graph saves"]
        for row in self.rows:
            note = "  as PyTorch cuts it" if row is self.rows[-1] else "  least" if row is self.rows[0] else ""
            saved = " ".join(f"{size / unit:,.1f}" for size in row.saved)
            lines.append(f"{row.budget / unit:12,.1f}{row.peak / unit:12,.1f}{row.times:8.3f}  {saved}{note}")
        lines += ["", f"Graphs of the step, by their nodes: {', '.join(map(str, self.nodes))}. Outside them, it has at most "
                      f"{self.outside / unit:,.1f} {name}: parameters, gradients, the optimizer's state, and what is not compiled."]
        if self.device == "cpu":
            lines.append("Times follow from sizes, and serve to compare plans.")
        return "\n".join(lines) + "\n"

    def object(self) -> dict[str, Any]:
        """Returns what `text` says, in bytes (experiments/schemas/torch-explain-compiled.json)."""
        rows = [{"budget_bytes": row.budget, "peak_bytes": row.peak, "times": row.times, "saved_bytes": row.saved} for row in self.rows]
        return {"format": FORMAT, "version": 1, "device": self.device, "nodes": self.nodes, "outside_bytes": self.outside, "rows": rows}


class CompiledStep(CompiledFitted):
    """The graphs of a step, and the memory around them, as `explain_compiled` finds them. A step whose tensors have no data needs no memory."""

    def __init__(self, step: Callable[[], Any], device: str, warm_up: int = 1) -> None:
        """Raises `SpillwayError` if the step runs no graph that can be planned."""
        rates_of(device)  # measured with data
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._reads: set[int] = set()
        super().__init__([], [], 1 << 60, device)
        try:
            for _ in range(warm_up + 1):
                self._events.clear()
                step()
            self._step = [(call, backward) for call, backward in self._events if call.backward is not None]
            self._found = self._traced(self._step)
        finally:
            self.remove()
        if not self._found:
            raise SpillwayError("torch.compile found no graph of a model that learns: compile the model in the step, by model.compile() "
                                "or torch.compile(model)")

    def _own(self) -> list[torch.nn.Parameter]:
        return list(self._parameters.values())

    def _record(self, graph: Graph, given: Sequence[Any]) -> Any:
        self._parameters.update((id(p), p) for p in given if isinstance(p, torch.nn.Parameter))
        for tensor in given:  # only the first graph surely reads data: others may read what no operator of the eager step makes
            if isinstance(tensor, torch.nn.Parameter) or isinstance(tensor, torch.Tensor) and not self._events:
                if tensor.device.type == self._device:
                    self._reads.add(tensor.untyped_storage().nbytes())
        return super()._record(graph, given)

    def _first(self, graph: Graph) -> Callable[..., Any]:
        return graph.module

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)

    def curve(self) -> CompiledCurve:
        """Plans the step for several budgets."""
        most = self._row(1 << 60)
        least = self._row(1)
        rows = [self._row(least.peak + (most.peak - least.peak) * at // (RUNGS - 1)) for at in range(RUNGS)]
        found = {row.budget: row for row in rows}  # one if no plan takes less
        outside = max(max(call.forward, call.backward or 0) for call, _ in self._step)
        return CompiledCurve(self._device, [len(graph.joint.nodes) for graph in self._found if graph.joint is not None], outside,
                             list(found.values()), frozenset(self._reads))

    def _row(self, budget: int) -> CompiledRow:
        self._budget = budget
        peak = budget + self._fit_in(self._found, self._step, 0)
        calls = [call.graph for call, backward in self._step if not backward and call.graph in self._found]
        plain = sum(graph.joint.outcome(graph.default).seconds for graph in calls if graph.joint is not None)
        taken = [graph.choice.outcome for graph in calls if graph.choice is not None]
        saved = [graph.choice.outcome.saved for graph in self._found if graph.choice is not None]
        work = [graph.joint.work(set(graph.choice.keep), graph.choice.near) for graph in calls if graph.joint and graph.choice]
        # What exists all the time is parameters, the optimizer's state and, where the device counts it, the step's data.
        outside = min(size for call, _ in self._step for size in (call.forward, call.backward) if size is not None)
        cut = CompiledCut(peak - outside, sum(w.flops for w in work), sum(w.traffic for w in work), sum(w.kernels for w in work))
        return CompiledRow(budget, peak, sum(outcome.seconds for outcome in taken) / plain, saved, cut)

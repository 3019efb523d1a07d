"""`fit` for compiled models: each graph that torch.compile finds is cut into forward and backward so that the step stays in a budget."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from ..base.device import device_of
from ..base.errors import SpillwayError
from ..base.target import Target
from ..compiled import pytorch
from ..compiled.joint import AGAIN, Joint, Room
from ..compiled.planning import Choice
from ..compiled.rates import rates_of
from ..plan.files import CompiledPlan, GraphPlan
from ..plan.plan import in_unit
from ..run.buckets import STAGES, is_dense
from .accepted import replicas
from .compiled_graph import Call, Compiled, Cut, Graph, Sized, SizedStep, Sizes, at_most, moments, most
from .states import States, hook_updates

log = logging.getLogger("spillway_torch")

_BUDGETS: weakref.WeakKeyDictionary[torch.nn.Module, CompiledFitted] = weakref.WeakKeyDictionary()  # as long as their models exist

MOST_CORRECTIONS = 3  # plans for less, where steps took more than the budget
CHEAPER = 2  # plans for less, where the code of graphs takes more than the budget
SPARE = 256  # a plan leaves one part in so many of the budget free on a GPU, and a corrected plan on any device
CHECKED = 2  # the first steps with new graphs, whose memory is compared with the budget
UNSEEN = 2  # after so many updates without a graph, a line says so
BEHIND = 6  # a graph without a plan may take so many times what it leaves behind, in another forward and in backward
ROUNDS = 6  # in which the graphs of a step share its budget
FITS = 0.95  # of the budget, which a graph may take operator by operator: what operators take besides tensors is not known


class CompiledFitted:
    """Compiled models whose steps stay in a budget, once their graphs have plans. `remove` ends that."""

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], budget: int, device: str,
                 blocks: Sequence[torch.nn.Module] = (), given: Optional[CompiledPlan] = None) -> None:
        """blocks: modules that are compiled until `remove`. given: the plan for the first step that is recorded."""
        for model in models:
            if model in _BUDGETS:
                raise SpillwayError(f"a {type(model).__name__} has a budget already: call `remove` of what the earlier `fit` returned")
            _BUDGETS[model] = self
        self._models, self._optimizers = [weakref.ref(model) for model in models], list(optimizers)
        self._budget, self._device = budget, device
        self._memory = device_of(device)
        self._counts = self._memory.in_use() >= 0 and not pytorch.has_no_data()  # whether the device says what is in use
        self._blocks, self._given = list(blocks), given
        self._graphs: list[Graph] = []
        self._events: list[tuple[Call, bool]] = []  # of the step that is recorded: a call, and whether its backward begins
        self._state = self._there = 0  # bytes of the optimizers' state when the step began, and those of them on the host
        self._states, self._hosted, self._begun = States(self._optimizers, budget, False), 0, False  # bytes that plans have on the host
        # Bytes that steps take and that no plan counts: the allocator of a GPU rounds sizes, and its libraries take memory as they run.
        self._unforeseen = budget // SPARE if device == "cuda" else 0
        self._corrections = self._steps = self._planned = self._most = 0
        self._sized: Optional[Sized] = None  # the step that runs, if sizes vary in it
        self._fresh = CHECKED  # steps to check
        self._compiling = False  # a graph was compiled in this step
        self._predicted = 0
        self._other = self._in_use() - self._gradient_bytes() - self._there_bytes()  # in use, without a step
        this = weakref.ref(self)

        def take(module: fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any], compiled: Callable[[], Any]) -> Any:
            fitted = this()
            return compiled() if fitted is None else fitted._take(module, inputs, settings, compiled)
        self._end = pytorch.take_graphs(take)
        weakref.finalize(self, self._end)

        self._handles = hook_updates(self, optimizers, type(self)._after_update)
        torch.compiler.reset()  # what was compiled before is not planned
        for block in self._blocks:
            block.compile()

    def remove(self) -> None:
        """Makes PyTorch compile the models anew, without a budget."""
        for handle in self._handles:
            handle.remove()
        self._end()
        self._graphs.clear()
        for block in self._blocks:
            block._compiled_call_impl = None
        for model in self._modules():
            _BUDGETS.pop(model, None)
        self._states.close()
        self._optimizers.clear()
        self._blocks.clear()
        torch.compiler.reset()

    def _modules(self) -> list[torch.nn.Module]:
        return [model for model in (reference() for reference in self._models) if model is not None]

    def _own(self) -> list[torch.nn.Parameter]:
        return [p for model in self._modules() for p in model.parameters()]

    @property
    def plan(self) -> Optional[CompiledPlan]:
        """The plan for all graphs so far, which `write_plan` writes; None if there is none yet."""
        graphs = []
        for joint, choice, default in ((graph.joint, graph.choice, graph.default) for graph in self._graphs):
            if joint is not None and choice is not None:
                saved, again = _names(joint, choice.keep, choice.near)
                graphs.append(GraphPlan(joint.digest(), len(joint.nodes), None if choice.keep == default else saved, again))
        return CompiledPlan(self._budget, self._predicted, graphs) if graphs else None

    def stats(self) -> dict[str, float]:
        """Returns the numbers of `report` by name, for loggers."""
        found = {"steps": self._steps, "planned": self._planned, "graphs": len(self._graphs), "budget_bytes": self._budget,
                 "most_bytes": self._most, "predicted_bytes": self._predicted}
        return {name: number for name, number in found.items() if number or not name.endswith("_bytes")}

    def report(self) -> str:
        """Returns what steps took so far, and what the graphs save."""
        most = f", of which steps took at most {self._text(self._most)}" if self._most else ""
        lines = [f"budget {self._text(self._budget)}{most}; {self._steps} steps: {self._planned} planned, {self._steps - self._planned} "
                 f"recorded or compiled; predicted peak {self._text(self._predicted)}"]
        if there := self._states.all_outside():
            lines.append(f"{self._text(there)} of the optimizer's state are on the host between updates")
        for graph in self._graphs:
            if graph.choice is None or graph.joint is None:
                continue
            known = [(graph.sizes, graph.outcome, graph.plain)] if graph.step is None else [
                (cut.fits[-1][graph], *cut.taken[graph]) for cut in graph.step.cuts]
            for sizes, taken, plain in known:
                up_to = f" with sizes up to {', '.join(map(str, sizes))}" if sizes else ""
                lines.append(f"a graph of {len(graph.joint.nodes)} nodes{up_to} saves {self._text(taken.saved)} (as PyTorch cuts it "
                             f"{self._text(plain.saved)}) and takes at most {self._text(max(taken.forward, taken.backward))} "
                             f"({self._text(max(plain.forward, plain.backward))}), in {taken.seconds / plain.seconds:.3f} times the time")
        return "\n".join(lines)

    def _text(self, size: int) -> str:
        return in_unit(size, self._budget)

    # ---- steps ----

    def _take(self, module: fx.GraphModule, inputs: Sequence[Any], settings: dict[str, Any], compiled: Callable[[], Any]) -> Any:
        """Returns a graph in the place of what the compiler makes of it; for one that is not planned, that, under the guard."""
        if not torch.is_grad_enabled() or not any(isinstance(i, torch.Tensor) and i.requires_grad for i in inputs):
            return compiled()
        if reason := pytorch.why_not(module, inputs, settings):
            log.warning("spillway: a graph is cut as PyTorch cuts it: %s", reason)
            plain, this = compiled(), weakref.ref(self)

            def guarded(*given: Any) -> Any:
                fitted = this()
                with fitted._guard(given) if fitted is not None else contextlib.nullcontext():
                    return plain(*given)
            return guarded
        places = pytorch.sizes_that_vary(module)
        if settings.get(pytorch.CUDA_GRAPHS) and not self._graphs:
            log.info("spillway: the model is compiled without CUDA graphs, which keep memory beside what steps take: use another mode of "
                     "torch.compile, or no budget")
        settings = {**settings, pytorch.CUDA_GRAPHS: False}
        self._graphs.append(Graph(weakref.ref(self), module, settings, self._device, places=places))
        return self._graphs[-1]

    def run(self, graph: Graph, given: Sequence[Any]) -> Any:
        """Runs a graph as its plan says; without one, it is recorded."""
        if not torch.is_grad_enabled():
            return graph.module(*given)
        if not self._begun:
            self._begin()
        if graph.choice is None and (not graph.refused or not graph.known and self._events):
            return self._record(graph, given)
        if graph.refused:
            known = len(graph.known)
            run = graph.unplanned(given)
            self._compiling |= len(graph.known) > known
            with self._guard(given):
                return run(*given)
        if graph.step is not None and not self._is_served(graph, given):
            return self._without_plan(graph, given)
        if graph.compiled is None:
            self._compiling = True
            graph.compile(self._memory)
        return graph.compiled(*given)

    def _is_served(self, graph: Graph, given: Sequence[Any]) -> bool:
        """Takes the graphs of a step as the first cut has them that keeps the budget with the sizes of a call; plans anew if none does.

        Returns whether there is one.
        """
        sizes, step, now = graph.sizes_of(given), graph.step, self._sized
        assert step is not None
        if now is None or now.step is not step:
            now = self._sized = Sized(step, (graph, sizes), step.expected(graph, sizes))
        elif all(size <= known for size, known in zip(sizes, now.sizes[graph])) and (
                now.cut is None or now.cut.made[graph].symbols.hold(sizes)):
            return self._took(now, graph)
        else:
            now.sizes = {**now.sizes, graph: tuple(map(max, sizes, now.sizes[graph]))}
            step.note(now.first, now.sizes)
        exact, before = {**now.sizes, graph: sizes}, now.cut
        now.cut = next((cut for cut in step.cuts if cut.holds(now.sizes) and cut.holds(exact) and self._keeps(cut, now)), None)
        if now.cut is None:
            now.cut = self._renew(now, exact, {of: before.made[of] for of, _ in now.held if of is not graph} if before is not None else {})
        if now.cut is not None:
            for other, made in now.cut.made.items():
                other.use(made)
        return self._took(now, graph)

    @staticmethod
    def _took(now: Sized, graph: Graph) -> bool:
        now.calls.append(now.cut.made[graph] if now.cut is not None else None)
        return now.cut is not None

    def _keeps(self, cut: Cut, now: Sized) -> bool:
        """Returns whether a step stays in the budget with a cut, after what it has saved already."""
        known = None if now.calls else cut.knows(now.sizes)
        if known is not None:
            return known
        self._resize(now.sizes)
        for graph, made in cut.made.items():
            graph.use(made)
        fits = self._most_over(now.step.events(), cut.more + _held(now)) <= 0
        if not now.calls:
            cut.note(now.sizes, fits)
        self._check_next()
        return fits

    def _renew(self, now: Sized, exact: Sizes, stay: dict[Graph, Compiled]) -> Optional[Cut]:
        """Plans a step for larger sizes, and compiles its graphs. Returns None if that does not fit in the budget.

        exact: the sizes of the call that comes, where `now` has those of others, too. stay: graphs that have run and are as they are.
        """
        step = now.step
        if any(at_most(sizes, now.sizes) for sizes in step.exceeds):
            return None
        more = self._state_bytes() - step.state - (self._states.all_outside() - step.outside) + self._unforeseen
        with _disable_current_modes(), torch.random.fork_rng([torch.cuda.current_device()] if self._device == "cuda" else []):
            for sizes in step.larger(now.sizes, exact):
                self._resize(sizes)
                for graph, made in stay.items():
                    graph.use(made)
                over, left = self._settle([graph for graph in step.graphs if graph not in stay], step.events(), more, True)
                cut = Cut({graph: graph.made for graph in step.graphs}, left) if over <= 0 else None
                if cut is not None and cut.holds(exact) and (
                        not now.calls or self._most_over(step.events(), left + _held(now)) <= 0):
                    break
            else:
                if not now.calls:
                    step.exceeds.append(now.sizes)
                if self._counts:
                    log.warning("spillway: no plan within %s was found for sizes of %s: such a step runs operator by operator, with what "
                                "autograd saves on the host", self._text(self._budget), _text_of(now.sizes))
                return None
        step.add(cut, sizes)
        self._predicted = self._budget + over
        self._states.begin(self._hosted)
        self._check_next()
        log.info("spillway: planned %d graph%s for sizes up to %s: predicted peak %s of %s", len(step.graphs), "s" * (len(step.graphs) > 1),
                 _text_of(sizes), self._text(self._predicted), self._text(self._budget))
        return cut

    def _resize(self, sizes: Sizes) -> None:
        with _disable_current_modes():
            for graph, of in sizes.items():
                graph.resize(of, self._memory)

    def _check_next(self) -> None:
        """Has the memory of the next steps compared with the budget."""
        if not self._fresh:
            self._peak()
        self._fresh = CHECKED

    def _without_plan(self, graph: Graph, given: Sequence[Any]) -> Any:
        """Runs a graph with sizes for which there is no plan: operator by operator, with what autograd saves on the host. Raises
        `SpillwayError` where that takes too much, or the device has no other memory than the host."""
        assert graph.joint is not None and self._sized is not None
        self._resize(self._sized.sizes)
        if not self._counts or self._in_use() + max(graph.joint.by_operators()) + self._unforeseen > FITS * self._budget:
            now, self._begun = self._sized, False  # the program may go on with another step
            raise SpillwayError(f"no plan within {self._budget:,} bytes was found for inputs with sizes of {_text_of(now.sizes)}, where "
                                f"{_text_of(now.step.largest())} fit: give a larger budget, or smaller inputs")
        with _saved_on_host(self._device, given), _no_autocast_cache():
            return graph.module(*given)

    def _begin(self) -> None:
        """Begins a step, with state of the optimizers on the host if it is to be there."""
        self._begun, self._sized = True, None
        if self._counts and not self._steps:  # the first update may not fit
            gc.collect()  # otherwise plans count what later steps do not have
            own = self._own()
            self._states.find(self._memory, self._optimizers)
            self._states.foresee(self._memory.in_use(), sum(p.grad.nbytes for p in own if p.grad is not None),
                                 sum(p.nbytes for p in own if p.requires_grad))
        self._states.begin(self._hosted)

    def _guard(self, given: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Within it, what autograd saves of a graph without a plan goes to the host, unless there is room for `BEHIND` times as much."""
        if not self._counts or not torch.is_grad_enabled():
            return contextlib.nullcontext()
        before, moved = self._memory.in_use(), 0

        def wanted(size: int) -> bool:
            nonlocal moved
            used = self._memory.in_use() - moved
            short = used + BEHIND * max(0, used - before) > self._budget - self._budget // SPARE
            moved += size * short
            return short
        return _saved_on_host(self._device, given, wanted)

    def _record(self, graph: Graph, given: Sequence[Any]) -> Any:
        """Runs a graph with what autograd saves on the host."""
        if not self._events:
            self._state, self._there = self._state_bytes(), self._states.all_outside()
        self._note_peak()
        if graph.places:
            sizes = graph.sizes_of(given)
            again = graph.sizes and graph in (call.graph for call, _ in self._events)
            self._resize({graph: tuple(map(max, sizes, graph.sizes)) if again else sizes})
        if not graph.inputs:
            graph.inputs = pytorch.without_data(given)
            graph.autocasts = [{"device_type": kind, "dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind)}
                               for kind in dict.fromkeys(("cpu", self._device))]
        if graph.first is None:
            graph.first = self._first(graph)
        call = Call(graph, self._in_use(), forward_varies=self._varying())
        self._events.append((call, False))
        with _saved_on_host(self._device, given) if self._counts else contextlib.nullcontext(), _no_autocast_cache():
            results = graph.first(*given)
        self._peak()

        def begin(gradients: Sequence[torch.Tensor | None]) -> None:
            if call.backward is None:
                self._note_peak()
                theirs = sum(g.nbytes for g in gradients if g is not None) if self._counts else 0  # the graph has them
                call.backward, call.backward_varies = self._in_use() - theirs, max(0, self._varying() - theirs)
                self._events.append((call, True))
        for result in results:
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                result.grad_fn.register_prehook(begin)
        return results

    def _first(self, graph: Graph) -> Callable[..., Any]:
        """Returns what runs of a graph while it has no plan for the whole step: its operators one by one; or, where these take too much, or
        the compiler's results have gaps, what is compiled for this graph alone. With other gaps, later graphs would be found anew."""
        with _disable_current_modes(), torch.random.fork_rng([torch.cuda.current_device()] if self._device == "cuda" else []):
            if not self._trace(graph):
                return graph.module
            assert graph.joint is not None
            joint, outside, more = graph.joint, self._in_use(), self._unforeseen
            others = sum(p.nbytes for p in self._own() if p.requires_grad and p.grad is None) - sum(joint.size[at] for at in joint.gradients)
            forward, backward = joint.by_operators()
            fits = not self._counts or outside + max(forward, max(0, others) + backward) + more <= FITS * self._budget
            if fits and all(is_dense(joint.nodes[at].meta["val"]) for at in joint.results if joint.storage[at] is not None):
                return graph.module
            call = Call(graph, outside, outside + max(0, others), outside)
            events = [(call, False), (call, True)]
            self._states.find(self._memory, self._optimizers)
            coming = max(0, sum(self._states.parts) - self._state_bytes())  # with room for this state, later steps may run the same code
            more += coming if self._fit_in([graph], events, more + coming) <= 0 else 0
            for _ in range(1 + CHEAPER):
                self._fit_in([graph], events, more)
                if not self._compile([graph]) or self._most_over(events, more) <= 0:
                    break
            made, graph.choice, graph.compiled, graph.code = graph.made, None, None, None

            def first(*given: Any) -> Any:
                return (made.run if made.symbols.hold(graph.sizes_of(given)) else graph.module)(*given)
            return first if graph.places else made.run

    def _peak(self) -> int:
        """Returns the most bytes in use since it was asked last; 0 where the device does not count them."""
        memory = self._memory.memory() if self._counts else None
        self._most = max(self._most, memory.most if memory is not None else 0)
        return memory.most if memory is not None else 0

    def _note_peak(self) -> None:
        """Notes the most bytes since the last forward, unless a backward began since."""
        if self._events and not self._events[-1][1]:
            call = self._events[-1][0]
            call.after = self._peak()
            call.after_varies = max(0, call.after - call.forward + call.forward_varies)

    def _in_use(self) -> int:
        """Returns the bytes of the device in use; where it does not count them, those of parameters, gradients, buckets and state."""
        if self._counts:
            return self._memory.in_use()
        return sum(p.nbytes for p in self._own()) + self._gradient_bytes() + self._bucket_bytes() + self._state_bytes()

    def _varying(self) -> int:
        """Returns the bytes in use that may follow from sizes that vary: no gradients or state, and not there before the first step."""
        return max(0, self._in_use() - self._gradient_bytes() - self._there_bytes() - self._other) if self._counts else 0

    def _gradient_bytes(self) -> int:
        """Returns the bytes of gradients that have memory of their own, as views of buckets have not."""
        return sum(p.grad.nbytes for p in self._own() if p.grad is not None and not p.grad._is_view())

    def _bucket_bytes(self) -> int:
        """Returns the bytes of the buckets in which DistributedDataParallel reduces gradients, which always exist."""
        return sum(p.nbytes for model in self._modules() for part in replicas(model) for p in part.parameters()
                   if p.requires_grad and not getattr(p, "_ddp_ignored", False))

    def _there_bytes(self) -> int:
        """Returns the bytes of the optimizers' state that are on the device."""
        return self._state_bytes() - self._states.all_outside()

    def _state_bytes(self) -> int:
        """Returns the bytes that the optimizers' state takes if all of it is on the device."""
        there = self._states.all_outside() if self._device != "cpu" else 0
        return there + sum(v.nbytes for optimizer in self._optimizers for slots in optimizer.state.values() if isinstance(slots, dict)
                           for v in slots.values() if isinstance(v, torch.Tensor) and v.device.type == self._device)

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        own = {id(p) for p in self._own()}
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            return
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        self._steps += 1
        if self._steps == UNSEEN and not self._graphs:
            log.warning("spillway: nothing is planned, because torch.compile found no graph of a model that learns for Inductor: "
                        "`compile` of a module of PyTorch itself, such as nn.Sequential, compiles nothing, torch.compile(model) does, and "
                        "other backends have no plans")
        peak = self._memory.peak_bytes() if self._counts else 0
        self._most = max(self._most, peak)
        if self._events:
            self._plan()
        elif self._compiling:
            self._compiling = False
        else:
            self._planned += 1
            self._check(peak)
        if self._fresh:
            self._peak()
        self._begun = False

    def _check(self, peak: int) -> None:
        """Compares the peak of a step with the budget; plans again where it took more."""
        if not self._counts or not self._fresh:
            return
        self._fresh -= 1
        over = peak - self._budget
        if over <= 0 or self._corrections == MOST_CORRECTIONS:
            return
        self._corrections += 1
        self._unforeseen += over + self._budget // SPARE
        log.warning("spillway: a compiled step took %s bytes more than the budget, and is planned again for less", f"{over:,}")
        for graph in self._graphs:
            graph.choice = graph.compiled = graph.code = graph.first = None
        self._fresh = CHECKED

    # ---- plans ----

    def _plan(self) -> None:
        """Plans the graphs of the step that was recorded. Raises `SpillwayError` if they do not fit."""
        events, self._events = self._events, []
        log.debug("spillway: bytes outside the graphs: %s", ", ".join(
            f"{'backward' if backward else 'forward'} {call.backward if backward else call.forward:,}" for call, backward in events))
        graphs = self._traced(events)
        if not graphs:
            return
        there = self._states.all_outside()
        more, given = self._state_bytes() - self._state - (there - self._there) + self._unforeseen, self._given
        self._given = None
        if given is not None:
            try:
                _take_plan(given, graphs)
            except SpillwayError:
                self.remove()
                raise
        self._states.find(self._memory, self._optimizers)
        over, left = self._settle(graphs, events, more, given is None)
        self._predicted = self._budget + over
        if over > 0:
            predicted = self._predicted
            self.remove()
            raise SpillwayError(f"no plan within {self._budget:,} bytes was found for the compiled step (one takes {predicted:,}): give "
                                "a larger budget")
        log.info("spillway: planned %d graph%s: predicted peak %s of %s", len(graphs), "s" * (len(graphs) > 1),
                 self._text(self._predicted), self._text(self._budget))
        self._fresh = CHECKED
        if any(graph.places for graph in graphs):
            step = SizedStep(events, graphs, self._state, self._there)
            step.add(Cut({graph: graph.made for graph in graphs}, left), {graph: graph.sizes for graph in graphs})
            for graph in graphs:
                graph.step = step

    def _settle(self, graphs: list[Graph], events: list[tuple[Call, bool]], more: int, free: bool) -> tuple[int, int]:
        """Plans the graphs of a step if that is `free`, and compiles them. Returns what `_decide` does, by their code."""
        over, left = self._decide(graphs, events, more, free)
        for again in (*[free] * CHEAPER, False) if over <= 0 else ():
            if not self._compile(graphs):
                break
            over = self._most_over(events, left)
            if over <= 0:
                break
            log.info("spillway: the code of the graphs takes %s more than the budget", self._text(over))
            over, left = self._decide(graphs, events, more, again)
        return over, left

    def _decide(self, graphs: list[Graph], events: list[tuple[Call, bool]], more: int, free: bool) -> tuple[int, int]:
        """Plans the graphs of a step if that is `free`, and leaves state of the optimizers on the host if it still exceeds the budget.

        Returns by how many bytes it does then, at most 0 if it does not, and how many the step has more than when it was recorded.
        """
        def over(more: int) -> int:
            return self._fit_in(graphs, events, more) if free else self._most_over(events, more)
        there, parts = self._states.all_outside(), self._states.parts
        exceeds, (last, _) = over(more), events[-1]
        made = sum(last.graph.joint.size[at] for at in last.graph.joint.gradients) if last.graph.joint is not None else 0
        update = (last.backward or last.forward) + made + STAGES * max(parts, default=0) + more - self._budget
        most, leave = sum(parts) - there, 0
        if exceeds > 0 and most > 0:
            leave = min(most, max(exceeds, update))
            exceeds = over(more - leave)
        part = max(parts, default=0)
        while free and exceeds <= 0 < part <= most - leave:  # another part, if its copies take less than what the graphs gain
            lost, copies = self._lost(events), 2 * part / rates_of(self._device).link
            if lost <= copies:
                break
            over(more - leave - part)
            if lost - self._lost(events) <= copies:
                exceeds = over(more - leave)
                break
            leave += part
        if leave > 0:
            self._hosted = there + leave
        return exceeds, more - leave

    @staticmethod
    def _lost(events: list[tuple[Call, bool]]) -> float:
        """Returns the seconds by which the graphs of a step are slower than as PyTorch cuts them."""
        return sum(call.graph.lost for call, backward in events if not backward)

    def _compile(self, graphs: list[Graph]) -> int:
        """Compiles those graphs whose choice is new. Returns how many."""
        new, began = [graph for graph in graphs if graph.compiled is None], time.perf_counter()
        for graph in new:
            graph.compile(self._memory)
        if new:
            log.info("spillway: compiled %d graph%s in %.1f s", len(new), "s" * (len(new) > 1), time.perf_counter() - began)
        self._compiling = True  # kernels are tuned when they first run
        return len(new)

    def _traced(self, events: list[tuple[Call, bool]]) -> list[Graph]:
        """Returns the graphs of a step that can be planned, with their joint graphs."""
        return [graph for graph in dict.fromkeys(call.graph for call, _ in events) if self._trace(graph)]

    def _trace(self, graph: Graph) -> bool:
        """Finds the joint graph if it is not known yet. Returns whether it can be planned."""
        try:
            if graph.joint is None and not graph.refused:
                graph.trace()
        except Exception as error:  # pylint: disable=broad-except; PyTorch can cut all that it compiles
            log.warning("spillway: a graph is cut as PyTorch cuts it: %s", error)
            graph.refused, graph.joint = True, None
        return graph.joint is not None

    def _fit_in(self, graphs: list[Graph], events: list[tuple[Call, bool]], more: int) -> int:
        """Plans the graphs of a step. Returns by how many bytes it exceeds the budget; at most 0 if it does not."""
        target = Target(self._device, False, torch.device(self._device))
        for graph in graphs:
            graph.plan(Room(1 << 60, 1 << 60, 1 << 60), target)
        over = self._most_over(events, more)
        rooms: dict[Graph, Room] = {}  # for which graphs were planned last
        for graph in sorted(graphs, key=lambda g: -g.outcome.saved) * ROUNDS:
            room = self._room(graph, events, more)
            if over > 0 and rooms.get(graph) != room:
                graph.plan(room, target)
                rooms[graph] = room
                over = self._most_over(events, more)
        return over

    def _most_over(self, events: list[tuple[Call, bool]], more: int) -> int:
        """Returns by how many bytes the step exceeds the budget; at most 0 if it does not."""
        taken = [outside + sum(other.outcome.saved for other in held) + most(graph, backward)
                 for graph, backward, outside, held in moments(events)]
        return max(taken) + more - self._budget

    def _room(self, graph: Graph, events: list[tuple[Call, bool]], more: int) -> Room:
        """Returns what a graph may take if the others stay as they are."""
        saved = forward = backward = self._budget
        for runs, in_backward, outside, held in moments(events):
            free = self._budget - outside - more - sum(other.outcome.saved for other in held if other is not graph)
            mine = held.count(graph)
            if runs is graph and in_backward:
                backward = min(backward, free - mine * graph.outcome.saved)
            elif runs is graph:
                forward = min(forward, free - mine * graph.outcome.saved)
            if mine:
                saved = min(saved, (free - most(runs, in_backward)) // mine)
        return Room(max(1, min(saved, forward, backward)), max(1, forward), max(1, backward))


def _held(now: Sized) -> int:
    """Returns by how many bytes the calls of a step so far have saved more than they do as its graphs are cut now."""
    return sum(max(0, (made.code or made.choice.outcome).saved - graph.outcome.saved) for graph, made in now.held if made is not None)


def _text_of(sizes: Sizes) -> str:
    return ", ".join(map(str, dict.fromkeys(size for of in sizes.values() for size in of)))


def _names(joint: Joint, keep: frozenset[int], near: int) -> tuple[list[str], list[str]]:
    """Returns the names of what a graph saves, and of what its backward computes again, in order."""
    saved, order = joint.cut(set(keep), near)
    return sorted(joint.nodes[i].name for i in saved if not joint.is_input[i]), [joint.nodes[i].name for i in order if joint.forward[i]]


def _take_plan(given: CompiledPlan, graphs: list[Graph]) -> None:
    """Gives graphs their parts of a plan. Raises `SpillwayError` if it is for others."""
    if len(given.graphs) != len(graphs):
        raise SpillwayError(f"the plan is for {len(given.graphs)} graphs, and the step has {len(graphs)}: plan it anew, without plan=")
    for number, (graph, planned) in enumerate(zip(graphs, given.graphs), 1):
        joint = graph.joint
        assert joint is not None
        if planned.digest != joint.digest():
            raise SpillwayError(f"graph {number} of the plan, of {planned.nodes} nodes, is another one than that of the step, of "
                                f"{len(joint.nodes)} nodes: plan the step anew, without plan=")
        by_name = {node.name: at for at, node in enumerate(joint.nodes)}
        keep = frozenset(graph.default if planned.saved is None else (by_name.get(name, -1) for name in planned.saved))
        near = next((near for near in AGAIN if -1 not in keep and _names(joint, keep, near)[1] == planned.recomputed), None)
        if near is None or any(joint.draws[i] for i in joint.split(set(keep))[1] if planned.saved is not None):
            raise SpillwayError(f"graph {number} of the plan recomputes what no plan of this version does: plan the step anew, without plan=")
        graph.choice = Choice(keep, near, joint.outcome(set(keep), near))


@contextlib.contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """Within it, autocast keeps no copies of parameters, as in a compiled graph."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextlib.contextmanager
def _saved_on_host(device: str, given: Sequence[Any], wanted: Callable[[int], bool] = lambda _: True) -> Iterator[None]:
    """Keeps on the host what autograd saves of a graph and is `wanted` there, by its bytes; not the inputs `given`, which stay anyway.

    It comes back with its strides, which compiled code relies on.
    """
    inputs = {tensor.untyped_storage()._cdata for tensor in given if isinstance(tensor, torch.Tensor)}

    def pack(tensor: torch.Tensor) -> Any:
        if (tensor.device.type != device or tensor.layout != torch.strided or tensor.untyped_storage()._cdata in inputs
                or not wanted(tensor.nbytes)):
            return tensor
        with _disable_current_modes():
            count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
            there = torch.as_strided(tensor.detach(), (count,), (1,))
            host = torch.empty(count, dtype=tensor.dtype, pin_memory=device == "cuda").copy_(there)
            return host, tensor.device, tensor.shape, tensor.stride()

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        host, place, shape, stride = packed
        return torch.as_strided(host.to(place, non_blocking=True, copy=True), shape, stride)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield

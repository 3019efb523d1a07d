"""Forward and backward as CUDA graphs, once their steps run as planned."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pickle
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.device import Device
from ..run.executor import _Run
from .family import CHECKED, Family, Rung, text_of
from .report import Ran
from .structures import Kind, kind_of

log = logging.getLogger("spillway_torch")

MOST_GRAPHS = 8
REMEMBERED = 64  # kinds of calls
SLOW = 40  # calls, after which a line says why none was captured
MOST_DROPS = 3  # after so many times that graphs made room for a call that runs as ever, there are none
NUMBER = "aten::_local_scalar_dense"  # gives the program a number of the device
EMPTY = "aten::empty_like"  # reads no values
COPIES = "aten::_to_copy", "aten::copy_"


class Part(NamedTuple):
    """A part of a step that has run under a plan."""

    family: Family
    rung: Rung | None
    kind: Kind
    run: _Run | Ran

    def without_tensors(self) -> Part:
        """Returns the part without what its step has noted."""
        return self._replace(run=Ran(self.run.plan, self.run.signature, self.run.recomputed))


class Steps(Protocol):
    """What a captured function asks of the steps that it runs: those of `Fitted`."""

    @property
    def device(self) -> Device | None: ...
    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def parameters(self) -> Sequence[weakref.ref[torch.Tensor]]: ...
    def observe(self, function: Callable[[], Any]) -> tuple[Any, list[Part]]: ...
    def plan_for_less(self, parts: list[Part]) -> bool: ...
    def may_replay(self, size: int) -> bool: ...
    def has_room(self, size: int) -> bool: ...
    def has_state(self, parts: list[Part]) -> bool: ...
    def note_replay(self, parts: list[Part], again: bool) -> None: ...


@dataclasses.dataclass(eq=False)
class _Seen:
    """A kind of calls that ran as planned."""

    call: Any  # what has to be equal in all of them
    parts: list[Part]
    numbers: list[Any] | None = None  # that the program reads from the device in each of them; None before one was watched
    bytes: int = 0  # that its last graph took
    refused: bool = False  # it cannot be captured

    def is_ready(self, fitted: Steps) -> bool:
        """Returns whether one can be captured now."""
        return self.numbers is not None and not self.refused and fitted.may_replay(self.bytes) and fitted.has_state(self.parts)


@dataclasses.dataclass(eq=False)
class _Graph:
    """What a call did, to be done again. Its memory is that of all graphs, so that only the last one that ran has a result and gradients."""

    call: Any
    replay: Callable[[], None]
    inputs: list[torch.Tensor]
    result: Any
    gradients: list[tuple[torch.Tensor, torch.Tensor]]  # parameters, and what their gradients are afterwards
    parts: list[Part]
    foreign: list[torch.Tensor]  # what it reads, and was not given
    bytes: int  # that it takes

    def is_held(self) -> bool:
        """Returns whether somebody holds gradients, which the next graph would overwrite."""
        alone = _holders(torch.empty(0))
        return any(_holders(gradient) > alone for _, gradient in self.gradients)

    def run(self, tensors: list[torch.Tensor]) -> Any:
        """Does the call again with other tensors, and returns copies of its result."""
        for static, tensor in zip(self.inputs, tensors):
            static.copy_(tensor, non_blocking=True)
        self.replay()
        for p, gradient in self.gradients:
            p.grad = gradient.detach()
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, self.result)


class _Reads(TorchDispatchMode):
    """Watches what operators read in a call, and which results are equal in all calls like it."""

    def __init__(self, known: Iterable[torch.Tensor], place: torch.device, numbers: Iterable[Any] | None = None) -> None:
        """known: tensors that the call may read.
        numbers: those that the program read from the device in a call like it; they stand for what the device has not computed.
        """
        super().__init__()
        self._differs: dict[int, bool] = {}  # from call to call, by storage
        self.know(known)
        self._place = place
        self._known = iter(numbers) if numbers is not None else None
        self.foreign: dict[int, tuple[torch.Tensor, str]] = {}  # by storage, with the operator that reads it first
        self.numbers: list[Any] = []  # that the program read
        self.lacks = ""  # why the call cannot be captured

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Takes these for tensors that the call is given."""
        self._differs.update((_storage(t), True) for t in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read, name = _tensors_in((args, kwargs)), func._schema.name
        for tensor in read:
            if tensor.device == self._place and _storage(tensor) not in self._differs and name != EMPTY:
                self.foreign.setdefault(_storage(tensor), (tensor, name))
        differs = torch.Tag.nondeterministic_seeded in func.tags or any(self._differs.get(_storage(t), True) for t in read)
        if name == NUMBER and self._known is not None:
            return next(self._known)
        made = func(*args, **(kwargs or {}))
        host = any(t.device != self._place and not t.is_pinned() for t in read)  # plans copy from pages that are registered
        if name == NUMBER:
            self.numbers.append(made)
            if differs:
                self.lacks = "it reads a number that follows from its inputs, from parameters or from random numbers, as .item() and conditions do"
        elif host and (differs or name in COPIES and any(t.device == self._place and t.dim() for t in _tensors_in(made))):
            self.lacks = f"it takes values from the host ({name}): give them as tensors on {self._place}"
        for tensor in (*_tensors_in(made), *(read if differs and func._schema.is_mutable else ())):
            self._differs[_storage(tensor)] = differs
        return made


class Captured:
    """A function of the program that runs forward and backward.

    Its first calls run as ever. Once a call has run under a plan that is not made again, the next one that is like it is watched, and the one
    behind it is captured as a CUDA graph, with its copies to and from the host. Such calls are replayed from then on. Others run as ever, and
    graphs make room for them where the budget has none.
    """

    def __init__(self, fitted: Steps, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._fitted, self._function = fitted, function
        self._name = getattr(function, "__name__", "the function")
        self._graphs: list[_Graph] = []
        self._seen: list[_Seen] = []
        self._drops = 0
        self._waited = 0  # calls that ran before they could be captured
        self._told: set[str] = set()
        self.given = 0  # the most bytes of tensors that it was given, which a graph copies

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Returns what the function returns, with tensors that need no gradients."""
        leaves, spec = pytree.tree_flatten((given, named))
        tensors = _tensors_in(leaves)
        self.given = max(self.given, sum(tensor.nbytes for tensor in tensors))
        call = self._call(leaves, tensors, spec)
        seen = next((seen for seen in self._seen if seen.call == call), None)
        if call is not None and not any(graph.is_held() for graph in self._graphs):
            self._graphs = [graph for graph in self._graphs if all(p.rung in p.family.rungs for p in graph.parts)]
            graph = next((graph for graph in self._graphs if graph.call == call), None)
            again = graph is not None
            if graph is None and seen is not None and len(self._graphs) < MOST_GRAPHS and seen.is_ready(self._fitted):
                graph = self._capture(seen, leaves, spec)
            if graph is not None and self._fitted.may_replay(graph.bytes):
                self._fitted.note_replay(graph.parts, again)
                return graph.run(tensors)
        self._make_room()
        if seen is not None and seen.numbers is None and not seen.refused:
            return self._watch(seen, tensors, given, named)
        result, parts = self._run(given, named)
        if call is not None and seen is None:
            why = _unsettled(parts)
            if not why:
                self._seen = [*self._seen[-REMEMBERED:], _Seen(call, [part.without_tensors() for part in parts])]
            self._waited += 1
            if self._waited == SLOW and not self._told and not self._graphs:
                self._refuse(f"{SLOW} kinds of calls have run, and {why or 'none of them came often enough'}")
        return result

    def close(self) -> None:
        """Gives the memory of the graphs back. Gradients that somebody holds keep theirs."""
        self._graphs.clear()
        self._seen.clear()

    def _call(self, leaves: list[Any], tensors: list[torch.Tensor], spec: Any) -> Any:
        """Returns what has to be equal in two calls for one graph; None if the call cannot be captured, which the log says."""
        fitted, device = self._fitted, self._fitted.device
        if device is None or not device.has_graphs or self._drops >= MOST_DROPS:
            return None
        if any(t.device != device.place or t.requires_grad or t.layout is not torch.strided for t in tensors):
            return self._refuse(f"its tensors have to be on {device.place}, strided, and without gradients of their own")
        constants = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        strange = next((leaf for leaf in constants if not isinstance(leaf, (int, float, str, type(None)))), None)
        if strange is not None:
            return self._refuse(f"it is given a {type(strange).__name__}; expected tensors, numbers and strings, also in lists and dicts")
        held = self._held()
        if any(t.grad is not None for t in held):
            return self._refuse("there are gradients before it: let one call run all backwards whose gradients add up, and zero_grad() set "
                                "gradients to None before it")
        if any(t._post_accumulate_grad_hooks for t in held):
            return self._refuse("a parameter has a hook that runs behind its gradient (register_post_accumulate_grad_hook)")
        kind, shapes = kind_of(0, fitted.model, tensors, fitted.parameters, device.type)
        training = [module.training for module in fitted.model.modules()]
        return kind, shapes, [t.stride() for t in tensors], constants, training, [t.data_ptr() for t in held], spec

    def _refuse(self, reason: str) -> None:
        """Says once why calls are not captured."""
        if reason not in self._told:
            self._told.add(reason)
            log.warning("spillway: a call of '%s' is not captured: %s", self._name, reason)

    def _make_room(self) -> None:
        """Gives the memory of graphs back whose gradients nobody holds, unless the budget has room for it beside a planned step."""
        if self._graphs and not self._fitted.has_room(max(graph.bytes for graph in self._graphs)):
            self._graphs = [graph for graph in self._graphs if graph.is_held()]
            self._drops += 1
            if self._drops == MOST_DROPS:
                self._refuse("too many of its calls differ from those that were captured, and the budget has no room for both")

    def _run(self, given: Any, named: Any) -> tuple[Any, list[Part]]:
        """Runs the function as ever; returns its result, and what ran under plans in it."""
        result, parts = self._fitted.observe(functools.partial(self._function, *given, **named))
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result), parts

    def _watch(self, seen: _Seen, tensors: list[torch.Tensor], given: Any, named: Any) -> Any:
        """Runs the function as ever, to learn whether calls like it can be captured."""
        device = self._fitted.device
        assert device is not None
        drawn = _drawn()
        with _Reads([*tensors, *self._held()], device.place) as reads:
            result, parts = self._run(given, named)
        lacks = reads.lacks or ("it draws random numbers of the host" if drawn != _drawn() else "")
        if lacks:
            seen.refused = True
            self._refuse(lacks)
        elif not _unsettled(parts):
            seen.numbers = reads.numbers
        return result

    def _held(self) -> list[torch.Tensor]:
        """Returns the parameters and buffers."""
        return [*self._fitted.model.parameters(), *self._fitted.model.buffers()]

    def _capture(self, seen: _Seen, leaves: list[Any], spec: Any) -> _Graph | None:
        """Returns the graph of a call, which has not run; None if there cannot be one, which the log says."""
        fitted, device = self._fitted, self._fitted.device
        assert device is not None
        began = time.perf_counter()
        held = self._held()
        reads = _Reads(held, device.place, seen.numbers)

        def run() -> tuple[list[torch.Tensor], Any, list[Part]]:
            statics = [torch.empty_like(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            reads.know(_tensors_in(statics))
            given, named = pytree.tree_unflatten(statics, spec)
            return _tensors_in(statics), *self._run(given, named)

        torch.clear_autocast_cache()  # what the cache holds does not belong to the graph, nor the reverse
        device.memory()
        used = device.in_use()
        parts: list[Part] = []
        try:
            with reads:
                (inputs, result, parts), replay, borrow = device.graph(run)
            why = _unsettled(parts)
            if why:
                raise RuntimeError(f"it does not run as planned while it is captured: {why}")
            graph = _Graph(seen.call, replay, [borrow(tensor) for tensor in inputs], pytree.tree_map_only(torch.Tensor, borrow, result),
                           [(p, borrow(p.grad)) for p in held if p.grad is not None], seen.parts,
                           [tensor for tensor, _ in reads.foreign.values()], device.peak_bytes() - used)
        except Exception as error:  # pylint: disable=broad-except
            if fitted.plan_for_less(parts):
                self._seen.remove(seen)
            else:
                seen.refused = True
                self._refuse(str(error).splitlines()[0])
            return None
        finally:
            torch.clear_autocast_cache()
            for p in held:
                p.grad = None
        self._graphs.append(graph)
        seen.bytes = graph.bytes
        log.info("spillway: captured a call of '%s' with inputs of %s in %.1f s", self._name, text_of(seen.call[1]),
                 time.perf_counter() - began)
        foreign = [f"{str(t.dtype).partition('.')[2]}{list(t.shape)} (in {name})" for t, name in reads.foreign.values() if t.numel() > 1]
        if foreign:
            log.warning("spillway: a call of '%s' reads tensors that it is not given, and that have to stay where they are, with new values in "
                        "their place: %s", self._name, ", ".join(foreign[:3]))
        return graph


def _unsettled(parts: list[Part]) -> str:
    """Returns why these have not run as they will run from now on; empty if they have."""
    for family, rung, _, run in parts:
        for lacks, why in ((rung is None or rung not in family.rungs or not family.is_settled, "plans are still made"),
                           (rung is not None and rung.checks < CHECKED, "its plan is still compared with the budget"),
                           (rung is not None and bool(rung.plan.weights), "weights are on the host"),
                           (run.plan.tape.compiled, "a part of it is compiled"),
                           (run.deviation is not None, str(run.deviation)),
                           (run.guarded > 0, f"{run.guarded:,} bytes that it saves went to the host, because memory was short"),
                           (isinstance(run, _Run) and run.waits(), "a backward may still read what it saved")):
            if lacks:
                return why
    return "" if parts else "no model is called in it"


def _tensors_in(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    """Returns a number that tensors in one storage share."""
    return int(tensor.untyped_storage()._cdata)


def _holders(tensor: torch.Tensor) -> int:
    """Returns how many hold the memory of a tensor, with those that ask."""
    return int(torch._C._storage_Use_Count(_storage(tensor)))


def _drawn() -> Any:
    """Returns the states of the host's generators of random numbers, but for PyTorch's."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), pickle.dumps(numpy.random.get_state()) if numpy is not None else b""

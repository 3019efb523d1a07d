"""Compiled parts of a step: modules under torch.compile, of which a recording sees what goes in, what comes out, and what is saved."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..base.device import Device, Memory
from ..base.errors import NotRecordableError
from ..step.recorder import Recorder
from ..step.recording import refuse_compiled
from .measured import MemoryUse, Times, moving
from .tape import Geometry, Op, Shapes, Tape, geometry_of


@dataclasses.dataclass(eq=False)
class _Running:
    """A compiled part that runs."""

    op: Op  # stands for it, and nobody runs it again
    before: Memory | None  # the device's when it began
    unread: int  # saved tensors that backward had read before it
    nodes: set[int] = dataclasses.field(default_factory=set)  # those that autograd makes next where it saves tensors in it, by number
    held: list[torch.UntypedStorage] = dataclasses.field(default_factory=list)  # what came back for it


class CompiledParts:
    """The compiled parts of a step that is recorded, each of which counts as one operator.

    Within it, the calls of modules are watched: those of compiled modules are such parts, and other compiled functions are refused.
    """

    def __init__(self, recorder: Recorder, tape: Tape, device: Device, times: Times, memory: MemoryUse,
                 changes: dict[int, list[Geometry]]) -> None:
        """changes: where operators have changed storages in place."""
        self._recorder, self._tape, self._device, self._times, self._memory, self._changes = recorder, tape, device, times, memory, changes
        self.running: _Running | None = None
        self.given: Shapes = ()  # the shapes of tensors that the first module was given that was given some
        self.graphs = compiled_graphs()  # that torch.compile had made before
        self._thread = 0
        self._patches = contextlib.ExitStack()

    @property
    def op(self) -> Op | None:
        """The operator that stands for what runs; None if no compiled part does."""
        return self.running.op if self.running is not None else None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._patches.enter_context(refuse_compiled())
        assert self._recorder.take is not None
        self._patches.enter_context(self._recorder.take.modules.watched())
        plain = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self.given:
                self.given = tuple(tuple(tensor.shape) for tensor in all_tensors([args, kwargs]))
            if not is_compiled(module) or threading.get_ident() != self._thread:
                return plain(module, *args, **kwargs)
            return self._run(module, lambda: plain(module, *args, **kwargs), [args, list(kwargs.values())])

        self._patches.enter_context(mock.patch.object(torch.nn.Module, "__call__", call))

    def __exit__(self, *_: Any) -> None:
        self._patches.close()

    def _run(self, module: torch.nn.Module, call: Callable[[], Any], inputs: Any) -> Any:
        """Runs a compiled module. Its operator makes its results and the tensors that it saves.

        Another one, in backward, makes gradients from them.
        """
        if torch._C._current_graph_task_id() != -1:
            raise NotRecordableError(f"{region_name(module)} runs again in backward, as in a checkpoint: compile what the checkpoint "
                                     "encloses")
        self._times.enter()
        tape, recorder = self._tape, self._recorder
        tape.compiled = True
        given = [t for t in (*module.parameters(), *module.buffers(), *all_tensors(inputs)) if recorder.here(t)]
        reads = self._numbers(given)
        versions = [t._version for t in given]
        known, packed, at, first = set(tape.storages), len(tape.packs), len(tape.ops), torch._C._autograd._get_sequence_nr()
        drawn = self._device.random_state()
        running = self._begin(region_name(module), recorder.take.modules.path_of(module) if recorder.take is not None else "", reads)
        op = running.op
        tape.ops.append(op)  # what it saves, it saves at its end
        try:
            with self._suspended():
                self._times.leave(op)
                result = call()
                self._times.enter(op)
            made = [t for t in all_tensors(result) if recorder.here(t)]
            self._numbers(made)
        finally:
            self.running = None
        op.fresh = frozenset(tape.storages.keys() - known)
        op.random = not self._device.same_random_state(drawn, self._device.random_state())
        changed = [t for t, version in zip(given, versions) if t._version != version]
        for tensor in changed:
            self._changes[recorder.storage(tensor).number].append(geometry_of(tensor))
        op.written = tape.note_writes(self._numbers(changed), at)
        op.inputs = [recorder.operand(t) for t in given]
        op.outputs = [*(recorder.operand(t) for t in (*made, *changed)), *(pack.operand for pack in tape.packs[packed:])]
        if len(running.nodes) > 1:  # several graphs: what the first one saves exists while others run
            for saved in (tape.storages[s] for s in op.fresh):
                saved.died = at if saved.died == at + 1 else saved.died
        self._end(running, [*given, *made])
        for function in nodes_of_regions(made, first):
            function.register_prehook(lambda _: self._begin_backward(op))
            function.register_hook(lambda gradients, _: self._end_backward(gradients))
        self._times.leave()
        return result

    @contextlib.contextmanager
    def _suspended(self) -> Iterator[None]:
        """Within it, only saved tensors are seen: torch.compile runs under no mode, and makes other code where calls are watched."""
        if _get_current_dispatch_mode() is not self._recorder:
            raise NotRecordableError("a dispatch mode is active while a compiled module runs")
        self.__exit__()
        self._recorder.__exit__(None, None, None)
        try:
            yield
        finally:
            self._recorder.__enter__()
            self.__enter__()

    def _begin_backward(self, forward: Op) -> None:
        """Starts the backward of a compiled part; the operators in it are not recorded."""
        self._times.enter()
        self._begin(f"{forward.name}_backward", forward.module, backward=True)
        self._times.leave(self.op)

    def _end_backward(self, gradients: Any) -> None:
        running, tape, recorder = self.running, self._tape, self._recorder
        assert running is not None
        op = running.op
        self._times.enter(op)
        made = [t for t in all_tensors(gradients) if recorder.here(t)]
        known = set(tape.storages)
        for tensor in made:
            recorder.storage(tensor, len(tape.ops))
        op.fresh = frozenset(tape.storages.keys() - known)
        read = [unpack.pack for unpack in tape.unpacks[running.unread:]]
        op.inputs = [pack.operand for pack in read]
        op.outputs = [recorder.operand(t) for t in made]
        op.reads = tuple(dict.fromkeys(pack.value[0] for pack in read))
        tape.ops.append(op)
        came = sum(storage.nbytes() for storage in running.held)
        running.held.clear()  # until now, as autograd holds what it saved
        self._end(running, made)
        op.scratch = max(0, op.scratch - came)
        self.running = None
        self._times.leave()

    def _begin(self, name: str, module: str, reads: tuple[int, ...] = (), backward: bool = False) -> _Running:
        phase, number, before = "backward" if backward else "forward", len(self._tape.ops), self._device.memory()
        op = Op(name, module, phase, [], [], 0, False, number, reads=reads, position=len(self._tape.positions), backward=backward,
                once=f"{name} is a compiled part")
        self.running = _Running(op, before, len(self._tape.unpacks))
        return self.running

    def _end(self, running: _Running, tensors: list[torch.Tensor]) -> None:
        """Notes what a part took, whose operator was appended to the tape."""
        self._times.entries += 1
        self._times.note(running.op)
        self._memory.count(running.op, running.before, self._device.memory())
        if self._tape.device == "cpu":
            running.op.seconds = moving(tensors)

    def _numbers(self, tensors: list[torch.Tensor]) -> tuple[int, ...]:
        """Returns the storages of tensors, each once."""
        return tuple(dict.fromkeys(self._recorder.storage(t).number for t in tensors))


def is_compiled(module: torch.nn.Module) -> bool:
    """Returns whether a call of the module itself runs under torch.compile."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def region_name(module: torch.nn.Module) -> str:
    return f"compiled::{type(getattr(module, '_orig_mod', module)).__name__}"


def without_compilation(*functions: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Returns functions that torch.compile leaves as they are, also where the program's compiled code calls them."""
    if "torch._dynamo.eval_frame" not in sys.modules:  # nothing is compiled
        return functions
    return tuple(torch.compiler.disable(function) for function in functions)


def all_tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in arguments or results of any structure."""
    return [item for item in torch.utils._pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


def compiled_graphs() -> int:
    """Returns how many graphs torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def nodes_of_regions(made: list[torch.Tensor], first: int) -> list[Any]:
    """Returns the nodes of compiled graphs behind some tensors, as far as their numbers are at least `first`."""
    waiting: list[Any] = [t.grad_fn for t in made]
    seen: dict[Any, None] = {}
    while waiting:
        function = waiting.pop()
        if function is None or hasattr(function, "variable") or function in seen or function._sequence_nr() < first:
            continue
        seen[function] = None
        waiting += [before for before, _ in function.next_functions]
    return [function for function in seen if function.name() == "CompiledFunctionBackward"]

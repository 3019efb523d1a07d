"""Records a step on a tape.

The step runs with everything offloaded: autograd keeps copies on the host, and each saved tensor exists on the device only
while the program or an operator of backward uses it. So the recording sees how long the program itself holds each storage, and a
step can be recorded that does not fit as it is.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..base import table
from ..base.device import SLEEP, CudaDevice, Device, Host, Memory, Timer, bytes_of, device_of
from ..base.errors import NotRecordableError, SpillwayError
from ..base.ledger import Storage
from ..base.ranks import collectives_made
from ..step.data import Operand
from ..step.distributed import is_taken_apart, sharded
from ..step.recorder import Call, Recorder, Take, facts_of, flops_of, measures, tensors_in
from .hooks import Hooks, in_backward, refuse_hooks
from .regions import CompiledCalls, all_tensors, compiled_graphs, nodes_of_regions, region_name, without_compilation
from .tape import Geometry, Op, Pack, Ref, Tape, Unpack, Value, geometry_of, has_sign, overlap, view_of

HOST_PIECE = {"cuda": 1 << 30, "cpu": 1 << 20}  # bytes of the host that a recording takes at a time
OUTLIER = 3  # times the host's usual time for an operator; it was held up once, such as by loading a kernel
_MAKER = concurrent.futures.ThreadPoolExecutor(1, "spillway-host")  # its thread starts with the first piece


@dataclasses.dataclass(eq=False)
class _Packed:
    """Stands for a saved tensor in autograd's graph."""

    pack: Pack | None  # None for a tensor that is not recorded
    tensor: torch.Tensor  # itself, or a copy of its storage's bytes on the host if it was made in the step
    tape: Tape
    read: bool = False  # by a backward that does not keep the graph: the last one

    def __del__(self) -> None:
        if self.pack is not None and not self.read:
            self.pack.gone = len(self.tape.ops)


class TapeRecorder(Recorder):
    """Records between `begin` and `finish`; saved tensors only until `end_forward`, or until a backward reads them if hooks `stay`."""

    def __init__(self, device: str, model: torch.nn.Module | None = None, name: str = "step", batch: int = 1) -> None:
        self.tape = Tape(device, name, batch)
        super().__init__(device, self.tape.target)
        self.device: Device = device_of(device)
        self.tape.block = self.device.block
        self.ledger.started = True
        self.ledger.clock = lambda: len(self.tape.ops)  # also after the recording
        self._model = model
        self._quiet = False
        self._ended = False
        self._position = 0
        self._changes: collections.defaultdict[int, list[Geometry]] = collections.defaultdict(list)  # as operators declare them
        self._copies: dict[Value, torch.Tensor] = {}
        self._readable: weakref.WeakSet[_Packed] = weakref.WeakSet()  # what a backward may still read
        self._hosts: list[tuple[Host, int]] = []  # memory, and how much of it is taken
        self._coming: concurrent.futures.Future[Host] | None = None  # the next piece of it
        self._back: dict[Value, tuple[weakref.ref[torch.UntypedStorage], list[Unpack]]] = {}
        self._returned: list[tuple[Storage, list[Unpack], int]] = []
        self._updates = 0  # bytes of the state that updates in this step made, and of the memory through which it goes
        self.most = 0  # bytes of the device while an operator or an update ran
        self._grown: list[int] = []  # for each operator, the bytes that it took without a tensor, and that stay
        self._program = 0.0  # seconds of the host since the last recorded operator, without the recorder's
        self._entries = 0  # operators since then
        self._left = 0.0  # when the program went on
        self._timer: Timer | None = None  # on a GPU
        self._events: list[tuple[Op, Any, Any]] = []
        self._loaded: set[Any] = set()  # kinds of operators whose kernels are loaded
        self._closing = contextlib.ExitStack()
        self._watching = contextlib.ExitStack()  # the calls of modules
        self.read = False  # a backward has read what was saved, and makes no graph for another one
        self.absent: Callable[[], int] = lambda: 0  # bytes of weights that are on the host while an operator runs, and count
        self.mix: Callable[[int, torch.Tensor], int] = lambda *_: 0  # of the library: what makes a signature
        self._backwards: dict[int, bool] = {}  # by number: has it ended?
        self._compiled = CompiledCalls(self._run_compiled)
        self._graphs = 0  # that torch.compile had made before
        self._region: Op | None = None  # the compiled part that runs, in forward or in backward
        self._began: Any = None  # event: it began, or went on
        self._outset: Memory | None = None  # the memory when it began
        self._parts: set[int] = set()  # the numbers of nodes that autograd makes next where it saves tensors in it
        self._held: list[torch.UntypedStorage] = []  # what came back for it
        self._unread = 0  # saved tensors that backward had read before it
        self._silent = contextlib.ExitStack()

    # ---- the span of a recording ----

    def begin(self, stay: bool = False) -> None:
        """Starts to record the calling thread.

        Raises `SpillwayError` in a CUDA graph, in another recording, and if saved-tensor hooks are active already.
        """
        self.device.begin()
        if isinstance(_get_current_dispatch_mode(), TapeRecorder):
            raise SpillwayError("another recording runs already: give all models that a step calls to one `fit`, as in "
                                "fit([one, other], optimizer, memory=...)")
        refuse_hooks()
        if isinstance(self.device, CudaDevice):
            self._timer = Timer(self.device)
        self._coming = self._next_host()
        self._graphs = compiled_graphs()
        self._closing.enter_context(self._compiled)
        self._closing.enter_context(sharded(self))
        self.take = Take(self.tape)
        if self._model is not None:
            self.take.modules.add_root(self._model)
            self._model = None
        self._watching.enter_context(self.take.modules.watched())
        self.hooks = Hooks(without_compilation(self._pack, self._unpack), self, stay)
        self.hooks.transforms = False
        self.__enter__()
        self.hooks.enter()
        self._leave()

    def end_forward(self) -> None:
        """Ends the part whose saved tensors are recorded."""
        self.hooks.leave()

    def cancel(self) -> None:
        """Ends the recording without a result."""
        self.end_forward()
        self._watching.close()
        if _get_current_dispatch_mode() is not self:
            raise SpillwayError("a dispatch mode that was entered during the recording is still active when it ends")
        self.__exit__(None, None, None)
        self._ended = True
        self._closing.close()
        self._copies.clear()

    def hosts(self) -> list[Host]:
        """Returns the memory of the host that the recording took, which then belongs to the caller."""
        taken = [host for host, _ in self._hosts]
        self._hosts.clear()
        if self._coming is not None and not self._coming.cancel() and self._coming.exception() is None:
            self._coming.result().close()
        self._coming = None
        return taken

    def finish(self) -> Tape:
        """Ends the recording. Raises `NotRecordableError` if nothing was saved, or backward did not run to its end."""
        self.cancel()
        if not all(self._backwards.values()):
            raise NotRecordableError("backward failed")
        if compiled_graphs() != self._graphs:
            raise NotRecordableError("parts of the model were compiled in it, which takes time and memory; a later step can be recorded")
        tape, take = self.tape, self.take
        assert take is not None
        tape.blocks, tape.inputs = take.modules.blocks, self._compiled.given
        known = [self.ledger.known(buffer.untyped_storage()) for buffer in take.modules.buffers() if self.here(buffer)]
        tape.parameters |= {storage.number for storage in known if storage is not None}
        self.take = None
        if self._events:
            torch.cuda.synchronize()
            for op, before, after in self._events:
                op.seconds += before.elapsed_time(after) / 1e3  # with 2.5 us of the events, about what lies between two operators
            self._smooth()
            for op in tape.ops:
                op.time_ns = round(1e9 * op.seconds)
        if not tape.packs or not tape.unpacks:
            raise NotRecordableError("the step saved no tensor for a backward that ran in it; a plan has nothing to do")
        tape.waiting = {packed.pack.value[0] for packed in self._readable if packed.pack is not None}
        tape.used = self._profile()
        tape.bandwidth = self.device.bandwidth()
        return tape

    def _smooth(self) -> None:
        """Replaces times by usual ones, where the host was held up, such as by loading a kernel for the first time.

        The GPU's time is compared with that of equal operators. The host's is the least of all operators of the name: it is also held
        up where the queue of the GPU is full, or where others use the host.
        """
        equal: dict[Any, list[Op]] = {}
        named: dict[Any, list[Op]] = {}
        for op in self.tape.ops:
            sizes = tuple(self.tape.storages[s].size for s in op.reads)
            made = tuple((ref.geometry.size, ref.geometry.dtype) for ref in op.results if ref is not None)
            equal.setdefault((op.name, sizes, made), []).append(op)
            named.setdefault(op.name, []).append(op)
        for ops in equal.values():
            usual = statistics.median_low(op.seconds for op in ops)
            for op in ops:
                op.seconds = op.seconds if op.seconds < OUTLIER * usual else usual
        most = OUTLIER * statistics.median(op.host / op.entries for op in self.tape.ops)
        for ops in named.values():
            host = min(most, *(op.host / op.entries for op in ops))
            for op in ops:
                op.host = host * op.entries

    def _profile(self) -> list[int]:
        """Returns the bytes of the device while each operator ran, without tensors that came back for backward."""
        tape = self.tape
        changes = [0] * (len(tape.ops) + 2)
        end = len(tape.ops)
        counted = self.device.memory() is not None
        if not counted:
            for storage in tape.storages.values():
                changes[max(storage.born, 0)] += storage.size
                changes[end if storage.died is None else max(storage.died, 0)] -= storage.size
        for storage, unpacks, size in self._returned:
            last = end if storage.died is None else storage.died
            if counted or storage.number in tape.storages:
                changes[storage.born] -= size
                changes[last] += size
            for unpack in unpacks:
                unpack.last = last
        used, held = [], 0
        growth = sum(self._grown)  # such as the workspaces of libraries: later steps have them from their beginning on
        for at, op in enumerate(tape.ops):
            held += changes[at]
            growth -= self._grown[at]
            used.append(held + growth + op.used)
        return used

    # ---- operators ----

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._quiet:
            return func(*args, **kwargs)
        if any(getattr(kind, "stands_in", False) for kind in types):
            return NotImplemented
        if any(map(is_taken_apart, types)) and (self.hooks.left or in_backward()):
            return NotImplemented  # its operators on tensors of this process follow
        if facts_of(func).views:  # it belongs to the operator that follows
            self.refuse_types(func, types)
            self._entries += 1
            for tensor in args:
                if isinstance(tensor, torch.nn.Parameter) and self.here(tensor):
                    self._ref(tensor)
            return func(*args, **kwargs)
        self._enter()
        self._quiet = True
        try:
            return self._record(self.call(func, types, args, kwargs))
        finally:
            self._quiet = False
            self._leave()

    def _enter(self) -> None:
        """Ends a time of the program's own."""
        self._program += time.perf_counter() - self._left
        if self._region is not None and self._timer is not None:
            self._events.append((self._region, self._began, self._timer.event()))

    def _leave(self) -> None:
        if self._region is not None and self._timer is not None:
            self._began = self._timer.busy_event()
        self._left = time.perf_counter()

    def _record(self, call: Call) -> Any:
        tape, facts, take = self.tape, call.facts, self.take
        assert take is not None
        backward = torch._C._current_graph_task_id() != -1
        refs = (None, None) if backward else (self._refs(call.args), self._refs(call.kwargs))
        drawn = self.device.random_state() if facts.random else None
        before = self.device.memory()
        repeatable = not (facts.writes or facts.random or facts.allocates) and call.func.namespace == "aten"
        if self.device.loads_late and repeatable:
            self._load(call)
        sent = collectives_made() if call.func.namespace not in ("aten", "prims") else 0
        result, timed = self._timed(call)
        dry = self._timer is not None and self._timer.ran_dry()
        communicates = bool(facts.collective) or call.func.namespace not in ("aten", "prims") and collectives_made() != sent
        memory = self.device.memory()
        if dry and repeatable:
            timed = self._timed_again(call)
        after = self.device.random_state() if facts.random else None
        listed = list(result) if isinstance(result, (tuple, list)) else [result]
        read, new, writes, tensors = self.operands(call, tensors_in(listed, []))
        if not new and not writes:
            return result
        fresh = frozenset(operand.storage.number for operand in new)
        hidden = table.HIDDEN_WRITES.get(facts.packet, ())  # autograd does not see these either
        for tensor in call.arguments(i for i in facts.writes if i not in hidden and isinstance(i, int)):
            if self.here(tensor):
                self._changes[self._number(tensor)].append(geometry_of(tensor))
        written = self._write(map(self._number, filter(self.here, call.written)), len(tape.ops))
        for produced in (*((s, tape.version[s]) for s in fresh), *written):
            tape.producer[produced] = len(tape.ops)
        flops, _, attributes = measures(call, tensors, result)
        module, phase, layer = take.place()
        op = Op(call.func._schema.name, module, phase, read, [*new, *writes], flops,
                facts.random and not self.device.same_random_state(drawn, after), layer, attributes=attributes,
                results=[self._ref(v) if isinstance(v, torch.Tensor) and self.here(v) else None for v in listed],
                fresh=fresh, written=written, reads=tuple(dict.fromkeys(operand.storage.number for operand in read)),
                position=self._position, backward=backward, replayed=backward and bool(take.modules.path()))
        if facts.allocates:
            op.once = f"{op.place} leaves it as the memory was"
        if communicates:
            op.once = f"{op.place} communicates with other processes"
        self._grown.append(self._count_memory(op, before, memory))
        op.host, op.entries = self._program, self._entries
        self._program, self._entries = 0.0, 0
        if backward:
            op.once = "backward made it"
        else:
            op.func, (op.args, op.kwargs) = call.func, refs
        if timed is None:
            op.seconds = _moving(tensors_in([call.args, result], [])) + flops_of(call.func, call.args, call.kwargs, result) / 10e12
        elif not communicates:  # a collective runs beside others, and its events would time how long it waits for other processes
            self._events.append((op, *timed))
        tape.ops.append(op)
        return result

    def _write(self, storages: Iterable[int], at: int) -> tuple[Value, ...]:
        """Notes that the operator `at` writes these storages; returns their values afterwards."""
        tape, written = self.tape, []
        for storage in dict.fromkeys(storages):
            tape.version[storage] += 1
            tape.writes.setdefault(storage, []).append(at)
            written.append((storage, tape.version[storage]))
        return tuple(written)

    # ---- compiled parts ----

    def _run_compiled(self, module: torch.nn.Module, call: Callable[[], Any], inputs: Any) -> Any:
        """Runs a compiled module. It counts as one operator, which makes its results and the tensors that it saves.

        Another one, in backward, makes gradients from them.
        """
        if torch._C._current_graph_task_id() != -1:
            raise NotRecordableError(f"{region_name(module)} runs again in backward, as in a checkpoint: compile what the checkpoint "
                                     "encloses")
        self._enter()
        tape = self.tape
        tape.compiled = True
        given = [t for t in (*module.parameters(), *module.buffers(), *all_tensors(inputs)) if self.here(t)]
        reads = tuple(dict.fromkeys(map(self._number, given)))
        versions = [t._version for t in given]
        known, packed, at, first = set(tape.storages), len(tape.packs), len(tape.ops), torch._C._autograd._get_sequence_nr()
        drawn = self.device.random_state()
        self._outset = self.device.memory()
        op = self._part(region_name(module), reads, False)
        op.module = self.take.modules.path_of(module) if self.take is not None else ""
        tape.ops.append(op)  # what it saves, it saves at its end
        self._region = op
        self._parts.clear()
        try:
            with self._suspended():
                self._leave()
                result = call()
                self._enter()
            made = [t for t in all_tensors(result) if self.here(t)]
            for tensor in made:
                self._number(tensor)
        finally:
            self._region = None
        op.fresh = frozenset(tape.storages.keys() - known)
        op.random = not self.device.same_random_state(drawn, self.device.random_state())
        changed = [t for t, version in zip(given, versions) if t._version != version]
        for tensor in changed:
            self._changes[self._number(tensor)].append(geometry_of(tensor))
        op.written = self._write(map(self._number, changed), at)
        op.inputs = [self.operand(t) for t in given]
        op.outputs = [*(self.operand(t) for t in (*made, *changed)), *(pack.operand for pack in tape.packs[packed:])]
        if len(self._parts) > 1:  # several graphs: what the first one saves exists while others run
            for saved in (tape.storages[s] for s in op.fresh):
                saved.died = at if saved.died == at + 1 else saved.died
        self._end_region(op, [*given, *made])
        for function in nodes_of_regions(made, first):
            function.register_prehook(lambda _: self._begin_backward(op))
            function.register_hook(lambda gradients, _: self._end_backward_of_compiled(gradients))
        self._leave()
        return result

    def _end_region(self, op: Op, tensors: list[torch.Tensor]) -> None:
        """Notes what an operator took that stands for a compiled part, and that was appended to the tape."""
        self._entries += 1
        op.host, op.entries = self._program, self._entries
        self._program, self._entries = 0.0, 0
        self._grown.append(self._count_memory(op, self._outset, self.device.memory()))
        if self.tape.device == "cpu":
            op.seconds = _moving(tensors)

    @contextlib.contextmanager
    def _suspended(self) -> Iterator[None]:
        """Within it, no mode watches operators, which torch.compile would not run under: only saved tensors are seen."""
        if _get_current_dispatch_mode() is not self:
            raise NotRecordableError("a dispatch mode is active while a compiled module runs")
        assert self.take is not None
        with self._compiled.paused():
            self.__exit__(None, None, None)
            self._watching.close()  # torch.compile makes other code where calls are watched
            try:
                yield
            finally:
                self._watching.enter_context(self.take.modules.watched())
                self.__enter__()

    def _begin_backward(self, forward: Op) -> None:
        """Starts the backward of a compiled part; the operators in it are not recorded."""
        self._enter()
        self._outset = self.device.memory()
        self._region = self._part(f"{forward.name}_backward", (), True)
        self._region.module = forward.module
        self._silent.enter_context(self._silence())
        self._unread = len(self.tape.unpacks)
        self._leave()

    def _end_backward_of_compiled(self, gradients: Any) -> None:
        self._enter()
        op, self._region = self._region, None
        assert op is not None
        tape, made = self.tape, [t for t in all_tensors(gradients) if self.here(t)]
        known = set(tape.storages)
        for tensor in made:
            self._number(tensor, len(tape.ops))
        op.fresh = frozenset(tape.storages.keys() - known)
        op.inputs = [unpack.pack.operand for unpack in tape.unpacks[self._unread:]]
        op.outputs = [self.operand(t) for t in made]
        op.reads = tuple(dict.fromkeys(unpack.pack.value[0] for unpack in tape.unpacks[self._unread:]))
        tape.ops.append(op)
        came = sum(storage.nbytes() for storage in self._held)
        self._held.clear()  # until now, as autograd holds what it saved
        self._end_region(op, made)
        op.scratch = max(0, op.scratch - came)
        self._silent.close()
        self._leave()

    def _part(self, name: str, reads: tuple[int, ...], backward: bool) -> Op:
        """Returns an operator that stands for a compiled part, and that nobody runs again."""
        phase, number = "backward" if backward else "forward", len(self.tape.ops)
        return Op(name, "", phase, [], [], 0, False, number, reads=reads, position=self._position, backward=backward,
                  once=f"{name} is a compiled part")

    def _count_memory(self, op: Op, before: Memory | None, after: Memory | None) -> int:
        """Notes the memory of an operator; returns the bytes that it took without a tensor, and that stay."""
        if before is None or after is None:
            return 0
        fresh = [self.tape.storages[s] for s in op.fresh]
        made = sum(storage.size for storage in fresh)
        grown = max(0, after.requested - before.requested - sum(storage.size for storage in fresh if storage.died is None))
        self.most = max(self.most, after.most)
        op.used = after.most + self.absent() - self._updates
        op.scratch = max(0, after.most_requested - before.requested - made - grown)
        return grown

    def _load(self, call: Call) -> None:
        """Runs an operator once without its time, if it did not run yet. REQUIRES: nothing else than its result follows from it."""
        kind = call.func, *((t.shape, t.stride(), t.dtype) for t in call.inputs)
        if kind not in self._loaded:
            self._loaded.add(kind)
            call.func(*call.args, **call.kwargs)

    def busy_mark(self) -> Any:
        """Returns the device's mark before an update, for which the device does not wait on the host's account."""
        return self._timer.busy_event(SLEEP) if self._timer is not None else self.device.mark()

    def _timed(self, call: Call) -> tuple[Any, Any]:
        """Returns the result of an operator and, on a GPU, the events around it."""
        self._entries += 1
        if self._timer is None:
            return self.run(call), None
        before = self._timer.busy_event()
        began = time.perf_counter()
        result = self.run(call)
        self._program += time.perf_counter() - began
        return result, (before, self._timer.event())

    def _timed_again(self, call: Call) -> tuple[Any, Any]:
        """Runs an operator once more, whose events timed the host, and returns the events around it. REQUIRES: as for `_load`."""
        assert self._timer is not None
        before = self._timer.busy_event()
        call.func(*call.args, **call.kwargs)
        return before, self._timer.event()

    def here(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device.place and tensor.layout == torch.strided

    def resized(self, untyped: torch.UntypedStorage) -> None:
        if untyped.device != self.device.place:
            return
        before, storage = self.ledger.known(untyped), self.ledger.resized(untyped)
        self.tape.storages[storage.number] = storage
        self.tape.version[storage.number] = 0
        first = before.number if before is not None else storage.number
        self.tape.gathered[storage.number] = self.tape.gathered.setdefault(first, first)

    def storage(self, tensor: torch.Tensor, born: int | None = None) -> Storage:
        if born is None and self._region is not None and not self._region.backward:
            born = len(self.tape.ops) - 1  # it was not seen before
        storage = super().storage(tensor, born)
        self.tape.version.setdefault(storage.number, 0)
        return storage

    def operand(self, tensor: torch.Tensor, born: int | None = None) -> Operand:
        operand = super().operand(tensor, born)
        saved = self.tape.origin.get(operand.storage.number)
        return operand if saved is None else dataclasses.replace(operand, storage=self.tape.storages[saved])

    def _number(self, tensor: torch.Tensor, born: int | None = None) -> int:
        return self.storage(tensor, born).number

    def _ref(self, tensor: torch.Tensor) -> Ref:
        storage = self._number(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            self.tape.parameters.add(storage)
        version = -1 if has_sign(tensor) else self.tape.version[storage]  # nobody makes version -1: it is not recomputed
        return Ref((storage, version), geometry_of(tensor))

    def _refs(self, value: Any) -> Any:
        """Returns an argument with `Ref` in the place of tensors. Tensors of the host stay as they are."""
        if isinstance(value, torch.Tensor):
            return self._ref(value) if self.here(value) else value
        if isinstance(value, (tuple, list)):
            return [self._refs(item) for item in value]
        if isinstance(value, dict):
            return {key: self._refs(item) for key, item in value.items()}
        return value

    # ---- saved tensors ----

    @contextlib.contextmanager
    def _silence(self) -> Iterator[None]:
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Within it, nothing is recorded, and the time is not the program's."""
        self._enter()
        try:
            with self._silence():
                yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Within it, parameters are updated: nothing is recorded, and the memory that this leaves behind is not the step's."""
        with self.apart():
            before, absent = self.device.memory(), self.absent()
            yield
            after = self.device.memory()
            if before is not None and after is not None:
                self._updates += after.allocated - before.allocated + self.absent() - absent
                self.most = max(self.most, after.most)

    def _pack(self, tensor: torch.Tensor) -> Any:
        with self.apart(), torch._C.DisableTorchFunction():
            if torch._C._current_graph_task_id() != -1 or self.hooks.left:
                return tensor.detach()
            tape = self.tape
            tape.signature = tape.signatures[self._position] = self.mix(tape.signature, tensor)
            ours = self.here(tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter) and not has_sign(tensor)
            if not ours:
                self._count(1)
                return self._packed(None, tensor.detach())
            ref = self._ref(tensor)
            pack = Pack(self.operand(tensor), len(tape.ops), position=self._position, value=ref.value, geometry=ref.geometry,
                        leaf=tensor.requires_grad and tensor.grad_fn is None, changes=len(self._changes[ref.value[0]]),
                        compiled=self._region is not None)
            tape.packs.append(pack)
            self._parts.add(torch._C._autograd._get_sequence_nr())
            self._count(1)
            if self._stays(pack):
                return self._packed(pack, tensor.detach())
            if ref.value not in self._copies:
                source = bytes_of(tensor)
                self._copies[ref.value] = self._host(source.numel()).copy_(source, non_blocking=self.device.current())
            return self._packed(pack, self._copies[ref.value])

    def _stays(self, pack: Pack) -> bool:
        """Returns whether a saved tensor existed before the step, or is a parameter, which FSDP2 gathers in it."""
        return self.tape.storages[pack.value[0]].born < 0 or pack.value[0] in self.tape.parameters

    def _packed(self, pack: Pack | None, tensor: torch.Tensor) -> _Packed:
        packed = _Packed(pack, tensor, self.tape)
        self._readable.add(packed)
        return packed

    def waits(self) -> bool:
        """Returns whether a backward may still read what the recorded forward saved, and none has failed."""
        return len(self._readable) > 0 and all(self._backwards.values())

    def waiting_bytes(self) -> int:
        """Returns the bytes of what a backward may still read, and that is on the host."""
        return sum(tensor.numel() for tensor in {id(packed.tensor): packed.tensor for packed in self._readable
                                                 if packed.pack is not None and not self._stays(packed.pack)}.values())

    def _host(self, size: int) -> torch.Tensor:
        """Returns memory of the host."""
        if not self._hosts or self._hosts[-1][1] + size > self._hosts[-1][0].bytes.numel():
            if self._coming is None or size > HOST_PIECE[self.tape.device]:
                piece = self.device.host(max(size, HOST_PIECE[self.tape.device]))
            else:
                piece = self._coming.result()
                self._coming = self._next_host()
            self._hosts.append((piece, 0))
        host, taken = self._hosts[-1]
        self._hosts[-1] = host, taken + -(-size // 4096) * 4096
        return host.bytes[taken:taken + size]

    def _next_host(self) -> concurrent.futures.Future[Host] | None:
        """Returns memory of the host that another thread makes, where that takes time."""
        return _MAKER.submit(self.device.host, HOST_PIECE["cuda"]) if self._timer is not None else None

    def _count(self, packed: int) -> None:
        self.tape.positions.append(len(self.tape.ops))
        self.tape.packed += packed
        self._position += 1

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed  # backward saved it
        pack, tensor = packed.pack, packed.tensor
        if not self.device.current():
            torch.cuda.synchronize()  # a copy to the host may still run, on the stream of the recording
        if self._ended:
            return tensor if pack is None or self._stays(pack) else view_of(
                tensor.to(self.device.place, copy=True).untyped_storage(), pack.geometry)
        backward = torch._C._current_graph_task_id()
        if backward == -1:
            raise NotRecordableError("the program reads a tensor that autograd saved, outside backward")
        if backward not in self._backwards:
            self._backwards[backward] = False
            self.read |= not torch.is_grad_enabled()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_backward(backward))
        with self.apart():
            if pack is None:
                self._count(0)
                return tensor
            if any(overlap(pack.geometry, change) for change in self._changes[pack.value[0]][pack.changes:]):
                raise NotRecordableError(f"a saved tensor, {pack.geometry.dtype} {list(pack.geometry.size)}, was changed in place "
                                         f"before backward read it{self._maker(pack)}")
            packed.read = not torch._C._autograd._get_current_graph_task_keep_graph()
            unpack = Unpack(self._position, len(self.tape.ops), pack, len(self.tape.ops))
            self.tape.unpacks.append(unpack)
            pack.unpacked.append(len(self.tape.ops))
            self._count(0)
            return tensor if self._stays(pack) else self._bring_back(unpack, tensor)

    def _maker(self, pack: Pack) -> str:
        """Returns the part of a message that names the operator that made a saved tensor."""
        made = self.tape.producer.get(pack.value)
        return f"; {self.tape.ops[made].place} made it" if made is not None else ""

    def _end_backward(self, number: int) -> None:
        self._backwards[number] = True
        self.tape.ended = len(self.tape.ops)

    def _bring_back(self, unpack: Unpack, source: torch.Tensor) -> torch.Tensor:
        value = unpack.pack.value
        known = self._back.get(value)
        storage = known[0]() if known is not None else None
        if known is None or storage is None:
            before = self.device.memory()
            copy = self.device.empty(source.numel())
            after = self.device.memory()
            size = copy.numel() if before is None or after is None else after.allocated - before.allocated
            copy.copy_(source, non_blocking=True)
            storage = copy.untyped_storage()
            known = self._back[value] = weakref.ref(storage), []
            came = self.ledger.find(copy, len(self.tape.ops))
            self.tape.origin[came.number] = value[0]
            self._returned.append((came, known[1], size))
            if self._region is not None:
                self._held.append(storage)
        known[1].append(unpack)
        return view_of(storage, unpack.pack.geometry)


def _moving(tensors: list[torch.Tensor]) -> float:
    """Returns the seconds for reading or writing tensors once, on a CPU that is like no other."""
    return 1e-6 + sum(t.numel() * t.element_size() for t in tensors) / 100e9


def record_tape(step: Callable[[], Any], device: str, model: torch.nn.Module | None = None, name: str = "step", batch: int = 1) -> Tape:
    """Runs `step` and returns its tape, without the costs of the host."""
    recorder = TapeRecorder(device, model, name, batch)
    recorder.begin()
    try:
        step()
    except BaseException:
        recorder.cancel()
        raise
    try:
        return recorder.finish()
    finally:
        for host in recorder.hosts():
            host.close()

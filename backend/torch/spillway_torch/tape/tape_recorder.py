"""Records a step on a tape.

The step runs with everything offloaded: autograd keeps copies on the host, and each saved tensor exists on the device only
while the program or an operator of backward uses it. So the recording sees how long the program itself holds each storage, and a
step can be recorded that does not fit as it is.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..base import table
from ..base.device import Device, Host, bytes_of, device_of
from ..base.errors import NotRecordableError, SpillwayError
from ..base.ledger import Storage
from ..base.ranks import collectives_made
from ..step.data import Operand
from ..step.distributed import is_taken_apart, sharded
from ..step.modules import is_called_from
from ..step.recorder import Call, Recorder, Take, facts_of, flops_of, measures, tensors_in
from .hooks import Hooks, in_backward, refuse_hooks
from .host_pieces import HostPieces
from .measured import MemoryUse, Times, moving
from .regions import CompiledParts, compiled_graphs, without_compilation
from .tape import Geometry, Op, Pack, Ref, Tape, Unpack, Value, geometry_of, has_sign, overlap, view_of


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

    def __init__(self, device: str, name: str = "step", batch: int = 1) -> None:
        self.tape = Tape(device, name, batch)
        super().__init__(device, self.tape.target)
        self.device: Device = device_of(device)
        self.tape.block = self.device.block
        self.ledger.started = True
        self.ledger.clock = lambda: len(self.tape.ops)  # also after the recording
        self.times = Times(self.device)
        self.memory = MemoryUse(self.device, self.tape)
        self._quiet = False
        self._ended = False
        self._changes: collections.defaultdict[int, list[Geometry]] = collections.defaultdict(list)  # as operators declare them
        self._compiled = CompiledParts(self, self.tape, self.device, self.times, self.memory, self._changes)
        self._copies: dict[Value, torch.Tensor] = {}
        self._readable: weakref.WeakSet[_Packed] = weakref.WeakSet()  # what a backward may still read
        self._back: dict[Value, tuple[weakref.ref[torch.UntypedStorage], list[Unpack]]] = {}
        self._closing = contextlib.ExitStack()
        self.read = False  # a backward has read what was saved, and makes no graph for another one
        self.mix: Callable[[int, torch.Tensor], int] = lambda *_: 0  # of the library: what makes a signature
        self._backwards: dict[int, bool] = {}  # by number: has it ended?

    # ---- the span of a recording ----

    def begin(self, model: torch.nn.Module | None = None, stay: bool = False) -> None:
        """Starts to record the calling thread, in which modules have the names that the model gives them.

        Raises `SpillwayError` in a CUDA graph, in another recording, and if saved-tensor hooks are active already.
        """
        self.device.begin()
        if isinstance(_get_current_dispatch_mode(), TapeRecorder):
            raise SpillwayError("another recording runs already: give all models that a step calls to one `fit`, as in "
                                "fit([one, other], optimizer, memory=...)")
        refuse_hooks()
        self.times.begin()
        self._pieces = HostPieces(self.device)
        self.take = Take(self.tape)
        if model is not None:
            self.take.modules.add_root(model)
        self._closing.enter_context(self._compiled)
        self._closing.enter_context(sharded(self))
        self.hooks = Hooks(without_compilation(self._pack, self._unpack), self, stay)
        self.hooks.transforms = False
        self.__enter__()
        self.hooks.enter()
        self.times.leave()

    def end_forward(self) -> None:
        """Ends the part whose saved tensors are recorded."""
        self.hooks.leave()

    def cancel(self) -> None:
        """Ends the recording without a result."""
        self.end_forward()
        self._closing.close()
        if _get_current_dispatch_mode() is not self:
            raise SpillwayError("a dispatch mode that was entered during the recording is still active when it ends")
        self.__exit__(None, None, None)
        self._ended = True
        self._copies.clear()

    def hosts(self) -> list[Host]:
        """Returns the memory of the host that the recording took, which then belongs to the caller."""
        return self._pieces.hand_over()

    def finish(self) -> Tape:
        """Ends the recording. Raises `NotRecordableError` if nothing was saved, or backward did not run to its end."""
        self.cancel()
        if not all(self._backwards.values()):
            raise NotRecordableError("backward failed")
        if compiled_graphs() != self._compiled.graphs:
            raise NotRecordableError("parts of the model were compiled in it, which takes time and memory; a later step can be recorded")
        tape, take = self.tape, self.take
        assert take is not None
        tape.blocks, tape.inputs = take.modules.blocks, self._compiled.given
        known = [self.ledger.known(buffer.untyped_storage()) for buffer in take.modules.buffers() if self.here(buffer)]
        tape.parameters |= {storage.number for storage in known if storage is not None}
        self.take = None
        self.times.finish(tape)
        if not tape.packs or not tape.unpacks:
            raise NotRecordableError("the step saved no tensor for a backward that ran in it; a plan has nothing to do")
        tape.waiting = {packed.pack.value[0] for packed in self._readable if packed.pack is not None}
        self.memory.finish()
        tape.bandwidth = self.device.bandwidth()
        return tape

    # ---- operators ----

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._quiet or self._compiled.running is not None:
            return func(*args, **kwargs)
        if any(getattr(kind, "stands_in", False) for kind in types):
            return NotImplemented
        if any(map(is_taken_apart, types)) and (self.hooks.left or in_backward()):
            return NotImplemented  # its operators on tensors of this process follow
        if facts_of(func).views:  # it belongs to the operator that follows
            self.refuse_types(func, types)
            self.times.entries += 1
            for tensor in args:
                if isinstance(tensor, torch.nn.Parameter) and self.here(tensor):
                    self._ref(tensor)
            return func(*args, **kwargs)
        self.times.enter()
        self._quiet = True
        try:
            return self._record(self.call(func, types, args, kwargs))
        finally:
            self._quiet = False
            self.times.leave()

    def _record(self, call: Call) -> Any:
        tape, facts, take = self.tape, call.facts, self.take
        assert take is not None
        backward = torch._C._current_graph_task_id() != -1
        refs = (None, None) if backward else (self._refs(call.args), self._refs(call.kwargs))
        drawn = self.device.random_state() if facts.random else None
        before = self.device.memory()
        repeatable = not (facts.writes or facts.random or facts.allocates) and call.func.namespace == "aten"
        if repeatable:
            self.times.load(call)
        sent = collectives_made() if call.func.namespace not in ("aten", "prims") else 0
        result, timed = self.times.run(call)
        dry = self.times.ran_dry()
        communicates = bool(facts.collective) or call.func.namespace not in ("aten", "prims") and collectives_made() != sent
        memory = self.device.memory()
        if dry and repeatable:
            timed = self.times.run_again(call)
        after = self.device.random_state() if facts.random else None
        listed = list(result) if isinstance(result, (tuple, list)) else [result]
        read, new, writes, tensors = self.operands(call, tensors_in(listed, []))
        if not new and not writes:
            return result
        fresh = frozenset(operand.storage.number for operand in new)
        hidden = table.HIDDEN_WRITES.get(facts.packet, ())  # autograd does not see these either
        for tensor in call.arguments(i for i in facts.writes if i not in hidden and isinstance(i, int)):
            if self.here(tensor):
                self._changes[self.storage(tensor).number].append(geometry_of(tensor))
        written = tape.note_writes((self.storage(t).number for t in call.written if self.here(t)), len(tape.ops))
        for produced in (*((s, tape.version[s]) for s in fresh), *written):
            tape.producer[produced] = len(tape.ops)
        flops, _, attributes = measures(call, tensors, result)
        module, phase, layer = take.place()
        op = Op(call.func._schema.name, module, phase, read, [*new, *writes], flops,
                facts.random and not self.device.same_random_state(drawn, after), layer, attributes=attributes,
                results=[self._ref(v) if isinstance(v, torch.Tensor) and self.here(v) else None for v in listed],
                fresh=fresh, written=written, reads=tuple(dict.fromkeys(operand.storage.number for operand in read)),
                position=len(tape.positions), backward=backward,
                replayed=backward and bool(take.modules.path()) and is_called_from(torch.utils.checkpoint))
        if facts.allocates:
            op.once = f"{op.place} leaves it as the memory was"
        if communicates:
            op.once = f"{op.place} communicates with other processes"
        self.memory.count(op, before, memory)
        self.times.note(op, timed if not communicates else None)  # the events of a collective time how long it waits for other processes
        if backward:
            op.once = "backward made it"
        else:
            op.func, (op.args, op.kwargs) = call.func, refs
        if timed is None:
            op.seconds = moving(tensors_in([call.args, result], [])) + flops_of(call.func, call.args, call.kwargs, result) / 10e12
        tape.ops.append(op)
        return result

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
        if born is None and self._compiled.op is not None and not self._compiled.op.backward:
            born = len(self.tape.ops) - 1  # it was not seen before
        storage = super().storage(tensor, born)
        self.tape.version.setdefault(storage.number, 0)
        return storage

    def operand(self, tensor: torch.Tensor, born: int | None = None) -> Operand:
        operand = super().operand(tensor, born)
        saved = self.tape.origin.get(operand.storage.number)
        return operand if saved is None else dataclasses.replace(operand, storage=self.tape.storages[saved])

    def _ref(self, tensor: torch.Tensor) -> Ref:
        storage = self.storage(tensor).number
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
    def apart(self) -> Iterator[None]:
        """Within it, nothing is recorded, and the time is not the program's."""
        self.times.enter(self._compiled.op)
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before
            self.times.leave(self._compiled.op)

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Within it, parameters are updated: nothing is recorded, and the memory that this leaves behind is not the step's."""
        with self.apart(), self.memory.update():
            yield

    def _pack(self, tensor: torch.Tensor) -> Any:
        with self.apart(), torch._C.DisableTorchFunction():
            if torch._C._current_graph_task_id() != -1 or self.hooks.left:
                return tensor.detach()
            tape, running = self.tape, self._compiled.running
            tape.signature = tape.signatures[len(tape.positions)] = self.mix(tape.signature, tensor)
            ours = self.here(tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter) and not has_sign(tensor)
            if not ours:
                self._count(1)
                return self._packed(None, tensor.detach())
            ref = self._ref(tensor)
            pack = Pack(self.operand(tensor), len(tape.ops), position=len(tape.positions), value=ref.value, geometry=ref.geometry,
                        leaf=tensor.requires_grad and tensor.grad_fn is None, changes=len(self._changes[ref.value[0]]),
                        compiled=running is not None)
            tape.packs.append(pack)
            if running is not None:
                running.nodes.add(torch._C._autograd._get_sequence_nr())
            self._count(1)
            if self._stays(pack):
                return self._packed(pack, tensor.detach())
            if ref.value not in self._copies:
                source = bytes_of(tensor)
                self._copies[ref.value] = self._pieces.take(source.numel()).copy_(source, non_blocking=self.device.current())
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

    def _count(self, packed: int) -> None:
        self.tape.positions.append(len(self.tape.ops))
        self.tape.packed += packed

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
            unpack = Unpack(len(self.tape.positions), len(self.tape.ops), pack, len(self.tape.ops))
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
            self.memory.bring_back(came, known[1], size)
            if self._compiled.running is not None:
                self._compiled.running.held.append(storage)
        known[1].append(unpack)
        return view_of(storage, unpack.pack.geometry)


def record_tape(step: Callable[[], Any], device: str, model: torch.nn.Module | None = None, name: str = "step", batch: int = 1) -> Tape:
    """Runs `step` and returns its tape, without the costs of the host."""
    recorder = TapeRecorder(device, name, batch)
    recorder.begin(model)
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

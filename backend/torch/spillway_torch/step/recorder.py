"""The recorder of steps: a dispatch mode, which sees each operator of a program below autograd and autocast."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch._meta_registrations  # noqa: F401  shapes of results, which PyTorch before 2.5 does not load itself
from torch.utils._python_dispatch import TorchDispatchMode

from ..base import attention, table
from ..base.errors import NotRecordableError, SpillwayError
from ..base.ledger import Ledger, Storage
from ..base.target import Target
from ..base.values import Values
from .attributes import attributes_of, grouped_flops, order_in_memory
from .data import Collective, Operand, Operator, Saved, StepData, in_module
from .distributed import WRAPPERS, Works, collective_of, is_taken_apart, local_tensors
from .meter import Mark, Meter
from .modules import Modules
from .numbers import Numbers, line_of_program, needs
from .scratch import scratch_of
from .shapes import CONVOLUTIONS, SHAPES, as_cudnn_lays_out
from .streams import Lanes

_log = logging.getLogger("torch.utils.flop_counter")
_log.disabled = True  # it says that Triton is missing, which only its kernels need
from torch.utils.flop_counter import flop_registry  # noqa: E402  pylint: disable=wrong-import-position
_log.disabled = False

aten = torch.ops.aten
META = torch.device("meta")


class Take:
    """A step while it is recorded."""

    def __init__(self, step: StepData, modules: Modules | None = None) -> None:
        self.step = step
        self.operators = step.operators
        self.marks: list[Mark] = []  # one for each operator, if they are timed
        self.modules = Modules() if modules is None else modules
        self.updating = False
        self.made_by: dict[int, int] = {}  # number of the operator that made an autograd node, by the node's number
        self.thread = threading.get_ident()
        self.next_node = torch._C._autograd._get_sequence_nr()

    def place(self) -> tuple[str, str, int]:
        """Returns the module, the phase and the layer of the next operator. REQUIRES: it is appended then."""
        number, node = len(self.operators), torch._C._current_autograd_node()
        path, phase, layer = self.modules.path(), "update" if self.updating else "forward", number
        if not self.updating and torch._C._current_graph_task_id() != -1:
            phase = "backward"
            maker = self.made_by.get(node._sequence_nr()) if node is not None else None  # at its end, PyTorch calls functions
            if maker is not None:
                layer = self.operators[maker].layer  # a recomputed operator has a layer of its own
                path = path or self.operators[maker].module
        if threading.get_ident() == self.thread:  # each thread counts its nodes
            made = torch._C._autograd._get_sequence_nr()
            for sequence in range(self.next_node, made):  # the nodes that autograd made since the last operator
                self.made_by[sequence] = number
            self.next_node = made
        return path, phase, layer


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that the schema of an operator states."""

    name: str  # without namespace: "add_.Tensor", and "relu" for the overload "default"
    packet: str  # "add_"
    writes: frozenset[int | str]  # arguments that it writes, by position and by name
    random: bool
    allocates: bool
    kind: str  # "", "number" or "shape": the result depends on values
    composite: bool  # it is made of other operators, and has no kernel
    views: bool  # its results lie in the storages of its arguments, and it writes nothing
    arguments: tuple[str, ...]  # names
    defaults: dict[str, Any]  # by name
    lists: tuple[str, ...]  # those among them that are lists of tensors
    collective: str  # the kind of communication between processes; empty: none


@functools.lru_cache(maxsize=None)
def facts_of(func: Any) -> _Facts:
    packet = func._schema.name.split("::")[-1]
    overload = func._overloadname
    name = packet if overload == "default" else f"{packet}.{overload}"
    writes: set[int | str] = set(table.HIDDEN_WRITES.get(packet, ()))
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes |= {i, argument.name}
    collective = table.COLLECTIVES.get(packet, "") if func.namespace in table.PROCESSES else ""
    if func.namespace == "c10d" and collective not in ("send", "barrier"):
        writes.add(0)
    kind = "number" if packet in table.NUMBER_FROM_VALUES else "shape" if (
        packet in table.SHAPE_FROM_VALUES or name in table.SHAPE_FROM_VALUES) else ""
    composite = (packet not in table.TAKEN_APART_ELSEWHERE and
                 torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd") and
                 not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU"))
    returns = func._schema.returns
    return _Facts(name, packet, frozenset(writes), torch.Tag.nondeterministic_seeded in func.tags,
                  packet in table.ALLOCATIONS, kind, composite,
                  bool(returns) and not composite and not writes and all(r.alias_info is not None for r in returns),
                  tuple(a.name for a in func._schema.arguments),
                  {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()},
                  tuple(a.name for a in func._schema.arguments if str(a.type) == "List[Tensor]"), collective)


class Call:
    """A call of an operator."""

    __slots__ = "func", "facts", "args", "kwargs", "inputs", "written"

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.facts = facts_of(func)
        self.inputs = tensors_in(args, [])
        for value in kwargs.values():
            tensors_in(value, self.inputs)
        self.written = self.arguments(self.facts.writes)

    def arguments(self, which: Iterable[int | str]) -> list[torch.Tensor]:
        """Returns the tensors in the arguments with these positions and names."""
        return [t for i in which for t in tensors_in(
            self.args[i] if isinstance(i, int) and i < len(self.args) else self.kwargs.get(i) if isinstance(i, str) else None, [])]


def take_apart(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operator that is made of others by these, as PyTorch's C++ code does. REQUIRES: it is composite."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def tensors_in(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Appends the tensors in an argument or result to `found`, and returns it."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(item, found)
    return found


_TENSORS = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}


class _HeldByAutograd(TorchDispatchMode):
    """Learns how many references a gradient has that autograd alone holds, seen from a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.references = (0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor:
            self.references = _references(args[0])
        return func(*args, **(kwargs or {}))


def _references(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns how many references there are to a tensor and to its storage."""
    holders: int = tensor._use_count()  # type: ignore[attr-defined]
    return holders, torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


@functools.lru_cache(maxsize=None)
def _held_by_autograd() -> tuple[int, int]:
    """Returns `_references` of a gradient to which autograd adds another one in place."""
    with torch.enable_grad(), torch.inference_mode(False):
        made = torch.ones(1, device="cpu", requires_grad=True) * 1
        total = made * 2 + made * 3
    with _HeldByAutograd() as mode:
        total.backward()
    return mode.references


def _adds_in_place(func: Any, args: Any) -> bool:
    """Returns whether autograd adds a gradient in place unless a mode is active: it then holds the last reference to the sum."""
    return (func is torch.ops.aten.add.Tensor and torch._C._current_autograd_node() is not None and
            not torch.is_grad_enabled() and isinstance(args[1], torch.Tensor) and args[0].shape == args[1].shape and
            args[0].dtype == args[1].dtype and order_in_memory(args[0]) is not None and _references(args[0]) == _held_by_autograd())


def _is_gradient_of_index(args: Any) -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "IndexBackward0" and not torch.is_grad_enabled() and len(args) > 3 and args[3]


class Recorder(TorchDispatchMode):
    """Follows the storages of one device and, while there is a `take`, records the operators that compute."""

    def __init__(self, device: str, target: Target, meter: Meter | None = None) -> None:
        super().__init__()
        _held_by_autograd()
        self.ledger = Ledger(device)
        self.target = target
        self.meter = meter  # measures the operators; None: nothing is measured
        self.mark: Mark | None = None  # the mark of the last operator
        self.values = Values(on_host=not target.cuda)
        self.numbers = Numbers()
        self.modules = Modules()
        self.in_place = False  # PyTorch's C++ code adds in place unless it sees a mode
        self.take: Take | None = None
        self.scratch = 0  # the scratch bytes of the last operator
        self.taken_apart = 0  # operators on tensors of several processes, since the last operator
        self.lanes, self.works = Lanes(), Works()
        self.ledger.lane = lambda: self.lanes.current.lane
        self.ledger.clock = lambda: len(self.take.operators) if self.take is not None else -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_taken_apart, types)):
            self.taken_apart += self.take is not None
            return NotImplemented
        with torch._C.DisableTorchFunction():  # devices are those of PyTorch, not those that the program sees
            if self.in_place and func is aten.add.Tensor:
                with self:
                    return aten.alias.default(aten.add_.Tensor(*args, **(kwargs or {})))
            if func is aten.index_put.default and _is_gradient_of_index(args):  # unless a mode is active, it writes into the zeros
                func, args = aten._index_put_impl_.default, (*args[:3], True, True)
            call = self.call(aten.add_.Tensor if _adds_in_place(func, args) else func, types, args, kwargs or {})
            if call.facts.packet == "_grouped_mm" and not self.target.real and call.inputs[0].dtype != torch.bfloat16:
                with self:
                    return self.one_group_after_another(*call.args, **call.kwargs)
            if call.facts.composite:  # autograd did not take it apart, because it is off or has passed
                with self:
                    return take_apart(func, *args, **call.kwargs)
            result = self.run(call)
            self.note(call, result)
            return result

    def call(self, func: Any, types: Any, args: Any, kwargs: Any) -> Call:
        """Returns the call. Raises `NotRecordableError` for tensors that no recording follows."""
        self.refuse_types(func, types)
        return Call(func, args, kwargs)

    def refuse_types(self, func: Any, types: Any) -> None:
        for kind in types:
            if kind not in _TENSORS:
                raise NotRecordableError(f"{func} on {kind.__name__}{self.place()}: tensors of special types are not recorded")

    # ---- running ----

    def run(self, call: Call) -> Any:
        if self.meter is not None:
            result, self.scratch, self.mark = self.meter.run(call.func, call.args, call.kwargs, self.take is not None)
            return result
        if self.target.real:
            return call.func(*call.args, **call.kwargs)
        return self.run_without_data(call)

    def run_without_data(self, call: Call) -> Any:
        func, facts, args, kwargs, inputs = call.func, call.facts, call.args, call.kwargs, call.inputs
        on_device = any(t.device.type == "meta" for t in inputs)
        if facts.packet in WRAPPERS:
            return WRAPPERS[facts.packet](args[0])
        if func.namespace in table.PROCESSES and not facts.collective:
            raise NotRecordableError(f"{func}{self.place()} cannot be recorded without a GPU: its communication is not known; the "
                                     "collectives of torch.distributed are")
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}  # the host has no GPU for which to pin memory
        if on_device:
            self.check_types(facts.packet, args)
        if facts.kind and (on_device or any(self.values.of(t) is None for t in inputs)):
            return self.look(func, facts, args, kwargs, inputs)
        if on_device and facts.packet in ("_to_copy", "copy_") and (
                kwargs.get("device") or (args[0].device if facts.packet == "copy_" else META)).type == "cpu":
            result: Any = self.to_host(func, facts, args, kwargs)
        elif on_device and facts.packet == "index" and any(
                t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1], [])):
            return func(args[0], self.known_indices(func, args[1]))
        else:
            try:
                result = func(*args, **kwargs)
            except RuntimeError as error:
                if isinstance(error, NotImplementedError) or "meta tensor" in str(error).lower():
                    result = self.without_kernel(call, error)
                elif on_device and any(t.device.type == "cpu" and t.dim() > 0 for t in inputs):
                    raise SpillwayError(f"aten::{facts.name}{self.place()} got tensors of the host and of the pretended device "
                                        f"'{self.target.name}'; make models inside pretend or move them there") from error
                else:
                    raise
        if on_device and self.target.cuda and facts.packet in CONVOLUTIONS:
            result = as_cudnn_lays_out(facts.packet, args, result)
        shrunk = table.SHRUNK_LOSSES.get(facts.packet)
        if on_device and shrunk is not None and (args[shrunk] if len(args) > shrunk else 1):
            result = torch.empty_like(args[0]).resize_(())
        if on_device and facts.packet == "_scaled_dot_product_cudnn_attention" and not args[4]:
            result = (result[0], None, *result[2:])  # without a gradient, cuDNN keeps no sums of the softmax
        if on_device and facts.packet in table.HOST_OUTPUTS:
            result = tuple(torch.empty_like(value, device="cpu") if at in table.HOST_OUTPUTS[facts.packet] else value
                           for at, value in enumerate(result))
        if facts.collective:  # What other processes have is not known, but a root is taken for equal.
            for tensor in (*call.written, *tensors_in(result, [])) if facts.collective != "broadcast" else ():
                self.values.forget(tensor)
        elif facts.packet in table.ASSUMED:
            at, value = table.ASSUMED[facts.packet]
            self.values.learn(args[at], value)
        else:
            self.values.follow(func, args, kwargs, inputs, call.written, result, facts.random, facts.allocates)
        return result

    def check_types(self, packet: str, args: Any) -> None:
        """Raises the error of a GPU's kernel for operands of wrong types, which tensors without data do not raise."""
        def dtype(at: int) -> Any:
            return args[at].dtype if at < len(args) and isinstance(args[at], torch.Tensor) else None

        index, weight = dtype(table.INDICES.get(packet, len(args))), dtype(table.NORMALISED.get(packet, len(args)))
        if index is not None and (index.is_floating_point or index == torch.bool):
            raise RuntimeError(f"aten::{packet}{self.place()}: expected indices of dtype torch.int64 or torch.int32, but got {index}")
        same = [dtype(at) for at in table.SAME_TYPES.get(packet, ())]
        if weight is not None and not (weight == torch.float32 and dtype(0) in attention.HALF):
            same = [dtype(0), weight]
        found = {kind for kind in same if kind is not None}
        if len(found) > 1:
            raise RuntimeError(f"aten::{packet}{self.place()}: expected operands of the same dtype, but got: "
                               f"{' != '.join(str(kind) for kind in same if kind is not None)}")

    def look(self, func: Any, facts: _Facts, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> Any:
        """Runs an operator whose result depends on values."""
        if any(self.values.of(t) is None for t in inputs):
            given = self.numbers.given()
            if given is None:
                raise needs(f"{'the shape of the result' if facts.kind == 'shape' else 'the result'} of aten::{facts.name}", self.place())
            if facts.kind == "number":
                return given
            real: Any = as_result(func, facts.packet, args, given)
            if real is None:
                raise NotRecordableError(f"aten::{facts.name}{self.place()}: its result cannot be assumed")
        else:
            real = self.values.compute(func, args, kwargs)
        if not isinstance(real, (torch.Tensor, tuple, list)):
            return real
        made = []
        for value in real if isinstance(real, (tuple, list)) else (real,):
            made.append(torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta"))
            if value.device.type != "meta":
                self.values.learn(made[-1], value)
        return type(real)(made) if isinstance(real, (tuple, list)) else made[0]

    def known_indices(self, func: Any, indices: Any) -> list[Any]:
        """Returns indices in which masks of known values are replaced by their positions."""
        found: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                found.append(index)
                continue
            value = self.values.of(index)
            given = self.numbers.given() if value is None else None
            if value is None and given is None:
                raise needs(f"the shape of the selection {func} by a mask", self.place())
            positions = value.nonzero() if value is not None else as_result(func, "nonzero", (index,), given)
            found += [position.to("meta") for position in positions.unbind(1)]
        return found

    def to_host(self, func: Any, facts: _Facts, args: Any, kwargs: Any) -> torch.Tensor:
        """Copies from the device to the host, where values that are not known stay undefined."""
        if facts.packet == "copy_":
            source, into = args[1], args[0]
        else:
            source = args[0]
            into = torch.empty_like(source, dtype=kwargs.get("dtype") or source.dtype, device="cpu")
        value = self.values.of(source)
        if value is not None:
            into.copy_(value)
        else:
            into.fill_(1)
            self.values.forget(into)
        return into

    def one_group_after_another(self, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, bias: Any = None, dtype: Any = None) -> Any:
        """Runs the products of groups as a GPU does for other types than bfloat16: the host reads where each group of rows ends."""
        known = self.values.of(ends)
        if known is None:
            joined = b.shape[-1] if a.dim() == 3 else a.shape[-1] if b.dim() == 2 else a.shape[0]
            equal = [joined * (group + 1) // len(ends) for group in range(len(ends))]
            given = self.numbers.plain(f"products of {a.dtype} in groups, one after another,", equal, "groups of equal sizes")
            self.values.learn(ends, torch.as_tensor(given, dtype=ends.dtype, device="cpu"))
            known = self.values.of(ends)
        assert known is not None
        self.note_read(ends)
        rows = aten.slice.Tensor
        groups, start = len(ends), 0
        shape = (*(() if 3 in (a.dim(), b.dim()) else (groups,)), a.shape[-2], b.shape[-1])
        out = torch.empty(shape, dtype=dtype or a.dtype, device="meta")
        for group, end in enumerate(known.tolist()):
            left = a[group] if a.dim() == 3 else rows(a, 1 if b.dim() == 2 else 0, start, end)
            right = b[group] if b.dim() == 3 else rows(b, 0 if a.dim() == 2 else 1, start, end)
            into = out[group] if out.dim() == 3 else rows(out, 0 if a.dim() == 2 else 1, start, end)
            aten.mm.out(left, right, out=into)
            start = end
        return out

    def without_kernel(self, call: Call, error: Exception) -> Any:
        """Runs an operator that has no kernel for tensors without data, if its result follows from its schema or is assumed."""
        func, facts = call.func, call.facts
        returns = func._schema.returns
        if facts.packet in SHAPES:
            return SHAPES[facts.packet](*call.args, **call.kwargs)
        if all(r.alias_info is not None and r.alias_info.is_write for r in returns) and facts.writes:
            return call.args[0] if returns else None  # it only writes in place
        given = self.numbers.given()
        if given is None:
            raise NotRecordableError(
                f"{func._schema.name}{self.place()} cannot be recorded without a GPU: PyTorch {torch.__version__} does not know the "
                f"shape of its result without running it; record(..., assume={{'{line_of_program()}': VALUE}}) gives it") from error
        return (torch.empty(given, dtype=torch.int64, device="meta") if isinstance(given, int) else
                torch.as_tensor(given, device="cpu").to("meta"))

    def place(self) -> str:
        """Returns the part of a message that names the module that runs and the line of the program."""
        line = line_of_program()
        return in_module(self.modules.path()) + (f" ({line})" if line else "")

    def translated(self, error: Exception, name: str) -> Exception | None:
        """Returns the error to raise in place of one of PyTorch about tensors without data, which the program does not know of; None if
        it is about something else."""
        text = str(error)
        if isinstance(error, TypeError):
            return TypeError(text.replace("meta device", f"{self.target.shown} device")) if "meta device" in text else None
        return needs(f"the result of {name}", self.place()) if "meta tensor" in text.lower() else None

    @contextlib.contextmanager
    def adding_in_place(self) -> Iterator[None]:
        """Sums are those of PyTorch's C++ code where no mode is active."""
        self.in_place = True
        try:
            yield
        finally:
            self.in_place = False

    def note_read(self, tensor: torch.Tensor) -> None:
        """Notes that the host reads a number from the device."""
        if self.take is not None and self.here(tensor):
            self.scratch = 0
            self.append("aten::_local_scalar_dense", [self.operand(tensor)], [], 0, False,
                        {"elements": 1, "operands": 1, "row": 1, "strided": 0})

    # ---- recording ----

    def here(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.ledger.device

    def storage(self, tensor: torch.Tensor, born: int | None = None) -> Storage:
        """Returns the storage of a tensor of the device; see `Ledger.find`."""
        storage = self.ledger.find(tensor, born)
        if self.take is not None:
            self.take.step.storages.setdefault(storage.number, storage)
        return storage

    def operand(self, tensor: torch.Tensor, born: int | None = None) -> Operand:
        storage, item = self.storage(tensor, born), tensor.element_size()
        return Operand(storage, min(int(tensor.storage_offset()) * item, storage.size), tensor.numel() * item,
                       tuple(tensor.shape), tensor.dtype)

    def operands(self, call: Call, outputs: list[torch.Tensor]) -> tuple[list[Operand], list[Operand], list[Operand], list[torch.Tensor]]:
        """Returns what an operator read, the new ones among its results, what it wrote, and the tensors of the new ones."""
        now = len(self.take.operators) if self.take is not None else -1
        read = [self.operand(t) for t in call.inputs if self.here(t)]
        given = {operand.storage.number for operand in read}
        writes = [self.operand(t) for t in call.written if self.here(t)]
        made = [(self.operand(t, now), t) for t in outputs if self.here(t)]
        fresh = [(operand, t) for operand, t in made if operand.storage.number not in given]
        if read and all(operand.storage.on_host for operand in read) and call.kwargs.get("device") is None:
            for operand, _ in reversed(fresh):
                self.ledger.keep_on_host(operand.storage, any(other.storage.nowhere for other in read))
        return read, [operand for operand, _ in fresh], writes, [t for _, t in fresh]

    def note(self, call: Call, result: Any) -> None:
        facts, outputs = call.facts, [local for t in tensors_in(result, []) for local in local_tensors(t)]
        read, fresh, writes, made = self.operands(call, outputs)
        collective = collective_of(call, result, self.place()) if facts.collective else None
        if self.take is not None and not facts.allocates:
            to_host = bool(read) and any(not self.here(t) for t in outputs) and not self.target.real
            if fresh or writes or (facts.kind == "number" or collective is not None) and read or to_host:
                for operand in read:
                    self.ledger.use(operand.storage)
                if self.target.cuda and not self.target.real:
                    self.scratch = scratch_of(facts.packet, call.args, self.target.capability)
                self.append(call.func._schema.name, read, [*fresh, *writes], *measures(call, made, result), collective)
        if collective is not None and not self.target.real:
            lane = self.lanes.lane_of(collective)
            self.works.add(result, tensors_in(call.args[0], []), self.lanes.mark(lane), collective.kind in ("send", "receive"))

    def append(self, name: str, read: list[Operand], writes: list[Operand], flops: int, random: bool,
               attributes: dict[str, int], collective: Collective | None = None) -> None:
        assert self.take is not None
        flags = torch.backends.cudnn if "conv" in name else torch.backends.cuda.matmul
        path, phase, layer = self.take.place()
        lane, after = self.lanes.place(collective, (operand.storage.number for operand in (*read, *writes)))
        module, forward, parameter = table.FSDP_WORK.get(name, (0, 0, 0))
        others = table.TAKEN_APART * self.taken_apart + module + forward * (phase == "forward") + parameter * attributes.get("tensors", 0)
        if others and not self.target.real:
            attributes = {**attributes, "operators": 1 + others}
        self.taken_apart = 0
        self.take.operators.append(Operator(name, path, phase, read, writes, flops, random, layer, self.scratch, attributes,
                                            flags.allow_tf32, lane=lane, after=after, collective=collective))
        if self.mark is not None:
            self.take.marks.append(self.mark)

    def resized(self, untyped: torch.UntypedStorage) -> None:
        """Notes that a storage has other memory than before, or none."""
        if untyped.device.type == self.ledger.device and self.ledger.known(untyped) is not None:
            self.values.forget_storage(untyped)
            storage = self.ledger.resized(untyped)
            if self.take is not None:
                self.take.step.storages[storage.number] = storage

    # ---- saved tensors ----

    def pack(self, tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            take, saved = self.take, []
            if take is not None:
                saved = [Saved(self.operand(t), len(take.operators)) for t in local_tensors(tensor) if self.here(t)]
                take.step.saved += saved
            return tensor.detach(), saved

    def unpack(self, packed: Any) -> torch.Tensor:
        tensor, saved = packed
        if self.take is not None:
            for known in saved:
                known.unpacked.append(len(self.take.operators))
        return tensor


def as_result(func: Any, packet: str, args: Any, given: Any) -> Any:
    """Returns the result of an operator whose shape depends on values, as `assume` gives it: its values, or if it is a number, how many
    there are, whose values are not known. None if this operator's cannot be given."""
    source = args[0]
    columns = (source.dim(),) if packet == "nonzero" else ()
    if packet not in ("nonzero", "masked_select", "bincount", "repeat_interleave", "_unique2"):
        return None
    kind = source.dtype if packet in ("masked_select", "_unique2") else torch.int64
    if isinstance(given, int):
        result = torch.empty(given, *columns, dtype=kind, device="meta")
    else:
        result = torch.as_tensor(given, dtype=kind, device="cpu")
        result = result.reshape(-1, *columns) if columns else result
    if packet != "_unique2":
        return result
    inverse, counts = (len(args) > at and args[at] for at in (2, 3))
    return (result, torch.empty(source.shape if inverse else 0, dtype=torch.int64, device="meta"),
            torch.empty(len(result) if counts else 0, dtype=torch.int64, device="meta"))


def measures(call: Call, made: list[torch.Tensor], result: Any) -> tuple[int, bool, dict[str, int]]:
    """Returns the floating-point operations of a call, whether it draws random numbers, and its attributes."""
    facts, args, kwargs = call.facts, call.args, call.kwargs
    named = {**facts.defaults, **dict(zip(facts.arguments, args)), **kwargs}
    attributes = attributes_of(facts.packet, named, facts.lists, call.inputs, [*made, *call.written])
    flops = grouped_flops(facts.packet, attributes)
    out = result if not isinstance(result, (tuple, list)) or len(result) != 1 else result[0]
    return flops_of(call.func, args, kwargs, out) if flops is None else flops, facts.random, attributes


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    count = flop_registry.get(func._overloadpacket)
    if count is None:
        return 0
    try:
        return int(count(*args, **kwargs, out_val=result))
    except Exception:  # pylint: disable=broad-except
        return 0  # a formula that does not know these arguments

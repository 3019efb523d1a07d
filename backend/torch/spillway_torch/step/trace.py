"""Writes a recorded step as a trace, the file that `spillway` reads (traces/FORMAT.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..base.ledger import BEFORE, Storage
from .data import Operand, Operator, StepData

MATMUL = frozenset(("mm", "bmm", "addmm", "baddbmm", "addbmm", "_addmm_activation", "_scaled_mm", "_grouped_mm", "_int_mm"))
DATA_TYPES = frozenset("""float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool complex64
    complex128""".split())

LANES = 5  # that a trace has numbers for


@dataclasses.dataclass
class _Use:
    """How the step uses a storage. Times are numbers of recorded operators."""

    storage: Storage
    first: int | None = None
    last: int = -1
    written_in: str = ""  # phase of the first write
    phases: set[str] = dataclasses.field(default_factory=set)
    updated: bool = False
    data: bool = False  # input data: written before a parameter is read, from nothing that was written
    name: str = ""
    kind: str = ""

    @property
    def before(self) -> bool:
        return self.storage.born == BEFORE


class _Writer:
    def __init__(self, step: StepData) -> None:
        self.step = step
        self.planned = step.hooks is not None
        self.operators = step.operators
        self.phases = _phases(self.operators)
        self.uses = {s.number: _Use(s) for s in step.lives()}
        self.tensors: list[dict[str, Any]] = []
        self.layers: dict[str, str] = {}  # their types by name
        self.ops: list[dict[str, Any]] = []
        self.parts: dict[tuple[int, int, int], str] = {}
        self.written: set[int] = set()
        self.lanes: dict[int, int] = {}  # of the step, except 0: their numbers in the trace
        self.op_names = [self.op_name(number, op) for number, op in enumerate(self.operators)]
        self.places: list[int] = []  # the places of the recorded operators in `ops`, and the number of ops

    def trace(self) -> dict[str, Any]:
        self.find_uses()
        early = self.allocated_early()
        self.make_tensors()
        for number in range(len(self.operators) + 1):
            for use in early.get(number, ()):
                self.make_allocation(f"empty.{len(self.operators)}.{use.storage.number}", use.name, number)
                self.written.add(use.storage.number)
                if use.first is None:
                    use.last = number - 1
            for place, (first, size) in enumerate(self.step.workspaces):
                if first == number:
                    name = f"workspace.{place}"
                    self.tensors.append(_tensor(name, "optimizer_state", (), size))
                    self.make_allocation(f"empty.{name}", name, number)
            self.places.append(len(self.ops))
            if number < len(self.operators):
                self.make_op(number)
        self.hold()
        saved, step, measured = self.saved(), self.step, self.step.measured
        requests = [[size, freed, *self.lane_of(lane).values()] for size, freed, lane in step.requests]  # before the first step
        recording = {"framework": f"PyTorch {torch.__version__}", "device": measured.device, "step_ns": measured.step_ns,
                     "plain_step_ns": measured.step_ns, "allocated": step.peak_allocated, "reserved": measured.reserved,
                     **({"requests": requests} if requests else {})}
        moves = step.hooks["moves"] if step.hooks is not None else None  # the version is the earliest that knows all that the step has
        version = (11 if any(len(request) > 2 for request in requests) else 10 if self.lanes else
                   9 if moves and "state_ns" in moves else 7 if self.planned else 6 if saved else 5 if requests else 4)
        return {"format": "spillway-trace", "version": version, "name": f"{step.network}:{step.batch}", "network": step.network,
                "batch": step.batch, "preset": "recorded", "training": any(phase != "forward" for phase in self.phases),
                "recording": recording, "layers": [{"name": name, "type": type_} for name, type_ in self.layers.items()],
                "tensors": self.tensors, "ops": self.ops, **({"saved": saved} if saved else {}),
                **({"hooks": step.hooks} if self.planned else {})}

    def find_uses(self) -> None:
        begun = False  # a parameter was read
        seen: set[int] = set()
        for number, op in enumerate(self.operators):
            phase = self.phases[number]
            begun |= any(self.uses[o.storage.number].before for o in op.inputs)
            reads = any(o.storage.number in seen for o in op.inputs)
            for i, operand in enumerate([*op.outputs, *op.inputs]):
                use = self.uses[operand.storage.number]
                writes = i < len(op.outputs) or (operand.storage.number not in seen and not use.before)
                if use.first is None:
                    use.first = number
                use.last = number
                use.phases.add(phase)
                if writes:
                    use.written_in = use.written_in or phase
                    use.updated |= phase == "update"
                    use.data |= operand.storage.number not in seen and not begun and not reads and not use.before
            seen |= {o.storage.number for o in [*op.inputs, *op.outputs]}
        for use in self.uses.values():
            use.kind = self.kind_of(use)

    def kind_of(self, use: _Use) -> str:
        stays = use.storage.died is None
        if use.before:
            if not stays:
                return "input"
            state = use.updated and use.phases == {"update"} and not (self.planned and use.storage.number >= 0)
            return "optimizer_state" if state else "parameter"  # plans move those parts of it alone that they know
        if self.planned:
            return "gradient" if use.written_in == "backward" else "activation"
        if use.data:
            return "input"
        if use.written_in in ("forward", ""):
            return "activation"
        if use.written_in == "backward":
            return "parameter_gradient" if stays or "update" in use.phases else "gradient"
        return "optimizer_state" if stays else "gradient"

    def allocated_early(self) -> dict[int, list[_Use]]:
        """Returns the storages that the program allocates before an operator writes them, by the number of the operator
        before which they are allocated."""
        early: dict[int, list[_Use]] = {}
        for use in self.uses.values():
            born, died = use.storage.born, use.storage.died
            if use.before or use.storage.size == 0 or born == use.first or (use.first is None and died == born):
                continue
            if use.kind != "input":
                early.setdefault(born, []).append(use)
        return early

    # ---- names and tensors ----

    def op_name(self, number: int, op: Operator) -> str:
        block = self.step.block_of(op.module)
        rest = op.module[len(block):].lstrip(".")
        return (f"{block}/" if block else "") + (f"{rest}." if rest else "") + (
            f"{_short(op)}.{number if op.number is None else op.number}")

    def make_tensors(self) -> None:
        unused = 0
        for name, op in zip(self.op_names, self.operators):
            for role, operands in (("out", op.outputs), ("in", op.inputs)):
                for place, operand in enumerate(operands):
                    use = self.uses[operand.storage.number]
                    named = storage_name(use.storage.number) if self.planned else f"{name}.{role}{place}"
                    use.name = use.name or named.removesuffix(".out0")
        for use in self.uses.values():
            size = use.storage.size
            if use.first is None:
                if use.before and use.storage.died is None:
                    unused += size
                    continue
                if size == 0 or use.storage.died in (0, use.storage.born):
                    continue
                use.name = f"unused.{use.storage.number}"
            self.tensors.append(_tensor(use.name, use.kind, use.storage.shape, size, use.storage.dtype) | self.lane_of(use.storage.lane))
            if self.step.requests and use.before and use.storage.request is not None:
                self.tensors[-1]["request"] = use.storage.request
        if unused or self.planned:
            self.tensors.append(_tensor("unused", "optimizer_state", (), unused))

    def tensor_of(self, operand: Operand) -> str:
        """Returns the name of an operand: its whole storage, or an alias for a part."""
        use = self.uses[operand.storage.number]
        size = use.storage.size
        part = min(operand.size, size - operand.offset)
        if operand.storage.number not in self.written or part == size:
            return use.name
        key = (operand.storage.number, operand.offset, part)
        if key not in self.parts:
            name = self.parts[key] = f"{use.name}[{operand.offset}:{operand.offset + part}]"
            shape = operand.shape if part == operand.size else ()
            alias = {**_tensor(name, use.kind, shape, part, operand.dtype), "alias_of": use.name}
            if operand.offset:
                alias["offset"] = operand.offset
            self.tensors.append(alias)
        return self.parts[key]

    # ---- ops ----

    def make_op(self, number: int) -> None:
        op, phase = self.operators[number], self.phases[number]
        inputs: list[str] = []
        outputs: list[str] = []
        repeatable, traffic = phase == "forward" and op.collective is None, 0  # the other processes would have to run it again, too
        fresh: list[int] = []
        for i, operand in enumerate([*op.inputs, *op.outputs]):
            storage = operand.storage.number
            known = storage in self.written or self.uses[storage].before
            if known:
                self.written.add(storage)
            writes = i >= len(op.inputs) or not known
            name = self.tensor_of(operand)
            traffic += min(operand.size, operand.storage.size - operand.offset) if known else operand.storage.size
            into = outputs if writes else inputs
            if name not in into:
                into.append(name)
            if writes:
                repeatable &= not known
                fresh.append(storage)
        self.written.update(fresh)
        repeatable &= not any(self.uses[s].kind == "input" for s in fresh)
        shapes = "".join(" " + "x".join(map(str, o.shape)) for o in op.inputs[:8])
        if op.collective is not None:  # its time depends on links, not on the memory of the device
            traffic = 0
        signature = _short(op) if self.planned else f"{op.name if op.collective is None else op.collective.kind}{shapes} traffic={traffic}"
        made = self.add_op(number, self.op_names[number], self.op_names[op.layer], type_of(op.packet), inputs, outputs, signature,
                           op.flops, traffic)
        if arithmetic := arithmetic_of(op):
            made["slots"][0]["arithmetic"] = arithmetic
        measured = self.step.measured
        made["attributes"] = {**({"operators": 1} if measured.device and not self.planned else {}), **_attributes(op)}
        if op.again is not None if self.planned else repeatable:
            made["recomputable"] = True
        made["recorded"] = _recorded(op.time_ns, op.host_ns or measured.host_ns // len(self.operators), op.scratch)
        made |= self.lane_of(op.lane)
        others = [self.op_names[other] for other in op.after if self.lane_of(self.operators[other].lane) != self.lane_of(op.lane)]
        if others:
            made["after"] = others
        if op.again is not None:
            made["recorded"]["again"] = dataclasses.asdict(op.again)

    def lane_of(self, lane: int) -> dict[str, int]:
        """Returns what an op or a tensor says of its lane. Lanes that a trace has no numbers for share the last one."""
        if not lane:
            return {}
        return {"lane": self.lanes.setdefault(lane, min(len(self.lanes) + 1, LANES - 1))}

    def make_allocation(self, name: str, tensor: str, number: int) -> None:
        """Adds an op that only takes memory for a tensor, before the operator `number`."""
        made = self.add_op(min(number, len(self.operators) - 1), name, name, "other", [], [tensor], "aten::empty", 0, 0)
        made["recorded"] = _recorded(0, 0, 0)

    def add_op(self, number: int, name: str, layer: str, type_: str, inputs: list[str], outputs: list[str], signature: str, flops: int,
               traffic: int) -> dict[str, Any]:
        """Adds and returns an op of the phase of an operator."""
        phase = self.phases[number]
        self.layers.setdefault(layer, type_)
        self.ops.append({"name": name, "layer": layer, "type": type_, "phase": phase, "batch": 1 if phase == "update" else self.step.batch,
                         "inputs": inputs, "outputs": outputs,
                         "slots": [{"name": "op", "signature": signature, "flops": flops, "traffic": traffic}]})
        return self.ops[-1]

    def saved(self) -> list[dict[str, Any]]:
        """Returns what autograd kept for backward. A tensor that it kept several times at one position counts once."""
        positions: dict[tuple[int, str], set[int]] = {}
        for saved in self.step.saved:
            if self.uses[saved.storage.number].name:
                key = self.places[saved.packed], self.tensor_of(saved.operand)
                positions.setdefault(key, set()).update(self.places[at] for at in saved.unpacked)
        return [{"tensor": name, "packed": packed, "unpacked": sorted(unpacked)}
                for (packed, name), unpacked in sorted(positions.items(), key=lambda item: item[0][0])]

    def hold(self) -> None:
        """Says when the program gave back what it held beyond its last use."""
        by_name = {tensor["name"]: tensor for tensor in self.tensors}
        for use in self.uses.values():
            tensor = by_name.get(use.name)
            if tensor is None or use.kind in ("parameter", "optimizer_state"):
                continue
            died = len(self.operators) if use.storage.died is None else use.storage.died
            if died > 0 and died - 1 > use.last:
                tensor["held_until"] = self.op_names[died - 1]


def storage_name(storage: int) -> str:
    """Returns the name that a storage has in a step that can be planned, and in plans. Parts of optimizer state are below -1."""
    return f"s{storage}" if storage >= -1 else f"state.{-2 - storage}"


def operator_of(op: str) -> int:
    """Returns the number of the recorded operator that an op of the trace stands for."""
    return int(op.rpartition(".")[2])


def _short(op: Operator) -> str:
    return "chain" if op.again is not None else op.packet if op.collective is None else op.collective.kind


def _attributes(op: Operator) -> dict[str, int]:
    """Returns the numbers that the trace says of an operator: those of a collective, or those of its shape."""
    if op.collective is None:
        return op.attributes
    ranks = op.collective.ranks
    return {"bytes": op.collective.bytes, "ranks": len(ranks), "stride": ranks[1] - ranks[0] if len(ranks) > 1 else 0,
            "asynchronous": int(op.collective.asynchronous)}


def _tensor(name: str, kind: str, shape: Sequence[int], size: int, dtype: torch.dtype | None = torch.uint8) -> dict[str, Any]:
    """Returns a tensor. Its extent follows from its size if it has no shape."""
    known = str(dtype).rpartition(".")[2]
    item = dtype.itemsize if dtype is not None else 1
    form = {"name": name, "kind": kind, "shape": list(shape or [size // item]), "size": size}
    return {**form, "dtype": known} if known in DATA_TYPES else form  # float32, or a type that a trace does not know


def _recorded(time_ns: int, host_ns: int, workspace: int) -> dict[str, Any]:
    return {"time_ns": time_ns, "gap_ns": 0, "host_ns": host_ns, "workspace": workspace}


def type_of(name: str) -> str:
    """Returns the op type of an operator for its name without namespace."""
    if name in MATMUL:
        return "matmul"
    if "convolution" in name or "conv_depthwise" in name:
        return "convolution"
    return "attention" if "attention" in name else "other"


def arithmetic_of(op: Operator) -> str:
    """Returns the arithmetic of an operator's products; empty for fp32 and for operators without products."""
    if type_of(op.packet) == "other" or not op.inputs:
        return ""
    dtype = op.inputs[0].dtype
    if dtype == torch.float32:  # attention computes in it in any case
        return "tf32" if op.tf32 and type_of(op.packet) != "attention" else ""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp8" if "float8" in str(dtype) else "")


def _phases(operators: list[Operator]) -> list[str]:
    """Returns the phases. Operators behind the last one of backward belong to the update, not to forward."""
    backward = [i for i, op in enumerate(operators) if op.phase == "backward"]
    end = backward[-1] + 1 if backward else len(operators)
    return ["update" if op.phase == "forward" and i >= end else op.phase for i, op in enumerate(operators)]


def to_trace(step: StepData) -> dict[str, Any]:
    """Returns the trace as the object that its JSON file has."""
    return _Writer(step).trace()

"""Makes the trace of a recorded step."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..base.ledger import BEFORE, Storage
from .data import Operand, Operator, StepData
from .format import op_form, recorded_form, saved_tensors, tensor_form, trace_form, type_of


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
        self.operators = step.operators
        self.phases = _phases(self.operators)
        self.uses = {s.number: _Use(s) for s in step.lives()}
        self.tensors: list[dict[str, Any]] = []
        self.layers: list[dict[str, str]] = []
        self.ops: list[dict[str, Any]] = []
        self.parts: dict[tuple[int, int, int], str] = {}
        self.written: set[int] = set()
        self.op_names: list[str] = []  # the names of the recorded operators
        self.places: list[int] = []  # the places of the recorded operators in `ops`, and the number of ops
        self.requests = step.requests  # before the first step

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
                    self.tensors.append(tensor_form(name, "optimizer_state", (), size))
                    self.make_allocation(f"empty.{name}", name, number)
            self.places.append(len(self.ops))
            if number < len(self.operators):
                self.make_op(number)
        self.hold()
        saved = self.saved()
        step, measured = self.step, self.step.measured
        requests = {"requests": self.requests} if self.requests else {}
        return trace_form(step.network, step.batch, any(phase != "forward" for phase in self.phases),
                          {"device": measured.device, "step_ns": measured.step_ns, "plain_step_ns": measured.step_ns,
                           "allocated": step.peak_allocated, "reserved": measured.reserved, **requests},
                          self.layers, self.tensors, self.ops, saved)

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

    @staticmethod
    def kind_of(use: _Use) -> str:
        stays = use.storage.died is None
        if use.before:
            if not stays:
                return "input"
            return "optimizer_state" if use.updated and use.phases == {"update"} else "parameter"
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

    def op_name(self, number: int) -> str:
        op = self.operators[number]
        short = op.packet
        block = self.step.block_of(op.module)
        rest = op.module[len(block):].lstrip(".")
        return (f"{block}/" if block else "") + (f"{rest}." if rest else "") + f"{short}.{number}"

    def make_tensors(self) -> None:
        unused = 0
        self.op_names = [self.op_name(i) for i in range(len(self.operators))]
        for name, op in zip(self.op_names, self.operators):
            for place, operand in enumerate(op.outputs):
                use = self.uses[operand.storage.number]
                use.name = use.name or (name if place == 0 else f"{name}.out{place}")
            for place, operand in enumerate(op.inputs):
                use = self.uses[operand.storage.number]
                use.name = use.name or f"{name}.in{place}"
        for use in self.uses.values():
            size = use.storage.size
            if use.first is None:
                if use.before and use.storage.died is None:
                    unused += size
                    continue
                if size == 0 or use.storage.died in (0, use.storage.born):
                    continue
                use.name = f"unused.{use.storage.number}"
            self.tensors.append(tensor_form(use.name, use.kind, use.storage.shape, size, use.storage.dtype))
            if self.requests and use.before and use.storage.request is not None:
                self.tensors[-1]["request"] = use.storage.request
        if unused:
            self.tensors.append(tensor_form("unused", "optimizer_state", (), unused))

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
            alias = {**tensor_form(name, use.kind, shape, part, operand.dtype), "alias_of": use.name}
            if operand.offset:
                alias["offset"] = operand.offset
            self.tensors.append(alias)
        return self.parts[key]

    # ---- ops ----

    def make_op(self, number: int) -> None:
        op, phase = self.operators[number], self.phases[number]
        inputs: list[str] = []
        outputs: list[str] = []
        repeatable, traffic = phase == "forward", 0
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
        name = self.op_names[number]
        shapes = "".join(" " + "x".join(map(str, o.shape)) for o in op.inputs[:8])
        type_ = type_of(op.packet)
        layer = self.op_names[op.layer]
        if op.layer == number:
            self.layers.append({"name": layer, "type": type_})
        made = op_form(name, layer, type_, phase, 1 if phase == "update" else self.step.batch, inputs, outputs,
                       f"{op.name}{shapes} traffic={traffic}", op.flops, traffic)
        if arithmetic := arithmetic_of(op):
            made["slots"][0]["arithmetic"] = arithmetic
        measured = self.step.measured
        made["attributes"] = {"operators": 1, **op.attributes} if measured.device else op.attributes
        if repeatable:
            made["recomputable"] = True
        made["recorded"] = recorded_form(op.time_ns, measured.host_ns // len(self.operators), op.scratch)
        self.ops.append(made)

    def make_allocation(self, name: str, tensor: str, number: int) -> None:
        """Adds an op that only takes memory for a tensor, before the operator `number`."""
        phase = self.phases[min(number, len(self.operators) - 1)]
        self.layers.append({"name": name, "type": "other"})
        self.ops.append({**op_form(name, name, "other", phase, 1 if phase == "update" else self.step.batch, [], [tensor], "aten::empty"),
                         "recorded": recorded_form()})

    def saved(self) -> list[dict[str, Any]]:
        """Returns what autograd kept for backward. A tensor that it kept several times at one position counts once."""
        return saved_tensors((self.tensor_of(saved.operand), self.places[saved.packed], [self.places[at] for at in saved.unpacked])
                             for saved in self.step.saved if self.uses[saved.storage.number].name)

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

"""Makes the operators of a recorded step again, from what its trace says of them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from ..base.document import read_document
from ..base.errors import SpillwayError
from ..step.attributes import REDUCTIONS
from .grid import Entry, Maker, Stages
from .products import attended

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class _Op:
    """An operator of a trace."""

    packet: str
    attributes: dict[str, int]
    inputs: list[_Tensor]
    outputs: list[_Tensor]

    @property
    def first(self) -> _Tensor:
        return self.inputs[0] if self.inputs else self.outputs[0]

    def dims(self) -> list[int]:
        """Returns the dimensions that a reduction joins, as far as the shapes say it."""
        shape, result = self.first.shape, self.outputs[0].shape
        if len(shape) == len(result):
            found = [d for d, (a, b) in enumerate(zip(shape, result)) if a != b]
        else:
            last = len(shape) - 1
            found = [last] if result == shape[:-1] else [d for d in range(len(shape)) if shape[d] not in result]
        return found or [-1]

    def normalized(self) -> list[int]:
        shape = list(self.first.shape)
        while len(shape) > 1 and math.prod(shape[1:]) >= self.attributes["row"]:
            shape.pop(0)
        return shape


# The values of arguments that are no tensors, by name, if the schema has no default for them.
_VALUES: dict[str, Callable[[_Op], Any]] = {
    "dim": lambda op: op.dims() if "softmax" not in op.packet else -1, "normalized_shape": _Op.normalized,
    "N": lambda op: op.first.shape[0], "C": lambda op: op.first.shape[1],
    "HxW": lambda op: math.prod(op.first.shape[2:]),
    "group": lambda op: op.first.shape[1] * math.prod(op.first.shape[2:]) // op.attributes["row"],
    "num_weights": lambda op: op.attributes["elements"] // op.attributes["row"],
    "input_dtype": lambda op: op.outputs[0].dtype, "half_to_float": lambda op: op.first.dtype != op.outputs[0].dtype,
    "size": lambda op: list(op.outputs[0].shape), "input_sizes": lambda op: list(op.outputs[0].shape),
    "output_mask": lambda op: [True] * len(op.outputs), "end": lambda op: op.first.shape[-1],
} | {name: lambda _, value=value: value for name, value in {
    "training": True, "train": True, "p": 0.1, "scale": 1.1, "momentum": 0.1, "eps": 1e-5, "epsilon": 1e-5,
    "padding_idx": -1, "scale_grad_by_freq": False, "reduction": 1, "ignore_index": -100, "threshold": 0, "exponent": 2,
    "other": 1.5, "high": 100, "scalar": 0.9, "value": 0.5, "weight": 0.1, "index": 0, "start": 0, "step": 1}.items()}

_KERNELS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def entries_like(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yields entries for each operator of the trace: several, which expect the same, for one that may be meant so.

    Raises `SpillwayError` if the file is no trace with attributes.
    """
    try:
        trace = read_document(path)
        tensors = tensors_of(trace)
        ops = [op for op in trace["ops"] if "attributes" in op]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpillwayError(f"{os.fspath(path)}: it is not a trace that spillway_torch wrote: {error!r}") from error
    if not ops:
        raise SpillwayError(f"{os.fspath(path)}: its operators have no attributes; record the step again")
    seen = set()
    for op in ops:
        name, *shapes, _ = op["slots"][0]["signature"].split(" ")
        attributes = {key: value for key, value in op["attributes"].items() if key != "operators"}
        inputs, outputs = ([tensors[key] for key in op[side]] for side in ("inputs", "outputs"))
        key = key_in(op, tensors)
        if key in seen:
            continue
        seen.add(key)
        if len(shapes) < 8:  # the signature does not say more
            inputs = _with_repeated(shapes, inputs)
        made = _Op(name.split("::")[-1], attributes, inputs, outputs)
        for make in _makes(made):
            yield Entry(f"{name} {' '.join(shapes)}", make, op["slots"][0].get("arithmetic") == "tf32", op["phase"] == "update", key)


def tensors_of(trace: Any) -> dict[str, _Tensor]:
    """Returns the tensors of a trace by name."""
    return {t["name"]: _Tensor(tuple(t["shape"]), getattr(torch, t.get("dtype", "float32"))) for t in trace["tensors"]}


def key_in(op: Any, tensors: dict[str, _Tensor]) -> tuple[Any, ...]:
    """Returns what makes an operator of a trace unique in a table, as `key_of` does of one that ran."""
    slot = op["slots"][0]
    attributes = {key: value for key, value in op["attributes"].items() if key != "operators"}
    types = types_of(*([tensors[name].dtype for name in op[side]] for side in ("inputs", "outputs")))
    return slot["signature"].split(" ")[0], frozenset(attributes.items()), types, slot.get("arithmetic", "")


def types_of(inputs: Iterable[torch.dtype], outputs: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    """Returns the types that tell operators of a table apart: those of the inputs, each once, and the first output's."""
    return (*dict.fromkeys(inputs), *outputs[:1])


def _with_repeated(shapes: list[str], inputs: list[_Tensor]) -> list[_Tensor]:
    """Returns the inputs as the signature lists them: a trace names a tensor once that an operator reads twice."""
    wanted = [tuple(map(int, filter(None, shape.split("x")))) for shape in shapes]
    if len(wanted) == len(inputs):
        return [_Tensor(shape, tensor.dtype) for shape, tensor in zip(wanted, inputs)]
    by_size = {math.prod(tensor.shape): tensor.dtype for tensor in reversed(inputs)}
    return [_Tensor(shape, by_size.get(math.prod(shape), torch.float32)) for shape in wanted]


def _makes(op: _Op) -> Iterator[Callable[[Maker], Stages]]:
    """Yields functions that make the calls of an operator, the likeliest first."""
    kernel = next((kernel for word, kernel in _KERNELS.items() if word in op.packet), None)
    if "depth" in op.attributes:
        yield _product(op)
    elif "kernel_h" in op.attributes:
        yield _convolution(op)
    elif "queries" in op.attributes and kernel is not None:
        a = op.attributes
        yield attended(kernel, op.first.dtype, a["batch"], (a["heads"], a["kv_heads"]), (a["queries"], a["keys"]),
                       a["head_dim"], bool(a["causal"]), bool(a["dropout"]), bool(a["mask"]))
    else:
        for overload in getattr(aten, op.packet).overloads() if hasattr(aten, op.packet) else ():
            function = getattr(getattr(aten, op.packet), overload)
            if "out" not in overload and "names" not in overload and "Dimname" not in str(function._schema):
                yield _by_schema(op, function)


def _product(op: _Op) -> Callable[[Maker], Stages]:
    a = op.attributes
    function = getattr(aten, op.packet).default

    def make(new: Maker) -> Stages:
        def factor(rows: int, columns: int, transposed: int) -> torch.Tensor:
            ahead = (a["batches"],) if "b" in op.packet[:3] else ()
            shape = (columns, rows) if transposed else (rows, columns)
            made = new(*ahead, *shape, dtype=op.inputs[-1].dtype)
            return made.transpose(-1, -2) if transposed else made

        factors = factor(a["rows"], a["depth"], a["transposed_a"]), factor(a["depth"], a["columns"], a["transposed_b"])
        summand = [new(*op.first.shape, dtype=op.first.dtype)] if len(op.inputs) > 2 else []
        return (lambda _: function(*summand, *factors),)

    return make


def _convolution(op: _Op) -> Callable[[Maker], Stages]:
    a, dtype = op.attributes, op.first.dtype
    form = torch.channels_last if a["channels_last"] else torch.contiguous_format
    dilation = [a.get("dilation", 1) if a[kernel] > 1 else 1 for kernel in ("kernel_h", "kernel_w")]

    def make(new: Maker) -> Stages:
        stride, padding = [], []
        for side, kernel, step in (("height", "kernel_h", dilation[0]), ("width", "kernel_w", dilation[1])):
            less, more = sorted((a[f"in_{side}"], a[f"out_{side}"]))
            stride.append(max(round(more / less), 1))
            padding.append(max(-(-((less - 1) * stride[-1] + (a[kernel] - 1) * step + 1 - more) // 2), 0))
        x, y = (new(a["batch"], *(a[f"{side}_{extent}"] for extent in ("channels", "height", "width")),
                    dtype=dtype).contiguous(memory_format=form) for side in ("in", "out"))
        sizes = (a["in_channels"], a["out_channels"]) if a["transposed"] else (a["out_channels"], a["in_channels"])
        weight = new(sizes[0], sizes[1] // a["groups"], a["kernel_h"], a["kernel_w"], dtype=dtype)
        weight = weight.contiguous(memory_format=form)
        rest = stride, padding, dilation, bool(a["transposed"]), [0, 0], a["groups"]
        if "needs_dx" in a:
            mask = [bool(a["needs_dx"]), bool(a["needs_dw"]), bool(a["bias"])]
            biases = [a["out_channels"]] if a["bias"] else None
            return (lambda _: aten.convolution_backward(y, x, weight, biases, *rest, mask),)
        bias = new(a["out_channels"], dtype=dtype) if a["bias"] else None
        return (lambda _: aten.convolution(x, weight, bias, *rest),)

    return make


def _by_schema(op: _Op, function: Any) -> Callable[[Maker], Stages]:
    """Gives an operator its tensors in their order, and its other arguments from `_VALUES` or by default."""
    def make(new: Maker) -> Stages:
        tensors = [_operand(new, op, i, tensor) for i, tensor in enumerate(op.inputs)]
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        kinds = [str(a.type) for a in function._schema.arguments]
        lists, required = kinds.count("List[Tensor]"), kinds.count("Tensor")
        for argument in function._schema.arguments:
            kind, name = str(argument.type), argument.name
            if kind == "List[Tensor]":
                share = len(op.inputs) // lists
                value: Any = [tensors.pop(0) for _ in range(share)]
            elif kind == "Tensor" or (kind == "Optional[Tensor]" and len(tensors) > required):
                value = tensors.pop(0)
                required -= kind == "Tensor"
            elif kind == "List[Optional[Tensor]]":
                value = [tensors.pop(0)]
            elif name == "dtype" and op.packet == "_to_copy":
                value = op.outputs[0].dtype
            elif name == "memory_format" and op.packet == "clone":
                value = torch.contiguous_format
            elif argument.has_default_value():
                value = argument.default_value
            elif kind == "Optional[Tensor]":
                value = None
            else:
                value = _VALUES[name](op)
            if argument.kwarg_only:
                kwargs[name] = value
            else:
                args.append(value)
        if tensors:
            raise ValueError(f"{function} takes fewer tensors")
        if any(str(a.type) == "Device" or a.name == "device" for a in function._schema.arguments) and not op.inputs:
            kwargs["device"] = new.device
        return (lambda _: function(*args, **kwargs),)

    return make


def _operand(new: Maker, op: _Op, number: int, tensor: _Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return new(*tensor.shape) > 0
    if not tensor.dtype.is_floating_point:
        first = op.first.shape
        below = first[0] if op.packet.startswith(("embedding", "index")) and first else 1
        if op.packet == "embedding_dense_backward":
            below = _VALUES["num_weights"](op)
        if "nll_loss" in op.packet:
            below = next(t.shape[1] for t in op.inputs if len(t.shape) > 1)
        return new.whole(below, *tensor.shape).to(tensor.dtype)
    shape = list(tensor.shape)
    if number == 0 and len(shape) > 1 and op.attributes.get("strided") and op.packet not in REDUCTIONS | {"cat"}:
        one, other = (1, 2) if len(shape) > 2 else (0, 1)
        shape[one], shape[other] = shape[other], shape[one]
        return new(*shape, dtype=tensor.dtype).transpose(one, other)
    return new(*shape, dtype=tensor.dtype)

"""The attributes of an operator in a trace: the numbers by which operators of one name differ, beside their data type.

traces/FORMAT.md describes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..base import table

Named = Mapping[str, Any]  # the arguments of an operator by name
Tensors = Sequence[torch.Tensor]

# Operators that make one number of several; the number of these is their `row`.
REDUCTIONS = frozenset("""sum nansum mean amax amin aminmax prod linalg_vector_norm norm var var_mean std std_mean
    logsumexp any all max min argmax argmin count_nonzero""".split())

# Operators that work along one dimension, whose extent is their `row`; so do all whose name contains "softmax".
_ALONG = frozenset("cumsum cumprod logcumsumexp sort topk".split())


def attributes_of(packet: str, named: Named, lists: Iterable[str], inputs: Tensors,
                  outputs: Tensors) -> dict[str, int]:
    """Returns the attributes of one call of the operator `packet`.

    `lists` names those among its arguments that are lists of tensors. `outputs` are new tensors and all that it writes.
    """
    if packet in table.PRODUCTS or packet == "_grouped_mm":
        return _product(packet, inputs)
    # Operators of other libraries may have such names and other arguments.
    if ("convolution" in packet or "conv_depthwise" in packet) and "weight" in named and outputs:
        return _convolution(named, inputs, outputs)
    if "attention" in packet and "query" in named and "key" in named and named["query"].dim() == 4:
        return _attention(packet, named)
    return _other(packet, named, [named[name] for name in lists if named.get(name)], inputs, outputs)


def _product(packet: str, inputs: Tensors) -> dict[str, int]:
    a, b = inputs[1:3] if packet in table.SUMS_OF_PRODUCTS else inputs[:2]
    batches = max(t.shape[0] if t.dim() == 3 else 1 for t in (a, b))
    columns = b.shape[-1] if b.dim() > 1 else 1
    return {"batches": batches, "rows": a.shape[-2] if a.dim() > 1 else 1, "columns": columns, "depth": a.shape[-1],
            "transposed_a": _transposed(a), "transposed_b": _transposed(b),
            "alignment": math.gcd(16, _pitch(a), _pitch(b), columns)}


def _pitch(tensor: torch.Tensor) -> int:
    """Returns the distance of the rows of a matrix, or of its columns if it is transposed, in elements."""
    return tensor.stride(-1 if _transposed(tensor) else -2) if tensor.dim() > 1 else 0


def _transposed(tensor: torch.Tensor) -> int:
    return int(tensor.dim() > 1 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1)


def _convolution(named: Named, inputs: Tensors, outputs: Tensors) -> dict[str, int]:
    x, weight, y = named.get("input", inputs[0]), named["weight"], named.get("grad_output", outputs[0])

    def plane(tensor: torch.Tensor) -> tuple[int, int]:
        return math.prod(tensor.shape[2:-1]), tensor.shape[-1]

    found = {"batch": x.shape[0], "in_channels": x.shape[1], "out_channels": y.shape[1]}
    for name, tensor in (("in", x), ("out", y)):
        found[f"{name}_height"], found[f"{name}_width"] = plane(tensor)
    found["kernel_h"], found["kernel_w"] = plane(weight)
    last = _channels_last(x) or _channels_last(weight)
    # Operators of transposed convolutions alone have no argument `transposed`, but one for the padding of their output.
    found |= {"groups": named.get("groups", 1), "channels_last": int(last),
              "transposed": int(named.get("transposed", "output_padding" in named))}
    if (dilation := max(named.get("dilation") or (1,))) > 1:
        found["dilation"] = dilation
    if "output_mask" in named:
        return found | dict(zip(("needs_dx", "needs_dw", "bias"), map(int, named["output_mask"])))
    return found | {"bias": int(named.get("bias") is not None)}


def _channels_last(tensor: torch.Tensor) -> bool:
    """Returns whether the channels of a pixel lie side by side, also in a part of the channels of a larger tensor."""
    if tensor.dim() != 4 or tensor.is_contiguous():
        return False
    _, channels, height, width = tensor.shape
    image, channel, row, pixel = tensor.stride()
    return channel == 1 and pixel >= channels and row == width * pixel and image == height * row


def grouped_flops(packet: str, attributes: Mapping[str, int]) -> int | None:
    """Returns the floating-point operations of a convolution in groups, or of attention whose keys have fewer heads.

    Returns None for others. PyTorch's formulas count the gradients of a grouped convolution as if it had one group, and
    do not know such attention.
    """
    a = attributes
    if a.get("groups", 1) > 1:
        side = "in" if a["transposed"] else "out"
        sums = a["batch"] * a[f"{side}_height"] * a[f"{side}_width"] * a["in_channels"] * a["out_channels"] // a["groups"]
        return 2 * sums * a["kernel_h"] * a["kernel_w"] * (a.get("needs_dx", 1) + a.get("needs_dw", 0))
    if a.get("heads") != a.get("kv_heads"):
        products = 5 if packet.endswith("_backward") else 2  # as many multiplications of matrices
        return 2 * products * a["batch"] * a["heads"] * a["queries"] * a["keys"] * a["head_dim"]
    return None


def _attention(packet: str, named: Named) -> dict[str, int]:
    query, key = named["query"], named["key"]
    heads, length = (1, 2) if packet.startswith("_scaled_dot_product") else (2, 1)  # the position of their dimensions
    mask = named.get("attn_bias", named.get("attn_mask"))
    return {"batch": query.shape[0], "heads": query.shape[heads], "kv_heads": key.shape[heads],
            "queries": query.shape[length], "keys": key.shape[length], "head_dim": query.shape[-1],
            "causal": int(bool(named.get("is_causal"))), "dropout": int(named.get("dropout_p", 0) > 0),
            "mask": int(mask is not None)}


def _other(packet: str, named: Named, lists: Sequence[Tensors], inputs: Tensors, outputs: Tensors) -> dict[str, int]:
    if lists:
        given = set(map(id, inputs))
        made = [t for t in outputs if id(t) not in given]
        elements = max(sum(t.numel() for t in tensors) for tensors in [*lists, made])
        found = {"elements": elements, "operands": len(lists) + bool(outputs), "tensors": max(map(len, lists)),
                 "strided": int(any(order_in_memory(t) is None for tensors in lists for t in tensors))}
        if isinstance(named.get("dim"), int):  # cat
            found["row"] = min(min(_run([t]), math.prod(t.shape[named["dim"]:] or (1,))) for t in lists[0])
        return found
    tensors = [*inputs, *outputs]
    elements = max((t.numel() for t in tensors), default=0)
    # A tensor that is repeated along a dimension is read as a whole, in whatever order.
    large = [t for t in tensors if t.numel() == elements > 1 and not _repeated(t)]
    orders = {(t.shape, order_in_memory(t)) for t in large}
    strided = any(order is None for _, order in orders) or len(orders) > len({shape for shape, _ in orders})
    if packet in REDUCTIONS and inputs:
        strided |= _reduces_apart(named.get("dim"), inputs[0])
    whole = [t.numel() for t in inputs if not t.is_floating_point() and t.dtype != torch.bool]
    chooses = whole and len(whole) < len(inputs)
    found = {"elements": elements, "operands": sum(t.numel() == elements for t in tensors), "row": 1,
             "strided": int(strided)}
    joined = _row(packet, named, inputs, outputs)
    if joined is not None:
        found["row"] = joined
    elif chooses:
        found["row"] = inputs[0].shape[-1] if inputs[0].dim() else 1
    else:
        tensors.sort(key=lambda t: -t.numel())
        found["row"] = _run(tensors) if strided else 1
        found["broadcast"] = _broadcast(tensors)
    if chooses:
        found["indices"] = max(whole)
    if any(word in packet for word in ("batch_norm", "group_norm", "layer_norm", "pool", "upsample")):
        found["channels_last"] = int(bool(inputs) and _channels_last(inputs[0]))
    if "upsample" in packet and inputs and outputs:
        found["plane"] = max(math.prod(t.shape[2:]) for t in (inputs[0], outputs[0]))
    if "avg_pool2d" in packet and "kernel_size" in named:
        sides = named["kernel_size"]
        found["window"] = math.prod(sides) ** (2 // len(sides))
    if "accumulate" in named:
        found["accumulate"] = int(bool(named["accumulate"]))
    return found


def _row(packet: str, named: Named, inputs: Tensors, outputs: Tensors) -> int | None:
    """Returns the number of values that are joined for one result; None if the operator joins none."""
    if not inputs:
        return None
    first = inputs[0]
    if packet in REDUCTIONS and outputs and 0 < outputs[0].numel() < first.numel():
        return first.numel() // outputs[0].numel()
    if "normalized_shape" in named:
        return math.prod(named["normalized_shape"])
    if "HxW" in named:  # group norm
        return int(named["C"] // named["group"] * named["HxW"])
    if "batch_norm" in packet and first.dim() > 1:
        return first.numel() // max(first.shape[1], 1)
    if outputs and first.numel() and outputs[0].numel() and ("upsample" in packet or "avg_pool" in packet):
        sizes = first.numel(), outputs[0].numel()
        return max(sizes) // min(sizes)
    if first.dim() and ("softmax" in packet or packet in _ALONG):
        return first.shape[named["dim"] if isinstance(named.get("dim"), int) else -1]
    return None


def _run(tensors: Tensors) -> int:
    """Returns how many elements lie side by side in all tensors that have the shape of the first or broadcast to it."""
    shape, strides = tensors[0].shape, _strides(tensors)
    dims = sorted((d for d in range(len(shape)) if shape[d] > 1), key=lambda d: (strides[0][d], -d))
    run = 1
    for dim in dims:
        # An operand moves on with each element, or stays for the whole run.
        if any(s[dim] != (0 if s[dims[0]] == 0 else run) for s in strides):
            break
        run *= shape[dim]
    return run


def _broadcast(tensors: Tensors) -> int:
    """Returns 1 if a tensor is repeated along the last dimension of the first, 2 if only along others, otherwise 0."""
    wide = [d for d, extent in enumerate(tensors[0].shape) if extent > 1] if tensors else []
    repeated = [[s[d] == 0 for d in wide] for s in _strides(tensors)] if wide else []
    repeated = [dims for dims in repeated if any(dims) and not all(dims)]  # a number is not read again
    return 0 if not repeated else 1 if any(dims[-1] for dims in repeated) else 2


def _strides(tensors: Tensors) -> list[list[int]]:
    """Returns the strides, in the first tensor's dimensions, of all that have its shape or broadcast to it."""
    shape = tensors[0].shape
    found = []
    for tensor in tensors:
        missing = len(shape) - tensor.dim()
        if missing >= 0 and all(a in (1, b) for a, b in zip(tensor.shape, shape[missing:])):
            found.append([0] * missing + [0 if a == 1 else s for a, s in zip(tensor.shape, tensor.stride())])
    return found


def _reduces_apart(dims: Any, tensor: torch.Tensor) -> bool:
    """Returns true if a reduction over these dimensions joins numbers that do not lie side by side."""
    reduced = {d % tensor.dim() for d in ([dims] if isinstance(dims, int) else dims or ())} if tensor.dim() else ()
    wide = [d for d in range(tensor.dim()) if tensor.shape[d] > 1]
    return bool(reduced and wide) and min(wide, key=tensor.stride) not in reduced


def _repeated(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape))


def order_in_memory(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the dimensions, outermost first, as they lie in memory; None if there are gaps between the elements."""
    wide = [d for d in range(tensor.dim()) if tensor.shape[d] > 1]
    if tensor.is_contiguous():
        return tuple(wide)
    expected = 1
    wide.sort(key=tensor.stride, reverse=True)
    for dim in reversed(wide):
        if tensor.stride(dim) != expected:
            return None
        expected *= tensor.shape[dim]
    return tuple(wide)

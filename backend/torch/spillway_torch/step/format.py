"""The form of a trace, the file that `spillway` reads (traces/FORMAT.md): its tensors, ops, saved tensors, and the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

MATMUL = frozenset(("mm", "bmm", "addmm", "baddbmm", "addbmm", "_addmm_activation", "_scaled_mm", "_grouped_mm", "_int_mm"))
DATA_TYPES = frozenset("""float64 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool complex64
    complex128""".split())


def tensor_form(name: str, kind: str, shape: Sequence[int], size: int, dtype: torch.dtype | None = torch.uint8) -> dict[str, Any]:
    """Returns a tensor. Its extent follows from its size if it has no shape."""
    known = str(dtype).rpartition(".")[2]
    item = dtype.itemsize if dtype is not None else 1
    form = {"name": name, "kind": kind, "shape": list(shape or [size // item]), "size": size}
    return {**form, "dtype": known} if known in DATA_TYPES else form  # float32, or a type that a trace does not know


def op_form(name: str, layer: str, type_: str, phase: str, batch: int, inputs: list[str], outputs: list[str], signature: str,
            flops: int = 0, traffic: int = 0) -> dict[str, Any]:
    """Returns an op, which lacks its `recorded_form`."""
    return {"name": name, "layer": layer, "type": type_, "phase": phase, "batch": batch, "inputs": inputs, "outputs": outputs,
            "slots": [{"name": "op", "signature": signature, "flops": flops, "traffic": traffic}]}


def recorded_form(time_ns: int = 0, host_ns: int = 0, workspace: int = 0) -> dict[str, Any]:
    return {"time_ns": time_ns, "gap_ns": 0, "host_ns": host_ns, "workspace": workspace}


def trace_form(network: str, batch: int, training: bool, recording: dict[str, Any], layers: list[dict[str, str]],
               tensors: list[dict[str, Any]], ops: list[dict[str, Any]], saved: list[dict[str, Any]],
               hooks: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the trace of a step of PyTorch, in the earliest version that knows all that it has."""
    version = 7 if hooks else 6 if saved else 5 if "requests" in recording else 4
    return {"format": "spillway-trace", "version": version, "name": f"{network}:{batch}", "network": network, "batch": batch,
            "preset": "recorded", "training": training, "recording": {"framework": f"PyTorch {torch.__version__}", **recording},
            "layers": layers, "tensors": tensors, "ops": ops, **({"saved": saved} if saved else {}), **({"hooks": hooks} if hooks else {})}


def type_of(name: str) -> str:
    """Returns the op type of an operator for its name without namespace."""
    if name in MATMUL:
        return "matmul"
    if "convolution" in name or "conv_depthwise" in name:
        return "convolution"
    return "attention" if "attention" in name else "other"


def saved_tensors(found: Iterable[tuple[str, int, Iterable[int]]]) -> list[dict[str, Any]]:
    """Returns the saved tensors of a trace for their names, and the positions at which each was packed and unpacked."""
    positions: dict[tuple[int, str], set[int]] = {}
    for name, packed, unpacked in found:
        positions.setdefault((packed, name), set()).update(unpacked)
    return [{"tensor": name, "packed": packed, "unpacked": sorted(unpacked)}
            for (packed, name), unpacked in sorted(positions.items(), key=lambda item: item[0][0])]

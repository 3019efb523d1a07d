"""Joins tables of operators."""

from __future__ import annotations

import os
from typing import Any

from ..base.document import read_document
from ..base.errors import SpillwayError


def joined(path: str | os.PathLike[str], more: dict[str, Any]) -> dict[str, Any]:
    """Returns the table of a file with those operators of another one that it does not have.

    more: a table of the same GPU, as `Step.trace` returns it.

    Raises `SpillwayError` if the file is no table of this GPU and this version of PyTorch.
    """
    try:
        table = read_document(path)
        made = {key: table[key] for key in ("format", "version", "network")} | {
            key: table["recording"][key] for key in ("framework", "device")}
        known = set(_kinds_of(table))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpillwayError(f"{os.fspath(path)}: it is not a table of operators: {error!r}") from error
    for key, value in made.items():
        wanted = more.get(key, more["recording"].get(key))
        if value != wanted:
            raise SpillwayError(f"{os.fspath(path)}: its {key} is {value!r}; expected {wanted!r}, which the new operators have")
    tensors = {tensor["name"]: tensor for tensor in more["tensors"]}
    for kind, op, layer in zip(_kinds_of(more), more["ops"], more["layers"]):
        if kind in known:
            continue
        named = f"{op['name'].rpartition('.')[0]}.{len(table['ops'])}"

        def renamed(name: str, old: str = op["name"], new: str = named) -> str:
            return new + name.removeprefix(old)

        sides = {side: [renamed(name) for name in op[side]] for side in ("inputs", "outputs")}
        table["tensors"] += [tensors[name] | {"name": renamed(name)} for name in dict.fromkeys((*op["inputs"], *op["outputs"]))]
        table["layers"].append(layer | {"name": named})
        table["ops"].append(op | {"name": named, "layer": named} | sides)
    return dict(table)


def _kinds_of(table: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Returns what tells each operator of a table from the others: its name, attributes, types and arithmetic."""
    types = {tensor["name"]: tensor.get("dtype", "float32") for tensor in table["tensors"]}
    return [(op["name"].rpartition(".")[0], frozenset(op["attributes"].items()), tuple(dict.fromkeys(types[name] for name in op["inputs"])),
             types[op["outputs"][0]] if op["outputs"] else "", op["slots"][0].get("arithmetic", "")) for op in table["ops"]]

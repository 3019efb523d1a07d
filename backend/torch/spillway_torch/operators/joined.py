"""Joins tables of operators: one that was recorded now, and the file of an earlier one."""

from __future__ import annotations

import os
from typing import Any

from ..base.document import read_document
from ..base.errors import SpillwayError
from .like import key_in, tensors_of


def joined(path: str | os.PathLike[str], more: dict[str, Any]) -> dict[str, Any]:
    """Returns the table of a file with those operators of another one that it does not have.

    more: a table of the same GPU, as `Step.trace` returns it.

    Raises `SpillwayError` if the file is no table of this GPU and this version of PyTorch.
    """
    try:
        table = read_document(path)
        made = {key: table[key] for key in ("format", "version", "network")} | {
            key: table["recording"][key] for key in ("framework", "device")}
        given = tensors_of(table)
        known = {key_in(op, given) for op in table["ops"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpillwayError(f"{os.fspath(path)}: it is not a table of operators: {error!r}") from error
    for key, value in made.items():
        wanted = more.get(key, more["recording"].get(key))
        if value != wanted:
            raise SpillwayError(f"{os.fspath(path)}: its {key} is {value!r}; expected {wanted!r}, which the new operators have")
    tensors, typed = {tensor["name"]: tensor for tensor in more["tensors"]}, tensors_of(more)
    for op, layer in zip(more["ops"], more["layers"]):
        if key_in(op, typed) in known:
            continue
        new = f"{op['name'].rpartition('.')[0]}.{len(table['ops'])}"

        def renamed(name: str, old: str = op["name"], new: str = new) -> str:
            return new + name.removeprefix(old)

        sides = {side: [renamed(name) for name in op[side]] for side in ("inputs", "outputs")}
        used = [*op["inputs"], *op["outputs"]]
        for name in dict.fromkeys((*(tensors[name].get("alias_of", name) for name in used), *used)):
            tensor = tensors[name]
            table["tensors"].append(tensor | {key: renamed(tensor[key]) for key in ("name", "alias_of") if key in tensor})
        table["layers"].append(layer | {"name": new})
        table["ops"].append(op | {"name": new, "layer": new} | sides)
    return dict(table)

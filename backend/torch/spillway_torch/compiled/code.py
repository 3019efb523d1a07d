"""The bytes that a compiled graph takes, read from the code that Inductor has generated for it, before it runs."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

import torch

from ..base.device import Device
from . import pytorch
from .joint import Outcome

log = logging.getLogger("spillway_torch")


def outcome_of(codes: Sequence[pytorch.Code], device: Device, seconds: float, number: Callable[[Any], int] = int) -> Optional[Outcome]:
    """Returns what a graph takes on a device, in blocks of its allocator, by the code of its forward and backward; None if the code does
    not tell. Its kernels take `seconds`, and `number` gives the sizes that vary.

    What forward saved is there until the code of backward deletes it. The gradients of forward's results stay to its end, because
    autograd holds them. What an operator allocates for itself while it runs is not counted.
    """
    try:
        forward, backward = sorted(codes, key=lambda code: code.backward)
        with pytorch.no_data():
            given = [pytorch.like(value, number) for value in forward.inputs]
            outside = {storage for storage, _ in _storages(given, device)}
            first = _Walk(device, outside, [])
            made = dict(zip(forward.results, first.run(forward.text, given)))
            values = [made[name] if name in made else pytorch.like(value, number) for name, value in zip(backward.names, backward.inputs)]
            second = _Walk(device, outside, [value for name, value in zip(backward.names, values) if name not in made])
            second.run(backward.text, values)
            saved = _Walk(device, outside, [made[name] for name in backward.names if name in made])
            return Outcome(saved.most, first.most, second.most, seconds)
    except Exception as error:  # pylint: disable=broad-except; code of another kind than what this was tested with
        log.debug("spillway: the code of a graph does not tell its memory: %r", error)
        return None


def _storages(value: Any, device: Device) -> Iterator[tuple[int, int]]:
    """Gives the storages of a device, with their bytes, of a tensor or of those in a sequence."""
    if isinstance(value, torch.Tensor) and value.device.type == device.type:
        storage = value.untyped_storage()
        yield storage._cdata, device.block(storage.nbytes())
    for part in value if isinstance(value, (list, tuple)) else ():
        yield from _storages(part, device)


class _Walk:
    """Runs generated code without its kernels, on tensors without data, and counts the storages that its names hold."""

    def __init__(self, device: Device, outside: set[int], held: list[Any]) -> None:
        """outside: storages that do not count. held: tensors that are there to the end."""
        self.device, self.outside = device, outside
        self.names: dict[str, Any] = pytorch.names_in_code(device.type)
        self.holders: dict[int, int] = {}  # by storage
        self.live = self.most = 0  # bytes
        self._set("tensors that are held", held)

    def run(self, text: str, given: Sequence[Any]) -> Any:
        """Runs the function `call` of a program. Returns its results."""
        call = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == "call")
        self.names["args"] = given  # its names have them in its first line
        return self._run(call.body)

    def _run(self, lines: Iterable[ast.stmt]) -> Any:
        for line in lines:
            if isinstance(line, ast.Assign):
                value = self._value(line.value)
                for target in line.targets:
                    parts = zip(target.elts, value) if isinstance(target, ast.Tuple) else [(target, value)]
                    for name, part in parts:
                        self._set(ast.unparse(name), part)
            elif isinstance(line, ast.Delete):
                for name in line.targets:
                    self._set(ast.unparse(name), None)
            elif isinstance(line, ast.With):
                if (results := self._run(line.body)) is not None:
                    return results
            elif isinstance(line, ast.Return) and line.value is not None:
                return self._value(line.value)
            elif not isinstance(line, ast.Expr):  # a kernel, or a check
                raise ValueError(f"a line of generated code: {ast.unparse(line)}")
        return None

    def _value(self, expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "code", "eval"), self.names)  # pylint: disable=eval-used

    def _set(self, name: str, value: Any) -> None:
        """Gives a name a value, then takes the one away that it had."""
        before, self.names[name] = self.names.get(name), value
        for storage, size in _storages(value, self.device):
            self.holders[storage] = self.holders.get(storage, 0) + 1
            self.live += size * (self.holders[storage] == 1 and storage not in self.outside)
        self.most = max(self.most, self.live)
        for storage, size in _storages(before, self.device):
            self.holders[storage] -= 1
            self.live -= size * (self.holders[storage] == 0 and storage not in self.outside)

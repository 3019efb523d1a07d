"""The modules in whose forward pass the program is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks


def find_blocks(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Returns (name, module) of each block: the members of the outermost lists of two or more modules of one class."""
    found: list[tuple[str, torch.nn.Module]] = []

    def visit(name: str, module: torch.nn.Module) -> None:
        children = list(module.named_children())
        compound = [child for _, child in children if any(True for _ in child.children())]
        if (type(module).__name__ in ("ModuleList", "Sequential") and len(children) > 1 and
                len(compound) == len(children) and len({type(child) for child in compound}) == 1):
            found.extend((f"{name}{key}", child) for key, child in children)
            return
        for key, child in children:
            visit(f"{name}{key}.", child)

    visit("", model)
    return found


def _plain(name: str) -> str:
    """Returns the name of a module as it is without the modules that torch.compile puts around others."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def is_called_from(module: ModuleType) -> bool:
    """Returns whether a function of a module has made this call."""
    frame: FrameType | None = sys._getframe(1)  # its own frame would hold itself, with the tensors of the program
    while frame is not None and frame.f_globals is not vars(module):
        frame = frame.f_back
    return frame is not None


class Modules:
    """Follows the calls of modules, in all threads while `watched`."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # by id; `_roots` keeps the modules alive
        self._roots: list[torch.nn.Module] = []
        self._stack = threading.local()
        self._backward: list[str] = []
        self.blocks: set[str] = set()

    def add_root(self, root: torch.nn.Module) -> None:
        """Names the modules of a model. The first model's names have no prefix."""
        prefix = "" if not self._roots else f"{type(root).__name__}{len(self._roots)}."
        self._roots.append(root)
        for name, module in root.named_modules():
            self._names.setdefault(id(module), (prefix + _plain(name)).rstrip("."))
        self.blocks |= {prefix + _plain(name) for name, _ in find_blocks(root)}

    def buffers(self) -> Iterator[torch.Tensor]:
        """Yields the buffers of all modules that were called."""
        for root in self._roots:
            yield from root.buffers()

    def path(self) -> str:
        """Returns the path of the module that runs in this thread; empty if none."""
        calls = self._calls()
        return self.path_of(calls[-1]) if calls else ""

    def path_of(self, module: torch.nn.Module) -> str:
        return self._names.get(id(module), "")

    def _calls(self) -> list[torch.nn.Module]:
        if not hasattr(self._stack, "calls"):
            self._stack.calls = []
        calls: list[torch.nn.Module] = self._stack.calls
        return calls

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follows calls until the context ends."""
        def enter(module: torch.nn.Module, _: Any) -> None:
            if id(module) not in self._names:
                self.add_root(module)
            self._calls().append(module)

        def leave(module: torch.nn.Module, *_: Any) -> None:
            calls = self._calls()
            while calls and calls.pop() is not module:
                pass

        hooks = [module_hooks.register_module_forward_pre_hook(enter),
                 module_hooks.register_module_forward_hook(leave, always_call=True)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

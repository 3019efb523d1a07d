"""Compiled parts of a step: modules under torch.compile, of which a recording sees what goes in, what comes out, and what is saved."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree

from ..step.recording import refuse_compiled
from .tape import Shapes


class CompiledCalls:
    """Within it, `run` is given the calls of compiled modules, and other compiled functions are refused.

    `run` takes the module, what calls it, and the call's arguments, and returns the call's result. `given` has the shapes of the tensors
    that the first module was given that was given some.
    """

    def __init__(self, run: Callable[[torch.nn.Module, Callable[[], Any], Any], Any]) -> None:
        self._run = run
        self.given: Shapes = ()
        self._thread = 0
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._patches.enter_context(refuse_compiled())
        plain = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self.given:
                self.given = tuple(tuple(tensor.shape) for tensor in all_tensors([args, kwargs]))
            if not is_compiled(module) or threading.get_ident() != self._thread:
                return plain(module, *args, **kwargs)
            return self._run(module, lambda: plain(module, *args, **kwargs), [args, list(kwargs.values())])

        self._patches.enter_context(mock.patch.object(torch.nn.Module, "__call__", call))

    def __exit__(self, *_: Any) -> None:
        self._patches.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within it, everything is called as outside."""
        self._patches.close()
        try:
            yield
        finally:
            self.__enter__()


def is_compiled(module: torch.nn.Module) -> bool:
    """Returns whether a call of the module itself runs under torch.compile."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def region_name(module: torch.nn.Module) -> str:
    return f"compiled::{type(getattr(module, '_orig_mod', module)).__name__}"


def without_compilation(*functions: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Returns functions that torch.compile leaves as they are, also where the program's compiled code calls them."""
    if "torch._dynamo.eval_frame" not in sys.modules:  # nothing is compiled
        return functions
    return tuple(torch.compiler.disable(function) for function in functions)


def all_tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in arguments or results of any structure."""
    return [item for item in torch.utils._pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


def compiled_graphs() -> int:
    """Returns how many graphs torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def nodes_of_regions(made: list[torch.Tensor], first: int) -> list[Any]:
    """Returns the nodes of compiled graphs behind some tensors, as far as their numbers are at least `first`."""
    waiting: list[Any] = [t.grad_fn for t in made]
    seen: dict[Any, None] = {}
    while waiting:
        function = waiting.pop()
        if function is None or hasattr(function, "variable") or function in seen or function._sequence_nr() < first:
            continue
        seen[function] = None
        waiting += [before for before, _ in function.next_functions]
    return [function for function in seen if function.name() == "CompiledFunctionBackward"]

"""The calls of models that have a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base.errors import SpillwayError
from ..run.chunked_loss import FORWARD
from ..tape.hooks import Hooks
from .accepted import CALL, STATE


class Calls:
    """Has calls of models begin parts of steps, until `close`. Copies and files of the models have ordinary calls."""

    def __init__(self, models: Sequence[torch.nn.Module], begin: Callable[[int, Any], Hooks | None], end: Callable[[], None],
                 fail: Callable[[], None], state_of: Callable[[torch.nn.Module], dict[str, Any]]) -> None:
        """begin: is given the number of a model and its inputs, and returns the hooks of this thread's part, if there is one.
        end, fail: follow the call that is in no other one, or a part's first call that raises an error.
        state_of: stands in the place of a model's `__getstate__`.
        """
        self._begin, self._end, self._fail = begin, end, fail
        self._state_of, self._calls = state_of, list[tuple[torch.nn.Module, Callable[..., Any]]]()
        self.add(models)

    def add(self, models: Sequence[torch.nn.Module]) -> None:
        """Has calls of more models, with the numbers behind those before, begin parts of steps."""
        for model in models:
            call = self._call_of(len(self._calls), model)
            self._calls.append((model, call))
            vars(model).update({CALL: call, STATE: lambda model=model: self._state_of(model)})

    def close(self) -> None:
        """Gives the models their own calls back, and lets go of them."""
        for model, call in self._calls:
            if vars(model).get(CALL) is call:
                del vars(model)[CALL]
                vars(model).pop(STATE)
        self._calls.clear()

    def _call_of(self, at: int, model: torch.nn.Module) -> Callable[..., Any]:
        """Returns what stands in the place of the model's `_call_impl`."""
        def call(*given: Any, **named: Any) -> Any:
            if torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
                raise SpillwayError("the model runs under torch.compile, which has a budget with fit(..., compiled=True)")
            hooks = self._begin(at, (given, named))
            if hooks is None:
                return type(model)._call_impl(model, *given, **named)
            hooks.calls += 1
            try:
                result = type(model)._call_impl(model, *given, **named)
            except BaseException:  # also where the user interrupts it
                if hooks.calls == 1:
                    self._fail()
                raise
            finally:
                hooks.calls -= 1
            if not hooks.calls:
                self._end()
            return result

        setattr(call, "_torchdynamo_disable", True)  # torch.compile leaves it as it is
        return call


def called(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns what a program calls of a model: itself, or its children, if there are some and it has no forward."""
    if type(model).forward is not torch.nn.Module.forward or "forward" in vars(model):
        return [model]
    return [part for child in model.children() for part in called(child)] or [model]


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the model's state for copies and files, in the place of its `__getstate__`: they have no plan."""
    own = getattr(type(model), STATE, None)
    state = dict(own(model) if own is not None else vars(model))
    return {name: value for name, value in state.items() if name not in (CALL, STATE) and not (
        name == FORWARD and getattr(value, "of_spillway", False))}

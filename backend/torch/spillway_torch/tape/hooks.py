"""Saved-tensor hooks that stay active between the calls of a model, until a backward reads what they saved."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch

from ..base.errors import NotRecordableError, SpillwayError

_thread = threading.local()
_entered: set[Hooks] = set()  # of all threads
_engine: Callable[..., Any] | None = None  # runs a backward
_disable = torch.autograd.graph.disable_saved_tensors_hooks


class Hooks:
    """A pair of saved-tensor hooks, of which each thread has one at a time.

    Those that stay are inactive in each backward that makes no graph, so that nothing of them is in PyTorch's threads, and are left when
    it has read what they saved. The program's own hooks may come and go above them: those below are left as soon as they are on top.
    """

    def __init__(self, pair: tuple[Callable[..., Any], ...], part: Any, stay: bool = False, watch: Any = None) -> None:
        """part: its `read` says whether such a backward has read what was saved, and `waits` whether one still may.
        watch: it is paused and resumed together with the hooks, and ends with them.
        """
        self._pair, self._part, self.stay, self._watch = pair, part, stay, watch
        self._thread = 0
        self._active = False  # on PyTorch's stack
        self.left = False
        self.calls = 0  # of models, one in another, that run now
        self.transforms = True  # those of torch.func run without the hooks; else they are refused

    def enter(self) -> None:
        """Raises `SpillwayError` as `refuse_hooks` does."""
        global _engine
        refuse_hooks()
        if _engine is None:
            _engine = getattr(torch.autograd, "_engine_run_backward")
            setattr(torch.autograd, "_engine_run_backward", _run_backward)
        setattr(torch.autograd.graph, "disable_saved_tensors_hooks", _disable_hooks)
        self._thread = threading.get_ident()
        _thread.hooks = self
        _entered.add(self)
        self._push()

    def leave(self) -> None:
        """Ends their time, also where they lie below others, or are those of another thread."""
        self.left = True
        if self._watch is not None:
            self._watch.end()
        _entered.discard(self)
        if not _entered:
            setattr(torch.autograd.graph, "disable_saved_tensors_hooks", _disable)
        hooks_here()

    def are_here(self) -> bool:
        """Returns whether they are those of this thread."""
        return self._thread == threading.get_ident()

    def pop(self) -> bool:
        """Returns whether they are inactive now: none that lie below others are."""
        if self._active and torch._C._autograd._top_saved_tensors_default_hooks(False) == self._pair:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            self._active = False
        return not self._active

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within it, they are inactive, unless they lie below others."""
        if self._watch is not None:
            self._watch.pause()
        popped = self._active and self.pop()
        try:
            yield
        finally:
            if self.stay and not self.calls and self._part.read:
                self.leave()
            elif not self.left:
                if popped:
                    self._push()
                if self._watch is not None:
                    self._watch.resume()

    def are_useless(self) -> bool:
        """Returns whether nobody uses what they saved."""
        return self.stay and not self.calls and not self._part.waits()

    def _push(self) -> None:
        torch._C._autograd._push_saved_tensors_default_hooks(*self._pair)
        self._active = True


def hooks_here() -> Optional[Hooks]:
    """Returns the hooks of this thread, unless they were left."""
    hooks: Optional[Hooks] = getattr(_thread, "hooks", None)
    if hooks is not None and hooks.left and hooks.pop():
        _thread.hooks = None
    return hooks if hooks is not None and not hooks.left else None


def refuse_hooks() -> None:
    """Raises `SpillwayError` if saved-tensor hooks are active, which those of a plan would undo.

    It raises the same error for a version of PyTorch that does not show what a plan needs: which hooks are active.
    """
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        raise SpillwayError(f"plans need a later version of PyTorch than {torch.__version__}; they are tested with 2.11")
    hooks = hooks_here()
    if hooks is not None and hooks.are_useless():
        hooks.leave()
    elif hooks is not None:
        raise SpillwayError("a step under a plan, or a recorded one, is open already: give all models that a step calls to one `fit`, as "
                            "in fit([one, other], optimizer, memory=...)")
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        raise SpillwayError("saved-tensor hooks are active (save_on_cpu, or others) around the step: a plan would undo them; "
                            "use them inside the step or leave them out")


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _run_backward(outputs: Any, *args: Any, **named: Any) -> Any:
    """Stands for the function that `torch.autograd.backward` and `torch.autograd.grad` call; args[2] says whether they make a graph."""
    assert _engine is not None  # nothing was entered before
    hooks = hooks_here()
    if args[2] or in_backward():
        return _engine(outputs, *args, **named)
    with hooks.paused() if hooks is not None and hooks.stay else contextlib.nullcontext():
        made = _engine(outputs, *args, **named)
    ended = getattr(_thread, "ended", lambda: None)()
    if ended is not None:
        ended()
    return made


def watch_backward(ended: Optional[Callable[[], None]]) -> None:
    """Has a method called at the end of each backward of this thread that makes no graph, as long as its object lives."""
    _thread.ended = weakref.WeakMethod(ended) if ended is not None else lambda: None


def _disable_hooks(message: str) -> Any:
    """Stands for PyTorch's `disable_saved_tensors_hooks`, with which transforms of torch.func begin; it fails where hooks are active."""
    hooks = hooks_here()
    if hooks is None:
        return _disable(message)
    if not hooks.transforms:
        raise NotRecordableError("torch.func.grad, vjp, jacrev and hessian allow no saved-tensor hooks, which a plan needs: "
                                 "use torch.autograd.grad in the step, or call them outside of it")
    return _without(hooks, message)


@contextlib.contextmanager
def _without(hooks: Hooks, message: str) -> Iterator[None]:
    with hooks.paused(), _disable(message):
        yield

"""The numbers that a program reads from tensors without data.

A number that is only printed or computed with is not needed. Where the program decides by one, the caller of `record` can
give it (`assume`); otherwise the recording is refused.
"""

from __future__ import annotations

import contextlib
import dis
import logging
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional

import torch

from ..base.errors import NotRecordableError, SpillwayError

log = logging.getLogger("spillway_torch")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LIBRARIES = re.compile(r"^.*/(?:site|dist)-packages/")
_CHOICES = {"max", "min", "sorted"}


def _frame(*others: str) -> Optional[types.FrameType]:
    """Returns the innermost frame that does not belong to this package, nor to the folders `others`."""
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<frozen", *others)):
        frame = frame.f_back
    return frame


def line_of_program() -> str:
    """Returns the line that runs, "train.py:31", outside PyTorch, with the path in the library if it is one; empty if it is not known."""
    frame = _frame(_TORCH)
    return "" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


def _line(path: str, number: int) -> str:
    return f"{_LIBRARIES.sub('', path) if _LIBRARIES.match(path) else os.path.basename(path)}:{number}"


def compared_by_choice() -> bool:
    """Returns whether `max`, `min` or `sorted` compares: the program then does not decide itself."""
    frame = _frame()
    return (frame is not None and not _CHOICES.isdisjoint(frame.f_code.co_names)
            and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL"))


class Numbers:
    """What `assume` gives, and the plain numbers that stood for others."""

    def __init__(self) -> None:
        self.assumed: Mapping[str, Any] = {}  # by line of the program: a number, a list, or a function that returns one
        self._used: set[str] = set()
        self._plain: dict[str, str] = {}  # by line

    def assume(self, assumed: Optional[Mapping[str, Any]]) -> None:
        """Takes what the caller gives. Raises `SpillwayError` unless the keys name lines."""
        for key in assumed or {}:
            if not re.fullmatch(r".+:\d+", key):
                raise SpillwayError(f"assume: '{key}' names no line; expected the form 'train.py:31', as the error says it")
        self.assumed, self._used, self._plain = dict(assumed or {}), set(), {}

    def given(self) -> Any:
        """Returns what the caller assumes for the line that runs; None if nothing."""
        line = line_of_program()
        for key, value in self.assumed.items():
            if line == key or line.endswith("/" + key):
                self._used.add(key)
                return value() if callable(value) else value
        return None

    def plain(self, what: str, value: Any, described: str = "") -> Any:
        """Returns the number, or the list of numbers, for a call that has to give one, and notes that it is not the true one."""
        given = self.given()
        if given is not None:
            return type(value)(given)
        self._plain.setdefault(line_of_program(), f"{what} gave {described or value}")
        return value

    def report(self) -> None:
        """Says which numbers were not the true ones. Raises `SpillwayError` if one of `assume` was not asked for."""
        unused = sorted(set(self.assumed) - self._used)
        if unused:
            raise SpillwayError(f"assume: no number was asked for at {', '.join(unused)}")
        if self._plain:
            log.warning("spillway: numbers that depend on data stood for others: %s; record(..., assume={'%s': NUMBER}) gives another",
                        ", ".join(f"{what} at {line}" for line, what in self._plain.items()), next(iter(self._plain)))


def needs(what: str, place: str, line: str = "") -> NotRecordableError:
    """Returns the error for a result or decision that depends on data. place: see `Recorder.place`. line: by default, the one that runs."""
    line = line or line_of_program()
    return NotRecordableError(f"{what}{place} depends on data, which a recording without data does not have" + (
        f"; record(..., assume={{'{line}': VALUE}}) gives it" if line else ""))


@contextlib.contextmanager
def sizes_named() -> Iterator[None]:
    """Within it, an error of PyTorch about a size that depends on data becomes one that says where the program asks for it."""
    try:
        yield
    except TypeError as error:
        if NoValue.__name__ not in str(error):
            raise
        lines = [_line(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)
                 if not frame.filename.startswith((_PACKAGE, _TORCH, "<frozen"))]
        line = lines[-1] if lines else ""
        raise needs(f"a size that {str(error).partition('(')[0]}() takes", f" ({line})", line) from error


class NoValue(float):
    """The number that a tensor without data gives. It is finite, it prints as "nan", and a decision on it raises
    `NotRecordableError` unless the number is assumed."""

    _numbers: Numbers
    _place: Callable[[], str]

    def __new__(cls, numbers: Numbers, place: Callable[[], str]) -> "NoValue":
        value = super().__new__(cls, 1.0)
        value._numbers, value._place = numbers, place
        return value

    def __reduce__(self) -> Any:
        return float, ("nan",)

    def __repr__(self) -> str:
        return "nan"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        try:
            return format(float("nan"), spec)
        except ValueError:  # a format of integers
            return "nan"

    def _refuse(self, *_: Any) -> Any:
        raise needs("a decision of the program", self._place())

    def _compare(self, *_: Any) -> bool:
        return True if compared_by_choice() else self._refuse()

    def _derive(self, *_: Any) -> "NoValue":
        return NoValue(self._numbers, self._place)

    def __int__(self) -> int:
        return int(self._numbers.plain("int()", 1))

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compare
    __bool__ = __index__ = _refuse
    __hash__ = float.__hash__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = __pos__ = __abs__ = _derive
    __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _derive
    __round__ = __trunc__ = __floor__ = __ceil__ = _derive  # type: ignore[assignment]


FINITE = {function: finite for name, finite in (("isfinite", True), ("isnan", False), ("isinf", False), ("isposinf", False),
                                                ("isneginf", False))
          for function in (getattr(torch, name), getattr(torch.Tensor, name))}
COMPARISONS = (torch.Tensor.gt, torch.Tensor.lt, torch.Tensor.ge, torch.Tensor.le)

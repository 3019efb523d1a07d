"""The exceptions of this package."""

from __future__ import annotations


class SpillwayError(Exception):
    """The base of all exceptions that this package raises itself."""


class NotRecordableError(SpillwayError):
    """The step does something that a recording without data cannot follow.

    The message names the operator or call, the module that ran it, and the reason.
    """


class ProgramError(SpillwayError):
    """The program `spillway` is missing or failed."""


class FloorError(SpillwayError):
    """The budget is below the floor of all plans; `least` is the floor, in bytes."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class NoPlanError(SpillwayError):
    """The program found no plan within the budget; `best` is the least memory, in bytes, with which it found one."""

    def __init__(self, message: str, best: int) -> None:
        super().__init__(message)
        self.best = best

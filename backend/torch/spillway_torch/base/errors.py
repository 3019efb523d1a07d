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


class NoPlanError(SpillwayError):
    """The planner found no plan within the budget; `best` is the predicted peak, in bytes, of the best one that it tried."""

    def __init__(self, message: str, best: int) -> None:
        super().__init__(message)
        self.best = best

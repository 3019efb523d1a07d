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

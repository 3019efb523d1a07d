"""The program `spillway`, which plans and simulates."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
from typing import Any

from .errors import ProgramError


def find_program() -> str:
    """Returns the path of `spillway`: the value of the variable SPILLWAY, else the program that was installed with this package,
    else the one on PATH.

    Raises `ProgramError` if there is none.
    """
    named = os.environ.get("SPILLWAY")
    if named:
        if os.path.isfile(named) and os.access(named, os.X_OK):
            return named
        raise ProgramError(f"SPILLWAY={named} is not a program")
    found = _installed() or shutil.which("spillway")
    if found is None:
        raise ProgramError("the program 'spillway' is not on PATH, and this package was installed without it; install the wheel "
                           "(README of Spillway), or set the variable SPILLWAY to the path of a program")
    return found


def _installed() -> str | None:
    """Returns the path of the program that was installed with this package, if there is one."""
    for package in importlib.metadata.distributions(name="spillway-torch"):
        for file in package.files or ():
            if file.parts[-2:] == ("bin", "spillway") and os.path.isfile(file.locate()):
                return os.path.realpath(file.locate())
    return None


def run_program(*arguments: str) -> str:
    """Runs `spillway` and returns its standard output. Raises `ProgramError` with its message if it fails.

    Exit code 1, a negative answer such as "does not fit", is no failure.
    """
    done = subprocess.run([find_program(), *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise ProgramError(f"spillway {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    """Returns the rows that `spillway` prints with --format json. Raises `ProgramError` if it fails or prints none."""
    try:
        rows: list[dict[str, Any]] = json.loads(run_program(*arguments, "--format", "json", "--quiet"))["rows"]
    except (ValueError, KeyError) as error:
        raise ProgramError(f"spillway {arguments[0]} printed no rows: {error}") from error
    return rows

"""The program `spillway`, which plans and simulates."""

from __future__ import annotations

import os
import shutil
import subprocess

from .errors import ProgramError


def find_program() -> str:
    """Returns the path of `spillway`: the value of the variable SPILLWAY, else the program of that name on PATH.

    Raises `ProgramError` if there is none.
    """
    named = os.environ.get("SPILLWAY")
    if named:
        if os.path.isfile(named) and os.access(named, os.X_OK):
            return named
        raise ProgramError(f"SPILLWAY={named} is not a program")
    found = shutil.which("spillway")
    if found is None:
        raise ProgramError("the program 'spillway' is not on PATH; build it (README of Spillway) and put it there, or set the "
                           "variable SPILLWAY to its path")
    return found


def run_program(*arguments: str) -> str:
    """Runs `spillway` and returns its standard output. Raises `ProgramError` with its message if it fails.

    Exit code 1, a negative answer such as "does not fit", is no failure.
    """
    done = subprocess.run([find_program(), *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise ProgramError(f"spillway {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout

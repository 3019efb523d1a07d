"""Steps of training that stand in a file of the user's."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .errors import SpillwayError

NAME = "spillway_step"  # the name of the file as a module


def load_step(named: str) -> Callable[[], Any]:
    """Returns the step that "FILE.py:FUNCTION" names, as `load_function` does; FUNCTION is `step` if it is left out.

    Calls of the function raise `SpillwayError`, too, with the place of an error in the file; errors of this package pass.
    """
    path, found = load_function(named, "step")
    return lambda: guarded(path, found)


def load_function(named: str, default: str) -> tuple[str, Callable[..., Any]]:
    """Returns FILE.py and the function that "FILE.py:FUNCTION" names, or "FILE.py" and `default`.

    The file runs as a module, not as a program: the block under `if __name__ == "__main__"` does not run. Raises `SpillwayError` with
    the place of an error in the file.
    """
    path, _, function = named.rpartition(":") if not named.endswith(".py") else (named, "", default)
    if not os.path.isfile(path) or not path.endswith(".py"):
        raise SpillwayError(f"{path}: no such file; expected FILE.py or FILE.py:FUNCTION")
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None  # the name of the file ends in .py
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    guarded(path, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    found = getattr(module, function, None) if function else None
    if not callable(found):
        functions = sorted(name for name, value in vars(module).items() if getattr(value, "__module__", "") == NAME and callable(value))
        raise SpillwayError(f"{path}: no function '{function}' (functions: {', '.join(functions) or 'none'})")
    return path, found


def guarded(path: str, run: Callable[[], Any]) -> Any:
    """Returns the result of `run`. Raises `SpillwayError` for its errors, with their place if it is in the file `path`."""
    try:
        return run()
    except SpillwayError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == os.path.abspath(path)]
        line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else lines[-1] if lines else None
        raise SpillwayError(f"{path}{f':{line}' if line else ''}: {type(error).__name__}: {error}") from error

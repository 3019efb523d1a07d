"""Finds the library that carries out plans (the C++ of this folder), which is built for a version of PyTorch and of Python."""

from __future__ import annotations

import fcntl
import functools
import importlib.machinery
import importlib.util
import logging
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import zlib
from typing import Any

import torch

from ..base.errors import SpillwayError

log = logging.getLogger("spillway_torch")
SOURCES = tuple(sorted(path for path in pathlib.Path(__file__).parent.iterdir() if path.suffix in (".h", ".cc")))


def library_path(folder: pathlib.Path = SOURCES[0].parent) -> pathlib.Path:
    """Returns where the library is. Its name says for which PyTorch it is, and ends in a sum of all that it depends on."""
    version = torch.__version__.split("+")[0]
    key = f"{version} {torch.compiled_with_cxx11_abi()} {platform.machine()} {sys.implementation.cache_tag}".encode()
    for source in SOURCES:
        key += source.read_bytes()
    return folder / f"steps-{version}-{zlib.crc32(key):08x}.so"


def found_library() -> pathlib.Path:
    """Returns the path of the library: in the package, or in the user's cache, for which it is built at its first use.

    Raises OSError with the reason if there is none.
    """
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spillway_torch"
    for library in library_path(), library_path(cache):
        if library.exists():
            return library
    this = f"PyTorch {torch.__version__} and Python {platform.python_version()}"
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        raise OSError(f"no library was built for {this}, and there is no C++ compiler ({compiler}) to build it")
    output = library.with_suffix(".log")
    cache.mkdir(parents=True, exist_ok=True)
    with open(output, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another process of the program may be building it
        if not library.exists() and not output.stat().st_size:  # else a build failed
            log.warning("spillway: building the library for %s, which takes a minute, once", this)
            subprocess.run([sys.executable, "-m", "spillway_torch.build", cache], check=False, stdout=file, stderr=file,
                           cwd=pathlib.Path(__file__).parents[2])
        if library.exists():
            output.unlink(missing_ok=True)
            return library
    raise OSError(f"no library was built for {this} (see {output}); `python3 -m spillway_torch.build` builds it")


@functools.cache
def steps_library() -> Any:
    """Returns the library. Raises `SpillwayError` with the reason if there is none."""
    try:
        path = found_library()
        loader = importlib.machinery.ExtensionFileLoader("spillway_steps", str(path))
        spec = importlib.util.spec_from_loader("spillway_steps", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
    except (OSError, ImportError) as error:
        raise SpillwayError(f"steps under a plan need the library of the package: {error}") from error
    loader.exec_module(module)
    return module

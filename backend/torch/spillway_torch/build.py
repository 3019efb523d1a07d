"""Builds the library that carries out plans without Python, for the PyTorch that is installed:

    python3 -m spillway_torch.build [FOLDER]      by default into the package, where it is looked for first

It takes a compiler for C++20 (c++, or the one in the variable CXX), the headers of Python, and ccache if there is one. The library
serves this version of Python, and builds of this version of PyTorch for CPUs and for GPUs. Without it, no step runs under a plan.

Exit codes: 0 if the library is there, 2 for bad usage, 5 if it cannot be built.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import torch

from .run.library import SOURCES, library_path

def build(folder: pathlib.Path) -> pathlib.Path:
    """Builds the library unless it is there; returns its path.

    Raises OSError if the folder cannot be written or there is no compiler, and `subprocess.CalledProcessError` if that fails.
    """
    library, home = library_path(folder), pathlib.Path(torch.__file__).parent
    if library.exists():
        return library
    compiler = os.environ.get("CXX", "c++").split()
    cached = ["ccache"] if shutil.which("ccache") else []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        linked = pathlib.Path(scratch, "steps.so").resolve()
        headers = pathlib.Path(sysconfig.get_paths()["include"])
        sources = [source for source in SOURCES if source.suffix == ".cc"]
        objects = [linked.with_name(f"{source.stem}.o") for source in sources]
        flags: list[str | pathlib.Path] = [
            "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG",  # as PyTorch itself, whose headers depend on NDEBUG
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", "-isystem", home / "include",
            "-isystem", home / "include/torch/csrc/api/include", "-isystem", headers, "-I."]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda source, target: subprocess.run(
                [*cached, *compiler, *flags, "-c", source.name, "-o", target], cwd=source.parent, check=True), sources, objects))
        subprocess.run([*compiler, "-shared", *objects, "-o", linked, f"-L{home / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"],
                       check=True)
        linked.replace(library)
    return library


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m spillway_torch.build", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=SOURCES[0].parent)
    try:
        print(build(parser.parse_args().folder))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"spillway_torch.build: the library is not built: {error}", file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())

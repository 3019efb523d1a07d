#!/usr/bin/env python3
"""Checks who includes whom: the layers of the source tree and the libraries that belong to one folder.

Prints each violation as path:line and exits with 1 if there is any.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder -> project folders that its files may include besides their own. The longest prefix counts.
LAYERS = {
    "traces": [],
    "sim/core": ["traces"],
    "sim/alloc": ["traces", "sim/core"],
    "sim/codec": ["sim/core"],
    "sim/cost": ["traces", "sim/core"],
    "sim/engine": ["traces", "sim/core"],
    "policies": ["traces", "sim/core"],
    "backend": ["traces", "sim/core", "backend/cuda"],
    "backend/cpu": ["traces", "sim/core", "sim/codec"],
    "backend/cuda": ["traces", "sim/core", "sim/codec"],
    "experiments": ["traces", "sim", "policies", "backend"],
    "tests": ["traces", "sim", "policies", "backend", "experiments"],
}
# Leaves that include nothing of the project; every folder may include them.
LEAVES = {"sim/core/units.h", "sim/core/error.h"}

# A library header -> the folders that may include it.
LIBRARIES = {
    r"boost/": ["traces", "policies"],
    r"Eigen/": ["backend/cpu", "experiments"],
    r"cuda|cublas|curand|nvtx": ["backend/cuda", "tests/cuda"],
    r"cudnn": ["backend/cuda"],
    r"CLI/": ["experiments/cli"],
    r"benchmark/": ["experiments/bench"],
    r"simdjson": ["traces", "sim/cost"],
    r"toml\+\+": ["sim/core"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path: str, folders) -> str | None:
    """The longest of `folders` that contains `path`."""
    matching = [f for f in folders if path.startswith(f + "/")]
    return max(matching, key=len, default=None)


def violations(path: pathlib.Path):
    relative = path.relative_to(ROOT).as_posix()
    own = folder_of(relative, LAYERS)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        place = f"{relative}:{number}"
        if quote == "<":
            for pattern, allowed in LIBRARIES.items():
                if re.match(pattern, header) and not folder_of(relative, allowed):
                    yield f"{place}: <{header}> belongs to {', '.join(allowed)}"
            continue
        if not (ROOT / header).is_file():
            yield f'{place}: "{header}" is not a path from the root'
        elif relative in LEAVES:
            yield f'{place}: {relative} is a leaf but includes "{header}"'
        elif header not in LEAVES and folder_of(header, LAYERS) != own:
            if not folder_of(header, LAYERS[own]):
                yield f'{place}: {own} must not include "{header}"'


def main() -> int:
    found = []
    for folder in LAYERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu"} and folder_of(
                    path.relative_to(ROOT).as_posix(), LAYERS) == folder:
                found.extend(violations(path))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the files that the program `spillway` reads, such as traces and plans."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

from .errors import SpillwayError


def write_document(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a trace or a plan as JSON, compressed if `path` ends in .zst. The file appears complete or not at all."""
    path = pathlib.Path(path)
    part = path.with_name(path.name + ".part")
    data = _format(document).encode()
    try:
        if path.suffix == ".zst":
            _write_zstd(data, part)
        else:
            part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


_LEVEL = 9  # the level of compression: files are small, in about as much time as writing the JSON takes


def _write_zstd(data: bytes, path: pathlib.Path) -> None:
    try:
        zstd = importlib.import_module("compression.zstd")  # Python 3.14
        path.write_bytes(zstd.compress(data, _LEVEL))
    except ImportError:
        program = shutil.which("zstd")
        if program is None:
            raise SpillwayError(f"{path.with_suffix('')}: Python before 3.14 needs the program 'zstd' to write .zst; end "
                                "the name in .json instead") from None
        subprocess.run([program, f"-{_LEVEL}", "-q", "-f", "-o", str(path)], input=data, check=True)


def _format(document: dict[str, Any]) -> str:
    """One layer, tensor, op or storage stands on a line."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list):
            items = ",\n".join("    " + json.dumps(item, ensure_ascii=False) for item in value)
            lines.append(f'  "{key}": [\n{items}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"

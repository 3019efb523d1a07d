"""Writes and reads the files that the program `spillway` shares, such as traces and plans."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from .errors import SpillwayError


@contextlib.contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the name of a file to write, which is renamed to `path` on success and removed on failure."""
    part = f"{os.fspath(path)}.part"
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)


def write_document(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a trace or a plan as JSON, compressed if `path` ends in .zst. The file appears complete or not at all."""
    data = _format(document).encode()
    with written(path) as part:
        pathlib.Path(part).write_bytes(_zstd(path, data, True) if pathlib.Path(path).suffix == ".zst" else data)


def read_document(path: str | os.PathLike[str]) -> Any:
    """Returns the object of a JSON file, which may be compressed by gzip or zstd."""
    data = pathlib.Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        data = _zstd(path, data, False)
    return json.loads(data)


_LEVEL = 9  # the level of compression: files are small, in about as much time as writing the JSON takes


def _zstd(path: str | os.PathLike[str], data: bytes, compress: bool) -> bytes:
    """Returns bytes of a file compressed, or as they were before. Raises `SpillwayError` if this machine cannot."""
    try:
        zstd = importlib.import_module("compression.zstd")  # Python 3.14
        return bytes(zstd.compress(data, _LEVEL) if compress else zstd.decompress(data))
    except ImportError:
        program = shutil.which("zstd")
        if program is None:
            raise SpillwayError(f"{os.fspath(path)}: Python before 3.14 needs the program 'zstd' for .zst; end the name in .json "
                                "instead") from None
        return subprocess.run([program, "-q", "-c", f"-{_LEVEL}" if compress else "-d"], input=data, stdout=subprocess.PIPE,
                              check=True).stdout


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

"""Runs recorded operators again, to recompute a value that was given up: in the library of recompute_chains.cc, or in Python."""

from __future__ import annotations

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
from collections.abc import Callable
from typing import Any

import torch

from ..base.device import Device
from ..base.errors import SpillwayError
from ..tape.chains import Chain, Saved
from ..tape.tape import IGNORED, Op, Ref, Tape, view_in

log = logging.getLogger("spillway_torch")
Storages = dict[int, torch.Tensor]  # by number, a tensor that lies in the storage
SOURCES = tuple(sorted(path for path in pathlib.Path(__file__).parent.iterdir() if path.suffix in (".h", ".cc")))


def library_path(folder: pathlib.Path = SOURCES[0].parent) -> pathlib.Path:
    """Returns where the library is. Its name says for which PyTorch it is, and ends in a sum of all that it depends on."""
    version = torch.__version__.split("+")[0]
    key = f"{version} {torch.compiled_with_cxx11_abi()} {platform.machine()} {sys.implementation.cache_tag}".encode()
    for source in SOURCES:
        key += source.read_bytes()
    return folder / f"recompute-{version}-{zlib.crc32(key):08x}.so"


@functools.cache
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
    if not output.exists():  # else a build failed, or is on its way in another process
        log.warning("spillway: building the library for %s, which takes a minute, once", this)
        cache.mkdir(parents=True, exist_ok=True)
        with open(output, "x", encoding="utf-8") as file:
            subprocess.run([sys.executable, "-m", "spillway_torch.build", cache], check=False, stdout=file, stderr=file,
                           cwd=pathlib.Path(__file__).parents[2])
        if library.exists():
            output.unlink()
            return library
    raise OSError(f"no library was built for {this} (see {output}); `python3 -m spillway_torch.build` builds it")


@functools.cache
def _library() -> Any:
    """Returns the operators of the library; None if there is none for this PyTorch, or the program wants none."""
    if os.environ.get("SPILLWAY_TORCH_PYTHON_RECOMPUTE", "") not in ("", "0"):
        log.debug("spillway: operators run again in Python, which takes longer: SPILLWAY_TORCH_PYTHON_RECOMPUTE is set")
        return None
    try:
        torch.ops.load_library(found_library())
        return torch.ops.spillway_recompute
    except OSError as error:
        log.warning("spillway: operators run again in Python, which takes longer: %s", error)
        return None


@functools.cache
def steps_library() -> Any:
    """Returns the part of the library that handles saved tensors; None if there is none, or it was built without Python's headers."""
    if _library() is None:
        return None
    loader = importlib.machinery.ExtensionFileLoader("spillway_steps", str(found_library()))
    spec = importlib.util.spec_from_loader("spillway_steps", loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
    except ImportError as error:
        log.debug("spillway: Python handles the tensors that autograd saves, which takes longer: %s", error)
        return None
    loader.exec_module(module)
    return module


class Recompute:
    """The operators of one chain, ready to run.

    None of them writes to a source: a storage that is written after it was saved is no source.
    """

    def __init__(self, tape: Tape, saved: Saved, chain: Chain) -> None:
        self.chain = chain
        self._target = saved.storage
        self._steps: list[_Step] = []
        last: dict[int, int] = {}
        for at in chain.ops:
            for storage in _touched(tape.ops[at]):
                last[storage] = at
        for at in chain.ops:
            op = tape.ops[at]
            step = _Step(tape, op)
            step.freed = tuple(s for s in _touched(op) if last[s] == at and s != saved.storage)
            self._steps.append(step)
        self._drawn = [(step.mark, step.drawn) for step in self._steps if step.mark is not None]
        self.marks = sorted({m for mark, _ in self._drawn for m in (mark - 1, mark)})
        self.native = self._in_library(tape, saved)

    def _in_library(self, tape: Tape, saved: Saved) -> _Native | None:
        try:
            return None if _library() is None else _Native(_library(), tape, saved, self.chain, self._steps)
        except (RuntimeError, TypeError, ValueError) as error:
            log.debug("spillway: a chain that ends in %s runs again in Python, which takes longer: %s", self._steps[-1].name, error)
            return None

    def draws(self, device: Device, marks: dict[int, Any]) -> bool:
        """Returns whether as many random numbers were drawn as in the recorded step, as far as the device can say."""
        return all(device.drawn(marks[mark - 1], marks[mark]) in (None, drawn) for mark, drawn in self._drawn)

    def run(self, device: Device, storages: Storages, marks: dict[int, Any]) -> torch.Tensor:
        """Returns a tensor that lies in the storage of the value.

        storages: those that the operators read from outside; no others may be in it.
        marks: states of the generator of random numbers by position.

        Raises `SpillwayError` if random numbers were drawn in another order than in the recorded step.
        """
        value = self.native.run(device, storages, marks) if self.native is not None else None
        return value if value is not None else self._run_in_python(device, storages, marks)

    def _run_in_python(self, device: Device, storages: Storages, marks: dict[int, Any]) -> torch.Tensor:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            cast = torch.is_autocast_enabled(device.type)
            torch.set_autocast_enabled(device.type, False)
            try:
                for step in self._steps:
                    step.run(device, storages, marks)
            finally:
                torch.set_autocast_enabled(device.type, cast)
        return storages[self._target]

    @property
    def length(self) -> int:
        return len(self._steps)


class _Native:
    """A chain in the library."""

    def __init__(self, library: Any, tape: Tape, saved: Saved, chain: Chain, steps: list[_Step]) -> None:
        self._library = library
        self._call = library.run._op  # without the layer of torch.ops
        self._reads = [*(value[0] for value in chain.sources), *chain.parameters]
        self._drawing = [(at, step) for at, step in enumerate(steps) if step.mark is not None]
        self._length = len(steps)
        touched = {s for at in chain.ops for s in _touched(tape.ops[at])}
        places = {s: torch.empty(tape.storages[s].size, dtype=torch.uint8, device="meta") for s in touched.union(self._reads)}
        self._chain = torch.classes.spillway_recompute.Chain([places[s] for s in self._reads], places[saved.storage])
        self.handle = self._chain.handle()
        self.names = [step.name for step in steps]
        self.draws = [(at, step.mark, step.drawn) for at, step in self._drawing]
        for step in steps:
            args, kwargs = step.arguments(places)
            self._chain.capture(True)
            try:
                step.func(*args, **kwargs)
            finally:
                self._chain.capture(False)
            self._chain.complete([at for at, _ in step.outputs], [_given(ref, places) for _, ref in step.outputs],
                                 [places[s] for s in step.freed])

    def run(self, device: Device, storages: Storages, marks: dict[int, Any]) -> torch.Tensor | None:
        """Returns a tensor that lies in the storage of the value; None if an operator made another layout of its result."""
        sources = [storages[s] for s in self._reads]
        with torch._C.DisableTorchFunction():
            if not self._drawing:
                return self._call(self.handle, sources)
            run = self._library.start(self.handle, sources)
            try:
                advance = functools.partial(self._library.advance, run)
                good = all(advance(at) and step.draw(device, marks, functools.partial(advance, at + 1))
                           for at, step in self._drawing) and advance(self._length)
            finally:
                value = self._library.end(run)
            return value if good else None


def _touched(op: Op) -> set[int]:
    found = {value[0] for value in op.written} | set(op.fresh)
    waiting = [op.args, list(op.kwargs.values())]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Ref):
            found.add(value.value[0])
        elif isinstance(value, list):
            waiting += value
    return found


class _Step:
    """One operator."""

    def __init__(self, tape: Tape, op: Op) -> None:
        self.func = op.func
        self.name = op.place
        self.args = list(op.args)
        self.kwargs = op.kwargs
        self.mark = op.position if op.random else None
        self.drawn = op.drawn
        self.freed: tuple[int, ...] = ()
        if op.packet in IGNORED:
            for at, argument in enumerate(op.func._schema.arguments):
                if argument.name in ("running_mean", "running_var") and isinstance(self.args[at], Ref):
                    ref = self.args[at]  # the program's statistics move once for each step
                    self.args[at] = torch.zeros(ref.geometry.size, dtype=ref.geometry.dtype, device=tape.device)
        self.tensors = [(at, a) for at, a in enumerate(self.args) if isinstance(a, Ref)]
        self.lists = [(at, a) for at, a in enumerate(self.args) if isinstance(a, list)]
        self.named = any(isinstance(a, (Ref, list)) for a in op.kwargs.values())
        self.outputs = [(at, ref) for at, ref in enumerate(op.results) if ref is not None and ref.value[0] in op.fresh]

    def arguments(self, storages: Storages) -> tuple[list[Any], Any]:
        """Returns its arguments with the tensors that lie in these storages."""
        args = self.args.copy()
        for at, ref in self.tensors:
            args[at] = view_in(storages[ref.value[0]], ref.geometry)
        for at, items in self.lists:
            args[at] = _given(items, storages)
        return args, {key: _given(value, storages) for key, value in self.kwargs.items()} if self.named else self.kwargs

    def run(self, device: Device, storages: Storages, marks: dict[int, Any]) -> None:
        args, kwargs = self.arguments(storages)
        result = self.func(*args, **kwargs) if self.mark is None else self.draw(device, marks, lambda: self.func(*args, **kwargs))
        for at, ref in self.outputs:
            value = result[at] if isinstance(result, (tuple, list)) else result
            if value.stride() != ref.geometry.stride or value.storage_offset() != ref.geometry.offset:
                raise SpillwayError(f"{self.name} made another layout of its result than in the recorded step")
            storages[ref.value[0]] = value
        for storage in self.freed:
            storages.pop(storage, None)

    def draw(self, device: Device, marks: dict[int, Any], run: Callable[[], Any]) -> Any:
        """Returns what `run` does, which runs the operator, with the random numbers that it drew in forward."""
        assert self.mark is not None
        before = device.random_state()
        device.set_random_state(marks[self.mark - 1])
        try:
            result = run()
            if not device.same_random_state(device.random_state(), marks[self.mark]):
                raise SpillwayError(f"{self.name}: random numbers were drawn in another order than in the recorded step, and the "
                                    "tensor that it made is gone")
        finally:
            device.set_random_state(before)
        return result


def _given(value: Any, storages: Storages) -> Any:
    if isinstance(value, Ref):
        return view_in(storages[value.value[0]], value.geometry)
    if isinstance(value, list):
        return [_given(item, storages) for item in value]
    return value

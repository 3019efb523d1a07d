"""Runs PyTorch programs on a device that does not exist: its tensors hold no data.

Tensors of the pretended device are PyTorch's `meta` tensors. While `pretend` is active in a thread, the device's name
in calls ("cuda", `.cuda()`) means `meta`, and `.device` of a `meta` tensor shows the pretended device.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._device import _device_constructors

from ..base import table
from ..base.errors import NotRecordableError, SpillwayError
from ..base.ledger import Ledger
from ..base.target import Target, parse_target
from . import distributed
from .interpose import Interposer
from .numbers import COMPARISONS, FINITE, NoValue, compared_by_choice, needs
from .recorder import META, Recorder
from .streams import Lanes

_Tensor: Any = torch.Tensor
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


class Names(TorchFunctionMode):
    """Translates the device in Python's calls."""

    def __init__(self, target: Target, recorder: Recorder) -> None:
        super().__init__()
        self.target, self.recorder = target, recorder
        self.constructors = _device_constructors()
        self.named: dict[Any, Callable[..., Any]] = {
            _Tensor.device.__get__: self.device,
            _Tensor.is_cuda.__get__: lambda t: t.is_meta and target.cuda or t.is_cuda,
            _Tensor.is_cpu.__get__: lambda t: t.is_cpu or (t.is_meta and not target.cuda),
            _Tensor.is_meta.__get__: lambda t: False,
            _Tensor.get_device: lambda t: 0 if t.is_meta and target.cuda else t.get_device(),
            _Tensor.cuda: lambda t, device=None, non_blocking=False, **kw: self.moved(t.to(self.translated(device or "cuda"), **kw)),
            _Tensor.pin_memory: lambda t, device=None: t,
            _Tensor.is_pinned: lambda t, device=None: False,
            _Tensor.__setitem__: self.set_item,
            _Tensor.data.__set__: self.set_data,
            _Tensor.item: self.item,
            _Tensor.tolist: self.to_list,
            _Tensor.__float__: lambda t: self.plain(t, float),
            _Tensor.__int__: lambda t: self.plain(t, int),
            _Tensor.__complex__: lambda t: self.plain(t, complex),
            _Tensor.__bool__: self.decide,
            _Tensor.__index__: self.index,
            _Tensor.__format__: lambda t, spec: format(self.item(t), spec) if t.dim() == 0 else t.__format__(spec),
            **{function: functools.partial(self.assume_finite, function, finite) for function, finite in FINITE.items()},
            **{function: functools.partial(self.compare, function) for function in COMPARISONS},
            torch.tensor: functools.partial(self.from_data, torch.tensor),
            torch.as_tensor: functools.partial(self.from_data, torch.as_tensor),
        }

    def device(self, tensor: torch.Tensor) -> torch.device:
        return self.target.shown if tensor.device.type == "meta" else tensor.device

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that the program moves to a device."""
        if tensor.device.type == "meta":
            self.recorder.ledger.arrive(tensor)
        return tensor

    def set_item(self, tensor: torch.Tensor, index: Any, value: Any) -> None:
        # A number that is written into a GPU's tensor goes there from the host, by one fill. PyTorch 2.15 fills tensors
        # of all devices so.
        if RELEASE < (2, 15) and isinstance(value, (bool, int, float, complex)) and tensor.device.type == "meta":
            value = torch.tensor(value, dtype=tensor.dtype, device="cpu")
        tensor[index] = value

    def set_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """`tensor.data = value`, which may move a tensor from the host to the pretended device."""
        if tensor.device.type == value.device.type:
            tensor.data = value
        else:
            with torch.no_grad():
                moved = torch.nn.Parameter(value) if isinstance(tensor, torch.nn.Parameter) else value.detach()
            torch.utils.swap_tensors(tensor, moved.requires_grad_(tensor.requires_grad))

    def unknown(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() == 1 and self.recorder.values.of(tensor) is None

    def item(self, tensor: torch.Tensor) -> Any:
        if not self.unknown(tensor):
            return tensor.item()
        self.recorder.note_read(tensor)
        given = self.recorder.numbers.given()
        if given is not None:
            return given
        if tensor.dtype == torch.bool:
            raise needs("a decision of the program", self.recorder.place())
        return NoValue(self.recorder.numbers, self.recorder.place)

    def to_list(self, tensor: torch.Tensor) -> Any:
        known = self.recorder.values.of(tensor)
        self.recorder.note_read(tensor)
        if known is not None:
            return known.tolist()
        if tensor.dim() == 0:
            return NoValue(self.recorder.numbers, self.recorder.place)
        return [self.to_list(row) for row in tensor.unbind()] if tensor.dim() > 1 else [
            NoValue(self.recorder.numbers, self.recorder.place) for _ in range(len(tensor))]

    def plain(self, tensor: torch.Tensor, kind: Any) -> Any:
        """float() and int(), which have to return Python's own numbers."""
        if not self.unknown(tensor):
            return kind(tensor.item())
        self.recorder.note_read(tensor)
        return self.recorder.numbers.plain(f"{kind.__name__}()", kind(1))

    def index(self, tensor: torch.Tensor) -> int:
        return int(self.decide(tensor, "a size or an index", int)) if self.unknown(tensor) else tensor.__index__()

    def decide(self, tensor: torch.Tensor, what: str = "a decision of the program", kind: Any = bool) -> Any:
        if not self.unknown(tensor):
            return bool(tensor)
        self.recorder.note_read(tensor)
        given = self.recorder.numbers.given()
        if given is None:
            raise needs(what, self.recorder.place())
        return kind(given)

    def assume_finite(self, function: Callable[..., Any], finite: bool, tensor: torch.Tensor) -> torch.Tensor:
        """Numbers of the device are taken for finite, as a gradient scaler takes them."""
        result: torch.Tensor = function(tensor)
        if self.recorder.values.of(tensor) is None:
            self.recorder.values.learn(result, finite)
        return result

    def compare(self, function: Callable[..., Any], tensor: torch.Tensor, other: Any) -> Any:
        """`max` and `min` of numbers return one of the device."""
        result = function(tensor, other)
        if isinstance(result, torch.Tensor) and self.unknown(result) and compared_by_choice():
            self.recorder.values.learn(result, True)
        return result

    def from_data(self, make: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes a tensor of Python's numbers on the host and copies it, so that its values are known."""
        device = self.translated(kwargs.pop("device", None))
        if isinstance(data, torch.Tensor):
            return make(data, *args, **kwargs, device=device)
        device = device or self.default()
        made = make(data, *args, **kwargs, device="cpu")
        return made if device is None or torch.device(device).type == "cpu" else made.to(device).requires_grad_(made.requires_grad)

    def default(self) -> Any:
        """Returns the device of tensors for which the program names none; None for the host."""
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # set_default_device sets it
        return self.translated(context.device if context is not None else "cpu" if not self.target.cuda else None)

    def translated(self, device: Any) -> Any:
        """Returns `meta` for a name of the pretended device, else the argument itself."""
        if isinstance(device, bool) or device is None:
            return device
        if isinstance(device, int):
            return META if self.target.cuda else device
        kind = device.type if isinstance(device, torch.device) else (
            device.split(":")[0] if isinstance(device, str) and re.fullmatch(r"\w+(:\d+)?", device) else None)
        return META if kind == self.target.shown.type else device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = self.named.get(func)
        if named is not None:
            return named(*args, **(kwargs or {}))
        if func is torch.arange and any(isinstance(value, NoValue) for value in (*args, *(kwargs or {}).values())):
            raise needs("a size that arange() takes", self.recorder.place())
        without_memory = False  # the program makes it under `torch.device("meta")`
        if kwargs and kwargs.get("device") is not None:
            given = kwargs["device"]
            without_memory = given is not META and isinstance(given, (str, torch.device)) and torch.device(given).type == "meta"
            kwargs = {**kwargs, "device": self.translated(kwargs["device"])}
            kwargs.pop("pin_memory", None) if kwargs["device"] is META else None
        elif func in self.constructors and not (args and isinstance(args[0], torch.Tensor)):
            kwargs = {**(kwargs or {}), "device": self.default()}
        elif func is _Tensor.to or func is _Tensor.type:
            args = (args[0], *(self.translated(a) if isinstance(a, (str, torch.device)) or (i == 0 and type(a) is int) else a
                               for i, a in enumerate(args[1:])))
        if kwargs and kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        try:
            result = func(*args, **(kwargs or {}))
            where = (kwargs or {}).get("device", args[1] if len(args) > 1 else None)
            if func is _Tensor.to and isinstance(where, torch.device) and where == META:
                self.moved(result)
            if without_memory and isinstance(result, torch.Tensor):
                self.recorder.ledger.keep_on_host(self.recorder.ledger.find(result), nowhere=True)
            return result
        except (RuntimeError, TypeError) as error:
            translated = self.recorder.translated(error, getattr(func, "__name__", str(func)))
            if translated is None:
                raise
            raise translated from error


def _refused(name: str, reason: str) -> Any:
    """Returns a function that raises, or for the name of a class, a class that cannot be instantiated."""
    def call(*_: Any, **__: Any) -> Any:
        raise NotRecordableError(f"torch.cuda.{name}{_place()} cannot be recorded without a GPU: {reason}")

    original = getattr(torch.cuda, name, None)
    return type(name, (original,), {"__new__": call}) if isinstance(original, type) else call


def _cuda_patches(target: Target, lanes: Lanes) -> dict[str, Any]:
    major, minor = divmod(target.capability, 10)
    properties = types.SimpleNamespace(name=target.name, major=major, minor=minor, multi_processor_count=1,
                                       total_memory=1 << 40)
    return {**{name: lambda *_, **__: None for name in table.CUDA_NOTHING},
            **{name: _refused(name, reason) for name, reason in table.CUDA_REFUSED.items()},
            **lanes.patches(),
            "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
            "current_device": lambda: 0, "get_device_capability": lambda device=None: (major, minor),
            "get_device_name": lambda device=None: target.name, "get_device_properties": lambda device=None: properties,
            "is_bf16_supported": lambda including_emulation=True: target.capability >= 80 or including_emulation,
            "is_current_stream_capturing": lambda: False,
            "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda *_, **__: None, "device": _NoDevice}


def _accelerator_patches(lanes: Lanes) -> dict[str, Any]:
    """Returns replacements in torch.accelerator, which PyTorch 2.6 and later have."""
    return {"is_available": lambda: True, "device_count": lambda: 1, "current_device_index": lambda: 0,
            "current_accelerator": lambda check_available=False: torch.device("cuda"), "current_stream": lambda device=None: lanes.current,
            "synchronize": lambda device=None: None}


class _GeneratorType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__bases__[0])


def _generator(names: Names) -> type:
    """Returns a class for torch.Generator, whose generators of the pretended device are those of the host."""
    original = torch.Generator

    def make(_: type, device: Any = "cpu") -> torch.Generator:
        return original("cpu" if names.translated(device) is META else device)

    return _GeneratorType("Generator", (original,), {"__new__": make})


class _NoDevice(contextlib.nullcontext):
    def __init__(self, device: Any = None) -> None:
        super().__init__()


def _empty_weights(ledger: Ledger | None) -> Callable[..., None]:
    """Modules hold no data from the start, wherever the program puts them first, so that large models are quick to make.

    ledger: that of a pretended GPU, to which the program moves what it makes on the host.
    """
    register, thread = torch.nn.Module.register_parameter, threading.get_ident()

    def register_parameter(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and type(parameter) is torch.nn.Parameter and threading.get_ident() == thread and (
                _is_on_host(parameter)):
            empty = torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype, device="meta")
            if ledger is not None:
                ledger.keep_on_host(ledger.find(empty))
            parameter = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    return register_parameter


def _in_place_apply() -> Callable[..., Any]:
    """A module that moves from the host keeps its Parameter objects, which optimizers and tied weights refer to."""
    apply, future = torch.nn.Module._apply, torch.__future__

    def _apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        swap = future.get_swap_module_params_on_conversion()
        moves = any(_is_on_host(p) for p in module.parameters(recurse=False))
        future.set_swap_module_params_on_conversion(swap or moves)
        try:
            return apply(module, *args, **kwargs)
        finally:
            future.set_swap_module_params_on_conversion(swap)

    return _apply


def _plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that sees PyTorch's devices. Hooks of autograd run with and without the translation of names."""
    def call(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)
    return call


def _is_on_host(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.is_cpu


_active: list["Pretended"] = []


class Pretended:
    """A pretended device while it is active."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.recorder = Recorder("meta", target)


@contextlib.contextmanager
def pretend(target: str = "cuda:sm_90") -> Iterator[Pretended]:
    """Pretends that this machine has the device `target`, in this thread, until the context ends.

    Models that are made inside hold no data. Contexts of one target may be nested; another target inside raises
    `SpillwayError`, as does a device of this machine.
    """
    wanted = parse_target(target)
    if wanted.real:
        raise SpillwayError(f"target '{target}' is a device of this machine; pretend takes cuda:sm_NN or cpu:pretended")
    if _active:
        if _active[0].target != wanted:
            raise SpillwayError(f"'{_active[0].target.name}' is pretended already, so '{target}' cannot be")
        yield _active[0]
        return
    pretended = Pretended(wanted)
    with contextlib.ExitStack() as stack:
        _active.append(pretended)
        stack.callback(_active.clear)
        names = Names(wanted, pretended.recorder)
        if wanted.cuda:
            stack.enter_context(mock.patch.object(torch, "Generator", _generator(names)))
            interposer = Interposer(wanted, pretended.recorder)
            stack.callback(interposer.close)
            stack.enter_context(interposer.active())
            lanes = pretended.recorder.lanes
            for module, patches in ((torch.cuda, _cuda_patches(wanted, lanes)),
                                    (getattr(torch, "accelerator", None), _accelerator_patches(lanes))):
                for name, value in patches.items():
                    if hasattr(module, name):
                        stack.enter_context(mock.patch.object(module, name, value))
            stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None))
            stack.enter_context(mock.patch.object(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")))
            supported = _foreach_utils._get_foreach_kernels_supported_devices()
            stack.enter_context(mock.patch.object(_foreach_utils, "_get_foreach_kernels_supported_devices",
                                                  lambda: [*supported, "meta"]))
            clear = torch.clear_autocast_cache

            def clear_caches() -> None:
                interposer.casts.clear()
                clear()

            stack.enter_context(mock.patch.object(torch, "clear_autocast_cache", clear_caches))
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        stack.enter_context(mock.patch.dict(checks, {"default": _plainly(checks["default"])}))
        stack.enter_context(mock.patch.object(torch.nn.Module, "register_parameter",
                                              _empty_weights(pretended.recorder.ledger if wanted.cuda else None)))
        stack.enter_context(mock.patch.object(torch.nn.Module, "_apply", _in_place_apply()))
        stack.enter_context(distributed.sharded(pretended.recorder))
        stack.enter_context(distributed.pretended(pretended.recorder))
        run = getattr(torch.autograd, "_engine_run_backward")

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            with names:  # in hooks, and in parts of the program that run again
                return run(*args, **kwargs)

        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", run_backward))
        stack.enter_context(pretended.recorder)
        stack.enter_context(names)
        yield pretended


def active() -> Pretended | None:
    return _active[0] if _active else None


def _place() -> str:
    """Returns the part of a message that names the module that runs."""
    return _active[0].recorder.place() if _active else ""

"""Keeps an optimizer's state on the host between the updates of the model.

The optimizer itself updates the model, a bucket of parameters after another one, so the results have the bits of an ordinary update.
While it works on one bucket, the state of the next one comes to the device, and that of the one before goes back.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch

from ..base.device import Device, Host, Queue
from ..tape.tape import geometry_of, view_of

log = logging.getLogger("spillway_torch")

ALIGNED = 64  # bytes, at a multiple of which each tensor begins
BUCKET = 128 << 20  # bytes of state in a bucket at most
BUCKETS = 16  # there are at least so many, if parameters can be divided
STAGES = 3  # buckets on the device at once: one comes, one is used, and one leaves


def _of_adam(group: dict[str, Any]) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def _of_sgd(group: dict[str, Any]) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] else ()


# The state that each parameter has, of its size. These optimizers compute element by element.
KINDS: dict[type, Callable[[dict[str, Any]], tuple[str, ...]]] = {
    torch.optim.Adam: _of_adam, torch.optim.AdamW: _of_adam, torch.optim.SGD: _of_sgd}


def can_host(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the state of an optimizer can be on the host."""
    return type(optimizer) in KINDS and not any(group.get("differentiable") for group in optimizer.param_groups)


@dataclasses.dataclass(eq=False)
class _Parameter:
    tensor: torch.Tensor
    group: int
    names: tuple[str, ...]  # of its state
    host: Optional[Host] = None  # None: its state is on the device
    at: int = 0  # the first byte there

    @property
    def room(self) -> int:
        """The bytes of one of its states."""
        return _rounded(self.tensor.nbytes)

    def hosted(self, name: str) -> torch.Tensor:
        """Returns the state's tensor on the host."""
        assert self.host is not None
        return _view(self.host.bytes, self.at + self.names.index(name) * self.room, self.tensor)

    def has(self, state: Any) -> bool:
        """Returns whether a tensor of the optimizer's state lies on the host."""
        return (self.host is not None and isinstance(state, torch.Tensor) and state.device.type == "cpu"
                and state.untyped_storage().data_ptr() == self.host.bytes.untyped_storage().data_ptr())


@dataclasses.dataclass(eq=False)
class _Unit:
    """The elements [begin, end) of a parameter, and their place in a bucket."""

    of: _Parameter
    begin: int
    end: int
    at: int  # the first byte of its state

    @property
    def whole(self) -> bool:
        return self.end - self.begin == self.of.tensor.numel()

    @property
    def room(self) -> int:
        """The bytes of one of its states."""
        return _rounded((self.end - self.begin) * self.of.tensor.element_size())

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns what the unit has of a tensor that is like the parameter."""
        return tensor if self.whole else tensor.detach().reshape(-1)[self.begin:self.end]

    def staged(self, stage: torch.Tensor, name: str) -> torch.Tensor:
        """Returns one of its states in memory for the bucket."""
        return _view(stage, self.at + self.of.names.index(name) * self.room, self.part(self.of.tensor))

    def ranges(self, states: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
        """Yields where states that are on the host begin there and in the bucket, and their bytes."""
        item = self.of.tensor.element_size()
        for number, name in enumerate(self.of.names):
            if self.of.has(states.get(name)):
                yield (self.of.at + number * self.of.room + self.begin * item, self.at + number * self.room,
                       (self.end - self.begin) * item)


@dataclasses.dataclass(eq=False)
class _Bucket:
    units: list[_Unit] = dataclasses.field(default_factory=list)
    bytes: int = 0


class HostedState:
    """The state of an optimizer, some of which is on the host. There it stands in `optimizer.state` as CPU tensors between updates."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: Device) -> None:
        """REQUIRES: `can_host(optimizer)`."""
        self._optimizer_ref, self._device = weakref.ref(optimizer), device
        self._buckets = self._divided()
        self._wanted = 0  # bytes on the host
        self._seen: Any = None  # `optimizer.state` when they were taken there
        self._hidden: list[tuple[dict[str, Any], list[Any]]] = []  # groups, and their parameters
        self._hosts: list[Host] = []
        self._handles: list[Any] = []  # of hooks before an update, behind it, and before `state_dict`, for which copies end
        self._warned = False

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer = self._optimizer_ref()
        assert optimizer is not None  # whoever calls has it
        return optimizer

    @property
    def sizes(self) -> list[int]:
        """The bytes of the parts in which state leaves, in this order. Parameters that the optimizer never updated have none."""
        return [self._size(bucket) for bucket in self._buckets]

    def _size(self, bucket: _Bucket) -> int:
        state = self._optimizer.state
        return sum(unit.room * len(unit.of.names) for unit in bucket.units if not state or unit.of.tensor in state)

    def temporaries(self) -> int:
        """Returns about the bytes that an ordinary update takes besides the state."""
        most = 0
        for group in self._optimizer.param_groups:
            sizes = [p.nbytes for p in group["params"] if p.requires_grad]
            foreach = group.get("foreach") or group.get("foreach") is None and any(p.is_cuda for p in group["params"])
            most = max(most, 0 if group.get("fused") else sum(sizes) if foreach else 2 * max(sizes, default=0))
        return most

    def existing(self) -> tuple[int, int]:
        """Returns the bytes of state that exist on the device, and on the host."""
        bytes_ = [0, 0]
        for of in {unit.of for bucket in self._buckets for unit in bucket.units}:
            for name, value in self._optimizer.state.get(of.tensor, {}).items():
                if name in of.names and value is not None:
                    bytes_[of.has(value)] += value.nbytes
        return bytes_[0], bytes_[1]

    @property
    def outside(self) -> int:
        """The bytes of state that are on the host, or will be when it exists."""
        return sum(map(self._size, self._outside()))

    def _outside(self) -> list[_Bucket]:
        return [bucket for bucket in self._buckets if bucket.units[0].of.host is not None]

    def _divided(self) -> list[_Bucket]:
        """Returns the parameters in buckets; the parts of one are in consecutive ones."""
        parameters = [_Parameter(p, at, KINDS[type(self._optimizer)](group)) for at, group in enumerate(self._optimizer.param_groups)
                      for p in group["params"] if p.numel() and p.requires_grad and _is_dense(p)]
        parameters = [parameter for parameter in parameters if parameter.names]
        most = max(ALIGNED, min(BUCKET, sum(p.room * len(p.names) for p in parameters) // BUCKETS))
        buckets: list[_Bucket] = []
        for of in parameters:
            count, item = of.tensor.numel(), of.tensor.element_size()
            pieces = -(-of.room * len(of.names) // most) if of.tensor.is_contiguous() else 1
            length = _rounded(-(-count // pieces) * item) // item
            for begin in range(0, count, length):
                unit = _Unit(of, begin, min(begin + length, count), 0)
                size = unit.room * len(of.names)
                if not buckets or buckets[-1].bytes + size > most:
                    buckets.append(_Bucket())
                unit.at = buckets[-1].bytes
                buckets[-1].units.append(unit)
                buckets[-1].bytes += size
        return buckets

    def move(self, size: int) -> None:
        """Takes at least so many bytes of state to the host, as far as there are some. To be called outside of hooks of the optimizer."""
        if not size and not self._wanted:
            return
        self._wanted, there = max(self._wanted, size), self.outside
        leaving: list[_Bucket] = []
        for bucket in self._buckets[len(self._outside()):]:
            if there >= self._wanted and bucket.units[0].begin == 0:
                break
            leaving.append(bucket)
            there += self._size(bucket)
        parameters = {id(unit.of): unit.of for bucket in leaving for unit in bucket.units}.values()
        if not parameters:
            return
        if not self._handles:
            self._handles = [self._optimizer.register_step_pre_hook(self._before), self._optimizer.register_step_post_hook(self._after),
                             self._optimizer.register_state_dict_pre_hook(self._finish)]
        self._hosts.append(self._device.host(sum(of.room * len(of.names) for of in parameters)))
        at = 0
        for of in parameters:
            of.host, of.at = self._hosts[-1], at
            at += of.room * len(of.names)
        self._stream(leaving, update=False)

    def settle(self) -> None:
        """Prepares for the next step: its update is the last thing before, and the first thing behind, the hooks of others.

        State that came to the device since, because it was loaded, goes to the host.
        """
        if not self._handles:
            return
        before: Any = self._optimizer._optimizer_step_pre_hooks
        after: Any = self._optimizer._optimizer_step_post_hooks
        before.move_to_end(self._handles[0].id)
        after.move_to_end(self._handles[1].id, last=False)
        if self._seen is not self._optimizer.state:
            self._stream(self._outside(), update=False)
        self.move(self._wanted)

    def close(self) -> None:
        """Takes all state back to the device, and gives the memory of the host back."""
        self._show()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._wanted = 0
        if self._optimizer_ref() is not None:
            self._come_back()

    def _come_back(self) -> None:
        for of in {id(unit.of): unit.of for bucket in self._outside() for unit in bucket.units}.values():
            states = self._optimizer.state.get(of.tensor, {})
            for name in of.names:
                if of.has(states.get(name)):
                    states[name] = states[name].to(of.tensor.device, copy=True)
            of.host = None
        for host in self._hosts:
            host.close()
        self._hosts.clear()

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Updates what has its state on the host, before a step of the optimizer that then does not find it."""
        self._show()
        outside = self._outside()
        if not outside:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first one is the optimizer
        if closure is not None or next(reversed(optimizer._optimizer_step_pre_hooks)) != self._handles[0].id:
            if not self._warned:
                self._warned = True
                log.warning("spillway: the state of the %s is on the device during the whole of this update, because %s",
                            type(optimizer).__name__, "it gets a closure" if closure is not None else "a hook was added since the forward")
            self._come_back()
            return
        self._stream(outside, update=True)
        done = {id(unit.of.tensor) for bucket in outside for unit in bucket.units}
        self._hide(lambda at, p: id(p) not in done)

    def _finish(self, _: torch.optim.Optimizer) -> None:
        """Waits until what is on the host is there."""
        self._device.now()

    def _after(self, *_: Any) -> None:
        self._show()

    def _hide(self, stays: Callable[[int, Any], bool], more: Sequence[tuple[int, Any]] = ()) -> None:
        """Leaves the optimizer those parameters in its groups that stay, and some more."""
        for at, group in enumerate(self._optimizer.param_groups):
            self._hidden.append((group, group["params"]))
            group["params"] = [p for p in group["params"] if stays(at, p)] + [p for to, p in more if to == at]

    def _show(self) -> None:
        """Gives the optimizer its parameters back."""
        for group, parameters in self._hidden:
            group["params"] = parameters
        self._hidden.clear()

    @torch.no_grad()
    def _stream(self, buckets: list[_Bucket], update: bool) -> None:
        """Brings buckets to the device, one after another, updates them, and takes them to the host."""
        if not buckets:
            return
        device, state = self._device, self._optimizer.state
        device.begin()
        stages = [device.empty(max(bucket.bytes for bucket in buckets)) for _ in range(min(STAGES, len(buckets)))]
        left: list[Any] = [None] * len(stages)
        existing = {id(unit.of): bool(state.get(unit.of.tensor)) for bucket in buckets for unit in bucket.units}

        def fetch(at: int) -> Any:
            stage = at % len(stages)
            if left[stage] is not None:
                device.wait(Queue.IN, left[stage])
            for unit in buckets[at].units:
                for there, here, size in unit.ranges(state.get(unit.of.tensor, {}) if existing[id(unit.of)] else {}):
                    assert unit.of.host is not None
                    device.wait(Queue.IN, device.record(Queue.COMPUTE))
                    device.copy(Queue.IN, stages[stage][here:here + size], unit.of.host.bytes[there:there + size])
            return device.record(Queue.IN)

        coming = fetch(0)
        for at, bucket in enumerate(buckets):
            came, coming = coming, fetch(at + 1) if at + 1 < len(buckets) else None
            device.wait(Queue.COMPUTE, came)
            stage = stages[at % len(stages)]
            targets = [self._target(unit, stage, existing[id(unit.of)]) for unit in bucket.units]
            if update:
                self._hide(lambda *_: False, [(unit.of.group, target) for unit, target in zip(bucket.units, targets)])
                try:
                    getattr(type(self._optimizer).step, "__wrapped__")(self._optimizer)
                finally:
                    self._show()
            for unit, target in zip(bucket.units, targets):
                self._keep(unit, target, stage)
                for there, here, size in unit.ranges({name: unit.of.hosted(name) for name in unit.of.names}):
                    assert unit.of.host is not None
                    device.wait(Queue.OUT, device.record(Queue.COMPUTE))
                    device.copy(Queue.OUT, unit.of.host.bytes[there:there + size], stage[here:here + size])
            left[at % len(stages)] = device.record(Queue.OUT)
        for event in left:
            device.wait(Queue.COMPUTE, event)
        self._seen = state

    def _target(self, unit: _Unit, stage: torch.Tensor, exists: bool) -> torch.Tensor:
        """Returns what the optimizer updates: the parameter, or a part of it. Its state is on the device."""
        of, state = unit.of, self._optimizer.state
        target = unit.part(of.tensor)
        if not unit.whole and of.tensor.grad is not None:
            target.grad = unit.part(of.tensor.grad)
        if exists:
            last = unit.end == of.tensor.numel()
            state[target] = {name: unit.staged(stage, name) if of.has(value) else
                             unit.part(value) if name in of.names and value is not None else
                             value.clone() if isinstance(value, torch.Tensor) and not last else value
                             for name, value in state[of.tensor].items()}
        return target

    def _keep(self, unit: _Unit, target: torch.Tensor, stage: torch.Tensor) -> None:
        """Puts the state of a unit where its copy to the host begins, and notes it as that of the parameter if it is the last part."""
        of, state = unit.of, self._optimizer.state
        found = state.get(target, {})
        for name in of.names:
            value, staged = found.get(name), unit.staged(stage, name)
            if value is not None and value.data_ptr() != staged.data_ptr():
                staged.copy_(value)
        if not unit.whole:
            state.pop(target, None)
        if unit.end == of.tensor.numel() and found:
            state[of.tensor] = {name: of.hosted(name) if name in of.names and value is not None else value
                                for name, value in found.items()}


def _is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether the elements of a tensor lie side by side, in some order."""
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1 == tensor.numel()


def _rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _view(memory: torch.Tensor, at: int, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the form of another one that begins at a byte of the memory."""
    return view_of(memory.untyped_storage(), dataclasses.replace(geometry_of(like), offset=at // like.element_size()))

"""Keeps an optimizer's state on the host between the updates of the model, and may update parameters while backward runs.

The optimizer itself updates the model, a bucket of parameters after another one, so the results have the bits of an ordinary update.
While it works on one bucket, the state of the next one comes to the device, and that of the one before goes back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base.device import Device, Host, host_memory
from ..base.errors import SpillwayError
from ..step.distributed import is_taken_apart
from ..tape.hooks import in_backward
from ..tape.tape import Update, leaving_order
from ..tape.tape_recorder import TapeRecorder
from .buckets import STAGES, Bucket, Parameter, Pipeline, Unit, divided, is_dense
from .weights import HostedWeights

log = logging.getLogger("spillway_torch")

ADDS = "gradients add up over several backwards before an update, which needs all of them: leave early_updates out"
USES = ("gradients are used between backward and the update, as by clipping, a GradScaler or a hook, and early updates come before: leave "
        "early_updates out")
SKIPS = ("no step of the optimizer followed a backward that made its gradients: gradients add up, the step was skipped or lies in the "
         "backward, or that was the one of another model; leave early_updates out")
CHANGES = "{} changed between backward and the update, and early updates come before: change them elsewhere, or leave early_updates out"
CALLS = ("a model is called between backward and the update, and early updates have changed its parameters already: call it elsewhere, or "
         "leave early_updates out")
ADDING = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)  # with which autograd adds to a gradient
PIECE = 1 << 30  # bytes of the host that are given back together


def _of_adam(group: dict[str, Any]) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def _of_sgd(group: dict[str, Any]) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] else ()


# The state that each parameter has, of its size. These optimizers compute element by element.
KINDS: dict[type, Callable[[dict[str, Any]], tuple[str, ...]]] = {
    torch.optim.Adam: _of_adam, torch.optim.AdamW: _of_adam, torch.optim.SGD: _of_sgd}


def can_host(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the state of an optimizer can be on the host, where that of parts of tensors (`DTensor`) cannot be."""
    return type(optimizer) in KINDS and not any(group.get("differentiable") or any(is_taken_apart(type(p)) for p in group["params"])
                                                for group in optimizer.param_groups)


class GivenUp(torch.Tensor):
    """Stands for the gradient of a parameter that was updated early. It has no memory, and who uses it gets a `SpillwayError`."""

    stands_in = True  # a recorder leaves its operators to it

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> GivenUp:
        made: GivenUp = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device)
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return "a gradient that was given up"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise SpillwayError(f"early_updates: {ADDS if in_backward() and func in ADDING else USES}")


@dataclasses.dataclass
class _Timed:
    """An update of parameters."""

    bytes: int  # of parameters
    before: Any  # marks of the device
    after: Any
    host: float  # seconds


class HostedState:
    """The state of an optimizer, some of which is on the host. There it stands in `optimizer.state` as CPU tensors between updates."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: Device, early: bool = False) -> None:
        """REQUIRES: `can_host(optimizer)`.

        early: whether parameters are updated as soon as backward has made their gradients, which are then given up, from the call of
            `start_early` on. A program that uses such a gradient gets a `SpillwayError`.
        """
        self._optimizer_ref, self._device, self._early = weakref.ref(optimizer), device, early
        self._buckets = self._divided()
        self._started = False  # early updates are made
        self._recorder: TapeRecorder | None = None  # of this step
        # By parameter: the storage of its gradient in the recorded step, and the last operator that wrote it before it was done.
        self.finished: dict[Parameter, tuple[int, int]] = {}
        self._timed: list[_Timed] | None = None  # updates since a recording began
        self._missing: dict[Bucket, int] = {}  # gradients of this step, before it can be updated
        self._buckets_of: dict[Parameter, list[Bucket]] = {}
        self._places: dict[Bucket, int] = {}  # in `_buckets`
        self._index()
        self._open = False  # a backward made gradients, and no update followed yet
        self._settings: list[dict[str, Any]] = []  # those of the groups, when the last backward made its first gradient
        self._versions: dict[torch.Tensor, int] = {}  # of the parameters that it updated
        self._pipeline: Pipeline | None = None  # of this backward
        self._wanted = 0  # bytes on the host
        self._calm, self._enough = 0, 0  # the last steps that needed fewer, and how many they needed
        self._patience = 1  # so many such steps in a row let state come back
        self._seen: Any = None  # `optimizer.state` when they were taken there
        self._began: tuple[Any, float] | None = None  # an update: the device's mark, and the time
        self._hidden: list[tuple[dict[str, Any], list[Any]]] = []  # groups, and their parameters
        self._hosts: list[Host] = []
        self._handles: list[Any] = []  # of hooks before an update, behind it, and before `state_dict`, for which copies end
        self._warned = False
        self.weights: HostedWeights | None = None  # parameters, some of which may be on the host themselves
        self._handles += [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after),
                          optimizer.register_state_dict_pre_hook(self._finish)]
        if early:
            self._parameters = {of.tensor: of for of in self._buckets_of}
            this = weakref.ref(self)

            def made(tensor: torch.Tensor) -> None:
                hosted = this()
                if hosted is not None:
                    hosted._made(tensor)

            for tensor in self._parameters:  # what their hooks hold would never be freed
                self._handles.append(tensor.register_post_accumulate_grad_hook(made))

    def _index(self) -> None:
        """Notes which buckets a parameter is in, and where they are."""
        self._buckets_of = {}
        for at, bucket in enumerate(self._buckets):
            self._places[bucket] = at
            for of in bucket.parameters:
                self._buckets_of.setdefault(of, []).append(bucket)

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer = self._optimizer_ref()
        assert optimizer is not None  # whoever calls has it
        return optimizer

    def updates(self) -> list[Update]:
        """Returns the updates of the recorded step as plans know them."""
        if not self._early:
            return [self._late(bucket) for bucket in self._buckets]
        made = {bucket: [self.finished.get(of, (-1, sys.maxsize)) for of in bucket.parameters] for bucket in self._buckets}
        last = {bucket: max(at for _, at in made[bucket]) for bucket in self._buckets}
        self._buckets.sort(key=last.__getitem__)
        self._index()
        seconds, host = self._times()
        stage = max(self.sizes, default=0)
        return [self._late(bucket) if last[bucket] == sys.maxsize else
                Update(self._size(bucket), last[bucket], [storage for of, (storage, _) in zip(bucket.parameters, made[bucket])
                                                          if self._buckets_of[of][-1] is bucket],
                       seconds * sum(unit.bytes for unit in bucket.units), host, _storages(bucket),
                       stage - self._size(bucket) + self._temporary(bucket)) for bucket in self._buckets]

    def _late(self, bucket: Bucket) -> Update:
        """Returns the update of a bucket behind the step, as plans know it. The state of the bucket before leaves meanwhile."""
        return Update(self._size(bucket), parameters=_storages(bucket), scratch=self._size(bucket) + self._temporary(bucket))

    def _temporary(self, bucket: Bucket) -> int:
        """Returns about the bytes of temporary tensors in the update of a bucket."""
        return self._needed(self._optimizer.param_groups[bucket.units[0].of.group], [unit.bytes for unit in bucket.units])

    def _needed(self, group: dict[str, Any], sizes: list[int]) -> int:
        """Returns about the bytes of temporary tensors in one update of parameters of these sizes.

        One after another, Adam makes a root and a quotient of each, beside the quotient of the one before. Another gradient may come first.
        """
        if group.get("fused") or not sizes:
            return 0
        if self._is_foreach(group):
            return sum(sizes)
        if isinstance(self._optimizer, torch.optim.SGD):
            return 2 * max(sizes)
        changed = group["maximize"] or group["weight_decay"] and not group["decoupled_weight_decay"]
        return (2 + (len(sizes) > 1) + bool(changed)) * max(sizes)

    @staticmethod
    def _is_foreach(group: dict[str, Any]) -> bool:
        """Returns whether one operator updates many parameters of a group."""
        return bool(group.get("foreach") or group.get("foreach") is None and any(p.is_cuda for p in group["params"]))

    def _times(self) -> tuple[float, float]:
        """Returns the seconds for a byte of parameters in the updates of a recorded step, and those of the host for one update."""
        timed, self._timed = self._timed or [], None
        took = [(self._device.between(one.before, one.after) / one.bytes, one.host) for one in timed if one.bytes]
        return (statistics.median(one for one, _ in took), statistics.median(host for _, host in took)) if took else (0.0, 0.0)

    def start_early(self) -> None:
        """Makes early updates from now on."""
        self._started = self._early

    def record(self, recorder: TapeRecorder | None) -> None:
        """Notes what records the steps that follow; None if nothing does."""
        self._recorder = recorder
        if recorder is not None and self._early:
            self.finished.clear()
            self._timed = []

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that are updated bucket by bucket, if state of them is on the host, or they are themselves."""
        return [of.tensor for of in self._buckets_of]

    @property
    def sizes(self) -> list[int]:
        """The bytes of the parts in which state leaves, in this order. Parameters that the optimizer never updated have none."""
        return [self._size(bucket) for bucket in self._buckets]

    def _size(self, bucket: Bucket) -> int:
        state = self._optimizer.state
        return sum(unit.room * len(unit.of.names) for unit in bucket.units if not state or unit.of.tensor in state)

    def temporaries(self) -> tuple[int, int]:
        """Returns about the bytes that an update takes besides the state: of a part of it that is on the host, and an ordinary one."""
        ordinary = [self._needed(group, [p.nbytes for p in group["params"] if p.requires_grad]) for group in self._optimizer.param_groups]
        return max(map(self._temporary, self._buckets), default=0), max(ordinary, default=0)

    def existing(self) -> tuple[int, int]:
        """Returns the bytes of state that exist on the device, and on the host."""
        bytes_ = [0, 0]
        for of in self._buckets_of:
            for name, value in self._optimizer.state.get(of.tensor, {}).items():
                if name in of.names and value is not None and not value.is_sparse:
                    bytes_[of.has(value)] += value.nbytes
        return bytes_[0], bytes_[1]

    @property
    def outside(self) -> int:
        """The bytes of state that are on the host, or will be when it exists."""
        return sum(map(self._size, self._outside()))

    def _outside(self) -> list[Bucket]:
        return [bucket for bucket in self._buckets if bucket.outside]

    def _divided(self) -> list[Bucket]:
        """Returns the parameters in buckets: about in the order of their updates if these are early, else small ones first, so that no more
        leave than have to."""
        parameters = [Parameter(p, at, KINDS[type(self._optimizer)](group)) for at, group in enumerate(self._optimizer.param_groups)
                      for p in group["params"] if p.numel() and p.requires_grad and is_dense(p)]
        parameters = [parameter for parameter in parameters if parameter.names]
        return divided(parameters[::-1] if self._early else sorted(parameters, key=lambda of: of.tensor.nbytes))

    def _leaving(self) -> list[list[Bucket]]:
        """Returns the buckets in the order in which they leave; the parts of a parameter leave together."""
        wholes: list[list[Bucket]] = []
        for bucket in self._buckets:
            if bucket.units[0].begin == 0:
                wholes.append([])
            wholes[-1].append(bucket)
        return [wholes[at] for at in leaving_order(len(wholes))] if self._early else wholes

    def move(self, size: int) -> None:
        """Has at least so many bytes of state on the host, as far as there are some. To be called outside of hooks of the optimizer.

        If fewer than before are enough, the rest comes back; once some had to leave again, only if several steps in a row need no more.

        Raises `SpillwayError` if the host has no room.
        """
        if not size and not self._wanted:
            return
        lacks = size > self.outside  # parameters that the first update left out have no state
        if size >= self._wanted or lacks:
            self._calm = self._enough = 0
            if size > self._wanted or lacks or not self._hosts:
                self._wanted = size
                self._leave()
            return
        self._calm, self._enough = self._calm + 1, max(self._enough, size)
        if self._calm >= self._patience:
            self._wanted, self._calm, self._enough, self._patience = self._enough, 0, 0, 2 * self._patience
            self._return()

    def _leave(self) -> None:
        """Takes state to the host, until there is as much as is wanted."""
        self._keep_sparse(self._buckets)
        there = self.outside if self._wanted else 0
        leaving: list[Bucket] = []
        for whole in self._leaving():
            if there >= self._wanted:
                break
            if not whole[0].outside:
                leaving += whole
                there += sum(map(self._size, whole))
        parameters = list(dict.fromkeys(of for bucket in leaving for of in bucket.parameters))
        if not parameters:
            return
        size, kind = sum(of.room * len(of.names) for of in parameters), type(self._optimizer).__name__
        free = host_memory()
        if size > free:
            raise SpillwayError(f"{size:,} bytes of the state of {kind} have to be on the host, which has {free:,} bytes free: "
                                "give a larger budget, or free memory of the host")
        log.info("spillway: %s bytes of the state of %s go to the host", f"{size:,}", kind)
        pieces: list[list[Parameter]] = [[]]
        at = 0
        for of in parameters:
            if at >= PIECE:
                pieces.append([])
                at = 0
            of.at = at
            at += of.room * len(of.names)
            pieces[-1].append(of)
        for piece in pieces:
            self._hosts.append(self._device.host(piece[-1].at + piece[-1].room * len(piece[-1].names)))
            for of in piece:
                of.host = self._hosts[-1]
        self._stream(leaving, update=False)

    def _return(self) -> None:
        """Brings state back that is not wanted on the host: what left last, first."""
        there = self.outside
        coming: list[Bucket] = []
        for whole in reversed(self._leaving()):
            size = sum(map(self._size, whole))
            if whole[0].outside and there - size < self._wanted:
                break
            if whole[0].outside:
                coming += whole
                there -= size
        self._come_back(coming)

    def refuse_skipped(self) -> None:
        """Raises `SpillwayError` if no update has followed early ones, so that a step cannot begin."""
        if self._open:
            raise SpillwayError(f"early_updates: {SKIPS}")

    def refuse_call(self, model: torch.nn.Module) -> None:
        """Raises `SpillwayError` if parameters of a model were updated early, and the update has not followed."""
        if self._versions and any(p in self._versions for p in model.parameters()):
            raise SpillwayError(f"early_updates: {CALLS}")

    def settle(self) -> None:
        """Prepares for the next step: its update is the last thing before, and the first thing behind, the hooks of others.

        State that came to the device since, because it was loaded, goes to the host.
        """
        self.refuse_skipped()
        before: Any = self._optimizer._optimizer_step_pre_hooks
        after: Any = self._optimizer._optimizer_step_post_hooks
        before.move_to_end(self._handles[0].id)
        after.move_to_end(self._handles[1].id, last=False)
        if self._seen is not self._optimizer.state:
            self._stream(self._outside(), update=False)
        if self._wanted and not self._hosts:  # an update needed it on the device
            self._leave()
        if self._early:
            self._missing = {bucket: len(bucket.parameters) for bucket in self._buckets}

    def close(self) -> None:
        """Takes all state back to the device, and gives the memory of the host back. What has no room there is on the CPU from now on."""
        self._show()
        self._forget_gradients()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._wanted = 0
        if self._optimizer_ref() is not None:
            try:
                self._come_back(self._outside())
            except torch.OutOfMemoryError:
                log.warning("spillway: %s bytes of the state of %s are on the CPU now, because the device has no room for them",
                            f"{self.existing()[1]:,}", type(self._optimizer).__name__)
                self._come_back(self._outside(), "cpu")

    def _forget_gradients(self) -> None:
        """Takes what stands for gradients away."""
        for of in self._buckets_of if self._early else ():
            if isinstance(of.tensor.grad, GivenUp):
                of.tensor.grad = None

    def _come_back(self, buckets: list[Bucket], place: str | None = None) -> None:
        """Brings the state of buckets to the device, or elsewhere, and gives memory of the host back that has no other."""
        for of in dict.fromkeys(of for bucket in buckets for of in bucket.parameters):
            states = self._optimizer.state.get(of.tensor, {})
            for name in of.names:
                if of.has(states.get(name)):
                    states[name] = states[name].to(place or of.tensor.device, copy=True)
            of.host = None
        taken = {id(of.host) for of in self._buckets_of}
        for host in [host for host in self._hosts if id(host) not in taken]:
            host.close()
            self._hosts.remove(host)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Updates what has its state on the host, before a step of the optimizer that then does not find it."""
        self._show()
        self._open = False
        self._forget_gradients()
        self._refuse_changes()
        if self._pipeline is not None:
            self._pipeline.end()
            self._pipeline = None
        self._keep_sparse(self._outside())
        due = [bucket for bucket in self._buckets if not self._started or self._missing.get(bucket) != 0]
        outside = [bucket for bucket in due if bucket.outside]
        away = [bucket for bucket in due if not bucket.outside and self.weights is not None
                and self.weights.leaving(of.tensor for of in bucket.parameters)]
        if not outside and not away:
            self._begin_timing()
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first one is the optimizer
        if closure is not None or next(reversed(optimizer._optimizer_step_pre_hooks)) != self._handles[0].id:
            if not self._warned:
                self._warned = True
                log.warning("spillway: the state of the %s is on the device during the whole of this update, because %s",
                            type(optimizer).__name__, "it gets a closure" if closure is not None else "a hook was added since the forward")
            self._come_back(self._outside())
            return
        self._stream(outside, update=True)
        for bucket in away:  # the weights of all others would be there at once
            self._update_whole(bucket)
        done = {id(of.tensor) for bucket in (*outside, *away) for of in bucket.parameters}
        self._hide(lambda _, parameters: [p for p in parameters if id(p) not in done])
        self._begin_timing()

    def _keep_sparse(self, buckets: list[Bucket]) -> None:
        """Leaves parameters with sparse gradients, whose state is sparse, too, to the optimizer's step, with their state on the device."""
        sparse = {of for bucket in buckets for of in bucket.parameters
                  if any(isinstance(value, torch.Tensor) and value.is_sparse
                         for value in (of.tensor.grad, *self._optimizer.state.get(of.tensor, {}).values()))}
        if not sparse:
            return
        self._come_back([bucket for bucket in buckets if sparse.intersection(bucket.parameters)])
        for bucket in self._buckets:
            bucket.units = [unit for unit in bucket.units if unit.of not in sparse]
        self._buckets = [bucket for bucket in self._buckets if bucket.units]
        self._index()

    def _settings_now(self) -> list[dict[str, Any]]:
        """Returns the settings of the groups, and those that are tensors by their versions."""
        return [{name: (id(value), value._version) if isinstance(value, torch.Tensor) else value
                 for name, value in group.items() if name != "params"} for group in self._optimizer.param_groups]

    def _refuse_changes(self) -> None:
        """Raises `SpillwayError` if the update would not be the one that early updates have made."""
        versions, self._versions = self._versions, {}
        if not versions:
            return
        names = {name for now, was in zip(self._settings_now(), self._settings) for name in now if now[name] != was.get(name)}
        if names:
            raise SpillwayError("early_updates: " + CHANGES.format(f"settings of the optimizer ({', '.join(sorted(names))})"))
        if any(parameter._version != version for parameter, version in versions.items()):
            raise SpillwayError("early_updates: " + CHANGES.format("parameters"))

    def _finish(self, _: torch.optim.Optimizer) -> None:
        """Waits until what is on the host is there."""
        self._device.now()

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._end_timing([p for group in optimizer.param_groups for p in group["params"] if p.grad is not None])
        self._show()

    def _begin_timing(self) -> None:
        mark = self._recorder.times.busy_mark if self._recorder is not None else self._device.mark
        self._began = (mark(), time.perf_counter()) if self._timed is not None else None

    def _end_timing(self, targets: Sequence[torch.Tensor]) -> None:
        """Notes how long the update of some tensors took, if a recording began before it."""
        if self._timed is not None and self._began is not None and self._began[0] is not None:
            (before, began), self._began = self._began, None
            self._timed.append(_Timed(sum(target.nbytes for target in targets), before, self._device.mark(), time.perf_counter() - began))

    def _hide(self, shown: Callable[[int, list[Any]], list[Any]]) -> None:
        """Gives the optimizer other parameters, by the number of a group and its own ones."""
        for at, group in enumerate(self._optimizer.param_groups):
            self._hidden.append((group, group["params"]))
            group["params"] = shown(at, group["params"])

    def _show(self) -> None:
        """Gives the optimizer its parameters back."""
        for group, parameters in self._hidden:
            group["params"] = parameters
        self._hidden.clear()

    def _made(self, tensor: torch.Tensor) -> None:
        """Updates what can be updated now that backward has made the gradient of a parameter."""
        of = self._parameters[tensor]
        if not self._open:
            self._open, self._settings = True, self._settings_now()
        recorder = self._recorder
        if recorder is not None and tensor.grad is not None:
            storage = recorder.ledger.find(tensor.grad)
            if storage.born >= 0:
                self.finished[of] = storage.number, max(storage.born, *recorder.tape.writes.get(storage.number, ()), 0)
        if not self._started:
            return
        for bucket in self._buckets_of.get(of, ()) if self._missing else ():  # otherwise no step began
            self._missing[bucket] -= 1
            if self._missing[bucket] < 0:
                raise SpillwayError(f"early_updates: {ADDS}")
            if self._missing[bucket]:
                continue
            if recorder is not None:
                with recorder.update():
                    self._update_early(bucket)
            else:
                self._update_early(bucket)
            for done in bucket.parameters:
                if not any(self._missing[other] for other in self._buckets_of[done]):
                    done.tensor.grad = None  # which may have the form of another tensor than the parameter
                    done.tensor.grad = done.given_up = done.given_up if done.given_up is not None else GivenUp(done.tensor)
                    self._versions[done.tensor] = done.tensor._version

    @torch.no_grad()
    def _update_early(self, bucket: Bucket) -> None:
        """Updates a bucket while backward runs, and brings the one that probably follows."""
        self._keep_sparse([bucket])
        if not bucket.units:
            return
        if not bucket.outside:
            self._update_whole(bucket)
            return
        if self._pipeline is None:
            self._pipeline = Pipeline(self._device, max(b.bytes for b in self._outside()), STAGES)
        self._pipeline.fetch(bucket, self._exists)
        later = (self._buckets[at] for at in range(self._places[bucket] + 1, len(self._buckets)))
        following = next((b for b in later if b.outside and self._missing[b] > 0), None)
        if following is not None:
            self._pipeline.fetch(following, self._exists, bucket)
        self._pass(self._pipeline, bucket, True)

    def _update_whole(self, bucket: Bucket) -> None:
        """Updates a bucket whose state is on the device, with the last part of each parameter."""
        self._step([(unit.of.group, unit.of.tensor) for unit in bucket.units if unit.end == unit.of.tensor.numel()])

    def _exists(self, of: Parameter, name: str) -> bool:
        """Returns whether a state of a parameter is on the host."""
        return of.has(self._optimizer.state.get(of.tensor, {}).get(name))

    def _step(self, targets: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Lets the optimizer update some tensors, each with the number of its group."""
        self._hide(lambda at, _: [target for group, target in targets if group == at])
        try:
            with self.weights.updating(target for _, target in targets) if self.weights is not None else contextlib.nullcontext():
                self._begin_timing()
                getattr(type(self._optimizer).step, "__wrapped__")(self._optimizer)
                self._end_timing([target for _, target in targets])
        finally:
            self._show()

    @torch.no_grad()
    def _stream(self, buckets: list[Bucket], update: bool) -> None:
        """Brings buckets to the device, one after another, updates them, and takes them to the host."""
        if buckets:
            pipeline = Pipeline(self._device, max(bucket.bytes for bucket in buckets), min(STAGES, len(buckets)))
            for bucket, following in zip(buckets, [*buckets[1:], None]):
                pipeline.fetch(bucket, self._exists)
                if following is not None:
                    pipeline.fetch(following, self._exists)
                self._pass(pipeline, bucket, update)
            pipeline.end()
        self._seen = self._optimizer.state

    def _pass(self, pipeline: Pipeline, bucket: Bucket, update: bool) -> None:
        """Updates a bucket whose state was fetched, and lets the state leave."""
        stage, memory = pipeline.take(bucket)
        targets = [self._target(unit, memory) for unit in bucket.units]
        if update:
            self._step([(unit.of.group, target) for unit, target in zip(bucket.units, targets)])
        for unit, target in zip(bucket.units, targets):
            self._keep(unit, target, memory)
        pipeline.leave(bucket, stage)

    def _target(self, unit: Unit, stage: torch.Tensor) -> torch.Tensor:
        """Returns what the optimizer updates: the parameter, or a part of it. Its state is on the device."""
        of, state = unit.of, self._optimizer.state
        target = unit.part(of.tensor)
        if not unit.whole and of.tensor.grad is not None:
            target.grad = unit.part(of.tensor.grad)
        if state.get(of.tensor):
            last = unit.end == of.tensor.numel()
            state[target] = {name: unit.staged(stage, name) if of.has(value) else
                             unit.part(value) if name in of.names and value is not None else
                             value.clone() if isinstance(value, torch.Tensor) and not last else value
                             for name, value in state[of.tensor].items()}
        return target

    def _keep(self, unit: Unit, target: torch.Tensor, stage: torch.Tensor) -> None:
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


def _storages(bucket: Bucket) -> tuple[int, ...]:
    """Returns the storages of a bucket's parameters, as PyTorch knows them."""
    return tuple(of.tensor.untyped_storage()._cdata for of in bucket.parameters)

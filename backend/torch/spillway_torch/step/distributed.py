"""Programs of several processes, of which one runs here on a pretended GPU: PyTorch's fake process group stands for the others."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from ..base.errors import NotRecordableError
from .data import Collective
from .streams import Mark

FAKE = "torch.distributed.init_process_group('fake', rank=R, world_size=W)"


def is_taken_apart(kind: type) -> bool:
    """Returns whether tensors of a type run their operators on tensors of one process each: DTensor and AsyncCollectiveTensor."""
    return kind.__module__.startswith("torch.distributed.") and hasattr(kind, "__tensor_flatten__")


def local_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors of this process that hold the data of a tensor."""
    if not is_taken_apart(type(tensor)):
        return [tensor]
    wrapper: Any = tensor
    return [local for name in wrapper.__tensor_flatten__()[0] for local in local_tensors(getattr(tensor, name))]


def local_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor that are in this process."""
    return sum(local._indices().nbytes + local._values().nbytes if local.is_sparse else local.nbytes for local in local_tensors(tensor))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _waited_for(tensor: torch.Tensor) -> Any:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    return AsyncCollectiveTensor(tensor)


# Operators that give the tensor that they get. PyTorch would make another one without data.
WRAPPERS: dict[str, Callable[[torch.Tensor], Any]] = {"wait_tensor": lambda tensor: tensor, "_wrap_tensor_autograd": _waited_for}


def collective_of(call: Any, result: Any, place: str) -> Collective:
    """Returns what a `Call` of the recorder communicates. REQUIRES: it is a collective."""
    named = {**call.facts.defaults, **dict(zip(call.facts.arguments, call.args)), **call.kwargs}
    group = (getattr(dist.distributed_c10d, "_resolve_process_group")(named["group_name"]) if "group_name" in named else
             dist.ProcessGroup.unbox(named["process_group"]))
    if dist.get_backend(group) != "fake" and any(t.device.type == "meta" for t in call.inputs):
        raise NotRecordableError(f"{call.func}{place} communicates by '{dist.get_backend(group)}', but no other process has a pretended "
                                 f"GPU; call {FAKE} instead")
    ranks = tuple(dist.get_process_group_ranks(group))
    if call.facts.collective in ("send", "receive"):
        peer = named.get("dst", named.get("src"))
        ranks = (dist.get_rank(),) if peer is None else tuple(sorted((dist.get_rank(), ranks[peer])))
    return Collective(call.facts.collective, group.group_name, ranks, max(map(_bytes, (*named.values(), result))),
                      named.get("async_op", True))


class Works:
    """The collectives that the program may wait for, by the handles that it has.

    A message keeps its tensors until it is waited for, as process groups of NCCL and gloo do.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, list[Callable[[], torch.Tensor | None]], Mark | None]] = {}

    def add(self, result: Any, tensors: list[torch.Tensor], mark: Mark | None, message: bool) -> None:
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, torch.ScriptObject):
                work = torch._C._distributed_c10d.Work.unbox(value)
                self._known[id(work)] = work, [functools.partial(_itself, t) if message else weakref.ref(t) for t in tensors], mark

    def mark(self, work: Any) -> Mark | None:
        """Returns the mark of a collective that the program waits for, and forgets it."""
        return self._known.pop(id(work), (None, [], None))[2]

    def future(self, work: Any) -> Any:
        """Returns what PyTorch's handles give to hooks of gradients."""
        future: Any = torch.futures.Future()
        future.set_result([tensor() for tensor in self._known.get(id(work), (None, [], None))[1]])
        return future


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Reductions:
    """The buckets of gradients that a DistributedDataParallel has reduced.

    Nobody waits for the handles of these collectives. A process group of NCCL keeps their tensors until it has seen that they ended, and
    gives them back in a later collective. So the first buckets still exist when the second step makes others.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.kept: list[torch.Tensor] = []


def _reduce_bucket(reductions: _Reductions, bucket: Any) -> Any:
    """Adds gradients as DistributedDataParallel's own code does, which cannot wait for a fake process group.

    It divides them while it copies them into the bucket.
    """
    if bucket.index() == 0:
        reductions.kept.clear()
    reductions.kept.append(bucket.buffer())
    dist.all_reduce(bucket.buffer(), group=reductions.group, async_op=True)
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _with_hook(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the first part of a DistributedDataParallel's forward, which has a hook if the program has given it none."""
    def pre_forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
        if not ddp._comm_hooks:
            reductions = _Reductions(ddp.process_group)
            ddp._comm_hooks.append((_reduce_bucket, reductions))
            getattr(dist, "_register_comm_hook")(ddp.reducer, reductions, _reduce_bucket)
        return forward(ddp, *args, **kwargs)

    return pre_forward


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's own questions about shapes are no operators of the program."""
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return function(*args, **kwargs)

    return call


def _without_data(make: Callable[..., Any]) -> Any:
    """Returns what makes wrappers of tensors, which have no data on a GPU."""
    def make_wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = torch.device("meta")
        return make(*args, **kwargs)

    return make_wrapper


@contextlib.contextmanager
def sharded(recorder: Any) -> Iterator[None]:
    """Lets the recorder see storages that the program empties and fills again, and not how DTensor finds shapes."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        result = resize(storage, size)
        if storage.nbytes() != before:
            recorder.resized(storage)
        return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", resize_))
        if "torch.distributed.tensor" in sys.modules:
            _keep_shapes_apart(stack)
        yield


def _keep_shapes_apart(stack: contextlib.ExitStack) -> None:
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    name = "_propagate_tensor_meta_non_cached"
    stack.enter_context(mock.patch.object(ShardingPropagator, name, _apart(getattr(ShardingPropagator, name))))


@contextlib.contextmanager
def pretended(recorder: Any) -> Iterator[None]:
    """Lets torch.distributed work on a pretended GPU, from the time when the program makes its process group."""
    if not dist.is_available():
        yield
        return
    from torch.distributed import distributed_c10d as c10d
    make = c10d._new_process_group_helper
    with contextlib.ExitStack() as stack:
        begun: list[bool] = []

        def begin() -> None:
            if not begun:
                begun.append(True)
                _patch(stack, recorder)

        def make_group(*args: Any, **kwargs: Any) -> Any:
            begin()
            return make(*args, **kwargs)

        stack.enter_context(mock.patch.object(c10d, "_new_process_group_helper", make_group))
        if dist.is_initialized():
            begin()
        yield


def _patch(stack: contextlib.ExitStack, recorder: Any) -> None:
    _keep_shapes_apart(stack)
    import torch.distributed.tensor._dispatch as dispatch
    import torch.distributed.tensor._random as random
    import torch.nn.parallel.distributed as parallel
    from torch._C._distributed_c10d import FakeWork

    def wait(work: Any, *_: Any, **__: Any) -> bool:
        recorder.lanes.wait(recorder.lanes.current.lane, recorder.works.mark(work))
        return True

    def receive_objects(*_: Any, **__: Any) -> Any:
        raise NotRecordableError(f"recv_object_list{recorder.place()}: Python objects of other processes are not known. A stage of "
                                 "torch.distributed.pipelining receives the shapes of its input so: give PipelineStage input_args=X, "
                                 "output_args=Y, tensors of one micro-batch, such as torch.empty(..., device='meta')")

    ddp = parallel.DistributedDataParallel
    for owner, name, value in (
            (dist, "recv_object_list", receive_objects),
            (dist.distributed_c10d, "recv_object_list", receive_objects),
            (torch.Tensor, "_make_wrapper_subclass", staticmethod(_without_data(torch.Tensor._make_wrapper_subclass))),
            (random, "is_rng_supported_mesh", lambda mesh: False),  # a pretended GPU draws nothing
            (dispatch, "is_rng_supported_mesh", lambda mesh: False),
            (parallel, "_verify_param_shape_across_processes", lambda *_, **__: None),
            (ddp, "_pre_forward", _with_hook(ddp._pre_forward)),
            (FakeWork, "wait", wait), (FakeWork, "get_future", lambda work: recorder.works.future(work))):
        stack.enter_context(mock.patch.object(owner, name, value))

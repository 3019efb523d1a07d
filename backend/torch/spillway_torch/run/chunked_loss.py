"""Losses in chunks of rows: the logits of a linear layer that a cross entropy follows never exist as a whole.

The result of a large linear layer is a stand-in, `Logits`, that knows how to be sliced by rows, reshaped and cast. A cross entropy of it
computes each chunk's logits, its losses and, while they exist, their gradients. Any other use makes the ordinary logits.
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch
import torch.utils._pytree
from torch.nn import functional as F

from ..base.errors import SpillwayError
from ..step.modules import find_blocks
from ..tape import losses
from ..tape.regions import is_compiled

log = logging.getLogger("spillway_torch")

FORWARD = "forward"  # what a linear layer has of its own while its losses may be computed in chunks
TILE = 128  # rows of a chunk are a multiple of it, if they are more: matrix products on a GPU work in tiles of so many
NONE, MEAN, SUM = "none", "mean", "sum"
_CASTS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16,
          torch.Tensor.double: torch.float64}
_TOLD = {getattr(torch.Tensor, name).__get__ for name in (  # what is known without the logits
    "shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad_fn", "grad", "ndim", "is_cuda", "is_cpu", "is_meta",
    "is_sparse", "is_quantized", "is_nested", "nbytes", "itemsize", "_version")} | {getattr(torch.Tensor, name) for name in (
        "size", "dim", "ndimension", "numel", "nelement", "stride", "is_floating_point", "is_complex", "element_size", "get_device",
        "is_contiguous", "is_inference", "__len__")} | {torch.is_floating_point, torch.is_complex, torch.numel}
_ASK_FOR_GRADIENTS = {torch.Tensor.register_hook, torch.Tensor.retain_grad, torch.autograd.grad}  # of the logits


def rows_of(classes: int) -> int:
    """Returns how many rows of so many logits are computed at a time."""
    rows = max(1, losses.CHUNK // (4 * classes))
    return rows - rows % TILE if rows > TILE else rows


class _Layer:
    """A call of a linear layer, whose result nobody has read yet."""

    def __init__(self, owner: ChunkedLosses, name: str, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor],
                 dtype: torch.dtype) -> None:
        self.owner, self.name, self.dtype = owner, name, dtype
        self.operands = x, weight, bias
        self.place = x.device
        self.chunked = False  # a loss of it was computed in chunks
        self.whole = False  # the ordinary logits were made
        self.results: list[weakref.ref[_Result]] = []  # in the order in which they were made
        self._autocast = torch.is_autocast_enabled(x.device.type)
        self._hooks = _hooks()
        self._versions = self._now()

    def _now(self) -> list[int]:
        return [t._version for t in self.operands if t is not None]

    def check(self) -> None:
        """Raises `SpillwayError` if the operands were changed since the call."""
        if self._now() != self._versions:
            raise SpillwayError(f"the logits of module '{self.name}' are read after its input or its parameters were changed in place, "
                                'such as by the update: read them before, or leave allow="chunked_loss" out')

    def run(self, operands: Sequence[Optional[torch.Tensor]]) -> torch.Tensor:
        """Returns what the layer makes of an input, a weight and a bias."""
        with torch.autocast(self.place.type, self.dtype if self._autocast else None, enabled=self._autocast, cache_enabled=False):
            return F.linear(*operands)  # type: ignore[arg-type]

    def make(self, why: str) -> None:
        """Makes the ordinary logits and all that follows from them; `why` names who reads them."""
        if not self.whole:
            self.check()
            self.owner.note_read(self, why)
        self.whole = True
        with torch.inference_mode(False), torch.enable_grad(), _under(self._hooks):
            for result in filter(None, [reference() for reference in self.results]):
                result.made()


class _Result:
    """Logits, or what follows from others by a function that keeps each row's classes together."""

    def __init__(self, layer: _Layer, rows: torch.Tensor, dtypes: tuple[torch.dtype, ...], parent: Optional[_Result] = None,
                 function: Callable[[torch.Tensor], torch.Tensor] = lambda parent: parent) -> None:
        self.layer, self.rows, self.dtypes = layer, rows, dtypes  # `rows` are the layer's inputs, `dtypes` all types that they had
        self.parent, self.function = parent, function
        self.value: Optional[torch.Tensor] = None

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.rows.shape[:-1], self.layer.operands[1].shape[0]

    def replay(self, operands: Sequence[Optional[torch.Tensor]]) -> torch.Tensor:
        """Returns the ordinary logits for an input, a weight and a bias of the layer."""
        return self.function(self.parent.replay(operands)) if self.parent is not None else self.layer.run(operands)

    def made(self) -> torch.Tensor:
        """Returns the ordinary logits, the same ones each time."""
        if self.value is None:
            self.value = self.function(self.parent.made()) if self.parent is not None else self.layer.run(self.layer.operands)
        return self.value

    def tensor(self) -> Logits:
        made: Logits = _Whole.apply(self, *self.layer.operands)
        self.layer.results.append(weakref.ref(self))
        return made


class Logits(torch.Tensor):
    """Stands for the result of a linear layer, or its rows, and has no data. What reads it gets the ordinary logits."""

    stands_in = True  # a recording sees what is made of it
    of: _Result

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _TOLD:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Logits)]
        why = torch.overrides.resolve_name(func) or repr(func)
        if len(given) == 1 and args and args[0] is given[0] and not given[0].of.layer.whole and torch.is_grad_enabled():
            derived = _derived(func, *args, **kwargs)
            if derived is not None:
                return derived
            if func is F.cross_entropy:
                loss = _cross_entropy(*args, **kwargs)
                if not isinstance(loss, str):
                    return loss
                why += loss
        for layer in dict.fromkeys(logits.of.layer for logits in given):
            if layer.chunked and func in _ASK_FOR_GRADIENTS:
                raise SpillwayError(f"{why} asks for a gradient of the logits of module '{layer.name}', whose loss was computed in chunks: "
                                    'ask for it before the loss, or leave allow="chunked_loss" out')
            layer.make(why)
        args, kwargs = torch.utils._pytree.tree_map(lambda t: t.of.made() if isinstance(t, Logits) else t, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs what reaches PyTorch without its functions, such as functions of autograd in C++, below autograd, which has `_Whole`."""
        if func._schema.is_mutable:
            raise SpillwayError(f"{func} changes the result of a linear layer unseen: leave allow=\"chunked_loss\" out")

        def data(of: Any) -> Any:
            if not isinstance(of, Logits):
                return of
            layer = of.of.layer
            layer.check()
            layer.owner.note_read(layer, str(func))
            return of.of.value.detach() if of.of.value is not None else of.of.replay(layer.operands)

        args, kwargs = torch.utils._pytree.tree_map(data, (args, kwargs or {}))
        return func(*args, **kwargs)


class _Whole(torch.autograd.Function):
    """Makes a stand-in, and has a backward for what autograd does with it unseen: it makes the logits again."""

    @staticmethod
    def forward(ctx: Any, result: _Result, *operands: Optional[torch.Tensor]) -> Logits:
        ctx.result = result  # not saved for autograd: usually nobody reads it
        made: Logits = torch.Tensor._make_wrapper_subclass(
            Logits, result.shape, dtype=result.dtypes[-1], device=result.rows.device, requires_grad=False)
        made.of = result
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        layer = ctx.result.layer
        _refuse_graph(layer.name)
        layer.check()
        with torch.enable_grad():
            operands = [t.detach().requires_grad_(t.requires_grad) if t is not None else None for t in layer.operands]
            made = ctx.result.replay(operands)
            wanted = [t for t in operands if t is not None and t.requires_grad]
            found = iter(torch.autograd.grad(made, wanted, gradients))
        return None, *(next(found) if t is not None and t.requires_grad else None for t in operands)


def _refuse_graph(name: str) -> None:
    """Raises `SpillwayError` in a backward that makes a graph for another one, which would miss what the gradients follow from."""
    if torch.is_grad_enabled():
        raise SpillwayError(f"a backward with create_graph=True reads the loss of module '{name}', which was computed in chunks: leave "
                            'allow="chunked_loss" out')


def _hooks() -> Any:
    """Returns the saved-tensor hooks that are active; None if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


@contextlib.contextmanager
def _under(hooks: Any) -> Iterator[None]:
    """Within it, these saved-tensor hooks are the active ones, if they still lie below others, such as those of a checkpoint."""
    above = []
    while _hooks() not in (None, hooks):
        above.append(_hooks())
        torch._C._autograd._pop_saved_tensors_default_hooks()
    there = _hooks() == hooks
    try:
        if there:
            yield
    finally:
        for pair in reversed(above):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)
    if not there:
        yield


def _derived(func: Any, logits: Logits, *args: Any, **kwargs: Any) -> Optional[torch.Tensor]:
    """Returns what a function makes of a stand-in; None unless it keeps each row's classes together."""
    of = logits.of
    rows, dtypes, classes = of.rows, of.dtypes, of.shape[-1]
    dtype = _CASTS.get(func) if not args and not kwargs else None
    if func is torch.Tensor.to and (len(args) == 1 and not kwargs or not args and set(kwargs) == {"dtype"}):
        dtype = args[0] if args else kwargs["dtype"]
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        if dtype == dtypes[-1]:
            return logits
        dtypes = *dtypes, dtype
    elif kwargs:
        return None
    elif func in (torch.Tensor.view, torch.Tensor.reshape, torch.reshape):
        shape = _shape(of.shape, args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args)
        if not shape or shape[-1] != classes:
            return None
        rows = rows.reshape(*shape[:-1], rows.shape[-1])
    elif func in (torch.Tensor.flatten, torch.flatten) and len(args) == 2 and all(isinstance(at, int) for at in args):
        first, last = (at % rows.dim() for at in args)
        if not first <= last < rows.dim() - 1:
            return None
        rows = rows.flatten(first, last)
    elif func is torch.Tensor.__getitem__ and len(args) == 1 and _takes_rows(args[0], rows.dim()):
        rows = rows[args[0]]
    elif not (func is torch.Tensor.contiguous and not args):
        return None
    return _Result(of.layer, rows, dtypes, of, lambda logits: func(logits, *args, **kwargs)).tensor()


def _shape(old: tuple[int, ...], new: Sequence[Any]) -> Optional[tuple[int, ...]]:
    """Returns the shape that `view` makes; None if it is none, or another kind of view."""
    if not all(isinstance(size, int) for size in new) or list(new).count(-1) > 1:
        return None
    known, whole = math.prod(size for size in new if size != -1), math.prod(old)
    shape = tuple(whole // max(known, 1) if size == -1 else size for size in new)
    return shape if math.prod(shape) == whole else None


def _takes_rows(index: Any, dimensions: int) -> bool:
    """Returns whether an index leaves the last dimension of a tensor as it is, and where it is."""
    if type(index) is torch.Tensor:
        return index.dtype == torch.int64 or index.dtype == torch.bool and 0 < index.dim() < dimensions
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is Ellipsis or part is None or isinstance(part, slice) or type(part) is int for part in parts):
        return False
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    reaches = taken >= dimensions or any(part is Ellipsis for part in parts[:-1])  # its last part stands for the last dimension
    return taken <= dimensions and (not reaches or parts[-1] == slice(None))


def _cross_entropy(logits: Logits, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
                   reduce: Any = None, reduction: str = MEAN, label_smoothing: float = 0.0) -> torch.Tensor | str:
    """Returns the loss, computed in chunks, or, for a message, why it is not."""
    of = logits.of
    layer = of.layer
    if logits.dim() != 2:
        return f", whose logits have {logits.dim()} dimensions"
    if type(target) is not torch.Tensor or target.dtype != torch.int64 or target.dim() != 1 or len(target) != len(logits) or (
            target.device != logits.device):
        return ", whose targets are no class numbers, one for each row"
    if label_smoothing != 0 or size_average is not None or reduce is not None or reduction not in (NONE, MEAN, SUM):
        return ", which has label_smoothing, or other options"
    layer.check()
    none = torch.empty(0, 2, dtype=of.dtypes[-1], device=logits.device)
    dtype = F.cross_entropy(none, target[:0], reduction=NONE).dtype  # autocast chooses it
    if weight is not None and (type(weight) is not torch.Tensor or weight.dtype != dtype or weight.shape != logits.shape[1:]):
        return ", which has class weights of another type or number"
    layer.chunked = True
    layer.owner.chunked += 1
    chunks = _Chunks((*of.dtypes, dtype), ignore_index, reduction)
    loss: torch.Tensor = _Loss.apply(layer.name, chunks, of.rows, *layer.operands[1:], target, weight)
    return loss


class _Chunks:
    """The loss of rows, chunk after chunk, by the operators of an ordinary one.

    dtypes: those of the logits, as the layer makes them and as they are cast; the last one is that of the loss.
    """

    def __init__(self, dtypes: tuple[torch.dtype, ...], ignore_index: int, reduction: str) -> None:
        self.dtypes, self.ignore_index, self.reduction = dtypes, ignore_index, reduction
        # The gradient of the loss is not known in forward: small types need it before they round, and one for each row is no factor.
        self.late = reduction == NONE or dtypes[0] == torch.float16

    def total(self, target: torch.Tensor, classes: Optional[torch.Tensor]) -> Any:
        """Returns what the sum of the losses is divided by."""
        if self.reduction != MEAN:
            return 1
        counted = target != self.ignore_index
        return counted.sum() if classes is None else classes[target.where(counted, 0)].where(counted, 0).sum()

    def run(self, operands: Sequence[Any], each: Optional[torch.Tensor], gradient: Optional[torch.Tensor],
            needed: Sequence[bool]) -> list[Optional[torch.Tensor]]:
        """Returns the gradients of input, weight and bias that are `needed`.

        operands: input, weight, bias, targets and the weights of classes.
        each: takes the loss of each row, if it is given.
        gradient: that of each row's loss; None: no gradients are made.
        """
        rows, weight, bias, target, classes = operands
        first, last = self.dtypes[0], self.dtypes[-1]
        weight, bias = weight.to(first), bias.to(first) if bias is not None else None
        made = [torch.empty_like(t, dtype=first) if need and gradient is not None else None
                for t, need in zip((rows, weight, bias), needed)]
        total = rows.new_zeros((), dtype=last)  # nobody reads it, because losses of rows are not reduced
        step = rows_of(weight.shape[0])
        with torch.autocast(rows.device.type, enabled=False):
            for at in range(0, max(1, len(rows)), step):  # without rows, gradients are zeros
                part = slice(at, at + step)
                x = rows[part].to(first)
                logits = F.linear(x, weight, bias)
                for dtype in self.dtypes[1:]:
                    logits = logits.to(dtype)
                logits = torch.log_softmax(logits, 1)
                if each is not None:
                    each[part] = torch.ops.aten.nll_loss_forward(logits, target[part], classes, 0, self.ignore_index)[0]
                if gradient is None:
                    continue
                slope = torch.ops.aten.nll_loss_backward(gradient[part], logits, target[part], classes, 0, self.ignore_index, total)
                slope = torch.ops.aten._log_softmax_backward_data(slope, logits, 1, last)
                del logits
                for dtype in self.dtypes[-2::-1]:
                    slope = slope.to(dtype)
                if made[0] is not None:
                    torch.mm(slope, weight, out=made[0][part])
                if made[1] is not None:
                    made[1].addmm_(slope.t(), x, beta=1 if at else 0)
                if made[2] is not None:
                    made[2].add_(slope.sum(0)) if at else made[2].copy_(slope.sum(0))
        return made


class _Loss(torch.autograd.Function):
    """A cross entropy of a linear layer's result."""

    @staticmethod
    def forward(ctx: Any, name: str, chunks: _Chunks, *operands: Any) -> torch.Tensor:
        rows, _, _, target, classes = operands
        ctx.name, ctx.chunks = name, chunks
        ctx.save_for_backward(*operands)
        each = rows.new_empty(len(rows), dtype=chunks.dtypes[-1])
        total = chunks.total(target, classes)
        gradient = None if chunks.late else each.new_ones(()).div(total).expand(len(rows))
        ctx.gradients = chunks.run(operands, each, gradient, ctx.needs_input_grad[2:5])
        if chunks.reduction == NONE:
            return each
        return each.sum() if chunks.reduction == SUM else each.sum() / total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _refuse_graph(ctx.name)
        operands, chunks = ctx.saved_tensors, ctx.chunks
        made, ctx.gradients = ctx.gradients, None  # so that autograd may keep them
        if made is None or chunks.late:  # or the graph was retained, and the first backward has them
            each = gradient if chunks.reduction == NONE else (gradient / chunks.total(*operands[3:])).expand(len(operands[0]))
            made = chunks.run(operands, None, each, ctx.needs_input_grad[2:5])
        else:
            for of in made:
                if of is not None:
                    of.mul_(gradient)
        return None, None, *(of.to(operand.dtype) if of is not None else None for of, operand in zip(made, operands)), None, None


class ChunkedLosses:
    """Makes the linear layers of models, outside of their repeated blocks, give stand-ins for large results, until `close`."""

    def __init__(self, models: Sequence[torch.nn.Module], state: Callable[[torch.nn.Module], Any]) -> None:
        """state: what stands in the place of a layer's `__getstate__`, for copies and files."""
        self.chunked = 0  # losses since the last update
        self._layers: dict[torch.nn.Module, Any] = {}
        self._read = ""  # what read the last result
        self._told = self._told_again = False
        for model in models:
            inside = {layer for _, block in find_blocks(model) for layer in block.modules()}
            for name, layer in model.named_modules():
                plain = type(layer).forward is torch.nn.Linear.forward and FORWARD not in vars(layer) and not is_compiled(layer)
                if layer not in inside and plain:
                    self._layers[layer] = self._forward_of(layer, name)
                    vars(layer).update({FORWARD: self._layers[layer], "__getstate__": lambda layer=layer: state(layer)})

    def close(self) -> None:
        for layer, forward in self._layers.items():
            if vars(layer).get(FORWARD) is forward:
                del vars(layer)[FORWARD]
                vars(layer).pop("__getstate__", None)
        self._layers.clear()

    def _forward_of(self, layer: torch.nn.Module, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(input: torch.Tensor) -> torch.Tensor:  # pylint: disable=redefined-builtin
            weight: torch.Tensor = layer.weight  # type: ignore[assignment]
            bias: Optional[torch.Tensor] = layer.bias  # type: ignore[assignment]
            dtype = None if torch.compiler.is_compiling() else _type_of_result(input, weight, bias)
            if dtype is None:
                return F.linear(input, weight, bias)
            return _Result(_Layer(self, name, input, weight, bias, dtype), input, (dtype,)).tensor()

        setattr(forward, "of_spillway", True)
        return forward

    def note_read(self, layer: _Layer, why: str) -> None:
        """Notes that the ordinary logits are needed."""
        if not layer.chunked:
            self._read = f"the result of module '{layer.name}' is read by {why}"
        elif not self._told_again:
            self._told_again = True
            log.info("spillway: the loss of module '%s' was computed in chunks, and %s reads its logits, which are made once more",
                     layer.name, why)

    def tell(self) -> None:
        """Says once, before an update, why no loss was computed in chunks since the last one."""
        if not self.chunked and not self._told:
            self._told = True
            log.warning("spillway: no loss is computed in chunks, because %s", self._read or
                        f"no linear layer outside of repeated blocks has a result of more than {losses.CHUNK >> 20} MiB of float32")
        self.chunked = 0


def _type_of_result(x: Any, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> Optional[torch.dtype]:
    """Returns the type of a linear layer's result; None if it is small, or is no ordinary one that a backward follows."""
    operands = [x, weight, *((bias,) if bias is not None else ())]
    if not torch.is_grad_enabled() or type(x) is not torch.Tensor or x.dim() < 2 or x.layout != torch.strided or (
            4 * x.numel() // max(x.shape[-1], 1) * weight.shape[0] <= losses.CHUNK) or x.shape[-1] != weight.shape[-1]:
        return None
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or t.device != x.device or t.is_inference() for t in operands) or not any(
            t.requires_grad for t in operands) or torch._C._is_tracing() or torch._C._functorch.maybe_current_level() is not None:
        return None
    dtypes = {t.dtype for t in operands}
    if torch.is_autocast_enabled(x.device.type) and torch.float64 not in dtypes:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if len(dtypes) == 1 and x.dtype.is_floating_point else None

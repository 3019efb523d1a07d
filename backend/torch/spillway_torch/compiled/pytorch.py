"""All that Spillway uses of PyTorch's compiler and that is not public: tested with PyTorch 2.11."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Optional

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._functorch import config, partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._inductor.fx_utils import get_node_storage
from torch._inductor.select_algorithm import extern_kernels
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from ..base.errors import SpillwayError

Inputs = Sequence[Any]
Halves = tuple[fx.GraphModule, fx.GraphModule]
_TYPES = partitioners.get_default_op_list()
CUDA_GRAPHS = "triton.cudagraphs"  # a setting of the compiler
LEAST_SIZE = 2  # the compiler takes a size that varies to be at least this


def after_tangents(graph: fx.GraphModule, static: Sequence[int], forward_outputs: int) -> set[fx.Node]:
    """Returns the nodes of a joint graph that follow from the gradients of its results."""
    return set(partitioners.classify_nodes(graph, list(static), forward_outputs).tangents_closure)


def storage_of(node: fx.Node) -> Any:
    """Returns what stands for the storage of a node's tensor; None if it has none."""
    value = node.meta.get("val")
    return get_node_storage(node) if isinstance(value, torch.Tensor) and torch._C._has_storage(value) else None


def is_number(node: fx.Node) -> bool:
    """Returns whether a node makes a number, which follows from sizes."""
    return is_sym_node(node)


def is_view(node: fx.Node) -> bool:
    """Returns whether an operator makes a view of what it reads."""
    return node.op == "call_function" and _TYPES.is_view(node)


def is_fusible(node: fx.Node) -> bool:
    """Returns whether Inductor puts an operator into one kernel with its neighbours."""
    target = getattr(node.target, "overloadpacket", node.target)
    others = torch.ops.aten.copy_, torch.ops.aten.constant_pad_nd
    return target in _TYPES.fusible_ops or "inductor_" in str(node.target) or target in others


def writes_over(node: fx.Node) -> bool:
    """Returns whether Inductor puts an operator's result where its first operand was, if nobody reads that later."""
    return node.target in (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)


def reduces(node: fx.Node) -> bool:
    """Returns whether an operator reduces dimensions."""
    return torch.Tag.reduction in getattr(node.target, "tags", ())


def draws(node: fx.Node) -> bool:
    """Returns whether an operator must not run again: it draws random numbers, or talks to other processes."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if "_c10d_functional" in str(node.target):
        return True
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = {a.name: a for a in node.target._schema.arguments}  # type: ignore[union-attr]
    rate = next((name for name in ("dropout_p", "p") if name in given), None)
    if rate is None:
        return True
    place = list(given).index(rate)
    value = node.kwargs.get(rate, node.args[place] if place < len(node.args) else given[rate].default_value)
    return bool(value != 0)  # attention without dropout has the tag, too


def own_marks(graph: fx.GraphModule) -> bool:
    """Returns whether the program itself says what is recomputed, as torch.utils.checkpoint does."""
    return any("recompute" in node.meta for node in graph.graph.nodes)


def simplified(graph: fx.GraphModule) -> None:
    """Removes what nobody reads, and what is computed twice, as PyTorch's partitioner does."""
    graph.graph.eliminate_dead_code()
    graph.graph = fx_graph_cse(graph.graph)


def refresh_views(graph: fx.GraphModule) -> None:
    """Gives views the storages and strides of what they view, where the compiler has replaced that, as where it pads matrices."""
    for node in graph.graph.nodes:
        if is_view(node) and storage_of(node) is not None and storage_of(node) not in map(storage_of, node.all_input_nodes):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
            with contextlib.suppress(RuntimeError):  # it cannot be a view any more: the compiler copies
                node.meta["val"] = node.target(*args, **kwargs)


def default_halves(graph: fx.GraphModule, inputs: Inputs, **options: Any) -> Halves:
    """Returns the forward and backward that PyTorch makes of a joint graph."""
    return partitioners.min_cut_rematerialization_partition(graph, inputs, **options)


def copied(graph: fx.GraphModule) -> fx.GraphModule:
    """Returns a graph with copies of the nodes, which have the same names."""
    new, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.graph.nodes:
        env[node] = new.node_copy(node, lambda n: env[n])
    return fx.GraphModule(graph, new)


def halves(graph: fx.GraphModule, saved: Sequence[fx.Node], order: Sequence[fx.Node], forward_outputs: int) -> Halves:
    """Returns the forward and backward of a joint graph: forward saves the nodes `saved`, and backward runs `order`, in which a
    node may stand several times."""
    numbers = [n for n in saved if is_sym_node(n)]
    forward, backward = partitioners._extract_fwd_bwd_modules(graph, [n for n in saved if not is_sym_node(n)], saved_sym_nodes=numbers,
                                                              num_fwd_outputs=forward_outputs)
    new, env, by_name = fx.Graph(), {}, {n.name: n for n in graph.graph.nodes}
    for node in backward.graph.find_nodes(op="placeholder"):
        env[by_name[node.name]] = new.node_copy(node)
    for node in order:
        env[node] = new.node_copy(node, lambda n: env[n])
    new.node_copy(backward.graph.output_node(), lambda n: env[by_name[n.name]])
    return forward, fx.GraphModule(backward, new)


def saved_by(backward: fx.GraphModule) -> set[str]:
    """Returns the names of what a backward reads."""
    return {node.name for node in backward.graph.find_nodes(op="placeholder")}


class Partitioner(CustomPartitionerFn):
    """Gives the compiler a partition that a function makes of a joint graph, its inputs and PyTorch's options.

    key: what the partition depends on beside the graph. The compiler's caches know the partition by it.
    """

    def __init__(self, split: Callable[..., Halves], key: str) -> None:
        self.split, self.key = split, key

    def uuid(self) -> str:
        return f"spillway {self.key}"

    def __deepcopy__(self, memo: Any) -> Partitioner:
        return self  # the compiler copies its settings

    def __reduce__(self) -> Any:
        return str, (self.uuid(),)  # caches that write the settings

    def __call__(self, gm: fx.GraphModule, joint_inputs: Inputs, **options: Any) -> Halves:
        return self.split(gm, joint_inputs, **options)


class _Seen(Exception):
    """Ends a compilation whose joint graph is all that is wanted."""


def joint_graph(graph: fx.GraphModule, inputs: Inputs, settings: dict[str, Any], look: Callable[..., None]) -> None:
    """Traces forward and backward of a graph for inputs without data, and calls `look` as the compiler calls a partitioner."""
    def split(*given: Any, **options: Any) -> Halves:
        look(*given, **options)
        raise _Seen
    try:
        compiled(copied(graph), inputs, settings, split, uuid.uuid4().hex)  # no cache may answer
    except _Seen:
        pass
    except Exception as error:  # which the compiler wraps
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _Seen):
            cause = cause.__cause__ or getattr(cause, "inner_exception", None)
        if cause is None:
            raise


@dataclasses.dataclass(frozen=True)
class Code:
    """What Inductor has generated for a forward or a backward: a Python program that allocates, calls kernels and deletes."""

    backward: bool
    names: list[str]  # of what it is given
    inputs: list[Any]  # without their data
    results: list[str]  # their names
    text: str


def compiled(graph: fx.GraphModule, inputs: Inputs, settings: dict[str, Any], split: Callable[..., Halves], key: str,
             codes: list[Code] | None = None) -> Callable[..., Any]:
    """Returns a graph that Inductor has compiled, with a partition of ours, which `key` tells from others. The graph is used up.

    Backward is compiled, too, and not when it first runs. The code of both is added to `codes`.
    """
    def inner(half: fx.GraphModule, given: Inputs, **options: Any) -> Any:
        names = [node.name for node in half.graph.find_nodes(op="placeholder")]
        results = [str(node) for node in half.graph.output_node().args[0]]  # type: ignore[union-attr]
        made = compile_fx_inner(half, given, **options)
        if codes is not None:
            codes.append(Code(options.get("is_backward", False), names, list(given), results, getattr(made, "source_code", "")))
        return made
    patches = {**settings, "custom_partitioner_fn": Partitioner(split, key)}
    # The cache of autograd's part would give what was compiled without its code, which the cache of Inductor has.
    with config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False):
        return compile_fx(graph, list(inputs), inner_compile=inner, config_patches=patches)  # type: ignore[return-value]


def names_in_code(device: str) -> dict[str, Any]:
    """Returns what the names in generated code stand for that makes tensors on a type of device."""
    def empty(on: str) -> Callable[..., torch.Tensor]:
        return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=on)

    def view(of: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
        return of.as_strided(size, stride, of.storage_offset() + offset)
    return {f"empty_strided_{on}": empty(on) for on in ("cpu", device)} | {
        "empty_strided": torch.empty_strided, "reinterpret_tensor": view, "torch": torch, "aten": torch.ops.aten, "device": torch.device,
        "extern_kernels": extern_kernels, "get_raw_stream": lambda _: 0, "inf": float("inf"), "nan": float("nan")}


def has_no_data() -> bool:
    """Returns whether tensors are made without data here."""
    return detect_fake_mode() is not None


def no_data() -> FakeTensorMode:
    """Within it, tensors are made without data."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def without_data(inputs: Inputs) -> list[Any]:
    """Returns inputs as the compiler knows them, without their data."""
    mode = no_data()
    return [mode.from_tensor(given, static_shapes=True) if isinstance(given, torch.Tensor) and not isinstance(given, FakeTensor) else given
            for given in inputs]


class Symbols:
    """The symbols that stand for sizes of a graph while it is traced or compiled; none in a graph of fixed sizes."""

    def __init__(self, shapes: Optional[ShapeEnv] = None, symbols: Sequence[sympy.Expr] = ()) -> None:
        self._shapes, self._symbols = shapes, symbols
        self._held: dict[tuple[int, ...], bool] = {}

    def _values(self, sizes: Sequence[int]) -> dict[sympy.Expr, sympy.Integer]:
        return dict(zip(self._symbols, map(sympy.Integer, sizes)))

    def numbers(self, sizes: Sequence[int]) -> Callable[[Any], int]:
        """Returns a function that gives the number which an expression is if the symbols have some sizes.

        It raises `SpillwayError` for one that follows from data.
        """
        values = self._values(sizes)

        @functools.cache
        def number(expression: sympy.Expr) -> int:
            found = expression.xreplace(values)
            if found.free_symbols:
                raise SpillwayError(f"a size follows from data ({expression})")
            return int(found)
        return lambda given: number(given.node.expr) if isinstance(given, torch.SymInt) else int(given)

    def hold(self, sizes: tuple[int, ...]) -> bool:
        """Returns whether all holds for some sizes that the compiler has decided by those that it was given."""
        if sizes not in self._held:
            values, guards = self._values(sizes), self._shapes.guards if self._shapes is not None else ()
            self._held[sizes] = min(sizes, default=LEAST_SIZE) >= LEAST_SIZE and all(
                guard.expr.xreplace(values) == sympy.true for guard in guards)
        return self._held[sizes]


def _examples(graph: fx.GraphModule) -> list[Any]:
    """Returns a graph's inputs as torch.compile knows them."""
    return [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]


def sizes_that_vary(graph: fx.GraphModule) -> list[int]:
    """Returns the places of a graph's inputs that are sizes."""
    return [at for at, value in enumerate(_examples(graph)) if isinstance(value, torch.SymInt)]


def why_not(graph: fx.GraphModule, inputs: Inputs, settings: dict[str, Any]) -> Optional[str]:
    """Returns why nothing can be planned for a graph that torch.compile has just found, because of what varies in it; None if it can.

    Where the compiler can tell that a number must be fixed, it has torch.compile find the graph again, by an exception.
    """
    examples = _examples(graph)
    if any(isinstance(value, FakeTensor) and isinstance(value.item_memo, torch.SymFloat) for value in examples):
        joint_graph(graph, inputs, settings, lambda *_, **__: None)
        return "numbers vary in it that are no sizes: give them in tensors"
    sizes = [value.node.hint for value in examples if isinstance(value, torch.SymInt)]
    try:
        if sizes:
            with_symbols(graph, sizes)
    except Exception as error:  # pylint: disable=broad-except; of inputs of any kind
        return str(error)
    return None


def with_symbols(graph: fx.GraphModule, sizes: Sequence[int]) -> tuple[list[Any], Symbols]:
    """Returns inputs without data for a graph whose sizes vary, with symbols that the compiler takes to be `sizes` where it has to decide.

    Raises `SpillwayError` for a size that is too small to vary, or follows from data.
    """
    if min(sizes) < LEAST_SIZE:
        raise SpillwayError(f"a size is {min(sizes)}, and may vary (valid: {LEAST_SIZE} or more)")
    shapes, given = ShapeEnv(), _examples(graph)
    there = [value.node.expr for value in given if isinstance(value, torch.SymInt)]
    made = [shapes.create_symbol(size, ConstantSource(f"size_{at}"), DimDynamic.DYNAMIC) for at, size in enumerate(sizes)]
    new = {old: symbol for old, symbol in zip(there, made) if old.is_Symbol}
    values = dict(zip(made, map(sympy.Integer, sizes)))

    def number(of: Any) -> Any:
        if not isinstance(of, torch.SymInt):
            return of
        expression = of.node.expr.xreplace(new)
        hint = expression.xreplace(values)
        if hint.free_symbols:
            raise SpillwayError(f"a size follows from data ({of})")
        return shapes.create_symintnode(expression, hint=int(hint))
    with FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True):
        inputs = [like(value, number) for value in given]
    for value, by in zip(inputs, given):
        if isinstance(by, torch.Tensor):
            value.requires_grad_(by.requires_grad)._is_param = isinstance(by, torch.nn.Parameter)
    return inputs, Symbols(shapes, made)


def like(value: Any, number: Callable[[Any], Any]) -> Any:
    """Returns a tensor of the same form in the place of another, or a number; `number` gives the sizes."""
    if isinstance(value, torch.SymInt):
        return number(value)
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(list(map(number, value.size())), list(map(number, value.stride())), dtype=value.dtype, device=value.device)


def take_graphs(take: Callable[[fx.GraphModule, Inputs, dict[str, Any], Callable[[], Any]], Any]) -> Callable[[], None]:
    """Gives each graph that torch.compile finds for Inductor to `take`, with a function that compiles it. It returns what runs.

    Returns a function that ends this.
    """
    kind = torch._TorchCompileInductorWrapper
    plain = kind.__call__

    def call(self: Any, graph: fx.GraphModule, inputs: Inputs) -> Any:
        for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs):
            node.meta.setdefault("example_value", value)  # it is missing where a graph was divided for DistributedDataParallel
        return take(graph, inputs, self.config, lambda: plain(self, graph, inputs))
    kind.__call__ = call  # type: ignore[method-assign]

    def end() -> None:
        if kind.__call__ is call:
            kind.__call__ = plain  # type: ignore[method-assign]
    return end

"""Compares the autograd graph behind a tensor with the one of the recorded step.

Saved-tensor hooks do not see operators. The graph does: each differentiable operator made a node, whose name, place in the order
of all nodes, inputs and saved numbers say which operator ran, on what, and with which arguments.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Union

import torch

Edge = Union[tuple[int, int], int, None]  # (number of a node, number of its output); number of a leaf; no gradient

_PLAIN = (bool, int, float, complex, str, tuple, list, type(None), torch.dtype, torch.device, torch.layout,
          torch.memory_format)
TYPES = ("dtype", "half_to_float")  # arguments that the type of a node's result shows
current_number = torch._C._autograd._get_sequence_nr  # returns the number of the next node that this thread makes
_FUNCTION = torch.autograd.function.BackwardCFunction
_SAME = {"ReshapeAliasBackward0": "ViewBackward0"}  # PyTorch's reshape makes the second one while a recording runs


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of the recorded graph. Numbers count the nodes that the thread made since the step began."""

    number: int
    name: str
    numbers: tuple[tuple[str, Any], ...]  # its arguments that are no tensors, by attribute ("_saved_eps")
    saved: frozenset[str]  # names of all that it saves
    made: torch.dtype  # the type of its operator's first result
    edges: tuple[Edge, ...]
    opaque: bool  # it is a function of the user's

    def shows(self, name: str, value: Any) -> bool:
        """Returns whether nodes of operators with another value of the argument differ from this one.

        Autograd saves a tensor, or its sizes, if there is one: where it saves none, the step saves fewer tensors.
        """
        if value is None and name not in TYPES:
            return any(saved.startswith(name) for saved in self.saved)
        return name in TYPES or any(attribute == f"_saved_{name}" for attribute, _ in self.numbers)


class Graph:
    """The nodes of a recorded step."""

    def __init__(self) -> None:
        self.base = current_number()
        self.nodes: dict[int, Node] = {}
        self.typed: set[int] = set()  # nodes whose type of result shows an argument
        self.leaves: list[weakref.ref[torch.Tensor]] = []
        self._leaf_numbers: dict[int, int] = {}

    def leaf(self, tensor: torch.Tensor) -> int:
        """Returns the number of a leaf."""
        number = self._leaf_numbers.get(id(tensor))
        if number is None or self.leaves[number]() is not tensor:
            number = self._leaf_numbers[id(tensor)] = len(self.leaves)
            self.leaves.append(weakref.ref(tensor))
        return number

    def edge(self, tensor: torch.Tensor) -> Edge:
        """Returns how a node refers to the tensor as its input."""
        function = tensor.grad_fn
        if function is not None:
            return function._sequence_nr() - self.base, tensor.output_nr
        return self.leaf(tensor) if tensor.requires_grad else None

    def learn(self, function: Any) -> None:
        """Adds the node `function` and all before it."""
        waiting = [function]
        while waiting:
            function = waiting.pop()
            if function is None:
                continue
            number = function._sequence_nr() - self.base
            if number in self.nodes or number < 0 or hasattr(function, "variable"):
                continue
            edges: list[Edge] = []
            for before, output in function.next_functions:
                if before is None:
                    edges.append(None)
                elif hasattr(before, "variable"):
                    edges.append(self.leaf(before.variable))
                else:
                    edges.append((before._sequence_nr() - self.base, output))
                    waiting.append(before)
            own = isinstance(function, _FUNCTION)
            saved = frozenset(a[len("_saved_"):] for a in dir(function) if a.startswith("_saved_") and not own)
            self.nodes[number] = Node(number, _name(function), _numbers(function), saved, _made(function), tuple(edges), own)


def _name(function: Any) -> str:
    name: str = function.name()
    return _SAME.get(name, name)


def _made(function: Any) -> torch.dtype:
    metadata = function._input_metadata
    return metadata[0].dtype if metadata else torch.float32


def _numbers(function: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(function, _FUNCTION):
        return ()
    attributes = dir(function)
    raw = {a[len("_raw"):] for a in attributes if a.startswith("_raw_saved_")}  # tensors, which reading would unpack
    sizes = "_sym_argsize_"  # the sizes of saved tensors are compared, and not known while the node is being made
    values = [(a, getattr(function, a)) for a in attributes if a.startswith("_saved_") and a not in raw and sizes not in a]
    return tuple((a, v) for a, v in values if isinstance(v, _PLAIN))


class Walk:
    """The part of a recorded graph between a tensor and the nodes where it stops, ready to be compared."""

    def __init__(self, graph: Graph, start: Edge, stops: set[int], inside: set[int], computing: set[int]) -> None:
        """Follows the graph from `start`.

        It stops behind nodes in `stops`, and goes through those in `inside` and through views. Any other node in
        `computing`, whose operator computed, makes it incomplete.
        """
        self.nodes: list[Node] = []
        self.complete = True
        self._graph = graph
        self._next: list[tuple[tuple[int, int], ...]] = []  # by node: (position of the edge, position of the node)
        self._start = start
        self._through: list[bool] = []
        places: dict[int, int] = {}
        if not isinstance(start, tuple):
            return
        waiting = [start[0]]
        places[start[0]] = 0
        while len(self.nodes) < len(waiting):
            node = graph.nodes.get(waiting[len(self.nodes)])
            if node is None:
                self.complete = False
                return
            through = node.number not in stops
            if through and node.number not in inside and (node.number in computing or node.opaque):
                self.complete = False
                return
            self.nodes.append(node)
            following = []
            for at, edge in enumerate(node.edges if through else ()):
                if isinstance(edge, tuple):
                    if edge[0] not in places:
                        places[edge[0]] = len(waiting)
                        waiting.append(edge[0])
                        following.append((at, places[edge[0]]))
            self._next.append(tuple(following))
            self._through.append(through)

    def leaves(self) -> set[int]:
        """Returns the numbers of the leaves that its nodes read."""
        return {edge for node, through in zip(self.nodes, self._through) if through
                for edge in node.edges if isinstance(edge, int)}

    def difference(self, tensor: torch.Tensor, base: int) -> str | None:
        """Returns how the graph behind `tensor` differs from the recorded one; None if it does not.

        `base` is the number of the first node of this step.
        """
        function: Any = tensor.grad_fn
        if not self.nodes:
            return None if function is None else f"{function.name()} made a tensor that needed no gradient in the recorded step"
        if function is None:
            return f"a tensor that {self.nodes[0].name} made needs no gradient"
        if (function._sequence_nr() - base, tensor.output_nr) != self._start:
            return f"{function.name()} is node {function._sequence_nr() - base} of the step, and {self._start} was recorded"
        functions: list[Any] = [function] + [None] * (len(self.nodes) - 1)
        for at, (node, through, following) in enumerate(zip(self.nodes, self._through, self._next)):
            function = functions[at]
            if _name(function) != node.name:
                return f"{function.name()} ran in the place of {node.name}"
            for attribute, value in node.numbers:
                now = getattr(function, attribute)
                if now != value:
                    return f"{node.name} has {attribute[len('_saved_'):]} = {now}, and {value} in the recorded step"
            if not through:
                continue
            if node.number in self._graph.typed and _made(function) != node.made:
                return f"{node.name} made {_made(function)}, and {node.made} in the recorded step"
            found = function.next_functions
            if len(found) != len(node.edges):
                return f"{node.name} has {len(found)} inputs, and {len(node.edges)} in the recorded step"
            for (before, output), edge in zip(found, node.edges):
                if before is None or edge is None:
                    same = before is edge
                elif isinstance(edge, tuple):
                    same = output == edge[1] and before._sequence_nr() - base == edge[0]
                else:
                    same = getattr(before, "variable", None) is self._graph.leaves[edge]()
                if not same:
                    return f"{node.name} has another input than in the recorded step"
            for edge_at, node_at in following:
                functions[node_at] = found[edge_at][0]
        return None

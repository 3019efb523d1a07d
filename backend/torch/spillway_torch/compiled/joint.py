"""The joint graph of a compiled step, and what follows from a choice of the values that its forward saves: memory and time.

A compiler that fuses runs the graph as kernels: operators that work element by element, or reduce, join the kernel of what they read.
`Joint.outcome` groups the nodes of forward and of backward in this way and walks through the kernels.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import heapq
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from . import pytorch

ALWAYS = 1 << 30  # nodes: what was recomputed stays for all its readers
AGAIN = (ALWAYS, 64, 16)  # nodes of backward after which a value is recomputed anew, not kept
READS = 4  # a value that several operators read is computed for each of them, if it follows from at most so many storages
REGISTERS = 1024  # elements of a row that a GPU's kernel keeps in registers


@dataclasses.dataclass(frozen=True)
class Rates:
    """How fast a device runs kernels."""

    bytes_per_second: float
    flops_per_second: dict[torch.dtype, float]  # of matrix products, by the type of their operands
    other_flops_per_second: float  # of types that are not in the table
    launch: float  # seconds that a kernel takes at least
    link: float  # bytes a second between the host and the device


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a graph takes under a choice of saved values. Bytes count neither its inputs nor what else exists."""

    saved: int  # bytes that forward keeps for backward, beside inputs
    forward: int  # most bytes while forward runs
    backward: int  # most bytes while backward runs, with what was saved
    seconds: float  # of all kernels

    def over(self, room: Room) -> int:
        """Returns by how many bytes the graph exceeds its room; at most 0 if it does not."""
        return max(self.saved - room.saved, self.forward - room.forward, self.backward - room.backward)


@dataclasses.dataclass(frozen=True)
class Work:
    """What the kernels of a graph do under a choice of saved values."""

    flops: int
    traffic: int  # bytes that kernels without flops read and write
    kernels: int


@dataclasses.dataclass(frozen=True)
class Room:
    """The bytes that a graph may take beside its inputs and what else exists, as `Outcome` has them."""

    saved: int
    forward: int
    backward: int

    @property
    def most(self) -> int:
        """Returns the largest of the three."""
        return max(self.saved, self.forward, self.backward)

    @property
    def less(self) -> tuple[int, int, int]:
        """Returns by how many bytes forward, what is saved, and backward have less than the largest."""
        return self.most - self.forward, self.most - self.saved, self.most - self.backward


@dataclasses.dataclass
class Kernel:
    """Nodes that run together. Keys are runs that made a storage."""

    runs: list[int] = dataclasses.field(default_factory=list)
    reads: dict[int, int] = dataclasses.field(default_factory=dict)  # bytes by key
    writes: dict[int, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0  # 0 if it has no work
    flops: int = 0

    @property
    def moved(self) -> int:
        """The bytes that it reads and writes."""
        return sum(self.reads.values()) + sum(self.writes.values())


class Runs:
    """Executions of nodes, by number. A node may run in forward, and once or several times in backward."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.node: list[int] = []
        self.inputs: list[list[int]] = []
        self.key: list[int] = []  # by run: the one that made its storage, which views share
        self.outside: list[bool] = []  # it was there before

    def add(self, node: int, made: dict[int, int] | None = None) -> int:
        """Adds a run of a node from the runs `made` of others; one that is there before if there are none."""
        run = len(self.node)
        owner = self.joint.owner[node]
        self.node.append(node)
        self.inputs.append([] if made is None else [made[i] for i in self.joint.inputs[node]])
        self.key.append(run if made is None or owner == node or owner not in made else self.key[made[owner]])
        self.outside.append(made is None)
        return run


class Joint:
    """A joint graph. Nodes are known by their numbers in its order."""

    def __init__(self, graph: fx.GraphModule, forward_outputs: int, static: Sequence[int], rates: Rates,
                 number: Callable[[Any], int] = int) -> None:
        """forward_outputs: how many of the graph's results are those of forward. static: places of inputs that outlive the step.
        number: gives the sizes that vary."""
        self.rates, self.number = rates, number
        self._made_of = graph, forward_outputs, static
        self.nodes = [n for n in graph.graph.nodes if n.op != "output"]
        self.at = {n: i for i, n in enumerate(self.nodes)}
        self.inputs = [[self.at[i] for i in n.all_input_nodes] for n in self.nodes]
        self.is_input = [n.op == "placeholder" for n in self.nodes]
        self.is_number = [pytorch.is_number(n) for n in self.nodes]
        late = pytorch.after_tangents(graph, static, forward_outputs)
        self.forward = [n not in late for n in self.nodes]
        results = [self.at[r] if isinstance(r, fx.Node) else None for r in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
        self.results = [r for r in results[:forward_outputs] if r is not None]
        self.gradients = [r for r in results[forward_outputs:] if r is not None]
        self._look_at_nodes()
        self.shown = {self.owner[at] for at in self.results}
        # The gradients of the results, which backward is given: autograd makes zeros for a result that the loss does not use.
        self.tangents = [i for i, given in enumerate(self.is_input) if given and not self.forward[i]]
        readers: list[bool] = [False] * len(self.nodes)  # by node: whether backward reads it
        for at, inputs in enumerate(self.inputs):
            for i in inputs if not self.forward[at] else ():
                readers[i] = True
        self.needed = [i for i, read in enumerate(readers) if read and self.forward[i]]
        self.needed += [g for g in self.gradients if self.forward[g]]
        self.backward_order = [i for i in range(len(self.nodes)) if not self.forward[i]]
        self.plans: dict[tuple[int, ...], dict[int, set[int]]] = {}  # by what else decides, and memory: what is recomputed
        self.judged: dict[tuple[frozenset[int], int], Outcome] = {}  # by what may be saved, and `near` of `backward_runs`
        self._known: tuple[list[int] | None, int, float] = None, 0, 0.0  # what was saved last, and what forward took

    def at_sizes(self, number: Callable[[Any], int]) -> Joint:
        """Returns the graph for other sizes."""
        return Joint(*self._made_of, self.rates, number)

    def _look_at_nodes(self) -> None:
        self.storage: list[Any] = []
        self.owner: list[int] = []
        self.size: list[int] = []  # bytes of its storage
        self.bytes: list[int] = []  # bytes of its elements
        self.dtype: list[Optional[torch.dtype]] = []
        self.free: list[bool] = []  # it does no work of its own: a view, a part of a result, a number
        self.fusible: list[bool] = []
        self.over: list[bool] = []  # its result takes the place of its first operand
        self.apart: list[bool] = []  # it is a part of the result of an operator that is not fusible
        self.reduces: list[bool] = []  # it reduces rows that a kernel has to read again
        self.draws: list[bool] = []  # it must not run again
        self.flops: list[int] = []  # of one that is not fusible
        self.seconds: list[float] = []  # of its arithmetic
        for at, node in enumerate(self.nodes):
            tensors = _tensors(node)
            storage = pytorch.storage_of(node)
            self.storage.append(storage)
            above = None
            if node.op == "call_function" and storage is not None:
                above = next((i for i in self.inputs[self.maker(at)] if self.storage[i] == storage), None)
            self.owner.append(at if above is None else self.owner[above])
            self.size.append(self.number(tensors[0].untyped_storage().nbytes()) if storage is not None else 0)
            self.bytes.append(min(self.size[at], sum(self.number(t.numel()) * t.itemsize for t in tensors)))
            self.dtype.append(tensors[0].dtype if tensors else None)
            view = above is not None or pytorch.is_view(node)
            mutates = node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False)
            self.free.append(node.op != "call_function" or node.target is operator.getitem or not tensors or view and not mutates)
            self.fusible.append(pytorch.is_fusible(node))
            self.over.append(pytorch.writes_over(node))
            self.apart.append(node.target is operator.getitem and not self.fusible[self.maker(at)])
            rows = self.bytes[self.inputs[at][0]] // max(1, self.bytes[at]) if self.inputs[at] else 0
            self.reduces.append(pytorch.reduces(node) and (tensors[0].device.type == "cpu" or rows > REGISTERS))
            self.draws.append(pytorch.draws(node))
            self.flops.append(0 if self.free[at] or self.fusible[at] else self._flops(node))
            rate = self.rates.flops_per_second.get(tensors[0].dtype) if tensors else None
            self.seconds.append(self.flops[at] / (rate or self.rates.other_flops_per_second))

    def _flops(self, node: fx.Node) -> int:
        packet = getattr(node.target, "overloadpacket", None)
        if "flash_attention_for_cpu" in str(packet):  # which PyTorch does not count
            first, factor = (1, 2.5) if "backward" in str(packet) else (0, 1.0)
            shapes = (tuple(map(self.number, a.meta["val"].shape)) for a in node.args[first:first + 3])  # type: ignore[union-attr]
            return int(factor * sdpa_flop_count(*shapes))
        if packet not in flop_registry:
            return 0
        with pytorch.no_data():
            args, kwargs, made = pytree.tree_map(lambda value: pytorch.like(value, self.number), (
                *fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"]), node.meta["val"]))
        return int(flop_registry[packet](*args, **kwargs, out_val=made))

    def digest(self) -> str:
        """Returns what tells the graph from others: its operators, what they read, and the sizes and types of tensors."""
        lines = [f"{node.format_node()} {[(t.dtype, tuple(t.shape), t.stride(), t.device) for t in _tensors(node)]}" for node in self.nodes]
        return hashlib.sha256("\n".join([*lines, str(self.results), str(self.gradients)]).encode()).hexdigest()

    def maker(self, at: int) -> int:
        """Returns the node whose result a node is a part of, or the node itself."""
        return self.inputs[at][0] if self.nodes[at].target is operator.getitem else at

    def values(self) -> list[int]:
        """Returns the nodes of forward that have a storage of their own, and read something. Inductor makes others, such as `iota`, where
        they are used; one that was saved would keep it from putting its reader into a kernel."""
        return [i for i, n in enumerate(self.nodes) if self.forward[i] and n.op == "call_function" and self.size[i] and self.owner[i] == i
                and self.storage[i] is not None and self.inputs[i]]

    def by_operators(self) -> tuple[int, int]:
        """Returns the most bytes that forward, and backward, take if each operator runs by itself, and what forward saves is elsewhere while
        no operator reads it."""
        found, first = [], set(self.missing(self.results, lambda _: True))
        for forward, stays in (True, self.results), (False, self.gradients):
            order = [at for at, given in enumerate(self.is_input) if not given and (at in first) == forward]
            last = {self.owner[i]: at for at in order for i in (at, *self.inputs[at])} | {self.owner[i]: len(self.nodes) for i in stays}
            there = set() if forward else set(self.tangents)
            live = most = sum(self.size[i] for i in there)
            for at in order:
                used = {i for i in (self.owner[i] for i in (at, *self.inputs[at])) if i in there or not self.is_input[i]}
                made = {i for i in used - there if (i in first) == forward}
                live += sum(self.size[i] for i in made)
                most = max(most, live + sum(self.size[i] for i in used - there - made))
                there |= made
                ended = {i for i in used & there if last[i] == at}
                there -= ended
                live -= sum(self.size[i] for i in ended)
            found.append(most)
        return found[0], found[1]

    def split(self, keep: set[int]) -> tuple[list[int], set[int]]:
        """Returns what is saved if the nodes `keep` may be, and what runs again in backward."""
        saved: dict[int, None] = {}
        again: set[int] = set()
        waiting = list(self.needed)
        while waiting:
            at = waiting.pop()
            if self.is_input[at] or at in keep or self.is_number[at]:
                saved[at] = None
            elif at not in again:
                again.add(at)
                waiting += self.inputs[at]
        return list(saved), again

    def missing(self, wanted: Iterable[int], absent: Callable[[int], bool]) -> list[int]:
        """Returns, in order, the absent nodes that must run to have the nodes `wanted`."""
        found: set[int] = set()
        waiting = list(wanted)
        while waiting:
            at = waiting.pop()
            if at not in found and absent(at):
                found.add(at)
                waiting += self.inputs[at]
        return sorted(found)

    def forward_runs(self, saved: Iterable[int], runs: Runs) -> dict[int, int]:
        """Adds the runs of forward. Returns them by node."""
        made: dict[int, int] = {}
        for at in self.missing([*self.results, *saved], lambda _: True):
            made[at] = runs.add(at, None if self.is_input[at] else made)
        return made

    def backward_runs(self, saved: Iterable[int], again: set[int], near: int, runs: Runs) -> tuple[dict[int, int], list[int]]:
        """Adds the runs of backward: nodes run again just before their use, and anew if the last time was `near` nodes ago.

        Returns the last run of each node, and all runs in their order.
        """
        made = {at: runs.add(at) for at in saved}
        when: dict[int, int] = {}
        order: list[int] = []
        for clock, at in enumerate([*self.backward_order, *(g for g in self.gradients if self.forward[g])]):
            if self.is_input[at]:
                made.setdefault(at, runs.add(at))
                continue

            def absent(i: int, at: int = at, clock: int = clock) -> bool:
                return i == at and i not in made or i in again and (i not in made or clock - when[i] > near)
            for i in self.missing([at], absent):
                made[i], when[i] = runs.add(i, made), clock
                order.append(made[i])
        return made, order

    def cut(self, keep: set[int], near: int) -> tuple[list[int], list[int]]:
        """Returns the nodes that forward saves if the nodes `keep` may be, and the nodes of backward in the order in which they run."""
        saved, again = self.split(keep)
        runs = Runs(self)
        order = self.backward_runs(saved, again, near, runs)[1]
        return saved, [runs.node[r] for r in order]

    def outcome(self, keep: set[int], near: int = ALWAYS) -> Outcome:
        """Returns what the graph takes if the nodes `keep` may be saved."""
        saved, again = self.split(keep)
        if self._known[0] != saved:
            self._known = saved, *self._forward(saved)
        runs, back, gradients, backward = self._backward(saved, again, near)
        values = {self.owner[at] for at in saved if not self.is_input[self.owner[at]]}
        given = {runs.key[back[at]] if at in back else runs.add(at) for at in self.tangents}  # autograd holds them
        start = {back[at] if at in back else runs.add(at) for at in values}
        theirs = {back[at] for at in values if at in back and at in self.shown}
        memory = self.timeline(runs, backward, start | given, gradients | given, theirs)
        return Outcome(sum(self.size[at] for at in values), self._known[1], max(memory, default=0),
                       self._known[2] + sum(k.seconds for k in backward))

    def work(self, keep: set[int], near: int = ALWAYS) -> Work:
        """Returns what the kernels of the graph do if the nodes `keep` may be saved."""
        saved, again = self.split(keep)
        done = [k for k in (*self._forward_kernels(saved)[2], *self._backward(saved, again, near)[3]) if k.seconds > 0]
        return Work(sum(k.flops for k in done), sum(k.moved for k in done if not k.flops), len(done))

    def _forward(self, saved: list[int]) -> tuple[int, float]:
        """Returns the most bytes while forward runs, and its seconds."""
        runs, kept, kernels = self._forward_kernels(saved)
        return max(self.timeline(runs, kernels, (), kept), default=0), sum(k.seconds for k in kernels)

    def _forward_kernels(self, saved: list[int]) -> tuple[Runs, set[int], list[Kernel]]:
        """Returns the runs of forward, the keys that it keeps, and its kernels."""
        runs = Runs(self)
        made = self.forward_runs(saved, runs)
        kept = {runs.key[made[at]] for at in [*saved, *self.results] if self.storage[at] is not None}
        return runs, kept, self.kernels(runs, [r for r in made.values() if not runs.outside[r]], kept)

    def _backward(self, saved: list[int], again: set[int], near: int) -> tuple[Runs, dict[int, int], set[int], list[Kernel]]:
        """Returns the runs of backward, the last one of each node, the keys of gradients, and its kernels."""
        runs = Runs(self)
        back, order = self.backward_runs(saved, again, near, runs)
        gradients = {runs.key[back[at]] for at in self.gradients if self.storage[at] is not None}
        return runs, back, gradients, self.kernels(runs, order, gradients)

    def kernels(self, runs: Runs, order: Sequence[int], kept: set[int]) -> list[Kernel]:
        """Groups runs into kernels, in an order in which they can run. Others need the keys `kept` afterwards."""
        place = {r: i for i, r in enumerate(order)}
        parent = list(range(len(order)))

        def find(i: int) -> int:
            while parent[i] != i:
                parent[i] = i = parent[parent[i]]
            return i
        free, fusible, node = self.free, self.fusible, runs.node
        level: dict[int, int] = {}  # most kernels of other kinds on the way to a run: those of one level fuse without a cycle
        given: dict[int, int] = {}  # by the gradient of a result: a run that reads it, which others join
        for r in order:
            at, depth = node[r], 0
            for i in runs.inputs[r]:
                if i in level:
                    depth = max(depth, level[i] + (not fusible[node[i]] and not free[node[i]]))
            level[r] = depth
            part = self.nodes[at].target is operator.getitem
            for i in runs.inputs[r]:
                if depth == 0 and runs.outside[i] and (free[at] or fusible[at]) and node[i] in self.tangents:
                    parent[find(place[r])] = find(place[given.setdefault(i, r)])
                joins = free[at] or fusible[at] and (fusible[node[i]] or free[node[i]])
                if i in level and (part or level[i] == depth and joins and not self.apart[node[i]]):
                    parent[find(place[r])] = find(place[i])
        groups: dict[int, Kernel] = {}
        home: dict[int, int] = {}
        for r in order:
            home[r] = find(place[r])
            groups.setdefault(home[r], Kernel()).runs.append(r)
        return self._ordered(runs, groups, home, place, kept)

    def _ordered(self, runs: Runs, groups: dict[int, Kernel], home: dict[int, int], place: dict[int, int], kept: set[int]) -> list[Kernel]:
        """Fills in what kernels read, write and take, and returns them in an order in which they can run."""
        used: set[int] = set()
        waiting: dict[int, set[int]] = {k: set() for k in groups}
        following: dict[int, set[int]] = {k: set() for k in groups}
        for root, kernel in groups.items():
            for r in kernel.runs:
                for i in runs.inputs[r]:
                    key = runs.key[i]
                    if home.get(key) != root:
                        used.add(key)
                        if not self.free[runs.node[r]] and self.storage[runs.node[i]] is not None:
                            kernel.reads[key] = max(kernel.reads.get(key, 0), self.bytes[runs.node[i]])
                    before = home.get(i, root)
                    if before != root:
                        waiting[root].add(before)
                        following[before].add(root)
        for root, kernel in groups.items():
            work, compute, between = False, 0.0, self._between(runs, kernel)
            for r in kernel.runs:
                at = runs.node[r]
                if runs.key[r] == r and self.storage[at] is not None and (r in kept or r in used or r in between
                                                                          or not self.fusible[self.maker(at)]):
                    kernel.writes[r] = self.size[at]
                if not self.free[at]:
                    work = True
                    compute += self.seconds[at]
                    kernel.flops += self.flops[at]
            kernel.seconds = max(self.rates.launch, kernel.moved / self.rates.bytes_per_second, compute) if work else 0.0
        order: list[Kernel] = []
        ready = sorted((place[k.runs[0]], root) for root, k in groups.items() if not waiting[root])
        while ready:
            root = heapq.heappop(ready)[1]
            order.append(groups[root])
            for after in following[root]:
                waiting[after].discard(root)
                if not waiting[after]:
                    heapq.heappush(ready, (place[groups[after].runs[0]], after))
        return order

    def _between(self, runs: Runs, kernel: Kernel) -> set[int]:
        """Returns the runs of a kernel whose results it reads in two loops, before a reduction and after it, and does not compute twice."""
        if not any(self.reduces[runs.node[r]] for r in kernel.runs):
            return set()
        within, source = set(kernel.runs), dict[int, int]()  # by run: the one that it is a view of, or itself
        readers: dict[int, list[int]] = collections.defaultdict(list)
        for r in kernel.runs:
            read = {source.get(i, i) for i in runs.inputs[r]}
            source[r] = source.get(runs.inputs[r][0], runs.inputs[r][0]) if self.free[runs.node[r]] and read else r
            for i in read if source[r] == r else ():
                readers[i].append(r)
        found: set[int] = set()
        leaves: dict[int, set[int]] = {}  # by run: the storages that it follows from
        loop: dict[int, int] = {}  # by run: the one that it is in, where each reduction ends one
        starts: dict[int, int] = {}  # by run: the loop that it is in as a reader
        for r in (r for r in kernel.runs if source[r] == r):
            read = {source.get(i, i) for i in runs.inputs[r] if self.storage[runs.node[i]] is not None}
            leaves[r] = set().union(*(leaves[i] if i in leaves else {i} for i in read))
            starts[r] = max((loop[i] for i in read if i in loop), default=0)
            loop[r] = starts[r] + self.reduces[runs.node[r]]
            if self.reduces[runs.node[r]] or len(leaves[r]) > READS and len(readers[r]) > 1:
                found.add(r)
                leaves[r] = {r}
        return {r for r in found & within if any(starts[i] > loop[r] for i in readers[r]) and any(starts[i] == loop[r] for i in readers[r])}

    def timeline(self, runs: Runs, order: Sequence[Kernel], before: Iterable[int], after: set[int],
                 theirs: Iterable[int] = ()) -> list[int]:
        """Returns the bytes that are alive during each kernel. The keys `before` exist at first, the keys `after` stay, and the program
        may have the keys `theirs`, too, which no kernel writes over."""
        ends = self.ends(runs, order)
        alive = {key: self.size[runs.node[key]] for key in before}
        live, memory = sum(alive.values()), []
        for at, kernel in enumerate(order):
            new = [key for key in kernel.writes if key not in alive]
            ending = [key for key in ends.get(at, ()) if key in alive and key not in after]
            live += sum(kernel.writes[key] for key in new)
            alive |= kernel.writes
            over = self.in_place(runs, kernel, new, [key for key in ending if key not in theirs])
            memory.append(live - sum(kernel.writes[key] for key in over))
            live -= sum(alive.pop(key) for key in ending)
        return memory

    def ends(self, runs: Runs, order: Sequence[Kernel]) -> dict[int, list[int]]:
        """Returns, by the place of a kernel, the keys that no later one uses."""
        last: dict[int, int] = {}
        for at, kernel in enumerate(order):
            for key in itertools.chain(kernel.writes, (runs.key[i] for r in kernel.runs for i in runs.inputs[r])):
                last[key] = at
        ends: dict[int, list[int]] = collections.defaultdict(list)
        for key, at in last.items():
            ends[at].append(key)
        return ends

    def in_place(self, runs: Runs, kernel: Kernel, new: Iterable[int], ending: Iterable[int]) -> dict[int, int]:
        """Returns which of the `new` keys a kernel writes where it read one of those that are `ending`, and this one."""
        if not all(self.fusible[runs.node[r]] or self.free[runs.node[r]] or self.over[runs.node[r]] for r in kernel.runs):
            return {}
        places: dict[tuple[int, Optional[torch.dtype]], list[int]] = collections.defaultdict(list)
        for key in ending:
            if key in kernel.reads:
                places[self.size[runs.node[key]], self.dtype[runs.node[key]]].append(key)
        kinds = ((key, places[self.size[runs.node[key]], self.dtype[runs.node[key]]]) for key in new)
        return {key: there.pop() for key, there in kinds if there}


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, torch.Tensor)]

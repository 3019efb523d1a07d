"""Chooses what a compiled graph saves within its room: `spillway plan` decides on the graph's step, and the graph's kernels judge."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterable

import torch

from ..base.ledger import BEFORE, Storage
from ..base.program import rows_of
from ..base.target import Target
from ..plan.plan import EVICT
from ..step.data import Again, Measured, Operand, Operator, Saved
from ..step.step import Step
from ..step.trace import storage_name
from .joint import AGAIN, ALWAYS, Joint, Outcome, Room, Runs

LONGEST = 400  # nodes that may run again for one value
TRIES = 2  # plans between those of the curve
CLOSE = 50  # a choice that leaves less than this part of its room free is good enough
SMALLEST = 1 << 16  # bytes of a value that is worth a decision
SLOWEST = 2  # times as long as PyTorch's own cut: rather than such a choice, other things go to the host


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a graph saves."""

    keep: frozenset[int]  # nodes that may be saved
    near: int  # as for `Joint.backward_runs`
    outcome: Outcome


def choose(joint: Joint, default: set[int], room: Room, target: Target, smallest: int = SMALLEST) -> Choice:
    """Returns the fastest choice found that stays within the room, or else the one that exceeds it by least. Choices that take more than
    `SLOWEST` times as long as PyTorch's are none.

    default: the nodes that PyTorch saves.
    smallest: values of fewer bytes are always saved.
    """
    plain = Choice(frozenset(default), ALWAYS, joint.outcome(default))
    if plain.outcome.over(room) <= 0:
        return plain
    values = joint.values()
    always = {at for at in values if joint.size[at] < smallest or joint.draws[joint.maker(at)]}
    base = always | set(joint.split(always | _anchors(joint, values))[0])
    _cut_less(joint, default | always, always, room)
    known = joint.plans.setdefault((smallest, *room.less), {})
    with tempfile.TemporaryDirectory() as folder:
        _search(joint, base, known, functools.cache(lambda: _GraphStep(joint, base, always, target, room, pathlib.Path(folder))), room)
    found = (Choice(*key, outcome) for key, outcome in joint.judged.items() if outcome.seconds <= SLOWEST * plain.outcome.seconds)
    return min((plain, *found), key=lambda choice: (max(0, choice.outcome.over(room)), choice.outcome.seconds))


def _search(joint: Joint, base: set[int], known: dict[int, set[int]], made: Callable[[], _GraphStep], room: Room) -> None:
    """Judges plans of the program: those of its curve, and some between them."""
    if not known:
        known.update(made().curve())
    tried = {memory: _over(joint, frozenset(base - evicted), room) for memory, evicted in known.items()}
    for _ in range(TRIES):
        fits = max((memory for memory, over in tried.items() if over <= 0), default=None)
        above = min((memory for memory, over in tried.items() if over > 0 and (fits is None or memory > fits)), default=None)
        if fits is None or above is None or -tried[fits] * CLOSE <= room.most:
            break
        memory = fits + (above - fits) * -tried[fits] // (tried[above] - tried[fits])
        found = None if memory in tried else made().within(memory)
        if found is None:
            break
        known[memory] = found
        tried[memory] = _over(joint, frozenset(base - found), room)


def _over(joint: Joint, keep: frozenset[int], room: Room) -> int:
    """Judges what may be saved. Returns by how many bytes it exceeds the room at least."""
    overs = []
    for near in AGAIN:
        if (keep, near) not in joint.judged:
            joint.judged[keep, near] = joint.outcome(set(keep), near)
        overs.append(joint.judged[keep, near].over(room))
        if joint.judged[keep, near].backward <= room.backward:
            break  # the others recompute more, so that backward takes less
    return min(overs)


def _cut_less(joint: Joint, keep: set[int], always: set[int], room: Room) -> None:
    """Judges what PyTorch saves without those values that are recomputed in the least time for their bytes."""
    saved = set(joint.split(keep)[0])
    seconds = {at: cost[0] for at, cost in _chains(joint, saved - always, saved).items() if joint.size[at]}
    order = sorted(seconds, key=lambda at: seconds[at] / joint.size[at])
    low, high = 0, len(order)  # between them is the least number of values that suffices
    while low < high:
        middle = (low + high) // 2
        fits = _over(joint, frozenset(keep.difference(order[:middle + 1])), room) <= 0
        low, high = (low, middle) if fits else (middle + 1, high)


def _anchors(joint: Joint, values: Iterable[int]) -> set[int]:
    """Returns values that forward writes in any case, and from which much else follows: results of products and reductions, and what
    kernels far apart read, such as the sums of a residual network."""
    level: dict[int, int] = {}
    for at, forward in enumerate(joint.forward):
        if forward:
            level[at] = max((level[i] + (not joint.fusible[i] and not joint.free[i]) for i in joint.inputs[at]), default=0)
    readers: dict[int, set[int]] = {}
    for at in reversed(list(level)):
        mine = {level[at]} | (readers.get(at, set()) if joint.free[at] else set())
        for i in joint.inputs[at]:
            readers.setdefault(i, set()).update(mine)
    return {at for at in values if not joint.fusible[joint.maker(at)] or len(readers.get(at, ())) > 1
            or 4 * joint.size[at] < sum(joint.size[i] for i in joint.inputs[joint.maker(at)])}


def _chains(joint: Joint, wanted: set[int], union: set[int]) -> dict[int, tuple[float, list[int], int]]:
    """Returns, by value that can be recomputed: seconds, the storages that it is recomputed from, and bytes in between."""
    found = {}
    for at in sorted(at for at in wanted if not joint.is_input[at]):

        def absent(n: int, at: int = at) -> bool:
            return n == at or not joint.is_input[n] and not (n in union and n < at)
        nodes = joint.missing([at], absent)
        if len(nodes) > LONGEST or any(joint.draws[n] for n in nodes):
            continue
        inside = set(nodes)
        sources = list(dict.fromkeys(i for n in nodes for i in joint.inputs[n] if i not in inside))
        runs = Runs(joint)
        made: dict[int, int] = {}
        for source in sources:
            made[source] = runs.add(source)
        for n in nodes:
            made[n] = runs.add(n, made)
        kernels = joint.kernels(runs, [made[n] for n in nodes], {runs.key[made[at]]})
        seconds = sum(k.seconds for k in kernels)
        if joint.fusible[joint.maker(at)]:  # its reader's kernel makes it, and does not read it
            seconds = max(0.0, seconds - 2 * joint.size[at] / joint.rates.bytes_per_second)
        most = max(joint.timeline(runs, kernels, (), {made[at]}), default=0)
        read = dict.fromkeys(joint.owner[s] for s in sources if joint.storage[s] is not None)
        found[at] = seconds, list(read), max(0, most - joint.size[at])
    return found


class _GraphStep:
    """A graph as a step that the program `spillway` plans: kernels are its operators, and the values `union` are its saved tensors."""

    def __init__(self, joint: Joint, union: set[int], always: set[int], target: Target, room: Room, folder: pathlib.Path) -> None:
        self.joint, self.target = joint, target
        self.trace, self.plan = folder / "step.json", folder / "plan.json"
        self.operators: list[Operator] = []
        self.storages: dict[int, Storage] = {}
        self.saved: dict[int, Saved] = {}
        self.between = 0  # the operator that stands for all that runs between forward and backward
        self._make(union, always)
        self._write(room)

    def curve(self) -> dict[int, set[int]]:
        """Returns the nodes that are recomputed in several memories, by the bytes that the program plans for, inputs included."""
        rows = rows_of("plan", str(self.trace), "--curve", "-o", str(self.plan))
        found = [row["memory_bytes"] for row in rows if row["status"] == "ok"]
        return {memory: _evicted(self.plan.with_name(f"plan-{memory}.json")) for memory in found}

    def within(self, memory: int) -> set[int] | None:
        """Returns the nodes that are recomputed in one memory of the curve's kind; None if the program finds no plan."""
        row = rows_of("plan", str(self.trace), "--memory", f"{memory}B", "-o", str(self.plan))[0]
        return _evicted(self.plan) if row["status"] == "ok" else None

    def _write(self, room: Room) -> None:
        """Writes the step as a trace. Its operators leave free what others take in the memory of the room."""
        for at, op in enumerate(self.operators):
            op.scratch = room.less[0 if at < self.between else 1 if at == self.between else 2]
        places: dict[int, list[int]] = {}
        for saved in self.saved.values():
            places.setdefault(saved.packed, [0, 0])[0] += 1
            for at in saved.unpacked:
                places.setdefault(at, [0, 0])[1] += 1
        hooks = {"places": [[at, *counts] for at, counts in sorted(places.items())], "pack_ns": 0, "unpack_ns": 0,
                 "moves": {"evict_ns": 0}, "copy_bytes_per_second": 0, "beside_copy": 0}
        step = Step("graph", 1, self.target, self.operators, self.storages, sorted(self.saved.values(), key=lambda s: s.packed),
                    measured=Measured("compiled"), hooks=hooks)
        step.write(self.trace)

    def _make(self, union: set[int], always: set[int]) -> None:
        joint, runs = self.joint, Runs(self.joint)
        saved, again = joint.split(union)  # others would be there for no reader
        chains = _chains(joint, set(saved) - always, set(saved))
        made = joint.forward_runs(saved, runs)
        kept = {runs.key[made[at]] for at in [*saved, *joint.results] if joint.storage[at] is not None}
        for kernel in joint.kernels(runs, [r for r in made.values() if not runs.outside[r]], kept):
            label = joint.nodes[runs.node[kernel.runs[-1]]].name
            written = {runs.node[key]: size for key, size in kernel.writes.items()}
            mine = [at for at in written if at in chains]
            for at in mine:
                seconds, sources, workspace = chains[at]
                self._add(label, "forward", sources, [at], kernel.seconds / len(written), Again(round(1e9 * seconds), 0, workspace))
            rest = [at for at in written if at not in chains]
            if rest or not mine:
                self._add(label, "forward", [runs.node[k] for k in kernel.reads], rest, kernel.seconds * len(rest) / max(1, len(written)))
            for at in mine:
                self.saved[at] = Saved(self._operand(at), len(self.operators))
        self.between = len(self.operators)
        self._add("between", "backward", [o for o in dict.fromkeys(joint.owner[at] for at in joint.results) if o in self.storages], [], 0.0)
        back, order = joint.backward_runs(saved, again, ALWAYS, runs)
        ends = {runs.key[back[at]] for at in joint.gradients if joint.storage[at] is not None}
        named: dict[int, int] = {}  # keys of backward that are no saved values, by number
        kernels = joint.kernels(runs, order, ends)
        ending = joint.ends(runs, kernels)
        for place, kernel in enumerate(kernels):
            reads = [runs.node[k] if runs.outside[k] else named.setdefault(k, len(joint.nodes) + k) for k in kernel.reads]
            over = joint.in_place(runs, kernel, kernel.writes, [k for k in ending[place] if k in named and k not in ends])
            writes = [named.setdefault(k, named[over[k]] if k in over else len(joint.nodes) + k) for k in kernel.writes]
            for at in reads:
                if at in self.saved and len(self.operators) not in self.saved[at].unpacked:
                    self.saved[at].unpacked.append(len(self.operators))
            sizes = {named[k]: size for k, size in kernel.writes.items()}
            self._add(joint.nodes[runs.node[kernel.runs[-1]]].name, "backward", reads, writes, kernel.seconds, sizes=sizes)
        self._add("end", "backward", [named[k] for k in ends if k in named], [], 0.0)
        ends_at = {}
        for at, op in enumerate(self.operators):
            for operand in (*op.inputs, *op.outputs):
                ends_at[operand.storage.number] = at + 1
        for number, storage in self.storages.items():
            storage.died = None if storage.born == BEFORE else ends_at[number]

    def _add(self, label: str, phase: str, inputs: Iterable[int], outputs: Iterable[int], seconds: float, again: Again | None = None,
             sizes: dict[int, int] | None = None) -> None:
        number = len(self.operators)
        read = [self._operand(at) for at in dict.fromkeys(inputs)]
        made = [self._operand(at, number, (sizes or {}).get(at)) for at in outputs]
        self.operators.append(Operator(label, "", phase, read, made, 0, False, number, time_ns=round(1e9 * seconds), number=number,
                                       again=again))

    def _operand(self, at: int, born: int = BEFORE, size: int | None = None) -> Operand:
        if at not in self.storages:
            self.storages[at] = Storage(at, self.joint.size[at] if size is None else size, born, dtype=torch.uint8)
        return Operand(self.storages[at], 0, self.storages[at].size, (), torch.uint8)


def _evicted(plan: pathlib.Path) -> set[int]:
    """Returns the nodes that a plan's file recomputes."""
    document = json.loads(plan.read_text(encoding="utf-8"))
    return {int(item["tensor"].removeprefix(storage_name(0)[:-1])) for item in document["storages"] if item["fate"] == EVICT}


def default_saved(joint: Joint, names: set[str]) -> set[int]:
    """Returns the values of forward that a backward reads, for the names of its inputs."""
    read = {joint.owner[at] for at, n in enumerate(joint.nodes) if n.name in names and joint.forward[at]}
    return {at for at in read if not joint.is_input[at]}


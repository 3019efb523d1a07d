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
from ..plan.plan import EVICT, OFFLOAD
from ..plan.planned_step import BESIDE
from ..step.data import Again, Measured, Operand, Operator, Saved
from ..step.step import Step
from ..step.trace import storage_name
from .joint import AGAIN, ALWAYS, Joint, Outcome, Room, Runs, Trip, Trips

LONGEST = 400  # nodes that may run again for one value
TRIES = 2  # plans between those of the curve
CLOSE = 50  # a choice that leaves less than this part of its room free is good enough
SMALLEST = 1 << 16  # bytes of a value that is worth a decision
WORTH = 0.03  # of the time of PyTorch's own cut: where the host can gain no more, no plan with it is searched for
FORWARD = 1 / 3  # of a graph's time, in which copies to the host run beside it
SLOWEST = 2  # times as long as PyTorch's own cut: rather than such a choice, other things go to the host


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a graph saves."""

    keep: frozenset[int]  # nodes that may be saved
    near: int  # as for `Joint.backward_runs`
    outcome: Outcome
    trips: Trips = ()  # of those that are on the host between forward and backward


def choose(joint: Joint, default: set[int], room: Room, target: Target, smallest: int = SMALLEST,
           moves: tuple[str, ...] = (EVICT,)) -> Choice:
    """Returns the fastest choice found that stays within the room, or else the one that exceeds it by least. Choices that take more than
    `SLOWEST` times as long as PyTorch's are none.

    default: the nodes that PyTorch saves.
    smallest: values of fewer bytes are always saved.
    moves: what may happen to values.
    """
    plain = Choice(frozenset(default), ALWAYS, joint.outcome(default))
    if plain.outcome.over(room) <= 0:
        return plain
    values = joint.values()
    always = {at for at in values if joint.size[at] < smallest or joint.draws[joint.maker(at)]}
    base = always | set(joint.split(always | _anchors(joint, values))[0])
    _cut_less(joint, default | always, always, room, ())
    best = plain
    for tried in dict.fromkeys((tuple(move for move in moves if move != OFFLOAD), moves)):
        if not tried or best.outcome.over(room) <= 0 and _most_gain(joint, plain, best, room) < WORTH:
            continue  # at first, the best one exceeds the room
        known = joint.plans.setdefault((smallest, tried, *room.less), {})
        with tempfile.TemporaryDirectory() as folder:
            given = joint, base, always, target, room, pathlib.Path(folder), tried
            _search(joint, base, known, functools.cache(functools.partial(_GraphStep, *given)), room)
        with_trips = [(base - evicted, trips) for evicted, trips in known.values() if trips]
        if with_trips:
            nearest = min(with_trips, key=lambda plan: abs(_over(joint, frozenset(plan[0]), room, plan[1])))
            _cut_less(joint, nearest[0], always, room, nearest[1])
        found = (Choice(keep, near, outcome, trips) for (keep, near, trips), outcome in joint.judged.items()
                 if outcome.seconds <= SLOWEST * plain.outcome.seconds and (not trips or OFFLOAD in moves))
        best = min((plain, *found), key=lambda choice: (max(0, choice.outcome.over(room)), choice.outcome.seconds))
    return best


def _most_gain(joint: Joint, plain: Choice, best: Choice, room: Room) -> float:
    """Returns what part of PyTorch's time the host can gain over a choice without it: of what has to leave, it takes at most what the link
    carries during forward, and so it saves about that part of the time that is lost."""
    carried = joint.rates.link * FORWARD * plain.outcome.seconds
    return (best.outcome.seconds / plain.outcome.seconds - 1) * min(1.0, carried / plain.outcome.over(room))


def _search(joint: Joint, base: set[int], known: dict[int, tuple[set[int], Trips]], made: Callable[[], _GraphStep], room: Room) -> None:
    """Judges plans of the program: those of its curve, and some between them."""
    if not known:
        known.update(made().curve())
    tried = {memory: _over(joint, frozenset(base - evicted), room, trips) for memory, (evicted, trips) in known.items()}
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
        tried[memory] = _over(joint, frozenset(base - found[0]), room, found[1])


def _over(joint: Joint, keep: frozenset[int], room: Room, trips: Trips = ()) -> int:
    """Judges what may be saved. Returns by how many bytes it exceeds the room at least."""
    overs, saved = [], set(joint.split(set(keep))[0])
    trips = tuple(trip for trip in trips if trip.value in saved)
    for near in AGAIN:
        if (keep, near, trips) not in joint.judged:
            joint.judged[keep, near, trips] = joint.outcome(set(keep), near, trips)
        overs.append(joint.judged[keep, near, trips].over(room))
        if joint.judged[keep, near, trips].backward <= room.backward:
            break  # the others recompute more, so that backward takes less
    return min(overs)


def _cut_less(joint: Joint, keep: set[int], always: set[int], room: Room, trips: Trips) -> None:
    """Judges a cut without those values on the device that are recomputed in the least time for their bytes."""
    saved = set(joint.split(keep)[0])
    there = saved - always - {trip.value for trip in trips}
    seconds = {at: cost[0] for at, cost in _chains(joint, there, saved).items() if joint.size[at]}
    order = sorted(seconds, key=lambda at: seconds[at] / joint.size[at])
    low, high = 0, len(order)  # between them is the least number of values that suffices
    while low < high:
        middle = (low + high) // 2
        fits = _over(joint, frozenset(keep.difference(order[:middle + 1])), room, trips) <= 0
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

    def __init__(self, joint: Joint, union: set[int], always: set[int], target: Target, room: Room, folder: pathlib.Path,
                 moves: tuple[str, ...] = (EVICT,)) -> None:
        self.joint, self.target, self.moves = joint, target, moves
        self.trace, self.plan = folder / "step.json", folder / "plan.json"
        self.operators: list[Operator] = []
        self.storages: dict[int, Storage] = {}
        self.saved: dict[int, Saved] = {}
        self.between = 0  # the operator that stands for all that runs between forward and backward
        self.hooks: list[int] = []  # by position in a plan: the operators before it
        # By operator: the last value that it or one before has written, of its half of the graph, in any partition.
        self.written: list[int | None] = []
        self._make(union, always)
        self._write(room)

    def curve(self) -> dict[int, tuple[set[int], Trips]]:
        """Returns the nodes that are recomputed, and the trips, in several memories, by the bytes that the program plans for, inputs
        included."""
        rows = rows_of("plan", str(self.trace), "--curve", "-o", str(self.plan))
        found = [row["memory_bytes"] for row in rows if row["status"] == "ok"]
        return {memory: self._planned(self.plan.with_name(f"plan-{memory}.json")) for memory in found}

    def within(self, memory: int) -> tuple[set[int], Trips] | None:
        """Returns the nodes that are recomputed, and the trips, in one memory of the curve's kind; None if the program finds no plan."""
        row = rows_of("plan", str(self.trace), "--memory", f"{memory}B", "-o", str(self.plan))[0]
        return self._planned(self.plan) if row["status"] == "ok" else None

    def _planned(self, plan: pathlib.Path) -> tuple[set[int], Trips]:
        """Returns the nodes that a plan's file recomputes, and the trips of those that it has on the host.

        A value that comes back several times by the plan does so once, and stays.
        """
        evicted, trips = set(), []
        for item in json.loads(plan.read_text(encoding="utf-8"))["storages"]:
            at = int(item["tensor"].removeprefix(storage_name(0)[:-1]))
            if item["fate"] == EVICT:
                evicted.add(at)
            elif "release" in item and self.joint.can_leave(at):  # otherwise it stays
                release = self.written[min(self._before(item["release"]), self.between) - 1]
                reload = min(map(self._before, item["prefetches"]))
                trips.append(Trip(at, at if release is None else release, self.written[reload - 1] if reload > self.between else None))
        return evicted, tuple(trips)

    def _before(self, position: int) -> int:
        """Returns how many operators ran before a position of a plan; at its end, all."""
        return self.hooks[position] if position < len(self.hooks) else len(self.operators)

    def _write(self, room: Room) -> None:
        """Writes the step as a trace. Its operators leave free what others take in the memory of the room."""
        for at, op in enumerate(self.operators):
            op.scratch = room.less[0 if at < self.between else 1 if at == self.between else 2]
        places: dict[int, list[int]] = {}
        for saved in self.saved.values():
            places.setdefault(saved.packed, [0, 0])[0] += 1
            for at in saved.unpacked:
                places.setdefault(at, [0, 0])[1] += 1
        self.hooks = [at for at, counts in sorted(places.items()) for _ in range(sum(counts))]
        times = {EVICT: ("evict_ns",), OFFLOAD: ("offload_ns", "prefetch_ns")}
        hooks = {"places": [[at, *counts] for at, counts in sorted(places.items())], "pack_ns": 0, "unpack_ns": 0,
                 "moves": {name: 0 for move in self.moves for name in times[move]},
                 "copy_bytes_per_second": round(self.joint.rates.link), "beside_copy": BESIDE if OFFLOAD in self.moves else 0}
        step = Step("graph", 1, self.target, self.operators, self.storages, sorted(self.saved.values(), key=lambda s: s.packed),
                    measured=Measured("compiled"), hooks=hooks)
        step.write(self.trace)

    def _make(self, union: set[int], always: set[int]) -> None:
        joint, runs = self.joint, Runs(self.joint)
        saved, again = joint.split(union)  # others would be there for no reader
        chains = _chains(joint, set(saved) - always, set(saved))
        made = joint.forward_runs(saved, runs)
        kept = {runs.key[made[at]] for at in [*saved, *joint.results] if joint.storage[at] is not None}
        needed = set(joint.missing(joint.results, lambda _: True))
        leaving = {at for at in saved if OFFLOAD in self.moves and joint.can_leave(at)
                   and (at not in always or joint.draws[joint.maker(at)] and joint.size[at] >= SMALLEST)}
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
            for at in [*mine, *(at for at in rest if at in leaving)]:
                self.saved[at] = Saved(self._operand(at), len(self.operators))
            self._note_written(at for at in written if at in needed)
        self.between = len(self.operators)
        self._add("between", "backward", [o for o in dict.fromkeys(joint.owner[at] for at in joint.results) if o in self.storages], [], 0.0)
        self.written.append(None)
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
            self._note_written(at for at in map(runs.node.__getitem__, kernel.writes) if not joint.forward[at]
                               and not joint.fusible[joint.maker(at)])
        self._add("end", "backward", [named[k] for k in ends if k in named], [], 0.0)
        ends_at = {}
        for at, op in enumerate(self.operators):
            for operand in (*op.inputs, *op.outputs):
                ends_at[operand.storage.number] = at + 1
        for number, storage in self.storages.items():
            storage.died = None if storage.born == BEFORE else ends_at[number]

    def _note_written(self, nodes: Iterable[int]) -> None:
        """Notes what an operator, or several that are one kernel, has written."""
        last = max(nodes, default=self.written[-1] if self.written else None)
        self.written += [last] * (len(self.operators) - len(self.written))

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


def default_saved(joint: Joint, names: set[str]) -> set[int]:
    """Returns the values of forward that a backward reads, for the names of its inputs."""
    read = {joint.owner[at] for at, n in enumerate(joint.nodes) if n.name in names and joint.forward[at]}
    return {at for at in read if not joint.is_input[at]}


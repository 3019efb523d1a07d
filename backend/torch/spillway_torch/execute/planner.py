"""A simple planner: cheapest first for each byte, until the peak is within the budget."""

from __future__ import annotations

import bisect
import collections
import dataclasses

from ..errors import SpillwayError
from .chains import Saved, saved_storages
from .plan import KEEP, OFFLOAD, REBUILD, Floor, Plan
from .tape import Tape

NEAR = 8  # positions; a storage stays between two uses that are not further apart
SMALLEST = 1 << 20  # bytes of a storage that is worth a plan on a GPU
COPY_SECONDS = 100e-6  # host time of offloading a storage and bringing it back
REPLAY_SECONDS = 45e-6  # host time of running an operator again

Actions = dict[int, str]


@dataclasses.dataclass
class _Outcome:
    """What a choice of actions leads to."""

    memory: list[int]  # bytes, most between a position and the next one
    seconds: float
    releases: dict[int, list[int]]
    prefetches: dict[int, list[int]]
    drops: dict[int, list[int]]

    def excess(self, budget: int) -> int:
        return sum(max(0, m - budget) for m in self.memory)


class _Model:
    """The memory and time of a step under any choice of actions.

    The memory between two positions is the one recorded, in which no saved tensor stayed, and the storages that are present.
    """

    def __init__(self, tape: Tape, smallest: int) -> None:
        self.tape = tape
        self.saved = saved_storages(tape)
        self.starts = tape.positions
        ends = [*self.starts[1:], len(tape.ops)]
        self.base = [max(tape.used[a:max(b, a + 1)], default=tape.used[-1]) for a, b in zip(self.starts, ends)]
        self.before = max(tape.used[:self.starts[0]], default=0)
        self.clock = [0.0]
        for op in tape.ops:
            self.clock.append(self.clock[-1] + op.seconds)
        self.uses: dict[int, list[int]] = {}  # positions at which backward reads a storage
        self.until: dict[int, int] = {}  # by position of a use: the first position after it
        for unpack in tape.unpacks:
            self.uses.setdefault(unpack.pack.value[0], []).append(unpack.position)
            self.until[unpack.position] = max(unpack.position + 1, bisect.bisect_left(self.starts, unpack.last))
        self.candidates = [s for s in self.saved.values() if s.dies is not None and s.bytes >= smallest]
        planned = {s.storage for s in self.candidates}
        for storage in {p.value[0] for p in tape.packs}:
            recorded = tape.storages[storage]
            if storage not in planned and recorded.born >= 0 and storage in self.uses:  # it stays until its last use
                dies = len(tape.ops) if recorded.died is None else recorded.died
                self.add(self.base, bisect.bisect_left(self.starts, dies), self.until[self.uses[storage][-1]],
                         tape.rounded(storage))
        self.touched = {p.position for p in tape.packs}

    @staticmethod
    def add(memory: list[int], begin: int, end: int, size: int) -> None:
        for at in range(begin, end):
            memory[at] += size

    def at(self, position: int) -> float:
        """Returns the time at which a position is reached, in seconds, without waiting."""
        return self.clock[self.starts[position]]

    def floor(self) -> Floor:
        """Returns what remains if each candidate is present only while an operator uses it."""
        tape = self.tape
        memory = list(self.base)
        for saved in self.candidates:
            for at in {at for use in self.uses[saved.storage] for at in range(use, self.until[use])}:
                memory[at] += tape.rounded(saved.storage)
        most = max([self.before, *memory])
        if most == self.before:
            return Floor(most, tape.ops[0].name, [])
        at = memory.index(most)
        ops = range(self.starts[at], max(self.starts[at] + 1, self.starts[at + 1] if at + 1 < len(self.starts) else len(tape.ops)))
        worst = max((n for n in ops if n < len(tape.ops)), key=lambda n: tape.used[n], default=len(tape.ops) - 1)
        alive = [(s.shape, s.dtype, s.size) for s in tape.storages.values()
                 if s.born <= worst and (s.died is None or s.died > worst)]
        alive.sort(key=lambda item: -item[2])
        return Floor(most, tape.ops[worst].name, [(f"{str(dtype).replace('torch.', '')}{list(shape)}", size)
                                                  for shape, dtype, size in alive[:3]])

    def simulate(self, actions: Actions, budget: int) -> _Outcome:
        memory = list(self.base)
        drops, fetched, touches, replayed = self._backward(actions)
        releases, stalls = self._copies_out(actions, memory, fetched, budget)
        rebuild = 0.0
        for saved in self.candidates:
            storage, size = saved.storage, self.tape.rounded(saved.storage)
            assert saved.dies is not None
            if actions.get(storage, KEEP) == KEEP:
                begin = bisect.bisect_left(self.starts, saved.dies)
                self.add(memory, begin, max(self.until[self.uses[storage][-1]], touches.get(storage, [0])[-1] + 1), size)
            for begin, end in fetched.get(storage, ()):
                self.add(memory, begin, end, size)
        for position, storage in replayed:
            chain = self.saved[storage].chain
            assert chain is not None
            memory[position] += chain.temporary
            rebuild += chain.seconds
        prefetches, late = self._copies_in(actions, memory, fetched, budget)
        host = COPY_SECONDS * len(prefetches) * (self.tape.device == "cuda")
        return _Outcome([self.before, *memory], self.clock[-1] + stalls + late + rebuild + host,
                        _by_position(releases), _by_position(prefetches), drops)

    def _backward(self, actions: Actions) -> tuple[dict[int, list[int]], dict[int, list[tuple[int, int]]],
                                                   dict[int, list[int]], list[tuple[int, int]]]:
        """Follows what backward reads.

        Returns the drops, the spans in which absent storages are present, the positions at which each storage is read, by
        backward or to rebuild another one, and the positions at which storages are rebuilt.
        """
        touches = self._touches(actions)
        drops: dict[int, list[int]] = {}
        spans: dict[int, list[tuple[int, int]]] = {}
        present: dict[int, int] = {}
        replayed: list[tuple[int, int]] = []

        def fetch(wanted: int, position: int) -> None:
            waiting = [wanted]
            while waiting:
                storage = waiting[-1]
                if storage in present or actions.get(storage, KEEP) == KEEP:
                    waiting.pop()
                    continue
                if actions[storage] == REBUILD:
                    absent = [v[0] for v in self._sources(storage) if v[0] not in present and actions.get(v[0], KEEP) != KEEP]
                    if absent:
                        waiting += absent
                        continue
                    replayed.append((position, storage))
                present[storage] = position
                waiting.pop()

        for unpack in self.tape.unpacks:
            storage, position = unpack.pack.value[0], unpack.position
            if storage not in self.saved:
                continue
            fetch(storage, position)
            for resident in list(present):
                later = bisect.bisect_right(touches[resident], position)
                if later == len(touches[resident]) or touches[resident][later] - position > NEAR:
                    end = self.until[position] if resident == storage else position + 1
                    spans.setdefault(resident, []).append((present.pop(resident), end))
                    drops.setdefault(position, []).append(resident)
        return drops, spans, touches, replayed

    def _touches(self, actions: Actions) -> dict[int, list[int]]:
        """Returns where each storage is read if nothing is dropped before its last use."""
        touches: dict[int, list[int]] = {s: [] for s in self.saved}
        present: set[int] = set()
        for unpack in self.tape.unpacks:
            waiting = [unpack.pack.value[0]] if unpack.pack.value[0] in self.saved else []
            while waiting:
                storage = waiting.pop()
                touches[storage].append(unpack.position)
                if actions.get(storage) == REBUILD and storage not in present:
                    waiting += [value[0] for value in self._sources(storage)]
                present.add(storage)
        return touches

    def _sources(self, storage: int) -> list[tuple[int, int]]:
        chain = self.saved[storage].chain
        assert chain is not None
        return chain.sources

    def _copies_out(self, actions: Actions, memory: list[int], fetched: dict[int, list[tuple[int, int]]],
                    budget: int) -> tuple[list[tuple[int, int]], float]:
        """Adds the storages to `memory` that wait for their copy; returns the releases and the seconds of stalls."""
        releases: list[tuple[int, int]] = []
        done = stall = 0.0
        for saved in sorted(self.candidates, key=lambda s: s.packs[0].position):
            if actions.get(saved.storage) != OFFLOAD:
                continue
            assert saved.dies is not None
            size = self.tape.rounded(saved.storage)
            first = saved.packs[0].position
            done = max(done, self.at(first) + stall) + size / self.tape.bandwidth
            dies = max(bisect.bisect_left(self.starts, saved.dies), first + 1)
            use = self.uses[saved.storage][0]
            release = dies
            while release < use and self.at(release) + stall < done and memory[release] + size <= budget:
                release += 1
            if release < use:
                stall += max(0.0, done - self.at(release) - stall)
                releases.append((release, saved.storage))
                self.add(memory, dies, release, size)
            else:
                spans = fetched[saved.storage]  # its copy is not done: it stays
                spans[0] = min(dies, spans[0][0]), spans[0][1]
        return releases, stall

    def _copies_in(self, actions: Actions, memory: list[int], fetched: dict[int, list[tuple[int, int]]],
                   budget: int) -> tuple[list[tuple[int, int]], float]:
        """Chooses when copies to the device start, and adds them to `memory`; returns them and the seconds of stalls."""
        needs = sorted(((begin, end, s) for s, spans in fetched.items() if actions.get(s) == OFFLOAD for begin, end in spans),
                       reverse=True)
        starts: list[tuple[int, int]] = []
        wanted = float("inf")
        for begin, _, storage in needs:
            size = self.tape.rounded(storage)
            wanted = min(wanted, self.at(begin)) - size / self.tape.bandwidth
            position = begin
            while (position > 0 and self.at(position) > wanted and position - 1 not in self.touched
                   and memory[position - 1] + size <= budget):
                position -= 1
            self.add(memory, position, begin, size)
            starts.append((position, storage))
        late = done = 0.0
        for (position, storage), (begin, _, _) in sorted(zip(starts, needs)):
            done = max(done, self.at(position) + late) + self.tape.rounded(storage) / self.tape.bandwidth
            late += max(0.0, done - self.at(begin) - late)
        return starts, late


def _by_position(pairs: list[tuple[int, int]]) -> dict[int, list[int]]:
    table: dict[int, list[int]] = collections.defaultdict(list)
    for position, storage in pairs:
        table[position].append(storage)
    return dict(table)


def _price(saved: Saved, action: str, device: str) -> float:
    """Returns the seconds that an action costs for each byte, if nothing hides it."""
    if action == OFFLOAD:
        return COPY_SECONDS / saved.bytes
    assert saved.chain is not None
    return (saved.chain.seconds + (REPLAY_SECONDS * len(saved.chain.ops) if device == "cuda" else 0)) / saved.bytes


def assemble(tape: Tape, actions: Actions, budget: int, smallest: int | None = None) -> Plan:
    """Returns the plan that carries out the given actions. REQUIRES: the tape allows them."""
    model = _Model(tape, SMALLEST if smallest is None and tape.device == "cuda" else smallest or 0)
    return _plan(model, actions, budget)


def _plan(model: _Model, actions: Actions, budget: int) -> Plan:
    outcome, eager = model.simulate(actions, budget), model.simulate({}, budget)
    return Plan(budget, {s: a for s, a in actions.items() if a != KEEP}, outcome.releases, outcome.prefetches, outcome.drops,
                max(outcome.memory), max(eager.memory), outcome.seconds, eager.seconds, model.floor(), model.tape)


def make_plan(tape: Tape, budget: int, *, moves: tuple[str, ...] = (OFFLOAD, REBUILD), smallest: int | None = None) -> Plan:
    """Returns a plan whose predicted peak is at most `budget` bytes.

    moves: what may happen to storages.
    smallest: bytes of the smallest storage that is worth it, by default 1 MiB on a GPU and 0 on a CPU.

    Raises `SpillwayError`, which names the floor, if there is no such plan.
    """
    model = _Model(tape, SMALLEST if smallest is None and tape.device == "cuda" else smallest or 0)
    floor = model.floor()
    if budget < floor.bytes:
        raise SpillwayError(floor.sentence(budget))
    options = sorted((_price(s, move, tape.device), s.storage, move) for s in model.candidates for move in moves
                     if move == OFFLOAD or s.chain is not None)
    actions: Actions = {}
    best = model.simulate(actions, budget)
    while best.excess(budget):
        better = False
        for _, storage, move in options:
            if actions.get(storage, KEEP) != KEEP and actions[storage] == move:
                continue
            tried = model.simulate({**actions, storage: move}, budget)
            if tried.excess(budget) < best.excess(budget):
                actions[storage] = move
                best, better = tried, True
                if not best.excess(budget):
                    break
        if not better:
            raise SpillwayError(f"no plan within {budget:,} bytes was found (the best has {max(best.memory):,}; the floor is "
                                f"{floor.bytes:,}): give a larger budget")
    return _plan(model, actions, budget)

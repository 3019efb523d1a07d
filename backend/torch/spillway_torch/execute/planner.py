"""A simple planner: cheapest first for each byte, until the peak is within the budget."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools

from ..errors import NoPlanError, SpillwayError
from .ask import ask
from .chains import Saved, saved_storages
from .plan import KEEP, OFFLOAD, REBUILD, Floor, Plan
from .tape import Tape

NEAR = (1 << 30, 64, 8)  # positions that are tried: a storage stays between two uses that are not further apart
SMALLEST = 1 << 20  # bytes of a storage that is worth a plan on a GPU
SHARES = 12
MOST_TRIED = 400  # changes to single storages
OPERATOR_SECONDS = 15e-6  # host time of an operator of the program, on a machine with a GPU
REPLAY_SECONDS = 45e-6  # the same of one that runs again
COPY_SECONDS = 100e-6  # the same of bringing a storage out and back

Actions = dict[int, str]


@dataclasses.dataclass(frozen=True)
class _Choice:
    actions: Actions
    near: int


@dataclasses.dataclass
class _Outcome:
    """What a choice of actions leads to."""

    memory: list[int]  # bytes, most between a position and the next one
    seconds: float
    host: float  # of them, at least
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
        self.base = [*tape.used, tape.used[-1]]
        self.ends = [max(a + 1, b) for a, b in zip(self.starts, [*self.starts[1:], len(tape.ops)])]
        self.clock = [0.0]
        for op in tape.ops:
            self.clock.append(self.clock[-1] + op.seconds)
        self.uses: dict[int, list[int]] = {}  # positions at which backward reads a storage
        self.until: dict[int, int] = {}  # by position of a use: operators that have run when it ends
        for unpack in tape.unpacks:
            self.uses.setdefault(unpack.pack.value[0], []).append(unpack.position)
            self.until[unpack.position] = max(unpack.op + 1, unpack.last)
        self.candidates = [s for s in self.saved.values() if s.dies is not None and s.bytes >= smallest]
        self.candidates.sort(key=lambda s: s.packs[0].position)
        planned = {s.storage for s in self.candidates}
        self.bytes = {s: tape.rounded(s) for s in planned}
        self.death = {s.storage: s.dies for s in self.candidates if s.dies is not None}
        for storage in {p.value[0] for p in tape.packs}:
            recorded = tape.storages[storage]
            if storage not in planned and recorded.born >= 0:  # it stays until its last use
                dies = len(tape.ops) if recorded.died is None else recorded.died
                last = max((self.until[use] for use in self.uses.get(storage, ())), default=len(tape.ops))
                self.add(self.base, dies, last, tape.rounded(storage))
        self.touched = {p.position for p in tape.packs}

    @staticmethod
    def add(memory: list[int], begin: int, end: int, size: int) -> None:
        for at in range(begin, end):
            memory[at] += size

    def at(self, position: int) -> float:
        """Returns the time at which a position is reached, in seconds, without waiting."""
        return self.clock[self.starts[position]]

    def least(self) -> list[int]:
        """Returns the bytes during each operator if each candidate is present only while an operator uses it."""
        memory = list(self.base)
        for saved in self.candidates:
            for at in {at for use in self.uses[saved.storage] for at in range(self.starts[use], self.until[use])}:
                memory[at] += self.bytes[saved.storage]
        return memory

    def floor(self) -> Floor:
        tape, memory = self.tape, self.least()
        most = max(memory)
        worst = min(memory.index(most), len(tape.ops) - 1)
        before = sum(self.tape.rounded(s.number) for s in tape.storages.values() if s.born < 0)
        exist = [s for s in tape.storages.values() if 0 <= s.born <= worst and (s.died is None or s.died > worst)]
        named = [tape.storages[tape.origin.get(s.number, s.number)] for s in exist]
        alive = sorted(((s.size, f"{str(s.dtype).replace('torch.', '')}{list(s.shape)}") for s in named), reverse=True)
        return Floor(most, tape.ops[worst].name, [("parameters and others from before the step", before),
                                                  *((name, size) for size, name in alive[:3])])

    def simulate(self, choice: _Choice, budget: int) -> _Outcome:
        actions = choice.actions
        drops, fetched, replayed = self._backward(choice)
        held = self._held(actions)
        change = [0] * (len(self.base) + 1)
        for saved in self.candidates:
            spans = fetched.get(saved.storage, [])
            if actions.get(saved.storage, KEEP) == KEEP:
                spans = [(self.death[saved.storage], held[saved.storage])]
            else:
                spans = [(self.starts[begin], end) for begin, end in spans]
            for begin, end in spans:
                change[begin] += self.bytes[saved.storage]
                change[end] -= self.bytes[saved.storage]
        each = [m + c for m, c in zip(self.base, itertools.accumulate(change))]
        memory = [max(each[a:b]) for a, b in zip(self.starts, self.ends)]
        rebuild, host = 0.0, OPERATOR_SECONDS * len(self.tape.ops)
        for position, storage in replayed:
            chain = self.saved[storage].chain
            assert chain is not None
            memory[position] += chain.temporary
            rebuild += chain.seconds
            host += REPLAY_SECONDS * len(chain.ops)
        releases, stalls = self._copies_out(actions, memory, fetched, budget)
        prefetches, late = self._copies_in(actions, memory, fetched, budget)
        host = (host + COPY_SECONDS * len(prefetches)) * (self.tape.device == "cuda")
        return _Outcome([max(each[:self.starts[0]], default=0), *memory], max(self.clock[-1] + stalls + late + rebuild, host), host,
                        _by_position(releases), _by_position(prefetches), drops)

    def _held(self, actions: Actions) -> dict[int, int]:
        """Returns how many operators have run when nobody needs a storage any more, also not to rebuild another one."""
        held = {s: max(self.until[use] for use in uses) for s, uses in self.uses.items()}
        for saved in reversed(self.candidates):
            if actions.get(saved.storage) == REBUILD:
                for source, _ in self._sources(saved.storage):
                    held[source] = max(held.get(source, 0), held[saved.storage])
        return held

    def _backward(self, choice: _Choice) -> tuple[dict[int, list[int]], dict[int, list[tuple[int, int]]],
                                                   list[tuple[int, int]]]:
        """Follows what backward reads.

        Returns the drops, the spans in which absent storages are present (from a position until so many operators have run),
        and the positions at which storages are rebuilt.
        """
        actions = choice.actions
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
                if later == len(touches[resident]) or touches[resident][later] - position > choice.near:
                    end = self.until[position] if resident == storage else self.ends[position]
                    spans.setdefault(resident, []).append((present.pop(resident), end))
                    drops.setdefault(position, []).append(resident)
        return drops, spans, replayed

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
        """Adds to `memory` the storages that wait for their copy; returns the releases and the seconds of stalls."""
        releases: list[tuple[int, int]] = []
        done = stall = 0.0
        for saved in self.candidates:
            storage = saved.storage
            if actions.get(storage) != OFFLOAD:
                continue
            size, first = self.bytes[storage], saved.packs[0].position
            done = max(done, self.at(first) + stall) + size / self.tape.bandwidth
            use = fetched[storage][0][0]
            dies = min(bisect.bisect_right(self.starts, self.death[storage]) - 1, use)
            release = min(max(bisect.bisect_left(self.starts, self.death[storage]), first + 1), use)
            while release < use and self.at(release) + stall < done and memory[release] + size <= budget:
                release += 1
            if release < use:  # otherwise it is there until its first use
                stall += max(0.0, done - self.at(release) - stall)
                releases.append((release, storage))
            self.add(memory, dies, release, size)
        return releases, stall

    def _copies_in(self, actions: Actions, memory: list[int], fetched: dict[int, list[tuple[int, int]]],
                   budget: int) -> tuple[list[tuple[int, int]], float]:
        """Chooses when copies to the device start, and adds them to `memory`; returns them and the seconds of stalls."""
        needs = sorted(((begin, end, s) for s, spans in fetched.items() if actions.get(s) == OFFLOAD for begin, end in spans),
                       reverse=True)
        starts: list[tuple[int, int]] = []
        wanted = float("inf")
        for begin, _, storage in needs:
            size = self.bytes[storage]
            wanted = min(wanted, self.at(begin)) - size / self.tape.bandwidth
            position = begin
            while (position > 0 and self.at(position) > wanted and position - 1 not in self.touched
                   and memory[position - 1] + size <= budget):
                position -= 1
            self.add(memory, position, begin, size)
            starts.append((position, storage))
        late = done = 0.0
        for (position, storage), (begin, _, _) in sorted(zip(starts, needs)):
            done = max(done, self.at(position) + late) + self.bytes[storage] / self.tape.bandwidth
            late += max(0.0, done - self.at(begin) - late)
        return starts, late


def _by_position(pairs: list[tuple[int, int]]) -> dict[int, list[int]]:
    table: dict[int, list[int]] = collections.defaultdict(list)
    for position, storage in pairs:
        table[position].append(storage)
    return dict(table)


def assemble(tape: Tape, actions: Actions, budget: int) -> Plan:
    """Returns the plan that carries out the given actions. REQUIRES: the tape allows them."""
    model = _Model(tape, 0)
    return _plan(model, _Choice(actions, NEAR[0]), budget)


def least_memory(tape: Tape) -> list[int]:
    """Returns the bytes that any plan of the tape takes at least during each operator, and after the last one."""
    return _Model(tape, SMALLEST if tape.device == "cuda" else 0).least()


def make_plan(tape: Tape, budget: int, *, moves: tuple[str, ...] = (OFFLOAD, REBUILD), smallest: int | None = None,
              policy: str | None = None, device: str = "h200") -> Plan:
    """Returns a plan whose predicted peak is at most `budget` bytes.

    moves: what may happen to storages.
    smallest: bytes of the smallest storage that is worth it, by default 1 MiB on a GPU and 0 on a CPU.
    policy, device: a policy of the program `spillway` ("joint:effort=1") that chooses, on a device that it knows; changes to
        single storages then bring the peak within the budget. By default nobody else is asked.

    Without a policy, it tries shares of what can be rebuilt, the cheapest first, and offloads as few of the rest as bring the
    peak down, the first saved first. Raises `SpillwayError`, which names the floor, if it finds no such plan.
    """
    model = _Model(tape, SMALLEST if smallest is None and tape.device == "cuda" else smallest or 0)
    floor = model.floor()
    if budget < floor.bytes:
        raise SpillwayError(floor.sentence(budget))
    search = _Search(model, budget, moves)
    search.consider(_Choice({}, NEAR[0]))
    if search.score[0]:
        chosen = ask(tape, model.candidates, budget, policy=policy, device=device) if policy is not None else {}
        for near in NEAR:
            if policy is None:
                search.shares(near)
            else:
                search.consider(_Choice(chosen, near))
    search.improve()
    plan = _plan(model, search.best, budget)
    if search.score[0]:
        raise NoPlanError(f"no plan within {budget:,} bytes was found (the best has {plan.peak:,}; the floor is "
                          f"{floor.bytes:,}): give a larger budget", plan.peak)
    return plan


def _plan(model: _Model, choice: _Choice, budget: int) -> Plan:
    outcome, eager = model.simulate(choice, budget), model.simulate(_Choice({}, NEAR[0]), budget)
    return Plan(budget, {s: a for s, a in choice.actions.items() if a != KEEP}, outcome.releases, outcome.prefetches,
                outcome.drops, max(outcome.memory), max(eager.memory), outcome.seconds, eager.seconds, model.floor(), model.tape,
                outcome.host)


class _Search:
    """The best choice that was considered: the least over the budget, then the fastest."""

    def __init__(self, model: _Model, budget: int, moves: tuple[str, ...]) -> None:
        self.model = model
        self.budget = budget
        self.moves = moves
        self.best = _Choice({}, NEAR[0])
        self.score: tuple[float, float] = (float("inf"), 0.0)

    def consider(self, choice: _Choice) -> float:
        """Returns the bytes that the choice is over the budget, summed over positions."""
        outcome = self.model.simulate(choice, self.budget)
        score = outcome.excess(self.budget), outcome.seconds
        if score < self.score:
            self.best, self.score = choice, score
        return score[0]

    def shares(self, near: int) -> None:
        """Considers to rebuild shares of what can be rebuilt, and to offload as few of the rest as help."""
        cheapest = sorted((s for s in self.model.candidates if s.chain is not None and REBUILD in self.moves),
                          key=lambda s: (_price(s), s.storage))
        for share in range(SHARES + 1):
            rebuilt: Actions = {s.storage: REBUILD for s in cheapest[:len(cheapest) * share // SHARES]}
            rest = [s.storage for s in self.model.candidates if s.storage not in rebuilt and OFFLOAD in self.moves]
            low, high = 0, len(rest)
            least = self.consider(_Choice(rebuilt | dict.fromkeys(rest, OFFLOAD), near))
            while low < high:  # the fewest that leave no more over the budget than all do
                middle = (low + high) // 2
                excess = self.consider(_Choice(rebuilt | dict.fromkeys(rest[:middle], OFFLOAD), near))
                low, high = (low, middle) if excess <= least else (middle + 1, high)

    def improve(self) -> None:
        """Considers changes to single storages, the largest first, until none helps or enough were tried."""
        tried, before = 0, None
        while self.best.actions and self.score != before and tried < MOST_TRIED:
            before = self.score
            for saved in sorted(self.model.candidates, key=lambda s: -s.bytes):
                for action in (KEEP, *self.moves):
                    if self.best.actions.get(saved.storage, KEEP) != action and (action != REBUILD or saved.chain is not None):
                        self.consider(_Choice({**self.best.actions, saved.storage: action}, self.best.near))
                        tried += 1
                if tried >= MOST_TRIED:
                    break


def _price(saved: Saved) -> float:
    """Returns the seconds that rebuilding costs for each byte."""
    assert saved.chain is not None
    return saved.chain.seconds / saved.bytes

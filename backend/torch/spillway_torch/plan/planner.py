"""Chooses what happens to each saved storage, so that the peak is within a budget and the step as fast as it can be."""

from __future__ import annotations

import bisect
import concurrent.futures
import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterator
from typing import NamedTuple, Union

from ..base.errors import NoPlanError, ProgramError, SpillwayError
from ..tape.chains import Saved, saved_storages
from ..tape.tape import Tape
from .ask import Moments, ask
from .clock import hook_clock, host_clock
from .plan import EVICT, KEEP, OFFLOAD, Floor, Plan, parse_bytes

NEAR = (1 << 30, 64, 8)  # positions that are tried: a storage stays between two uses that are not further apart
POLICY = "joint:effort=1"  # of the program
SMALLEST = 1 << 20  # bytes of a storage that is worth a plan on a GPU
SHARES, COARSE = 12, 4  # of what can be recomputed: for one plan, and for each of many or that of a deep model
PER_SHARE = 14  # choices that are considered for a share, about
MOST_TRIED, FEWEST_TRIED = 1000, 60  # changes to single storages of a choice
TRIED = 500_000  # changes times operators, which limits the time of planning
MARGIN = 400  # a GPU's allocator does not place blocks in each step alike: plans leave one part of so many of the budget, if they can
BESIDE = 0.03  # of the time of a copy: by so much, operators of a GPU take longer beside it
AGREES = 0.8  # times the predicted time of the host: where steps take less, or more by as much, they may have a better plan

log = logging.getLogger("spillway_torch")

Actions = dict[int, str]  # without the storages that stay


@dataclasses.dataclass(frozen=True)
class _Choice:
    actions: Actions
    near: int
    moments: Moments | None = None  # None: the fastest within the budget


class _Span(NamedTuple):
    """A time in backward in which a storage is present that was absent."""

    begin: int  # position
    end: int  # operators that have run when it is absent again
    drop: int  # position at which it is given up


@dataclasses.dataclass
class _Outcome:
    """What a choice of actions leads to."""

    memory: list[int]  # bytes, most between a position and the next one
    seconds: float
    host: float  # of them, at least
    forward: float  # of the host's, until forward ends
    releases: dict[int, list[int]]
    prefetches: dict[int, list[int]]
    drops: dict[int, list[int]]

    def excess(self, budget: int) -> int:
        return sum(max(0, m - budget) for m in self.memory)


class _Model:
    """The memory and time of a step under any choice of actions.

    The memory between two positions is the one recorded, in which no saved tensor stayed, and the storages that are present.
    """

    def __init__(self, tape: Tape, smallest: int, unforeseen: int = 0) -> None:
        self.tape = tape
        self.unforeseen = unforeseen
        self.saved = saved_storages(tape)
        self.starts = tape.positions
        self.base = [used + unforeseen for used in (*tape.used, tape.used[-1])]
        self.ends = [max(a + 1, b) for a, b in zip(self.starts, [*self.starts[1:], len(tape.ops)])]
        self.clock = [0.0]
        for op in tape.ops:
            self.clock.append(self.clock[-1] + op.seconds)
        self.costs = tape.costs
        clock = host_clock(tape, self.costs)
        starts = [clock[at] for at in (*self.starts, -1)]
        self.hooked = list(map(float.__add__, starts, hook_clock(tape, self.costs)))  # the host's time of positions with hooks
        watched = self.costs.watched * len(tape.calls) / tape.packed
        self.watching = [watched * min(at, tape.packed) for at in range(len(starts))]
        self.plain = starts
        self.uses: dict[int, list[int]] = {}  # positions at which backward reads a storage
        self.until: dict[int, int] = {}  # by position of a use: operators that have run when it ends
        for unpack in tape.unpacks:
            self.uses.setdefault(unpack.pack.value[0], []).append(unpack.position)
            self.until[unpack.position] = max(unpack.op + 1, unpack.last)
        self.read = {s: max(map(self.until.__getitem__, uses)) for s, uses in self.uses.items()}  # operators that have run when none reads it
        self.candidates = [s for s in self.saved.values() if s.dies is not None and s.bytes >= smallest]
        self.candidates.sort(key=lambda s: s.packs[0].position)
        planned = {s.storage for s in self.candidates}
        self.bytes = {s: tape.rounded(s) for s in planned}
        self.death = {s.storage: s.dies for s in self.candidates if s.dies is not None}
        self.dying = {s: (bisect.bisect_right(self.starts, dies) - 1, bisect.bisect_left(self.starts, dies))
                      for s, dies in self.death.items()}  # the positions around a death
        self.reads = [(u.pack.value[0], u.position) for u in tape.unpacks if u.pack.value[0] in self.saved]
        for storage in {p.value[0] for p in tape.packs}:
            recorded = tape.storages[storage]
            if storage not in planned and recorded.born >= 0:  # it stays until its last use
                dies = len(tape.ops) if recorded.died is None else recorded.died
                last = max((self.until[use] for use in self.uses.get(storage, ())), default=len(tape.ops))
                self.add(self.base, dies, last, tape.rounded(storage))
        self.packed = [-1, *(p.position for p in tape.packs)]
        # Whether anything runs before the next position: in forward not where several tensors are saved in a row.
        self.runs = [at > self.packed[-1] or a < b for at, (a, b) in enumerate(zip(self.starts, [*self.starts[1:], len(tape.ops)]))]

    @staticmethod
    def add(memory: list[int], begin: int, end: int, size: int) -> None:
        for at in range(begin, end):
            memory[at] += size

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
        return Floor(most, tape.ops[worst].place, [("parameters and others from before the step", before),
                                                  *((name, size) for size, name in alive[:3])])

    def simulate(self, choice: _Choice, budget: int) -> _Outcome:
        actions = choice.actions
        drops, fetched, recomputed = self._backward(choice)
        held = self._held(actions)
        change = [0] * (len(self.base) + 1)
        for saved in self.candidates:
            spans = fetched.get(saved.storage, [])
            if saved.storage not in actions:
                there = [(self.death[saved.storage], held[saved.storage])]
            else:
                there = [(self.starts[span.begin], span.end) for span in spans]
            for begin, end in there:
                change[begin] += self.bytes[saved.storage]
                change[end] -= self.bytes[saved.storage]
        each = [m + c for m, c in zip(self.base, itertools.accumulate(change))]
        memory = [max(each[a:b]) for a, b in zip(self.starts, self.ends)]
        delays = [0.0] * (len(self.starts) + 1)
        temporary: dict[int, int] = {}  # chains of a position run one after the other
        for position, storage in recomputed:
            chain = self.saved[storage].chain
            assert chain is not None
            temporary[position] = max(temporary.get(position, 0), chain.temporary)
            delays[position + 1] += chain.seconds
        for position, size in temporary.items():
            memory[position] += size
        for storage, action in actions.items():
            if action == OFFLOAD and self.tape.device == "cuda":
                beside = BESIDE * self.bytes[storage] / self.tape.bandwidth
                for position in (self.saved[storage].packs[0].position, *(span.begin for span in fetched[storage])):
                    delays[position + 1] += beside
        host = self._host(actions, fetched, recomputed)
        busy = [self.clock[s] + d for s, d in zip(self.starts, itertools.accumulate(delays))]  # the GPU's times of positions, never idle
        idle = list(itertools.accumulate((h - b for h, b in zip(host, busy)), max, initial=0.0))[1:]
        times = list(map(float.__add__, busy, idle))
        releases, stalls = self._copies_out(choice, memory, fetched, budget, times)
        gone = {s: at for at, released in releases.items() for s in released}
        needs = [(span.begin, s, before.drop + 1 if before is not None else gone[s]) for s, spans in fetched.items()
                 if actions.get(s) == OFFLOAD for before, span in zip([None, *spans], spans) if before is not None or s in gone]
        prefetches, late = self._copies_in(choice.moments, memory, needs, budget, times)
        seconds = max(self.clock[-1] + sum(delays) + idle[-1] + stalls + late, host[-1])
        return _Outcome([max(each[:self.starts[0]], default=0), *memory], seconds, host[-1], host[self.packed[-1] + 1], releases, prefetches,
                        drops)

    def _host(self, actions: Actions, fetched: dict[int, list[_Span]], recomputed: list[tuple[int, int]]) -> list[float]:
        """Returns when the host comes to each position, and to the end of the step, if it never waits."""
        if not actions or self.tape.device == "cpu":
            return self.plain
        costs, more = self.costs, [0.0] * (len(self.starts) + 1)
        times = self.hooked
        for storage, action in actions.items():
            saved = self.saved[storage]
            more[saved.packs[0].position + 1] += costs.left if action == OFFLOAD else costs.compared
            if action == OFFLOAD:
                for span in fetched.get(storage, ()):
                    more[span.begin + 1] += costs.came
            elif times is self.hooked and saved.chain is not None and saved.chain.calls:
                times = list(map(float.__add__, self.hooked, self.watching))
        for position, storage in recomputed:
            chain = self.saved[storage].chain
            assert chain is not None
            more[position + 1] += costs.started + costs.recomputed * len(chain.ops)
        return list(map(float.__add__, times, itertools.accumulate(more)))

    def _held(self, actions: Actions) -> dict[int, int]:
        """Returns how many operators have run when nobody needs a storage any more, also not to recompute another one."""
        held = self.read.copy()
        for saved in reversed(self.candidates):
            if actions.get(saved.storage) == EVICT:
                for source, _ in self._sources(saved.storage):
                    held[source] = max(held.get(source, 0), held[saved.storage])
        return held

    def _backward(self, choice: _Choice) -> tuple[dict[int, list[int]], dict[int, list[_Span]], list[tuple[int, int]]]:
        """Follows what backward reads.

        Returns the drops, the spans in which absent storages are present, and the positions at which storages are recomputed.
        """
        actions = choice.actions
        touches, touched = self._touches(actions)
        drops: dict[int, list[int]] = {}
        spans: dict[int, list[_Span]] = {}
        present: dict[int, int] = {}
        recomputed: list[tuple[int, int]] = []

        def fetch(wanted: int, position: int) -> None:
            waiting = [wanted]
            while waiting:
                storage = waiting[-1]
                if storage in present or storage not in actions:
                    waiting.pop()
                    continue
                if actions[storage] == EVICT:
                    absent = [v[0] for v in self._sources(storage) if v[0] not in present and v[0] in actions]
                    if absent:
                        waiting += absent
                        continue
                    recomputed.append((position, storage))
                present[storage] = position
                came.append(storage)
                waiting.pop()

        for storage, position in self.reads:
            came: list[int] = []
            fetch(storage, position)
            for resident in dict.fromkeys((*came, *touched[position])):
                if resident not in present:
                    continue
                later = bisect.bisect_right(touches[resident], position)
                if later == len(touches[resident]) or _goes(choice, resident, position, touches[resident][later]):
                    end = self.until[position] if resident == storage else self.ends[position]
                    spans.setdefault(resident, []).append(_Span(present.pop(resident), end, position))
                    drops.setdefault(position, []).append(resident)
        return drops, spans, recomputed

    def _touches(self, actions: Actions) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Returns where each storage is read if nothing is dropped before its last use, and which storages each position reads."""
        touches: dict[int, list[int]] = {s: [] for s in self.saved}
        touched: dict[int, list[int]] = {}
        present: set[int] = set()
        for first, position in self.reads:
            waiting = touched[position] = [first]
            for storage in waiting:
                touches[storage].append(position)
                if storage not in present:
                    present.add(storage)
                    if actions.get(storage) == EVICT:
                        waiting += [value[0] for value in self._sources(storage)]
        return touches, touched

    def _sources(self, storage: int) -> list[tuple[int, int]]:
        chain = self.saved[storage].chain
        assert chain is not None
        return chain.sources

    def _copies_out(self, choice: _Choice, memory: list[int], fetched: dict[int, list[_Span]], budget: int,
                    times: list[float]) -> tuple[dict[int, list[int]], float]:
        """Adds to `memory` the storages that wait for their copy; returns the releases by position, and the seconds of stalls.

        Unless the choice has the moments, a storage goes when its copy is done, and where the memory would be over the budget, the
        step waits for the oldest copies. A storage that is still there at its first use stays.
        """
        actions, moments = choice.actions, choice.moments
        releases: dict[int, list[int]] = {}
        coming = [s for s in reversed(self.candidates) if actions.get(s.storage) == OFFLOAD]
        queue: dict[int, float] = {}  # storages, the oldest first, and when their copies are done
        joining: dict[int, list[int]] = {}  # by position: storages that the program lets go of there
        needed: dict[int, list[int]] = {}  # by position: storages that are used first there
        done = stall = 0.0
        waiting = 0  # bytes
        for at in range(coming[-1].packs[0].position if coming else 0, len(self.starts)):
            if not coming and not queue:
                break
            for storage in joining.pop(at, ()):
                waiting += self.bytes[storage]
            for storage in needed.pop(at, ()):
                if queue.pop(storage, None) is not None:
                    waiting -= self.bytes[storage]
            now = times[at] + stall
            limit = budget if self.runs[at] else sys.maxsize
            if queue and (moments is not None or memory[at] + waiting > limit or next(iter(queue.values())) <= now):
                for storage, end in list(queue.items()):
                    if moments is not None:
                        if at < moments.releases.get(storage, len(self.starts)):
                            continue
                    elif end > now and memory[at] + waiting <= limit:
                        break
                    if self.dying[storage][1] <= at:
                        stall += max(0.0, end - now)
                        now = max(now, end)
                        waiting -= self.bytes[storage]
                        releases.setdefault(at, []).append(storage)
                        del queue[storage]
            memory[at] += waiting if self.runs[at] else 0
            while coming and coming[-1].packs[0].position == at:
                storage = coming.pop().storage
                done = max(done, now) + self.bytes[storage] / self.tape.bandwidth
                queue[storage] = done
                use = fetched[storage][0].begin
                needed.setdefault(use, []).append(storage)
                if self.dying[storage][0] < use:
                    joining.setdefault(max(self.dying[storage][0], at + 1), []).append(storage)
        return releases, stall

    def _copies_in(self, moments: Moments | None, memory: list[int], needs: list[tuple[int, int, int]], budget: int,
                   times: list[float]) -> tuple[dict[int, list[int]], float]:
        """Chooses when copies to the device start, and adds them to `memory`; returns them by position, and the seconds of stalls.

        moments: have the positions; None: copies start as late as they can without a stall, or as soon as there is room.
        needs: positions at which storages must be back, the storages, and the positions from which on they are absent.
        """
        starts: list[tuple[int, int, int]] = []
        wanted = float("inf")
        for begin, storage, absent in sorted(needs, reverse=True):
            size = self.bytes[storage]
            wanted = min(wanted, times[begin]) - size / self.tape.bandwidth
            earliest = max(absent, self.packed[bisect.bisect_left(self.packed, begin) - 1] + 1)
            position = begin
            if moments is not None:
                position = max(earliest, next((at for at in moments.prefetches.get(storage, ()) if absent <= at < begin), begin))
            else:
                earliest = max(earliest, min(bisect.bisect_right(times, wanted) - 1, begin))
                while position > earliest and memory[position - 1] <= budget - size:
                    position -= 1
            memory[position:begin] = [m + size for m in memory[position:begin]]
            starts.append((position, begin, storage))
        late = done = 0.0
        prefetches: dict[int, list[int]] = {}
        for position, begin, storage in sorted(starts):
            prefetches.setdefault(position, []).append(storage)
            done = max(done, times[position] + late) + self.bytes[storage] / self.tape.bandwidth
            late += max(0.0, done - times[begin] - late)
        return prefetches, late


def _goes(choice: _Choice, storage: int, position: int, later: int) -> bool:
    """Returns whether a storage is absent between two uses."""
    if choice.moments is None:
        return later - position > choice.near
    return any(position <= at < later for at in choice.moments.drops.get(storage, ()))


def assemble(tape: Tape, actions: Actions, budget: int, moments: Moments | None = None) -> Plan:
    """Returns the plan that carries out the given actions at the given moments.

    Without moments, it is the fastest plan within the budget, else the one that exceeds it least. REQUIRES: the tape allows the
    actions.
    """
    search = _Search(_Model(tape, 0), budget, ())
    for near in NEAR if moments is None else NEAR[:1]:
        search.consider(_Choice({s: a for s, a in actions.items() if a != KEEP}, near, moments))
    return _plan(search.model, search.best, budget)


def movable_storages(tape: Tape) -> list[Saved]:
    """Returns the storages that plans may move."""
    return _Model(tape, least_size(tape)).candidates


def least_size(tape: Tape) -> int:
    """Returns the bytes of the smallest storage that is worth a plan."""
    return SMALLEST if tape.device == "cuda" else 0


def least_memory(tape: Tape) -> list[int]:
    """Returns the bytes that any plan of the tape takes at least during each operator, and after the last one."""
    return _Model(tape, least_size(tape)).least()


def make_plan(tape: Tape, memory: Union[str, int], *, moves: tuple[str, ...] = (OFFLOAD, EVICT), smallest: int | None = None,
              policy: str | None = None, unforeseen: int = 0) -> Plan:
    """Returns a plan whose predicted peak is at most `memory`: bytes, or a text such as "8GiB".

    moves: what may happen to storages.
    smallest: bytes of the smallest storage that is worth it, by default 1 MiB on a GPU and 0 on a CPU.
    policy: a policy of the program `spillway` that chooses ("joint:effort=2"). By default, on a GPU, it is `POLICY`, if the program
        is there; on a CPU nobody is asked.
    unforeseen: bytes that steps take, and that the tape does not show.

    Two choices compete: the policy's, and the best of a row which recomputes a share of what can be recomputed, the cheapest first, and
    offloads as few of the rest as bring the peak down, the first saved first. Changes to single storages then improve both, and
    further changes the better one, which is the plan. If a policy is named, only its choice is improved.

    Raises `SpillwayError`, which names the floor, if it finds no such plan, and `ProgramError` if a named policy cannot be asked.
    """
    budget = parse_bytes(memory)
    model = _Model(tape, least_size(tape) if smallest is None else smallest, unforeseen)
    if budget < model.floor().bytes:
        raise SpillwayError(model.floor().sentence(budget))
    aim = max(model.floor().bytes, budget - budget // MARGIN) if tape.device == "cuda" else budget
    searches, most = [_Search(model, aim, moves)], _most_tried(tape)
    if not searches[0].fits():
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(_chosen, model, aim, moves, policy)
            if policy is None:
                searches[0].shares(max(COARSE, min(SHARES, most // PER_SHARE)))
                searches[0].improve(most // 3)
            chosen = asked.result()
        if chosen:
            searches.append(_Search(model, aim, moves))
            searches[-1].consider(_Choice(chosen, NEAR[0]))
            searches[-1].improve(most // 3)
    best = min(searches, key=lambda search: search.score)
    best.improve(most)
    plan = best.plan()
    plan.budget = budget
    return plan


def _most_tried(tape: Tape) -> int:
    return max(FEWEST_TRIED, min(MOST_TRIED, TRIED // len(tape.ops)))


def learn_host_speed(plan: Plan, took: float) -> bool:
    """Corrects the host's time on the tape if a forward under the plan took the host much less, or much more, than predicted.

    took: the least seconds of a forward; infinity if none was timed.

    Returns whether it did: then another plan may be better.
    """
    if not plan.forward_seconds or took == float("inf") or AGREES <= took / plan.forward_seconds <= 1 / AGREES:
        return False
    plan.tape.host_share *= took / plan.forward_seconds
    return True


def make_plans(tape: Tape, budgets: list[int], moves: tuple[str, ...]) -> Iterator[Plan | NoPlanError]:
    """Makes a plan for each of many budgets, in less time for each than `make_plan`; an error stands where none was found.

    Budgets are best sorted, because each plan begins with what is best for the budget before.
    """
    model = _Model(tape, least_size(tape))
    best = _Choice({}, NEAR[0])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = [pool.submit(_chosen, model, budget, moves, None) for budget in budgets]
        for budget, chosen in zip(budgets, asked):
            search = _Search(model, budget, moves)
            if not search.fits():
                search.consider(best)
                search.consider(_Choice(chosen.result(), NEAR[0]))
                search.shares(COARSE)
            search.improve(_most_tried(tape) // 3)
            best = search.best
            try:
                yield search.plan()
            except NoPlanError as error:
                yield error


def _chosen(model: _Model, budget: int, moves: tuple[str, ...], policy: str | None) -> Actions:
    """Returns what a policy of the program chooses; nothing if none is named and none can be asked."""
    if policy is None and (model.tape.device == "cpu" or set(moves) != {OFFLOAD, EVICT}):
        return {}
    try:
        chosen = ask(model.tape, model.candidates, budget - model.unforeseen, policy or POLICY)
    except ProgramError as error:
        if policy is not None:
            raise
        log.warning("spillway: the program was not asked for a plan: %s", error)
        return {}
    return {storage: action for storage, action in chosen.items() if action in moves}


def _plan(model: _Model, choice: _Choice, budget: int) -> Plan:
    outcome, eager = model.simulate(choice, budget), model.simulate(_Choice({}, NEAR[0]), budget)
    return Plan(budget, choice.actions, outcome.releases, outcome.prefetches,
                outcome.drops, max(outcome.memory), max(eager.memory), outcome.seconds, eager.seconds, model.floor(), model.tape,
                outcome.host, outcome.forward, unforeseen=model.unforeseen)


class _Search:
    """The best choice that was considered: the least over the budget, then the fastest, then the one with the fewest actions."""

    def __init__(self, model: _Model, budget: int, moves: tuple[str, ...]) -> None:
        self.model = model
        self.budget = budget
        self.moves = moves
        self.best = _Choice({}, NEAR[0])
        self.score: tuple[float, float, float] = (float("inf"), 0.0, 0.0)
        self.most = self.peak = 0  # of its memory in bytes, and the position
        self.turn = self.unchanged = 0  # storages whose changes were considered, and how many of them since one helped

    def consider(self, choice: _Choice) -> float:
        """Returns the bytes that the choice is over the budget, summed over positions."""
        outcome = self.model.simulate(choice, self.budget)
        score = outcome.excess(self.budget), outcome.seconds, len(choice.actions)
        if score < self.score:
            self.best, self.score = choice, score
            self.most = max(outcome.memory)
            self.peak = outcome.memory.index(self.most) - 1
        return score[0]

    def fits(self) -> bool:
        """Returns whether a step without a plan is within the budget."""
        return self.consider(_Choice({}, NEAR[0])) == 0

    def plan(self) -> Plan:
        """Returns the best plan. Raises `NoPlanError` if it is over the budget."""
        plan = _plan(self.model, self.best, self.budget)
        if self.score[0]:
            raise NoPlanError(f"no plan within {self.budget:,} bytes was found (the best has {plan.peak:,}; the floor is "
                              f"{plan.floor.bytes:,}): give a larger budget", plan.peak)
        return plan

    def shares(self, parts: int) -> None:
        """Considers to recompute shares of what can be recomputed, and to offload as few of the rest as help."""
        cheapest = sorted((s for s in self.model.candidates if s.chain is not None and EVICT in self.moves),
                          key=lambda s: (_price(s), s.storage))
        for share in range(parts + 1):
            recomputed: Actions = {s.storage: EVICT for s in cheapest[:len(cheapest) * share // parts]}
            rest = [s.storage for s in self.model.candidates if s.storage not in recomputed and OFFLOAD in self.moves]
            low, high = 0, len(rest)
            least = self.consider(_Choice(recomputed | dict.fromkeys(rest, OFFLOAD), NEAR[0]))
            while low < high:  # the fewest that leave no more over the budget than all do
                middle = (low + high) // 2
                excess = self.consider(_Choice(recomputed | dict.fromkeys(rest[:middle], OFFLOAD), NEAR[0]))
                low, high = (low, middle) if excess <= least else (middle + 1, high)

    def _exceeds(self, storage: int) -> bool:
        """Returns whether the best choice is over the budget if the storage stays, which it has given up where the memory peaks."""
        absent = self.model.dying[storage][1] <= self.peak < self.model.uses[storage][0]
        return absent and self.most + self.model.bytes[storage] > self.budget

    def improve(self, most: int) -> None:
        """Considers changes to single storages, the largest first, until none of them helps or enough were tried.

        The next call goes on where this one ended.
        """
        largest = sorted(self.model.candidates, key=lambda s: -s.bytes)
        for near in NEAR[1:] if not self.turn else ():
            self.consider(_Choice(self.best.actions, near))
        while self.best.actions and self.unchanged < len(largest) and most > 0:
            saved, before = largest[self.turn % len(largest)], self.score
            for action in (KEEP, *self.moves):
                if (self.best.actions.get(saved.storage, KEEP) == action or action == EVICT and saved.chain is None
                        or action == KEEP and self._exceeds(saved.storage)):
                    continue
                changed = {**self.best.actions, saved.storage: action}
                if action == KEEP:
                    del changed[saved.storage]
                self.consider(_Choice(changed, self.best.near))
                most -= 1
            self.turn += 1
            self.unchanged = self.unchanged + 1 if self.score == before else 0


def _price(saved: Saved) -> float:
    """Returns the seconds that recomputing costs for each byte."""
    assert saved.chain is not None
    return saved.chain.seconds / saved.bytes

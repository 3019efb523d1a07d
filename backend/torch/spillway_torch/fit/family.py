"""Plans for steps of one structure whose inputs have other sizes from step to step."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable

from ..base.device import Device, Host, host_share
from ..base.errors import NoPlanError, SpillwayError
from ..base.ranks import local_ranks
from ..plan.plan import Moments, Plan, in_unit, useful_moves
from ..plan.planner import learn_host_speed, make_ladder, make_plan
from ..run.executor import Executor, HostMemory, _Run
from ..tape.scaled import name_of, scaled
from ..tape.tape import Shapes, Tape, Update
from .host import host_costs
from .report import TOLD
from .states import UNPLANNED, Bytes

log = logging.getLogger("spillway_torch")

GRID = 1.12  # a plan is made for sizes that are up to so many times as large as those of the step that needs it
FAR = 1.3  # a step gets a plan of its own if those that there are are for more than so many times its size
FITS = 0.98  # a step whose peak is at most this share of the budget runs as it is
MOST_RUNGS = 12
MOST_CORRECTIONS = 2  # plans for less, where steps took more than predicted; more of them follow where they grow
SHORT = 0.01, 0.02, 0.04  # of the budget, by which plans are made for less, one after the other, if the guard moves tensors in planned steps
CHECKED = 2  # the first steps of a plan, whose memory is compared with the budget; memory settles in them


@dataclasses.dataclass(eq=False)
class Rung:
    """A plan for steps whose inputs are at most as large as `shapes`."""

    shapes: Shapes
    plan: Plan
    executor: Executor
    checks: int = 0  # steps whose memory was compared with the budget


class Family:
    """The plans for the steps of one structure, which one of them showed when it was recorded.

    Under a plan for larger inputs, a step takes no more memory than those would, because each of its storages is at most as large.
    """

    def __init__(self, tape: Tape, shapes: Shapes, used: list[int], gradients: int, states: Bytes, device: Device, budget: int,
                 policy: str | None, hosts: list[Host]) -> None:
        """gradients, states: the bytes that existed before the recorded step."""
        self.tape, self.shapes, self.used, self.gradients, self.states = tape, shapes, used, gradients, states
        self.later: Shapes = ()  # those of `shapes` that a step shows after its begin: the most so far
        if tape.captured:
            tape.host_share = 0.0  # a graph does not wait for the host
        else:
            tape.costs = host_costs(device.type)
        self.updates: list[Update] = []  # those of the optimizer whose state can be on the host
        self.most = 0  # bytes of the recorded step, in which all that was saved went to the host
        self.more = (0, 0)  # bytes of state and of gradients before a forward that plans add to the recorded ones
        self.complete = False  # no more of them will come
        self.unforeseen = 0  # bytes that planned steps took and that the recording does not show
        self.unguarded = 0  # bytes of steps without a plan that the guard does not know of
        self._corrections = 0
        self._shortages = 0  # plans that were made for less, because memory was short
        self.corrected = 0  # bytes of the last step that was over the budget, for which a plan was made
        self.deviated = False  # the last step under a plan of it had other operators
        self.settled = False  # another recording had the same operators: a further one would, too
        self.rungs: list[Rung] = []
        self.update_seconds = 0.0
        self._device, self._budget, self._policy = device, budget, policy
        self._waits = device.type == "cpu"  # for plans; elsewhere they are made in the background, and the budget is guarded meanwhile
        self._host = HostMemory(hosts)
        self._refused: dict[Shapes, str] = {}  # why there is no plan
        self._guards: dict[Shapes, Executor] = {}  # for steps without a plan
        self._deviations: list[str] = []  # theirs
        self._since: float | None = None  # when a plan that is made in the background was begun
        self._renewed = 0  # how often all plans were made anew
        self._made: collections.deque[tuple[int, Callable[[], None]]] = collections.deque()  # in the background: then, and what follows

    @property
    def is_settled(self) -> bool:
        """Returns whether no plan is being made, and none has to be for what exists besides."""
        return self.complete and self._since is None

    def close(self) -> None:
        """Gives the memory of the host back."""
        self.rungs.clear()
        self._guards.clear()
        self._host.close()

    def lacks(self) -> str:
        """Returns why steps run without a plan."""
        if self._since is not None:
            return f"a plan has been searched for in the background for {time.perf_counter() - self._since:.1f} s"
        otherwise = "those that there are were for smaller inputs" if self.rungs else "none was searched for"
        return next(reversed(self._refused.values()), otherwise)

    def add_later(self, shapes: Shapes) -> None:
        """Notes the shapes that a step had after its begin; later steps are expected to have no larger ones."""
        if list(map(len, shapes)) == list(map(len, self.later)):
            self.later = tuple(tuple(map(max, one, other)) for one, other in zip(shapes, self.later))

    def leave_out(self, over: int) -> None:
        """Guards steps without a plan for less, because one took so many bytes too many."""
        self.unguarded += over
        self._guards.clear()
        log.info("spillway: a step without a plan took %s over the budget, which are left out now", in_unit(over, self._budget))

    def add_update(self, seconds: float) -> None:
        """Notes how long the update takes."""
        self.update_seconds = seconds
        for rung in self.rungs:
            rung.plan.add_update(seconds)
        if self.rungs:
            log.info("spillway: the update takes %.1f ms; with it, a step is predicted to take %.1f ms", seconds * 1e3,
                     self.rungs[0].plan.seconds * 1e3)

    def correct(self, rung: Rung, run: _Run, most: int) -> bool:
        """Plans again where that helps a step that was carried out as planned; returns False if that was done often enough.

        most: bytes that it took.
        """
        if self._corrections >= MOST_CORRECTIONS and most <= TOLD * self.corrected:
            return False
        before, over = self.unforeseen, most - self._budget
        if over > 0:
            self.corrected = most
            self.unforeseen += most - rung.plan.peak
            why = f"a step took {most:,} bytes, {over:,} over the budget, which are left out now"
        elif rung.checks == CHECKED and learn_host_speed(rung.plan, rung.executor.forward_seconds, rung.executor.host_was_ahead()):
            self.tape.host_share = rung.plan.tape.host_share
            why = f"the host takes {self.tape.host_share:.0%} of its recorded time"
        elif rung.checks == CHECKED and run.guarded and (short := min(run.guarded, self._next_shortage())):
            self._shortages += 1
            self.unforeseen += short
            why = f"{short:,} bytes are left out, because memory was short in planned steps"
        else:
            return True
        self._corrections += 1
        try:
            self.plan_for(rung.shapes, why, renew=self.unforeseen > before)
        except SpillwayError as error:
            self.unforeseen = before
            if over > 0:
                log.warning("spillway: a step took %s bytes, %s over the budget, and no other plan takes less: %s", f"{most:,}",
                            f"{over:,}", error)
        return True

    def plan_for_less(self, rung: Rung) -> bool:
        """Makes other plans, because memory was short in a graph; returns whether there are some, or may be."""
        short = self._next_shortage()
        if not short:
            return False
        self._shortages += 1
        self.unforeseen += short
        try:
            self.plan_for(rung.shapes, f"{short:,} bytes are left out, because memory was short in a graph", renew=True)
        except SpillwayError:
            self.unforeseen -= short
            return False
        return True

    def _next_shortage(self) -> int:
        """Returns the bytes by which the next plan is made for less if memory is short; 0 if that was done often enough."""
        return int(SHORT[self._shortages] * self._budget) if self._shortages < len(SHORT) else 0

    def plan_for(self, shapes: Shapes, why: str, renew: bool = False) -> None:
        """Makes a plan, which replaces the one for the same shapes, or all if it should `renew` them.

        Raises `SpillwayError` if the steps do not fit. If the plan is made in the background, `run_for` raises it later.
        """
        if self._waits:
            began = time.perf_counter()
            self._add(self._plans(shapes, renew), renew, f"{why}, planned in {time.perf_counter() - began:.1f} s")
        elif self._since is None or renew:
            self._renewed += renew
            self._since = time.perf_counter()
            threading.Thread(target=self._work, args=(shapes, why, renew, self._renewed), name="spillway plan", daemon=True).start()

    def run_for(self, shapes: Shapes) -> tuple[Rung | None, Executor]:
        """Returns the plan for a step, and its executor.

        If there is no plan, the executor carries out the tightest one as far as it goes, and guards the budget. Raises `SpillwayError`
        if the recorded step does not fit.
        """
        self._collect()
        rung = self._covering(shapes)
        if (rung is None or _ratio(rung.shapes, shapes) > FAR) and shapes not in self._refused and len(self.rungs) < MOST_RUNGS:
            wanted = self._rounded(shapes)
            if (rung is None or _ratio(rung.shapes, wanted) > GRID) and self._since is None:
                if not self._keep_all(wanted):
                    self._try(*dict.fromkeys((wanted, shapes)))
                rung = self._covering(shapes)
        if rung is not None:
            return rung, rung.executor
        wanted = self._rounded(shapes)
        if wanted not in self._guards:
            if len(self._guards) == MOST_RUNGS:
                self._guards.clear()
            tightest = max(self.rungs, key=lambda r: _ratio(r.shapes, shapes), default=None)
            plan = tightest.plan if tightest is not None else Plan(0, {}, Moments(), 0, 0, 0.0, 0.0, None, self.tape)
            plan = dataclasses.replace(plan, budget=int(UNPLANNED * self._budget) - self.unguarded)
            self._guards[wanted] = Executor(plan, self._device, self._host, self._scaled(wanted))
            self._guards[wanted].deviations = self._deviations
        return None, self._guards[wanted]

    def _covering(self, shapes: Shapes) -> Rung | None:
        """Returns the plan for the smallest inputs that are at least as large; None if there is none."""
        fitting = [rung for rung in self.rungs if _covers(rung.shapes, shapes)]
        return min(fitting, key=lambda rung: _ratio(rung.shapes, shapes), default=None)

    def _plans(self, shapes: Shapes, renew: bool) -> dict[Shapes, Plan]:
        """Returns a plan for these shapes, and before others those that `renew` replaces. Raises `SpillwayError` if there is none for them."""
        all_ = [shapes, *(rung.shapes for rung in self.rungs if renew and rung.shapes != shapes)]
        moves = useful_moves(self.tape.device)
        made: dict[Shapes, Plan | SpillwayError] = {}
        if len(all_) == 1:
            try:
                made[shapes] = make_plan(self._scaled(shapes), self._budget, moves=moves, policy=self._policy, unforeseen=self.unforeseen)
            except SpillwayError as error:
                made[shapes] = error.with_traceback(None)
        else:
            largest = functools.reduce(lambda a, b: tuple(tuple(map(max, one, other)) for one, other in zip(a, b)), all_)
            named = {name_of(s): s for s in all_}
            plans = make_ladder(self._scaled(largest), {name: self._scaled(s) for name, s in named.items()}, self._budget, moves=moves,
                                policy=self._policy, unforeseen=self.unforeseen)
            made = {s: plans.pop(name) for name, s in named.items()}
        found = {s: plan for s, plan in made.items() if isinstance(plan, Plan)}
        refused = made.pop(shapes)
        try:
            if isinstance(refused, SpillwayError):
                raise refused
        finally:
            del refused  # the error has this frame, and that those of the program
        for plan in found.values():
            plan.add_update(self.update_seconds)
        return found

    def _scaled(self, shapes: Shapes) -> Tape:
        """Returns the recorded step with inputs of other shapes, and with what exists besides."""
        tape, (state, gradients) = scaled(self.tape, self.shapes, shapes), self.more
        tape.updates = self.updates
        # The step adds to the gradients where it made others while it was recorded.
        grown = [now - was for now, was in zip(tape.used, self.tape.used)]
        tape.used = [used + more + state + max(0, gradients - made) for used, more, made in zip(self.used, grown, tape.gradients())]
        return tape

    def _add(self, plans: dict[Shapes, Plan], renew: bool, why: str) -> None:
        self._guards.clear()
        shared = (f"; of the host, a rank may take {in_unit(host_share(), self._budget)}, as one of {local_ranks()}"
                  if local_ranks() > 1 and self._device.in_use() >= 0 else "")
        if renew:
            self.rungs.clear()
            self._refused.clear()
        for shapes, plan in plans.items():
            rung = Rung(shapes, plan, Executor(plan, self._device, self._host))
            others = [other for other in self.rungs if other.shapes != shapes]
            self.rungs = sorted((*others, rung), key=lambda r: _ratio(r.shapes, self.shapes))
            log.log(logging.INFO if len(self.rungs) == 1 else logging.DEBUG, "spillway: %s: %s%s, from the next step on", why, plan.summary(),
                    shared)

    def _keep_all(self, shapes: Shapes) -> bool:
        """Adds the plan that moves nothing for inputs with which the step fits as it is; returns whether it does."""
        if not self.rungs:
            return False
        tape = self._scaled(shapes)
        peak, like = tape.eager_peak() + self.unforeseen, self.rungs[0].plan
        if peak > FITS * self._budget:
            return False
        plan = Plan(self._budget, {}, Moments(), peak, peak, sum(op.seconds for op in tape.ops), like.eager_seconds, None, tape,
                    unforeseen=self.unforeseen)
        self._add({shapes: plan}, False, f"inputs of {text_of(shapes)} fit")
        return True

    def _rounded(self, shapes: Shapes) -> Shapes:
        """Returns shapes that are a little larger, so that few plans serve many sizes; those of the recorded step if they are near."""
        def up(size: int, recorded: int) -> int:
            if size == recorded or recorded == 0:
                return size
            return math.floor(recorded * GRID ** math.ceil(math.log(size / recorded, GRID) - 1e-9)) if size else 0

        grown = tuple(tuple(max(size, up(size, was)) for size, was in zip(new, old)) for new, old in zip(shapes, self.shapes))
        return grown if _covers(grown, shapes) else shapes

    def _try(self, *wanted: Shapes) -> None:
        """Plans for the first shapes for which there is a plan."""
        for shapes in wanted:
            try:
                self.plan_for(shapes, f"inputs of {text_of(shapes)} came")
                return
            except SpillwayError as error:
                self._refused[shapes] = str(error)
        self._warn(wanted[-1])

    def _work(self, shapes: Shapes, why: str, renew: bool, renewed: int) -> None:
        """Plans in the background."""
        began = time.perf_counter()
        try:
            plans = self._plans(shapes, renew)
            why = f"{why}, planned in the background in {time.perf_counter() - began:.1f} s"
            made = functools.partial(self._add, plans, renew, why)
        except Exception as error:  # pylint: disable=broad-except
            made = functools.partial(self._refuse, shapes, error)
        self._made.append((renewed, made))

    def _collect(self) -> None:
        """Takes over what was made in the background. Raises `SpillwayError` if the recorded step does not fit."""
        while self._made:
            renewed, take = self._made.popleft()
            if renewed == self._renewed:  # else it was made for less than exists now
                self._since = None
                take()

    def _refuse(self, shapes: Shapes, error: Exception) -> None:
        """Notes that there is no plan. Raises what no step can do without, and errors of the planner itself."""
        self._refused[shapes] = str(error)
        if not isinstance(error, SpillwayError) or shapes == self.shapes and not self.rungs and not isinstance(error, NoPlanError):
            raise error
        self._warn(shapes)

    def _warn(self, shapes: Shapes) -> None:
        more = "" if self._device.in_use() >= 0 else " and may take more than the budget"
        log.warning("spillway: there is no plan for inputs of %s, and such steps run under the plan that saves most%s: %s", text_of(shapes),
                    more, self._refused[shapes])


def _covers(larger: Shapes, smaller: Shapes) -> bool:
    return all(a >= b for a, b in zip(itertools.chain(*larger), itertools.chain(*smaller)))


def _ratio(one: Shapes, other: Shapes) -> float:
    """Returns how many times as large the sizes are that differ, together."""
    return math.prod({(a, b): a / max(b, 1) for a, b in zip(itertools.chain(*one), itertools.chain(*other)) if a != b}.values())


def text_of(shapes: Shapes) -> str:
    """Returns shapes for people, each once."""
    return ", ".join(str(list(shape)) for shape in dict.fromkeys(shapes)) or "no shape"

"""The graphs that torch.compile finds in a step: what they take, how they are cut, and what of that follows from sizes that vary."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional, Protocol

import torch
from torch import fx

from ..base.device import Device
from ..base.errors import SpillwayError
from ..base.target import Target
from ..compiled import pytorch
from ..compiled.code import outcome_of
from ..compiled.joint import ALWAYS, Joint, Outcome, Room
from ..compiled.planning import SMALLEST, Choice, choose, default_saved
from ..compiled.rates import rates_of

log = logging.getLogger("spillway_torch")

SOON = 1.03  # times as long as another choice, one that is compiled already may take
GROWTHS = (1.5, 1.2, 1.05, 1.0)  # times the largest sizes so far, for which a step is planned anew


class Runner(Protocol):
    """What runs graphs in the place of the compiler."""

    def run(self, graph: Graph, given: Sequence[Any]) -> Any:
        """Runs a graph. Returns its results."""


@dataclasses.dataclass(eq=False)
class Compiled:
    """A graph as it was compiled under a choice."""

    choice: Choice
    run: Callable[..., Any]
    codes: list[pytorch.Code]
    symbols: pytorch.Symbols  # of the sizes that vary
    code: Optional[Outcome] = None  # what it takes by its code, if that is known


@dataclasses.dataclass(eq=False)
class Graph:
    """A graph of the program. It runs with what autograd saves on the host until it has a plan.

    Where its sizes vary, all numbers are for certain `sizes`, which `resize` changes.
    """

    owner: weakref.ref[Runner]
    module: fx.GraphModule
    settings: dict[str, Any]  # of Inductor
    device: str
    inputs: list[Any] = dataclasses.field(default_factory=list)  # of the first call, without data
    autocasts: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # those that the first call ran under
    joint: Optional[Joint] = None
    default: set[int] = dataclasses.field(default_factory=set)  # what PyTorch saves
    plain: Outcome = Outcome(0, 0, 0, 0.0)  # what it takes then
    choice: Optional[Choice] = None
    compiled: Any = None
    code: Optional[Outcome] = None  # as in `Compiled`
    places: list[int] = dataclasses.field(default_factory=list)  # of inputs that are sizes which vary
    known: list[Compiled] = dataclasses.field(default_factory=list)
    sizes: tuple[int, ...] = ()
    symbols: pytorch.Symbols = pytorch.Symbols()  # of the sizes in the joint graph
    step: Optional[SizedStep] = None  # the step that it is planned in, if sizes vary in it
    first: Optional[Callable[..., Any]] = None  # what runs in steps that are recorded
    refused: bool = False  # PyTorch cuts it, whatever the budget

    def __call__(self, *given: Any) -> Any:
        owner = self.owner()
        return self.module(*given) if owner is None else owner.run(self, given)

    def look(self, gm: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> None:
        """Learns the joint graph, as the compiler shows it."""
        options.pop("compiler", None)
        pytorch.simplified(gm)
        if pytorch.own_marks(gm):
            raise SpillwayError("the program says itself what is recomputed (torch.utils.checkpoint)")
        backward = pytorch.default_halves(pytorch.copied(gm), inputs, compiler="inductor", **options)[1]
        self.joint = self._joint(gm, options, self.symbols)
        self.default = default_saved(self.joint, pytorch.saved_by(backward))
        self.plain = self.joint.outcome(self.default)

    def _joint(self, gm: fx.GraphModule, options: dict[str, Any], symbols: pytorch.Symbols) -> Joint:
        pytorch.refresh_views(gm)
        return Joint(gm, options["num_fwd_outputs"], options.get("static_lifetime_input_indices") or (), rates_of(self.device),
                     symbols.numbers(self.sizes))

    def sizes_of(self, given: Sequence[Any]) -> tuple[int, ...]:
        """Returns the sizes that vary, of what a call is given."""
        return tuple(given[at] for at in self.places)

    def resize(self, sizes: tuple[int, ...], device: Device) -> None:
        """Takes the numbers of the graph for other sizes."""
        if sizes == self.sizes:
            return
        self.sizes, self.first = sizes, None
        if self.joint is None:
            return
        joint = self.joint = self.joint.at_sizes(self.symbols.numbers(sizes))

        def anew(choice: Choice) -> Choice:
            return dataclasses.replace(choice, outcome=joint.outcome(set(choice.keep), choice.near))
        self.plain = joint.outcome(self.default)
        for made in self.known:
            made.choice = anew(made.choice)
            made.code = outcome_of(made.codes, device, made.choice.outcome.seconds, made.symbols.numbers(sizes))
        self.choice = anew(self.choice) if self.choice is not None else None
        self.code = self.made.code if self.compiled is not None else None

    @property
    def beyond(self) -> Room:
        """The bytes that code took beside what `Joint.outcome` said, in what is saved, in forward, and in backward."""
        pairs = [(made.code, made.choice.outcome) for made in self.known if made.code is not None]
        return Room(max((code.saved - said.saved for code, said in pairs), default=0),
                    max((code.forward - said.forward for code, said in pairs), default=0),
                    max((code.backward - said.backward for code, said in pairs), default=0))

    @property
    def outcome(self) -> Outcome:
        """What the graph takes under its choice: by its code, once it is compiled."""
        if self.code is not None or self.choice is None:
            return self.code or Outcome(0, 0, 0, 0.0)
        said = self.choice.outcome
        more = self.beyond
        return Outcome(said.saved + more.saved, said.forward + more.forward, said.backward + more.backward, said.seconds)

    @property
    def lost(self) -> float:
        """The seconds by which it is slower than as PyTorch cuts it."""
        return self.outcome.seconds - self.plain.seconds

    def plan(self, room: Room, target: Target) -> None:
        """Chooses what is saved within a room."""
        assert self.joint is not None
        rest = Room(*(max(1, size - more) for size, more in zip(dataclasses.astuple(room), dataclasses.astuple(self.beyond))))
        best = choose(self.joint, self.default, rest, target, SMALLEST if self.device == "cuda" else 0)
        known = [made for made in self.known if made.symbols.hold(self.sizes)]
        there = (made.choice for made in known if (made.code.over(room) if made.code else made.choice.outcome.over(rest)) <= 0
                 and made.choice.outcome.seconds <= SOON * best.outcome.seconds)
        self.choice, self.compiled, self.code = min(there, key=lambda choice: choice.outcome.seconds, default=best), None, None
        for made in known:
            if self.key(made.choice) == self.key(self.choice):
                self.use(made)

    def use(self, made: Compiled) -> None:
        """Takes the graph as it was compiled."""
        self.choice, self.compiled, self.code = made.choice, made.run, made.code

    def compile(self, device: Device) -> None:
        """Compiles the graph as it was chosen, and reads from its code what it takes."""
        assert self.choice is not None
        inputs, symbols = self._inputs()
        said, codes = self.choice.outcome, list[pytorch.Code]()
        with self._autocasts():
            run = pytorch.compiled(pytorch.copied(self.module), inputs, self.settings, functools.partial(self.split, symbols=symbols),
                                   self.key(), codes)
        code = outcome_of(codes, device, said.seconds, symbols.numbers(self.sizes))
        log.debug("spillway: the code of a graph takes %s, where %s were expected", code, said)
        self.known.append(Compiled(self.choice, run, codes, symbols, code))
        self.use(self.known[-1])

    @property
    def made(self) -> Compiled:
        """The graph as it is compiled now."""
        return next(made for made in self.known if made.run is self.compiled)

    def unplanned(self, given: Sequence[Any]) -> Callable[..., Any]:
        """Returns the graph as PyTorch cuts it, compiled for what a call is given if it was not."""
        sizes = self.sizes_of(given)
        if min(sizes, default=pytorch.LEAST_SIZE) < pytorch.LEAST_SIZE:
            return self.module
        made = next((made for made in self.known if made.symbols.hold(sizes)), None)
        if made is None:
            self.sizes = sizes
            inputs, symbols = self._inputs() if sizes else (given, pytorch.Symbols())
            run = pytorch.compiled(pytorch.copied(self.module), inputs, self.settings, self.split, self.key())
            made = Compiled(Choice(frozenset(), ALWAYS, Outcome(0, 0, 0, 0.0)), run, [], symbols)
            self.known.append(made)
        return made.run

    def _inputs(self) -> tuple[list[Any], pytorch.Symbols]:
        """Returns inputs without data, and the symbols of the sizes that vary."""
        return pytorch.with_symbols(self.module, self.sizes) if self.sizes else (self.inputs, pytorch.Symbols())

    def trace(self) -> None:
        """Finds the joint graph."""
        inputs, self.symbols = self._inputs()
        with self._autocasts():
            pytorch.joint_graph(self.module, inputs, self.settings, self.look)

    @contextlib.contextmanager
    def _autocasts(self) -> Iterator[None]:
        with contextlib.ExitStack() as under:
            for autocast in self.autocasts:
                under.enter_context(torch.autocast(**autocast))
            yield

    def key(self, choice: Optional[Choice] = None) -> str:
        """Returns what tells the partition of the graph's choice, or of another one, from others of the same joint graph."""
        choice = choice or self.choice
        if choice is None or choice.keep == self.default or self.joint is None:
            return "as PyTorch cuts it"
        saved = [self.joint.nodes[at].name for at in sorted(choice.keep)]
        return hashlib.sha256(f"{choice.near} {' '.join(saved)}".encode()).hexdigest()

    def split(self, gm: fx.GraphModule, inputs: Sequence[Any], symbols: pytorch.Symbols = pytorch.Symbols(),
              **options: Any) -> pytorch.Halves:
        """Cuts a joint graph as planned; as PyTorch does where nothing has to be planned."""
        planned = self.joint
        if self.choice is None or self.choice.keep == self.default or planned is None:
            return pytorch.default_halves(gm, inputs, **options)
        pytorch.simplified(gm)
        joint = self._joint(gm, options, symbols)
        if [n.name for n in joint.nodes] != [n.name for n in planned.nodes]:
            log.warning("spillway: a graph was traced in another way than when it was planned, and is cut as PyTorch cuts it")
            return pytorch.default_halves(gm, inputs, **options)
        saved, order = joint.cut(set(self.choice.keep), self.choice.near)
        given = pytorch.copied(gm)
        try:
            return pytorch.halves(gm, [joint.nodes[at] for at in saved], [joint.nodes[at] for at in order], options["num_fwd_outputs"])
        except Exception as error:  # pylint: disable=broad-except
            log.warning("spillway: a graph could not be cut as planned, and is cut as PyTorch cuts it: %s", error)
            return pytorch.default_halves(given, inputs, **options)


@dataclasses.dataclass(eq=False)
class Call:
    """A call of a graph in a step that is recorded. Bytes are those in use outside the graphs."""

    graph: Graph
    forward: int
    backward: Optional[int] = None  # None until its backward begins
    after: int = 0  # the most between its forward and what follows, another forward or a backward
    forward_varies: int = 0  # those of `forward` and `after` that may follow from sizes that vary
    after_varies: int = 0
    backward_varies: int = 0

    def grown(self, times: float) -> Call:
        """Returns the call with so many times the bytes that vary."""
        def more(varies: int) -> int:
            return math.ceil((times - 1) * varies)
        return dataclasses.replace(self, forward=self.forward + more(self.forward_varies), after=self.after + more(self.after_varies),
                                   backward=None if self.backward is None else self.backward + more(self.backward_varies))


def moments(events: list[tuple[Call, bool]]) -> Iterator[tuple[Optional[Graph], bool, int, list[Graph]]]:
    """Gives, for each forward and backward of a step, and for what follows a forward: the graph that runs, None for no graph; whether it
    is a backward; bytes outside the graphs; and the graphs of the other calls whose saved values exist."""
    held: list[Call] = []
    for call, backward in events:
        if backward and call in held:
            held.remove(call)
        outside = call.backward if backward else call.forward
        assert outside is not None
        yield call.graph, backward, outside, [other.graph for other in held]
        if not backward:
            held.append(call)
            yield None, False, call.after, [other.graph for other in held]


def most(graph: Optional[Graph], backward: bool) -> int:
    """Returns the most bytes that a graph takes in forward, or in backward."""
    if graph is None:
        return 0
    return graph.outcome.backward if backward else graph.outcome.forward


Sizes = dict[Graph, tuple[int, ...]]  # those of the graphs of a step that vary


def at_most(some: Sizes, others: Sizes) -> bool:
    """Returns whether no size exceeds that of the others."""
    return all(size <= other for graph, sizes in some.items() for size, other in zip(sizes, others[graph]))


@dataclasses.dataclass(eq=False)
class Cut:
    """The graphs of a step as they were compiled for some sizes."""

    made: dict[Graph, Compiled]
    more: int  # bytes that the step has more than when it was recorded
    fits: list[Sizes] = dataclasses.field(default_factory=list)  # with which the step stays in the budget; so it does with smaller ones
    exceeds: list[Sizes] = dataclasses.field(default_factory=list)
    taken: dict[Graph, tuple[Outcome, Outcome]] = dataclasses.field(default_factory=dict)  # with the last of `fits`; as PyTorch cuts it

    def holds(self, sizes: Sizes) -> bool:
        """Returns whether the compiled graphs can run with some sizes."""
        return all(made.symbols.hold(sizes[graph]) for graph, made in self.made.items())

    def note(self, sizes: Sizes, fits: bool) -> None:
        """Notes whether the step stays in the budget with some sizes, which its graphs have now."""
        if fits:
            self.fits = [*(fit for fit in self.fits if not at_most(fit, sizes)), sizes]
            self.taken = {graph: (graph.outcome, graph.plain) for graph in self.made}
        else:
            self.exceeds.append(sizes)

    def knows(self, sizes: Sizes) -> Optional[bool]:
        """Returns whether the step stays in the budget with some sizes, as far as that is known."""
        if any(at_most(sizes, fit) for fit in self.fits):
            return True
        return False if any(at_most(exceeds, sizes) for exceeds in self.exceeds) else None


class SizedStep:
    """A recorded step with graphs whose sizes vary, and how they are cut for the sizes that came so far, smaller ones first."""

    def __init__(self, events: list[tuple[Call, bool]], graphs: list[Graph], state: int, outside: int) -> None:
        """state, outside: bytes of the optimizers' state when the step was recorded, and those of them on the host."""
        self.graphs, self.state, self.outside = graphs, state, outside
        self.cuts: list[Cut] = []
        self.exceeds: list[Sizes] = []  # for which no plan was found
        self.calls = [call for call, backward in events if not backward]
        self._events = [(self.calls.index(call), backward) for call, backward in events]
        self._recorded = {graph: graph.sizes for graph in graphs}
        self._inputs = {graph: _input_bytes(graph) for graph in graphs}
        self._seen: dict[tuple[Graph, tuple[int, ...]], Sizes] = {}

    def expected(self, graph: Graph, sizes: tuple[int, ...]) -> Sizes:
        """Returns the sizes of all graphs that go with those of one: sizes that were equal in the recorded step are equal, others grow
        as much as the one that grows most."""
        if (graph, sizes) in self._seen:
            return self._seen[graph, sizes]
        pairs = sorted(zip(self._recorded[graph], sizes))
        equal, times = dict(pairs), max((new / old for old, new in pairs), default=1.0)
        found = {other: tuple(equal.get(size, math.ceil(times * size)) for size in of) for other, of in self._recorded.items()}
        return {**found, graph: sizes}

    def add(self, cut: Cut, sizes: Sizes) -> None:
        """Adds a cut for sizes that the graphs have now."""
        cut.note(sizes, True)
        self.cuts.append(cut)

    def note(self, first: tuple[Graph, tuple[int, ...]], sizes: Sizes) -> None:
        """Notes the sizes of all graphs in a step that begins with a call of one."""
        self._seen[first] = sizes

    def largest(self) -> Sizes:
        """Returns the largest sizes that fit so far, each for itself."""
        return {graph: tuple(map(max, zip(*(fit[graph] for cut in self.cuts for fit in cut.fits)))) for graph in self.graphs}

    def larger(self, sizes: Sizes, exact: Sizes) -> list[Sizes]:
        """Returns sizes for which the step may be planned so that some fit: larger ones first, so that not each new size needs a plan, and
        then those that are `exact`."""
        largest = self.largest()
        found = [{graph: tuple(size if size <= known else max(size, math.ceil(growth * known)) for size, known in zip(of, largest[graph]))
                  for graph, of in sizes.items()} for growth in GROWTHS]
        return [one for at, one in enumerate([*found, exact]) if one not in found[:at]]

    def events(self) -> list[tuple[Call, bool]]:
        """Returns the events of the step with the sizes that its graphs have now: what varies outside of them grows as their inputs do."""
        times = max((new / old for graph in self.graphs for new, old in zip(_input_bytes(graph), self._inputs[graph]) if old), default=1.0)
        calls = [call.grown(max(1.0, times)) for call in self.calls]
        return [(calls[at], backward) for at, backward in self._events]

    def held(self, made: int) -> list[int]:
        """Returns the numbers of the calls whose saved values exist when so many calls were made. A step with more calls than the recorded
        one is taken to repeat it, as where gradients add up."""
        found: list[int] = []
        before = made - made % len(self.calls)
        for at, backward in self._events:
            if not backward and before + at == made:
                break
            if backward:
                found.remove(before + at)
            else:
                found.append(before + at)
        return found


def _input_bytes(graph: Graph) -> list[int]:
    joint = graph.joint
    return [] if joint is None else [size for size, given, early in zip(joint.size, joint.is_input, joint.forward) if given and early]


@dataclasses.dataclass
class Sized:
    """A step that runs: the sizes that are expected of its graphs, and how they are cut."""

    step: SizedStep
    first: tuple[Graph, tuple[int, ...]]
    sizes: Sizes
    cut: Optional[Cut] = None
    calls: list[Optional[Compiled]] = dataclasses.field(default_factory=list)  # what has run; None without a plan

    @property
    def held(self) -> list[tuple[Graph, Optional[Compiled]]]:
        """The graphs of the calls whose saved values exist, as they ran."""
        calls = self.step.calls
        return [(calls[at % len(calls)].graph, self.calls[at]) for at in self.step.held(len(self.calls))]

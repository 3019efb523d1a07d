"""Makes the step on which the policies of the program `spillway` decide, from one that was recorded with its values.

Each storage that a plan may move is made by one operator: the chain that recomputes it, with the values that autograd saved before as
its inputs. They alone are saved tensors of the step, so no policy moves others.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable
from typing import Any

import torch

from ..base.ledger import BEFORE, Storage
from ..step.data import Again, Measured, Operand, Operator
from ..step.data import Saved as SavedTensor
from ..step.step import Step
from ..tape.chains import Saved
from ..tape.tape import Tape, fingerprint
from ..tape.weights import LATE, Moment, RecordedWeight, Visit, order_of, visits, window_of
from .clock import host_clock
from .plan import EVICT, OFFLOAD

# Operators that stand for copies of a weight, and for what reads it.
FETCH, READ, LEAVE = "spillway::fetch", "spillway::read", "spillway::leave"
IN, OUT = 1, 2  # the lanes on which weights come and go
LEAST = 0.1  # of the link, that weights leave to other copies
READ_SECONDS = 60e-6  # of the host, for a weight that comes and goes
BESIDE = 0.03  # of the time of a copy: by so much, operators of a GPU take longer beside it


def step_name(tape: Tape) -> str:
    """Returns a name that tapes share if the same plans fit them."""
    return f"step-{fingerprint(tape)}"


def planned_step(tape: Tape, candidates: list[Saved], moves: tuple[str, ...] = (OFFLOAD, EVICT), weights: Collection[str] = ()) -> Step:
    """Returns the step of a tape in which the storages of `candidates` may move, in the ways of `moves`.

    weights: names of weights that are on the host. An operator on a lane of its own fetches each of them, and one on another lane takes it
        back if an update has written it.
    """
    return _Planned(tape, candidates, weights).step(moves)


class _Planned:
    def __init__(self, tape: Tape, candidates: list[Saved], weights: Collection[str]) -> None:
        self.tape = tape
        self.hosted = {weight.storage: weight for weight in tape.weights if weight.name in weights}
        self.order = order_of(list(self.hosted.values()))
        self.movable = {s.storage: s for s in candidates}
        self.made = {max(s.chain.ops): s for s in candidates if s.chain is not None}  # by the last operator of the chain
        self.inside: dict[int, set[int]] = {}  # by operator: the storages that chains with it recompute
        for saved in self.made.values():
            assert saved.chain is not None
            for at in saved.chain.ops:
                self.inside.setdefault(at, set()).add(saved.storage)
        self.absorbed = self._absorbed()
        self.home = list(range(len(tape.ops)))  # by operator: the one that stands for it
        for at in range(len(tape.ops) - 2, -1, -1):
            self.home[at] = self.home[at + 1] if at in self.absorbed else at
        self.operators: list[Operator] = []
        self.numbers: list[int] = []  # theirs on the tape
        self.storages: dict[int, Storage] = {}
        self.used: dict[int, int] = {}  # the last operator that uses a storage
        self.updated: set[int] = set()  # gradients that an update is the last to use
        self.coming: dict[Moment, list[tuple[int, Visit]]] = {}  # behind an operator or an update: what is fetched, and its storage
        self.wanted: dict[Moment, list[tuple[int, Visit]]] = {}  # what it reads of that
        self.leaving: list[tuple[int, int]] = []  # copies to the host: their operators, and the storages that they read
        self.ended: list[int] = []  # those of them for which the next update waits
        self.host_ns = round(1e9 * READ_SECONDS) if tape.device == "cuda" else 0
        self.fetched = range(max(tape.storages) + 1, max(tape.storages) + 1)  # these storages
        self.forward: dict[int, int] = {}  # the last operator that uses a storage which autograd saved before the program lets go of it
        self.dies = {s: tape.storages[s].died for s in {pack.value[0] for pack in tape.packs} if tape.storages[s].born >= 0}
        self.dies |= {s: saved.dies for s, saved in self.movable.items()}

    def _absorbed(self) -> set[int]:
        """Returns the operators of chains whose results nobody else reads."""
        readers: dict[int, set[int]] = {}
        for at, op in enumerate(self.tape.ops):
            for storage in op.reads:
                readers.setdefault(storage, set()).add(at)
        absorbed: set[int] = set()
        for saved in self.made.values():
            assert saved.chain is not None
            ops = set(saved.chain.ops)
            last = max(ops)
            for at in ops - {last}:
                made = {*self.tape.ops[at].fresh, *(v[0] for v in self.tape.ops[at].written)} - {saved.storage}
                if all(readers.get(s, set()) <= ops | {at} and s not in self.movable for s in made):
                    absorbed.add(at)
        return absorbed

    def step(self, moves: tuple[str, ...]) -> Step:
        tape = self.tape
        for visit in visits(list(self.hosted.values()), self.home.__getitem__):
            number = self.fetched.stop
            self.fetched = range(self.fetched.start, number + 1)
            self.coming.setdefault(visit.fetched, []).append((number, visit))
            for moment in visit.reads:
                self.wanted.setdefault(moment, []).append((number, visit))
        self._add_operators()
        by_number = {at: op for at, op in zip(self.numbers, self.operators)  # of two for one operator, the second
                     if op.phase != "update" and not op.lane and op.name != READ}
        self._hold(by_number)
        for unpack in tape.unpacks:  # backward takes it before the next operator, and may hold it until others have run
            if unpack.pack.value[0] in self.movable and unpack.op <= self.numbers[-1]:
                taken = self._place(unpack.op)
                self._read(self.operators[taken], unpack.pack.value[0])
                self._read(self.operators[max(taken, self._place(unpack.last) - 1)], unpack.pack.value[0])
        rest = self._rest()
        unused = min(rest[at] for at in by_number)
        for at, op in by_number.items():
            op.scratch = rest[at] - unused
        started, before = host_clock(tape, tape.costs), 0.0
        for op, at in zip(self.operators, self.numbers):
            if op.phase == "update" or op.lane:
                continue
            op.host_ns, before = round(1e9 * (started[at + 1] - before)), started[at + 1]
        for op, at in zip(self.operators, self.numbers):
            if op.phase == "update":  # the state of the update before leaves meanwhile
                before = rest[at] - tape.ops[at].scratch if at < len(tape.ops) else rest[at]
                op.scratch = max(0, before - unused) + tape.updates[(op.number or 0) - len(tape.ops)].scratch
        saved = [SavedTensor(self._operand(of.storage), self._place(pack.op),
                             [self._place(tape.unpacks[at].op) for at in of.unpacks if tape.unpacks[at].pack is pack])
                 for of in self.movable.values() for pack in of.packs]
        self._set_layers(saved)
        for at, op in enumerate(self.operators):
            for storage in (operand.storage for operand in (*op.inputs, *op.outputs)):
                storage.died = None if self._outlives(storage) else at + 1
        self.storages[-1] = Storage(-1, unused)
        return Step(step_name(tape), 1, tape.target, self.operators, self.storages, saved, blocks=tape.blocks,
                    measured=Measured(tape.name), hooks=self._hooks(moves))

    def _place(self, at: int) -> int:
        """Returns how many operators of the step stand for those of the tape that ran before `at`."""
        return bisect.bisect_left(self.numbers, at)

    def _add_operators(self) -> None:
        costs, skipped = self.tape.costs, 0.0  # seconds of operators that belong to the next chain
        updates: dict[int, list[int]] = {}  # by operator
        for number, update in enumerate(self.tape.updates):
            updates.setdefault(len(self.tape.ops) if update.at is None else update.at, []).append(number)
        self._add_fetches((-1, 0))
        for at, op in enumerate(self.tape.ops):
            if at in self.absorbed:
                skipped += op.seconds
                self._add_fetches((at, 0))
                continue
            inside = self.inside.get(at, ())
            others = [s for s in dict.fromkeys([*op.fresh, *(v[0] for v in op.written)]) if s not in inside]
            saved = self.made.get(at)
            seconds, skipped = op.seconds + skipped, 0.0
            if saved is not None:
                chain = saved.chain
                assert chain is not None
                host = costs.started + costs.recomputed * len(chain.ops)
                weights = [self.hosted[storage] for storage in chain.held if storage in self.hosted]
                again = self._copying(sum(weight.bytes for weight in weights if not weight.trained or not self._comes(weight, saved)))
                hosted = sum(self.tape.rounded(weight.storage) for weight in weights)
                held = (storage for storage in chain.held if storage not in self.tape.gathered and storage not in self.hosted)
                self._add(at, [*(value[0] for value in chain.sources), *held], [saved.storage], seconds,
                          Again(round(1e9 * (chain.seconds + again)), round(1e9 * host), chain.temporary + hosted))
            if saved is None or others:
                inputs = [s for s in op.reads if s not in inside and s not in self.hosted and
                          (s in self.storages or self.tape.storages[s].born < 0)]
                self._add(at, inputs, others, 0.0 if saved is not None else seconds)
            self._add_reads(at, saved is not None and not others)
            self._add_leaves((at, 0))
            self._add_fetches((at, 0))
            for number in updates.get(at, ()):
                self._add_update((at, 1 + number))
        self._add_fetches((LATE, 0))
        for number in updates.get(len(self.tape.ops), ()):
            self._add_update((LATE, 1 + number))

    def _comes(self, weight: RecordedWeight, saved: Saved) -> bool:
        """Returns whether a weight comes soon after something was recomputed from it, such as for its update, so that one copy serves."""
        first = bisect.bisect_left(self.order, (self.tape.unpacks[saved.unpacks[0]].op, 0), key=lambda read: read[0])
        room = window_of(sum(other.bytes for other in self.hosted.values()))
        for other in dict.fromkeys(other for _, other in itertools.islice(self.order, first, None)):
            if other is weight or room < 0:
                return room >= 0
            room -= other.bytes
        return False

    def _copying(self, size: int) -> float:
        """Returns the seconds for a copy of so many bytes from the host."""
        return size / self.tape.bandwidth if size else 0.0

    def _share(self) -> float:
        """Returns the part of the link that the copies of weights leave to others.

        Where trained ones are on the host, state is, too. It comes while backward runs, and takes the link at least for its own copies.
        """
        late = any(weight.trained for weight in self.hosted.values())
        fetched = (self.operators[self.storages[number].born] for number in self.fetched)
        weights = sum(op.time_ns / 1e9 for op in fetched if not late or op.phase != "forward")
        others = sum(op.seconds for op in self.tape.ops if not late or op.backward)
        if late:
            updates = self.tape.updates
            others = max(others + sum(update.seconds for update in updates), self._copying(sum(update.bytes for update in updates)))
        return max(LEAST, others / (others + weights)) if weights else 1.0

    def _add_fetches(self, moment: Moment) -> None:
        """Adds the copies of weights that start behind an operator or an update. The memory of the last one that left may be theirs."""
        for number, visit in self.coming.get(moment, ()):
            size = self.tape.rounded(visit.weight.storage)
            self.storages[number] = Storage(number, size, len(self.operators), dtype=torch.uint8)
            self._add_copy(FETCH, visit, moment, [], [self._whole(number)])

    def _add_leaves(self, moment: Moment) -> None:
        """Adds the copies to the host of weights that an operator or an update was the last to use.

        Their memory is given up once enough others have left, as `HostedWeights` does it.
        """
        last, most = self.operators[-1], window_of(sum(weight.bytes for weight in self.hosted.values()))
        for number, visit in self.wanted.get(moment, ()):
            if not visit.written or visit.reads[-1] != moment:
                continue
            self.leaving.append((len(self.operators), number))
            self._add_copy(LEAVE, visit, moment, [self._whole(number)], [])
            while len(self.leaving) > 1 and sum(self.storages[left].size for _, left in self.leaving) > most:
                copy, left = self.leaving.pop(0)
                self.ended.append(copy)
                self._read(last, left)

    def _add_copy(self, name: str, visit: Visit, moment: Moment, inputs: list[Operand], outputs: list[Operand]) -> None:
        """Adds the copy of a weight behind the last operator or update."""
        before = next((number for number in range(len(self.operators) - 1, -1, -1) if not self.operators[number].lane), None)
        at = min(moment[0], len(self.tape.ops))
        of = self.tape.ops[min(max(at, 0), len(self.tape.ops) - 1)]
        self.numbers.append(at)
        self.operators.append(Operator(
            name, visit.weight.name, of.phase, inputs, outputs, 0, False, len(self.operators),
            time_ns=round(1e9 * self._copying(visit.weight.bytes)), host_ns=self.host_ns, number=max(at, 0), lane=IN if outputs else OUT,
            after=() if before is None else (before,)))

    def _add_reads(self, at: int, again: bool) -> None:
        """Has the operator that was added last read weights that were fetched, or, if it can run `again`, another one behind it."""
        wanted = [number for number, _ in self.wanted.get((at, 0), ())]
        if wanted and again:
            op = self.tape.ops[at]
            self.operators[-1].after = tuple(self.storages[number].born for number in wanted)
            self.numbers.append(at)
            self.operators.append(Operator(READ, op.module, op.phase, [], [], 0, False, len(self.operators), number=at))
        for number in wanted:
            self._read(self.operators[-1], number)

    def _add_update(self, moment: Moment) -> None:
        """Adds an update, and the copies of weights behind it."""
        at, number = min(moment[0], len(self.tape.ops)), moment[1] - 1
        update = self.tape.updates[number]
        storage = self.storages[-2 - number] = Storage(-2 - number, update.bytes, BEFORE, dtype=torch.uint8)
        state = Operand(storage, 0, storage.size, (), torch.uint8)
        gradients = [self._operand(s) for s in update.gradients if s in self.storages]
        for gradient in gradients:
            self.used[gradient.storage.number] = at
            self.updated.add(gradient.storage.number)
        weights = [self._whole(of) for of, _ in self.wanted.get(moment, ())]
        self.numbers.append(at)
        self.operators.append(Operator("optimizer::update", "", "update", [state, *weights, *gradients], [state, *weights], 0, False,
                                       len(self.operators), time_ns=round(1e9 * update.seconds), host_ns=round(1e9 * update.host),
                                       number=len(self.tape.ops) + number, after=tuple(self.ended)))
        self.ended.clear()
        self._add_leaves(moment)
        self._add_fetches(moment)

    def _add(self, at: int, inputs: list[int], outputs: list[int], seconds: float, again: Again | None = None) -> None:
        for storage in (*inputs, *outputs):
            self.used[storage] = at
            dies = self.dies.get(storage)
            if dies is not None and at <= self.home[max(dies, 1) - 1]:
                self.forward[storage] = at
        op = self.tape.ops[at]
        self.numbers.append(at)
        self.operators.append(Operator(op.name, op.module, op.phase, list(map(self._operand, inputs)), list(map(self._operand, outputs)),
                                       0, False, len(self.operators), time_ns=round(seconds * 1e9), number=at, again=again))

    def _operand(self, number: int) -> Operand:
        """Returns a storage, as a whole. It is born with the next operator if it was not seen before."""
        if number not in self.storages:
            born = BEFORE if self.tape.storages[number].born < 0 else len(self.operators)
            self.storages[number] = Storage(number, self.tape.rounded(number), born, dtype=torch.uint8)
        return self._whole(number)

    def _whole(self, number: int) -> Operand:
        """Returns a storage of the step, as a whole."""
        return Operand(self.storages[number], 0, self.storages[number].size, (), torch.uint8)

    def _hold(self, ops: dict[int, Operator]) -> None:
        """Makes operators read storages that the program does not let go of before.

        Chains do not read them, because whoever repeats a chain does without them.
        """
        ordered = sorted(at for at, op in ops.items() if op.again is None)
        for storage, last in list(self.used.items()):
            movable = self.movable.get(storage)
            died = self.tape.storages[storage].died if movable is None else movable.dies
            last = self.forward.get(storage, last)
            if died is None or storage in self.movable and storage not in self.forward:
                continue
            holding = ordered[max(0, bisect.bisect_left(ordered, died) - 1)]
            if last < holding < died:
                self._read(ops[holding], storage)
                (self.used if movable is None else self.forward)[storage] = holding

    def _read(self, op: Operator, storage: int) -> None:
        if all(operand.storage.number != storage for operand in (*op.inputs, *op.outputs)):
            op.inputs.append(self._operand(storage))

    def _rest(self) -> list[int]:
        """Returns, by operator of the tape, and behind the last one, the recorded bytes that no storage of the step has."""
        used = [0] * len(self.tape.ops) + self.tape.used[-1:]
        for at, home in enumerate(self.home):
            used[home] = max(used[home], self.tape.used[at])
        gone = sum(map(self.tape.rounded, self.hosted))
        change = [0] * (len(self.tape.ops) + 2)
        for storage in self.storages.values():
            if storage.number in self.fetched:
                continue
            kept = storage.number in self.updated and self.tape.storages[storage.number].died is None
            stays = self._outlives(storage) or kept  # in the recorded step
            end = -1 if stays else self.forward.get(storage.number, self.used[storage.number]) + 1  # -1: behind all
            change[0 if storage.born == BEFORE else self.numbers[storage.born]] += storage.size
            change[end] -= storage.size
        return [max(0, most - gone - alive) for most, alive in zip(used, itertools.accumulate(change))]

    def _set_layers(self, saved: Iterable[SavedTensor]) -> None:
        """Gives each operator of backward the layer of the one that saved what backward took last.

        vDNN and others go by the layers of backward and by their types where they choose what to bring back.
        """
        savers = {at: tensor.packed for tensor in sorted(saved, key=lambda s: s.packed) for at in tensor.unpacked}
        layer: int | None = None
        for at, op in enumerate(self.operators):
            if op.phase == "backward":
                layer = self.operators[savers[at]].layer if at in savers else layer
                op.layer = op.layer if layer is None else layer

    def _outlives(self, storage: Storage) -> bool:
        """Returns whether a storage exists before and after the step."""
        return storage.born == BEFORE and (storage.number < -1 or self.tape.storages[storage.number].died is None)

    def _hooks(self, moves: tuple[str, ...]) -> dict[str, Any]:
        """Returns where the hooks of autograd run, and what they and the moves of storages cost the host."""
        tape, costs = self.tape, self.tape.costs
        last, read = tape.packs[-1].position, {unpack.position for unpack in tape.unpacks}
        places: list[list[int]] = []
        for position, at in enumerate(tape.positions):
            op = self._place(at)
            packed = position <= last and position not in read
            if not places or places[-1][0] != op or packed and places[-1][2]:
                places.append([op, 0, 0])
            places[-1][1 if packed else 2] += 1
        times = {OFFLOAD: {"offload_ns": costs.left, "prefetch_ns": costs.came}, EVICT: {"evict_ns": costs.compared}}
        if tape.updates:
            times["state"] = {"state_ns": costs.came}
        return {"places": places, "pack_ns": round(1e9 * costs.packed), "unpack_ns": round(1e9 * costs.unpacked),
                "moves": {name: round(1e9 * seconds) for move in (*moves, "state") for name, seconds in times.get(move, {}).items()},
                "copy_bytes_per_second": round(tape.bandwidth * self._share()), "beside_copy": BESIDE if tape.device == "cuda" else 0}

"""Makes the trace of a recorded step, on which the policies of the program `spillway` decide.

Each storage that a plan may move is made by one operator: the chain that recomputes it, with the values that autograd saved before as
its inputs. They alone are saved tensors of the trace, so no policy moves others.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

from ..step.format import op_form, recorded_form, saved_tensors, tensor_form, trace_form, type_of
from ..tape.chains import Saved
from ..tape.tape import Tape, fingerprint
from .clock import host_clock
from .plan import EVICT, OFFLOAD

BESIDE = 0.03  # of the time of a copy: by so much, operators of a GPU take longer beside it


def step_name(tape: Tape) -> str:
    """Returns a name that tapes share if the same plans fit them."""
    return f"step-{fingerprint(tape)}"


def storage_name(storage: int) -> str:
    """Returns the name of a storage of the tape."""
    return f"s{storage}"


def operator_of(op: str) -> int:
    """Returns the number of the operator of the tape that an op of the trace stands for."""
    return int(op.rpartition(".")[2])


def _layers(ops: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Gives each op of backward the layer of the op that saved what backward took last, and returns the layers.

    vDNN and others go by the layers of backward and by their types where they choose what to bring back.
    """
    savers = {at: tensor["packed"] for tensor in saved for at in tensor["unpacked"]}  # the last of those taken at one position
    layer = ""
    types: dict[str, str] = {}
    for at, op in enumerate(ops):
        if op["phase"] == "backward":
            layer = ops[savers[at]]["layer"] if at in savers else layer
            op["layer"] = layer or op["layer"]
        types.setdefault(op["layer"], op["type"])
    return [{"name": name, "type": type_} for name, type_ in types.items()]


class StepTrace:
    """The trace of a tape.

    candidates: the storages that may move.
    moves: what may happen to them.
    """

    def __init__(self, tape: Tape, candidates: list[Saved], moves: tuple[str, ...] = (OFFLOAD, EVICT)) -> None:
        self.tape = tape
        self.moves = moves
        self.movable = {s.storage: s for s in candidates}
        self.made = {max(s.chain.ops): s for s in candidates if s.chain is not None}  # by the last operator of the chain
        self.inside: dict[int, set[int]] = {}  # by operator: the storages that chains with it recompute
        for saved in self.made.values():
            assert saved.chain is not None
            for at in saved.chain.ops:
                self.inside.setdefault(at, set()).add(saved.storage)
        self.absorbed = self._absorbed()
        self.home = list(range(len(tape.ops)))  # by operator: the one with which an op of the trace ends that stands for it
        for at in range(len(tape.ops) - 2, -1, -1):
            self.home[at] = self.home[at + 1] if at in self.absorbed else at
        self.costs = tape.costs
        self.used: dict[int, int] = {}  # the last operator that uses a storage
        self.first: dict[int, int] = {}
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

    def object(self) -> dict[str, Any]:
        """Returns the trace (traces/FORMAT.md)."""
        ops, phases = [], self._phases()
        skipped = 0.0  # seconds of operators that belong to the next chain
        for at, op in enumerate(self.tape.ops):
            if at in self.absorbed:
                skipped += op.seconds
                continue
            others = [s for s in dict.fromkeys([*op.fresh, *(v[0] for v in op.written)]) if s not in self.inside.get(at, ())]
            saved = self.made.get(at)
            seconds, skipped = op.seconds + skipped, 0.0
            if saved is not None:
                ops.append(self._chain(at, saved, seconds))
            if saved is None or others:
                inputs = [s for s in op.reads if s not in self.inside.get(at, ())
                          and (s in self.first or self.tape.storages[s].born < 0)]
                ops.append(self._op(at, op.name, phases[at], inputs, others, 0.0 if saved is not None else seconds))
        numbers = [operator_of(op["name"]) for op in ops]
        by_index = {operator_of(o["name"]): o for o in ops}  # of two ops of one operator, the second
        self._hold(by_index)
        self._take(ops, numbers)
        rest = self._rest(by_index)
        unused = min(rest.values())
        for at, made in by_index.items():
            made["recorded"]["workspace"] = rest[at] - unused
        tensors = [self._tensor(s) for s in self.first]
        tensors.append(tensor_form("unused", "optimizer_state", (), unused))
        packs = self._saved(numbers)
        started, before = host_clock(self.tape, self.costs), 0.0
        for made, at in zip(ops, numbers):
            made["recorded"]["host_ns"], before = round(1e9 * (started[at + 1] - before)), started[at + 1]
        recording = {"device": self.tape.name, "step_ns": 0, "plain_step_ns": 0, "allocated": max(self.tape.used), "reserved": 0}
        return trace_form(step_name(self.tape), 1, True, recording, _layers(ops, packs), tensors, ops, packs, self._hooks(numbers))

    def _rest(self, ops: dict[int, dict[str, Any]]) -> dict[int, int]:
        """Returns, by operator, the recorded bytes that no tensor of the trace has."""
        used = [0] * len(self.tape.ops)
        for at, home in enumerate(self.home):
            used[home] = max(used[home], self.tape.used[at])
        change = [0] * (len(self.tape.ops) + 2)
        for storage, first in self.first.items():
            recorded = self.tape.storages[storage]
            last = self.forward.get(storage, self.used[storage])
            begin = 0 if recorded.born < 0 else first
            end = -1 if recorded.born < 0 and recorded.died is None else last + 1  # -1: after all
            change[begin] += self.tape.rounded(storage)
            change[end] -= self.tape.rounded(storage)
        alive = list(itertools.accumulate(change))
        return {at: max(0, used[at] - alive[at]) for at in ops}

    def _hooks(self, numbers: list[int]) -> dict[str, Any]:
        """Returns where the hooks of autograd run, and what they and the moves of storages cost the host."""
        tape, costs = self.tape, self.costs
        last, read = tape.packs[-1].position, {unpack.position for unpack in tape.unpacks}
        places: list[list[int]] = []
        for position, at in enumerate(tape.positions):
            op = bisect.bisect_left(numbers, at)
            packed = position <= last and position not in read
            if not places or places[-1][0] != op or packed and places[-1][2]:
                places.append([op, 0, 0])
            places[-1][1 if packed else 2] += 1
        moves = {OFFLOAD: {"offload_ns": costs.left, "prefetch_ns": costs.came}, EVICT: {"evict_ns": costs.compared}}
        return {"places": places, "pack_ns": round(1e9 * costs.packed), "unpack_ns": round(1e9 * costs.unpacked),
                "moves": {name: round(1e9 * seconds) for move in self.moves for name, seconds in moves[move].items()},
                "copy_bytes_per_second": round(tape.bandwidth), "beside_copy": BESIDE if tape.device == "cuda" else 0}

    def _saved(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Returns the saved tensors; `numbers` says to which operator of the tape each op of the trace belongs."""
        return saved_tensors((storage_name(saved.storage), bisect.bisect_left(numbers, pack.op),
                              [bisect.bisect_left(numbers, unpack.op) for unpack in map(self.tape.unpacks.__getitem__, saved.unpacks)
                               if unpack.pack is pack])
                             for saved in self.movable.values() for pack in saved.packs)

    def _phases(self) -> list[str]:
        backward = [at for at, op in enumerate(self.tape.ops) if op.backward]
        return ["backward" if op.backward else "update" if backward and at > backward[-1] else "forward"
                for at, op in enumerate(self.tape.ops)]

    def _chain(self, at: int, saved: Saved, seconds: float) -> dict[str, Any]:
        """Returns the op that makes a storage which can be recomputed."""
        assert saved.chain is not None
        inputs = [*(value[0] for value in saved.chain.sources), *saved.chain.held]
        made = self._op(at, "spillway::chain", "forward", inputs, [saved.storage], seconds)
        host = self.costs.started + self.costs.recomputed * len(saved.chain.ops)
        made["recorded"]["again"] = {"time_ns": round(1e9 * saved.chain.seconds), "host_ns": round(1e9 * host),
                                     "workspace": saved.chain.temporary}
        made["recomputable"] = True
        return made

    def _op(self, at: int, name: str, phase: str, inputs: list[int], written: list[int], seconds: float) -> dict[str, Any]:
        for storage in (*inputs, *written):
            self.first.setdefault(storage, at)
            self.used[storage] = at
            dies = self.dies.get(storage)
            if dies is not None and at <= self.home[max(dies, 1) - 1]:
                self.forward[storage] = at
        name = f"{name.split('::')[-1]}.{at}"
        made = op_form(name, name, type_of(self.tape.ops[at].packet), phase, 1, list(map(storage_name, inputs)),
                       list(map(storage_name, written)), name.rsplit(".", 1)[0])
        made["recorded"] = recorded_form(round(seconds * 1e9))
        return made

    def _hold(self, ops: dict[int, dict[str, Any]]) -> None:
        """Makes operators read storages that the program does not let go of before.

        Chains do not read them, because whoever repeats a chain does without them.
        """
        ordered = sorted(at for at, op in ops.items() if not op.get("recomputable"))
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

    def _take(self, ops: list[dict[str, Any]], numbers: list[int]) -> None:
        """Makes the operators before which backward takes storages read them."""
        for unpack in self.tape.unpacks:
            at = bisect.bisect_left(numbers, unpack.op)
            if unpack.pack.value[0] in self.movable and at < len(ops):
                self._read(ops[at], unpack.pack.value[0])

    @staticmethod
    def _read(op: dict[str, Any], storage: int) -> None:
        if storage_name(storage) not in (*op["inputs"], *op["outputs"]):
            op["inputs"].append(storage_name(storage))
            op["attributes"] = {"holds_x": 1}

    def _tensor(self, storage: int) -> dict[str, Any]:
        recorded = self.tape.storages[storage]
        size = self.tape.rounded(storage)
        before = recorded.born < 0
        kind = ("input" if recorded.died is not None else "parameter") if before else (
            "activation" if not self.tape.ops[self.first[storage]].backward else "gradient")
        return tensor_form(storage_name(storage), kind, (), size)

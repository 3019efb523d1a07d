"""Makes the trace of a recorded step, on which the policies of the program `spillway` decide.

Each storage that a plan may move is made by one operator: the chain that recomputes it, with the values that autograd saved before as
its inputs. They alone are saved tensors of the trace, so no policy moves others.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

import torch

from ..step.trace import saved_tensors, type_of
from ..tape.chains import Saved
from ..tape.tape import Tape, fingerprint
from .clock import hook_clock, host_clock


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
    """

    def __init__(self, tape: Tape, candidates: list[Saved]) -> None:
        self.tape = tape
        self.movable = {s.storage: s for s in candidates}
        self.made = {max(s.chain.ops): s for s in candidates if s.chain is not None}  # by the last operator of the chain
        self.inside: dict[int, set[int]] = {}  # by operator: the storages that chains with it recompute
        for saved in self.made.values():
            assert saved.chain is not None
            for at in saved.chain.ops:
                self.inside.setdefault(at, set()).add(saved.storage)
        self.absorbed = self._absorbed()
        self.used: dict[int, int] = {}  # the last operator that uses a storage
        self.first: dict[int, int] = {}

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
        change = [0] * (len(self.tape.ops) + 2)  # of the bytes that are alive
        for at, op in enumerate(self.tape.ops):
            if at in self.absorbed:
                continue
            others = [s for s in dict.fromkeys([*op.fresh, *(v[0] for v in op.written)]) if s not in self.inside.get(at, ())]
            saved = self.made.get(at)
            if saved is not None:
                ops.append(self._chain(at, saved))
            if saved is None or others:
                inputs = [s for s in op.reads if s not in self.inside.get(at, ())
                          and (s in self.first or self.tape.storages[s].born < 0)]
                ops.append(self._op(at, op.name, phases[at], inputs, others, 0.0 if at in self.inside else op.seconds))  # a chain counts it
        by_index = {operator_of(o["name"]): o for o in ops}  # of two ops of one operator, the second
        self._hold(by_index)
        for storage, first in self.first.items():
            recorded = self.tape.storages[storage]
            saved = self.movable.get(storage)
            last = self.used[storage] if saved is None else min(self.used[storage], (saved.dies or 1) - 1)
            begin = 0 if recorded.born < 0 else first
            end = -1 if recorded.born < 0 and recorded.died is None else last + 1  # -1: after all
            if begin <= last:
                change[begin] += self.tape.rounded(storage)
                change[end] -= self.tape.rounded(storage)
        alive = list(itertools.accumulate(change))
        rest = {at: max(0, self.tape.used[at] - alive[at]) for at in by_index}
        unused = min(rest.values())
        for at, made in by_index.items():
            made["recorded"]["workspace"] = max(made["recorded"]["workspace"], rest[at] - unused)
        tensors = [self._tensor(s) for s in self.first]
        tensors.append({"name": "unused", "kind": "optimizer_state", "shape": [unused], "size": unused, "dtype": "uint8"})
        packs = self._saved([operator_of(op["name"]) for op in ops])
        self._time_host(ops)
        name = step_name(self.tape)
        return {"format": "spillway-trace", "version": 6, "name": f"{name}:1", "network": name, "batch": 1, "preset": "recorded",
                "training": True, "recording": {"framework": f"PyTorch {torch.__version__}", "device": self.tape.name, "step_ns": 0,
                                                "plain_step_ns": 0, "allocated": max(self.tape.used), "reserved": 0},
                "layers": _layers(ops, packs), "tensors": tensors, "ops": ops, "saved": packs}

    def _time_host(self, ops: list[dict[str, Any]]) -> None:
        """Gives each op the time of the host since the op before, also in hooks."""
        costs = self.tape.costs
        started, hooks = host_clock(self.tape, costs), hook_clock(self.tape, costs)
        before = 0
        for op in ops:
            at = operator_of(op["name"])
            now = round(1e9 * (started[at + 1] + hooks[bisect.bisect_right(self.tape.positions, at)]))
            op["recorded"]["host_ns"], before = now - before, now

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

    def _chain(self, at: int, saved: Saved) -> dict[str, Any]:
        """Returns the op that makes a storage which can be recomputed."""
        assert saved.chain is not None
        inputs = [*(value[0] for value in saved.chain.sources), *saved.chain.parameters]
        made = self._op(at, "spillway::chain", "forward", inputs, [saved.storage], saved.chain.seconds)
        made["recorded"]["workspace"] = saved.chain.temporary
        made["recomputable"] = True
        return made

    def _op(self, at: int, name: str, phase: str, inputs: list[int], written: list[int], seconds: float) -> dict[str, Any]:
        for storage in (*inputs, *written):
            self.first.setdefault(storage, at)
            self.used[storage] = at
        name = f"{name.split('::')[-1]}.{at}"
        return {"name": name, "layer": name, "type": type_of(self.tape.ops[at].name.split("::")[-1]), "phase": phase, "batch": 1,
                "inputs": [storage_name(s) for s in inputs], "outputs": [storage_name(s) for s in written],
                "slots": [{"name": "op", "signature": name.rsplit(".", 1)[0], "flops": 0, "traffic": 0}],
                "recorded": {"time_ns": round(seconds * 1e9), "gap_ns": 0, "host_ns": 0, "workspace": 0}}

    def _hold(self, ops: dict[int, dict[str, Any]]) -> None:
        """Makes operators read storages that cannot be moved and that live until then.

        Chains do not read them, because whoever repeats a chain does without them.
        """
        ordered = sorted(at for at, op in ops.items() if not op.get("recomputable"))
        for storage, last in list(self.used.items()):
            recorded = self.tape.storages[storage]
            if storage in self.movable or recorded.died is None:
                continue
            holding = ordered[bisect.bisect_left(ordered, recorded.died) - 1]
            if last < holding < recorded.died:
                op = ops[holding]
                op["inputs"].append(storage_name(storage))
                op["attributes"] = {"holds_x": 1}
                self.used[storage] = holding

    def _tensor(self, storage: int) -> dict[str, Any]:
        recorded = self.tape.storages[storage]
        size = self.tape.rounded(storage)
        before = recorded.born < 0
        kind = ("input" if recorded.died is not None else "parameter") if before else (
            "activation" if not self.tape.ops[self.first[storage]].backward else "gradient")
        return {"name": storage_name(storage), "kind": kind, "shape": [size], "size": size, "dtype": "uint8"}

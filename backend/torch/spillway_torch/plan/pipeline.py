"""The step of a pipeline, from recordings of its stages: each waits for what another one sends."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from ..base.document import write_document
from ..base.errors import SpillwayError
from ..base.program import rows_of
from ..step.data import Collective, StepData
from ..step.trace import operator_of, to_trace

EXACT_NS = 1000  # times of stages that differ by less agree


@dataclasses.dataclass(frozen=True)
class StageRow:
    """The part of one process in the step of a pipeline. Memory is in bytes."""

    rank: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    iteration_ms: float  # with what it waits for
    alone_ms: float  # if all that it receives were there
    exposed_ms: float  # in which it communicates or waits for messages, and nothing else runs


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The answer of `simulate_pipeline`."""

    device: str
    stages: list[StageRow]  # by rank

    @property
    def iteration_ms(self) -> float:
        """The time of a step, which is that of the process that ends last."""
        return max(stage.iteration_ms for stage in self.stages)

    def text(self) -> str:
        """Returns a table for people."""
        gib, step = 1 << 30, self.iteration_ms
        return "\n".join([f"A step takes {step:.1f} ms on {self.device}. Sizes are in GiB.", "",
                          f"{'rank':>4} {'time ms':>9} {'alone ms':>9} {'bubble':>7} {'requested':>9} {'reserved':>8}",
                          *(f"{row.rank:4} {row.iteration_ms:9.1f} {row.alone_ms:9.1f} {1 - row.alone_ms / step:7.1%} "
                            f"{row.peak_requested_bytes / gib:9.2f} {row.peak_reserved_bytes / gib:8.2f}" for row in self.stages)])


def simulate_pipeline(stages: Mapping[int, StepData], device: str = "h100") -> Pipeline:
    """Returns what a step of a pipeline takes, with the times in which its stages wait for each other.

    stages: the recordings of one process for each stage, without a GPU, by their ranks. Their messages are those to each other.
    device: as `spillway run` takes it.

    All processes begin at once. A message is under way from the time when both its sender and its receiver have come to it; its sender
    waits for nobody. The stages are simulated in turn, until none of them receives anything earlier than it is sent.

    Raises `SpillwayError` if there is no recording, a message has no counterpart of equal size, or the stages wait for each other for ever, and `ProgramError`
    if the program `spillway` is missing or refuses the device.
    """
    if not stages:
        raise SpillwayError("there is no recording; give that of each stage by its rank")
    sent = _matched(stages)
    with tempfile.TemporaryDirectory() as folder:
        ranks = sorted(stages)
        runs = {rank: _Stage(to_trace(stages[rank]), os.path.join(folder, f"{rank}.json"), device) for rank in ranks}
        alone = {rank: runs[rank].run() for rank in ranks}
        rows = dict(alone)
        for sweep in itertools.count():
            changed = False
            for rank in ranks[::-1] if sweep % 2 else ranks:
                if runs[rank].wait_for({number: runs[source].begun[send] for number, (source, send) in sent[rank].items()}):
                    rows[rank], changed = runs[rank].run(), True
            if not changed:
                break
            if sweep > sum(map(len, sent.values())):
                raise SpillwayError(f"the stages of ranks {ranks} wait for each other for ever; record all with one schedule")
    return Pipeline(device, [StageRow(rank, rows[rank]["peak_requested_bytes"], rows[rank]["peak_reserved_bytes"],
                                      rows[rank]["iteration_ms"], alone[rank]["iteration_ms"], rows[rank]["exposed_ms"])
                             for rank in ranks])


def _matched(stages: Mapping[int, StepData]) -> dict[int, dict[int, tuple[int, int]]]:
    """Returns by rank and number of a receive the rank and the number of its send. Messages between two processes keep their order."""
    found: dict[tuple[str, int, int], list[tuple[int, Collective]]] = {}
    for rank, step in stages.items():
        for number, operator in enumerate(step.operators):
            message = operator.collective
            if message is None or message.kind not in ("send", "receive"):
                continue
            peers = [other for other in message.ranks if other != rank]
            if len(peers) != 1 or rank not in message.ranks or peers[0] not in stages:
                raise SpillwayError(f"{message.kind}.{number} of rank {rank} is between ranks {list(message.ranks)}, but the recordings "
                                    f"are of ranks {sorted(stages)}; give that of each stage by its rank")
            ends = (rank, peers[0]) if message.kind == "send" else (peers[0], rank)
            found.setdefault((message.kind, *ends), []).append((number, message))
    matched: dict[int, dict[int, tuple[int, int]]] = {rank: {} for rank in stages}
    for source, target in sorted({key[1:] for key in found}):
        sends, receives = (found.get((kind, source, target), []) for kind in ("send", "receive"))
        if [message.bytes for _, message in sends] != [message.bytes for _, message in receives]:
            raise SpillwayError(f"rank {source} sends {len(sends)} messages of {sum(m.bytes for _, m in sends)} bytes to rank {target}, "
                                f"which receives {len(receives)} of {sum(m.bytes for _, m in receives)}; record both with the same "
                                "schedule and sizes")
        matched[target].update({number: (source, send) for (number, _), (send, _) in zip(receives, sends)})
    return matched


class _Stage:
    """A stage whose receives may have to wait: in its trace, an op before each one takes the time."""

    def __init__(self, trace: dict[str, Any], path: str, device: str) -> None:
        self.trace, self.path, self.device = trace, path, device
        self.begun: dict[int, float] = {}  # ns at which each message begins, by the number of its operator
        self._free: dict[int, float] = {}  # ns at which each receive would begin if it were there
        self._waits: dict[int, dict[str, Any]] = {}
        ops: list[dict[str, Any]] = []
        for op in trace["ops"]:
            if self._kind(op) == "receive":
                wait = {**op, "name": f"wait.{op['name']}", "inputs": [], "outputs": [], "recorded": {**op["recorded"]},
                        "slots": [{**op["slots"][0], "signature": "wait"}]}
                del wait["attributes"]
                self._waits[operator_of(op["name"])] = wait
                ops.append(wait)
            ops.append(op)
        trace["ops"] = ops

    @staticmethod
    def _kind(op: dict[str, Any]) -> str:
        return str(op["slots"][0]["signature"]).split(" ", maxsplit=1)[0] if op["slots"] else ""

    def wait_for(self, begun: Mapping[int, float]) -> bool:
        """Lets receives begin with their sends, given in ns; returns whether any of them changes."""
        changed = False
        for number, at in begun.items():
            recorded = self._waits[number]["recorded"]
            wait = max(0, round(at - self._free[number]))
            if abs(wait - recorded["time_ns"]) > EXACT_NS:
                recorded["time_ns"], changed = wait, True
        return changed

    def run(self) -> dict[str, Any]:
        """Simulates the stage and returns its row."""
        write_document(self.trace, self.path)
        timeline = f"{self.path}.timeline"
        row = rows_of("run", self.path, "--device", self.device, "--memory", "unlimited", "--allocator", "pytorch",
                      "--policy", "as-recorded", "--export", f"trace:{timeline}")[0]
        with open(timeline, encoding="utf-8") as file:
            begun = {event["name"]: 1e3 * event["ts"] for event in json.load(file)["traceEvents"] if event["ph"] == "X"}
        for op in self.trace["ops"]:
            if self._kind(op) in ("send", "receive"):
                self.begun[operator_of(op["name"])] = begun[op["name"]]
        self._free = {number: begun[wait["name"]] for number, wait in self._waits.items()}
        return row

"""Tests the recording of stages of torch.distributed.pipelining, and whole pipelines, against formulas and real processes."""

import collections
import json
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from sharded_test import GPU, collectives, peak, world
from spillway_torch import NotRecordableError, SpillwayError, record, simulate_pipeline
from spillway_torch.step.trace import to_trace

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, schedules
except ImportError as error:
    raise unittest.SkipTest("this PyTorch has no pipelines") from error

ROWS, WIDTH = 2, 64  # of a micro-batch
MESSAGE, WEIGHT = 4 * ROWS * WIDTH, 4 * WIDTH * WIDTH


def stage_of(model, number, stages, device, shapes=True, group=None):
    x = torch.empty(ROWS, WIDTH, device="meta")
    known = {"input_args": x, "output_args": x} if shapes else {}
    return PipelineStage(model, number, stages, torch.device(device), group=group, **known)


def pipeline(kind, numbers, stages, chunks, device="cuda", shapes=True, group=None, wrap=lambda model: model):
    """Returns a step of the process that has the stages `numbers`."""
    models = [wrap(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)).to(device))
              for _ in numbers]
    parts = [stage_of(model, number, stages, device, shapes, group) for model, number in zip(models, numbers)]
    make = getattr(schedules, kind)
    schedule = make(parts if issubclass(make, schedules.PipelineScheduleMulti) else parts[0], chunks, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW([p for model in models for p in model.parameters()], fused=True)

    def step():
        data = [torch.randn(chunks * ROWS, WIDTH, device=device)] if 0 in numbers else []
        last = {"target": torch.randn(chunks * ROWS, WIDTH, device=device), "losses": []} if stages - 1 in numbers else {}
        schedule.step(*data, **last)
        optimizer.step()
        optimizer.zero_grad()
    return step


def messages(recorded):
    return [(kind, ranks) for kind, ranks, size in collectives(recorded) if size == MESSAGE and kind in ("send", "receive")]


class PipelinesTest(unittest.TestCase):
    def stage(self, kind, rank, processes=2, chunks=4, numbers=None, **options):
        """Records the stages of one process; by default, each process has one."""
        numbers = numbers or [rank]
        stages = processes * len(numbers)
        with world(processes, rank):
            return record(pipeline(kind, numbers, stages, chunks, **options), GPU, warm_up=1)

    def test_messages_of_all_forwards_first(self):
        for rank in range(3):
            before, behind = [(rank - 1, rank)] * (rank > 0), [(rank, rank + 1)] * (rank < 2)
            forward = [("receive", pair) for pair in before] + [("send", pair) for pair in behind]
            backward = [("receive", pair) for pair in behind] + [("send", pair) for pair in before]
            recorded = self.stage("ScheduleGPipe", rank, 3)
            self.assertEqual(messages(recorded), 4 * forward + 4 * backward)
            self.assertEqual(len(collectives(recorded)), 4 * len(forward + backward))

    def test_messages_of_one_forward_and_one_backward(self):
        # Of three stages, the second one runs two forwards, then a backward and a forward in turn, and then two backwards.
        first, second = (0, 1), (1, 2)
        turn = [("send", second), ("receive", second), ("send", first), ("receive", first)]
        self.assertEqual(messages(self.stage("Schedule1F1B", 1, 3)),
                         [("receive", first), ("send", second), ("receive", first)] + turn + turn +
                         [("send", second), ("receive", second), ("send", first), ("receive", second), ("send", first)])

    def test_memory_grows_with_what_is_under_way(self):
        def growth(kind, rank):
            return peak(self.stage(kind, rank, chunks=8)) - peak(self.stage(kind, rank, chunks=4))
        # Each micro-batch has its rows of the input, and a buffer for the gradient that comes back. If all forwards run first, it also
        # keeps its activation and its result.
        self.assertEqual(growth("ScheduleGPipe", 0), 4 * 4 * MESSAGE)
        self.assertEqual(growth("Schedule1F1B", 0), 4 * 2 * MESSAGE)

    def test_weights_are_those_of_the_stage(self):
        recorded = self.stage("Schedule1F1B", 1)  # the shapes on "meta" take nothing
        lasting = sum(s.size for s in recorded.lives() if s.born < 0 and s.died is None)
        self.assertEqual(lasting, 2 * (3 * WEIGHT + 4) + 4 * MESSAGE)  # weights, two averages and a count each; what is received
        products = [o for o in recorded.operators if o.packet == "mm"]
        self.assertEqual(len(products), 4 * 6)  # two layers, forward and two gradients
        self.assertEqual(sum(o.packet == "mse_loss" for o in recorded.operators), 4)

    def test_what_is_received_is_waited_for(self):
        for rank in 0, 1:
            recorded = self.stage("Schedule1F1B", rank)
            for number, operator in enumerate(recorded.operators):
                if operator.collective is None or operator.collective.kind != "receive":
                    continue
                buffer = operator.outputs[0].storage.number
                reader = next(o for o in recorded.operators[number + 1:] if o.lane != operator.lane and
                              any(i.storage.number == buffer for i in o.inputs))
                self.assertEqual(reader.after, (number,))
        # Nobody waits for a send until the end of the step.
        sends = [n for n, o in enumerate(recorded.operators) if o.collective is not None and o.collective.kind == "send"]
        self.assertEqual([n for o in recorded.operators for n in o.after if n in sends], [sends[-1]])
        trace = to_trace(recorded)
        named = [op["name"].split(".")[0] for op in trace["ops"] if "ranks" in op.get("attributes", {})]
        self.assertEqual(named, [kind for kind, *_ in collectives(recorded)])

    def test_several_stages_of_a_process(self):
        for kind, numbers, sent in (("ScheduleInterleaved1F1B", [0, 2], 3), ("ScheduleInterleavedZeroBubble", [0, 2], 3),
                                    ("ScheduleLoopedBFS", [0, 2], 3), ("ScheduleZBVZeroBubble", [0, 3], 2),
                                    ("ScheduleDualPipeV", [0, 3], 2)):
            if hasattr(schedules, kind):
                with self.subTest(kind):
                    recorded = self.stage(kind, 0, numbers=numbers)
                    # A V has its first and its last stage in one process: they send one message less.
                    self.assertEqual(collections.Counter(messages(recorded)), {("send", (0, 1)): 4 * sent, ("receive", (0, 1)): 4 * sent})
                    # Nobody needs the gradient of the first stage's input.
                    self.assertEqual(sum(o.packet == "mm" for o in recorded.operators), 4 * (2 * 6 - 1))

    def test_stages_of_shards_and_of_replicas(self):
        def found(wrap):
            with world(4, 3):
                mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("stages", "data"))
                step = pipeline("Schedule1F1B", [1], 2, 4, group=mesh["stages"].get_group(), wrap=lambda model: wrap(model, mesh["data"]))
                return collections.Counter(collectives(record(step, GPU, warm_up=2)))  # the second one makes other buckets
        ours = {("receive", (1, 3), MESSAGE): 4, ("send", (1, 3), MESSAGE): 4}
        self.assertEqual(found(lambda model, mesh: fully_shard(model, mesh=mesh)),
                         {**ours, ("all_gather", (2, 3), 2 * WEIGHT): 1, ("reduce_scatter", (2, 3), 2 * WEIGHT): 1})
        self.assertEqual(found(lambda model, mesh: DistributedDataParallel(model, process_group=mesh.get_group())),
                         {**ours, ("all_reduce", (2, 3), 2 * WEIGHT): 1})

    def test_shapes_of_other_processes_have_to_be_given(self):
        with self.assertRaisesRegex(NotRecordableError, r"recv_object_list.*\(pipelines_test.py:\d+\).*give PipelineStage input_args="):
            self.stage("Schedule1F1B", 1, shapes=False)
        self.assertEqual(messages(self.stage("Schedule1F1B", 0, shapes=False)), messages(self.stage("Schedule1F1B", 0)))


class WholeTest(unittest.TestCase):
    """What a whole pipeline takes, from recordings of its stages."""

    @classmethod
    def setUpClass(cls):
        cls.enterClassContext(mock.patch.multiple(sys.modules[__name__], ROWS=1024, WIDTH=2048))

    def steps(self, kind, processes, chunks=4):
        found = {}
        for rank in range(processes):
            with world(processes, rank):
                found[rank] = record(pipeline(kind, [rank], processes, chunks), GPU, warm_up=1)
        return found

    def test_a_pipeline_takes_as_long_as_its_formula_says(self):
        # Of p stages, the last one waits for p - 1 forwards, and the first one, which ends last, also for as many backwards
        # (GPipe, section 2.3). Of the products of a stage, a third is forward.
        for kind, processes in ("ScheduleGPipe", 2), ("Schedule1F1B", 3):
            with self.subTest(kind):
                steps = self.steps(kind, processes, 4)
                whole = simulate_pipeline(steps, "h200")
                last = whole.stages[-1]
                one = last.alone_ms / 4
                self.assertAlmostEqual(last.iteration_ms - last.alone_ms, (processes - 1) * one / 3, delta=0.15 * processes * one)
                self.assertAlmostEqual(whole.iteration_ms - last.alone_ms, (processes - 1) * one, delta=0.3 * processes * one)
                self.assertEqual(whole.iteration_ms, whole.stages[0].iteration_ms)
                self.assertEqual([stage.peak_requested_bytes for stage in whole.stages], [step.peak_requested for step in steps.values()])
        self.assertIn(f"A step takes {whole.iteration_ms:.1f} ms on h200.", whole.text())

    def test_messages_without_counterparts_are_refused(self):
        two, more = self.steps("Schedule1F1B", 2), self.steps("Schedule1F1B", 2, 5)
        with self.assertRaisesRegex(SpillwayError, "rank 0 sends 4 messages of 33554432 bytes to rank 1, which receives 5 of 41943040"):
            simulate_pipeline({0: two[0], 1: more[1]})
        with self.assertRaisesRegex(SpillwayError, r"send.\d+ of rank 0 is between ranks \[0, 1\], but the recordings are of ranks \[0\]"):
            simulate_pipeline({0: two[0]})
        with self.assertRaisesRegex(SpillwayError, r"of rank 2 is between ranks \[0, 1\]"):
            simulate_pipeline({2: two[0], 0: two[1], 1: two[0]})
        with self.assertRaisesRegex(SpillwayError, "there is no recording"):
            simulate_pipeline({})

    def test_stages_that_wait_for_each_other_are_refused(self):
        def step():
            x = torch.ones(8, device="cuda")
            for call in dist.recv, dist.send:
                call(x, 1 - dist.get_rank())
        steps = {}
        for rank in (0, 1):
            with world(2, rank):
                steps[rank] = record(step, GPU, warm_up=0)
        with self.assertRaisesRegex(SpillwayError, r"the stages of ranks \[0, 1\] wait for each other for ever"):
            simulate_pipeline(steps, "h200")


class RealTest(unittest.TestCase):
    """Two processes with gloo, which tell each other their shapes, against recordings of a fake group."""

    def test_real_processes_send_as_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            started = [subprocess.Popen([sys.executable, __file__, str(rank), f"{folder}/store"], stdout=subprocess.PIPE, text=True)
                       for rank in (0, 1)]
            recorded = [json.loads(json.dumps(steps(rank))) for rank in (0, 1)]
            real = [json.loads(process.communicate()[0]) for process in started]
        self.assertEqual([found for found, _ in recorded], [found for found, _ in real])
        # gloo's handles keep their message until they are deleted, which schedules of single stages do late in the first process.
        kept = [MESSAGE, MESSAGE, 0], [0, 0, 0]
        self.assertEqual([[one + more for one, more in zip(held, ours)] for (_, held), ours in zip(recorded, kept)],
                         [held for _, held in real])
        self.assertNotEqual(real[0], real[1])


def steps(rank, store=""):
    """Returns the messages and the peaks of a process in steps of several schedules, real with a store, or recorded."""
    result = []
    for kind, numbers in ("ScheduleGPipe", [rank]), ("Schedule1F1B", [rank]), ("ScheduleInterleaved1F1B", [rank, rank + 2]):
        stages = 2 * len(numbers)
        if store:
            dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(f"{store}-{kind}", 2))
            recorded = record(pipeline(kind, numbers, stages, 4, "cpu", shapes=False), "cpu", warm_up=1)
            dist.destroy_process_group()
        else:
            with world(2, rank):
                recorded = record(pipeline(kind, numbers, stages, 4), GPU, warm_up=1)
        result.append((collectives(recorded), peak(recorded)))
    return list(zip(*result))


if __name__ == "__main__":
    print(json.dumps(steps(int(sys.argv[1]), sys.argv[2])))

#!/usr/bin/env python3
"""Tests profiles on a stand-in for PyTorch on a GPU and on PyTorch without a GPU, and the program that makes recordings."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch

from cases import slow
from spillway_torch import __main__ as program
from spillway_torch.step import modules, profile


class OutOfMemory(RuntimeError):
    pass


class Event:
    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.time = Event.now

    def elapsed_time(self, end):
        return end.time - self.time


def history(calls):
    def record_memory_history(enabled="all", context="all", stacks="all", max_entries=0):
        calls.append(enabled)
    return record_memory_history


def fake_torch(gpu=True):
    calls = []

    class Observer:
        def register_callback(self, path):
            self.path = path

        def start(self):
            calls.append("observer starts")

        def stop(self):
            calls.append("observer stops")

        def unregister_callback(self):
            pathlib.Path(self.path).write_text('{"nodes": []}')

    class Profile:
        def __init__(self, **arguments):
            assert arguments["profile_memory"] and arguments["record_shapes"]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            calls.append("profile ends")

        def export_chrome_trace(self, path):
            pathlib.Path(path).write_text('{"traceEvents": []}')

    memory = types.SimpleNamespace(_record_memory_history=history(calls),
                                   _snapshot=lambda: {"segments": [], "device_traces": [[]]})
    cuda = types.SimpleNamespace(
        is_available=lambda: gpu, memory=memory, Event=Event, OutOfMemoryError=OutOfMemory,
        synchronize=lambda: None, empty_cache=lambda: None, reset_peak_memory_stats=lambda: calls.append("reset"),
        max_memory_allocated=lambda: 5, max_memory_reserved=lambda: 7, memory_reserved=lambda: 6,
        memory_stats=lambda: {"requested_bytes.all.peak": 4}, mem_get_info=lambda: (50, 100),
        current_device=lambda: 0, get_device_properties=lambda _: types.SimpleNamespace(
            name="Fake", total_memory=100, major=9, minor=0, multi_processor_count=132))
    return types.SimpleNamespace(
        calls=calls, cuda=cuda, __version__="0.0", version=types.SimpleNamespace(cuda="1"),
        backends=types.SimpleNamespace(
            cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=False)),
            cudnn=types.SimpleNamespace(allow_tf32=False, benchmark=False, version=lambda: 9)),
        are_deterministic_algorithms_enabled=lambda: False,
        profiler=types.SimpleNamespace(
            ExecutionTraceObserver=Observer, profile=Profile, kineto_available=lambda: True,
            ProfilerActivity=types.SimpleNamespace(CPU="cpu", CUDA="cuda")))


class ProfileTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = pathlib.Path(directory.name) / "out"

    def record(self, torch, step=None, **arguments):
        def one_step():
            torch.calls.append("step")
            Event.now += 2.0 + 0.5 * (torch.calls.count("step") % 2)

        with mock.patch.object(profile, "torch", torch), mock.patch.object(profile, "gpu_query", lambda _: None):
            return profile.profile(step or one_step, "m", self.out, **arguments)

    def test_one_call_makes_all_files(self):
        torch = fake_torch()
        manifest = self.record(torch, iterations=20)
        self.assertEqual(json.loads((self.out / "m.manifest.json").read_text()), manifest)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()),
                         ["m.et.json.gz", "m.kineto.json.gz", "m.manifest.json", "m.snapshot.pickle"])
        for file in manifest["files"].values():
            data = (self.out / file["file"]).read_bytes()
            self.assertEqual((file["bytes"], file["sha256"]), (len(data), hashlib.sha256(data).hexdigest()))
        self.assertIn("segments", pickle.loads((self.out / "m.snapshot.pickle").read_bytes()))
        self.assertEqual(json.loads(gzip.open(self.out / "m.et.json.gz").read()), {"nodes": []})
        step = manifest["step_ms"]
        self.assertEqual((len(step["all"]), step["median"], step["shortest"], step["longest"]), (20, 2.25, 2.0, 2.5))
        self.assertEqual((manifest["peak_requested_bytes"], manifest["peak_allocated_bytes"],
                          manifest["peak_reserved_bytes"], manifest["outside_allocator_bytes"]), (4, 5, 7, 44))
        # The snapshot holds the first three steps. Timed steps run without the snapshot and without
        # the profiler.
        self.assertEqual(torch.calls[:6], ["reset", "all", "step", "step", "step", None])
        self.assertEqual(torch.calls[6:8] + torch.calls[-5:], ["reset", "step"] + [
            "profile ends", "observer starts", "step", "observer stops", "profile ends"])

    def test_an_out_of_memory_error_ends_in_a_snapshot(self):
        def step():
            raise OutOfMemory("Tried to allocate 590 MiB")

        manifest = self.record(fake_torch(), step)
        self.assertEqual((manifest["outcome"], manifest["error"]), ("out of memory", "Tried to allocate 590 MiB"))
        self.assertEqual(list(manifest["files"]), ["snapshot"])
        self.assertNotIn("step_ms", manifest)

    def test_another_error_leaves_no_half_written_file(self):
        def step():
            raise ValueError("of the user's")

        with self.assertRaises(ValueError):
            self.record(fake_torch(), step)
        self.assertEqual(list(self.out.iterdir()), [])

    def test_without_a_gpu_the_manifest_says_so(self):
        manifest = self.record(fake_torch(gpu=False))
        self.assertEqual(manifest["device"], "cpu")
        self.assertIn("CPU", manifest["note"])
        self.assertEqual(list(manifest["files"]), ["kineto", "execution_trace"])

    def test_blocks_are_the_outermost_lists_of_one_class(self):
        class Module:
            def __init__(self, **children):
                self.children_by_name = children

            def named_children(self):
                return self.children_by_name.items()

            def children(self):
                return self.children_by_name.values()

        class ModuleList(Module):
            pass

        class Block(Module):
            pass

        def block():
            return Block(conv=Module(), inner=ModuleList(a=Block(x=Module()), b=Block(x=Module())))

        model = Module(stem=ModuleList(a=Module(), b=Module()), layers=ModuleList(**{"0": block(), "1": block()}),
                       single=ModuleList(**{"0": block()}))
        self.assertEqual([name for name, _ in modules.find_blocks(model)], [
            "layers.0", "layers.1", "single.0.inner.a", "single.0.inner.b"])

    def test_pytorch_itself(self):
        model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)))
        profile.profile(lambda: model(torch.ones(2, 8)).sum().backward(), "m", self.out, model=model)
        trace = json.loads(gzip.open(self.out / "m.et.json.gz").read())
        names = [node["name"] for node in trace["nodes"]]
        self.assertEqual([name for name in names if name.startswith("block: ")], ["block: 0", "block: 1", "block: 2"])
        self.assertIn("aten::addmm", names)
        imported = subprocess.run([os.environ["SPILLWAY"], "trace", "import", self.out / "m.manifest.json", "-o", self.out / "t.json"],
                                  capture_output=True, text=True, check=False)
        self.assertEqual(imported.returncode, 0, imported.stderr)


class ProgramTest(unittest.TestCase):
    def record(self, *arguments):
        return subprocess.run([sys.executable, "-m", "spillway_torch", *arguments], capture_output=True, text=True, check=False)

    def test_wrong_arguments(self):
        for arguments, text in ((["m", "-o", "d", "--plan", "budget=2"], "from 0 to 1"),
                                (["m", "-o", "d", "--batch", "0"], "above 0"), (["m"], "--output"),
                                (["m", "-o", "d", "--target", "cuda"], "not a pretended device"),
                                (["m", "-o", "d", "--target", "cuda:sm_90", "--plan", "budget=0.5"], "omit --target")):
            error = io.StringIO()
            with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(error):
                program.main(arguments)
            self.assertEqual(end.exception.code, 2)
            self.assertIn(text, error.getvalue())

    @slow
    def test_without_a_gpu_it_writes_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            for plan in ("none", "checkpoint", "save_on_cpu"):
                made = self.record("vit", "--layers", "2", "--width", "48", "--heads", "4", "--plan", plan, "--name", plan,
                                   "--target", "cuda:sm_90", "-o", folder)
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertIn("bytes requested", made.stdout)
                checked = subprocess.run([os.environ["SPILLWAY"], "trace", "validate", f"{folder}/{plan}.json"], check=False,
                                         capture_output=True, text=True)
                self.assertEqual(checked.returncode, 0, checked.stderr)
            self.assertEqual(self.record("no such model", "-o", folder).returncode, 5)


if __name__ == "__main__":
    unittest.main()

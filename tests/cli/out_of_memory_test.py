#!/usr/bin/env python3
"""Tests what `replay` says of snapshots of programs that ran out of memory, on drawn programs.

usage: out_of_memory_test.py PATH_OF_SPILLWAY
"""

import csv
import gzip
import io
import json
import pickle
import random

from harness import ROOT, DirectoryTest, main, run

MIB = 1 << 20
BASE = 0x7F00 << 32
PACKAGES = "/opt/torch/.venv/lib/python3.12/site-packages/"
SCRIPT = ("/home/me/train.py", 23, "<module>")
MODEL = (PACKAGES + "models/model.py", 305, "forward")
GELU = (PACKAGES + "models/activations.py", 66, "forward")
LOSS = (PACKAGES + "models/loss.py", 40, "causal_loss")
CROSS_ENTROPY = (PACKAGES + "torch/nn/functional.py", 3504, "cross_entropy")
ADAM = (PACKAGES + "torch/optim/adam.py", 178, "_init_group")
CALL = (PACKAGES + "torch/nn/modules/module.py", 1790, "_call_impl")
WRAPPERS = [CALL, (PACKAGES + "torch/optim/optimizer.py", 533, "wrapper"),
            ("/usr/lib/python3.12/contextlib.py", 81, "inner"),
            (PACKAGES + "models/utils.py", 1068, "wrapper"), ("??", 0, "c10::Allocator::malloc")]


class Recording:
    """A snapshot whose blocks have segments of their own, so that it is easy to foresee."""

    def __init__(self):
        self.events, self.live, self.next = [], {}, BASE

    def add(self, action, address, mib, frames=(), **more):
        self.events.append({"action": action, "addr": address, "size": mib * MIB, "stream": 0, "time_us": len(self.events),
                            "frames": [{"filename": f, "line": n, "name": name} for f, n, name in frames], **more})

    def alloc(self, mib, *frames):
        address, self.next = self.next, self.next + (mib + 2) * MIB
        self.add("segment_alloc", address, mib)
        self.add("alloc", address, mib, frames)
        self.live[address] = mib
        return address

    def free(self, address):
        self.add("free_completed", address, self.live.pop(address))

    def oom(self, mib, *frames, device_free=100_000):
        self.add("oom", 0, mib, frames, device_free=device_free * MIB)

    def write(self, path, compress=False, protocol=4, **settings):
        contents = pickle.dumps({"segments": [], "device_traces": [self.events], "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": False, **settings}}, protocol)
        path.write_bytes(gzip.compress(contents) if compress else contents)
        return path


class Program:
    """A drawn training step: AdamW, layers with an activation in elementwise parts, a loss that holds the logits."""

    def __init__(self, seed, wrappers=True, device_free=100_000):
        draw = random.Random(seed)
        self.draw, self.wrappers = draw, wrappers
        self.layers, self.parts = draw.randint(3, 7), draw.randint(3, 6)
        self.input, self.activation = 2 * draw.randint(5, 9), 2 * draw.randint(20, 40)
        self.logits, self.states = 2 * draw.randint(50, 90), draw.randint(2, 5)
        self.recording = recording = Recording()
        for _ in range(self.states):
            recording.alloc(12, *self.stack(ADAM, SCRIPT))
        layers = []
        for _ in range(self.layers):
            layers.append(recording.alloc(self.input, *self.stack(CROSS_ENTROPY[:2] + ("linear",), MODEL, SCRIPT)))
            layers += [recording.alloc(self.activation, *self.stack(GELU, MODEL, SCRIPT)) for _ in range(self.parts)]
        recording.alloc(self.logits, *self.stack(CROSS_ENTROPY, LOSS, SCRIPT))
        recording.alloc(self.logits)
        self.held = sum(recording.live.values())
        self.failed_event = len(recording.events)
        recording.oom(self.logits, device_free=device_free)
        for address in layers if draw.random() < 0.7 else []:
            recording.free(address)
        if draw.random() < 0.5:
            recording.alloc(10)

    def stack(self, *frames):
        """Adds frames of wrappers in places that mean nothing."""
        frames = list(frames)
        for _ in range(self.draw.randint(0, 4) if self.wrappers else 0):
            frames.insert(self.draw.randint(0, len(frames)), self.draw.choice(WRAPPERS))
        return frames


class OutOfMemoryTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.path = self.directory / "oom.pickle"

    def replay(self, *args, code=0):
        document = self.ok("replay", self.path, "--allocator", "pytorch", "--format", "json", *args, code=code)
        self.assertNotIn(str(1 << 60), document)
        return self.conforms(document, "replay")

    def page(self, path, *args, code=1):
        text = self.ok("replay", path, *args, code=code)
        lines = text.splitlines()
        self.assertLessEqual(len(lines), 40, text)
        self.assertLessEqual(max(map(len, lines)), 80, text)
        return text

    def test_the_failed_request_counts_as_the_others_do(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                program = Program(seed)
                program.recording.write(self.path, compress=seed % 2 == 1)
                document = self.replay(code=1)
                row, failure = document["rows"][0], document["recorded_failure"]
                self.assertEqual(self.replay("--memory", "recorded", code=1)["recorded_failure"], failure)
                self.assertEqual((row["status"], row["failed_event"]), ("oom", program.failed_event))
                self.assertIs(row["as_recorded"], True)
                self.assertEqual(row["memory_bytes"], program.held * MIB)
                self.assertEqual((failure["event"], failure["wanted_bytes"]), (program.failed_event, program.logits * MIB))
                needed = program.held + program.logits
                self.assertEqual(document["log"]["lower_bound_bytes"], needed * MIB)
                self.assertEqual(row["serves_in_bytes"], needed * MIB)
                self.replay("--memory", f"{needed - 2}MiB", code=1)
                for more in (0, 512):
                    row = self.replay("--memory", f"{needed + more}MiB")["rows"][0]
                    self.assertEqual((row["status"], row["to_spare_bytes"]), ("ok", more * MIB))
                self.assertIn("fits, 512 MiB to spare", self.page(self.path, "--memory", f"{needed + 512}MiB", code=0))
                row = self.replay("--memory", "unlimited")["rows"][0]
                self.assertEqual([row[key] for key in ("status", "memory_bytes", "to_spare_bytes", "largest_free_bytes")],
                                 ["ok", None, None, None])

    def test_holders_are_named_whatever_wraps_them(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                program = Program(seed, wrappers=seed % 2 == 0)
                program.recording.write(self.path)
                failure = self.replay(code=1)["recorded_failure"]
                groups = {group["name"]: group for group in failure["groups"]}
                self.assertEqual(sum(group["bytes"] for group in failure["groups"]), program.held * MIB)
                activations = groups["models/activations.py:66 forward"]
                self.assertEqual(activations["bytes"], program.layers * program.parts * program.activation * MIB)
                self.assertEqual(activations["chains"][0]["calls"], [
                    "models/activations.py:66 forward", "models/model.py:305 forward", "/home/me/train.py:23 <module>"])
                states = groups["/home/me/train.py:23 <module>, in torch/optim/adam.py:178 _init_group"]
                self.assertEqual(states["bytes"], program.states * 12 * MIB)
                loss = groups["models/loss.py:40 causal_loss, in torch/nn/functional.py:3504 cross_entropy"]
                self.assertEqual(loss["bytes"], program.logits * MIB)
                layer = next(c for c in failure["callers"] if c["frame"] == "models/model.py:305 forward")
                self.assertEqual((layer["times"], layer["each_time_bytes"]),
                                 (program.layers, (program.input + program.parts * program.activation) * MIB))
                text = self.page(self.path)
                self.assertIn("  models/activations.py:66 forward\n", text)
                self.assertNotIn("called by", text)
                frames = self.ok("replay", self.path, "--frames", code=1)
                self.assertIn("             /home/me/train.py:23 <module>\n", frames)

    def test_stacks_are_read_however_they_are_written(self):
        deep = [*[CALL] * 1500, ("snapshot.py", 7, "alloc"), SCRIPT]
        stacks = {}
        recording = Recording()
        for _ in range(3):
            recording.alloc(20, *deep)
            recording.alloc(30, SCRIPT)
        for event in recording.events:  # as PyTorch does, a stack is one object
            event["frames"] = stacks.setdefault(str(event["frames"]), event["frames"])
        recording.oom(40, *deep)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            recording.write(self.path, protocol=protocol)
            failure = self.replay(code=1)["recorded_failure"]
            self.assertEqual({group["name"]: group["bytes"] // MIB for group in failure["groups"]},
                             {"snapshot.py:7 alloc": 60, "/home/me/train.py:23 <module>": 90})
            self.assertEqual(len(failure["stack"]), 1502)

    def test_every_remedy_serves_the_request(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                program = Program(seed)
                program.recording.write(self.path)
                remedies = {r["kind"]: r for r in self.replay(code=1)["recorded_failure"]["remedies"]}
                self.assertEqual(list(remedies)[:2], ["limit", "device"])
                self.assertIn("operator", remedies)
                self.assertIn(f"by {program.logits} MiB", remedies["limit"]["text"])
                for kind in ("limit", "device"):
                    row = self.replay("--memory", f"{remedies[kind]['memory_bytes']}B")["rows"][0]
                    self.assertEqual(row["to_spare_bytes"], remedies[kind]["to_spare_bytes"])

    def test_remedies_that_do_not_help_are_left_out(self):
        program = Program(1, device_free=10)
        program.recording.write(self.path)
        self.assertNotIn("limit", [r["kind"] for r in self.replay(code=1)["recorded_failure"]["remedies"]])
        remedies = self.replay("--memory", "24MiB", code=1)["recorded_failure"]["remedies"]
        self.assertNotIn("operator", [r["kind"] for r in remedies])
        huge = Recording()
        for _ in range(50):
            huge.alloc(4000, GELU, SCRIPT)
        huge.oom(4000, device_free=0)
        huge.write(self.path)
        self.assertEqual(self.replay(code=1)["recorded_failure"]["remedies"], [])
        self.assertIn("No remedy that was tried serves it.", self.page(self.path))

    def test_expandable_segments_are_proposed_where_they_serve(self):
        recording = Recording()
        blocks = [recording.alloc(80, SCRIPT) for _ in range(4)]
        for block in blocks:
            recording.free(block)
        for block in blocks:
            recording.add("alloc", block, 42, [SCRIPT])
        recording.oom(100, SCRIPT)
        recording.write(self.path)
        failure = self.replay(code=1)["recorded_failure"]
        setting = next(r for r in failure["remedies"] if r["kind"] == "setting")
        self.assertIn("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", setting["text"])
        self.assertEqual(failure["stack"], ["/home/me/train.py:23 <module>"])
        self.ok("replay", self.path, "--allocator", "pytorch:expandable_segments=true")
        recording.write(self.path, expandable_segments=True)
        self.assertNotIn("setting", [r["kind"] for r in self.replay("--memory", "250MiB", code=1)["recorded_failure"]["remedies"]])

    def test_csv_and_reports_carry_it(self):
        program = Program(2)
        program.recording.write(self.path)
        document = self.replay(code=1)
        rows, saved = self.directory / "x.csv", self.directory / "x.json"
        for output in (rows, saved):
            self.ok("replay", self.path, "--allocator", "pytorch", "-o", output, "--quiet", code=1)
        (row,) = csv.DictReader(io.StringIO(rows.read_text(encoding="utf-8")))
        for name, value in document["rows"][0].items():
            if name != "operations_per_second":
                text = {True: "true", False: "false", None: ""}.get(value, str(value)) if not isinstance(value, int) \
                    or isinstance(value, bool) else str(value)
                if not isinstance(value, float):
                    self.assertEqual(row[name], text, name)
        self.assertEqual(row["recorded_wanted_bytes"], str(program.logits * MIB))
        page = self.directory / "page.html"
        self.ok("report", rows, saved, "-o", page, "--quiet")
        text = page.read_text(encoding="utf-8")
        for name in ("activations.py:66 forward", "recorded_failed_event", "remedies"):
            self.assertIn(name, text)
        memory = self.directory / "memory.csv"
        self.ok("replay", self.path, "--allocator", "pytorch", "--memory", "unlimited", "--export", f"memory:{memory}", "--quiet")
        samples = list(csv.DictReader(io.StringIO(memory.read_text(encoding="utf-8"))))
        self.assertEqual({sample["largest_free_bytes"] for sample in samples}, {""})
        self.assertEqual(max(int(sample["requested_bytes"]) for sample in samples), (program.held + program.logits) * MIB)

    def test_only_the_last_failed_request_counts(self):
        recording = Recording()
        recording.oom(900)
        recording.alloc(20, SCRIPT)
        recording.oom(40)
        recording.write(self.path)
        failure = self.replay(code=1)["recorded_failure"]
        self.assertEqual((failure["event"], failure["failures"]), (3, 2))
        self.assertIn("the last of 2", self.page(self.path))
        self.replay("--memory", "60MiB")
        self.replay("--memory", "58MiB", code=1)

    def test_a_snapshot_without_a_failure_is_as_before(self):
        recording = Recording()
        recording.alloc(20, SCRIPT)
        recording.write(self.path)
        document = self.replay()
        self.assertNotIn("recorded_failure", document)
        self.assertEqual({document["rows"][0][key] for key in (
            "memory_bytes", "to_spare_bytes", "recorded_failed_event", "remedy", "largest_holder")}, {None})

    def test_a_log_that_records_no_capacity_says_so(self):
        path = self.directory / "log.csv"
        path.write_text("Action,Pointer,Size,Stream\nallocate,0x200,512,0\nallocate failure,(nil),4096,0\n", encoding="utf-8")
        self.assertIn("memory: unlimited, because the log does not say how much there was",
                      self.ok("replay", path, "--allocator", "best-fit"))
        self.assertIn("oom at event 1", self.ok("replay", path, "--allocator", "best-fit", "--memory", "4KiB", code=1))

    def test_recordings_fit_on_a_page(self):
        for name in ("default-oom", "expandable-oom"):
            self.page(ROOT / "tests" / "testing" / "recordings" / f"{name}.snapshot.pickle.gz")

    def test_other_verbs_name_replay(self):
        Program(0).recording.write(self.path)
        for args in (("fit", self.path), ("run", self.path), ("compare", self.path),
                     ("report", self.path, "-o", self.directory / "x.html")):
            with self.subTest(verb=args[0]):
                self.fails(2, f"`spillway replay {self.path}`", *args)

    def test_wrong_usage_is_told(self):
        Program(0).recording.write(self.path)
        for text in ("much", "", "50%", "6"):
            self.fails(2, "is not a size", "replay", self.path, "--memory", text)
        self.assertEqual(run("replay", self.path, "--frame").returncode, 2)
        self.path.write_bytes(self.path.read_bytes()[:-40])
        self.fails(3, "oom.pickle: byte", "replay", self.path)


if __name__ == "__main__":
    main()

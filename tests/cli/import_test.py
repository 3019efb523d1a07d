#!/usr/bin/env python3
"""Tests spillway trace import: PyTorch's recordings become traces that every verb accepts, and errors name wrong files.

usage: import_test.py PATH_OF_SPILLWAY
"""

import copy
import gzip
import io
import json
import pickle
import random
import subprocess

from harness import DirectoryTest, ROOT, main, run

RECORDINGS = ROOT / "tests/testing/recordings/pytorch"
DEVICE = ("--device", "h200")


def read(name):
    """Returns the document in a recording."""
    data = subprocess.run(["zstd", "-dc", RECORDINGS / name], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(data)


class ImportCase(DirectoryTest):
    def refused(self, code, text, *args):
        out = self.directory / "out.json"
        message = self.fails(code, text, "trace", "import", *args, "-o", out)
        self.assertFalse(out.exists())
        return message


class ImportTest(ImportCase):
    def files(self, name):
        return ("--kineto", RECORDINGS / f"{name}.kineto.json.zst", "--execution-trace", RECORDINGS / f"{name}.et.json.zst")

    def make(self, name, *args):
        """Returns the trace of a recording, and the messages of the import."""
        trace = self.directory / f"{name}.json.zst"
        text = self.ok("trace", "import", *self.files(name), *args, "-o", trace, "--format", "json")
        return trace, self.conforms(text, "trace-import")["rows"][0]

    def test_a_trace_is_what_was_recorded(self):
        # Values recorded with PyTorch 2.11 on an H200: ms of a step without the profiler, and the
        # peak of requested bytes.
        for name, batch, plain_ms, peak in (("gpt2-b4s512", 4, 52.05, 5_114_989_576), ("resnet50-b32", 32, 38.19, 3_087_486_864)):
            with self.subTest(name):
                trace, row = self.make(name, "--batch", batch, "--step-time", f"{plain_ms}ms")
                kineto = read(f"{name}.kineto.json.zst")["traceEvents"]
                kernels = sum(event["dur"] for event in kineto if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
                self.assertAlmostEqual(row["kernels_ms"], kernels / 1e3, delta=1e-3)
                self.assertEqual((row["unjoined_ms"], row["unnamed_bytes"], row["unplaced_bytes"]), (0, 0, 0))
                self.assertEqual(row["joined_operators"], row["operators"])
                self.assertAlmostEqual(row["iteration_ms"] / row["recorded_step_ms"], 1, delta=0.005)
                self.assertAlmostEqual(row["plain_iteration_ms"] / plain_ms, 1, delta=0.05)
                self.assertAlmostEqual(row["peak_requested_bytes"] / peak, 1, delta=0.01)
                self.ok("trace", "validate", trace)
                (run,) = json.loads(self.ok("run", trace, *DEVICE, "--policy", "as-recorded", "--check", "--format", "json"))["rows"]
                self.assertAlmostEqual(run["compute_ms"], row["kernels_ms"], delta=1e-3)
                self.assertEqual(run["iteration_ms"], row["plain_iteration_ms"])
                (slow,) = json.loads(self.ok("run", f"{trace},host=recorded", *DEVICE, "--policy", "as-recorded", "--format",
                                             "json"))["rows"]
                self.assertEqual(slow["iteration_ms"], row["iteration_ms"])

    def test_every_verb_takes_the_trace(self):
        trace, _ = self.make("gpt2-b4s512", "--batch", 4)
        rows = json.loads(self.ok("compare", trace, *DEVICE, "--memory", "60%", "--check", "--format", "json"))["rows"]
        fits = {row["policy"].split(":")[0] for row in rows if row["status"] == "ok"}
        self.assertLessEqual({"vdnn-all", "vdnnpp", "superneurons", "mxnet", "dtr", "capuchin"}, fits)
        self.assertIn("as-recorded", {row["policy"] for row in rows})
        self.ok("run", trace, *DEVICE, "--memory", "60%", "--policy", "mxnet", "--allocator", "pytorch", "--explain")
        self.ok("sweep", trace, *DEVICE, "--memory", "60%", "--policy", "mxnet", "-o", self.directory / "s.sqlite")
        self.ok("report", trace, *DEVICE, "--memory", "60%", "--policy", "mxnet", "-o", self.directory / "r.html")
        rows = self.conforms(self.ok("fit", trace, "--device", "gtx_970,h200", "--format", "json"), "fit")["rows"]
        self.assertEqual({row["status"] for row in rows if row["change"] == "none"}, {"no", "fits"})
        reserved = [row["peak_reserved_bytes"] for row in rows if row["device"] == "h200"]
        # PyTorch reserved this many bytes.
        self.assertAlmostEqual(reserved[0] / 5_458_886_656, 1, delta=0.02)
        self.fails(2, "a trace of one batch", "limit", trace)

    def test_another_gpu_takes_other_times(self):
        trace, _ = self.make("resnet50-b32", "--batch", 32)
        times = {}
        for device in ("h200", "v100"):
            (row,) = json.loads(self.ok("run", trace, "--device", device, "--policy", "as-recorded", "--format", "json"))["rows"]
            times[device] = row["iteration_ms"]
        self.assertGreater(times["v100"], 2 * times["h200"])

    def test_a_manifest_names_the_files(self):
        for kind in ("kineto", "et"):
            (self.directory / f"r.{kind}.json.zst").symlink_to(RECORDINGS / f"resnet50-b32.{kind}.json.zst")
        manifest = {"format": "spillway-pytorch-recording", "schema_version": 1, "name": "resnet50", "outcome": "ok",
                    "model": {"batch": 32}, "step_ms": {"median": 38.19}, "versions": {"torch": "2.11"},
                    "files": {"kineto": {"file": "r.kineto.json.zst"}, "execution_trace": {"file": "r.et.json.zst"}}}
        path = self.file("r.manifest.json", manifest)
        row = json.loads(self.ok("trace", "import", path, "-o", self.directory / "t.json", "--format", "json"))["rows"][0]
        self.assertEqual((row["workload"], row["recorded_plain_step_ms"]), ("resnet50:32", 38.19))
        trace = json.loads((self.directory / "t.json").read_text("utf-8"))
        self.assertEqual(trace["recording"]["framework"], "PyTorch 2.11")
        del manifest["files"]["kineto"]
        manifest["outcome"] = "out of memory"
        self.refused(3, "it ended with 'out of memory'", self.file("oom.manifest.json", manifest))
        self.refused(3, "expected a manifest", self.file("other.json", {"format": "x"}))

    def test_without_a_gpu_times_are_the_roofline_s(self):
        kineto = read("resnet50-b32.kineto.json.zst")
        cpu = [event for event in kineto["traceEvents"] if event.get("cat") in ("cpu_op", "cpu_instant_event")]
        for event in cpu:
            if event["name"] == "[memory]":
                event["args"].update({"Device Type": 0, "Device Id": -1})
        execution = (RECORDINGS / "resnet50-b32.et.json.zst").read_bytes()
        text = subprocess.run(["zstd", "-dc"], input=execution, stdout=subprocess.PIPE, check=True).stdout
        (self.directory / "et.json").write_bytes(text.replace(b'"cuda:0"]', b'"cpu"]'))
        trace = self.directory / "t.json"
        text = self.ok("trace", "import", "--kineto", self.file("k.json", {"deviceProperties": [], "traceEvents": cpu}),
                       "--execution-trace", self.directory / "et.json", "-o", trace, "--format", "json")
        row = self.conforms(text, "trace-import")["rows"][0]
        self.assertEqual((row["gpu"], row["kernels_ms"], row["recorded_step_ms"]), (None, 0, None))
        run = ("run", trace, *DEVICE, "--policy", "as-recorded")
        self.assertIn("estimated from operators of NVIDIA H200", self.ok(*run))
        self.assertIn("estimated from operators of NVIDIA H100", self.ok("run", trace, "--device", "h100", "--policy", "as-recorded"))
        self.assertIn("analytic", self.ok(*run, "--cost", "roofline"))
        b200 = ("run", trace, "--device", "b200", "--policy", "as-recorded")
        self.assertIn("estimated from published operators of NVIDIA B200, and of NVIDIA H100", self.ok(*b200))
        for arguments, tables in ((run, ["h200"]), (b200, ["published/b200", "h100"])):
            self.ok(*arguments, "-o", self.directory / "r.csv")
            inputs = json.loads((self.directory / "r.csv.manifest.json").read_text())["inputs"]
            self.assertEqual([file["name"] for file in inputs if file["role"] == "operator_table"],
                             [f"traces/recorded/operators/{table}.json.zst" for table in tables])

    def test_devices_by_their_types(self):
        """A profile of ROCm has the device type HIP; types that the program does not know are named."""
        kineto = read("resnet50-b32.kineto.json.zst")
        execution = RECORDINGS / "resnet50-b32.et.json.zst"

        def imported(device):
            for event in kineto["traceEvents"]:
                if event.get("name") == "[memory]" and event["args"]["Device Type"] != 0:
                    event["args"]["Device Type"] = device
            path, trace = self.file("k.json", kineto), self.directory / "t.json"
            return run("trace", "import", "--kineto", path, "--execution-trace", execution, "-o", trace), trace

        traces = []
        for device in (1, 6):
            result, trace = imported(device)
            self.assertEqual(result.returncode, 0, result.stderr)
            traces.append(trace.read_bytes())
        self.assertEqual(*traces)
        for device, name in ((12, "XPU (12)"), (20, "PrivateUse1 (20)"), (99, "type 99,")):
            result, _ = imported(device)
            self.assertEqual(result.returncode, 3)
            self.assertIn(name, result.stderr)

    def test_the_report_takes_standard_output(self):
        self.fails(2, "-o takes a file", "trace", "import", RECORDINGS / "resnet50-b32.json", "-o", "-")

    def test_wrong_files(self):
        name = "resnet50-b32"
        kineto, execution = read(f"{name}.kineto.json.zst"), RECORDINGS / f"{name}.et.json.zst"
        events = kineto["traceEvents"]

        def changed(file, change):
            return self.file(file, {**kineto, "traceEvents": change(copy.deepcopy(events))})

        def second_gpu(changing):
            next(event for event in changing if event.get("cat") == "kernel")["args"]["device"] = 1
            return changing

        no_memory = changed("no_memory.json", lambda all_: [event for event in all_ if event.get("name") != "[memory]"])
        self.refused(3, "profile_memory=True", "--kineto", no_memory, "--execution-trace", execution)
        two = changed("two.json", second_gpu)
        self.refused(3, "2 GPUs", "--kineto", two, "--execution-trace", execution)
        self.refused(3, "different runs", "--kineto", RECORDINGS / "gpt2-b4s512.kineto.json.zst", "--execution-trace", execution)
        self.refused(3, "'traceEvents'", "--kineto", execution, "--execution-trace", execution)
        cut = self.directory / "cut.json.gz"
        cut.write_bytes(gzip.compress(json.dumps(kineto).encode())[:-5000])
        self.refused(3, "cut.json.gz: the gzip data end too early", "--kineto", cut, "--execution-trace", execution)
        self.refused(3, "No such file", "--kineto", self.directory / "none.json", "--execution-trace", execution)
        self.refused(2, "both --kineto, for kernels and memory", "--kineto", two)
        self.refused(3, "is not a duration", *self.files(name), "--step-time", "fast")

        class Bad:
            def __reduce__(self):
                return print, ("run",)

        code = self.directory / "code.pickle"
        code.write_bytes(pickle.dumps({"segments": [Bad()]}, protocol=4))
        self.refused(3, "code.pickle", *self.files(name), "--snapshot", code)
        self.fails(2, "import it", "run", "t5:4")

    def test_broken_nodes_are_counted(self):
        text = subprocess.run(["zstd", "-dc", RECORDINGS / "resnet50-b32.et.json.zst"], stdout=subprocess.PIPE, check=True).stdout
        lines = io.BytesIO(text).readlines()
        starts = [i for i, line in enumerate(lines) if line.startswith(b'        "id": ')]
        for i in starts[100:400:100]:
            lines[i + 1] = lines[i + 1][:20] + b"\n"
        broken = self.directory / "broken.json"
        broken.write_bytes(b"".join(lines))
        text = self.ok("trace", "import", "--kineto", RECORDINGS / "resnet50-b32.kineto.json.zst", "--execution-trace", broken,
                       "-o", self.directory / "t.json", "--format", "json")
        row = json.loads(text)["rows"][0]
        self.assertEqual(row["broken_nodes"], 3)
        self.assertEqual(row["operators"] - row["joined_operators"], 3)


class Step:
    """A step of drawn size, in which each of a row of operators reads the last tensor and makes another one."""

    def __init__(self, draw):
        self.operators = draw.randint(2, 9)
        self.elements = draw.randint(1, 1 << 20)
        self.pid = draw.randint(1, 1 << 22)
        self.device = draw.choice((0, 0, 3))

    def events(self, pid=None, device=None):
        """Returns the events of the profiler."""
        pid, device = (self.pid if pid is None else pid), (self.device if device is None else device)
        size, events = 4 * self.elements, []
        for i in range(self.operators):
            at = {"ph": "X", "pid": pid, "tid": 5}
            launch = {"External id": i + 1, "correlation": 70 + i}
            events += [
                {**at, "cat": "cpu_op", "name": f"aten::op{i}", "ts": 1000.0 + 100 * i, "dur": 50.5,
                 "args": {"External id": i + 1, "Record function id": i + 1}},
                {**at, "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1005.0 + 100 * i,
                 "args": {"Device Type": 1, "Device Id": device, "Addr": (i + 1) << 32, "Bytes": size,
                          "Total Allocated": (i + 2) * size, "Total Reserved": 99 * size}},
                {**at, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1020.0 + 100 * i, "dur": 5.0,
                 "args": launch},
                {"ph": "X", "cat": "kernel", "name": "kernel", "pid": device, "tid": 7, "ts": 1030.0 + 100 * i, "dur": 10.0,
                 "args": {**launch, "device": device, "stream": 7}}]
        return events

    @staticmethod
    def kineto(events):
        return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}

    def execution_trace(self, old=False):
        """Returns the execution trace of schema 1.1.1 or, if `old`, of schema 1.0.1."""
        nodes = []
        for i in range(self.operators):
            tensors = [[[2 * n, 2 * n + 1, 0, self.elements, 4, f"cuda:{self.device}"]] for n in (i, i + 1)]
            attributes = {"rf_id": i + 1, "seq_id": -1, "tid": 1, "op_schema": f"aten::op{i}(Tensor self) -> Tensor"}
            shapes = [[self.elements]]
            if old:
                nodes.append({"name": f"aten::op{i}", "id": i + 3, "parent": 2, **attributes, "inputs": tensors[0],
                              "input_shapes": shapes, "outputs": tensors[1], "output_shapes": shapes})
            else:
                nodes.append({"id": i + 3, "name": f"aten::op{i}", "ctrl_deps": 2,
                              "inputs": {"values": tensors[0], "shapes": shapes},
                              "outputs": {"values": tensors[1], "shapes": shapes},
                              "attrs": [{"name": name, "value": value} for name, value in attributes.items()]})
        return {"schema": "1.0.1" if old else "1.1.1-chakra.0.0.4", "pid": self.pid, "nodes": nodes}


class DrawnStepTest(ImportCase):
    """Drawn steps, recorded as people's files are."""

    def steps(self, count=6):
        draw = random.Random(self.id())
        for _ in range(count):
            yield draw, Step(draw)

    def files(self, events, execution_trace):
        return ("--kineto", self.file("k.json", Step.kineto(events)),
                "--execution-trace", self.file("e.json", execution_trace))

    def make(self, *files):
        """Returns the trace of a step."""
        trace = self.directory / "t.json"
        row = json.loads(self.ok("trace", "import", *files, "-o", trace, "--network", "n", "--format", "json"))["rows"][0]
        self.assertEqual(row["joined_operators"], row["operators"])
        return json.loads(trace.read_text("utf-8"))

    def test_both_schemas_of_execution_traces_are_read(self):
        for _, step in self.steps():
            traces = [self.make(*self.files(step.events(), step.execution_trace(old))) for old in (False, True)]
            self.assertEqual(len(traces[0]["ops"]), step.operators)
            self.assertEqual(traces[0], traces[1])

    def test_other_schemas_are_named(self):
        for draw, step in self.steps(3):
            schema = f"{draw.randint(2, 9)}.{draw.randint(0, 9)}"
            document = {"schema": schema, "nodes": [{"key": node["id"]} for node in step.execution_trace()["nodes"]]}
            message = self.refused(3, f"e.json: no node of schema {schema} can be read", *self.files(step.events(), document))
            self.assertIn("(schemas 1.0.1 to 1.1.1)", message)
            self.assertIn("ExecutionTraceObserver()", message)

    def test_marks_and_strings_are_read(self):
        for draw, step in self.steps():
            plain = self.make(*self.files(step.events(), step.execution_trace()))
            events = step.events()
            for event in events:
                for key in draw.sample(("ts", "dur", "pid", "tid"), 2):
                    if key in event:
                        event[key] = str(event[key])
                event["args"] = {key: draw.choice((value, str(value))) for key, value in event["args"].items()}
            files = self.files(events, step.execution_trace())
            for path in files[1::2]:
                path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
            self.assertEqual(self.make(*files), plain)

    def test_several_processes_are_refused(self):
        for draw, step in self.steps():
            pids = sorted(draw.sample(range(1, 1 << 22), draw.randint(2, 6)), key=str)
            same = draw.random() < 0.5
            events = [event for i, pid in enumerate(pids) for event in step.events(pid, step.device if same else i)]
            if draw.random() < 0.5:
                draw.shuffle(events)
            message = self.refused(3, "k.json: operators of several processes", *self.files(events, step.execution_trace()))
            self.assertIn(f"({', '.join(map(str, pids))})", message)

    def test_profiles_without_a_part_say_what_to_record(self):
        def without(event, key):
            return {**event, "args": {name: value for name, value in event["args"].items() if name != key}}

        for _, step in self.steps(3):
            number = "Record function id"
            events = step.events()
            unnumbered = [without(event, number) for event in events]
            for changed, texts in (
                    (unnumbered, ("its operators have no 'Record function id'", "PyTorch 2.4")),
                    ([{**event, "cat": {"cpu_op": "Operator", "kernel": "Kernel"}.get(event["cat"], event["cat"])}
                      for event in unnumbered], ("its operators have no 'Record function id'",)),
                    ([{**event, "args": {**event["args"], **({number: 0} if number in event["args"] else {})}}
                      for event in events], ("recorded without an execution trace",)),
                    ([event for event in events if event["cat"] != "kernel"], ("k.json: memory events of a GPU but no kernels",
                                                                               "the activity CUDA")),
                    ([event for event in events if event["name"] != "[memory]"], ("profile_memory=True",)),
                    ([event for event in events if event["cat"] != "cpu_op"], ("no operators", "the activity CPU"))):
                message = self.refused(3, "k.json: ", *self.files(changed, step.execution_trace()))
                for text in (*texts, "execution_trace_observer=observer", "p.export_chrome_trace("):
                    self.assertIn(text, message)
                self.assertNotIn("different runs", message)

    def test_the_snapshot_s_device_is_the_profile_s(self):
        for _, step in self.steps(3):
            size = 4 * step.elements
            row = [{"action": "alloc", "addr": (i + 1) << 32, "size": size, "stream": 0} for i in range(step.operators)]
            other = [{**event, "size": 1} for event in row]
            snapshot = {"segments": [], "device_traces": [row if device == step.device else other for device in range(4)]}
            path = self.directory / "s.pickle"
            path.write_bytes(pickle.dumps(snapshot))
            text = self.ok("trace", "import", *self.files(step.events(), step.execution_trace()), "--snapshot", path, "-o",
                           self.directory / "t.json", "--format", "json")
            self.assertEqual(json.loads(text)["rows"][0]["snapshot_peak_requested_bytes"], step.operators * size)


if __name__ == "__main__":
    main()

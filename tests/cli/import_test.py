#!/usr/bin/env python3
"""Tests spillway trace import: PyTorch's recordings become traces that every verb accepts, and errors name wrong files.

usage: import_test.py PATH_OF_SPILLWAY
"""

import copy
import gzip
import io
import json
import pathlib
import pickle
import subprocess
import tempfile

from harness import CommandTest, ROOT, main

RECORDINGS = ROOT / "tests/testing/recordings/pytorch"
DEVICE = ("--device", "h200")


def read(name):
    """Returns the document in a recording."""
    data = subprocess.run(["zstd", "-dc", RECORDINGS / name], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(data)


class ImportTest(CommandTest):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def write(self, name, document):
        path = self.directory / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def files(self, name):
        return ("--kineto", RECORDINGS / f"{name}.kineto.json.zst", "--execution-trace", RECORDINGS / f"{name}.et.json.zst")

    def make(self, name, *args):
        """Returns the trace of a recording, and the messages of the import."""
        trace = self.directory / f"{name}.json.zst"
        text = self.ok("trace", "import", *self.files(name), *args, "-o", trace, "--format", "json")
        return trace, self.conforms(text, "trace-import")["rows"][0]

    def refused(self, code, text, *args):
        out = self.directory / "out.json"
        self.fails(code, text, "trace", "import", *args, "-o", out)
        self.assertFalse(out.exists())

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
                (slow,) = json.loads(self.ok("run", trace, *DEVICE, "--policy", "as-recorded", "--host", "recorded", "--format",
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
        path = self.write("r.manifest.json", manifest)
        row = json.loads(self.ok("trace", "import", path, "-o", self.directory / "t.json", "--format", "json"))["rows"][0]
        self.assertEqual((row["workload"], row["recorded_plain_step_ms"]), ("resnet50:32", 38.19))
        trace = json.loads((self.directory / "t.json").read_text("utf-8"))
        self.assertEqual(trace["recording"]["framework"], "PyTorch 2.11")
        del manifest["files"]["kineto"]
        manifest["outcome"] = "out of memory"
        self.refused(3, "it ended with 'out of memory'", self.write("oom.manifest.json", manifest))
        self.refused(3, "expected a manifest", self.write("other.json", {"format": "x"}))

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
        text = self.ok("trace", "import", "--kineto", self.write("k.json", {"deviceProperties": [], "traceEvents": cpu}),
                       "--execution-trace", self.directory / "et.json", "-o", trace, "--format", "json")
        row = self.conforms(text, "trace-import")["rows"][0]
        self.assertEqual((row["gpu"], row["kernels_ms"], row["recorded_step_ms"]), (None, 0, None))
        self.assertIn("recorded without a GPU", self.ok("run", trace, *DEVICE, "--policy", "as-recorded"))

    def test_wrong_files(self):
        name = "resnet50-b32"
        kineto, execution = read(f"{name}.kineto.json.zst"), RECORDINGS / f"{name}.et.json.zst"
        events = kineto["traceEvents"]

        def changed(file, change):
            return self.write(file, {**kineto, "traceEvents": change(copy.deepcopy(events))})

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
        self.fails(2, "import it", "run", "gpt2:4")

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


if __name__ == "__main__":
    main()

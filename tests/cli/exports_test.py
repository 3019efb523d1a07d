#!/usr/bin/env python3
"""Tests exported traces, memory curves, explanations and manifests.

usage: exports_test.py PATH_OF_SPILLWAY
"""

import csv
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from decimal import Decimal

from harness import CommandTest, DirectoryTest, ROOT, main, run

# A run with offloads, prefetches, fetches and stalls of several causes.
RUN = ("run", "vgg16:64", "--policy", "vdnn-dyn", "--memory", "30%")


def trace_errors(document, text):
    """Returns the violations of the rules of the Chrome/Perfetto JSON format that a viewer depends on."""
    events = document["traceEvents"]
    exact = json.loads(text, parse_float=Decimal, parse_int=Decimal)["traceEvents"]
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M"
             and e["name"] in ("process_name", "thread_name")}
    phases = [e["ph"] for e in events]
    last_meta = max(i for i, ph in enumerate(phases) if ph == "M")
    if "M" not in phases or last_meta != phases.count("M") - 1:
        yield "metadata does not come first"
    time = Decimal(0)
    open_until = {}
    slices = {}
    starts, ends = {}, {}
    counters = set()
    for event in exact[last_meta + 1:]:
        pid, tid, ts = event["pid"], event.get("tid"), event["ts"]
        if ts < time:
            yield f"{event['name']} at {ts} comes after {time}"
        time = ts
        if (pid, None) not in named or (pid, tid) not in named:
            yield f"pid {pid} tid {tid} has no name"
        if ts.as_tuple().exponent < -6:
            yield f"{ts} is finer than a picosecond"
        if event["ph"] == "X":
            if ts < open_until.get((pid, tid), Decimal(0)):
                yield f"{event['name']} overlaps its predecessor on track {tid}"
            open_until[(pid, tid)] = ts + event["dur"]
            slices.setdefault((pid, tid), []).append((ts, ts + event["dur"], event))
        elif event["ph"] == "C":
            counters |= {f"{event['name']} {key}" for key in event["args"]}
            if any(value < 0 for value in event["args"].values()):
                yield f"counter {event['name']} is negative at {ts}"
        else:
            flow = starts if event["ph"] == "s" else ends
            key = (event["id"], event["cat"], event["name"])
            if key in flow:
                yield f"flow {key} has two ends '{event['ph']}'"
            flow[key] = event
            if event["ph"] == "f" and event.get("bp") != "e":
                yield f"flow {key} does not bind to the enclosing slice"
    if starts.keys() != ends.keys():
        yield f"flows with one end: {sorted(starts.keys() ^ ends.keys())}"
    for key, start in starts.items():
        if key in ends and ends[key]["ts"] < start["ts"]:
            yield f"flow {key} goes back in time"
        for end in (start, ends.get(key, start)):
            track = slices.get((end["pid"], end["tid"]), [])
            if not any(begin <= end["ts"] < finish for begin, finish, _ in track):
                yield f"flow {key} has an end outside every slice"
    missing = {"device memory requested", "device memory allocated", "device memory reserved",
               "pinned host memory pinned"} - counters
    if missing:
        yield f"no counter {sorted(missing)}"


class ExportsTest(DirectoryTest):
    def row(self, *args):
        return json.loads(self.ok(*args, "--format", "json"))["rows"][0]

    def export(self, *args):
        path = self.directory / "trace.json"
        self.ok(*args, "--export", f"trace:{path}")
        text = path.read_text(encoding="utf-8")
        return self.conforms(text, "chrome-trace"), text

    def test_traces_follow_the_rules_of_the_format(self):
        for args in (RUN, ("run", "alexnet:16"), ("run", "googlenet:16", "--policy", "vdnn-all",
                                                  "--charge-input")):
            with self.subTest(args=args):
                document, text = self.export(*args)
                self.assertEqual(list(trace_errors(document, text)), [])

    def test_the_checker_finds_what_is_planted(self):
        document, text = self.export(*RUN)
        events = document["traceEvents"]

        def errors_after(change):
            broken = json.loads(text)
            change(broken["traceEvents"])
            return list(trace_errors(broken, json.dumps(broken)))
        first = next(i for i, e in enumerate(events) if e["ph"] == "X")
        flow = next(i for i, e in enumerate(events) if e["ph"] == "f")
        for change in (lambda e: e[first].update(dur=1e6),
                       lambda e: e.pop(flow),
                       lambda e: e[flow].pop("bp"),
                       lambda e: e[first].update(tid=9),
                       lambda e: e[-1].update(ts=0),
                       lambda e: e.reverse()):
            self.assertNotEqual(errors_after(change), [])

    def test_a_trace_agrees_with_the_result_row(self):
        row = self.row(*RUN)
        document, _ = self.export(*RUN)
        events = document["traceEvents"]
        slices = [e for e in events if e["ph"] == "X"]
        self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in slices) / 1e3, row["iteration_ms"])
        kernels = [e for e in slices if e["cat"].startswith("kernel")]
        self.assertAlmostEqual(sum(e["dur"] for e in kernels) / 1e3, row["compute_ms"])
        self.assertAlmostEqual(sum(e["args"].get("stall_us", 0) for e in kernels) / 1e3,
                               row["stall_ms"] - row["stall_drain_ms"])
        offloads = [e for e in slices if e["name"].startswith("offload ")]
        self.assertEqual(sum(e["args"]["bytes"] for e in offloads), row["offloaded_bytes"])
        memory = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "device memory"]
        self.assertEqual(max(m["allocated"] for m in memory), row["peak_allocated_bytes"])
        self.assertEqual(max(m["reserved"] for m in memory), row["peak_reserved_bytes"])
        self.assertTrue(any("winograd" in e["args"].get("algorithms", "") for e in kernels))
        flows = [e["name"] for e in events if e["ph"] == "s"]
        self.assertEqual(flows.count("offload and return"), flows.count("return and use"))
        self.assertEqual(flows.count("return and use"),
                         sum(e["name"].startswith(("prefetch ", "fetch ")) for e in slices))

    def test_the_picture_reads_traces_and_nothing_else(self):
        row = self.row(*RUN)
        self.export(*RUN)
        script = ROOT / "scripts" / "plot_timeline.py"
        sys.path.insert(0, str(script.parent))
        import plot_timeline
        _, capacity, memory, kernels, copies = plot_timeline.read(str(self.directory / "trace.json"))
        self.assertAlmostEqual(capacity * 2 ** 30, row["memory_bytes"])
        self.assertAlmostEqual(sum(length for _, length, *_ in kernels), row["compute_ms"])
        self.assertLessEqual(max(size for _, size in memory) * 2 ** 30, row["peak_allocated_bytes"])
        self.assertEqual({out for *_, out in copies}, {True, False})
        other = self.directory / "other.json"
        for text in ("", "[]", "{}", '{"otherData": {}, "traceEvents": []}'):
            other.write_text(text, encoding="utf-8")
            result = subprocess.run([sys.executable, script, other, self.directory / "t.png"],
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 3, text)
            self.assertTrue(result.stderr.startswith(f"plot_timeline.py: {other}: "), result.stderr)

    def test_memory_over_the_iteration_integrates_to_the_averages(self):
        path = self.directory / "memory.csv"
        self.ok(*RUN, "--export", f"memory:{path}")
        row = self.row(*RUN)
        samples = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        self.assertEqual(list(samples[0]), ["time_ms", "step", "op", "change", "tensor",
                                            "change_bytes", "requested_bytes", "allocated_bytes",
                                            "reserved_bytes", "pinned_bytes"])
        times = [Decimal(s["time_ms"]) for s in samples]
        self.assertEqual(times, sorted(times))
        times.append(Decimal(repr(row["iteration_ms"])))
        for name in ("requested", "allocated", "reserved"):
            values = [int(s[f"{name}_bytes"]) for s in samples]
            self.assertEqual(max(values), row[f"peak_{name}_bytes"])
            integral = sum(v * (b - a) for v, a, b in zip(values, times, times[1:]))
            self.assertAlmostEqual(float(integral / times[-1]) / row[f"avg_{name}_bytes"], 1)
        self.assertEqual(max(int(s["pinned_bytes"]) for s in samples), row["pinned_peak_bytes"])

    def test_explained_stalls_add_up(self):
        for args in (RUN, ("run", "vgg19:256", "--policy", "vdnn-all:algo=memory", "--memory",
                           "12GiB"), ("run", "alexnet:16")):
            document = self.conforms(self.ok(*args, "--explain", "--format", "json"), "explain")
            row, stalls = document["row"], document["stalls"]
            self.assertAlmostEqual(sum(s["stall_ms"] for s in stalls), row["stall_ms"])
            for cause in ("fetch", "fence", "memory", "launch", "drain"):
                self.assertAlmostEqual(sum(s["stall_ms"] for s in stalls if s["cause"] == cause),
                                       row[f"stall_{cause}_ms"])
            lengths = [s["stall_ms"] for s in stalls]
            self.assertEqual(lengths, sorted(lengths, reverse=True))
            for i, stall in enumerate(stalls):
                gains = [s["gain_ms"] for s in stall["suggestions"]]
                self.assertEqual(gains, sorted(gains, reverse=True))
                self.assertTrue(i < 10 or not gains)
                for s in stall["suggestions"]:
                    self.assertAlmostEqual(s["iteration_ms"] + s["gain_ms"], row["iteration_ms"])
            rows = list(csv.DictReader(io.StringIO(self.ok(*args, "--explain", "--format", "csv"))))
            self.assertEqual(len(rows), len(stalls))

    def test_a_remedy_is_printed_only_if_simulation_says_that_it_helps(self):
        # The run has the whole memory of the device, so more memory changes nothing.
        document = json.loads(self.ok("run", "vgg19:64", "--policy", "vdnn-all", "--memory", "80GiB",
                                      "--explain", "--format", "json"))
        kinds = {s["kind"] for stall in document["stalls"] for s in stall["suggestions"]}
        self.assertNotIn("more_memory", kinds)
        self.assertIn("no_fence", kinds)
        # A run with the suggested memory confirms the time that the remedy promises.
        args = ("run", "vgg19:256", "--policy", "vdnn-dyn", "--explain", "--format", "json")
        document = json.loads(self.ok(*args, "--memory", "12GiB"))
        suggestion = next(s for stall in document["stalls"] for s in stall["suggestions"]
                          if s["kind"] == "more_memory")
        memory = (12 << 30) + suggestion["memory_bytes"]
        row = json.loads(self.ok(*args, "--memory", f"{memory}B"))["row"]
        self.assertAlmostEqual(row["iteration_ms"], suggestion["iteration_ms"])

    def test_an_explanation_names_op_copy_and_remedy(self):
        text = self.ok("run", "vgg19:256", "--policy", "vdnn-all:algo=memory", "--memory", "12GiB",
                       "--explain")
        self.assertRegex(text, r"1\. .* ms \((fetch|fence)\): \S+ waited from .* for \w+ of \S+ ")
        self.assertRegex(text, r"with [\d.]+ GB/s to the (host|device) \(now .*\): .* per iteration, .* less")
        self.assertIn("without the fence before", text)
        self.assertGreater(text.index("Most is requested at"), text.index("The compute stream ran kernels"))
        # The fastest link that is sold moves 450 GB/s.
        for rate in re.findall(r"with ([\d.]+) GB/s", text):
            self.assertLessEqual(float(rate), 450)
        self.assertRegex(text, r"\d+ shorter waits")
        # Without long waits, the explanation begins with the memory and names no wait.
        text = self.ok("run", "alexnet:8", "--explain")
        self.assertLess(text.index("Most is requested at"), text.index("The compute stream ran kernels"))
        self.assertNotRegex(text, r"  1\. |shorter waits")
        # Every wait is listed in JSON; a run that does not fit has none.
        document = self.conforms(self.ok("run", "vgg19:256", "--memory", "4GiB", "--explain",
                                         "--format", "json", code=1), "explain")
        self.assertEqual(document["stalls"], [])

    def test_what_leaves_is_explained_by_what_keeping_it_would_cost(self):
        memory, plan = ("--memory", "10%"), self.directory / "plan.json"
        explain = ("--explain", "--format", "json")
        found = self.conforms(self.ok("run", "alexnet:32", *memory, "--policy", "joint:effort=50", *explain,
                                      "--export", f"plan:{plan}"), "explain")
        storages = found["storages"]
        self.assertGreater(len(storages), 2)
        sizes = [s["bytes"] for s in storages]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        for i, storage in enumerate(storages):
            self.assertEqual(storage["fits_if_kept"] is None, i >= 10)
            self.assertEqual(storage["way_back"] == "recompute", storage["copied_at"] is None)
            if storage["fits_if_kept"]:
                self.assertAlmostEqual(storage["iteration_if_kept_ms"],
                                       found["row"]["iteration_ms"] + storage["cost_of_keeping_ms"])
        # A run with the exported plan follows it and does not plan anew, so its explanation is the same.
        again = json.loads(self.ok("run", "alexnet:32", *memory, "--policy", f"plan:file={plan}", *explain))
        self.assertEqual(again["storages"], storages)
        text = self.ok("run", "alexnet:32", *memory, "--policy", f"plan:file={plan}", "--explain")
        self.assertIn(f"{len(storages)} storages leave the device and come back", text)
        # In an in-core run no storage leaves the device.
        self.assertEqual(json.loads(self.ok("run", "alexnet:32", *explain))["storages"], [])

    def test_a_schedule_adds_up_to_the_run(self):
        path = self.directory / "schedule.csv"
        args = ("run", "alexnet-caffe:1,mode=inference", "--policy", "mmcnn:limit=20MiB")
        self.ok(*args, "--export", f"schedule:{path}")
        (row,) = json.loads(self.ok(*args, "--format", "json"))["rows"]
        layers = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        self.assertEqual(sum(int(layer["in_bytes"]) for layer in layers), row["prefetched_bytes"])
        self.assertEqual(max(int(layer["memory_bytes"]) for layer in layers), row["peak_allocated_bytes"])
        self.assertAlmostEqual(sum(float(layer["compute_ms"]) + float(layer["stall_ms"]) for layer in layers),
                               row["iteration_ms"], 6)
        by_name = {layer["layer"]: layer for layer in layers}
        self.assertEqual(by_name["conv1"]["ops"], "1")
        self.assertGreater(int(by_name["fc6"]["ops"]), 5)
        self.assertEqual(by_name["conv3"]["prefetch_from"], "conv2.relu.fwd")

    def test_the_rewritten_trace_runs_as_it_is(self):
        path = self.directory / "divided.json"
        args = ("run", "alexnet-caffe:1,mode=inference", "--policy", "mmcnn:limit=20MiB")
        self.ok(*args, "--export", f"rewritten:{path}")
        self.assertEqual(json.loads(path.read_text(encoding="utf-8"))["version"], 2)
        row = self.row("run", path, "--policy", "inference-vdnn")
        self.assertLess(row["peak_allocated_bytes"], 80 * 2 ** 20)  # fc6 alone has 144 MiB
        self.ok(*args[:2], "--policy", "liveness", "--export", f"rewritten:{path}")
        self.assertEqual(path.read_text(encoding="utf-8"),
                         self.ok("trace", "build", "alexnet-caffe:1,mode=inference"))

    def test_a_run_that_does_not_fit_exports_nothing(self):
        path = self.directory / "trace.json"
        result = run("run", "vgg19:256", "--memory", "4GiB", "--export", f"trace:{path}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("does not fit", result.stderr)
        self.assertEqual(os.listdir(self.directory), [])

    # --- manifests ------------------------------------------------------------------------------

    def export_all(self):
        files = {name: self.directory / name for name in ("result.json", "trace.json", "memory.csv")}
        stdout = self.ok(*RUN, "--format", "json", "--output", files["result.json"], "--export",
                         f"trace:{files['trace.json']}", "--export", f"memory:{files['memory.csv']}")
        self.assertEqual(stdout, "")
        return files

    def test_a_manifest_stands_beside_each_result(self):
        files = self.export_all()
        self.assertEqual(len(os.listdir(self.directory)), 6)
        self.conforms(files["result.json"].read_text(encoding="utf-8"), "results")
        for path in files.values():
            manifest = self.conforms(pathlib.Path(f"{path}.manifest.json").read_text("utf-8"),
                                     "manifest")
            for output in manifest["outputs"]:
                contents = pathlib.Path(output["path"]).read_bytes()
                self.assertEqual(hashlib.sha256(contents).hexdigest(), output["sha256"])
                self.assertEqual(len(contents), output["bytes"])
            inputs = {i["role"]: i for i in manifest["inputs"]}
            self.assertEqual(inputs["trace"]["sha256"], hashlib.sha256(
                self.ok("trace", "build", "vgg16:64").encode()).hexdigest())
            self.assertEqual(inputs["device"]["sha256"], hashlib.sha256(
                (ROOT / "sim/devices/h200.toml").read_bytes()).hexdigest())
            self.assertEqual(inputs["cost_table"]["name"],
                             "traces/recorded/h200/vgg16-64.json.zst")
            trace = json.loads(files["trace.json"].read_text(encoding="utf-8"))
            self.assertEqual(trace["otherData"]["run_sha256"], manifest["run_sha256"])

    def test_replay_makes_the_same_bytes(self):
        files = self.export_all()
        again = self.directory / "again"
        manifest = f"{files['result.json']}.manifest.json"
        before = sorted(os.listdir(self.directory))
        document = self.conforms(self.ok("replay-run", manifest, "--format", "json"), "replay-run")
        self.assertEqual([row["same"] for row in document["rows"]], [True] * 3)
        self.assertEqual(sorted(os.listdir(self.directory)), before)
        self.ok("replay-run", manifest, "--output-dir", again)
        for path in files.values():
            self.assertEqual(path.read_bytes(), (again / path.name).read_bytes())

    def test_replay_says_when_the_result_differs(self):
        path = self.directory / "r.csv"
        self.ok("compare", "alexnet:8", "--format", "csv", "-o", path)
        manifest = pathlib.Path(f"{path}.manifest.json")
        self.ok("replay-run", manifest)
        document = json.loads(manifest.read_text(encoding="utf-8"))
        document["outputs"][0]["sha256"] = "0" * 64
        manifest.write_text(json.dumps(document), encoding="utf-8")
        self.assertIn("DIFFERENT", self.ok("replay-run", manifest, code=1))
        document["arguments"] = ["trace", "build", "alexnet:1", "-o", str(self.directory / "new")]
        manifest.write_text(json.dumps(document), encoding="utf-8")
        self.fails(3, "cannot be replayed (valid: run, compare, limit, fit, plan, replay, reproduce)",
                   "replay-run", manifest)
        self.assertFalse((self.directory / "new").exists())

    def test_replay_compares_manifest_file_and_run(self):
        path = self.directory / "r.csv"
        self.ok("run", "alexnet:8", "-o", path)
        manifest = pathlib.Path(f"{path}.manifest.json")
        file, recorded = path.read_bytes(), json.loads(manifest.read_text("utf-8"))
        other = file.replace(b"liveness", b"likeness")

        def replay(contents, described):
            """Replays with these contents of the file and with a manifest that describes contents; returns the line."""
            if contents is None:
                path.unlink()
            else:
                path.write_bytes(contents)
            recorded["outputs"][0]["sha256"] = hashlib.sha256(described).hexdigest()
            manifest.write_text(json.dumps(recorded), "utf-8")
            same = described == file and contents in (file, None)
            (row,) = json.loads(self.ok("replay-run", manifest, "--format", "json", code=0 if same else 1))["rows"]
            self.assertEqual(row["same"], same)
            self.assertEqual(row["file_sha256"], contents and hashlib.sha256(contents).hexdigest())
            return self.ok("replay-run", manifest, code=0 if same else 1).partition(": ")[2]

        self.assertEqual(replay(file, file), "same\n")
        self.assertEqual(replay(other, file),
                         "DIFFERENT: the file has changed; the new run gives what the manifest says\n")
        self.assertEqual(replay(other, other),
                         "DIFFERENT: the new run gives other bytes than the file and the manifest\n")
        self.assertEqual(replay(file, other),
                         "DIFFERENT: the file and the new run are not what the manifest says\n")
        self.assertEqual(replay(b"x", other), "DIFFERENT: the new run gives other bytes than the manifest says\n")
        self.assertEqual(replay(None, file), "same (there is no file to compare)\n")
        # The file beside the manifest counts, not the one at the path of that time.
        moved = self.directory / "moved"
        moved.mkdir()
        replay(file, file)
        (moved / "r.csv.manifest.json").write_bytes(manifest.read_bytes())
        (moved / "r.csv").write_bytes(other)
        self.assertIn("the file has changed", self.ok("replay-run", moved / "r.csv.manifest.json", code=1))

    def test_replay_names_an_input_that_has_changed(self):
        trace, device = self.directory / "t.json.zst", self.directory / "gpu.toml"
        table = ROOT / "traces/recorded/h200/alexnet-128.json.zst"
        self.ok("trace", "build", "alexnet:128", "-o", trace)
        device.write_bytes((ROOT / "sim/devices/h200.toml").read_bytes())
        result = self.directory / "r.json"
        self.ok("run", trace, "--device", device, "--cost", table, "-o", result)
        manifest = f"{result}.manifest.json"
        self.ok("replay-run", manifest)
        device.write_text(device.read_text("utf-8").replace("# ", "#  ", 1), encoding="utf-8")
        self.assertIn(str(device), self.fails(3, "has changed", "replay-run", manifest))
        device.write_bytes((ROOT / "sim/devices/h200.toml").read_bytes())
        self.ok("replay-run", manifest)
        self.ok("trace", "build", "alexnet:64", "-o", trace)
        self.assertIn(str(trace), self.fails(3, "has changed", "replay-run", manifest))
        trace.unlink()
        self.fails(3, "does not exist", "replay-run", manifest)

    def test_replay_covers_reproduce_and_refuses_bad_manifests(self):
        path = self.directory / "papers.json"
        self.ok("reproduce", "vdnn", "--format", "json", "-o", path)
        self.conforms(path.read_text(encoding="utf-8"), "reproduce")
        self.ok("replay-run", f"{path}.manifest.json")
        self.fails(3, "cannot read", "replay-run", self.directory / "none.manifest.json")
        self.fails(3, "schema", "replay-run", path)

    def test_replay_cannot_write_two_files_of_one_name(self):
        (self.directory / "a").mkdir()
        (self.directory / "b").mkdir()
        first, second = self.directory / "a" / "x", self.directory / "b" / "x"
        self.ok("run", "alexnet:8", "-o", first, "--export", f"memory:{second}")
        again = self.directory / "again"
        self.fails(3, "same name", "replay-run", f"{first}.manifest.json", "--output-dir", again)
        self.assertFalse(again.exists())
        self.ok("replay-run", f"{second}.manifest.json")
        single = self.directory / "single"
        self.ok("run", "alexnet:8", "-o", single)
        self.fails(3, "cannot create the directory", "replay-run", f"{single}.manifest.json",
                   "--output-dir", single / "below")

    def test_two_exports_cannot_share_a_file(self):
        path = self.directory / "same"
        self.fails(2, "same file", "run", "alexnet:8", "-o", path, "--export", f"memory:{path}")
        self.assertEqual(os.listdir(self.directory), [])
        # The error is the same for any spelling of the path, and for the manifest of an export.
        for other in ("./same", "link/same", "same.manifest.json"):
            (self.directory / "link").symlink_to(".")
            self.fails(2, "same file", "run", "alexnet:8", "-o", "same", "--export", f"memory:{other}",
                       cwd=self.directory)
            (self.directory / "link").unlink()
            self.assertEqual(os.listdir(self.directory), [])

    def test_a_chosen_allocator_is_named(self):
        args = ("resnet50:64", "--policy", "liveness", "--memory", "5.1GiB")
        self.assertEqual(self.row("run", *args, "--allocator", "best-fit")["allocator"], "best-fit")
        row = self.row("run", *args, "--allocator", "auto")
        self.assertEqual(row["allocator"], "planned")  # this allocator reserves the least
        self.assertIn("liveness: allocator planned\n", self.ok("run", *args, "--allocator", "auto"))
        self.assertEqual(self.row("compare", *args, "--allocator", "auto")["allocator"], "planned")
        named = self.row("run", *args, "--allocator", "planned")
        for one in (named, row):  # without a limit auto chooses best-fit
            del one["in_core_peak_bytes"]
        self.assertEqual(named, row)

    def test_planned_looks_for_as_long_as_its_effort_says(self):
        args = ("resnet50:64", "--device", "h200", "--policy", "superneurons", "--memory", "50%", "--allocator")
        quick, normal = (self.row("run", *args, f"planned:effort={effort}") for effort in ("quick", "normal"))
        self.assertNotEqual(quick["peak_reserved_bytes"], normal["peak_reserved_bytes"])

    def test_no_output_takes_the_place_of_an_input(self):
        trace = self.directory / "t.json"
        self.ok("trace", "build", "alexnet:8", "-o", trace)
        before = trace.read_bytes()
        self.fails(2, "the input and --output name the same file", "run", trace, "-o", trace)
        self.assertEqual(trace.read_bytes(), before)
        self.assertEqual(os.listdir(self.directory), ["t.json"])

    def test_what_is_different_on_a_device_is_written_down(self):
        result = self.directory / "r.json"
        args = ("--policy", "vdnn-all", "--format", "json")
        plain = self.row("run", "vgg16:64", "--policy", "vdnn-all")
        self.ok("run", "vgg16:64", "--device", "h200:link=2", *args, "-o", result)
        (row,) = json.loads(result.read_text(encoding="utf-8"))["rows"]
        self.assertEqual(row["device"], "h200:link=2")
        self.assertEqual(row["cost"], plain["cost"])  # the recorded times
        self.assertEqual(row["bound_compute_ms"], plain["bound_compute_ms"])
        self.assertAlmostEqual(row["bound_copy_ms"] / plain["bound_copy_ms"], 0.5, places=3)
        self.assertLess(row["iteration_ms"], plain["iteration_ms"])
        manifest = f"{result}.manifest.json"
        inputs = {i["role"]: i for i in json.loads(pathlib.Path(manifest).read_text())["inputs"]}
        self.assertEqual(inputs["device"]["name"], "sim/devices/h200.toml")
        self.assertIsNotNone(inputs["device"]["sha256"])
        self.ok("replay-run", manifest)
        slow = self.row("run", "vgg16:64", "--policy", "vdnn-all", "--device",
                        "h200:h2d=20GB/s,d2h=20GB/s")
        self.assertGreater(slow["iteration_ms"], plain["iteration_ms"])
        table = self.ok("limit", "alexnet", "--policy", "liveness", "--memory", "1GiB", "--device",
                        "k40c:link=2")
        self.assertIn(", link=2 with 1 GiB: the largest batch", table)


class DecisionsTest(CommandTest):
    def test_decisions_conform_and_their_kernels_can_be_repeated(self):
        with tempfile.TemporaryDirectory() as directory:
            decisions = pathlib.Path(directory) / "decisions.json"
            again = pathlib.Path(directory) / "again.json"
            self.ok(*RUN, "--export", f"decisions:{decisions}")
            document = self.conforms(decisions.read_text(), "decisions")
            verbs = {d["verb"] for d in document["decisions"]}
            self.assertLessEqual({"offload", "release", "run"}, verbs)
            self.ok("run", "vgg16:64", "--kernels-from", str(decisions),
                    "--export", f"decisions:{again}")
            repeated = self.conforms(again.read_text(), "decisions")
            runs = [d for d in document["decisions"] if d["verb"] == "run"]
            self.assertEqual([d for d in repeated["decisions"] if d["verb"] == "run"], runs)
            self.assertEqual({d["verb"] for d in repeated["decisions"]}, {"run"})
            manifest = f"{again}.manifest.json"
            self.conforms(pathlib.Path(manifest).read_text(encoding="utf-8"), "manifest")
            self.ok("replay-run", manifest)
            decisions.write_text(decisions.read_text() + "\n", encoding="utf-8")
            self.assertIn(str(decisions), self.fails(3, "has changed", "replay-run", manifest))

    def test_the_cpu_backend_writes_what_the_simulator_writes(self):
        with tempfile.TemporaryDirectory() as directory:
            paths = [pathlib.Path(directory) / name for name in ("sim.json", "cpu.json")]
            for path, backend in zip(paths, ("sim", "cpu")):
                self.ok("run", "alexnet:1", "--policy", "vdnn-all", "--backend", backend,
                        "--export", f"decisions:{path}")
            self.assertEqual(paths[0].read_bytes(), paths[1].read_bytes())

    def peak(self, *args):
        return json.loads(self.ok(*args, "--format", "json"))["rows"][0]["peak_allocated_bytes"]

    def test_a_plan_is_followed_on_every_backend(self):
        with tempfile.TemporaryDirectory() as directory:
            plan = f"{directory}/plan.json"
            memory = ("--memory", "40%")
            found = self.peak("run", "alexnet:2", *memory, "--policy", "joint:effort=50",
                              "--export", f"plan:{plan}")
            for backend in ("sim", "cpu"):
                again = f"{directory}/{backend}.json"
                peak = self.peak("run", "alexnet:2", *memory, "--policy", f"plan:file={plan}",
                                 "--backend", backend, "--export", f"plan:{again}")
                self.assertEqual(peak, found)
                self.assertEqual(pathlib.Path(again).read_bytes(), pathlib.Path(plan).read_bytes())
            self.fails(3, f"{plan}:4:15", "run", "alexnet:4", "--policy", f"plan:file={plan}")
            self.fails(3, "none.json", "run", "alexnet:4", "--policy", "plan:file=none.json")
            self.fails(2, "has no plan", "run", "alexnet:2", "--export", f"plan:{directory}/x.json")
            self.assertFalse(pathlib.Path(f"{directory}/x.json").exists())

    def test_what_is_planned_is_printed_with_its_gap_to_the_bound(self):
        args = ("compare", "alexnet:32", "--memory", "40%", "--policy", "joint:effort=50", "--policy", "vdnnpp")
        joint, _ = json.loads(self.ok(*args, "--format", "json"))["rows"]
        time, bound = joint["iteration_ms"], joint["bound_joint_ms"]
        line = (f"joint:effort=50: {time:.1f} ms are {100 * (time / bound - 1):.1f} % over {bound:.1f} ms, "
                "which no run in this memory beats that keeps parameters and state there")
        text = self.ok(*args)
        self.assertIn(line, text)
        self.assertEqual(text.count("which no run"), 1)

    def test_kernels_of_another_network_are_bad_input(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "decisions.json"
            self.ok("run", "alexnet:8", "--export", f"decisions:{path}")
            failed = run("run", "vgg16:8", "--kernels-from", str(path))
            self.assertEqual(failed.returncode, 3)
            self.assertIn("conv1_1.fwd", failed.stderr)
            path.write_text(path.read_text().replace('"batch": 8', '"batch": 0', 1))
            failed = run("run", "alexnet:8", "--kernels-from", str(path))
            self.assertEqual(failed.returncode, 3)
            self.assertIn("decisions[0].batch", failed.stderr)


if __name__ == "__main__":
    main()

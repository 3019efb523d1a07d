#!/usr/bin/env python3
"""Tests replays of allocation logs, and snapshots of simulated runs.

usage: replay_test.py PATH_OF_SPILLWAY
"""

import csv
import gzip
import io
import json
import pathlib
import pickle
import pickletools
import random

from harness import ROOT, DirectoryTest, main, run

BASE = 0x7F00 << 32
MIB = 1 << 20
RECORDINGS = ROOT / "tests" / "testing" / "recordings"

# Sizes are multiples of 512 bytes. The gap that a leaves is too small for c.
GAP = "id,lower,upper,size\na,0,2,1024\nb,1,6,512\nc,3,7,1536\n"


def event(action, address, size, stream=0, **more):
    return {"action": action, "addr": BASE + address, "size": size, "stream": stream,
            "time_us": 1795179442260570, "frames": [], **more}


def snapshot(events, **settings):
    return {"segments": [], "device_traces": [events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
                                   "garbage_collection_threshold": 0.0,
                                   "expandable_segments": False,
                                   "roundup_power2_divisions": {"1": 0, "2": 0}, **settings}}


class LogTest(DirectoryTest):
    def replay(self, path, *args, code=0):
        document = self.ok("replay", path, "--format", "json", *args, code=code)
        return self.conforms(document, "replay")


class ReplayTest(LogTest):
    def test_every_pickle_protocol_that_python_writes_is_read(self):
        frames = [{"filename": "a.py", "line": 3, "name": "f"}]
        events = [event("segment_alloc", 0, 20 * MIB), event("alloc", 0, 3 * MIB, frames=frames),
                  event("free_requested", 0, 3 * MIB, frames=frames),
                  event("free_completed", 0, 3 * MIB)]
        events += [event(action, 0, 2 * MIB) for _ in range(1200)
                   for action in ("alloc", "free_completed")]
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            with self.subTest(protocol=protocol):
                path = self.file("snapshot.pickle", pickle.dumps(snapshot(events), protocol))
                document = self.replay(path, "--allocator", "pytorch")
                self.assertEqual(document["log"]["events"], 2402)
                self.assertEqual(document["rows"][0]["peak_reserved_bytes"], 20 * MIB)
                self.assertIs(document["rows"][0]["as_recorded"], True)
        for protocol in (0, 1):
            path = self.file("snapshot.pickle", pickle.dumps(snapshot(events), protocol))
            self.fails(3, "snapshot.pickle", "replay", path)

    def test_a_device_without_events_is_refused(self):
        events = [event("segment_alloc", 0, 2 * MIB), event("alloc", 0, MIB),
                  event("free_completed", 0, MIB)]
        two = snapshot([])
        two["device_traces"] = [[], events, [], [dict(e) for e in events]]
        path = self.file("two.pickle", pickle.dumps(two))
        self.fails(3, "2 devices have events: choose one with --trace-device (valid: 1, 3)",
                   "replay", path)
        self.assertEqual(self.replay(path, "--trace-device", "3")["log"]["events"], 2)
        message = self.fails(3, "device 2 has no events (devices with events: 1, 3)", "replay", path,
                             "--trace-device", "2")
        self.assertIn(str(path), message)

    def test_the_device_that_ran_out_of_memory_is_taken(self):
        """Of several devices the one that failed is taken, and a device with a stray record is none."""
        events = [event("segment_alloc", 0, 32 * MIB), event("alloc", 0, 32 * MIB)]
        failed = [*events, event("oom", 0, 64 * MIB, device_free=8 * MIB)]
        stray = [event("user_defined", 0, 0)]

        def replayed(*traces, code):
            several = snapshot([])
            several["device_traces"] = [[dict(e) for e in trace] for trace in traces]
            path = self.file("several.pickle", pickle.dumps(several))
            return run("replay", path, "--allocator", "pytorch")

        for traces, words in (((events, failed, events), "device 1, the only one that ran out of memory, is taken"),
                              ((failed, events), "device 0, the only one that ran out of memory, is taken"),
                              ((stray, [], failed), "device 2, the only one that ran out of memory, is taken"),
                              ((stray, events), "device 1, the only one that allocates, is taken")):
            result = replayed(*traces, code=1)
            self.assertIn(words, result.stderr)
            self.assertEqual("recorded out of memory at event 2" in result.stdout, failed in traces, result.stdout)
        result = replayed(failed, events, failed, code=3)
        self.assertEqual(result.returncode, 3)
        self.assertIn("2 devices ran out of memory: choose one with --trace-device (valid: 0, 2)", result.stderr)

    def test_a_failure_while_a_block_waited_for_a_stream_says_so(self):
        events = [event("segment_alloc", 0, 64 * MIB), event("alloc", 0, 64 * MIB), event("segment_alloc", 2**32, 32 * MIB),
                  event("alloc", 2**32, 32 * MIB), event("free_requested", 0, 64 * MIB)]
        end = [event("free_completed", 0, 64 * MIB), event("oom", 0, 48 * MIB, device_free=8 * MIB)]
        path = self.file("w.pickle", pickle.dumps(snapshot(events + end)))
        told = " ".join(run("replay", path, "--allocator", "pytorch").stdout.split())
        self.assertIn("a block of 64 MiB that the program had freed still waited for another stream", told)
        self.assertIn("a second try works", told)
        document = self.replay(path, "--allocator", "pytorch")
        self.assertEqual(document["recorded_failure"]["awaited_block_bytes"], 64 * MIB)
        path = self.file("n.pickle", pickle.dumps(snapshot(events[:-1] + end[1:])))  # nothing was freed
        self.assertNotIn("waited", run("replay", path, "--allocator", "pytorch").stdout)

    def test_a_wrong_budget_is_wrong_usage(self):
        path = self.file("gap.csv", GAP)
        for text in ("50%", "-3GiB", "12", "lots"):
            self.fails(2, f"memory: '{text}' is not a size", "replay", path, "--memory", text)

    def test_code_in_a_pickle_is_refused(self):
        class Hostile:
            def __reduce__(self):
                return (print, ("harm",))

        for protocol, name in ((2, "GLOBAL"), (4, "STACK_GLOBAL")):
            path = self.file("bad.pickle", pickle.dumps(snapshot([Hostile()]), protocol))
            message = self.fails(3, f"opcode {name} is refused", "replay", path)
            self.assertRegex(message, r"bad.pickle: byte \d+: ")

    def test_recorded_settings_are_used(self):
        events = [event("segment_alloc", 0, 64 * MIB), event("alloc", 0, 64 * MIB),
                  event("free_completed", 0, 64 * MIB),
                  event("segment_alloc", 256 * MIB, 30 * MIB), event("alloc", 256 * MIB, 30 * MIB)]
        path = self.file("s.pickle", pickle.dumps(snapshot(events, max_split_size=32 * MIB)))
        rows = self.replay(path, "--allocator", "pytorch,pytorch:max_split_size=1GiB")["rows"]
        self.assertEqual([row["peak_reserved_bytes"] for row in rows], [94 * MIB, 64 * MIB])
        self.assertEqual([row["as_recorded"] for row in rows], [True, None])

    def test_recorded_divisions_may_differ_by_size(self):
        divisions = {str(2**i): 0 for i in range(16)} | {"4": 2}
        events = [event("segment_alloc", 0, 20 * MIB), event("alloc", 0, 5 * MIB)]
        path = self.file("s.pickle", pickle.dumps(
            snapshot(events, roundup_power2_divisions=divisions)))
        rows = self.replay(path, "--allocator", "pytorch,pytorch:roundup_power2_divisions="
                           "[2:0,4:2,>:0],pytorch:expandable_segments=false")["rows"]
        self.assertEqual([row["peak_allocated_bytes"] for row in rows],
                         [6 * MIB, 6 * MIB, 5 * MIB])
        self.assertEqual([row["as_recorded"] for row in rows], [True, None, None])
        path = self.file("s.pickle", pickle.dumps(
            snapshot(events, roundup_power2_divisions={"4": 3})))
        self.fails(3, "power of two", "replay", path)

    def test_what_is_not_used_may_be_anything(self):
        def anything(depth=0):
            values = [2**64 - 1, 2**63, -2**64, 2**draw.randint(65, 2400), 0.5, None, True, b"x" * 300,
                      "y" * draw.randint(0, 2000), bytearray(b"z"), "7"]
            if depth < 3:
                values += [[anything(depth + 1)], {"key": anything(depth + 1)}, (anything(depth + 1),),
                           {1, "a"}, frozenset((2,))]
            return draw.choice(values)

        draw = random.Random(48)
        for _ in range(25):
            size = draw.randint(1, 9 * MIB)
            frames = [{"filename": anything(), "line": anything(), "name": anything(), "more": anything()}]
            segment = {"device": 0, "address": BASE, "total_size": 20 * MIB, "stream": 0,
                       "segment_type": "large", "active_size": anything(), "segment_pool_id": anything(),
                       "frames": frames, "blocks": [
                           {"address": BASE, "size": 20 * MIB, "requested_size": anything(),
                            "state": "inactive", "frames": anything()}]}
            document = snapshot([event("segment_alloc", 0, 20 * MIB, frames=frames),
                                 event("alloc", 0, size + MIB, time_us=anything(), frames=frames,
                                       user_metadata=anything()),
                                 event("free_completed", 0, size + MIB, compile_context=anything())])
            document.update(segments=[segment], external_annotations=anything(), more=anything())
            document["allocator_settings"]["more"] = anything()
            path = self.file("s.pickle", pickle.dumps(document, 5))
            row = self.replay(path, "--allocator", "pytorch")["rows"][0]
            self.assertEqual((row["peak_requested_bytes"], row["as_recorded"]), (size + MIB, True))

    def test_defaults_are_assumed_where_no_settings_are_recorded(self):
        draw = random.Random(49)
        for expandable in (False, True) * 3:
            size = draw.randint(2 * MIB, 20 * MIB)
            taken = 20 * MIB if expandable or size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            document = snapshot([event("segment_map" if expandable else "segment_alloc", 0, taken),
                                 event("alloc", 0, size)])
            document["allocator_settings"] = draw.choice((None, {}))
            if document["allocator_settings"] is None:
                del document["allocator_settings"]
            path = self.file("s.pickle", pickle.dumps(document))
            replayed = self.replay(path, "--allocator", "pytorch")
            self.assertIs(replayed["log"]["records_settings"], False)
            row = replayed["rows"][0]
            self.assertEqual((row["peak_reserved_bytes"], row["as_recorded"]), (taken, True))
            text = self.ok("replay", path)
            self.assertIn("settings are not recorded: PyTorch's defaults are assumed", text)
            self.assertRegex(text, r"pytorch .* yes\n")

    def test_a_missing_verdict_has_a_reason(self):
        events = [event("segment_alloc", 0, 20 * MIB), event("alloc", 0, 5 * MIB)]
        recorded = self.file("s.pickle", pickle.dumps(snapshot(events)))
        collects = self.file("gc.pickle", pickle.dumps(snapshot(events, garbage_collection_threshold=0.5)))
        for path, args, code, reason in (
                (recorded, ("--memory", "1GiB"), 0, "the recorded memory limit is not known"),
                (collects, ("--memory", "5MiB"), 1, "the log is not served to its end"),
                (self.file("gap.csv", GAP), (), 0, "the log does not tell which segments there were")):
            row, other = self.replay(path, "--allocator", "pytorch,best-fit", *args, code=code)["rows"]
            self.assertEqual((row["as_recorded"], row["not_compared"]), (None, reason))
            self.assertIsNotNone(other["not_compared"])
            self.assertIn(f"as recorded -: {reason}\n", self.ok("replay", path, *args, code=code))
        row, other = self.replay(recorded, "--allocator", "pytorch,best-fit")["rows"]
        self.assertEqual((row["as_recorded"], row["not_compared"]), (True, None))
        self.assertEqual(other["not_compared"], "only pytorch without parameters has the recorded settings")

    def test_the_recorded_size_of_large_segments_is_used(self):
        draw = random.Random(50)
        for expandable in (False, True) * 3:
            mib = 2 * draw.randint(6, 100)
            size = 512 * draw.randint(4096, 20479)  # from 2 MiB to less than 10 MiB
            events, at, end = [], 0, 0
            for _ in range(60):
                if at + size > end:
                    if not expandable:
                        at = end = end + (1 << 30)
                    events.append(event("segment_map" if expandable else "segment_alloc", end, mib * MIB))
                    end += mib * MIB
                events.append(event("alloc", at, size))
                at += size
            path = self.file("s.pickle", pickle.dumps(snapshot(
                events, expandable_segments=expandable,
                PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable},large_segment_size_mb:{mib}")))
            document = self.replay(path, "--allocator", "pytorch")
            self.assertEqual(document["log"]["settings_not_modelled"], [])
            self.assertIs(document["rows"][0]["as_recorded"], True, (mib, expandable))
        path = self.file("s.pickle", pickle.dumps(snapshot([], PYTORCH_CUDA_ALLOC_CONF="large_segment_size_mb:9")))
        self.fails(3, "'large_segment_size_mb': expected a whole number from 11", "replay", path)

    def test_settings_that_are_not_modelled_are_named(self):
        draw = random.Random(51)
        modelled = ["max_split_size_mb:64", "roundup_power2_divisions:[256:1,512:2,>:4]", "backend:native",
                    "expandable_segments:False", "garbage_collection_threshold:0.8"]
        others = ["backend:cudaMallocAsync", "pinned_use_cuda_host_register:True", "pinned_num_register_threads:8",
                  "release_lock_on_cudamalloc:True", "graph_capture_record_stream_reuse:True",
                  "per_process_memory_fraction:0.5", "pinned_reserve_segment_size_mb:64", "new_setting:[1:2,3]"]
        events = [event("segment_alloc", 0, 20 * MIB), event("alloc", 0, 5 * MIB)]
        for _ in range(8):
            named = draw.sample(others, draw.randint(0, 3))
            settings = named + draw.sample(modelled, 2)
            draw.shuffle(settings)
            text = draw.choice((",", " , ")).join(settings)
            path = self.file("s.pickle", pickle.dumps(snapshot(events, PYTORCH_CUDA_ALLOC_CONF=text)))
            document = self.replay(path, "--allocator", "pytorch")
            self.assertEqual(sorted(document["log"]["settings_not_modelled"]), sorted(named))
            table = self.ok("replay", path)
            for setting in named:
                self.assertRegex(table, f"settings that are not modelled: .*{setting}".replace("[", r"\["))
            self.assertEqual("not modelled" in table, bool(named))

    def test_recorded_collections_of_garbage_are_predicted(self):
        # Half of the 100 MiB are in use, so 12, cached for two requests, is collected before 20 is
        # taken.
        at = {size: 64 * MIB * size for size in (12, 14, 16, 18, 20)}
        events = []
        for action, size in (("alloc", 12), ("alloc", 14), ("alloc", 16), ("free", 12),
                             ("alloc", 18), ("free", 14), ("collect", 12), ("alloc", 20)):
            names = {"alloc": ("segment_alloc", "alloc"), "free": ("free_completed",),
                     "collect": ("segment_free",)}[action]
            events += [event(name, at[size], size * MIB) for name in names]
        path = self.file("s.pickle", pickle.dumps(
            snapshot(events, garbage_collection_threshold=0.5)))
        args = ("replay", path, "--allocator", "pytorch", "--format", "json")
        result = run(*args, "--memory", "100MiB")
        (row,) = json.loads(result.stdout)["rows"]
        self.assertEqual((row["peak_reserved_bytes"], row["as_recorded"]), (68 * MIB, True))
        self.assertEqual(result.stderr, "")
        result = run(*args)
        (row,) = json.loads(result.stdout)["rows"]
        self.assertEqual((row["peak_reserved_bytes"], row["as_recorded"]), (68 * MIB, True))
        self.assertIn("give the limit as --memory", result.stderr)

    def test_ties_go_to_the_lowest_recorded_address(self):
        # Two segments of 12 MiB are cached, and the first one lies higher. The lower one serves the
        # request.
        events = [event("segment_alloc", 256 * MIB, 12 * MIB), event("alloc", 256 * MIB, 12 * MIB),
                  event("segment_alloc", 0, 12 * MIB), event("alloc", 0, 12 * MIB),
                  event("free_completed", 0, 12 * MIB),
                  event("free_completed", 256 * MIB, 12 * MIB), event("alloc", 0, 12 * MIB)]
        for address, deviates in ((0, None), (256 * MIB, 6)):
            events[-1] = event("alloc", address, 12 * MIB)
            path = self.file("s.pickle", pickle.dumps(snapshot(events)))
            (row,) = self.replay(path, "--allocator", "pytorch")["rows"]
            self.assertEqual(row["deviates_at"], deviates)

    def test_a_recorded_failure_is_reported(self):
        frames = [{"filename": "/x/torch/nn.py", "line": 1, "name": "call"},
                  {"filename": "model.py", "line": 7, "name": "forward"}]
        at = [i * 64 * MIB for i in range(3)]
        events = [event("segment_alloc", at[0], 20 * MIB),
                  event("alloc", at[0], 9 * MIB, frames=frames),
                  event("alloc", at[0] + 9 * MIB, 2 * MIB),
                  event("alloc", at[0] + 11 * MIB, 9 * MIB),
                  event("free_completed", at[0], 9 * MIB),
                  event("free_completed", at[0] + 11 * MIB, 9 * MIB),
                  event("segment_alloc", at[1], 12 * MIB),
                  event("alloc", at[1], 12 * MIB, frames=list(frames)),
                  {**event("oom", 0, 18 * MIB), "device_free": 10 * MIB}]
        path = self.file("oom.pickle.gz", gzip.compress(pickle.dumps(snapshot(events))))
        document = self.replay(path, code=1)
        failure = document["recorded_failure"]
        self.assertEqual([failure[key] // MIB for key in (
            "wanted_bytes", "allocated_bytes", "reserved_bytes", "capacity_at_least_bytes",
            "capacity_below_bytes", "device_free_bytes", "lower_bound_bytes")],
            [18, 14, 32, 32, 50, 10, 32])
        self.assertEqual(failure["holders"][0], {"frame": "model.py:7 forward", "blocks": 1,
                                                 "size_bytes": 12 * MIB, "from_start": 0})
        trials = {trial["allocator"]: trial for trial in failure["trials"]}
        self.assertEqual(trials["pytorch"]["serves_in_bytes"], 50 * MIB)
        self.assertIs(trials["pytorch"]["fits"], False)
        text = self.ok("replay", path, code=1)
        self.assertIn("recorded out of memory at event 8: asked for 18 MiB", text)
        self.assertIn("18 MiB free in 32 MiB reserved", text.replace("\n", " "))
        self.assertIn("at least 32 MiB and less than 50 MiB", text.replace("\n", " "))
        self.assertIn("model.py:7 forward", text)
        self.assertRegex(text, "pytorch +oom at event 8 +32 MiB +50 MiB")

    def test_expandable_segments_are_judged(self):
        log = RECORDINGS / "expandable-oom.snapshot.pickle.gz"
        document = self.replay(log, "--allocator", "pytorch", code=1)
        self.assertIs(document["rows"][0]["as_recorded"], True)
        self.assertGreater(document["log"]["records"], document["log"]["events"])
        text = self.ok("replay", log, "--allocator", "pytorch", code=1)
        self.assertIn("events in 875 records, which number them", text)
        self.assertIn("it had at least 4084 MiB and less than 4864 MiB", text.replace("\n", " "))
        self.assertNotIn("undetermined", text)

    def test_texts_may_begin_with_a_byte_order_mark(self):
        rmm = "Thread,Time,Action,Pointer,Size,Stream\n1,\"10:30:05\",allocate,0x10,512,0\n1,12,free,0x10,512,0\n"
        decisions = self.directory / "decisions.json"
        self.ok("run", "alexnet:2", "--export", f"decisions:{decisions}")
        for text in (GAP, GAP.replace("1,6", '"1","6"'), rmm, decisions.read_text("utf-8")):
            rows = [self.replay(self.file("log", mark + text.encode()), "--allocator", "best-fit")["rows"][0]
                    for mark in (b"", b"\xef\xbb\xbf")]
            for row in rows:
                del row["operations_per_second"]
            self.assertEqual(rows[0], rows[1])

    def test_ties_are_undetermined_where_no_address_is_recorded(self):
        log = self.file("gap.csv", GAP)
        self.assertIn("such ties are undetermined", self.ok("replay", log))
        self.assertNotIn("undetermined", self.ok("replay", log, "--allocator", "best-fit"))

    def test_plans_are_quick_unless_asked_for(self):
        rows = [f"{i},{2 * i},{2 * i + 3},512\n" for i in range(1_000_001)]
        path = self.file("long.csv", "id,lower,upper,size\n" + "".join(rows))
        result = run("replay", path, "--allocator", "best-fit,planned")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--allocator planned:effort=thorough", result.stderr)
        path = self.file("million.csv", "id,lower,upper,size\n" + "".join(rows[:500_000]))
        planned = self.replay(path, "--allocator", "planned")["rows"][0]
        self.assertEqual(planned["peak_reserved_bytes"], 1024)
        path = self.file("gap.csv", GAP)
        rows = self.replay(path, "--allocator", "planned,planned:effort=thorough")["rows"]
        self.assertEqual([row["peak_reserved_bytes"] for row in rows], [2048, 2048])
        self.assertIn("pytorch:expandable_segments=true", self.ok("replay", path))

    def test_rows_say_what_fits_and_where_it_failed(self):
        path = self.file("gap.csv", GAP)
        rows = self.replay(path, "--allocator", "best-fit,first-fit", "--allocator", "planned")["rows"]
        self.assertEqual([row["allocator"] for row in rows], ["best-fit", "first-fit", "planned"])
        self.assertEqual([row["peak_reserved_bytes"] for row in rows], [3072, 3072, 2048])
        self.assertGreater(rows[0]["operations_per_second"], 0)
        document = self.replay(path, "--allocator", "best-fit,planned", "--memory", "2KiB",
                               "--out-of-memory-report", code=1)
        self.assertEqual([row["status"] for row in document["rows"]], ["oom", "ok"])
        self.assertEqual(document["rows"][0]["failed_event"], 3)
        (report,) = document["out_of_memory"]
        self.assertEqual(report["wanted_bytes"], 1536)
        self.assertEqual(report["largest_free_bytes"], 1024)
        self.assertEqual(report["holders"], [{"size_bytes": 512, "blocks": 1, "from_start": 0,
                                              "first_event": 1, "last_event": 1, "last": "b"}])
        self.assertEqual(report["wanted"], "c")
        self.assertEqual(report["would_fit_with"], ["planned"])
        text = self.ok("replay", path, "--allocator", "best-fit", "--memory", "2KiB",
                       "--out-of-memory-report", code=1)
        self.assertIn("1 KiB", text)
        self.assertIn("enough, but scattered", text)

    def test_commas_separate_allocators_and_their_parameters(self):
        path = self.file("gap.csv", GAP)
        rows = self.replay(path, "--allocator",
                           "pytorch:max_split_size=20MiB,expandable_segments=true,best-fit")["rows"]
        self.assertEqual([row["allocator"] for row in rows],
                         ["pytorch:max_split_size=20MiB,expandable_segments=true", "best-fit"])

    def test_files_are_functions_of_their_inputs(self):
        path = self.file("gap.csv", GAP)
        outputs = {name: self.directory / name for name in ("rows.json", "memory.csv", "trace.json")}
        args = ["replay", path, "--allocator", "best-fit,planned", "--format", "json"]
        args += ["-o", outputs["rows.json"], "--export", f"memory:{outputs['memory.csv']}",
                 "--export", f"trace:{outputs['trace.json']}"]
        self.assertEqual(self.ok(*args), "")
        first = {name: output.read_bytes() for name, output in outputs.items()}
        document = self.conforms(first["rows.json"].decode(), "replay")
        self.assertEqual({row["operations_per_second"] for row in document["rows"]}, {None})
        self.ok(*args)
        self.assertEqual(first, {name: output.read_bytes() for name, output in outputs.items()})
        for output in outputs.values():
            manifest = pathlib.Path(f"{output}.manifest.json")
            self.conforms(manifest.read_text(encoding="utf-8"), "manifest")
            self.ok("replay-run", manifest)
        path.write_text(GAP + "d,1,2,3\n", encoding="utf-8")
        self.fails(3, "has changed", "replay-run", f"{outputs['rows.json']}.manifest.json")

        samples = list(csv.DictReader(io.StringIO(first["memory.csv"].decode())))
        self.assertEqual(len(samples), 12)
        self.assertEqual(max(int(s["reserved_bytes"]) for s in samples), 3072)
        self.conforms(first["trace.json"].decode(), "chrome-trace")
        events = json.loads(first["trace.json"])["traceEvents"]
        self.assertEqual([e["args"]["name"] for e in events if e["ph"] == "M"],
                         ["best-fit", "planned"])
        counters = [e for e in events if e["ph"] == "C"]
        self.assertEqual(len(counters), 12)
        self.assertEqual([e["ts"] for e in counters], sorted(e["ts"] for e in counters))

    def test_our_own_runs_can_be_replayed(self):
        decisions = self.directory / "decisions.json"
        row = json.loads(self.ok("run", "alexnet:8", "--format", "json", "--export",
                                 f"decisions:{decisions}", "-o", self.directory / "x.json") or "{}")
        row = json.loads((self.directory / "x.json").read_text(encoding="utf-8"))["rows"][0]
        replayed = self.replay(decisions, "--allocator", "best-fit")["rows"][0]
        for column in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes"):
            self.assertEqual(replayed[column], row[column])

    def test_sizes_are_rounded_up_to_a_unit(self):
        path = self.file("ones.csv", "id,lower,upper,size\np,0,4,5\nq,4,10,5\nr,0,4,10\ns,4,10,10\n")
        for unit, needed in ((None, 1024), ("1B", 15), ("4B", 20)):
            args = ["replay", path, "--allocator", "planned,best-fit"] + (["--unit", unit] if unit else [])
            document = self.replay(*args[1:], "--memory", f"{needed}B")
            self.assertEqual(document["log"]["unit_bytes"], int((unit or "512B")[:-1]))
            self.assertEqual(document["log"]["lower_bound_bytes"], needed)
            self.assertEqual([row["status"] for row in document["rows"]], ["ok", "ok"])
            self.assertIn(f"units of {unit or '512 B'}".replace("1B", "1 B").replace("4B", "4 B"),
                          self.ok(*args))
            self.replay(*args[1:], "--memory", f"{needed - 1}B", code=1)
        for wrong in ("0B", "-1B", "2GiB"):
            self.fails(2, "unit", "replay", path, "--unit", wrong)
        self.fails(2, "the unit is missing", "replay", path, "--unit", "1")

    def test_wrong_usage_is_told(self):
        path = self.file("gap.csv", GAP)
        self.fails(2, "did you mean 'best-fit'", "replay", path, "--allocator", "best-fitt")
        self.fails(2, "name those to compare", "replay", path, "--allocator", "auto")
        self.fails(2, "valid: effort", "replay", path, "--allocator", "planned:granularity=1KiB")
        self.fails(3, "unknown format (valid: ", "replay", self.file("x", "hello"))
        self.fails(3, "/nowhere", "replay", "/nowhere")
        self.fails(3, "gap.csv:5:5: ", "replay", self.file("gap.csv", GAP + "d,5,5,1\n"))
        self.assertIn("first-fit", self.ok("replay", path, "--allocator", "help"))
        self.assertIn("replay", self.ok("completion", "bash"))
        self.assertNotEqual(run("replay").returncode, 0)


def any_string(value):
    return isinstance(value, str)


def any_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_list(value):
    return isinstance(value, list)


# The fields of a snapshot in the order in which `torch.cuda.memory._dump_snapshot` of PyTorch 2.11
# writes them, each with a check of its value. Events have `frames` only if stacks are recorded.
SNAPSHOT_FIELDS = {
    "root": {"device_traces": is_list, "segments": is_list, "external_annotations": is_list},
    "segment": {
        "device": lambda v: v == 0, "address": any_size, "total_size": any_size,
        "allocated_size": any_size, "active_size": any_size, "requested_size": any_size,
        "stream": any_size, "segment_type": ("small", "large").__contains__,
        "segment_pool_id": lambda v: v == (0, 0), "is_expandable": lambda v: v is False,
        "frames": is_list, "blocks": is_list},
    "block": {
        "address": any_size, "size": any_size, "requested_size": any_size,
        "state": ("active_allocated", "inactive").__contains__, "frames": is_list},
    "event": {
        "action": ("segment_alloc", "alloc", "free_requested", "free_completed").__contains__,
        "addr": any_size, "size": any_size, "stream": any_size, "time_us": any_size,
        "frames": is_list, "compile_context": any_string, "user_metadata": any_string},
    "frame": {"filename": any_string, "line": any_size, "name": any_string},
}

# The opcodes that the viewer's own reader of pickles knows (torch/utils/viz/MemoryViz.js).
VIEWER_OPCODES = {
    "PROTO", "FRAME", "MARK", "STOP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "NONE", "NEWTRUE", "NEWFALSE", "BININT",
    "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"}


class Batches(pickle._Unpickler):  # pylint: disable=protected-access
    """Records how many values each opcode adds to a container."""

    largest = 0

    def pop_mark(self):
        items = super().pop_mark()
        self.largest = max(self.largest, len(items))
        return items


class SnapshotTest(LogTest):
    def has_fields(self, kind, value):
        fields = SNAPSHOT_FIELDS[kind]
        self.assertEqual(set(value), set(fields), kind)
        for name, holds in fields.items():
            self.assertTrue(holds(value[name]), f"{kind}: {name}: {value[name]!r}")

    def test_a_written_snapshot_has_what_viewers_read(self):
        path = self.directory / "run.pickle"
        self.ok("run", "resnet50:2", "--policy", "vdnn-all", "--export", f"snapshot:{path}")
        document = pickle.loads(path.read_bytes())
        self.has_fields("root", document)
        self.assertEqual(document["external_annotations"], [])
        (events,) = document["device_traces"]
        self.assertGreater(len(events), 1000)
        for event_ in events:
            self.has_fields("event", event_)
            for frame in event_["frames"]:
                self.has_fields("frame", frame)
        free = reserved = 0
        for segment in document["segments"]:
            self.has_fields("segment", segment)
            at, used, requested = segment["address"], 0, 0
            for block in segment["blocks"]:
                self.has_fields("block", block)
                for frame in block["frames"]:
                    self.has_fields("frame", frame)
                self.assertEqual(block["address"], at)
                at += block["size"]
                if block["state"] == "inactive":
                    free += block["size"]
                else:
                    self.assertLessEqual(block["requested_size"], block["size"])
                    used += block["size"]
                    requested += block["requested_size"]
            self.assertEqual(at, segment["address"] + segment["total_size"])
            self.assertEqual([segment[k] for k in ("allocated_size", "active_size",
                                                   "requested_size")], [used, used, requested])
            reserved += segment["total_size"]
        self.assertGreater(reserved, free)

        # The viewer in a browser reads only numbers of 53 bits, its own opcodes and short batches.
        self.assertLess(max(e["addr"] + e["size"] for e in events), 2**53)
        self.assertLessEqual({opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())},
                             VIEWER_OPCODES)
        with path.open("rb") as file:
            batches = Batches(file)
            self.assertEqual(batches.load(), document)
        self.assertLessEqual(batches.largest, 1000)

    def test_a_simulated_run_is_a_snapshot_that_python_reads(self):
        path, decisions = self.directory / "run.pickle", self.directory / "decisions.json"
        args = ("run", "vgg16:16", "--policy", "vdnn-all")
        self.ok(*args, "--export", f"snapshot:{path}", "--export", f"decisions:{decisions}")
        document = pickle.loads(path.read_bytes())
        (events,) = document["device_traces"]
        live, peak = {}, 0
        for e in events:
            if e["action"] == "alloc":
                self.assertNotIn(e["addr"], live)
                live[e["addr"]] = e["size"]
            elif e["action"] == "free_completed":
                self.assertEqual(live.pop(e["addr"]), e["size"])
            peak = max(peak, sum(live.values()))
            self.assertTrue(all(set(f) == {"filename", "line", "name"} for f in e["frames"]))
        blocks = {b["address"]: b["requested_size"] for s in document["segments"]
                  for b in s["blocks"] if b["state"] == "active_allocated"}
        self.assertEqual(blocks, live)
        for segment in document["segments"]:
            self.assertEqual(sum(b["size"] for b in segment["blocks"]), segment["total_size"])
        self.assertEqual([e["time_us"] for e in events], sorted(e["time_us"] for e in events))
        row = json.loads(self.ok(*args, "--format", "json"))["rows"][0]
        self.assertEqual(peak, row["peak_requested_bytes"])
        ours, theirs = (self.replay(log, "--allocator", "best-fit,pytorch")["rows"]
                        for log in (decisions, path))
        for a, b in zip(ours, theirs):
            for column in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes"):
                self.assertEqual(a[column], b[column])

    def test_real_bytes_have_no_times_to_export(self):
        self.fails(2, "--backend sim", "run", "alexnet:2", "--backend", "cpu", "--export",
                   f"snapshot:{self.directory}/x")


if __name__ == "__main__":
    main()

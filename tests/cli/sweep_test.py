#!/usr/bin/env python3
"""Tests sweeps: grids, stores, resuming, shards, merging, and refused input.

usage: sweep_test.py PATH_OF_SPILLWAY
"""

import concurrent.futures
import contextlib
import csv
import hashlib
import io
import random
import resource
import signal
import sqlite3
import subprocess
import time

from harness import DirectoryTest, Spillway, main

# 3 x 2 workloads, 2 budgets, 5 policies.
GRID = ("{alexnet,resnet(1,1,{1,2},1)}:{4,8}", "--policy", "liveness:algo={memory,performance}",
        "--policy", "vdnn-all:algo=memory,torch,mxnet", "--memory", "30%,80%", "--device", "a100", "--quiet")
CELLS = 3 * 2 * 2 * 5


class SweepTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.store = self.directory / "r.sqlite"

    def export(self, store=None, form="csv"):
        return self.ok("sweep", "export", store or self.store, "--format", form)

    def test_an_export_of_some_cells(self):
        self.ok("sweep", *GRID, "-o", self.store)
        rows = list(csv.DictReader(self.export().splitlines()))
        for conditions, holds in (
                (("policy=liveness:algo=memory",), lambda row: row["policy"] == "liveness:algo=memory"),
                (("policy=torch,mxnet", "status=ok"), lambda row: row["policy"] in ("torch", "mxnet") and row["status"] == "ok"),
                (("batch=4", "memory_request=30%", "network=resnet(1,1,1,1),alexnet"),
                 lambda row: (row["batch"], row["memory_request"]) == ("4", "30%") and row["network"] in ("resnet(1,1,1,1)", "alexnet"))):
            where = [word for condition in conditions for word in ("--where", condition)]
            found = list(csv.DictReader(self.ok("sweep", "export", self.store, *where, "--format", "csv").splitlines()))
            expected = [row for row in rows if holds(row)]
            self.assertTrue(0 < len(expected) < len(rows))
            self.assertEqual([(row["workload"], row["policy"], row["memory_request"], row["iteration_ms"]) for row in found],
                             [(row["workload"], row["policy"], row["memory_request"], row["iteration_ms"]) for row in expected])
        for text, condition in (("unknown column 'polcy'; did you mean 'policy'?", "polcy=torch"), ("unknown policy 'torh'", "policy=torh"),
                                ("'policy' is not COLUMN=VALUE", "policy")):
            self.fails(2, text, "sweep", "export", self.store, "--where", condition)

    def cells(self):
        """Returns the number of cells in a store that other processes may be writing."""
        if not self.store.exists():
            return 0
        try:
            with contextlib.closing(sqlite3.connect(self.store)) as database:
                return database.execute("SELECT count(*) FROM cells").fetchone()[0]
        except sqlite3.OperationalError:  # the store has no tables yet
            return 0

    def sweep(self, *more, store=None):
        return self.ok("sweep", *GRID, *more, "-o", store or self.store)


def rows_but_bound(text):
    """Returns the rows of a CSV, sorted, without the columns that sweeps do not search for."""
    rows = [{**row, "bound_joint_ms": "", "missing_bytes": ""} for row in csv.DictReader(io.StringIO(text))]
    return sorted(tuple(row.items()) for row in rows)


class GridTest(SweepTest):
    def test_rows_are_those_of_compare(self):
        self.ok("sweep", "alexnet:{4,8}", "vgg16@{64..96..32}:1", "--policy", "vdnn-{all,conv}:algo=memory",
                "--memory", "{30,80}%", "-o", self.store)
        rows = rows_but_bound(self.export())
        compared = self.ok("compare", "alexnet:4", "alexnet:8", "vgg16@64:1", "vgg16@96:1", "--memory", "30%,80%",
                           "--policy", "vdnn-all:algo=memory", "--policy", "vdnn-conv:algo=memory",
                           "--format", "csv")
        self.assertEqual(rows, rows_but_bound(compared))
        self.conforms(self.export(form="json"), "results")

    def test_every_axis_reaches_the_run(self):
        self.ok("sweep", "alexnet:4,preset={torch,vdnn},mode={training,inference}",
                "--device", "a100,h200:link={1,2}", "--allocator", "best-fit,first-fit", "--cost", "roofline",
                "--pool", "peer:size={1,2}GiB,in=20GB/s,out=20GB/s", "--policy", "vdnn-all:algo=memory",
                "-o", self.store)
        rows = list(csv.DictReader(io.StringIO(self.export())))
        self.assertEqual(len(rows), 2 * 2 * 3 * 2 * 2)
        for column, values in (("preset", 2), ("mode", 2), ("device", 6), ("allocator", 2)):
            self.assertEqual(len({row[column] for row in rows}), values, column)
        with sqlite3.connect(self.store) as database:
            command, device = database.execute(
                "SELECT command, device FROM cells WHERE mode = 'inference' AND preset = 'vdnn' AND "
                "device LIKE 'h200:link=2%2GiB%' AND allocator = 'first-fit'").fetchone()
        database.close()
        args = command.replace("'", "").split()
        row, = csv.DictReader(io.StringIO(self.ok("compare", *args, "--format", "csv")))
        self.assertIn(row, rows)
        self.assertEqual(row["device"], device)

    def test_cells_that_are_executed(self):
        self.ok("sweep", "resnet(1,1,1,1)@64:1", "--backend", "sim,cpu", "--policy", "liveness,vdnn-all:algo=memory",
                "-o", self.store)
        rows = list(csv.DictReader(io.StringIO(self.export())))
        self.assertEqual(sorted(row["backend"] for row in rows), ["cpu", "cpu", "sim", "sim"])
        executed = [row for row in rows if row["backend"] == "cpu"]
        self.assertEqual({row["iteration_ms"] for row in executed}, {""})
        digest, = {row["weights_digest"] for row in executed}
        self.assertEqual(len(digest), 64)
        with sqlite3.connect(self.store) as database:
            command, = database.execute("SELECT command FROM cells WHERE backend = 'cpu' AND policy LIKE 'vdnn%'").fetchone()
        database.close()
        row, = csv.DictReader(io.StringIO(self.ok("run", *command.replace("'", "").split(), "--format", "csv")))
        self.assertEqual(row["weights_digest"], digest)

    def test_an_experiment_file_says_the_same_as_options(self):
        self.sweep()
        path = self.directory / "e.toml"
        other = self.directory / "other.sqlite"
        path.write_text(f'''workload = "{GRID[0]}"
                            policy = ["liveness:algo={{memory,performance}}", "vdnn-all:algo=memory,torch,mxnet"]
                            memory = "30%,80%"
                            device = ["k40c"]
                            output = "{other}"''', encoding="utf-8")
        self.ok("sweep", path, "--device", "a100")
        self.assertEqual(self.export(other), self.export())
        path.write_text('workload = "alexnet:1"\npolcy = "torch"', encoding="utf-8")
        self.fails(3, "e.toml:2:9: unknown key 'polcy'; did you mean 'policy'?", "sweep", path, "-o", other)
        path.write_text('workload = 3', encoding="utf-8")
        self.fails(3, "e.toml:1:12: workload is a text or an array of texts", "sweep", path, "-o", other)

    def test_a_trace_file_by_its_contents(self):
        trace = self.directory / "t.json"
        self.ok("trace", "build", "alexnet:4", "-o", trace)
        args = ("sweep", trace, "--policy", "torch", "-o", self.store)
        self.assertIn("1 cells, 1 computed", self.ok(*args))
        self.assertIn("1 cells, 0 computed", self.ok(*args))
        self.ok("trace", "build", "alexnet:5", "-o", trace)
        self.assertIn("1 cells, 1 computed", self.ok(*args))

    def test_what_is_refused(self):
        store = ("-o", self.store)
        for text, args in (
                ("'alexnet:{1': a '{' is left open", ("alexnet:{1",)),
                ("a '}' without '{'", ("alexnet:1}",)),
                ("an empty place in {2,}", ("alexnet:{1,{2,}}",)),
                ("an empty place in {1,}", ("alexnet:{1,}",)),
                ("'8..4' is no range", ("alexnet:{8..4}",)),
                ("'1..4..0' is no range", ("alexnet:{1..4..0}",)),
                ("more than 1000000 values in one place", ("alexnet:{1..2000000}",)),
                ("did you mean 'alexnet'?", ("alexnt:{1,2}",)),
                ("did you mean 'torch'?", ("alexnet:1", "--policy", "torch,torh")),
                ("did you mean 'a100'?", ("alexnet:1", "--device", "h200,a1000")),
                ("unknown preset 'torh'", ("alexnet:1,preset=torh",)),
                ("unknown mode 'traning'", ("alexnet:1,mode=traning",)),
                ("unknown backend 'cuda' (valid: sim, cpu)", ("alexnet:1", "--backend", "sim,cuda")),
                ("memory: '30%,,50%' has an empty place", ("alexnet:1", "--memory", "30%,,50%")),
                ("'0/4' is no shard", ("alexnet:1", "--shard", "0/4")),
                ("no workload", ("--policy", "torch"))):
            with self.subTest(args):
                self.fails(2, text, "sweep", *args, *store)
                self.assertFalse(self.store.exists())
        self.fails(2, "no store: give -o STORE", "sweep", "alexnet:1")
        self.fails(2, "unknown memory 'lots'", "sweep", "alexnet:1", "--memory", "lots", *store)

    def test_a_plan_computes_nothing_and_knows_what_is_there(self):
        plan = ("sweep", "plan", *GRID, "-o", self.store, "--format", "json")
        row, = self.conforms(self.ok(*plan), "sweep-plan")["rows"]
        self.assertEqual((row["cells"], row["present"], row["missing"]), (CELLS, 0, CELLS))
        self.assertGreater(row["seconds"], 0)
        self.assertFalse(self.store.exists())
        self.sweep("--shard", "1/2")
        row, = self.conforms(self.ok(*plan), "sweep-plan")["rows"]
        self.assertEqual((row["cells"], row["present"]), (CELLS, CELLS // 2))

    def test_a_million_cells_are_planned_in_little_memory(self):
        """The limit is lower than the memory that the keys of all cells would take."""
        limit = 400 << 20

        def small():
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # The store exists, so that each cell is looked up.
        self.ok("sweep", "alexnet:1", "--policy", "torch", "-o", self.store)
        text = self.ok("sweep", "plan", "{alexnet,resnet(3,{1..20},{1..25},3)}:{1..50}", "--memory", "{1..20}%",
                       "--policy", "torch,mxnet", "-o", self.store, preexec_fn=small)
        self.assertIn("1002000 cells: 0 are there", text)


class StoreTest(SweepTest):
    def test_what_is_there_is_not_computed_again(self):
        self.assertIn(f"{CELLS} cells, {CELLS} computed, 0 were there", self.sweep())
        before = self.export()
        self.assertIn(f"{CELLS} cells, 0 computed, {CELLS} were there", self.sweep())
        self.assertIn("12 computed, 60 were there", self.sweep("--policy", "tensorflow"))
        self.assertNotEqual(self.export(), before)
        status = self.conforms(self.ok("sweep", "status", self.store, "--format", "json"), "sweep-status")
        self.assertEqual({row["policy"]: row["cells"] for row in status["rows"]}["tensorflow"], 12)

    def test_an_export_depends_on_the_cells_alone(self):
        """It does not depend on threads, shards, or the order in which cells were computed."""
        self.sweep("--jobs", "1")
        expected = self.export()
        self.assertEqual(len(expected.splitlines()), CELLS + 1)
        shards = [self.directory / f"{i}.sqlite" for i in range(1, 4)]
        for i in (3, 1, 2):
            self.sweep("--shard", f"{i}/3", "--jobs", "4", store=shards[i - 1])
        merged = self.directory / "merged.sqlite"
        for _ in range(2):
            self.ok("sweep", "merge", merged, *shards)
            self.assertEqual(self.export(merged), expected)
        self.assertEqual(self.export(merged, "json"), self.export(form="json"))
        with sqlite3.connect(merged) as database:
            left, = database.execute("SELECT count(*) FROM cells LEFT JOIN provenance USING (key) "
                                     "LEFT JOIN inputs ON trace = id WHERE length(sha256) IS NOT 64").fetchone()
        database.close()
        self.assertEqual(left, 0)

    def test_two_processes_share_a_store(self):
        other = self.directory / "other.sqlite"
        self.sweep(store=other)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda _: self.sweep("--jobs", "2"), range(3)))
        self.assertEqual(self.export(), self.export(other))

    def test_killed_at_any_moment_it_goes_on(self):
        grid = ("sweep", "alexnet:{1..200}", *GRID[1:], "--jobs", "1", "-o")
        other = self.directory / "other.sqlite"
        self.ok(*grid, other)
        seed = random.Random(5)
        for _ in range(20):
            before = self.cells()
            with subprocess.Popen([Spillway.path, *map(str, grid), self.store], stdout=subprocess.DEVNULL) as process:
                while self.cells() == before and process.poll() is None:
                    time.sleep(0.005)
                time.sleep(seed.uniform(0, 0.06))
                process.kill()
        self.assertGreater(self.cells(), 0)
        self.ok(*grid, self.store)
        self.assertEqual(self.export(), self.export(other))

    def test_an_interrupt_keeps_what_is_finished(self):
        grid = ("sweep", "resnet152:{1..60}", "--device", "a100", "-o", self.store)
        with subprocess.Popen([Spillway.path, *map(str, grid)], stderr=subprocess.PIPE, text=True) as process:
            while not self.store.exists():
                time.sleep(0.01)
            time.sleep(0.7)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertIn("the same command goes on from there", errors)
        cells = len(self.export().splitlines()) - 1
        self.assertIn(f"r.sqlite has {cells} cells", errors)
        self.assertGreater(cells, 0)

    def test_a_checkpoint_is_gone_on_from(self):
        shared = self.directory / "shared.sqlite"
        self.sweep("--shard", "1/2", "--checkpoint", shared)
        self.assertEqual(self.export(shared), self.export())
        self.store.unlink()
        self.assertIn(f"{CELLS // 2} were there", self.sweep("--checkpoint", shared))
        self.assertEqual(self.export(shared), self.export())
        self.assertEqual(len(self.export().splitlines()), CELLS + 1)

    def test_what_is_no_store_is_left_alone(self):
        self.sweep()
        whole = self.store.read_bytes()
        benchmarks = self.directory / "b.sqlite"
        with sqlite3.connect(benchmarks) as database:
            database.execute("PRAGMA application_id = 7")
            database.execute("CREATE TABLE t (x)")
        database.close()
        for text, path, contents in (
                ("is a database of another program, not a sweep store", benchmarks, benchmarks.read_bytes()),
                ("is not a sweep store", self.directory / "text", b"no database at all" * 100),
                ("is damaged", self.directory / "torn", whole[:len(whole) // 2]),
                ("is a sweep store of version 9 (valid: 1)", self.directory / "new",
                 whole[:60] + (9).to_bytes(4, "big") + whole[64:])):
            with self.subTest(text):
                path.write_bytes(contents)
                self.fails(3, text, "sweep", "export", path)
                self.fails(3, text, "sweep", *GRID, "-o", path)
                self.fails(3, text, "sweep", "merge", self.directory / "m.sqlite", path)
                self.assertEqual(path.read_bytes(), contents)
        self.fails(3, "no such sweep store", "sweep", "status", self.directory / "none")
        self.fails(2, "is merged into itself", "sweep", "merge", self.store, self.store)

    def test_a_full_disk_is_said_and_nothing_is_lost(self):
        self.sweep("--shard", "1/2")
        before = self.export()

        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            size = self.store.stat().st_size + 4096
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
        result = subprocess.run([Spillway.path, "sweep", *GRID, "-o", self.store], capture_output=True, text=True,
                                preexec_fn=small, check=False)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("r.sqlite: ", result.stderr)
        self.assertEqual(self.export(), before)
        self.sweep()
        self.assertEqual(len(self.export().splitlines()), CELLS + 1)


class ModelVersionTest(SweepTest):
    # For each policy, the first digits of the SHA-256 of its rows in the export below. If one
    # changes while the columns are unchanged, results have changed. In that case raise
    # kModelVersion in experiments/tools/sweep/sweep.h, so that no store keeps older cells, and put the
    # new digits here.
    EXPECTED = {
        "caffe": "c2454d32",
        "capuchin": "36760d1e",
        "checkmate": "e6970280",
        "dtr": "f5bb8abf",
        "liveness:algo=memory": "9468a078",
        "liveness:algo=performance": "65e5abe7",
        "mxnet": "ffe9485e",
        "network-wide:algo=memory": "bccaf776",
        "network-wide:algo=performance": "91aab238",
        "superneurons": "98cec5b3",
        "tensorflow": "4dcba939",
        "torch": "00597d69",
        "ucudnn": "e8ab9733",
        "vdnn-aconv:algo=memory": "08fd8b2b",
        "vdnn-aconv:algo=performance": "71ac473a",
        "vdnn-all:algo=memory": "b06984a3",
        "vdnn-all:algo=performance": "b7795251",
        "vdnn-conv:algo=memory": "b18f9847",
        "vdnn-conv:algo=performance": "19bbb1a8",
        "vdnn-dyn": "139ee174",
        "vdnnpp": "c0252a19",
    }

    def test_results_change_with_the_version_of_the_model(self):
        self.ok("sweep", "{alexnet:64,resnet18:16,inception-v4:4},preset={torch,vdnn}", "--device",
                "a100,h200,titan_x_maxwell", "--allocator", "best-fit,pytorch", "--memory", "40%,90%",
                "-o", self.store)
        rows = list(csv.DictReader(io.StringIO(self.export())))
        self.assertEqual(len(rows), 1512)
        hashes = {row["policy"]: hashlib.sha256() for row in rows}
        for row in rows:
            for derived in ("samples_per_second", "missing_bytes", "arithmetic", "host_bound", "fastest_host_ms", "slowest_host_ms",
                            "stall_lane_ms", "communication_ms", "exposed_ms"):
                row.pop(derived)  # follows from batch and time, is in the reason, is of the trace, of its launches, or not of sweeps
            hashes[row["policy"]].update(repr(row).encode())
        self.assertEqual({policy: digest.hexdigest()[:8] for policy, digest in hashes.items()}, self.EXPECTED,
                         list(rows[0]))


if __name__ == "__main__":
    main()

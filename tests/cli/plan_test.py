#!/usr/bin/env python3
"""Tests spillway plan on a recorded chain of ops whose results autograd saves.

    x --f0--> y0 --f1--> y1 ... --f7--> y7      backward of f7 reads y7, of f6 reads y6, ...

usage: plan_test.py PATH_OF_SPILLWAY
"""

import itertools
import json
import math
import pathlib
import random
import tempfile

from harness import DirectoryTest, load_schema, main, run, schema_errors

MIB = 1 << 20
LENGTH = 8
QUICK = ("--policy", "joint:effort=300")


def tensor(name, kind):
    return {"name": name, "kind": kind, "shape": [16 * MIB], "size": 64 * MIB}


def op(name, phase, inputs, outputs):
    return {"name": name, "layer": name[-2:], "type": "other", "phase": phase, "batch": 1, "inputs": inputs,
            "outputs": outputs, "slots": [{"name": "op", "signature": name[:2], "flops": 0, "traffic": 0}],
            "recomputable": phase == "forward",
            "recorded": {"time_ns": 5 * 10**6, "gap_ns": 0, "host_ns": 10**4, "workspace": 0}}


def step(**hooks):
    """Returns the step; `hooks` replaces what its program can do."""
    y, d = [f"y{i}" for i in range(LENGTH)], [f"d{i}" for i in range(LENGTH)]
    last = 2 * LENGTH - 1
    return {
        "format": "spillway-trace", "version": 7, "name": "chain:1", "network": "chain", "batch": 1, "preset": "recorded",
        "training": True,
        "recording": {"framework": "a test", "device": "NVIDIA H200", "step_ns": 0, "plain_step_ns": 0, "allocated": 0,
                      "reserved": 0},
        "layers": [{"name": f"f{i}", "type": "other"} for i in range(LENGTH)],
        "tensors": [tensor("x", "input")] + [tensor(name, "activation") for name in y] +
                   [tensor(name, "gradient") for name in d],
        "ops": [op(f"f{i}", "forward", [y[i - 1] if i else "x"], [y[i]]) for i in range(LENGTH)] +
               [op(f"b.f{i}", "backward", [y[i]] + d[i + 1:i + 2], [d[i]]) for i in reversed(range(LENGTH))],
        "saved": [{"tensor": y[i], "packed": i + 1, "unpacked": [last - i]} for i in range(LENGTH)],
        "hooks": {"places": [[i + 1, 1, 0] for i in range(LENGTH - 1)] + [[LENGTH, 1, 1]] +
                            [[last - i, 0, 1] for i in reversed(range(LENGTH - 1))],
                  "pack_ns": 1000, "unpack_ns": 1000, "copy_bytes_per_second": 50 * 10**9, "beside_copy": 0.02,
                  "moves": {"offload_ns": 10000, "prefetch_ns": 10000, "evict_ns": 0}, **hooks},
    }


def with_updates(trace, count, moves=True):
    """Returns the step with so many updates behind it, each of optimizer state of its own, which can be on the host."""
    names = [f"state{i}" for i in range(count)]
    trace["tensors"] += [tensor(name, "optimizer_state") for name in names]
    trace["layers"].append({"name": "u", "type": "other"})
    trace["ops"] += [{**op(f"update{i}.u", "update", [name], [name]), "layer": "u"} for i, name in enumerate(names)]
    if moves:
        trace["hooks"]["moves"]["state_ns"] = 10000
    return {**trace, "version": 9}


def drawn(draw):
    """Returns the chain with drawn sizes and times, and ops that also read earlier results."""
    trace = step()
    for tensor_ in trace["tensors"]:
        elements = draw.randrange(1, 17) * MIB
        tensor_ |= {"shape": [elements], "size": 4 * elements}
    for op_ in trace["ops"]:
        op_["recorded"]["time_ns"] = draw.randrange(1, 9) * 10**6
    for i in range(2, LENGTH):
        if draw.random() < 0.5:
            trace["ops"][i]["inputs"].append(f"y{draw.randrange(i - 1)}")
    return trace


def with_sizes(trace, sizes):
    """Returns the step with other sizes: by name, functions that give the bytes of a tensor and the time of an op."""
    return {**trace, "version": 8, "sizes": [
        {"name": name, "tensors": [bytes_of(t) for t in trace["tensors"]], "again": [],
         "ops": [[time_of(o), 0] for o in trace["ops"]]} for name, (bytes_of, time_of) in sizes.items()]}


def times(factor):
    """Returns a size that has so many times the bytes and the time."""
    return lambda t: int(t["size"] * factor), lambda o: int(o["recorded"]["time_ns"] * factor)


def drawn_sizes(draw, trace):
    """Returns four sizes, each at least as large as the one before in each of its drawn numbers, and one beside them."""
    sizes, share = {}, {item["name"]: 0.2 for item in (*trace["tensors"], *trace["ops"])}
    for name in ("64", "128", "256", "512"):
        more = draw.choice((0.003, 0.3))
        share = {item: least + draw.random() * draw.choice((0, more)) for item, least in share.items()}
        sizes[name] = (lambda t, share=share: int(t["size"] * share[t["name"]]),
                       lambda o, share=share: int(o["recorded"]["time_ns"] * share[o["name"]]))
    sizes["2x2+1"] = (lambda t: draw.randrange(t["size"]), lambda o: draw.randrange(o["recorded"]["time_ns"]))
    return sizes


class PlanTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("step.json", step())
        self.output = self.directory / "plan.json"

    def rows(self, *args, code=0, trace=None, quick=QUICK):
        text = self.ok("plan", trace or self.trace, *quick, *args, "--format", "json", code=code)
        return self.conforms(text, "step-plans")["rows"]

    def test_a_plan_fits_its_budget_and_is_predicted_alike(self):
        (row,) = self.rows("--memory", "320MiB", "-o", self.output)
        plan = json.loads(self.output.read_text("utf-8"))
        self.assertEqual(list(schema_errors(plan, load_schema("step-plan"))), [])
        self.assertEqual((row["status"], plan["workload"]), ("ok", "chain:1"))
        self.assertLessEqual(row["peak_allocated_bytes"], 320 * MIB)
        self.assertEqual(row["eager_peak_bytes"], (LENGTH + 1) * 64 * MIB)
        self.assertEqual(row["peak_allocated_bytes"], plan["peak_bytes"])
        self.assertEqual(row["offloaded_storages"] + row["evicted_storages"], len(plan["storages"]))
        self.assertGreater(row["offloaded_bytes"], 0)
        self.assertGreaterEqual(row["slowdown"], 1)
        (again,) = self.rows("--memory", "320MiB", "--predict", self.output)
        for key in ("peak_allocated_bytes", "iteration_ms", "offloaded_bytes", "evicted_bytes"):
            self.assertEqual(again[key], row[key], key)
        manifest = json.loads(pathlib.Path(f"{self.output}.manifest.json").read_text("utf-8"))
        self.assertEqual([file["role"] for file in manifest["inputs"]], ["trace", "device", "cost_table"])
        self.ok("replay-run", f"{self.output}.manifest.json")

    def test_a_program_makes_only_the_moves_that_it_has(self):
        for fate, moves in (("evicted", ("evict",)), ("offloaded", ("offload", "prefetch"))):
            trace = self.file(f"{fate}.json", step(moves={f"{move}_ns": 0 for move in moves}))
            (row,) = self.rows("--memory", "448MiB", trace=trace)
            self.assertGreater(row[f"{fate}_storages"], 0, row)
            self.assertEqual(row["offloaded_storages"] + row["evicted_storages"], row[f"{fate}_storages"])

    def test_all_of_the_memory_needs_no_plan(self):
        (row,) = self.rows("--memory", "1GiB")
        self.assertEqual((row["offloaded_storages"], row["evicted_storages"], row["slowdown"]), (0, 0, 1))

    def test_a_budget_below_the_floor(self):
        (row,) = self.rows("--memory", "100MiB", code=1)
        self.assertEqual((row["status"], row["iteration_ms"]), ("none", None))
        self.assertGreater(row["floor_bytes"], 100 * MIB)

    def test_the_floor_and_the_least_plan_are_said(self):
        """Both in bytes, and in words that tell them apart. A policy that never copies may not reach the floor."""
        apart = 0
        for seed, policy in itertools.product(range(4), ("joint", "dtr", "vdnnpp")):
            trace = self.file(f"drawn{seed}.json", drawn(random.Random(seed)))
            quick = ("--policy", policy)
            (row,) = self.rows("--memory", "1B", code=1, trace=trace, quick=quick)
            text = self.ok("plan", trace, "--memory", "1B", *quick, code=1)
            self.assertIn("No plan takes less than the floor, ", text)
            more = row["least_bytes"] > row["floor_bytes"]
            self.assertEqual("; the least memory in which one was found is " in text, more)
            apart += more
            # It is the least: no plan is found in 2 % less.
            between = max(row["floor_bytes"], row["least_bytes"] * 98 // 100)
            if between < row["least_bytes"]:
                self.assertEqual(self.rows("--memory", f"{between}B", code=1, trace=trace, quick=quick)[0]["status"], "none")
            # A plan is found in it, also where the budget was below the floor.
            self.assertEqual(self.rows("--memory", f"{row['least_bytes']}B", trace=trace, quick=quick)[0]["status"], "ok")
            self.assertNotIn("floor", self.ok("plan", trace, "--memory", "4GiB", *quick))
        self.assertGreater(apart, 0)

    def test_state_of_the_optimizer_leaves_where_that_is_faster(self):
        """Below 1.25 GiB of state and what is saved, both leave; the floor has all state on the host."""
        trace = with_updates(step(), 10)
        path = self.file("updates.json", trace)
        search = ("--policy", "joint")
        rows = self.rows("--curve", "-o", self.output, trace=path, quick=search)
        self.assertEqual(rows[0]["floor_state_bytes"], 10 * 64 * MIB)
        self.assertEqual(rows[0]["eager_peak_bytes"], (10 + LENGTH + 1) * 64 * MIB)
        self.assertLess(rows[0]["floor_bytes"], 6 * 64 * MIB)
        fitting = [row for row in rows if row["status"] == "ok"]
        moved = [row["state_bytes"] for row in fitting]
        self.assertGreater(len(set(moved)), 2)
        self.assertEqual((moved[-1], fitting[-1]["slowdown"]), (0, 1))
        times_ = [row["iteration_ms"] for row in fitting]
        self.assertEqual(times_, sorted(times_, reverse=True))
        for row in fitting:
            plan = self.directory / f"plan-{row['memory_bytes']}.json"
            document = json.loads(plan.read_text("utf-8"))
            self.assertEqual(list(schema_errors(document, load_schema("step-plan"))), [])
            self.assertEqual(64 * MIB * len(document.get("state", ())), row["state_bytes"])
            (again,) = self.rows("--memory", f"{row['memory_bytes']}B", "--predict", plan, trace=path, quick=search)
            for key in ("peak_allocated_bytes", "iteration_ms", "state_bytes", "update_ms"):
                self.assertEqual(again[key], row[key], key)
        # The plan is as good as one that moves only what is saved, and a policy decides on that alone.
        fixed = self.file("fixed.json", with_updates(step(), 10, moves=False))
        for share in (0.8, 0.9, 0.95):
            memory = f"{int(share * rows[0]['eager_peak_bytes'])}B"
            (both,), (alone,) = (self.rows("--memory", memory, trace=t, quick=search) for t in (path, fixed))
            self.assertEqual((both["status"], alone["status"], alone["state_bytes"]), ("ok", "ok", 0))
            self.assertLessEqual(both["iteration_ms"], 1.01 * alone["iteration_ms"])
            (other,) = self.rows("--memory", memory, trace=path)
            self.assertLessEqual(other["peak_allocated_bytes"], int(share * rows[0]["eager_peak_bytes"]))
        # The next part comes while one is updated. So no plan reaches a floor in the updates, and the least one takes more.
        for update in (o for o in trace["ops"] if o["phase"] == "update"):
            update["recorded"]["workspace"] = 512 * MIB
        large = self.file("large.json", trace)
        (row,) = self.rows("--memory", f"{576 * MIB}B", trace=large, quick=search, code=1)
        self.assertEqual((row["floor_bytes"], row["status"]), (576 * MIB, "none"))
        self.assertGreaterEqual(row["least_bytes"], 640 * MIB)
        self.assertEqual(self.rows("--memory", f"{row['least_bytes']}B", trace=large, quick=search)[0]["status"], "ok")
        text = self.ok("plan", path, *search, "--memory", f"{rows[1]['memory_bytes']}B", "--explain")
        self.assertIn("640 MiB of 640 MiB of the optimizer's state are on the host but while an update uses them", text)
        old = {**trace, "version": 8}
        self.fails(3, "the key 'state_ns' needs version 9", "plan", self.file("old.json", old), "--memory", "1GiB")
        bad = json.loads((self.directory / f"plan-{fitting[0]['memory_bytes']}.json").read_text("utf-8"))
        for names in (["y0"], ["state0", "state0"], [3]):
            given = self.file("bad.json", {**bad, "state": names})
            self.assertIn(str(given), self.fails(3, "state[", "plan", path, "--memory", "1GiB", "--predict", given))

    def test_a_curve_writes_its_plans(self):
        with tempfile.TemporaryDirectory() as folder:
            for row in self.rows("--curve", "-o", f"{folder}/plan.json"):
                path = pathlib.Path(folder, f"plan-{row['memory_bytes']}.json")
                self.assertEqual(path.exists(), row["status"] == "ok")
                if path.exists():
                    self.assertEqual(json.loads(path.read_text("utf-8"))["peak_bytes"], row["peak_allocated_bytes"])

    def test_a_curve_falls(self):
        rows = [row for row in self.rows("--curve") if row["status"] == "ok"]
        self.assertGreater(len(rows), 3)
        times = [row["iteration_ms"] for row in rows]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertEqual(rows[-1]["memory_bytes"], rows[-1]["eager_peak_bytes"])
        self.assertLessEqual(sum(row["knee"] for row in rows), 1)

    def test_more_memory_never_has_a_slower_plan_or_none(self):
        """Of drawn steps, for the search and for policies, also just where a plan is said to fit."""
        for seed, policy in itertools.product(range(6), ("joint", "joint:effort=20", "dtr", "capuchin", "vdnnpp")):
            trace = self.file(f"drawn{seed}.json", drawn(random.Random(seed)))
            rows = self.rows("--memory", "1B", code=1, trace=trace)
            floor, eager = rows[0]["floor_bytes"], rows[0]["eager_peak_bytes"]
            fastest, promised = math.inf, set()
            budgets = [floor + (eager - floor) * part // 8 for part in range(9)]
            while budgets:
                memory = budgets.pop(0)
                args = ("plan", trace, "--memory", f"{memory}B", "--policy", policy, "--format", "json")
                rows = json.loads(run(*args).stdout)["rows"]
                with self.subTest(seed=seed, policy=policy, memory=memory):
                    if rows[0]["status"] != "ok":
                        self.assertEqual(fastest, math.inf)
                        self.assertGreater(rows[0]["least_bytes"], memory)
                        self.assertNotIn(memory, promised)
                        promised.add(rows[0]["least_bytes"])
                        budgets = sorted({*budgets, *promised})
                        continue
                    self.assertLessEqual(rows[0]["peak_allocated_bytes"], memory)
                    self.assertLessEqual(rows[0]["iteration_ms"], fastest)
                    fastest = rows[0]["iteration_ms"]
            self.assertLess(fastest, math.inf)

    def test_a_ladder_has_a_plan_for_each_size(self):
        chain = with_sizes(step(), {str(64 * n): times(n / 4) for n in (4, 1, 8, 2)})
        trace = self.file("sizes.json", chain)
        rows = self.rows("--memory", "320MiB", "--family", "all", "-o", self.output, trace=trace, quick=())
        self.assertEqual([row["size"] for row in rows], ["64", "128", "256", "512"])
        self.assertEqual([row["status"] for row in rows], ["ok", "ok", "ok", "none"])
        self.assertEqual([row["offloaded_storages"] > 0 for row in rows[:3]], [False, False, True])
        self.assertEqual([row["eager_peak_bytes"] for row in rows], [(LENGTH + 1) * MIB * n for n in (16, 32, 64, 128)])
        self.assertEqual([row["floor_bytes"] for row in rows], [rows[2]["floor_bytes"] * n // 4 for n in (1, 2, 4, 8)])
        self.assertFalse((self.directory / "plan-512.json").exists() or self.output.exists())
        for row in rows[:3]:
            path = self.directory / f"plan-{row['size']}.json"
            plan = self.conforms(path.read_text("utf-8"), "step-plan")
            self.assertEqual(plan["peak_bytes"], row["peak_allocated_bytes"])
            self.ok("replay-run", f"{path}.manifest.json")
        alone = self.rows("--memory", "320MiB", quick=())[0]
        self.assertEqual({**alone, "size": "256"}, rows[2])
        some = self.rows("--memory", "320MiB", "--family", "256,64", trace=trace, quick=())
        self.assertEqual(some, [rows[0], rows[2]])
        text = self.ok("plan", trace, "--memory", "320MiB", "--family", "64,512")
        self.assertRegex(text, r"(?s)size +budget GiB +status.*\n +64 +0\.3125 +ok .*\n +512 +0\.3125 +none")
        self.assertNotIn("size", self.ok("plan", trace, *QUICK, "--memory", "320MiB"))
        self.rows("--memory", "1MiB", "--family", "512,256", trace=trace, code=1)

    def test_a_larger_size_is_never_faster_and_its_plan_is_good_for_smaller_ones(self):
        # In the last two, the policy finds no plan for a size, but one for a larger size.
        for seed, policy in ((0, "joint"), (1, "joint"), (2, "dtr"), (3, "vdnnpp"), (18, "vdnnpp"), (27, "dtr")):
            draw = random.Random(seed)
            chain = drawn(draw)
            chain = with_sizes(chain, drawn_sizes(draw, chain))
            trace = self.file(f"sizes{seed}.json", chain)
            floor = min(row["floor_bytes"] for row in self.rows("--memory", "1B", "--family", "512", code=1, trace=trace))
            for part in (1, 4):
                with self.subTest(seed=seed, policy=policy, part=part):
                    memory = ("--memory", f"{floor + part * floor // 8}B")
                    rows = json.loads(run("plan", trace, *memory, "--family", "all", "--policy", policy, "-o", self.output,
                                          "--format", "json").stdout)["rows"]
                    ladder = [row for row in rows if row["size"].isdigit()]
                    self.assertEqual([row["size"] for row in ladder], ["64", "128", "256", "512"])
                    took = [math.inf if row["status"] == "none" else row["iteration_ms"] for row in ladder]
                    self.assertEqual(took, sorted(took))
                    for row in ladder[1:]:
                        if row["status"] == "ok" and row["offloaded_storages"] + row["evicted_storages"]:
                            smaller = ",".join(r["size"] for r in ladder if int(r["size"]) <= int(row["size"]))
                            for under in self.rows(*memory, "--family", smaller, "--predict", self.directory / f"plan-{row['size']}.json",
                                                   trace=trace):
                                self.assertLessEqual(under["peak_allocated_bytes"], row["peak_allocated_bytes"])

    def test_an_explanation_names_what_moves(self):
        text = self.ok("plan", self.trace, *QUICK, "--memory", "320MiB", "--explain")
        self.assertIn("No plan takes less than", text)
        self.assertRegex(text, r"y\d is (offloaded|recomputed)")

    def test_wrong_input_gets_clear_messages(self):
        self.fails(2, "a budget is needed: --memory, or --curve for several", "plan", self.trace)
        for beside in (("--memory", "1GiB"), ("--predict", self.output)):
            self.fails(2, "--curve plans for budgets of its own", "plan", self.trace, "--curve", *beside)
        for policy, message in (("nope", "unknown policy 'nope' (valid: "),
                                ("dtr:zap=1", "policy 'dtr': unknown parameter 'zap'"),
                                ("joint:effort=x", "policy 'joint': effort 'x'")):
            for budget in (("--memory", "1B"), ("--memory", "320MiB"), ("--memory", "1TiB"), ("--curve",)):
                self.fails(2, message, "plan", self.trace, *budget, "--policy", policy)
        sizes = with_sizes(step(), {"256": times(1), "8x2+8": times(2)})
        known = self.file("sizes.json", sizes)
        family = ("--memory", "1GiB", "--family")
        for list_, message in (("7", "--family 7: "), ("256,", "has no size ''"), ("ALL", "has no size 'ALL'")):
            text = self.fails(2, message, "plan", known, *family, list_)
            self.assertIn("sizes.json has no size", text)
            self.assertIn("(valid: all, 256, 8x2+8)", text)
        self.fails(2, "step.json has no other sizes; write them with", "plan", self.trace, *family, "256")
        for beside in (("--curve",), ("--explain", "--memory", "1GiB")):
            self.fails(2, "are about one size: leave --family out", "plan", known, "--family", "all", *beside)
        self.fails(2, "a budget is needed", "plan", known, "--family", "all")
        first = sizes["sizes"][0]
        for change, message in (({"name": "all"}, "sizes[1].name: expected a name of its own"), ({"name": "256"}, "a name of its own"),
                                ({"name": "a/b"}, "of letters, digits"),
                                ({"tensors": first["tensors"][1:]}, "sizes[1].tensors: the trace has 17 tensors, and the size 16"),
                                ({"ops": first["ops"][1:]}, "sizes[1].ops: the trace has 16 ops, and the size 15"),
                                ({"again": [[1, 1]]}, 'the trace has 0 ops with "again", and the size 1'),
                                ({"ops": [[1]]}, "sizes[1].ops[0]: expected two numbers: time_ns, workspace"),
                                ({"tensors": [-1]}, "sizes[1].tensors[0]: expected an integer from 0"), ({"more": 1}, "unknown key 'more'")):
            path = self.file("bad.json", {**sizes, "sizes": [first, {**first, "name": "2", **change}]})
            self.assertIn(str(path), self.fails(3, message, "plan", path, *family, "256"))
        self.fails(3, "the key 'sizes' needs version 8", "plan", self.file("bad.json", {**sizes, "version": 7}), *family, "256")
        without = step()
        del without["hooks"]
        self.fails(3, "the step has no hooks", "plan", self.file("without.json", without), "--memory", "1GiB")
        self.ok("plan", self.trace, *QUICK, "--memory", "320MiB", "-o", self.output)
        plan = json.loads(self.output.read_text("utf-8"))
        for change, message in (({"workload": "other:1"}, "the plan is for 'other:1', and this is 'chain:1'"),
                                ({"storages": [{"tensor": "d0", "fate": "evict", "drops": []}]},
                                 "'d0' is no storage that autograd saves and that backward reads"),
                                ({"storages": [{"tensor": "y0", "fate": "keep", "drops": []}]},
                                 'expected "offload" or "evict"'),
                                ({"storages": [{"tensor": "y0", "fate": "evict", "drops": [], "release": 5}]},
                                 'only a storage that is offloaded has "release"'),
                                ({"storages": [{"tensor": "y0", "fate": "offload", "drops": [], "release": 99}]},
                                 "the step has no position 99")):
            path = self.file("bad.json", {**plan, **change})
            self.assertIn(str(path), self.fails(3, message, "plan", self.trace, "--memory", "320MiB", "--predict", path))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Installs Spillway, builds plugins against only the installed tree, and runs them.

usage: out_of_tree_test.py BUILD_DIRECTORY CMAKE GENERATOR CXX_COMPILER [LAUNCHER]
"""

import csv
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD, CMAKE, GENERATOR, COMPILER, LAUNCHER = "", "cmake", "Ninja", "c++", ""
SOURCE = pathlib.Path(__file__).resolve().parent

HOOKS = ("Prepare", "LivesOutside", "Plan", "BeforeOp", "ChooseKernels", "BeforeLaunch",
         "AfterOp", "PlacementHint", "OnAllocFailure", "ExportPlan")
OP_HOOKS = ("BeforeOp", "ChooseKernels", "BeforeLaunch", "AfterOp")


class OutOfTreeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="spillway-out-of-tree-")
        cls.addClassCleanup(cls.directory.cleanup)
        cls.top = pathlib.Path(cls.directory.name).resolve()
        # The tree is installed in one place and moved to another, like a package.
        cls.command(CMAKE, "--install", BUILD, "--prefix", str(cls.top / "staging"))
        cls.prefix = cls.top / "moved" / "spillway"
        cls.prefix.parent.mkdir()
        (cls.top / "staging").rename(cls.prefix)
        cls.spillway = cls.prefix / "bin" / "spillway"
        cls.plugins = cls.top / "build"
        cls.build(SOURCE, cls.plugins)

    @classmethod
    def command(cls, *args, cwd=None):
        result = subprocess.run(args, capture_output=True, text=True, check=False, cwd=cwd,
                                env=cls.environment())
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(args)}\n{result.stdout}{result.stderr}")
        return result.stdout

    @classmethod
    def environment(cls):
        return {key: value for key, value in os.environ.items() if not key.startswith("SPILLWAY_")}

    @classmethod
    def build(cls, source, build):
        cls.command(CMAKE, "-S", str(source), "-B", str(build), "-G", GENERATOR,
                    f"-DCMAKE_PREFIX_PATH={cls.prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                    f"-DCMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}")
        cls.command(CMAKE, "--build", str(build))

    def run_spillway(self, *args):
        return subprocess.run([self.spillway, *args], capture_output=True, text=True, check=False,
                              cwd=self.plugins, env=self.environment())

    def ok(self, *args, code=0):
        result = self.run_spillway(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout

    def fails(self, code, text, policy, *args):
        result = self.run_spillway("run", "alexnet:4", "--policy", policy, *args)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertIn(text, result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    # --- The installed tree -----------------------------------------------------------------------

    def test_installed_program_finds_its_own_data(self):
        device = self.prefix / "share/spillway/sim/devices/h200.toml"
        text = device.read_text(encoding="utf-8")
        try:
            device.write_text(text.replace("NVIDIA H200,", "this very file,"), encoding="utf-8")
            self.assertIn("this very file,", self.ok("run", "vgg19:64"))
        finally:
            device.write_text(text, encoding="utf-8")
        self.assertIn("recorded on", self.ok("run", "vgg19:64"))
        self.ok("reproduce", "vdnn")
        # With figures: plot.py needs its items, its style and the data beside them. Without matplotlib it says so (5).
        figures = self.top / "figures"
        for item in ("vdnn-Fig5", "mmcnn-Fig9"):
            result = self.run_spillway("reproduce", item, "--figures", str(figures))
            self.assertIn(result.returncode, (0, 1, 5), result.stderr)
            if result.returncode == 5:
                self.assertIn("matplotlib", result.stderr)
            else:
                self.assertTrue((figures / f"{item}.png").is_file())
        self.assertIn("ops", self.command(str(self.plugins / "uses_library")))

    def test_the_cuda_backend_is_loaded_when_it_is_asked_for(self):
        self.assertNotRegex(self.command("ldd", str(self.spillway)), "libcu(da|blas|dnn)")
        modules = list(self.prefix.rglob("libspillway_cuda.so*"))
        if not modules:
            self.skipTest("this build has no CUDA backend")
        args = ("run", "alexnet:1", "--backend", "cuda", "--iterations", "1")
        self.assertNotIn("cannot be loaded", self.run_spillway(*args).stderr)
        try:
            for module in modules:
                module.rename(str(module) + ".away")
            self.fails(5, "cannot be loaded, so no GPU is used: libspillway_cuda.so", "liveness",
                       "--backend", "cuda")
        finally:
            for module in modules:
                pathlib.Path(str(module) + ".away").rename(module)

    def test_nothing_installed_names_the_place_it_was_built_in(self):
        for path in self.prefix.rglob("*"):
            if path.suffix in {".cmake", ".pc", ".h"}:
                self.assertNotIn(str(BUILD), path.read_text(encoding="utf-8"), path)

    def test_pkg_config(self):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        (file,) = self.prefix.rglob("spillway.pc")
        flags = self.command("pkg-config", "--cflags", "--libs", str(file)).split()
        paths = {flag[:2]: pathlib.Path(flag[2:]) for flag in flags}
        self.assertIn("-std=c++20", flags)
        self.assertTrue((paths["-I"] / "sim/core/policy.h").is_file(), flags)
        self.assertTrue((paths["-L"] / "libspillway.so").is_file(), flags)
        self.assertEqual(str(paths["-l"]), "spillway")

    # --- A plugin that works ----------------------------------------------------------------------

    def test_plugin_runs_by_every_spelling(self):
        def row(policy):
            stdout = self.ok("run", "googlenet:128", "--policy", policy, "--format", "json", "--check")
            (result,) = json.loads(stdout)["rows"]
            self.assertEqual(result.pop("policy"), policy)
            return result
        named = row("./offload-largest.so:offload-largest:count=3,ahead=1")
        self.assertEqual(named, row("./offload-largest.so:count=3,ahead=1"))
        self.assertEqual(named, row("offload-largest.so:count=3,ahead=1"))
        self.assertEqual(named, row(f"{self.plugins}/offload-largest.so:count=3,ahead=1"))
        self.assertGreater(named["offloaded_bytes"], 0)
        self.assertEqual(named["offloaded_bytes"], named["prefetched_bytes"])
        default = row("./offload-largest.so")
        self.assertGreater(default["offloaded_bytes"], named["offloaded_bytes"])
        self.assertLess(default["peak_allocated_bytes"], named["peak_allocated_bytes"])

    def test_plugin_is_compared_with_built_in_policies(self):
        args = ("compare", "googlenet:128", "--check", "--memory", "80%", "--format", "csv")
        for policy in ("liveness", "./offload-largest.so:count=50", "./offload-largest.so:count=90"):
            args += ("--policy", policy)
        stdout = self.ok(*args, "--jobs", "4")
        self.assertEqual(stdout, self.ok(*args, "--jobs", "1"))
        rows = list(csv.DictReader(io.StringIO(stdout)))
        self.assertEqual([row["status"] for row in rows], ["oom", "ok", "ok"])

    def test_help_lists_policies_and_parameters(self):
        text = self.ok("run", "alexnet:4", "--policy", "./offload-largest.so:help")
        self.assertIn("offload the largest activations", text)
        self.assertIn("ahead=integer (default 2)", text)
        self.assertNotIn("vdnn", text)
        text = self.ok("run", "alexnet:4", "--policy", "./throws.so:lies:help")
        self.assertIn("how=tensor|room", text)
        self.assertNotIn("hook=", text)
        self.assertIn("order=", self.ok("compare", "alexnet:4", "--policy", "vdnn-all:help"))

    def test_wrong_names_and_parameters_are_wrong_usage(self):
        self.fails(2, "did you mean 'count'?", "./offload-largest.so:coutn=3")
        self.fails(2, "from 1 to", "./offload-largest.so:count=0")
        self.fails(2, "did you mean 'offload-largest'?", "./offload-largest.so:ofload-largest")
        self.fails(2, "the plugin has 2 policies, name one: ./throws.so:NAME (valid: throws, lies)",
                   "./throws.so:how=room")

    # --- Plugins that do not work -----------------------------------------------------------------

    def test_what_is_no_plugin_is_bad_input(self):
        (self.plugins / "text.so").write_text("not a shared object, but long enough to look\n" * 9,
                                              encoding="utf-8")
        (self.plugins / "empty.so").touch()
        (self.plugins / "directory.so").mkdir(exist_ok=True)
        (self.plugins / "cut.so").write_bytes(
            (self.plugins / "offload-largest.so").read_bytes()[:5000])
        self.fails(3, "./missing.so: cannot load the plugin: cannot open shared object file",
                   "./missing.so:p")
        self.fails(3, "text.so: cannot load the plugin: invalid ELF header", "text.so")
        self.fails(3, "empty.so: cannot load the plugin: file too short", "./empty.so")
        self.fails(3, "directory.so: cannot load the plugin:", "./directory.so")
        self.fails(3, "cut.so: cannot load the plugin: the file is truncated", "./cut.so")
        self.fails(3, "no_entry_point.so: not a policy plugin: it has no function "
                      "SpillwayPolicyPlugin", "./no_entry_point.so")
        self.fails(3, "no_descriptor.so: SpillwayPolicyPlugin returned no descriptor",
                   "./no_descriptor.so")
        self.fails(3, "registers no policy", "./registers_nothing.so")
        self.fails(3, "policy 'twin' is registered twice", "./registers_twice.so")

    def test_other_versions_are_refused_and_both_sides_named(self):
        header = (SOURCE.parents[1] / "policies" / "plugin" / "plugin.h").read_text(encoding="utf-8")
        version = re.search(r"kPluginApiVersion = (\d+);", header)[1]
        self.fails(3, "./wrong_api_version.so: the plugin was built with plugin API version 999, "
                      f"this program with {version}", "./wrong_api_version.so")
        message = self.fails(3, "./wrong_build_tag.so: the plugin was built with another compiler, "
                                "this program with ", "./wrong_build_tag.so")
        self.assertRegex(message, r"with \S+ \d+, lib\S+ .*, Spillway \d+\.\d+\.\d+")
        # The library's containers have another layout in this plugin. Its visible symbols must not
        # hide the difference.
        self.fails(3, "in debug mode, Spillway", "./debug_mode.so")
        message = self.fails(3, "undefined symbol", "./debug_mode_with_containers.so:throws")
        self.assertIn("another compiler, C++ library or version of Spillway? This program has g++",
                      message.replace("clang++", "g++"))

    def test_exceptions_end_the_run_with_policy_hook_and_op(self):
        for hook in HOOKS:
            message = self.fails(4, f"policy 'throws', {hook}", f"./throws.so:throws:hook={hook}",
                                 "--memory", "0%")
            self.assertTrue(message.endswith("failed: boom\n"), message)
            self.fails(4, "it threw something that is not a std::exception",
                       f"./throws.so:throws:hook={hook},what=number", "--memory", "0%")
        for hook in ("BeforeOp", "ChooseKernels", "BeforeLaunch", "AfterOp"):
            self.fails(4, f"{hook}(conv1.fwd)", f"./throws.so:throws:hook={hook}")
        specification = "./throws.so:throws:hook=Plan,what=policy-error"
        self.fails(4, f"spillway: alexnet:4: policy '{specification}': my own words\n", specification)
        self.fails(4, "policy 'throws', making it failed: boom", "./throws.so:throws:hook=factory")
        self.fails(4, "its factory made none", "./throws.so:throws:hook=no-policy")

    def test_a_policy_that_throws_costs_its_own_row(self):
        result = self.run_spillway("compare", "alexnet:4", "--policy", "liveness", "--policy",
                                   "./throws.so:throws:what=colour", "--policy",
                                   "./throws.so:throws:hook=factory", "--format", "json")
        self.assertEqual(result.returncode, 4, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok", "failed", "failed"])
        self.assertIn("Plan failed: \x1b[31mred", rows[1]["reason"])
        self.assertIn("making it failed: boom", rows[2]["reason"])
        table = self.ok("compare", "alexnet:4", "--policy", "liveness", "--policy",
                        "./throws.so:throws:what=colour", code=4)
        self.assertIn(r"Plan failed: \x1b[31mred\x1b[0m", table)
        self.assertNotIn("\x1b", table)
        self.fails(4, r"Plan failed: \x1b[31mred", "./throws.so:throws:what=colour")

    # --- Plugins that crash, exit or do not return ------------------------------------------------

    ENDS = {"crash": "policy 'throws' crashed in its {} (SIGSEGV)",
            "stack": "policy 'throws' crashed in its {} (SIGSEGV)",
            "abort": "policy 'throws' crashed in its {} (SIGABRT)",
            "kill": "policy 'throws' crashed in its {} (SIGKILL)",
            "exit": "policy 'throws' ended the process with exit code 0 in its {}"}
    BAD = "./throws.so:throws:hook=AfterOp,what=crash"
    GOOD = "./offload-largest.so:count=3"

    def rows(self, text):
        return list(csv.DictReader(io.StringIO(text)))

    def test_a_policy_that_ends_its_process_costs_its_own_row(self):
        ends = [(hook, what) for hook in HOOKS for what in ("crash", "exit")]
        ends += [("AfterOp", what) for what in self.ENDS] + [("factory", "crash")]
        policies = [f"./throws.so:throws:hook={hook},what={what}" for hook, what in ends]
        args = ["compare", "alexnet:4", "--memory", "0%", "--format", "csv"]
        for policy in ("liveness", *policies, self.GOOD):
            args += ["--policy", policy]
        stdout = self.ok(*args, "--jobs", "1", code=4)
        self.assertEqual(stdout, self.ok(*args, "--jobs", "4", code=4))
        rows = self.rows(stdout)
        self.assertNotEqual(rows[0]["status"], "failed")
        self.assertNotEqual(rows[-1]["status"], "failed")
        for (hook, what), row in zip(ends, rows[1:-1]):
            self.assertEqual((row["workload"], row["status"]), ("alexnet:4", "failed"))
            place, reason = hook, row["reason"]
            if hook in OP_HOOKS:
                place += " at op conv1.fwd"
            else:  # placements and failures of allocations may belong to an op
                reason = re.sub(r" at op \S+", "", reason)
            self.assertEqual(reason, self.ENDS["abort" if hook == "factory" else what].format(place))

    def test_a_policy_that_does_not_return_costs_its_own_row(self):
        args = ["compare", "alexnet:4", "--memory", "0%", "--format", "csv", "--timeout", "0.3s"]
        for policy in ("liveness", *(f"./throws.so:throws:hook={hook},what=loop" for hook in HOOKS)):
            args += ["--policy", policy]
        first, *others = self.rows(self.ok(*args, code=4))
        self.assertNotEqual(first["status"], "failed")
        for row in others:
            self.assertEqual(row["status"], "failed")
            self.assertIn("took longer than 300 ms (--timeout)", row["reason"])

    def test_every_verb_survives_a_policy_that_crashes(self):
        reason = "policy 'throws' crashed in its AfterOp at op conv1.fwd (SIGSEGV)"
        self.assertEqual(self.fails(4, reason, self.BAD), f"spillway: alexnet:4: {reason}\n")
        both = ("--policy", self.GOOD, "--policy", self.BAD)
        row = self.rows(self.ok("limit", "alexnet", "--memory", "1GiB", *both, "--scan", "1", "--format",
                                "csv", code=4))
        self.assertEqual([one["status"] for one in row], ["ok", "failed"])
        self.assertEqual(row[1]["next_reason"], f"alexnet:1: {reason}")
        row = self.rows(self.ok("fit", "alexnet:4000", "--device", "k40c", *both, "--format", "csv", code=4))
        self.assertEqual([one["reason"] for one in row if one["status"] == "failed"], [reason])
        self.assertIn(f"{self.BAD} failed: {reason}", self.ok("fit", "alexnet:4000", "--device", "k40c", *both,
                                                              code=4))
        self.ok("report", "alexnet:4", *both, "-o", "page.html", code=4)
        page = (self.plugins / "page.html").read_text(encoding="utf-8")
        self.assertIn(reason, page)
        self.assertIn(f"alexnet:4 under {self.GOOD}", page)
        self.ok("compare", "alexnet:4", *both, "-o", "c.json", code=4)
        self.ok("replay-run", "c.json.manifest.json")

    def test_a_sweep_keeps_its_good_cells_and_says_why_others_failed(self):
        policies = ("liveness", "network-wide", "vdnn-all", "vdnn-conv", "superneurons", "caffe", "torch",
                    "mxnet", self.GOOD, self.BAD)
        args = ["sweep", "alexnet:{1..10}", "--device", "k40c"]
        for policy in policies:
            args += ["--policy", policy]
        stores = [f"{jobs}.sqlite" for jobs in (1, 3)]
        for jobs, store in zip((1, 3), stores):
            stdout = self.ok(*args, "--jobs", str(jobs), "-o", store, code=4)
            self.assertIn("100 cells, 100 computed, 0 were there: 90 ok, 0 out of memory, 10 failed\n"
                          "10 failed: policy 'throws' crashed in its AfterOp at op conv1.fwd (SIGSEGV)\n",
                          stdout)
        again = self.ok(*args, "-o", stores[0], code=4)
        self.assertIn("0 computed, 100 were there: 90 ok, 0 out of memory, 10 failed\n10 failed: policy",
                      again)
        self.assertEqual(*(self.ok("sweep", "export", store, "--format", "csv") for store in stores))
        self.assertIn("\n10 failed: policy 'throws' crashed", self.ok("sweep", "status", stores[0]))
        status = json.loads(self.ok("sweep", "status", stores[0], "--format", "json"))["rows"]
        self.assertEqual({row["policy"]: row["failures"] for row in status if row["failures"]},
                         {self.BAD: [{"reason": "policy 'throws' crashed in its AfterOp at op conv1.fwd "
                                                "(SIGSEGV)", "cells": 10}]})

    def test_a_process_of_its_own_changes_no_byte(self):
        exports = ("trace", "memory", "schedule", "rewritten", "decisions", "snapshot")
        written = []
        for mode in ([], ["--in-process"]):
            files = [f"{'-'.join(['x', *mode])}.{name}" for name in exports]
            args = ["run", "googlenet:16", "--memory", "2GiB", "--check", "--policy", self.GOOD, "--explain",
                    "--format", "json", *mode]
            for name, file in zip(exports, files):
                args += ["--export", f"{name}:{file}"]
            result = self.run_spillway(*args)
            self.assertIn("no violation", result.stderr)
            written.append([result.returncode, result.stdout,
                            *((self.plugins / file).read_bytes() for file in files)])
            rows = self.ok("compare", "googlenet:16", "--policy", self.GOOD, "--allocator", "auto",
                           "--pool", "peer:size=1GiB", "--compress", "all:density=0.5", "--format", "json", *mode)
            page = self.ok("report", "googlenet:16", "--policy", self.GOOD, "-o", "p.html", *mode)
            written[-1] += [rows, page, (self.plugins / "p.html").read_bytes()]
        for mine, other in zip(*written):
            self.assertTrue(mine == other)
        manifest = json.loads((self.plugins / "x.trace.manifest.json").read_text(encoding="utf-8"))
        self.assertEqual(len(manifest["outputs"]), len(exports))
        self.ok("replay-run", "x.trace.manifest.json")

    def test_in_process_a_crash_is_a_crash_of_the_program(self):
        for what, number in (("crash", signal.SIGSEGV), ("stack", signal.SIGSEGV),
                             ("abort", signal.SIGABRT)):
            for verb in ("run", "compare"):
                result = self.run_spillway(verb, "alexnet:4", "--in-process", "--policy",
                                           f"./throws.so:throws:hook=AfterOp,what={what}")
                self.assertEqual(result.returncode, -number, result.stderr)
                self.assertEqual(result.stderr, "spillway: policy 'throws' crashed in its AfterOp at op "
                                                f"conv1.fwd ({number.name})\n")

    def test_an_interrupt_ends_the_processes_of_plugins(self):
        for verb in ("run", "compare"):
            with subprocess.Popen([self.spillway, verb, "alexnet:4", "--policy",
                                   "./throws.so:throws:what=loop"], cwd=self.plugins, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=self.environment()) as process:
                children = pathlib.Path(f"/proc/{process.pid}/task/")
                child = None
                while child is None:  # until a process has the plugin
                    for thread in children.glob("*/children"):
                        try:
                            for one in thread.read_text(encoding="utf-8").split():
                                maps = pathlib.Path(f"/proc/{one}/maps").read_text(encoding="utf-8")
                                child = one if "throws.so" in maps else child
                        except OSError:
                            pass  # the process or thread has ended
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(), 130)
                while pathlib.Path(f"/proc/{child}").exists():  # it ends with its parent
                    pass

    def test_wrong_times_are_wrong_usage(self):
        for text in ("0s", "5", "-1s", "soon", ""):
            result = self.run_spillway("run", "alexnet:4", "--timeout", text)
            self.assertEqual((result.returncode, result.stdout), (2, ""), text)
            self.assertIn("time", result.stderr)

    def test_broken_rules_end_the_run_and_a_misfit_does_not(self):
        self.fails(4, "offload: tensor", "./throws.so:lies:how=tensor")
        self.fails(4, "ReserveWorkspaceFor: op", "./throws.so:lies:how=op")
        self.fails(4, "policy './throws.so:lies:how=late': Reserve was called outside Plan",
                   "./throws.so:lies:how=late")
        self.fails(4, "Prepare: more than 16 trial runs within one another",
                   "./throws.so:lies:how=itself")
        self.fails(4, "Prepare(alexnet:4) gave", "./throws.so:lies:how=memory")
        self.fails(4, "Prepare(alexnet:4) made an invalid trace", "./throws.so:lies:how=trace")
        self.fails(4, "OnAllocFailure returned true", "./throws.so:lies:how=room",
                   "--memory", "0%")
        stdout = self.ok("run", "alexnet:4", "--policy", "./throws.so:lies:how=reserve", "--format",
                         "json", code=1)
        self.assertIn("the reserved workspace", json.loads(stdout)["rows"][0]["reason"])

    # --- spillway new-policy ----------------------------------------------------------------------

    def test_new_policy_writes_what_builds_and_runs(self):
        self.ok("new-policy", "my-first")
        project = self.plugins / "my-first"
        self.assertEqual(sorted(path.name for path in project.iterdir()),
                         ["CMakeLists.txt", "my-first.cc"])
        self.build(project, project / "build")
        stdout = self.ok("compare", "googlenet:128", "--check", "--format", "csv", "--policy", "liveness",
                         "--policy", "my-first/build/my-first.so:at_least=2MiB")
        liveness, mine = csv.DictReader(io.StringIO(stdout))
        self.assertLess(int(mine["peak_allocated_bytes"]), int(liveness["peak_allocated_bytes"]))
        self.assertGreater(int(mine["offloaded_bytes"]), 0)
        self.follow_the_readme(project / "my-first.cc")
        self.command(CMAKE, "--build", str(project / "build"))
        stdout = self.ok("run", "googlenet:128", "--check", "--format", "csv", "--policy",
                         "my-first/build/my-first.so:at_least=2MiB")
        (asks_earlier,) = csv.DictReader(io.StringIO(stdout))
        self.assertLess(float(asks_earlier["stall_ms"]), float(mine["stall_ms"]))
        for name in ("A", "a b", "../x", "", "9a", "a-", "a--b", "a_b", "help"):
            result = self.run_spillway("new-policy", "--", name)
            self.assertEqual(result.returncode, 2, name)
            self.assertIn("is not a valid name for a policy", result.stderr)
        before = {path: path.read_bytes() for path in project.glob("*.*")}
        result = self.run_spillway("new-policy", "my-first")
        self.assertEqual(result.returncode, 2)
        self.assertIn("my-first exists already", result.stderr)
        self.assertEqual(before, {path: path.read_bytes() for path in project.glob("*.*")})

    def follow_the_readme(self, source):
        """Makes the changes of "A policy in ten minutes" in the files that new-policy wrote."""
        readme = (SOURCE.parents[1] / "policies" / "README.md").read_text(encoding="utf-8")
        send, before_op, members, on_failure = re.findall(r"```cpp\n(.*?)```", readme, re.S)[:4]
        text = source.read_text(encoding="utf-8")
        for old, new in (
                ("      if (context.Offload(input)) context.Release(input);\n", send),
                ("  void BeforeOp(PolicyContext&, OpId) override {}\n", before_op),
                ("  const Bytes at_least_;\n", "  const Bytes at_least_;\n" + members),
                ("  bool OnAllocFailure(PolicyContext&, Bytes) override { return false; }\n",
                 on_failure),
                ("#include <memory>\n", "#include <memory>\n#include <vector>\n")):
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        source.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    BUILD, CMAKE, GENERATOR, COMPILER = sys.argv[1:5]
    LAUNCHER = sys.argv[5] if len(sys.argv) > 5 else ""
    unittest.main(argv=sys.argv[:1])

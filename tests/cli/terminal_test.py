#!/usr/bin/env python3
"""Tests what people see in a terminal: tables that fit it, help with examples, and messages about mistyped arguments.

usage: terminal_test.py PATH_OF_SPILLWAY
"""

import csv
import functools
import io
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import tempfile

import plan_test
from harness import CommandTest, ROOT, main, on_a_terminal, run

POLICIES = ("liveness", "vdnn-all", "vdnn-conv:algo=memory", "vdnnpp", "mxnet", "superneurons", "network-wide",
            "vdnn-all:algo=memory,micro=powerOfTwo,order=prefetch-first")
COLUMNS = ("policy", "fits", "time ms", "slowdown", "peak GiB")


class TableTest(CommandTest):
    def texts(self, *args):
        """Returns what a command prints on a terminal of 80 columns, and into a pipe where COLUMNS says 80."""
        code, told, _ = on_a_terminal(*args, "--quiet", width=80)
        piped = run(*args, "--quiet", env={**os.environ, "COLUMNS": "80"})
        self.assertEqual((piped.returncode, piped.stdout), (code, told))
        self.assertLessEqual(max(map(len, told.splitlines())), 80, told)
        self.assertNotIn("\033", told)
        return told

    def rows(self, table):
        """Returns the cells of a table of results by policy, in its order, and its header."""
        header, *lines = table.splitlines()
        starts = [header.index(name) for name in ("policy", "fits")]
        found = {}
        policy = None
        for line in lines:
            if line.startswith(("(", "* ")):
                break
            name, rest = line[:starts[1]].rstrip(" *"), re.split(r"  +", line[starts[1]:])
            if line.startswith("  "):  # the policy goes on
                found[policy + name.strip()] = found.pop(policy)
                policy += name.strip()
            else:
                policy = name.strip()
                found[policy] = (rest, "*" in line)
        return header, found

    def test_tables_of_policies_show_what_matters(self):
        draw = random.Random(7)
        fits = misses = 0
        for _ in range(8):
            workload = draw.choice(("vgg16:64", "alexnet:128", "resnet50:32", "googlenet:128"))
            memory = draw.choice(("25%", "40%", "60%", "90%", "110%"))
            policies = draw.sample(POLICIES, draw.randint(2, len(POLICIES)))
            args = ("compare", workload, "--memory", memory, "--device", draw.choice(("h200", "k40c")), "--policy", *policies)
            with self.subTest(args):
                header, rows = self.rows(self.texts(*args).split("\n\n")[1])
                data = list(csv.DictReader(io.StringIO(run(*args, "--format", "csv").stdout)))
                self.assertEqual([row["policy"] for row in data], policies)
                self.assertEqual(set(rows), set(policies))
                times = {row["policy"]: float(row["iteration_ms"]) for row in data if row["status"] == "ok"}
                missing = {row["policy"]: int(row["missing_bytes"]) for row in data if row["status"] == "oom"}
                ranks = [times.get(policy, 1e12 + missing.get(policy, 0)) for policy in rows]
                self.assertEqual(ranks, sorted(ranks))
                best = min(times.values(), default=None)
                for policy, (cells, marked) in rows.items():
                    self.assertEqual(cells[0] == "yes", policy in times)
                    self.assertEqual(marked, best is not None and times.get(policy) == best and set(ranks) != {best})
                    if policy in missing:
                        self.assertRegex(cells[0], r"^(\+ [\d.]+ (GiB|MiB|KiB|B)|no)$")
                        self.assertLess(len(cells[0]), 12)
                if times:
                    for column in COLUMNS:
                        self.assertIn(column, header)
                fits, misses = fits + len(times), misses + len(missing)
        self.assertGreater(min(fits, misses), 5)

    def test_a_policy_that_does_not_fit_has_one_line_below_the_table(self):
        args = ("compare", "vgg16:64", "--memory", "40%", "--policy", "liveness,vdnn-all")
        told = self.texts(*args)
        self.assertEqual([line.split(":")[0] for line in told.split("\n\n")[2].splitlines()], ["vdnn-all", "liveness"])
        reasons = [row["reason"] for row in json.loads(run(*args, "--format", "json").stdout)["rows"]]
        for reason in reasons:
            self.assertIn("Largest holders", reason)

    def test_results_are_printed_once(self):
        for args in (("compare", "alexnet:64", "--policy", "liveness,vdnn-all"),
                     ("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness,vdnn-all", "--scan", "1"),
                     ("fit", "alexnet:64", "--device", "h200"), ("run", "alexnet:64")):
            _, told, talk = on_a_terminal(*args, width=80)
            lines = told.splitlines()
            for row in [line for line in lines if re.match(r"(liveness|vdnn-all|alexnet:64) +\*? +(yes|\d)", line)]:
                self.assertEqual(lines.count(row), 1)
            self.assertNotIn("\n", talk)  # the bar is wiped, and nothing else is there

    def test_every_table_fits(self):
        recorded = ROOT / "traces/recorded/pytorch/gpt2-h200.json.zst"
        for args in (("run", "vgg16:256", "--device", "k40c"), ("run", "resnet50:64", "--memory", "60%", "--policy", POLICIES[-1]),
                     ("fit", recorded, "--memory", "4GiB"), ("fit", "vgg16:128", "resnet50:64", "--device", "titan_xp,k40c,v100"),
                     ("limit", "alexnet", "--memory", "1GiB", "--policy", *POLICIES[:3], "--scan", "1")):
            with self.subTest(args):
                self.texts(*args)

    def test_limit_begins_with_batch_time_rate_and_peak(self):
        args = ("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness", "vdnn-all", "mxnet", "--scan", "1")
        header, *lines = self.texts(*args).split("\n\n")[1].splitlines()
        self.assertEqual(re.split("  +", header)[:5], ["policy", "batch", "time ms", "samples/s", "peak GiB"])
        rows = json.loads(run(*args, "--format", "json").stdout)["rows"]
        self.assertEqual([row["policy"] for row in rows], ["liveness", "vdnn-all", "mxnet"])
        for row in rows:
            self.assertAlmostEqual(row["samples_per_second"], 1000 * row["limit"] / row["iteration_ms"], 6)
        limits = [int(re.search(r"\d+", line)[0]) for line in lines[:3]]
        self.assertEqual(limits, sorted((row["limit"] for row in rows), reverse=True))

    def test_fit_begins_with_the_fastest_device_of_each_workload(self):
        told = self.texts("fit", "vgg16:128", "alexnet:64", "--device", "titan_xp,k40c,v100")
        lines = told.split("\n\n")[1].splitlines()[1:7]
        self.assertEqual([line.split()[0] for line in lines], ["vgg16:128"] * 3 + ["alexnet:64"] * 3)
        self.assertRegex(lines[0], r"v100 +\* +yes")
        self.assertRegex(lines[2], r"k40c +\+ [\d.]+ GiB")

    def test_sweeps_have_a_table_for_each_case(self):
        with tempfile.TemporaryDirectory() as folder:
            store = f"{folder}/s.sqlite"
            several = ("sweep", "{vgg16:64,alexnet:128}", "--memory", "30%,60%", "--device", "titan_xp", "-o", store)
            self.ok(*several, "--policy", ",".join(POLICIES[:4]))
            exported = ("sweep", "export", store)
            tables = self.texts(*exported).split("\n\n")
            self.assertEqual(len(tables), 4)
            for table in tables:
                title, _, table = table.partition("\n")
                self.assertRegex(title, r"^(vgg16:64|alexnet:128) \(torch, training\) on titan_xp with [\d.]+ [GM]iB \((30|60)%\)$")
                header, rows = self.rows(table)
                self.assertEqual(set(rows), set(POLICIES[:4]))
                times = [float(cells[1]) for cells, _ in rows.values() if cells[0] == "yes"]
                self.assertEqual(times, sorted(times))
                self.assertEqual("time ms" in header, bool(times))
            self.assertEqual(run(*exported, "--format", "csv").stdout,
                             run(*exported, "--format", "csv", env={**os.environ, "COLUMNS": "80"}).stdout)
            single = f"{folder}/single.sqlite"
            self.ok("sweep", "alexnet:{16,32}", "--memory", "60%,110%", "--policy", "liveness", "-o", single)
            lines = self.texts("sweep", "export", single).splitlines()
            self.assertEqual(re.split("  +", lines[0])[:5], ["workload", "memory_request", "policy", "fits", "time ms"])
            self.assertEqual([line.split()[0] for line in lines[1:5]], ["alexnet:16"] * 2 + ["alexnet:32"] * 2)

    def test_wide_tables_and_pipes_have_everything(self):
        args = ("compare", "vgg16:64", "--memory", "30%", "--quiet")
        everything = self.ok(*args)
        self.assertIn("x memory bound", everything)
        self.assertEqual(on_a_terminal(*args, "--wide", width=60)[1], everything)
        self.assertIn("x memory bound", on_a_terminal(*args, width=400)[1])
        narrow = on_a_terminal(*args, width=60)[1]
        self.assertIn("more columns with --wide)", narrow)
        self.assertLessEqual(max(map(len, narrow.splitlines())), 60)

    def test_columns_of_dashes_are_hidden(self):
        args = ("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness", "--scan", "1")
        self.assertIn("depth", self.ok(*args).split("\n\n")[1])
        self.assertNotIn("depth", on_a_terminal(*args, width=200)[1].split("\n\n")[1])


@functools.cache
def help_on(path, width):
    return run("help", *path, env={**os.environ, "COLUMNS": str(width)}).stdout


def sections(text):
    """Returns the lines below each heading of a help."""
    found, lines = {}, []
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            found[line[:-1]] = lines = []
        elif line:
            lines.append(line)
        else:
            lines = []
    return found


@functools.cache
def verbs(path=()):
    """Returns all verbs of the program, each with the verbs above it, in the order of the help."""
    found = []
    for heading, lines in sections(help_on(path, 400)).items():
        if heading in ("Arguments", "Options", "Examples"):
            continue
        for line in lines:
            verb = path + (line.split()[0],)
            found += [verb, *verbs(verb)]
    return found


def usage(path):
    return help_on(path, 400).partition("\n")[0]


def works(path):
    """Returns true if the verb does something without one of its own verbs."""
    return " VERB" not in usage(path)


def needed(path, beside=None):
    """Returns arguments and options that the verb cannot do without, with a value that means nothing, but not `beside`."""
    words = re.sub(r"\[.*?\]", "", usage(path)).split()[2 + len(path):]
    options = []
    for name, kind, text in options_of(path):
        if "(required)" in text and name != beside:
            options += [name, re.match(r"\d*", kind)[0] or "x"] if kind else [name]
    return ["x"] * len(words) + options


def options_of(path):
    """Returns the options of a verb: name, the kind of value, which is empty for a flag, and help."""
    found = []
    for line in sections(help_on(path, 1000))["Options"]:
        match = re.match(r"  (?:-\w, )?(--[\w-]+) ?(\S*(?: \.\.\.)?)(.*)$", line)
        if match:
            found.append((match[1], match[2], match[3]))
        else:  # the text of a long name
            found[-1] = (*found[-1][:2], line)
    return found


class HelpTest(CommandTest):
    def test_help_fits_the_terminal(self):
        for path, width in itertools.product([(), *verbs()], (60, 80, 120)):
            text = help_on(path, width)
            self.assertLessEqual(max(map(len, text.splitlines())), width, text)
            self.assertTrue(text.startswith(f"usage: {' '.join(('spillway', *path))}"), text)
            # Other widths have the same words.
            self.assertEqual(text.replace("\\\n", " ").split(), help_on(path, 400).split())

    def test_help_of_a_pipe_has_80_columns(self):
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        self.assertEqual(run("help", "compare", env=environment).stdout, help_on(("compare",), 80))
        self.assertEqual(on_a_terminal("help", "compare", width=60)[1], help_on(("compare",), 60))

    def test_verbs_stand_in_the_order_of_use(self):
        order = [verb for (verb, *below) in verbs() if not below]
        self.assertEqual(len(order), len(set(order)))
        for before, after in itertools.pairwise(("trace", "record", "fit", "run", "compare", "limit", "sweep", "report", "doctor", "help")):
            self.assertLess(order.index(before), order.index(after))
        self.assertEqual(sorted(order), sorted(run("completion", "verbs").stdout.split()))

    def test_every_verb_has_two_examples_that_run(self):
        with tempfile.TemporaryDirectory() as folder:
            prepare(pathlib.Path(folder))
            for path in verbs():
                if not works(path):
                    continue
                text = help_on(path, 60).replace("\\\n", "")
                examples = [shlex.split(line) for line in sections(text)["Examples"]]
                self.assertEqual(len(examples), 2, path)
                for example in examples:
                    with self.subTest(example):
                        self.assertEqual(example[:1 + len(path)], ["spillway", *path])
                        self.assertNotIn("--help", example)
                        result = run(*example[1:], cwd=folder)
                        # An example may give a negative answer, or need a GPU or Slurm.
                        self.assertIn(result.returncode, (0, 1, 5), result.stderr)


def prepare(folder):
    """Writes the files that the examples read, unless other examples write them."""
    recordings = ROOT / "tests/testing/recordings"
    (folder / "tables").mkdir()
    for batch in (64, 128):
        shutil.copy(ROOT / f"traces/recorded/h200/vgg16-{batch}.json.zst", folder / "tables")
    shutil.copy(recordings / "default-oom.snapshot.pickle.gz", folder / "snapshot.pickle.gz")
    files = {}
    for name, kind in (("kineto", "kineto"), ("execution_trace", "et")):
        files[name] = {"file": f"gpt2.{kind}.json.zst"}
        shutil.copy(recordings / f"pytorch/gpt2-b4s512.{kind}.json.zst", folder / files[name]["file"])
    manifest = {"format": "spillway-pytorch-recording", "schema_version": 1, "name": "gpt2", "outcome": "ok",
                "model": {"batch": 4}, "files": files}
    (folder / "step.json").write_text(json.dumps(plan_test.step()), encoding="utf-8")
    (folder / "gpt2.manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "grid.toml").write_text('workload = ["alexnet:{8,16}"]\npolicy = ["liveness", "vdnn-all"]\n', encoding="utf-8")
    for args in (("store", "import", "kernels.sqlite", "tables/vgg16-64.json.zst"),
                 ("run", "alexnet:8", "-o", "r.csv"), ("sweep", "alexnet:32", "--policy", "liveness", "-o", "other.sqlite")):
        run(*args, cwd=folder)


class MistakeTest(CommandTest):
    def refused(self, text, *args):
        """Runs a command that must end with code 2 and one line that has the text."""
        message = self.fails(2, text, *args, cwd="/")
        self.assertEqual(message.count("\n"), 1, message)
        self.assertRegex(message, r"^spillway: \S.*\n$")
        self.assertNotRegex(message, r"[Ss]ubcommand|At Most|required TEXT|Could not convert")

    def test_mistyped_options(self):
        for path in verbs():
            self.refused("unknown option '--hlep'; did you mean '--help'? (valid: -h, --help, ", *path, "--hlep")
            self.refused("unknown option '--zzzz' (valid: ", *path, "--zzzz", "x")

    def test_options_without_a_value(self):
        for path in filter(works, verbs()):
            for name, kind, _ in options_of(path):
                if kind:
                    self.refused(f"{name} needs a value: ", *path, name)

    def test_options_that_are_given_twice(self):
        for path in filter(works, verbs()):
            for name, kind, _ in options_of(path):
                if kind and "..." not in kind:
                    self.refused(f"{name} is given twice, as 'x' and 'y': it takes one value", *path, name, "x", name, "y")

    def test_numbers(self):
        numbers = 0
        for path in filter(works, verbs()):
            for name, kind, _ in options_of(path):
                if match := re.fullmatch(r"(\d+)\.\.(\d+)( \.\.\.)?", kind):
                    for wrong in ("many", "1.5", "-1", "", str(int(match[2]) + 1)):
                        self.refused(f"{name}: '{wrong}' is not a whole number from {match[1]} to {match[2]}", *path, *needed(path, name),
                                     f"{name}={wrong}" if wrong else name, *([] if wrong else [""]))
                    numbers += 1
        self.assertGreater(numbers, 10)

    def test_missing_arguments(self):
        for path in verbs():
            if not works(path):
                self.refused(f"spillway: {path[-1]}: no verb is given (valid: ", *path)
            elif "x" in needed(path)[:1]:
                self.refused(f"spillway {' '.join(path)} needs the argument ", *path)
        self.refused("spillway: no verb is given (valid: trace, ")
        self.refused("it goes before --policy, which takes all values behind it", "compare", "--policy", "liveness", "vgg16:64")
        self.refused("spillway sweep submit needs the option --slurm", "sweep", "submit", "vgg16:64", "--tasks", "2")

    def test_too_many_arguments(self):
        for path in filter(works, verbs()):
            if "..." in usage(path):
                continue
            words = ["x"] * (len(usage(path).replace(" [VERB]", "").split()) - 3 - len(path))
            self.refused(f"'last' is one argument too many for spillway {' '.join(path)} (valid: ", *path, *words, "last")

    def test_unknown_verbs_and_values(self):
        for path in [(), *verbs()]:
            if path and works(path):
                continue
            self.refused("unknown verb 'hepl'" if path else "unknown verb 'hepl'; did you mean 'help'?", *path, "hepl")
        for path in filter(works, verbs()):
            for name, kind, text in options_of(path):
                if kind == "WORD":
                    self.refused(f"{name}: unknown value 'xml' (valid: ", *path, *needed(path), name, "xml")
        self.refused("--wide: unknown value '3' (valid: true, false)", "run", "vgg16:64", "--wide=3")
        self.refused("'plna' is not a workload", "sweep", "plna")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests tables for papers: markdown and latex of every verb with rows, chosen columns, pivots, endings of files.

usage: tables_test.py PATH_OF_SPILLWAY
"""

import csv
import io
import itertools
import json
import os
import re

import plan_test
from harness import DirectoryTest, RECORDED, ROOT, main

POLICIES = ("--policy", "liveness:algo=memory,vdnn-all:algo=memory,mxnet")
COMPARE = ("compare", "vgg16:32", "--memory", "100%,20%,60%", *POLICIES)
SNAPSHOT = ROOT / "tests/testing/recordings/default-oom.snapshot.pickle.gz"
RAW = ROOT / "sim/devices/h200.calibration.json"


def latex_rows(text):
    """Returns the cells of each row of a LaTeX document; a cell that spans columns counts as so many."""
    rows = []
    for line in text.splitlines():
        if not line.endswith(" \\\\"):
            continue
        cells = re.split(r"(?<!\\)&", line[:-3])
        spans = sum(int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line))
        rows.append([cell.strip() for cell in cells] + [""] * spans)
    return rows


def markdown_rows(text):
    """Returns the cells of each line of a table in Markdown."""
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in text.splitlines() if line.startswith("|")]


class TablesTest(DirectoryTest):
    def check_latex(self, text):
        self.assertRegex(text, r"\\label\{tab:[a-z0-9-]+\}")
        for rule in ("\\toprule", "\\midrule", "\\bottomrule"):
            self.assertEqual(text.count(rule), 1)
        plain = re.sub(r"\\[{}\\]", "", text)
        self.assertEqual(plain.count("{"), plain.count("}"))
        rows = latex_rows(text)
        self.assertEqual({len(row) for row in rows}, {len(re.search(r"\{tabular\}\{([lr]+)\}", text)[1])})
        return rows

    def check_markdown(self, text):
        rows = markdown_rows(text)
        self.assertEqual(len({len(row) for row in rows}), 1, text)
        self.assertRegex("".join(rows[1]), "^[:-]+$")
        return [rows[0], *rows[2:]]


class EveryVerbTest(TablesTest):
    def test_rows_of_several_devices_name_theirs(self):
        for policies, devices in itertools.product(("liveness", "liveness,vdnn-all"), ("h200", "h200,h100", "h200,gtx_970")):
            limit = ("limit", "vgg16", "--memory", "3GiB", "--scan", "1", "--policy", policies, "--device", devices, "--format", "markdown")
            with self.subTest(limit):
                text = self.ok(*limit)
                head, *rows = self.check_markdown(text)
                if "," in devices:
                    self.assertEqual({row[head.index("device")].replace("\\", "") for row in rows}, set(devices.split(",")))
                else:
                    self.assertIn("device h200,", text.splitlines()[0])

    def commands(self):
        """Returns a command of each verb that takes --format."""
        decisions, trace, store, sweep = (self.directory / name for name in
                                          ("d.json", "t.json", "s.sqlite", "r.sqlite"))
        self.ok("run", "alexnet:1", "--export", f"decisions:{decisions}", "--export", f"trace:{trace}")
        self.ok("store", "import", store, RECORDED / "h200/alexnet-128.json.zst")
        self.ok("sweep", "alexnet:{1,2}", "--policy", "torch", "-o", sweep, "--quiet")
        recording = ROOT / "tests/testing/recordings/pytorch/resnet50-b32"
        recorded = self.directory / "step.json"
        recorded.write_text(json.dumps(plan_test.step()), encoding="utf-8")
        return {
            "run": ("run", "alexnet:1"),
            "compare": COMPARE,
            "limit": ("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness", "--scan", "1"),
            "fit": ("fit", "alexnet:1", "--device", "k40c,h200"),
            "plan": ("plan", recorded, "--memory", "640MiB", *plan_test.QUICK),
            "replay": ("replay", decisions, "--allocator", "best-fit,first-fit"),
            "reproduce": ("reproduce", "vdnn-Fig5"),
            "list/ops": ("list", "ops"),
            "list/columns": ("list", "columns"),
            "doctor": ("doctor",),
            "trace/info": ("trace", "info", "alexnet:1"),
            "trace/import": ("trace", "import", "--kineto", f"{recording}.kineto.json.zst", "--execution-trace",
                             f"{recording}.et.json.zst", "-o", self.directory / "i.json"),
            "store/list": ("store", "list", store),
            "sweep/plan": ("sweep", "plan", "alexnet:1", "--policy", "torch"),
            "sweep/status": ("sweep", "status", sweep),
            "sweep/export": ("sweep", "export", sweep),
            "replay-run": ("replay-run", f"{trace}.manifest.json"),
            "calibrate": ("calibrate", "-o", self.directory / "c.toml", "--refit", RAW, "--from", "h200"),
        }

    def test_every_verb_with_rows_writes_both(self):
        commands = self.commands()
        verbs = re.findall(r'"/(\S+) --format"\)', self.ok("completion", "bash"))
        self.assertEqual(set(verbs) - {"validate"}, set(commands))  # validate needs a GPU
        for verb, command in commands.items():
            with self.subTest(verb):
                latex = self.check_latex(self.ok(*command, "--format", "latex"))
                markdown = self.check_markdown(self.ok(*command, "--format", "markdown"))
                self.assertEqual(len(latex), len(markdown))
                rows = list(csv.reader(io.StringIO(self.ok(*command, "--format", "csv"))))
                self.assertEqual(len(rows), len(markdown))
                name = rows[0][0]
                chosen = self.check_markdown(self.ok(*command, "--format", "markdown", "--columns", f"{name},{name}"))
                self.assertEqual({len(row) for row in chosen}, {2})
                self.assertIn(name.replace("_", "\\_"), self.ok(*command, "--columns", name).replace("_", "\\_"))
                self.fails(2, "unknown column 'nme'", *command, "--columns", f"{name},nme")
                self.fails(2, "csv has all columns", *command, "--columns", name, "--format", "csv")
        self.fails(2, "unknown column 'x'", *commands["trace/import"][:-1], self.directory / "new.json", "--columns", "x")
        self.assertFalse((self.directory / "new.json").exists())
        self.fails(2, "unknown column 'errr'; did you mean 'error'? (valid: ", "validate", "alexnet:1", "--columns", "errr")


class PivotTest(TablesTest):
    def test_results_stand_in_the_cells_of_their_settings(self):
        rows = list(csv.DictReader(io.StringIO(self.ok(*COMPARE, "--format", "csv"))))
        pivot = ("--pivot", "policy", "--by", "memory", "--value", "slowdown")
        head, *lines = self.check_markdown(self.ok(*COMPARE, *pivot, "--format", "markdown"))
        self.assertEqual(head, ["policy", "20%", "60%", "100%"])
        cells = {(line[0], memory): cell for line in lines for memory, cell in zip(head[1:], line[1:])}
        for row in rows:
            cell = cells.pop((row["policy"], row["memory_request"]))
            if row["status"] == "oom":
                self.assertEqual(cell, "oom")
            else:
                self.assertAlmostEqual(float(cell), float(row["slowdown"]), delta=0.0005)
        self.assertEqual(cells, {})
        latex = self.ok(*COMPARE, *pivot, "--format", "latex")
        self.assertEqual(self.check_latex(latex)[1:], [[cell.replace("%", "\\%") for cell in line] for line in (head, *lines)])
        self.assertIn("\\multicolumn{3}{c}{memory}", latex)
        self.assertIn("\\label{tab:slowdown-by-policy-and-memory-vgg16-32}", latex)
        self.assertIn("\\caption{Slowdown by policy and memory: vgg16:32, device h200, preset torch, mode training. "
                      "0\\% of memory is", latex)
        table = self.ok(*COMPARE, *pivot).splitlines()
        self.assertEqual([line.split() for line in table[2:]], [head, *lines])

    def test_a_store_is_pivoted_by_what_differs(self):
        store = self.directory / "r.sqlite"
        self.ok("sweep", "alexnet:{8,16}", "--memory", "1GiB,512MiB", *POLICIES, "-o", store, "--quiet")
        export = ("sweep", "export", store, "--format", "markdown", "--by", "memory", "--value", "samples_per_second")
        self.fails(2, "two rows have policy 'liveness:algo=memory' and memory '512 MiB' and differ in 'workload': choose "
                   "one 'workload', or pivot by it, too (--pivot workload,policy)", *export, "--pivot", "policy")
        rows = self.check_markdown(self.ok(*export, "--pivot", "workload,policy"))
        self.assertEqual(rows[0], ["workload", "policy", "512 MiB", "1 GiB"])
        self.assertEqual(len(rows), 1 + 2 * 3)
        rows = self.check_markdown(self.ok("sweep", "export", store, "--format", "markdown", "--pivot", "policy,memory",
                                           "--by", "batch"))
        self.assertEqual(rows[0], ["policy", "memory", "8", "16"])

    def test_what_makes_no_table_is_refused(self):
        for text, args in (
                ("unknown column 'memry'; did you mean 'memory'? (valid: ", ("--pivot", "policy", "--by", "memry")),
                ("unknown column 'slow'; did you mean 'slowdown'?", ("--pivot", "policy", "--by", "memory", "--value", "slow")),
                ("'policy' is named twice", ("--pivot", "policy", "--by", "policy")),
                ("--pivot needs --by", ("--pivot", "policy")),
                ("--by needs --pivot", ("--by", "policy")),
                ("csv has all columns, a row for each result", ("--pivot", "policy", "--by", "memory", "--format", "csv")),
                ("json has all columns", ("--columns", "policy", "--format", "json")),
                ("cannot be given with --columns", ("--pivot", "policy", "--by", "memory", "--columns", "policy")),
                ("no column is named", ("--columns", "")),
                ("differ in 'policy': choose one 'policy', or pivot by it, too", ("--pivot", "workload", "--by", "memory"))):
            with self.subTest(text):
                self.fails(2, text, "compare", "vgg16:32", "--memory", "20%,60%", *POLICIES, *args)
        self.fails(2, "unknown option '--pivot'", "limit", "alexnet", "--pivot", "policy")

    def test_a_case_that_is_given_twice_is_refused(self):
        self.fails(2, "are alike: name each case once", "compare", "alexnet:1", "alexnet:1", "--policy", "torch",
                   "--pivot", "policy", "--by", "memory")


class EndingTest(TablesTest):
    def test_the_ending_chooses_the_format(self):
        for name, start in (("r.md", "Results: vgg16:32,"), ("r.tex", "% \\usepackage{booktabs}"), ("r.csv", "workload,"),
                            ("r.json", "{"), ("r.txt", "vgg16:32 (torch")):
            path = self.directory / name
            self.ok(*COMPARE, "-o", path, "--quiet")
            self.assertTrue(path.read_text("utf-8").startswith(start), name)
        self.fails(2, "names a latex file, --format says markdown", *COMPARE, "-o", self.directory / "x.tex",
                   "--format", "markdown")
        self.fails(2, "--pivot: csv has all columns", *COMPARE, "-o", self.directory / "x.csv", "--pivot", "policy",
                   "--by", "memory")

    def test_an_unknown_ending_is_refused(self):
        before = os.listdir(self.directory)
        rows = "(valid: .txt, .csv, .json, .md, .tex)"
        for ending, valid, args in (
                (".xlsx", rows, ("run", "alexnet:1")),
                (".jsn", f"did you mean '.json'? {rows}", COMPARE),
                (".html", rows, ("limit", "alexnet")),
                (".pdf", rows, ("fit", "alexnet:1")),
                (".csv2", rows, ("replay", SNAPSHOT)),
                (".tx", rows, ("reproduce", "vdnn")),
                (".sqlite", rows, ("sweep", "export", "r.sqlite")),
                (".db", "(valid: .txt, .csv, .json, .md, .tex, .sqlite)", ("validate", "alexnet:1")),
                (".csv", "(valid: .sqlite)", ("sweep", "alexnet:1")),
                (".db", "(valid: .sqlite)", ("sweep", "submit", "alexnet:1", "--slurm", "--tasks", "1", "--dry-run")),
                (".csv", "(valid: .json)", ("trace", "build", "alexnet:1")),
                (".pdf", "(valid: .html)", ("report", "alexnet:1")),
                (".json", "must end in .toml", ("calibrate", "--refit", RAW))):
            with self.subTest(args[0]):
                message = self.fails(2, valid, *args, "-o", self.directory / f"x{ending}")
                self.assertIn(f"x{ending}'", message)
        self.assertEqual(os.listdir(self.directory), before)


if __name__ == "__main__":
    main()

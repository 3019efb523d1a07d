#!/usr/bin/env python3
"""Tests that the papers' CSVs and page are the committed ones, and that all figures can be drawn.

usage: figures_test.py PATH_OF_SPILLWAY
"""

import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from harness import DirectoryTest, ROOT, main

PAPERS = ROOT / "experiments" / "papers"
FIGURES = PAPERS / "figures"
PLOT = PAPERS / "plot.py"
PAGE = PAPERS / "page.py"


def plot(directory):
    return subprocess.run([sys.executable, PLOT, directory], capture_output=True, text=True, check=False)


# The program draws with the first python3 in PATH.
ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}


class FiguresTest(DirectoryTest):
    def totals(self):
        """Runs the command in an empty directory: it must make exactly the committed CSVs, and every picture as PDF and PNG."""
        document = self.ok("reproduce", "all", "--figures", self.directory, "--format", "json", env=ENVIRONMENT)
        made = {path.name: path.read_bytes() for path in self.directory.glob("*.csv")}
        kept = {path.name: path.read_bytes() for path in FIGURES.glob("*.csv")}
        self.assertEqual(sorted(made), sorted(kept))
        for name, contents in kept.items():
            self.assertEqual(made[name], contents, f"{name} differs: spillway reproduce all --figures {FIGURES}")
        pictures = {path.stem for path in FIGURES.glob("*.png")}
        for ending in ("pdf", "png"):
            self.assertEqual({path.stem for path in self.directory.glob(f"*.{ending}")}, pictures)
        return json.loads(document)["totals"]

    def test_the_numbers_are_the_committed_ones(self):
        """The evidence page gives each paper's totals: agree by evidence, miss, shown, far off, not computed. README gives their sum."""
        lines = {}
        for total in self.totals():
            line = lines.setdefault(total["paper"], dict.fromkeys(("=", "c", "~", "miss", "shown", "far", "not_computed"), 0))
            if total["agree"]:
                line[total["evidence"]] += total["agree"]
            for name in ("miss", "shown", "far", "not_computed"):
                line[name] += total[name]
        evidence = (ROOT / "experiments" / "evidence" / "README.md").read_text("utf-8")
        for paper, line in lines.items():
            self.assertIn(f"| {paper} | " + " | ".join(map(str, line.values())) + " |\n", evidence)
        judged = sum(line[name] for line in lines.values() for name in ("=", "c", "~", "miss"))
        shown, far = (sum(line[name] for line in lines.values()) for name in ("shown", "far"))
        misses = sum(line["miss"] for line in lines.values())
        self.assertEqual(misses, 0)
        self.assertIn(f"{judged} of the papers' printed numbers are judged, and all agree; of {shown} others, {far} are off by more "
                      "than 25 %.", " ".join((ROOT / "README.md").read_text("utf-8").split()))

    def test_claims_on_the_pages_are_those_of_the_measurements(self):
        """Each number is computed from the CSV files of the evidence."""
        folder = ROOT / "experiments" / "evidence"

        def rows(path):
            with open(folder / path, newline="", encoding="utf-8") as stream:
                return list(csv.DictReader(stream))

        pages = [" ".join(path.read_text("utf-8").split()) for path in (ROOT / "README.md", folder / "README.md")]
        front, evidence = pages
        cases = [row for row in rows("validation/h200.csv") if row["error"]]
        workloads = {row["workload"] for row in cases}
        words = {6: "six", 9: "nine"}
        spread = f"{words[len(workloads)]} workloads of {words[len({name.split(':')[0] for name in workloads})]} networks"
        self.assertIn(f"in {len(cases)} cases: {spread}.", front)
        self.assertIn(f"In {len(cases)} cases, {spread},", evidence)
        errors = [abs(float(row["error"])) for row in cases]
        self.assertIn(f"off by {sum(errors) / len(errors):.2%}".replace("%", " %"), front)
        self.assertIn(f"{max(errors):.2%} at worst".replace("%", " %"), front)
        steps = rows("pytorch/recordings-h200.csv")
        low = sorted(1 - float(row["step_ms_predicted"]) / float(row["step_ms_measured"]) for row in steps)
        low = [share for share in low if share > 0.3]
        self.assertIn(f"of {len(steps)} small PyTorch steps, predictions of {len(low)} are {low[0]:.0%} to {low[-1]:.0%} too low"
                      .replace("%", "").replace(" too low", " % too low"), front)
        worst = [max(-float(row["error"]) for row in rows(f"pytorch/{gpu}-plans.csv") if row["plan"] == "checkpoint")
                 for gpu in ("h200", "h100")]
        self.assertIn(f"of checkpoints up to {100 * worst[0]:.0f} % on an H200 and {100 * worst[1]:.0f} % on an H100", front)

    def test_the_planner_s_page_is_that_of_its_runs(self):
        """The table is that of frontier.csv, whose rows of quick policies the program still computes."""
        folder = ROOT / "experiments" / "evidence" / "joint"
        table = subprocess.run([sys.executable, folder / "run", folder / "frontier.csv"], capture_output=True, text=True, check=True).stdout
        self.assertIn(table, (folder / "README.md").read_text("utf-8"), f"{folder}/run PATH_OF_SPILLWAY")
        with open(folder / "frontier.csv", newline="", encoding="utf-8") as stream:
            kept = {(row["workload"], row["memory_request"], row["policy"]): row for row in csv.DictReader(stream)}
        policies = ("capuchin", "mxnet", "superneurons", "tensorflow", "vdnn-dyn", "vdnnpp")
        computed = csv.DictReader(self.ok("compare", "alexnet:256", "vgg16:64", "googlenet:128", "--device", "h200", "--memory",
                                          "10%,30%,50%,70%,90%", "--policy", ",".join(policies), "--format", "csv").splitlines())
        for row in computed:
            self.assertEqual(row["iteration_ms"], kept[row["workload"], row["memory_request"], row["policy"]]["iteration_ms"],
                             f"{row['workload']} {row['memory_request']} {row['policy']}: {folder}/run PATH_OF_SPILLWAY")

    def test_the_page_is_what_its_generator_makes(self):
        page = subprocess.run([sys.executable, PAGE], capture_output=True, text=True, check=True).stdout
        self.assertEqual(page, (PAPERS / "README.md").read_text("utf-8"), f"{PAGE} -o {PAPERS / 'README.md'}")
        shown = set(re.findall(r"\]\((figures/[^)]*)\)", page))
        self.assertEqual(shown, {f"figures/{path.name}" for path in FIGURES.iterdir() if path.suffix in (".csv", ".png")})

    def test_another_gpu_judges_nothing(self):
        arguments = ("--device", "h200", "--format", "json")
        rows = json.loads(self.ok("reproduce", "vdnn", *arguments))["rows"]
        self.assertEqual({(row["device"], row["cost"], row["printed"], row["judged"]) for row in rows},
                         {("h200", "auto", None, False)})
        (recorded,) = json.loads(self.ok("reproduce", "Fig6 VGG-16(64) conv1_2 forward ms", *arguments))["rows"]
        self.assertEqual(recorded["command"],
                         "spillway reproduce 'Fig6 VGG-16(64) conv1_2 forward ms' --device h200 --cost auto")
        (modelled,) = json.loads(self.ok("reproduce", recorded["item"], *arguments, "--cost", "roofline"))["rows"]
        self.assertNotEqual(modelled["ours"], recorded["ours"])
        gpus = [row["item"] for row in json.loads(self.ok("reproduce", "ucudnn-Fig10", *arguments))["rows"]]
        self.assertEqual(len(gpus), len(set(gpus)))
        self.assertTrue(all(" h200 " in item for item in gpus), gpus)
        self.fails(2, "no number of that depends on the device", "reproduce", "mmcnn-Tab6", "--device", "h200")
        self.fails(2, "did you mean 'h200'", "reproduce", "vdnn-Fig1", "--device", "h2000")
        self.fails(2, "did you mean 'auto'", "reproduce", "vdnn-Fig6", "--device", "h200", "--cost", "aut")
        self.fails(2, "unknown item", "reproduce", "vdnn-Fig99", "--device", "h200")
        self.fails(2, "--device", "reproduce", "vdnn-Fig1", "--cost", "auto")

    def test_a_figure_without_data_is_an_error(self):
        shutil.copy(FIGURES / "vdnn-Fig13.csv", self.directory)
        self.assertEqual(plot(self.directory).returncode, 0)
        header = (FIGURES / "vdnn-Fig13.csv").read_text("utf-8").splitlines()[0]
        (self.directory / "vdnn-Fig13.csv").write_text(header + "\n", "utf-8")
        result = plot(self.directory)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("plot: vdnn-Fig13: ", result.stderr)

    def test_a_series_that_is_missing_is_an_error(self):
        lines = (FIGURES / "vdnn-Fig15.csv").read_text("utf-8").splitlines(keepends=True)
        (self.directory / "vdnn-Fig15.csv").write_text("".join(x for x in lines if "VGG-216(32) dyn CPU" not in x),
                                                       "utf-8")
        result = plot(self.directory)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("KeyError", result.stderr)

    def test_a_line_that_is_missing_is_an_error(self):
        """A line is missing in one of several panels that share a legend."""
        lines = (FIGURES / "superneurons-Fig14.csv").read_text("utf-8").splitlines(keepends=True)
        kept = [x for x in lines if "VGG16(" not in x or " Torch " not in x]
        (self.directory / "superneurons-Fig14.csv").write_text("".join(kept), "utf-8")
        result = plot(self.directory)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("lack Torch", result.stderr)

    def test_a_label_that_is_cut_off_is_found(self):
        sys.path.insert(0, str(ROOT / "scripts"))
        import figstyle
        fig, axes = figstyle.figure()
        axes.plot([0, 1], [0, 1])
        self.assertEqual(figstyle.problems(fig), [])
        fig.text(0.9, 0.5, "a label that leaves the figure on the right")
        self.assertEqual(figstyle.problems(fig), ["a label is cut off"])

    def test_a_figure_that_needs_another_says_so(self):
        shutil.copy(FIGURES / "ucudnn-Fig10.csv", self.directory)
        self.assertIn("ucudnn-Fig10 is not drawn without ucudnn-Fig11", plot(self.directory).stderr)

    def test_only_tables_and_figures_are_written(self):
        self.fails(2, "unknown table or figure", "reproduce", "base VGG-16(256) GB", "--figures", self.directory)
        self.ok("reproduce", "ucudnn-Fig9", "--figures", self.directory / "new", env=ENVIRONMENT)
        self.assertEqual(sorted(path.name for path in (self.directory / "new").iterdir()),
                         ["ucudnn-Fig9.csv", "ucudnn-Fig9.csv.manifest.json", "ucudnn-Fig9.pdf", "ucudnn-Fig9.png"])

    def test_a_table_replays_from_its_manifest(self):
        table = self.directory / "ucudnn-Fig9.csv"
        self.ok("reproduce", "ucudnn-Fig9", "--figures", self.directory, env=ENVIRONMENT)
        (self.directory / "ucudnn-Fig9.png").unlink()
        self.assertIn("ucudnn-Fig9.csv: same\n", self.ok("replay-run", f"{table}.manifest.json"))
        self.assertFalse((self.directory / "ucudnn-Fig9.png").exists())  # a replayed run writes nothing
        table.write_text(table.read_text("utf-8").replace("9", "8"), "utf-8")
        self.assertIn("the file has changed", self.ok("replay-run", f"{table}.manifest.json", code=1))

    def test_the_page_says_where_policies_leave_the_order_of_the_paper(self):
        sys.path.insert(0, str(PAPERS))
        import page
        order = {"item": "F {network} {policy} {measure} MB", "measures": {"max": "most"}, "least_first": [["a(m)", "b(m)"], ["a(p)", "c"]]}
        known = {"F X(1) a(m) max MB": "1", "F X(1) b(m) max MB": "1", "F X(1) a(p) max MB": "2", "F X(1) c max MB": "3",
                 "F Y(1) a(m) max MB": "1", "F Y(1) b(m) max MB": "2", "F Y(1) a(p) max MB": "6", "F Y(1) c max MB": "3"}
        self.assertEqual(page.order_sentence(order, known),
                         "The policies are in the paper's order, from the least memory a(m), b(m); a(p), c, in 1 of 2 networks. "
                         "Against it: Y(1) has a(p) 2.00 times c (most).")
        rows = [{"judged": "true", "passes": "true"}, {"judged": "false", "rel_error": "-0.251"},
                {"judged": "false", "rel_error": "0.25"}]
        self.assertEqual(page.tally(rows), "3 printed numbers: 1 agree, 0 miss, 2 shown and not judged (1 off by more "
                                           "than 25 %).")


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("skipped: no matplotlib for", sys.executable)
        sys.exit(77)
    main()

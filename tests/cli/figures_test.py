#!/usr/bin/env python3
"""Tests that the papers' CSVs and page are the committed ones, and that all figures can be drawn.

usage: figures_test.py PATH_OF_SPILLWAY
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import CommandTest, ROOT, main

PAPERS = ROOT / "experiments" / "papers"
FIGURES = PAPERS / "figures"
PLOT = PAPERS / "plot.py"
PAGE = PAPERS / "page.py"


def plot(directory):
    return subprocess.run([sys.executable, PLOT, directory], capture_output=True, text=True, check=False)


# The program draws with the first python3 in PATH.
ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}


class FiguresTest(CommandTest):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def compare(self, kept_in, *arguments):
        """Runs the command in an empty directory: it must make exactly the committed CSVs, and every picture as PDF and PNG."""
        document = self.ok("reproduce", "all", *arguments, "--figures", self.directory, "--format", "json", env=ENVIRONMENT)
        made = {path.name: path.read_bytes() for path in self.directory.glob("*.csv")}
        kept = {path.name: path.read_bytes() for path in kept_in.glob("*.csv")}
        self.assertEqual(sorted(made), sorted(kept))
        command = " ".join(("spillway reproduce all", *arguments, "--figures", str(kept_in)))
        for name, contents in kept.items():
            self.assertEqual(made[name], contents, f"{name} differs: {command}")
        pictures = {path.stem for path in FIGURES.glob("*.png")} & {pathlib.Path(name).stem for name in kept}
        for ending in ("pdf", "png"):
            self.assertEqual({path.stem for path in self.directory.glob(f"*.{ending}")}, pictures)
        return json.loads(document)

    def test_the_numbers_are_the_committed_ones(self):
        """The evidence page gives each paper's totals: agree by evidence, miss, shown, not computed. README gives their sum."""
        lines = {}
        for total in self.compare(FIGURES)["totals"]:
            line = lines.setdefault(total["paper"], dict.fromkeys(("=", "c", "~", "miss", "shown", "not_computed"), 0))
            if total["agree"]:
                line[total["evidence"]] += total["agree"]
            for name in ("miss", "shown", "not_computed"):
                line[name] += total[name]
        evidence = (ROOT / "experiments" / "evidence" / "README.md").read_text("utf-8")
        for paper, line in lines.items():
            self.assertIn(f"| {paper} | " + " | ".join(map(str, line.values())) + " |\n", evidence)
        judged = sum(line[name] for line in lines.values() for name in ("=", "c", "~", "miss"))
        self.assertIn(f"{judged} of the papers' printed numbers are judged", (ROOT / "README.md").read_text("utf-8"))

    @unittest.skipUnless("SPILLWAY_OTHER_GPUS" in os.environ, "takes minutes: ctest -R cli_figures_h200")
    def test_those_of_another_gpu_too(self):
        self.compare(FIGURES / "h200", "--device", "h200")

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
        self.fails(2, "did you mean 'h200'", "reproduce", "vdnn-Fig1", "--device", "h20")
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
                         ["ucudnn-Fig9.csv", "ucudnn-Fig9.pdf", "ucudnn-Fig9.png"])


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("skipped: no matplotlib for", sys.executable)
        sys.exit(77)
    main()

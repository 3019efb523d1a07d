#!/usr/bin/env python3
"""Tables and figures of the papers: the CSVs are the committed ones, and all figures can be drawn from them.

usage: figures_test.py PATH_OF_SPILLWAY
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from harness import CommandTest, ROOT, main

FIGURES = ROOT / "experiments" / "reproduce" / "figures"
PLOT = ROOT / "experiments" / "reproduce" / "plot.py"


def plot(directory):
    return subprocess.run([sys.executable, PLOT, directory], capture_output=True, text=True, check=False)


# The program draws with the first python3 of the path.
ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}


class FiguresTest(CommandTest):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def test_the_numbers_are_the_committed_ones(self):
        self.ok("reproduce", "all", "--figures", self.directory, env=ENVIRONMENT)
        made = {path.name: path.read_bytes() for path in self.directory.glob("*.csv")}
        kept = {path.name: path.read_bytes() for path in FIGURES.glob("*.csv")}
        self.assertEqual(sorted(made), sorted(kept))
        for name, contents in kept.items():
            self.assertEqual(made[name], contents, f"{name} differs: spillway reproduce all --figures {FIGURES}")
        drawn = {path.name for path in self.directory.glob("*.p*")}
        self.assertEqual(drawn, {path.name for path in FIGURES.glob("*.p*")})

    def test_the_readme_has_the_totals(self):
        """`spillway reproduce all`, by paper: agree by evidence, miss, shown, not computed."""
        lines = {}
        for total in json.loads(self.ok("reproduce", "all", "--format", "json"))["totals"]:
            line = lines.setdefault(total["paper"], dict.fromkeys(("=", "c", "~", "miss", "shown", "not_computed"), 0))
            if total["agree"]:
                line[total["evidence"]] += total["agree"]
            for name in ("miss", "shown", "not_computed"):
                line[name] += total[name]
        readme = (ROOT / "README.md").read_text("utf-8")
        for paper, line in lines.items():
            self.assertIn(f"| {paper} | " + " | ".join(map(str, line.values())) + " |\n", readme)

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

    def test_a_figure_that_needs_another_says_so(self):
        shutil.copy(FIGURES / "vdnn-Fig14.csv", self.directory)
        self.assertIn("vdnn-Fig14 is not drawn without vdnn-Fig11", plot(self.directory).stderr)

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

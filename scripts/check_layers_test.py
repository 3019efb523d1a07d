#!/usr/bin/env python3
"""Tests check_layers.py: the repository passes, and a violation planted in a copy of the repository is found."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECK = ROOT / "scripts" / "check_layers.py"


def check(root: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(CHECK), str(root)], capture_output=True, text=True, check=False)


class CheckLayersTest(unittest.TestCase):
    def planted(self, path: str, include: str) -> str:
        """Appends an include to a file in a copy of the repository. Returns the output of the check."""
        return self.with_line(path, f"#include {include}")

    def with_line(self, path: str, line: str) -> str:
        """Appends a line to a file in a copy of the repository. Returns the output of the check."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for top in ("traces", "sim", "policies", "backend", "experiments", "tests/testing"):
                shutil.copytree(ROOT / top, root / top, ignore=shutil.ignore_patterns("*.zst", "*.gz", "*.png"))
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"{line}\n")
            result = check(root)
        self.assertEqual(result.returncode, 1 if result.stdout else 0)
        return result.stdout

    def test_the_repository_passes(self):
        result = check(ROOT)
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_an_arrow_up(self):
        self.assertRegex(self.planted("sim/core/device.h", '"sim/runtime/parts.h"'),
                         r'sim/core/device.h:\d+: sim/core must not include "sim/runtime/parts.h"')

    def test_an_arrow_through_an_inner_wall(self):
        self.assertIn("traces/base must not include", self.planted("traces/base/units.h", '"traces/trace.h"'))
        self.assertIn("experiments/run must not include",
                      self.planted("experiments/run/case.h", '"experiments/output/manifest.h"'))
        self.assertIn("policies/recorded must not include",
                      self.planted("policies/recorded/saved_tensors.h", '"policies/plan/plan.h"'))
        self.assertIn("experiments/changes must not include",
                      self.planted("experiments/changes/changed_op.h", '"experiments/run/case.h"'))

    def test_a_circle(self):
        self.assertIn("a circle of modules: traces/logs/memory_log traces/logs/snapshot_records",
                      self.planted("traces/logs/memory_log.h", '"traces/logs/snapshot_records.h"'))

    def test_an_arrow_up_in_the_python_package(self):
        package = "backend/torch/spillway_torch"
        self.assertRegex(self.with_line(f"{package}/plan/plan.py", "from ..run.executor import Executor"),
                         f'{package}/plan/plan.py:[0-9]+: {package}/plan must not include "{package}/run/executor.py"')
        self.assertIn(f"{package}/base must not", self.with_line(f"{package}/base/ledger.py", "def late():\n    from .. import step"))

    def test_a_circle_in_the_python_package(self):
        package = "backend/torch/spillway_torch"
        self.assertIn(f"a circle of modules: {package}/tape/costs {package}/tape/tape",
                      self.with_line(f"{package}/tape/costs.py", "from .tape import Tape"))

    def test_a_library_away_from_home(self):
        self.assertIn("<simdjson.h> belongs to traces/base", self.planted("sim/cost/table_cost.h", "<simdjson.h>"))

    def test_a_large_library_in_a_header(self):
        self.assertIn("<simdjson.h> belongs in sources", self.planted("traces/base/json.h", "<simdjson.h>"))

    def test_two_types_of_one_name(self):
        two = "namespace spillway::policies {\nstruct Bounds {\n};\n}  // namespace spillway::policies"
        self.assertRegex(self.with_line("policies/dtr.cc", two),
                         r"policies/dtr.cc:\d+: spillway::Bounds is defined in sim/core/report.h:\d+, too")
        inner = "namespace spillway::policies {\nnamespace {\nstruct Bounds {\n};\n}  // namespace\n}  // namespace spillway::policies"
        self.assertEqual(self.with_line("policies/dtr.cc", inner), "")

    def test_two_modules_of_one_name(self):
        self.assertIn("sim/core/dtr: policies has a module of that name, too",
                      self.with_line("sim/core/dtr.cc", "namespace spillway {}"))

    def test_a_namespace_of_another_library(self):
        self.assertRegex(self.with_line("policies/dtr.cc", "namespace spillway::sim {\n}  // namespace spillway::sim"),
                         r"policies/dtr.cc:\d+: spillway::sim is not spillway::policies")
        self.assertIn("spillway is not spillway::lab or spillway::cli", self.with_line("experiments/run/inputs.cc", "namespace spillway {\n}  // namespace"))

    def test_no_rule(self):
        self.assertIn("sim/magic/ has no rule", self.planted("sim/magic/wand.h", '"traces/trace.h"'))
        self.assertIn("not a path from the root", self.planted("sim/core/device.h", '"units.h"'))


if __name__ == "__main__":
    unittest.main()

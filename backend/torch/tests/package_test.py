"""Tests what surrounds the recorder: the package itself, its types, and the search for the program."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

from spillway_torch import ProgramError
from spillway_torch.base.program import find_program, run_program
from spillway_torch.run.recompute import library_path

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


class PackageTest(unittest.TestCase):
    @staticmethod
    def source(folder):
        return shutil.copytree(PACKAGE, pathlib.Path(folder) / "source", ignore=shutil.ignore_patterns(
            "__pycache__", "build", "dist", "*.egg-info", "*.so"))

    def test_it_builds_a_wheel_from_a_source_package(self):
        with tempfile.TemporaryDirectory() as folder:
            source = self.source(folder)
            built = subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", source],
                                   capture_output=True, text=True, check=False)
            self.assertEqual(built.returncode, 0, built.stderr)
            names = sorted(path.suffix for path in (source / "dist").iterdir())
            self.assertEqual(names, [".gz", ".whl"])
            with zipfile.ZipFile(next((source / "dist").glob("*.whl"))) as wheel:
                self.assertIn("spillway_torch/py.typed", wheel.namelist())
                self.assertIn(f"spillway_torch/run/{library_path().name}", wheel.namelist())
                self.assertRegex(wheel.filename, "-py3-none-linux_x86_64.whl$")
                modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("spillway_torch/**/*.py")}
                self.assertEqual(modules - set(wheel.namelist()), set())

    def test_it_builds_a_wheel_without_a_compiler(self):
        with tempfile.TemporaryDirectory() as folder:
            source = self.source(folder)
            built = subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--wheel", source],
                                   env={**os.environ, "CXX": "/no/compiler"}, capture_output=True, text=True, check=False)
            self.assertEqual(built.returncode, 0, built.stderr)
            with zipfile.ZipFile(next((source / "dist").iterdir())) as wheel:
                self.assertFalse([name for name in wheel.namelist() if name.endswith(".so")])
                self.assertRegex(wheel.filename, "-py3-none-any.whl$")

    def test_its_types_are_consistent(self):
        checked = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", PACKAGE.parents[1] / "build" / "torch" / "mypy",
                                  "spillway_torch"], cwd=PACKAGE,
                                 capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


class ProgramTest(unittest.TestCase):
    def test_the_variable_goes_before_the_path(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "spillway"
            program.write_text("#!/bin/sh\necho \"$@\" >&2; exit 3\n", encoding="utf-8")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            with mock.patch.dict(os.environ, {"PATH": folder}):
                del os.environ["SPILLWAY"]
                self.assertEqual(find_program(), str(program))
                with self.assertRaisesRegex(ProgramError, "spillway fit x: exit code 3: fit x"):
                    run_program("fit", "x")
                with mock.patch.dict(os.environ, {"SPILLWAY": folder}), self.assertRaisesRegex(ProgramError, "is not a program"):
                    find_program()
                os.environ["PATH"] = ""
                with self.assertRaisesRegex(ProgramError, "set the variable SPILLWAY"):
                    find_program()


if __name__ == "__main__":
    unittest.main()

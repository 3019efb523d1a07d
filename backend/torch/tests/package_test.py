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
                self.assertRegex(wheel.filename, "-py3-none-any.whl$")
                files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("spillway_torch/**/*")
                         if path.suffix in (".py", ".h", ".cc", ".typed")}
                self.assertEqual(files - set(wheel.namelist()), set())

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

    def test_the_program_of_the_wheel_goes_before_the_path(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"PATH": f"{folder}/other"}):
            del os.environ["SPILLWAY"]
            for name in "bin", "other", "lib/spillway_torch-9.dist-info":
                pathlib.Path(folder, name).mkdir(parents=True)
            for name in "bin", "other":
                pathlib.Path(folder, name, "spillway").touch(mode=0o755)
            metadata = pathlib.Path(folder, "lib/spillway_torch-9.dist-info")
            metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: spillway-torch\nVersion: 9\n", encoding="utf-8")
            metadata.joinpath("RECORD").write_text("../bin/spillway,,\nspillway_torch/__init__.py,,\n", encoding="utf-8")
            with mock.patch.object(sys, "path", [f"{folder}/lib"]):
                self.assertEqual(find_program(), os.path.realpath(f"{folder}/bin/spillway"))
                os.remove(f"{folder}/bin/spillway")
                self.assertEqual(find_program(), f"{folder}/other/spillway")


if __name__ == "__main__":
    unittest.main()

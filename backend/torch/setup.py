"""Adds the library of spillway_torch.build to the wheel, if PyTorch and a compiler are there when the wheel is built."""

import importlib.util
import pathlib
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if self.editable_mode or importlib.util.find_spec("torch") is None:
            return
        folder = pathlib.Path(self.build_lib).resolve() / "spillway_torch" / "run"
        built = subprocess.run([sys.executable, "-m", "spillway_torch.build", folder], check=False, cwd=pathlib.Path(__file__).parent)
        if built.returncode == 0:
            self.get_finalized_command("bdist_wheel").plat_name_supplied = True  # other versions of Python do without it


setup(cmdclass={"build_py": BuildWithLibrary})

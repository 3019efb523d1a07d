"""Adds the program to the wheel, if scripts/wheel left it in the folder program/ beside this file.

The wheel then serves Linux on x86-64 with glibc 2.35 or later, whose libstdc++ is that of GCC 12 or later.
"""

from pathlib import Path

from setuptools import setup

TREE = Path("program")
files = [path for path in sorted(TREE.rglob("*")) if path.is_file() and not path.is_symlink()]  # a wheel has no links
setup(data_files=[(str(path.parent.relative_to(TREE)), [str(path)]) for path in files],
      options={"bdist_wheel": {"plat_name": "manylinux_2_35_x86_64"}} if files else {})

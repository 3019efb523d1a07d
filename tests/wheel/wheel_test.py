#!/usr/bin/env python3
"""Builds the wheel, installs it into an environment, and runs it in a root directory that has nothing else: no source tree, no
compiler, and of Debian's libraries only those that every Linux has.

usage: wheel_test.py BUILD_DIRECTORY

Exits with 77, which CTest takes for skipped, if there is no PyTorch or this user may not change the root directory.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

BUILD = pathlib.Path()
PYTHON = ""  # of the environment that has PyTorch
SOURCE = pathlib.Path(__file__).resolve().parents[2]
CHROOT = ["/usr/sbin/chroot"] if os.geteuid() == 0 else ["/usr/bin/unshare", "--map-root-user", "/usr/sbin/chroot"]
EVERY_LINUX = [pathlib.Path("/lib64/ld-linux-x86-64.so.2"), *(pathlib.Path(f"/lib/x86_64-linux-gnu/lib{name}") for name in (
    "c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "rt.so.1", "util.so.1", "stdc++.so.6", "gcc_s.so.1"))]
NEWEST = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)}  # those of Ubuntu 22.04; the tag promises it
TRAINING = """
import logging
import torch
import spillway_torch
logging.basicConfig(format="%(message)s", level=logging.INFO)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
spillway_torch.fit(model, optimizer, memory="15MiB")
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4096, 64)).sum().backward()
    optimizer.step()
"""


def command(*arguments):
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, arguments))}\n{done.stdout}")
    return done.stdout.strip()


def libraries(*files):
    """Returns the paths of the libraries that the files load."""
    listed = subprocess.run(["ldd", *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return {pathlib.Path(path) for path in re.findall(r"(/\S+\.so\S*) \(0x", listed)}


def path_of(python, kind):
    """Returns the folder that this Python has for files of the kind."""
    return pathlib.Path(command(python, "-c", f"import sysconfig; print(sysconfig.get_path('{kind}'))"))


class Root:
    """A root directory with nothing but libraries that every Linux has, and what is put into it."""

    def __init__(self, folder):
        self.folder = folder
        for name in "dev", "tmp", "proc/self":
            (folder / name).mkdir(parents=True)
        (folder / "dev/null").touch()
        (folder / "proc/cpuinfo").write_bytes(pathlib.Path("/proc/cpuinfo").read_bytes())
        (folder / "dev/urandom").write_bytes(os.urandom(4096))

    def put(self, path, target=None):
        """Puts the file or folder where it is outside, or to another place, by links if that is possible."""
        target = self.folder / (target or path).relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        how = "-aLf" if path.is_file() else "-aTf"
        if subprocess.run(["cp", f"{how}l", path, target], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            command("cp", how, path, target)

    def run(self, *arguments):
        """Runs the command inside; returns its exit code, its output and what it says on standard error."""
        loaded = self.folder / "proc/self/exe"  # where the loader finds out which program it loads
        loaded.unlink(missing_ok=True)
        loaded.symlink_to(arguments[0])
        done = subprocess.run([*CHROOT, self.folder, *arguments], capture_output=True, text=True, check=False,
                              env={"HOME": "/tmp", "USER": "somebody", "PATH": "/none", "CUDA_VISIBLE_DEVICES": ""})
        return done.returncode, done.stdout, done.stderr


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=BUILD, prefix="wheel-test-")  # links to the files of PyTorch are possible there
        cls.addClassCleanup(folder.cleanup)
        cls.top = pathlib.Path(folder.name)
        command(SOURCE / "scripts/wheel", BUILD, cls.top)
        (cls.wheel,) = cls.top.glob("*.whl")
        cls.environment = cls.top / "environment"
        cls.python, cls.program = cls.environment / "bin/python", cls.environment / "bin/spillway"
        command(PYTHON, "-m", "venv", "--without-pip", cls.environment)
        command(PYTHON, "-m", "pip", "--python", cls.python, "install", "--no-index", "--no-deps", cls.wheel)

    def root(self, name):
        root = Root(self.top / name)
        root.put(self.environment)
        for library in EVERY_LINUX:
            root.put(library)
        return root

    def train(self, root):
        """Returns what a program says that trains within a budget."""
        (root.folder / "tmp/training.py").write_text(TRAINING, encoding="utf-8")
        code, _, error = root.run(self.python, "/tmp/training.py")
        self.assertEqual(code, 0, error)
        self.assertRegex(error, "planned in .* [1-9][0-9]* are re")
        return error

    def test_it_is_small_and_has_the_licences(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            sizes = {entry.filename: entry.compress_size for entry in wheel.infolist()}
        step_library = sum(size for name, size in sizes.items() if re.match("spillway_torch/.*\\.so$", name))
        print(f"{self.wheel.name}: {sum(sizes.values()) / 1e6:.1f} MB, of them the step library {step_library / 1e6:.1f} MB")
        self.assertGreater(step_library, 0)
        self.assertLess(sum(sizes.values()) - step_library, 15e6)
        brought = {name.rpartition("/")[2]: name for name in sizes if "/lib/spillway/lib" in name}
        self.assertIn("libCbcSolver.so.3", brought)
        self.assertTrue([name for name in sizes if name.endswith("/LICENSE")])
        for library, name in brought.items():
            self.assertIn(name.replace(library, f"copyright/{library}"), sizes)

    def test_its_tag_is_true(self):
        self.assertIn("-py3-none-manylinux_2_35_x86_64", self.wheel.name)
        for file in (self.program, *self.environment.glob("lib/*.so*"), *self.environment.glob("lib/spillway/*.so*"),
                     *self.environment.rglob("spillway_torch/**/*.so")):
            symbols = command("objdump", "-T", file)
            for library, newest in NEWEST.items():
                for version in re.findall(rf"\b{library}_([\d.]+)", symbols):
                    self.assertLessEqual(tuple(map(int, version.split("."))), newest, file)

    def test_it_brings_what_reproduce_draws_from(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = {entry.partition("share/spillway/")[2] for entry in wheel.namelist()}
        self.assertLessEqual({"experiments/papers/items.toml", "experiments/papers/plot.py", "experiments/papers/paper-values.csv",
                              "experiments/evidence/validation/mmcnn-h200.csv", "scripts/figstyle.py"}, names)

    def test_the_program_needs_nothing_else(self):
        code, output, error = self.root("bare").run(self.program, "compare", "vgg19:256,preset=vdnn", "--memory", "12GiB")
        self.assertEqual(code, 0, error)
        self.assertRegex(output, "vdnnpp +yes +651.1")
        self.assertIn("recorded on NVIDIA H200", output)

    def test_the_package_finds_the_program_and_the_step_library(self):
        root = self.root("with-python")
        base = pathlib.Path(os.path.realpath(self.python))
        stdlib = path_of(self.python, "stdlib")
        root.put(base)
        root.put(stdlib)
        for library in libraries(base, *stdlib.glob("lib-dynload/*.so")):
            root.put(library)
        for link in base.parent.glob("python3*"):
            if link.is_symlink() and not (root.folder / link.relative_to("/")).exists():
                (root.folder / link.relative_to("/")).symlink_to(os.readlink(link))
        self.assertIn("No module named 'torch'", root.run(self.python, "-c", "import spillway_torch")[2])

        root.put(path_of(PYTHON, "purelib"), path_of(self.python, "purelib"))
        found = root.run(self.python, "-c", "from spillway_torch.base.program import find_program; print(find_program())")
        self.assertEqual(found[1].strip(), str(self.program), found)
        self.assertNotIn("library", self.train(root))
        code, output, error = root.run(self.python, "-m", "spillway_torch", "explain", "resnet50", "--batch", "2")
        self.assertEqual(code, 0, error)
        self.assertIn("knee", output)

        for library in root.folder.rglob("spillway_torch/**/*.so"):
            library.unlink()
        code, _, error = root.run(self.python, "/tmp/training.py")
        self.assertEqual(code, 1)
        self.assertRegex(error, "steps under a plan need the library of the package: no library was built for PyTorch .*, and there is no "
                                "C\\+\\+ compiler")


def main():
    global BUILD, PYTHON
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    made = subprocess.run([SOURCE / "scripts/torch_environment"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        print("SKIPPED: the wheel, because there is no PyTorch (see above)", file=sys.stderr)
        return 77
    PYTHON = made.stdout.strip()
    if subprocess.run([*CHROOT, "/", "/bin/true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("SKIPPED: the wheel, because this user may not change the root directory", file=sys.stderr)
        return 77
    unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

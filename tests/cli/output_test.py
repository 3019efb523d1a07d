#!/usr/bin/env python3
"""Tests -o and the files that it writes: formats by name, standard output, links, and two runs at a time.

usage: output_test.py PATH_OF_SPILLWAY
"""

import hashlib
import json
import os
import pathlib
import subprocess

from harness import DirectoryTest, Spillway, main


class OutputTest(DirectoryTest):
    def test_the_name_implies_the_format(self):
        for name, start in (("r.csv", "workload,"), ("r.json", "{"), ("r.txt", "alexnet:8 (torch")):
            for verb in (("run",), ("compare", "--policy", "liveness")):
                self.ok(verb[0], "alexnet:8", *verb[1:], "-o", self.directory / name)
                self.assertTrue((self.directory / name).read_text("utf-8").startswith(start), name)
        self.ok("reproduce", "vdnn", "-o", self.directory / "p.csv")
        self.assertTrue((self.directory / "p.csv").read_text("utf-8").startswith("paper,"))
        self.fails(2, "names a csv file, --format says json", "run", "alexnet:8", "-o",
                   self.directory / "x.csv", "--format", "json")
        self.fails(2, "names a json file, --format says table", "compare", "alexnet:8", "-o",
                   self.directory / "x.json", "--format", "table")
        self.assertFalse((self.directory / "x.csv").exists())
        self.ok("run", "alexnet:8", "-o", self.directory / "x.txt", "--format", "csv")

    def test_a_dash_is_standard_output(self):
        for args in (("run", "alexnet:8"), ("compare", "alexnet:8", "--policy", "liveness"),
                     ("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness"),
                     ("reproduce", "vdnn"), ("trace", "build", "alexnet:1")):
            self.assertEqual(self.ok(*args, "-o", "-", cwd=self.directory),
                             self.ok(*args, cwd=self.directory))
        self.fails(2, "only --output takes -", "run", "alexnet:8", "--export", "trace:-",
                   cwd=self.directory)
        self.assertEqual(os.listdir(self.directory), [])

    def test_links_are_followed(self):
        (self.directory / "real").mkdir()
        for name, target in (("a", "real/a"), ("b", self.directory / "a"), ("t", "real/t")):
            (self.directory / name).symlink_to(target)
        self.ok("run", "alexnet:8", "-o", self.directory / "b")
        self.ok("trace", "build", "alexnet:8", "-o", self.directory / "t")
        self.assertEqual(sorted(os.listdir(self.directory / "real")), ["a", "a.manifest.json", "t"])
        self.assertEqual(sorted(os.listdir(self.directory)), ["a", "b", "real", "t"])
        self.assertTrue((self.directory / "b").is_symlink() and (self.directory / "t").is_symlink())
        (self.directory / "loop").symlink_to("loop")
        self.fails(3, "loop", "run", "alexnet:8", "-o", self.directory / "loop")
        self.assertTrue((self.directory / "loop").is_symlink())

    def test_files_and_their_manifests_are_of_one_run(self):
        result, trace = self.directory / "r.csv", self.directory / "t.json"
        for _ in range(4):
            started = [subprocess.Popen([Spillway.path, "run", f"alexnet:{batch}", "-o", result,
                                         "--export", f"trace:{trace}"]) for batch in range(1, 9)]
            self.assertEqual({process.wait() for process in started}, {0})
            for path in (result, trace):
                manifest = json.loads(pathlib.Path(f"{path}.manifest.json").read_text("utf-8"))
                self.assertEqual([output["sha256"] for output in manifest["outputs"]],
                                 [hashlib.sha256(p.read_bytes()).hexdigest() for p in (result, trace)])
        self.assertEqual(len(os.listdir(self.directory)), 4)


if __name__ == "__main__":
    main()

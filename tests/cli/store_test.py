#!/usr/bin/env python3
"""Tests benchmark stores: stored tables come out unchanged for every network that a store covers; bad stores are refused.

usage: store_test.py PATH_OF_SPILLWAY
"""

import sqlite3
import subprocess

from harness import DirectoryTest, RECORDED, main

H200 = RECORDED / "h200"


def contents(path):
    return subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout


class StoreTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.store = self.directory / "s.sqlite"

    def fill(self, *names):
        return self.ok("store", "import", self.store, *(H200 / f"{n}.json.zst" for n in names))

    def test_tables_come_out_as_they_went_in(self):
        """The tables include micro-batches and the time in sequence."""
        self.fill("alexnet-256", "vgg16-64", "resnet18-128")
        output = self.directory / "out"
        self.ok("store", "export", self.store, "alexnet:256", "resnet18:128", "-o", output)
        for name in ("alexnet-256", "resnet18-128"):
            self.assertEqual(contents(output / f"{name}.json.zst"),
                             contents(H200 / f"{name}.json.zst"))

    def test_networks_share_what_was_measured(self):
        """VGG-19 has the same layers as VGG-16, but more of each."""
        self.assertIn(": 233 of 233 entries are new", self.fill("vgg16-64"))
        self.assertIn(": 0 of 233 entries are new", self.fill("vgg16-64"))
        self.ok("store", "export", self.store, "vgg19:64", "-o", self.directory)
        table = self.directory / "vgg19-64.json.zst"
        self.ok("run", "vgg19:64", "--policy", "liveness", "--device", "h200", "--cost", table)
        self.fails(3, "s.sqlite: lacks ", "store", "export", self.store, "googlenet:64", "-o",
                   self.directory / "none")
        self.assertFalse((self.directory / "none").exists())

    def test_the_library_is_named_where_there_are_several(self):
        self.fill("resnet18-128")
        with sqlite3.connect(self.store) as database:
            database.execute("INSERT INTO entries SELECT id + 10000, signature, batch, 'tf32', cudnn, "
                             "driver, cuda, date, tool FROM entries")
            database.execute("INSERT INTO kernels SELECT entry + 10000, position, algorithm, time_ps, "
                             "workspace, deterministic, repeats, spread FROM kernels")
        database.close()
        export = ("store", "export", self.store, "resnet18:128", "-o", self.directory)
        self.fails(2, "say which (valid: --math fp32 --cudnn 9.14.0, --math tf32 --cudnn 9.14.0)",
                   *export)
        self.ok(*export, "--math", "tf32")
        self.assertIn(b'"math": "tf32"', contents(self.directory / "resnet18-128.json.zst"))

    def test_what_is_no_store_of_this_gpu_is_left_alone(self):
        self.fill("alexnet-128")
        before = self.store.read_bytes()
        h100 = RECORDED / "h100" / "alexnet-128.json.zst"
        self.fails(3, "s.sqlite: holds measurements of NVIDIA H200, not of NVIDIA H100",
                   "store", "import", self.store, h100)
        self.fails(3, "a store is of one GPU", "store", "import", self.directory / "new.sqlite",
                   H200 / "alexnet-128.json.zst", h100)
        self.assertFalse((self.directory / "new.sqlite").exists())
        self.fails(3, "is not a benchmark store", "store", "list", h100)
        self.fails(3, "no such benchmark store", "store", "list", self.directory / "no.sqlite")
        self.assertEqual(self.store.read_bytes(), before)
        self.store.write_bytes(before[:len(before) // 2])
        self.fails(3, "s.sqlite: is damaged", "store", "export", self.store, "alexnet:128")

    def test_a_store_that_is_held_is_waited_for(self):
        self.fill("alexnet-128")
        holder = sqlite3.connect(self.store, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        self.fails(3, "s.sqlite: another process has held the file for 10", "store", "list", self.store)
        holder.execute("ROLLBACK")
        holder.close()
        self.assertIn("NVIDIA H200, cuDNN 9.14.0, fp32: ", self.ok("store", "list", self.store))

    def test_wrong_usage(self):
        self.fails(2, "--devices: GPU 1 stands twice", "record", "alexnet:1", "--devices", "1,0,1")
        self.fails(2, "'3x' is no micro-batch", "validate", "alexnet:1", "--micro-batch", "3x")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests compressed offload: measurements on real bytes, predictions from them, and wrong requests.

usage: compression_test.py PATH_OF_SPILLWAY
"""

import csv
import json

from harness import DirectoryTest, main

RUN = ("run", "alexnet:2", "--policy", "vdnn-all")


class CompressionTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.densities = self.directory / "densities.csv"

    def row(self, *args):
        document = self.ok(*RUN, "--format", "json", *args)
        (row,) = self.conforms(document, "results")["rows"]
        return row

    def test_densities_are_measured_and_serve_predictions(self):
        plain = self.row("--backend", "cpu")
        measured = self.row("--backend", "cpu", "--compress", "all:piece=256KiB",
                            "--export", f"densities:{self.densities}")
        self.assertEqual(measured["weights_digest"], plain["weights_digest"])
        self.assertNotIn("compressed_storages", plain)
        self.assertEqual(measured["plain_pinned_peak_bytes"], plain["pinned_peak_bytes"])
        with self.densities.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(measured["compressed_storages"], len(rows))
        for row in rows:
            self.assertTrue(0 < float(row["density"]) <= 1, row)
            self.assertLess(int(row["compressed_bytes"]), 1.1 * int(row["bytes"]) + 4096, row)

        # The report has the same densities. It also lists the storages that are not compressed.
        compressed = {s["tensor"]: s for s in measured["offloaded_storages"] if s["compressed"]}
        self.assertEqual(compressed.keys(), {row["tensor"] for row in rows})
        for row in rows:
            storage = compressed[row["tensor"]]
            self.assertEqual(storage["density"], float(row["density"]))
            self.assertEqual(storage["compressed_bytes"], int(row["compressed_bytes"]))
            self.assertEqual(storage["bytes"], int(row["bytes"]))
        text = self.ok(*RUN, "--format", "csv", "--backend", "cpu", "--compress", "all")
        self.assertEqual(len({len(line) for line in csv.reader(text.splitlines())}), 1)
        self.assertNotIn("offloaded_storages", text)

        # With more images, the same network is worth staging buffers.
        args = ("run", "alexnet:64", "--policy", "vdnn-all", "--format", "json")
        (without,) = json.loads(self.ok(*args))["rows"]
        (row,) = self.conforms(self.ok(*args, "--compress", f"all:density={self.densities},"
                                       "piece=1MiB"), "results")["rows"]
        self.assertEqual(row["offloaded_bytes"], without["offloaded_bytes"])
        self.assertEqual(row["plain_pinned_peak_bytes"], without["pinned_peak_bytes"])
        self.assertLess(row["pinned_peak_bytes"], without["pinned_peak_bytes"])
        self.assertGreater(row["saved_bytes"], 0)
        for storage in row["offloaded_storages"]:
            if storage["tensor"] in compressed:
                self.assertEqual(storage["density"], compressed[storage["tensor"]]["density"])
            self.assertEqual(storage["compressed_bytes"] is not None, storage["compressed"])
        self.assertEqual(row["compressed_storages"],
                         sum(s["compressed"] for s in row["offloaded_storages"]))
        self.assertEqual(row["plain_iteration_ms"], without["iteration_ms"])
        (hidden,) = json.loads(self.ok(*args, "--compress", f"hidden:density={self.densities},"
                                       "piece=1MiB"))["rows"]
        self.assertLessEqual(hidden["iteration_ms"], without["iteration_ms"])
        self.assertTrue(hidden["compression_hides"])

    def test_tables_say_what_is_compressed(self):
        text = self.ok(*RUN, "--backend", "cpu", "--compress", "all")
        self.assertIn("density", text)
        self.assertIn("conv1.y", text)
        self.assertIn("pageable GiB", self.ok(*RUN, "--compress", "all:density=0.5"))
        self.assertIn("fraction=integer (default 32)", self.ok(*RUN, "--compress", "help"))

    def test_wrong_requests(self):
        self.fails(2, "density=FILE", *RUN, "--compress", "all")
        self.fails(2, "did you mean 'hidden'?", *RUN, "--compress", "hiden")
        self.fails(2, "density='2'", *RUN, "--compress", "all:density=2")
        self.fails(2, "only with --backend cpu or cuda", *RUN, "--compress", "all:density=1",
                   "--export", f"densities:{self.densities}")
        self.fails(2, "needs --compress", *RUN, "--backend", "cpu",
                   "--export", f"densities:{self.densities}")
        self.fails(3, "nowhere.csv", *RUN, "--compress", "all:density=/nowhere.csv")
        self.densities.write_text("tensor,density\nconv9.y,0.5\n", encoding="utf-8")
        self.fails(3, "conv9.y", *RUN, "--compress", f"all:density={self.densities}")
        self.densities.write_text("tensor,density\nconv1.y,half\n", encoding="utf-8")
        self.fails(3, "densities.csv:2:1", *RUN, "--compress", f"all:density={self.densities}")


if __name__ == "__main__":
    main()

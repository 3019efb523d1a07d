#!/usr/bin/env python3
"""Tests spillway limit: the largest size that fits, runs that confirm it, and clear messages for wrong input.

usage: limit_test.py PATH_OF_SPILLWAY
"""

import json
import pathlib
import tempfile

from harness import CommandTest, main

ALEXNET = ("limit", "alexnet", "--device", "k40c", "--memory", "1GiB")


class LimitTest(CommandTest):
    def rows(self, *args, code=0):
        return self.conforms(self.ok(*args, "--format", "json", code=code), "limit")["rows"]

    def test_the_limit_fits_and_the_next_does_not(self):
        policies = ("liveness:algo=memory", "vdnn-all:algo=memory")
        rows = self.rows(*ALEXNET, "--policy", policies[0], "--policy", policies[1], "--check")
        self.assertEqual([row["policy"] for row in rows], list(policies))
        for row in rows:
            self.assertEqual(row["status"], "ok")
            self.assertEqual(row["next"], row["limit"] + 1)
            self.assertEqual(row["scanned_to"], row["limit"] + 16)
            self.assertTrue(row["checked"])
            self.assertAlmostEqual(row["samples_per_second"] * row["iteration_ms"], 1000 * row["limit"])
            for batch, code in ((row["limit"], 0), (row["next"], 1), (row["scanned_to"], 1)):
                self.ok("run", f"alexnet:{batch}", "--device", "k40c", "--memory", "1GiB",
                        "--cost", "roofline", "--policy", row["policy"], code=code)

    def test_depth(self):
        (row,) = self.rows("limit", "resnet(1,1,n3,1)@64:1", "--vary", "depth", "--device", "k40c",
                           "--memory", "512MiB", "--policy", "liveness:algo=memory", "--scan", "2")
        self.assertEqual(row["workload"], f"resnet(1,1,{row['limit']},1)@64:1")
        self.assertEqual(row["depth"], 3 * (3 + row["limit"]) + 2)
        self.assertEqual(row["scanned_to"], row["limit"] + 2)

    def test_length_on_several_devices(self):
        args = ("limit", "gpt(64,2,4,100)@7:2,optimizer=adamw", "--vary", "length", "--device", "gtx_970:memory=64MiB,k40c:memory=32MiB",
                "--policy", "liveness,vdnn-all")
        rows = self.rows(*args)
        self.assertEqual([(row["device"], row["policy"]) for row in rows],
                         [(device, policy) for device in ("gtx_970:memory=64MiB", "k40c:memory=32MiB")
                          for policy in ("liveness", "vdnn-all")])
        for row in rows:
            self.assertEqual((row["vary"], row["status"], row["workload"]), ("length", "ok", f"gpt(64,2,4,100)@{row['limit']}:2"))
            for length, code in ((row["limit"], 0), (row["next"], 1), (row["scanned_to"], 1)):
                self.ok("run", f"gpt(64,2,4,100)@{length}:2,optimizer=adamw", "--device", row["device"], "--cost", "roofline",
                        "--policy", row["policy"], code=code)
        table = self.ok(*args)
        self.assertIn("the largest length that fits", table)
        for row in rows:
            self.assertRegex(table, rf"{row['device']} .*{row['policy']} .* {row['limit']} ")
            self.assertIn(f"{row['policy']} on {row['device']} at {row['next']}: ", table)
        self.fails(2, "'vgg16' reads images", "limit", "vgg16:8", "--vary", "length")

    def test_any_number_of_jobs_gives_the_same_bytes(self):
        args = (*ALEXNET, "--format", "csv")
        self.assertEqual(self.ok(*args, "--jobs", "1"), self.ok(*args, "--jobs", "4"))

    def test_a_table_says_what_is_proved(self):
        text = self.ok(*ALEXNET, "--policy", "liveness")
        self.assertRegex(text, r"liveness at \d+: .* needs .*, finds ")
        self.assertIn("Fitting is not monotone", text)

    def test_nothing_fits_or_everything_does(self):
        (row,) = self.rows("limit", "vgg16", "--memory", "1MiB", "--policy", "liveness", code=1)
        self.assertEqual((row["status"], row["limit"], row["next"]), ("none", None, 1))
        (row,) = self.rows("limit", "densenet(1,k=1)@8", "--memory", "64TiB", "--policy", "liveness")
        self.assertEqual((row["status"], row["limit"], row["next"]), ("bounded", 65536, None))

    def test_planned_allocation(self):
        best_fit, planned = (self.rows(*ALEXNET, "--policy", "liveness:algo=memory", "--allocator",
                                       allocator)[0]["limit"] for allocator in ("best-fit", "planned"))
        self.assertGreaterEqual(planned, best_fit)

    def test_written_results_replay(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "limit.json"
            self.ok(*ALEXNET, "--policy", "liveness", "--format", "json", "-o", path)
            (row,) = self.conforms(path.read_text(encoding="utf-8"), "limit")["rows"]
            manifest = json.loads(pathlib.Path(f"{path}.manifest.json").read_text(encoding="utf-8"))
            self.conforms(manifest, "manifest")
            settings = manifest["configuration"]
            self.assertEqual([settings[key] for key in ("network", "vary", "workload", "policy", "memory")],
                             ["alexnet", "batch", row["workload"], "liveness", f"{1 << 30} B"])
            self.assertEqual([i["name"] for i in manifest["inputs"]], [row["workload"], "sim/devices/k40c.toml"])
            self.ok("replay-run", f"{path}.manifest.json")

    def test_wrong_input(self):
        self.fails(2, "expected a network alone, 'vgg16'", "limit", "vgg16:32")
        self.fails(2, "did you mean 'vgg16'", "limit", "vgg61")
        self.fails(2, "resnet(6,32,n3,6):16", "limit", "vgg16:32", "--vary", "depth")
        self.fails(2, "resnet(6,32,n3,6):16", "limit", "resnet(3,4,6,3):32", "--vary", "depth")
        self.fails(2, "the batch '0'", "limit", "resnet(3,4,n3,3):0", "--vary", "depth")
        self.fails(2, "--vary", "limit", "vgg16", "--vary", "width")
        self.fails(2, "a fixed size", "limit", "vgg16", "--memory", "50%")
        self.fails(2, "a fixed size", "limit", "vgg16", "--memory", "unlimited")
        self.fails(2, "did you mean 'liveness'", "limit", "vgg16", "--policy", "livenes")
        self.fails(2, "did you mean 'best-fit'", "limit", "vgg16", "--allocator", "bestfit")
        self.fails(2, "did you mean 'k40c'", "limit", "vgg16", "--device", "k40")
        self.fails(2, "did you mean 'vdnn'", "limit", "vgg16,preset=vdn")
        self.fails(2, "--scan", "limit", "vgg16", "--scan", "0")
        self.fails(2, "--compress", "limit", "vgg16", "--compress", "all:density=0.5")
        self.fails(3, "none.json", "limit", "vgg16", "--cost", "/nowhere/none.json")
        self.fails(3, "/nowhere/x.json", "limit", "densenet(1,k=1)@8", "--policy", "liveness",
                   "--memory", "1MiB", "-o", "/nowhere/x.json")
        self.assertIn("vdnn-conv", self.ok("limit", "vgg16", "--policy", "help"))

    def test_the_tables_of_superneurons(self):
        document = self.ok("reproduce", "superneurons-Tab5", "--format", "json")
        rows = self.conforms(document, "reproduce")["rows"]
        self.assertEqual({row["paper"] for row in rows}, {"superneurons"})
        orders = [row for row in rows if row["item"].endswith(" order")]
        self.assertEqual([row["judged"] for row in orders], [False] + 5 * [True])

    def test_completion(self):
        self.assertIn("limit", self.ok("completion", "bash"))
        families = self.ok("completion", "families").split()
        self.assertIn("inception-v4", families)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests that every kind of wrong input gets a clear message and the right exit code, and leaves no partial file.

usage: bad_input_test.py PATH_OF_SPILLWAY
"""

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import unittest

from harness import DirectoryTest, ROOT, Spillway, main, run


@contextlib.contextmanager
def mounted(directory, options):
    """Mounts a tmpfs on `directory`. Skips the test with a message if mounting is not allowed."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"SKIPPED: cannot mount a tmpfs: {done.stderr.strip()}", file=sys.stderr)
        raise unittest.SkipTest("cannot mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


class BadInputTest(DirectoryTest):
    def trace(self):
        """Returns the trace of a small network as a Python object."""
        return json.loads(self.ok("trace", "build", "alexnet:1"))

    def fails_everywhere(self, text, path):
        """Checks that every verb that reads a trace file refuses this bad one."""
        for verb in (("run",), ("compare",), ("trace", "info"), ("trace", "validate")):
            message = self.fails(3, text, *verb, path)
            self.assertIn(str(path), message)
        output = self.directory / "out.json"
        self.fails(3, text, "run", path, "-o", output)
        self.assertFalse(output.exists())
        return message


class BadTraceTest(BadInputTest):
    def refused(self, text, document):
        contents = document if isinstance(document, str) else json.dumps(document)
        return self.fails_everywhere(text, self.file("bad.json", contents))

    def test_truncated(self):
        text = self.ok("trace", "build", "alexnet:1")
        for part in (0.1, 0.5, 0.99):
            self.fails_everywhere("bad.json", self.file("bad.json", text[:int(len(text) * part)]))
        self.refused("the file is empty", "")
        path = self.directory / "t.json.zst"
        self.ok("trace", "build", "alexnet:1", "-o", path)
        self.fails_everywhere("truncated", self.file("t2.json.zst", path.read_bytes()[:-20]))
        # A flipped bit is found by the frame's checksum or by its structure.
        flipped = bytearray(path.read_bytes())
        flipped[len(flipped) // 2] ^= 4
        self.fails_everywhere("Zstandard", self.file("t3.json.zst", bytes(flipped)))

    def test_gzipped(self):
        text = self.ok("trace", "build", "alexnet:1").encode()
        self.ok("trace", "info", self.file("good.json", gzip.compress(text)))
        self.fails_everywhere("not valid gzip",
                              self.file("bad.json", gzip.compress(text)[:-40]))

    def test_wrong_version_or_format(self):
        trace = self.trace()
        trace["version"] = 99
        self.refused("unsupported version 99; this program reads version 1 to 12", trace)
        trace["format"] = "spillway-cost-table"
        self.refused("expected \"spillway-trace\"", trace)
        self.refused("expected an object", "[]")

    def test_unknown_and_duplicate_tensors(self):
        trace = self.trace()
        trace["ops"][3]["inputs"][0] = "nonesuch"
        self.refused("nonesuch", trace)
        trace = self.trace()
        trace["tensors"].append(trace["tensors"][2])
        self.refused(trace["tensors"][2]["name"], trace)
        trace = self.trace()
        trace["ops"].append(trace["ops"][0])
        self.refused(trace["ops"][0]["name"], trace)

    def test_cyclic_order_of_ops(self):
        # The op reads the output of a later op, so no order of execution is possible.
        trace = self.trace()
        trace["ops"][0], trace["ops"][1] = trace["ops"][1], trace["ops"][0]
        self.refused("conv1", trace)

    def test_negative_and_overflowing_sizes(self):
        for size in (-1, 1 << 61, 1 << 70, 1.5, "12", None):
            trace = self.trace()
            trace["tensors"][1]["size"] = size
            self.refused("tensors[1].size", trace)
        trace = self.trace()
        for tensor in trace["tensors"]:
            if "alias_of" not in tensor:
                tensor["size"] = 1 << 59  # each size is allowed, their sum is not
        self.refused("bad.json", trace)

    def test_unknown_key_and_wrong_type(self):
        trace = self.trace()
        trace["tensors"][0]["colour"] = "red"
        self.refused("colour", trace)
        trace = self.trace()
        trace["ops"][0]["batch"] = 0
        self.refused("batch", trace)
        self.assertRegex(self.refused("bad.json", "{\"format\": \"spillway-trace\",\n x"),
                         r"bad\.json:\d+:\d+")


class BadTableAndDeviceTest(BadInputTest):
    TABLE = ROOT / "traces/recorded/h200/alexnet-128.json.zst"

    def table(self):
        packed = self.TABLE.read_bytes()
        return subprocess.run(["zstd", "-dc"], input=packed, capture_output=True,
                              check=True).stdout.decode()

    def test_times_that_are_no_times(self):
        try:
            text = self.table()
        except FileNotFoundError:
            self.skipTest("zstd is not installed")
        self.ok("run", "alexnet:128", "--cost", self.file("good.json", text))
        for value in ("NaN", "-5", "Infinity", "1e400", "\"3 ms\"", "12.5", "null"):
            bad = re.sub(r'"time_ps": \d+', f'"time_ps": {value}', text, count=1)
            path = self.file("bad.json", bad)
            self.assertIn(str(path), self.fails(3, "bad.json", "run", "alexnet:128", "--cost", path))

    def test_a_table_without_the_kernels_that_are_needed(self):
        self.fails(3, "batch", "run", "vgg16:64", "--cost", self.TABLE)

    def device(self, pattern, replacement):
        text = (ROOT / "sim/devices/h200.toml").read_text(encoding="utf-8")
        changed, count = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
        self.assertEqual(count, 1, pattern)
        return self.file("gpu.toml", changed)

    def test_device_files(self):
        def value(key, text):
            return (rf"^{key} = \S+", f"{key} = {text}")
        for (pattern, replacement), message in (
                ((r"^size = ", 'sise = "1MiB"\nsize = '), "sise"),
                ((r"^size = ", "# size = "), "size"),
                (value("size", '"143771 gigs"'), "gigs"),
                (value("size", '"-1MiB"'), "-1MiB"),
                (value("size", '"99999999999TiB"'), "too large"),
                (value("size", "143771"), "size"),
                (value("h2d", '"55.4GB"'), "55.4GB"),
                (value("h2d_latency", '"3.23 bogoseconds"'), "bogoseconds"),
                (value("default", "nan"), "default"),
                (value("default", "-1.0"), "default"),
                ((r"^\[link\]", "[link"), "gpu.toml")):
            with self.subTest(replacement=replacement):
                path = self.device(pattern, replacement)
                error = self.fails(3, message, "run", "alexnet:1", "--device", path)
                self.assertRegex(error, re.escape(str(path)) + r":\d+:\d+")
        self.fails(3, "gpu2.toml", "run", "alexnet:1", "--device", self.directory / "gpu2.toml")


class BadArgumentTest(BadInputTest):
    def test_budgets(self):
        for text in ("10 gigs", "10", "-1GiB", "GiB", "nanGiB", "1e30GiB", "", "12 GiB GiB"):
            if text:
                self.fails(2, text, "run", "alexnet:1", "--memory", text)
        for text in ("-1%", "x%", "%", "nan%", "inf%"):
            self.fails(2, "percentage", "run", "alexnet:1", "--memory", text)

    def test_typos_get_a_suggestion(self):
        for wrong, right, args in (
                ("gogglenet", "googlenet", ("run", "gogglenet:1")),
                ("vdnn-dny", "vdnn-dyn", ("run", "alexnet:1", "--policy", "vdnn-dny")),
                ("vdnn-dny", "vdnn-dyn", ("compare", "alexnet:1", "--policy", "vdnn-dny")),
                ("h2000", "h200", ("run", "alexnet:1", "--device", "h2000"))):
            self.assertIn(f"did you mean '{right}'?", self.fails(2, wrong, *args))
        self.fails(2, "algo", "run", "alexnet:1", "--policy", "vdnn-all:allgo=memory")
        self.fails(2, "fastest", "run", "alexnet:1", "--policy", "vdnn-all:algo=fastest")

    def test_an_unknown_verb_gets_a_suggestion(self):
        message = self.fails(2, "did you mean 'run'?", "rnu", "alexnet:1")
        self.assertIn("(valid: trace, list,", message)
        self.fails(2, "unknown verb 'bulid'; did you mean 'build'?", "trace", "bulid", "alexnet:1")

    def test_unknown_costs_and_budgets_get_a_suggestion(self):
        self.fails(2, "unknown cost 'rofline'; did you mean 'roofline'?", "run", "alexnet:1", "--cost",
                   "rofline")
        self.fails(3, "cannot read 'rofline.json'", "run", "alexnet:1", "--cost", "rofline.json")
        self.fails(2, "did you mean 'vdnn-conv'?", "run", "alexnet:1", "--memory", "vdnn-cnv")
        self.fails(2, "also accepted: a size", "run", "alexnet:1", "--memory", "lots")

    def test_a_trace_file_is_not_lowered_again(self):
        path = self.directory / "t.json"
        self.ok("trace", "build", "alexnet:1,preset=vdnn", "-o", path)
        for option, value, found in (("preset", "torch", "vdnn"), ("mode", "inference", "training")):
            for verb in (("run",), ("compare",), ("trace", "info")):
                message = self.fails(2, f"lowered with {option}={found}", *verb, f"{path},{option}={value}")
                self.assertIn(str(path), message)
            self.ok("run", f"{path},{option}={found}")

    def test_options_of_another_backend_are_refused(self):
        for option, value, backends in (("--seed", "3", "cpu or cuda"),
                                        ("--drain-seed", "3", "cpu"),
                                        ("--iterations", "3", "cpu or cuda"),
                                        ("--math", "tf32", "cuda")):
            self.fails(2, f"{option} has no meaning with --backend sim, only with --backend {backends}",
                       "run", "alexnet:1", option, value)
        self.fails(2, "--math", "run", "alexnet:1", "--backend", "cpu", "--math", "tf32")
        for option in ("--seed", "--drain-seed"):
            self.fails(2, f"{option}: '-1' is not a whole number from 0", "run", "alexnet:1",
                       "--backend", "cpu", option, "-1")

    def test_what_is_different_on_a_device(self):
        for change, message in (("lnik=2", "did you mean 'link'?"),
                                ("link=fast", "link: 'fast' is not a number from 0.001 to 1000"),
                                ("link=0", "link: '0'"), ("link=nan", "link: 'nan'"),
                                ("h2d=110GB", "h2d: '110GB' is not a bandwidth"),
                                ("h2d=1KB/s", "h2d: '1KB/s' is too small, expected at least 1 MB/s"),
                                ("host=0B", "host: '0B' is too small, expected at least 1 B"),
                                ("launch_overhead=1000.1s", "'1000.1s' is too large"),
                                ("link", "'link' is not key=value"),
                                ("link=2,link=3", "'link' is given twice")):
            self.fails(2, message, "run", "alexnet:1", "--device", f"h200:{change}")
        self.fails(2, "did you mean 'h200'?", "run", "alexnet:1", "--device", "h2000:link=2")

    def test_without_a_gpu_what_is_misspelt_is_said_first(self):
        for args in (("record", "alexnet:1", "--micro-batch", "0"),
                     ("record", "alexnet:1", "--min-time", "10"),
                     ("record", "alexnet:1", "--min-time", "10 blinks"),
                     ("validate", "alexnet:1", "--min-time", "10"),
                     ("validate", "alexnet:1", "--memory", "10 gigs"),
                     ("validate", "alexnet:1", "--cost", "roofline"),
                     ("calibrate", "-o", "x.toml", "--gpu", "-1")):
            self.fails(2, args[-1], *args)

    def test_recording_without_a_gpu_leaves_nothing_behind(self):
        if run("doctor", "--format", "csv").stdout.find("GPU,ok") >= 0:
            self.skipTest("this machine has a GPU")
        self.fails(5, "GPU", "record", "alexnet:1", cwd=self.directory)
        self.assertEqual(os.listdir(self.directory), [])

    def test_a_budget_below_one_layers_need_is_a_negative_answer(self):
        for verb in ("run", "compare"):
            result = run(verb, "vgg16:64", "--memory", "1MiB", "--format", "json")
            self.assertEqual(result.returncode, 1, result.stderr)
            for row in json.loads(result.stdout)["rows"]:
                self.assertEqual(row["status"], "oom")
                self.assertLess(row["memory_bytes"], row["bound_layer_bytes"])
                self.assertIn("largest free block", row["reason"])

    def test_missing_files_and_directories(self):
        for verb in (("run",), ("trace", "validate")):
            self.fails(3, "none.json", *verb, self.directory / "none.json")
        directory = self.directory / "folder.json"
        directory.mkdir()
        self.fails(3, "it is a directory", "run", directory)
        self.fails(3, "it is a directory", "run", "alexnet:1", "--cost", directory)
        toml = self.directory / "folder.toml"
        toml.mkdir()
        self.fails(3, "folder.toml", "run", "alexnet:1", "--device", toml)
        self.fails(3, "it is a directory", "run", "alexnet:1", "-o", directory)
        self.fails(3, "not a regular file", "run", "alexnet:1", "-o", "/dev/null")


def writers(path):
    """Returns commands for every way to write the file."""
    run = ("run", "vgg416:32", "--cost", "roofline")
    return (("trace", "build", "vgg416:32", "-o", path),
            (*run, "--export", f"trace:{path}"),
            (*run, "--export", f"memory:{path}"),
            (*run, "--explain", "--format", "json", "-o", path),
            ("compare", *run[1:], "--policy", "liveness", "--policy", "vdnn-all", "-o", path),
            ("reproduce", "all", "--format", "json", "-o", path))


class BadPlaceTest(BadInputTest):
    def test_an_empty_name(self):
        for args in (("run", "alexnet:1", "-o", ""), ("run", "alexnet:1", "--export", "trace:"),
                     ("compare", "alexnet:1", "-o", ""), ("replay", "x.csv", "--export", "memory:")):
            self.fails(2, "the name of the file is empty", *args)

    def test_no_such_directory(self):
        for args in writers(self.directory / "no" / "x.json"):
            self.fails(3, "No such file or directory", *args)
        self.assertEqual(os.listdir(self.directory), [])

    def test_a_place_is_looked_at_before_any_work(self):
        (self.directory / "file").touch()
        for place, why in (("no/x.json", "No such file or directory"), ("file/x.json", "Not a directory"),
                           (".", "it is a directory")):
            self.fails(3, why, "compare", "no-such-network:1", "-o", self.directory / place)

    def test_full_disk(self):
        place = self.directory / "full"
        place.mkdir()
        with mounted(place, "size=4k"):
            # The only free page cannot hold a result, and the existing file stays unchanged.
            path = place / "x.json"
            for args in writers(path):
                with self.subTest(args=args):
                    path.write_text("before", encoding="utf-8")
                    self.fails(3, "No space left on device", *args)
                    self.assertEqual(os.listdir(place), ["x.json"])
                    self.assertEqual(path.read_text(encoding="utf-8"), "before")

    def test_read_only_directory(self):
        place = self.directory / "frozen"
        place.mkdir()
        with mounted(place, "ro,size=64k"):
            for args in writers(place / "x.json"):
                self.fails(3, "Read-only file system", *args)

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for args in (("run", "alexnet:1"), ("list",), ("doctor",)):
                done = subprocess.run([Spillway.path, *args], stdout=full, stderr=subprocess.PIPE,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 3)
                self.assertIn("cannot write the output", done.stderr)


if __name__ == "__main__":
    main()

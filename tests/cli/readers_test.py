#!/usr/bin/env python3
"""Tests the messages about files that readers refuse: they name the place of the fault, or the actual kind of the file.

usage: readers_test.py PATH_OF_SPILLWAY
"""

import json
import pickle
import re
import sqlite3
import zipfile

from harness import DirectoryTest, ROOT, main

STATIC = "id,lower,upper,size\n"


class ReadersTest(DirectoryTest):
    def refused(self, verb, name, contents, *texts):
        path = self.file(name, contents)
        message = self.fails(3, f"{path}", verb, path)
        for text in texts:
            self.assertIn(text, message)
        return message

    def trace(self):
        return self.ok("trace", "build", "alexnet:1")

    def test_errors_in_json_have_their_place(self):
        text = self.trace()
        lines = text.split("\n")
        name = next(i for i, line in enumerate(lines) if '"conv1"' in line)
        column = lines[name].index('"conv1"') + 1

        def changed(old, new):
            return "\n".join(lines[:name] + [lines[name].replace(old, new, 1)] + lines[name + 1:])

        place = f"bad.json:{name + 1}:"
        self.refused("run", "bad.json", changed('"conv1"', '"conv1'), place, "bad JSON")
        self.refused("run", "bad.json", changed('"conv1"', '"con\tv1"'), f"{place}{column + 4}:")
        self.refused("run", "bad.json", changed("conv1", "c\xffv1").encode("latin-1"),
                     f"{place}{column + 2}:", "UTF-8")
        part = text[:len(text) // 3]
        part = part[:part.rindex("\n") + 1]
        self.refused("run", "bad.json", part, f"bad.json:{part.count(chr(10)) + 1}:1:", "early")

    def test_byte_order_marks(self):
        text = self.trace()
        for name, contents in (("bom.json", text),):
            self.ok("run", self.file(name, b"\xef\xbb\xbf" + contents.encode()))
        self.refused("run", "wide.json", text.encode("utf-16"), "UTF-16", "save it as UTF-8")
        self.ok("replay", self.file("bom.csv", b"\xef\xbb\xbf" + STATIC.encode() + b"1,0,2,64\n"))
        device = (ROOT / "sim/devices/h200.toml").read_bytes()
        self.ok("run", "alexnet:1", "--device", self.file("bom.toml", b"\xef\xbb\xbf" + device))
        path = self.file("wide.toml", device.decode().encode("utf-16"))
        self.fails(3, "UTF-16", "run", "alexnet:1", "--device", path)

    def test_files_of_other_programs_are_named(self):
        database = self.directory / "x.sqlite"
        with sqlite3.connect(database) as connection:
            connection.execute("create table t(a)")
        archive = self.directory / "x.pt"
        with zipfile.ZipFile(archive, "w") as out:
            out.writestr("model/data.pkl", b"\x80\x02.")
        kineto = json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": []})
        execution = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []})
        for contents, text in (
                (database.read_bytes(), "an SQLite database"),
                (archive.read_bytes(), "a ZIP archive, such as a model of torch.save"),
                (kineto, "a Chrome trace, such as torch.profiler (Kineto) writes"),
                (execution, "an execution trace"),
                ("<!DOCTYPE html><html></html>", "an HTML page"),
                (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:", "an ONNX model"),
                (b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09\0\0\x90\x5c\xe3\xa9\xd9A\x1a\x0d"
                 b"brain.Event:2", "a TensorBoard event file"),
                (b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", "a safetensors model")):
            for verb in ("run", "replay"):
                with self.subTest(text=text, verb=verb):
                    self.refused(verb, "x.json", contents, text)
        self.refused("run", "x.json", pickle.dumps({"a": 1}), "a Python pickle")
        self.refused("replay", "x.pickle", pickle.dumps({"a": re.compile("x")}),
                     "only plain data is read, such as a memory snapshot")
        self.refused("replay", "x.pickle", pickle.dumps({"a": 1}), "not a memory snapshot")

    def test_a_trace_has_ops_and_names_each_once(self):
        trace = json.loads(self.trace())
        self.refused("run", "t.json", json.dumps(dict(trace, ops=[])), "has no ops")
        trace["ops"].append(trace["ops"][0])
        self.refused("run", "t.json", json.dumps(trace, indent=1), ".name: 'conv1.fwd' is already")

    def test_ids_columns_and_quotes_of_csv(self):
        self.refused("replay", "l.csv", STATIC + "a,0,2,64\nb,0,2,64\na,3,4,64\n",
                     "l.csv:4:1: the id 'a' is given twice")
        self.refused("replay", "l.csv", STATIC + '"a,0,2,64\n', "l.csv:2:1: the quote")
        self.refused("replay", "l.csv", "id,lower,upper,size,size\n", "l.csv:1:21:", "twice")
        self.ok("replay", self.file("l.csv", STATIC + '"a,b",0,2,64\n'))
        path = self.file("d.csv", 'tensor,density\n"conv1.y,0.5\n')
        self.fails(3, "d.csv:2:1: a quote", "run", "alexnet:1", "--compress",
                   f"hidden:density={path}")

    def test_what_a_specification_leaves_open(self):
        self.fails(2, "is left open", "run", "alexnet:1", "--policy", 'vdnn-all:algo="memory')
        self.fails(2, "is left open", "run", "alexnet:1", "--allocator",
                   "pytorch:roundup_power2_divisions=[256:1,512:2")

    def test_misspelt_keys_of_a_device_get_a_suggestion(self):
        text = (ROOT / "sim/devices/h200.toml").read_text("utf-8")
        for key, misspelt in (("h2d_latency", "h2d_latncy"), ("alignment", "alignement"),
                              ("[compute]", "[compte]"), ("malloc_fixed", "maloc_fixed")):
            path = self.file("gpu.toml", text.replace(f"\n{key}", f"\n{misspelt}", 1))
            self.fails(3, f"unknown key '{misspelt.strip('[]')}'; did you mean "
                          f"'{key.strip('[]')}'?", "run", "alexnet:1", "--device", path)
        path = self.file("gpu.toml", re.sub(r"\nalignment.*", "", text, count=1))
        self.fails(3, "memory: the key 'alignment' is missing", "run", "alexnet:1", "--device",
                   path)

    def test_a_size_differs_from_what_it_does_not_fit_into(self):
        log = STATIC + "a,0,9,51380224\n"
        self.assertNotIn("largest", self.ok("replay", self.file("l.csv", log)))
        for size in ("11.9GiB", "12GiB", "12.001GiB", "12.1GiB"):
            for row in json.loads(self.ok("compare", "vgg19:256", "--cost", "roofline", "--memory",
                                          size, "--format", "json"))["rows"]:
                found = re.search(r"needs (\S+ \S+) \(\d+ bytes\), the largest free block is "
                                  r"(\S+ [A-Za-z]+);", row["reason"] or "")
                if found:
                    self.assertNotEqual(found[1], found[2], row["reason"])

    def test_no_control_character_reaches_standard_output_or_error(self):
        trace = json.loads(self.trace())
        trace["name"] = "\x1b[31mred\x9b0m"
        path = self.file("t.json", json.dumps(trace))
        table = self.ok("run", path)
        self.assertIn(r"\x1b[31mred\x9b0m", table)
        self.assertNotRegex(table, "[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
        message = self.fails(3, r"\x1b[31m", "run", self.directory / "\x1b[31mnone.json")
        self.assertNotIn("\x1b", message)
        self.assertEqual(json.loads(self.ok("run", path, "--format", "json"))["rows"][0]["workload"],
                         trace["name"])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks one real document of every type against its schema, with the stock validator that users have.

usage: schemas_test.py PATH_OF_SPILLWAY
"""

import json
import pathlib
import subprocess

from harness import DirectoryTest, RECORDED, ROOT, SCHEMAS, Spillway, main
from plan_test import step

WORKLOAD = ("vgg16:32", "--memory", "50%", "--policy", "vdnn-all:algo=memory")
JSON = ("--format", "json")


class SchemasTest(DirectoryTest):
    def exported(self, kind, *args):
        path = self.directory / f"{kind}.json"
        self.ok("run", *args, "--export", f"{kind}:{path}")
        return path

    def documents(self):
        """Returns (schema, document) for every type that needs no GPU."""
        yield "results", self.ok("run", *WORKLOAD, *JSON)
        yield "results", self.ok("compare", *WORKLOAD, "--policy", "liveness", *JSON)
        yield "explain", self.ok("run", *WORKLOAD, "--explain", *JSON)
        trace = self.exported("trace", *WORKLOAD)
        yield "chrome-trace", trace.read_text("utf-8")
        yield "manifest", pathlib.Path(f"{trace}.manifest.json").read_text("utf-8")
        yield "replay-run", self.ok("replay-run", f"{trace}.manifest.json", *JSON)
        decisions = self.exported("decisions", *WORKLOAD)
        yield "decisions", decisions.read_text("utf-8")
        yield "plan", self.exported("plan", "alexnet:8", "--memory", "50%", "--policy",
                                    "joint:effort=100").read_text("utf-8")
        yield "replay", self.ok("replay", decisions, "--allocator", "best-fit", *JSON)
        yield "limit", self.ok("limit", "alexnet", "--memory", "1GiB", "--policy", "liveness",
                               *JSON)
        yield "fit", self.ok("fit", "alexnet:1", "--device", "k40c", *JSON)
        yield "fit-vary", self.ok("fit", "alexnet:1", "--device", "k40c", "--vary", "batch", *JSON)
        plan = self.directory / "step-plan.json"
        yield "step-plans", self.ok("plan", self.file("step.json", step()), "--memory", "320MiB", "--policy",
                                    "joint:effort=300", "-o", plan, *JSON)
        yield "step-plan", plan.read_text("utf-8")
        yield "columns", self.ok("list", "columns", *JSON)
        yield "ops", self.ok("list", "ops", *JSON)
        yield "doctor", self.ok("doctor", *JSON)
        yield "reproduce", self.ok("reproduce", "vdnn", *JSON)
        store = self.directory / "s.sqlite"
        self.ok("store", "import", store, RECORDED / "h200/alexnet-128.json.zst")
        yield "store", self.ok("store", "list", store, *JSON)
        sweep = self.directory / "r.sqlite"
        self.ok("sweep", "alexnet:1", "--policy", "torch", "-o", sweep)
        yield "sweep-status", self.ok("sweep", "status", sweep, *JSON)
        yield "sweep-plan", self.ok("sweep", "plan", "alexnet:1", "--policy", "torch", *JSON)
        yield "trace-info", self.ok("trace", "info", "alexnet:1", *JSON)
        recording = ROOT / "tests/testing/recordings/pytorch/resnet50-b32"
        yield "trace-import", self.ok("trace", "import", "--kineto", f"{recording}.kineto.json.zst", "--execution-trace",
                                      f"{recording}.et.json.zst", "-o", self.directory / "i.json", *JSON)

    def test_a_document_of_every_type_fits_its_schema(self):
        # The first two are made on a GPU; see cli_test.py. Saved tensors are only read; see
        # saved_tensors_test.py. The last two are written by backend/torch; see its explain_test.py
        # and compiled_test.py.
        seen = {"calibration", "validation", "saved-tensors", "torch-explain", "torch-explain-compiled"}
        for name, document in self.documents():
            with self.subTest(name=name):
                self.conforms(document, name)
                seen.add(name)
        self.assertEqual(seen, {path.stem for path in SCHEMAS.glob("*.json")})

    def test_refused_verbs_are_in_both_documents(self):
        # An iteration in which superneurons asks for a prefetch that has no room.
        args = ("googlenet:32", "--memory", "20%", "--policy", "superneurons")
        explained = self.ok("run", *args, "--explain", *JSON)
        self.conforms(explained, "explain")
        decisions = self.exported("decisions", *args).read_text("utf-8")
        self.conforms(decisions, "decisions")
        refused = [(decision["verb"], decision["refusal"]) for decision in json.loads(decisions)["decisions"]
                   if not decision.get("done", True)]
        self.assertEqual(json.loads(explained)["refused"],
                         [{"verb": verb, "refusal": refusal, "count": refused.count((verb, refusal))}
                          for verb, refusal in dict.fromkeys(refused)])
        self.assertEqual(refused, [("prefetch", "full")])

    def test_the_row_is_what_the_columns_say(self):
        updated = subprocess.run([ROOT / "scripts/update_schemas.py", Spillway.path, "--check"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual((updated.returncode, updated.stderr), (0, ""))

    def test_a_schema_stands_alone(self):
        for path in SCHEMAS.glob("*.json"):
            self.assertNotIn('"$ref": "', path.read_text("utf-8"), path)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests that commas and braces mean the same in every verb and option that takes several values, and that the memory
of a device can be given wherever a device is named.

usage: values_test.py PATH_OF_SPILLWAY
"""

import pathlib
import random
import re
import tempfile

from harness import CommandTest, main, run

POLICIES = ("liveness", "ucudnn:mode=wd,workspace=1GiB", "vdnn-conv:algo=memory", "caffe")
DEVICES = ("h200", "p100:memory=4GiB,link=2", "gtx_970")
NETWORKS = ("alexnet:2", "resnet(1,1,1,1):2", "alexnet:4")
MEMORIES = ("90%", "1GiB", "vdnn-conv:algo=memory,order=prefetch-first")
ALLOCATORS = ("best-fit", "pytorch:roundup_power2_divisions=[256:1,>:4],expandable_segments=true", "cnmem:initial=1KiB")
POOLS = ("nvme:size=1GiB,in=1GB/s,out=1GB/s", "host:size=9GiB")
LIVENESS = ("--policy", "liveness")
SMALL = ("--memory", "1GiB", "--scan", "1")
STORE = ("-o", "s.sqlite")

# The options and arguments with several values, with the values to try and the other arguments of the command.
SEVERAL = {
    "compare workloads": (NETWORKS, LIVENESS),
    "compare --policy": (POLICIES, ("alexnet:2",)),
    "compare --device": (DEVICES, ("alexnet:2", *LIVENESS)),
    "compare --memory": (MEMORIES, ("alexnet:2", *LIVENESS)),
    "compare --pool": (POOLS, ("alexnet:2", *LIVENESS)),
    "compare --columns": (("policy", "status", "iteration_ms"), ("alexnet:2", *LIVENESS)),
    "compare --pivot": (("policy", "workload", "device"), ("alexnet:2", *LIVENESS, "--by", "memory")),
    "run --pool": (POOLS, ("alexnet:2",)),
    "limit --policy": (POLICIES[:3], ("alexnet", *SMALL)),
    "limit --device": (DEVICES, ("alexnet", *SMALL, *LIVENESS)),
    "limit --pool": (POOLS, ("alexnet", *SMALL, *LIVENESS)),
    "fit workloads": (NETWORKS, ("--device", "h200")),
    "fit --device": (DEVICES, ("alexnet:2",)),
    "fit --world": (("4", "8", "64"), ("nothing.json", "--device", "h200")),
    "fit --nodes": (("1", "2", "4"), ("nothing.json", "--device", "h200")),
    "fit --policy": (POLICIES[:2], ("vgg16:64", "--device", "gtx_970")),
    "report sources": (("alexnet:2", "alexnet:4"), (*LIVENESS, "-o", "x.html")),
    "report --policy": (POLICIES[:3], ("alexnet:2", "-o", "x.html")),
    "report --pool": (POOLS, ("alexnet:2", *LIVENESS, "-o", "x.html")),
    "replay --allocator": (ALLOCATORS, ("events.csv", "-o", "x.csv")),
    "record workloads": (("alexnet:2", "nothing.json"), ()),
    "record --micro-batch": (("powerOfTwo", "8", "16"), ("nothing.json",)),
    "record --devices": (("0", "1"), ("nothing.json",)),
    "validate --micro-batch": (("powerOfTwo", "8", "16"), ("alexnet:2",)),
    "validate --devices": (("0", "1"), ("alexnet:2",)),
    "store import tables": (("a.json", "b.json"), ("s.sqlite",)),
    "store export workloads": (NETWORKS, ("s.sqlite",)),
    "sweep merge others": (("a.sqlite", "b.sqlite"), ("s.sqlite",)),
    "trace validate files": (("a.json", "b.json"), ()),
    # All verbs with a grid share its options.
    "sweep plan grid": (NETWORKS, (*LIVENESS, *STORE)),
    **{f"sweep plan --{name}": (values, ("alexnet:2", *LIVENESS, *STORE)) for name, values in (
        ("device", DEVICES), ("pool", POOLS), ("cost", ("auto", "roofline")), ("allocator", ALLOCATORS),
        ("compress", ("all:density=0.4,codec=csr", "hidden:density=0.4")), ("backend", ("sim", "cpu")), ("memory", MEMORIES),
        ("timeout", ("60s", "600s")))},
    "sweep plan --policy": (POLICIES, ("alexnet:2", *STORE)),
}
GRIDS = ("sweep", "sweep submit", "validate")
# Values of these are taken as they are.
VERBATIM = {"help verb", "sweep submit --slurm-option", "run --export", "replay --export", "validate --export", "sweep export --where"}


class ValuesTest(CommandTest):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        (pathlib.Path(self.directory.name) / "events.csv").write_text("id,lower,upper,size\na,0,2,512\nb,1,3,4096\n")

    def outcome(self, *args):
        """Returns exit code, output, messages and files of a command, without measured times and repeated commands."""
        result = run(*args, "--quiet", cwd=self.directory.name)
        texts = [result.returncode, re.sub("about .*", "", result.stdout), result.stderr]
        for path in sorted(pathlib.Path(self.directory.name).glob("x.*")):
            if not path.name.endswith(".manifest.json"):
                texts.append(re.sub(r"spillway compare [^<]*", "", path.read_text("utf-8")))
        return texts

    def test_every_spelling_of_a_list_means_the_same(self):
        draw = random.Random(1)
        for name, (values, others) in SEVERAL.items():
            *verb, last = name.split()
            option = [last] if last.startswith("-") else []
            before, behind = ([*verb, *others], []) if option else (verb, others)
            if name in ("store import tables", "store export workloads", "sweep merge others"):
                before, behind = [*verb, *others], []
            given = draw.sample(values, draw.randint(2, len(values)))
            expected = self.outcome(*before, *(word for value in given for word in (*option, value)), *behind)
            spellings = [",".join(given)]
            # Braces are alternatives, and a run has all of its pools.
            if last != "--pool":
                spellings.append(f"{given[0]},{{{','.join(given[1:])}}}")
            for spelling in spellings:
                with self.subTest(name, spelling=spelling):
                    self.assertEqual(self.outcome(*before, *option, spelling, *behind), expected)

    def test_the_list_of_options_is_complete(self):
        found = set()
        for verb in self.ok("completion", "verbs").split():
            inner = re.findall(r"(?m)^  (\w+) ", self.ok("help", verb).partition("\nVerbs:\n")[2].partition("\n\n")[0])
            for path in [(verb,), *((verb, name) for name in inner)]:
                for option in re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+(?= \S+ \.\.\.)|\w+(?= \.\.\.))", self.ok("help", *path)):
                    found.add(f"{' '.join(path)} {option}")
        shared = {f"{verb} {name.split()[-1]}" for verb in GRIDS for name in SEVERAL if name.startswith("sweep plan ")}
        shared |= {name for name in found - set(SEVERAL) if name.endswith((" --columns", " --pivot"))}
        self.assertEqual(found - VERBATIM - shared, set(SEVERAL))

    def test_the_memory_of_a_device(self):
        for verb, behind in (("run", ()), ("compare", LIVENESS), ("fit", ())):
            text = self.ok(verb, "alexnet:2", "--device", "h200:memory=3GiB", *behind, "--format", "csv")
            self.assertIn(f",{3 << 30},", text)
        given = self.ok("fit", "alexnet:2", "alexnet:4", "--memory", "3GiB", "--format", "csv")
        self.assertEqual(given, self.ok("fit", "alexnet:2,alexnet:4", "--device", "h200:memory=3GiB", "--outside", "0B", "--format", "csv"))
        for device in ("gtx_970", "p100:link=2"):
            self.assertIn(f",{3 << 30},", self.ok("fit", "alexnet:2", "--memory", "3GiB", "--device", device,
                                                 "--format", "csv"))
        self.fails(2, "'memory' is given twice", "fit", "alexnet:2", "--device", "h200:memory=1GiB", "--memory", "2GiB")
        self.fails(2, "memory: ", "fit", "alexnet:2", "--memory", "3 apples")
        self.fails(2, "no size is given", "fit", "alexnet:2", "--memory", "")

    def test_wrong_lists(self):
        for text, args in (("--policy: 'caffe,,torch' has an empty place", ("compare", "alexnet:2", "--policy", "caffe,,torch")),
                           ("workloads: 'alexnet:{1,2': a '{' is left open", ("fit", "alexnet:{1,2")),
                           ("no policy is given", ("limit", "alexnet", "--policy", "")),
                           ("unknown policy 'mode=wd'", ("compare", "alexnet:2", "--policy", "mode=wd,caffe")),
                           ("more than 1000000 values", ("compare", "alexnet:{1..2000}", "alexnet:{{1..1000}}{{1..1001}}"))):
            self.fails(2, text, *args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests that the commands on the pages print what the pages show.

usage: examples_test.py PATH_OF_SPILLWAY

Pages leave lines and columns out: each line of an example is a part of a line that the command prints, with its words in
their order. A command that needs a file which is not in the repository, or another program, is not run.
"""

import csv
import io
import itertools
import math
import re
import shlex
import statistics

from harness import CommandTest, ROOT, main, run

PAGES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("**/*.md") if path.relative_to(ROOT).parts[0] != "build")
VERBS = ("fit", "limit", "run", "compare", "replay")
# Commands that take minutes, that compute on real bytes, or whose search ends with the time.
SLOW = ("--vary depth", "inception-v4", "--policy joint", "--backend", "joint", "{")


def examples(text):
    """Returns the commands of a page, each with the lines below it."""
    found = []
    for block in re.findall(r"^ *```console\n(.*?)^ *```", text, re.M | re.S):
        block = block.replace("\\\n", " ")
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and line.strip():
                found[-1][1].append(line)
    return found


def runs_here(command):
    """Returns whether the command is one of the program alone, on networks and files of the repository."""
    command = command.partition(" #")[0]
    words = command.split()
    if len(words) < 3 or words[0] != "spillway" or words[1] not in VERBS or any(slow in command for slow in SLOW):
        return False
    if any(word in command for word in ("|", "&&", "<", ">", " -o ", "--export", ".so", "DIR", "OUT")):
        return False
    files = [word.split(",")[0] for word in words if re.search(r"\.(json|zst|gz|toml|pickle|csv)", word)]
    return all((ROOT / file).exists() for file in files)


def is_part(shown, printed):
    """Returns whether the words of a line are in the other one, in their order."""
    words = iter(printed.split())
    return all(any(word == other for other in words) for word in shown.split() if word not in ("...", "…", "[...]"))


class ExamplesTest(CommandTest):
    def test_pages_show_what_commands_print(self):
        count = 0
        for page in PAGES:
            for command, lines in examples((ROOT / page).read_text("utf-8")):
                if not lines or not runs_here(command):
                    continue
                with self.subTest(page=page, command=command):
                    words = shlex.split(command.partition(" #")[0])[1:]
                    result = run(*words, cwd=ROOT)
                    printed = (result.stdout + result.stderr).splitlines()
                    whole = " ".join(result.stdout.split())
                    missing = [line for line in lines if not any(is_part(line, other) for other in printed)
                               and " ".join(line.split()) not in whole]
                    self.assertEqual(missing, [])
                    count += 1
        self.assertGreater(count, 12)

    def test_the_tables_of_mmcnn_are_what_commands_predict_and_what_was_measured(self):
        page = (ROOT / "policies/BUILTIN.md").read_text("utf-8").split("## mmCNN")[1]
        limits = (200, 100, 50, 20, 10, 5)
        measured = {(row["network"], row["policy"]): row for row in
                    csv.DictReader((ROOT / "experiments/evidence/validation/mmcnn-h200.csv").read_text("utf-8").splitlines())}
        errors, told = [], 0
        for network, *cells, least in re.findall(r"^\| `(\S+)` \|" + " (.*) \\|" * 7 + "$", page, re.M):
            policies = [f"mmcnn:limit={limit}MiB{ahead}" for limit in limits for ahead in ("", ",ahead=4")]
            text = self.ok("compare", f"{network}:1,mode=inference", *itertools.chain(*(("--policy", policy) for policy in policies)),
                           "--format", "csv")
            rows = {row["policy"]: row for row in csv.DictReader(io.StringIO(text))}
            for limit, cell in zip(limits, cells, strict=True):
                one, four = (rows[f"mmcnn:limit={limit}MiB{ahead}"] for ahead in ("", ",ahead=4"))
                self.assertEqual(cell, f"{float(one['iteration_ms']):.1f} / {float(four['iteration_ms']):.1f} "
                                       f"({round(int(four['prefetched_bytes']) / 2**20)})", (network, limit))
                errors.append(abs(float(measured[network, four["policy"]]["error"])))
            refused = run("run", f"{network}:1,mode=inference", "--policy", "mmcnn:limit=1KiB")
            self.assertIn(f"valid: {least} ", refused.stderr)
            told += 1
        self.assertEqual(told, 5)
        within = sum(error <= 0.05 for error in errors)
        self.assertIn(f"Of the {len(errors)} cases with `ahead=4`, {within} were", page)
        self.assertIn(f"and all within {math.ceil(1000 * max(errors)) / 10} %", page)

        # The page of the measurements has the numbers of its file.
        page = (ROOT / "experiments/evidence/validation/README.md").read_text("utf-8").split("## mmCNN")[1].split("\n## ")[0]
        names = {"AlexNet as Caffe has it": "alexnet-caffe", "VGG-S": "vgg-s", "VGG-19": "vgg19", "ResNet-50": "resnet50",
                 "Inception v4": "inception-v4", "ResNet-152": "resnet152"}
        for name, *cells in re.findall(r"^\| (\w[^|]*) \|" + " ([^|]*) \\|" * 7 + "$", page, re.M)[1:]:
            found = [row for (network, policy), row in measured.items() if network == names[name] and "ahead=4" in policy]
            self.assertEqual(cells, [shown(row) for row in found], name)
            told += 1
        self.assertEqual(told, 11)
        errors, paper = ([abs(float(row["error"])) for (_, policy), row in measured.items() if "MiB" in policy and ("ahead" in policy) == ahead]
                         for ahead in (True, False))
        within = sum(error <= 0.05 for error in errors)
        for words in (f"From 200 to 5 MiB {within} of {len(errors)} cases are within 5 %, and the mean is {100 * statistics.mean(errors):.1f} %",
                      f"in 10 MiB ({100 * max(errors):.1f} %)", f"in all {len(measured)} cases; {len(paper)} of them are Fig. 9",
                      f"mean error {100 * statistics.mean(paper):.1f} %, worst {100 * max(paper):.1f} %"):
            self.assertIn(words, " ".join(page.split()))


def shown(row):
    """Returns predicted and measured ms with about four digits."""
    times = [float(row[f"{kind}_iteration_ms"]) for kind in ("predicted", "measured")]
    digits = 2 if times[0] < 100 else 1 if times[0] < 1000 else 0
    return " / ".join(f"{time:.{digits}f}" for time in times)


if __name__ == "__main__":
    main()

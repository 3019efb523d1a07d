#!/usr/bin/env python3
"""Tests that the commands on the pages print what the pages show.

usage: examples_test.py PATH_OF_SPILLWAY

Pages leave lines and columns out: each line of an example is a part of a line that the command prints, with its words in
their order. A command that needs a file which is not in the repository, or another program, is not run.
"""

import re
import shlex

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


if __name__ == "__main__":
    main()

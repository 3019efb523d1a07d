#!/usr/bin/env python3
"""Tests what people see in a terminal: help with examples, and messages about mistyped arguments.

usage: terminal_test.py PATH_OF_SPILLWAY
"""

import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import tempfile

from harness import CommandTest, ROOT, main, on_a_terminal, run

@functools.cache
def help_on(path, width):
    return run("help", *path, env={**os.environ, "COLUMNS": str(width)}).stdout


def sections(text):
    """Returns the lines below each heading of a help."""
    found, lines = {}, []
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            found[line[:-1]] = lines = []
        elif line:
            lines.append(line)
        else:
            lines = []
    return found


@functools.cache
def verbs(path=()):
    """Returns all verbs of the program, each with the verbs above it, in the order of the help."""
    found = []
    for heading, lines in sections(help_on(path, 400)).items():
        if heading in ("Arguments", "Options", "Examples"):
            continue
        for line in lines:
            verb = path + (line.split()[0],)
            found += [verb, *verbs(verb)]
    return found


def usage(path):
    return help_on(path, 400).partition("\n")[0]


def works(path):
    """Returns true if the verb does something without one of its own verbs."""
    return " VERB" not in usage(path)


def needed(path, beside=None):
    """Returns arguments and options that the verb cannot do without, with a value that means nothing, but not `beside`."""
    words = re.sub(r"\[.*?\]", "", usage(path)).split()[2 + len(path):]
    options = []
    for name, kind, text in options_of(path):
        if "(required)" in text and name != beside:
            options += [name, re.match(r"\d*", kind)[0] or "x"] if kind else [name]
    return ["x"] * len(words) + options


def options_of(path):
    """Returns the options of a verb: name, the kind of value, which is empty for a flag, and help."""
    found = []
    for line in sections(help_on(path, 1000))["Options"]:
        match = re.match(r"  (?:-\w, )?(--[\w-]+) ?(\S*(?: \.\.\.)?)(.*)$", line)
        if match:
            found.append((match[1], match[2], match[3]))
        else:  # the text of a long name
            found[-1] = (*found[-1][:2], line)
    return found


class HelpTest(CommandTest):
    def test_help_fits_the_terminal(self):
        for path, width in itertools.product([(), *verbs()], (60, 80, 120)):
            text = help_on(path, width)
            self.assertLessEqual(max(map(len, text.splitlines())), width, text)
            self.assertTrue(text.startswith(f"usage: {' '.join(('spillway', *path))}"), text)
            # Other widths have the same words.
            self.assertEqual(text.replace("\\\n", " ").split(), help_on(path, 400).split())

    def test_help_of_a_pipe_has_80_columns(self):
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        self.assertEqual(run("help", "compare", env=environment).stdout, help_on(("compare",), 80))
        self.assertEqual(on_a_terminal("help", "compare", width=60)[1], help_on(("compare",), 60))

    def test_verbs_stand_in_the_order_of_use(self):
        order = [verb for (verb, *below) in verbs() if not below]
        self.assertEqual(len(order), len(set(order)))
        for before, after in itertools.pairwise(("trace", "record", "fit", "run", "compare", "limit", "sweep", "report", "doctor", "help")):
            self.assertLess(order.index(before), order.index(after))
        self.assertEqual(sorted(order), sorted(run("completion", "verbs").stdout.split()))

    def test_every_verb_has_two_examples_that_run(self):
        with tempfile.TemporaryDirectory() as folder:
            prepare(pathlib.Path(folder))
            for path in verbs():
                if not works(path):
                    continue
                text = help_on(path, 60).replace("\\\n", "")
                examples = [shlex.split(line) for line in sections(text)["Examples"]]
                self.assertEqual(len(examples), 2, path)
                for example in examples:
                    with self.subTest(example):
                        self.assertEqual(example[:1 + len(path)], ["spillway", *path])
                        self.assertNotIn("--help", example)
                        result = run(*example[1:], cwd=folder)
                        # An example may give a negative answer, or need a GPU or Slurm.
                        self.assertIn(result.returncode, (0, 1, 5), result.stderr)


def prepare(folder):
    """Writes the files that the examples read, unless other examples write them."""
    recordings = ROOT / "tests/testing/recordings"
    (folder / "tables").mkdir()
    for batch in (64, 128):
        shutil.copy(ROOT / f"traces/recorded/h200/vgg16-{batch}.json.zst", folder / "tables")
    shutil.copy(recordings / "default-oom.snapshot.pickle.gz", folder / "snapshot.pickle.gz")
    files = {}
    for name, kind in (("kineto", "kineto"), ("execution_trace", "et")):
        files[name] = {"file": f"gpt2.{kind}.json.zst"}
        shutil.copy(recordings / f"pytorch/gpt2-b4s512.{kind}.json.zst", folder / files[name]["file"])
    manifest = {"format": "spillway-pytorch-recording", "schema_version": 1, "name": "gpt2", "outcome": "ok",
                "model": {"batch": 4}, "files": files}
    (folder / "gpt2.manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "grid.toml").write_text('workload = ["alexnet:{8,16}"]\npolicy = ["liveness", "vdnn-all"]\n', encoding="utf-8")
    for args in (("store", "import", "kernels.sqlite", "tables/vgg16-64.json.zst"),
                 ("run", "alexnet:8", "-o", "r.csv"), ("sweep", "alexnet:32", "--policy", "liveness", "-o", "other.sqlite")):
        run(*args, cwd=folder)


class MistakeTest(CommandTest):
    def refused(self, text, *args):
        """Runs a command that must end with code 2 and one line that has the text."""
        message = self.fails(2, text, *args, cwd="/")
        self.assertEqual(message.count("\n"), 1, message)
        self.assertRegex(message, r"^spillway: \S.*\n$")
        self.assertNotRegex(message, r"[Ss]ubcommand|At Most|required TEXT|Could not convert")

    def test_mistyped_options(self):
        for path in verbs():
            self.refused("unknown option '--hlep'; did you mean '--help'? (valid: -h, --help, ", *path, "--hlep")
            self.refused("unknown option '--zzzz' (valid: ", *path, "--zzzz", "x")

    def test_options_without_a_value(self):
        for path in filter(works, verbs()):
            for name, kind, _ in options_of(path):
                if kind:
                    self.refused(f"{name} needs a value: ", *path, name)

    def test_options_that_are_given_twice(self):
        for path in filter(works, verbs()):
            for name, kind, _ in options_of(path):
                if kind and "..." not in kind:
                    self.refused(f"{name} is given twice, as 'x' and 'y': it takes one value", *path, name, "x", name, "y")

    def test_numbers(self):
        numbers = 0
        for path in filter(works, verbs()):
            for name, kind, _ in options_of(path):
                if match := re.fullmatch(r"(\d+)\.\.(\d+)( \.\.\.)?", kind):
                    for wrong in ("many", "1.5", "-1", "", str(int(match[2]) + 1)):
                        self.refused(f"{name}: '{wrong}' is not a whole number from {match[1]} to {match[2]}", *path, *needed(path, name),
                                     f"{name}={wrong}" if wrong else name, *([] if wrong else [""]))
                    numbers += 1
        self.assertGreater(numbers, 10)

    def test_missing_arguments(self):
        for path in verbs():
            if not works(path):
                self.refused(f"spillway: {path[-1]}: no verb is given (valid: ", *path)
            elif "x" in needed(path)[:1]:
                self.refused(f"spillway {' '.join(path)} needs the argument ", *path)
        self.refused("spillway: no verb is given (valid: trace, ")
        self.refused("it goes before --policy, which takes all values behind it", "compare", "--policy", "liveness", "vgg16:64")
        self.refused("spillway sweep submit needs the option --slurm", "sweep", "submit", "vgg16:64", "--tasks", "2")

    def test_too_many_arguments(self):
        for path in filter(works, verbs()):
            if "..." in usage(path):
                continue
            words = ["x"] * (len(usage(path).replace(" [VERB]", "").split()) - 3 - len(path))
            self.refused(f"'last' is one argument too many for spillway {' '.join(path)} (valid: ", *path, *words, "last")

    def test_unknown_verbs_and_values(self):
        for path in [(), *verbs()]:
            if path and works(path):
                continue
            self.refused("unknown verb 'hepl'" if path else "unknown verb 'hepl'; did you mean 'help'?", *path, "hepl")
        for path in filter(works, verbs()):
            for name, kind, text in options_of(path):
                if kind == "WORD":
                    self.refused(f"{name}: unknown value 'xml' (valid: ", *path, *needed(path), name, "xml")
        self.refused("--wide: unknown value '3' (valid: true, false)", "run", "vgg16:64", "--wide=3")
        self.refused("'plna' is not a workload", "sweep", "plna")


if __name__ == "__main__":
    main()

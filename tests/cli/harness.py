"""Helpers for tests of the command line: they run it, and check documents against their schemas."""

import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMAS = ROOT / "experiments" / "schemas"
RECORDED = ROOT / "traces" / "recorded"


class Spillway:
    """A test case for the program under test, which is the first argument of the test."""

    path = None

    @classmethod
    def take_from_arguments(cls):
        cls.path = sys.argv.pop(1)


def run(*args, **options):
    return subprocess.run([Spillway.path, *map(str, args)], capture_output=True, text=True,
                          check=False, **options)


def on_a_terminal(*args, width=80, **variables):
    """Runs a command on a terminal of the given width; returns exit code, standard output and standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    masters, slaves = zip(pty.openpty(), pty.openpty())
    fcntl.ioctl(slaves[0], termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    texts = [b"", b""]

    def read(i):
        try:
            while piece := os.read(masters[i], 1 << 16):
                texts[i] += piece
        except OSError:  # the other end is closed
            pass

    with subprocess.Popen([Spillway.path, *map(str, args)], stdout=slaves[0], stderr=slaves[1],
                          env={**environment, **variables}) as process:
        readers = [threading.Thread(target=read, args=(i,)) for i in range(2)]
        for slave, reader in zip(slaves, readers):
            os.close(slave)
            reader.start()
        for master, reader in zip(masters, readers):
            reader.join()
            os.close(master)
    return process.returncode, texts[0].decode().replace("\r\n", "\n"), texts[1].decode()


class CommandTest(unittest.TestCase):
    def ok(self, *args, code=0, **options):
        """Runs a command that must succeed, and returns its standard output."""
        result = run(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout

    def fails(self, code, text, *args, **options):
        """Runs a command that must fail with a message that contains `text`, and must print no other text."""
        result = run(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertIn(text, result.stderr)
        self.assertTrue(result.stderr.startswith("spillway: "), result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def skip(self, why):
        """Skips a test, and prints a message about it."""
        print(f"SKIPPED {self.id()}: {why}", file=sys.stderr)
        self.skipTest(why)

    def conforms(self, document, name):
        """Checks a document against experiments/schemas/NAME.json and returns it."""
        if isinstance(document, str):
            document = json.loads(document)
        self.assertEqual(list(schema_errors(document, load_schema(name))), [])
        return document


class DirectoryTest(CommandTest):
    """A test with an empty directory of its own, which `directory` names and which goes with the test."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def file(self, name, contents):
        """Writes a file into the directory and returns its path. Contents that are neither text nor bytes become JSON."""
        path = self.directory / name
        if not isinstance(contents, (str, bytes)):
            contents = json.dumps(contents)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return path


def load_schema(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def schema_errors(document, schema):
    """Returns the errors of a document against a schema, found by a stock validator that sees no other file."""
    jsonschema.Draft202012Validator.check_schema(schema)
    return [f"{'/'.join(map(str, e.absolute_path))}: {e.message}"
            for e in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def main():
    Spillway.take_from_arguments()
    unittest.main()

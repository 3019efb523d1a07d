"""What the tests of the command line share: running it, and checking documents against their schemas."""

import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMAS = ROOT / "experiments" / "schemas"

# Keywords that `schema_errors` understands; another one in a schema is an error.
KEYWORDS = {"$schema", "$id", "title", "type", "const", "enum", "properties", "required",
            "additionalProperties", "items", "minItems", "minimum", "maximum", "pattern", "$ref",
            "description"}


class Spillway:
    """The program under test: the first argument of the test."""

    path = None

    @classmethod
    def take_from_arguments(cls):
        cls.path = sys.argv.pop(1)


def run(*args, **options):
    return subprocess.run([Spillway.path, *map(str, args)], capture_output=True, text=True,
                          check=False, **options)


class CommandTest(unittest.TestCase):
    def ok(self, *args, code=0, **options):
        """Runs a command that is to succeed and returns its standard output."""
        result = run(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout

    def fails(self, code, text, *args, **options):
        """Runs a command that is to fail with a message that contains `text`, and says nothing else."""
        result = run(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertIn(text, result.stderr)
        self.assertTrue(result.stderr.startswith("spillway: "), result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def conforms(self, document, name):
        """Checks a document against experiments/schemas/NAME.json and returns it."""
        if isinstance(document, str):
            document = json.loads(document)
        self.assertEqual(list(schema_errors(document, load_schema(name))), [])
        return document


def load_schema(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def resolve(reference):
    """The schema that "FILE#/a/b" points to."""
    name, _, pointer = reference.partition("#/")
    schema = load_schema(name.removesuffix(".json"))
    for key in pointer.split("/"):
        schema = schema[key]
    return schema


TYPES = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def schema_errors(value, schema, place="$"):
    """Where `value` breaks the schema: the part of JSON Schema 2020-12 that our schemas use."""
    unknown = set(schema) - KEYWORDS
    if unknown:
        yield f"{place}: the schema has {sorted(unknown)}, which this validator does not know"
    if "$ref" in schema:
        yield from schema_errors(value, resolve(schema["$ref"]), place)
    if "const" in schema and value != schema["const"]:
        yield f"{place}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {schema['enum']}"
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(TYPES[t](value) for t in types):
        yield f"{place}: {value!r} is not of type {types}"
    if TYPES["number"](value):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{place}: {value} is out of range"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{place}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{place}: too few items"
        for i, item in enumerate(value):
            yield from schema_errors(item, schema.get("items", {}), f"{place}[{i}]")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for key in schema.get("required", []):
            if key not in value:
                yield f"{place}: '{key}' is missing"
        rest = schema.get("additionalProperties", {})
        for key, item in value.items():
            if key in properties:
                yield from schema_errors(item, properties[key], f"{place}.{key}")
            elif rest is False:
                yield f"{place}: '{key}' is unknown"
            else:
                yield from schema_errors(item, rest, f"{place}.{key}")


def main():
    Spillway.take_from_arguments()
    unittest.main()

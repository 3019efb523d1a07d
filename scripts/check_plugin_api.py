#!/usr/bin/env python3
"""Checks that the plugin API version rises if a header that plugins compile against changes.

usage: check_plugin_api.py [--update]

Plugins compile against the public headers and all headers that the public headers include. A digest of their
text, without comments and with white space normalised, stands next to the version in scripts/plugin_api.txt.
Exits with 1 if the text has changed but the version has not, or if plugin_api.txt is of another version.
With --update, writes plugin_api.txt for a new version.
"""

import hashlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "scripts" / "plugin_api.txt"
PUBLIC = ("policies/plugin/plugin.h", "policies/registry.h", "sim/core/policy.h", "sim/core/report.h")
VERSION = re.compile(r"kPluginApiVersion = (\d+);")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*', re.S)


def headers() -> list:
    found, todo = set(), list(PUBLIC)
    while todo:
        header = todo.pop()
        if header not in found:
            found.add(header)
            todo += INCLUDE.findall((ROOT / header).read_text(encoding="utf-8"))
    return sorted(found)


def digest() -> str:
    text = ""
    for header in headers():
        code = COMMENT.sub(lambda match: match[1] or "", (ROOT / header).read_text(encoding="utf-8"))
        code = VERSION.sub("", code)
        text += f"{header}\n{' '.join(code.split())}\n"
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ["--update"]):
        sys.exit(__doc__)
    version = VERSION.search((ROOT / PUBLIC[0]).read_text(encoding="utf-8"))[1]
    known_version, known_digest = RECORD.read_text(encoding="utf-8").split()
    if (version, digest()) == (known_version, known_digest):
        return 0
    if version == known_version:
        print("a header that plugins compile against has changed: raise kPluginApiVersion in policies/plugin/plugin.h, "
              "then run scripts/check_plugin_api.py --update")
        return 1
    if arguments:
        RECORD.write_text(f"{version} {digest()}\n", encoding="utf-8")
        return 0
    print(f"scripts/plugin_api.txt is for version {known_version}: run scripts/check_plugin_api.py --update")
    return 1


if __name__ == "__main__":
    sys.exit(main())

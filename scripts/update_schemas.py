#!/usr/bin/env python3
"""Updates the row of results.json, and its copy in explain.json, from the columns that the program lists.

usage: scripts/update_schemas.py SPILLWAY [--check]

Type, unit and meaning come from `spillway list columns`. Facts that only a schema holds (least values, valid names,
patterns) stay. A new column is required. Writes the files that differ. With --check, names them instead and exits
with 1.
"""

import json
import pathlib
import subprocess
import sys

SCHEMAS = pathlib.Path(__file__).resolve().parent.parent / "experiments/schemas"


def property_of(column: dict, known: dict) -> dict:
    unit = f", in {column['unit']}" if column["unit"] not in ("", "1") else ""
    types = column["type"].split(" or ")
    rest = {key: value for key, value in known.items() if key not in ("type", "description")}
    kind = {} if "enum" in rest else {"type": types if len(types) > 1 else types[0]}
    return {"description": column["help"] + unit, **kind, **rest}


def row_of(columns: list, row: dict) -> dict:
    known = row["properties"]
    names = [column["name"] for column in columns]
    required = [name for name in names if name in row["required"] or name not in known]
    properties = {column["name"]: property_of(column, known.get(column["name"], {})) for column in columns}
    return {**row, "properties": properties, "required": required}


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    listed = subprocess.run([sys.argv[1], "list", "columns", "--format", "json"], check=True, capture_output=True)
    columns = json.loads(listed.stdout)["rows"]
    documents = {path: json.loads(path.read_text("utf-8")) for path in (SCHEMAS / "results.json", SCHEMAS / "explain.json")}
    results, explain = documents.values()
    row = row_of(columns, results["properties"]["rows"]["items"])
    results["properties"]["rows"]["items"] = explain["properties"]["row"] = row
    stale = False
    for path, document in documents.items():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        if path.read_text("utf-8") == text:
            continue
        stale = True
        if sys.argv[2:]:
            print(f"{path.name} differs from `spillway list columns`: run scripts/update_schemas.py", file=sys.stderr)
        else:
            path.write_text(text, "utf-8")
    return 1 if stale and sys.argv[2:] else 0


if __name__ == "__main__":
    sys.exit(main())

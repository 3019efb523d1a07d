#!/usr/bin/env python3
"""Draws one column of a sweep against another, with one line per policy and crosses for runs out of memory.

usage: scripts/plot.py STORE --x COLUMN --y COLUMN [--by COLUMN[,COLUMN...]] [--where COLUMN=VALUE[,VALUE...]]...
                       [--log x|y|xy] [--title TEXT] -o FIGURE.pdf

STORE is a store that `spillway sweep -o STORE` wrote, or a CSV file with the columns of `spillway list columns`. Writes
FIGURE.pdf and FIGURE.png. Crosses above the axes mark cells that run out of memory. Needs matplotlib (Debian:
python3-matplotlib). Exits with 2 for bad arguments, and with 3 if STORE is neither a store nor a CSV file.
"""

import argparse
import csv
import difflib
import pathlib
import sqlite3
import sys


class BadArgument(Exception):
    """An argument that names a missing column or value."""


class BadInput(Exception):
    """An input file that cannot be read or holds no cells."""


def read(path):
    """Returns the rows of a store or CSV file, each a dictionary of texts, numbers and None, and the columns."""
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [{name: number(value) for name, value in row.items()} for row in reader]
            return rows, list(reader.fieldnames or [])
    if not path.is_file():
        raise BadInput(f"{path}: no such store")
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        cursor = database.execute("SELECT * FROM cells ORDER BY network, batch, memory_bytes, policy, key")
        columns = [entry[0] for entry in cursor.description]
        rows = [dict(zip(columns, row)) for row in cursor]
        database.close()
        return rows, columns
    except sqlite3.Error as error:
        raise BadInput(f"{path}: not written by spillway sweep ({error})") from error


def number(text):
    """Returns a field of a CSV file as an int, a float, a text, or None if it is empty."""
    if text in ("", None):
        return None
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text


def check_column(name, columns):
    if name not in columns:
        close = difflib.get_close_matches(name, columns, 1)
        hint = f"; did you mean '{close[0]}'?" if close else f" (valid: {', '.join(columns)})"
        raise BadArgument(f"unknown column '{name}'{hint}")


def select(rows, columns, conditions):
    """Returns the rows that satisfy every condition. Raises `BadArgument` for an unknown column or value."""
    for condition in conditions:
        name, equals, values = condition.partition("=")
        if not equals:
            raise BadArgument(f"--where '{condition}': expected COLUMN=VALUE[,VALUE...]")
        check_column(name, columns)
        there = {str(row[name]) for row in rows}
        wanted = [values] if values in there else values.split(",")
        for value in wanted:
            if value not in there:
                raise BadArgument(f"--where {name}: no cell has '{value}' (valid: {', '.join(sorted(there))})")
        rows = [row for row in rows if str(row[name]) in wanted]
    return rows


def lines(rows, x, by):
    """Returns the cells of each line, by label and then by x. Raises `BadArgument` if two cells share a place."""
    result = {}
    for row in rows:
        if row[x] is None:
            continue
        label = " ".join(str(row[name]) for name in by)
        line = result.setdefault(label, {})
        if row[x] in line:
            other = line[row[x]]
            differing = {name: sorted({str(r[name]) for r in rows})
                         for name in ("workload", "device", "memory_request", "allocator", "preset", "mode", "cost")
                         if name in row and row[name] != other[name]}
            ways = "; ".join(f"{name}: {', '.join(values)}" for name, values in differing.items())
            raise BadArgument(f"several cells of '{label}' at {x} = {row[x]}: choose with --where, or tell them "
                              f"apart with --by ({ways or 'these cells have the same known settings'})")
        line[row[x]] = row
    return result


def draw(args, rows, y):
    import figstyle  # imported here, so that errors in the input are reported without matplotlib

    by = args.by.split(",")
    drawn = lines(rows, args.x, by)
    places = {row[args.x] for row in rows}
    if any(isinstance(place, str) for place in places):  # places are names, in the order of the rows
        order = list(dict.fromkeys(row[args.x] for row in rows))
        at = {name: i for i, name in enumerate(order)}
    else:
        order, at = None, {place: place for place in places}
    fig, axes = figstyle.figure(5.2, 3.2)
    fits = {label: line for label, line in drawn.items() if any(row[y] is not None for row in line.values())}
    never = [label for label in drawn if label not in fits]
    crosses = 0
    for i, (label, line) in enumerate(fits.items()):
        style = {"color": figstyle.COLOURS[i % len(figstyle.COLOURS)], "markersize": 3.5}
        axes.plot(*zip(*sorted((at[place], row[y]) for place, row in line.items() if row[y] is not None)),
                  label=label, marker=figstyle.MARKERS[i % len(figstyle.MARKERS)], linewidth=1,
                  linestyle=("-", "--", ":")[i // len(figstyle.COLOURS) % 3], **style)
        missing = sorted(at[place] for place, row in line.items() if row["status"] == "oom")
        if missing:  # one row of crosses per line, above the axes
            axes.plot(missing, [1.03 + 0.03 * crosses] * len(missing), transform=axes.get_xaxis_transform(),
                      clip_on=False, linestyle="none", marker="x", **style)
            crosses += 1
    axes.set_xlabel(args.x)
    axes.set_ylabel(y)
    if order:
        axes.set_xticks(range(len(order)), order, rotation=30, ha="right")
    for axis in args.log:
        (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    if "y" not in args.log:
        axes.set_ylim(bottom=0)
    if args.title:
        axes.set_title(args.title, pad=6 + 7 * crosses)
    entries, labels = axes.get_legend_handles_labels()
    if crosses:
        entries += axes.plot([], linestyle="none", marker="x", color="#000000", markersize=3.5)
        labels.append("out of memory")
    if never:
        entries += axes.plot([], linestyle="none")
        labels.append("never fits:\n" + "\n".join(never))
    axes.legend(entries, labels, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=6)
    figstyle.save(fig, args.output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("store", type=pathlib.Path, help="store of spillway sweep, or a CSV file")
    parser.add_argument("--x", required=True, help="column along the x axis, such as batch")
    parser.add_argument("--y", required=True, help="column along the y axis, such as iteration_ms")
    parser.add_argument("--by", default="policy", help="columns whose values distinguish the lines (default: policy)")
    parser.add_argument("--where", action="append", default=[],
                        help="COLUMN=VALUE[,VALUE...]: draw only the cells with these values; may be repeated")
    parser.add_argument("--log", choices=("x", "y", "xy"), default="", help="logarithmic axes")
    parser.add_argument("--title", default="")
    parser.add_argument("-o", "--output", required=True, help="FIGURE.pdf; FIGURE.png is written as well")
    args = parser.parse_args()
    try:
        rows, columns = read(args.store)
        for name in [args.x, args.y, *args.by.split(",")]:
            check_column(name, columns)
        rows = select(rows, columns, args.where)
        if not rows:
            raise BadInput(f"{args.store}: the store has no cells")
        numbers = [row[args.y] for row in rows if row[args.y] is not None]
        if any(isinstance(value, str) for value in numbers):
            raise BadArgument(f"--y {args.y}: is not a number")
        if not numbers:
            raise BadArgument(f"--y {args.y}: no cell has a value; all are out of memory")
        draw(args, rows, args.y)
    except BadArgument as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 2
    except (BadInput, OSError) as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

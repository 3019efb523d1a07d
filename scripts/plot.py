#!/usr/bin/env python3
"""Draws one column of a sweep over another: lines, bars, or the frontier of time over memory.

usage: scripts/plot.py STORE --x COLUMN --y COLUMN [--kind line|bar|frontier] [--by COLUMN,...] [--facet COLUMN,...]
                       [--where COLUMN=VALUE,...]... [--order VALUE,...] [--label NAME=TEXT]... [--log x|y|xy]
                       [--size WIDTHxHEIGHT] [--title TEXT] -o FIGURE.pdf|.png|.svg

STORE is a store that `spillway sweep -o STORE` wrote, or a CSV file with the columns of `spillway list columns`.
Each combination of settings that is left has a line of its own. A cell that does not fit is a gap, and a cross of the
line's colour above the axes. One picture has at most eight lines: beyond them it gets one facet for each network,
device or memory, or says how to choose. It has at most 24 facets; those of the same work on several devices have the
same axes. A frontier shows for each memory the policy that is fastest in it.

examples:
  scripts/plot.py r.sqlite --x batch --y iteration_ms --where memory_request=50% -o r.pdf
  scripts/plot.py r.sqlite --kind frontier --facet network -o frontier.svg

Needs matplotlib (Debian: python3-matplotlib). Exits with 2 for bad arguments, with 3 if STORE is neither a store nor
a CSV file, and with 5 if there is no matplotlib.
"""

import argparse
import csv
import difflib
import math
import pathlib
import re
import sqlite3
import sys

ENDINGS = (".pdf", ".png", ".svg")
MOST_LINES = 8  # as many as there are colours
MOST_FACETS = 24  # as many as a printed page holds
# The settings of a cell. Lines are told apart by these columns, and facets are made of them in this order.
SETTINGS = ("network", "batch", "device", "memory_request", "preset", "mode", "allocator", "backend", "compress",
            "attention", "optimizer", "precision", "accumulate", "clip_norm", "loss_chunks", "file", "deterministic",
            "charge_input", "policy")
FACETS = ("network", "file", "device", "mode", "memory_request", "preset", "backend", "compress", "allocator",
          "precision", "optimizer", "attention", "accumulate", "clip_norm", "loss_chunks", "batch")
# Columns that follow from others: who draws over the first varies the second with it.
# Columns that say what work a cell does. Facets of the same work have the same axes.
WORK = ("workload", "network", "file", "batch", "mode", "accumulate", "precision")
IMPLIED = {"workload": ("network", "batch"), "memory_bytes": ("memory_request",), "network": ("workload",),
           "memory_request": ("memory_bytes",)}
# Axes whose unit does not follow from the ending of the column's name.
AXES = {"memory_request": "memory (% of the way from its least to in core)", "slowdown": "slowdown (x)", "batch": "batch (images)", "time_over_bound": "time over its bound (x)",
        "memory_over_bound": "memory over its bound (x)", "recomputed_ops": "ops that ran again",
        "fragmentation": "fragmentation (share of reserved memory)",
        "samples_per_second": "throughput (samples/s)"}
CROSSES = 0.06  # between two rows of crosses, as a share of the height of the axes
DIM = "#c4c4c4"
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class BadArgument(Exception):
    """An argument that names a missing column or value, or asks for too much in one picture."""


class BadInput(Exception):
    """An input file that cannot be read or holds no cells."""


class NoMatplotlib(Exception):
    """The interpreter that runs this script cannot import matplotlib."""


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


def comma_list(text):
    """Returns the parts between commas, but for those in parentheses, as in gpt(1024,12,16)."""
    return [part for part in re.split(r",(?![^(]*\))", text) if part]


def select(rows, columns, conditions):
    """Returns the rows that satisfy every condition. Raises `BadArgument` for an unknown column or value."""
    for condition in conditions:
        name, equals, values = condition.partition("=")
        if not equals:
            raise BadArgument(f"--where '{condition}': expected COLUMN=VALUE[,VALUE...]")
        check_column(name, columns)
        there = {str(row[name]) for row in rows}
        wanted = [values] if values in there else comma_list(values)
        for value in wanted:
            if value not in there:
                raise BadArgument(f"--where {name}: no cell has '{value}' (valid: {', '.join(sorted(there))})")
        rows = [row for row in rows if str(row[name]) in wanted]
    return rows


# Columns and their values

def values_of(rows, name):
    """Returns the different values of a column, in the order of the rows."""
    return list(dict.fromkeys(row[name] for row in rows))


def axis_name(column, labels, unit=""):
    """Returns the text of an axis: the words of the column's name, and its unit in parentheses."""
    if column in labels:
        return labels[column]
    if column in AXES:
        return AXES[column]
    stem, _, ending = column.rpartition("_")
    if ending == "bytes":
        return f"{stem.replace('_', ' ')} ({unit})"
    if ending == "ms":
        return f"{stem.replace('_', ' ')} (ms)"
    return column.replace("_", " ") + (f" ({unit})" if unit else "")


def samples_of(rows):
    """Returns what a batch counts: sequences of language models, images, or samples where both or other networks are drawn."""
    kinds = {("sequences" if re.match(r"(gpt|bert|llama)", str(row.get("network") or row.get("workload") or "")) else "images")
             for row in rows if not row.get("file")} | {"samples" for row in rows if row.get("file")}
    return kinds.pop() if len(kinds) == 1 else "samples"


def quantity(value):
    """Returns the number and the unit of a value such as 64, '30%' or '12GiB', or None if it is a name."""
    if isinstance(value, (int, float)):
        return value, ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%|B|KiB|MiB|GiB|TiB)", value or "")
    return match and (float(match[1]) * SIZES.get(match[2], 1), "%" if match[2] == "%" else "bytes")


class Axis:
    """How the values of one column become places on an axis: as numbers with a unit, or as names in a row."""

    def __init__(self, column, values, labels, ranks, names_only=False, all_values=()):
        """`all_values` are those of all axes of the column, which have one unit."""
        quantities = {value: quantity(value) for value in values if value is not None}
        units = {found and found[1] for found in quantities.values()}
        self.names = None
        if names_only or units - {"", "%", "bytes"} or len(units) > 1:
            by_size = len(units) == 1 and None not in units
            order = sorted(quantities, key=lambda value: quantities[value][0]) if by_size else list(quantities)
            order.sort(key=lambda value: ranks.get(str(value), len(ranks)))
            self.places = {value: place for place, value in enumerate(order)}
            self.names = [labels.get(str(value), str(value)) for value in order]
            self.label = axis_name(column, labels, "bytes" if column.endswith("_bytes") else "")
            return
        unit = next(iter(units), "")
        scale = 1
        if unit == "bytes" or column.endswith("_bytes"):
            unit = "GiB" if max(found[0] for found in map(quantity, [*quantities, *all_values]) if found) >= SIZES["GiB"] else "MiB"
            scale = SIZES[unit]
        self.places = {value: found[0] / scale for value, found in quantities.items()}
        self.label = axis_name(column, labels, unit)


# Lines and facets

def by_facet(rows, args):
    """Returns the rows of each facet, by its values of the columns of `args.facet`."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in args.facet), []).append(row)
    return groups


def telling_apart(rows, columns, args):
    """Returns the settings that differ between cells and that neither x nor the facets tell.

    Adds to `args.facet` the settings that depend on the facet alone.
    """
    told = {args.x, *args.facet}
    for name in list(told):
        told.update(IMPLIED.get(name, ()))
    if "memory_request" in told and "memory_bytes" in columns and args.x != "memory_bytes":
        told.add("memory_bytes")
    settings = [name for name in SETTINGS if name in columns]
    if "memory_request" not in columns and "memory_bytes" in columns:
        settings.append("memory_bytes")
    differ = [name for name in settings if name not in told and len(values_of(rows, name)) > 1]
    if args.facet:  # a setting with one value in each facet belongs to the facet
        groups = by_facet(rows, args).values()
        same = [name for name in differ if all(len(values_of(group, name)) == 1 for group in groups)]
        args.facet += same
        differ = [name for name in differ if name not in same]
    return differ


def series_of(row, by, labels):
    """Returns the name of the line that a cell belongs to."""
    return ", ".join(labels.get(str(row[name]), spoken(name, row[name])) for name in by)


def spoken(column, value):
    """Returns a value as it stands in a key: with the column's name where the value alone says nothing."""
    if column == "file" and value:
        return value.rpartition("/")[2]
    if isinstance(value, str) and column not in ("memory_request", "mode", "preset", "compress", "accumulate",
                                                 "clip_norm", "loss_chunks"):
        return value
    if column == "memory_bytes" and value is not None:
        return f"{value / SIZES['GiB']:.4g} GiB"
    return f"{column.replace('_request', '').replace('_', ' ')} {'default' if value is None else value}"


def choose_facets(rows, columns, args):
    """Sets `args.by`, and `args.facet` where too many lines need it. Raises `BadArgument` if they remain too many."""
    for name in args.by or []:
        check_column(name, columns)
    asked, may_facet = args.by, not args.facet
    if args.kind == "frontier":  # networks, batches and devices have nothing to do with each other's frontier
        args.by = asked or ["policy"]
        args.facet += [name for name in telling_apart(rows, columns, args) if name not in args.by]
        return
    while True:
        args.by = [name for name in asked if name not in args.facet] if asked else telling_apart(rows, columns, args)
        count = len({series_of(row, args.by, {}) for row in rows})
        more = [name for name in FACETS if name in args.by and len(args.by) > 1 and len(values_of(rows, name)) > 1]
        if count <= MOST_LINES:
            return
        if not may_facet or not more:
            break
        args.facet.append(more[0])
    name = max(args.by, key=lambda column: len(values_of(rows, column)))
    some = ",".join(str(value) for value in values_of(rows, name)[:3])
    raise BadArgument(f"{count} lines in one picture, and {MOST_LINES} can be told apart: choose with "
                      f"--where {name}={some}" + (", or make facets with --facet COLUMN" if more else ""))


def lines(rows, args, labels):
    """Returns the cells of each line, by its name and then by x. Raises `BadArgument` if two cells share a place."""
    result = {}
    for row in rows:
        if row[args.x] is None:
            continue
        name = series_of(row, args.by, labels) or args.y.replace("_", " ")
        line = result.setdefault(name, {})
        if row[args.x] in line:
            other = line[row[args.x]]
            differing = {column: sorted({str(r[column]) for r in rows})
                         for column in ("workload", "device", "memory_request", "allocator", "preset", "mode", "cost")
                         if column in row and row[column] != other[column]}
            ways = "; ".join(f"{column}: {', '.join(there)}" for column, there in differing.items())
            raise BadArgument(f"several cells of '{name}' at {args.x} = {row[args.x]}: choose with --where, or tell "
                              f"them apart with --by ({ways or 'these cells have the same known settings'})")
        line[row[args.x]] = row
    return result


def frontier(rows, args):
    """Returns the rows that no other row beats: none is as fast in less memory, nor faster in as little."""
    best, result = math.inf, []
    for row in sorted((row for row in rows if None not in (row[args.x], row[args.y])),
                      key=lambda row: (row[args.x], row[args.y])):
        if row[args.y] < best:
            best = row[args.y]
            result.append(row)
    return result


def frontier_lines(rows, args, labels):
    """Returns the cells of the frontier by the name of their line."""
    result = {}
    for row in frontier(rows, args):
        result.setdefault(series_of(row, args.by, labels), []).append(row)
    return result


def facets_of(rows, args, labels, ranks):
    """Returns title, rows and work of each facet; if there are no facets, one with an empty title.

    The values of each column have one order: that of --order, then that of the rows.
    """
    seen = [{value: place for place, value in enumerate(values_of(rows, name))} for name in args.facet]
    ordered = sorted(by_facet(rows, args).items(), key=lambda group: [
        (ranks.get(str(value), len(ranks)), places[value]) for value, places in zip(group[0], seen)])
    if len(ordered) > MOST_FACETS:
        name = max(args.facet, key=lambda column: len(values_of(rows, column)))
        some = ",".join(str(value) for value in values_of(rows, name)[:3])
        raise BadArgument(f"{len(ordered)} facets in one picture, of at most {MOST_FACETS}: choose with --where {name}={some}")
    return [(", ".join(labels.get(str(value), spoken(name, value)) for name, value in zip(args.facet, key)), group,
             tuple(value for name, value in zip(args.facet, key) if name in WORK)) for key, group in ordered]


def share_axes(grid, works):
    """Gives the axes of one work the same limits."""
    for work in dict.fromkeys(works):
        same = [axes for axes, other in zip(grid, works) if other == work]
        for limits, set_limits in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
            ends = [getattr(axes, limits)() for axes in same]
            for axes in same:
                getattr(axes, set_limits)(min(low for low, _ in ends), max(high for _, high in ends))


def rows_of_crosses(drawn, args):
    """Returns how many rows of crosses stand above the axes of a facet: one for each line, one for all bars."""
    if args.kind == "frontier":
        return 0
    missed = sum(any(row[args.y] is None for row in line.values()) for line in drawn.values())
    return missed if args.kind == "line" else min(missed, 1)


def mark_missing(axes, places, rank, style):
    """Draws a cross above the axes for each cell that does not fit."""
    axes.plot(places, [1.04 + CROSSES * rank] * len(places), transform=axes.get_xaxis_transform(), clip_on=False,
              **{**style, "marker": "x", "linestyle": "none"})


def draw_lines(axes, drawn, x, rows, y, args, styles):
    missed = 0
    for name, line in drawn.items():
        cells = sorted(((x.places[place], row[args.y]) for place, row in line.items()), key=lambda cell: cell[0])
        axes.plot([place for place, _ in cells],
                  [math.nan if value is None else y.places[value] for _, value in cells], linewidth=1, **styles[name])
        missing = [place for place, value in cells if value is None]
        if missing:
            mark_missing(axes, missing, missed, styles[name])
            missed += 1
    name_places(axes, x)


def draw_bars(axes, drawn, x, rows, y, args, styles):
    width = 0.8 / len(styles)
    axes.set_axisbelow(True)
    for rank, (name, style) in enumerate(styles.items()):
        cells = [(x.places[place] + (rank - (len(styles) - 1) / 2) * width, row[args.y])
                 for place, row in drawn.get(name, {}).items()]
        axes.bar([place for place, value in cells if value is not None],
                 [y.places[value] for _, value in cells if value is not None], width * 0.94, color=style["color"])
        missing = [place for place, value in cells if value is None]
        if missing:
            mark_missing(axes, missing, 0, style)
    name_places(axes, x)


def draw_frontier(axes, drawn, x, rows, y, args, styles):
    def places(cells):
        return [x.places[row[args.x]] for row in cells], [y.places[row[args.y]] for row in cells]

    fitting = [row for row in rows if None not in (row[args.x], row[args.y])]
    axes.plot(*places(fitting), linestyle="none", marker=".", markersize=4, color=DIM)
    axes.step(*places(frontier(rows, args)), where="post", color="#555555", linewidth=0.9)
    for name, cells in drawn.items():
        axes.plot(*places(cells), **styles[name], linestyle="none")


def name_places(axes, x):
    """Writes the names of the places below an axis of names."""
    if x.names is not None:
        crowded = len(x.names) * 0.24 > axes.figure.get_size_inches()[0] * axes.get_position().width
        axes.set_xticks(range(len(x.names)), x.names, rotation=90 if crowded else 30,
                        ha="center" if crowded else "right", rotation_mode="default" if crowded else "anchor")
        axes.set_xlim(-0.6, len(x.names) - 0.4)
        axes.grid(axis="x", visible=False)


def draw(rows, args, columns):
    """Returns the figure. Raises `BadArgument` if it would have too many lines, or several cells in one place."""
    try:
        import figstyle  # imported here, so that errors in the input are reported without matplotlib
    except ImportError as error:
        raise NoMatplotlib(f"{sys.executable} cannot import matplotlib ({error}); Debian has it as "
                           "python3-matplotlib") from error
    labels = {"batch": f"batch ({samples_of(rows)})", **dict(args.label)}
    ranks = {value: rank for rank, value in enumerate(args.order)}
    if args.kind == "auto":  # numbers have lines, names have bars
        args.kind = "bar" if Axis(args.x, values_of(rows, args.x), labels, ranks).names else "line"
    choose_facets(rows, columns, args)
    facets = facets_of(rows, args, labels, ranks)
    if args.kind == "frontier":
        drawn = [frontier_lines(group, args, labels) for _, group, _ in facets]
    else:
        drawn = [lines(group, args, labels) for _, group, _ in facets]
    names = sorted(dict.fromkeys(name for facet in drawn for name in facet),
                   key=lambda name: ranks.get(name, len(ranks)))
    if len(names) > MOST_LINES:
        raise BadArgument(f"{len(names)} policies are fastest in some memory, and {MOST_LINES} can be told apart: "
                          "choose with --where")
    styles = {name: {"color": figstyle.COLOURS[i], "marker": figstyle.MARKERS[i], "markersize": 4}
              for i, name in enumerate(names)}

    y = Axis(args.y, [row[args.y] for row in rows], labels, {})
    xs = [Axis(args.x, values_of(group, args.x), labels, ranks, args.kind == "bar", values_of(rows, args.x)) for _, group, _ in facets]
    above = CROSSES * args.size[1] * max(rows_of_crosses(facet, args) for facet in drawn)
    fig, grid = figstyle.grid(len(facets), *args.size, above, max((x.names or [] for x in xs), key=len))
    painter = {"bar": draw_bars, "line": draw_lines, "frontier": draw_frontier}[args.kind]
    for each in zip(grid, drawn, xs, (group for _, group, _ in facets)):
        painter(*each, y, args, styles)
    for axes, (title, _, _), x in zip(grid, facets, xs):
        for axis in args.log:
            (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
        if "y" not in args.log:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x.label)
        axes.set_ylabel(y.label)
        axes.set_title(title, fontsize=8, pad=6 + 72 * above)
    if all(x.names is None for x in xs):
        share_axes(grid, [work for _, _, work in facets])
    failed = any(row[args.y] is None and row.get("status") == "failed" for row in rows)
    missing = "does not fit, or its policy failed" if failed else "does not fit"
    extra = {missing: {"marker": "x", "color": "#000000"}} if above else {}
    if args.kind == "frontier":
        extra["slower than another"] = {"marker": ".", "color": DIM}
    figstyle.key_beside(grid, {} if len(names) == 1 and not args.by else styles, extra, bars=args.kind == "bar")
    if args.title:
        figstyle.title_above(grid, args.title)
    return fig


def positive(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", text)
    if not match or not all(0.5 <= float(side) <= 40 for side in match.groups()):
        raise argparse.ArgumentTypeError(f"'{text}': expected WIDTHxHEIGHT in inches from 0.5 to 40, such as 3.2x2.2")
    return float(match[1]), float(match[2])


def pair(text):
    name, equals, value = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}': expected NAME=TEXT, such as vdnn-dyn=vDNN")
    return name, value




def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     epilog=__doc__[__doc__.index("examples:"):],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=pathlib.Path, help="store of spillway sweep, or a CSV file")
    parser.add_argument("--x", help="column along the x axis, such as batch (frontier: memory_bytes)")
    parser.add_argument("--y", help="column along the y axis, such as iteration_ms (frontier: iteration_ms)")
    parser.add_argument("--kind", choices=("auto", "line", "bar", "frontier"), default="auto",
                        help="lines where x is a number and bars where it is a name (auto), or one of them, or the "
                             "frontier of time over memory")
    parser.add_argument("--by", type=comma_list, help="columns that tell lines apart (default: all settings that differ)")
    parser.add_argument("--facet", type=comma_list, default=[], help="columns that give each of their values axes")
    parser.add_argument("--where", action="append", default=[],
                        help="COLUMN=VALUE[,VALUE...]: draw only the cells with these values; may be repeated")
    parser.add_argument("--order", type=comma_list, default=[], help="values, lines or facets that come first")
    parser.add_argument("--label", type=pair, action="append", default=[],
                        help="NAME=TEXT: the text of a column's axis or of a value; may be repeated")
    parser.add_argument("--log", choices=("x", "y", "xy"), default="", help="logarithmic axes")
    parser.add_argument("--size", type=positive, default=(3.2, 2.2), help="inches of each axes (default: 3.2x2.2)")
    parser.add_argument("--title", default="", help="text above the picture")
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path, help=f"picture: {', '.join(ENDINGS)}")
    return parser.parse_args()


def check(args, rows, columns):
    """Raises `BadArgument` or `BadInput` for what cannot be drawn."""
    if args.kind == "frontier":
        args.x, args.y = args.x or "memory_bytes", args.y or "iteration_ms"
    if not args.x or not args.y:
        raise BadArgument("--x and --y name the columns to draw")
    for name in [args.x, args.y, *args.facet]:
        check_column(name, columns)
    if not rows:
        raise BadInput(f"{args.store}: the store has no cells")
    numbers = [row[args.y] for row in rows if row[args.y] is not None]
    if any(isinstance(value, str) for value in numbers):
        raise BadArgument(f"--y {args.y}: is not a number")
    if not numbers:
        raise BadArgument(f"--y {args.y}: no cell has a value; all are out of memory")
    if all(row[args.x] is None for row in rows):
        raise BadArgument(f"--x {args.x}: no cell has a value")


def main():
    args = arguments()
    try:
        if args.output.suffix not in ENDINGS:
            raise BadArgument(f"-o {args.output}: unknown ending '{args.output.suffix}' (valid: {', '.join(ENDINGS)})")
        rows, columns = read(args.store)
        rows = select(rows, columns, args.where)
        check(args, rows, columns)
        fig = draw(rows, args, columns)
        import figstyle
        figstyle.write(fig, args.output)
    except BadArgument as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 2
    except NoMatplotlib as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 5
    except (BadInput, OSError) as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

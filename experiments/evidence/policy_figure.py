"""The look of figures whose lines are policies, and the program that draws one from a CSV file.

Importing it makes `figstyle` importable, which needs matplotlib; only drawing needs it.
"""

import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))


def styles(policies):
    """Returns the style of each policy's line, by policy. `joint` is black; others repeat colours with dashes."""
    import figstyle

    colours = [colour for colour in figstyle.COLOURS if colour != "#000000"]
    markers = figstyle.MARKERS[:-1]
    return {policy: {"color": "#000000", "marker": "*", "markersize": 5, "linewidth": 1.4} if policy == "joint" else
            {"color": colours[i % len(colours)], "marker": markers[i % len(markers)], "markersize": 3, "linewidth": 0.9,
             "linestyle": "-" if i < len(colours) else "--"}
            for i, policy in enumerate(policies)}


def finish(fig, grid, x, y, path):
    """Names the outer axes, writes the key above them, and writes the figure."""
    import figstyle

    for axes in grid[-1]:
        axes.set_xlabel(x)
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.93))
    handles, labels = grid[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="upper center", ncol=len(labels), fontsize=6.5, handlelength=1.6, columnspacing=1)
    figstyle.write(fig, path)


def main(draw, usage, default=None):
    """Calls draw(rows, path) for the file and figure of the command line. Returns the exit code."""
    arguments = sys.argv[1:] or [default] * (default is not None)
    if len(arguments) not in (1, 2):
        print(usage, file=sys.stderr)
        return 2
    try:
        with open(arguments[0], newline="", encoding="utf-8") as file:
            draw(list(csv.DictReader(file)), (arguments + [str(pathlib.Path(arguments[0]).with_suffix(".png"))])[1])
    except (OSError, ValueError, KeyError) as error:
        print(f"plot: {arguments[0]}: no table that `run` wrote: {error}", file=sys.stderr)
        return 3
    return 0

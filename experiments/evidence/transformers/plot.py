#!/usr/bin/env python3
"""Draws the file that `run` wrote: for each network and precision, the time of each policy against the memory.

usage: plot.py FILE.csv [FIGURE.png]
"""

import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))


def draw(rows, path):
    """Draws lines for predicted times, and hollow markers for measured ones."""
    import figstyle  # imported here because only the figure needs matplotlib
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    networks, precisions, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "precision", "policy"))
    colours = [colour for colour in figstyle.COLOURS if colour != "#000000"]
    fig, grid = figstyle.figure(7.2, 2.3 * len(networks) + 0.5, nrows=len(networks), ncols=len(precisions), squeeze=False)
    for axes, (network, precision) in zip(grid.flat, ((n, p) for n in networks for p in precisions)):
        axes.set_title(f"{network}, {precision}", fontsize=8)
        for i, policy in enumerate(policies):
            found = sorted(((float(row["memory_bytes"]) / 2**30, row) for row in rows
                           if (row["workload"], row["precision"], row["policy"]) == (network, precision, policy)
                           and row["iteration_ms"]), key=lambda point: point[0])
            mine = policy == "joint"
            style = {"color": "#000000" if mine else colours[i % len(colours)],
                     "marker": "*" if mine else figstyle.MARKERS[i % len(figstyle.MARKERS)], "markersize": 5 if mine else 3}
            axes.plot([x for x, _ in found], [float(row["iteration_ms"]) for _, row in found], label=policy.partition(":")[0],
                      linewidth=1.4 if mine else 0.9, linestyle="-" if mine or i < len(colours) else "--", **style)
            measured = [(x, float(row["measured_iteration_ms"])) for x, row in found if row["measured_iteration_ms"]]
            if measured:
                axes.plot(*zip(*measured), linestyle="", fillstyle="none", **style | {"markersize": 7})
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        digits = (1, 2, 5) if high > 6 * low else (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        axes.set_yticks([tick for scale in range(-2, 7) for digit in digits if low <= (tick := digit * 10**scale) <= high])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
    for axes in grid[-1]:
        axes.set_xlabel("memory (GiB)")
    for axes in grid[:, 0]:
        axes.set_ylabel("iteration (ms)")
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.94))
    handles, labels = grid[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="upper center", ncol=len(policies), fontsize=7, handlelength=1.8, columnspacing=1)
    figstyle.write(fig, path)


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[1])
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        print(f"plot: {error}", file=sys.stderr)
        return 3
    if not rows:
        print(f"plot: {path}: no row", file=sys.stderr)
        return 3
    draw(rows, sys.argv[2] if len(sys.argv) > 2 else str(path.with_suffix(".png")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

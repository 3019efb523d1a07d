#!/usr/bin/env python3
"""Draws frontier.csv: for each network, the time of each policy relative to the time in core, against the memory.

usage: plot.py [FRONTIER.csv [FIGURE.png]]
"""

import csv
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts"))

HIGHEST = 3  # slower runs, relative to the time in core, are left out


def draw(rows, path):
    import figstyle  # imported here because only the figure needs matplotlib

    colours = [colour for colour in figstyle.COLOURS if colour != "#000000"]
    networks = list(dict.fromkeys(row["workload"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    fig, grid = figstyle.figure(7.2, 1.75 * ((len(networks) + 3) // 4) + 0.4, nrows=(len(networks) + 3) // 4, ncols=4,
                                squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(networks):]:
        axes.set_visible(False)
    for axes, network in zip(grid.flat, networks):
        axes.set_title(network, fontsize=8)
        for i, policy in enumerate(policies):
            points = [(float(row["memory_request"].rstrip("%")), float(row["slowdown"])) for row in rows
                      if (row["workload"], row["policy"], row["status"]) == (network, policy, "ok")]
            mine = policy == "joint"
            axes.plot(*zip(*sorted(points)) if points else ([], []), label=policy.partition(":")[0],
                      color="#000000" if mine else colours[i % len(colours)],
                      marker="*" if mine else figstyle.MARKERS[i % 7], linewidth=1.4 if mine else 0.8,
                      linestyle="-" if mine or i < len(colours) - 1 else "--", markersize=4 if mine else 2.5)
        axes.set(ylim=(0.95, HIGHEST), xlim=(5, 95), xticks=(10, 30, 50, 70, 90))
    for axes in grid[-1]:
        axes.set_xlabel("memory (%)")
    for axes in grid[:, 0]:
        axes.set_ylabel("time / in core")
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.92))
    handles, labels = grid[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="upper center", ncol=len(policies), fontsize=6, handlelength=1.6, columnspacing=1)
    fig.savefig(path, dpi=200, metadata={"Software": None})


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "frontier.csv"
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        print(f"plot: {error}", file=sys.stderr)
        return 3
    if not rows:
        print(f"plot: {path}: no row", file=sys.stderr)
        return 3
    draw(rows, sys.argv[2] if len(sys.argv) > 2 else path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

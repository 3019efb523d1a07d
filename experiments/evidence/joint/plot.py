#!/usr/bin/env python3
"""Draws frontier.csv: for each network, the time of each policy relative to the time in core, against the memory.

usage: plot.py [FRONTIER.csv [FIGURE.png]]
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import policy_figure  # noqa: E402  (the path must come first)

HIGHEST = 3  # slower runs, relative to the time in core, are left out


def draw(rows, path):
    import figstyle  # imported here because only the figure needs matplotlib

    networks, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "policy"))
    down = (len(networks) + 3) // 4
    fig, grid = figstyle.figure(7.2, 1.75 * down + 0.4, nrows=down, ncols=4, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(networks):]:
        axes.set_visible(False)
    for axes, network in zip(grid.flat, networks):
        axes.set_title(network, fontsize=8)
        for policy, style in policy_figure.styles(policies).items():
            points = [(float(row["memory_request"].rstrip("%")), float(row["slowdown"])) for row in rows
                      if (row["workload"], row["policy"], row["status"]) == (network, policy, "ok")]
            axes.plot(*zip(*sorted(points)) if points else ([], []), label=policy.partition(":")[0], **style)
        axes.set(ylim=(0.95, HIGHEST), xlim=(5, 95), xticks=(10, 30, 50, 70, 90))
    policy_figure.finish(fig, grid, "memory (%)", "time / in core", path)


if __name__ == "__main__":
    sys.exit(policy_figure.main(draw, __doc__, HERE / "frontier.csv"))

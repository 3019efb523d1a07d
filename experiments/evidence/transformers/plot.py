#!/usr/bin/env python3
"""Draws the file that `run` wrote: for each network and precision, the time of each policy against the memory.

usage: plot.py FILE.csv [FIGURE.png]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import policy_figure  # noqa: E402  (the path must come first)


def draw(rows, path):
    """Draws lines for predicted times, and hollow markers for measured ones."""
    import figstyle  # imported here because only the figure needs matplotlib
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    networks, precisions, policies = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "precision", "policy"))
    fig, grid = figstyle.figure(7.2, 2.3 * len(networks) + 0.5, nrows=len(networks), ncols=len(precisions), squeeze=False)
    for axes, (network, precision) in zip(grid.flat, ((n, p) for n in networks for p in precisions)):
        axes.set_title(f"{network}, {precision}", fontsize=8)
        for policy, style in policy_figure.styles(policies).items():
            found = sorted(((float(row["memory_bytes"]) / 2**30, row) for row in rows
                           if (row["workload"], row["precision"], row["policy"]) == (network, precision, policy)
                           and row["iteration_ms"]), key=lambda point: point[0])
            axes.plot([x for x, _ in found], [float(row["iteration_ms"]) for _, row in found],
                      label=policy.partition(":")[0], **style)
            measured = [(x, float(row["measured_iteration_ms"])) for x, row in found if row["measured_iteration_ms"]]
            if measured:
                axes.plot(*zip(*measured), **style | {"linestyle": "", "fillstyle": "none", "markersize": 7})
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        digits = (1, 2, 5) if high > 6 * low else (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        axes.set_yticks([tick for scale in range(-2, 7) for digit in digits if low <= (tick := digit * 10**scale) <= high])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
    policy_figure.finish(fig, grid, "memory (GiB)", "iteration (ms)", path)


if __name__ == "__main__":
    sys.exit(policy_figure.main(draw, __doc__))

#!/usr/bin/env python3
"""Plots predicted against measured iteration times, and prints a summary of the errors.

usage: experiments/evidence/validation/plot.py [CSV...]     (default: h200.csv beside this script)

Writes FIGURE.pdf and FIGURE.png beside the first file, and the summary on standard output.
"""

import csv
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts"))


def read(paths):
    rows = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as file:
            rows += [r for r in csv.DictReader(file) if r["status"] == "ok"]
    return rows


def family(policy):
    return policy.split(":")[0]


def is_copy_bound(row):
    """Returns true if the copies alone take longer than the kernels."""
    return float(row["predicted_copy_ms"]) > float(row["predicted_compute_ms"])


def summary(rows):
    def line(name, selected):
        if not selected:
            return f"{name}: no case"
        errors = [abs(float(r["error"])) for r in selected]
        worst = max(selected, key=lambda r: abs(float(r["error"])))
        parity = sum(r["decisions_equal"] == r["placements_equal"] == "true" and
                     r["violations"] == "0" for r in selected)
        return (f"{name}: {len(selected)} cases, mean absolute error {100 * sum(errors) / len(errors):.2f} %, "
                f"worst {100 * float(worst['error']):+.2f} % ({worst['workload']} {worst['policy']}), "
                f"parity in {parity}")
    moved = [r for r in rows if int(r["predicted_offloaded_bytes"]) > 0]
    return "\n".join([line("all", rows),
                      line("nothing moved", [r for r in rows if r not in moved]),
                      line("compute-bound, moving", [r for r in moved if not is_copy_bound(r)]),
                      line("copy-bound", [r for r in moved if is_copy_bound(r)])])


def plot(rows, path):
    import figstyle
    fig, (left, right) = figstyle.figure(7.0, 3.1, ncols=2)
    families = sorted({family(r["policy"]) for r in rows})
    low = min(float(r["measured_iteration_ms"]) for r in rows) * 0.8
    high = max(float(r["measured_iteration_ms"]) for r in rows) * 1.25
    left.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=1)
    for i, name in enumerate(families):
        mine = [r for r in rows if family(r["policy"]) == name]
        measured = [float(r["measured_iteration_ms"]) for r in mine]
        # After eight families the colours repeat with other markers.
        style = {"s": 12, "marker": figstyle.MARKERS[(i + i // 8) % 8], "color": figstyle.COLOURS[i % 8],
                 "alpha": 0.8, "linewidths": 0, "zorder": 2}
        left.scatter(measured, [float(r["predicted_iteration_ms"]) for r in mine], label=name, **style)
        right.scatter(measured, [100 * float(r["error"]) for r in mine], **style)
    left.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high),
             xlabel="measured iteration (ms)", ylabel="predicted iteration (ms)")
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.86))
    fig.legend(*left.get_legend_handles_labels(), loc="upper center", ncol=7, fontsize=7)
    right.axhline(0, color="#999999", linewidth=0.8)
    for bound in (-5, 5):
        right.axhline(bound, color="#999999", linewidth=0.8, linestyle=":")
    right.set(xscale="log", xlim=(low, high), ylim=(-10.5, 10.5), xlabel="measured iteration (ms)",
              ylabel="error of the prediction (%)")
    figstyle.save(fig, path)


def main():
    paths = [pathlib.Path(p) for p in sys.argv[1:]] or [HERE / "h200.csv"]
    try:
        rows = read(paths)
    except (OSError, KeyError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 3
    if not rows:
        print("plot: no case that fits", file=sys.stderr)
        return 1
    print(summary(rows))
    plot(rows, paths[0].with_suffix(".pdf"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The look of all figures: one place for fonts, sizes and colours.

`figure(width, height)` gives a figure in inches; `save(figure, path)` writes PDF with TrueType fonts, and
PNG beside it. Needs matplotlib (Debian: python3-matplotlib).
"""

import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

# Distinguishable also without colour vision (after P. Okabe and M. Ito, 2008).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]

plt.rcParams.update({
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # TrueType, so that text stays text
    "svg.hashsalt": "spillway",
})


def figure(width=3.4, height=2.6, **options):
    """A figure and its axes; 3.4 inches are a column."""
    return plt.subplots(figsize=(width, height), **options)


def save(fig, path):
    """Writes `path` (.pdf) and the same as .png; the same figure gives the same bytes."""
    stem = os.path.splitext(path)[0]
    fig.savefig(stem + ".pdf", metadata={"CreationDate": None, "ModDate": None})
    fig.savefig(stem + ".png", dpi=200, metadata={"Software": None})
    plt.close(fig)

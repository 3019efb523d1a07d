"""The look of all figures: one place for fonts, sizes and colours.

`figure(width, height)` gives a figure in inches; `save(figure, path)` writes PDF with TrueType fonts, and
PNG beside it. Needs matplotlib (Debian: python3-matplotlib).
"""

import os

import matplotlib
from PIL import Image

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


def problems(fig):
    """What is wrong with a figure, in words.

    Axes without data, axes that lack a series of the legend that all share, labels that an edge of the figure cuts off.
    """
    fig.canvas.draw()
    found = []
    for number, axes in enumerate(fig.axes, 1):
        drawn = [patch for patch in axes.patches if patch.get_height() or patch.get_width()]
        drawn += [line for line in axes.lines if len(line.get_xdata())] + list(axes.collections)
        if not drawn:
            found.append(f"axes {number} are empty")
    shared = {text.get_text() for legend in fig.legends for text in legend.get_texts()}
    for number, axes in enumerate(fig.axes, 1):
        missing = shared - set(axes.get_legend_handles_labels()[1])
        if missing:
            found.append(f"axes {number} lack {', '.join(sorted(missing))}")
    width, height = fig.get_size_inches()
    box = fig.get_tightbbox(fig.canvas.get_renderer())
    if min(box.x0, box.y0, width - box.x1, height - box.y1) < -0.01:
        found.append("a label is cut off")
    return found


def save(fig, path, dpi=200, colours=0):
    """Writes `path` (.pdf) and the same as .png, of so many colours; the same figure gives the same bytes."""
    stem = os.path.splitext(path)[0]
    fig.savefig(stem + ".pdf", metadata={"CreationDate": None, "ModDate": None})
    fig.savefig(stem + ".png", dpi=dpi, metadata={"Software": None})
    if colours:
        with Image.open(stem + ".png") as picture:
            small = picture.convert("RGB").quantize(colours)
        small.save(stem + ".png", optimize=True)
    plt.close(fig)

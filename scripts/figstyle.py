"""Defines the look of all figures: fonts, sizes and colours.

`figure(width, height)` creates a figure with a size in inches. `save(figure, path)` writes a PDF with TrueType
fonts and a PNG next to it. Needs matplotlib (Debian: python3-matplotlib).
"""

import os

import matplotlib
from PIL import Image

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (matplotlib.use must come first)

# Readers without colour vision can tell these colours apart, too (after P. Okabe and M. Ito, 2008).
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
    "pdf.fonttype": 42,  # TrueType fonts keep text as text
    "svg.hashsalt": "spillway",
})


def figure(width=3.4, height=2.6, **options):
    """Returns a figure and its axes. A column of text is 3.4 inches wide."""
    return plt.subplots(figsize=(width, height), **options)


def problems(fig):
    """Returns a list of the problems of a figure, in words.

    It finds axes without data, axes that lack a series of the legend that all share, and labels that an edge cuts off.
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
    """Writes a .pdf and a .png file. If `colours` is not 0, reduces the .png to that many colours.

    The same figure gives the same bytes.
    """
    stem = os.path.splitext(path)[0]
    fig.savefig(stem + ".pdf", metadata={"CreationDate": None, "ModDate": None})
    fig.savefig(stem + ".png", dpi=dpi, metadata={"Software": None})
    if colours:
        with Image.open(stem + ".png") as picture:
            small = picture.convert("RGB").quantize(colours)
        small.save(stem + ".png", optimize=True)
    plt.close(fig)

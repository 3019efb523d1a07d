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


def grid(count, width, height, above=0, names=()):
    """Returns a figure and `count` axes of `width` by `height` inches, at most three in a row.

    The axes keep this size whatever stands around them. They become wider if `names` stand below them and need it.
    `above` inches stay free between the axes and their title.
    """
    width = max(width, 0.15 * len(names))
    across = min(count, 3)
    right, below = width + 0.75, height + above + 0.85 + 0.065 * max((len(name) for name in names), default=0)
    down = -(-count // across)
    fig = plt.figure(figsize=(across * right, down * below), layout="none")
    return fig, [fig.add_axes((0.55 / (across * right) + place % across / across,
                               1 - (place // across * below + height + above + 0.35) / (down * below),
                               width / (across * right), height / (down * below))) for place in range(count)]


def key_beside(axes, styles, others, bars):
    """Writes the key beside the axes on the right: the lines or bars of `styles`, and the marks of `others`."""
    place = axes[min(len(axes), 3) - 1]
    marks = {name: plt.Rectangle((0, 0), 1, 1, color=style["color"]) if bars else plt.Line2D([], [], linewidth=1, **style)
             for name, style in styles.items()}
    marks.update({name: plt.Line2D([], [], linestyle="none", **style) for name, style in others.items()})
    if marks:
        place.legend(marks.values(), marks.keys(), loc="upper left", bbox_to_anchor=(1.02, 1.02), fontsize=7)


def title_above(axes, text):
    """Writes a title above the first row of axes."""
    fig = axes[0].figure
    fig.canvas.draw()
    top = max(each.get_tightbbox().y1 for each in axes) / fig.bbox.height
    left = axes[0].get_position().x0
    fig.text(left, top + 0.12 / fig.get_size_inches()[1], text, fontsize=9, va="bottom")


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


def write(fig, path, dpi=200):
    """Writes one file, whose ending (.pdf, .png or .svg) says its kind. Nothing is left if it fails."""
    unfinished = f"{path}.{os.getpid()}.tmp"
    dates = {".pdf": {"CreationDate": None, "ModDate": None}, ".png": {"Software": None}, ".svg": {"Date": None}}
    ending = os.path.splitext(path)[1]
    try:
        fig.savefig(unfinished, format=ending[1:], dpi=dpi, bbox_inches="tight", pad_inches=0.06,
                    metadata=dates[ending])
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        plt.close(fig)


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

#!/usr/bin/env python3
"""Draws the figures of the papers from their numbers.

usage: experiments/papers/plot.py DIRECTORY

Draws each figure whose CSV is in DIRECTORY as PDF and PNG beside the CSV. `spillway reproduce all --figures DIRECTORY`
writes the CSVs and runs this script. The exit code is 3 if a figure has a problem and 5 without matplotlib.
"""

import csv
import pathlib
import re
import sys
import textwrap
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))


NAMES = {"titan_x_maxwell": "Titan X", "gtx_1080ti": "1080 Ti", "gtx_970": "GTX 970", "titan_xp": "TITAN Xp", "k40c": "K40c"}
DRAM = {"titan_x_maxwell": 336, "h200": 4800}  # GB/s, by the GPUs' specifications


class Sheets:
    """The tables and figures of a directory, each read once."""

    def __init__(self, directory):
        self.directory = directory
        self.known = {}

    def rows(self, sheet):
        if sheet not in self.known:
            with open(self.directory / f"{sheet}.csv", newline="", encoding="utf-8") as stream:
                self.known[sheet] = list(csv.DictReader(stream))
        return self.known[sheet]

    def __call__(self, sheet):
        """Pairs of the words in an item's name after the figure's name, and the item's value."""
        return [(row["item"].split()[1:], float(row["ours"])) for row in self.rows(sheet) if row["ours"]]

    def device(self, sheet):
        return self.rows(sheet)[0]["device"]

    def gpu(self, sheet):
        """The GPU for a label: "Titan X model", or "H200" if its times are recorded ones."""
        row = self.rows(sheet)[0]
        return gpu_name(row["device"]) + (" model" if row["cost"] == "roofline" else "")

    def printed(self, sheet):
        """Pairs as above of the values that the paper prints."""
        return [(row["item"].split()[1:], float(row["printed"])) for row in self.rows(sheet) if row["printed"]]


def caption(read, name):
    """The words below a picture, so that it can stand alone: paper, figure, its title, the GPUs."""
    with open(HERE / "items.toml", "rb") as stream:
        paper = tomllib.load(stream)["paper"][name.partition("-")[0]]
    title = paper["item"].get(name.partition("-")[2], {}).get("title", "")
    words = [f"{paper['title'].partition(' (')[0]}, {title}"]
    devices = list(dict.fromkeys(row["device"] for row in read.rows(name) if row["device"]))
    if len(devices) == 1:
        words.append(read.gpu(name) if read.rows(name)[0]["device"] else gpu_name(devices[0]))
    elif devices:
        words.append(", ".join(map(gpu_name, devices)))
    return ". ".join(words)


def gpu_name(device):
    return NAMES.get(device, device.upper())


def above(axes):
    """Puts the legend in one line over the axes."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=3)


def above_both(axes, right, ncol):
    """Puts the legend of two axes with the same x axis over them, and removes the grid of the right one."""
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    handles = [h + r for h, r in zip(axes.get_legend_handles_labels(),
                                     right.get_legend_handles_labels())]
    axes.legend(*handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncol=ncol)


def above_all(fig, axes, ncol):
    """Puts the legend of one of several axes in one line over the figure."""
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.9))
    fig.legend(*axes.get_legend_handles_labels(), loc="upper center", ncol=ncol)


def slanted(degrees):
    """The options of labels that end below their places."""
    return {"rotation": degrees, "ha": "right" if 0 < degrees < 90 else "center",
            "rotation_mode": "anchor" if 0 < degrees < 90 else "default"}


def plain(axes):
    """Writes the labels of the x axis horizontally."""
    for label in axes.get_xticklabels():
        label.set(**slanted(0))


def grouped(axes, labels, series):
    """Draws bars side by side: `series` maps a name to one value per label."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        axes.bar([x + (i - (len(series) - 1) / 2) * width for x in range(len(labels))], values,
                 width, label=name, zorder=2)
    axes.set_xticks(range(len(labels)), labels, **slanted(90 if len(labels) > 8 else 30))
    axes.grid(axis="x", visible=False)
    above(axes)


def bars(axes, rows):
    """Draws bars of rows (label, series, value) in order. REQUIRES: every series has every label."""
    labels = list(dict.fromkeys(label for label, _, _ in rows))
    series = dict.fromkeys(name for _, name, _ in rows)
    value = {(label, name): v for label, name, v in rows}
    grouped(axes, labels, {name: [value[label, name] for label in labels] for name in series})


def mark_printed(axes, places):
    """Marks values that the paper prints."""
    axes.plot(*zip(*places), linestyle="none", marker="D", markersize=4, color="#CC79A7", markeredgecolor="white",
              label="printed in the paper", zorder=4)


def stacks(axes, labels, series):
    """Draws a stack of bars for each label: `series` maps a name to one value per label."""
    bottom = [0.0] * len(labels)
    for name, values in series.items():
        axes.bar(labels, values, 0.7, bottom=bottom, label=name, zorder=2)
        bottom = [b + v for b, v in zip(bottom, values)]
    axes.set_xticks(range(len(labels)), labels, **slanted(30))
    axes.grid(axis="x", visible=False)


def peaks(figstyle, read):
    fig, axes = figstyle.figure(4.6, 2.4)
    bars(axes, [(mode, phase, mb) for (_, mode, phase), mb in read("vdnnpp-Fig5")])
    axes.set(ylabel="peak, AlexNet(256) (MiB)", xlabel="what vDNN offloads (algorithms)")
    return fig


def layers(figstyle, read):
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(layer, what, ms) for (_, layer, what), ms in read("vdnnpp-Fig6")])
    axes.set(ylabel="VGG-16(64) (ms)")
    return fig


def performance(figstyle, read):
    rows = [(row["item"].split()[1:], row["device"], float(row["ours"]))
            for row in read.rows("vdnnpp-Fig9") if row["ours"]]
    panels_of = {}
    for (network, mode, policy), device, x in rows:
        panels_of.setdefault(f"{network}, {gpu_name(device)}", []).append((mode, policy, x))
    fig, panels = figstyle.figure(7.0, 4.2, nrows=2, ncols=2, sharey=True)
    for axes, (title, bar) in zip(panels.flat, panels_of.items()):
        bars(axes, bar)
        axes.get_legend().remove()
        axes.set(xlabel=title)
        axes.axhline(1, color="#999999", linewidth=0.8, zorder=1)
    for axes in panels[:, 0]:
        axes.set(ylabel="times the iteration\nin unlimited memory")
    above_all(fig, panels[0, 0], 2)
    return fig


def compression(figstyle, read):
    """Times by layer, and on a right axis the density and the compressed size."""
    rows = [words[1:] + [value] for words, value in read("vdnnpp-Fig10")
            if len(words) == 3]
    fig, axes = figstyle.figure(4.6, 2.8)
    names = {"compress": "compression", "decompress": "decompression"}
    bars(axes, [(layer, names[what], ms) for layer, what, ms in rows if what in names])
    axes.set(ylabel="eight threads, modelled (ms)")
    right = axes.twinx()
    right.plot([x / 100 for _, what, x in rows if what == "density"], "k.", label="density")
    right.plot([x for _, what, x in rows if what == "ratio"], "kx", label="compressed size")
    right.set(ylabel="share of the map", ylim=(0, 1))
    above_both(axes, right, 2)
    return fig


def steps(figstyle, read):
    curves = {}
    for (technique, _, step, unit), value in read("superneurons-Fig10"):
        curves.setdefault((unit, technique), []).append((int(step), value))
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2)
    names = {"liveness": "liveness", "offload": "+ offloading", "recompute": "+ recomputation"}
    for axes, unit, label in zip(panels, ["MB", "tensors"], ["held (MiB)", "live tensors"]):
        for technique, name in names.items():
            axes.plot(*zip(*curves[unit, technique]), label=name, linewidth=1.2)
        axes.axvline(23.5, color="#999999", linewidth=0.8, linestyle=":")
        axes.set(xlabel="step (24 to 46: backward)", ylabel=label, ylim=(0, None))
    above(panels[0])
    return fig


def network_memory(figstyle, read):
    rows = [(words[0], " ".join(words[2:-1]), value)
            for words, value in read("superneurons-Fig2")]
    names = {"": "all tensors", "workspaces": "and workspaces"}
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(network, names[what], gb) for network, what, gb in rows if what in names])
    networks = list(dict.fromkeys(network for network, _, _ in rows))
    mark_printed(axes, [(networks.index(words[0]) - 0.2, gb) for words, gb in read.printed("superneurons-Fig2")])
    axes.set(ylabel="memory (GiB)")
    right = axes.twinx()
    speedups = [x for _, what, x in rows if what == "speedup"]
    right.plot(range(len(speedups)), speedups, "kX", label="speedup", markersize=7,
               markeredgecolor="white")
    right.set(ylabel="speedup by workspaces", ylim=(0, 1.2 * max(speedups)))
    above_both(axes, right, 2)
    return fig


def shares(figstyle, read):
    """A stack for each network. Types that the paper does not name or that are too thin to see are "others"."""
    share = {}
    for (network, kind, column, _), percent in read("superneurons-Fig8"):
        share.setdefault(column, {}).setdefault(network, {})[kind] = percent
    shown = ["CONV", "POOL", "ACT", "BN", "LRN", "FORK"]
    fig, panels = figstyle.figure(7.0, 2.8, ncols=2)
    for axes, column, label in zip(panels, ["time", "memory"],
                                   ["of the kernels' time (%)", "of the counted tensors (%)"]):
        parts = share[column].values()
        series = {kind: [part[kind] for part in parts] for kind in shown}
        series["others"] = [sum(v for k, v in part.items() if k not in shown) for part in parts]
        stacks(axes, list(share[column]), series)
        axes.set(ylabel=label, ylim=(0, 100))
    above_all(fig, panels[0], 7)
    return fig


def cache(figstyle, read):
    rows = read("superneurons-Fig11")
    fig, axes = figstyle.figure(4.6, 2.2)
    bars(axes, [(words[0], name, value) for words, without in rows
                for name, value in [("with the cache", 1.0), ("without", without)]])
    axes.set(ylabel="images per second,\nnormalised")
    return fig


def workspaces(figstyle, read):
    panels_of, speed = {}, {}
    for words, value in read("superneurons-Fig12"):
        setup = f"{words[0]}, {words[1]}"
        if words[2] == "img/s":
            speed[setup] = value
        else:
            panels_of.setdefault(setup, []).append((words[2].removeprefix("conv"), words[3], value))
    fig, panels = figstyle.figure(7.0, 2.4, ncols=len(panels_of), sharey=True)
    for axes, (setup, rows) in zip(panels, panels_of.items()):
        names = {"assigned": "given", "fastest": "for the fastest algorithm"}
        bars(axes, [(step, names[column], mb) for step, column, mb in rows])
        plain(axes)
        axes.tick_params(axis="x", labelsize=7)
        axes.get_legend().remove()
        axes.set(xlabel=f"{setup}: {speed[setup]:.0f} images/s")
    panels[0].set(ylabel="workspace (MiB)")
    above_all(fig, panels[0], 2)
    return fig


def wider(figstyle, read):
    value = {tuple(words): v for words, v in read("superneurons-Fig13")}
    networks = list(dict.fromkeys(network for network, _, _ in value))
    frameworks = list(dict.fromkeys(framework for _, framework, _ in value))
    fig, axes = figstyle.figure(7.0, 2.8)
    grouped(axes, networks, {framework: [value.get((network, framework, "GB"), 0)
                                         for network in networks] for framework in frameworks})
    plain(axes)
    width = 0.8 / len(frameworks)
    for x, network in enumerate(networks):
        for i, framework in enumerate(frameworks):
            if framework == "Caffe" or (network, framework, "x") not in value:
                continue
            axes.annotate(f"{value[network, framework, 'x']:.1f}x",
                          (x + (i - 2) * width, value[network, framework, "GB"]), (0, 2),
                          textcoords="offset points", ha="center", va="bottom", fontsize=6, rotation=90)
    axes.set(ylabel="memory at the batch of Table 5 (GiB)\nand its ratio to Caffe's", ylim=(0, 1.12 * max(value.values())))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=5)
    return fig


def front(figstyle, read):
    points = [(int(limit.removesuffix("MiB")), ms)
              for (*_, limit), ms in read("ucudnn-Fig8")]
    fig, axes = figstyle.figure(3.4, 2.4)
    axes.step(*zip(*points), where="post")
    axes.set(xlabel="workspace at most (MiB)", ylabel="conv2 forward,\nAlexNet(256) (ms)", ylim=(0, None))
    return fig


def divided(figstyle, read):
    """u-cuDNN, Figs. 10 and 11: a bar for each GPU or network and each limit of a kernel's workspace."""
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2, sharey=True)
    speedups = [(f"{gpu_name(gpu)}, {option}", limit, x)
                for (network, limit, gpu, option, _), x in read("ucudnn-Fig10") if network == "AlexNet"]
    bars(panels[0], [(limit, setup, x) for setup, limit, x in speedups])
    panels[0].set(xlabel="AlexNet(256), workspace for each kernel", ylabel="speedup of convolutions")
    bars(panels[1], [(limit, network, x)
                     for (network, limit, *_), x in read("ucudnn-Fig11")])
    panels[1].set(xlabel=f"{read.gpu('ucudnn-Fig11')}, powers of two, workspace for each kernel")
    for axes in panels:
        axes.axhline(1, color="#999999", linewidth=0.8, zorder=1)
        plain(axes)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=2)
    return fig


def layer_memory(figstyle, read):
    names = {"undivided": "undivided, 512 MiB at most", "divided": "powers of two, 64 MiB at most"}
    rows = [(network, layer, names[how], mib)
            for (network, layer, how, *_), mib in read("ucudnn-Fig12")]
    fig, panels = figstyle.figure(7.0, 2.8, ncols=2)
    for axes, network in zip(panels, dict.fromkeys(row[0] for row in rows)):
        bars(axes, [row[1:] for row in rows if row[0] == network])
        axes.get_legend().remove()
        axes.set(xlabel=network, ylabel="data, parameters and\nworkspace (MiB)")
    above_all(fig, panels[0], 2)
    return fig


def totals(figstyle, read):
    rows = [(network, total, how, ms) for (network, total, how), ms in read("ucudnn-Fig13")
            if how != "variables"]
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2)
    for axes, network in zip(panels, dict.fromkeys(row[0] for row in rows)):
        bars(axes, [row[1:] for row in rows if row[0] == network])
        plain(axes)
        axes.get_legend().remove()
        axes.set(xlabel=f"{network}, workspace in total", ylabel="convolutions (ms)")
    above_all(fig, panels[0], 3)
    return fig


def segments(figstyle, read):
    rows = [(kernel, "segment", mib) for (_, _, kernel, _), mib in read("ucudnn-Fig14")]
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, rows)
    axes.get_legend().remove()
    axes.set(ylabel="segment (MiB)")
    return fig


def shares_of_layers(figstyle, read):
    """vDNN, Fig. 1: the whole allocation, and the percentage that the largest layer uses."""
    rows = read("vdnn-Fig1")
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(words[0], "network-wide allocation", mb) for words, mb in rows if words[-1] == "MB"])
    axes.set(ylabel="memory (MiB)")
    right = axes.twinx()
    percent = [x for words, x in rows if words[-1] == "%"]
    right.plot(range(len(percent)), percent, "kX", label="largest layer", markersize=6)
    right.set(ylabel="of the allocation (%)", ylim=(0, 100))
    above_both(axes, right, 2)
    return fig


def functions(figstyle, read):
    """vDNN, Fig. 4: the allocation by function, as stacks."""
    part = {}
    for (network, kind, _), mb in read("vdnn-Fig4"):
        part.setdefault(kind, {})[network] = mb
    networks = list(part["weights"])
    fig, axes = figstyle.figure(4.6, 2.6)
    names = {"weights": "weights", "features": "feature maps", "gradients": "gradient maps", "workspace": "workspace"}
    stacks(axes, networks, {name: [part[kind][network] for network in networks] for kind, name in names.items()})
    axes.set(ylabel="memory (MiB)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=4)
    return fig


def layer_use(figstyle, read):
    """vDNN, Fig. 5: maps and workspace of each layer, and weights on the right axis."""
    rows = [(layer, what, mb) for (_, layer, what, _), mb in read("vdnn-Fig5")]
    names = {"features": "feature maps", "workspace": "workspace"}
    fig, axes = figstyle.figure(4.6, 2.8)
    bars(axes, [(layer, names[what], mb) for layer, what, mb in rows if what in names])
    axes.set(ylabel="maps and workspace (MiB)")
    right = axes.twinx()
    weights = [mb for _, what, mb in rows if what == "weights"]
    right.plot(range(len(weights)), weights, "kX", label="weights", markersize=5)
    right.set(ylabel="weights (MiB)", ylim=(0, None))
    above_both(axes, right, 3)
    return fig


def reuse(figstyle, read):
    """vDNN, Fig. 6: time of each layer, and the time for which its input waits for backward."""
    rows = [(layer, what, ms) for (network, layer, what, _), ms in read("vdnn-Fig6") if network == "VGG-16(64)"]
    fig, axes = figstyle.figure(4.6, 2.8)
    bars(axes, [row for row in rows if row[1] != "reuse"])
    axes.set(ylabel="latency (ms)")
    right = axes.twinx()
    distance = [ms for _, what, ms in rows if what == "reuse"]
    right.plot(range(len(distance)), distance, "k.-", linewidth=0.8, label="reuse distance")
    mark_printed(right, [(0, ms) for (network, *_), ms in read.printed("vdnn-Fig6") if network == "VGG-16(64)"])
    right.set(ylabel="reuse distance (ms)", ylim=(0, None))
    above_both(axes, right, 3)
    return fig


def by_mode(figstyle, rows, ylabel):
    """A panel for each of six networks, a bar for each mode."""
    networks = list(dict.fromkeys(network for network, *_ in rows))
    fig, panels = figstyle.figure(7.0, 4.2, nrows=2, ncols=3)
    for axes, network in zip(panels.flat, networks):
        bars(axes, [row[1:] for row in rows if row[0] == network])
        axes.get_legend().remove()
        axes.set_title(network, fontsize=8)
    for axes in panels[:, 0]:
        axes.set(ylabel=ylabel)
    return fig, panels


def modes_memory(figstyle, read):
    """vDNN, Fig. 11."""
    names = {"max": "peak", "avg": "average"}
    fig, panels = by_mode(figstyle, [(network, mode, names[what], mb)
                                     for (network, mode, what, _), mb in read("vdnn-Fig11") if what in names],
                          "memory (MiB)")
    above_all(fig, panels[0, 0], 2)
    return fig


def offloaded(figstyle, read):
    """vDNN, Fig. 12."""
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(network, mode.removesuffix("(m)"), mb) for (network, mode, *_), mb in read("vdnn-Fig12")])
    axes.set(ylabel="offloaded (MiB)")
    return fig


def bandwidth(figstyle, read):
    """vDNN, Fig. 13: the least traffic over the time. Hardware counters would show more."""
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(layer, what, rate) for (_, layer, what, _), rate in read("vdnn-Fig13")])
    if read.device("vdnn-Fig13") in DRAM:
        axes.axhline(DRAM[read.device("vdnn-Fig13")], color="#999999", linewidth=0.8, linestyle=":")
    axes.set(ylabel="least traffic over time (GB/s)")
    return fig


def modes_speed(figstyle, read):
    """vDNN, Fig. 14, with a star over bars that do not fit in the GPU's memory."""
    value = {tuple(words): x for words, x in read("vdnn-Fig14")}
    rows = [(network, mode, "performance", x) for (network, mode, what), x in value.items()
            if what == "performance"]
    fig, panels = by_mode(figstyle, rows, "speed of feature extraction\nover that of the baseline")
    for axes in panels.flat:
        network = axes.get_title()
        own = [(mode, x) for n, mode, _, x in rows if n == network]
        for x, (mode, height) in enumerate(own):
            if not value[network, mode, "fits"]:
                axes.annotate("*", (x, height), ha="center", va="bottom")
        axes.set(ylim=(0, 1.2))
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.95))
    fig.text(0.5, 0.99, "* does not fit into the GPU's memory", ha="center", va="top")
    return fig


def very_deep(figstyle, read):
    """vDNN, Fig. 15: the memory of the baseline, and of dyn on the GPU and on the host."""
    value = {tuple(words): gb for words, gb in read("vdnn-Fig15")}
    networks = list(dict.fromkeys(words[0] for words in value))
    fig, axes = figstyle.figure(4.6, 2.6)
    at = range(len(networks))
    axes.bar([x - 0.2 for x in at], [value[n, "baseline", "GB"] for n in networks], 0.4, label="baseline", zorder=2)
    gpu = [value[n, "dyn", "GPU", "GB"] for n in networks]
    axes.bar([x + 0.2 for x in at], gpu, 0.4, label="dyn, GPU", zorder=2)
    axes.bar([x + 0.2 for x in at], [value[n, "dyn", "CPU", "GB"] for n in networks], 0.4, bottom=gpu,
             label="dyn, host", zorder=2)
    axes.set_xticks(at, networks)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="memory (GB)")
    above(axes)
    return fig


def missed(figstyle, read):
    """u-cuDNN, Fig. 1: the fastest algorithm, and the fastest that needs at least a byte less workspace."""
    rows = [(words[-2] if words[-1] == "best" else words[-3], "fastest" if words[-1] == "best" else "with one byte less", ms)
            for words, ms in read("ucudnn-Fig1")]
    fig, axes = figstyle.figure(4.6, 2.4)
    bars(axes, rows)
    plain(axes)
    axes.set(ylabel="forward, AlexNet(256) (ms)")
    return fig


def options(figstyle, read):
    """u-cuDNN, Fig. 9."""
    fig, axes = figstyle.figure(3.4, 2.4)
    bars(axes, [(words[2], "conv2", ms) for words, ms in read("ucudnn-Fig9")])
    axes.get_legend().remove()
    plain(axes)
    axes.set(ylabel="conv2 forward in 64 MiB,\nAlexNet(256) (ms)")
    return fig


def layer_weights(figstyle, read):
    """mmCNN, Fig. 6: weights of each layer of a chain. Layers without weights are left out."""
    rows = [(words[0], words[2], mb) for words, mb in read("mmcnn-Fig6") if mb > 0]
    networks = list(dict.fromkeys(network for network, *_ in rows))
    fig, panels = figstyle.figure(7.0, 2.2, ncols=len(networks), squeeze=False)
    for axes, network in zip(panels[0], networks):
        bars(axes, [(layer, "weights", mb) for name, layer, mb in rows if name == network])
        axes.get_legend().remove()
        axes.tick_params(axis="x", rotation=90, labelsize=6)
        axes.set(xlabel=f"layer, {network}")
    panels[0][0].set(ylabel="weights (MiB)")
    return fig


def slices(name):
    """mmCNN, Figs. 7 and 8: by limit, the parts of each layer and the parts of weights that its segment prefetches."""
    def drawing(figstyle, read):
        curves = {}
        for (_, _, layer, limit, _, what), count in read(name):
            curves.setdefault(what, {}).setdefault(limit, []).append((int(layer), count))
        fig, panels = figstyle.figure(7.0, 2.4, ncols=2)
        for axes, what, label in zip(panels, ["sn", "cn"], ["parts of the layer", "weight parts prefetched"]):
            for limit, points in curves[what].items():
                axes.plot(*zip(*points), label=f"{limit[1:]} MB", linewidth=1.2, drawstyle="steps-mid")
            axes.set(xlabel="layer", ylabel=label)
            axes.locator_params(integer=True)
        panels[0].set(yscale="log")
        above_all(fig, panels[0], len(curves["sn"]))
        return fig
    return drawing


def limited(figstyle, read):
    """mmCNN, Fig. 9: time and transfers by limit, and on an H200 the measured times."""
    curves = {}
    measured = measured_limits() if read.device("mmcnn-Fig9") == "h200" else []
    for (network, limit, _, what), value in read("mmcnn-Fig9"):
        curves.setdefault(what, {}).setdefault(network, []).append((limit[1:], value))
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2)
    for axes, what, label in zip(panels, ["ms", "transfers"], [f"inference, {read.gpu('mmcnn-Fig9')} (ms)", "transfers"]):
        for network, points in curves[what].items():
            axes.plot(*zip(*points), label=network, linewidth=1.2, marker="o", markersize=3)
        axes.set(xlabel="limit (MB)", ylabel=label)
    if measured:
        points = panels[0].plot(*zip(*measured), label="measured", linestyle="", marker="x", color="black", zorder=3)
        panels[0].legend(handles=points, loc="upper left")
    panels[0].set_ylim(bottom=0)
    panels[1].set(yscale="log")
    above_all(fig, panels[1], len(curves["transfers"]))
    return fig


def measured_limits():
    """Pairs of a limit in MB, as Fig. 9 names it, and the measured milliseconds of the policy on an H200."""
    with open(HERE.parent / "evidence" / "validation" / "mmcnn-h200.csv", newline="", encoding="utf-8") as stream:
        found = ((re.fullmatch(r"mmcnn:limit=(\d+)MiB", row["policy"]), row) for row in csv.DictReader(stream))
        return [(limit[1], float(row["measured_iteration_ms"])) for limit, row in found if limit]


def speed_by_batch(figstyle, read):
    """SuperNeurons, Fig. 14: the line of a framework ends if the next batch does not fit."""
    curves = {}
    for (workload, framework, _), speed in read("superneurons-Fig14"):
        network, batch = workload.rstrip(")").split("(")
        curves.setdefault(network, {}).setdefault(framework, []).append((int(batch), speed))
    fig, panels = figstyle.figure(7.0, 4.2, nrows=2, ncols=3)
    for axes, (network, lines) in zip(panels.flat, curves.items()):
        for (framework, points), marker in zip(lines.items(), figstyle.MARKERS):
            axes.plot(*zip(*points), label=framework, linewidth=1, marker=marker, markersize=3)
        batches = sorted({batch for points in lines.values() for batch, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, batches)
        axes.minorticks_off()
        axes.set(xlabel=f"batch, {network}", ylim=(0, None))
    for axes in panels[:, 0]:
        axes.set(ylabel="images per second")
    above_all(fig, panels[0, 0], 5)
    return fig


def pools(figstyle, read):
    """SuperNeurons, section 3.3: the speed with each pool for outputs of convolutions, over the speed with the host."""
    value = {tuple(words): speed for words, speed in read("superneurons-Pools")}
    fig, axes = figstyle.figure(4.6, 2.4)
    bars(axes, [(network, pool, speed / value[network, "host"]) for (network, pool), speed in value.items()])
    axes.axhline(1, color="#999999", linewidth=0.8, zorder=1)
    axes.set(ylabel="images per second,\nover those with the host")
    return fig


DRAWINGS = {
    "vdnn-Fig1": shares_of_layers,
    "vdnn-Fig4": functions,
    "vdnn-Fig5": layer_use,
    "vdnn-Fig6": reuse,
    "vdnn-Fig11": modes_memory,
    "vdnn-Fig12": offloaded,
    "vdnn-Fig13": bandwidth,
    "vdnn-Fig14": modes_speed,
    "vdnn-Fig15": very_deep,
    "vdnnpp-Fig5": peaks,
    "vdnnpp-Fig6": layers,
    "vdnnpp-Fig9": performance,
    "vdnnpp-Fig10": compression,
    "superneurons-Fig2": network_memory,
    "superneurons-Fig8": shares,
    "superneurons-Fig10": steps,
    "superneurons-Fig11": cache,
    "superneurons-Fig12": workspaces,
    "superneurons-Fig13": wider,
    "superneurons-Fig14": speed_by_batch,
    "superneurons-Pools": pools,
    "ucudnn-Fig1": missed,
    "ucudnn-Fig8": front,
    "ucudnn-Fig9": options,
    "ucudnn-Fig10": divided,
    "ucudnn-Fig12": layer_memory,
    "ucudnn-Fig13": totals,
    "ucudnn-Fig14": segments,
    "mmcnn-Fig6": layer_weights,
    "mmcnn-Fig7": slices("mmcnn-Fig7"),
    "mmcnn-Fig8": slices("mmcnn-Fig8"),
    "mmcnn-Fig9": limited,
}


NEEDS = {"ucudnn-Fig10": ["ucudnn-Fig11"]}  # other CSVs that the drawing reads


def draw(figstyle, directory, name):
    fig = DRAWINGS[name](figstyle, Sheets(directory))
    width = fig.get_size_inches()[0]
    fig.supxlabel("\n".join(textwrap.wrap(caption(Sheets(directory), name), int(18 * width))), fontsize=7,
                  color="#555555")
    problems = figstyle.problems(fig)
    figstyle.save(fig, directory / f"{name}.pdf", colours=64)
    return problems


def main():
    if len(sys.argv) != 2 or sys.argv[1] == "--help":
        print(__doc__.strip())
        return 2
    directory = pathlib.Path(sys.argv[1])
    try:
        import figstyle
    except ImportError as error:
        print(f"plot: {error}: install python3-matplotlib", file=sys.stderr)
        return 5
    code = 0
    for name in DRAWINGS:
        if not (directory / f"{name}.csv").exists():
            continue
        missing = [sheet for sheet in NEEDS.get(name, []) if not (directory / f"{sheet}.csv").exists()]
        if missing:
            print(f"plot: {name} is not drawn without {missing[0]}", file=sys.stderr)
            continue
        try:
            for problem in draw(figstyle, directory, name):
                print(f"plot: {name}: {problem}", file=sys.stderr)
                code = 3
        except (OSError, ValueError, LookupError, ArithmeticError) as error:
            print(f"plot: {name}: {type(error).__name__}: {error}", file=sys.stderr)
            code = 3
    return code


if __name__ == "__main__":
    sys.exit(main())

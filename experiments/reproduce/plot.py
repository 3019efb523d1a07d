#!/usr/bin/env python3
"""Figures of the papers, from what `spillway reproduce` computes.

usage: experiments/reproduce/plot.py [SPILLWAY [DIRECTORY]]

Runs SPILLWAY (default: build/release/bin/spillway) and writes vdnnpp-fig5, -fig6, -fig9 and -fig10 and
superneurons-fig2, -fig8 and -fig10 to -fig13, and ucudnn-fig8, -fig10 and -fig12 to -fig14 as PDF and PNG into DIRECTORY (default: figures/
beside this script).
"""

import csv
import io
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))


def items(spillway, name):
    """The words of each item's name after the figure's, and its value."""
    text = subprocess.run([spillway, "reproduce", name, "--format", "csv"], check=True,
                          capture_output=True, text=True).stdout
    return [(row["item"].split()[1:], float(row["ours"]))
            for row in csv.DictReader(io.StringIO(text)) if row["ours"]]


def above(axes):
    """The legend in one line over the axes, where it hides nothing."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=3)


def above_both(axes, right, ncol):
    """The legend of axes and of those that share their x axis, over them; the right one has no grid."""
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    handles = [h + r for h, r in zip(axes.get_legend_handles_labels(),
                                     right.get_legend_handles_labels())]
    axes.legend(*handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncol=ncol)


def above_all(fig, axes, ncol):
    """The legend of one of several axes in one line over the figure."""
    fig.get_layout_engine().set(rect=(0, 0, 1, 0.9))
    fig.legend(*axes.get_legend_handles_labels(), loc="upper center", ncol=ncol)


def grouped(axes, labels, series):
    """Bars side by side: `series` maps a name to one value per label."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        axes.bar([x + (i - (len(series) - 1) / 2) * width for x in range(len(labels))], values,
                 width, label=name, zorder=2)
    axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 8 else 30)
    axes.grid(axis="x", visible=False)
    above(axes)


def bars(axes, rows):
    """Rows of (label, series, value) in order, every series with every label."""
    labels = list(dict.fromkeys(label for label, _, _ in rows))
    series = dict.fromkeys(name for _, name, _ in rows)
    value = {(label, name): v for label, name, v in rows}
    grouped(axes, labels, {name: [value[label, name] for label in labels] for name in series})


def peaks(figstyle, spillway, path):
    fig, axes = figstyle.figure(4.6, 2.4)
    bars(axes, [(mode, phase, mb) for (_, mode, phase), mb in items(spillway, "Fig5")])
    axes.set(ylabel="peak, AlexNet(256) (MiB)", xlabel="what vDNN offloads (algorithms)")
    figstyle.save(fig, path)


def layers(figstyle, spillway, path):
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(layer, what, ms) for (_, layer, what), ms in items(spillway, "Fig6")])
    axes.set(ylabel="VGG-16(64), 1080 Ti model (ms)")
    figstyle.save(fig, path)


def performance(figstyle, spillway, path):
    rows = [(words[0], words[1], words[2], x) for words, x in items(spillway, "Fig9")]
    networks = list(dict.fromkeys(network for network, _, _, _ in rows))
    fig, panels = figstyle.figure(7.0, 2.4, ncols=len(networks), sharey=True)
    for axes, network in zip(panels, networks):
        bars(axes, [(mode, policy, x) for n, mode, policy, x in rows if n == network])
        axes.set(xlabel=network)
        axes.axhline(1, color="#999999", linewidth=0.8, zorder=1)
    panels[0].set(ylabel="times the iteration\nin unlimited memory")
    figstyle.save(fig, path)


def compression(figstyle, spillway, path):
    """Times by layer, and on an axis of its own the density and what is left of the bytes."""
    rows = [words[1:] + [value] for words, value in items(spillway, "vdnnpp-Fig10")
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
    figstyle.save(fig, path)


def steps(figstyle, spillway, path):
    curves = {}
    for (technique, _, step, unit), value in items(spillway, "superneurons-Fig10"):
        curves.setdefault((unit, technique), []).append((int(step), value))
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2)
    names = {"liveness": "liveness", "offload": "+ offloading", "recompute": "+ recomputation"}
    for axes, unit, label in zip(panels, ["MB", "tensors"], ["held (MiB)", "live tensors"]):
        for technique, name in names.items():
            axes.plot(*zip(*curves[unit, technique]), label=name, linewidth=1.2)
        axes.axvline(23.5, color="#999999", linewidth=0.8, linestyle=":")
        axes.set(xlabel="step (24 to 46: backward)", ylabel=label, ylim=(0, None))
    above(panels[0])
    figstyle.save(fig, path)


def network_memory(figstyle, spillway, path):
    rows = [(words[0], " ".join(words[2:-1]), value)
            for words, value in items(spillway, "superneurons-Fig2")]
    names = {"": "all tensors", "workspaces": "and workspaces"}
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, [(network, names[what], gb) for network, what, gb in rows if what in names])
    axes.set(ylabel="memory (GiB)")
    right = axes.twinx()
    speedups = [x for _, what, x in rows if what == "speedup"]
    right.plot(range(len(speedups)), speedups, "kX", label="speedup", markersize=7,
               markeredgecolor="white")
    right.set(ylabel="speedup by workspaces", ylim=(0, 1.2 * max(speedups)))
    above_both(axes, right, 3)
    figstyle.save(fig, path)


def shares(figstyle, spillway, path):
    """One stack for each network; what the paper does not name and what is too thin to see, as others."""
    share = {}
    for (network, kind, column, _), percent in items(spillway, "superneurons-Fig8"):
        share.setdefault(column, {}).setdefault(network, {})[kind] = percent
    shown = ["CONV", "POOL", "ACT", "BN", "LRN", "FORK"]
    fig, panels = figstyle.figure(7.0, 2.8, ncols=2)
    for axes, column, label in zip(panels, ["time", "memory"],
                                   ["of the kernels' time (%)", "of the counted tensors (%)"]):
        networks = list(share[column])
        bottom = [0.0] * len(networks)
        for kind in shown + ["others"]:
            values = [parts[kind] if kind in parts else
                      sum(v for k, v in parts.items() if k not in shown)
                      for parts in share[column].values()]
            axes.bar(networks, values, 0.7, bottom=bottom, label=kind, zorder=2)
            bottom = [b + v for b, v in zip(bottom, values)]
        axes.tick_params(axis="x", rotation=30)
        axes.grid(axis="x", visible=False)
        axes.set(ylabel=label, ylim=(0, 100))
    above_all(fig, panels[0], 7)
    figstyle.save(fig, path)


def cache(figstyle, spillway, path):
    rows = items(spillway, "superneurons-Fig11")
    fig, axes = figstyle.figure(4.6, 2.2)
    bars(axes, [(words[0], name, value) for words, without in rows
                for name, value in [("with the cache", 1.0), ("without", without)]])
    axes.set(ylabel="images per second,\nnormalised")
    figstyle.save(fig, path)


def workspaces(figstyle, spillway, path):
    panels_of, speed = {}, {}
    for words, value in items(spillway, "superneurons-Fig12"):
        setup = f"{words[0]}, {words[1]}"
        if words[2] == "img/s":
            speed[setup] = value
        else:
            panels_of.setdefault(setup, []).append((words[2].removeprefix("conv"), words[3], value))
    fig, panels = figstyle.figure(7.0, 2.4, ncols=len(panels_of), sharey=True)
    for axes, (setup, rows) in zip(panels, panels_of.items()):
        names = {"assigned": "given", "fastest": "for the fastest algorithm"}
        bars(axes, [(step, names[column], mb) for step, column, mb in rows])
        axes.tick_params(axis="x", rotation=0, labelsize=7)
        axes.get_legend().remove()
        axes.set(xlabel=f"{setup}: {speed[setup]:.0f} images/s")
    panels[0].set(ylabel="workspace (MiB)")
    above_all(fig, panels[0], 2)
    figstyle.save(fig, path)


def wider(figstyle, spillway, path):
    value = {tuple(words): v for words, v in items(spillway, "superneurons-Fig13")}
    networks = list(dict.fromkeys(network for network, _, _ in value))
    frameworks = list(dict.fromkeys(framework for _, framework, _ in value))
    fig, axes = figstyle.figure(7.0, 2.8)
    grouped(axes, networks, {framework: [value.get((network, framework, "GB"), 0)
                                         for network in networks] for framework in frameworks})
    axes.tick_params(axis="x", rotation=0)
    width = 0.8 / len(frameworks)
    for x, network in enumerate(networks):
        for i, framework in enumerate(frameworks):
            if framework == "Caffe" or (network, framework, "x") not in value:
                continue
            axes.annotate(f"{value[network, framework, 'x']:.1f}x",
                          (x + (i - 2) * width, value[network, framework, "GB"]), (0, 2),
                          textcoords="offset points", ha="center", fontsize=6)
    axes.set(ylabel="memory (GiB), and over Caffe's,\nat the batch that Table 5 prints")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=5)
    figstyle.save(fig, path)


def front(figstyle, spillway, path):
    points = [(int(limit.removesuffix("MiB")), ms)
              for (*_, limit), ms in items(spillway, "ucudnn-Fig8")]
    fig, axes = figstyle.figure(3.4, 2.4)
    axes.step(*zip(*points), where="post")
    axes.set(xlabel="workspace at most (MiB)", ylabel="conv2 forward, AlexNet(256) (ms)", ylim=(0, None))
    figstyle.save(fig, path)


def divided(figstyle, spillway, path):
    """Figures 10 and 11: a bar for each GPU or network, and limit of a kernel's workspace."""
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2, sharey=True)
    speedups = [(f"{gpu}, {option}", limit, x)
                for (network, limit, gpu, option, _), x in items(spillway, "ucudnn-Fig10")]
    bars(panels[0], [(limit, setup, x) for setup, limit, x in speedups if "V100" not in setup])
    panels[0].set(xlabel="AlexNet(256), workspace for each kernel", ylabel="speedup of convolutions")
    bars(panels[1], [(limit, network, x)
                     for (network, limit, *_), x in items(spillway, "ucudnn-Fig11")])
    panels[1].set(xlabel="P100, powers of two, workspace for each kernel")
    for axes in panels:
        axes.axhline(1, color="#999999", linewidth=0.8, zorder=1)
        axes.tick_params(axis="x", rotation=0)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=2)
    figstyle.save(fig, path)


def layer_memory(figstyle, spillway, path):
    names = {"undivided": "undivided, 512 MiB at most", "divided": "powers of two, 64 MiB at most"}
    rows = [(network, layer, names[how], mib)
            for (network, layer, how, *_), mib in items(spillway, "ucudnn-Fig12")]
    fig, panels = figstyle.figure(7.0, 2.8, ncols=2)
    for axes, network in zip(panels, dict.fromkeys(row[0] for row in rows)):
        bars(axes, [row[1:] for row in rows if row[0] == network])
        axes.get_legend().remove()
        axes.set(xlabel=network, ylabel="data, parameters and\nworkspace (MiB)")
    above_all(fig, panels[0], 2)
    figstyle.save(fig, path)


def totals(figstyle, spillway, path):
    rows = [(network, total, how, ms) for (network, total, how), ms in items(spillway, "ucudnn-Fig13")
            if how != "variables"]
    fig, panels = figstyle.figure(7.0, 2.4, ncols=2)
    for axes, network in zip(panels, dict.fromkeys(row[0] for row in rows)):
        bars(axes, [row[1:] for row in rows if row[0] == network])
        axes.tick_params(axis="x", rotation=0)
        axes.get_legend().remove()
        axes.set(xlabel=f"{network}, workspace in total", ylabel="convolutions, P100 model (ms)")
    above_all(fig, panels[0], 3)
    figstyle.save(fig, path)


def segments(figstyle, spillway, path):
    rows = [(kernel, "segment", mib) for (_, _, kernel, _), mib in items(spillway, "ucudnn-Fig14")]
    fig, axes = figstyle.figure(4.6, 2.6)
    bars(axes, rows)
    axes.get_legend().remove()
    axes.set(ylabel="segment of 120 MiB (MiB)")
    figstyle.save(fig, path)


def main():
    if len(sys.argv) > 3 or "--help" in sys.argv:
        print(__doc__.strip())
        return 2
    spillway = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin/spillway"
    directory = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else HERE / "figures")
    try:
        import figstyle
    except ImportError as error:
        print(f"plot: {error}: install python3-matplotlib", file=sys.stderr)
        return 5
    directory.mkdir(parents=True, exist_ok=True)
    try:
        peaks(figstyle, spillway, directory / "vdnnpp-fig5.pdf")
        layers(figstyle, spillway, directory / "vdnnpp-fig6.pdf")
        performance(figstyle, spillway, directory / "vdnnpp-fig9.pdf")
        compression(figstyle, spillway, directory / "vdnnpp-fig10.pdf")
        network_memory(figstyle, spillway, directory / "superneurons-fig2.pdf")
        shares(figstyle, spillway, directory / "superneurons-fig8.pdf")
        steps(figstyle, spillway, directory / "superneurons-fig10.pdf")
        cache(figstyle, spillway, directory / "superneurons-fig11.pdf")
        workspaces(figstyle, spillway, directory / "superneurons-fig12.pdf")
        wider(figstyle, spillway, directory / "superneurons-fig13.pdf")
        front(figstyle, spillway, directory / "ucudnn-fig8.pdf")
        divided(figstyle, spillway, directory / "ucudnn-fig10.pdf")
        layer_memory(figstyle, spillway, directory / "ucudnn-fig12.pdf")
        totals(figstyle, spillway, directory / "ucudnn-fig13.pdf")
        segments(figstyle, spillway, directory / "ucudnn-fig14.pdf")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

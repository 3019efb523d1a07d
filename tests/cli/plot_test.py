#!/usr/bin/env python3
"""Tests scripts/plot.py on drawn sweeps: what can be told apart, where text stands, and which requests it refuses.

usage: plot_test.py PATH_OF_SPILLWAY
"""

import argparse
import csv
import itertools
import json
import random
import subprocess
import sys

from harness import CommandTest, DirectoryTest, ROOT, main

sys.path.insert(0, str(ROOT / "scripts"))
try:
    import figstyle
    import plot
except ImportError as error:
    print(f"skipped: {sys.executable} cannot draw: {error}", file=sys.stderr)
    sys.exit(77)

SIZES = {"network": 5, "batch": 3, "device": 2, "memory_request": 4, "policy": 20}


def drawn_sweep(chance, **counts):
    """Returns the rows of a sweep over the given number of networks, batches, devices, memories and policies.

    Some cells are missing, some do not fit and some failed.
    """
    names = {"network": [f"resnet({n},4,6,3)" for n in range(counts["network"])],
             "batch": [2 ** (n + 3) for n in range(counts["batch"])],
             "device": ["h200", "a100"][:counts["device"]],
             "memory_request": [f"{20 * n + 10}%" for n in range(counts["memory_request"])],
             "policy": [f"vdnn-all:algo={n}" for n in range(counts["policy"])]}
    holes = chance.choice([0, 0.3])
    rows = []
    for cell in itertools.product(*names.values()):
        row = dict(zip(names, cell))
        size = (1 + len(row["network"])) * row["batch"] * 2**26
        row["memory_bytes"] = int(size * float(row["memory_request"][:-1]) / 100)
        row["workload"] = f"{row['network']}:{row['batch']}"
        row["status"] = chance.choice(["ok", "ok", "ok", "oom", "failed"])
        row["iteration_ms"] = chance.uniform(1, 500) if row["status"] == "ok" else None
        row["peak_reserved_bytes"] = row["memory_bytes"] if row["status"] == "ok" else None
        if chance.random() >= holes:
            rows.append(row)
    return rows


def arguments(*args):
    sys.argv = ["plot.py", "none.sqlite", *args, "-o", "none.png"]
    return plot.arguments()


def figure_of(rows, *args):
    """Returns the figure that the script draws of the rows. Raises `plot.BadArgument` where it refuses."""
    parsed = arguments(*args)
    columns = list(rows[0])
    rows = plot.select(rows, columns, parsed.where)
    plot.check(parsed, rows, columns)
    return plot.draw(rows, parsed, columns)


def colour_and_marker(line):
    return line.get_color(), line.get_marker()


def overlaps(fig):
    """Returns the pairs of texts that stand on each other. Slanted texts do where their lines are closer than one line."""
    texts = [text for text in fig.findobj(figstyle.plt.Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text, text.get_window_extent()) for text in texts]
    found = []
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        if one.get_rotation() == other.get_rotation() == 30:
            line = one.get_fontsize() * fig.dpi / 72
            meet = abs(a.x1 - b.x1) / 2 < line and abs(a.y1 - b.y1) < line  # sin 30 degrees is 1/2
        else:
            meet = min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
        if meet:
            found.append((one.get_text(), other.get_text()))
    return found


class DrawnSweeps(CommandTest):
    def check(self, fig):
        """No two lines of one axes look alike, no text overlaps another, and no axes are empty."""
        fig.canvas.draw()
        self.assertEqual(overlaps(fig), [])
        for axes in fig.axes:
            self.assertTrue(axes.lines or axes.patches)
            looks = [colour_and_marker(line) for line in axes.lines if line.get_marker() not in ("x", ".", "None", "")]
            self.assertEqual(len(looks), len(set(looks)))
            self.assertLessEqual(len(looks), 8)

    def test_all_that_is_drawn_can_be_told_apart(self):
        chance = random.Random(49)
        drawn = refused = 0
        for _ in range(25):
            rows = drawn_sweep(chance, **{name: chance.randint(1, most) for name, most in SIZES.items()})
            kind = chance.choice([("--x", "batch"), ("--x", "memory_request"), ("--x", "workload"), ("--x", "policy"),
                                  ("--x", "network"), ("--x", "memory_bytes"), ("--kind", "frontier")])
            args = [*kind, "--y", chance.choice(["iteration_ms", "peak_reserved_bytes"])]
            with self.subTest(args, rows=len(rows)):
                try:
                    if not rows or all(row["iteration_ms"] is None for row in rows):
                        continue
                    fig = figure_of(rows, *args)
                except plot.BadArgument as refusal:
                    refused += 1
                    self.assertRegex(str(refusal), r"choose with --where|tell them apart")
                    continue
                self.check(fig)
                plot_size = [tuple(axes.get_position().height * fig.get_size_inches()[1:]) for axes in fig.axes]
                self.assertTrue(all(abs(height[0] - 2.2) < 0.01 for height in plot_size), plot_size)
                figstyle.plt.close(fig)
                drawn += 1
        self.assertGreater(drawn, 8)
        self.assertGreater(refused, 2)

    def test_no_line_runs_through_several_networks(self):
        for x in ("batch", "memory_request", "memory_bytes"):
            rows = drawn_sweep(random.Random(1), network=3, batch=3, device=1, memory_request=2, policy=2)
            by = arguments("--x", x, "--y", "iteration_ms")
            plot.choose_facets(rows, list(rows[0]), by)
            for _, group, _ in plot.facets_of(rows, by, {}, {}):
                for line in plot.lines(group, by, {}).values():
                    self.assertEqual(len({(row["network"], row["policy"]) for row in line.values()}), 1)

    def test_a_cell_that_does_not_fit_is_a_gap_with_a_cross(self):
        rows = drawn_sweep(random.Random(2), network=1, batch=3, device=1, memory_request=1, policy=1)
        rows = [{**row, "status": "ok", "iteration_ms": value} for row, value in zip(rows, (1.0, None, 3.0))]
        fig = figure_of(rows, "--x", "batch", "--y", "iteration_ms")
        line, crosses = fig.axes[0].lines
        self.assertEqual([str(value) for value in line.get_ydata()], ["1.0", "nan", "3.0"])
        self.assertEqual(list(crosses.get_xdata()), [16])
        self.assertEqual([text.get_text() for text in fig.axes[0].get_legend().get_texts()][-1], "does not fit")
        fig = figure_of([{**row, "status": "failed"} for row in rows], "--x", "batch", "--y", "iteration_ms")
        self.assertRegex(fig.axes[0].get_legend().get_texts()[-1].get_text(), "failed")

    def test_what_depends_on_the_facet_alone_belongs_to_it(self):
        rows = drawn_sweep(random.Random(4), network=2, batch=2, device=1, memory_request=2, policy=2)
        rows = [row for row in rows if (row["batch"] == 8) == (row["network"] == "resnet(0,4,6,3)")]
        by = arguments("--x", "policy", "--y", "iteration_ms", "--facet", "network")
        plot.choose_facets(rows, list(rows[0]), by)
        self.assertEqual((by.facet, by.by), (["network", "batch"], ["memory_request"]))

    def test_the_frontier_is_that_of_all_pairs(self):
        chance = random.Random(3)
        args = argparse.Namespace(x="memory_bytes", y="iteration_ms")
        for _ in range(200):
            rows = [{"memory_bytes": chance.randint(1, 6), "iteration_ms": chance.choice([None, *range(1, 9)])}
                    for _ in range(chance.randint(1, 12))]
            there = [row for row in rows if row["iteration_ms"] is not None]
            unbeaten = {tuple(row.values()) for row in there if not any(
                (other["memory_bytes"] <= row["memory_bytes"] and other["iteration_ms"] < row["iteration_ms"]) or
                (other["memory_bytes"] < row["memory_bytes"] and other["iteration_ms"] <= row["iteration_ms"])
                for other in there)}
            self.assertEqual({tuple(row.values()) for row in plot.frontier(rows, args)}, unbeaten)

    def test_facets_have_one_unit_one_order_and_one_scale_for_each_work(self):
        rows = [{"network": network, "batch": 8, "device": device, "memory_bytes": gib * 2**30 // 4, "policy": "p",
                 "iteration_ms": time / gib}
                for network, devices in (("a", (("small", 900), ("large", 90))), ("b", (("large", 5), ("small", 50))))
                for device, time in devices for gib in ((1, 2, 3) if device == "small" else (8, 16))]
        fig = figure_of(rows, "--kind", "frontier")
        self.check(fig)
        self.assertEqual([axes.get_title() for axes in fig.axes], ["a, small", "a, large", "b, small", "b, large"])
        self.assertEqual({axes.get_xlabel() for axes in fig.axes}, {"memory (GiB)"})
        limits = [(axes.get_xlim(), axes.get_ylim()) for axes in fig.axes]
        self.assertEqual((limits[0], limits[2]), (limits[1], limits[3]))
        self.assertNotEqual(limits[0][1], limits[2][1])
        many = [{**row, "network": f"n{i}"} for i in range(13) for row in rows[:5]]
        with self.assertRaisesRegex(plot.BadArgument, "26 facets in one picture, of at most 24: choose with --where network=n0,n1,n2"):
            figure_of(many, "--kind", "frontier")

    def test_units_follow_from_the_names_of_the_columns(self):
        for column in json.loads(self.ok("list", "columns", "--format", "json"))["rows"]:
            label = plot.axis_name(column["name"], {}, "GiB")
            if column["unit"] == "B":
                self.assertTrue(label.endswith(" (GiB)"), label)
            elif column["unit"] == "ms":
                self.assertTrue(label.endswith(" (ms)"), label)
        self.assertEqual(plot.axis_name("slowdown", {}), "slowdown (x)")


class PlotTest(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.store = self.directory / "r.sqlite"

    def plot(self, *args, output="fig.svg", python=(sys.executable,)):
        return subprocess.run([*python, ROOT / "scripts" / "plot.py", *map(str, args), "-o", self.directory / output],
                              capture_output=True, text=True, check=False)

    def sweep(self):
        self.ok("sweep", "{alexnet,resnet(1,1,1,1)}:{4,8}", "--policy", "liveness:algo={memory,performance}",
                "--memory", "30%,80%", "--device", "a100", "--quiet", "-o", self.store)

    def test_a_figure_of_a_store_is_that_of_its_export(self):
        self.sweep()
        self.ok("sweep", "export", self.store, "-o", self.directory / "r.csv")
        axes = ("--x", "batch", "--y", "iteration_ms")
        for ending in ("pdf", "png", "svg"):
            for source in ("r.sqlite", "r.csv"):
                result = self.plot(self.directory / source, *axes, output=f"{source}.{ending}")
                self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual((self.directory / f"r.sqlite.{ending}").read_bytes(),
                             (self.directory / f"r.csv.{ending}").read_bytes())
        pictures = {path.name for path in self.directory.iterdir() if path.suffix in plot.ENDINGS}
        self.assertEqual(len(pictures), 6)  # and none that was not named

    def test_labels_order_and_title_are_in_the_picture(self):
        self.sweep()
        result = self.plot(self.store, "--x", "workload", "--y", "slowdown", "--where", "memory_request=80%",
                           "--label", "slowdown=times slower", "--label", "liveness:algo=memory=small kernels",
                           "--title", "Two ways to choose kernels", "--order", "alexnet:8", "--size", "2x1.5")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        picture = (self.directory / "fig.svg").read_text("utf-8")
        for text in ("times slower", "small kernels", "Two ways to choose kernels"):
            self.assertTrue(f"<!-- {text} -->" in picture, text)
        self.assertLess(picture.index("<!-- alexnet:8 -->"), picture.index("<!-- alexnet:4 -->"))

    def lines_of(self, store, *args):
        rows, columns = plot.read(store)
        parsed = arguments(*args)
        rows = plot.select(rows, columns, parsed.where)
        plot.choose_facets(rows, columns, parsed)
        return {(title, name) for title, group, _ in plot.facets_of(rows, parsed, {}, {})
                for name in plot.lines(group, parsed, {})}

    def test_options_of_workloads_are_told_apart(self):
        self.ok("sweep", "gpt2@128:2,accumulate={1,2},loss-chunks={1,4},clip-norm={1,2},precision={fp32,bf16}", "--memory",
                "100%,120%", "--policy", "liveness", "-o", self.store)
        axes = ("--x", "memory_request", "--y", "iteration_ms")
        self.assertEqual(len(self.lines_of(self.store, *axes)), 16)
        self.assertEqual(self.lines_of(self.store, *axes, "--where", "precision=bf16", "--where", "clip_norm=1", "--where",
                                       "accumulate=2"), {("", "loss chunks 1"), ("", "loss chunks 4")})

    def test_recordings_of_one_name_are_told_apart_by_their_files(self):
        trace = ROOT / "traces/recorded/pytorch/gpt2-h200.json.zst"
        for name in ("short", "long"):
            (self.directory / f"{name}.json.zst").write_bytes(trace.read_bytes())
        self.ok("sweep", self.directory / "short.json.zst", self.directory / "long.json.zst", "--memory", "60%,80%", "--policy",
                "capuchin", "-o", self.store)
        self.assertEqual(self.lines_of(self.store, "--x", "memory_request", "--y", "iteration_ms"),
                         {("", "short.json.zst"), ("", "long.json.zst")})

    def test_what_a_batch_counts(self):
        for networks, kind in ((["gpt2", "llama(4096,4,32,8,14336,32000)"], "sequences"), (["vgg16", "vit"], "images"),
                               (["gpt2", "vgg16"], "samples")):
            rows = [{"network": name, "batch": batch, "policy": "dtr", "iteration_ms": 1.0 * batch}
                    for name in networks for batch in (1, 2)]
            fig = figure_of(rows, "--x", "batch", "--y", "iteration_ms")
            self.assertIn(f"batch ({kind})", {axes.get_xlabel() for axes in fig.axes})

    def test_names_with_commas(self):
        rows = drawn_sweep(random.Random(3), network=3, batch=2, device=1, memory_request=2, policy=2)
        names = ["resnet(2,4,6,3)", "resnet(0,4,6,3)"]
        some = plot.select(rows, list(rows[0]), ["network=" + ",".join(names)])
        self.assertEqual({row["network"] for row in some}, set(names))
        self.assertEqual(arguments("--order", ",".join(names)).order, names)

    def test_what_cannot_be_drawn(self):
        self.sweep()
        axes = ("--x", "batch", "--y", "slowdown")
        for code, text, args in (
                (2, "did you mean 'batch'?", ("--x", "btch", "--y", "iteration_ms")),
                (2, "did you mean 'network'?", (*axes, "--facet", "netwrk")),
                (2, "several cells of 'liveness:algo=memory' at batch = 4", (*axes, "--by", "policy")),
                (2, "no cell has '3' (valid: 4, 8)", (*axes, "--where", "batch=3")),
                (2, "expected COLUMN=VALUE", (*axes, "--where", "batch")),
                (2, "expected WIDTHxHEIGHT", (*axes, "--size", "wide")),
                (2, "expected NAME=TEXT", (*axes, "--label", "batch")),
                (2, "--x and --y name the columns", ("--x", "batch")),
                (2, "--y policy: is not a number", ("--x", "batch", "--y", "policy"))):
            with self.subTest(args):
                result = self.plot(self.store, *args)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(text, result.stderr)
                self.assertFalse((self.directory / "fig.svg").exists())
        result = self.plot(self.store, *axes, output="fig.gif")
        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown ending '.gif' (valid: .pdf, .png, .svg)", result.stderr)
        result = self.plot(self.directory / "none.sqlite", *axes)
        self.assertEqual(result.returncode, 3)
        self.assertIn("no such store", result.stderr)

    def test_a_missing_matplotlib_is_one_line(self):
        (self.directory / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')\n", "utf-8")
        with open(self.directory / "r.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("batch", "slowdown"), (4, 1.5)])
        result = self.plot(self.directory / "r.csv", "--x", "batch", "--y", "slowdown",
                           python=("env", f"PYTHONPATH={self.directory}", sys.executable))
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn(f"{sys.executable} cannot import matplotlib", result.stderr)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Tests reports in Chromium: on wide and narrow pages, light, dark and on paper, every text is whole and legible.

usage: report_browser_test.py PATH_OF_SPILLWAY

The reports show real runs and drawn results. Nothing compares pixels. Exits with 77 if Chromium or Selenium is missing.
"""

import json
import pathlib
import random
import re
import shutil
import sys
import tempfile

from harness import CommandTest, ROOT, main

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if None in (webdriver, CHROMIUM, DRIVER):
    print("SKIPPED report_browser_test: it needs chromium, chromium-driver and python3-selenium", file=sys.stderr)
    sys.exit(77)

# Returns the problems of the layout, in words. A line of text must lie within the page and within all that clips it,
# and must not lie on another one. Two texts may share the two pixels around their letters.
LAYOUT = """
const problems = [], lines = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || parent.closest("script, option")) continue;
  if (!parent.checkVisibility({ visibilityProperty: true })) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    if (box.width < 1) continue;
    const text = node.data.trim().slice(0, 60), scrolls = parent.closest(".long, .scroll:has(table:not(.few))");
    if (!scrolls && (box.left < 0 || box.right > innerWidth)) problems.push(`outside the page: ${text}`);
    for (let clip = parent; clip !== document.body; clip = clip.parentElement) {
      const style = getComputedStyle(clip), outer = clip.getBoundingClientRect();
      const beside = box.left < outer.left - 1 || box.right > outer.right + 1;
      const below = box.top < outer.top - 3 || box.bottom > outer.bottom + 3;
      if (style.overflowX === "hidden" && beside) problems.push(`cut: ${text}`);
      if (style.overflowY === "hidden" && below) problems.push(`cut below: ${text}`);
    }
    if (!scrolls) lines.push({ text, box, node });
  }
}
lines.sort((a, b) => a.box.top - b.box.top);
lines.forEach((a, i) => {
  for (let k = i + 1; k < lines.length && lines[k].box.top < a.box.bottom - 2; ++k) {
    const b = lines[k];
    if (a.node === b.node || a.box.left >= b.box.right - 2 || b.box.left >= a.box.right - 2) continue;
    problems.push(`overlap: ${a.text} and ${b.text}`);
  }
});
if (document.documentElement.scrollWidth > innerWidth) problems.push("the page scrolls sideways");
for (const box of document.querySelectorAll(".scroll:not(.long):has(table.few)")) {
  if (box.scrollWidth > box.clientWidth) problems.push(`a table of ${box.scrollWidth} pixels in ${box.clientWidth}`);
}
for (const plot of document.querySelectorAll(".plot")) {
  const canvas = plot.querySelector("canvas"), name = plot.getAttribute("aria-label");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let coloured = false;
  for (let i = 0; i < data.length && !coloured; i += 4) {
    const [red, green, blue, opaque] = data.subarray(i, i + 4);
    coloured = opaque > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
  }
  if (!coloured) problems.push(`nothing is drawn in ${name}`);
  for (const axis of ["x", "y"]) {
    if (plot.querySelectorAll(`.dygraph-axis-label-${axis}`).length < 2) problems.push(`no ticks at ${axis} of ${name}`);
  }
  if (!/\\((ms|GiB|images|blocks)\\)$/.test(plot.querySelector(".dygraph-xlabel").textContent)) problems.push(`no unit in ${name}`);
}
return problems;
"""

# Returns the colour and marker of each series, and the titles of the axes, for each key.
KEYS = """
const all = (place, selector, get) => [...place.querySelectorAll(selector)].map(get);
const look = (path) => [path.getAttribute("fill"), path.getAttribute("d")];
return all(document, ".key:has(.series)", (key) => ({
  series: all(key, ".series", (entry) => [entry.textContent, ...look(entry.querySelector("path"))]),
  axes: all(key.nextElementSibling, "figure:has(.plot)", (figure) => figure.querySelector("figcaption")?.textContent ?? ""),
}));
"""


def four_digits(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}" if value == int(value) else f"{value:#.4g}"


def drawn_row(chance, network, batch, memory, policy, failing):
    """Returns a result, which does not fit or has failed with the chance `failing`."""
    capacity = (memory + batch) * 10**8
    row = {"workload": f"{network}:{batch}", "network": network, "batch": batch, "device": "h200", "memory_bytes": capacity,
           "memory_request": f"{memory}%", "policy": policy, "allocator": "best-fit", "status": "ok", "preset": "torch",
           "mode": "training", "iteration_ms": None, "slowdown": None, "peak_allocated_bytes": None, "reason": None}
    if chance.random() < failing:
        row["status"] = chance.choice(["oom", "oom", "failed"])
        row["reason"] = f"out of device memory at step {batch} (conv{memory}.fwd): it needs 784 MiB. Largest holders: many"
        if row["status"] == "oom":
            row["missing_bytes"] = chance.randrange(1, 2**34)
        return row
    row["iteration_ms"] = chance.choice([chance.uniform(1, 5000), 100.0])
    return {**row, "slowdown": row["iteration_ms"] / 50, "peak_allocated_bytes": chance.randrange(capacity)}


def drawn_sweep(chance, networks, batches, memories, policies, failing=0.3, holes=0.1):
    """Returns the rows of a sweep, some of them missing."""
    names = [f"policy-{n}:algo={'performance' if n % 3 else 'memory'}" for n in range(policies)]
    return [drawn_row(chance, f"resnet({n + 1},4,6,3)", 2**(b + 3), 20 * m + 10, policy, failing) for n in range(networks)
            for b in range(batches) for m in range(memories) for policy in names if chance.random() >= holes]


class ReportBrowserTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.browser = webdriver.Chrome(service=Service(DRIVER), options=options)
        cls.addClassCleanup(cls.browser.quit)
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)

    def js(self, script, *args):
        return self.browser.execute_script(script, *args)

    def all(self, selector, get):
        """Returns a property of all elements that match."""
        return self.js(f"return [...document.querySelectorAll(arguments[0])].map((each) => each.{get})", selector)

    def text(self, selector):
        return self.all(selector, "textContent")[0]

    def show(self, page, width=1280, theme="light", media=""):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "media": media, "features": [{"name": "prefers-color-scheme", "value": theme}]})
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        self.browser.get(page.as_uri())
        self.assertIsNotNone(self.js("return document.documentElement.dataset.ready"))

    def report(self, *args, code=0):
        page = self.directory / "report.html"
        self.ok("report", *args, "-o", page, "--quiet", code=code)
        return page

    def report_of(self, rows):
        results = self.directory / "drawn.json"
        results.write_text(json.dumps({"schema": "spillway.results/v1", "rows": rows}), encoding="utf-8")
        return self.report(results)

    def check(self, page, ways=((1280, "light"), (480, "dark"))):
        """Checks the layout of a page on screens and on paper, and its links."""
        for width, theme in ways:
            with self.subTest(width=width, theme=theme):
                self.show(page, width, theme)
                self.assertEqual(self.js(LAYOUT), [])
                self.assertEqual(self.browser.get_log("browser"), [])
        self.assertEqual([href for href in self.all("a", "getAttribute('href')")
                          if self.js("return document.querySelector(arguments[0]) === null", href)], [])
        with self.subTest("paper"):
            self.show(page, 700, "dark", media="print")
            self.js("dispatchEvent(new Event('beforeprint'))")
            self.assertEqual(self.js(LAYOUT), [])
            self.assertNotIn(True, self.all("button:not(th *), select, input", "checkVisibility()"))

    def check_series(self, rows):
        """Checks that no two series of one axis look alike, and that each policy that fits is drawn."""
        drawn = set()
        for key in self.js(KEYS):
            self.assertLessEqual(len(key["series"]), 8)
            self.assertEqual(len({fill for _, fill, _ in key["series"]}), len(key["series"]))
            self.assertEqual(len({path for _, _, path in key["series"]}), len(key["series"]))
            drawn |= {f"{name}, {title}" for name, *_ in key["series"] for title in key["axes"]}
        if drawn:
            for row in rows:
                self.assertTrue(row["status"] != "ok" or any(row["policy"] in name for name in drawn), row["policy"])
        return drawn

    def test_a_comparison_with_timelines(self):
        policies = "network-wide:algo=memory,vdnn-all:algo=memory,mxnet,vdnn-dyn,as-recorded"
        page = self.report("alexnet:64", "--memory", "80%", "--policy", policies, code=4)
        self.check(page, ((1280, "light"), (480, "dark"), (480, "light"), (1280, "dark")))
        self.assertIn("as-recorded failed", self.text(".summary"))
        self.assertIn("runs traces of recorded programs only", self.text("tr.failed .reason"))
        self.show(page)
        self.check_timelines()

    def check_timelines(self):
        def views():
            return self.js("return timelines.map((timeline) => [timeline.view.from, timeline.view.span])")

        def press(keys):
            # What is pressed in one frame is drawn in the next.
            self.js("return document.activeElement").send_keys(keys)
            self.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

        count = self.js("return timelines.length")
        self.assertGreater(count, 2)
        self.assertEqual(len({tuple(view) for view in views()}), 1, "one time scale for all")
        waiting = self.js("return timelines.findIndex((timeline) => timeline.data.stalls.count > 1)")
        for _ in range(200):
            press(Keys.TAB)
            if self.js("return document.activeElement === timelines[arguments[0]].box", waiting):
                break
        else:
            self.fail("Tab does not reach the timeline")
        stalls = self.js("return timelines[arguments[0]].data.stalls.count", waiting)
        said = set()
        for _ in range(stalls):
            press("n")
            said.add(self.js("return timelines[arguments[0]].said.textContent", waiting))
        self.assertEqual(len(said), stalls)
        self.assertTrue(all("It waited" in text for text in said), said)

        def place():  # of what is chosen, as a share of the part in sight
            return self.js("const t = timelines[arguments[0]], { start, length } = t.span(t.chosen);"
                           "return (start + length / 2 - t.view.from) / t.view.span", waiting)
        before = place()
        press("++++")
        self.assertAlmostEqual(place(), before, delta=0.01)
        self.assertEqual(len({tuple(view) for view in views()}), 1)
        self.js("timelines[0].scale.querySelector('input').click()")
        press("")
        self.assertAlmostEqual(views()[0][1], self.js("return timelines[0].data.iteration_ms"), delta=1e-6)
        self.assertLess(views()[1][1], views()[0][1])
        phases = self.js("return timelines[0].data.phases.map(({ name }) => name)")
        self.assertEqual(phases[:2], ["forward", "backward"])

    def test_a_single_run_and_a_failed_one(self):
        self.check(self.report("alexnet:16"))
        self.check(self.report("alexnet:8", "--policy", "as-recorded", code=4))
        self.assertIn("as-recorded failed.", self.text(".summary"))
        self.check(self.report("alexnet:8", "--policy", "liveness", "--memory", "1MiB", code=1))
        self.assertRegex(self.text(".summary"), "^liveness (misses by at least|does not fit)")

    def test_drawn_comparisons(self):
        for seed, policies in enumerate((1, 2, 9, 20)):
            rows = drawn_sweep(random.Random(seed), 1, 1, 1, policies, failing=(0, 0.4)[seed % 2], holes=0)
            with self.subTest(policies=policies):
                self.check(self.report_of(rows))
                self.assertEqual(len(self.all("tbody tr", "className")), policies)
                self.assertEqual(len(self.all("td.reason", "className")), sum(row["status"] != "ok" for row in rows))

    def test_drawn_sweeps(self):
        for seed, size in enumerate(((1, 1, 3, 5), (1, 3, 2, 20), (5, 2, 3, 9), (3, 4, 1, 12))):
            rows = drawn_sweep(random.Random(seed), *size)
            with self.subTest(size=size):
                self.check(self.report_of(rows), ways=((1280, "dark"), (480, "light")))
                self.assertTrue(self.check_series(rows))
                self.show(self.directory / "report.html", 480)
                seen = dict(zip(self.all("th", "textContent"), self.all("th", "checkVisibility()")))
                self.assertTrue(seen["policy"] and seen["status"] and seen["time ms"], seen)
                for event in ("touchstart", "touchmove", "touchend", "mousemove", "mousedown", "mouseup", "dblclick"):
                    self.all(".plot canvas", f"dispatchEvent(new MouseEvent('{event}', {{ bubbles: true }}))")
                self.assertEqual(self.browser.get_log("browser"), [])

    def test_nothing_of_a_sweep_fits(self):
        rows = drawn_sweep(random.Random(1), 2, 2, 2, 3, failing=1)
        self.check(self.report_of(rows))
        self.assertIn("Nothing fits in any of 8 combinations", self.text(".summary"))

    def test_the_sentence_agrees_with_the_rows(self):
        """Compares the sentence of drawn comparisons with one that is found here in another way."""
        chance = random.Random(7)
        for _ in range(60):
            rows = drawn_sweep(chance, 1, 1, 1, chance.choice([1, 2, 3, 6]), failing=chance.choice([0, 0.5, 1]), holes=0)
            said = self.sentence(rows)
            fast = [row for row in rows if row["status"] == "ok"]
            if fast:
                best = min(row["iteration_ms"] for row in fast)
                winners = [row["policy"] for row in fast if four_digits(row["iteration_ms"]) == four_digits(best)]
                names = f"{len(winners)} policies" if len(winners) > 3 else " and ".join(", ".join(winners).rsplit(", ", 1))
                self.assertRegex(said, f"^(Only )?{names} ")
                self.assertIn(f"{four_digits(best)} ms per iteration", said)
                slower = sorted(row["iteration_ms"] for row in fast if row["policy"] not in winners)
                if slower:
                    self.assertIn(f"{four_digits(100 * (1 - best / slower[0]))} % less than", said)
            elif len(rows) > 1:
                self.assertTrue(said.startswith(f"None of the {len(rows)} policies fits"), said)
            short = [row["missing_bytes"] for row in rows if row["status"] == "oom"]
            for size in (min(short), max(short)) if short else ():
                unit = 30 if size >= 2**30 else 20
                self.assertIn(f"by at least {four_digits(size / 2**unit)} {'GiB' if unit == 30 else 'MiB'}", said)
            self.assertEqual("failed" in said, any(row["status"] == "failed" for row in rows))

    def sentence(self, rows):
        if not re.match("file:", self.browser.current_url):
            self.show(self.report_of(rows))
        return self.js("const place = document.createElement('div'); summary(place, arguments[0]);"
                       "return place.textContent", rows)

    def test_changes_of_fit_with_their_code(self):
        rows, gpt2 = self.directory / "fit.json", ROOT / "traces" / "recorded" / "pytorch" / "gpt2-h200.json.zst"
        self.ok("fit", gpt2, "--device", "gtx_970", "--policy", "mxnet", "-o", rows, "--quiet", code=1)
        found = json.loads(rows.read_text("utf-8"))["rows"]
        page = self.report(rows)
        self.check(page)  # ends on paper
        for media in ("print", ""):
            heads = [head for head in self.all("th", "textContent")]
            for head in ("change", "status", "margin", "time ms", "slowdown"):
                self.assertTrue(any(name.startswith(head) for name in heads), (head, heads))
            self.assertEqual(self.all("td.code", "textContent"), [row["python"] for row in found if row["python"]])
            self.assertTrue(all(self.all("td.code", "checkVisibility()")))
            text = self.text("table")
            self.assertTrue(all((row["remedy"] or "as it is") in text for row in found if row["remedy"] or row["change"] == "none"))
            self.assertEqual("reclaims" in text, any("gives cached memory back" in meaning for meaning in self.all("dd", "textContent")))
            self.show(page)

    def test_a_batch_counts_sequences_or_images(self):
        for networks, unit in ((("gpt2@64",), "sequences"), (("vgg16",), "images"), (("gpt2@64", "vgg16"), "samples")):
            rows = [{**row, "network": networks[i % len(networks)], "workload": None}
                    for i, row in enumerate(drawn_sweep(random.Random(2), 1, 4, 1, 2, failing=0, holes=0))]
            self.show(self.report_of(rows))
            self.assertIn(f"batch ({unit})", self.all(".dygraph-xlabel", "textContent"))

    def test_two_timelines_stand_on_a_printed_page(self):
        self.show(self.report("alexnet:64", "--memory", "80%", "--policy", "vdnn-all,mxnet"), 700, media="print")
        self.js("dispatchEvent(new Event('beforeprint'))")
        heights = self.all("[data-kind=timeline]", "getBoundingClientRect().height")
        self.assertTrue(heights)
        self.assertLess(max(heights), 965 / 2)  # pixels of a sheet of letter paper without its margins

    def test_other_documents(self):
        decisions, replay = self.directory / "d.json", self.directory / "replay.json"
        self.ok("run", "alexnet:16", "--export", f"decisions:{decisions}", "--quiet")
        self.ok("replay", decisions, "--allocator", "best-fit,first-fit", "--memory", "800MiB", "--out-of-memory-report",
                "-o", replay, "--quiet", code=1)
        self.check(self.report(replay, ROOT / "experiments" / "evidence" / "validation" / "h200.csv"))
        self.js("document.querySelector('main .controls button').click()")
        self.assertEqual(self.browser.get_log("browser"), [])


if __name__ == "__main__":
    main()

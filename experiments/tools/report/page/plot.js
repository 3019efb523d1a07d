// Plots of one column over another, drawn by dygraphs. Axes have at most eight lines; more go to axes of their own.

const MOST_LINES = COLOURS.length;
const MOST_FACETS = 12;  // beyond them, one chooses which to see
const MARKERS = ["M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0", "M-3.5-3.5h7v7h-7z", "M0-4.5L4 3.5H-4z", "M0-5L5 0 0 5-5 0z", "M0 4.5L4-3.5H-4z",
                 "M-1.4-4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z", "M-4-4H4L-4 4H4z",
                 "M0-5L1.4-1.7 4.8-1.5 2.2.7 3 4 0 2.2-3 4-2.2.7-4.8-1.5-1.4-1.7z"];
const { touchstart, touchmove, touchend, ...BY_MOUSE } = Dygraph.defaultInteractionModel;  // a touch scrolls the page
const CROSS = "M-3-3L3 3M-3 3L3-3";
const CROSSES = 9;  // pixels between two rows of crosses

// A choice among values, hidden if there is only one.
function choice(parent, label, values, text = (value) => value) {
  const box = element(parent, "label", {}, `${label} `);
  const select = element(box, "select", { "aria-label": label });
  values.forEach((value, i) => element(select, "option", { value: i }, text(value)));
  if (values.length < 2) box.hidden = true;
  return { get: () => values[select.value], on: (action) => select.addEventListener("change", action) };
}

function tickLabel(value) {
  return String(Number(value.toPrecision(9)));  // the distance of ticks decides how many digits are not 0
}

// Returns the options of dygraphs that all plots share and that depend on the theme.
function axisColours() {
  return { axisLineColor: ink("--faint"), gridLineColor: ink("--line") };
}

// Fits a graph to the width of its place, in the colours of the theme.
function refit(graph) {
  graph.updateOptions(axisColours(), true);
  graph.width_ = 0;  // dygraphs ignores a resize to the same width
  graph.resize();
}

function markAt(x, y, marker) {
  const path = new Path2D();
  path.addPath(new Path2D(marker), new DOMMatrix([1, 0, 0, 1, x, y]));
  return path;
}

// Draws lines in a box, by their names. Each line is { points: Map of y by x, lost: Set of the x that have no y, style: its place among
// colours and markers }.
function axes(box, title, labels, lines, options) {
  const names = [...lines.keys()], all = [...lines.values()], crossed = all.filter((line) => line.lost.size > 0);
  const xs = [...new Set(all.flatMap((line) => [...line.points.keys(), ...line.lost]))].sort((a, b) => a - b);
  const [, most] = extent(all.flatMap((line) => [...line.points.values()]));
  if (!all.some((line) => line.points.size > 0)) return void element(box, "p", { class: "hint" }, `No value for ${list(names)}.`);
  const span = xs.at(-1) - xs[0] || xs[0] || 1;
  const meaning = `${labels.join(" and ")} of ${list(names)}${title ? `, ${title}` : ""}. The table has the numbers.`;
  const plot = element(box, "div", { class: "plot", role: "img", "aria-label": meaning });
  const said = element(box, "p", { class: "reading", role: "status" });
  const at = (line, x) => line.points.get(x) ?? (line.lost.has(x) ? NaN : null);  // NaN is a gap in the line, null is not
  const graph = new Dygraph(plot, xs.map((x) => [x, ...all.map((line) => at(line, x))]), {
    labels: [labels[0], ...names], xlabel: labels[0], ylabel: labels[1], legend: "never", colors: all.map((line) => COLOURS[line.style]),
    connectSeparatedPoints: true, drawPoints: true, strokeWidth: 1.5, highlightCircleSize: 6, axisLabelFontSize: 12,
    dateWindow: [xs[0] - span * 0.04, xs.at(-1) + span * 0.04], valueRange: [0, (most * 1.06) / (1 - (CROSSES * crossed.length) / 190) || 1],
    axes: { x: { axisLabelFormatter: tickLabel, pixelsPerLabel: 50, axisLabelWidth: 56 }, y: { axisLabelFormatter: tickLabel, axisLabelWidth: 50 } },
    interactionModel: BY_MOUSE,
    drawPointCallback: (_, name, context, x, y, colour) => {
      context.fillStyle = colour;
      context.fill(markAt(x, y, MARKERS[lines.get(name).style]));
    },
    underlayCallback: (context, area, self) => crossed.forEach((line, row) => {
      context.strokeStyle = COLOURS[line.style];
      context.lineWidth = 1.3;
      for (const x of line.lost) context.stroke(markAt(self.toDomXCoord(x), area.y + 6 + CROSSES * row, CROSS));
    }),
    highlightCallback: (_, x, points) => {
      const there = points.filter((point) => Number.isFinite(point.yval)).sort((a, b) => a.yval - b.yval);
      said.textContent = `${labels[0]} ${digits(x)}: ${there.map((point) => `${point.name} ${digits(point.yval)}`).join(", ")}`;
    },
    unhighlightCallback: () => { said.textContent = ""; },
    ...axisColours(), ...options,
  });
  redraws.push(() => plot.isConnected && refit(graph));
}

function mark(parent, path, attributes) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", "-6 -6 12 12");
  const drawn = picture.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  for (const [name, value] of Object.entries({ d: path, ...attributes })) drawn.setAttribute(name, value);
  parent.prepend(picture);
}

// Draws panels, each { title, lines by name }, in axes with at most eight lines, and a key for them. The lines that have the most points come
// first. `lost` says what a cross means.
function panels(parent, labels, drawn, lost, options = {}) {
  const points = new Map();
  for (const [name, line] of drawn.flatMap(({ lines }) => [...lines])) points.set(name, (points.get(name) ?? 0) + line.points.size);
  const names = [...points.keys()].filter((name) => points.get(name) > 0).sort((a, b) => points.get(b) - points.get(a));
  for (let first = 0; first < names.length; first += MOST_LINES) {
    const some = names.slice(first, first + MOST_LINES), key = element(parent, "div", { class: "key" });
    const facets = drawn.map(({ title, lines }) => ({ title, lines: new Map([...lines].filter(([name]) => some.includes(name))) }))
      .filter(({ lines }) => lines.size > 0);
    facets.forEach(({ lines }) => lines.forEach((line, name) => { line.style = some.indexOf(name); }));
    some.forEach((name, style) => mark(element(key, "span", { class: "series" }, name), MARKERS[style], { fill: COLOURS[style] }));
    const crossed = facets.some(({ lines }) => [...lines.values()].some((line) => line.lost.size > 0));
    if (crossed) mark(element(key, "span", {}, lost), CROSS, { stroke: "currentColor" });
    const grid = element(parent, "div", { class: "facets" }), boxes = facets.map(() => element(grid, "figure"));  // all, since they share the width
    facets.forEach(({ title, lines }, i) => {
      if (title) element(boxes[i], "figcaption", {}, title);
      axes(boxes[i], title, labels, lines, options);
    });
  }
  const never = [...points.keys()].filter((name) => points.get(name) === 0);
  if (never.length > 0) element(parent, "p", { class: "hint" }, `In no case is there a value for ${list(never)}.`);
}

const QUANTITIES = ["iteration_ms", "slowdown", "samples_per_second", "peak_allocated_bytes", "stall_ms", "offloaded_bytes", "recompute_ms",
                    "pinned_peak_bytes"];
const IMPLIED = { memory_bytes: ["memory_request"], batch: ["workload"], depth: ["network", "workload"] };  // who knows the first knows the others
// Of the settings that tell lines apart, the first of these gives each of its values axes.
const FACETS = ["network", "family", "workload", "device", "mode", "memory_request", "memory_bytes", "preset", "backend", "allocator",
                "file", ...OPTIONS, "batch", "cost"];

// Adds up the numbers in the brackets of a network: resnet(3,4,6,3) is 16 deep, of the family resnet.
function depth(row) {
  const [, family, inner] = /^(.*)\(([\d,]+)\)/.exec(row.network ?? "") ?? [];
  return inner ? { family, depth: inner.split(",").reduce((sum, part) => sum + Number(part), 0) } : {};
}

// Returns how to draw rows over `x`: `by` tells lines apart, and `facet` axes.
function arrange(rows, x) {
  const names = ["policy", ...PLACE, ...RIVAL.slice(1)].filter((name) => !IMPLIED[x].includes(name));
  const by = tellingApart(rows, names).filter((name) => name !== x), facet = [];
  while (groupsOf(rows, by).size > MOST_LINES && by.length > 1) {
    const next = FACETS.find((name) => by.includes(name)) ?? by[by.length - 1];
    facet.push(next);
    by.splice(by.indexOf(next), 1);
  }
  return { by, facet };
}

function drawSweep(place, rows, x, y, { by, facet }) {
  const drawn = [...groupsOf(rows, facet).values()].map((group) => {
    const lines = new Map();
    for (const row of group) {
      const name = by.map((setting) => spoken(setting, row[setting])).join(", ") || spoken("policy", row.policy);
      if (!lines.has(name)) lines.set(name, { points: new Map(), lost: new Set() });
      if (typeof row[y] === "number") lines.get(name).points.set(row[x] / wordsOf(x).size, row[y] / wordsOf(y).size);
      else if (row.status !== "ok") lines.get(name).lost.add(row[x] / wordsOf(x).size);
    }
    return { title: facet.map((setting) => spoken(setting, group[0][setting])).join(", "), lines };
  });
  panels(place, [axisName(x, rows), axisName(y, rows)], drawn, `does not fit${rows.some((row) => row.status === "failed") ? ", or its policy failed" : ""}`);
}

function sweepPlots(section, results) {
  for (const x of ["memory_bytes", "batch", "depth"]) {
    const rows = results.map((row) => (x === "depth" ? { ...row, ...depth(row) } : row)).filter((row) => typeof row[x] === "number");
    const quantities = QUANTITIES.filter((name) => rows.some((row) => typeof row[name] === "number"));
    const how = arrange(rows, x);
    if (quantities.length === 0 || ![...groupsOf(rows, [...how.by, ...how.facet]).values()].some((line) => valuesOf(line, x).length > 1)) continue;
    element(section, "h3", {}, `${wordsOf("iteration_ms").words} against ${wordsOf(x).words}`.replace(/^./, (letter) => letter.toUpperCase()));
    const controls = element(section, "div", { class: "controls" });
    const shown = choice(controls, "shown", quantities, (name) => axisName(name, rows)), picks = [];
    while (groupsOf(rows, how.facet).size > MOST_FACETS) {
      const name = how.facet.shift();
      picks.push([name, choice(controls, wordsOf(name).words, valuesOf(rows, name), (value) => spoken(name, value))]);
    }
    element(section, "p", { class: "hint" }, "Drag across a plot to zoom, and double-click it to see all.");
    const place = element(section, "div");
    const draw = () => {
      place.replaceChildren();
      drawSweep(place, rows.filter((row) => picks.every(([name, pick]) => (row[name] ?? null) === pick.get())), x, shown.get(), how);
    };
    [shown, ...picks.map(([, pick]) => pick)].forEach((select) => select.on(draw));
    draw();
  }
}

function validationPlot(section, rows) {
  const lines = new Map(), errors = rows.map((row) => row.error).filter((error) => typeof error === "number").map(Math.abs);
  for (const row of rows) {
    if (typeof row.measured_iteration_ms !== "number" || typeof row.predicted_iteration_ms !== "number") continue;
    const name = String(row.policy).split(":")[0];
    if (!lines.has(name)) lines.set(name, { points: new Map(), lost: new Set() });
    lines.get(name).points.set(row.measured_iteration_ms, row.predicted_iteration_ms);
  }
  if (errors.length > 0) {
    const mean = errors.reduce((sum, error) => sum + error, 0) / errors.length;
    const off = `off by ${percent(mean)} on average, and by ${percent(extent(errors)[1])} at worst`;
    element(section, "p", { class: "summary" }, `In ${count(errors.length, "case")} the prediction is ${off}.`);
  }
  if (lines.size === 0) return;
  element(section, "h3", {}, "Predicted against measured time");
  panels(section, ["measured (ms)", "predicted (ms)"], [{ title: "Points on the line are exact.", lines }], "", {
    strokeWidth: 0,
    underlayCallback: (context, area, graph) => {  // the line on which both are equal
      const [, most] = graph.xAxisRange();
      context.strokeStyle = ink("--faint");
      context.beginPath();
      context.moveTo(graph.toDomXCoord(0), graph.toDomYCoord(0));
      context.lineTo(graph.toDomXCoord(most), graph.toDomYCoord(most));
      context.stroke();
    },
  });
}

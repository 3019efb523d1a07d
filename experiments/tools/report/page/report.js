"use strict";
// Fills the sections of a report. The page contains all data as JSON; nothing is loaded.

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7F5FBF", "#888888"];
const MEANING = JSON.parse(document.getElementById("columns").textContent);
const redraws = [];  // functions that redraw the parts that depend on the theme

function element(parent, name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function bytes(value) {
  if (value >= 2 ** 30) return (value / 2 ** 30).toFixed(2) + " GiB";
  if (value >= 2 ** 20) return (value / 2 ** 20).toFixed(1) + " MiB";
  return (value / 1024).toFixed(0) + " KiB";
}

function cell(name, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "object") return JSON.stringify(value);
  if (name.endsWith("_bytes")) return bytes(value);
  if (typeof value === "number" && !Number.isInteger(value)) return value.toPrecision(5);
  return String(value);
}

// ---- tables

const SHOWN = 500;  // rows that are shown at once
const FIRST = ["workload", "device", "memory_request", "policy", "status", "iteration_ms", "predicted_iteration_ms", "measured_iteration_ms", "error",
               "slowdown", "peak_allocated_bytes", "offloaded_bytes", "stall_ms"];  // columns that are shown if present

function table(parent, rows, title) {
  const names = [...new Set([...FIRST, ...rows.flatMap((row) => Object.keys(row))])]
    .filter((name) => rows.some((row) => row[name] !== null && row[name] !== undefined));
  const box = element(parent, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${title}` });
  const made = element(box, "table");
  const caption = rows.length > SHOWN ? `The first ${SHOWN} of ${rows.length} rows, as sorted` : `${rows.length} rows`;
  element(made, "caption", {}, caption);
  const head = element(element(made, "thead"), "tr");
  const body = element(made, "tbody");
  let by = null, up = true;
  const fill = () => {
    const order = by === null ? rows : [...rows].sort((a, b) => {
      const [x, y] = [a[by] ?? null, b[by] ?? null];
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    body.replaceChildren();
    for (const row of order.slice(0, SHOWN)) {
      const line = element(body, "tr", { class: row.status ?? "" });
      for (const name of names) {
        const text = cell(name, row[name]);
        element(line, "td", { class: typeof row[name] === "number" ? "number" : "", title: text }, text);
      }
    }
  };
  for (const name of names) {
    const heading = element(head, "th", { scope: "col", "aria-sort": "none", title: MEANING[name] ?? "" });
    element(heading, "button", { type: "button" }, name).addEventListener("click", () => {
      up = by === name ? !up : true;
      by = name;
      for (const other of head.children) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      fill();
    });
  }
  fill();
}

// ---- plots

function choice(parent, label, values, text = (value) => value) {
  const box = element(parent, "label", {}, `${label} `);
  const select = element(box, "select", { "aria-label": label });
  values.forEach((value, i) => element(select, "option", { value: i }, text(value)));
  if (values.length < 2) box.hidden = true;
  return { get: () => values[select.value], on: (action) => select.addEventListener("change", action) };
}

function distinct(rows, name) {
  return [...new Set(rows.map((row) => row[name] ?? null))];
}

// Adds up the numbers in the brackets of a network: resnet(3,4,6,3) is 16 deep.
function depth(row) {
  const inner = /\(([\d,]+)\)/.exec(row.network ?? "");
  return inner ? inner[1].split(",").reduce((sum, part) => sum + Number(part), 0) : null;
}

// Draws a line for each series over x. `lost` holds the values of x at which a series is out of memory.
function graph(parent, label, xLabel, yLabel, series, options = {}) {
  const plot = element(parent, "div", { class: "plot", role: "img", "aria-label": label });
  const legend = element(parent, "div", { class: "legend", role: "status" });
  const names = [...series.keys()];
  const colours = names.map((_, i) => COLOURS[i % COLOURS.length]);
  const xs = [...new Set([...series.values()].flatMap((line) => [...line.points.keys(), ...line.lost]))].sort((a, b) => a - b);
  const data = xs.map((x) => [x, ...names.map((name) => series.get(name).points.get(x) ?? null)]);
  if (data.length === 0) return element(plot, "p", {}, "Nothing fits.");
  const span = xs[xs.length - 1] - xs[0] || xs[0] || 1;
  const drawn = new Dygraph(plot, data, {
    labels: [xLabel, ...names], xlabel: xLabel, ylabel: yLabel, colors: colours, legend: "never", connectSeparatedPoints: true,
    drawPoints: true, pointSize: 3, strokeWidth: 1.5, highlightCircleSize: 5, includeZero: true, axisLineColor: ink("--faint"),
    gridLineColor: ink("--line"), dateWindow: [xs[0] - span * 0.03, xs[xs.length - 1] + span * 0.03], ...options,
    axes: { x: { axisLabelFormatter: (x) => String(Number(x.toPrecision(4))), valueFormatter: (x) => String(x) } },
    underlayCallback: (context, area, self) => {  // draws a row of crosses for each series
      let row = 0;
      names.forEach((name, i) => {
        const lost = series.get(name).lost;
        if (lost.size === 0 || series.get(name).points.size === 0) return;
        context.strokeStyle = colours[i];
        for (const x of lost) {
          const [left, top] = [self.toDomXCoord(x), area.y + 6 + 7 * row];
          context.beginPath();
          context.moveTo(left - 3, top - 3); context.lineTo(left + 3, top + 3);
          context.moveTo(left - 3, top + 3); context.lineTo(left + 3, top - 3);
          context.stroke();
        }
        ++row;
      });
    },
    highlightCallback: (_, x, points) => {
      said(legend, `${xLabel} ${x}: ` + points.filter((p) => p.yval !== null).sort((a, b) => a.yval - b.yval)
        .map((p) => `${p.name} ${p.yval.toPrecision(4)}`).join(", "));
    },
    unhighlightCallback: () => key(legend, names, colours, series),
  });
  key(legend, names, colours, series);
  redraws.push(() => drawn.updateOptions({ axisLineColor: ink("--faint"), gridLineColor: ink("--line") }));
}

function said(legend, text) {
  legend.replaceChildren(text);
}

function key(legend, names, colours, series) {
  legend.replaceChildren();
  names.forEach((name, i) => {
    if (series.get(name).points.size === 0) return;
    element(legend, "span", { class: "swatch", style: `background:${colours[i]}` });
    legend.append(name);
  });
  const never = names.filter((name) => series.get(name).points.size === 0);
  if ([...series.values()].some((line) => line.lost.size > 0)) legend.append(" · ✕ out of memory");
  if (never.length > 0) legend.append(` · never fits: ${never.join(", ")}`);
}

const QUANTITIES = ["iteration_ms", "slowdown", "peak_allocated_bytes", "stall_ms", "offloaded_bytes", "recompute_ms", "pinned_peak_bytes"];

function resultPlots(section, rows) {
  for (const row of rows) row.depth = depth(row);
  const along = [["memory_bytes", "Time against memory"], ["batch", "Time against batch"], ["depth", "Time against depth"]]
    .filter(([name]) => distinct(rows, name).filter((value) => typeof value === "number").length > 1);
  for (const [x, title] of along) {
    element(section, "h3", {}, title);
    const controls = element(section, "div", { class: "controls" });
    const axis = choice(controls, "shown", QUANTITIES.filter((name) => rows.some((row) => typeof row[name] === "number")));
    const fixed = { memory_bytes: ["workload"], batch: ["network", "memory_request"], depth: ["batch", "memory_request"] }[x];
    const picks = [...fixed, "device", "preset", "mode", "allocator", "cost"]
      .filter((name) => distinct(rows, name).length > 1 && !(name === "cost" && x !== "memory_bytes" && distinct(rows, "device").length > 1))
      .map((name) => [name, choice(controls, name, distinct(rows, name), (value) => value === null ? "all" : value)]);
    const place = element(section, "div");
    const draw = () => {
      const y = axis.get();
      const scale = { memory_bytes: 2 ** 30 }[x] ?? 1, size = y.endsWith("_bytes") ? 2 ** 30 : 1;
      const series = new Map();
      for (const row of rows) {
        if (typeof row[x] !== "number" || picks.some(([name, pick]) => (row[name] ?? null) !== pick.get())) continue;
        if (!series.has(row.policy)) series.set(row.policy, { points: new Map(), lost: new Set() });
        const line = series.get(row.policy);
        if (typeof row[y] === "number") line.points.set(row[x] / scale, row[y] / size);
        else if (row.status === "oom") line.lost.add(row[x] / scale);
      }
      place.replaceChildren();
      const unit = size > 1 ? `${y.replace("_bytes", "")} (GiB)` : y;
      graph(place, `${title}: ${unit}, a line for each policy. The table has the numbers.`, x === "memory_bytes" ? "memory (GiB)" : x, unit, series);
    };
    [axis, ...picks.map(([, pick]) => pick)].forEach((select) => select.on(draw));
    draw();
  }
  for (const row of rows) delete row.depth;
}

function validationPlot(section, rows) {
  element(section, "h3", {}, "Predicted against measured");
  const series = new Map();
  let most = 0;
  for (const row of rows) {
    if (typeof row.measured_iteration_ms !== "number" || typeof row.predicted_iteration_ms !== "number") continue;
    const name = String(row.policy).split(":")[0];
    if (!series.has(name)) series.set(name, { points: new Map(), lost: new Set() });
    series.get(name).points.set(row.measured_iteration_ms, row.predicted_iteration_ms);
    most = Math.max(most, row.measured_iteration_ms);
  }
  const errors = rows.map((row) => row.error).filter((error) => typeof error === "number").map(Math.abs);
  if (errors.length > 0) {
    const mean = errors.reduce((sum, error) => sum + error, 0) / errors.length;
    element(section, "p", {}, `${errors.length} cases: mean error ${(100 * mean).toFixed(2)} %, worst ${(100 * Math.max(...errors)).toFixed(2)} %`);
  }
  series.set("equal", { points: new Map([[0, 0], [most, most]]), lost: new Set() });
  const per = Object.fromEntries([...series.keys()].map((name) => [name, { strokeWidth: name === "equal" ? 1 : 0 }]));
  graph(section, "Predicted against measured iteration times in milliseconds. The table has the numbers.", "measured (ms)", "predicted (ms)", series,
        { series: per });
}

// ---- timelines

function unpack(text, Type) {
  const raw = atob(text), all = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) all[i] = raw.charCodeAt(i);
  return new Type(all.buffer);
}

const KINDS = ["kernel", "kernel, run again", "offload", "prefetch", "fetch", "input"];
const KIND_COLOURS = ["#0072B2", "#CC79A7", "#D55E00", "#009E73", "#E69F00", "#56B4E9"];
const STALL_COLOUR = "#C00000";
const WHOLE = 2 ** 32;  // ticks per iteration

// Returns the names. The first character of a line encodes how many characters it shares with the previous name.
function names(text) {
  let before = "";
  return text.split("\n").slice(0, -1).map((line) => (before = before.slice(0, line.charCodeAt(0) - 48) + line.slice(1)));
}

class Timeline {
  constructor(section, data) {
    this.data = data;
    data.names = names(data.names);
    const { events, stalls, blocks } = data;
    this.events = { start: unpack(events.start, Uint32Array), length: unpack(events.length, Uint32Array), name: unpack(events.name, Uint32Array),
                    stream: unpack(events.what, Uint8Array).map((what) => what & 15), kind: unpack(events.what, Uint8Array).map((what) => what >> 4) };
    this.stalls = { event: unpack(stalls.event, Uint32Array), length: unpack(stalls.length, Uint32Array), cause: unpack(stalls.cause, Uint8Array),
                    awaited: unpack(stalls.awaited, Uint32Array) };
    this.blocks = { start: unpack(blocks.start, Uint32Array), length: unpack(blocks.length, Uint32Array), offset: unpack(blocks.offset, Uint32Array),
                    size: unpack(blocks.size, Uint32Array), name: unpack(blocks.name, Uint32Array), nested: unpack(blocks.nested, Uint8Array) };
    this.lanes = data.streams.map(() => []);  // events of each stream by start time
    for (let i = 0; i < events.count; ++i) this.lanes[this.events.stream[i]].push(i);
    this.lanes = this.lanes.map((lane) => Uint32Array.from(lane).sort((a, b) => this.events.start[a] - this.events.start[b]));
    this.used = data.streams.map((_, s) => s).filter((s) => this.lanes[s].length > 0);
    this.stallOf = new Map();
    for (let i = 0; i < stalls.count; ++i) this.stallOf.set(this.stalls.event[i], i);
    this.top = 0;
    for (let i = 0; i < blocks.count; ++i) this.top = Math.max(this.top, this.blocks.offset[i] + this.blocks.size[i]);
    this.from = 0;
    this.to = WHOLE;
    this.chosen = null;
    element(section, "p", { class: "hint" }, "Wheel or + and − zoom, drag or arrows move, 0 shows all; n and p go from stall to stall, ] and [ from event to event. " +
            "Above: who holds which addresses of the device. Below: what each stream does; red is waiting.");
    this.canvas = element(section, "canvas", { class: "timeline", tabindex: "0", role: "application", "aria-roledescription": "timeline",
      "aria-label": `Timeline of one iteration of ${data.iteration_ms.toFixed(3)} milliseconds, ${events.count} events, ${stalls.count} stalls, ${blocks.count} blocks of memory` });
    if (blocks.omitted > 0) element(section, "p", { class: "hint" }, `${blocks.omitted} blocks that are smaller or shorter are left out.`);
    this.said = element(section, "div", { class: "said", role: "status", "aria-live": "polite" });
    this.listen();
    new ResizeObserver(() => this.later()).observe(this.canvas);
    redraws.push(() => this.later());
    addEventListener("beforeprint", () => this.draw());
  }

  get mapHeight() { return 260; }
  get height() { return this.mapHeight + 16 + this.used.length * 34 + 22; }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, event.offsetX / canvas.clientWidth);
    }, { passive: false });
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = { x: event.offsetX, from: this.from, to: this.to }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (held) this.show(held.from - (event.offsetX - held.x) / canvas.clientWidth * (held.to - held.from), held.to - held.from);
      else this.say(this.at(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("keydown", (event) => {
      const span = this.to - this.from;
      const action = { "+": () => this.zoom(0.7, 0.5), "=": () => this.zoom(0.7, 0.5), "-": () => this.zoom(1.4, 0.5), 0: () => this.show(0, WHOLE),
        ArrowLeft: () => this.show(this.from - span / 8, span), ArrowRight: () => this.show(this.from + span / 8, span),
        n: () => this.nextStall(1), p: () => this.nextStall(-1), "]": () => this.nextEvent(1), "[": () => this.nextEvent(-1) }[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    });
  }

  zoom(factor, middle) {
    const at = this.from + (this.to - this.from) * middle, span = Math.min(WHOLE, Math.max(16, (this.to - this.from) * factor));
    this.show(at - span * middle, span);
  }

  show(from, span) {
    this.from = Math.max(0, Math.min(from, WHOLE - span));
    this.to = this.from + span;
    this.later();
  }

  focus(i) {
    const start = this.events.start[i], length = Math.max(this.events.length[i], 1), span = this.to - this.from;
    this.chosen = { event: i };
    if (start < this.from || start + length > this.to) this.show(start - span / 3, Math.max(span, 2 * length));
    this.say(this.chosen);
    this.later();
  }

  nextStall(step) {
    if (this.stalls.event.length === 0) return;
    this.stall = ((this.stall ?? (step > 0 ? -1 : 0)) + step + this.stalls.event.length) % this.stalls.event.length;
    this.focus(this.stalls.event[this.stall]);
  }

  nextEvent(step) {
    const i = (this.chosen && this.chosen.event !== undefined ? this.chosen.event + step : 0);
    this.focus(Math.max(0, Math.min(i, this.events.start.length - 1)));
  }

  milliseconds(ticks) { return (ticks / WHOLE * this.data.iteration_ms).toPrecision(5) + " ms"; }

  // Returns the position of the first event in the lane that ends after `time`.
  firstAfter(lane, time) {
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.events.start[lane[middle]] + this.events.length[lane[middle]] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  at(x, y) {
    const time = this.from + x / this.canvas.clientWidth * (this.to - this.from), slack = 2 / this.canvas.clientWidth * (this.to - this.from);
    if (y < this.mapHeight) {
      const address = (1 - y / this.mapHeight) * this.top, b = this.blocks;
      let found = null;
      for (let i = 0; i < b.start.length; ++i) {
        if (b.start[i] > time || b.start[i] + b.length[i] < time || b.offset[i] > address || b.offset[i] + b.size[i] <= address) continue;
        if (found === null || b.nested[i]) found = i;
      }
      return found === null ? null : { block: found };
    }
    const lane = this.lanes[this.used[Math.floor((y - this.mapHeight - 16) / 34)]];
    if (!lane) return null;
    const i = this.firstAfter(lane, time - slack);
    return i < lane.length && this.events.start[lane[i]] <= time + slack ? { event: lane[i] } : null;
  }

  say(what) {
    if (!what) return;
    this.chosen = what;
    const names = this.data.names;
    if (what.block !== undefined) {
      const b = this.blocks, i = what.block;
      this.said.textContent = `${names[b.name[i]]}: ${bytes(b.size[i] * 1024)} at ${bytes(b.offset[i] * 1024)}, from ${this.milliseconds(b.start[i])} for ${this.milliseconds(b.length[i])}`;
    } else {
      const e = this.events, i = what.event, stall = this.stallOf.get(i);
      let text = `${this.data.streams[e.stream[i]]}: ${KINDS[e.kind[i]]} ${names[e.name[i]]}, at ${this.milliseconds(e.start[i])} for ${this.milliseconds(e.length[i])}`;
      if (stall !== undefined) {
        const awaited = this.stalls.awaited[stall];
        const what = awaited < e.start.length ? `${KINDS[e.kind[awaited]]} ${names[e.name[awaited]]}` : "the host, which had not issued it yet";
        text += `. Waited ${this.milliseconds(this.stalls.length[stall])} (${this.data.causes[this.stalls.cause[stall]]}) for ${what}`;
      }
      this.said.textContent = text;
    }
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.height, ratio = devicePixelRatio || 1;
    if (width === 0) return;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    const scale = width / (this.to - this.from), x = (time) => (time - this.from) * scale;
    this.drawMap(context, x, width);
    this.used.forEach((s, row) => this.drawLane(context, s, this.mapHeight + 16 + row * 34, x, scale, width));
    context.fillStyle = ink("--faint");
    context.fillText(this.milliseconds(this.from), 2, height - 6);
    const end = this.milliseconds(this.to);
    context.fillText(end, width - context.measureText(end).width - 2, height - 6);
  }

  drawMap(context, x, width) {
    const b = this.blocks, unit = this.mapHeight / Math.max(this.top, 1);
    context.fillStyle = ink("--panel");
    context.fillRect(0, 0, width, this.mapHeight);
    for (let i = 0; i < b.start.length; ++i) {
      const left = x(b.start[i]), right = x(b.start[i] + b.length[i]), tall = b.size[i] * unit;
      if (right < 0 || left > width || (right - left < 0.3 && tall < 0.5) || tall < 0.05) continue;
      const [from, to] = [Math.max(left, -1), Math.min(right, width + 1)], top = this.mapHeight - (b.offset[i] + b.size[i]) * unit;
      context.globalAlpha = this.chosen && this.chosen.block === i ? 1 : 0.6;
      context.fillStyle = COLOURS[b.name[i] % COLOURS.length];
      context.fillRect(from, top, Math.max(to - from, 0.5), Math.max(tall, 0.5));
      if (to - from > 60 && tall > 12) {
        context.globalAlpha = 1;
        context.fillStyle = ink("--ink");
        context.fillText(this.data.names[b.name[i]], from + 3, top + Math.min(tall, 16) - 3, to - from - 6);
      }
    }
    context.globalAlpha = 1;
    context.fillStyle = ink("--ink");
    context.fillText(bytes(this.top * 1024), 3, 11);
  }

  drawLane(context, s, top, x, scale, width) {
    const lane = this.lanes[s], e = this.events, pixel = 1 / scale;
    context.fillStyle = ink("--faint");
    context.fillText(this.data.streams[s], 2, top + 9);
    for (let k = this.firstAfter(lane, this.from); k < lane.length;) {
      const i = lane[k], left = x(e.start[i]);
      if (left > width) break;
      const long = Math.max(e.length[i] * scale, 0.5), stall = this.stallOf.get(i);
      if (stall !== undefined) {
        const waited = this.stalls.length[stall] * scale;
        context.fillStyle = STALL_COLOUR;
        context.fillRect(left - waited, top + 26, waited, 5);
      }
      context.fillStyle = KIND_COLOURS[e.kind[i]];
      context.fillRect(left, top + 11, long, 15);
      if (this.chosen && this.chosen.event === i) {
        context.strokeStyle = ink("--ink");
        context.lineWidth = 2;
        context.strokeRect(left, top + 11, Math.max(long, 3), 15);
      }
      if (long > 50) {
        context.fillStyle = "#ffffff";
        context.fillText(this.data.names[e.name[i]], Math.max(left, 0) + 3, top + 22, Math.min(long, width) - 6);
      }
      // Skip events that end within the same pixel.
      k = long >= 1 ? k + 1 : Math.max(k + 1, this.firstAfter(lane, e.start[i] + pixel * 0.5));
    }
  }
}

// ---- the page

// Returns [title, rows] for each table of a part of a document: the part if it is an array, else its array of objects. If it has several
// of them, its other members come first, as one row.
function lists(name, part) {
  if (Array.isArray(part)) return [[name, part]];
  const arrays = Object.entries(part).filter(([, member]) => Array.isArray(member) && typeof member[0] === "object");
  if (arrays.length === 0) return [[name, [part]]];
  if (arrays.length === 1) return [[name, arrays[0][1]]];
  const facts = Object.fromEntries(Object.entries(part).filter(([, member]) => !Array.isArray(member)));
  return [[name, [facts]], ...arrays.map(([key, list]) => [`${name}: ${key}`, list])];
}

const nav = document.querySelector("nav");
for (const section of document.querySelectorAll("section")) {
  const heading = section.querySelector("h2");
  element(nav, "a", { href: `#${heading.id}` }, heading.textContent);
  const from = document.getElementById(section.dataset.from);
  const document_ = JSON.parse(from.textContent);
  from.textContent = "";
  const parts = Array.isArray(document_) ? { rows: document_ } : document_;
  const rows = parts.rows ?? [parts.row];
  if (section.dataset.kind === "timeline") {
    new Timeline(section, document_);
    continue;
  }
  if (section.dataset.kind === "results") resultPlots(section, rows);
  if (section.dataset.kind === "validation") validationPlot(section, rows);
  table(section, rows, heading.textContent);
  for (const [name, part] of Object.entries(parts)) {
    if (["schema", "rows", "row"].includes(name) || part.length === 0) continue;
    for (const [title, list] of lists(name, part)) {
      element(section, "h3", {}, title.replaceAll("_", " "));
      table(section, list, `${title.replaceAll("_", " ")} of ${heading.textContent}`);
    }
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  redraws.forEach((redraw) => redraw());
});
document.documentElement.dataset.ready = String(Math.round(performance.now()));

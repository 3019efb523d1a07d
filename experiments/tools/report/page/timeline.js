// Timelines of one iteration: above, which tensor holds which addresses of the device; below, what each stream does. Dygraphs draws the axes.

const STREAM_KINDS = ["kernel", "kernel, run again", "offload", "prefetch", "fetch", "input"];
const STREAM_COLOURS = ["#0072B2", "#CC79A7", "#D55E00", "#009E73", "#E69F00", "#56B4E9"];
const STALL_COLOUR = "#C00000";
// By kind of tensor: input, parameter, activation, gradient, parameter gradient, optimizer state, scratch; then blocks without a tensor.
const TENSOR_COLOURS = ["#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#7F5FBF", "#B8A000", "#888888"];
const OPACITY = 0.65;  // of blocks, so that names are legible
const WHOLE = 2 ** 32;  // ticks per iteration
const PHASES = 18;  // pixels of height
// Pixels of height of the map of addresses, and of a stream. On paper, two timelines stand on a page, with their texts.
const SCREEN = { map: 250, lane: 34 }, PAPER = { map: 105, lane: 30 };
const timelines = [];

function unpack(text, Type) {
  const raw = atob(text), all = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) all[i] = raw.charCodeAt(i);
  return new Type(all.buffer);
}

// Returns the names. The first character of a line encodes how many characters it shares with the previous name.
function unpackNames(text) {
  let before = "";
  return text.split("\n").slice(0, -1).map((line) => (before = before.slice(0, line.charCodeAt(0) - 48) + line.slice(1)));
}

// Each key with its action, and the name of its button if it has one.
const ACTIONS = [
  ["+", (timeline) => timeline.zoom(0.7), "Zoom in"],
  ["-", (timeline) => timeline.zoom(1 / 0.7), "Zoom out"],
  ["0", (timeline) => timeline.show(0, Infinity), "Show all"],
  ["p", (timeline) => timeline.nextStall(-1), "Previous stall"],
  ["n", (timeline) => timeline.nextStall(1), "Next stall"],
  ["=", (timeline) => timeline.zoom(0.7)],
  ["ArrowLeft", (timeline) => timeline.move(-1 / 8)],
  ["ArrowRight", (timeline) => timeline.move(1 / 8)],
  ["[", (timeline) => timeline.nextEvent(-1)],
  ["]", (timeline) => timeline.nextEvent(1)],
];

class Timeline {
  constructor(section, data) {
    this.data = data;
    this.names = unpackNames(data.names);
    const of = (group, types) => Object.fromEntries(Object.entries(types).map(([key, Type]) => [key, unpack(data[group][key], Type)]));
    this.events = of("events", { start: Uint32Array, length: Uint32Array, name: Uint32Array, what: Uint8Array });
    this.stalls = of("stalls", { event: Uint32Array, length: Uint32Array, cause: Uint8Array, awaited: Uint32Array });
    this.blocks = of("blocks", { start: Uint32Array, length: Uint32Array, offset: Uint32Array, size: Uint32Array, name: Uint32Array, kind: Uint8Array,
      nested: Uint8Array });
    this.lanes = data.streams.map(() => []);  // events of each stream by start time
    this.events.what.forEach((what, i) => this.lanes[what & 15].push(i));
    this.lanes = this.lanes.map((lane) => Uint32Array.from(lane).sort((a, b) => this.events.start[a] - this.events.start[b]));
    this.used = this.lanes.flatMap((lane, s) => (lane.length > 0 ? [s] : []));
    this.stallOf = new Map(Array.from(this.stalls.event, (event, i) => [event, i]));
    this.reach = 0;  // KiB
    for (let i = 0; i < this.blocks.size.length; ++i) this.reach = Math.max(this.reach, this.blocks.offset[i] + this.blocks.size[i]);
    const limit = data.capacity === null ? null : data.capacity / 1024;
    this.limit = limit !== null && limit <= 2 * this.reach ? limit : null;  // a limit far above would flatten the map
    this.top = 1.06 * (this.limit ?? this.reach) || 1;
    this.ms = data.iteration_ms / WHOLE;
    this.chosen = null;
    this.size = SCREEN;
    this.together = true;
    timelines.push(this);
    element(section, "p", { class: "summary" }, this.sentence());
    this.controls(section);
    this.key(section);
    element(section, "div", { class: "axis" }, `addresses of device memory (${this.unit[0]})`);
    this.box = element(section, "div", { class: "plot timeline", tabindex: "0", role: "application", "aria-roledescription": "timeline",
      "aria-label": `Timeline of one iteration of ${milliseconds(data.iteration_ms)}: ${count(data.events.count, "event")}, ` +
        `${count(data.stalls.count, "stall")}, ${count(data.blocks.count, "block")} of memory` });
    this.said = element(section, "div", { class: "said", role: "status" }, "Point at a block or an event to read about it.");
  }

  // Draws the timeline for the first time. All timelines are known.
  start() {
    this.box.style.height = `${this.height + 40}px`;
    this.end = Math.max(...timelines.map((timeline) => timeline.data.iteration_ms));
    const top = this.top / this.unit[1];
    const ticks = (from, to, pixels, option, graph) => Dygraph.numericTicks(0, top, this.size.map, option, graph)
      .filter(({ v }) => v <= top).map(({ v, label }) => ({ v: this.height - PHASES - this.size.map + (v / top) * this.size.map, label }));
    this.graph = new Dygraph(this.box, [[0, 0], [this.end, 0]], {
      labels: ["time", "nothing"], xlabel: "time (ms)", legend: "never", strokeWidth: 0, highlightCircleSize: 0, axisLabelFontSize: 12,
      interactionModel: {}, valueRange: [0, this.height], dateWindow: [0, this.end],
      axes: { x: { axisLabelFormatter: tickLabel }, y: { ticker: ticks, axisLabelFormatter: tickLabel, axisLabelWidth: 40, drawGrid: false } },
      underlayCallback: (context, area, graph) => this.draw(context, area, graph), ...axisColours(),
    });
    this.listen();
    redraws.push((paper) => {
      this.size = paper ? PAPER : SCREEN;
      this.box.style.height = `${this.height + 40}px`;
      this.graph.updateOptions({ valueRange: [0, this.height] }, true);
      refit(this.graph);
    });
  }

  get height() { return PHASES + this.size.map + this.used.length * this.size.lane; }

  // The name of a unit of addresses, and its size in KiB.
  get unit() { return this.top >= 2 ** 20 ? ["GiB", 2 ** 20] : ["MiB", 2 ** 10]; }

  sentence() {
    const { capacity, iteration_ms: whole, phases, blocks } = this.data;
    const until = phases.map(({ name }, i) => `${name} until ${milliseconds(i + 1 < phases.length ? phases[i + 1].start * this.ms : whole)}`);
    return `One iteration takes ${milliseconds(whole)}` + (phases.length > 1 && phases.length < 5 ? `: ${list(until)}` : "") + ". " +
      `Its memory reaches up to ${bytes(this.reach * 1024)}` + (capacity === null ? "." : ` of ${bytes(capacity)}.`) +
      (blocks.omitted > 0 ? ` ${blocks.omitted} blocks that are smaller or shorter are left out.` : "");
  }

  controls(section) {
    const box = element(section, "div", { class: "controls" });
    for (const [key, action, name] of ACTIONS) {
      if (name) element(box, "button", { type: "button" }, `${name} (${key})`).addEventListener("click", () => action(this));
    }
    this.scale = element(box, "label");
    const own = element(this.scale, "input", { type: "checkbox", checked: "" });
    this.scale.append(" the same time scale as the other timelines");
    own.addEventListener("change", () => {
      this.together = own.checked;
      this.show(0, Infinity);
    });
    element(section, "p", { class: "hint" }, "A click chooses a block or an event, and zooming keeps it in place. Keys, and the wheel, work once the " +
            "timeline is clicked or reached with Tab: those above, the arrows to move, ] and [ for the next and the previous event. Dragging moves, too.");
  }

  key(section) {
    const box = element(section, "div", { class: "key" });
    const entry = (text, fill, opacity = 1) => mark(element(box, "span", {}, text), "M-5-5h10v10h-10z", { fill, opacity });
    element(box, "b", {}, "memory");
    this.data.kinds.forEach((kind, i) => this.blocks.kind.includes(i) && entry(kind, TENSOR_COLOURS[i], OPACITY));
    element(box, "b", {}, "streams");
    STREAM_KINDS.forEach((kind, i) => this.events.what.some((what) => what >> 4 === i) && entry(kind, STREAM_COLOURS[i]));
    if (this.data.stalls.count > 0) entry("waiting", STALL_COLOUR);
  }

  press(key) {
    const found = ACTIONS.find(([name]) => name === key);
    if (found) found[1](this);
    return found !== undefined;
  }

  listen() {
    const place = (event) => {
      const box = this.box.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.box.addEventListener("wheel", (event) => {
      if (document.activeElement !== this.box) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.graph.toDataXCoord(place(event)[0]));
    }, { passive: false });
    let held = null;
    this.box.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, ...this.view };
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointerup", (event) => {
      if (held && Math.abs(event.clientX - held.x) < 3) this.choose(this.at(...place(event)));
      held = null;
    });
    this.box.addEventListener("pointercancel", () => { held = null; });
    this.box.addEventListener("pointermove", (event) => {
      if (held) this.show(held.from - ((event.clientX - held.x) / this.graph.getArea().w) * held.span, held.span);
      else this.say(this.at(...place(event)));
    });
    this.box.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.press(event.key)) event.preventDefault();
    });
  }

  // The part of the time that is in sight, in ms.
  get view() {
    const [from, to] = this.graph.xAxisRange();
    return { from, span: to - from };
  }

  get range() { return this.together ? this.end : this.data.iteration_ms; }

  show(from, span) {
    const wide = Math.min(span, this.range), left = Math.max(0, Math.min(from, this.range - wide));
    for (const timeline of this.together ? timelines.filter((other) => other.together) : [this]) timeline.later({ dateWindow: [left, left + wide] });
  }

  move(share) {
    const { from, span } = this.view;
    this.show(from + share * span, span);
  }

  // Redraws soon, once for all changes until then.
  later(options = {}) {
    if (!this.waiting) {
      requestAnimationFrame(() => {
        this.graph.updateOptions(this.waiting);
        this.waiting = null;
      });
    }
    this.waiting = { ...this.waiting, ...options };
  }

  // Zooms about a time, by default the middle of what is chosen if that is in sight.
  zoom(factor, about = null) {
    const { from, span } = this.view, chosen = this.chosen && this.span(this.chosen), middle = chosen && chosen.start + chosen.length / 2;
    const at = about ?? (middle !== null && middle >= from && middle <= from + span ? middle : from + span / 2);
    const wide = Math.min(this.range, Math.max(this.data.iteration_ms * 1e-8, span * factor));
    this.show(at - ((at - from) / span) * wide, wide);
  }

  // Returns start and length in ms of a block or an event.
  span(what) {
    const [list, i] = what.block !== undefined ? [this.blocks, what.block] : [this.events, what.event];
    return { start: list.start[i] * this.ms, length: list.length[i] * this.ms };
  }

  choose(what) {
    this.chosen = what;
    if (what) this.say(what);
    this.later();
  }

  focus(event) {
    const { from, span } = this.view, { start, length } = this.span({ event });
    this.choose({ event });
    if (start < from || start + length > from + span) this.show(start - span / 3, Math.max(span, 2 * length));
  }

  nextStall(step) {
    const count = this.data.stalls.count;
    if (count === 0) return void (this.said.textContent = "No kernel waits.");
    this.stall = ((this.stall ?? (step > 0 ? -1 : 0)) + step + count) % count;
    this.focus(this.stalls.event[this.stall]);
  }

  nextEvent(step) {
    this.focus(Math.max(0, Math.min((this.chosen?.event ?? -step) + step, this.data.events.count - 1)));
  }

  // Returns the position of the first event in the lane that ends after `time`, in ticks.
  firstAfter(lane, time) {
    let low = 0, high = lane.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.events.start[lane[middle]] + this.events.length[lane[middle]] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Returns the block or event at a place in pixels of the plot, or null.
  at(x, y) {
    const area = this.graph.getArea(), time = this.graph.toDataXCoord(x) / this.ms, row = y - area.y - PHASES;
    if (row < this.size.map) {
      const address = (1 - row / this.size.map) * this.top, b = this.blocks;
      let found = null;
      for (let i = 0; i < b.start.length; ++i) {
        if (b.start[i] > time || b.start[i] + b.length[i] < time || b.offset[i] > address || b.offset[i] + b.size[i] <= address) continue;
        if (found === null || b.nested[i]) found = i;
      }
      return found === null ? null : { block: found };
    }
    const lane = this.lanes[this.used[Math.floor((row - this.size.map) / this.size.lane)]], slack = (2 / area.w) * (this.view.span / this.ms);
    if (!lane) return null;
    const i = this.firstAfter(lane, time - slack);
    return i < lane.length && this.events.start[lane[i]] <= time + slack ? { event: lane[i] } : null;
  }

  say(what) {
    if (!what) return;
    const { start, length } = this.span(what), when = `from ${milliseconds(start)} for ${milliseconds(length)}`;
    if (what.block !== undefined) {
      const b = this.blocks, i = what.block;
      const [name, kind, size, offset] = [this.names[b.name[i]], this.data.kinds[b.kind[i]], b.size[i] * 1024, b.offset[i] * 1024];
      this.said.textContent = `${name} (${kind}): ${bytes(size)} at ${bytes(offset)}, ${when}`;
      return;
    }
    const e = this.events, title = (i) => `${STREAM_KINDS[e.what[i] >> 4]} ${this.names[e.name[i]]}`, stall = this.stallOf.get(what.event);
    let text = `${this.data.streams[e.what[what.event] & 15]}: ${title(what.event)}, ${when}`;
    if (stall !== undefined) {
      const awaited = this.stalls.awaited[stall];
      text += `. It waited ${milliseconds(this.stalls.length[stall] * this.ms)} (${this.data.causes[this.stalls.cause[stall]]}) for ` +
        (awaited < e.start.length ? title(awaited) : "the host, which had not issued it yet");
    }
    this.said.textContent = text;
  }

  draw(context, area, graph) {
    const [from, to] = graph.xAxisRange(), scale = (area.w / (to - from)) * this.ms, x = (ticks) => area.x + (ticks - from / this.ms) * scale;
    context.save();
    context.beginPath();
    context.rect(area.x, area.y, area.w, area.h);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    this.drawMap(context, area, x);
    this.used.forEach((s, row) => this.drawLane(context, area, s, area.y + PHASES + this.size.map + row * this.size.lane, x, scale, from / this.ms));
    this.drawPhases(context, area, x);
    context.restore();
  }

  // Writes a text at a place if it has room there.
  write(context, text, left, base, room) {
    if (context.measureText(text).width <= room) context.fillText(text, left, base);
  }

  drawPhases(context, area, x) {
    this.data.phases.forEach(({ name, start }, i) => {
      const left = Math.max(x(start), area.x), right = Math.min(x(this.data.phases[i + 1]?.start ?? WHOLE), area.x + area.w);
      context.fillStyle = context.strokeStyle = ink("--faint");
      this.write(context, name, left + 4, area.y + 13, right - left - 8);
      if (i === 0 || right < left) return;
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(x(start), area.y);
      context.lineTo(x(start), area.y + area.h);
      context.stroke();
      context.setLineDash([]);
    });
  }

  drawMap(context, area, x) {
    const b = this.blocks, unit = this.size.map / this.top, bottom = area.y + PHASES + this.size.map, right = area.x + area.w;
    context.fillStyle = ink("--panel");
    context.fillRect(area.x, bottom - this.size.map, Math.min(x(WHOLE), right) - area.x, this.size.map);
    for (let i = 0; i < b.start.length; ++i) {
      const left = x(b.start[i]), end = x(b.start[i] + b.length[i]), tall = b.size[i] * unit;
      if (end < area.x || left > right || (end - left < 0.3 && tall < 0.5) || tall < 0.05) continue;
      const [from, to] = [Math.max(left, area.x - 1), Math.min(end, right + 1)], top = bottom - (b.offset[i] + b.size[i]) * unit;
      context.globalAlpha = this.chosen?.block === i ? 1 : OPACITY;
      context.fillStyle = TENSOR_COLOURS[b.kind[i]];
      context.fillRect(from, top, Math.max(to - from, 0.5), Math.max(tall, 0.5));
      context.globalAlpha = 1;
      if (to - from > 4 && tall > 4) {
        context.lineWidth = 0.5;
        context.strokeStyle = ink("--page");
        context.strokeRect(from, top, to - from, tall);
      }
      context.fillStyle = ink("--ink");
      if (tall > 12) this.write(context, this.names[b.name[i]], from + 3, top + Math.min(tall, 16) - 3, to - from - 6);
    }
    this.drawLimit(context, area, bottom, unit);
  }

  drawLimit(context, area, bottom, unit) {
    if (this.data.capacity === null) return;
    const text = `memory limit ${bytes(this.data.capacity)}${this.limit === null ? ", above this picture" : ""}`;
    const y = this.limit === null ? bottom - this.size.map + 14 : bottom - this.limit * unit;
    context.fillStyle = context.strokeStyle = ink("--warn");
    this.write(context, text, area.x + area.w - context.measureText(text).width - 4, y - 3, area.w);
    if (this.limit === null) return;
    context.lineWidth = 1.2;
    context.setLineDash([6, 3]);
    context.beginPath();
    context.moveTo(area.x, y);
    context.lineTo(area.x + area.w, y);
    context.stroke();
    context.setLineDash([]);
  }

  drawLane(context, area, s, top, x, scale, from) {
    const e = this.events, lane = this.lanes[s], right = area.x + area.w;
    context.fillStyle = ink("--faint");
    this.write(context, this.data.streams[s], area.x + 3, top + 9, area.w);
    for (let k = this.firstAfter(lane, from); k < lane.length;) {
      const i = lane[k], left = x(e.start[i]);
      if (left > right) break;
      const long = Math.max(e.length[i] * scale, 0.5), stall = this.stallOf.get(i);
      if (stall !== undefined) {
        const waited = this.stalls.length[stall] * scale;
        context.fillStyle = STALL_COLOUR;
        context.fillRect(left - waited, top + 26, waited, 5);
      }
      context.fillStyle = STREAM_COLOURS[e.what[i] >> 4];
      context.fillRect(left, top + 11, long, 15);
      if (this.chosen?.event === i) {
        context.strokeStyle = ink("--ink");
        context.lineWidth = 2;
        context.strokeRect(left, top + 11, Math.max(long, 3), 15);
      }
      const start = Math.max(left, area.x);
      context.fillStyle = "#ffffff";
      this.write(context, this.names[e.name[i]], start + 3, top + 22, Math.min(left + long, right) - start - 6);
      // Skip events that end within the same pixel.
      k = long >= 1 ? k + 1 : Math.max(k + 1, this.firstAfter(lane, e.start[i] + 0.5 / scale));
    }
  }
}

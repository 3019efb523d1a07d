"use strict";
// Common to all parts of the page: elements, words, and numbers with four significant digits. The page contains all data as JSON; nothing is
// loaded.

const GLOSSARY = JSON.parse(document.getElementById("glossary").textContent);
// For readers who do not know the command line.
GLOSSARY.columns.cost.header = "kernel times";
GLOSSARY.columns.memory_request.header = "memory";
GLOSSARY.columns.policy.help = "the rules by which tensors leave the device memory, come back, or are recomputed";
GLOSSARY.columns.status.help = "whether the workload fits into the memory, or by how much it misses at the first request that fails";
// Columns of fit.
Object.assign(GLOSSARY.columns, {
  remedy: { header: "change", help: "as it is, a change that a user of PyTorch can make, or a policy of research" },
  margin_bytes: { header: "margin", help: "what is left of the memory; negative if it is short" },
  limit: { header: "largest", help: "the largest value that fits" },
  reclaims: { help: "more is reserved than there is, by the negative margin; it fits because the allocator then gives cached memory back, which takes time" },
});
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7F5FBF", "#888888"];
const redraws = [];  // functions that redraw a part whose colours or width have changed, with true for paper

function element(parent, name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Returns the number for people: 1401, 3.996, 0.003614. Whole numbers remain whole, and at most six digits stand behind the point.
function digits(value) {
  if (Number.isInteger(value)) return String(value);
  const exponent = Number(value.toExponential(3).split("e")[1]);
  return value.toFixed(Math.min(Math.max(3 - exponent, 0), 6));
}

// Returns the name and the size of the largest unit that is not above the value.
function byteUnit(value) {
  return [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, size]) => Math.abs(value) >= size) ?? ["B", 1];
}

function bytes(value) {
  const [unit, size] = byteUnit(value);
  return `${digits(value / size)} ${unit}`;
}

function milliseconds(value) {
  return `${digits(value)} ms`;
}

// Returns the smallest and the largest of the values.
function extent(values) {
  return values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
}

// Returns "1 row" or "2 rows".
function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// Returns "a", "a and b", or "a, b and c".
function list(texts) {
  return texts.length < 2 ? texts.join("") : `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;
}

// Returns the words for a column, its unit, and the size of the unit in the column's values: "time", "ms" and 1 for iteration_ms. The unit
// of bytes is GiB, as in the terminal's tables, unless the largest value of the column asks for another.
function wordsOf(name, largest = 2 ** 30) {
  const [unit, size] = name.endsWith("_bytes") ? byteUnit(largest) : [name.endsWith("_ms") ? "ms" : "", 1];
  const header = GLOSSARY.columns[name]?.header || (unit ? name.slice(0, name.lastIndexOf("_")) : name).replaceAll("_", " ");
  return { words: header.replace(/ (GiB|ms)$/, ""), unit, size };
}

const UNITS = { slowdown: "x", samples_per_second: "samples/s", depth: "blocks" };  // of columns whose names do not end with their unit

// Returns what a batch counts: sequences of language models, images, or samples where both or recorded steps are shown.
function samplesOf(rows) {
  const kinds = new Set(rows.map((row) => (row.file ? "samples" : /^(gpt|bert|llama)/.test(row.network ?? row.workload ?? "") ? "sequences" : "images")));
  return kinds.size === 1 ? [...kinds][0] : "samples";
}

function axisName(name, rows) {
  const { words, unit: own } = wordsOf(name), unit = name === "batch" ? samplesOf(rows) : own || UNITS[name];
  return unit ? `${words} (${unit})` : words;
}

// ---- the settings of a row

// The options of a workload's text.
const OPTIONS = ["attention", "optimizer", "precision", "accumulate", "clip_norm", "loss_chunks"];
// Where a run takes place. A setting that follows from others stands behind them: memory_bytes from memory_request and batch.
const PLACE = ["family", "network", "device", "preset", "mode", "backend", "memory_request", "batch", "workload", "file", ...OPTIONS,
               "depth", "memory_bytes", "cost"];
const RIVAL = ["policy", "allocator", "compress", "deterministic", "charge_input"];  // the rivals in one place

function valuesOf(rows, name) {
  return [...new Set(rows.map((row) => row[name] ?? null))];
}

// Returns the rows of each key, by key.
function groupsBy(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    if (groups.has(key)) groups.get(key).push(row);
    else groups.set(key, [row]);
  }
  return groups;
}

// Returns the rows of each combination of values, by a text of these values.
function groupsOf(rows, names) {
  return groupsBy(rows, (row) => JSON.stringify(names.map((name) => row[name] ?? null)));
}

// Returns those of `names` that tell rows apart which `known` does not. A setting that follows from settings before it is not among them.
function tellingApart(rows, names, known = []) {
  const apart = [];
  let count = groupsOf(rows, known).size;
  for (const name of names) {
    const more = groupsOf(rows, [...known, ...apart, name]).size;
    if (more > count) apart.push(name);
    count = more;
  }
  return apart;
}

// Returns the value of a setting as it stands in a sentence: with the words of its column where the value alone says nothing.
function spoken(name, value) {
  if (value === null || value === undefined) return `${OPTIONS.includes(name) ? "default" : "all"} ${wordsOf(name).words}`;
  if (name === "memory_bytes") return bytes(value);
  if (name === "file") return value.split("/").pop();
  return typeof value === "string" && !["preset", "mode", "compress", "accumulate", "clip_norm", "loss_chunks"].includes(name) ? value : `${wordsOf(name).words} ${value}`;
}

// Tables: sorted by a click on a header. They first show the columns that matter.

const SHOWN = 500;  // rows that are shown at once
const LONG = 60;  // rows from which on a table scrolls
const MATTER = ["network", "batch", "workload", "device", "memory_request", "policy", "status", "iteration_ms", "predicted_iteration_ms",
                "measured_iteration_ms", "error", "slowdown", "samples_per_second", "peak_allocated_bytes", "offloaded_bytes", "recompute_ms", "stall_ms"];
// The columns of fit that matter. Its rows have the code of a change below them.
const FIT = ["workload", "batch", "device", "remedy", "limit", "next", "status", "margin_bytes", "iteration_ms", "slowdown", "peak_reserved_bytes"];
const FEW = 10;  // columns that are shown first in a table that has none of these
const explained = new Set();  // the columns and policies that the page shows and the glossary knows

// Returns by how many bytes the memory was too small for the request that failed, or null if that is not known.
function missing(row) {
  return (row.status === "oom" && row.missing_bytes) || null;
}

function statusOf(row) {
  if (row.status === "ok") return "fits";
  if (row.status === "no") return row.margin_bytes < 0 ? `misses by ${bytes(-row.margin_bytes)}` : "does not fit";
  if (row.status !== "oom") return row.status;
  return missing(row) === null ? "does not fit" : `misses by ${bytes(missing(row))}`;
}

// Returns the text of a value, in units of the given size.
function cell(value, size) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value) && typeof (value[0] ?? {}) === "object") return `${value.length} entries`;
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? digits(value / size) : value;
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// Returns the rows in the order of a column, those without a value last.
function sorted(rows, by, up) {
  return [...rows].sort((a, b) => {
    const [x, y] = [a[by] ?? null, b[by] ?? null];
    return x === null || y === null ? (x === null) - (y === null) : compare(x, y) * (up ? 1 : -1);
  });
}

// Returns the rows that have a time, the fastest first.
function timed(rows) {
  return sorted(rows.filter((row) => typeof row.iteration_ms === "number"), "iteration_ms", true);
}

// Returns those of `timed(rows)` that are as fast as the first in the digits that people read.
function winnersOf(fast) {
  return fast.filter((row) => digits(row.iteration_ms) === digits(fast[0].iteration_ms));
}

// Adds a sentence with the settings that all rows share. Returns their names.
function shared(parent, rows) {
  const names = [...new Set(["workload", ...PLACE, "allocator"])].filter((name) => rows[0][name] && valuesOf(rows, name).length === 1);
  const without = { network: "workload", batch: "workload", memory_bytes: "memory_request" };  // those that others tell, too
  const told = names.filter((name) => !names.includes(without[name]));
  const facts = told.map((name) => `${wordsOf(name).words} ${name === "memory_bytes" ? bytes(rows[0][name]) : rows[0][name]}`);
  told.forEach((name) => explained.add(name));
  element(parent, "p", { class: "shared" }, rows.length > 1 ? `The same in all rows: ${facts.join(", ")}.` : `${facts.join(", ")}.`);
  return names;
}

// A table. The rows of `results` are results, whose shared settings stand above the table.
class Table {
  constructor(parent, rows, title, results = false) {
    this.rows = rows;
    this.results = results;
    this.all = [...new Set([...(results ? MATTER : []), ...rows.flatMap((row) => Object.keys(row))])]
      .filter((name) => rows.some((row) => (row[name] ?? null) !== null));
    this.fits = rows.length > 0 && ["change", "margin_bytes"].every((name) => name in rows[0]);
    const told = (results || this.fits) && rows.length > 0 ? shared(parent, rows) : [];
    this.few = this.fits ? FIT.filter((name) => this.all.includes(name) && !told.includes(name)) : results ? this.mattering(told) : this.all.slice(0, FEW);
    this.whole = false;
    this.numeric = new Set(this.all.filter((name) => rows.some((row) => typeof row[name] === "number")));
    const largest = (name) => extent(rows.map((row) => row[name]).filter((value) => typeof value === "number"))[1];
    this.meaning = new Map(this.all.map((name) => [name, results ? wordsOf(name) : wordsOf(name, largest(name))]));
    const places = results ? [...groupsOf(rows, PLACE).values()] : [];
    this.rank(places);
    this.by = places.length === 1 && this.all.includes("iteration_ms") ? "iteration_ms" : null;
    this.up = true;

    const box = element(parent, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${title}` });
    box.classList.toggle("long", rows.length > LONG);
    this.table = element(box, "table");
    element(this.table, "caption", {}, `${rows.length > SHOWN ? `The first ${SHOWN}, as sorted, of ` : ""}${count(rows.length, "row")}`);
    this.head = element(element(this.table, "thead"), "tr");
    this.body = element(this.table, "tbody");
    this.fill();
    if (this.few.length < this.all.length) this.addSwitch(parent);
    if (this.fits) for (const name of [...this.few, ...valuesOf(rows, "status").filter((name) => name === "reclaims")]) explained.add(name);
    if (!results) return;
    for (const name of [...this.few, ...valuesOf(rows, "policy").map((policy) => String(policy).split(":")[0])]) explained.add(name);
  }

  // Returns the columns of results that matter and are not among those told already.
  mattering(told) {
    const names = this.all.filter((name) => MATTER.includes(name) && !told.includes(name) && !(name === "workload" && this.all.includes("network")));
    return names.at(-1) === "status" && this.all.includes("reason") ? [...names, "reason"] : names;
  }

  // Finds the fastest rows of each place, and each time as a share of the longest there.
  rank(places) {
    this.best = new Set();
    this.share = new Map();
    for (const fast of places.map(timed).filter((fast) => fast.length > 0)) {
      if (this.rows.length > places.length) winnersOf(fast).forEach((row) => this.best.add(row));
      fast.forEach((row) => this.share.set(row, row.iteration_ms / fast[fast.length - 1].iteration_ms));
    }
  }

  addSwitch(parent) {
    const controls = element(parent, "div", { class: "controls" });
    const button = element(controls, "button", { type: "button", "aria-pressed": "false" }, `All ${this.all.length} columns`);
    const show = (whole) => {
      this.whole = whole;
      button.setAttribute("aria-pressed", String(whole));
      this.fill();
    };
    button.addEventListener("click", () => show(!this.whole));
    redraws.push((paper) => paper && this.whole && show(false));  // all columns are wider than paper
  }

  // Returns the class of a column's cells. A narrow page shows the first columns, up to the time.
  classOf(name) {
    const wide = this.few.indexOf(name) >= Math.max(5, this.few.indexOf("iteration_ms") + 1);
    return `${this.numeric.has(name) ? "number" : "text"} ${wide ? "wide" : ""}`;
  }

  get names() { return this.whole ? this.all : this.few; }

  fill() {
    this.table.className = this.whole || !this.results ? "" : "few";
    this.head.replaceChildren();
    this.names.forEach((name) => this.addHeading(name));
    this.body.replaceChildren();
    const rows = this.by === null ? this.rows : sorted(this.rows, this.by, this.up);
    rows.slice(0, SHOWN).forEach((row) => this.addRow(row));
  }

  addHeading(name) {
    const { words, unit } = this.meaning.get(name), order = this.by !== name ? "none" : this.up ? "ascending" : "descending";
    const heading = element(this.head, "th", { scope: "col", class: this.classOf(name), "aria-sort": order });
    heading.title = GLOSSARY.columns[name]?.help ?? "";
    element(heading, "button", { type: "button" }, unit ? `${words} ${unit}` : words).addEventListener("click", () => {
      [this.up, this.by] = [this.by === name ? !this.up : true, name];
      this.fill();
      this.head.children[this.names.indexOf(name)].firstChild.focus();
    });
  }

  // The reason of a failure stands in place of the values that the row lacks, or below the row if many columns stand before them.
  addRow(row) {
    const kind = `${row.status ?? ""} ${this.best.has(row) ? "best" : ""}`, line = element(this.body, "tr", { class: kind });
    const known = this.names.indexOf("status") + 1, reason = !this.whole && known > 0 && row.reason, below = known > 3 || this.fits;
    for (const name of reason && !below ? this.names.slice(0, known) : this.names) this.addCell(line, row, name);
    if (!this.whole && this.fits && row.python) {
      element(element(this.body, "tr", { class: kind }), "td", { class: "code", colspan: this.names.length }, row.python);
    }
    if (!reason) return;
    const place = below ? element(this.body, "tr", { class: kind }) : line, free = this.names.length - (below ? 0 : known);
    const [sentence] = reason.split(/\. (?=[A-Z])/);
    element(place, "td", { class: "reason", colspan: Math.max(free, 1), title: reason }, sentence);
  }

  addCell(line, row, name) {
    const text = (this.results || this.fits) && name === "status" ? statusOf(row)
      : this.fits && name === "remedy" ? row.remedy ?? (row.change === "none" ? "as it is" : row.policy)
      : cell(row[name], this.meaning.get(name).size);
    const made = element(line, "td", { class: this.classOf(name) });
    // Names such as vdnn-all:algo=memory break between their parts.
    text.split(/(?<=[:=,/])/).forEach((part) => made.append(part, document.createElement("wbr")));
    if (name !== "iteration_ms" || !this.share.has(row)) return;
    made.classList.add("bar");
    made.style.setProperty("--share", `${100 * this.share.get(row)}%`);
  }
}

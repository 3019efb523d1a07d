// Tables: sorted by a click on a header. They first show the columns that matter.

const SHOWN = 500;  // rows that are shown at once
const LONG = 60;  // rows from which on a table scrolls
const MATTER = ["network", "batch", "workload", "device", "memory_request", "policy", "status", "iteration_ms", "predicted_iteration_ms", "measured_iteration_ms",
                "error", "slowdown", "samples_per_second", "peak_allocated_bytes", "offloaded_bytes", "recompute_ms", "stall_ms"];
const FEW = 10;  // columns that are shown first in a table that has none of these
const explained = new Set();  // the columns and policies that the page shows and the glossary knows

// Returns by how many bytes the memory was too small for the request that failed, or null if that is not known.
function missing(row) {
  return (row.status === "oom" && row.missing_bytes) || null;
}

function statusOf(row) {
  if (row.status === "ok") return "fits";
  if (row.status !== "oom") return row.status;
  return missing(row) === null ? "does not fit" : `misses by ${bytes(missing(row))}`;
}

// Returns the text of a value, whose column has units of the given size.
function cell(name, row, size) {
  const value = row[name];
  if (value === null || value === undefined) return "–";
  if (name === "status") return statusOf(row);
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
  const names = ["workload", ...PLACE, "allocator"].filter((name, i, all) => all.indexOf(name) === i && valuesOf(rows, name).length === 1 && rows[0][name]);
  const told = names.filter((name) => !(["network", "batch"].includes(name) && names.includes("workload")) && !(name === "memory_bytes" && names.includes("memory_request")));
  const facts = told.map((name) => `${wordsOf(name).words.replace(" request", "")} ${name === "memory_bytes" ? bytes(rows[0][name]) : rows[0][name]}`);
  told.forEach((name) => explained.add(name));
  element(parent, "p", { class: "shared" }, rows.length > 1 ? `The same in all rows: ${facts.join(", ")}.` : `${facts.join(", ")}.`);
  return names;
}

// Adds a table. `results`: the rows are results, whose shared settings stand above the table.
function table(parent, rows, title, results = false) {
  const told = results && rows.length > 0 ? shared(parent, rows) : [];
  const all = [...new Set([...(results ? MATTER : []), ...rows.flatMap((row) => Object.keys(row))])].filter((name) => rows.some((row) => (row[name] ?? null) !== null));
  const key = all.filter((name) => MATTER.includes(name) && !told.includes(name) && !(name === "workload" && all.includes("network")));
  const few = results ? (key.at(-1) === "status" ? [...key, "reason"].filter((name) => all.includes(name)) : key) : all.slice(0, FEW);
  const places = results ? [...groupsOf(rows, PLACE).values()] : [];
  const best = new Set(), share = new Map();  // the fastest rows of each place, and each time as a share of the longest there
  for (const fast of places.map(timed).filter((fast) => fast.length > 0)) {
    if (rows.length > places.length) winnersOf(fast).forEach((row) => best.add(row));
    fast.forEach((row) => share.set(row, row.iteration_ms / fast[fast.length - 1].iteration_ms));
  }
  const largest = (name) => Math.max(...rows.map((row) => (typeof row[name] === "number" ? row[name] : 0)));
  const meaning = new Map(all.map((name) => [name, results ? wordsOf(name) : wordsOf(name, largest(name))]));
  let whole = false, by = places.length === 1 && all.includes("iteration_ms") ? "iteration_ms" : null, up = true;

  const box = element(parent, "div", { class: rows.length > LONG ? "scroll long" : "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${title}` });
  const made = element(box, "table");
  element(made, "caption", {}, rows.length > SHOWN ? `The first ${SHOWN} of ${rows.length} rows, as sorted` : `${rows.length} ${rows.length === 1 ? "row" : "rows"}`);
  const head = element(element(made, "thead"), "tr");
  const body = element(made, "tbody");

  const fill = () => {
    const names = whole ? all : few, numeric = (name) => rows.some((row) => typeof row[name] === "number");
    made.className = whole || !results ? "" : "few";
    head.replaceChildren();
    for (const name of names) {
      const { words, unit } = meaning.get(name);
      const heading = element(head, "th", { scope: "col", class: numeric(name) ? "number" : "", "aria-sort": by !== name ? "none" : up ? "ascending" : "descending", title: GLOSSARY.columns[name]?.help ?? "" });
      element(heading, "button", { type: "button" }, unit ? `${words} ${unit}` : words).addEventListener("click", () => {
        [up, by] = [by === name ? !up : true, name];
        fill();
        head.children[names.indexOf(name)].firstChild.focus();
      });
      if (results) explained.add(name);
    }
    body.replaceChildren();
    for (const row of (by === null ? rows : sorted(rows, by, up)).slice(0, SHOWN)) {
      const line = element(body, "tr", { class: `${row.status ?? ""} ${best.has(row) ? "best" : ""}` });
      const reason = whole || !few.includes("status") ? "" : row.reason;  // stands in place of the values that the row lacks
      for (const name of reason ? names.slice(0, names.indexOf("status") + 1) : names) {
        const bar = name === "iteration_ms" && share.has(row);
        const made = element(line, "td", { class: `${numeric(name) ? "number" : "text"} ${bar ? "bar" : ""}` });
        // Names such as vdnn-all:algo=memory break between their parts.
        cell(name, row, meaning.get(name).size).split(/(?<=[:=,/])/).forEach((part) => made.append(part, document.createElement("wbr")));
        if (bar) made.style.setProperty("--share", `${100 * share.get(row)}%`);
      }
      if (reason) element(line, "td", { class: "reason", colspan: Math.max(names.length - names.indexOf("status") - 1, 1), title: reason }, reason.split(/\. (?=[A-Z])/)[0]);
      if (results && row.policy) explained.add(String(row.policy).split(":")[0]);
    }
  };
  fill();
  if (few.length === all.length) return;
  const switches = element(parent, "div", { class: "controls" });
  const button = element(switches, "button", { type: "button", "aria-pressed": "false" }, `All ${all.length} columns`);
  const show = (every) => {
    whole = every;
    button.setAttribute("aria-pressed", String(whole));
    fill();
  };
  button.addEventListener("click", () => show(!whole));
  redraws.push((paper) => paper && whole && show(false));  // all columns are wider than paper
}

// Fills the sections of the page from their data.

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

// Adds the workload and the device of all rows to a heading that does not name them.
function nameWorkload(heading, rows) {
  const [[workload, ...workloads], [device, ...devices]] = [valuesOf(rows, "workload"), valuesOf(rows, "device")];
  const same = workload && device && workloads.length + devices.length === 0;
  if (same && !heading.textContent.includes(workload)) heading.append(`: ${workload} on ${device}`);
}

function fill(section, heading) {
  const from = document.getElementById(section.dataset.from);
  const parts = JSON.parse(from.textContent);
  from.textContent = "";
  if (section.dataset.kind === "timeline") return void new Timeline(section, parts);
  const rows = Array.isArray(parts) ? parts : parts.rows ?? [parts.row];
  const results = section.dataset.kind === "results";
  if (results) nameWorkload(heading, rows);
  if (results) summary(section, rows);
  if (section.dataset.kind === "validation") validationPlot(section, rows);
  if (results) sweepPlots(section, rows);
  new Table(section, rows, heading.textContent, section.dataset.kind !== "table");
  for (const [name, part] of Array.isArray(parts) ? [] : Object.entries(parts)) {
    if (["schema", "rows", "row"].includes(name) || part.length === 0) continue;
    for (const [title, list] of lists(name, part)) {
      element(section, "h3", {}, title.replaceAll("_", " "));
      new Table(section, list, `${title.replaceAll("_", " ")} of ${heading.textContent}`);
    }
  }
}

// Adds a section with the meaning of the columns and policies that the page shows.
function addGlossary() {
  const meanings = [...explained].map((name) => [wordsOf(name).words, GLOSSARY.columns[name]?.help ?? GLOSSARY.policies[name]])
    .filter(([, meaning]) => meaning);
  if (meanings.length === 0) return;
  const section = element(document.querySelector("main"), "section", { "aria-labelledby": "title-words" });
  element(section, "h2", { id: "title-words" }, "What the words mean");
  const terms = element(section, "dl");
  for (const [word, meaning] of meanings) {
    const term = element(terms, "div");
    element(term, "dt", {}, word);
    element(term, "dd", {}, meaning);
  }
}

for (const section of document.querySelectorAll("section")) fill(section, section.querySelector("h2"));
for (const timeline of timelines) {
  timeline.start();
  timeline.scale.hidden = timelines.length === 1;
}
addGlossary();
for (const heading of document.querySelectorAll("h2")) element(document.querySelector("nav"), "a", { href: `#${heading.id}` }, heading.textContent);

const root = document.documentElement;
const redraw = (paper) => redraws.forEach((each) => each(paper));
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  redraw(false);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
// Paper is narrow, white and fine.
let screen = "";
addEventListener("beforeprint", () => {
  screen = root.dataset.theme;
  root.dataset.theme = "light";
  document.body.classList.add("paper");
  redraw(true);
});
addEventListener("afterprint", () => {
  if (screen) root.dataset.theme = screen;
  else delete root.dataset.theme;
  document.body.classList.remove("paper");
  redraw(false);
});
root.dataset.ready = String(Math.round(performance.now()));

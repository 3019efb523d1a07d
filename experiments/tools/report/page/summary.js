// The sentences at the top of a comparison, computed from its rows.

function percent(share) {
  return `${digits(100 * share)} %`;
}

// Returns the names, or their number if there are more than three.
function few(names) {
  return names.length > 3 ? `${names.length} policies` : list(names);
}

// Returns by how much less time the first of two rows takes.
function lead(first, second) {
  return 1 - first.iteration_ms / second.iteration_ms;
}

function median(values) {
  const order = [...values].sort((a, b) => a - b);
  return (order[(order.length - 1) >> 1] + order[order.length >> 1]) / 2;
}

// Returns sentences on the rows that have no result. `memory` names the memory that they do not fit into.
function losers(rows, nameOf, memory) {
  const lost = sorted(rows.filter((row) => row.status === "oom"), "missing_bytes", true), known = lost.filter((row) => missing(row) !== null);
  const failed = rows.filter((row) => row.status === "failed").map(nameOf), said = [];
  const short = (row) => `by at least ${bytes(missing(row))}`;
  if (lost.length > 3) {
    const [nearest, farthest] = [known[0], known.at(-1)];
    const range = known.length > 0 ? `: ${nameOf(nearest)} misses ${short(nearest)}, and ${nameOf(farthest)}, the farthest off, ${short(farthest)}` : "";
    said.push(`${lost.length} do not fit into ${memory}${range}.`);
  } else if (lost.length > 0) {
    const others = lost.filter((row) => missing(row) === null).map(nameOf), rest = `${list(others)} ${others.length > 1 ? "do" : "does"} not fit`;
    said.push(`${list([...known.map((row) => `${nameOf(row)} misses ${short(row)}`), ...(others.length > 0 ? [rest] : [])])}.`);
  }
  if (failed.length > 0) said.push(`${few(failed)} failed.`);
  return said;
}

// Returns a sentence on the fastest of the rows, which are sorted by time and were `tried` in all.
function victory(fast, tried, nameOf, memory) {
  const winners = winnersOf(fast), [best] = fast, next = fast[winners.length], slowest = fast.at(-1), name = few(winners.map(nameOf));
  const alone = `${tried > 1 ? "Only " : ""}${name} fits into ${memory}`;
  let text = fast.length === 1 ? alone : `${name} ${winners.length > 1 ? "are equally fast" : "is the fastest"} in ${memory}`;
  text += `: ${milliseconds(best.iteration_ms)} per iteration`;
  if (next) text += `, ${percent(lead(best, next))} less than ${nameOf(next)}`;
  if (next && next !== slowest) text += ` and ${percent(lead(best, slowest))} less than ${nameOf(slowest)}, the slowest`;
  if (typeof best.slowdown === "number") text += `. With unlimited memory an iteration takes ${milliseconds(best.iteration_ms / best.slowdown)}`;
  return `${text}.`;
}

// Returns sentences on the rivals in one place.
function verdict(rows, nameOf) {
  const memory = typeof rows[0].memory_bytes === "number" ? bytes(rows[0].memory_bytes) : "the memory of the device";
  const fast = timed(rows), fits = rows.filter((row) => row.status === "ok").length, said = [];
  if (fast.length > 0) said.push(victory(fast, rows.length, nameOf, memory));
  else if (fits > 0) said.push(`${fits} of ${count(rows.length, "run")} fit into ${memory}.`);
  else if (rows.length > 1) said.push(`None of the ${rows.length} policies fits into ${memory}.`);
  return [...said, ...losers(rows, nameOf, memory)];
}

// Returns the names of the largest groups, and their size.
function mostOften(groups) {
  const most = Math.max(0, ...[...groups.values()].map((group) => group.length));
  return [[...groups.keys()].filter((name) => groups.get(name).length === most), most];
}

// Returns sentences on who is the fastest in most places. A tie counts for each of the rivals that are fastest.
function champions(places, where, nameOf) {
  const races = places.map(timed).filter((fast) => fast.length > 0), [leaders, won] = mostOften(groupsBy(races.flatMap(winnersOf), nameOf));
  if (won === 0) return [];
  const clear = races.filter((fast) => fast.length > 1 && winnersOf(fast).length === 1 && leaders.includes(nameOf(fast[0])));
  const ahead = clear.length > 0 ? `, with ${percent(median(clear.map(([first, next]) => lead(first, next))))} less time than the next (median)` : "";
  return [`${few(leaders)} ${leaders.length > 1 ? "are each" : "is"} the fastest in ${won} of ${where}${ahead}.`];
}

// Returns sentences on rivals in several places, which the settings `apart` tell apart.
function tally(places, apart, nameOf) {
  const rows = places.flat(), ok = (row) => row.status === "ok", rivals = [...groupsBy(rows, nameOf).keys()];
  const where = `${places.length} ${apart.length > 1 ? "combinations" : "values"} of ${list(apart.map((name) => wordsOf(name).words))}`;
  const some = places.filter((place) => place.some(ok)).length, [keepers, kept] = mostOften(groupsBy(rows.filter(ok), nameOf));
  const said = rivals.length > 1 ? champions(places, where, nameOf) : [`${rivals[0]} fits in ${some} of ${where}.`];
  if (rivals.length > keepers.length && kept > 0) {
    said.push(`${few(keepers)} ${keepers.length > 1 ? "fit" : "fits"} in ${kept === places.length ? "all" : `the most, ${kept}`}.`);
  }
  if (rivals.length > 1 && some === 0) said.push(`Nothing fits in any of ${where}.`);
  else if (rivals.length > 1 && some < places.length) said.push(`In ${places.length - some} of them nothing fits.`);
  const lost = rows.filter((row) => row.status === "oom"), short = lost.map(missing).filter((size) => size !== null);
  const range = short.length > 0 ? `, and miss by at least ${[...new Set(extent(short).map(bytes))].join(" to ")}` : "";
  if (lost.length > 0) said.push(`${lost.length} of ${rows.length} runs do not fit${range}.`);
  const failed = rows.filter((row) => row.status === "failed").length;
  return failed > 0 ? [...said, `${failed} failed.`] : said;
}

// Adds the sentences on a comparison.
function summary(parent, rows) {
  if (rows.length === 0) return;
  const apart = tellingApart(rows, PLACE), rivals = tellingApart(rows, RIVAL, apart), places = [...groupsOf(rows, apart).values()];
  const nameOf = (row) => rivals.map((name) => spoken(name, row[name])).join(", ") || String(row.policy);
  element(parent, "p", { class: "summary" }, (places.length === 1 ? verdict(rows, nameOf) : tally(places, apart, nameOf)).join(" "));
}

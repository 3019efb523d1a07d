// The sentences at the top of a comparison, computed from its rows.

// Returns the name of a rival: its policy, or the settings that tell it from the others.
function rivalOf(row, rivals) {
  return rivals.length === 0 ? String(row.policy) : rivals.map((name) => spoken(name, row[name])).join(", ");
}

function percent(share) {
  return `${digits(100 * share)} %`;
}

// Returns the words on by how much a row misses; empty if that is not known.
function byHowMuch(row) {
  return missing(row) === null ? "" : ` by at least ${bytes(missing(row))}`;
}

// Returns the names, or their number if there are more than three.
function few(names) {
  return names.length > 3 ? `${names.length} policies` : list(names);
}

// Returns sentences on the rows that have no result.
function losers(rows, nameOf, memory) {
  const said = [];
  const lost = sorted(rows.filter((row) => row.status === "oom"), "missing_bytes", true);
  const known = lost.filter((row) => missing(row) !== null), farthest = known[known.length - 1];
  if (lost.length > 3) {
    said.push(`${lost.length} do not fit into ${memory}` + (known.length === 0 ? "." : `: ${nameOf(known[0])} misses${byHowMuch(known[0])}, and ${nameOf(farthest)}, the farthest off,${byHowMuch(farthest)}.`));
  } else if (lost.length > 0) {
    said.push(`${list(lost.map((row) => `${nameOf(row)} ${missing(row) === null ? "does not fit" : `misses${byHowMuch(row)}`}`))}.`);
  }
  const failed = rows.filter((row) => row.status === "failed").map(nameOf);
  if (failed.length > 0) said.push(`${few(failed)} failed.`);
  return said;
}

// Returns sentences on the rivals in one place.
function verdict(rows, nameOf) {
  const memory = typeof rows[0].memory_bytes === "number" ? bytes(rows[0].memory_bytes) : "the memory of the device";
  const fast = timed(rows), fitting = rows.filter((row) => row.status === "ok");
  const said = [];
  if (fitting.length === 0 && rows.length > 1) said.push(`None of the ${rows.length} policies fits into ${memory}.`);
  else if (fast.length === 0 && fitting.length > 0) said.push(`${fitting.length} of ${rows.length} policies fit into ${memory}.`);
  if (fast.length > 0) {
    const winners = winnersOf(fast), [best] = fast, next = fast[winners.length], slowest = fast[fast.length - 1];
    const name = few(winners.map(nameOf)), time = `${milliseconds(best.iteration_ms)} per iteration`;
    let text = fast.length === 1 && rows.length > 1 ? `Only ${name} fits into ${memory}: ${time}` : fast.length === 1 ? `${name} fits into ${memory}: ${time}`
      : winners.length === 1 ? `${name} is the fastest in ${memory}: ${time}` : `${name} are equally fast in ${memory}: ${time}`;
    if (next) text += `, ${percent(1 - best.iteration_ms / next.iteration_ms)} less than ${nameOf(next)}`;
    if (next && slowest !== next) text += ` and ${percent(1 - best.iteration_ms / slowest.iteration_ms)} less than ${nameOf(slowest)}, the slowest`;
    if (typeof best.slowdown === "number") text += `. With unlimited memory an iteration takes ${milliseconds(best.iteration_ms / best.slowdown)}`;
    said.push(`${text}.`);
  }
  return [...said, ...losers(rows, nameOf, memory)];
}

function median(values) {
  const order = [...values].sort((a, b) => a - b);
  return (order[(order.length - 1) >> 1] + order[order.length >> 1]) / 2;
}

// Returns the names of the largest groups, and their size.
function mostOften(groups) {
  const most = Math.max(0, ...[...groups.values()].map((group) => group.length));
  return [[...groups.keys()].filter((name) => groups.get(name).length === most), most];
}

// Returns sentences on rivals in several places. A tie counts for each of the rivals that are fastest.
function tally(places, apart, nameOf) {
  const rows = places.flat(), fitting = rows.filter((row) => row.status === "ok"), rivals = [...groupsBy(rows, nameOf).keys()];
  const nothing = places.filter((place) => !place.some((row) => row.status === "ok")).length;
  const where = `${places.length} ${apart.length > 1 ? "combinations" : "values"} of ${list(apart.map((name) => wordsOf(name).words.replace(" request", "")))}`;
  const said = [], races = places.map(timed).filter((fast) => fast.length > 0), [leaders, won] = mostOften(groupsBy(races.flatMap(winnersOf), nameOf));
  if (rivals.length === 1) {
    said.push(`${rivals[0]} fits in ${places.length - nothing} of ${where}.`);
  } else if (won > 0) {
    const leads = races.filter((fast) => fast.length > 1 && winnersOf(fast).length === 1 && leaders.includes(nameOf(fast[0]))).map(([first, next]) => 1 - first.iteration_ms / next.iteration_ms);
    said.push(`${few(leaders)} ${leaders.length > 1 ? "are each" : "is"} the fastest in ${won} of ${where}` + (leads.length > 0 ? `, with ${percent(median(leads))} less time than the next (median).` : "."));
  }
  const [keepers, kept] = mostOften(groupsBy(fitting, nameOf));
  if (rivals.length > keepers.length && kept > 0) said.push(`${few(keepers)} ${keepers.length > 1 ? "fit" : "fits"} in ${kept === places.length ? "all" : `the most, ${kept}`}.`);
  if (nothing > 0 && rivals.length > 1) said.push(nothing < places.length ? `In ${nothing} of them nothing fits.` : `Nothing fits in any of ${where}.`);
  const short = rows.map(missing).filter((size) => size !== null), lost = rows.filter((row) => row.status === "oom").length;
  const range = [...new Set(extent(short).map(bytes))].join(" to ");
  if (lost > 0) said.push(`${lost} of ${rows.length} runs do not fit${short.length > 0 ? `, and miss by at least ${range}` : ""}.`);
  const failed = rows.filter((row) => row.status === "failed").length;
  if (failed > 0) said.push(`${failed} failed.`);
  return said;
}

// Adds the sentences on a comparison.
function summary(parent, rows) {
  if (rows.length === 0) return;
  const apart = tellingApart(rows, PLACE), rivals = tellingApart(rows, RIVAL, apart), places = [...groupsOf(rows, apart).values()];
  const nameOf = (row) => rivalOf(row, rivals);
  element(parent, "p", { class: "summary" }, (places.length === 1 ? verdict(rows, nameOf) : tally(places, apart, nameOf)).join(" "));
}

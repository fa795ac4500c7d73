// Two to six runs or evaluations side by side; differences are against the first.

import { el, fixed, grade, gradeLegend, gradeMark, num } from "../dom.js";
import { every, get } from "../api.js";
import { chart, colour, isSet, swatch } from "../chart.js";
import { link } from "../place.js";

export async function show(main, place) {
  const keys = place.query.keys || "";
  const path = "/api/compare?keys=" + encodeURIComponent(keys), told = await get(path);
  const names = Object.fromEntries(told.sides.map((side) => [side.key, side.name]));
  const stops = [];
  main.append(el("h1", null, told.sides.map((side) => side.name).join(" · ")));
  if (Object.values(told.pairs).some((pair) => pair.difference)) main.append(el("p", { class: "soft about" }, "Differences are against ", el("strong", null, told.sides[0].name), ", over the problems that both graded."));
  main.append(...told.notes.map((note) => el("div", { class: "notice notice-warn" }, note)));
  main.append(overall(told, names), sidesLegend(told), differs(told));
  if (Object.keys(told.curves).length) main.append(el("h2", null, "Curves"), curves(told, names, stops, path));
  if (told.cells.length) main.append(el("h2", null, "Accuracy by length"), lengths(told, names, stops), el("div", { class: "scroll" }, table(told, names)));
  if (told.seeds.length) main.append(el("h2", null, "Over sides that differ by their seed alone"), seeds(told));
  if (told.flips.length) main.append(el("h2", null, `Problems whose score differs (${told.flips.length})`), unrecorded(told), flips(told));
  return () => stops.forEach((stop) => stop());
}

function overall(told, names) {
  const rows = Object.entries(told.pairs).filter((pair) => pair[1].difference).map(([key, pair]) => {
    const d = pair.difference;
    return el("p", null, el("strong", null, names[key]), ` is ${signed(d.mean)} points (95% interval ${end(d.low)} to ${end(d.high)}, p ${probability(d.p)}) over ${pair.counted}: ${d.better} better, ${d.worse} worse.`);
  });
  return rows.length ? el("div", { class: "notice" }, rows) : "";
}

function sidesLegend(told) {
  const sides = told.sides.map((side, at) => [swatch(colour({}, at)), side.name]);
  const decided = [[el("span", { class: "better" }, "≠"), "better than the first side: the interval excludes 0"], [el("span", { class: "worse" }, "≠"), "worse"]];
  return gradeLegend(...sides, ...decided);
}

const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + fixed(Math.abs(100 * value), 1);

const end = (value) => (value < 0 ? "−" : "+") + fixed(Math.abs(100 * value), 0);

const probability = (p) => (p >= 0.001 ? p.toFixed(3) : "<0.001");

function differs(told) {
  const rows = Object.entries(told.differs);
  if (!rows.length) return el("p", { class: "soft" }, "Their configurations are the same.");
  const head = el("tr", null, el("th", { scope: "col" }, "Key"), told.sides.map((side) => el("th", { scope: "col" }, side.name)));
  const body = rows.map(([key, values]) => el("tr", null, el("td", { class: "mono" }, key), values.map((value) => el("td", { class: "mono" + (value === null ? " faint" : "") }, value === null ? "–" : JSON.stringify(value)))));
  return el("details", { open: rows.length <= 30 }, el("summary", null, `What differs in the configuration (${rows.length === 1 ? "1 key" : rows.length + " keys"})`), el("table", { class: "rows plain" }, el("thead", null, head), el("tbody", null, body)));
}

// Curves that follow their runs; a key that comes later gets its chart behind the others.
function curves(told, names, stops, path) {
  const holder = el("div", { class: "charts" }), charts = new Map();
  let domain = null;
  function draw(drawn) {
    for (const [title, bands] of Object.entries(drawn)) {
      const series = bands.map((band) => seriesOf(band, names, told.sides));
      if (charts.has(title)) charts.get(title).draw({ series });
      else charts.set(title, chart(holder, { title, series, domain, smoothing: isSet(title) ? 0 : 0.8, legend: true, height: 210, onzoom: zoom }));
    }
  }
  function zoom(wanted) {
    domain = wanted;
    charts.forEach((each) => each.draw({ domain }));
  }
  draw(told.curves);
  stops.push(() => charts.forEach((each) => each.stop()), every(2, async () => draw((await get(path)).curves)));
  return holder;
}

function seriesOf(band, names, sides) {
  return {
    colour: placeOf(band.keys[0], sides),
    name: band.keys.map((key) => names[key]).join(", "),
    points: band.steps.map((step, at) => [step, band.mean[at]]),
    band: band.keys.length > 1 ? band.steps.map((step, at) => [step, band.low[at], band.high[at]]) : null,
  };
}

// A side has one colour in all charts: that of its place.
function placeOf(key, sides) {
  return sides.findIndex((side) => side.key === key);
}

function lengths(told, names, stops) {
  const holder = el("div", { class: "charts wide" });
  const tasks = [...new Set(told.cells.filter((cell) => cell.size !== null).map((cell) => cell.task))];
  for (const task of tasks) {
    const own = told.cells.filter((cell) => cell.task === task && cell.size !== null);
    const series = told.sides.map((side) => {
      const cells = own.filter((cell) => cell.sides[side.key] && cell.sides[side.key].mean !== null);
      return { name: names[side.key], colour: placeOf(side.key, told.sides), marks: true, points: cells.map((cell) => [cell.size, cell.sides[side.key].mean]), band: cells.map((cell) => [cell.size, cell.sides[side.key].low, cell.sides[side.key].high]) };
    }).filter((each) => each.points.length);
    if (series.length) stops.push(chart(holder, { title: task, yName: "accuracy", series, log: true, xName: "length", range: [0, 1.02], height: 220, legend: true }).stop);
  }
  return holder;
}

// The rows of `palimpsest compare`: a part and a side, with the difference of the problems that both graded.
function table(told, names) {
  const differ = told.cells.some((cell) => Object.values(cell.pairs).some((pair) => pair.difference));
  const titles = ["Part", "Side", "Problems", "Ungraded", "Accuracy, %", "95%", ...(differ ? ["Difference", "95%", "p"] : []), "Turns", "Tokens a problem"];
  const head = el("tr", null, titles.map((title, at) => el("th", { scope: "col", class: at > 1 ? "number" : null }, title)));
  const body = told.cells.flatMap((cell) => told.sides.filter((side) => cell.sides[side.key]).map((side, at, own) => row(cell, side, differ, at ? 0 : own.length, told, names)));
  return el("table", { class: "rows" }, el("thead", null, head), el("tbody", null, body));
}

function row(cell, side, differ, parts, told, names) {
  const own = cell.sides[side.key], pair = cell.pairs[side.key], d = pair && pair.difference;
  const decided = d && (d.low > 0 || d.high < 0);
  const number = (text, style) => el("td", { class: "number" + (style ? " " + style : "") }, text);
  const difference = !differ ? [] : d ? [number(signed(d.mean) + (decided ? " ≠" : ""), decided ? (d.mean > 0 ? "better" : "worse") : ""), number(`${end(d.low)} to ${end(d.high)}`), number(probability(d.p))] : [number(""), number(""), number("")];
  return el("tr", null,
    parts ? el("th", { scope: "rowgroup", rowspan: parts }, cell.label) : null,
    el("td", null, swatch(colour({}, placeOf(side.key, told.sides))), " ", names[side.key]),
    number(num(own.problems)), number(own.ungraded ? num(own.ungraded) : ""),
    number(own.mean === null ? "–" : fixed(100 * own.mean, 1)),
    number(own.low === null ? "" : `${fixed(100 * own.low, 0)}–${fixed(100 * own.high, 0)}`),
    difference, number(own.turns.toFixed(1)), number(num(Math.round(own.tokens))));
}

function seeds(told) {
  const head = el("tr", null, ["Part", "Sides", "Mean, %", "Lowest", "Highest", "Deviation"].map((title, at) => el("th", { scope: "col", class: at > 1 ? "number" : null }, title)));
  const body = told.seeds.map((band) => el("tr", null, el("td", null, band.label), el("td", null, band.sides.join(", ")), [band.mean, band.low, band.high, band.deviation].map((value) => el("td", { class: "number" }, fixed(100 * value, 1)))));
  return el("table", { class: "rows" }, el("thead", null, head), el("tbody", null, body));
}

// Where an episode of a flip is missing: why, and how to have it.
function unrecorded(told) {
  const lacking = told.flips.some((flip) => Object.values(flip.sides).some((side) => !side.episode));
  return lacking ? el("p", { class: "soft about" }, "Where no episode opens none was recorded: an evaluation keeps those that went wrong. ", el("code", null, "palimpsest eval --set evaluation.record=all"), " keeps all of them.") : "";
}

// The first side's episode and that of the first other one whose value is another.
function pair(flip, sides) {
  const [one, ...others] = sides;
  const other = others.find((each) => flip.sides[each.key].value !== flip.sides[one.key].value) || others[0];
  const named = (side) => [side.key, flip.sides[side.key].episode.step, flip.sides[side.key].episode.group, flip.sides[side.key].episode.rollout].join(",");
  return link({ screen: "beside", query: { a: named(one), b: named(other) } });
}

function flips(told) {
  const head = el("tr", null, ["Problem", "Gold"].map((name) => el("th", { scope: "col" }, name)), told.sides.map((side) => el("th", { scope: "col" }, side.name)));
  const holder = el("tbody", null);
  let shown = 0;
  const more = el("button", { type: "button", onclick: grow }, "Show more");
  function grow() {
    holder.append(...told.flips.slice(shown, shown + 50).map(row));
    shown += 50;
    more.hidden = shown >= told.flips.length;
  }
  function row(flip) {
    const both = told.sides.filter((side) => (flip.sides[side.key] || {}).episode);
    return el("tr", null, el("td", null, flip.question, el("small", null, `${flip.set} · ${flip.id}${flip.draw ? " · draw " + flip.draw : ""}`), both.length > 1 ? el("small", null, el("a", { href: pair(flip, both) }, "both episodes, turn by turn")) : null), el("td", null, flip.golds.join(" | ")), told.sides.map((side) => {
      const own = flip.sides[side.key];
      if (!own) return el("td", { class: "faint" }, "not played");
      const where = own.episode && link({ screen: "episode", run: side.key, ...own.episode });
      return el("td", null, gradeMark(grade(own.value)), " ", own.answer || "–", el("small", { class: where ? null : "faint" }, where ? el("a", { href: where }, "open the episode") : "not recorded"));
    }));
  }
  grow();
  return el("div", null, el("table", { class: "rows" }, el("thead", null, head), holder), more);
}

// Two to six runs or evaluations side by side; differences are against the first.

import { clear, el, fixed } from "../dom.js";
import { every, get } from "../api.js";
import { chart } from "../chart.js";
import { link, replaceQuery } from "../place.js";

export async function show(main, place) {
  const keys = place.query.keys || "";
  const path = "/api/compare?keys=" + encodeURIComponent(keys), told = await get(path);
  const names = Object.fromEntries(told.sides.map((side) => [side.key, side.name]));
  const stops = [];
  main.append(el("h1", null, told.sides.map((side) => side.name).join(" · ")), el("p", { class: "soft about" }, "Differences are against ", el("strong", null, told.sides[0].name), ", over the problems that both graded."));
  main.append(...told.notes.map((note) => el("div", { class: "notice notice-warn" }, note)));
  main.append(overall(told, names), differs(told));
  if (Object.keys(told.curves).length) main.append(el("h2", null, "Curves"), curves(told, names, stops, path));
  if (told.cells.length) main.append(el("h2", null, "Accuracy by length"), lengths(told, names, stops), table(told, names));
  if (told.flips.length) main.append(el("h2", null, `Problems with another value (${told.flips.length})`), flips(told));
  return () => stops.forEach((stop) => stop());
}

function overall(told, names) {
  const rows = Object.entries(told.pairs).filter((pair) => pair[1].difference).map(([key, pair]) => {
    const d = pair.difference;
    return el("p", null, el("strong", null, names[key]), ` is ${signed(d.mean)} points (95% interval ${end(d.low)} to ${end(d.high)}, p ${d.p >= 0.001 ? d.p.toFixed(3) : "<0.001"}) over ${pair.counted}: ${d.better} better, ${d.worse} worse.`);
  });
  return rows.length ? el("div", { class: "notice" }, rows) : "";
}

const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + fixed(Math.abs(100 * value), 1);

const end = (value) => (value < 0 ? "−" : "+") + fixed(Math.abs(100 * value), 0);

function differs(told) {
  const rows = Object.entries(told.differs);
  if (!rows.length) return el("p", { class: "soft" }, "Their configurations are the same.");
  const head = el("tr", null, el("th", { scope: "col" }, "Key"), told.sides.map((side) => el("th", { scope: "col" }, side.name)));
  const body = rows.map(([key, values]) => el("tr", null, el("td", { class: "mono" }, key), values.map((value) => el("td", { class: "mono" + (value === null ? " faint" : "") }, value === null ? "–" : JSON.stringify(value)))));
  return el("details", { open: rows.length <= 30 }, el("summary", null, `What differs in the configuration (${rows.length} keys)`), el("table", { class: "rows plain" }, el("thead", null, head), el("tbody", null, body)));
}

// Curves that follow their runs; a key that comes later gets its chart behind the others.
function curves(told, names, stops, path) {
  const holder = el("div", { class: "charts" }), charts = new Map();
  let domain = null;
  function draw(drawn) {
    for (const [title, bands] of Object.entries(drawn)) {
      const series = bands.map((band) => seriesOf(band, names));
      if (charts.has(title)) charts.get(title).draw({ series });
      else charts.set(title, chart(holder, { title, series, domain, smoothing: 0.8, legend: true, height: 210, onzoom: zoom }));
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

function seriesOf(band, names) {
  return {
    name: band.keys.map((key) => names[key]).join(", "),
    points: band.steps.map((step, at) => [step, band.mean[at]]),
    band: band.keys.length > 1 ? band.steps.map((step, at) => [step, band.low[at], band.high[at]]) : null,
  };
}

function lengths(told, names, stops) {
  const holder = el("div", { class: "charts wide" });
  const tasks = [...new Set(told.cells.filter((cell) => cell.size !== null).map((cell) => cell.task))];
  for (const task of tasks) {
    const own = told.cells.filter((cell) => cell.task === task && cell.size !== null);
    const series = told.sides.map((side) => {
      const cells = own.filter((cell) => cell.sides[side.key] && cell.sides[side.key].mean !== null);
      return { name: names[side.key], marks: true, points: cells.map((cell) => [cell.size, cell.sides[side.key].mean]), band: cells.map((cell) => [cell.size, cell.sides[side.key].low, cell.sides[side.key].high]) };
    }).filter((each) => each.points.length);
    if (series.length) stops.push(chart(holder, { title: task, series, log: true, xName: "length", range: [0, 1.02], height: 220, legend: true }).stop);
  }
  return holder;
}

function table(told, names) {
  const head = el("tr", null, el("th", { scope: "col" }, "Part"), told.sides.map((side, at) => el("th", { scope: "col" }, side.name, at ? el("small", null, "difference, 95%") : el("small", null, "accuracy, %"))));
  const body = told.cells.map((cell) => el("tr", null, el("td", null, cell.label), told.sides.map((side) => {
    const own = cell.sides[side.key], pair = cell.pairs[side.key], d = pair && pair.difference;
    const clear_ = d && (d.low > 0 || d.high < 0);
    return el("td", null, own && own.mean !== null ? fixed(100 * own.mean, 1) : "–", d ? el("small", { class: clear_ ? "clear" : "" }, `${signed(d.mean)} [${end(d.low)}, ${end(d.high)}]${clear_ ? " ≠" : ""}`) : null);
  })));
  return el("table", { class: "rows" }, el("thead", null, head), el("tbody", null, body));
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
      const sign = own.value === null ? "?" : own.value >= 0.999 ? "✓" : own.value <= 0.001 ? "✕" : "~";
      const name = { "✓": "right", "✕": "wrong", "~": "partly", "?": "none" }[sign];
      const where = own.episode && link({ screen: "episode", run: side.key, ...own.episode });
      return el("td", null, el("span", { class: "mark mark-" + name }, sign), " ", own.answer || "–", where ? el("small", null, el("a", { href: where }, "open the episode")) : null);
    }));
  }
  grow();
  return el("div", null, el("table", { class: "rows" }, el("thead", null, head), holder), more);
}

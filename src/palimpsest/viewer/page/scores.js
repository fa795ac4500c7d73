// Table of an evaluation's scores: agent and baselines, accuracy with its interval, counts.

import { el, formatFixed, num } from "./dom.js";

const HEAD = [["Agent", ""], ["Set", ""], ["Accuracy, %", "number"], ["95% interval, %", ""], ["Problems", "number"], [
  "Episodes",
  "number",
], ["Ungraded", "number"]];

// The agent's results come first. countRecorded(result), if set, counts a result's recorded episodes.
export function scoreTable(results, countRecorded) {
  const rows = [...results].sort((a, b) => Number(a.baseline) - Number(b.baseline));
  const head = [...HEAD, ...(countRecorded ? [["Recorded", "number"]] : [])].map(([name, style]) =>
    el("th", { scope: "col", class: style }, name)
  );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "rows scores" },
      el("thead", null, el("tr", null, head)),
      el("tbody", null, rows.map((result) => scoreRow(result, countRecorded))),
    ),
  );
}

function scoreRow(result, countRecorded) {
  const number = (text) => el("td", { class: "number" }, text);
  return el(
    "tr",
    null,
    el("td", null, result.player),
    el("td", null, result.label),
    number(result.mean === null ? "–" : formatFixed(100 * result.mean, 1)),
    el("td", null, intervalBar(result)),
    number(num(result.problems)),
    number(num(result.episodes)),
    number(result.ungraded ? num(result.ungraded) : ""),
    countRecorded ? number(num(countRecorded(result))) : null,
  );
}

function intervalBar(result) {
  if (result.low === null || result.low === undefined) return "";
  const [low, high] = [formatFixed(100 * result.low, 0), formatFixed(100 * result.high, 0)];
  const bar = el(
    "span",
    { class: "interval", role: "img", "aria-label": `from ${low} to ${high} percent` },
    el("span", {
      class: "interval-range",
      style: { left: 100 * result.low + "%", width: 100 * (result.high - result.low) + "%" },
    }),
    el("span", { class: "interval-mean", style: { left: 100 * result.mean + "%" } }),
  );
  return el("span", { class: "interval-cell" }, bar, el("span", { class: "faint" }, `${low}–${high}`));
}

// The scores of an evaluation as a table: agent and baselines, accuracy with its interval, counts.

import { el, fixed, num } from "./dom.js";

const HEAD = [["Agent", ""], ["Set", ""], ["Accuracy, %", "number"], ["95% interval, %", ""], ["Problems", "number"], [
  "Episodes",
  "number",
], ["Ungraded", "number"]];

// The agent's parts first. `recorded(part)`, if set: the number of its recorded episodes.
export function scores(parts, recorded) {
  const rows = [...parts].sort((a, b) => Number(a.baseline) - Number(b.baseline));
  const head = [...HEAD, ...(recorded ? [["Recorded", "number"]] : [])].map(([name, style]) =>
    el("th", { scope: "col", class: style }, name)
  );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "rows scores" },
      el("thead", null, el("tr", null, head)),
      el("tbody", null, rows.map((part) => row(part, recorded))),
    ),
  );
}

function row(part, recorded) {
  const number = (text) => el("td", { class: "number" }, text);
  return el(
    "tr",
    null,
    el("td", null, part.player),
    el("td", null, part.label),
    number(part.mean === null ? "–" : fixed(100 * part.mean, 1)),
    el("td", null, interval(part)),
    number(num(part.problems)),
    number(num(part.episodes)),
    number(part.ungraded ? num(part.ungraded) : ""),
    recorded ? number(num(recorded(part))) : null,
  );
}

function interval(part) {
  if (part.low === null || part.low === undefined) return "";
  const [low, high] = [fixed(100 * part.low, 0), fixed(100 * part.high, 0)];
  const bar = el(
    "span",
    { class: "interval", role: "img", "aria-label": `from ${low} to ${high} percent` },
    el("span", {
      class: "interval-range",
      style: { left: 100 * part.low + "%", width: 100 * (part.high - part.low) + "%" },
    }),
    el("span", { class: "interval-mean", style: { left: 100 * part.mean + "%" } }),
  );
  return el("span", { class: "interval-cell" }, bar, el("span", { class: "faint" }, `${low}–${high}`));
}

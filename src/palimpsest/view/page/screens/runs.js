// The list: what there is, how it stands, how its reward went.

import { ago, badge, clear, el, num, sparkline } from "../dom.js";
import { every, get } from "../api.js";

export async function show(main, place) {
  const table = el("div", null);
  main.append(el("h1", null, "Runs and evaluations"), table);
  const stop = every(5, () => fill(table));
  await fill(table);
  return stop;
}

async function fill(holder) {
  const runs = (await get("/api/runs")).runs;
  runs.sort((a, b) => (b.updated || 0) - (a.updated || 0));
  const head = ["Name", "Status", "Recipe", "Step", "Reward", "", "Last alarm", "Written"];
  const rows = runs.map((run) =>
    el(
      "tr",
      null,
      el("td", { class: "name" }, run.name, run.kind === "run" ? null : el("small", null, run.kind)),
      el("td", null, badge(run.status)),
      el("td", null, run.recipe || ""),
      el("td", { class: "number" }, run.step === null ? "" : num(run.step) + (run.steps ? " of " + num(run.steps) : "")),
      el("td", { class: "number" }, run.reward.length ? num(run.reward[run.reward.length - 1], 3) : ""),
      el("td", null, run.reward.length ? sparkline(run.reward, "mean reward over the run") : ""),
      el("td", null, run.alarm ? run.alarm.text : ""),
      el("td", { class: "number" }, ago(run.updated)),
    ),
  );
  const titles = el("tr", null, head.map((name) => el("th", { scope: "col" }, name)));
  clear(holder).append(el("table", { class: "rows" }, el("thead", null, titles), el("tbody", null, rows)));
}

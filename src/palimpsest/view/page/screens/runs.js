// The list: what there is, how it stands, how its reward went. Two to six of them can be set side by side.

import { ago, badge, clear, el, num, sparkline } from "../dom.js";
import { every, get } from "../api.js";
import { go, link } from "../place.js";
import { on } from "../keys.js";

const MOST = 6;

export async function show(main, place) {
  const holder = el("div", null), chosen = new Set(), search = el("input", { type: "search", placeholder: "Filter by name…", "aria-label": "Filter by name" });
  const compare = el("button", { type: "button", disabled: true, onclick: () => go({ screen: "compare", query: { keys: [...chosen].join(",") } }) }, "Compare");
  const hint = el("span", { class: "faint" }, "tick two to six to compare them");
  main.append(el("h1", null, "Runs and evaluations"), el("div", { class: "tools" }, search, compare, hint), holder);
  let runs = [];
  on("/", "filter by name", () => search.focus());
  on("c", "compare those that are ticked", () => compare.disabled || compare.click());
  search.addEventListener("input", draw);
  async function load() {
    const now = (await get("/api/runs")).runs.sort((a, b) => (b.updated || 0) - (a.updated || 0));
    const changed = JSON.stringify(now) !== JSON.stringify(runs);
    runs = now;
    if (changed) draw();
  }

  function pick(key, wanted) {
    wanted ? chosen.add(key) : chosen.delete(key);
    compare.disabled = chosen.size < 2 || chosen.size > MOST;
    hint.textContent = chosen.size > MOST ? "six at most" : chosen.size ? `${chosen.size} ticked` : "tick two to six to compare them";
  }

  function draw() {
    const shown = runs.filter((run) => run.name.toLowerCase().includes(search.value.toLowerCase()));
    const head = ["", "Name", "Status", "Step", "Reward", "", "Last alarm", "Written"].map((name, at) => el("th", { scope: "col", class: at === 3 || at === 4 ? "number" : "" }, name));
    clear(holder).append(el("table", { class: "rows" }, el("thead", null, el("tr", null, head)), el("tbody", null, shown.map(row))));
  }

  function row(run) {
    const tick = el("input", { type: "checkbox", checked: chosen.has(run.key), "aria-label": "compare " + run.name, onchange: (event) => pick(run.key, event.target.checked) });
    const kind = el("small", null, run.recipe || { run: "", record: "file of episodes", evaluation: "evaluation" }[run.kind]);
    const alarm = run.alarm ? el("span", { class: "alarm-" + run.alarm.severity, title: run.alarm.text }, (run.alarm.severity === "red" ? "✕ " : "▲ ") + run.alarm.key.replace(/_/g, " ")) : "";
    return el("tr", null,
      el("td", null, run.kind === "record" ? "" : tick),
      el("td", { class: "name" }, el("a", { href: link({ screen: "run", run: run.key }) }, run.name), kind),
      el("td", null, badge(run.status)),
      el("td", { class: "number" }, run.step === null ? "" : num(run.step) + (run.steps ? " of " + num(run.steps) : "")),
      el("td", { class: "number" }, run.reward.length ? num(run.reward[run.reward.length - 1], 3) : "", run.accuracy.length ? el("span", { title: "accuracy of its parts, %" }, run.accuracy.slice(0, 4).map((mean) => (100 * mean).toFixed(0)).join(" · ") + " %") : ""),
      el("td", null, run.reward.length ? sparkline(run.reward, "mean reward over the run") : ""),
      el("td", { class: "once" }, alarm), el("td", { class: "soft" }, ago(run.updated)));
  }

  await load();
  return every(3, load);
}

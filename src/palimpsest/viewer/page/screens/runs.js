// The list of sources: status, step and reward.

import { ago, badge, clear, el, fixed, legend, num, sparkline } from "../dom.js";
import { every, get } from "../api.js";
import { link } from "../place.js";
import { on } from "../keys.js";

export async function show(main) {
  const holder = el("div", null),
    search = el("input", { type: "search", placeholder: "Filter by name…", "aria-label": "Filter by name" });
  main.append(el("h1", null, "Runs and evaluations"), el("div", { class: "tools" }, search), holder);
  let runs = null, awaited = [], left = 0;
  on(main, "/", "filter by name", () => search.focus());
  search.addEventListener("input", draw);
  async function load() {
    const answer = await get("/api/runs");
    awaited = answer.awaited || [];
    const now = answer.runs.sort((a, b) => (b.updated || 0) - (a.updated || 0));
    const changed = JSON.stringify(now) !== JSON.stringify(runs) || (answer.left || 0) !== left;
    runs = now;
    left = answer.left || 0;
    if (changed) draw();
  }

  function draw() {
    if (!runs) return;
    if (!runs.length && awaited.length) {
      clear(holder).append(
        el(
          "p",
          { class: "faint" },
          "Waiting for a run (config.yaml) or an evaluation (samples.jsonl) in " + awaited.join(", ") + ".",
        ),
      );
      return;
    }
    const focused = holder.contains(document.activeElement) ? document.activeElement : null;
    const shown = runs.filter((run) => run.name.toLowerCase().includes(search.value.toLowerCase()));
    const head = ["Name", "Status", "Step", "Reward or accuracy", "Reward curve", "Last alarm", "Written"].map((
      name,
      at,
    ) => el("th", { scope: "col", class: at === 2 || at === 3 ? "number" : "" }, name));
    clear(holder).append(
      el("table", { class: "rows" }, el("thead", null, el("tr", null, head)), el("tbody", null, shown.map(row))),
    );
    holder.append(
      legend([["▲", "a warning"], ["✕", "an alarm"], [
        "%",
        "accuracy of each part of an evaluation; other numbers are the mean reward of the last step",
      ]]),
    );
    if (left) {
      holder.prepend(
        el(
          "div",
          { class: "notice", role: "status" },
          `Showing the newest ${num(runs.length)}; to see the ${
            num(left)
          } older ones, start the viewer on their folder.`,
        ),
      );
    }
    if (focused) refocus(focused);
  }

  // Restores the focus after the table is rebuilt.
  function refocus(before) {
    const same = [...holder.querySelectorAll(before.tagName)].find((each) =>
      ["href", "aria-label"].every((name) => each.getAttribute(name) === before.getAttribute(name))
    );
    if (same) same.focus({ preventScroll: true });
  }

  function row(run) {
    const kind = el(
      "small",
      null,
      run.recipe || { run: "", record: "file of episodes", evaluation: "evaluation" }[run.kind],
    );
    const alarm = run.alarm
      ? el(
        "span",
        { class: "alarm-" + run.alarm.severity, title: run.alarm.text },
        (run.alarm.severity === "red" ? "✕ " : "▲ ") + run.alarm.key.replace(/_/g, " "),
      )
      : "";
    return el(
      "tr",
      null,
      el("td", { class: "name" }, el("a", { href: link({ screen: "run", run: run.key }) }, run.name), kind),
      el("td", null, badge(run.status)),
      el(
        "td",
        { class: "number" },
        run.step === null ? "" : num(run.step) + (run.steps ? " of " + num(run.steps) : ""),
      ),
      el(
        "td",
        { class: "number" },
        run.reward_now === null ? "" : num(run.reward_now),
        run.accuracy.length
          ? el(
            "span",
            { title: "accuracy of its parts, %" },
            "accuracy " + run.accuracy.slice(0, 4).map((mean) => fixed(100 * mean, 1)).join(" · ") + " %" +
              (run.accuracy.length > 4 ? ` and ${run.accuracy.length - 4} more` : ""),
          )
          : "",
      ),
      el("td", null, run.reward.length ? sparkline(run.reward, "mean reward over the run") : ""),
      el("td", { class: "once" }, alarm),
      el("td", { class: "soft" }, ago(run.updated)),
    );
  }

  await load();
  return every(3, load);
}

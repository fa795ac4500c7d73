// The list of sources: status, step and reward.

import { badge, clear, el, formatAge, formatFixed, legend, num, sparkline } from "../dom.js";
import { get, poll } from "../api.js";
import { routeHash } from "../route.js";
import { bindKey } from "../keys.js";

export async function show(main) {
  const container = el("div", null),
    search = el("input", { type: "search", placeholder: "Filter by name…", "aria-label": "Filter by name" });
  main.append(el("h1", null, "Runs and evaluations"), el("div", { class: "tools" }, search), container);
  let runs = null, awaitedFolders = [], olderCount = 0;
  bindKey(main, "/", "filter by name", () => search.focus());
  search.addEventListener("input", draw);
  async function load() {
    const answer = await get("/api/runs");
    awaitedFolders = answer.awaited || [];
    const newest = answer.runs.sort((a, b) => (b.updated || 0) - (a.updated || 0));
    const changed = JSON.stringify(newest) !== JSON.stringify(runs) || (answer.left || 0) !== olderCount;
    runs = newest;
    olderCount = answer.left || 0;
    if (changed) draw();
  }

  function draw() {
    if (!runs) return;
    if (!runs.length && awaitedFolders.length) {
      clear(container).append(
        el(
          "p",
          { class: "faint" },
          "Waiting for a run (config.yaml) or an evaluation (samples.jsonl) in " + awaitedFolders.join(", ") + ".",
        ),
      );
      return;
    }
    const focused = container.contains(document.activeElement) ? document.activeElement : null;
    const visibleRuns = runs.filter((run) => run.name.toLowerCase().includes(search.value.toLowerCase()));
    const head = ["Name", "Status", "Step", "Reward or accuracy", "Reward curve", "Last alarm", "Written"].map((
      name,
      index,
    ) => el("th", { scope: "col", class: index === 2 || index === 3 ? "number" : "" }, name));
    clear(container).append(
      el(
        "table",
        { class: "rows" },
        el("thead", null, el("tr", null, head)),
        el("tbody", null, visibleRuns.map(runRow)),
      ),
    );
    container.append(
      legend([["▲", "a warning"], ["✕", "an alarm"], [
        "%",
        "accuracy of each part of an evaluation; other numbers are the mean reward of the last step",
      ]]),
    );
    if (olderCount) {
      container.prepend(
        el(
          "div",
          { class: "notice", role: "status" },
          `Showing the newest ${num(runs.length)}; to see the ${
            num(olderCount)
          } older ones, start the viewer on their folder.`,
        ),
      );
    }
    if (focused) refocus(focused);
  }

  // Restores the focus after the table is rebuilt.
  function refocus(previous) {
    const restored = [...container.querySelectorAll(previous.tagName)].find((element) =>
      ["href", "aria-label"].every((name) => element.getAttribute(name) === previous.getAttribute(name))
    );
    if (restored) restored.focus({ preventScroll: true });
  }

  function runRow(run) {
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
      el("td", { class: "name" }, el("a", { href: routeHash({ screen: "run", run: run.key }) }, run.name), kind),
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
            "accuracy " + run.accuracy.slice(0, 4).map((mean) => formatFixed(100 * mean, 1)).join(" · ") + " %" +
              (run.accuracy.length > 4 ? ` and ${run.accuracy.length - 4} more` : ""),
          )
          : "",
      ),
      el("td", null, run.reward.length ? sparkline(run.reward, "mean reward over the run") : ""),
      el("td", { class: "once" }, alarm),
      el("td", { class: "soft" }, formatAge(run.updated)),
    );
  }

  await load();
  return poll(3, load);
}

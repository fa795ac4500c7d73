// A run: status, alarms, live curves, configuration. Evaluations and files have fewer parts.

import { ago, badge, clear, duration, el, legend, num } from "../dom.js";
import { every, get } from "../api.js";
import { chart, isSet, swatch } from "../chart.js";
import { asked, go, link, replaceQuery } from "../place.js";
import { on } from "../keys.js";
import { scores } from "../scores.js";

const GROUPS = [
  ["Reward", ["reward/mean", "reward/std", "groups/with_signal", "reward/ungraded", "eval/accuracy"]],
  ["Memory", [
    "memory/evidence_retention",
    "memory/copy_fidelity",
    "memory/tokens",
    "memory/truncated",
    "memory/overwrite_rate",
    "memory/recall_rate",
    "memory/recall_hit_rate",
    "memory/malformed_rate",
  ]],
  ["Policy", [
    "policy/entropy",
    "policy/clip_fraction",
    "policy/logprob_gap",
    "sampler/logprob_gap_mean",
    "policy/approx_kl",
    "policy/kl",
    "optim/grad_norm",
    "optim/learning_rate",
    "optim/grad_skipped",
  ]],
  ["Episodes and tools", [
    "episode/turns",
    "episode/sampled_tokens",
    "episode/prompt_tokens",
    "tool/prunes",
    "tool/context_tokens",
    "curriculum/chunks",
  ]],
  ["Warm-up", ["loss", "sft/loss", "accuracy", "sft/accuracy"]],
];
const CLOCKS = ["rollout_s", "learn_s", "rollout_tokens_per_s", "rss_mb"];
const EXPLAINED = {
  "reward/mean": "mean reward of the graded episodes",
  "groups/with_signal": "share of groups with different rewards, which training needs",
  "memory/evidence_retention": "share of the evidence in the final memory",
  "memory/copy_fidelity": "share of written sentences found in the texts read; the rest is hallucinated",
  "memory/truncated": "share of memories that exceeded their budget",
  "policy/entropy": "entropy of the policy, in nats per token",
  "policy/logprob_gap": "difference between sampler and learner, in nats per token",
};

export async function show(main, place) {
  const path = asked(place);
  const [facts, recorded] = await Promise.all([get(path), get(path + "/steps")]);
  const parts = {
    head: el("div", null),
    alarms: el("div", { "aria-live": "polite" }),
    charts: el("div", null),
    rest: el("div", null),
  };
  main.append(parts.head, parts.alarms, parts.charts, parts.rest);
  const head = heading(parts.head, facts);
  head(facts, recorded);
  main.append(signs(facts));
  if (facts.kind !== "run") {
    const stop = facts.evaluated ? await evaluated(parts.charts, path, facts) : null;
    configuration(parts.rest, facts);
    return stop;
  }
  const curves = curvesOf(parts.charts, place, facts);
  const told = { file: null, next: -1, clocks: -1, rows: [], timings: [] };
  await refresh();
  const stopLengths = facts.evaluated ? await evaluated(parts.charts, path, facts) : null;
  configuration(parts.rest, facts);
  await events(parts.rest, path);
  on(main, "e", "episodes of the newest step", () => newest(place, path));
  on(main, "0", "show all steps again", () => curves.zoom(null));

  async function refresh() {
    const [now, steps, metrics, timings, alarms] = await Promise.all([
      get(path),
      get(path + "/steps"),
      get(path + "/metrics?since=" + told.next),
      get(path + "/timings?since=" + told.clocks),
      get(path + "/alarms"),
    ]);
    if ((told.file !== null && told.file !== metrics.file) || metrics.last < told.next) {
      Object.assign(told, { file: null, next: -1, clocks: -1, rows: [], timings: [] });
      return refresh();
    }
    Object.assign(told, { file: metrics.file, next: metrics.next, clocks: timings.next });
    told.rows.push(...metrics.rows);
    told.timings.push(...timings.rows);
    head(now, steps);
    warn(parts.alarms, alarms);
    if (metrics.rows.length || !curves.drawn()) curves.draw(told.rows, told.timings);
  }

  const stopPolling = every(2, () => refresh().catch((error) => lost(parts.alarms, error)));
  return () => {
    stopPolling();
    curves.stop();
    if (stopLengths) stopLengths();
  };
}

function signs(facts) {
  const line = (dashed) => swatch("c1", dashed);
  const scored = facts.evaluated ? [[line(false), "agent"], [line(true), "baseline"], ["│", "95% interval"]] : [];
  const curves = facts.kind === "run" ? [["━", "smoothed"], ["─", "each step"], ["▲", "warning"], ["✕", "alarm"]] : [];
  const file = facts.kind === "record" ? [["▤", "a file of episodes, which has no status"]] : [];
  return legend([...scored, ...curves, ...file]);
}

async function newest(place, path) {
  const steps = await get(path + "/steps");
  if (steps.length) go({ screen: "episodes", run: place.run, step: steps[steps.length - 1] });
}

function lost(holder, error) {
  clear(holder).append(el("div", { class: "notice notice-bad", role: "alert" }, error.message));
}

// The head of a run; returns a function that updates it and preserves the focus.
function heading(holder, facts) {
  const name = facts.kind === "run" ? "Newest episodes" : "Episodes";
  const episodes = el("a", { class: "button" }, name),
    status = el("span", null),
    about = el("p", { class: "soft about" });
  const problems = el(
    "a",
    { class: "button", href: link({ screen: "evaluation", run: facts.key }) },
    "Problems of its evaluation",
  );
  const done = el("progress", { class: "done", max: 1, "aria-label": "steps done" });
  holder.append(
    el(
      "div",
      { class: "title" },
      el("h1", null, facts.name),
      status,
      el("span", { class: "grow" }),
      episodes,
      problems,
    ),
    about,
    done,
  );
  return (now, steps) => {
    episodes.hidden = !steps.length;
    if (steps.length) {
      episodes.setAttribute("href", link({ screen: "episodes", run: now.key, step: steps[steps.length - 1] }));
    }
    problems.hidden = !now.evaluated;
    done.hidden = !now.steps;
    if (now.steps) done.value = Math.min(1, now.step / now.steps);
    clear(status).append(badge(now.status));
    clear(about).append(aboutOf(now));
  };
}

function aboutOf(facts) {
  const live = facts.status === "running" || facts.status === "waiting";
  const told = [
    facts.recipe,
    facts.step === null ? null : "step " + num(facts.step) + (facts.steps ? " of " + num(facts.steps) : ""),
    live && facts.seconds_left ? "about " + duration(facts.seconds_left) + " left" : null,
    "written " + ago(facts.updated),
  ];
  return told.filter(Boolean).join(" · ");
}

const WORDS = {
  red: ["✕", "Alarm", "notice-bad"],
  amber: ["▲", "Warning", "notice-warn"],
  advice: ["→", "Advice", "notice-good"],
};

function warn(holder, alarms) {
  const text = JSON.stringify(alarms);
  if (holder.dataset.told === text) return;
  holder.dataset.told = text;
  clear(holder).append(...alarms.map((each) => {
    const [sign, word, style] = WORDS[each.severity];
    return el("div", { class: "notice " + style }, el("strong", null, sign + " " + word + ": "), each.text);
  }));
}

function curvesOf(holder, place, facts) {
  let rows = [], timings = [], all = [], charts = new Map();
  const [from, to, strength] = ["from", "to", "smooth"].map((name) => Number(place.query[name] ?? NaN));
  let domain = from < to ? [from, to] : null, smoothing = strength >= 0 && strength < 1 ? strength : 0.8;
  const own = new Set((place.query.more || "").split(",").filter(Boolean));
  const slider = el("input", {
    type: "range",
    min: 0,
    max: 0.98,
    step: 0.02,
    value: smoothing,
    oninput: (event) => smooth(Number(event.target.value)),
  });
  const picker = el("input", {
    type: "search",
    list: "metric-names",
    placeholder: "Add a metric…",
    "aria-label": "Add a metric",
    onchange: add,
  });
  const whole = el("button", { type: "button", hidden: domain === null, onclick: () => zoom(null) }, "Show all steps");
  const tools = el(
    "div",
    { class: "tools" },
    el("label", null, "Smoothing ", slider),
    picker,
    el("datalist", { id: "metric-names" }, facts.metrics.map((name) => el("option", { value: name }))),
    whole,
    el("span", { class: "faint" }, "Drag to zoom, click for the episodes of the nearest recorded step."),
  );
  const grid = el("div", null);
  holder.append(tools, grid);

  function points(source, name) {
    return source.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name]]);
  }

  function sections() {
    const known = new Set(facts.metrics.concat(rows.length ? Object.keys(rows[rows.length - 1]) : []));
    const found = GROUPS.map(([title, names]) => [title, names.filter((name) => known.has(name))]);
    const lengths = [...known].filter((name) => name.startsWith("eval/") && !found[0][1].includes(name)).sort();
    found[0][1].push(...lengths.slice(0, 8));
    found.push(["Time", CLOCKS.filter((name) => timings.some((row) => name in row))]);
    if (own.size) found.unshift(["Chosen", [...own].filter((name) => known.has(name))]);
    return found.filter((each) => each[1].length);
  }

  function draw(newRows, newTimings) {
    rows = newRows;
    timings = newTimings;
    const wanted = sections(), names = JSON.stringify(wanted);
    if (all !== names) {
      all = names;
      for (const each of charts.values()) each.stop();
      charts = new Map();
      clear(grid);
      for (const [title, list] of wanted) {
        const cells = el("div", { class: "charts" });
        grid.append(el("h2", null, title), cells);
        for (const name of list) {
          charts.set(title + name, {
            ...chart(cells, { title: name, hint: EXPLAINED[name], onzoom: zoom, onpick: pick }),
            name,
            clock: title === "Time",
          });
        }
      }
    }
    for (const each of charts.values()) {
      each.draw({
        series: [{ name: each.name, points: points(each.clock ? timings : rows, each.name) }],
        smoothing: strengthOf(each),
        domain,
      });
    }
  }

  const strengthOf = (each) => (isSet(each.name) ? 0 : smoothing);

  function smooth(strength) {
    smoothing = strength;
    for (const each of charts.values()) each.draw({ smoothing: strengthOf(each) });
    replaceQuery(place, place.query = { ...place.query, smooth: strength });
  }

  function zoom(wanted) {
    domain = wanted;
    whole.hidden = wanted === null;
    for (const each of charts.values()) each.draw({ domain });
    replaceQuery(
      place,
      place.query = {
        ...place.query,
        from: wanted ? Math.round(wanted[0]) : null,
        to: wanted ? Math.round(wanted[1]) : null,
      },
    );
  }

  function add(event) {
    const name = event.target.value;
    if (!facts.metrics.includes(name)) return;
    own.add(name);
    event.target.value = "";
    replaceQuery(place, place.query = { ...place.query, more: [...own].join(",") });
    draw(rows, timings);
  }

  async function pick(step) {
    const steps = await get(asked(place) + "/steps");
    const nearest = steps.reduce(
      (best, each) => (best === null || Math.abs(each - step) < Math.abs(best - step) ? each : best),
      null,
    );
    if (nearest !== null) go({ screen: "episodes", run: facts.key, step: nearest });
  }

  return {
    draw,
    zoom,
    drawn: () => charts.size > 0,
    stop: () => charts.forEach((each) => each.stop()),
  };
}

// An evaluation: model and policies, a table of scores, and accuracy by length if there are several.
async function evaluated(holder, path, facts) {
  const told = await get(path + "/items").catch((error) => ({ error }));
  if (told.error) {
    holder.prepend(el("div", { class: "notice notice-bad", role: "alert" }, told.error.message));
    return null;
  }
  const what = facts.kind === "run" ? [] : [["Model", facts.model || "recorded at its end"], [
    facts.policies.length > 1 ? "Policies" : "Policy",
    facts.policies.join(", ") || "not recorded",
  ]];
  const parts = el(
    "div",
    null,
    el("h2", null, "Scores"),
    el(
      "dl",
      { class: "facts" },
      what.map(([name, value]) => el("div", { class: "fact" }, el("dt", null, name), el("dd", null, value))),
    ),
    scores(told.cells),
  );
  holder.prepend(parts);
  return lengths(parts, told.cells);
}

// Accuracy by length with 95% intervals: one line per task and agent, dashed for baselines.
function lengths(holder, cells) {
  const several = new Set(cells.map((cell) => cell.task)).size > 1, lines = new Map();
  for (const cell of cells.filter((each) => each.size !== null && each.mean !== null)) {
    const name = several ? `${cell.task}, ${cell.player}` : cell.player;
    if (!lines.has(name)) lines.set(name, { name, points: [], band: [], marks: true, dashed: cell.baseline });
    lines.get(name).points.push([cell.size, cell.mean]);
    lines.get(name).band.push([cell.size, cell.low, cell.high]);
  }
  if (new Set(cells.map((cell) => cell.size)).size < 2) return null; // the table suffices
  const area = el("div", { class: "charts wide" });
  holder.append(el("h2", null, "Accuracy by length"), area);
  const made = chart(area, {
    title: "accuracy, 95% intervals",
    yName: "accuracy",
    series: [...lines.values()],
    log: true,
    xName: "length",
    range: [0, 1.02],
    height: 240,
    legend: true,
  });
  made.draw();
  return made.stop;
}

function configuration(holder, facts) {
  if (facts.trouble) holder.append(el("div", { class: "notice notice-bad", role: "alert" }, facts.trouble));
  const rows = Object.entries(facts.config);
  const table = el(
    "table",
    { class: "rows plain" },
    el(
      "tbody",
      null,
      rows.map(([key, value]) =>
        el("tr", null, el("td", { class: "mono" }, key), el("td", { class: "mono" }, JSON.stringify(value)))
      ),
    ),
  );
  const filter = el("input", {
    type: "search",
    placeholder: "Filter keys…",
    "aria-label": "Filter keys",
    oninput: (event) => {
      for (const row of table.querySelectorAll("tr")) {
        row.hidden = !row.textContent.toLowerCase().includes(event.target.value.toLowerCase());
      }
    },
  });
  holder.append(
    el(
      "details",
      null,
      el("summary", null, `Configuration (${rows.length} keys)`),
      el("p", { class: "faint" }, facts.path),
      filter,
      table,
    ),
  );
}

async function events(holder, path) {
  const told = (await get(path + "/events?since=0")).rows;
  const quiet = told.filter((row) => row.kind === "refills_used_up").length;
  const rows = told.filter((row) => row.kind !== "refills_used_up").reverse().slice(0, 200);
  const list = rows.map((row) => {
    const { number: _, time, kind, ...detail } = row;
    return el(
      "tr",
      null,
      el("td", { class: "number faint" }, time || ""),
      el("td", null, kind),
      el("td", { class: "mono" }, Object.keys(detail).length ? JSON.stringify(detail) : ""),
    );
  });
  const note = quiet ? el("p", { class: "faint" }, `refills were used up ${num(quiet)} more times`) : null;
  holder.append(
    el(
      "details",
      null,
      el("summary", null, `Events (${rows.length})`),
      el("table", { class: "rows plain" }, el("tbody", null, list)),
      note,
    ),
  );
}

// A run: status, alarms, live curves, configuration. Evaluations and files have fewer parts.

import { badge, clear, el, factElement, formatAge, formatDuration, legend, num } from "../dom.js";
import { get, poll } from "../api.js";
import { chart, isSet, swatch } from "../chart.js";
import { apiPath, navigate, replaceQuery, routeHash } from "../route.js";
import { bindKey } from "../keys.js";
import { scoreTable } from "../scores.js";

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
  "reward/std": "spread of the reward over these episodes",
  "reward/ungraded": "episodes without a grade",
  "eval/accuracy": "accuracy on held-out problems",
  "groups/with_signal": "share of groups with different rewards",
  "memory/evidence_retention": "share of the evidence in the final memory",
  "memory/copy_fidelity": "share of written sentences found in the texts read",
  "memory/tokens": "mean length of the written memories",
  "memory/truncated": "share of memories that exceeded their budget",
  "memory/overwrite_rate": "share of memory tokens that changed between memories",
  "memory/recall_rate": "share of reading turns with a query",
  "memory/recall_hit_rate": "share of queries that retrieved evidence",
  "memory/malformed_rate": "share of tagged replies that can't be parsed",
  "policy/entropy": "entropy of the policy, in nats per token",
  "policy/clip_fraction": "share of trained tokens that the loss clips",
  "policy/logprob_gap": "difference between sampler and learner, in nats per token",
  "optim/grad_norm": "norm of the gradient before clipping",
  "episode/turns": "turns per episode",
  "episode/sampled_tokens": "sampled tokens per episode",
  "episode/prompt_tokens": "prompt tokens per episode; prefixes count per turn",
  "tool/prunes": "executed deletions of history per episode",
  "tool/context_tokens": "prompt tokens per turn",
  "curriculum/chunks": "chunks of the training documents",
};

export async function show(main, route) {
  const path = apiPath(route);
  const [facts, recordedSteps] = await Promise.all([get(path), get(path + "/steps")]);
  const elements = {
    head: el("div", null),
    alarms: el("div", { "aria-live": "polite" }),
    charts: el("div", null),
    rest: el("div", null),
  };
  main.append(elements.head, elements.alarms, elements.charts, elements.rest);
  const head = runHead(elements.head, facts);
  head(facts, recordedSteps);
  main.append(runLegend(facts));
  if (facts.kind !== "run") {
    const stop = facts.evaluated ? await showEvaluation(elements.charts, path, facts) : null;
    showConfiguration(elements.rest, facts);
    return stop;
  }
  const curves = metricCharts(elements.charts, route, facts);
  const metricsState = { file: null, next: -1, clocks: -1, rows: [], timings: [] };
  await refresh();
  const stopLengths = facts.evaluated ? await showEvaluation(elements.charts, path, facts) : null;
  showConfiguration(elements.rest, facts);
  await showEvents(elements.rest, path);
  bindKey(main, "e", "episodes of the newest step", () => openNewest(route, path));
  bindKey(main, "0", "show all steps again", () => curves.zoom(null));

  async function refresh() {
    const [currentFacts, steps, metrics, timings, alarms] = await Promise.all([
      get(path),
      get(path + "/steps"),
      get(path + "/metrics?since=" + metricsState.next),
      get(path + "/timings?since=" + metricsState.clocks),
      get(path + "/alarms"),
    ]);
    if ((metricsState.file !== null && metricsState.file !== metrics.file) || metrics.last < metricsState.next) {
      Object.assign(metricsState, { file: null, next: -1, clocks: -1, rows: [], timings: [] });
      return refresh();
    }
    Object.assign(metricsState, { file: metrics.file, next: metrics.next, clocks: timings.next });
    metricsState.rows.push(...metrics.rows);
    metricsState.timings.push(...timings.rows);
    facts.metrics = currentFacts.metrics;
    head(currentFacts, steps);
    showAlarms(elements.alarms, alarms);
    if (metrics.rows.length || !curves.isDrawn()) curves.draw(metricsState.rows, metricsState.timings);
  }

  const stopPolling = poll(2, () => refresh().catch((error) => showError(elements.alarms, error)));
  return () => {
    stopPolling();
    curves.stop();
    if (stopLengths) stopLengths();
  };
}

function runLegend(facts) {
  const line = (dashed) => swatch("c1", dashed);
  const evaluationItems = facts.evaluated
    ? [[line(false), "agent"], [line(true), "baseline"], ["│", "95% interval"]]
    : [];
  const curves = facts.kind === "run" ? [["━", "smoothed"], ["─", "each step"], ["▲", "warning"], ["✕", "alarm"]] : [];
  const file = facts.kind === "record" ? [["▤", "a file of episodes, which has no status"]] : [];
  return legend([...evaluationItems, ...curves, ...file]);
}

async function openNewest(route, path) {
  const steps = await get(path + "/steps");
  if (steps.length) navigate({ screen: "episodes", run: route.run, step: steps[steps.length - 1] });
}

function showError(container, error) {
  delete container.dataset.alarms;
  clear(container).append(el("div", { class: "notice notice-bad", role: "alert" }, error.message));
}

// The heading of a run. Returns a function that updates it and preserves the focus.
function runHead(container, facts) {
  const name = facts.kind === "run" ? "Newest episodes" : "Episodes";
  const episodes = el("a", { class: "button" }, name),
    status = el("span", null),
    about = el("p", { class: "soft about" });
  const problems = el(
    "a",
    { class: "button", href: routeHash({ screen: "evaluation", run: facts.key }) },
    "Problems of its evaluation",
  );
  const done = el("progress", { class: "done", max: 1, "aria-label": "steps done" });
  container.append(
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
  return (facts, steps) => {
    episodes.hidden = !steps.length;
    if (steps.length) {
      episodes.setAttribute("href", routeHash({ screen: "episodes", run: facts.key, step: steps[steps.length - 1] }));
    }
    problems.hidden = !facts.evaluated;
    done.hidden = !facts.steps;
    if (facts.steps) done.value = Math.min(1, facts.step / facts.steps);
    clear(status).append(badge(facts.status));
    clear(about).append(describeRun(facts));
  };
}

function describeRun(facts) {
  const isActive = facts.status === "running" || facts.status === "waiting";
  const labels = [
    facts.recipe,
    facts.step === null ? null : "step " + num(facts.step) + (facts.steps ? " of " + num(facts.steps) : ""),
    isActive && facts.seconds_left ? "about " + formatDuration(facts.seconds_left) + " left" : null,
    "written " + formatAge(facts.updated),
  ];
  return labels.filter(Boolean).join(" · ");
}

const WORDS = {
  red: ["✕", "Alarm", "notice-bad"],
  amber: ["▲", "Warning", "notice-warn"],
  advice: ["→", "Advice", "notice-good"],
};

function showAlarms(container, alarms) {
  const text = JSON.stringify(alarms);
  if (container.dataset.alarms === text) return;
  container.dataset.alarms = text;
  clear(container).append(...alarms.map((alarm) => {
    const [sign, word, style] = WORDS[alarm.severity];
    return el("div", { class: "notice " + style }, el("strong", null, sign + " " + word + ": "), alarm.text);
  }));
}

function metricCharts(container, route, facts) {
  let rows = [], timings = [], all = [], charts = new Map();
  const [start, end, strength] = ["from", "to", "smooth"].map((name) => Number(route.query[name] ?? NaN));
  let domain = start < end ? [start, end] : null, smoothing = strength >= 0 && strength < 1 ? strength : 0.8;
  const chosenMetrics = new Set((route.query.more || "").split(",").filter(Boolean));
  const slider = el("input", {
    type: "range",
    min: 0,
    max: 0.98,
    step: 0.02,
    value: smoothing,
    oninput: (event) => setSmoothing(Number(event.target.value)),
  });
  const picker = el("input", {
    type: "search",
    list: "metric-names",
    placeholder: "Add a metric…",
    "aria-label": "Add a metric",
    onchange: addMetric,
  });
  const resetZoom = el(
    "button",
    { type: "button", hidden: domain === null, onclick: () => zoom(null) },
    "Show all steps",
  );
  const metricNames = el("datalist", { id: "metric-names" });
  const tools = el(
    "div",
    { class: "tools" },
    el("label", null, "Smoothing ", slider),
    picker,
    metricNames,
    resetZoom,
    el("span", { class: "faint" }, "Drag to zoom, click for the episodes of the nearest recorded step."),
  );
  const grid = el("div", null);
  container.append(tools, grid);

  function points(source, name) {
    return source.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name]]);
  }

  function chartSections() {
    const knownMetrics = new Set(facts.metrics.concat(rows.length ? Object.keys(rows[rows.length - 1]) : []));
    const sections = GROUPS.map(([title, names]) => [title, names.filter((name) => knownMetrics.has(name))]);
    const lengthMetrics = [...knownMetrics].filter((name) => name.startsWith("eval/") && !sections[0][1].includes(name))
      .sort();
    sections[0][1].push(...lengthMetrics.slice(0, 8));
    sections.push(["Time", CLOCKS.filter((name) => timings.some((row) => name in row))]);
    if (chosenMetrics.size) sections.unshift(["Chosen", [...chosenMetrics].filter((name) => knownMetrics.has(name))]);
    return sections.filter((section) => section[1].length);
  }

  function draw(newRows, newTimings) {
    rows = newRows;
    timings = newTimings;
    if (metricNames.childElementCount !== facts.metrics.length) {
      clear(metricNames).append(...facts.metrics.map((name) => el("option", { value: name })));
    }
    const sections = chartSections(), names = JSON.stringify(sections);
    if (all !== names) {
      all = names;
      for (const oldChart of charts.values()) oldChart.stop();
      charts = new Map();
      clear(grid);
      for (const [title, list] of sections) {
        const cells = el("div", { class: "charts" });
        grid.append(el("h2", null, title), cells);
        for (const name of list) {
          charts.set(title + name, {
            ...chart(cells, { title: name, hint: EXPLAINED[name], onzoom: zoom, onpick: openStep }),
            name,
            clock: title === "Time",
          });
        }
      }
    }
    for (const metricChart of charts.values()) {
      metricChart.draw({
        series: [{ name: metricChart.name, points: points(metricChart.clock ? timings : rows, metricChart.name) }],
        smoothing: strengthOf(metricChart),
        domain,
      });
    }
  }

  const strengthOf = (metricChart) => (isSet(metricChart.name) ? 0 : smoothing);

  function setSmoothing(strength) {
    smoothing = strength;
    for (const metricChart of charts.values()) metricChart.draw({ smoothing: strengthOf(metricChart) });
    replaceQuery(route, route.query = { ...route.query, smooth: strength });
  }

  function zoom(range) {
    domain = range;
    resetZoom.hidden = range === null;
    for (const metricChart of charts.values()) metricChart.draw({ domain });
    replaceQuery(
      route,
      route.query = {
        ...route.query,
        from: range ? Math.round(range[0]) : null,
        to: range ? Math.round(range[1]) : null,
      },
    );
  }

  function addMetric(event) {
    const name = event.target.value;
    if (!facts.metrics.includes(name)) return;
    chosenMetrics.add(name);
    event.target.value = "";
    replaceQuery(route, route.query = { ...route.query, more: [...chosenMetrics].join(",") });
    draw(rows, timings);
  }

  async function openStep(step) {
    const steps = await get(apiPath(route) + "/steps");
    const nearest = steps.reduce(
      (
        best,
        recordedStep,
      ) => (best === null || Math.abs(recordedStep - step) < Math.abs(best - step) ? recordedStep : best),
      null,
    );
    if (nearest !== null) navigate({ screen: "episodes", run: facts.key, step: nearest });
  }

  return {
    draw,
    zoom,
    isDrawn: () => charts.size > 0,
    stop: () => charts.forEach((metricChart) => metricChart.stop()),
  };
}

// An evaluation: model, policies, scores, and accuracy by length if there are several.
async function showEvaluation(container, path, facts) {
  const evaluation = await get(path + "/items").catch((error) => ({ error }));
  if (evaluation.error) {
    container.prepend(el("div", { class: "notice notice-bad", role: "alert" }, evaluation.error.message));
    return null;
  }
  const identity = facts.kind === "run" ? [] : [["Model", facts.model || "recorded at its end"], [
    facts.policies.length > 1 ? "Policies" : "Policy",
    facts.policies.join(", ") || "not recorded",
  ]];
  const section = el(
    "div",
    null,
    el("h2", null, "Scores"),
    el(
      "dl",
      { class: "facts" },
      identity.map(([name, value]) => factElement(name, value)),
    ),
    scoreTable(evaluation.cells),
  );
  container.prepend(section);
  return showLengths(section, evaluation.cells);
}

// Accuracy by length with 95% intervals. One line per task and agent; baselines are dashed.
function showLengths(container, cells) {
  const multipleTasks = new Set(cells.map((cell) => cell.task)).size > 1, lines = new Map();
  for (const cell of cells.filter((cell) => cell.size !== null && cell.mean !== null)) {
    const name = multipleTasks ? `${cell.task}, ${cell.player}` : cell.player;
    if (!lines.has(name)) lines.set(name, { name, points: [], band: [], marks: true, dashed: cell.baseline });
    lines.get(name).points.push([cell.size, cell.mean]);
    lines.get(name).band.push([cell.size, cell.low, cell.high]);
  }
  if (new Set(cells.map((cell) => cell.size)).size < 2) return null; // the table suffices
  const area = el("div", { class: "charts wide" });
  container.append(el("h2", null, "Accuracy by length"), area);
  const lengthChart = chart(area, {
    title: "accuracy, 95% intervals",
    yName: "accuracy",
    series: [...lines.values()],
    log: true,
    xName: "length",
    range: [0, 1.02],
    height: 240,
    legend: true,
  });
  lengthChart.draw();
  return lengthChart.stop;
}

function showConfiguration(container, facts) {
  if (facts.trouble) container.append(el("div", { class: "notice notice-bad", role: "alert" }, facts.trouble));
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
  container.append(
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

async function showEvents(container, path) {
  const allEvents = (await get(path + "/events?since=0")).rows;
  const refills = allEvents.filter((row) => row.kind === "refills_used_up").length;
  const rows = allEvents.filter((row) => row.kind !== "refills_used_up").reverse().slice(0, 200);
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
  const note = refills ? el("p", { class: "faint" }, `refills were used up ${num(refills)} more times`) : null;
  container.append(
    el(
      "details",
      null,
      el("summary", null, `Events (${rows.length})`),
      el("table", { class: "rows plain" }, el("tbody", null, list)),
      note,
    ),
  );
}

// The episodes of a step or a file: histogram of rewards, scatter plot, table. The address stores filters.

import { badge, clear, contentWidth, el, extractBoxed, legend, mean, num, svg } from "../dom.js";
import { get } from "../api.js";
import { axisNames, ticks } from "../chart.js";
import { apiPath, navigate, routeHash } from "../route.js";
import { isAvailable, routeLink } from "../links.js";
import { bindKey } from "../keys.js";
import { scatter } from "../scatter.js";
import { scoreTable } from "../scores.js";
import { virtualTable } from "../table.js";

const BINS = 20;
const AXES = {
  reward: "reward",
  group: "group",
  turns: "turns",
  prompt_tokens: "tokens read",
  sampled_tokens: "tokens sampled",
  retention: "evidence kept",
  invention: "hallucinated",
};
const MEASURED = ["retention", "invention"];
const ALL_AGENTS = "all";

export function show(main, route) {
  const path = apiPath(route);
  const state = {
    rows: [],
    results: null,
    recordError: null,
    measures: new Map(),
    requestedGroups: new Set(),
    stopped: false,
  };
  const query = { ...route.query };
  const elements = createLayout(main, route);
  let table = null; // created with the first answer
  const routeOf = (row) => ({
    screen: "episode",
    run: route.run,
    step: route.step,
    group: row.group,
    rollout: row.rollout,
  });
  const drawScatter = scatter(elements.scatter, (row) => isAvailable(routeOf(row)) && navigate(routeOf(row)));
  const watcher = new ResizeObserver(drawCharts);
  watcher.observe(elements.histogram);
  elements.search.value = query.q || "";
  bindKey(main, "j", "next step", () => goToStep(1));
  bindKey(main, "k", "previous step", () => goToStep(-1));
  bindKey(main, "/", "search in questions and answers", () => elements.search.focus());
  const unfiltered = { outcome: null, from: null, to: null, q: null, group: null, player: null };
  bindKey(main, "x", "clear all filters", () => setFilters(unfiltered));
  elements.search.addEventListener("input", () => setFilters({ q: elements.search.value || null }));
  elements.outcome.addEventListener("change", () => setFilters({ outcome: elements.outcome.value || null }));
  for (const axis of ["x", "y"]) {
    elements[axis].addEventListener("change", () => setFilters({ [axis]: elements[axis].value }));
  }
  elements.clear.addEventListener("click", () => setFilters(unfiltered));
  elements.player.addEventListener(
    "change",
    () => setFilters({ player: elements.player.value === defaultPlayer() ? null : elements.player.value }),
  );
  load().catch((error) =>
    elements.notice.append(el("div", { class: "notice notice-bad", role: "alert" }, error.message))
  );
  get(path + "/decoder").then((decoder) =>
    decoder.why && elements.notice.append(el("div", { class: "notice notice-warn" }, decoder.why))
  ).catch(() => null);
  drawSteps();

  async function load() {
    const response = await get(path + "/episodes");
    if (state.stopped) return;
    Object.assign(state, { rows: response.rows, results: response.parts || null, recordError: response.torn });
    table = virtualTable(elements.table, {
      columns: columns(route, state),
      onsort: sortBy,
      onwindow: (rows) => measure(rows),
      label: "Episodes",
    });
    draw();
  }

  async function drawSteps() {
    const all = await get(apiPath({ run: route.run }) + "/steps").catch(() => []);
    state.steps = all.map(String);
    const current = state.steps.indexOf(route.step);
    if (current < 0 || all.length < 2) return;
    const stepSelect = el("select", {
      "aria-label": "Step",
      onchange: () => navigate({ screen: "episodes", run: route.run, step: stepSelect.value, query }),
    }, all.map((step) => el("option", { value: step, selected: String(step) === route.step }, "step " + step)));
    clear(elements.steps).append(
      el(
        "button",
        { type: "button", disabled: current === 0, title: "previous step (k)", onclick: () => goToStep(-1) },
        "‹",
      ),
      stepSelect,
      el("button", {
        type: "button",
        disabled: current === all.length - 1,
        title: "next step (j)",
        onclick: () => goToStep(1),
      }, "›"),
    );
  }

  function goToStep(offset) {
    const step = (state.steps || [])[(state.steps || []).indexOf(route.step) + offset];
    if (step !== undefined) navigate({ screen: "episodes", run: route.run, step, query });
  }

  function setFilters(changes) {
    Object.assign(query, changes);
    for (const key of Object.keys(query)) if (query[key] === null || query[key] === "") delete query[key];
    history.replaceState(null, "", routeHash({ ...route, query }));
    if (!query.q) elements.search.value = "";
    draw();
  }

  function sortBy(name) {
    setFilters({ sort: query.sort === "-" + name ? name : "-" + name });
  }

  function getValue(row, name) {
    if (MEASURED.includes(name)) return (state.measures.get(row.group + "/" + row.rollout) || {})[name];
    return row[name];
  }

  // The selected agent or baseline of an evaluation, by default the agent.
  function selectedPlayer() {
    return query.player || defaultPlayer();
  }

  // The only agent; all agents if there are several.
  function defaultPlayer() {
    const names = new Set((state.results || []).filter((result) => !result.baseline).map((result) => result.player));
    return names.size === 1 ? [...names][0] : ALL_AGENTS;
  }

  function drawPlayers() {
    if (!state.results) return;
    const countRecorded = (result) =>
      state.rows.filter((row) => row.player === result.player && row.part === result.label).length;
    clear(elements.scores).append(
      el("h2", null, "Scores of all episodes"),
      scoreTable(state.results, countRecorded),
      recordedNote(),
    );
    const names = [
      ...new Set([...state.results.map((result) => result.player), ...state.rows.map((row) => row.player)]),
    ];
    elements.player.hidden = false;
    clear(elements.player).append(
      ...names.map((name) => el("option", { value: name }, name)),
      el("option", { value: ALL_AGENTS }, "everyone"),
    );
    elements.player.value = selectedPlayer();
  }

  function recordedNote() {
    const all = state.results.reduce((sum, result) => sum + result.episodes, 0),
      recordedCount = state.rows.filter((row) => row.part !== null).length;
    if (recordedCount >= all) return "";
    return el(
      "p",
      { class: "soft" },
      `${num(recordedCount)} of ${
        num(all)
      } episodes were recorded, and everything below covers only these. By default an evaluation records failed episodes; evaluation.record=all records all.`,
    );
  }

  function matchesFilters(row, ignoredFilter) {
    if (state.results && selectedPlayer() !== ALL_AGENTS && row.player !== selectedPlayer()) return false;
    const text = (query.q || "").toLowerCase();
    if (query.outcome && row.outcome !== query.outcome) return false;
    if (query.group !== undefined && String(row.group) !== query.group) return false;
    if (
      ignoredFilter !== "reward" && query.from !== undefined &&
      !(row.reward !== null && row.reward >= Number(query.from) &&
        (row.reward < Number(query.to) || (query.last && row.reward <= Number(query.to))))
    ) return false;
    return !text ||
      [row.question, row.answer || "", row.id, ...row.golds].some((field) => field.toLowerCase().includes(text));
  }

  function sortRows(rows) {
    if (!query.sort) return rows;
    const name = query.sort.replace(/^-/, ""), sign = query.sort[0] === "-" ? -1 : 1;
    const isMissing = (value) => value === null || value === undefined;
    return [...rows].sort((a, b) => {
      const [x, y] = [getValue(a, name), getValue(b, name)];
      if (isMissing(x) || isMissing(y)) return Number(isMissing(x)) - Number(isMissing(y));
      return (x < y ? -1 : x > y ? 1 : 0) * sign;
    });
  }

  function draw() {
    if (!table) return;
    const visibleRows = sortRows(state.rows.filter((row) => matchesFilters(row)));
    drawOutcomes();
    drawPlayers();
    for (const axis of ["x", "y"]) {
      elements[axis].value = query[axis] || (axis === "x" ? firstVaryingColumn(visibleRows) : "reward");
    }
    state.visibleRows = visibleRows;
    drawCharts();
    table.draw(visibleRows, query.sort);
    const groups = new Set(visibleRows.map((row) => row.group)).size;
    const ungraded = visibleRows.filter((row) => row.reward === null).length;
    const rewards = visibleRows.filter((row) => row.reward !== null).map((row) => row.reward);
    const scope = state.results
      ? `recorded episodes in ${num(groups)} groups (${
        selectedPlayer() === ALL_AGENTS ? "agent and baselines" : selectedPlayer()
      })`
      : `episodes in ${num(groups)} groups`;
    const summary = [
      `${num(visibleRows.length)} of ${num(state.rows.length)} ${scope}`,
      state.results ? null : `mean reward ${num(mean(rewards))}`,
      ungraded ? `${num(ungraded)} ungraded` : null,
    ];
    clear(elements.count).append(summary.filter(Boolean).join(" · "));
    elements.clear.hidden = !["outcome", "from", "q", "group", "player"].some((key) => key in query);
    clear(elements.recordError).append(
      state.recordError ? el("div", { class: "notice notice-bad", role: "alert" }, state.recordError) : "",
    );
    const needsMeasures = [query.sort && query.sort.replace(/^-/, ""), elements.x.value, elements.y.value].some((
      name,
    ) => MEASURED.includes(name));
    if (needsMeasures) measureAll();
  }

  // Drawn at full width, so that text keeps its size.
  function drawCharts() {
    if (!state.visibleRows || state.stopped) return;
    drawHistogram(elements.histogram, state.rows.filter((row) => matchesFilters(row, "reward")), query, setFilters);
    drawScatter({ rows: state.visibleRows, x: elements.x.value, y: elements.y.value, value: getValue, names: AXES });
  }

  function drawOutcomes() {
    const counts = new Map();
    for (const row of state.rows) counts.set(row.outcome, (counts.get(row.outcome) || 0) + 1);
    const text = JSON.stringify([...counts]);
    if (elements.outcome.dataset.counts !== text) {
      elements.outcome.dataset.counts = text;
      clear(elements.outcome).append(
        el("option", { value: "" }, "every outcome"),
        ...[...counts].map(([name, count]) => el("option", { value: name }, `${name} (${count})`)),
      );
    }
    elements.outcome.value = query.outcome || "";
  }

  // Retention and hallucination need decoded prompts. Visible groups are measured, all groups if the table needs them.
  async function measure(rows) {
    const groups = [...new Set(rows.map((row) => row.group))].filter((group) => !state.requestedGroups.has(group))
      .slice(0, 16);
    if (!groups.length || state.stopped) return;
    groups.forEach((group) => state.requestedGroups.add(group));
    const newMeasures = await get(path + "/measures?groups=" + groups.join(",")).catch(() => ({}));
    for (const [key, measure] of Object.entries(newMeasures)) state.measures.set(key, measure);
    const omittedCount = [...state.measures.values()].filter((measure) => measure.left_out).length;
    if (omittedCount) {
      clear(elements.unmeasured).append(
        `This file lacks the evidence kept and hallucinations of ${num(omittedCount)} episodes (…).`,
      );
    }
    if (!state.stopped && Object.keys(newMeasures).length) table.redraw();
    return measure(rows);
  }

  async function measureAll() {
    const sizeBefore = state.measures.size;
    const unmeasured = state.rows.filter((row) => !state.requestedGroups.has(row.group));
    for (let start = 0; start < unmeasured.length && !state.stopped; start += 64) {
      await measure(unmeasured.slice(start, start + 64));
    }
    if (!state.stopped && state.measures.size !== sizeBefore) draw();
  }

  return () => {
    state.stopped = true;
    watcher.disconnect();
    if (table) table.stop();
  };
}

function createLayout(main, route) {
  const elements = {
    notice: el("div", null),
    recordError: el("div", null),
    unmeasured: el("p", { class: "faint" }),
    steps: el("span", { class: "steps" }),
    count: el("p", { class: "soft about", "aria-live": "polite" }),
  };
  elements.search = el("input", {
    type: "search",
    placeholder: "Search questions and answers…",
    "aria-label": "Search",
  });
  elements.outcome = el("select", { "aria-label": "Outcome" });
  elements.player = el("select", { "aria-label": "Agent", hidden: true });
  elements.scores = el("div", null);
  elements.clear = el("button", { type: "button" }, "Clear filters");
  const axis = (name) =>
    el(
      "select",
      { "aria-label": name },
      Object.entries(AXES).map(([key, label]) => el("option", { value: key }, label)),
    );
  Object.assign(elements, {
    x: axis("Across"),
    y: axis("Up"),
    histogram: el("div", { class: "chart-area" }),
    scatter: el("div", { class: "chart-area" }),
    table: el("div", null),
  });
  const title = route.step === "all"
    ? "Episodes"
    : /^\d+$/.test(route.step)
    ? "Episodes of step " + route.step
    : "Episodes of " + route.step;
  main.append(
    el("div", { class: "title" }, el("h1", null, title), elements.steps),
    elements.notice,
    elements.recordError,
    elements.scores,
    el(
      "div",
      { class: "charts two" },
      chartFigure(
        [el("span", { class: "chart-name" }, "rewards"), el("span", { class: "faint hint" }, "click a bar to filter")],
        elements.histogram,
      ),
      chartFigure(
        [
          elements.y,
          el("span", { class: "faint" }, "over"),
          elements.x,
          legend([["●", "right"], ["×", "wrong"], ["–", "ungraded"]]),
        ],
        elements.scatter,
      ),
    ),
    el("div", { class: "tools" }, elements.search, elements.player, elements.outcome, elements.clear),
    elements.count,
    elements.unmeasured,
    elements.table,
  );
  return elements;
}

function chartFigure(title, area) {
  return el("figure", { class: "chart" }, el("div", { class: "chart-title" }, title), area);
}

function columns(route, state) {
  const measured = (row) => state.measures.get(row.group + "/" + row.rollout) || {};
  const groupRoute = (row) => ({ run: route.run, step: route.step, group: row.group, rollout: row.rollout });
  return [
    {
      name: "group",
      title: "Group",
      sort: true,
      width: "4.6rem",
      cell: (row) => routeLink({ ...groupRoute(row), screen: "group" }, null, "group " + row.group),
    },
    {
      name: "rollout",
      title: "Rollout",
      sort: true,
      width: "4.8rem",
      cell: (row) => routeLink({ ...groupRoute(row), screen: "episode" }, null, "rollout " + row.rollout),
    },
    ...(state.results
      ? [{
        name: "player",
        title: "Agent",
        sort: true,
        width: "minmax(4.5rem,1fr)",
        cell: (row) => el("span", { title: row.part || "" }, row.player),
      }]
      : []),
    {
      name: "reward",
      title: "Reward",
      sort: true,
      number: true,
      width: "4.8rem",
      cell: (
        row,
      ) => (row.reward === null
        ? el("span", { title: row.reason || "", class: "faint" }, "ungraded")
        : num(row.reward)),
    },
    { name: "outcome", title: "Outcome", sort: true, width: "9.8rem", cell: (row) => badge(row.outcome) },
    { name: "turns", title: "Turns", sort: true, number: true, width: "3.8rem", cell: (row) => num(row.turns) },
    {
      name: "prompt_tokens",
      title: "Read",
      hint: "tokens of all prompts",
      sort: true,
      number: true,
      width: "4.6rem",
      cell: (row) => num(row.prompt_tokens),
    },
    {
      name: "sampled_tokens",
      title: "Sampled",
      hint: "tokens the model wrote",
      sort: true,
      number: true,
      width: "5.2rem",
      cell: (row) => num(row.sampled_tokens),
    },
    {
      name: "retention",
      title: "Kept",
      hint: "share of the evidence in the final memory",
      sort: true,
      number: true,
      width: "3.6rem",
      cell: (row) => formatMeasure(measured(row), "retention"),
    },
    {
      name: "invention",
      title: "Halluc.",
      hint: "share of written sentences that are hallucinated: in no text read",
      sort: true,
      number: true,
      width: "5.2rem",
      cell: (row) => formatMeasure(measured(row), "invention"),
    },
    {
      name: "question",
      title: "Question",
      width: "minmax(11rem,3fr)",
      cell: (row) => el("span", { title: row.question }, row.question),
    },
    {
      name: "answer",
      title: "Answer",
      width: "minmax(7rem,2fr)",
      cell: (row) => el("span", { title: row.answer || "" }, row.answer === null ? "–" : extractBoxed(row.answer)),
    },
    {
      name: "gold",
      title: "Gold",
      width: "minmax(5rem,1fr)",
      cell: (row) => el("span", { title: row.golds.join(" | ") }, row.golds.join(" | ")),
    },
  ];
}

// A dash if nothing can be measured. "…" if the exported file omits it.
function formatMeasure(measured, name) {
  return measured.left_out
    ? el("span", { class: "faint", title: "not measured for this file" }, "…")
    : num(measured[name]);
}

// The first quantity that differs between episodes.
function firstVaryingColumn(rows) {
  const columnNames = ["sampled_tokens", "prompt_tokens", "turns", "group"];
  return columnNames.find((name) => rows.some((row) => row[name] !== rows[0][name])) || "group";
}

// Bar edges, also stored in the address. A bar counts the rewards that a click selects.
function binEdges(rewards) {
  const low = rewards.reduce((a, b) => Math.min(a, b), 0), high = rewards.reduce((a, b) => Math.max(a, b), 1);
  return Array.from(
    { length: BINS + 1 },
    (
      _,
      index,
    ) => (index === 0 ? low : index === BINS ? high : Number((low + ((high - low) * index) / BINS).toPrecision(12))),
  );
}

function drawHistogram(container, rows, query, setFilters) {
  const rewards = rows.map((row) => row.reward).filter((reward) => reward !== null);
  clear(container);
  if (!rewards.length) return container.append(el("p", { class: "faint" }, "all episodes are ungraded"));
  const width = Math.max(240, contentWidth(container)),
    height = 184,
    edges = binEdges(rewards),
    low = edges[0],
    high = edges[BINS];
  const counts = new Array(BINS).fill(0);
  for (const reward of rewards) counts[Math.min(BINS, edges.filter((edge) => edge <= reward).length) - 1] += 1;
  const largest = Math.max(...counts),
    left = 54,
    step = (width - left - 6) / BINS,
    floor = height - 36,
    plotHeight = floor - 12;
  const image = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    class: "histogram",
    role: "group",
    "aria-label": "Histogram of rewards",
  });
  for (const value of ticks(0, largest, 3)) {
    const y = floor - (plotHeight * value) / largest;
    image.append(
      svg(
        "g",
        { class: "axes" },
        svg("path", { d: `M${left - 2},${y}H${width}` }),
        svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, num(value)),
      ),
    );
  }
  counts.forEach((count, index) => {
    const start = edges[index],
      end = edges[index + 1],
      barHeight = Math.max(count ? 2 : 0, (plotHeight * count) / largest);
    const isSelected = query.from !== undefined && Number(query.from) === start;
    const toggleFilter = () =>
      setFilters(
        isSelected
          ? { from: null, to: null, last: null }
          : { from: String(start), to: String(end), last: index === BINS - 1 ? "1" : null },
      );
    const label = `${count} episodes with a reward from ${num(Number(start.toPrecision(3)))} to ${
      num(Number(end.toPrecision(3)))
    }`;
    const bar = svg("g", {
      class: "bin" + (isSelected ? " chosen" : ""),
      role: "button",
      tabindex: 0,
      "aria-label": label,
      "aria-pressed": String(isSelected),
      onclick: toggleFilter,
      onkeydown: (event) => (event.key === "Enter" || event.key === " ") && toggleFilter(),
    });
    bar.append(
      svg("title", null, label),
      svg("rect", { class: "reach", x: left + index * step, y: 4, width: step, height: floor - 4 }),
      svg("rect", {
        class: "fill",
        x: left + 1 + index * step,
        y: floor - barHeight,
        width: step - 2,
        height: barHeight,
      }),
    );
    image.append(bar);
  });
  for (const value of ticks(low, high, 5)) {
    image.append(
      svg(
        "g",
        { class: "axes" },
        svg("text", {
          x: left + ((width - left - 6) * (value - low)) / (high - low),
          y: height - 20,
          "text-anchor": "middle",
        }, num(value)),
      ),
    );
  }
  image.append(axisNames(["reward", "episodes"], left + (width - left) / 2, height - 4, floor / 2));
  container.append(image);
}

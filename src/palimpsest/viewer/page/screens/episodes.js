// The episodes of a step or a file: a histogram of rewards, a scatter plot, a table; the address stores filters.

import { badge, clear, el, legend, mean, num, roomIn, svg, unboxed } from "../dom.js";
import { get } from "../api.js";
import { axisNames, ticks } from "../chart.js";
import { asked, go, link } from "../place.js";
import { heldPlace, leads } from "../held.js";
import { on } from "../keys.js";
import { scatter } from "../scatter.js";
import { scores } from "../scores.js";
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
const EVERYONE = "all";

export function show(main, place) {
  const path = asked(place);
  const state = { rows: [], scored: null, torn: null, measures: new Map(), asked: new Set(), stopped: false };
  const query = { ...place.query };
  const parts = layout(main, place);
  let table = null; // created with the first answer
  const at = (row) => ({ screen: "episode", run: place.run, step: place.step, group: row.group, rollout: row.rollout });
  const points = scatter(parts.scatter, (row) => heldPlace(at(row)) && go(at(row)));
  const watcher = new ResizeObserver(pictures);
  watcher.observe(parts.histogram);
  parts.search.value = query.q || "";
  on(main, "j", "next step", () => beside(1));
  on(main, "k", "previous step", () => beside(-1));
  on(main, "/", "search in questions and answers", () => parts.search.focus());
  const unfiltered = { outcome: null, from: null, to: null, q: null, group: null, player: null };
  on(main, "x", "clear all filters", () => set(unfiltered));
  parts.search.addEventListener("input", () => set({ q: parts.search.value || null }));
  parts.outcome.addEventListener("change", () => set({ outcome: parts.outcome.value || null }));
  for (const axis of ["x", "y"]) parts[axis].addEventListener("change", () => set({ [axis]: parts[axis].value }));
  parts.clear.addEventListener("click", () => set(unfiltered));
  parts.player.addEventListener(
    "change",
    () => set({ player: parts.player.value === agent() ? null : parts.player.value }),
  );
  load().catch((
    error,
  ) => (parts.notice.append(el("div", { class: "notice notice-bad", role: "alert" }, error.message)),
    (state.more = false))
  );
  get(path + "/decoder").then((told) =>
    told.why && parts.notice.append(el("div", { class: "notice notice-warn" }, told.why))
  ).catch(() => null);
  steps();

  async function load() {
    const told = await get(path + "/episodes");
    if (state.stopped) return;
    Object.assign(state, { rows: told.rows, scored: told.parts || null, torn: told.torn });
    table = virtualTable(parts.table, {
      columns: columns(place, state),
      onsort: sortBy,
      onwindow: (rows) => measure(rows),
      label: "Episodes",
    });
    draw();
  }

  async function steps() {
    const all = await get(asked({ run: place.run }) + "/steps").catch(() => []);
    state.steps = all.map(String);
    const at = state.steps.indexOf(place.step);
    if (at < 0 || all.length < 2) return;
    const choose = el("select", {
      "aria-label": "Step",
      onchange: () => go({ screen: "episodes", run: place.run, step: choose.value, query }),
    }, all.map((step) => el("option", { value: step, selected: String(step) === place.step }, "step " + step)));
    clear(parts.steps).append(
      el("button", { type: "button", disabled: at === 0, title: "previous step (k)", onclick: () => beside(-1) }, "‹"),
      choose,
      el("button", {
        type: "button",
        disabled: at === all.length - 1,
        title: "next step (j)",
        onclick: () => beside(1),
      }, "›"),
    );
  }

  function beside(by) {
    const step = (state.steps || [])[(state.steps || []).indexOf(place.step) + by];
    if (step !== undefined) go({ screen: "episodes", run: place.run, step, query });
  }

  function set(changes) {
    Object.assign(query, changes);
    for (const key of Object.keys(query)) if (query[key] === null || query[key] === "") delete query[key];
    history.replaceState(null, "", link({ ...place, query }));
    if (!query.q) parts.search.value = "";
    draw();
  }

  function sortBy(name) {
    set({ sort: query.sort === "-" + name ? name : "-" + name });
  }

  function value(row, name) {
    if (MEASURED.includes(name)) return (state.measures.get(row.group + "/" + row.rollout) || {})[name];
    return row[name];
  }

  // The selected agent or baseline of an evaluation, by default the agent.
  function player() {
    return query.player || agent();
  }

  // The only agent; everyone if there are several.
  function agent() {
    const names = new Set((state.scored || []).filter((part) => !part.baseline).map((part) => part.player));
    return names.size === 1 ? [...names][0] : EVERYONE;
  }

  function players() {
    if (!state.scored) return;
    const recorded = (part) => state.rows.filter((row) => row.player === part.player && row.part === part.label).length;
    clear(parts.scores).append(el("h2", null, "Scores of all episodes"), scores(state.scored, recorded), unrecorded());
    const names = [...new Set([...state.scored.map((part) => part.player), ...state.rows.map((row) => row.player)])];
    parts.player.hidden = false;
    clear(parts.player).append(
      ...names.map((name) => el("option", { value: name }, name)),
      el("option", { value: EVERYONE }, "everyone"),
    );
    parts.player.value = player();
  }

  function unrecorded() {
    const all = state.scored.reduce((sum, part) => sum + part.episodes, 0),
      held = state.rows.filter((row) => row.part !== null).length;
    if (held >= all) return "";
    return el(
      "p",
      { class: "soft" },
      `${num(held)} of ${
        num(all)
      } episodes were recorded, and everything below covers only these. By default an evaluation records failed episodes; evaluation.record=all records all.`,
    );
  }

  function kept(row, without) {
    if (state.scored && player() !== EVERYONE && row.player !== player()) return false;
    const text = (query.q || "").toLowerCase();
    if (query.outcome && row.outcome !== query.outcome) return false;
    if (query.group !== undefined && String(row.group) !== query.group) return false;
    if (
      without !== "reward" && query.from !== undefined &&
      !(row.reward !== null && row.reward >= Number(query.from) &&
        (row.reward < Number(query.to) || (query.last && row.reward <= Number(query.to))))
    ) return false;
    return !text ||
      [row.question, row.answer || "", row.id, ...row.golds].some((each) => each.toLowerCase().includes(text));
  }

  function ordered(rows) {
    if (!query.sort) return rows;
    const name = query.sort.replace(/^-/, ""), sign = query.sort[0] === "-" ? -1 : 1;
    const missing = (each) => each === null || each === undefined;
    return [...rows].sort((a, b) => {
      const [one, other] = [value(a, name), value(b, name)];
      if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other));
      return (one < other ? -1 : one > other ? 1 : 0) * sign;
    });
  }

  function draw() {
    if (!table) return;
    const shown = ordered(state.rows.filter((row) => kept(row)));
    outcomes();
    players();
    for (const axis of ["x", "y"]) parts[axis].value = query[axis] || (axis === "x" ? varied(shown) : "reward");
    state.shown = shown;
    pictures();
    table.draw(shown, query.sort);
    const groups = new Set(shown.map((row) => row.group)).size;
    const ungraded = shown.filter((row) => row.reward === null).length;
    const rewards = shown.filter((row) => row.reward !== null).map((row) => row.reward);
    const of = state.scored
      ? `recorded episodes in ${num(groups)} groups (${player() === EVERYONE ? "agent and baselines" : player()})`
      : `episodes in ${num(groups)} groups`;
    const told = [
      `${num(shown.length)} of ${num(state.rows.length)} ${of}`,
      state.scored ? null : `mean reward ${num(mean(rewards))}`,
      ungraded ? `${num(ungraded)} ungraded` : null,
    ];
    clear(parts.count).append(told.filter(Boolean).join(" · "));
    parts.clear.hidden = !["outcome", "from", "q", "group", "player"].some((key) => key in query);
    clear(parts.torn).append(state.torn ? el("div", { class: "notice notice-bad", role: "alert" }, state.torn) : "");
    const wanted = [query.sort && query.sort.replace(/^-/, ""), parts.x.value, parts.y.value].some((name) =>
      MEASURED.includes(name)
    );
    if (wanted) everything();
  }

  // Drawn at full width, so that text keeps its size.
  function pictures() {
    if (!state.shown || state.stopped) return;
    histogram(parts.histogram, state.rows.filter((row) => kept(row, "reward")), query, set);
    points({ rows: state.shown, x: parts.x.value, y: parts.y.value, value, names: AXES });
  }

  function outcomes() {
    const counts = new Map();
    for (const row of state.rows) counts.set(row.outcome, (counts.get(row.outcome) || 0) + 1);
    const text = JSON.stringify([...counts]);
    if (parts.outcome.dataset.told !== text) {
      parts.outcome.dataset.told = text;
      clear(parts.outcome).append(
        el("option", { value: "" }, "every outcome"),
        ...[...counts].map(([name, count]) => el("option", { value: name }, `${name} (${count})`)),
      );
    }
    parts.outcome.value = query.outcome || "";
  }

  // Retention and hallucination need decoded prompts: of the visible groups, or of all if they order the table.
  async function measure(rows) {
    const groups = [...new Set(rows.map((row) => row.group))].filter((group) => !state.asked.has(group)).slice(0, 16);
    if (!groups.length || state.stopped) return;
    groups.forEach((group) => state.asked.add(group));
    const told = await get(path + "/measures?groups=" + groups.join(",")).catch(() => ({}));
    for (const [key, each] of Object.entries(told)) state.measures.set(key, each);
    const left = [...state.measures.values()].filter((each) => each.left_out).length;
    if (left) {
      clear(parts.unmeasured).append(
        `This file lacks the evidence kept and hallucinations of ${num(left)} episodes (…).`,
      );
    }
    if (!state.stopped && Object.keys(told).length) table.again();
    return measure(rows);
  }

  async function everything() {
    const before = state.measures.size;
    const left = state.rows.filter((row) => !state.asked.has(row.group));
    for (let at = 0; at < left.length && !state.stopped; at += 64) await measure(left.slice(at, at + 64));
    if (!state.stopped && state.measures.size !== before) draw();
  }

  return () => {
    state.stopped = true;
    watcher.disconnect();
    if (table) table.stop();
  };
}

function layout(main, place) {
  const parts = {
    notice: el("div", null),
    torn: el("div", null),
    unmeasured: el("p", { class: "faint" }),
    steps: el("span", { class: "steps" }),
    count: el("p", { class: "soft about", "aria-live": "polite" }),
  };
  parts.search = el("input", { type: "search", placeholder: "Search questions and answers…", "aria-label": "Search" });
  parts.outcome = el("select", { "aria-label": "Outcome" });
  parts.player = el("select", { "aria-label": "Agent", hidden: true });
  parts.scores = el("div", null);
  parts.clear = el("button", { type: "button" }, "Clear filters");
  const axis = (name) =>
    el(
      "select",
      { "aria-label": name },
      Object.entries(AXES).map(([key, words]) => el("option", { value: key }, words)),
    );
  Object.assign(parts, {
    x: axis("Across"),
    y: axis("Up"),
    histogram: el("div", { class: "chart-area" }),
    scatter: el("div", { class: "chart-area" }),
    table: el("div", null),
  });
  const title = place.step === "all"
    ? "Episodes"
    : /^\d+$/.test(place.step)
    ? "Episodes of step " + place.step
    : "Episodes of " + place.step;
  main.append(
    el("div", { class: "title" }, el("h1", null, title), parts.steps),
    parts.notice,
    parts.torn,
    parts.scores,
    el(
      "div",
      { class: "charts two" },
      el(
        "figure",
        { class: "chart" },
        el(
          "div",
          { class: "chart-title" },
          el("span", { class: "chart-name" }, "rewards"),
          el("span", { class: "faint hint" }, "click a bar to filter"),
        ),
        parts.histogram,
      ),
      el(
        "figure",
        { class: "chart" },
        el(
          "div",
          { class: "chart-title" },
          parts.y,
          el("span", { class: "faint" }, "over"),
          parts.x,
          legend([["●", "right"], ["×", "wrong"], ["–", "ungraded"]]),
        ),
        parts.scatter,
      ),
    ),
    el("div", { class: "tools" }, parts.search, parts.player, parts.outcome, parts.clear),
    parts.count,
    parts.unmeasured,
    parts.table,
  );
  return parts;
}

function columns(place, state) {
  const measured = (row) => state.measures.get(row.group + "/" + row.rollout) || {};
  const at = (row) => ({ run: place.run, step: place.step, group: row.group, rollout: row.rollout });
  return [
    {
      name: "group",
      title: "Group",
      sort: true,
      width: "3.4rem",
      cell: (row) => leads({ ...at(row), screen: "group" }, null, "g" + row.group),
    },
    {
      name: "rollout",
      title: "Rollout",
      sort: true,
      width: "4.4rem",
      cell: (row) =>
        leads(
          { ...at(row), screen: "episode" },
          null,
          (heldPlace({ ...at(row), screen: "episode" }) ? "open " : "") + row.rollout,
        ),
    },
    ...(state.scored
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
      cell: (row) => figure(measured(row), "retention"),
    },
    {
      name: "invention",
      title: "Halluc.",
      hint: "share of written sentences that are hallucinated: in no text read",
      sort: true,
      number: true,
      width: "5.2rem",
      cell: (row) => figure(measured(row), "invention"),
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
      cell: (row) => el("span", { title: row.answer || "" }, row.answer === null ? "–" : unboxed(row.answer)),
    },
    {
      name: "gold",
      title: "Gold",
      width: "minmax(5rem,1fr)",
      cell: (row) => el("span", { title: row.golds.join(" | ") }, row.golds.join(" | ")),
    },
  ];
}

// A dash if nothing can be measured; an omission of an exported file shows "…".
function figure(measured, name) {
  return measured.left_out
    ? el("span", { class: "faint", title: "not measured for this file" }, "…")
    : num(measured[name]);
}

// The first quantity that differs between episodes.
function varied(rows) {
  const names = ["sampled_tokens", "prompt_tokens", "turns", "group"];
  return names.find((name) => rows.some((row) => row[name] !== rows[0][name])) || "group";
}

// Bar edges, also stored in the address: a bar counts the rewards that a click on it selects.
function edgesOf(rewards) {
  const low = rewards.reduce((a, b) => Math.min(a, b), 0), high = rewards.reduce((a, b) => Math.max(a, b), 1);
  return Array.from(
    { length: BINS + 1 },
    (_, at) => (at === 0 ? low : at === BINS ? high : Number((low + ((high - low) * at) / BINS).toPrecision(12))),
  );
}

function histogram(holder, rows, query, set) {
  const rewards = rows.map((row) => row.reward).filter((reward) => reward !== null);
  clear(holder);
  if (!rewards.length) return holder.append(el("p", { class: "faint" }, "all episodes are ungraded"));
  const width = Math.max(240, roomIn(holder)),
    height = 184,
    edges = edgesOf(rewards),
    low = edges[0],
    high = edges[BINS];
  const counts = new Array(BINS).fill(0);
  for (const reward of rewards) counts[Math.min(BINS, edges.filter((edge) => edge <= reward).length) - 1] += 1;
  const most = Math.max(...counts), left = 54, step = (width - left - 6) / BINS, floor = height - 36, room = floor - 12;
  const root = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    class: "histogram",
    role: "group",
    "aria-label": "Histogram of rewards",
  });
  for (const value of ticks(0, most, 3)) {
    const y = floor - (room * value) / most;
    root.append(
      svg(
        "g",
        { class: "axes" },
        svg("path", { d: `M${left - 2},${y}H${width}` }),
        svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, num(value)),
      ),
    );
  }
  counts.forEach((count, at) => {
    const from = edges[at], to = edges[at + 1], tall = Math.max(count ? 2 : 0, (room * count) / most);
    const chosen = query.from !== undefined && Number(query.from) === from;
    const pick = () =>
      set(
        chosen
          ? { from: null, to: null, last: null }
          : { from: String(from), to: String(to), last: at === BINS - 1 ? "1" : null },
      );
    const label = `${count} episodes with a reward from ${num(Number(from.toPrecision(3)))} to ${
      num(Number(to.toPrecision(3)))
    }`;
    const bar = svg("g", {
      class: "bin" + (chosen ? " chosen" : ""),
      role: "button",
      tabindex: 0,
      "aria-label": label,
      "aria-pressed": String(chosen),
      onclick: pick,
      onkeydown: (event) => (event.key === "Enter" || event.key === " ") && pick(),
    });
    bar.append(
      svg("title", null, label),
      svg("rect", { class: "reach", x: left + at * step, y: 4, width: step, height: floor - 4 }),
      svg("rect", { class: "fill", x: left + 1 + at * step, y: floor - tall, width: step - 2, height: tall }),
    );
    root.append(bar);
  });
  for (const value of ticks(low, high, 5)) {
    root.append(
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
  root.append(axisNames(["reward", "episodes"], left + (width - left) / 2, height - 4, floor / 2));
  holder.append(root);
}

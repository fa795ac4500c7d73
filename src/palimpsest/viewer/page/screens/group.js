// A group: rollouts side by side, the point where memories diverge, the prefix forest.
// Training computes shared prefixes once.

import { badge, clear, contentWidth, el, extractBoxed, factElement, headline, legend, mean, num, svg } from "../dom.js";
import { get } from "../api.js";
import { apiPath, ordinal, routeHash } from "../route.js";
import { isAvailable, routeLink } from "../links.js";
import { bindKey } from "../keys.js";
import { className, stateName, stateSign } from "../strip.js";

const MAX_WIDE_COLUMNS = 8, MIN_WIDTH = 690;

export async function show(main, route) {
  const view = await get(apiPath(route));
  const goToGroup = (offset) =>
    route.group + offset >= 0 && (location.hash = routeHash({ ...route, group: route.group + offset }));
  bindKey(main, "j", "next group", () => goToGroup(1));
  bindKey(main, "k", "previous group", () => goToGroup(-1));
  bindKey(main, "]", "next group", () => goToGroup(1));
  bindKey(main, "[", "previous group", () => goToGroup(-1));
  main.append(
    groupHead(view),
    el(
      "section",
      { class: "card" },
      el("h2", null, "Rollouts side by side"),
      divergence(view),
      signLegend(view),
      matrix(view, route),
    ),
    forestCard(view, route),
  );
}

function groupHead(view) {
  const rewards = view.rollouts.map((row) => row.grade.value).filter((value) => value !== null);
  const facts = [
    ["Gold", view.problem.answers.slice(0, 4).join(" / ")],
    ["Mean reward", num(mean(rewards))],
    ["Rollouts", num(view.rollouts.length)],
    ["Advantage", view.advantage_is],
    ...(view.player ? [["Agent", `${view.player}, ${view.part}`]] : []),
  ];
  return el(
    "header",
    { class: "episode-head" },
    headline(view.problem.question),
    el(
      "dl",
      { class: "facts" },
      facts.map(([name, value]) => factElement(name, value)),
    ),
    view.evidence.length
      ? el(
        "p",
        { class: "soft" },
        "Evidence: ",
        view.evidence.map((text, index) => [index ? ", " : "", el("q", { class: "gold" }, text)]),
      )
      : null,
  );
}

function divergence(view) {
  if (!view.parts.length) return el("p", { class: "faint" }, "These agents have no memory to compare.");
  if (view.first_parting === null) return el("p", { class: "soft" }, "All rollouts wrote the same memories.");
  return el(
    "p",
    { class: "soft" },
    "Memories first diverge after ",
    el("strong", null, columnName(view, view.first_parting)),
    `: ${
      view.parts[view.first_parting].memories
    } distinct memories. Equal letters in a column are equal memories; A is the most frequent.`,
  );
}

function signLegend(view) {
  const states = [...new Set(view.rollouts.flatMap((row) => row.cells.filter(Boolean).map((cell) => cell.state)))];
  const marks = states.map((
    state,
  ) => [
    el("span", { class: "legend-cell legend-" + className(state), "aria-hidden": "true" }, stateSign(state)),
    stateName(state),
  ]);
  return legend([["A", "the most frequent memory of its column"], ...marks, [
    el("span", { class: "star" }, "★"),
    "contains evidence",
  ], [el("span", { class: "star soft" }, "▼"), "read evidence"]]);
}

function matrix(view, route) {
  const steps = view.parts.length, isWide = steps <= MAX_WIDE_COLUMNS;
  const letters = view.parts.map((part) => new Map(Object.keys(part.counts).map((id, index) => [id, letterOf(index)])));
  const head = el(
    "tr",
    null,
    ["Rollout", "Reward", "Advantage", "Ended"].map((name) => el("th", { scope: "col" }, name)),
    view.parts.map((part) =>
      el("th", {
        scope: "col",
        class: part.step === view.first_parting ? "divergence" : null,
        title: part.step === view.first_parting ? "memories first diverge here" : null,
      }, isWide ? columnName(view, part.step) : String(ordinal(part.step)))
    ),
    el("th", { scope: "col" }, "Answer"),
  );
  const order = [...view.rollouts].sort((a, b) =>
    (b.grade.value ?? -1) - (a.grade.value ?? -1) || a.rollout - b.rollout
  );
  const rows = order.map((row) => {
    const turnRoute = (turn) => ({ ...route, screen: "episode", rollout: row.rollout, turn });
    const cells = view.parts.map((part) => cellView(row.cells[part.step], letters[part.step], isWide, turnRoute));
    return el(
      "tr",
      null,
      el(
        "td",
        { class: "nowrap" },
        routeLink({ ...route, screen: "episode", rollout: row.rollout, turn: null }, null, "rollout " + row.rollout),
        row.replayed ? el("small", null, row.replayed) : null,
      ),
      el("td", { class: "number" }, num(row.grade.value)),
      el("td", { class: "number" }, advantageBar(row.advantage, order)),
      el("td", null, badge(row.outcome.replace(/_/g, " "))),
      cells,
      el("td", { class: "memory-cell", title: row.answer }, extractBoxed(row.answer || "–").slice(0, 120)),
    );
  });
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "rows small matrix" + (isWide ? " wide" : "") },
      el("thead", null, head),
      el("tbody", null, rows),
    ),
  );
}

// The turn; the memory's number if rollouts wrote it at different turns.
function columnName(view, step) {
  const turns = new Set(view.rollouts.filter((row) => row.cells[step]).map((row) => row.cells[step].turn));
  return turns.size === 1 ? `turn ${ordinal([...turns][0])}` : `memory ${ordinal(step)}`;
}

function letterOf(index) {
  return index < 26 ? String.fromCharCode(65 + index) : "+";
}

function cellView(entry, letters, isWide, turnRoute) {
  if (!entry) return el("td", { class: "faint" }, "–");
  const name = letters.get(entry.memory_id), hasEvidence = entry.held.length > 0;
  const title = `turn ${ordinal(entry.turn)}: ${entry.marks.map(stateName).join(", ")}; ${entry.tokens} tokens${
    hasEvidence ? "; contains evidence" : ""
  }\n${entry.memory}`;
  return el(
    "td",
    { class: "step" },
    routeLink(
      turnRoute(entry.turn),
      { class: `memory-link memory-link-${Math.min(5, name.charCodeAt(0) - 65)}`, title },
      el("span", { class: "memory-letter" }, name),
      el(
        "span",
        { class: "legend-cell legend-" + className(entry.state), "aria-hidden": "true" },
        stateSign(entry.state),
      ),
      hasEvidence ? el("span", { class: "star", title: "contains evidence" }, "★") : null,
      entry.seen.length ? el("span", { class: "star soft", title: "evidence read here" }, "▼") : null,
      isWide ? el("span", { class: "memory-preview" }, entry.memory.trim().slice(0, 160) || "empty") : null,
    ),
  );
}

function advantageBar(value, rows) {
  if (value === null) return "–";
  const largest = Math.max(1e-9, ...rows.map((row) => Math.abs(row.advantage || 0)));
  return el(
    "span",
    { class: "bar-cell" },
    el("span", {
      class: value < 0 ? "bar minus" : "bar plus",
      "aria-hidden": "true",
      style: { width: `${((Math.abs(value) / largest) * 3).toFixed(2)}rem` },
    }),
    num(value),
  );
}

function forestCard(view, route) {
  const forest = view.forest;
  if (forest.left_out) {
    return el(
      "section",
      { class: "card" },
      el("h2", null, "Prefix forest"),
      el("p", { class: "faint" }, forest.left_out),
    );
  }
  if (!forest.rows.length) {
    return el(
      "section",
      { class: "card" },
      el("h2", null, "Prefix forest"),
      el("p", { class: "faint" }, "This group has no trained tokens."),
    );
  }
  const share = forest.logical_tokens / Math.max(1, forest.physical_tokens);
  return el(
    "section",
    { class: "card" },
    el("h2", null, "Prefix forest"),
    el(
      "p",
      { class: "soft" },
      `The ${num(forest.rows.length)} segments of this group have ${num(forest.logical_tokens)} tokens, ${
        num(forest.physical_tokens)
      } of them distinct (`,
      el("strong", null, `${share.toFixed(2)} to 1`),
      `). ${
        describeComputed(forest.computed)
      }Each line is a segment with its tokens from left to right; a block across several lines is shared.`,
    ),
    forestView(forest, route),
    el(
      "p",
      { class: "legend" },
      [["node-4", "shared by many"], ["node-1", "shared by two"], ["node-0", "in one segment"], [
        "node-trained",
        "sampled: trained",
      ]].map(([kind, text]) =>
        el("span", { class: "legend-item" }, el("span", { class: "legend-cell " + kind, "aria-hidden": "true" }), text)
      ),
      forest.nodes_left_out
        ? el("span", { class: "faint" }, `${num(forest.nodes_left_out)} smaller nodes omitted`)
        : null,
    ),
  );
}

// The tokens that training computes, if known.
function describeComputed(counts) {
  if (!counts) return "";
  if (!counts.segments) return "All advantages are 0, so training computes no token. ";
  return `The ${num(counts.segments)} segments with a nonzero advantage have ${
    num(counts.logical_tokens)
  } tokens without their last ones, which are only predicted; training computes ${num(counts.physical_tokens)}. `;
}

// Neighbouring lines of the same turns.
function mergeRows(rows) {
  const merged = [];
  rows.forEach((row, index) => {
    const last = merged[merged.length - 1];
    if (last && last.turns.join() === row.turns.join()) last.size += 1;
    else merged.push({ start: index, size: 1, turns: row.turns, rollout: row.rollout });
  });
  return merged;
}

// Drawn at full width, so that text keeps its size.
function forestView(forest, route) {
  const container = el("div", { class: "scroll" });
  let currentWidth = 0;
  new ResizeObserver(() => {
    const width = Math.max(MIN_WIDTH, contentWidth(container));
    if (width !== currentWidth) clear(container).append(drawForest(forest, route, currentWidth = width));
  }).observe(container);
  return container;
}

function drawForest(forest, route, totalWidth) {
  const deepest = Math.max(1, ...forest.nodes.map((node) => node.end)),
    line = Math.max(5, Math.min(18, 900 / forest.rows.length));
  const left = 132, width = totalWidth - left - 4, scale = width / deepest, height = line * forest.rows.length;
  const image = svg("svg", {
    class: "forest",
    width: totalWidth,
    height: height + 22,
    viewBox: `0 0 ${totalWidth} ${height + 22}`,
    role: "img",
    "aria-label": `prefix forest of ${forest.rows.length} segments`,
  });
  for (const run of mergeRows(forest.rows)) {
    if (run.size * line < 11) continue;
    const turns = run.turns[0] === run.turns[1]
      ? "turn " + ordinal(run.turns[0])
      : `turns ${ordinal(run.turns[0])}–${ordinal(run.turns[1])}`;
    const text = run.size === 1 ? `rollout ${run.rollout}, ${turns}` : `${turns}, ${run.size} segments`;
    const target = { ...route, screen: "episode", rollout: run.rollout, turn: run.turns[0] };
    const label = svg("text", { class: "forest-row", x: left - 8, y: (run.start + run.size / 2) * line + 4 }, text);
    image.append(isAvailable(target) ? svg("a", { href: routeHash(target) }, label) : label);
  }
  for (const node of forest.nodes) {
    const [first, last] = node.rows, rows = last - first, shade = Math.min(4, Math.ceil(Math.log2(rows)));
    const box = {
      x: left + node.start * scale,
      y: first * line + 0.5,
      width: Math.max(0.5, (node.end - node.start) * scale - 0.75),
      height: rows * line - 1,
    };
    const title = `${
      node.end - node.start
    } tokens, shared by ${rows} segments of ${node.rollouts.length} rollouts, ${node.trained} trained\n${node.text}`;
    image.append(
      svg(
        "rect",
        { class: "node node-" + (rows === 1 && node.trained > 0 ? "0" : shade), ...box, rx: 1.5 },
        svg("title", null, title),
      ),
    );
    if (node.trained) {
      image.append(
        svg("rect", {
          class: "node-trained",
          x: box.x + box.width * (1 - node.trained / (node.end - node.start)),
          y: box.y,
          width: (box.width * node.trained) / (node.end - node.start),
          height: box.height,
        }, svg("title", null, title)),
      );
    }
    const untrainedWidth = box.width * (1 - node.trained / (node.end - node.start));
    if (untrainedWidth > 60 && box.height > 9) {
      image.append(
        svg(
          "text",
          { class: "node-text", x: box.x + 4, y: box.y + Math.min(box.height / 2 + 4, box.height - 2) },
          node.text.replace(/\s+/g, " ").trim().slice(0, Math.floor(untrainedWidth / 6.4)),
        ),
      );
    }
  }
  for (const share of [0, 0.5, 1]) {
    image.append(
      svg("text", {
        class: "axis-text",
        x: left + width * share,
        y: height + 16,
        "text-anchor": share === 1 ? "end" : share ? "middle" : "start",
      }, num(Math.round(deepest * share)) + (share ? "" : " tokens")),
    );
  }
  return image;
}

// The strip of an episode's turns: one cell per turn, coloured by its state, and one lane per piece of evidence: where it
// was read, stored and lost. All turns are visible: below NARROWEST, a column covers several turns, divided by state.

import { clear, el, num, svg } from "./dom.js";
import { ordinal } from "./place.js";

const SIGNS = {
  failed: "✕",
  malformed: "?",
  refused: "⊘",
  "tool error": "×",
  truncated: "✂",
  invented: "!",
  sifted: "~",
  edited: "E",
  pruned: "⌫",
  "summed up": "Σ",
  recalled: "↩",
  wrote: "✎",
  kept: "=",
  called: "→",
  answered: "A",
  sampled: "·",
};
const NAMES = {
  invented: "hallucinated",
  sifted: "ungrounded",
  refused: "rejected",
  "summed up": "summarised",
  "in sight": "in the prompt",
  "not known without a tokenizer": "unknown without a tokenizer",
};
const VERDICTS = {
  held: "the last memory contains it",
  "in sight": "the last memory lacks it, but the last prompt shows it",
  lost: "stored in memory, then lost",
  "not written": "read but never stored in memory",
  unseen: "no text read contains it",
};
const GRAVE = new Set(["failed", "malformed", "invented", "tool error"]);
const CELL = 26,
  LANE = 24,
  SIZE = 30,
  GAP = 6,
  MOST_LANES = 12,
  MOST_CELL = 320,
  NARROWEST = 1.5,
  COLUMN = 3,
  LEAST = 4,
  PAPER = 440;

export function sign(state) {
  return SIGNS[state] || "·";
}

export function nameOf(state) {
  return NAMES[state] || state;
}

export function slug(state) {
  return state.replace(/ /g, "-");
}

export function verdictBadge(fate) {
  const kind = { held: "good", "in sight": "good", lost: "bad", "not written": "bad", unseen: "faint" }[fate.verdict] ||
    "faint";
  return el("span", { class: "verdict verdict-" + kind, title: VERDICTS[fate.verdict] }, nameOf(fate.verdict));
}

// {element, mark(turn), stop()}: `mark` highlights the current turn.
export function strip(view, pick) {
  const lanes = view.fates.slice(0, MOST_LANES), rows = view.turns, count = Math.max(1, rows.length);
  const sizes = rows.some((row) => row.memory !== null);
  const height = CELL + lanes.length * LANE + (sizes ? SIZE + GAP : 0) + 16;
  const drawing = el("div", { class: "strip-drawing" });
  const cursor = svg("rect", { class: "strip-cursor", y: 0.75, height: height - 15, rx: 3 });
  const note = el("span", { class: "legend-item strip-note" });
  let at = 0, width = 0, per = 1;
  const element = el(
    "section",
    { class: "card strip", "aria-label": "Turns" },
    labels(view, lanes, sizes, pick),
    drawing,
  );
  const whole = el("div", null, element, legend(view, note));

  function draw(room) {
    width = Math.max(room - 2, 120);
    const cell = Math.min(width / count, MOST_CELL), drawn = cell * count;
    per = cell < NARROWEST ? Math.ceil(COLUMN / cell) : 1;
    clear(note).append(per > 1 ? `a column is ${per} turns, divided by state` : "");
    const image = svg("svg", {
      width: drawn + 2,
      height,
      viewBox: `-1 0 ${drawn + 2} ${height}`,
      role: "img",
      "aria-label": told(view),
    });
    const cells = svg("g", { class: cell < 14 ? "cells narrow" : "cells" });
    const gravest = Object.keys(view.states);
    const order = [...rows.keys()].sort((a, b) => gravest.indexOf(rows[b].state) - gravest.indexOf(rows[a].state));
    if (per > 1) columns().forEach((turns) => cells.append(columnOf(turns, rows, cell, gravest)));
    else for (const turn of order) cells.append(cellOf(rows[turn], turn * cell, cell, view));
    image.append(cells);
    lanes.forEach((fate, lane) => image.append(laneOf(fate, CELL + lane * LANE, cell, drawn)));
    if (sizes) image.append(sizesOf(rows, columns(), CELL + lanes.length * LANE + GAP, cell));
    image.append(numbers(count, cell, height - 3), cursor);
    image.addEventListener("click", (event) => {
      const x = event.clientX - image.getBoundingClientRect().left - 1;
      const turn = Math.min(count - 1, Math.max(0, Math.floor(x / cell)));
      pick(per > 1 ? gravestOf(columns()[Math.floor(turn / per)], rows, gravest) : turn);
    });
    clear(drawing).append(image);
    place(cell);
  }

  // [columns] turns per column.
  function columns() {
    return Array.from(
      { length: Math.ceil(rows.length / per) },
      (_, number) => rows.slice(number * per, (number + 1) * per).map((_row, inner) => number * per + inner),
    );
  }

  function place(cell) {
    cursor.setAttribute("x", String(at * cell - 0.5));
    cursor.setAttribute("width", String(Math.max(cell + 1, 3)));
  }

  const fit = () => draw(drawing.clientWidth), onPaper = () => draw(PAPER); // fits next to its labels on any paper
  const watcher = new ResizeObserver(() => Math.abs(drawing.clientWidth - 2 - width) > 1 && fit());
  watcher.observe(drawing);
  addEventListener("beforeprint", onPaper);
  addEventListener("afterprint", fit);
  return {
    element: whole,
    stop() {
      watcher.disconnect();
      removeEventListener("beforeprint", onPaper);
      removeEventListener("afterprint", fit);
    },
    mark(turn) {
      at = turn;
      place(Math.min(width / count, MOST_CELL));
    },
  };
}

function labels(view, lanes, sizes, pick) {
  const more = view.fates.length - lanes.length;
  return el(
    "div",
    { class: "strip-labels" },
    el("div", { class: "strip-label strip-label-cells" }, "turns"),
    lanes.map((fate) =>
      el(
        "div",
        { class: "strip-label" },
        el("button", {
          type: "button",
          class: "fate-name",
          title: fate.text,
          onclick: () => pick(first(fate)),
        }, fate.text),
        verdictBadge(fate),
      )
    ),
    sizes ? el("div", { class: "strip-label strip-label-size" }, "tokens in memory") : null,
    more > 0 ? el("div", { class: "strip-label faint" }, "and " + more + " more below") : null,
  );
}

// The most telling turn of a fate: lost, otherwise written or read.
function first(fate) {
  return fate.lost[0] ?? fate.written ?? fate.seen[0] ?? 0;
}

function cellOf(row, x, width, view) {
  const group = svg("g", { class: "cell cell-" + slug(row.state) });
  group.append(
    svg("rect", {
      x: x + (width > 6 ? 1 : 0),
      y: 2,
      width: Math.max(width - (width > 6 ? 2 : 0), GRAVE.has(row.state) ? 3 : 1),
      height: CELL - 4,
      rx: width > 8 ? 3 : 0,
    }),
  );
  if (row.unfounded) {
    group.append(
      svg("rect", {
        class: "unfounded",
        x: x + (width > 6 ? 1 : 0),
        y: CELL - 5,
        width: Math.max(width - (width > 6 ? 2 : 0), 1),
        height: 3,
      }),
    );
  }
  if (width >= 14) group.append(svg("text", { x: x + width / 2, y: CELL / 2 + 4.5 }, sign(row.state)));
  const holds = row.unfounded
    ? `; keeps ${row.unfounded === 1 ? "a sentence" : row.unfounded + " sentences"} hallucinated earlier`
    : "";
  group.append(
    svg(
      "title",
      null,
      `turn ${ordinal(row.turn)}: ${row.marks.map(nameOf).join(", ")} (${view.states[row.state]})${holds}`,
    ),
  );
  return group;
}

// A column of states, most severe first: heights are shares of the turns, with a visible minimum.
function columnOf(turns, rows, cell, gravest) {
  const counts = gravest.map((state) => [state, turns.filter((turn) => rows[turn].state === state).length]).filter((
    each,
  ) => each[1]);
  const group = svg("g", { class: "column" }), room = CELL - 4 - LEAST * counts.length;
  let y = 2;
  for (const [state, count] of counts) {
    const height = LEAST + (room * count) / turns.length;
    group.append(
      svg(
        "g",
        { class: "cell cell-" + slug(state) },
        svg("rect", { x: turns[0] * cell, y, width: Math.max(turns.length * cell, 2), height }),
      ),
    );
    y += height;
  }
  group.append(
    svg(
      "title",
      null,
      `turns ${ordinal(turns[0])} to ${ordinal(turns[turns.length - 1])}: ` +
        counts.map(([state, count]) => `${count} ${nameOf(state)}`).join(", "),
    ),
  );
  return group;
}

// The first turn of the most severe state.
function gravestOf(turns, rows, gravest) {
  return turns.reduce(
    (best, turn) => (gravest.indexOf(rows[turn].state) < gravest.indexOf(rows[best].state) ? turn : best),
    turns[0],
  );
}

function laneOf(fate, y, cell, drawn) {
  const lane = svg("g", { class: "lane" }), middle = y + LANE / 2 + 3;
  lane.append(svg("line", { class: "lane-line", x1: 0, x2: drawn, y1: middle, y2: middle }));
  for (const [from, to] of fate.held) {
    lane.append(
      svg("rect", {
        class: "lane-held",
        x: from * cell + Math.min(cell / 2, 8),
        y: middle - 4,
        width: Math.max((to - from + 1) * cell - Math.min(cell / 2, 8), 2),
        height: 8,
        rx: 2,
      }, svg("title", null, `held after turns ${ordinal(from)} to ${ordinal(to)}`)),
    );
  }
  for (const turn of fate.seen) {
    lane.append(
      svg(
        "path",
        { class: "lane-seen", d: triangle(turn * cell + Math.min(cell / 2, 8), middle - 5) },
        svg("title", null, `read at turn ${ordinal(turn)}`),
      ),
    );
  }
  for (const turn of fate.recalled) {
    lane.append(
      svg(
        "circle",
        { class: "lane-recalled", cx: (turn + 0.5) * cell, cy: middle, r: 5 },
        svg("title", null, `recalled at turn ${ordinal(turn)}`),
      ),
    );
  }
  for (const turn of fate.lost) {
    lane.append(cross(turn * cell + Math.min(cell / 2, 8), middle, `lost at turn ${ordinal(turn)}`));
  }
  return lane;
}

function triangle(x, y) {
  return `M${x - 5},${y - 7} L${x + 5},${y - 7} L${x},${y} Z`;
}

function cross(x, y, title) {
  return svg("path", {
    class: "lane-lost",
    d: `M${x - 5},${y - 5} L${x + 5},${y + 5} M${x - 5},${y + 5} L${x + 5},${y - 5}`,
  }, svg("title", null, title));
}

// The largest memory per column.
function sizesOf(rows, columns, y, cell) {
  const most = Math.max(1, ...rows.map((row) => row.memory || 0)),
    group = svg("g", { class: "sizes" }),
    gap = cell > 6 ? 1 : 0;
  for (const turns of columns) {
    const known = turns.filter((turn) => rows[turn].memory !== null);
    if (!known.length) continue;
    const memory = Math.max(...known.map((turn) => rows[turn].memory)), height = Math.max(1, (SIZE * memory) / most);
    const when = turns.length > 1
      ? `turns ${ordinal(turns[0])} to ${ordinal(turns[turns.length - 1])}: up to`
      : `turn ${ordinal(turns[0])}:`;
    group.append(
      svg("rect", {
        x: turns[0] * cell + gap,
        y: y + SIZE - height,
        width: Math.max(turns.length * cell - 2 * gap, 1),
        height,
      }, svg("title", null, `${when} ${num(memory)} tokens in memory`)),
    );
  }
  return group;
}

function numbers(count, cell, y) {
  const group = svg("g", { class: "strip-numbers" });
  const apart = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((step) => step * cell >= 34) || 10000;
  for (let turn = 0; turn < count; turn += apart) {
    group.append(svg("text", { x: within(turn, cell, count), y }, String(ordinal(turn))));
  }
  return group;
}

// About 7 pixels per digit.
function within(turn, cell, count) {
  const half = 3.5 * String(ordinal(turn)).length;
  return Math.max(half, Math.min((turn + 0.5) * cell, count * cell - half));
}

function legend(view, note) {
  const present = Object.keys(view.states).filter((state) => view.turns.some((row) => row.state === state));
  const states = present.map((state) =>
    el(
      "span",
      { class: "legend-item", title: view.states[state] },
      el("span", { class: "legend-cell legend-" + slug(state), "aria-hidden": "true" }, sign(state)),
      nameOf(state),
    )
  );
  const mark = (kind, text) =>
    el("span", { class: "legend-item" }, el("span", { class: "legend-mark " + kind, "aria-hidden": "true" }), text);
  const marks = view.fates.length
    ? [mark("mark-seen", "read"), mark("mark-held", "in memory"), mark("mark-lost", "lost")]
    : [];
  if (view.fates.some((fate) => fate.recalled.length)) marks.push(mark("mark-recalled", "recalled"));
  if (view.turns.some((row) => row.unfounded)) marks.push(mark("mark-unfounded", "keeps an earlier hallucination"));
  return el("p", { class: "legend" }, states, marks, note);
}

function told(view) {
  const counts = {};
  for (const row of view.turns) counts[row.state] = (counts[row.state] || 0) + 1;
  const turns = Object.entries(counts).map(([state, count]) => `${count} ${nameOf(state)}`).join(", ");
  return `${view.turns.length} turns: ${turns}. ` +
    view.fates.map((fate) => `${fate.text} ${nameOf(fate.verdict)}`).join("; ");
}

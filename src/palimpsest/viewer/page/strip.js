// The strip of an episode's turns. Each turn has a cell, coloured by its state.
// Each piece of evidence has a lane: where it was read, stored and lost.
// All turns are visible. Below MIN_CELL pixels, a column covers several turns, divided by state.

import { clear, el, num, svg } from "./dom.js";
import { ordinal } from "./route.js";

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
const SEVERE = new Set(["failed", "malformed", "invented", "tool error"]);
const CELL = 26,
  LANE = 24,
  SIZE = 30,
  GAP = 6,
  MAX_LANES = 12,
  MAX_CELL = 320,
  MIN_CELL = 1.5,
  COLUMN = 3,
  MIN_HEIGHT = 4,
  PRINT_WIDTH = 440;

export function stateSign(state) {
  return SIGNS[state] || "·";
}

export function stateName(state) {
  return NAMES[state] || state;
}

export function className(state) {
  return state.replace(/ /g, "-");
}

export function verdictBadge(fate) {
  const kind = { held: "good", "in sight": "good", lost: "bad", "not written": "bad", unseen: "faint" }[fate.verdict] ||
    "faint";
  return el("span", { class: "verdict verdict-" + kind, title: VERDICTS[fate.verdict] }, stateName(fate.verdict));
}

// {element, mark(turn), stop()}: `mark` highlights the current turn.
export function strip(view, onPick) {
  const lanes = view.fates.slice(0, MAX_LANES), rows = view.turns, count = Math.max(1, rows.length);
  const sizes = rows.some((row) => row.memory !== null);
  const height = CELL + lanes.length * LANE + (sizes ? SIZE + GAP : 0) + 16;
  const drawing = el("div", { class: "strip-drawing" });
  const cursor = svg("rect", { class: "strip-cursor", y: 0.75, height: height - 15, rx: 3 });
  const note = el("span", { class: "legend-item strip-note" });
  let currentTurn = 0, width = 0, turnsPerColumn = 1;
  const element = el(
    "section",
    { class: "card strip", "aria-label": "Turns" },
    labels(view, lanes, sizes, onPick),
    drawing,
  );
  const container = el("div", null, element, stripLegend(view, note));

  function draw(availableWidth) {
    width = Math.max(availableWidth - 2, 120);
    const cell = Math.min(width / count, MAX_CELL), totalWidth = cell * count;
    turnsPerColumn = cell < MIN_CELL ? Math.ceil(COLUMN / cell) : 1;
    clear(note).append(turnsPerColumn > 1 ? `a column is ${turnsPerColumn} turns, divided by state` : "");
    const image = svg("svg", {
      width: totalWidth + 2,
      height,
      viewBox: `-1 0 ${totalWidth + 2} ${height}`,
      role: "img",
      "aria-label": describeStrip(view),
    });
    const cells = svg("g", { class: cell < 14 ? "cells narrow" : "cells" });
    const statesBySeverity = Object.keys(view.states);
    const order = [...rows.keys()].sort((a, b) =>
      statesBySeverity.indexOf(rows[b].state) - statesBySeverity.indexOf(rows[a].state)
    );
    if (turnsPerColumn > 1) columns().forEach((turns) => cells.append(columnView(turns, rows, cell, statesBySeverity)));
    else for (const turn of order) cells.append(cellView(rows[turn], turn * cell, cell, view));
    image.append(cells);
    lanes.forEach((fate, lane) => image.append(laneView(fate, CELL + lane * LANE, cell, totalWidth)));
    if (sizes) image.append(sizeBars(rows, columns(), CELL + lanes.length * LANE + GAP, cell));
    image.append(turnNumbers(count, cell, height - 3), cursor);
    image.addEventListener("click", (event) => {
      const x = event.clientX - image.getBoundingClientRect().left - 1;
      const turn = Math.min(count - 1, Math.max(0, Math.floor(x / cell)));
      onPick(
        turnsPerColumn > 1
          ? mostSevereTurn(columns()[Math.floor(turn / turnsPerColumn)], rows, statesBySeverity)
          : turn,
      );
    });
    clear(drawing).append(image);
    moveCursor(cell);
  }

  // The turns of each column.
  function columns() {
    return Array.from(
      { length: Math.ceil(rows.length / turnsPerColumn) },
      (_, number) =>
        rows.slice(number * turnsPerColumn, (number + 1) * turnsPerColumn).map((_row, inner) =>
          number * turnsPerColumn + inner
        ),
    );
  }

  function moveCursor(cell) {
    cursor.setAttribute("x", String(currentTurn * cell - 0.5));
    cursor.setAttribute("width", String(Math.max(cell + 1, 3)));
  }

  const fitScreen = () => draw(drawing.clientWidth), fitPrint = () => draw(PRINT_WIDTH); // fits next to its labels on any paper
  const watcher = new ResizeObserver(() => Math.abs(drawing.clientWidth - 2 - width) > 1 && fitScreen());
  watcher.observe(drawing);
  addEventListener("beforeprint", fitPrint);
  addEventListener("afterprint", fitScreen);
  return {
    element: container,
    stop() {
      watcher.disconnect();
      removeEventListener("beforeprint", fitPrint);
      removeEventListener("afterprint", fitScreen);
    },
    mark(turn) {
      currentTurn = turn;
      moveCursor(Math.min(width / count, MAX_CELL));
    },
  };
}

function labels(view, lanes, sizes, onPick) {
  const omitted = view.fates.length - lanes.length;
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
          onclick: () => onPick(keyTurn(fate)),
        }, fate.text),
        verdictBadge(fate),
      )
    ),
    sizes ? el("div", { class: "strip-label strip-label-size" }, "tokens in memory") : null,
    omitted > 0 ? el("div", { class: "strip-label faint" }, "and " + omitted + " more below") : null,
  );
}

// The turn that explains a fate best: lost, otherwise written or read.
function keyTurn(fate) {
  return fate.lost[0] ?? fate.written ?? fate.seen[0] ?? 0;
}

function cellView(row, x, width, view) {
  const group = svg("g", { class: "cell cell-" + className(row.state) });
  group.append(
    svg("rect", {
      x: x + (width > 6 ? 1 : 0),
      y: 2,
      width: Math.max(width - (width > 6 ? 2 : 0), SEVERE.has(row.state) ? 3 : 1),
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
  if (width >= 14) group.append(svg("text", { x: x + width / 2, y: CELL / 2 + 4.5 }, stateSign(row.state)));
  const suffix = row.unfounded
    ? `; keeps ${row.unfounded === 1 ? "a sentence" : row.unfounded + " sentences"} hallucinated earlier`
    : "";
  group.append(
    svg(
      "title",
      null,
      `turn ${ordinal(row.turn)}: ${row.marks.map(stateName).join(", ")} (${view.states[row.state]})${suffix}`,
    ),
  );
  return group;
}

// A column of states, most severe first. Heights are shares of the turns, with a minimum.
function columnView(turns, rows, cell, statesBySeverity) {
  const counts = statesBySeverity.map((state) => [state, turns.filter((turn) => rows[turn].state === state).length])
    .filter((
      entry,
    ) => entry[1]);
  const group = svg("g", { class: "column" }), available = CELL - 4 - MIN_HEIGHT * counts.length;
  let y = 2;
  for (const [state, count] of counts) {
    const height = MIN_HEIGHT + (available * count) / turns.length;
    group.append(
      svg(
        "g",
        { class: "cell cell-" + className(state) },
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
        counts.map(([state, count]) => `${count} ${stateName(state)}`).join(", "),
    ),
  );
  return group;
}

// The first turn of the most severe state.
function mostSevereTurn(turns, rows, statesBySeverity) {
  return turns.reduce(
    (
      best,
      turn,
    ) => (statesBySeverity.indexOf(rows[turn].state) < statesBySeverity.indexOf(rows[best].state) ? turn : best),
    turns[0],
  );
}

function laneView(fate, y, cell, totalWidth) {
  const lane = svg("g", { class: "lane" }), middle = y + LANE / 2 + 3;
  lane.append(svg("line", { class: "lane-line", x1: 0, x2: totalWidth, y1: middle, y2: middle }));
  for (const [start, end] of fate.held) {
    lane.append(
      svg("rect", {
        class: "lane-held",
        x: start * cell + Math.min(cell / 2, 8),
        y: middle - 4,
        width: Math.max((end - start + 1) * cell - Math.min(cell / 2, 8), 2),
        height: 8,
        rx: 2,
      }, svg("title", null, `held after turns ${ordinal(start)} to ${ordinal(end)}`)),
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
function sizeBars(rows, columns, y, cell) {
  const largest = Math.max(1, ...rows.map((row) => row.memory || 0)),
    group = svg("g", { class: "sizes" }),
    gap = cell > 6 ? 1 : 0;
  for (const turns of columns) {
    const withMemory = turns.filter((turn) => rows[turn].memory !== null);
    if (!withMemory.length) continue;
    const memory = Math.max(...withMemory.map((turn) => rows[turn].memory)),
      height = Math.max(1, (SIZE * memory) / largest);
    const label = turns.length > 1
      ? `turns ${ordinal(turns[0])} to ${ordinal(turns[turns.length - 1])}: up to`
      : `turn ${ordinal(turns[0])}:`;
    group.append(
      svg("rect", {
        x: turns[0] * cell + gap,
        y: y + SIZE - height,
        width: Math.max(turns.length * cell - 2 * gap, 1),
        height,
      }, svg("title", null, `${label} ${num(memory)} tokens in memory`)),
    );
  }
  return group;
}

function turnNumbers(count, cell, y) {
  const group = svg("g", { class: "strip-numbers" });
  const spacing = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((step) => step * cell >= 34) || 10000;
  for (let turn = 0; turn < count; turn += spacing) {
    group.append(svg("text", { x: labelX(turn, cell, count), y }, String(ordinal(turn))));
  }
  return group;
}

// About 7 pixels per digit.
function labelX(turn, cell, count) {
  const half = 3.5 * String(ordinal(turn)).length;
  return Math.max(half, Math.min((turn + 0.5) * cell, count * cell - half));
}

function stripLegend(view, note) {
  const presentStates = Object.keys(view.states).filter((state) => view.turns.some((row) => row.state === state));
  const states = presentStates.map((state) =>
    el(
      "span",
      { class: "legend-item", title: view.states[state] },
      el("span", { class: "legend-cell legend-" + className(state), "aria-hidden": "true" }, stateSign(state)),
      stateName(state),
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

function describeStrip(view) {
  const counts = {};
  for (const row of view.turns) counts[row.state] = (counts[row.state] || 0) + 1;
  const turns = Object.entries(counts).map(([state, count]) => `${count} ${stateName(state)}`).join(", ");
  return `${view.turns.length} turns: ${turns}. ` +
    view.fates.map((fate) => `${fate.text} ${stateName(fate.verdict)}`).join("; ");
}

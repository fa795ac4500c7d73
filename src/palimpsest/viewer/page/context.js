// The context of an agent with tools: blocks per turn, removed blocks, removed blocks needed later.

import { el, num, svg } from "./dom.js";
import { ordinal, routeHash } from "./route.js";

const KINDS = {
  opening: "instructions",
  question: "question",
  memory: "memory of a prune",
  reply: "replies",
  result: "tool results",
  summary: "summary",
  frame: "template",
};
const HEIGHT = 190, TOP = 22, LEFT = 52;

export function contextBlocks(view, route, onPick) {
  const turns = view.context.turns, freed = view.context.freed;
  const largest = Math.max(1, ...turns.map((blocks) => blocks.reduce((sum, block) => sum + block.tokens, 0)));
  const cell = Math.max(3, Math.min(120, 1100 / Math.max(1, turns.length))), width = LEFT + cell * turns.length + 8;
  const image = svg("svg", {
    width,
    height: HEIGHT + TOP + 20,
    viewBox: `0 0 ${width} ${HEIGHT + TOP + 20}`,
    role: "img",
    "aria-label": `tokens in the context of each turn, at most ${largest}`,
  });
  for (const share of [0, 0.5, 1]) {
    const y = TOP + HEIGHT * (1 - share);
    image.append(
      svg("line", { class: "axis", x1: LEFT - 4, x2: width, y1: y, y2: y }),
      svg("text", { class: "axis-text", x: LEFT - 8, y: y + 4 }, num(Math.round(largest * share))),
    );
  }
  const columns = turns.map((blocks, turn) => column(blocks, turn, cell, largest, onPick));
  image.append(...columns);
  for (const event of freed) image.append(freedMark(event, cell, turns, largest));
  const presentKinds = Object.keys(KINDS).filter((kind) =>
    turns.some((blocks) => blocks.some((block) => blockKind(block.kind) === kind))
  );
  const legend = el(
    "p",
    { class: "legend" },
    presentKinds.map((kind) =>
      el(
        "span",
        { class: "legend-item" },
        el("span", { class: "legend-cell block-" + kind, "aria-hidden": "true" }),
        KINDS[kind],
      )
    ),
  );
  let currentColumn = null;
  return {
    element: el("div", { class: "context" }, el("div", { class: "scroll" }, image), legend, freedTable(freed, route)),
    mark(turn) {
      if (currentColumn) currentColumn.classList.remove("now");
      currentColumn = columns[turn] || null;
      if (currentColumn) currentColumn.classList.add("now");
    },
  };
}

function blockKind(kind) {
  return kind in KINDS ? kind : "result";
}

function column(blocks, turn, cell, largest, onPick) {
  const group = svg("g", { class: "column", onclick: () => onPick(turn) });
  let y = TOP + HEIGHT;
  group.append(
    svg("rect", { class: "column-back", x: LEFT + turn * cell, y: TOP - 2, width: cell, height: HEIGHT + 20 }),
  );
  for (const block of blocks) {
    const height = (HEIGHT * block.tokens) / largest, kind = blockKind(block.kind);
    y -= height;
    const name = block.id
      ? "result " + block.id
      : block.turn !== null
      ? `${KINDS[kind]}, turn ${ordinal(block.turn)}`
      : KINDS[kind] || block.kind;
    group.append(
      svg("rect", {
        class: "block block-" + kind,
        x: LEFT + turn * cell + 1.5,
        y,
        width: Math.max(1, cell - 3),
        height: Math.max(0.5, height - 0.75),
      }, svg("title", null, `turn ${ordinal(turn)}: ${name}, ${block.tokens} tokens`)),
    );
    if (block.id && height > 13 && cell > 16) {
      group.append(
        svg(
          "text",
          { class: "block-text", x: LEFT + (turn + 0.5) * cell, y: y + height / 2 + 4 },
          block.id.slice(0, 6),
        ),
      );
    }
  }
  if (cell >= 14 || ordinal(turn) % 10 === 0) {
    group.append(
      svg(
        "text",
        { class: "column-number", x: LEFT + (turn + 0.5) * cell, y: TOP + HEIGHT + 15 },
        String(ordinal(turn)),
      ),
    );
  }
  return group;
}

function freedMark(event, cell, turns, largest) {
  const size = (turns[event.turn + 1] || []).reduce((sum, block) => sum + block.tokens, 0);
  const x = LEFT + (event.turn + 1.5) * cell, y = TOP + HEIGHT * (1 - size / largest);
  return svg(
    "g",
    { class: "freed" },
    svg("text", { x, y: Math.max(12, y - 6) }, "−" + num(event.tokens)),
    svg("title", null, `${event.how} after turn ${ordinal(event.turn)}: ${event.tokens} tokens left the context`),
  );
}

function freedTable(freed, route) {
  if (!freed.length) return el("p", { class: "faint" }, "No tokens left the context.");
  const rows = freed.map((event) =>
    el(
      "tr",
      null,
      el("td", null, el("a", { href: routeHash({ ...route, turn: event.turn }) }, "turn " + ordinal(event.turn))),
      el("td", null, event.how),
      el("td", { class: "number" }, num(event.tokens)),
      el(
        "td",
        null,
        event.deleted.map((
          result,
          index,
        ) => [
          index ? ", " : "",
          el("span", { class: "mono" }, result.id),
          result.tokens === null ? "" : ` (${num(result.tokens)})`,
        ]),
      ),
      el("td", null, neededLater(event, route)),
    )
  );
  const head = ["After", "By", "Tokens freed", "Results deleted", "Needed later"].map((name, index) =>
    el("th", { scope: "col", class: index === 2 ? "number" : null }, name)
  );
  return el("table", { class: "rows small" }, el("thead", null, el("tr", null, head)), el("tbody", null, rows));
}

function neededLater(event, route) {
  const repeated = event.deleted.filter((result) => result.again);
  if (!repeated.length) return el("span", { class: "faint" }, event.deleted.length ? "no" : "–");
  return repeated.map((result) =>
    el(
      "span",
      { class: "needed-later" },
      el("span", { class: "mono" }, result.id),
      result.again.how === "same call" ? " requested again at " : " returned at ",
      el("a", { href: routeHash({ ...route, turn: result.again.turn }) }, "turn " + ordinal(result.again.turn)),
      " ",
    )
  );
}

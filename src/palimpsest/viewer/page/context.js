// The context of an agent with tools: stacked blocks over turns, removed blocks, and those needed later.

import { el, num, svg } from "./dom.js";
import { link, ordinal } from "./place.js";

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

export function contextBlocks(view, place, pick) {
  const turns = view.context.turns, freed = view.context.freed;
  const most = Math.max(1, ...turns.map((blocks) => blocks.reduce((sum, block) => sum + block.tokens, 0)));
  const cell = Math.max(3, Math.min(120, 1100 / Math.max(1, turns.length))), width = LEFT + cell * turns.length + 8;
  const image = svg("svg", {
    width,
    height: HEIGHT + TOP + 20,
    viewBox: `0 0 ${width} ${HEIGHT + TOP + 20}`,
    role: "img",
    "aria-label": `tokens in the context of each turn, at most ${most}`,
  });
  for (const share of [0, 0.5, 1]) {
    const y = TOP + HEIGHT * (1 - share);
    image.append(
      svg("line", { class: "axis", x1: LEFT - 4, x2: width, y1: y, y2: y }),
      svg("text", { class: "axis-text", x: LEFT - 8, y: y + 4 }, num(Math.round(most * share))),
    );
  }
  const columns = turns.map((blocks, turn) => column(blocks, turn, cell, most, pick));
  image.append(...columns);
  for (const each of freed) image.append(freedOf(each, cell, turns, most));
  const shown = Object.keys(KINDS).filter((kind) =>
    turns.some((blocks) => blocks.some((block) => known(block.kind) === kind))
  );
  const legend = el(
    "p",
    { class: "legend" },
    shown.map((kind) =>
      el(
        "span",
        { class: "legend-item" },
        el("span", { class: "legend-cell block-" + kind, "aria-hidden": "true" }),
        KINDS[kind],
      )
    ),
  );
  let now = null;
  return {
    element: el("div", { class: "context" }, el("div", { class: "scroll" }, image), legend, table(freed, place)),
    mark(turn) {
      if (now) now.classList.remove("now");
      now = columns[turn] || null;
      if (now) now.classList.add("now");
    },
  };
}

function known(kind) {
  return kind in KINDS ? kind : "result";
}

function column(blocks, turn, cell, most, pick) {
  const group = svg("g", { class: "column", onclick: () => pick(turn) });
  let y = TOP + HEIGHT;
  group.append(
    svg("rect", { class: "column-back", x: LEFT + turn * cell, y: TOP - 2, width: cell, height: HEIGHT + 20 }),
  );
  for (const block of blocks) {
    const height = (HEIGHT * block.tokens) / most, kind = known(block.kind);
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

function freedOf(each, cell, turns, most) {
  const size = (turns[each.turn + 1] || []).reduce((sum, block) => sum + block.tokens, 0);
  const x = LEFT + (each.turn + 1.5) * cell, y = TOP + HEIGHT * (1 - size / most);
  return svg(
    "g",
    { class: "freed" },
    svg("text", { x, y: Math.max(12, y - 6) }, "−" + num(each.tokens)),
    svg("title", null, `${each.how} after turn ${ordinal(each.turn)}: ${each.tokens} tokens left the context`),
  );
}

function table(freed, place) {
  if (!freed.length) return el("p", { class: "faint" }, "No tokens left the context.");
  const rows = freed.map((each) =>
    el(
      "tr",
      null,
      el("td", null, el("a", { href: link({ ...place, turn: each.turn }) }, "turn " + ordinal(each.turn))),
      el("td", null, each.how),
      el("td", { class: "number" }, num(each.tokens)),
      el(
        "td",
        null,
        each.deleted.map((
          one,
          at,
        ) => [
          at ? ", " : "",
          el("span", { class: "mono" }, one.id),
          one.tokens === null ? "" : ` (${num(one.tokens)})`,
        ]),
      ),
      el("td", null, missed(each, place)),
    )
  );
  const head = ["After", "By", "Tokens freed", "Results deleted", "Needed later"].map((name, at) =>
    el("th", { scope: "col", class: at === 2 ? "number" : null }, name)
  );
  return el("table", { class: "rows small" }, el("thead", null, el("tr", null, head)), el("tbody", null, rows));
}

function missed(each, place) {
  const again = each.deleted.filter((one) => one.again);
  if (!again.length) return el("span", { class: "faint" }, each.deleted.length ? "no" : "–");
  return again.map((one) =>
    el(
      "span",
      { class: "missed" },
      el("span", { class: "mono" }, one.id),
      one.again.how === "same call" ? " requested again at " : " returned at ",
      el("a", { href: link({ ...place, turn: one.again.turn }) }, "turn " + ordinal(one.again.turn)),
      " ",
    )
  );
}

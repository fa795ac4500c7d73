// A memory as the difference to the previous one, the pieces of the prompt, and blame: the origin of each word.

import { el, num } from "./dom.js";
import { link, ordinal } from "./place.js";

const ORIGINS = {
  kept: ["kept", "from the memory before, unchanged"],
  section: ["from the section", "from the section, document or tool result"],
  recalled: ["recalled", "from a recalled memory or another piece of the prompt"],
  memory: ["moved or respelt", "from the memory before, at another position"],
  question: ["from the question", "only in the question"],
  nowhere: ["hallucinated", "hallucinated: not in the prompt"],
  unfounded: ["kept, hallucinated", "hallucinated at an earlier turn and kept"],
  unknown: ["unknown", "the record does not show the prompt's pieces"],
  dropped: ["dropped", "in the memory before, not in the memory after"],
};

// Text cut at the edges of ranges [{from, to, ...}], in code points; paint(text, ranges) renders each part.
function cut(text, start, ranges, paint) {
  const points = Array.from(text), end = start + points.length;
  const near = ranges.filter((range) => range.to > start && range.from < end);
  const edges = [...new Set([start, end, ...near.flatMap((range) => [range.from, range.to])])].filter((edge) =>
    edge >= start && edge <= end
  ).sort((a, b) => a - b);
  return edges.slice(1).map((to, at) =>
    paint(
      points.slice(edges[at] - start, to - start).join(""),
      near.filter((range) => range.from <= edges[at] && range.to >= to),
    )
  );
}

function ranges(view) {
  const unsaid = (view.invented || []).filter((one) => one.characters).map((one) => ({
    from: one.characters[0],
    to: one.characters[1],
    kind: "unsaid",
  }));
  const held = (view.unfounded || []).filter((one) => one.characters).map((one) => ({
    from: one.characters[0],
    to: one.characters[1],
    kind: "unsaid",
    turn: one.turn,
  }));
  return [
    ...unsaid,
    ...held,
    ...view.evidence.map((one) => ({
      from: one.characters[0],
      to: one.characters[1],
      kind: "gold",
      number: one.number,
    })),
  ];
}

function painted(text, found) {
  const gold = found.find((range) => range.kind === "gold"), unsaid = found.find((range) => range.kind === "unsaid");
  if (!gold && !unsaid) return text;
  const title = gold
    ? "evidence"
    : unsaid.turn === undefined
    ? "hallucinated sentence"
    : `sentence hallucinated at turn ${ordinal(unsaid.turn)}, kept since`;
  return el("span", { class: [gold && "gold", unsaid && "unsaid"].filter(Boolean).join(" "), title }, text);
}

// The memory after a turn as a difference. Calls light(part) with the part under the pointer, or null.
export function difference(view, light) {
  const marks = ranges(view);
  const parts = view.diff.map((part, number) => {
    const blank = leading(part.text);
    if (part.origin === "dropped") {
      const lost = part.evidence.length > 0;
      const gone = el(
        "del",
        { class: lost ? "o-lost" : "o-dropped", title: lost ? "lost evidence" : "dropped" },
        spoken(lost ? "lost evidence: " : "dropped: "),
        part.text.slice(blank),
      );
      return [part.text.slice(0, blank), gone];
    }
    const inner = cut(part.text.slice(blank), part.characters[0] + blank, marks, painted);
    const sourced = part.source && !["kept", "unfounded"].includes(part.origin);
    const element = el(
      "span",
      {
        class: "o-" + part.origin,
        title: part.origin === "kept"
          ? null
          : ORIGINS[part.origin][1] + (part.since === null ? "" : `, since turn ${ordinal(part.since)}`),
        tabindex: sourced ? 0 : null,
        "data-part": number,
      },
      part.origin === "kept" ? null : spoken(ORIGINS[part.origin][0] + ": "),
      inner,
    );
    if (part.source) listen(element, () => light(number), () => light(null));
    return [part.text.slice(0, blank), element];
  });
  return el("div", { class: "memory-text" }, parts.length ? parts : el("span", { class: "faint" }, "empty"));
}

// White space before a run of words stays unmarked.
function leading(text) {
  return text.length - text.trimStart().length;
}

function spoken(text) {
  return el("span", { class: "hidden" }, text);
}

function listen(element, enter, leave) {
  element.addEventListener("mouseenter", enter);
  element.addEventListener("focus", enter);
  element.addEventListener("mouseleave", leave);
  element.addEventListener("blur", leave);
}

export function plain(view) {
  const text = view.memory.after;
  return el(
    "div",
    { class: "memory-text" },
    text ? cut(text, 0, ranges(view), painted) : el("span", { class: "faint" }, "empty"),
  );
}

export function counts(view) {
  const shown = Object.keys(ORIGINS).filter((origin) => view.counts[origin]);
  return el(
    "p",
    { class: "legend" },
    el("span", { class: "faint" }, "Words:"),
    shown.map((origin) =>
      el(
        "span",
        { class: "legend-item", title: ORIGINS[origin][1] },
        el("span", { class: "swatch o-" + origin, "aria-hidden": "true" }, "abc"),
        `${ORIGINS[origin][0]} ${view.counts[origin]}`,
      )
    ),
    view.diff.some((part) => part.evidence && part.evidence.length)
      ? el(
        "span",
        { class: "legend-item" },
        el("span", { class: "swatch o-lost", "aria-hidden": "true" }, "abc"),
        "lost evidence",
      )
      : null,
  );
}

// The named pieces of a turn's prompt. {element, light(part)}: highlights the source of a part of the memory.
export function pieces(view, fates) {
  const holder = el("div", { class: "pieces" }), spans = new Map();
  let lit = [];
  for (const piece of view.pieces) holder.append(pieceOf(piece, view, spans, fates));
  if (view.memory && view.memory.before) holder.append(beforeOf(view, spans));
  return {
    element: holder,
    spans,
    light(part) {
      for (const element of lit) element.classList.remove("lit");
      lit = part === null ? [] : spans.get(part) || [];
      for (const element of lit) element.classList.add("lit");
      const box = lit.length && lit[0].closest(".piece-text");
      if (box) box.scrollTop = lit[0].offsetTop - box.offsetTop - box.clientHeight / 3;
    },
  };
}

function pieceOf(piece, view, spans, fates) {
  const taken = piece.spans.map((span) => ({
    from: span.characters[0],
    to: span.characters[1],
    kind: "taken",
    part: span.part,
    origin: view.diff[span.part].origin,
  }));
  const gold = piece.evidence.map((one) => ({
    from: one.characters[0],
    to: one.characters[1],
    kind: "gold",
    number: one.number,
  }));
  const text = cut(piece.text, 0, [...taken, ...gold], (part, found) => {
    if (!found.length || !part.trim()) return part;
    const source = found.find((range) => range.kind === "taken"), needed = found.find((range) => range.kind === "gold");
    const classes = [source && "o-" + source.origin, needed && "gold"].filter(Boolean).join(" ");
    const title = needed ? "evidence: " + fates[needed.number].text : "words that the memory took from here";
    const blank = leading(part), element = el("span", { class: classes, title }, part.slice(blank));
    if (source) spans.set(source.part, [...(spans.get(source.part) || []), element]);
    return blank ? [part.slice(0, blank), element] : element;
  });
  const facts = tokens(piece.tokens) + (piece.whole ? "" : ", truncated");
  const box = el(
    "div",
    { class: "piece-text", tabindex: piece.tokens > 200 ? 0 : null },
    piece.text ? text : el("span", { class: "faint" }, "empty"),
  );
  const open = piece.name !== "question" || view.pieces.length < 3;
  return el(
    "details",
    { class: "card piece", open },
    el("summary", null, el("strong", null, piece.label), el("span", { class: "faint" }, facts)),
    box,
  );
}

function beforeOf(view, spans) {
  const taken = view.diff.flatMap((
    part,
    number,
  ) => (part.source && part.source.name === "memory"
    ? [{ from: part.source.characters[0], to: part.source.characters[1], number, origin: part.origin }]
    : [])
  );
  const text = cut(view.memory.before, 0, taken, (part, found) => {
    if (!found.length) return el("span", { class: "gone" }, part);
    const element = el("span", { class: found[0].origin === "kept" ? null : "o-" + found[0].origin }, part);
    for (const range of found) spans.set(range.number, [...(spans.get(range.number) || []), element]);
    return element;
  });
  return el(
    "details",
    { class: "card piece", open: view.memory.before_tokens < 120 },
    el(
      "summary",
      null,
      el("strong", null, "Memory before"),
      el("span", { class: "faint" }, tokens(view.memory.before_tokens)),
    ),
    el("div", { class: "piece-text" }, text),
  );
}

// Blame: the memory with the turn in which each run of words entered; also as a table.
export function blame(told, place) {
  if (!told.spans.length) return el("p", { class: "faint" }, "No memory yet.");
  const oldest = Math.max(1, ...told.spans.map((span) => span.age));
  const text = told.spans.map((span, number) =>
    el(
      "span",
      {
        class: "blamed b-" + span.origin,
        title: since(span),
        style: { "--age": (span.age / oldest).toFixed(3) },
        id: "blame-" + number,
      },
      span.text,
      turnLink(span, place),
    )
  );
  const rows = told.spans.map((span) =>
    el(
      "tr",
      null,
      el("td", { class: "memory-cell" }, span.text.trim() || "␣"),
      el(
        "td",
        { class: "number" },
        span.turn < 0
          ? "before the first"
          : el("a", { href: link({ ...place, turn: span.turn }) }, "turn " + ordinal(span.turn)),
      ),
      el("td", { class: "number" }, span.offset === null ? "–" : num(span.offset)),
      el("td", { class: "number" }, num(span.age)),
      el("td", null, span.origin === "memory" ? "from the start" : ORIGINS[span.origin][0]),
    )
  );
  const head = ["Words", "Since", "Offset in the document", "Age", "Origin"].map((name, at) =>
    el("th", { scope: "col", class: at && at < 4 ? "number" : null }, name)
  );
  const says = el(
    "p",
    { class: "legend" },
    "Numbers are the turns in which words entered; underlines run from gold (new) to blue (old). Offsets are in tokens, ages in turns.",
  );
  return el(
    "div",
    null,
    el("div", { class: "memory-text blame-text" }, text),
    says,
    el(
      "div",
      { class: "scroll" },
      el("table", { class: "rows small" }, el("thead", null, el("tr", null, head)), el("tbody", null, rows)),
    ),
  );
}

function turnLink(span, place) {
  if (span.turn < 0) return el("sup", { class: "faint" }, "start");
  return el(
    "sup",
    null,
    el("a", { href: link({ ...place, turn: span.turn }), "aria-label": since(span) }, String(ordinal(span.turn))),
  );
}

function since(span) {
  if (span.turn < 0) return "before the first turn";
  const where = span.offset === null ? "" : `, ${num(span.offset)} tokens into the document`;
  return `since turn ${ordinal(span.turn)}${where}, ${ORIGINS[span.origin][0]}, ${span.age} turns old`;
}

function tokens(count) {
  return count === 1 ? "1 token" : num(count) + " tokens";
}

// Views of a memory: its difference to the previous one, the prompt's pieces, blame.
// Blame shows the turn and source of each word.

import { el, num } from "./dom.js";
import { ordinal, routeHash } from "./route.js";

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

// Text split at the edges of ranges [{from, to, ...}], in code points. render(text, ranges) returns each part.
function renderRanges(text, start, ranges, render) {
  const characters = Array.from(text), end = start + characters.length;
  const overlapping = ranges.filter((range) => range.to > start && range.from < end);
  const edges = [...new Set([start, end, ...overlapping.flatMap((range) => [range.from, range.to])])].filter((bound) =>
    bound >= start && bound <= end
  ).sort((a, b) => a - b);
  return edges.slice(1).map((edge, index) =>
    render(
      characters.slice(edges[index] - start, edge - start).join(""),
      overlapping.filter((range) => range.from <= edges[index] && range.to >= edge),
    )
  );
}

function markedRanges(view) {
  const newHallucinations = (view.invented || []).filter((sentence) => sentence.characters).map((sentence) => ({
    from: sentence.characters[0],
    to: sentence.characters[1],
    kind: "hallucinated",
  }));
  const earlierHallucinations = (view.unfounded || []).filter((sentence) => sentence.characters).map((sentence) => ({
    from: sentence.characters[0],
    to: sentence.characters[1],
    kind: "hallucinated",
    turn: sentence.turn,
  }));
  return [
    ...newHallucinations,
    ...earlierHallucinations,
    ...view.evidence.map((evidence) => ({
      from: evidence.characters[0],
      to: evidence.characters[1],
      kind: "gold",
      number: evidence.number,
    })),
  ];
}

function markText(text, ranges) {
  const gold = ranges.find((range) => range.kind === "gold"),
    hallucination = ranges.find((range) => range.kind === "hallucinated");
  if (!gold && !hallucination) return text;
  const title = gold
    ? "evidence"
    : hallucination.turn === undefined
    ? "hallucinated sentence"
    : `sentence hallucinated at turn ${ordinal(hallucination.turn)}, kept since`;
  return el(
    "span",
    { class: [gold && "gold", hallucination && "hallucinated"].filter(Boolean).join(" "), title },
    text,
  );
}

// The memory after a turn as a difference. Calls highlight(number) with the number of the part under the pointer, or null.
export function diffView(view, highlight) {
  const marks = markedRanges(view);
  const elements = view.diff.map((part, number) => {
    const leadingCount = countLeadingSpace(part.text);
    if (part.origin === "dropped") {
      const isLost = part.evidence.length > 0;
      const deletion = el(
        "del",
        { class: isLost ? "o-lost" : "o-dropped", title: isLost ? "lost evidence" : "dropped" },
        hiddenText(isLost ? "lost evidence: " : "dropped: "),
        part.text.slice(leadingCount),
      );
      return [part.text.slice(0, leadingCount), deletion];
    }
    const inner = renderRanges(part.text.slice(leadingCount), part.characters[0] + leadingCount, marks, markText);
    const hasSource = part.source && !["kept", "unfounded"].includes(part.origin);
    const element = el(
      "span",
      {
        class: "o-" + part.origin,
        title: part.origin === "kept"
          ? null
          : ORIGINS[part.origin][1] + (part.since === null ? "" : `, since turn ${ordinal(part.since)}`),
        tabindex: hasSource ? 0 : null,
        "data-part": number,
      },
      part.origin === "kept" ? null : hiddenText(ORIGINS[part.origin][0] + ": "),
      inner,
    );
    if (part.source) listenForHover(element, () => highlight(number), () => highlight(null));
    return [part.text.slice(0, leadingCount), element];
  });
  return el("div", { class: "memory-text" }, elements.length ? elements : el("span", { class: "faint" }, "empty"));
}

// White space before a run of words stays unmarked.
function countLeadingSpace(text) {
  return text.length - text.trimStart().length;
}

function hiddenText(text) {
  return el("span", { class: "hidden" }, text);
}

function listenForHover(element, onEnter, onLeave) {
  element.addEventListener("mouseenter", onEnter);
  element.addEventListener("focus", onEnter);
  element.addEventListener("mouseleave", onLeave);
  element.addEventListener("blur", onLeave);
}

export function plainView(view) {
  const text = view.memory.after;
  return el(
    "div",
    { class: "memory-text" },
    text ? renderRanges(text, 0, markedRanges(view), markText) : el("span", { class: "faint" }, "empty"),
  );
}

export function originLegend(view) {
  const presentOrigins = Object.keys(ORIGINS).filter((origin) => view.counts[origin]);
  return el(
    "p",
    { class: "legend" },
    el("span", { class: "faint" }, "Words:"),
    presentOrigins.map((origin) =>
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

// The named pieces of a turn's prompt: {element, spans, highlight(number)}.
// highlight() marks the source of a part of the memory.
export function promptPieces(view, fates) {
  const container = el("div", { class: "pieces" }), spans = new Map();
  let highlighted = [];
  for (const piece of view.pieces) container.append(pieceView(piece, view, spans, fates));
  if (view.memory && view.memory.before) container.append(memoryBeforeView(view, spans));
  return {
    element: container,
    spans,
    highlight(number) {
      for (const element of highlighted) element.classList.remove("highlighted");
      highlighted = number === null ? [] : spans.get(number) || [];
      for (const element of highlighted) element.classList.add("highlighted");
      const box = highlighted.length && highlighted[0].closest(".piece-text");
      if (box) box.scrollTop = highlighted[0].offsetTop - box.offsetTop - box.clientHeight / 3;
    },
  };
}

function pieceView(piece, view, spans, fates) {
  const sourceRanges = piece.spans.map((span) => ({
    from: span.characters[0],
    to: span.characters[1],
    kind: "taken",
    part: span.part,
    origin: view.diff[span.part].origin,
  }));
  const gold = piece.evidence.map((evidence) => ({
    from: evidence.characters[0],
    to: evidence.characters[1],
    kind: "gold",
    number: evidence.number,
  }));
  const text = renderRanges(piece.text, 0, [...sourceRanges, ...gold], (part, ranges) => {
    if (!ranges.length || !part.trim()) return part;
    const source = ranges.find((range) => range.kind === "taken"),
      evidence = ranges.find((range) => range.kind === "gold");
    const classes = [source && "o-" + source.origin, evidence && "gold"].filter(Boolean).join(" ");
    const title = evidence ? "evidence: " + fates[evidence.number].text : "words that the memory took from here";
    const leadingCount = countLeadingSpace(part),
      element = el("span", { class: classes, title }, part.slice(leadingCount));
    if (source) spans.set(source.part, [...(spans.get(source.part) || []), element]);
    return leadingCount ? [part.slice(0, leadingCount), element] : element;
  });
  const facts = formatTokens(piece.tokens) + (piece.whole ? "" : ", truncated");
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

function memoryBeforeView(view, spans) {
  const sourceRanges = view.diff.flatMap((
    part,
    number,
  ) => (part.source && part.source.name === "memory"
    ? [{ from: part.source.characters[0], to: part.source.characters[1], number, origin: part.origin }]
    : [])
  );
  const text = renderRanges(view.memory.before, 0, sourceRanges, (part, ranges) => {
    if (!ranges.length) return el("span", { class: "removed" }, part);
    const element = el("span", { class: ranges[0].origin === "kept" ? null : "o-" + ranges[0].origin }, part);
    for (const range of ranges) spans.set(range.number, [...(spans.get(range.number) || []), element]);
    return element;
  });
  return el(
    "details",
    { class: "card piece", open: view.memory.before_tokens < 120 },
    el(
      "summary",
      null,
      el("strong", null, "Memory before"),
      el("span", { class: "faint" }, formatTokens(view.memory.before_tokens)),
    ),
    el("div", { class: "piece-text" }, text),
  );
}

// The memory with the turn in which each word entered, as text and as a table.
export function blameView(origins, route) {
  if (!origins.spans.length) return el("p", { class: "faint" }, "No memory yet.");
  const oldest = Math.max(1, ...origins.spans.map((span) => span.age));
  const text = origins.spans.map((span, number) =>
    el(
      "span",
      {
        class: "blame-span b-" + span.origin,
        title: describeOrigin(span),
        style: { "--age": (span.age / oldest).toFixed(3) },
        id: "blame-" + number,
      },
      span.text,
      turnLink(span, route),
    )
  );
  const rows = origins.spans.map((span) =>
    el(
      "tr",
      null,
      el("td", { class: "memory-cell" }, span.text.trim() || "␣"),
      el(
        "td",
        { class: "number" },
        span.turn < 0
          ? "before the first"
          : el("a", { href: routeHash({ ...route, turn: span.turn }) }, "turn " + ordinal(span.turn)),
      ),
      el("td", { class: "number" }, span.offset === null ? "–" : num(span.offset)),
      el("td", { class: "number" }, num(span.age)),
      el("td", null, span.origin === "memory" ? "from the start" : ORIGINS[span.origin][0]),
    )
  );
  const head = ["Words", "Since", "Offset in the document", "Age", "Origin"].map((name, index) =>
    el("th", { scope: "col", class: index && index < 4 ? "number" : null }, name)
  );
  const note = el(
    "p",
    { class: "legend" },
    "Numbers are the turns in which words entered; underlines run from gold (new) to blue (old). Offsets are in tokens, ages in turns.",
  );
  return el(
    "div",
    null,
    el("div", { class: "memory-text blame-text" }, text),
    note,
    el(
      "div",
      { class: "scroll" },
      el("table", { class: "rows small" }, el("thead", null, el("tr", null, head)), el("tbody", null, rows)),
    ),
  );
}

function turnLink(span, route) {
  if (span.turn < 0) return el("sup", { class: "faint" }, "start");
  return el(
    "sup",
    null,
    el(
      "a",
      { href: routeHash({ ...route, turn: span.turn }), "aria-label": describeOrigin(span) },
      String(ordinal(span.turn)),
    ),
  );
}

function describeOrigin(span) {
  if (span.turn < 0) return "before the first turn";
  const position = span.offset === null ? "" : `, ${num(span.offset)} tokens into the document`;
  return `since turn ${ordinal(span.turn)}${position}, ${ORIGINS[span.origin][0]}, ${span.age} turns old`;
}

function formatTokens(count) {
  return count === 1 ? "1 token" : num(count) + " tokens";
}

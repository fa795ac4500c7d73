// Elements from values. Foreign text enters the page here, always as text nodes.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN =
  // deno-lint-ignore no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const TEXT_ATTRIBUTES = new Set(["title", "aria-label", "aria-valuetext", "placeholder"]);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, property] of Object.entries(value)) element.style.setProperty(key, property);
    } else if (name in element && typeof value === "boolean") element[name] = value;
    else if (TEXT_ATTRIBUTES.has(name)) element.setAttribute(name, escapeHidden(String(value)));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  appendChildren(element, children);
  return element;
}

function appendChildren(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) appendChildren(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(escapeHidden(String(child))));
  }
}

// The content of the last \boxed{} of an answer. The answer itself if it has none.
export function extractBoxed(text) {
  const lastBox = [...text.matchAll(/\\(?:boxed|fbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}/g)].pop();
  return (lastBox && lastBox[1].trim()) || text;
}

// el("a", { href: "#/", class: "x", onclick: f, style: { width: "3px" } }, "text", node, [more])
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// Attributes of an existing element, with texts escaped as in el().
export function setAttributes(element, attributes) {
  return fill(element, attributes, []);
}

// el() for SVG tags.
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Control, bidirectional and invisible characters as escapes, against disguised text.
function escapeHidden(text) {
  return text.replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

// Available width in whole pixels.
export function contentWidth(element) {
  return Math.floor(element.getBoundingClientRect().width);
}

export function clear(element) {
  element.replaceChildren();
  return element;
}

// null for an empty array.
export function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

// A problem's question as a heading.
export function headline(question) {
  return el("h1", { class: question.includes("\n") || question.length > 160 ? "long" : null }, question);
}

// A name and its value in a list of facts; kind colours the value.
export function factElement(name, value, kind) {
  return el("div", { class: "fact" }, el("dt", null, name), el("dd", { class: kind ? "fact-" + kind : null }, value));
}

// A number for reading: 0.6591, 12,345, 1.2e-6; a dash for none.
export function num(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (digits !== undefined) return value.toFixed(digits);
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size < 0.001 || size >= 1e7) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

// Exact ties round to even, as in `palimpsest compare`.
export function formatFixed(value, digits) {
  const scale = 10 ** digits, scaled = value * scale, below = Math.floor(scaled);
  const between = scaled - below === 0.5 && Number.isInteger(value * 2 ** (digits + 1));
  return between ? ((below + (below % 2 ? 1 : 0)) / scale).toFixed(digits) : value.toFixed(digits);
}

// 48 s, 3 min, 2 h 10 min, 3 days.
export function formatDuration(seconds) {
  if (seconds < 90) return Math.max(0, Math.round(seconds)) + " s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return minutes + " min";
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return hours + " h" + (minutes % 60 ? " " + (minutes % 60) + " min" : "");
  return Math.round(hours / 24) + " days";
}

export function formatAge(seconds) {
  return seconds === null || seconds === undefined ? "–" : formatDuration(Date.now() / 1000 - seconds) + " ago";
}

// Signs of statuses and outcomes, which words accompany: colour is never required.
const SIGNS = { running: "▶", waiting: "◌", finished: "✓", stopped: "■", dead: "✕", gone: "⌀", file: "▤" };

export function badge(word) {
  return el(
    "span",
    { class: "badge badge-" + word },
    el("span", { "aria-hidden": "true" }, (SIGNS[word] || "•") + " "),
    word.replace(/_/g, " "),
  );
}

// legend([["✓", "right"], [svg(...), "in memory"]])
export function legend(pairs) {
  return el(
    "p",
    { class: "legend" },
    pairs.map(([mark, text]) => el("span", { class: "legend-item" }, mark, " " + text)),
  );
}

// Right, wrong, partly, ungraded: a sign, and a word for screen readers.
const GRADES = { right: "✓", wrong: "✕", partly: "~", none: "?" };

export function grade(value) {
  return value === null || value === undefined
    ? "none"
    : value >= 0.999
    ? "right"
    : value <= 0.001
    ? "wrong"
    : "partly";
}

export function gradeMark(name, attributes) {
  return el("span", { class: "mark mark-" + name, ...attributes }, GRADES[name]);
}

// Legend of these signs, then of others.
export function gradeLegend(...others) {
  const labels = { right: "right", wrong: "wrong", partly: "partly right", none: "ungraded" };
  return legend([
    ...Object.entries(labels).map(([name, text]) => [gradeMark(name, { "aria-hidden": "true" }), text]),
    ...others,
  ]);
}

// A line chart without axes.
export function sparkline(values, label) {
  const width = 160, height = 28;
  if (!values || values.length < 2) return el("span", { class: "faint" }, "–");
  const low = Math.min(...values), high = Math.max(...values), range = high - low || 1;
  const points = values.map((
    value,
    index,
  ) => [(index * width) / (values.length - 1), 2 + (height - 4) * (1 - (value - low) / range)]);
  const last = points[points.length - 1];
  return svg(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width + 4} ${height}`,
      width: width + 4,
      height,
      role: "img",
      "aria-label": label,
    },
    svg("polyline", { points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") }),
    svg("circle", { cx: last[0].toFixed(1), cy: last[1].toFixed(1), r: 2.5 }),
  );
}

// Preserves the focus while `change` rebuilds elements.
// It restores the same index among the controls of getContainer().
export function keepFocus(getContainer, change) {
  const all = (container) => (container ? [...container.querySelectorAll("a[href], button, input, select")] : []);
  const index = all(getContainer()).indexOf(document.activeElement);
  change();
  const restored = index < 0 ? null : all(getContainer())[index];
  if (restored) restored.focus({ preventScroll: true });
}

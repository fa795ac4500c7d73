// Elements from values. Foreign text enters the page here, always as text nodes.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN =
  // deno-lint-ignore no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const SHOWN = new Set(["title", "aria-label", "aria-valuetext", "placeholder"]);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    } else if (name in element && typeof value === "boolean") element[name] = value;
    else if (SHOWN.has(name)) element.setAttribute(name, visible(String(value)));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

// An answer for a table: the content of its last box, or all of it.
export function unboxed(text) {
  const found = [...text.matchAll(/\\(?:boxed|fbox)\s*\{([^{}]*)\}/g)].pop();
  return (found && found[1].trim()) || text;
}

// el("a", { href: "#/", class: "x", onclick: f, style: { width: "3px" } }, "text", node, [more])
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// Attributes of an existing element, with texts escaped as in el().
export function set(element, attributes) {
  return fill(element, attributes, []);
}

// The same for SVG tags.
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Control, bidirectional and invisible characters as escapes, against disguised text.
function visible(text) {
  return text.replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

// Available width in whole pixels.
export function roomIn(element) {
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

// As `palimpsest compare` prints it: exact ties round to even.
export function fixed(value, digits) {
  const scale = 10 ** digits, scaled = value * scale, below = Math.floor(scaled);
  const between = scaled - below === 0.5 && Number.isInteger(value * 2 ** (digits + 1));
  return between ? ((below + (below % 2 ? 1 : 0)) / scale).toFixed(digits) : value.toFixed(digits);
}

// 48 s, 3 min, 2 h 10 min, 3 days.
export function duration(seconds) {
  if (seconds < 90) return Math.max(0, Math.round(seconds)) + " s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return minutes + " min";
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return hours + " h" + (minutes % 60 ? " " + (minutes % 60) + " min" : "");
  return Math.round(hours / 24) + " days";
}

export function ago(seconds) {
  return seconds === null || seconds === undefined ? "–" : duration(Date.now() / 1000 - seconds) + " ago";
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

// legend([["✓", "right"], [svg(...), "held"]])
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
  const words = { right: "right", wrong: "wrong", partly: "partly right", none: "ungraded" };
  return legend([
    ...Object.entries(words).map(([name, text]) => [gradeMark(name, { "aria-hidden": "true" }), text]),
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
    at,
  ) => [(at * width) / (values.length - 1), 2 + (height - 4) * (1 - (value - low) / range)]);
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

// Preserves the focus while `change` rebuilds elements: the same index among the controls in `within`.
export function keepFocus(within, change) {
  const all = (holder) => (holder ? [...holder.querySelectorAll("a[href], button, input, select")] : []);
  const at = all(within()).indexOf(document.activeElement);
  change();
  const same = at < 0 ? null : all(within())[at];
  if (same) same.focus({ preventScroll: true });
}

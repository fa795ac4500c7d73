// Scatter plot of episodes: a click, or arrow keys and Enter, open one.

import { clear, contentWidth, el, num, setAttributes, svg } from "./dom.js";
import { axisNames, ticks } from "./chart.js";
import { keyboardSlider } from "./slider.js";

const HEIGHT = 184, LEFT = 64, RIGHT = 12, TOP = 8, BOTTOM = 42, MAX_POINTS = 3000, MAX_DISTANCE = 8;

// A disc, a cross, a dash. One path per kind avoids thousands of elements.
const SHAPES = {
  right: ({ cx, cy }) => `M${(cx - 2.6).toFixed(1)},${cy.toFixed(1)}a2.6,2.6 0 1 0 5.2,0a2.6,2.6 0 1 0 -5.2,0`,
  wrong: ({ cx, cy }) => `M${cx.toFixed(1)},${cy.toFixed(1)}m-2.4,-2.4l4.8,4.8m0,-4.8l-4.8,4.8`,
  ungraded: ({ cx, cy }) => `M${cx.toFixed(1)},${cy.toFixed(1)}m-3,0h6`,
};

// Returns draw({rows, x, y, value(row, name), names}); calls onOpen(row) with the selected episode.
export function scatter(container, onOpen) {
  const tip = el("div", { class: "chart-tip", hidden: true });
  let points = [], name = "", names = [], ring = null;

  function describePoint(index) {
    const { row, x, y } = points[index];
    return `group ${row.group}, rollout ${row.rollout}: ${names[1]} ${num(y)}, ${names[0]} ${num(x)}, ${
      gradeKind(row)
    }: ${row.answer || row.outcome}`;
  }

  function show(index) {
    setAttributes(ring, { cx: points[index].cx, cy: points[index].cy, r: 5 });
    clear(tip).append(describePoint(index));
    tip.hidden = false;
  }

  function hideTip() {
    tip.hidden = true;
    if (ring) setAttributes(ring, { r: 0 });
  }

  const updateSlider = keyboardSlider(container, {
    label: () => name + ": arrow keys move between episodes, Enter opens one",
    count: () => points.length,
    describe: describePoint,
    show,
    leave: hideTip,
    open: (index) => onOpen(points[index].row),
  });

  // The index of the point under the pointer; -1 if none is near.
  function pointAt(event) {
    const box = container.getBoundingClientRect(),
      distance = (point) => Math.hypot(point.cx - event.clientX + box.left, point.cy - event.clientY + box.top);
    return points.reduce(
      (best, point, index) => (distance(point) < (best < 0 ? MAX_DISTANCE : distance(points[best])) ? index : best),
      -1,
    );
  }

  container.addEventListener("pointermove", (event) => {
    const index = pointAt(event);
    container.classList.toggle("pointed", index >= 0);
    if (index >= 0) show(index);
    else hideTip();
  });
  container.addEventListener("pointerleave", hideTip);
  container.addEventListener("click", (event) => {
    const index = pointAt(event);
    if (index >= 0) onOpen(points[index].row);
  });

  return ({ rows, x, y, value, names: axisLabels }) => {
    names = [axisLabels[x], axisLabels[y]];
    name = `${names[1]} over ${names[0]}`;
    const plotted = rows.map((row) => ({ row, x: value(row, x), y: value(row, y) })).filter((point) =>
      typeof point.x === "number" && typeof point.y === "number"
    );
    points = plotted.length > MAX_POINTS
      ? plotted.filter((_, index) => index % Math.ceil(plotted.length / MAX_POINTS) === 0)
      : plotted;
    points.sort((a, b) => a.x - b.x || a.y - b.y);
    clear(container);
    hideTip();
    ring = svg("circle", { class: "ring", r: 0 });
    if (points.length) {
      container.append(
        drawPoints(
          points,
          `${name} of ${plotted.length} episodes; the table has the same`,
          names,
          Math.max(240, contentWidth(container)),
          ring,
        ),
        tip,
      );
    } else container.append(el("p", { class: "faint" }, "no data yet"));
    updateSlider();
  };
}

function bounds(points, name) {
  const low = points.reduce((a, p) => Math.min(a, p[name]), Infinity),
    high = points.reduce((a, p) => Math.max(a, p[name]), -Infinity);
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function drawPoints(points, label, names, width, ring) {
  const [x0, x1] = bounds(points, "x"), [y0, y1] = bounds(points, "y");
  const px = (x) => LEFT + ((width - LEFT - RIGHT) * (x - x0)) / (x1 - x0),
    py = (y) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - y0) / (y1 - y0));
  const image = svg("svg", {
    width,
    height: HEIGHT,
    viewBox: `0 0 ${width} ${HEIGHT}`,
    role: "img",
    "aria-label": label,
  });
  for (const tick of ticks(y0, y1, 3)) {
    image.append(
      svg(
        "g",
        { class: "axes" },
        svg("path", { d: `M${LEFT - 4},${py(tick)}H${width - RIGHT + 4}` }),
        svg("text", { x: LEFT - 8, y: py(tick) + 4, "text-anchor": "end" }, num(tick)),
      ),
    );
  }
  for (const tick of ticks(x0, x1, Math.max(2, width / 100))) {
    image.append(
      svg("g", { class: "axes" }, svg("text", { x: px(tick), y: HEIGHT - 19, "text-anchor": "middle" }, num(tick))),
    );
  }
  image.append(axisNames(names, LEFT + (width - LEFT - RIGHT) / 2, HEIGHT - 3, TOP + (HEIGHT - TOP - BOTTOM) / 2));
  points.forEach((point, index) => Object.assign(point, jitter(px(point.x), py(point.y), index)));
  const shapes = Object.entries(SHAPES).map(([kind, shape]) =>
    svg("path", { class: kind, d: points.filter(({ row }) => gradeKind(row) === kind).map(shape).join("") })
  );
  image.append(svg("g", { class: "dots" }, shapes, ring));
  return image;
}

function gradeKind({ reward }) {
  return reward === null ? "ungraded" : reward >= 0.5 ? "right" : "wrong";
}

// Jitter for overlapping points.
function jitter(x, y, index) {
  return { cx: x + (((index * 104729) % 17) - 8) * 0.6, cy: y + (((index * 7919) % 13) - 6) * 0.45 };
}

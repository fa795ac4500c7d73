// Scatter plot of episodes: a click, or arrow keys and Enter, open one.

import { clear, el, num, roomIn, set, svg } from "./dom.js";
import { axisNames, ticks } from "./chart.js";
import { walk } from "./walk.js";

const HEIGHT = 184, LEFT = 64, RIGHT = 12, TOP = 8, BOTTOM = 42, MOST = 3000, NEAR = 8;

// A disc, a cross, a dash. One path per kind avoids thousands of elements.
const SHAPES = {
  right: ({ cx, cy }) => `M${(cx - 2.6).toFixed(1)},${cy.toFixed(1)}a2.6,2.6 0 1 0 5.2,0a2.6,2.6 0 1 0 -5.2,0`,
  wrong: ({ cx, cy }) => `M${cx.toFixed(1)},${cy.toFixed(1)}m-2.4,-2.4l4.8,4.8m0,-4.8l-4.8,4.8`,
  ungraded: ({ cx, cy }) => `M${cx.toFixed(1)},${cy.toFixed(1)}m-3,0h6`,
};

// Returns draw({rows, x, y, value(row, name), names}); calls open(row) with the chosen episode.
export function scatter(holder, open) {
  const tip = el("div", { class: "chart-tip", hidden: true });
  let points = [], name = "", names = [], ring = null;

  function wordsOf(at) {
    const { row, x, y } = points[at];
    return `group ${row.group}, rollout ${row.rollout}: ${names[1]} ${num(y)}, ${names[0]} ${num(x)}, ${kindOf(row)}: ${
      row.answer || row.outcome
    }`;
  }

  function show(at) {
    set(ring, { cx: points[at].cx, cy: points[at].cy, r: 5 });
    clear(tip).append(wordsOf(at));
    tip.hidden = false;
  }

  function leave() {
    tip.hidden = true;
    if (ring) set(ring, { r: 0 });
  }

  const renew = walk(holder, {
    label: () => name + ": arrow keys move between episodes, Enter opens one",
    count: () => points.length,
    words: wordsOf,
    show,
    leave,
    open: (at) => open(points[at].row),
  });

  // The index of the point under the pointer; -1 if none is near.
  function under(event) {
    const box = holder.getBoundingClientRect(),
      far = (point) => Math.hypot(point.cx - event.clientX + box.left, point.cy - event.clientY + box.top);
    return points.reduce((best, point, at) => (far(point) < (best < 0 ? NEAR : far(points[best])) ? at : best), -1);
  }

  holder.addEventListener("pointermove", (event) => {
    const at = under(event);
    holder.classList.toggle("pointed", at >= 0);
    if (at >= 0) show(at);
    else leave();
  });
  holder.addEventListener("pointerleave", leave);
  holder.addEventListener("click", (event) => {
    const at = under(event);
    if (at >= 0) open(points[at].row);
  });

  return ({ rows, x, y, value, names: words }) => {
    names = [words[x], words[y]];
    name = `${names[1]} over ${names[0]}`;
    const all = rows.map((row) => ({ row, x: value(row, x), y: value(row, y) })).filter((each) =>
      typeof each.x === "number" && typeof each.y === "number"
    );
    points = all.length > MOST ? all.filter((_, at) => at % Math.ceil(all.length / MOST) === 0) : all;
    points.sort((a, b) => a.x - b.x || a.y - b.y);
    clear(holder);
    leave();
    ring = svg("circle", { class: "ring", r: 0 });
    if (points.length) {
      holder.append(
        drawn(
          points,
          `${name} of ${all.length} episodes; the table has the same`,
          names,
          Math.max(240, roomIn(holder)),
          ring,
        ),
        tip,
      );
    } else holder.append(el("p", { class: "faint" }, "no data yet"));
    renew();
  };
}

function bounds(points, name) {
  const low = points.reduce((a, p) => Math.min(a, p[name]), Infinity),
    high = points.reduce((a, p) => Math.max(a, p[name]), -Infinity);
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function drawn(points, label, names, width, ring) {
  const [x0, x1] = bounds(points, "x"), [y0, y1] = bounds(points, "y");
  const px = (x) => LEFT + ((width - LEFT - RIGHT) * (x - x0)) / (x1 - x0),
    py = (y) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - y0) / (y1 - y0));
  const root = svg("svg", {
    width,
    height: HEIGHT,
    viewBox: `0 0 ${width} ${HEIGHT}`,
    role: "img",
    "aria-label": label,
  });
  for (const each of ticks(y0, y1, 3)) {
    root.append(
      svg(
        "g",
        { class: "axes" },
        svg("path", { d: `M${LEFT - 4},${py(each)}H${width - RIGHT + 4}` }),
        svg("text", { x: LEFT - 8, y: py(each) + 4, "text-anchor": "end" }, num(each)),
      ),
    );
  }
  for (const each of ticks(x0, x1, Math.max(2, width / 100))) {
    root.append(
      svg("g", { class: "axes" }, svg("text", { x: px(each), y: HEIGHT - 19, "text-anchor": "middle" }, num(each))),
    );
  }
  root.append(axisNames(names, LEFT + (width - LEFT - RIGHT) / 2, HEIGHT - 3, TOP + (HEIGHT - TOP - BOTTOM) / 2));
  points.forEach((point, at) => Object.assign(point, apart(px(point.x), py(point.y), at)));
  const shapes = Object.entries(SHAPES).map(([kind, shape]) =>
    svg("path", { class: kind, d: points.filter(({ row }) => kindOf(row) === kind).map(shape).join("") })
  );
  root.append(svg("g", { class: "dots" }, shapes, ring));
  return root;
}

function kindOf({ reward }) {
  return reward === null ? "ungraded" : reward >= 0.5 ? "right" : "wrong";
}

// Jitter for overlapping points.
function apart(x, y, at) {
  return { cx: x + (((at * 104729) % 17) - 8) * 0.6, cy: y + (((at * 7919) % 13) - 6) * 0.45 };
}

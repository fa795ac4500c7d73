// SVG curves. Hover and arrow keys show values. A drag zooms, a double click resets. A click or Enter opens a step.

import { clear, el, num, svg } from "./dom.js";
import { keyboardSlider } from "./slider.js";

const LEFT = 66, RIGHT = 18, TOP = 8, BOTTOM = 36;

// Round steps of an axis: ticks(0, 1, 5) -> [0, 0.2, 0.4, 0.6, 0.8, 1].
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const size = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((factor) => factor >= raw * 0.75) || raw;
  const first = Math.ceil(low / step) * step;
  const values = [];
  for (let n = 0; first + n * step <= high + step * 1e-9; n += 1) {
    values.push(Number((first + n * step).toPrecision(12)));
  }
  return values;
}

// Median of the points around each, which one outlier does not move; 0: unchanged values, 0.98: of 51 points.
function movingMedian(points, strength) {
  const reach = Math.round(0.5 / (1 - strength) - 0.5);
  return points.map(([x], index) => {
    const near = points.slice(Math.max(0, index - reach), index + reach + 1).map((point) => point[1]);
    near.sort((a, b) => a - b);
    return [x, (near[(near.length - 1) >> 1] + near[near.length >> 1]) / 2];
  });
}

// Axis names [across, up], each centred.
export function axisNames([across, up], x, bottom, y) {
  const name = (attributes, text) => svg("text", { class: "axis-name", "text-anchor": "middle", ...attributes }, text);
  return svg(
    "g",
    { class: "axes" },
    name({ x, y: bottom }, across),
    name({ x: 11, y, transform: `rotate(-90 11 ${y})` }, up),
  );
}

// True if a schedule sets a metric. Smoothing would show values that it never had.
export function isSet(name) {
  return name.startsWith("curriculum/") || name.endsWith("learning_rate");
}

function extent(values, pad) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low === Infinity) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low - (high - low) * pad, high + (high - low) * pad];
}

// The colour class of a series, by its index.
function colourClass(index) {
  return "c" + ((index % 6) + 1);
}

// A line sample for a legend.
export function swatch(style, dashed) {
  return svg(
    "svg",
    { width: 22, height: 10, "aria-hidden": "true", class: style },
    svg("path", { class: "line", d: "M1,5H21", "stroke-dasharray": dashed ? "4 3" : null }),
  );
}

// {title, series: [{name, points: [[x, y]], band: [[x, low, high]], marks: true, dashed: true}], smoothing, domain,
//  height, log, xName, yName, range, onpick(x), onzoom([from, to] or null), hint}; returns {draw(changes), stop()}.
export function chart(container, options) {
  const state = { smoothing: 0, domain: null, height: 184, series: [], ...options };
  const title = el("div", { class: "chart-title" });
  const area = el("div", { class: "chart-area" });
  const tip = el("div", { class: "chart-tip", hidden: true });
  area.append(tip);
  container.append(el("figure", { class: "chart" }, title, state.hint ? el("small", null, state.hint) : null, area));
  let width = 0, drag = null, scale = null, drawing = null;
  const toAxis = (x) => (state.log ? Math.log2(x) : x);

  function draw(changes) {
    Object.assign(state, changes || {});
    if (!width) return;
    if (drawing) drawing.remove();
    drawing = drawSvg();
    area.prepend(drawing);
    drawCaption();
    updateSlider();
  }

  function drawCaption() {
    const main = state.series[0];
    const last = main && main.points.length ? main.points[main.points.length - 1][1] : null;
    const names = state.series.length > 1 || state.legend
      ? drawLegend()
      : el("span", { class: "chart-last" }, num(last));
    clear(title).append(el("span", { class: "chart-name" }, state.title), names);
  }

  function drawLegend() {
    return el(
      "span",
      { class: "legend" },
      state.series.map((series, index) =>
        el("span", { class: "legend-item" }, swatch(colourClass(index), series.dashed), series.name)
      ),
    );
  }

  function computeScale() {
    const isInDomain = ([x]) => !state.domain || (x >= state.domain[0] && x <= state.domain[1]);
    const xs = [], ys = [];
    for (const series of state.series) {
      for (const point of series.points) if (isInDomain(point)) (xs.push(point[0]), ys.push(point[1]));
      for (const point of series.band || []) if (isInDomain(point)) (xs.push(point[0]), ys.push(point[1], point[2]));
    }
    const [x0, x1] = state.domain || extent(xs, 0), [y0, y1] = state.range || extent(ys, 0.06);
    const w = width - LEFT - RIGHT, h = state.height - TOP - BOTTOM, axisStart = toAxis(x0), axisEnd = toAxis(x1);
    return {
      x0,
      x1,
      y0,
      y1,
      w,
      h,
      x: (value) => LEFT + (w * (toAxis(value) - axisStart)) / (axisEnd - axisStart || 1),
      y: (value) => TOP + h * (1 - (value - y0) / (y1 - y0 || 1)),
      back: (
        px,
      ) => (state.log
        ? Math.pow(2, axisStart + ((px - LEFT) / w) * (axisEnd - axisStart))
        : axisStart + ((px - LEFT) / w) * (axisEnd - axisStart)),
    };
  }

  function drawSvg() {
    scale = computeScale();
    const clip = "clip" + Math.random().toString(36).slice(2);
    const label = state.title + ": " +
      state.series.map((series) =>
        `${series.name} ${num(series.points.length ? series.points[series.points.length - 1][1] : null)}`
      ).join(", ");
    const image = svg("svg", {
      width,
      height: state.height,
      viewBox: `0 0 ${width} ${state.height}`,
      role: "img",
      "aria-label": label,
    });
    image.append(
      svg(
        "clipPath",
        { id: clip },
        svg("rect", { x: LEFT - 4, y: 0, width: scale.w + 8, height: state.height - BOTTOM + 2 }),
      ),
    );
    image.append(drawGrid());
    const lines = svg("g", { "clip-path": `url(#${clip})` });
    state.series.forEach((series, index) => lines.append(drawSeries(series, colourClass(index))));
    image.append(lines, svg("g", { class: "cursor" }));
    return image;
  }

  function drawGrid() {
    const group = svg("g", { class: "axes" });
    for (const value of ticks(scale.y0, scale.y1, 4)) {
      const y = scale.y(value).toFixed(1);
      group.append(
        svg("path", { d: `M${LEFT},${y}H${width - RIGHT}` }),
        svg("text", { x: LEFT - 6, y: Number(y) + 4, "text-anchor": "end" }, num(value)),
      );
    }
    const all = [...new Set(state.series.flatMap((series) => series.points.map((point) => point[0])))].sort((a, b) =>
      a - b
    );
    const integersOnly = all.every(Number.isInteger);
    const marks = state.log
      ? all
      : ticks(scale.x0, scale.x1, Math.max(2, width / 70)).filter((value) => !integersOnly || Number.isInteger(value));
    for (const value of marks) {
      if (value < scale.x0 || value > scale.x1) continue;
      group.append(
        svg("text", { x: scale.x(value).toFixed(1), y: state.height - 20, "text-anchor": "middle" }, num(value)),
      );
    }
    group.append(
      axisNames(
        [state.xName || "step", state.yName || ""],
        LEFT + scale.w / 2,
        state.height - 4,
        TOP + scale.h / 2,
      ),
    );
    return group;
  }

  function linePath(points) {
    return points.map(([x, y], index) => (index ? "L" : "M") + scale.x(x).toFixed(1) + "," + scale.y(y).toFixed(1))
      .join("");
  }

  function drawSeries(series, style) {
    const group = svg("g", { class: style }), isSmoothed = state.smoothing && !series.marks;
    if (series.band && series.band.length > 1) {
      for (const [x, low, high] of series.band) {
        group.append(svg("path", { class: "whisker", d: linePath([[x, low], [x, high]]) }));
      }
    }
    if (isSmoothed) group.append(svg("path", { class: "line raw", d: linePath(series.points) }));
    group.append(
      svg("path", {
        class: "line",
        d: linePath(movingMedian(series.points, isSmoothed ? state.smoothing : 0)),
        "stroke-dasharray": series.dashed ? "5 4" : null,
      }),
    );
    if (series.marks || series.points.length === 1) {
      for (const [x, y] of series.points) {
        group.append(svg("circle", { class: "dot", cx: scale.x(x), cy: scale.y(y), r: 3.5 }));
      }
    }
    return group;
  }

  function nearest(px) {
    const target = scale.back(px);
    let best = null;
    for (const series of state.series) {
      for (
        const [x] of series.points
      ) if (best === null || Math.abs(toAxis(x) - toAxis(target)) < Math.abs(toAxis(best) - toAxis(target))) best = x;
    }
    return best;
  }

  function pointerX(event) {
    return event.clientX - area.getBoundingClientRect().left;
  }

  function onHover(event) {
    if (!scale || !drawing) return;
    const px = pointerX(event), cursor = clear(drawing.querySelector(".cursor"));
    if (drag !== null) {
      cursor.append(
        svg("rect", { class: "zoom", x: Math.min(px, drag), y: TOP, width: Math.abs(px - drag), height: scale.h }),
      );
      return;
    }
    const x = nearest(px);
    if (x !== null) showValues(x);
  }

  // Values of all series at one x.
  function valuesAt(x) {
    const entries = state.series.map((
      series,
    ) => [state.series.length > 1 ? series.name + " " : "", series.points.find((point) => point[0] === x)]);
    return entries.filter((entry) => entry[1]).map(([name, point]) => [name, num(point[1])]);
  }

  function showValues(x) {
    clear(drawing.querySelector(".cursor")).append(svg("path", { d: `M${scale.x(x).toFixed(1)},${TOP}v${scale.h}` }));
    clear(tip).append(
      el("div", { class: "faint" }, formatX(x)),
      ...valuesAt(x).map(([name, value]) => el("div", null, name, el("strong", null, value))),
    );
    tip.hidden = false;
    tip.style.setProperty("left", Math.min(width - 150, scale.x(x) + 10) + "px");
  }

  function formatX(x) {
    return (state.xName || "step") + " " + num(x);
  }

  function hideValues() {
    tip.hidden = true;
    if (drawing) clear(drawing.querySelector(".cursor"));
  }

  // x of the visible points, ascending.
  function visibleXs() {
    const all = new Set(state.series.flatMap((series) => series.points.map((point) => point[0])));
    return [...all].filter((x) => !state.domain || (x >= state.domain[0] && x <= state.domain[1])).sort((a, b) =>
      a - b
    );
  }

  const updateSlider = keyboardSlider(area, {
    label: () => state.title + ": arrow keys move between points" + (state.onpick ? ", Enter opens its step" : ""),
    count: () => visibleXs().length,
    describe: (index) =>
      formatX(visibleXs()[index]) + ": " + valuesAt(visibleXs()[index]).map(([name, value]) => name + value).join(", "),
    show: (index) => drawing && showValues(visibleXs()[index]),
    leave: hideValues,
    open: (index) => state.onpick && state.onpick(visibleXs()[index]),
  });
  area.addEventListener("pointermove", onHover);
  area.addEventListener("pointerleave", hideValues);
  area.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && scale) drag = pointerX(event);
  });
  function onRelease(event) {
    if (drag === null) return;
    const [start, end] = [drag, pointerX(event)].sort((a, b) => a - b);
    drag = null;
    if (end - start > 8) {
      if (state.onzoom) state.onzoom([scale.back(Math.max(LEFT, start)), scale.back(Math.min(width - RIGHT, end))]);
    } else if (state.onpick && area.contains(event.target)) {
      const x = nearest(end);
      if (x !== null) state.onpick(x);
    }
  }
  addEventListener("pointerup", onRelease);
  area.addEventListener("dblclick", () => state.onzoom && state.onzoom(null));
  const watcher = new ResizeObserver((entries) => {
    const newWidth = Math.floor(entries[0].contentRect.width);
    if (newWidth !== width) ((width = newWidth), draw());
  });
  watcher.observe(area);
  return {
    draw,
    stop() {
      watcher.disconnect();
      removeEventListener("pointerup", onRelease);
    },
  };
}

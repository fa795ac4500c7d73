// Keyboard control of a drawing. Arrows, Home and End move between points. Enter opens one.
// Screen readers get a slider whose value describes the point.

import { setAttributes } from "./dom.js";
import { describeKey } from "./keys.js";

const STEPS = {
  ArrowRight: 1,
  ArrowUp: 1,
  ArrowLeft: -1,
  ArrowDown: -1,
  PageUp: 10,
  PageDown: -10,
  Home: -Infinity,
  End: Infinity,
};

// {label(), count(), describe(index), show(index), leave(), open(index)}. Returns update(), to call after
// changes of the points.
export function keyboardSlider(area, points) {
  let index = null;
  setAttributes(area, { role: "slider", tabindex: 0 });
  describeKey(area, "← → Home End", "on a focused chart: move between points");
  if (points.open) describeKey(area, "Enter", "on a focused chart: open the point");

  function update() {
    const last = points.count() - 1;
    if (index !== null) index = Math.min(index, last);
    const highest = Math.max(0, last), valueText = last < 0 ? "no data" : points.describe(index ?? last);
    setAttributes(area, {
      "aria-label": points.label(),
      "aria-valuemin": 0,
      "aria-valuemax": highest,
      "aria-valuenow": index ?? highest,
      "aria-valuetext": valueText,
    });
  }

  function moveTo(next) {
    const last = points.count() - 1;
    if (last < 0) return;
    index = Math.min(last, Math.max(0, next));
    points.show(index);
    update();
  }

  area.addEventListener("keydown", (event) => {
    if (event.target !== area || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in STEPS) {
      event.preventDefault();
      moveTo(index === null ? (event.key === "Home" ? 0 : points.count() - 1) : index + STEPS[event.key]); // starts at the newest
    } else if (event.key === "Enter" && index !== null && points.open) {
      event.preventDefault();
      points.open(index);
    }
  });
  area.addEventListener("blur", () => {
    index = null;
    points.leave();
  });
  return update;
}

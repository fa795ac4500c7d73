// Keyboard control of a drawing: arrows, Home and End move between points, Enter opens one. Screen readers get a slider
// whose value describes the point.

import { set } from "./dom.js";
import { tell } from "./keys.js";

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

// {label(), count(), words(at), show(at), leave(), open(at)}; `at` is a point's index. Returns renew(), to call after
// changes of the points.
export function walk(area, of) {
  let at = null;
  set(area, { role: "slider", tabindex: 0 });
  tell(area, "← → Home End", "on a focused chart: move between points");
  if (of.open) tell(area, "Enter", "on a focused chart: open the point");

  function renew() {
    const last = of.count() - 1;
    if (at !== null) at = Math.min(at, last);
    const most = Math.max(0, last), told = last < 0 ? "no data" : of.words(at ?? last);
    set(area, {
      "aria-label": of.label(),
      "aria-valuemin": 0,
      "aria-valuemax": most,
      "aria-valuenow": at ?? most,
      "aria-valuetext": told,
    });
  }

  function to(next) {
    const last = of.count() - 1;
    if (last < 0) return;
    at = Math.min(last, Math.max(0, next));
    of.show(at);
    renew();
  }

  area.addEventListener("keydown", (event) => {
    if (event.target !== area || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in STEPS) {
      event.preventDefault();
      to(at === null ? (event.key === "Home" ? 0 : of.count() - 1) : at + STEPS[event.key]); // starts at the newest
    } else if (event.key === "Enter" && at !== null && of.open) {
      event.preventDefault();
      of.open(at);
    }
  });
  area.addEventListener("blur", () => {
    at = null;
    of.leave();
  });
  return renew;
}

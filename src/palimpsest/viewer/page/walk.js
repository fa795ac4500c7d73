// A drawing that keys walk through: arrows from point to point, Home and End, Enter opens what a point stands for. To
// screen readers it is a slider, whose value is the point in words.

import { set } from "./dom.js";
import { tell } from "./keys.js";

const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };

// {label(), count(), words(at), show(at), leave(), open(at)}; `at` is a point's place, from 0. Back comes renew(), to be
// called when the points have changed.
export function walk(area, of) {
  let at = null;
  set(area, { role: "slider", tabindex: 0 });
  tell(area, "← → Home End", "on a drawing that Tab leads to: from point to point");
  if (of.open) tell(area, "Enter", "open what the point stands for");

  function renew() {
    const last = of.count() - 1;
    if (at !== null) at = Math.min(at, last);
    const most = Math.max(0, last), told = last < 0 ? "nothing to show" : of.words(at ?? last);
    set(area, { "aria-label": of.label(), "aria-valuemin": 0, "aria-valuemax": most, "aria-valuenow": at ?? most, "aria-valuetext": told });
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
      to(at === null ? (event.key === "Home" ? 0 : of.count() - 1) : at + STEPS[event.key]); // the newest first
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

// Links to groups and episodes; plain text if an exported file omits the target.

import { holds } from "./api.js";
import { el } from "./dom.js";
import { asked, link } from "./place.js";

const LEFT_OUT = "not in this file";

// True if a group or an episode is available.
export function heldPlace(place) {
  return holds(asked(place.screen === "group" ? { ...place, rollout: null } : place));
}

// leads({screen: "episode", run, step, group, rollout}, { class: "chip" }, "rollout 1")
export function leads(place, attributes, ...children) {
  if (heldPlace(place)) return el("a", { ...attributes, href: link(place) }, children);
  const own = attributes && attributes.class;
  return el(
    "span",
    { class: own ? own + " faint" : "faint", title: LEFT_OUT },
    children,
    el("span", { class: "hidden" }, `, ${LEFT_OUT}`),
  );
}

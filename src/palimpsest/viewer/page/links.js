// Links to groups and episodes. Plain text if an exported file omits the target.

import { hasPath } from "./api.js";
import { el } from "./dom.js";
import { apiPath, routeHash } from "./route.js";

const NOT_IN_FILE = "not in this file";

// True if a group or an episode is available.
export function isAvailable(route) {
  return hasPath(apiPath(route.screen === "group" ? { ...route, rollout: null } : route));
}

// routeLink({screen: "episode", run, step, group, rollout}, { class: "chip" }, "rollout 1")
export function routeLink(route, attributes, ...children) {
  if (isAvailable(route)) return el("a", { ...attributes, href: routeHash(route) }, children);
  const ownClass = attributes && attributes.class;
  return el(
    "span",
    { class: ownClass ? ownClass + " faint" : "faint", title: NOT_IN_FILE },
    children,
    el("span", { class: "hidden" }, `, ${NOT_IN_FILE}`),
  );
}

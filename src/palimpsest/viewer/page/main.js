// Shows the screen named by the address.

import { clear, el } from "./dom.js";
import { exported, following, get } from "./api.js";
import { apiPath, parse, routeHash, setTitle } from "./route.js";
import { clearKeys, help, listenForKeys } from "./keys.js";
import { show as showRuns } from "./screens/runs.js";
import { show as showRun } from "./screens/run.js";
import { show as showEpisodes } from "./screens/episodes.js";
import { show as showGroup } from "./screens/group.js";
import { show as showEpisode } from "./screens/episode.js";
import { show as showEvaluation } from "./screens/evaluation.js";

const SCREENS = {
  runs: showRuns,
  run: showRun,
  episodes: showEpisodes,
  group: showGroup,
  episode: showEpisode,
  evaluation: showEvaluation,
};

const LISTS = ["runs", "run", "episodes", "evaluation"];
const EPISODES = ["group", "episode"];

let stop = null;
let drawCount = 0;

async function draw() {
  const drawNumber = ++drawCount;
  const route = await resolveRoute(parse(location.hash));
  const container = el("div", { class: "screen" });
  if (drawNumber !== drawCount) return;
  if (stop) stop();
  stop = null;
  clearKeys();
  const main = clear(document.getElementById("main"));
  drawHeader(route);
  const loadingNote = el("p", { class: "loading" }, "Reading…");
  main.append(loadingNote, container);
  try {
    if (!SCREENS[route.screen]) throw new Error("no page at this address");
    if (isShort(route)) {
      throw new Error("this short address needs a viewer with a single source; choose one from the list");
    }
    const stopScreen = await SCREENS[route.screen](container, route);
    if (EPISODES.includes(route.screen)) showDecoderNotice(route, main, () => drawNumber === drawCount);
    if (exported && LISTS.includes(route.screen)) await showOmissions(container);
    if (drawNumber === drawCount) stop = stopScreen || null;
    else if (stopScreen) stopScreen();
    if (drawNumber === drawCount && drawNumber > 1) focusHeading(main);
  } catch (error) {
    clear(container).append(errorNotice(error));
  }
  loadingNote.remove();
}

// Moves the focus to the heading of a new screen.
function focusHeading(main) {
  const title = main.querySelector("h1");
  if (!title || main.contains(document.activeElement)) return;
  title.tabIndex = -1;
  title.focus({ preventScroll: true });
}

function isShort(route) {
  return EPISODES.includes(route.screen) && !route.run;
}

// An address without a run means the only source.
async function resolveRoute(route) {
  if (!isShort(route)) return route;
  const runs = (await get("/api/runs").catch(() => ({ runs: [] }))).runs;
  if (runs.length !== 1) return route;
  const [{ key, kind }] = runs;
  const steps = kind === "run" ? await get(apiPath({ run: key }) + "/steps").catch(() => []) : [];
  return { ...route, run: key, step: steps.length ? String(steps[steps.length - 1]) : "all" };
}

// A notice about omissions, on each list of an exported file.
async function showOmissions(container) {
  const { notes } = await get("/api/export").catch(() => ({ notes: [] }));
  if (notes.length) {
    container.prepend(
      el(
        "div",
        { class: "notice left-out" },
        el("strong", null, "This file is incomplete"),
        notes.map((text) => el("p", null, text)),
      ),
    );
  }
}

// Without a tokenizer, ids replace text: a notice explains why.
async function showDecoderNotice(route, main, isCurrent) {
  const decoder = await get(apiPath({ run: route.run, step: route.step }) + "/decoder").catch(() => ({ why: null }));
  const isShown = [...main.querySelectorAll(":scope > .notice")].some((notice) => notice.textContent === decoder.why);
  if (decoder.why && !isShown && isCurrent()) main.prepend(el("div", { class: "notice notice-warn" }, decoder.why));
}

function errorNotice(error) {
  const runsLink = el("a", { href: routeHash({ screen: "runs" }) }, "All runs");
  return el(
    "div",
    { class: "notice notice-bad", role: "alert" },
    el("p", null, el("strong", null, error.message)),
    el("p", null, runsLink),
  );
}

function drawHeader(route) {
  const top = clear(document.getElementById("top"));
  const links = [el("a", { class: "brand", href: routeHash({ screen: "runs" }) }, "palimpsest")];
  const base = { run: route.run, step: route.step, group: route.group, rollout: route.rollout };
  if (route.run && SCREENS.run) links.push(el("a", { href: routeHash({ ...base, screen: "run" }) }, route.run));
  if (route.step && SCREENS.episodes) {
    links.push(
      el(
        "a",
        { href: routeHash({ ...base, screen: "episodes" }) },
        route.step === "all" ? "episodes" : "step " + route.step,
      ),
    );
  }
  if (route.group !== null && SCREENS.group) {
    links.push(el("a", { href: routeHash({ ...base, screen: "group" }) }, "group " + route.group));
  }
  if (route.rollout !== null) {
    links.push(el("a", { href: routeHash({ ...base, screen: "episode" }) }, "rollout " + route.rollout));
  }
  if (route.screen === "evaluation") links.push(el("span", null, "problems"));
  const crumbs = links.flatMap((
    crumb,
    index,
  ) => (index ? [el("span", { class: "faint", "aria-hidden": "true" }, "/"), crumb] : [crumb]));
  const tools = [
    el("nav", { class: "crumbs", "aria-label": "Location" }, crumbs),
    el("span", { class: "grow" }),
    exported ? null : el("button", {
      type: "button",
      class: "quiet",
      title: "Load new steps automatically",
      "aria-pressed": String(following.now),
      onclick: toggleFollowing,
    }, "Follow"),
    el("button", { type: "button", class: "quiet", title: "Keys (?)", onclick: help }, "Keys"),
    el(
      "button",
      { type: "button", class: "quiet", title: "Light or dark", onclick: switchColours },
      "◐",
      el("span", { class: "hidden" }, " Light or dark"),
    ),
  ];
  top.append(...tools.filter(Boolean));
  setTitle(route);
}

function toggleFollowing(event) {
  following.now = !following.now;
  event.target.setAttribute("aria-pressed", String(following.now));
}

const COLOURS = "palimpsest-colours";

function switchColours() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const current = document.documentElement.dataset.colours || (dark ? "dark" : "light");
  setColours(current === "dark" ? "light" : "dark");
}

function setColours(name) {
  document.documentElement.dataset.colours = name;
  try {
    localStorage.setItem(COLOURS, name);
  } catch {
    // without storage the choice is lost
  }
  dispatchEvent(new Event("colours"));
}

// An exported file opens at its first selected episode, otherwise at its source.
async function openFirstEpisode() {
  const exportInfo = exported ? await get("/api/export").catch(() => null) : null;
  if (!exportInfo || !exportInfo.first || location.hash) return;
  const screen = exportInfo.first.rollout !== undefined
    ? "episode"
    : exportInfo.first.step !== undefined
    ? "episodes"
    : "run";
  history.replaceState(null, "", routeHash({ screen, ...exportInfo.first }));
}

async function start() {
  try {
    const name = localStorage.getItem(COLOURS);
    if (name === "dark" || name === "light") document.documentElement.dataset.colours = name;
  } catch {
    // without storage the system's colours apply
  }
  if (exported) document.documentElement.dataset.exported = "yes";
  listenForKeys();
  const skip = document.querySelector(".skip");
  skip.addEventListener("click", (event) => {
    event.preventDefault(); // its address is not a screen
    document.getElementById("main").focus();
  });
  addEventListener("hashchange", draw);
  await openFirstEpisode();
  draw();
}

start();

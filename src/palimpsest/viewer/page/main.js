// Shows the screen named by the address.

import { clear, el } from "./dom.js";
import { exported, following, get } from "./api.js";
import { asked, link, parse, titled } from "./place.js";
import { forget, help, listen } from "./keys.js";
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
let turn = 0;

async function draw() {
  const mine = ++turn;
  const place = await resolved(parse(location.hash));
  const holder = el("div", { class: "screen" });
  if (mine !== turn) return;
  if (stop) stop();
  stop = null;
  forget();
  const main = clear(document.getElementById("main"));
  header(place);
  const waiting = el("p", { class: "loading" }, "Reading…");
  main.append(waiting, holder);
  try {
    if (!SCREENS[place.screen]) throw new Error("no page at this address");
    if (isShort(place)) {
      throw new Error("this short address needs a viewer with a single source; choose one from the list");
    }
    const ended = await SCREENS[place.screen](holder, place);
    if (EPISODES.includes(place.screen)) ids(place, main);
    if (exported && LISTS.includes(place.screen)) await leftOut(holder);
    if (mine === turn) stop = ended || null;
    else if (ended) ended();
    if (mine === turn && mine > 1) heading(main);
  } catch (error) {
    clear(holder).append(trouble(error));
  }
  waiting.remove();
}

// Moves the focus to the heading of a new screen.
function heading(main) {
  const found = main.querySelector("h1");
  if (!found || main.contains(document.activeElement)) return;
  found.tabIndex = -1;
  found.focus({ preventScroll: true });
}

function isShort(place) {
  return EPISODES.includes(place.screen) && !place.run;
}

// An address without a run means the only source.
async function resolved(place) {
  if (!isShort(place)) return place;
  const runs = (await get("/api/runs").catch(() => ({ runs: [] }))).runs;
  if (runs.length !== 1) return place;
  const [{ key, kind }] = runs;
  const steps = kind === "run" ? await get(asked({ run: key }) + "/steps").catch(() => []) : [];
  return { ...place, run: key, step: steps.length ? String(steps[steps.length - 1]) : "all" };
}

// A notice about omissions, on each list of an exported file.
async function leftOut(holder) {
  const { told } = await get("/api/export").catch(() => ({ told: [] }));
  if (told.length) {
    holder.prepend(
      el(
        "div",
        { class: "notice left-out" },
        el("strong", null, "This file is incomplete"),
        told.map((text) => el("p", null, text)),
      ),
    );
  }
}

// Without a tokenizer, ids replace text: a notice explains why.
async function ids(place, main) {
  const told = await get(asked({ run: place.run, step: place.step }) + "/decoder").catch(() => ({ why: null }));
  const said = [...main.querySelectorAll(":scope > .notice")].some((each) => each.textContent === told.why);
  if (told.why && !said) main.prepend(el("div", { class: "notice notice-warn" }, told.why));
}

function trouble(error) {
  const back = el("a", { href: link({ screen: "runs" }) }, "All runs");
  return el(
    "div",
    { class: "notice notice-bad", role: "alert" },
    el("p", null, el("strong", null, error.message)),
    el("p", null, back),
  );
}

function header(place) {
  const top = clear(document.getElementById("top"));
  const trail = [el("a", { class: "brand", href: link({ screen: "runs" }) }, "palimpsest")];
  const at = { run: place.run, step: place.step, group: place.group, rollout: place.rollout };
  if (place.run && SCREENS.run) trail.push(el("a", { href: link({ ...at, screen: "run" }) }, place.run));
  if (place.step && SCREENS.episodes) {
    trail.push(
      el("a", { href: link({ ...at, screen: "episodes" }) }, place.step === "all" ? "episodes" : "step " + place.step),
    );
  }
  if (place.group !== null && SCREENS.group) {
    trail.push(el("a", { href: link({ ...at, screen: "group" }) }, "group " + place.group));
  }
  if (place.rollout !== null) {
    trail.push(el("a", { href: link({ ...at, screen: "episode" }) }, "rollout " + place.rollout));
  }
  if (place.screen === "evaluation") trail.push(el("span", null, "problems"));
  const crumbs = trail.flatMap((
    part,
    index,
  ) => (index ? [el("span", { class: "faint", "aria-hidden": "true" }, "/"), part] : [part]));
  const tools = [
    el("nav", { class: "crumbs", "aria-label": "Location" }, crumbs),
    el("span", { class: "grow" }),
    exported ? null : el("button", {
      type: "button",
      class: "quiet",
      title: "Load new steps automatically",
      "aria-pressed": String(following.now),
      onclick: follow,
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
  titled(place);
}

function follow(event) {
  following.now = !following.now;
  event.target.setAttribute("aria-pressed", String(following.now));
}

const COLOURS = "palimpsest-colours";

function switchColours() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.colours || (dark ? "dark" : "light");
  setColours(now === "dark" ? "light" : "dark");
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
async function opened() {
  const told = exported ? await get("/api/export").catch(() => null) : null;
  if (!told || !told.first || location.hash) return;
  const screen = told.first.rollout !== undefined ? "episode" : told.first.step !== undefined ? "episodes" : "run";
  history.replaceState(null, "", link({ screen, ...told.first }));
}

async function begin() {
  try {
    const name = localStorage.getItem(COLOURS);
    if (name === "dark" || name === "light") document.documentElement.dataset.colours = name;
  } catch {
    // the same
  }
  if (exported) document.documentElement.dataset.exported = "yes";
  listen();
  const skip = document.querySelector(".skip");
  skip.addEventListener("click", (event) => {
    event.preventDefault(); // its address is not a screen
    document.getElementById("main").focus();
  });
  addEventListener("hashchange", draw);
  await opened();
  draw();
}

begin();

// Routes: locations in the viewer, stored only in the address's hash.
//
//   #/                      the list             #/r/R                the run, evaluation or file of key R
//   #/r/R/s/S               episodes of step S   #/r/R/s/S/g/G        a group of them
//   #/r/R/s/S/e/G/K/t/T     turn T of episode K  #/r/R/items          the problems of an evaluation
//   #/e/G/K/t/T             short, for a single source

const FORMS = [
  [/^\/?$/, "runs", []],
  [/^\/r\/([^/]+)$/, "run", ["run"]],
  [/^\/r\/([^/]+)\/items$/, "evaluation", ["run"]],
  [/^\/r\/([^/]+)\/s\/([^/]+)$/, "episodes", ["run", "step"]],
  [/^\/r\/([^/]+)\/s\/([^/]+)\/g\/(\d+)$/, "group", ["run", "step", "group"]],
  [/^\/r\/([^/]+)\/s\/([^/]+)\/e\/(\d+)\/(\d+)$/, "episode", ["run", "step", "group", "rollout"]],
  [/^\/r\/([^/]+)\/s\/([^/]+)\/e\/(\d+)\/(\d+)\/t\/(\d+)$/, "episode", ["run", "step", "group", "rollout", "turn"]],
  [/^\/g\/(\d+)$/, "group", ["group"]],
  [/^\/e\/(\d+)\/(\d+)$/, "episode", ["group", "rollout"]],
  [/^\/e\/(\d+)\/(\d+)\/t\/(\d+)$/, "episode", ["group", "rollout", "turn"]],
];
const NUMBERS = ["group", "rollout", "turn"];

// {screen, run, step, group, rollout, turn, query}; missing fields are null.
export function parse(hash) {
  const [path, query] = hash.replace(/^#/, "").split("?", 2);
  const route = { screen: "none", run: null, step: null, group: null, rollout: null, turn: null, query: {} };
  route.query = Object.fromEntries(new URLSearchParams(query || ""));
  for (const [form, screen, names] of FORMS) {
    const match = form.exec(path);
    if (!match) continue;
    route.screen = screen;
    names.forEach((name, index) => {
      const text = decode(match[index + 1]);
      route[name] = NUMBERS.includes(name) ? Number(text) : text;
    });
    return route;
  }
  return route;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Displayed turns count from 1; addresses and answers count from 0.
export function ordinal(turn) {
  return turn + 1;
}

// The hash of a route: routeHash({screen: "episodes", run: "first", step: 3, query: {sort: "reward"}}).
export function routeHash(route) {
  const base = route.run ? "/r/" + encodeURIComponent(route.run) : "";
  const step = route.step === null || route.step === undefined ? "" : "/s/" + encodeURIComponent(route.step);
  const turn = route.turn === null || route.turn === undefined ? "" : "/t/" + route.turn;
  const paths = {
    runs: "/",
    run: base,
    evaluation: base + "/items",
    episodes: base + step,
    group: base + step + "/g/" + route.group,
    episode: base + step + "/e/" + route.group + "/" + route.rollout + turn,
  };
  const entries = Object.entries(route.query || {}).filter((pair) =>
    pair[1] !== null && pair[1] !== undefined && pair[1] !== ""
  );
  const query = new URLSearchParams(entries).toString();
  return "#" + paths[route.screen] + (query ? "?" + query : "");
}

// The API path of a route: /api/runs/RUN/steps/STEP/groups/GROUP/rollouts/ROLLOUT, up to its last known level.
export function apiPath({ run, step, group, rollout }) {
  const levels = [["runs", run], ["steps", step], ["groups", group], ["rollouts", rollout]];
  return "/api" +
    levels.filter((level) => level[1] !== null && level[1] !== undefined).map(([name, value]) =>
      `/${name}/${encodeURIComponent(value)}`
    ).join("");
}

// The window title, most specific part first.
export function setTitle(route) {
  const labels = [
    route.turn === null ? null : "turn " + ordinal(route.turn),
    route.rollout === null ? null : "rollout " + route.rollout,
    route.group === null ? null : "group " + route.group,
    route.step === null ? null : route.step === "all" ? "episodes" : "step " + route.step,
    route.screen === "evaluation" ? "problems" : null,
    route.run,
    "palimpsest",
  ];
  document.title = labels.filter(Boolean).join(" · ");
}

export function navigate(route) {
  location.hash = routeHash(route);
}

// The same route with another query, without a history entry.
export function replaceQuery(route, query) {
  history.replaceState(null, "", routeHash({ ...route, query: { ...route.query, ...query } }));
}

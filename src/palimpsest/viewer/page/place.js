// The location in the viewer: only the hash of the address.
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

// {screen, run, step, group, rollout, turn, query}; missing parts are null.
export function parse(hash) {
  const [path, query] = hash.replace(/^#/, "").split("?", 2);
  const place = { screen: "none", run: null, step: null, group: null, rollout: null, turn: null, query: {} };
  place.query = Object.fromEntries(new URLSearchParams(query || ""));
  for (const [form, screen, names] of FORMS) {
    const found = form.exec(path);
    if (!found) continue;
    place.screen = screen;
    names.forEach((name, at) => {
      const text = decoded(found[at + 1]);
      place[name] = NUMBERS.includes(name) ? Number(text) : text;
    });
    return place;
  }
  return place;
}

function decoded(text) {
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

// The address of a place: link({screen: "episodes", run: "first", step: 3, query: {sort: "reward"}}).
export function link(place) {
  const at = place.run ? "/r/" + encodeURIComponent(place.run) : "";
  const step = place.step === null || place.step === undefined ? "" : "/s/" + encodeURIComponent(place.step);
  const turn = place.turn === null || place.turn === undefined ? "" : "/t/" + place.turn;
  const paths = {
    runs: "/",
    run: at,
    evaluation: at + "/items",
    episodes: at + step,
    group: at + step + "/g/" + place.group,
    episode: at + step + "/e/" + place.group + "/" + place.rollout + turn,
  };
  const kept = Object.entries(place.query || {}).filter((pair) =>
    pair[1] !== null && pair[1] !== undefined && pair[1] !== ""
  );
  const query = new URLSearchParams(kept).toString();
  return "#" + paths[place.screen] + (query ? "?" + query : "");
}

// The API path of a place: /api/runs/RUN/steps/STEP/groups/GROUP/rollouts/ROLLOUT, up to its last known part.
export function asked({ run, step, group, rollout }) {
  const parts = [["runs", run], ["steps", step], ["groups", group], ["rollouts", rollout]];
  return "/api" +
    parts.filter((part) => part[1] !== null && part[1] !== undefined).map(([name, value]) =>
      `/${name}/${encodeURIComponent(value)}`
    ).join("");
}

// The window title, most specific part first.
export function titled(place) {
  const told = [
    place.turn === null ? null : "turn " + ordinal(place.turn),
    place.rollout === null ? null : "rollout " + place.rollout,
    place.group === null ? null : "group " + place.group,
    place.step === null ? null : place.step === "all" ? "episodes" : "step " + place.step,
    place.screen === "evaluation" ? "problems" : null,
    place.run,
    "palimpsest",
  ];
  document.title = told.filter(Boolean).join(" · ");
}

export function go(place) {
  location.hash = link(place);
}

// The same place with another query, without a history entry.
export function replaceQuery(place, query) {
  history.replaceState(null, "", link({ ...place, query: { ...place.query, ...query } }));
}

// An episode: the strip of its turns with the fate of the evidence; per turn the memory as a difference, the prompt,
// blame, context blocks and tokens.

import { badge, clear, el, headline, keepFocus, num } from "../dom.js";
import { get } from "../api.js";
import { asked, link, ordinal, titled } from "../place.js";
import { leads } from "../held.js";
import { on, tell } from "../keys.js";
import { nameOf, sign, slug, strip, verdictBadge } from "../strip.js";
import { blame, counts, difference, pieces, plain } from "../memory.js";
import { contextBlocks } from "../context.js";
import { tokenStrip } from "../tokens.js";
import { replayCommand } from "../replay.js";

const VIEWS = { diff: "Difference", plain: "Plain", blame: "Blame" };
const TABS = { reply: "Reply", tokens: "Tokens", fates: "Evidence", replay: "Replay" };
const kept = { path: null, view: null };

export async function show(main, place) {
  const path = asked(place), fetched = new Map();
  if (place.turn !== null) fetchTurn(place.turn).catch(() => null); // in parallel with the episode
  if (kept.path !== path) Object.assign(kept, { view: await get(path), path });
  const view = kept.view;
  const state = { turn: Math.min(place.turn ?? firstTurn(view), Math.max(0, view.turns.length - 1)), drawn: 0 };
  const shown = {
    mode: Object.hasOwn(VIEWS, place.query.memory) ? place.query.memory : "diff",
    tab: Object.hasOwn(TABS, place.query.tab) ? place.query.tab : "reply",
  };
  const bar = strip(view, (turn) => to(turn, true));
  const context = view.context ? contextBlocks(view, place, (turn) => to(turn, true)) : null;
  const parts = { turn: el("div", { class: "turn" }), tabs: el("section", { class: "card tabs" }) };
  const search = el("input", {
    type: "search",
    placeholder: "search in memories  /",
    "aria-label": "Search in memories",
    class: "search",
  });
  const hits = el("span", { class: "hits", role: "status" });
  main.append(
    head(view, place),
    bar.element,
    controls(),
    parts.turn,
    ...(context ? [el("section", { class: "card" }, el("h2", null, "Context of each turn"), context.element)] : []),
    parts.tabs,
  );
  bind();
  await draw();
  return bar.stop;

  function controls() {
    const step = (by, text, title) =>
      el("button", { type: "button", title, "aria-label": title, onclick: () => to(state.turn + by, true) }, text);
    state.field = el("input", {
      type: "number",
      min: 1,
      max: Math.max(1, view.turns.length),
      "aria-label": "Turn",
      onchange: () => to(Number(state.field.value) - 1, true),
    });
    return el(
      "div",
      { class: "tools turn-tools" },
      step(-1, "‹", "previous turn (k)"),
      el("label", null, "Turn ", state.field, el("span", { class: "faint" }, ` of ${view.turns.length}`)),
      step(1, "›", "next turn (j)"),
      jump(-1, "⟨ event", "previous event (p)"),
      jump(1, "event ⟩", "next event (n)"),
      el("span", { class: "grow" }),
      search,
      hits,
    );
  }

  function jump(by, text, title) {
    return el("button", { type: "button", title, onclick: () => toEvent(by) }, text);
  }

  function bind() {
    on(main, "j", "next turn", () => to(state.turn + 1));
    on(main, "k", "previous turn", () => to(state.turn - 1));
    on(main, "n", "next turn with a change of evidence, or with a hallucination", () => toEvent(1));
    on(main, "p", "the previous one", () => toEvent(-1));
    on(main, "[", "previous episode", () => toEpisode(-1));
    on(main, "]", "next episode", () => toEpisode(1));
    on(main, "d", "memory as a difference, or plain", () => choose(shown.mode === "diff" ? "plain" : "diff"));
    on(
      main,
      "b",
      "blame: the origin of each word of the memory",
      () => choose(shown.mode === "blame" ? "diff" : "blame"),
    );
    on(main, "t", "tokens of the reply", () => pickTab(shown.tab === "tokens" ? "reply" : "tokens"));
    on(main, "g", "the group", () => (location.hash = link({ ...place, screen: "group" })));
    on(main, "/", "search in memories", () => search.focus());
    tell(search, "Enter", "in the search: the next turn with a match");
    tell(search, "Shift+Enter", "the previous one");
    search.addEventListener("keydown", (event) => event.key === "Enter" && find(event.shiftKey ? -1 : 1));
    search.addEventListener("input", () => (state.found = null));
  }

  function to(turn, remember) {
    const next = Math.min(view.turns.length - 1, Math.max(0, Math.round(turn) || 0));
    if (next === state.turn) return null;
    state.turn = next;
    history[remember ? "pushState" : "replaceState"](null, "", link({ ...place, turn: next }));
    return draw();
  }

  function toEvent(by) {
    let turn = state.turn + by;
    while (view.turns[turn] && !matters(view.turns[turn])) turn += by;
    if (view.turns[turn]) to(turn, true);
  }

  async function toEpisode(by) {
    const next = { ...place, rollout: place.rollout + by, turn: null };
    if (next.rollout >= view.rollouts) Object.assign(next, { group: place.group + 1, rollout: 0 });
    if (next.rollout < 0) Object.assign(next, { group: place.group - 1, rollout: 0 });
    if (next.group < 0) return;
    const there = await get(asked(next)).catch(() => null);
    if (!there) return;
    if (by < 0 && next.group < place.group) next.rollout = there.rollouts - 1;
    location.hash = link(next);
  }

  function fetchTurn(turn) {
    if (!fetched.has(turn)) {
      const answer = get(`${path}/turns/${turn}`);
      answer.catch(() => fetched.delete(turn));
      fetched.set(turn, answer);
      if (fetched.size > 60) fetched.delete(fetched.keys().next().value);
    }
    return fetched.get(turn);
  }

  async function draw() {
    if (!main.isConnected) return null; // replaced by another screen
    const mine = ++state.drawn, turn = state.turn;
    bar.mark(turn);
    if (context) context.mark(turn);
    state.field.value = String(ordinal(turn));
    titled({ ...place, turn });
    if (!view.turns.length) {
      return clear(parts.turn).append(
        el("p", { class: "notice" }, "This episode has no turns: " + view.outcome.replace(/_/g, " ") + "."),
      );
    }
    const told = await fetchTurn(turn).catch((error) => ({ error }));
    if (mine !== state.drawn) return null;
    if (told.error) {
      return clear(parts.turn).append(el("div", { class: "notice notice-bad", role: "alert" }, told.error.message));
    }
    keepFocus(() => parts.turn.querySelector(".segmented"), () => clear(parts.turn).append(...turnOf(told)));
    keepFocus(() => parts.tabs.querySelector(".segmented"), () => tabs(told));
    for (const near of [turn + 1, turn - 1]) if (view.turns[near]) fetchTurn(near).catch(() => null);
    return null;
  }

  function turnOf(told) {
    const beside = pieces(told, view.fates);
    const memory = el("section", { class: "card memory", "aria-label": "Memory" });
    fillMemory(memory, told, beside);
    return [
      turnHead(told, view),
      el(
        "div",
        { class: told.memory ? "beside" : "beside alone" },
        told.memory ? memory : null,
        el("div", { class: "sight" }, beside.element),
      ),
    ];
  }

  function fillMemory(memory, told, beside) {
    if (!told.memory) return;
    const buttons = Object.entries(VIEWS).map(([mode, name]) =>
      el("button", { type: "button", "aria-pressed": String(shown.mode === mode), onclick: () => choose(mode) }, name)
    );
    const size = told.memory.before_tokens === told.memory.after_tokens
      ? `${num(told.memory.after_tokens)} tokens`
      : `${num(told.memory.before_tokens)} → ${num(told.memory.after_tokens)} tokens`;
    const body = el("div", { class: "memory-body" });
    memory.append(
      el(
        "div",
        { class: "card-head" },
        el("h2", null, "Memory after turn " + ordinal(told.turn)),
        el("span", { class: "faint" }, size),
        el("span", { class: "grow" }),
        el("div", { class: "tools segmented", role: "group", "aria-label": "Show the memory as" }, buttons),
      ),
      body,
    );
    if (shown.mode === "blame") fillBlame(body, told);
    else {body.append(
        ...[
          shown.mode === "diff" ? difference(told, beside.light) : plain(told),
          shown.mode === "diff" ? counts(told) : null,
          unsaid(told),
          keptOut(told),
          unfounded(told, place),
          held(told, view),
        ].filter(Boolean),
      );}
    if (shown.mode === "diff") point(body, beside);
  }

  async function fillBlame(body, told) {
    const blamed = await get(`${path}/turns/${told.turn}/blame`).catch((error) => ({ error }));
    clear(body).append(blamed.error ? el("p", { class: "notice" }, blamed.error.message) : blame(blamed, place));
  }

  function choose(mode) {
    shown.mode = mode;
    remember({ memory: mode === "diff" ? null : mode });
    draw();
  }

  function pickTab(tab) {
    shown.tab = tab;
    remember({ tab: tab === "reply" ? null : tab });
    draw();
  }

  // The address stores the display options, which links to other episodes inherit.
  function remember(changes) {
    place.query = { ...place.query, ...changes };
    history.replaceState(null, "", link({ ...place, turn: state.turn }));
  }

  function tabs(told) {
    const buttons = Object.entries(TABS).map(([tab, name]) =>
      el("button", { type: "button", "aria-pressed": String(shown.tab === tab), onclick: () => pickTab(tab) }, name)
    );
    const body = el("div", { class: "tab-body" });
    clear(parts.tabs).append(
      el(
        "div",
        { class: "card-head" },
        el("div", { class: "tools segmented", role: "group", "aria-label": "Details" }, buttons),
        el("span", { class: "faint" }, tabFacts(told, view)),
      ),
      body,
    );
    if (shown.tab === "reply") body.append(el("pre", { class: "reply" }, told.reply.text || "(empty)"));
    if (shown.tab === "replay") replayCommand(body, { ...place, turn: told.turn }, told);
    if (shown.tab === "fates") body.append(fates(view, place));
    if (shown.tab === "tokens") {
      get(`${path}/turns/${told.turn}/tokens`).then((strips) =>
        clear(body).append(tokenStrip(strips, place.query.by, (by) => remember({ by })))
      ).catch((error) => clear(body).append(el("p", { class: "notice" }, error.message)));
    }
  }

  async function find(by) {
    const text = search.value.trim();
    if (!text) return;
    if (view.readable === false) return clear(hits).append("unknown without a tokenizer");
    if (!state.found) {
      state.found = (await get(`${path}/search?text=${encodeURIComponent(text)}`).catch((
        error,
      ) => (clear(hits).append(error.message), { turns: [] }))).turns;
    }
    const found = state.found;
    const next = by > 0
      ? found.find((turn) => turn > state.turn) ?? found[0]
      : [...found].reverse().find((turn) => turn < state.turn) ?? found[found.length - 1];
    clear(hits).append(found.length ? `in ${num(found.length)} of ${num(view.memories)} memories` : "in no memory");
    if (next !== undefined) to(next, true);
  }
}

// The reverse: pointing at a piece highlights the memory.
function point(body, beside) {
  for (const [part, elements] of beside.spans) {
    const target = body.querySelector(`[data-part="${part}"]`);
    if (!target) continue;
    for (const element of elements) {
      element.addEventListener("mouseenter", () => target.classList.add("lit"));
      element.addEventListener("mouseleave", () => target.classList.remove("lit"));
    }
  }
}

function matters(row) {
  return row.lost.length || row.gained.length || row.seen.length || row.recalled.length ||
    !["wrote", "kept", "called", "sampled"].includes(row.state);
}

// The first turn to show: evidence lost, otherwise gained, otherwise hallucinated.
function firstTurn(view) {
  const lost = view.turns.find((row) => row.lost.length);
  const invented = view.turns.find((row) => row.state === "invented");
  const gained = view.turns.find((row) => row.gained.length || row.seen.length);
  return (lost || gained || invented || view.turns[0] || { turn: 0 }).turn;
}

function head(view, place) {
  const grade = view.grade.value, gold = view.problem.answers;
  const facts = [
    `${num(view.turns.length)} turns`,
    view.advantage === null || view.rollouts < 2 ? null : `advantage ${num(view.advantage)}`,
  ].filter(Boolean).join(" · ");
  const others = Array.from(
    { length: view.rollouts },
    (_, rollout) =>
      leads({ ...place, screen: "episode", rollout, turn: null }, {
        class: rollout === view.rollout ? "chip now" : "chip",
        "aria-current": rollout === view.rollout ? "true" : null,
      }, String(rollout)),
  );
  return el(
    "header",
    { class: "episode-head" },
    headline(view.problem.question),
    el(
      "dl",
      { class: "facts" },
      fact("Answer", answerOf(view), "answer"),
      fact("Gold", gold.slice(0, 4).join(" / ") + (gold.length > 4 ? ` and ${gold.length - 4} more` : "")),
      fact(
        "Reward",
        grade === null ? "ungraded: " + (view.grade.reason || "unknown reason") : num(grade),
        grade === null ? null : grade > 0 ? "good" : "bad",
      ),
      view.player ? fact("Agent", `${view.player}, ${view.part}`) : null,
      fact("Ended", badge(view.outcome.replace(/_/g, " "))),
      fact("Facts", el("span", { title: view.advantage_is }, facts)),
      view.rollouts > 1
        ? fact(
          "Rollout",
          el(
            "span",
            { class: "chips" },
            others.slice(0, 32),
            leads({ ...place, screen: "group", turn: null }, null, "side by side"),
          ),
        )
        : null,
    ),
    view.replayed ? el("p", { class: "notice" }, view.replayed) : null,
    view.before.length ? el("p", { class: "soft" }, view.before.join("; ")) : null,
  );
}

function answerOf(view) {
  if (view.answer === null) return el("span", { class: "faint" }, "none");
  return el("span", { title: view.answer }, view.answer.length > 240 ? view.answer.slice(0, 240) + "…" : view.answer);
}

function fact(name, value, kind) {
  return el("div", { class: "fact" }, el("dt", null, name), el("dd", { class: kind ? "fact-" + kind : null }, value));
}

function turnHead(told, view) {
  const row = view.turns[told.turn];
  const marks = told.marks.map((mark) =>
    el(
      "span",
      { class: "turn-mark turn-mark-" + slug(mark), title: view.states[mark] },
      el("span", { "aria-hidden": "true" }, sign(mark) + " "),
      nameOf(mark),
    )
  );
  const facts = [
    told.name,
    told.role && "role " + told.role,
    row.chunk === null ? null : "chunk " + ordinal(row.chunk),
    row.offset === null ? null : `after ${num(row.offset)} tokens`,
    `${num(told.prompt_tokens)} in, ${num(told.sampled_tokens)} out`,
    told.stop_reason === "stop" ? null : "stopped by " + told.stop_reason,
    told.trained ? null : "not trained",
  ].filter(Boolean);
  const lines = [...evidenceLines(row, view), ...told.events.map((event) => el("li", null, event.text))];
  return el(
    "div",
    { class: "turn-head" },
    el(
      "div",
      { class: "turn-line" },
      el("h2", null, "Turn " + ordinal(told.turn)),
      marks,
      el("span", { class: "faint" }, facts.join(" · ")),
    ),
    lines.length ? el("ul", { class: "happened" }, lines) : null,
  );
}

function evidenceLines(row, view) {
  const says = {
    seen: ["▼", "read here: ", "seen"],
    gained: ["✎", "written into the memory: ", "gained"],
    lost: ["✕", "lost from the memory: ", "lost"],
    recalled: ["↩", "recalled: ", "recalled"],
  };
  return Object.entries(says).flatMap(([part, [shown, text, kind]]) =>
    row[part].map((number) =>
      el(
        "li",
        { class: "needed needed-" + kind },
        el("span", { "aria-hidden": "true" }, shown + " "),
        text,
        el("q", null, view.fates[number].text),
      )
    )
  );
}

function unsaid(told) {
  if (!told.invented || !told.invented.length) return null;
  return el(
    "p",
    { class: "notice notice-bad" },
    told.invented.length === 1 ? "Hallucinated: " : `${told.invented.length} hallucinated sentences: `,
    told.invented.map((one, at) => [at ? " " : "", el("q", null, one.text)]),
  );
}

// Sentences of the reply that the policy's grounding rule dropped.
function keptOut(told) {
  if (!told.kept_out.length) return null;
  return el(
    "p",
    { class: "notice" },
    "Dropped by the grounding rule: ",
    told.kept_out.map((
      one,
      at,
    ) => [at ? " " : "", el("del", { class: "o-dropped", title: one.reason }, one.text), ` (${one.reason})`]),
  );
}

// Hallucinations of earlier turns stay marked while the memory contains them.
function unfounded(told, place) {
  if (!told.unfounded.length) return null;
  return el(
    "p",
    { class: "notice notice-bad" },
    "Hallucinated earlier and kept: ",
    told.unfounded.map((
      one,
      at,
    ) => [
      at ? " " : "",
      el("q", null, one.text),
      " (",
      el("a", { href: link({ ...place, turn: one.turn }) }, "turn " + ordinal(one.turn)),
      ")",
    ]),
  );
}

function held(told, view) {
  if (!view.fates.length) return null;
  const row = view.turns[told.turn];
  return el(
    "p",
    { class: "legend" },
    el(
      "span",
      { class: "legend-item" },
      el("span", { class: "gold" }, "underlined twice"),
      view.readable === false
        ? "evidence: unknown without a tokenizer"
        : `evidence: ${row.held.length} of ${view.fates.length} in memory`,
    ),
  );
}

// The version of the weights counts optimizer steps; an evaluation has a single model.
function tabFacts(told, view) {
  return `${num(told.reply.tokens)} tokens sampled` +
    (view.player ? "" : ` by version ${told.policy_version} of the weights`);
}

function fates(view, place) {
  if (!view.fates.length) return el("p", { class: "faint" }, "The data name no evidence.");
  const turn = (
    at,
  ) => (at === null || at === undefined ? "–" : el("a", { href: link({ ...place, turn: at }) }, "turn " + ordinal(at)));
  const some = (
    list,
  ) => (list.length
    ? [
      list.slice(0, 8).map((at, number) => [number ? ", " : "", turn(at)]),
      list.length > 8 ? ` and ${list.length - 8} more` : "",
    ]
    : "–");
  const rows = view.fates.map((fate) =>
    el(
      "tr",
      null,
      el(
        "td",
        { class: "memory-cell" },
        fate.text,
        fate.kind === "answer" ? el("small", null, "gold answer: the data name no single sentences") : null,
      ),
      el("td", null, verdictBadge(fate)),
      [some(fate.seen), turn(fate.written), turn(fate.survived), some(fate.lost), some(fate.recalled)].map((value) =>
        el("td", null, value)
      ),
      el("td", null, fate.used === null ? "–" : fate.used ? "yes" : "no"),
    )
  );
  const names = [
    "Evidence",
    "Status",
    "Read at",
    "Written at",
    "Kept until",
    "Lost at",
    "Recalled at",
    "Used in the answer",
  ];
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "rows small" },
      el("thead", null, el("tr", null, names.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", null, rows),
    ),
  );
}

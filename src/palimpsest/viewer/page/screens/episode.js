// An episode: the strip of its turns with the fate of the evidence.
// Each turn shows the memory, the prompt, blame, context blocks and tokens.

import { badge, clear, el, extractBoxed, factElement, headline, keepFocus, num } from "../dom.js";
import { get } from "../api.js";
import { apiPath, ordinal, routeHash, setTitle } from "../route.js";
import { routeLink } from "../links.js";
import { bindKey, describeKey } from "../keys.js";
import { className, stateName, stateSign, strip, verdictBadge } from "../strip.js";
import { blameView, diffView, originLegend, plainView, promptPieces } from "../memory.js";
import { contextBlocks } from "../context.js";
import { tokenStrip } from "../tokens.js";
import { replayCommand } from "../replay.js";

const VIEWS = { diff: "Difference", plain: "Plain", blame: "Blame" };
const TABS = { reply: "Reply", tokens: "Tokens", fates: "Evidence", replay: "Replay" };
const episodeCache = { path: null, view: null }; // of the episode on the screen: its file may change meanwhile

export async function show(main, route) {
  const path = apiPath(route), fetched = new Map();
  if (route.turn !== null) fetchTurn(route.turn).catch(() => null); // in parallel with the episode
  if (episodeCache.path !== path) Object.assign(episodeCache, { view: await get(path), path });
  const view = episodeCache.view;
  const state = { turn: Math.min(route.turn ?? firstTurn(view), Math.max(0, view.turns.length - 1)), drawCount: 0 };
  const options = {
    mode: Object.hasOwn(VIEWS, route.query.memory) ? route.query.memory : "diff",
    tab: Object.hasOwn(TABS, route.query.tab) ? route.query.tab : "reply",
  };
  const bar = strip(view, (turn) => goToTurn(turn, true));
  const context = view.context ? contextBlocks(view, route, (turn) => goToTurn(turn, true)) : null;
  const elements = { turn: el("div", { class: "turn" }), tabs: el("section", { class: "card tabs" }) };
  const search = el("input", {
    type: "search",
    placeholder: "search in memories  /",
    "aria-label": "Search in memories",
    class: "search",
  });
  const hits = el("span", { class: "hits", role: "status" });
  main.append(
    episodeHead(view, route),
    bar.element,
    controls(),
    elements.turn,
    ...(context ? [el("section", { class: "card" }, el("h2", null, "Context of each turn"), context.element)] : []),
    elements.tabs,
  );
  bindKeys();
  await draw();
  return () => {
    bar.stop();
    if (!/\/e\//.test(location.hash)) episodeCache.path = null;
  };

  function controls() {
    const step = (offset, text, title) =>
      el(
        "button",
        { type: "button", title, "aria-label": title, onclick: () => goToTurn(state.turn + offset, true) },
        text,
      );
    state.field = el("input", {
      type: "number",
      min: 1,
      max: Math.max(1, view.turns.length),
      "aria-label": "Turn",
      onchange: () => goToTurn(Number(state.field.value) - 1, true),
    });
    return el(
      "div",
      { class: "tools turn-tools" },
      step(-1, "‹", "previous turn (k)"),
      el("label", null, "Turn ", state.field, el("span", { class: "faint" }, ` of ${view.turns.length}`)),
      step(1, "›", "next turn (j)"),
      eventButton(-1, "⟨ event", "previous event (p)"),
      eventButton(1, "event ⟩", "next event (n)"),
      el("span", { class: "grow" }),
      search,
      hits,
    );
  }

  function eventButton(offset, text, title) {
    return el("button", { type: "button", title, onclick: () => goToEvent(offset) }, text);
  }

  function bindKeys() {
    bindKey(main, "j", "next turn", () => goToTurn(state.turn + 1));
    bindKey(main, "k", "previous turn", () => goToTurn(state.turn - 1));
    bindKey(main, "n", "next turn with a change of evidence, or with a hallucination", () => goToEvent(1));
    bindKey(main, "p", "the previous one", () => goToEvent(-1));
    bindKey(main, "[", "previous episode", () => goToEpisode(-1));
    bindKey(main, "]", "next episode", () => goToEpisode(1));
    bindKey(main, "d", "memory as a difference, or plain", () => setMode(options.mode === "diff" ? "plain" : "diff"));
    bindKey(
      main,
      "b",
      "blame: the origin of each word of the memory",
      () => setMode(options.mode === "blame" ? "diff" : "blame"),
    );
    bindKey(main, "t", "tokens of the reply", () => setTab(options.tab === "tokens" ? "reply" : "tokens"));
    bindKey(main, "g", "the group", () => (location.hash = routeHash({ ...route, screen: "group" })));
    bindKey(main, "/", "search in memories", () => search.focus());
    describeKey(search, "Enter", "in the search: the next turn with a match");
    describeKey(search, "Shift+Enter", "the previous one");
    search.addEventListener("keydown", (event) => event.key === "Enter" && findNext(event.shiftKey ? -1 : 1));
    search.addEventListener("input", () => (state.matches = null));
  }

  function goToTurn(turn, push) {
    const next = Math.min(view.turns.length - 1, Math.max(0, Math.round(turn) || 0));
    if (next === state.turn) return null;
    state.turn = next;
    history[push ? "pushState" : "replaceState"](null, "", routeHash({ ...route, turn: next }));
    return draw();
  }

  function goToEvent(offset) {
    let turn = state.turn + offset;
    while (view.turns[turn] && !isEvent(view.turns[turn])) turn += offset;
    if (view.turns[turn]) goToTurn(turn, true);
  }

  async function goToEpisode(offset) {
    const next = { ...route, rollout: route.rollout + offset, turn: null };
    if (next.rollout >= view.rollouts) Object.assign(next, { group: route.group + 1, rollout: 0 });
    if (next.rollout < 0) Object.assign(next, { group: route.group - 1, rollout: 0 });
    if (next.group < 0) return;
    const neighbour = await get(apiPath(next)).catch(() => null);
    if (!neighbour) return;
    if (offset < 0 && next.group < route.group) next.rollout = neighbour.rollouts - 1;
    location.hash = routeHash(next);
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
    const drawNumber = ++state.drawCount, turn = state.turn;
    bar.mark(turn);
    if (context) context.mark(turn);
    state.field.value = String(ordinal(turn));
    setTitle({ ...route, turn });
    if (!view.turns.length) {
      return clear(elements.turn).append(
        el("p", { class: "notice" }, "This episode has no turns: " + view.outcome.replace(/_/g, " ") + "."),
      );
    }
    const turnView = await fetchTurn(turn).catch((error) => ({ error }));
    if (drawNumber !== state.drawCount) return null;
    if (turnView.error) {
      return clear(elements.turn).append(
        el("div", { class: "notice notice-bad", role: "alert" }, turnView.error.message),
      );
    }
    keepFocus(
      () => elements.turn.querySelector(".segmented"),
      () => clear(elements.turn).append(...turnElements(turnView)),
    );
    keepFocus(() => elements.tabs.querySelector(".segmented"), () => drawTabs(turnView));
    for (const neighbour of [turn + 1, turn - 1]) if (view.turns[neighbour]) fetchTurn(neighbour).catch(() => null);
    return null;
  }

  function turnElements(turnView) {
    const promptView = promptPieces(turnView, view.fates);
    const memory = el("section", { class: "card memory", "aria-label": "Memory" });
    fillMemory(memory, turnView, promptView);
    return [
      turnHead(turnView, view),
      el(
        "div",
        { class: turnView.memory ? "turn-columns" : "turn-columns single" },
        turnView.memory ? memory : null,
        el("div", { class: "prompt-column" }, promptView.element),
      ),
    ];
  }

  function fillMemory(memory, turnView, promptView) {
    if (!turnView.memory) return;
    const buttons = Object.entries(VIEWS).map(([mode, name]) =>
      el(
        "button",
        { type: "button", "aria-pressed": String(options.mode === mode), onclick: () => setMode(mode) },
        name,
      )
    );
    const size = turnView.memory.before_tokens === turnView.memory.after_tokens
      ? `${num(turnView.memory.after_tokens)} tokens`
      : `${num(turnView.memory.before_tokens)} → ${num(turnView.memory.after_tokens)} tokens`;
    const body = el("div", { class: "memory-body" });
    memory.append(
      el(
        "div",
        { class: "card-head" },
        el("h2", null, "Memory after turn " + ordinal(turnView.turn)),
        el("span", { class: "faint" }, size),
        el("span", { class: "grow" }),
        el("div", { class: "tools segmented", role: "group", "aria-label": "Show the memory as" }, buttons),
      ),
      body,
    );
    if (options.mode === "blame") fillBlame(body, turnView);
    else {body.append(
        ...[
          options.mode === "diff" ? diffView(turnView, promptView.highlight) : plainView(turnView),
          options.mode === "diff" ? originLegend(turnView) : null,
          hallucinationNotice(turnView),
          droppedNotice(turnView),
          earlierHallucinationNotice(turnView, route),
          evidenceLegend(turnView, view),
        ].filter(Boolean),
      );}
    if (options.mode === "diff") linkHighlights(body, promptView);
  }

  async function fillBlame(body, turnView) {
    const origins = await get(`${path}/turns/${turnView.turn}/blame`).catch((error) => ({ error }));
    clear(body).append(origins.error ? el("p", { class: "notice" }, origins.error.message) : blameView(origins, route));
  }

  function setMode(mode) {
    options.mode = mode;
    saveOptions({ memory: mode === "diff" ? null : mode });
    draw();
  }

  function setTab(tab) {
    options.tab = tab;
    saveOptions({ tab: tab === "reply" ? null : tab });
    draw();
  }

  // The address stores the display options, which links to other episodes inherit.
  function saveOptions(changes) {
    route.query = { ...route.query, ...changes };
    history.replaceState(null, "", routeHash({ ...route, turn: state.turn }));
  }

  function drawTabs(turnView) {
    const buttons = Object.entries(TABS).map(([tab, name]) =>
      el("button", { type: "button", "aria-pressed": String(options.tab === tab), onclick: () => setTab(tab) }, name)
    );
    const body = el("div", { class: "tab-body" });
    clear(elements.tabs).append(
      el(
        "div",
        { class: "card-head" },
        el("div", { class: "tools segmented", role: "group", "aria-label": "Details" }, buttons),
        el("span", { class: "faint" }, tabFacts(turnView, view)),
      ),
      body,
    );
    if (options.tab === "reply") body.append(el("pre", { class: "reply" }, turnView.reply.text || "(empty)"));
    if (options.tab === "replay") replayCommand(body, { ...route, turn: turnView.turn }, turnView);
    if (options.tab === "fates") body.append(evidenceTable(view, route));
    if (options.tab === "tokens") {
      get(`${path}/turns/${turnView.turn}/tokens`).then((strips) =>
        clear(body).append(tokenStrip(strips, route.query.by, (mode) => saveOptions({ by: mode })))
      ).catch((error) => clear(body).append(el("p", { class: "notice" }, error.message)));
    }
  }

  async function findNext(offset) {
    const text = search.value.trim();
    if (!text) return;
    if (view.readable === false) return clear(hits).append("unknown without a tokenizer");
    if (!state.matches) {
      state.matches = (await get(`${path}/search?text=${encodeURIComponent(text)}`).catch((
        error,
      ) => (clear(hits).append(error.message), { turns: [] }))).turns;
    }
    const matches = state.matches;
    const next = offset > 0
      ? matches.find((turn) => turn > state.turn) ?? matches[0]
      : [...matches].reverse().find((turn) => turn < state.turn) ?? matches[matches.length - 1];
    clear(hits).append(matches.length ? `in ${num(matches.length)} of ${num(view.memories)} memories` : "in no memory");
    if (next !== undefined) goToTurn(next, true);
  }
}

// The reverse of highlight(): a piece of the prompt highlights the memory.
function linkHighlights(body, promptView) {
  for (const [number, elements] of promptView.spans) {
    const target = body.querySelector(`[data-part="${number}"]`);
    if (!target) continue;
    for (const element of elements) {
      element.addEventListener("mouseenter", () => target.classList.add("highlighted"));
      element.addEventListener("mouseleave", () => target.classList.remove("highlighted"));
    }
  }
}

function isEvent(row) {
  return row.lost.length || row.gained.length || row.seen.length || row.recalled.length ||
    !["wrote", "kept", "called", "sampled"].includes(row.state);
}

// The first turn to show: evidence lost, otherwise gained, otherwise hallucinated.
function firstTurn(view) {
  const withLoss = view.turns.find((row) => row.lost.length);
  const withHallucination = view.turns.find((row) => row.state === "invented");
  const withGain = view.turns.find((row) => row.gained.length || row.seen.length);
  return (withLoss || withGain || withHallucination || view.turns[0] || { turn: 0 }).turn;
}

function episodeHead(view, route) {
  const grade = view.grade.value, gold = view.problem.answers;
  const facts = [
    `${num(view.turns.length)} turns`,
    view.advantage === null || view.rollouts < 2 ? null : `advantage ${num(view.advantage)}`,
  ].filter(Boolean).join(" · ");
  const rolloutLinks = Array.from(
    { length: view.rollouts },
    (_, rollout) =>
      routeLink({ ...route, screen: "episode", rollout, turn: null }, {
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
      factElement("Answer", answerElement(view), "answer"),
      factElement("Gold", gold.slice(0, 4).join(" / ") + (gold.length > 4 ? ` and ${gold.length - 4} more` : "")),
      factElement(
        "Reward",
        grade === null ? "ungraded: " + (view.grade.reason || "unknown reason") : num(grade),
        grade === null ? null : grade > 0 ? "good" : "bad",
      ),
      view.player ? factElement("Agent", `${view.player}, ${view.part}`) : null,
      factElement("Ended", badge(view.outcome.replace(/_/g, " "))),
      factElement("Facts", el("span", { title: view.advantage_is }, facts)),
      view.rollouts > 1
        ? factElement(
          "Rollout",
          el(
            "span",
            { class: "chips" },
            rolloutLinks.slice(0, 32),
            routeLink({ ...route, screen: "group", turn: null }, null, "side by side"),
          ),
        )
        : null,
    ),
    view.replayed ? el("p", { class: "notice" }, view.replayed) : null,
    view.before.length ? el("p", { class: "soft" }, view.before.join("; ")) : null,
  );
}

function answerElement(view) {
  if (view.answer === null) return el("span", { class: "faint" }, "none");
  const answer = extractBoxed(view.answer);
  return el("span", { title: view.answer }, answer.length > 240 ? answer.slice(0, 240) + "…" : answer);
}

function turnHead(turnView, view) {
  const row = view.turns[turnView.turn];
  const marks = turnView.marks.map((mark) =>
    el(
      "span",
      { class: "turn-mark turn-mark-" + className(mark), title: view.states[mark] },
      el("span", { "aria-hidden": "true" }, stateSign(mark) + " "),
      stateName(mark),
    )
  );
  const facts = [
    turnView.name,
    turnView.role && "role " + turnView.role,
    row.chunk === null ? null : "section " + ordinal(row.chunk),
    row.offset === null ? null : `after ${num(row.offset)} tokens`,
    `${num(turnView.prompt_tokens)} in, ${num(turnView.sampled_tokens)} out`,
    turnView.stop_reason === "stop" ? null : "stopped by " + turnView.stop_reason,
    turnView.trained ? null : "not trained",
  ].filter(Boolean);
  const lines = [...evidenceLines(row, view), ...turnView.events.map((event) => el("li", null, event.text))];
  return el(
    "div",
    { class: "turn-head" },
    el(
      "div",
      { class: "turn-line" },
      el("h2", null, "Turn " + ordinal(turnView.turn)),
      marks,
      el("span", { class: "faint" }, facts.join(" · ")),
    ),
    lines.length ? el("ul", { class: "turn-events" }, lines) : null,
  );
}

function evidenceLines(row, view) {
  const labels = {
    seen: ["▼", "read here: ", "seen"],
    gained: ["✎", "written into the memory: ", "gained"],
    lost: ["✕", "lost from the memory: ", "lost"],
    recalled: ["↩", "recalled: ", "recalled"],
  };
  return Object.entries(labels).flatMap(([key, [symbol, text, kind]]) =>
    row[key].map((number) =>
      el(
        "li",
        { class: "evidence evidence-" + kind },
        el("span", { "aria-hidden": "true" }, symbol + " "),
        text,
        el("q", null, view.fates[number].text),
      )
    )
  );
}

function hallucinationNotice(turnView) {
  if (!turnView.invented || !turnView.invented.length) return null;
  return el(
    "p",
    { class: "notice notice-bad" },
    turnView.invented.length === 1 ? "Hallucinated: " : `${turnView.invented.length} hallucinated sentences: `,
    turnView.invented.map((sentence, index) => [index ? " " : "", el("q", null, sentence.text)]),
  );
}

// Sentences of the reply that the policy's grounding rule dropped.
function droppedNotice(turnView) {
  if (!turnView.kept_out.length) return null;
  return el(
    "p",
    { class: "notice" },
    "Dropped by the grounding rule: ",
    turnView.kept_out.map((
      sentence,
      index,
    ) => [
      index ? " " : "",
      el("del", { class: "o-dropped", title: sentence.reason }, sentence.text),
      ` (${sentence.reason})`,
    ]),
  );
}

// Hallucinations of earlier turns stay marked while the memory contains them.
function earlierHallucinationNotice(turnView, route) {
  if (!turnView.unfounded.length) return null;
  return el(
    "p",
    { class: "notice notice-bad" },
    "Hallucinated earlier and kept: ",
    turnView.unfounded.map((
      sentence,
      index,
    ) => [
      index ? " " : "",
      el("q", null, sentence.text),
      " (",
      el("a", { href: routeHash({ ...route, turn: sentence.turn }) }, "turn " + ordinal(sentence.turn)),
      ")",
    ]),
  );
}

function evidenceLegend(turnView, view) {
  if (!view.fates.length) return null;
  const row = view.turns[turnView.turn];
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

// The version of the weights counts optimizer steps. An evaluation has a single model.
function tabFacts(turnView, view) {
  return `${num(turnView.reply.tokens)} tokens sampled` +
    (view.player ? "" : ` by version ${turnView.policy_version} of the weights`);
}

function evidenceTable(view, route) {
  if (!view.fates.length) return el("p", { class: "faint" }, "The data name no evidence.");
  const turn = (
    index,
  ) => (index === null || index === undefined
    ? "–"
    : el("a", { href: routeHash({ ...route, turn: index }) }, "turn " + ordinal(index)));
  const turnLinks = (
    list,
  ) => (list.length
    ? [
      list.slice(0, 8).map((index, number) => [number ? ", " : "", turn(index)]),
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
      [turnLinks(fate.seen), turn(fate.written), turn(fate.survived), turnLinks(fate.lost), turnLinks(fate.recalled)]
        .map((value) => el("td", null, value)),
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

// Two episodes of one problem beside each other, turn by turn: what each held in its memory after the same turn.

import { badge, clear, el, headline, num } from "../dom.js";
import { get } from "../api.js";
import { asked, besides, link, ordinal, replaceQuery } from "../place.js";
import { on } from "../keys.js";
import { counts, difference } from "../memory.js";
import { strip } from "../strip.js";

export async function show(main, place) {
  const places = besides(place);
  const views = await Promise.all(places.map((each) => get(asked(each))));
  const last = Math.max(...views.map((view) => view.turns.length)) - 1;
  const state = { turn: Math.min(last, Math.max(0, Number(place.query.t) || 0)), drawn: 0 };
  const sides = views.map((view, at) => side(view, places[at]));
  const field = el("input", { type: "number", min: 1, max: last + 1, "aria-label": "Turn", onchange: () => to(Number(field.value) - 1) });
  const said = el("span", { class: "soft", role: "status" });
  const tools = el("div", { class: "tools" }, button("‹", "turn before (k)", () => to(state.turn - 1)), el("label", null, "Turn ", field, el("span", { class: "faint" }, ` of ${last + 1}`)), button("›", "next turn (j)", () => to(state.turn + 1)), button("First different memory", "n", first), said);
  main.append(headline(views[0].problem.question), el("p", { class: "soft about" }, "Gold: ", views[0].problem.answers.join(" | ")), tools, el("div", { class: "pair" }, sides.map((each) => each.element)));
  on(main, "j", "next turn", () => to(state.turn + 1));
  on(main, "k", "turn before", () => to(state.turn - 1));
  on(main, "n", "the first turn after which the memories differ", first);
  await draw();
  return () => sides.forEach((each) => each.bar.stop());

  function side(view, at) {
    const bar = strip(view, to), body = el("div", null);
    const facts = el("p", { class: "soft about" }, badge(view.outcome), ` reward ${num(view.grade.value)} · answered `, el("strong", null, view.answer === null ? "–" : view.answer));
    const name = el("h2", null, el("a", { href: link({ screen: "episode", ...at }) }, `${at.run}, ${at.step === "all" ? "" : "step " + at.step + ", "}group ${at.group}, rollout ${at.rollout}`));
    return { bar, body, element: el("section", { class: "pair-side" }, name, facts, bar.element, body) };
  }

  function to(turn) {
    const next = Math.min(last, Math.max(0, Math.round(turn) || 0));
    if (next === state.turn) return null;
    state.turn = next;
    replaceQuery(place, { t: next });
    return draw();
  }

  async function draw() {
    const mine = ++state.drawn, turn = state.turn;
    field.value = ordinal(turn);
    const told = await both(turn);
    if (mine !== state.drawn) return;
    told.forEach((each, at) => {
      if (views[at].turns[turn]) sides[at].bar.mark(turn);
      clear(sides[at].body).append(memoryOf(each, turn));
    });
  }

  // A turn of each side: null where it has none, {error} where it can't be had.
  function both(turn) {
    return Promise.all(places.map((each, at) => (views[at].turns[turn] ? get(`${asked(each)}/turns/${turn}`).catch((error) => ({ error })) : null)));
  }

  // Turn by turn until the two memories aren't the same text.
  async function first() {
    clear(said).append("looking…");
    for (let turn = 0; turn <= last; turn += 1) {
      const texts = (await both(turn)).map((each) => (each && each.memory ? each.memory.after : null));
      if (texts[0] !== texts[1]) {
        clear(said).append(`after turn ${ordinal(turn)}`);
        return to(turn);
      }
    }
    clear(said).append("the memories never differ");
    return null;
  }
}

function button(text, title, action) {
  return el("button", { type: "button", title, onclick: action }, text);
}

function memoryOf(told, turn) {
  if (!told) return el("p", { class: "faint" }, `it has no turn ${ordinal(turn)}`);
  if (told.error) return el("p", { class: "notice notice-bad", role: "alert" }, told.error.message);
  const head = el("div", { class: "card-head" }, el("h2", null, told.memory ? "Memory after turn " + ordinal(turn) : "Reply of turn " + ordinal(turn)));
  if (!told.memory) return el("section", { class: "card" }, head, el("pre", { class: "reply" }, told.reply.text || "(empty)"));
  return el("section", { class: "card memory" }, head, difference(told, () => null), counts(told));
}

// The tokens of a reply as a strip: surprise, advantage, trained or not.

import { clear, el, num } from "./dom.js";

const MODES = { surprise: "Surprise", advantage: "Advantage", trained: "Trained" };
const USUAL = "surprise";

// `mode`: the initial colouring; calls chosen(mode) on a change, with null for the default.
export function tokenStrip(told, mode, chosen) {
  const text = el("div", { class: "tokens" });
  const modes = Object.entries(MODES).map(([mode, name]) =>
    el("button", {
      type: "button",
      "aria-pressed": "false",
      onclick: () => (show(mode), chosen(mode === USUAL ? null : mode)),
    }, name)
  );
  const facts = el("p", { class: "legend" });
  const most = Math.max(1e-9, ...told.tokens.map((token) => Math.abs(token.advantage || 0)));

  function show(mode) {
    modes.forEach((button, at) => button.setAttribute("aria-pressed", String(Object.keys(MODES)[at] === mode)));
    clear(text).append(...told.tokens.map((token) => tokenOf(token, mode, most)));
    clear(facts).append(...explained(told, mode));
  }

  show(Object.hasOwn(MODES, mode) ? mode : USUAL);
  return el(
    "div",
    { class: "token-strip" },
    el("div", { class: "tools", role: "group", "aria-label": "Colour by" }, modes),
    text,
    facts,
    rewards(told),
  );
}

function tokenOf(token, mode, most) {
  const surprise = Math.min(1, -token.logprob / 5);
  const value = mode === "surprise"
    ? surprise
    : mode === "advantage"
    ? Math.abs(token.advantage || 0) / most
    : token.trained
    ? 0.35
    : 0;
  const kind = mode === "advantage" && (token.advantage || 0) < 0 ? "minus" : mode === "advantage" ? "plus" : mode;
  const told = [
    `p = ${num(Math.exp(token.logprob))}`,
    `log-probability ${num(token.logprob)} nats`,
    token.trained ? `advantage ${num(token.advantage)}` : "not trained",
    `id ${token.id}`,
  ];
  const classes = ["token", "token-" + kind, !token.trained && "untrained", token.control && "control"].filter(Boolean)
    .join(" ");
  return el(
    "span",
    { class: classes, title: told.join("\n"), style: { "--value": value.toFixed(3) } },
    token.text === "" ? "·" : token.text.replace(/\n/g, "⏎\n"),
  );
}

function explained(told, mode) {
  const says = {
    surprise: [
      `darker: less likely; mean surprise ${
        num(told.mean_logprob === null ? null : -told.mean_logprob)
      } nats per token. ${told.note}.`,
    ],
    advantage: [`blue pushes towards the token, orange away from it; ${told.advantage_is}.`],
    trained: ["shaded tokens are trained on; hatched tokens are context."],
  };
  return says[mode];
}

function rewards(told) {
  const parts = [];
  if (told.reward_of_turn !== null) parts.push(`reward of this turn ${num(told.reward_of_turn)}`);
  for (const span of told.reward_of_spans) parts.push(`tokens ${span.start} to ${span.end}: reward ${num(span.value)}`);
  return parts.length ? el("p", { class: "legend" }, parts.join(" · ")) : null;
}

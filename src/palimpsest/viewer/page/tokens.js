// The tokens of a reply as a strip: surprise, advantage, trained or not.

import { clear, el, num } from "./dom.js";

const MODES = { surprise: "Surprise", advantage: "Advantage", trained: "Trained" };
const DEFAULT_MODE = "surprise";

// `mode`: the initial colouring; calls onChange(mode) on a change, with null for the default.
export function tokenStrip(tokenView, mode, onChange) {
  const text = el("div", { class: "tokens" });
  const modes = Object.entries(MODES).map(([mode, name]) =>
    el("button", {
      type: "button",
      "aria-pressed": "false",
      onclick: () => (draw(mode), onChange(mode === DEFAULT_MODE ? null : mode)),
    }, name)
  );
  const note = el("p", { class: "legend" });
  const largest = Math.max(1e-9, ...tokenView.tokens.map((token) => Math.abs(token.advantage || 0)));

  function draw(mode) {
    modes.forEach((button, index) => button.setAttribute("aria-pressed", String(Object.keys(MODES)[index] === mode)));
    clear(text).append(...tokenView.tokens.map((token) => tokenElement(token, mode, largest)));
    clear(note).append(...explainMode(tokenView, mode));
  }

  draw(Object.hasOwn(MODES, mode) ? mode : DEFAULT_MODE);
  return el(
    "div",
    { class: "token-strip" },
    el("div", { class: "tools", role: "group", "aria-label": "Colour by" }, modes),
    text,
    note,
    rewardLine(tokenView),
  );
}

function tokenElement(token, mode, largest) {
  const surprise = Math.min(1, -token.logprob / 5);
  const value = mode === "surprise"
    ? surprise
    : mode === "advantage"
    ? Math.abs(token.advantage || 0) / largest
    : token.trained
    ? 0.35
    : 0;
  const kind = mode === "advantage" && (token.advantage || 0) < 0 ? "minus" : mode === "advantage" ? "plus" : mode;
  const lines = [
    `p = ${num(Math.exp(token.logprob))}`,
    `log-probability ${num(token.logprob)} nats`,
    token.trained ? `advantage ${num(token.advantage)}` : "not trained",
    `id ${token.id}`,
  ];
  const classes = ["token", "token-" + kind, !token.trained && "untrained", token.control && "control"].filter(Boolean)
    .join(" ");
  return el(
    "span",
    { class: classes, title: lines.join("\n"), style: { "--value": value.toFixed(3) } },
    token.text === "" ? "·" : token.text.replace(/\n/g, "⏎\n"),
  );
}

function explainMode(tokenView, mode) {
  const explanations = {
    surprise: [
      `darker: less likely; mean surprise ${
        num(tokenView.mean_logprob === null ? null : -tokenView.mean_logprob)
      } nats per token. ${tokenView.note}.`,
    ],
    advantage: [`blue pushes towards the token, orange away from it; ${tokenView.advantage_is}.`],
    trained: ["shaded tokens are trained on; hatched tokens are context."],
  };
  return explanations[mode];
}

function rewardLine(tokenView) {
  const labels = [];
  if (tokenView.reward_of_turn !== null) labels.push(`reward of this turn ${num(tokenView.reward_of_turn)}`);
  for (const span of tokenView.reward_of_spans) {
    labels.push(`tokens ${span.start} to ${span.end}: reward ${num(span.value)}`);
  }
  return labels.length ? el("p", { class: "legend" }, labels.join(" · ")) : null;
}

// The command that replays an episode from the displayed memory, for editing.

import { clear, el } from "./dom.js";
import { get } from "./api.js";
import { asked, link, ordinal } from "./place.js";

export async function replayCommand(body, place, start) {
  const facts = await get(asked({ run: place.run })).catch(() => null);
  const memory = start.memory ? start.memory.after.trim() : "", turn = start.memory ? start.turn + 1 : start.turn;
  if (!facts || facts.kind === "record") {
    return clear(body).append(
      el("p", { class: "faint" }, "Replay needs the episode's run or evaluation; this file has neither."),
    );
  }
  const edit = start.memory ? " --memory " + quoted(memory) : "";
  const command = `palimpsest replay ${quoted(source(facts.path, place))} --turn ${ordinal(turn)}${edit}`;
  const says = start.memory
    ? `Replays from turn ${
      ordinal(turn)
    } with your memory and the recorded seeds, and shows both ends. An unchanged memory reproduces the episode.`
    : `Replays from turn ${ordinal(turn)} with the recorded seeds.`;
  return clear(body).append(el("p", { class: "soft" }, says), el("pre", { class: "reply command" }, command));
}

// A run's step, an evaluation, or a quickstart's evaluation within its run.
function source(path, place) {
  const at = { group: place.group, rollout: place.rollout, screen: "episode" };
  if (/^\d+$/.test(place.step)) return path + link({ ...at, run: place.run, step: place.step });
  const inner = place.step === "all" ? "" : "/evaluations/" + place.step.replace(".", "/");
  return path + inner + link(at);
}

function quoted(text) {
  return "'" + text.replace(/'/g, "'\\''") + "'";
}

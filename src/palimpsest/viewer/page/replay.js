// The command that plays an episode on from the memory that is looked at, to be changed and run.

import { clear, el } from "./dom.js";
import { get } from "./api.js";
import { asked, link, ordinal } from "./place.js";

export async function replayCommand(body, place, told) {
  const facts = await get(asked({ run: place.run })).catch(() => null);
  const memory = told.memory ? told.memory.after.trim() : "", turn = told.memory ? told.turn + 1 : told.turn;
  if (!facts || facts.kind === "record") return clear(body).append(el("p", { class: "faint" }, "An episode is replayed from its run or evaluation; this file tells neither."));
  const edit = told.memory ? " --memory " + quoted(memory) : "";
  const command = `palimpsest replay ${quoted(source(facts.path, place))} --turn ${turn}${edit}`;
  const says = told.memory ? `Plays on from turn ${ordinal(turn)} with the memory that you put there, its draws keyed as they were, and shows both ends. Unchanged it ends as it did. --turn counts from 0.` : `Plays on from turn ${ordinal(turn)}, its draws keyed as they were. --turn counts from 0.`;
  return clear(body).append(el("p", { class: "soft" }, says), el("pre", { class: "reply command" }, command));
}

// A run's step, an evaluation, or one that a quickstart keeps in its run.
function source(path, place) {
  const at = { group: place.group, rollout: place.rollout, screen: "episode" };
  if (/^\d+$/.test(place.step)) return path + link({ ...at, run: place.run, step: place.step });
  const inner = place.step === "all" ? "" : "/evaluations/" + place.step.replace(".", "/");
  return path + inner + link(at);
}

function quoted(text) {
  return "'" + text.replace(/'/g, "'\\''") + "'";
}

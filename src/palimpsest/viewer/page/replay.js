// The command that replays an episode from the displayed memory, for editing.

import { clear, el } from "./dom.js";
import { get } from "./api.js";
import { apiPath, ordinal, routeHash } from "./route.js";

export async function replayCommand(body, route, start) {
  const facts = await get(apiPath({ run: route.run })).catch(() => null);
  const memory = start.memory ? start.memory.after.trim() : "", turn = start.memory ? start.turn + 1 : start.turn;
  if (!facts || facts.kind === "record") {
    return clear(body).append(
      el("p", { class: "faint" }, "Replay needs the episode's run or evaluation; this file has neither."),
    );
  }
  const edit = start.memory ? " --memory " + quote(memory) : "";
  const command = `palimpsest replay ${quote(sourceAddress(facts.path, route))} --turn ${ordinal(turn)}${edit}`;
  const explanation = start.memory
    ? `Replays from turn ${
      ordinal(turn)
    } with your memory and the recorded seeds, and shows both ends. An unchanged memory reproduces the episode.`
    : `Replays from turn ${ordinal(turn)} with the recorded seeds.`;
  return clear(body).append(el("p", { class: "soft" }, explanation), el("pre", { class: "reply command" }, command));
}

// A run's step, an evaluation, or a quickstart's evaluation within its run.
function sourceAddress(path, route) {
  const base = { group: route.group, rollout: route.rollout, screen: "episode" };
  if (/^\d+$/.test(route.step)) return path + routeHash({ ...base, run: route.run, step: route.step });
  const inner = route.step === "all" ? "" : "/evaluations/" + route.step.replace(".", "/");
  return path + inner + routeHash(base);
}

function quote(text) {
  return "'" + text.replace(/'/g, "'\\''") + "'";
}

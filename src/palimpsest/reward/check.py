"""Tries a user's reward, or a layer of one, and says in words what it does: `palimpsest check my_module:my_reward`.

It is asked about episodes that were written by hand, no weights; a layer on top of the shipped `boxed`. Checked:

- grades: every episode that the agent itself brought to an end gets a number, an empty answer and a failed one too;
- range: what it gives, and that it tells some of them apart;
- determinism: the same episode gets the same grade, again and in another order;
- hostile text: control markers, unbalanced boxes, no letters, a very long answer give no error and are worth no more
  than a right answer;
- lost episodes: one that the machinery lost is ungraded, without being asked about;
- waiting: whether it stops the event loop.

Not covered: whether the reward is what you want to train, and whether an agent could win it without the task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from palimpsest.memory.check import Finding
from palimpsest.reward import own
from palimpsest.reward.compose import Reward
from palimpsest.reward.grader import MatchGrader
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Outcome, Problem, StopReason, Trajectory, Turn

PROBLEM = Problem("check", "Which city is meant?", ("Oslo", "Kristiania"), "The city is Oslo.")
STALL_S = 0.25
"""The event loop standing still for so long is told."""


def check_reward(name: str, options: Mapping[str, Any], codec: Codec, *, layer: bool = False) -> list[Finding]:
    """All findings, in the order of this module's docstring. Raises ConfigError if it can't be made."""
    if layer:
        own.check_layer(name, options)
        made = own.own_layer(name, options, codec)
        return asyncio.run(_check(Reward(MatchGrader("boxed"), (made,)), codec, made.caller.waits))
    own.check_reward(name, options)
    reward = own.own_reward(name, options, codec)
    return asyncio.run(_check(Reward(reward), codec, reward.caller.waits))


async def _check(reward: Reward, codec: Codec, waits: bool) -> list[Finding]:
    episodes = _episodes(codec)
    try:
        grades, stall = await _graded(reward, episodes)
        again, _ = await _graded(reward, dict(reversed(episodes.items())))
        lost = await reward.grade(PROBLEM, _episode(codec, None, Outcome.SAMPLER_FAILED))
    finally:
        await reward.close()
    changed = [name for name in episodes if grades[name] != again[name]]
    return [
        _every_end(grades),
        _range(grades),
        Finding("determinism", not changed, f"another grade when asked again: {', '.join(changed)}")
        if changed
        else Finding("determinism", True, f"{len(episodes)} episodes, asked twice, in two orders"),
        _hostile(grades),
        Finding("lost episodes", not lost.graded, lost.reason or "graded, though the sampler failed"),
        _waiting(stall, waits),
    ]


def _episodes(codec: Codec) -> dict[str, Trajectory]:
    markers = "".join(codec.decode([i]) for i in sorted(codec.control_ids))
    answers = {
        "right": "It says Oslo. \\boxed{Oslo}",
        "wrong": "It says Rome. \\boxed{Rome}",
        "empty": "",
        "hostile: control markers": f"{markers} \\boxed{{{markers}}}",
        "hostile: unbalanced boxes": "\\boxed{" * 200,
        "hostile: no letters": "\x00\x1b[31m\u202e\ufffd",
        "hostile: very long": "Oslo or Rome. " * 2_000,
    }
    ended = {name: _episode(codec, text) for name, text in answers.items()}
    return ended | {
        "no answer": _episode(codec, None, Outcome.OUT_OF_TURNS),
        "no turn": Trajectory("check", "check", 0, (), Outcome.EMPTY_CONTEXT),
    }


def _episode(codec: Codec, answer: str | None, outcome: Outcome = Outcome.ANSWERED) -> Trajectory:
    """A read turn and, if there is an answer, the turn that gave it."""
    texts = [("read", "a note")] + ([("answer", answer)] if answer is not None else [])
    turns = []
    for step, (name, text) in enumerate(texts):
        ids = (*codec.encode(text), codec.stop_ids[0])
        completion = Completion(ids, (-0.5,) * len(ids), StopReason.STOP)
        turns.append(Turn(tuple(codec.encode(PROBLEM.question)), completion, step, name))
    return Trajectory("check", "check", 0, tuple(turns), outcome, answer)


async def _graded(reward: Reward, episodes: Mapping[str, Trajectory]) -> tuple[dict[str, Grade], float]:
    """The grades, and the longest that the event loop stood still."""
    loop = asyncio.get_running_loop()
    ticks = [loop.time()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(loop.time())

    ticking = asyncio.create_task(tick())
    grades = {name: await reward.grade(PROBLEM, trajectory) for name, trajectory in episodes.items()}
    await asyncio.sleep(0.02)
    ticking.cancel()
    return grades, max((later - earlier for earlier, later in pairwise(ticks)), default=0.0)


def _every_end(grades: Mapping[str, Grade]) -> Finding:
    ungraded = {name: grade.reason for name, grade in grades.items() if not grade.graded}
    if ungraded:
        name, reason = next(iter(ungraded.items()))
        return Finding(
            "grades",
            False,
            f"{len(ungraded)} of {len(grades)} episodes are ungraded and would be left out, so that they cost the "
            f"agent nothing; {name}: {reason}",
        )
    return Finding("grades", True, ", ".join(f"{name} {grades[name].value:g}" for name in ("right", "wrong", "empty")))


def _range(grades: Mapping[str, Grade]) -> Finding:
    values = [grade.value for grade in grades.values() if grade.value is not None]
    if not values or min(values) == max(values):
        return Finding("range", False, "all episodes are worth the same, so nothing can be learnt from it")
    parts = [part for part in ("per_turn", "spans") if any(getattr(grade, part) for grade in grades.values())]
    mixed = f"; gives {' and '.join(parts)}, which credit.rule=state_mix mixes in" if parts else ""
    return Finding("range", True, f"{min(values):g} to {max(values):g}{mixed}")


def _hostile(grades: Mapping[str, Grade]) -> Finding:
    hostile = {name: grade for name, grade in grades.items() if name.startswith("hostile")}
    for name, grade in hostile.items():
        if not grade.graded:
            return Finding("hostile text", False, f"{name.removeprefix('hostile: ')}: {grade.reason}")
    worth = {name: grade.value if grade.value is not None else -math.inf for name, grade in grades.items()}
    best = max(hostile, key=lambda name: worth[name])
    if worth[best] > worth["right"]:
        name = best.removeprefix("hostile: ")
        return Finding("hostile text", False, f"{name} is worth {worth[best]:g}, a right answer {worth['right']:g}")
    return Finding("hostile text", True, f"{len(hostile)} texts, none worth more than a right answer")


def _waiting(stall: float, waits: bool) -> Finding:
    if not waits:
        return Finding("waiting", True, "a plain function: called on a thread of its own, one episode at a time")
    if stall > STALL_S:
        return Finding(
            "waiting",
            False,
            f"an async function, and the event loop stood still for {stall:.1f} s: await what waits, or make it a "
            "plain function",
        )
    return Finding("waiting", True, "an async function that lets other episodes go on")

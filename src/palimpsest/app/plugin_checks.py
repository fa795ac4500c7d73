"""Contract checks for custom policies, rewards, layers and credit rules: `palimpsest check NAME`.

Policies are checked in `memory/policy_check.py`, credit rules and rewards here. Data formats, log sinks and engines
have no check: their first use fails with a message.

Checks of a credit rule:

- advantages: finite, one per turn or one per trajectory, for groups of even and uneven turns and a single trajectory;
- determinism: the same group gets the same advantages;
- order: trajectories in another order get their own advantages in that order;
- equal rewards: nothing to learn from a group whose rewards are all equal;
- direction: a higher reward never has a lower advantage, summed over a trajectory's turns.

Checks of a reward, or of a layer on top of the shipped `boxed`, on episodes written by hand, without weights:

- grades: every episode that the agent itself ended gets a number, including an empty answer and a failed one;
- range: the values given, and that some of them differ;
- determinism: the same episode gets the same grade, again and in another order;
- hostile text: control markers, unbalanced boxes, no letters, a very long answer give no error and are worth no more
  than a right answer;
- lost episodes: an episode lost to an infrastructure failure is ungraded, without a call of the reward;
- waiting: whether it blocks the event loop.

Not covered: bias and variance of the gradient; rules that break the last two checks on purpose; whether the reward is
the one you want to train, and whether an agent could win it without solving the task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import pairwise
from math import fsum, isclose
from pathlib import Path
from typing import Any

from palimpsest import plugins
from palimpsest.config.schema import CreditConfig, ModelConfig, PolicyConfig
from palimpsest.credit.assign import build_rule
from palimpsest.credit.outcome import Rule, TurnAdvantage, asked, turn_mean
from palimpsest.errors import ConfigError, RunError
from palimpsest.memory.policy_check import Finding, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.reward import custom_reward
from palimpsest.reward.answer_match import MatchGrader
from palimpsest.reward.compose import Reward
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn

# ---- Checks of a credit rule ---------------------------------------------------------------------------------


REWARDS = (1.0, 0.0, 0.25, 0.5)
_TOLERANCE = 1e-9


def check_rule(name: str, options: Mapping[str, Any]) -> list[Finding]:
    """All findings, in the order of this module's docstring. Raises ConfigError if it can't be made."""
    config = CreditConfig(rule=name, options=dict(options))
    rule = build_rule(config)
    groups = {
        "even turns": _group(REWARDS, (2, 2, 2, 2)),
        "uneven turns": _group(REWARDS, (1, 3, 2, 5)),
        "a single trajectory": _group((1.0,), (2,)),
    }
    try:
        given = {title: asked(rule, group, name) for title, group in groups.items()}
    except RunError as error:
        return [Finding("advantages", False, str(error))]
    total = sum(map(len, given.values()))
    return [
        Finding("advantages", True, f"{total} trajectories in {len(groups)} groups"),
        _determinism(name, config, given, groups),
        _order(rule, name, groups["uneven turns"], given["uneven turns"]),
        _equal(rule, name),
        _direction(given["even turns"]),
    ]


def _group(rewards: Sequence[float], turns: Sequence[int]) -> Group:
    completion = Completion((1, 2), (-0.5, -0.5), StopReason.STOP)
    played = tuple(
        Trajectory(
            "check",
            "check",
            place,
            tuple(Turn((0,), completion, step, "act") for step in range(count)),
            Outcome.ANSWERED,
        )
        for place, count in enumerate(turns)
    )
    grades = (Grade(reward, per_turn=(0.0,) * count) for reward, count in zip(rewards, turns, strict=True))
    return Group(Problem("check", "Which?", ("this",)), played, tuple(grades))


def _determinism(name: str, config: CreditConfig, given: Mapping[str, Any], groups: Mapping[str, Group]) -> Finding:
    again = build_rule(config)
    changed = [title for title in list(groups)[::-1] if asked(again, groups[title], name) != given[title]]
    if changed:
        return Finding("determinism", False, f"other advantages when made and asked again: {', '.join(changed)}")
    return Finding("determinism", True, "the same advantages when made and asked again, in another order of groups")


def _order(rule: Rule, name: str, group: Group, given: Sequence[tuple[TurnAdvantage, ...]]) -> Finding:
    turned = Group(group.problem, group.trajectories[::-1], group.grades[::-1])
    other = asked(rule, turned, name)[::-1]
    same = all(
        isclose(turn_mean(left), turn_mean(right), abs_tol=_TOLERANCE)
        for mine, theirs in zip(given, other, strict=True)
        for left, right in zip(mine, theirs, strict=True)
    )
    if same:
        return Finding("order", True, "each trajectory keeps its advantages in another order of the group")
    return Finding("order", False, "advantages depend on the order of the group, which is that of rollout numbers")


def _equal(rule: Rule, name: str) -> Finding:
    given = asked(rule, _group((0.5,) * 3, (1, 2, 3)), name)
    largest = max(abs(turn_mean(value)) for turns in given for value in turns)
    if largest <= _TOLERANCE:
        return Finding("equal rewards", True, "advantages of 0")
    return Finding("equal rewards", False, f"a group of equal rewards gets advantages of up to {largest:g}")


def _direction(given: Sequence[tuple[TurnAdvantage, ...]]) -> Finding:
    ranked = sorted(zip(REWARDS, (fsum(map(turn_mean, turns)) for turns in given), strict=True))
    for (less, below), (more, above) in pairwise(ranked):
        if above < below - _TOLERANCE:
            return Finding("direction", False, f"a reward of {more:g} has less advantage than one of {less:g}")
    return Finding("direction", True, "a higher reward never has a lower advantage")


# ---- Checks of a reward or a reward layer --------------------------------------------------------------------


PROBLEM = Problem("check", "Which city is meant?", ("Oslo", "Kristiania"), "The city is Oslo.")
STALL_S = 0.25
"""The event loop standing still for so long is told."""


def check_reward(name: str, options: Mapping[str, Any], codec: Codec, *, layer: bool = False) -> list[Finding]:
    """All findings, in the order of this module's docstring. Raises ConfigError if it can't be made."""
    if layer:
        custom_reward.check_layer(name, options)
        made = custom_reward.own_layer(name, options, codec)
        return asyncio.run(_check(Reward(MatchGrader("boxed"), (made,)), codec, made.caller.waits))
    custom_reward.check_reward(name, options)
    reward = custom_reward.own_reward(name, options, codec)
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


# ---- palimpsest check ----------------------------------------------------------------------------------------


WINDOW = 32_768
"""Context the checked policy is told it has: room for published budgets."""

KINDS = ("policy", "reward", "layer", "rule")
"""What can be checked."""


def check(name: str, options: Mapping[str, Any], kind: str | None = None) -> Sequence[Finding]:
    """What `name` is, with these options, held against each point of its contract.

    A policy, shipped or the user's own; a reward, a layer of one, or a credit rule of the user's own, told apart by
    what they take: (problem, trajectory), (problem, trajectory, grade), (group). `kind` says what it is where that
    doesn't.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--kind {kind}: choose one of {', '.join(KINDS)}")
    if dotted := [key for key in options if "." in key]:
        raise ConfigError(f"--set {dotted[0]}: options have plain names, e.g. chunk_size=48")
    kind = kind or _kind(name, options)
    if kind == "rule":
        return check_rule(name, options)
    if kind in ("reward", "layer"):
        return check_reward(name, options, Codec.load(ModelConfig()), layer=kind == "layer")
    policy = build_policy(PolicyConfig(name=name, options=dict(options)))
    return check_policy(policy, Codec.load(ModelConfig()), WINDOW)


def _refuse_file(name: str) -> None:
    """Raise ConfigError for a file of Python: a module is named, and what is checked in it."""
    if name.endswith(".py"):
        module = ".".join(Path(name).with_suffix("").parts).lstrip("./")
        thing = "".join(part.capitalize() for part in module.rpartition(".")[2].split("_"))
        raise ConfigError(f"check {name}: name the module and what is checked in it, such as {module}:{thing}")


def _kind(name: str, options: Mapping[str, Any]) -> str:
    """policy, reward, layer or rule. Raises ConfigError for what can't be imported."""
    if not plugins.is_own(name):
        _refuse_file(name)
        return "policy"
    target = plugins.own(name, f"check {name}")
    if isinstance(target, type):
        methods = ("run", "turn_advantages", "grade", "__call__")
        defined = {method: own for base in reversed(target.__mro__) for method, own in vars(base).items()}
        call = next((defined[method] for method in methods if method in defined), None)
        if call is None and not hasattr(target, "run"):
            raise ConfigError(
                f"check {name}: neither a policy (run), a credit rule (turn_advantages) nor a reward (grade); a tool "
                f"is checked with a policy that has it: palimpsest check prune --set 'tools={{{name}: {{}}}}'"
            )
        if call is None or hasattr(target, "run"):
            return "policy"
        taken = list(signature(call).parameters)[1:]
    else:
        taken = list(signature(target).parameters) if callable(target) else []
    taken = [key for key in taken if key not in options and key != "codec"]
    if taken[:1] == ["group"]:
        return "rule"
    return "layer" if taken[2:3] == ["grade"] else "reward"

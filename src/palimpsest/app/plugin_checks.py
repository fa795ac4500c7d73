"""Contract checks of custom plugins: `palimpsest check NAME`. Methods and parameters show the kind of a plugin.

A policy runs against scripted models (memory/policy_check.py); a credit rule on groups of even and uneven turns and a
single trajectory; a reward, or a layer on top of the shipped `boxed`, on handwritten episodes, without weights, with
hostile answers, and with one that was lost, which no reward sees. An environment gets the same actions in two objects,
hostile ones included. For a tool, a data format, a log sink or an engine,
only shape and options are checked. Recorded episodes (`--episodes`) show what none of these do: the events of a policy.

Not covered: bias and variance of the gradient; rules that break the checks of equal rewards or direction by design;
whether the reward matches your goal, and whether an agent can exploit it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import fsum, isclose
from pathlib import Path
from typing import Any

from palimpsest import plugins
from palimpsest.config.reward import LayerConfig, RewardConfig
from palimpsest.config.schema import CreditConfig, EnvironmentConfig, ModelConfig, PolicyConfig
from palimpsest.credit.advantages import Rule, TurnAdvantage, rule_advantages, turn_mean
from palimpsest.credit.assign import build_rule
from palimpsest.credit.dapo import rewards_differ
from palimpsest.errors import ConfigError, DataError, RunError, nearest
from palimpsest.events import EnvironmentStepped
from palimpsest.memory.policy_check import Finding, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.models.model_folder import window_of
from palimpsest.plugin_kinds import KINDS
from palimpsest.plugin_options import signature_of
from palimpsest.reward.grading import Reward, build_reward, graded
from palimpsest.rollout.trajectory_file import read_groups, record_files
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import EnvironmentLost, OpenEnvironment
from palimpsest.tools.tool import build_tools
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn

WINDOW = 32_768
"""Context window of the checked policy, in tokens: room for published budgets."""
TIMEOUT_S = 10.0
"""Time limit of a reward's call; a run has `reward.timeout_s`."""


def check(
    name: str,
    options: Mapping[str, Any],
    kind: str | None = None,
    codec: Codec | None = None,
    model: str | None = None,
    episodes: Path | None = None,
) -> list[Finding]:
    """Check `name`, with these options, against each point of its contract.

    `episodes`: a run, an evaluation or a record, on whose episodes a credit rule, reward or layer is tried. `kind`: one
    of `KINDS`, if `name` doesn't show it; `model`: a folder or hub id, whose tokenizer and window count for a policy,
    instead of the shipped tokenizer and `WINDOW`; `codec`: a tokenizer already loaded. Raises ConfigError for a plugin
    that doesn't load or has another shape, ModelError for an unusable model.
    """
    if dotted := [key for key in options if "." in key]:
        raise ConfigError(f"{dotted[0]}: options have plain names, e.g. chunk_size=48")
    kind = kind or kind_of(name, options)
    if kind not in KINDS:
        raise ConfigError(f"choose one of {', '.join(KINDS)}{nearest(kind, KINDS)}", key="--kind", value=kind)
    recorded = [] if episodes is None else _recorded(kind, episodes)
    if kind == "policy":
        policy = build_policy(PolicyConfig(name=name, options=dict(options)))
        if model is None:
            return check_policy(policy, codec or Codec.load(ModelConfig()), WINDOW)
        return check_policy(policy, codec or Codec.load(ModelConfig(path=model)), window_of(model) or WINDOW)
    if kind in ("reward", "layer"):
        return asyncio.run(_check_reward(kind, name, options, codec or Codec.load(ModelConfig()), recorded))
    if kind == "rule":
        return _check_rule(CreditConfig(adv_estimator=name, options=dict(options)), recorded)
    if kind == "environment":
        return asyncio.run(_check_environment(EnvironmentConfig(name=name, options=dict(options))))
    if kind == "tool":
        build_tools({name: options})
    else:
        plugins.check(kind, name, options)
    return [_shape(kind)]


def _shape(kind: str) -> Finding:
    return Finding("shape", True, f"{plugins.article(KINDS[kind].noun)} that accepts these options")


def kind_of(name: str, options: Collection[str] = ()) -> str:
    """Kind of a plugin by its methods and parameters. Raises ConfigError if it doesn't load.

    >>> kind_of("overwrite"), kind_of("state_mix"), kind_of("palimpsest.tools.tool:SearchTool")
    ('policy', 'rule', 'tool')
    """
    shipped = [kind for kind, spec in KINDS.items() if name in spec.shipped]
    if shipped or ":" not in name:
        return shipped[0] if shipped else "policy"
    target = plugins.load("policy", name, key="check")
    methods = {method for base in getattr(target, "__mro__", ()) for method in vars(base)}
    named = [kind for kind, spec in KINDS.items() if spec.method in methods]
    if named and named[0] != "reward":
        return named[0]
    call = next((getattr(target, method) for method in ("grade", "__call__") if method in methods), target)
    signature = signature_of(call)
    taken = [key for key in (signature.parameters if signature else ()) if key not in ("self", "codec", *options)]
    if {*KINDS["engine"].injected} <= {*taken}:
        return "engine"
    fits = [kind for kind, spec in KINDS.items() if spec.takes and spec.takes == tuple(taken[: len(spec.takes)])]
    if not fits and call is target and isinstance(target, type):
        names = ", ".join(dict.fromkeys(spec.method for spec in KINDS.values() if spec.method))
        raise ConfigError(f"has none of the methods {names}; set --kind", key="check", value=name)
    return max(fits, key=lambda kind: len(KINDS[kind].takes), default="reward")


# ---- Checks of an environment --------------------------------------------------------------------------------


ACTIONS = ("look", "", "go north", "<|im_end|>", "x" * 1000, "look")
"""Actions of a checked environment, some of them useless in any."""


async def _check_environment(config: EnvironmentConfig) -> list[Finding]:
    environment = OpenEnvironment(config)
    environment.check()
    if config.name in KINDS["environment"].shipped:  # they need problems
        return [_shape("environment")]
    try:
        (shown, steps), again = [await _tried(environment) for _ in range(2)]
    except EnvironmentLost as error:
        return [Finding("steps", False, f"{error}{error.where and f' ({error.where})'}")]
    alike, said = (shown, steps) == again, "two objects answer the same actions"
    said += " alike" if alike else " differently: a resumed run can't repeat them"
    return [
        Finding("steps", True, f"{len(steps)} of {len(ACTIONS)} actions, until it was done"),
        Finding("repeats", alike, said),
    ]


async def _tried(environment: OpenEnvironment) -> tuple[list[str], list[EnvironmentStepped]]:
    """Observations and steps of an episode."""
    steps = list[EnvironmentStepped]()
    episode = environment.episode(steps.append)
    try:
        shown = [await episode.reset(Problem("checked", "Try it."))]
        for action in ACTIONS:
            if not episode.done:
                shown.append((await episode.step(action)).observation)
    finally:
        await episode.close()
    return shown, steps


# ---- Checks of a credit rule ---------------------------------------------------------------------------------


REWARDS = (1.0, 0.0, 0.25, 0.5)
_TOLERANCE = 1e-9


def _check_rule(config: CreditConfig, recorded: Sequence[Group]) -> list[Finding]:
    name, rule = config.adv_estimator, build_rule(config)
    groups = {
        "even turns": _group(REWARDS, (2, 2, 2, 2)),
        "uneven turns": _group(REWARDS, (1, 3, 2, 5)),
        "a single trajectory": _group((1.0,), (2,)),
    }
    try:
        advantages = {title: rule_advantages(rule, group, name) for title, group in groups.items()}
    except RunError as error:
        return [Finding("advantages", False, str(error))]
    total = sum(map(len, advantages.values()))
    return [
        Finding("advantages", True, f"{total} trajectories in {len(groups)} groups"),
        _determinism(name, config, advantages, groups),
        _order(rule, name, groups["uneven turns"], advantages["uneven turns"]),
        _equal(rule, name),
        _direction(advantages["even turns"]),
        *([_on_record(rule, name, recorded)] if recorded else []),
    ]


def _group(rewards: Sequence[float], turns: Sequence[int]) -> Group:
    completion = Completion((1, 2), (-0.5, -0.5), StopReason.STOP)
    played = tuple(
        Trajectory(
            "check",
            "check",
            index,
            tuple(Turn((0,), completion, step, "act") for step in range(count)),
            Outcome.ANSWERED,
        )
        for index, count in enumerate(turns)
    )
    grades = (Grade(reward, per_turn=(0.0,) * count) for reward, count in zip(rewards, turns, strict=True))
    return Group(Problem("check", "Which?", ("this",)), played, tuple(grades))


def _determinism(name: str, config: CreditConfig, first: Mapping[str, Any], groups: Mapping[str, Group]) -> Finding:
    again = build_rule(config)
    changed = [title for title in list(groups)[::-1] if rule_advantages(again, groups[title], name) != first[title]]
    if changed:
        return Finding("determinism", False, f"other advantages from a second instance: {', '.join(changed)}")
    return Finding("determinism", True, "the same advantages from a second instance, in another order of groups")


def _order(rule: Rule, name: str, group: Group, advantages: Sequence[tuple[TurnAdvantage, ...]]) -> Finding:
    turned = Group(group.problem, group.trajectories[::-1], group.grades[::-1])
    other = rule_advantages(rule, turned, name)[::-1]
    same = all(
        isclose(turn_mean(left), turn_mean(right), abs_tol=_TOLERANCE)
        for mine, theirs in zip(advantages, other, strict=True)
        for left, right in zip(mine, theirs, strict=True)
    )
    if same:
        return Finding("order", True, "each trajectory keeps its advantages in another order of the group")
    return Finding("order", False, "advantages depend on the order of the group (by rollout number)")


def _equal(rule: Rule, name: str) -> Finding:
    advantages = rule_advantages(rule, _group((0.5,) * 3, (1, 2, 3)), name)
    largest = max(abs(turn_mean(value)) for turns in advantages for value in turns)
    if largest <= _TOLERANCE:
        return Finding("equal rewards", True, "advantages of 0")
    return Finding("equal rewards", False, f"a group of equal rewards gets advantages of up to {largest:g}")


def _direction(advantages: Sequence[tuple[TurnAdvantage, ...]]) -> Finding:
    ranked = sorted(zip(REWARDS, (fsum(map(turn_mean, turns)) for turns in advantages), strict=True))
    for (less, below), (more, above) in pairwise(ranked):
        if above < below - _TOLERANCE:
            return Finding("direction", False, f"a reward of {more:g} has less advantage than one of {less:g}")
    return Finding("direction", True, "a higher reward never has a lower advantage")


# ---- Recorded episodes ---------------------------------------------------------------------------------------


MOST_RECORDED = 64
"""Groups of a record that are tried."""


def _recorded(kind: str, path: Path) -> list[Group]:
    """Groups of a record, those of one problem together, without ungraded trajectories."""
    if kind not in ("rule", "reward", "layer"):
        raise ConfigError("tries a credit rule, a reward or a layer", key="--episodes", value=str(path))
    found: dict[tuple[str, str], list[tuple[Problem, Trajectory, Grade]]] = {}
    for file in record_files(path):
        for group in read_groups(file).groups if len(found) < MOST_RECORDED else ():
            for trajectory, grade in zip(group.trajectories, group.grades, strict=True):
                if grade.graded:
                    key = (trajectory.group_id, group.problem.id)
                    found.setdefault(key, []).append((group.problem, trajectory, grade))
    if not found:
        raise DataError(f"{path}: no graded episode in its record")
    rows = list(found.values())[:MOST_RECORDED]
    return [Group(row[0][0], tuple(one for _, one, _ in row), tuple(grade for *_, grade in row)) for row in rows]


def _on_record(rule: Rule, name: str, groups: Sequence[Group]) -> Finding:
    """Fails if the rule raises, or gives only zeros though rewards differ."""
    try:
        rows = [turns for group in groups for turns in rule_advantages(rule, group, name)]
    except RunError as error:
        return Finding("recorded episodes", False, str(error))
    moved = sum(any(turn_mean(turn) != 0 or not isinstance(turn, float) for turn in turns) for turns in rows)
    differ = sum(rewards_differ(group) for group in groups)
    inside = sum(not isinstance(turn, float) and len(set(turn)) > 1 for turns in rows for turn in turns)
    message = f"{moved} of {len(rows)} have an advantage, {inside} turns one that differs between their tokens"
    return Finding("recorded episodes", bool(moved) or not differ, f"{message} ({len(groups)} groups)")


async def _regraded(reward: Reward, without: Reward | None, groups: Sequence[Group]) -> Finding:
    """Fails if episodes are ungraded, or as they are `without` the layer."""
    changed, ungraded, total = 0, dict[str, str | None](), 0
    for group in groups:
        for trajectory in group.trajectories:
            total += 1
            grade = await graded(reward, group.problem, trajectory)
            if not grade.graded:
                ungraded[group.problem.id] = grade.reason
            elif without is not None:
                changed += grade != await graded(without, group.problem, trajectory)
    if ungraded:
        where, reason = next(iter(ungraded.items()))
        return Finding("recorded episodes", False, f"{len(ungraded)} of {total} ungraded; {where}: {reason}")
    if without is not None and not changed:
        return Finding("recorded episodes", False, f"the layer changes none of {total}: what it reads isn't in them")
    return Finding("recorded episodes", True, f"{changed} of {total} changed" if without else f"{total} graded")


# ---- Checks of a reward or a reward layer --------------------------------------------------------------------


PROBLEM = Problem("check", "Which city is meant?", ("Oslo", "Kristiania"), "The city is Oslo.")
STALL_S = 0.25
"""Longest accepted block of the event loop."""


async def _check_reward(
    kind: str, name: str, options: Mapping[str, Any], codec: Codec, recorded: Sequence[Group]
) -> list[Finding]:
    named = {"name": name, "options": dict(options)}
    layers = (LayerConfig.model_validate(named),) if kind == "layer" else ()
    config = RewardConfig(layers=layers, timeout_s=TIMEOUT_S, **({} if layers else named))
    reward = build_reward(config, codec)
    caller = getattr(reward.layers[0] if layers else reward.answer, "caller", None)
    episodes = _episodes(codec)
    try:
        grades, stall = await _graded(reward, episodes)
        again, _ = await _graded(reward, dict(reversed(episodes.items())))
        lost = await reward.grade(PROBLEM, _episode(codec, None, Outcome.SAMPLER_FAILED))
        without = build_reward(RewardConfig(timeout_s=TIMEOUT_S), codec) if layers else None
        tried = [await _regraded(reward, without, recorded)] if recorded else []
    finally:
        await reward.close()
    changed = [name for name in episodes if grades[name] != again[name]]
    return [
        _every_end(grades),
        _range(grades),
        Finding("determinism", not changed, f"another grade in a second call: {', '.join(changed)}")
        if changed
        else Finding("determinism", True, f"{len(episodes)} episodes, graded twice, in two orders"),
        _hostile(grades),
        Finding("lost episodes", not lost.graded, lost.reason or "graded, though the sampler failed"),
        _waiting(stall, caller is None or caller.waits),
        *tried,
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
    texts = [("read", "a note")] + ([("answer", answer)] if answer is not None else [])
    turns = []
    for step, (name, text) in enumerate(texts):
        ids = (*codec.encode(text), codec.stop_ids[0])
        completion = Completion(ids, (-0.5,) * len(ids), StopReason.STOP)
        turns.append(Turn(tuple(codec.encode(PROBLEM.question)), completion, step, name))
    return Trajectory("check", "check", 0, tuple(turns), outcome, answer)


async def _graded(reward: Reward, episodes: Mapping[str, Trajectory]) -> tuple[dict[str, Grade], float]:
    """The grades, and the longest block of the event loop in seconds."""
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
        fault = f"{len(ungraded)} of {len(grades)} episodes are ungraded, so training would drop them without a penalty"
        return Finding("grades", False, f"{fault}; {name}: {reason}")
    return Finding("grades", True, ", ".join(f"{name} {grades[name].value:g}" for name in ("right", "wrong", "empty")))


def _range(grades: Mapping[str, Grade]) -> Finding:
    values = [grade.value for grade in grades.values() if grade.value is not None]
    if not values or min(values) == max(values):
        return Finding("range", False, "all episodes have the same value, so training has no signal")
    optional = [part for part in ("per_turn", "spans") if any(getattr(grade, part) for grade in grades.values())]
    mixed = f"; returns {' and '.join(optional)}, which credit.adv_estimator=state_mix mixes in" if optional else ""
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
        return Finding("waiting", True, "a plain function: runs in a separate thread, one episode at a time")
    if stall > STALL_S:
        fault = f"an async function that blocked the event loop for {stall:.1f} s"
        return Finding("waiting", False, f"{fault}: await slow calls, or make it a plain function")
    return Finding("waiting", True, "an async function that doesn't block other episodes")

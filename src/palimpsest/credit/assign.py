"""Credit assignment: from graded groups and a credit rule to the batches of the optimizer steps.

    rewards (overlong penalty taken off) -> advantage of every turn (the credit rule, per group)
        -> times the weights of turns (Grade.turn_weights)
        -> of every token (credit/state.py) -> rows (all segments, or a sample: credit/dcpo.py)
        -> weight of every token (credit/aggregate.py, per optimizer step)

The rules are in credit/grpo_rloo.py and credit/state.py; credit/advantages.py has their form. A rule gets only the
graded trajectories of a group, with the overlong penalty already subtracted from their rewards.

Guaranteed: each trajectory counts once in its group's statistics, regardless of its number of segments. An ungraded
trajectory counts as ungraded and is excluded from statistics and training; a lone survivor gets advantage 0. Advantages
are finite and of the right lengths, or the run ends with the reason. Each step builds the rule again, so a resumed run
gives the same. Mini-batches are whole groups, in order, with sizes that differ by at most one. Exactly
`num_minibatches` batches come back; with too few groups, the last have no segments and the loop skips those steps.
Not covered: sampling other groups to replace dropped ones; whether a custom rule is unbiased, or gives 0 where all
rewards are equal (`palimpsest check` reports that).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, pstdev

from palimpsest import plugins
from palimpsest.config.schema import OUTCOMES, STATE_MIX, CreditConfig
from palimpsest.credit import dapo
from palimpsest.credit.advantages import Rule, TurnAdvantage, rule_advantages, spread, turn_mean
from palimpsest.credit.aggregate import CreditedSegment, weigh
from palimpsest.credit.dapo import comparable, graded_rewards, rewards_differ
from palimpsest.credit.dcpo import effective_weights, sample_segments
from palimpsest.engines.protocol import StepBatch, TrainSegment
from palimpsest.rollout.segments import segments_of
from palimpsest.seeding import Key
from palimpsest.types import Grade, Group

# ---- Credit rules by name ------------------------------------------------------------------------------------


def build_rule(config: CreditConfig) -> Rule:
    """The rule that `credit.adv_estimator` names. Raises ConfigError."""
    rule: Rule = plugins.build("rule", config.adv_estimator, config.options)
    return rule


def has_signal(group: Group, config: CreditConfig, rule: Rule | None = None) -> bool:
    """Whether any turn gets an advantage other than 0, before the overlong penalty: if rewards differ, or by `rule`,
    which may read rewards of turns."""
    if rewards_differ(group) or config.adv_estimator in OUTCOMES:
        return rewards_differ(group)
    plain = config.model_copy(update={"overlong": None})
    turns = [turn for turns in _turn_advantages(group, plain, rule or build_rule(config)) for turn in turns or ()]
    return any(turn if isinstance(turn, float) else any(turn) for turn in turns)


def unread_rewards(groups: Iterable[Group], config: CreditConfig) -> dict[str, str] | None:
    """Reward `parts` of turns that `rule` ignores in these groups; None without any."""
    if config.adv_estimator not in (*OUTCOMES, STATE_MIX):
        return None
    if config.adv_estimator == STATE_MIX and plugins.owner(build_rule(config)).alpha < 1:
        return None
    grades = [grade for group in groups for grade in group.grades if grade.graded]
    fields = [part for part in ("per_turn", "spans") if any(getattr(grade, part) for grade in grades)]
    if not fields:
        return None
    rule = (
        "credit.options.alpha=1"
        if config.adv_estimator == STATE_MIX
        else f"credit.adv_estimator={config.adv_estimator}"
    )
    return {"parts": " and ".join(fields), "rule": rule}


# ---- Batches of the optimizer steps --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credited:
    """A group with its training rows."""

    group: Group
    advantages: tuple[float | None, ...]
    """[G] mean of each trajectory's turns, by the rule, without turn weights; None if ungraded or without a turn."""
    rows: tuple[CreditedSegment, ...]
    """Rows of one trajectory after the other; a segment drawn twice is two rows."""
    segments: tuple[int, ...]
    """[G] number of available segments per trajectory; 0 if ungraded."""
    drawn: int
    """Number of different segments drawn."""
    drawn_tokens: int
    """Sampled tokens in these."""


def assign(
    groups: Sequence[Group], config: CreditConfig, num_minibatches: int, key: tuple[Key, ...] = ()
) -> tuple[StepBatch, ...]:
    """Exactly `num_minibatches` batches, each weighed as a whole.

    `key` is the step's, e.g. (run seed, "dcpo", step). It and the group's name key the draws of
    `credit.segments_per_group`, so neither other groups nor their order matter.

    Each batch's metrics are those under `credit/` in docs/reference/metrics.md, over its own groups. Groups without
    segments count in the first batch, so that counts add up over the batches.
    """
    if num_minibatches < 1:
        raise ValueError(f"num_minibatches={num_minibatches}: at least 1")
    rule = build_rule(config)
    selected, dropped = list[Group](), list[Group]()
    for group in groups:
        stays = config.dynamic_sampling is None or has_signal(group, config, rule)
        (selected if stays else dropped).append(group)
    credited = [credit_group(group, config, key, number, rule) for number, group in enumerate(selected)]
    trainable = [one for one in credited if one.rows]
    untrainable = [one.group for one in credited if not one.rows]
    batches = [_batch(part, config, rule) for part in _split_groups(trainable, num_minibatches)]
    left_out = _left_out(dropped, untrainable)
    counts = {name: batches[0].counts.get(name, 0.0) + count for name, count in left_out.items()}
    batches[0] = replace(batches[0], counts={**batches[0].counts, **counts})
    return tuple(batches)


def credit_group(
    group: Group, config: CreditConfig, key: tuple[Key, ...] = (), number: int = 0, rule: Rule | None = None
) -> Credited:
    """The rows of a group with their advantages; `number` is its index among the groups of the step."""
    raw = _turn_advantages(group, config, rule or build_rule(config))
    turns = [
        None if per_turn is None else _weighted(per_turn, grade)
        for per_turn, grade in zip(raw, group.grades, strict=True)
    ]
    segments = [
        () if per_turn is None else segments_of(trajectory, config.final_segment)
        for trajectory, per_turn in zip(group.trajectories, turns, strict=True)
    ]
    picks = _picks(group, [len(segs) for segs in segments], config, key)
    tokens = [spread(segs, per_turn or ()) for segs, per_turn in zip(segments, turns, strict=True)]
    rows = tuple(CreditedSegment(segments[index][i], tokens[index][i], (number, index), number) for index, i in picks)
    advantages = tuple(_mean(per_turn) for per_turn in raw)
    drawn = set(picks)
    drawn_tokens = sum(len(segments[index][i].logprobs) for index, i in drawn)
    return Credited(group, advantages, rows, tuple(map(len, segments)), len(drawn), drawn_tokens)


def _picks(
    group: Group, counts: Sequence[int], config: CreditConfig, key: tuple[Key, ...]
) -> Sequence[tuple[int, int]]:
    if config.segments_per_group is None or not group.trajectories:
        return [(index, i) for index, count in enumerate(counts) for i in range(count)]
    places = {trajectory.rollout: index for index, trajectory in enumerate(group.trajectories)}
    if len(places) < len(counts):
        raise ValueError(f"group {group.problem.id}: two trajectories of one rollout number")
    by_rollout = {rollout: counts[index] for rollout, index in places.items()}
    name = (group.problem.id, group.trajectories[0].group_id)  # a problem sampled twice in a step has two groups
    return [(places[rollout], i) for rollout, i in sample_segments(by_rollout, config.segments_per_group, *key, *name)]


def _turn_advantages(group: Group, config: CreditConfig, rule: Rule) -> list[tuple[TurnAdvantage, ...] | None]:
    """[G][turns] the rule's advantages of graded trajectories; None if ungraded, 0 if nothing can be compared."""
    rewards = _rewards(group, config)
    graded = [index for index, reward in enumerate(rewards) if reward is not None]
    shown = Group(
        group.problem,
        tuple(group.trajectories[index] for index in graded),
        tuple(replace(group.grades[index], value=rewards[index]) for index in graded),
    )
    if comparable(group):
        advantages = iter(rule_advantages(rule, shown, config.adv_estimator))
    else:
        advantages = iter([(0.0,) * len(trajectory.turns) for trajectory in shown.trajectories])
    return [None if reward is None else next(advantages) for reward in rewards]


def _weighted(per_turn: Sequence[TurnAdvantage], grade: Grade) -> tuple[TurnAdvantage, ...]:
    """[turns] advantages times the turns' weights, if they have any."""
    factors = grade.turn_weights or (1.0,) * len(per_turn)
    return tuple(
        advantage * factor if isinstance(advantage, float) else tuple(value * factor for value in advantage)
        for advantage, factor in zip(per_turn, factors, strict=True)
    )


def _mean(per_turn: Sequence[TurnAdvantage] | None) -> float | None:
    """
    >>> _mean((0.1, 0.1, 0.1)), _mean((1.0, (0.5, 0.5), 0.0)), _mean(())
    (0.1, 0.5, None)
    """
    if not per_turn:
        return None
    means = [turn_mean(advantage) for advantage in per_turn]
    return means[0] if min(means) == max(means) else fmean(means)


def _rewards(group: Group, config: CreditConfig) -> list[float | None]:
    """[G] rewards minus the overlong penalty, None if ungraded."""
    rewards = [grade.value for grade in group.grades]
    if config.overlong is None:
        return rewards
    return [
        None if reward is None else reward - dapo.penalty(trajectory, config.overlong)
        for reward, trajectory in zip(rewards, group.trajectories, strict=True)
    ]


def _split_groups(credited: list[Credited], number: int) -> list[list[Credited]]:
    """Contiguous parts, longer ones first and empty ones last."""
    size, longer = divmod(len(credited), number)
    starts = [part * size + min(part, longer) for part in range(number + 1)]
    return [credited[start:stop] for start, stop in pairwise(starts)]


def _batch(credited: list[Credited], config: CreditConfig, rule: Rule) -> StepBatch:
    rows = [row for one in credited for row in one.rows]
    segments = weigh(rows, config.agg_mode)
    rewards = [reward for one in credited for reward in graded_rewards(one.group)]
    counts = {
        "groups": float(len(credited)),
        "groups_with_signal": float(sum(has_signal(one.group, config, rule) for one in credited)),
        "trajectories": float(len(rewards)),
        "ungraded": float(sum(_ungraded(one.group) for one in credited)),
        "segments": float(len(segments)),
        "trained_tokens": float(sum(len(one.weights) for one in segments)),
        "sampled_tokens": float(sum(_sampled(one.group) for one in credited)),
        "untrained_tokens": float(sum(max(0, _sampled(one.group) - one.drawn_tokens) for one in credited)),
    }
    if config.segments_per_group is not None:
        drawn = sum(one.drawn for one in credited)
        counts["segments_repeated"] = float(len(rows) - drawn)
        counts["segments_unused"] = float(sum(sum(one.segments) for one in credited) - drawn)
    if not credited:
        return StepBatch(segments, counts)  # an average over nothing is omitted, not 0
    advantages = [abs(share) for one in credited for share in one.advantages if share is not None]
    means = {
        "reward_mean": fmean(rewards),
        "reward_std": pstdev(rewards),
        "advantage_abs_mean": fmean(advantages),
        "segments_per_trajectory": fmean(count for one in credited for count in one.segments if count),
    }
    if config.overlong is not None:
        means["overlong_penalty_mean"] = fmean(rewards) - fmean(
            reward for one in credited for reward in _rewards(one.group, config) if reward is not None
        )
    lowest, highest = _weights(credited, rows, segments)
    return StepBatch(segments, counts, means, {"effective_weight_max": highest}, {"effective_weight_min": lowest})


def _weights(
    credited: list[Credited], rows: Sequence[CreditedSegment], weighed: Sequence[TrainSegment]
) -> tuple[float, float]:
    """Smallest and largest weight of the trajectories with sampled tokens; one without a row weighs 0."""
    trajectories = sum(count > 0 for one in credited for count in one.segments)
    shares = list(effective_weights(rows, weighed).values())
    lowest = min(shares) if len(shares) == trajectories else 0.0
    return lowest * trajectories, max(shares) * trajectories


def _left_out(dropped: list[Group], untrainable: list[Group]) -> dict[str, float]:
    groups = (*dropped, *untrainable)
    tokens = float(sum(map(_sampled, groups)))
    return {
        "ungraded": float(sum(map(_ungraded, groups))),
        "groups_dropped": float(len(dropped)),
        "groups_untrainable": float(len(untrainable)),
        "sampled_tokens": tokens,
        "untrained_tokens": tokens,
    }


def _ungraded(group: Group) -> int:
    return sum(not grade.graded for grade in group.grades)


def _sampled(group: Group) -> int:
    return sum(len(turn.trained_ids) for trajectory in group.trajectories for turn in trajectory.turns)

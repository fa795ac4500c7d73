"""Training metrics of a step, and measures of an episode of an agent with tools (docs/reference/metrics.md).

Guaranteed: step metrics are a function of the groups; an unknown metric is absent, never 0. Measures come only from
events (`ToolCalled`, `ToolFailed`, `Pruned`, `PruneRefused`) and turns; an episode without `context_tokens` in its
turns has none.
Not covered: kinds of errors beyond `KINDS`, which count only in `tool_errors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from statistics import fmean, pstdev
from typing import Any

from palimpsest.config.schema import CreditConfig
from palimpsest.credit.assign import build_rule, has_signal
from palimpsest.engines.protocol import SamplerStats, StepBatch, UpdateStats
from palimpsest.events import DocumentTruncated, Pruned, PruneRefused, ToolCalled, ToolFailed, of_type
from palimpsest.metrics.memory_metrics import folded, mean, memory_metrics
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.rollout.segments import segments_of
from palimpsest.rollout.token_costs import ReuseCost, token_costs
from palimpsest.rollout.variant import is_variant
from palimpsest.text.codec import Codec
from palimpsest.types import Group, Outcome, Trajectory

# ---- Measures of an episode of a tool agent ------------------------------------------------------------------


KINDS = ("malformed", "unreadable", "unknown_tool", "bad_arguments", "timeout", "exception", "too_many")


def tool_measures(trajectory: Trajectory) -> dict[str, float]:
    """Tool metrics (docs/reference/metrics.md) of one episode; empty for agents without tools.

    >>> from palimpsest.events import Event
    >>> from palimpsest.types import Completion, Outcome, StopReason, Turn
    >>> def turn(prompt):
    ...     reply = Completion((7, 0), (-0.5, -0.5), StopReason.STOP)
    ...     return Turn((1,) * prompt, reply, 0, "act", {"context_tokens": prompt})
    >>> failed = ToolFailed("timeout", id="b", tool="search", tokens=3, message="no answer")
    >>> happened = (ToolCalled("a", "search", 9), Pruned("c", ("a",), "tea", 10), failed)
    >>> events = tuple(Event(what, 1) for what in happened)
    >>> found = tool_measures(Trajectory("p", "g", 0, (turn(30), turn(10)), Outcome.ANSWERED, events=events))
    >>> {name: value for name, value in found.items() if value}  # doctest: +NORMALIZE_WHITESPACE
    {'prunes': 1.0, 'tool_calls': 1.0, 'tool_errors': 1.0, 'tool_errors_timeout': 1.0, 'context_tokens': 20.0,
     'context_tokens_max': 30.0, 'input_tokens': 40.0, 'sampled_tokens': 4.0, 'billed_tokens': 58.5,
     'reuse_tokens': 34.0, 'reuse_pairs': 534.0, 'segments': 2.0}
    """
    contexts = [float(turn.notes["context_tokens"]) for turn in trajectory.turns if "context_tokens" in turn.notes]
    if not contexts:
        return {}
    cost = ReuseCost.of(trajectory.turns)
    happened = Counter(type(event.what) for event in trajectory.events)
    errors = Counter(failed.error for failed in of_type(trajectory.events, ToolFailed))
    return {
        "prunes": float(happened[Pruned]),
        "prune_refused": float(happened[PruneRefused]),
        "tool_calls": float(happened[ToolCalled]),
        "tool_errors": float(errors.total()),
        **{f"tool_errors_{kind}": float(errors[kind]) for kind in KINDS},
        "context_tokens": fmean(contexts),
        "context_tokens_max": max(contexts),
        "input_tokens": float(trajectory.prompt_tokens),
        "sampled_tokens": float(trajectory.sampled_tokens),
        "billed_tokens": cost.billed,
        "reuse_tokens": float(cost.computed),
        "reuse_pairs": cost.pairs,
        "segments": float(len(segments_of(trajectory))),
    }


def tool_metrics(episodes: Iterable[Trajectory]) -> dict[str, float]:
    """Means over episodes under `tool/`, and the maximum of `context_tokens_max`.

    Episodes of a training variant are excluded, since they may lack the tool.
    """
    measured = [measures for one in episodes if not is_variant(one) and (measures := tool_measures(one))]
    if not measured:
        return {}
    metrics = {f"tool/{name}": fmean(measures[name] for measures in measured) for name in measured[0]}
    return metrics | {"tool/context_tokens_max": max(measures["context_tokens_max"] for measures in measured)}


# ---- Metrics of a step ---------------------------------------------------------------------------------------


Metrics = dict[str, float]


def group_metrics(groups: Sequence[Group], codec: Codec, credit: CreditConfig) -> Metrics:
    """Metrics of groups before the learner: rewards, outcomes, memories and tools (docs/reference/metrics.md)."""
    rewards = [grade.value for group in groups for grade in group.grades if grade.value is not None]
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    rule = build_rule(credit)
    metrics: dict[str, float | None] = {
        "reward/mean": fmean(rewards) if rewards else None,
        "reward/std": pstdev(rewards) if rewards else None,
        "reward/ungraded": float(len(episodes) - len(rewards)),
        "groups/played": float(len(groups)),
        "groups/with_signal": mean(float(has_signal(group, credit, rule)) for group in groups),
        **_breakdown(groups),
        **_variants(groups),
        **_episodes(episodes),
        **tool_metrics(episodes),
    }
    memories = [memory_metrics(group, GroupTexts(codec)) for group in groups]
    for name in dict.fromkeys(name for memory in memories for name in memory):
        metrics[f"memory/{name}"] = mean(memory[name] for memory in memories)
    return {name: value for name, value in metrics.items() if value is not None}


HIGH = 0.9
"""Mean reward of problems that are too easy."""


def why_no_signal(metrics: Metrics) -> dict[str, Any]:
    """What a batch without signal says about its cause: counts, mean reward, `facts` and `advice`.

    >>> found = why_no_signal({"groups/played": 8.0, "outcome/answered": 99.0, "outcome/timed_out": 1,
    ...                        "grade/answered": 0.0})
    >>> found["groups"], found["episodes"], found["facts"]
    (8, 100, ', 100% without a marked answer, timed_out 1')
    >>> found["advice"]
    'teach the form of a reply first: cold_start, or palimpsest sft'
    """
    outcomes = {key.removeprefix("outcome/"): int(n) for key, n in metrics.items() if key.startswith("outcome/")}
    episodes, mean_reward = sum(outcomes.values()), metrics.get("reward/mean", 0.0)
    unmarked, holding = 1 - metrics.get("grade/answered", 1.0), metrics.get("grade/string_match_part")
    ungraded = int(metrics.get("reward/ungraded", 0))
    facts = [f"{ungraded} ungraded"] if ungraded else []
    facts += [f"{unmarked:.0%} without a marked answer"] if unmarked else []
    facts += [] if holding is None else [f"{holding:.0%} with a gold in the reply"]
    facts += [f"{name} {count}" for name, count in outcomes.items() if name != Outcome.ANSWERED]
    if ungraded > episodes / 2:
        advice = "see why episodes have no grade: palimpsest view"
    elif outcomes.get(Outcome.ANSWER_TRUNCATED, 0) > episodes / 2:
        advice = "raise policy.options.answer_tokens, or turn_tokens of an agent with tools"
    elif mean_reward >= HIGH:
        advice = "use harder problems"
    elif unmarked > 0.5:
        advice = "teach the form of a reply first: cold_start, or palimpsest sft"
    else:
        advice = "use easier problems (data.curriculum), a reward with more values (reward.name=f1), or larger groups"
    return {
        "groups": int(metrics["groups/played"]),
        "episodes": episodes,
        "mean": mean_reward,
        "facts": "".join(f", {fact}" for fact in facts),
        "advice": advice,
    }


def _variants(groups: Sequence[Group]) -> dict[str, float | None]:
    pairs = [pair for group in groups for pair in zip(group.trajectories, group.grades, strict=True)]
    changed = [is_variant(trajectory) for trajectory, _ in pairs]
    if not any(changed):
        return {}
    split = list(zip(changed, (grade.value for _, grade in pairs), strict=True))
    return {
        "reward/mean_variant": mean(value for other, value in split if other),
        "reward/mean_plain": mean(value for other, value in split if not other),
        "episode/variant_share": fmean(changed),
    }


def _breakdown(groups: Sequence[Group]) -> dict[str, float | None]:
    grades = [grade for group in groups for grade in group.grades if grade.graded]
    names = sorted({name for grade in grades for name in grade.breakdown})
    return {f"grade/{name}": mean(grade.breakdown.get(name) for grade in grades) for name in names}


def _episodes(episodes: Sequence[Trajectory]) -> dict[str, float | None]:
    outcomes = Counter(trajectory.outcome.value for trajectory in episodes)
    roles = sorted({turn.role for episode in episodes for turn in episode.turns if turn.role})
    costs = [token_costs(episode, roles) for episode in episodes]
    return {
        "episode/turns": mean(float(len(episode.turns)) for episode in episodes),
        "episode/sampled_tokens": mean(float(episode.sampled_tokens) for episode in episodes),
        "episode/prompt_tokens": mean(float(episode.prompt_tokens) for episode in episodes),
        **{f"episode/{name}": mean(one[name] for one in costs) for name in (costs[0] if costs else ())},
        "tokens/played": float(sum(one["computed_tokens"] for one in costs)),
        "episode/documents_cut": float(sum(bool(of_type(one.events, DocumentTruncated)) for one in episodes)),
        **{f"outcome/{name}": float(count) for name, count in sorted(outcomes.items())},
    }


def credit_metrics(batches: Sequence[StepBatch]) -> Metrics:
    """Metrics of the credit assignment, over a rollout batch's optimizer steps.

    >>> first = StepBatch((), {"sampled_tokens": 6.0, "untrained_tokens": 2.0}, {"reward_mean": 0.5})
    >>> metrics = credit_metrics([first, StepBatch((), {"sampled_tokens": 2.0})])
    >>> [metrics[name] for name in ("credit/reward_mean", "credit/sampled_tokens", "tokens/trained_share")]
    [0.5, 8.0, 0.75]
    """
    values = {
        **folded([batch.counts for batch in batches], sum),
        **folded([batch.means for batch in batches], fmean),
        **folded([batch.maxima for batch in batches], max),
        **folded([batch.minima for batch in batches], min),
    }
    metrics = {f"credit/{name}": values[name] for name in sorted(values)}
    if sampled := values.get("sampled_tokens"):
        metrics["tokens/trained_share"] = 1 - values["untrained_tokens"] / sampled
    return metrics


def learner_metrics(updates: Sequence[UpdateStats]) -> tuple[Metrics, Metrics]:
    """Metrics and timings of the optimizer steps of a rollout batch.

    Sums over trained tokens become means; the loss, which includes its denominator, is averaged over the steps:

    >>> first = UpdateStats(loss=0.5, tokens=4, token_sums={"kl": 1.0}, grad_norm=2.0, seconds=0.1)
    >>> second = UpdateStats(loss=0.0, tokens=4, token_sums={"kl": 3.0}, skipped=True, seconds=0.2)
    >>> metrics, timings = learner_metrics([first, second])
    >>> [metrics[name] for name in ("policy/kl", "policy/loss", "policy/tokens", "optim/grad_norm")]
    [0.5, 0.25, 8.0, 2.0]
    >>> metrics["optim/grad_skipped"], round(timings["policy/learner_s"], 6)
    (0.5, 0.3)
    """
    if not updates:
        return {}, {}
    tokens = sum(update.tokens for update in updates)
    policy: dict[str, float] = {
        "loss": fmean(update.loss for update in updates),
        "tokens": float(tokens),
        "segments": float(sum(update.segments for update in updates)),
        "logical_tokens": float(sum(update.logical_tokens for update in updates)),
        "physical_tokens": float(sum(update.physical_tokens for update in updates)),
        "reuse": fmean(update.reuse for update in updates),
    }
    sums = folded([update.token_sums for update in updates], sum)
    policy |= {name: value / (tokens or 1) for name, value in sums.items()}
    policy |= {f"{name}_max": value for name, value in folded([update.maxima for update in updates], max).items()}
    optim: dict[str, float | None] = {
        "learning_rate": mean(update.learning_rate for update in updates),
        "grad_norm": mean(update.grad_norm for update in updates),
        "grad_skipped": fmean(update.skipped for update in updates),
        "grad_skipped_total": fmean(update.skipped_total for update in updates),
        **folded([update.extra for update in updates], fmean),
    }
    metrics = {f"policy/{name}": policy[name] for name in sorted(policy)}
    metrics |= {n if "/" in n else f"optim/{n}": value for n, value in sorted(optim.items()) if value is not None}
    speed = fmean(update.logical_tokens / update.seconds if update.seconds else 0.0 for update in updates)
    seconds = sum(update.seconds for update in updates)
    return metrics, {"policy/learner_s": seconds, "policy/learner_tokens_per_s": speed}


def rates(before: SamplerStats, after: SamplerStats, seconds: float) -> Metrics:
    """Growth of a sampler's counters over `seconds`, as `rollout/NAME_per_s`, and its prefix cache's hit rate.

    >>> grown = rates(SamplerStats(), SamplerStats(prompt_tokens=400, computed_prompt_tokens=100), 2.0)
    >>> grown["rollout/prompt_tokens_per_s"], grown["rollout/cache_hit_rate"]
    (200.0, 0.75)
    """
    names = [field.name for field in fields(SamplerStats)]
    growth = {name: getattr(after, name) - getattr(before, name) for name in names}
    metrics = {f"rollout/{name}_per_s": value / seconds for name, value in growth.items()}
    if growth["prompt_tokens"]:
        metrics["rollout/cache_hit_rate"] = 1 - growth["computed_prompt_tokens"] / growth["prompt_tokens"]
    return metrics

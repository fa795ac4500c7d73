r"""What a step is measured by.

| key | what |
|---|---|
| reward/mean, reward/std | over graded episodes of every group played, dropped ones included; population spread |
| reward/mean_variant, reward/mean_plain | of episodes played with `train.variant`'s options; of the others |
| episode/variant_share | share of the former, where there are any |
| grade/em, grade/f1... | mean of each part of the grades' breakdown |
| groups/played, groups/with_signal | number of groups; share in which the rewards differ |
| episode/turns, sampled_tokens, prompt_tokens | mean per episode |
| outcome/answered, outcome/... | episodes that ended so |
| memory/tokens | mean length of the memories written |
| memory/truncated | share of them cut by their budget |
| memory/overwrite_rate | share of memory tokens that changed from one memory to the next; 0 kept, 1 all new |
| memory/evidence_retention | share of what the data names as evidence that stands in the final memory, see below |
| memory/copy_fidelity | share of sentences written that stand verbatim in the section or the memory before |
| memory/recall_rate | share of reading turns that asked for an earlier memory |
| memory/recall_hit_rate | share of those that brought up a memory with a piece of the evidence in it |
| memory/malformed_rate | share of reading turns whose reply could not be read, where replies have a form |
| memory/update_rate | share of reading turns with an open update gate, where there is one |
| tool/prunes, tool/context_tokens... | measures/tools.py, over episodes that are no variant's |
| curriculum/chunks, objectives, credit/..., policy/..., optim/..., eval/... | see train/loop.py |

A metric nothing is known of is absent, never 0. Everything here is a function of the groups alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from palimpsest.credit.dynamic import has_signal
from palimpsest.engines.protocol import Stats
from palimpsest.measures.memory import memory_metrics, reply_metrics
from palimpsest.measures.tools import tool_metrics
from palimpsest.rollout.variant import is_variant
from palimpsest.text.codec import Codec
from palimpsest.types import Group, Trajectory

Metrics = dict[str, float]

_COUNTS = frozenset(
    {"tokens_sum", "segments_sum", "logical_tokens_sum", "physical_tokens_sum"}
)  # of a pass; other sums are over tokens
_MEMORY_ROLLOUTS = 4  # of each group, in training: decoding every prompt of a 7B run would take minutes a step


def group_metrics(groups: Sequence[Group], codec: Codec) -> Metrics:
    """All of the table above but its last row."""
    rewards = [grade.value for group in groups for grade in group.grades if grade.value is not None]
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    found: dict[str, float | None] = {
        "reward/mean": fmean(rewards) if rewards else None,
        "reward/std": pstdev(rewards) if rewards else None,
        "reward/ungraded": float(len(episodes) - len(rewards)),
        "groups/played": float(len(groups)),
        "groups/with_signal": _mean(float(has_signal(group)) for group in groups),
        **_breakdown(groups),
        **_variants(groups),
        **_episodes(episodes),
        **tool_metrics(episodes),
    }
    memories = [
        memory_metrics(group, codec, rollouts=_MEMORY_ROLLOUTS) | reply_metrics(group, codec) for group in groups
    ]
    for name in dict.fromkeys(name for memory in memories for name in memory):
        found[f"memory/{name}"] = _mean(memory[name] for memory in memories)
    return {name: value for name, value in found.items() if value is not None}


def _variants(groups: Sequence[Group]) -> dict[str, float | None]:
    """Rewards of both kinds of episodes; nothing where all are of one kind for want of a variant."""
    pairs = [pair for group in groups for pair in zip(group.trajectories, group.grades, strict=True)]
    changed = [is_variant(trajectory) for trajectory, _ in pairs]
    if not any(changed):
        return {}
    split = list(zip(changed, (grade.value for _, grade in pairs), strict=True))
    return {
        "reward/mean_variant": _mean(value for other, value in split if other),
        "reward/mean_plain": _mean(value for other, value in split if not other),
        "episode/variant_share": fmean(changed),
    }


def _breakdown(groups: Sequence[Group]) -> dict[str, float | None]:
    grades = [grade for group in groups for grade in group.grades if grade.graded]
    names = sorted({name for grade in grades for name in grade.breakdown})
    return {f"grade/{name}": _mean(grade.breakdown.get(name) for grade in grades) for name in names}


def _episodes(episodes: Sequence[Trajectory]) -> dict[str, float | None]:
    outcomes = Counter(trajectory.outcome.value for trajectory in episodes)
    return {
        "episode/turns": _mean(float(len(episode.turns)) for episode in episodes),
        "episode/sampled_tokens": _mean(float(sampled_tokens(episode)) for episode in episodes),
        "episode/prompt_tokens": _mean(float(prompt_tokens(episode)) for episode in episodes),
        **{f"outcome/{name}": float(count) for name, count in sorted(outcomes.items())},
    }


def sampled_tokens(trajectory: Trajectory) -> int:
    """Tokens the model generated in an episode."""
    return sum(len(turn.completion.token_ids) for turn in trajectory.turns)


def prompt_tokens(trajectory: Trajectory) -> int:
    """Tokens of all prompts of an episode, shared prefixes counted each time."""
    return sum(len(turn.prompt_ids) for turn in trajectory.turns)


def is_timing(name: str) -> bool:
    """Whether a metric reads a clock, and so belongs into timings.jsonl: its name ends in `_s`, or `_s_sum`.

    >>> is_timing("tokens_per_s"), is_timing("learner_s_sum"), is_timing("kl_sum")
    (True, True, False)
    """
    return name.removesuffix("_sum").endswith("_s")


def credit_metrics(batches: Iterable[Stats]) -> Metrics:
    """Metrics of a step's batches: `_sum` keys added up and stripped, others averaged over the batches that have them.

    >>> credit_metrics([{"segments_sum": 2.0, "reward_mean": 0.5}, {"segments_sum": 3.0}])
    {'credit/reward_mean': 0.5, 'credit/segments': 5.0}
    """
    return {f"credit/{name.removesuffix('_sum')}": value for name, value in merged(batches).items()}


def learner_metrics(passes: Sequence[Stats], updates: Sequence[Stats]) -> tuple[Metrics, Metrics]:
    """Metrics and timings of a step's passes over batches and of its optimiser updates.

    A `_sum` of a pass is over trained tokens and becomes a mean over them, but for counts, which add up, and the
    loss, which holds its denominator already and is averaged over the passes:

    >>> first = {"kl_sum": 1.0, "loss_sum": 0.5, "tokens_sum": 4.0}
    >>> second = {"kl_sum": 3.0, "loss_sum": 0.0, "tokens_sum": 4.0}
    >>> learner_metrics([first, second], [{"grad_norm": 2.0, "step_s": 0.1}])
    ({'policy/kl': 0.5, 'policy/loss': 0.25, 'policy/tokens': 8.0, 'optim/grad_norm': 2.0}, {'optim/step_s': 0.1})
    """
    totals = merged(passes)
    tokens = totals.get("tokens_sum") or 1.0
    named: dict[str, tuple[str, float]] = {}
    for name, value in totals.items():
        if name == "loss_sum":
            value /= len(passes)
        elif name.endswith("_sum") and name not in _COUNTS and not is_timing(name):
            value /= tokens
        named[f"policy/{name.removesuffix('_sum')}"] = (name, value)
    named |= {f"optim/{name.removesuffix('_sum')}": (name, value) for name, value in merged(updates).items()}
    metrics = {key: value for key, (name, value) in named.items() if not is_timing(name)}
    return metrics, {key: value for key, (name, value) in named.items() if is_timing(name)}


def merged(stats: Iterable[Stats]) -> Metrics:
    """One mapping of several, keys in order: `_sum` adds up, `_max` and `_min` are the extremes, others the mean."""
    columns: dict[str, list[float]] = {}
    for each in stats:
        for name, value in each.items():
            columns.setdefault(name, []).append(value)
    return {name: _folded(name, columns[name]) for name in sorted(columns)}


def _folded(name: str, values: Sequence[float]) -> float:
    if name.endswith("_sum"):
        return sum(values)
    if name.endswith("_min"):
        return min(values)
    return max(values) if name.endswith("_max") else fmean(values)


def rates(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> Metrics:
    """Growth of counters over `seconds`, as `rollout/NAME_per_s`, and the prefix cache's hit rate meanwhile.

    >>> rates({"prompt_tokens": 100.0}, {"prompt_tokens": 500.0, "computed_prompt_tokens": 100.0}, 2.0)
    ... # doctest: +NORMALIZE_WHITESPACE
    {'rollout/prompt_tokens_per_s': 200.0, 'rollout/computed_prompt_tokens_per_s': 50.0,
     'rollout/cache_hit_rate': 0.75}
    """
    growth = {name: value - before.get(name, 0.0) for name, value in after.items()}
    found = {f"rollout/{name}_per_s": value / seconds for name, value in growth.items()}
    if growth.get("prompt_tokens") and "computed_prompt_tokens" in growth:
        found["rollout/cache_hit_rate"] = 1 - growth["computed_prompt_tokens"] / growth["prompt_tokens"]
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

r"""Turn-level rewards: ReMemR1's memory-state rewards, and a penalty for hallucinated facts in the memory.

With recall(x) the share of a gold answer's words that occur in x, for a reading turn with memory m and section c, new
memory m' and recalled text r:

    update    recall(m') - recall(m)                            information gain of the update; negative after a loss
    callback  max(0, recall(m + c + r) - recall(m + c))         gain from the recalled text
    format    1 if the reply could be read, otherwise 0
    state     update + callback + format, each times its weight

The answer turn has only format: 1 if it contains exactly one \boxed{}, closed and not empty.

Differences of the authors' code, each an option: the mean over several golds instead of the paper's maximum (`golds`);
words counted as substrings, so that "a" is in anything (`words`); the search for the previous memory stops at line
breaks and never finds it, so the update's gain is its recall (`before`); the callback is measured against the whole
prompt with the question (`against`); if the memory is the whole reply, readable or not (`policy.options.malformed:
accept`), m' is the text in the first pair of update tags, or empty.

`FaithfulLayer`, absent from published systems, reduces the reward of memories with text that was not read:

    value = min(reward, reward * max(0, 1 - penalty * (1 - copy fidelity of the episode's read turns)))

A reward for the answer does not penalise a hallucinated fact in an otherwise empty memory. Such facts later displace
the true one, more often in longer documents. A subtracted penalty instead of a factor teaches the agent to write
nothing (seen in training).

Guaranteed: one number per turn; with whole words a yes/no gold has no words to find, and its gains are 0. A trajectory
without a grade gets none.
Not covered: golds in other words; an agent whose replies are not memories (its turns get format 1 and no gain);
paraphrased memories under `FaithfulLayer`, which needs faithful copying.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean

from palimpsest.config.reward import StateRewardConfig
from palimpsest.events import EnvironmentStepped, PassEnded, of_type
from palimpsest.metrics.memory_metrics import copy_fidelity
from palimpsest.metrics.reading_trace import GroupTexts, ReadingTurn, readings
from palimpsest.text.answer_normalization import fold, normalize, tokens
from palimpsest.text.answers import only_box
from palimpsest.text.codec import Codec
from palimpsest.types import Grade, Problem, Trajectory

_CHOICES = frozenset({"yes", "no"})


def gold_words(gold: str) -> list[str]:
    """The words of a gold to search for; empty for a yes/no gold, whose word carries no information.

    >>> gold_words("The Hague"), gold_words("Yes."), gold_words("The The")
    (['hague'], [], ['the', 'the'])
    """
    form = normalize(gold) or fold(gold)
    return [] if form in _CHOICES else tokens(form)


def word_recall(text: str, golds: Sequence[str], config: StateRewardConfig) -> float:
    """Share of a gold's words that occur in `text`: of the best gold, or the mean over golds.

    >>> golds = ["New York", "York"]
    >>> word_recall("He saw York.", golds, StateRewardConfig())
    1.0
    >>> word_recall("He saw York.", golds, StateRewardConfig(variant="code"))
    0.75
    >>> [word_recall("Yorkshire", ["York"], StateRewardConfig(variant=how)) for how in ("paper", "code")]
    [0.0, 1.0]
    """
    if config.variant == "code":
        return fmean(_share([word in text for word in gold.split()]) for gold in golds)
    held = {*tokens(normalize(text)), *tokens(fold(text))}
    return max(_share([word in held for word in gold_words(gold)]) for gold in golds)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


@dataclass(frozen=True, slots=True)
class TurnReward:
    """The parts of a turn's reward, unweighted."""

    update: float = 0.0
    callback: float = 0.0
    format: float = 1.0
    in_sight: float = 0.5
    """Recall over the turn's visible texts; 0.5 for turns without reading, so that they weigh 1."""

    def total(self, config: StateRewardConfig) -> float:
        return self.update * config.update + self.callback * config.callback + self.format * config.format


def turn_rewards(
    problem: Problem, trajectory: Trajectory, codec: Codec, config: StateRewardConfig
) -> tuple[TurnReward, ...]:
    """[turns] the reward of each turn."""
    read = {reading.turn.step: reading for reading in readings(trajectory, GroupTexts(codec))}
    rewards = []
    for turn in trajectory.turns:
        if turn.step in read:
            rewards.append(_read_reward(read[turn.step], problem.answers, codec, config))
        elif turn.name == "answer":
            rewards.append(TurnReward(format=float(only_box(codec.decode(turn.completion.token_ids)) is not None)))
        else:
            rewards.append(TurnReward())
    return tuple(rewards)


def _read_reward(reading: ReadingTurn, golds: Sequence[str], codec: Codec, config: StateRewardConfig) -> TurnReward:
    def recall(text: str) -> float:
        return word_recall(text, golds, config)

    sight = "\n".join(map(str, (reading.memory_before, *reading.sections)))
    if config.variant == "code":
        sight = codec.decode(reading.turn.prompt_ids)
    in_sight = recall(sight)
    had = recall(reading.memory_before.text) if config.variant == "paper" else 0.0
    wrote = recall(reading.update.text) if reading.changed else had
    return TurnReward(
        update=wrote - had,
        callback=max(0.0, recall(f"{reading.recall_result} {sight}") - in_sight) if reading.recall_result else 0.0,
        format=float(reading.malformed is None),
        in_sight=in_sight,
    )


@dataclass(frozen=True, slots=True)
class StateLayer:
    """Turn rewards added to a grade; for training only."""

    codec: Codec
    config: StateRewardConfig

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        if not trajectory.turns:
            return grade
        rewards = turn_rewards(problem, trajectory, self.codec, self.config)
        means = {f"state_{name}": fmean(getattr(r, name) for r in rewards) for name in ("update", "callback", "format")}
        weights = tuple(0.5 + reward.in_sight for reward in rewards) if self.config.action_reweight else None
        return replace(
            grade,
            per_turn=tuple(reward.total(self.config) for reward in rewards),
            turn_weights=weights,
            breakdown={**grade.breakdown, **means},
        )


# ---- Rewards of an environment -------------------------------------------------------------------------------


class EnvironmentGrader:
    """`reward.name=environment`: the sum of an episode's rewards in its environment, and each as the turn's.

    An episode that ran out of turns or context has those so far.
    """

    needs_gold = False

    def grade(self, problem: Problem, trajectory: Trajectory) -> Grade:
        if not trajectory.outcome.gradable:
            return Grade(None, reason=trajectory.outcome.value)
        steps = [(event.before_turn, event.what) for event in trajectory.events]
        acted = [(before, what) for before, what in steps if isinstance(what, EnvironmentStepped)]
        numbers, info = [turn.step for turn in trajectory.turns], dict[str, float]()
        per_turn = [0.0] * len(numbers)
        for before, what in acted:
            if per_turn:
                per_turn[max(0, bisect_left(numbers, before) - 1)] += what.reward  # of the turn before it
            info |= {name: float(value) for name, value in what.info.items()}
        score = fsum(what.reward for _, what in acted)
        invalid = fsum(what.info.get("invalid", 0.0) for _, what in acted)
        counts = {"score": score, "steps": float(len(acted)), "invalid": invalid}
        return Grade(score, breakdown=info | counts, per_turn=tuple(per_turn))


# ---- A reward counts less where the memory holds invented facts ----------------------------------------------


@dataclass(frozen=True, slots=True)
class FaithfulLayer:
    """Penalty for unread text in memories; for training only."""

    codec: Codec
    penalty: float

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """The grade times the factor; a negative value stays.

        `breakdown` stores the share as `unsupported` and the value before as `outcome`.
        """
        if grade.value is None:
            return grade
        fidelity = copy_fidelity(readings(trajectory, GroupTexts(self.codec)))
        unsupported = 0.0 if fidelity is None else 1.0 - fidelity
        breakdown = {**grade.breakdown, "unsupported": unsupported, "outcome": grade.value}
        factor = max(0.0, 1.0 - self.penalty * unsupported)
        return replace(grade, value=min(grade.value, grade.value * factor), breakdown=breakdown)


# ---- A correct answer after fewer readings of the document earns more ----------------------------------------


@dataclass(frozen=True, slots=True)
class PassLayer:
    """PI-Mem's bonus for fewer passes (arXiv 2608.03048; its code gives it to correct answers only)."""

    bonus: float

    def __call__(self, problem: Problem, trajectory: Trajectory, grade: Grade) -> Grade:
        """A positive grade plus bonus * (K - k) / (K - 1) after k of at most K > 1 passes.

        `breakdown` stores the passes.
        """
        passes = of_type(trajectory.events, PassEnded)
        if not passes or passes[-1].of < 2:
            return grade
        used, most = len(passes), passes[-1].of
        grade = replace(grade, breakdown={**grade.breakdown, "passes": float(used)})
        if grade.value is None or grade.value <= 0:
            return grade
        return replace(grade, value=grade.value + self.bonus * (most - used) / (most - 1))

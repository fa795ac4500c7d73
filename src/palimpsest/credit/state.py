"""Turn-level and token-level credit: the state mix, after ReMemR1 (arXiv 2509.23040).

    A_out,i    the trajectory's, by the rule that `outcome` names (a custom rule may give A_out,i,t)
    A_st,i,t   R_st,i,t - mean of R_st,j,t over the trajectories j of the group that have a turn t
    A_i,t      alpha * A_out,i + (1 - alpha) * A_st,i,t

A_st has no standard deviation, as in paper and code. Turns are compared at the same step index, after the same share of
the document. A turn without another one at its index gets A_st = 0 (`lone_step: zero`). The authors' code takes the
mean over one as 0, so the turn's raw reward is its advantage (`lone_step: raw`); it also adds the state's advantage
over two columns, twice the share that alpha implies (`state_scale: 2`).

Rewards of spans (`Grade.spans`) join those of turns and credit single tokens. With s_k the sum of the spans that cover
token k of a turn of T sampled tokens, and m the mean of s_k over the turn:

    R_t'    = R_t + m                                           the turn's reward, which is compared with the group's
    A_t,k   = A_t' + (1 - alpha) * state_scale * (s_k - m)      the token's advantage, A_t' being the turn's from R_t'

both times the turn's weight, if it has one. A span over a whole turn therefore equals that reward of the turn.

Guaranteed: with alpha = 1 every turn gets exactly A_out,i, and turns need no reward; a trajectory without turns
needs none. Empty spans, and a span cut in two of the same value, change nothing; without spans every token has exactly
its turn's advantage. Spans count only under `credit.adv_estimator: state_mix` with alpha below 1, or in a custom rule.
Not covered: a token trained again in another context (`credit.final_segment: all`) gets the mean of its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean
from typing import Any, Literal

from palimpsest import plugins
from palimpsest.config.schema import OUTCOMES, STATE_MIX
from palimpsest.credit.advantages import Rule, TurnAdvantage, rule_advantages
from palimpsest.errors import ConfigError, RunError
from palimpsest.types import Grade, Group, Trajectory

# ---- Credit of single tokens ---------------------------------------------------------------------------------


def span_rewards(trajectory: Trajectory, grade: Grade) -> list[list[float]]:
    """[turns][T] reward of each sampled token.

    >>> from palimpsest.types import Completion, Outcome, SpanReward, StopReason, Turn
    >>> turn = Turn((1,), Completion((5, 6, 7), (-0.5,) * 3, StopReason.STOP), 0, "act")
    >>> spans = (SpanReward(0, 0, 2, 1.0), SpanReward(0, 1, 3, 0.5))
    >>> span_rewards(Trajectory("p", "g", 0, (turn,), Outcome.ANSWERED), Grade(1.0, spans=spans))
    [[1.0, 1.5, 0.5]]
    """
    rewards = [[0.0] * len(turn.completion.token_ids) for turn in trajectory.turns]
    for span in grade.spans:
        for position in range(span.start, span.end):
            rewards[span.turn][position] += span.value
    return rewards


def span_means(trajectory: Trajectory, grade: Grade) -> list[float]:
    """[turns] mean reward of a turn's tokens; 0 for a turn without any."""
    return [fsum(row) / len(row) if row else 0.0 for row in span_rewards(trajectory, grade)]


def on_top(
    trajectory: Trajectory, grade: Grade, turns: Sequence[TurnAdvantage], share: float
) -> tuple[TurnAdvantage, ...]:
    """[turns] with the extra advantage of each token of a turn with spans; `share` is the factor of own rewards.

    >>> from palimpsest.types import Completion, Outcome, SpanReward, StopReason, Turn
    >>> played = [Turn((1,), Completion((5, 6), (-0.5,) * 2, StopReason.STOP), step, "act") for step in range(2)]
    >>> grade = Grade(1.0, spans=(SpanReward(0, 0, 1, 1.0),))
    >>> on_top(Trajectory("p", "g", 0, tuple(played), Outcome.ANSWERED), grade, [0.25, 0.5], 0.5)
    ((0.5, 0.0), 0.5)
    """
    if not grade.spans:
        return tuple(turns)
    with_spans = {span.turn for span in grade.spans}
    rows, means = span_rewards(trajectory, grade), span_means(trajectory, grade)
    every = [[of] * len(row) if isinstance(of, float) else of for of, row in zip(turns, rows, strict=True)]
    return tuple(
        tuple(value + share * (reward - mean) for value, reward in zip(values, row, strict=True))
        if turn in with_spans
        else turns[turn]
        for turn, (values, row, mean) in enumerate(zip(every, rows, means, strict=True))
    )


# ---- The state mix -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateMix:
    """`credit.adv_estimator: state_mix`, with these as `credit.options`."""

    outcome: str = "mean"
    """The rule whose advantages are mixed with those of turns: mean, mean_std, leave_one_out, or my_module:my_rule."""
    outcome_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a custom rule."""
    alpha: float = 0.8
    """Share of the outcome's advantage, from 0 to 1; the rest is the share of the turn's advantage."""
    state_scale: float = 1.0
    """Factor of the turn's own advantage; ReMemR1's code implies 2."""
    lone_step: Literal["zero", "raw"] = "zero"
    """Own advantage of a turn at a step that no other trajectory reached: 0, or its raw reward (the code)."""
    _outcome: Rule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError("must be from 0 to 1", key="credit.options.alpha", value=self.alpha)
        if self.state_scale <= 0:
            raise ConfigError("must be greater than 0", key="credit.options.state_scale", value=self.state_scale)
        key, options_key = "credit.options.outcome", "credit.options.outcome_options"
        if self.outcome == STATE_MIX:
            raise ConfigError(f"choose one of {', '.join(OUTCOMES)}, or a custom rule", key=key, value=STATE_MIX)
        rule = plugins.build("rule", self.outcome, self.outcome_options, key=key, options_key=options_key)
        object.__setattr__(self, "_outcome", rule)

    def turn_advantages(self, group: Group) -> list[tuple[TurnAdvantage, ...]]:
        """[trajectories][turns] both mixed; one number per token for turns with spans."""
        outcome = rule_advantages(self._outcome, group, self.outcome)
        if self.alpha == 1.0:
            return outcome
        graded = list(zip(group.trajectories, group.grades, strict=True))
        rewards = [self._rewards(trajectory, grade, group) for trajectory, grade in graded]
        state = state_advantages(rewards, raw_if_alone=self.lone_step == "raw")
        share = (1 - self.alpha) * self.state_scale
        turns = [mixed(outcomes, states, self.alpha, share) for outcomes, states in zip(outcome, state, strict=True)]
        return [on_top(*played, advantages, share) for played, advantages in zip(graded, turns, strict=True)]

    def _rewards(self, trajectory: Trajectory, grade: Grade, group: Group) -> Sequence[float]:
        """[turns] rewards of a trajectory's turns, including those of spans."""
        turns = len(trajectory.turns)
        per_turn = (0.0,) * turns if grade.per_turn is None and (grade.spans or not turns) else grade.per_turn
        if per_turn is None or len(per_turn) != turns:
            shown = "none" if per_turn is None else str(len(per_turn))
            raise RunError(
                f"credit.adv_estimator=state_mix: group {group.problem.id}, rollout {trajectory.rollout}: {turns} "
                f"turns, {shown} turn rewards; credit.options.alpha={self.alpha} needs a reward of every turn "
                "(Grade.per_turn or Grade.spans)"
            )
        if not grade.spans:
            return per_turn
        return [reward + mean for reward, mean in zip(per_turn, span_means(trajectory, grade), strict=True)]


def state_advantages(per_turn: Sequence[Sequence[float]], *, raw_if_alone: bool = False) -> list[list[float]]:
    """[trajectories][turns] state rewards of one group to advantages; trajectories may differ in length.

    The third turn of the first trajectory is alone:

    >>> state_advantages([[1.0, 0.0, 2.0], [0.0, 0.5]])
    [[0.5, -0.25, 0.0], [-0.5, 0.25]]
    >>> state_advantages([[1.0, 0.0, 2.0], [0.0, 0.5]], raw_if_alone=True)[0][2]
    2.0
    """
    longest = max(map(len, per_turn), default=0)
    steps = [[rewards[t] for rewards in per_turn if t < len(rewards)] for t in range(longest)]
    means = [0.0 if raw_if_alone and len(step) == 1 else _mean(step) for step in steps]
    return [[reward - mean for reward, mean in zip(rewards, means, strict=False)] for rewards in per_turn]


def _mean(rewards: Sequence[float]) -> float:
    """The mean; exact for equal rewards, unlike a rounded sum.

    >>> _mean([0.2] * 3), fmean([0.2] * 3) == 0.2
    (0.2, False)
    """
    return rewards[0] if min(rewards) == max(rewards) else fmean(rewards)


def mixed(
    outcome: Sequence[TurnAdvantage], state: Sequence[float], alpha: float, share: float
) -> tuple[TurnAdvantage, ...]:
    """[turns] a trajectory's advantages: `alpha` times the outcome's plus `share` times the turns' own.

    >>> mixed([0.5, (0.5, 1.0)], [1.0, -1.0], 0.75, 0.25)
    (0.625, (0.125, 0.5))
    """
    return tuple(
        alpha * of_outcome + share * of_state
        if isinstance(of_outcome, float)
        else tuple(alpha * of_token + share * of_state for of_token in of_outcome)
        for of_outcome, of_state in zip(outcome, state, strict=True)
    )

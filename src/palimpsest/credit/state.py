"""The state mix: rewards of single turns beside the outcome's, after ReMemR1 (arXiv 2509.23040).

    A_out,i    the trajectory's, by the rule that `outcome` names (one of one's own may give A_out,i,t)
    A_st,i,t   R_st,i,t - mean of R_st,j,t over the trajectories j of the group that have a turn t
    A_i,t      alpha * A_out,i + (1 - alpha) * A_st,i,t

No standard deviation in A_st, as in paper and code. Turns are compared with turns at the same step index, for they had
as much of the document in sight. Where trajectories differ in length, the longer ones' last turns have fewer to compare
with; a turn that is alone at its index has none, and gets A_st = 0 (`lone_step: zero`). The authors' code takes the
mean over one as 0 there, so that the turn's raw reward is its advantage (`lone_step: raw`); it also adds the state's
advantage up over two columns, twice what alpha says (`state_scale: 2`).

Rewards of spans (`Grade.spans`) join those of turns, and credit single tokens: credit/spans.py.

Guaranteed: with alpha = 1 every turn gets exactly A_out,i, the same floating-point number, and no reward of a turn is
asked for; a trajectory without a turn needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from palimpsest.credit import spans
from palimpsest.credit.outcome import OUTCOME, Rule, TurnAdvantage, asked, own_rule
from palimpsest.errors import ConfigError, RunError
from palimpsest.plugins import check_name, is_own
from palimpsest.types import Grade, Group, Trajectory


@dataclass(frozen=True, slots=True)
class StateMix:
    """`credit.rule: state_mix`, with these as `credit.options`."""

    outcome: str = "mean"
    """The rule whose advantages are mixed with those of turns: mean, mean_std, leave_one_out, or my_module:my_rule."""
    outcome_options: Mapping[str, Any] = field(default_factory=dict)
    """Those of a rule of one's own."""
    alpha: float = 0.8
    """Share of the outcome's advantage, from 0 to 1; the rest is the turn's own."""
    state_scale: float = 1.0
    """Factor of the turn's own advantage; 2 is what ReMemR1's code comes to."""
    lone_step: Literal["zero", "raw"] = "zero"
    """Own advantage of a turn whose step no other trajectory of the group reached: 0, or its raw reward (the code)."""
    _outcome: Rule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"credit.options.alpha={self.alpha}: must be from 0 to 1")
        if self.state_scale <= 0:
            raise ConfigError(f"credit.options.state_scale={self.state_scale}: must be greater than 0")
        object.__setattr__(self, "_outcome", self._named())

    def _named(self) -> Rule:
        """The outcome's rule."""
        key, options_key = "credit.options.outcome", "credit.options.outcome_options"
        if is_own(self.outcome):
            return own_rule(self.outcome, self.outcome_options, key=key, options_key=options_key)
        try:
            name = check_name(self.outcome, OUTCOME, key, "rule", "my_module:my_rule")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.outcome_options:
            raise ConfigError(f"{options_key} are those of a rule of your own; {name} has none: drop them")
        return OUTCOME[name]

    def turn_advantages(self, group: Group) -> list[tuple[TurnAdvantage, ...]]:
        """[trajectories][turns] both mixed; one number a token for turns with spans."""
        outcome = asked(self._outcome, group, self.outcome)
        if self.alpha == 1.0:
            return outcome
        graded = list(zip(group.trajectories, group.grades, strict=True))
        rewards = [self._rewards(trajectory, grade, group) for trajectory, grade in graded]
        state = state_advantages(rewards, raw_if_alone=self.lone_step == "raw")
        share = (1 - self.alpha) * self.state_scale
        turns = [mixed(each, own, self.alpha, share) for each, own in zip(outcome, state, strict=True)]
        return [spans.on_top(*played, each, share) for played, each in zip(graded, turns, strict=True)]

    def _rewards(self, trajectory: Trajectory, grade: Grade, group: Group) -> Sequence[float]:
        """[turns] rewards of a trajectory's turns, those of spans included."""
        turns = len(trajectory.turns)
        per_turn = (0.0,) * turns if grade.per_turn is None and (grade.spans or not turns) else grade.per_turn
        if per_turn is None or len(per_turn) != turns:
            given = "none" if per_turn is None else str(len(per_turn))
            raise RunError(
                f"credit.rule=state_mix: group {group.problem.id}, rollout {trajectory.rollout}: {turns} turns, "
                f"{given} turn rewards; credit.options.alpha={self.alpha} needs a reward of every turn "
                "(Grade.per_turn or Grade.spans)"
            )
        if not grade.spans:
            return per_turn
        return [own + mean for own, mean in zip(per_turn, spans.span_means(trajectory, grade), strict=True)]


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
    """Of equal rewards that reward itself, which a sum of them divided by their number need not be.

    >>> _mean([0.2] * 3), fmean([0.2] * 3) == 0.2
    (0.2, False)
    """
    return rewards[0] if min(rewards) == max(rewards) else fmean(rewards)


def mixed(
    outcome: Sequence[TurnAdvantage], state: Sequence[float], alpha: float, share: float
) -> tuple[TurnAdvantage, ...]:
    """[turns] a trajectory's advantages: `alpha` of its outcome's, `share` of its turns' own.

    >>> mixed([0.5, (0.5, 1.0)], [1.0, -1.0], 0.75, 0.25)
    (0.625, (0.125, 0.5))
    """
    return tuple(
        alpha * of_outcome + share * own
        if isinstance(of_outcome, float)
        else tuple(alpha * of_token + share * own for of_token in of_outcome)
        for of_outcome, own in zip(outcome, state, strict=True)
    )

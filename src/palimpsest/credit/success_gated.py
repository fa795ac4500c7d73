"""Credit for cheap edits of the context, for successes only, after Context Language Models (arXiv 2609.37725).

    S        trajectories of the group with a reward of at least `success`
    c_i      cost of trajectory i: new prompt tokens and sampled ones, plus `attention` times their pairs
    A_eff,i  clip((mean of c over S - c_i) / mean of c over S, -1, 1) for i in S, if S has at least two; otherwise 0
    A_i,k    A_out,i + weight * A_eff,i for a sampled token k of an edit, A_out,i for all others

A_out is the advantage by the rule that `outcome` names. Edits are the calls that changed the context (`prune`, `edit`)
and the summaries of `summary`. The cost is the paper's, in FLOPs over C_token (rollout/token_costs.py): with
`attention` = C_attention / C_token it gives the paper's A_eff, since the unit cancels; with 0 only tokens count.

Guaranteed: failures, groups with one success and tokens outside of edits get exactly A_out; all successes of equal cost
as well.
Not covered: a cheap success that made no edit: it lowers the mean, and has no token to credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from palimpsest import plugins
from palimpsest.config.schema import OUTCOMES
from palimpsest.credit.advantages import Rule, TurnAdvantage, rule_advantages
from palimpsest.errors import ConfigError
from palimpsest.events import Pruned, SummedUp
from palimpsest.plugin_kinds import KINDS
from palimpsest.rollout.token_costs import ReuseCost
from palimpsest.types import Group, Span, Trajectory


@dataclass(frozen=True, slots=True)
class SuccessGated:
    """`credit.adv_estimator: success_gated`, with these as `credit.options`."""

    outcome: str = "mean_std"
    """The rule of A_out: mean, mean_std, leave_one_out, or my_module:my_rule."""
    weight: float = 0.25
    """Weight of A_eff; the paper's."""
    success: float = 1.0
    """Smallest reward of a success."""
    attention: float = 0.0
    """FLOPs of a pair of tokens over those of a token: 2 x layers x heads x head size / weights that a token uses."""
    _outcome: Rule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("weight", "attention"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError("must be at least 0", key=f"credit.options.{name}", value=getattr(self, name))
        key = "credit.options.outcome"
        if self.outcome in KINDS["rule"].shipped and self.outcome not in OUTCOMES:
            raise ConfigError(f"choose one of {', '.join(OUTCOMES)}, or a custom rule", key=key, value=self.outcome)
        object.__setattr__(self, "_outcome", plugins.build("rule", self.outcome, {}, key=key))

    def turn_advantages(self, group: Group) -> list[tuple[TurnAdvantage, ...]]:
        """[trajectories][turns] A_out; one number per token for turns with edits of a success."""
        outcome = rule_advantages(self._outcome, group, self.outcome)
        graded = zip(outcome, self.efficiency(group), group.trajectories, strict=True)
        return [
            _on_edits(turns, self.weight * extra, trajectory) if extra else turns for turns, extra, trajectory in graded
        ]

    def efficiency(self, group: Group) -> list[float]:
        """[trajectories] A_eff."""
        costs = [self.cost(trajectory) for trajectory in group.trajectories]
        succeeded = [grade.value is not None and grade.value >= self.success for grade in group.grades]
        of_successes = [cost for cost, right in zip(costs, succeeded, strict=True) if right]
        if len(of_successes) < 2 or min(of_successes) == max(of_successes):
            return [0.0] * len(costs)
        mean = fmean(of_successes)
        return [
            max(-1.0, min(1.0, (mean - cost) / mean)) if right else 0.0
            for cost, right in zip(costs, succeeded, strict=True)
        ]

    def cost(self, trajectory: Trajectory) -> float:
        cost = ReuseCost.of(trajectory.turns)
        return cost.computed + self.attention * cost.pairs


def edited_tokens(trajectory: Trajectory) -> dict[int, list[Span]]:
    """Turns with edits, by number, to the sampled tokens of these as [start, end)."""
    found: dict[int, list[Span]] = {}
    for event in trajectory.events:
        if isinstance(event.what, Pruned):
            found.setdefault(event.before_turn - 1, []).append(event.what.tokens)
        elif isinstance(event.what, SummedUp) and trajectory.turns[turn := event.before_turn - 1].name == "summarise":
            found.setdefault(turn, []).append((0, len(trajectory.turns[turn].completion.token_ids)))
    return found


def _on_edits(turns: Sequence[TurnAdvantage], extra: float, trajectory: Trajectory) -> tuple[TurnAdvantage, ...]:
    result = list(turns)
    for number, spans in edited_tokens(trajectory).items():
        value, length = turns[number], len(trajectory.turns[number].completion.token_ids)
        tokens = [value] * length if isinstance(value, float) else value
        inside = {position for start, end in spans for position in range(start, end)}
        result[number] = tuple(one + extra if at in inside else one for at, one in enumerate(tokens))
    return tuple(result)

"""Credit rules by name: from the grades of a group to the advantage of every turn.

    mean, mean_std, leave_one_out   the trajectory's advantage, at each of its turns (credit/outcome.py)
    state_mix                       one of these, mixed with advantages of the turns' own (credit/state.py)
    my_module:my_rule               a function (group) -> advantages, or a class with the method `turn_advantages`

A rule is shown the graded trajectories of a group alone, with what counts as their rewards (a penalty for long turns is
off already), and gives for each of them a number, or one number a turn; in the place of a turn's, one number a token.

Guaranteed, whatever the rule: an ungraded trajectory is in nobody's statistics, as no rule sees it; a lone survivor of
a group that failures thinned out gets 0, as there is nothing to compare it with; what comes back is finite and of the
right lengths, or the run ends with the reason in words; a rule is made anew for each step, so that a resumed run gives
the same.
Not covered: whether a user's rule is unbiased, or gives 0 where all rewards are equal (`palimpsest check` tells).
"""

from __future__ import annotations

from collections.abc import Iterable

from palimpsest.config.options import build
from palimpsest.config.schema import STATE_MIX, CreditConfig
from palimpsest.credit.outcome import OUTCOME, Rule, own_rule
from palimpsest.credit.state import StateMix
from palimpsest.plugins import is_own
from palimpsest.types import Group


def build_rule(config: CreditConfig) -> Rule:
    """The rule that `credit.rule` names. Raises ConfigError."""
    if is_own(config.rule):
        return own_rule(config.rule, config.options, options_key="credit.options")
    if config.rule == STATE_MIX:
        return _state_mix(config).turn_advantages
    return OUTCOME[config.rule]


def unread(groups: Iterable[Group], config: CreditConfig) -> str | None:
    """In words, which rewards of these groups' turns no shipped rule looks at; None where there are none."""
    if is_own(config.rule) or (config.rule == STATE_MIX and _state_mix(config).alpha < 1):
        return None
    grades = [grade for group in groups for grade in group.grades if grade.graded]
    parts = [part for part in ("per_turn", "spans") if any(getattr(grade, part) for grade in grades)]
    if not parts:
        return None
    rule = "credit.options.alpha=1" if config.rule == STATE_MIX else f"credit.rule={config.rule}"
    return (
        f"the reward gives {' and '.join(parts)}, which {rule} does not look at, so the outcome alone is learnt from; "
        "credit.rule=state_mix with an alpha below 1 mixes them in"
    )


def _state_mix(config: CreditConfig) -> StateMix:
    return build(StateMix, config.options, "credit.options", STATE_MIX)

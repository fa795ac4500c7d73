"""Advantages of single turns, and how they join the outcome's: ReMemR1 (arXiv 2509.23040).

    A_out,i    the trajectory's, from its group's rewards (credit.rule; a rule of one's own may give A_out,i,t)
    A_st,i,t   R_st,i,t - mean of R_st,j,t over the trajectories j of the group that have a turn t
    A_i,t      alpha * A_out,i + (1 - alpha) * A_st,i,t

No standard deviation in A_st, as in paper and code. Turns are compared with turns at the same step index, for they had
as much of the document in sight. Where trajectories differ in length, the longer ones' last turns have fewer to compare
with; a turn that is alone at its index has none, and gets A_st = 0 (`lone_step: zero`). The authors' code takes the
mean over one as 0 there, so that the turn's raw reward is its advantage (`lone_step: raw`); it also adds the state's
advantage up over two columns, twice what alpha says (`state_scale: 2`).

Guaranteed: with alpha = 1 every turn gets exactly A_out,i, the same floating-point number.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from palimpsest.config.schema import CreditConfig


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
    means = [fmean(step) if len(step) > 1 else 0.0 if raw_if_alone else step[0] for step in steps]
    return [[reward - mean for reward, mean in zip(rewards, means, strict=False)] for rewards in per_turn]


def mixed(outcome: Sequence[float], state: Sequence[float], config: CreditConfig) -> tuple[float, ...]:
    """[turns] a trajectory's advantages from those of its outcome and its turns' own, [turns] both.

    >>> mixed([0.5, 0.5], [1.0, -1.0], CreditConfig(alpha=0.75))
    (0.625, 0.125)
    """
    if config.alpha == 1.0:
        return tuple(outcome)
    share = (1 - config.alpha) * config.state_scale
    return tuple(config.alpha * of_outcome + share * own for of_outcome, own in zip(outcome, state, strict=True))

"""DAPO (arXiv 2503.14476): dynamic sampling (eq. 11) and the soft overlong punishment (eq. 13).

Dynamic sampling keeps a group only if 0 < number of correct answers < G: equal rewards give every trajectory the
advantage 0, for any baseline. Dropped groups leave the denominator of `agg_mode`. The test uses the reward before any
overlong penalty, as in the paper. Under a rule that reads rewards of turns, `assign.has_signal` also keeps a group in
which one of them has an advantage.

For a completion of y sampled tokens, with L = max_tokens and B = buffer, the overlong punishment adds to the reward

    0                    y <= L - B
    ((L - B) - y) / B    L - B < y <= L
    -1                   L < y

The paper's episodes have one completion. An episode of several turns gets the mean over its turns, times `penalty`, so
that a long document costs no more than a short one. It is applied before the group statistics. Turns without sampled
tokens count as short; turns of frozen roles don't count.

Not covered: sampling other groups to replace dropped ones, which is up to the training loop.
"""

from __future__ import annotations

from statistics import fmean

from palimpsest.config.schema import OverlongConfig
from palimpsest.types import Group, Trajectory


def graded_rewards(group: Group) -> list[float]:
    return [grade.value for grade in group.grades if grade.value is not None]


def comparable(group: Group) -> bool:
    """Whether statistics over the group's rewards are meaningful.

    A lone survivor of a group with failures has no baseline. A group of one by design has the baseline 0.
    """
    return len(graded_rewards(group)) > 1 or (len(group.grades) == 1 and group.grades[0].graded)


def rewards_differ(group: Group) -> bool:
    """Whether any trajectory gets an advantage other than 0 from its reward.

    >>> from palimpsest.types import Grade, Outcome, Problem, Trajectory
    >>> def group(*values):
    ...     played = [Trajectory("p", "g", i, (), Outcome.ANSWERED) for i in range(len(values))]
    ...     return Group(Problem("p", "?", ("a",)), tuple(played), tuple(map(Grade, values)))
    >>> rewards_differ(group(1.0, 0.0)), rewards_differ(group(1.0, 1.0)), rewards_differ(group(1.0, None))
    (True, False, False)
    """
    rewards = graded_rewards(group)
    if not comparable(group):
        return False
    return min(rewards) != max(rewards) if len(rewards) > 1 else rewards[0] != 0.0


def penalty(trajectory: Trajectory, config: OverlongConfig) -> float:
    """The penalty to subtract from the trajectory's reward, in [0, config.penalty].

    >>> from palimpsest.types import Completion, Outcome, StopReason, Turn
    >>> def played(*lengths):
    ...     turns = [Turn((1,), Completion((2,) * n, (0.0,) * n, StopReason.STOP), 0, "act") for n in lengths]
    ...     return Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED)
    >>> config = OverlongConfig(max_tokens=10, buffer=4)
    >>> [penalty(played(n), config) for n in (6, 7, 10, 11)], penalty(played(6, 8), config)
    ([0.0, 0.25, 1.0, 1.0], 0.25)
    """
    lengths = [len(turn.completion.token_ids) for turn in trajectory.turns if turn.trained]
    if not lengths:
        return 0.0
    free = config.max_tokens - config.buffer
    excess = [(length - free) / config.buffer for length in lengths]
    return config.penalty * fmean(min(max(share, 0.0), 1.0) for share in excess)

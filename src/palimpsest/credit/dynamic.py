"""Dynamic sampling: DAPO (arXiv 2503.14476, eq. 11).

The paper keeps a group only if 0 < number of correct answers < G: equal rewards give every trajectory the
advantage 0, whatever the baseline, and such groups dilute the others. Dropped groups leave the denominator of
`aggregate`; playing others in their place is the training loop's part. As in the paper it's the reward itself
that is looked at, before any overlong penalty.
"""

from __future__ import annotations

from collections.abc import Iterable

from palimpsest.types import Group


def graded_rewards(group: Group) -> list[float]:
    """The rewards that count: ungraded trajectories have none."""
    return [grade.value for grade in group.grades if grade.value is not None]


def comparable(group: Group) -> bool:
    """Whether statistics over the group's rewards say anything.

    A lone survivor of a group that failures thinned out has nothing to be compared with. A group played with
    a single rollout on purpose has: its baseline is 0 by convention.
    """
    return len(graded_rewards(group)) > 1 or (len(group.grades) == 1 and group.grades[0].graded)


def has_signal(group: Group) -> bool:
    """Whether any trajectory gets an advantage other than 0 from its reward.

    >>> from palimpsest.types import Grade, Outcome, Problem, Trajectory
    >>> def group(*values):
    ...     played = [Trajectory("p", "g", i, (), Outcome.ANSWERED) for i in range(len(values))]
    ...     return Group(Problem("p", "?", ("a",)), tuple(played), tuple(map(Grade, values)))
    >>> has_signal(group(1.0, 0.0)), has_signal(group(1.0, 1.0)), has_signal(group(1.0, None))
    (True, False, False)
    """
    rewards = graded_rewards(group)
    if not comparable(group):
        return False
    return min(rewards) != max(rewards) if len(rewards) > 1 else rewards[0] != 0.0


def partition(groups: Iterable[Group]) -> tuple[list[Group], list[Group]]:
    """Groups with a signal and groups without, each in their order."""
    with_signal: list[Group] = []
    without: list[Group] = []
    for group in groups:
        (with_signal if has_signal(group) else without).append(group)
    return with_signal, without

"""Advantages and rows of agents that fracture unevenly: DCPO, the algorithm of MemAct.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)     over the trajectories of a group, each once; std divides by G - 1

and every trained token of trajectory i gets A_i, in whichever of its segments it stands. Of a group either all
segments are trained, or exactly n, sampled in rounds: a round takes the trajectories in a fresh random order, one
segment each, and the last round stops at n. A trajectory gives each of its segments once, in random order, before it
gives any again. So with n below the number of trajectories n of them give one segment; above it every one gives n / G,
rounded up or down, however often it pruned.

Paper and code agree on the formula where n is at least G; below, the code's statistics see only the trajectories that
were drawn, ours all, as the paper says. The code draws from the global, unseeded generator; here a draw is keyed by the
group and the rollout, whatever their order. A group of one takes mean 0 and deviation 1, as in the code; where failed
trajectories leave one of several, it gets 0, as everywhere here (credit/assign.py). The code's rows are then averaged
over their tokens (`aggregate: token`).

Guaranteed: pure; the order of a group's trajectories changes nothing but the order of rows; an ungraded trajectory, or
one that sampled nothing, gives no row, and only the former is left out of the statistics.
Not covered: what sampling breaks by design: a token may be trained twice or not at all in a step. How much a
trajectory weighs in the end is what `effective_weights` is for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count

from palimpsest.credit import mean_std
from palimpsest.credit.aggregate import CreditedSegment
from palimpsest.credit.dynamic import comparable, graded_rewards
from palimpsest.engines.protocol import TrainSegment
from palimpsest.rollout.segments import segments_of
from palimpsest.seeding import Key, derive_seed, keyed_random
from palimpsest.types import Group


def credit(group: Group, key: tuple[Key, ...], segments: int | None = None) -> tuple[CreditedSegment, ...]:
    """The rows of a group with their advantages, by rollout: `segments` of them, or all if None.

    `key` is the group's, of no other group of the step, e.g. (run seed, "dcpo", step, problem id). Rows are ready for
    `weigh`; a segment drawn twice is two rows.
    """
    if len({trajectory.rollout for trajectory in group.trajectories}) < len(group.trajectories):
        raise ValueError(f"group {group.problem.id}: two trajectories of one rollout number")
    graded = {
        trajectory.rollout: (advantage, segments_of(trajectory))
        for trajectory, advantage in zip(group.trajectories, trajectory_advantages(group), strict=True)
        if advantage is not None
    }
    counts = {rollout: len(own) for rollout, (_, own) in graded.items()}
    picks = every_segment(counts) if segments is None else sample_segments(counts, segments, *key)
    rows: list[CreditedSegment] = []
    for rollout, place in picks:
        advantage, own = graded[rollout]
        spread = tuple(advantage if trained else 0.0 for trained in own[place].loss_mask)
        rows.append(CreditedSegment(own[place], spread, trajectory=(key, rollout), group=key))
    return tuple(rows)


def trajectory_advantages(group: Group) -> tuple[float | None, ...]:
    """[G] advantage of each trajectory, None where ungraded.

    >>> from palimpsest.types import Grade, Outcome, Problem, Trajectory
    >>> played = tuple(Trajectory("p", "g", i, (), Outcome.ANSWERED) for i in range(4))
    >>> group = Group(Problem("p", "?", ("a",)), played, tuple(map(Grade, (1.0, 0.0, None, -1.0))))
    >>> [advantage and round(advantage, 4) for advantage in trajectory_advantages(group)]
    [1.0, 0.0, None, -1.0]
    """
    rewards = graded_rewards(group)
    shares = iter(mean_std.advantages(rewards) if comparable(group) else [0.0] * len(rewards))
    return tuple(next(shares) if grade.graded else None for grade in group.grades)


def sample_segments(counts: Mapping[int, int], n: int, *key: Key) -> tuple[tuple[int, int], ...]:
    """Exactly `n` of (rollout, segment), sorted; none if no rollout has a segment.

    `counts`: how many segments each rollout has. Three rollouts, the second with one segment, and six rows:

    >>> picks = sample_segments({0: 3, 1: 1, 2: 2}, 6, 7, "dcpo", 0, "p")
    >>> [rollout for rollout, _ in picks], picks.count((1, 0)), picks[4:]
    ([0, 0, 1, 1, 2, 2], 2, ((2, 0), (2, 1)))
    """
    if n < 1:
        raise ValueError(f"n={n}: sample at least 1 segment of a group, or take all")
    rollouts = [rollout for rollout, own in counts.items() if own]
    picks: list[tuple[int, int]] = []
    for turn in count() if rollouts else ():
        rollouts.sort(key=lambda rollout, turn=turn: derive_seed(*key, "order", turn, rollout))  # type: ignore[misc]
        picks += [(rollout, _draw(counts[rollout], turn, *key, rollout)) for rollout in rollouts[: n - len(picks)]]
        if len(picks) == n:
            break
    return tuple(sorted(picks))


def _draw(own: int, turn: int, *key: Key) -> int:
    """The segment a rollout gives in its turn: a new one while there are any, then any."""
    if turn < own:
        return keyed_random(*key, "new").sample(range(own), own)[turn]
    return keyed_random(*key, "again", turn).randrange(own)


def every_segment(counts: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """All of (rollout, segment), sorted.

    >>> every_segment({1: 1, 0: 2})
    ((0, 0), (0, 1), (1, 0))
    """
    return tuple((rollout, place) for rollout in sorted(counts) for place in range(counts[rollout]))


def effective_weights(rows: Sequence[CreditedSegment], weighed: Sequence[TrainSegment]) -> dict[Hashable, float]:
    """Share of the step's loss that each trajectory has, by `CreditedSegment.trajectory`; they add up to 1.

    `weighed`: what `weigh` made of `rows`, in order.
    """
    shares: dict[Hashable, float] = {}
    for row, one in zip(rows, weighed, strict=True):
        shares[row.trajectory] = shares.get(row.trajectory, 0.0) + sum(one.weights)
    return shares

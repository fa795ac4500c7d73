"""DCPO, the algorithm of MemAct: selection of the segments of a group to train, and each trajectory's weight.

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)     over the trajectories of a group, each once; std divides by G - 1

Every trained token of trajectory i gets A_i, in every segment; that is `credit.adv_estimator: mean_std`
(credit/assign.py). DCPO adds the sampling: either all segments of a group are trained, or exactly n
(`credit.segments_per_group`), drawn in rounds. A round takes the trajectories in a new random order, one segment each,
and the last round stops at n. A trajectory gives each of its segments once, in random order, before it repeats any. If
n is below the number of trajectories, n of them give one segment; otherwise each gives n / G, rounded up or down,
regardless of its number of prunes.

Paper and code agree on the formula if n is at least G. Below, the code's statistics cover only the drawn trajectories;
ours cover all, as in the paper. The code draws from the global, unseeded generator; here a draw is keyed by the group
and the rollout. The code then averages rows over their tokens (`agg_mode: token`).

Guaranteed: pure; a draw depends only on the key, the rollout numbers and their numbers of segments; a trajectory
without a segment gives no row.
Not covered: equal training of tokens. With sampling a token may be trained twice or not at all in a step;
`effective_weights` reports how much each trajectory weighs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count

from palimpsest.credit.aggregate import CreditedSegment
from palimpsest.engines.protocol import TrainSegment
from palimpsest.seeding import Key, derive_seed, keyed_random


def sample_segments(counts: Mapping[int, int], n: int, *key: Key) -> tuple[tuple[int, int], ...]:
    """Exactly `n` of (rollout, segment), sorted; none if no rollout has a segment.

    `counts`: how many segments each rollout has. Three rollouts, the second with one segment, and six rows:

    >>> picks = sample_segments({0: 3, 1: 1, 2: 2}, 6, 7, "dcpo", 0, "p")
    >>> [rollout for rollout, _ in picks], picks.count((1, 0)), picks[4:]
    ([0, 0, 1, 1, 2, 2], 2, ((2, 0), (2, 1)))
    """
    if n < 1:
        raise ValueError(f"n={n}: sample at least 1 segment of a group, or take all")
    rollouts = [rollout for rollout, size in counts.items() if size]
    picks: list[tuple[int, int]] = []
    for turn in count() if rollouts else ():
        rollouts.sort(key=lambda rollout, turn=turn: derive_seed(*key, "order", turn, rollout))  # type: ignore[misc]
        picks += [(rollout, _draw(counts[rollout], turn, *key, rollout)) for rollout in rollouts[: n - len(picks)]]
        if len(picks) == n:
            break
    return tuple(sorted(picks))


def _draw(size: int, turn: int, *key: Key) -> int:
    """The segment of a rollout in turn `turn`: unused segments first, then any."""
    if turn < size:
        return keyed_random(*key, "new").sample(range(size), size)[turn]
    return keyed_random(*key, "again", turn).randrange(size)


def effective_weights(rows: Sequence[CreditedSegment], weighed: Sequence[TrainSegment]) -> dict[Hashable, float]:
    """Each trajectory's share of the step's loss, by `CreditedSegment.trajectory`; the shares add up to 1.

    `weighed`: `weigh(rows)`, in order.
    """
    shares: dict[Hashable, float] = {}
    for row, one in zip(rows, weighed, strict=True):
        shares[row.trajectory] = shares.get(row.trajectory, 0.0) + sum(one.weights)
    return shares

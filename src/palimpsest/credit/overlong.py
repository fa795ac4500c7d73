"""Soft overlong punishment: DAPO (arXiv 2503.14476, eq. 13).

For a completion of y sampled tokens, with L = max_tokens and B = buffer, the paper adds to the reward

    0                    y <= L - B
    ((L - B) - y) / B    L - B < y <= L
    -1                   L < y

The paper's episodes are one completion long. An episode of several turns gets the mean over its turns, times
`penalty`, so that one long turn in ten costs a tenth: a long document must not cost more than a short one.
Applied before the group statistics; turns that sampled nothing count as short, turns of frozen roles not at all.
"""

from __future__ import annotations

from statistics import fmean

from palimpsest.config.schema import OverlongConfig
from palimpsest.types import Trajectory


def penalty(trajectory: Trajectory, config: OverlongConfig) -> float:
    """What to subtract from the trajectory's reward, in [0, config.penalty].

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

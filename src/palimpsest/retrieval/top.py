"""The best of many scores."""

from __future__ import annotations

import numpy as np

_BLOCK = 256  # scores looked at as one; a power of two that a core adds up in a microsecond


def top(scores_N: np.ndarray, topk: int) -> np.ndarray:
    """Places of the `topk` largest scores, largest first, equal ones in order.

    The k-th largest of the blocks' maxima is a lower bound of the k-th largest score, so all but a few scores are
    ruled out by one comparison and none but those is sorted.

    >>> top(np.array([0.0, 2.0, 1.0, 2.0, 1.0]), 3).tolist()
    [1, 3, 2]
    """
    blocks = len(scores_N) // _BLOCK
    if blocks > topk:
        maxima = scores_N[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        places = np.flatnonzero(scores_N >= np.partition(maxima, blocks - topk)[blocks - topk])
    else:
        places = np.arange(len(scores_N))
    if len(places) > topk:
        kept = scores_N[places]
        places = places[kept >= np.partition(kept, len(places) - topk)[len(places) - topk]]
    return places[np.argsort(-scores_N[places], kind="stable")][:topk]

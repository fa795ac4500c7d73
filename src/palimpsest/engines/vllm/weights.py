"""What tells whether a server samples from the weights that it was told to load: the learner and it score the same ids.

Both of vLLM's silent faults (docs/vllm.md), and whatever else answers well and keeps old weights, show as scores that
are off the learner's, or that stay the same to the last bit while the learner's move.

Guaranteed: what is off by more than rounding in the weights' dtype is an error.
Not covered: weights of which a part is old and that part hardly differs from the new one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.engines.vllm.answers import WrongAnswer

_TOLERANCE = {"float32": 0.02, "bfloat16": 0.5}
"""Nats a token, in the mean, that kernels may be apart, by the weights' dtype."""
_MOVED = 0.02
"""Share of the tolerance by which the learner must have moved before a server must have, too."""
_IDS = 32
_LARGE, _SPECIAL = 4000, 1000  # a large vocabulary has its special tokens at either end
_STRIDE = 7919  # a prime: the ids are spread over the vocabulary


def probe_ids(vocab: int, window: int) -> tuple[int, ...]:
    """Ids that a model is scored on; a server samples one more.

    >>> probe_ids(10, 5)
    (0, 9, 8, 7)
    """
    first, last = (_SPECIAL, vocab // 2) if vocab > _LARGE else (0, vocab)
    return tuple(first + place * _STRIDE % (last - first) for place in range(min(_IDS, window - 1)))


@dataclass(frozen=True, slots=True)
class Probe:
    """What the learner says of some ids under the weights that are published."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[T - 1] nats of each of `ids` after those before it, at temperature 1."""
    dtype: str
    """Of the weights."""

    @property
    def tolerance(self) -> float:
        return _TOLERANCE[self.dtype]


Scored = tuple[Probe, tuple[float, ...]]
"""A probe, and what a server said of its ids."""


def check_scores(now: Scored, before: Scored | None) -> None:
    """Refuse scores of other weights than the learner's; `before`: of the weights published before. Raises
    WrongAnswer."""
    probe, scores = now
    if (off := _distance(probe.logprobs, scores)) > probe.tolerance:
        raise WrongAnswer(
            f"is {off:.2g} nats a token off the learner: it samples from other weights than it was given, or "
            f"computes in another --dtype than model.dtype={probe.dtype}"
        )
    if before is None or before[1] != scores:
        return
    if (moved := _distance(before[0].logprobs, probe.logprobs)) > probe.tolerance * _MOVED:
        raise WrongAnswer(f"scores as before it was given new weights, which moved the learner by {moved:.2g} nats")


def _distance(these: Sequence[float], those: Sequence[float]) -> float:
    """Nats a token."""
    return fmean(abs(a - b) for a, b in zip(these, those, strict=True))


def check_loaded(answer: Any) -> None:
    """Refuse what `reload_weights` answered where it says that it failed: vLLM's says null for each of its workers.
    Raises WrongAnswer."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if results is None:
        return
    failed = [each for each in results if each in (False, "False") or "error" in str(each).lower()]
    if not results or failed:
        raise WrongAnswer(f"answered {failed or results!r} when it was to load new weights")


def is_tied(model: str) -> bool:
    """Whether the folder that a server was started on says that its output projection is its embeddings.

    False where that isn't known: a folder that this machine doesn't see.
    """
    try:
        described = json.loads((Path(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    sections = [described, described.get("text_config")] if isinstance(described, dict) else []
    return any(isinstance(each, dict) and each.get("tie_word_embeddings") is True for each in sections)

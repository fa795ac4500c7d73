"""One item of a task before its length is chosen, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from palimpsest.data.ruler.definitions import Prompt

CLOSE = 0.02
"""A prompt takes at least this share less than the length asked for, and never more than it."""
_AROUND = 12
_AIM = 0.993


@dataclass(frozen=True, slots=True)
class Sample:
    """One question with a context of any size."""

    prompt: Prompt
    names: Mapping[str, str]
    """What the prompt's fields stand for."""
    outputs: tuple[str, ...]
    evidence: tuple[str, ...]
    """Texts of the context that the answer needs; empty where it needs all of it."""
    context: Callable[[int], str]
    """The context of so many units of filler (sentences, words), from 0; the same for the same number."""
    most: int | None = None
    """Units that there are."""

    def length(self, context: str, count: Callable[[str], int]) -> int:
        """Tokens of the whole prompt and of the answer that may follow, as published."""
        return count(self.prompt.whole(context, self.names)) + self.prompt.tokens_to_generate


def fitted(measure: Callable[[int], int], limit: int, *, hint: int = 1, most: int | None = None) -> int | None:
    """A size whose measure is within 2% below `limit`; None if none is found.

    Looks where a straight line through what is known would meet the limit, every third time in the middle; then at the
    sizes around, for a measure may waver by a few tokens.

    >>> fitted(lambda size: 100 + 7 * size, 10_000), fitted(lambda size: 100 + 7 * size, 105)
    (1404, None)
    """
    least = measure(0)
    if least > limit:
        return None
    low, low_at, high, high_at = 0, least, most if most is None else most + 1, 0
    tries, size = 0, hint
    while low_at < (1 - CLOSE) * limit:
        if high is not None and high - low <= 1:
            around = range(max(0, low - _AROUND), low + _AROUND if most is None else min(low + _AROUND, most) + 1)
            return next((size for size in around if (1 - CLOSE) * limit <= measure(size) <= limit), None)
        size = max(low + 1, size if high is None else min(size, high - 1))
        if (at := measure(size)) <= limit:
            low, low_at = size, at
        else:
            high, high_at = size, at
        tries += 1
        size = _next(low, low_at, high, high_at, least, limit, middle=tries % 3 == 0)
    return low


def _next(low: int, low_at: int, high: int | None, high_at: int, least: int, limit: int, *, middle: bool) -> int:
    if high is not None and (middle or not high_at):
        return (low + high) // 2
    rise = (high_at - low_at) / (high - low) if high is not None else (low_at - least) / low if low else 1.0
    guess = low + int((_AIM * limit - low_at) / max(rise, 1e-6))
    return guess if high is not None else min(guess, 8 * low + 64)

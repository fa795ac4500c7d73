"""Needles in a haystack: of noise, of a text of the user's, or of other needles.

The haystack's units are sentences of noise, words of the text, or needles; the last line of a haystack of needles may
be a few sentences of noise, so that any length can be met.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from palimpsest.data.ruler import words
from palimpsest.data.ruler.definitions import NEEDLE, NOISE, PROMPTS, Task
from palimpsest.data.ruler.sample import Sample
from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random

_LEAST_WORDS = 100
_DEPTHS = tuple(round(100 * i / 39) for i in range(40))
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
Key = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Essay:
    """A text that needles are hidden in, repeated where it is too short."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Essay:
        return cls(tuple(text.split()))

    @classmethod
    def read(cls, path: Path) -> Essay:
        """The text of a file. Raises DataError."""
        try:
            essay = cls.of(path.read_text("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 at byte {error.start}; a haystack is plain text") from None
        except OSError as error:
            raise DataError(f"{path}: can't be read ({error.strerror})") from None
        if len(essay.words) < _LEAST_WORDS:
            raise DataError(f"{path}: holds {len(essay.words)} words; a haystack needs {_LEAST_WORDS}")
        return essay

    def sentences(self, size: int) -> list[str]:
        """The first `size` words, as sentences; the last ends in a full stop wherever it is cut.

        >>> Essay.of("One two. Three.").sentences(4)
        ['One two.', 'Three.', 'One.']
        """
        times = -(-size // len(self.words))
        text = " ".join((self.words * times)[:size])
        return _SENTENCE_END.split(text if text.endswith((".", "!", "?")) else f"{text}.") if text else []


def niah(task: Task, key: Key, *, essay: Essay | None, count: Callable[[str], int]) -> Sample:
    """One item. `count` tells how many sentences of noise a needle is worth."""
    rng = keyed_random(*key)
    keys = list(islice(words.distinct(task.keys, rng), task.numbers.get("keys", 1)))
    per_key, asked = task.numbers.get("values", 1), task.numbers.get("queries", 1)
    drawn = words.distinct(task.values, rng)
    held = {name: list(islice(drawn, per_key)) for name in keys}
    needles = [NEEDLE.format(kind=task.values, key=name, value=value) for name in keys for value in held[name]]
    rng.shuffle(needles)
    queries = rng.sample(keys, asked)
    outputs = tuple(value for name in queries for value in held[name])
    evidence = [NEEDLE.format(kind=task.values, key=name, value=value) for name in queries for value in held[name]]
    context: Callable[[int], str]
    if task.haystack == "essay":
        assert essay is not None
        context = _in_essay(essay, needles, key)
    elif task.haystack == "noise":
        context = _in_lines(needles, key, _noise_lines)
    else:
        others = _Needles(task, key, frozenset({*keys, *outputs}), max(1, count(needles[0]) // count(NOISE[0])))
        context = _in_lines(needles, key, others.lines)
    return Sample(
        PROMPTS["niah" if per_key * asked > 1 else "niah of one"],
        {"values": task.values, "value": task.values.removesuffix("s"), "query": _listed(queries)},
        outputs,
        tuple(evidence),
        context,
    )


def _listed(queries: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b, and c')
    """
    return f"{', '.join(queries[:-1])}, and {queries[-1]}" if len(queries) > 1 else queries[0]


def _in_essay(essay: Essay, needles: Sequence[str], key: Key) -> Callable[[int], str]:
    """Needles between sentences, at depths drawn of 40 even ones."""

    def context(size: int) -> str:
        sentences = essay.sentences(size)
        depths = sorted(keyed_random(*key, "depths").sample(_DEPTHS, len(needles)))
        for depth, needle in reversed(list(zip(depths, needles, strict=True))):
            sentences.insert(len(sentences) * depth // 100, needle)
        return " ".join(sentences)

    return context


def _in_lines(needles: Sequence[str], key: Key, lines: Callable[[int], list[str]]) -> Callable[[int], str]:
    """Needles between lines, each place as likely."""

    def context(size: int) -> str:
        made = lines(size)
        return "\n".join(inserted(made, needles, keyed_random(*key, "places", size)))

    return context


def inserted(lines: list[str], extra: Sequence[str], rng: random.Random) -> list[str]:
    """`extra` in its order among `lines`, every choice of places as likely.

    >>> inserted(["a", "b"], ["X", "Y"], random.Random(0))
    ['a', 'X', 'b', 'Y']
    """
    places = set(rng.sample(range(len(lines) + len(extra)), len(extra)))
    ours, theirs = iter(extra), iter(lines)
    return [next(ours) if i in places else next(theirs) for i in range(len(lines) + len(extra))]


def _noise_lines(size: int) -> list[str]:
    """`size` sentences of noise, five a line."""
    lines, rest = divmod(size, len(NOISE))
    return [" ".join(NOISE)] * lines + ([" ".join(NOISE[:rest])] if rest else [])


class _Needles:
    """Lines of needles that nobody asks for, `worth` units each, and a last one of noise for what is left."""

    def __init__(self, task: Task, key: Key, taken: frozenset[str], worth: int) -> None:
        self._keys = words.distinct(task.keys, keyed_random(*key, "keys"), taken)
        self._values = words.distinct(task.values, keyed_random(*key, "values"), taken)
        self._kind, self._worth = task.values, worth
        self._made: list[str] = []

    def lines(self, size: int) -> list[str]:
        count, rest = divmod(size, self._worth)
        while len(self._made) < count:
            pair = {"key": next(self._keys), "value": next(self._values)}
            self._made.append(NEEDLE.format(kind=self._kind, **pair))
        noise = [NOISE[i % len(NOISE)] for i in range(rest)]
        return self._made[:count] + ([" ".join(noise)] if noise else [])

"""Memory diff: the parts that a memory kept from the previous one, and the origins of its new words.

The diff compares token ids, with words as units (viewer/analysis/token_words.py). Each word of the memory after has the
first origin that applies:

    kept        the same ids in the same order as in the memory before
    section     in the section read, or in a tool's result
    recalled    in a recalled memory, or another named piece of the prompt
    memory      in the memory before, at another position or with another spelling
    question    in the question
    nowhere     hallucinated: in none of these
    unknown     not kept, and the record does not show which texts were visible

The diff assigns new words run by run to the source with the longest matching run. Ties go to the first source in this
list, then to the position whose neighbour matches too. Comparisons ignore case and surrounding marks.

Kept words come from a patience diff: the common beginning and end are kept; between them, words that occur once in
either part divide the texts, and each stretch is compared in the same way. Small rests without such words are compared
exactly.

Guaranteed: kept pieces from the ids before, and the ids of the others, make the ids after, each in exactly one piece;
runs ascend in both texts and are equal in them; the cost is near linear in the words, also for a fully rewritten
memory.
Not covered: the longest common subsequence (the diff may keep fewer repeated words in long stretches); meaning: a
sentence built from visible words may still be unsupported (`unsupported` in metrics/memory_metrics.py), and a
paraphrase counts as hallucinated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from palimpsest.types import RESULT, Span
from palimpsest.viewer.analysis.token_words import Tokens, TokenWords

# ---- Alignment of two texts ----------------------------------------------------------------------------------


_SMALL = 4096  # pairs of words compared exactly
_DEPTH = 12


class EqualRun(NamedTuple):
    """Equal words."""

    before: int
    after: int
    length: int


class _Part(NamedTuple):
    before: tuple[int, int]
    after: tuple[int, int]


def aligned(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[EqualRun]:
    """Runs of words that are kept.

    >>> aligned("the cat sat on the mat".split(), "a cat sat on a mat".split())
    [EqualRun(before=1, after=1, length=3), EqualRun(before=5, after=5, length=1)]
    """
    pairs = list(_pairs(before, after, _Part((0, len(before)), (0, len(after))), _DEPTH))
    return _legible(_runs(pairs), len(before), len(after))


def _runs(pairs: Sequence[tuple[int, int]]) -> list[EqualRun]:
    runs: list[EqualRun] = []
    for a, b in pairs:
        if runs and (last := runs[-1]).before + last.length == a and last.after + last.length == b:
            runs[-1] = last._replace(length=last.length + 1)
        else:
            runs.append(EqualRun(a, b, 1))
    return runs


def _legible(runs: list[EqualRun], before: int, after: int) -> list[EqualRun]:
    """Runs without chance matches, which are shorter than the changes on either side."""
    ends = [EqualRun(0, 0, 0), *runs, EqualRun(before, after, 0)]
    changed = [max(b.before - a.before - a.length, b.after - a.after - a.length) for a, b in pairwise(ends)]
    return [run for run, left, right in zip(runs, changed, changed[1:], strict=False) if run.length >= min(left, right)]


def _pairs(before: Sequence[Hashable], after: Sequence[Hashable], part: _Part, depth: int) -> Iterator[tuple[int, int]]:
    (a, a_end), (b, b_end) = part
    while a < a_end and b < b_end and before[a] == after[b]:
        yield a, b
        a, b = a + 1, b + 1
    tail = 0
    while a < a_end - tail and b < b_end - tail and before[a_end - tail - 1] == after[b_end - tail - 1]:
        tail += 1
    yield from _middle(before, after, _Part((a, a_end - tail), (b, b_end - tail)), depth)
    yield from ((a_end - left, b_end - left) for left in range(tail, 0, -1))


def _middle(
    before: Sequence[Hashable], after: Sequence[Hashable], part: _Part, depth: int
) -> Iterator[tuple[int, int]]:
    (a, a_end), (b, b_end) = part
    anchors = _anchors(before[a:a_end], after[b:b_end]) if depth and a < a_end and b < b_end else []
    if not anchors:
        if 0 < (a_end - a) * (b_end - b) <= _SMALL:
            yield from _exact(before[a:a_end], after[b:b_end], a, b)
        return
    for x, y in anchors:
        yield from _pairs(before, after, _Part((a, part.before[0] + x), (b, part.after[0] + y)), depth - 1)
        yield part.before[0] + x, part.after[0] + y
        a, b = part.before[0] + x + 1, part.after[0] + y + 1
    yield from _pairs(before, after, _Part((a, a_end), (b, b_end)), depth - 1)


def _exact(
    before: Sequence[Hashable], after: Sequence[Hashable], at_before: int, at_after: int
) -> Iterator[tuple[int, int]]:
    for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        yield from ((at_before + block.a + n, at_after + block.b + n) for n in range(block.size))


def _anchors(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Words that occur once in both texts, in a longest ascending chain.

    >>> _anchors("abcxc", "bacdc")
    [(1, 0)]
    """
    once = {word for word, count in Counter(before).items() if count == 1}
    once &= {word for word, count in Counter(after).items() if count == 1}
    position = {word: number for number, word in enumerate(after) if word in once}
    return _ascending([(number, position[word]) for number, word in enumerate(before) if word in once])


def _ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """A longest subsequence of pairs, ordered by the first, whose second ascends."""
    tops: list[int] = []  # the smallest second that ends a sequence of each length
    ends: list[int] = []  # its pair
    earlier: list[int | None] = []
    for number, (_, second) in enumerate(pairs):
        length = bisect_left(tops, second)
        earlier.append(ends[length - 1] if length else None)
        tops[length : length + 1], ends[length : length + 1] = [second], [number]
    chosen: list[tuple[int, int]] = []
    at = ends[-1] if ends else None
    while at is not None:
        chosen.append(pairs[at])
        at = earlier[at]
    return chosen[::-1]


# ---- Origins of a memory's words -----------------------------------------------------------------------------


class WordOrigin(StrEnum):
    """Origin of words in a memory."""

    KEPT = "kept"
    SECTION = "section"
    RECALLED = "recalled"
    MEMORY = "memory"
    QUESTION = "question"
    NOWHERE = "nowhere"
    UNKNOWN = "unknown"


_RANK = {origin: rank for rank, origin in enumerate(WordOrigin)}
"""The lowest rank wins among equal sources."""


@dataclass(frozen=True, slots=True)
class PromptSource:
    """A named piece of the prompt."""

    name: str
    words: TokenWords

    @property
    def origin(self) -> WordOrigin:
        """Origin of words found in this piece.

        >>> none = TokenWords((), (), (0,))
        >>> PromptSource("result:a", none).origin.value, PromptSource("notes", none).origin.value
        ('section', 'recalled')
        """
        if self.name in ("section", "document") or self.name.startswith(RESULT):
            return WordOrigin.SECTION
        return {"memory": WordOrigin.MEMORY, "question": WordOrigin.QUESTION}.get(self.name, WordOrigin.RECALLED)


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Position of words in a source."""

    name: str
    words: Span
    tokens: Span
    characters: Span


@dataclass(frozen=True, slots=True)
class WordPiece:
    """Consecutive words of the memory after with one origin."""

    origin: WordOrigin
    words: Span
    tokens: Span
    characters: Span
    ids: Tokens
    text: str
    source: SourcePlace | None
    """None for hallucinated and unknown words."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Consecutive words of the memory before that were not kept."""

    words: Span
    tokens: Span
    characters: Span
    text: str
    at: int
    """Position in the memory after, in words."""
    evidence: tuple[int, ...]
    """Indices of the lost evidence that contains them."""


@dataclass(frozen=True, slots=True)
class MemoryDiff:
    """Pieces in the order of the memory after; dropped words in the order of the memory before."""

    pieces: tuple[WordPiece, ...]
    dropped: tuple[Dropped, ...]

    @property
    def in_order(self) -> Iterator[WordPiece | Dropped]:
        """Pieces and dropped words in reading order: dropped words precede their replacement."""
        dropped = list(self.dropped)
        for piece in self.pieces:
            while dropped and dropped[0].at <= piece.words[0]:
                yield dropped.pop(0)
            yield piece
        yield from dropped


def memory_diff(
    before: TokenWords,
    after: TokenWords,
    sources: Sequence[PromptSource] | None,
    lost: Mapping[int, Span] | None = None,
    equal: Sequence[EqualRun] | None = None,
) -> MemoryDiff:
    """Difference of two memories with one `Spelling`.

    `sources`: visible texts other than the memory before, None if unknown; `lost`: characters in the memory before of
    evidence that the memory after lacks; `equal`: the result of `aligned`, if known.
    """
    runs = aligned(before.words, after.words) if equal is None else equal
    held = PromptSource("memory", before)
    stretches = list(_stretches(runs, len(after)))
    wanted = {key for start, end, run in stretches if run is None for key in after.keys[start:end]}
    ranked = sorted((*(sources or ()), held), key=lambda source: _RANK[source.origin])
    lookups = [_Places(source, wanted) for source in ranked] if wanted else []
    rest = WordOrigin.UNKNOWN if sources is None else WordOrigin.NOWHERE
    pieces: list[WordPiece] = []
    for start, end, run in stretches:
        if run is None:
            pieces += _new(after, (start, end), lookups, rest)
        else:
            at = (run.before, run.before + run.length)
            pieces.append(_piece(after, (start, end), WordOrigin.KEPT, _located(held, at)))
    return MemoryDiff(tuple(pieces), tuple(_dropped(before, runs, len(after), lost or {})))


def _stretches(runs: Sequence[EqualRun], size: int) -> Iterator[tuple[int, int, EqualRun | None]]:
    """[start, end) of each run, and of the stretches between them."""
    done = 0
    for run in runs:
        if done < run.after:
            yield done, run.after, None
        done = run.after + run.length
        yield run.after, done, run
    if done < size:
        yield done, size, None


def _new(after: TokenWords, stretch: Span, lookups: Sequence[_Places], rest: WordOrigin) -> Iterator[WordPiece]:
    position, left = stretch[0], stretch[0]
    while position < stretch[1]:
        length, _, start, source = max(
            (lookup.longest(after.keys, position, stretch[1]) for lookup in lookups),
            key=lambda it: (it[0], -_RANK[it[3].origin], it[1]),
        )
        if length:
            if left < position:
                yield _piece(after, (left, position), rest, None)
            yield _piece(after, (position, position + length), source.origin, _located(source, (start, start + length)))
            left = position + length
        position += length or 1
    if left < position:
        yield _piece(after, (left, position), rest, None)


class _Places:
    def __init__(self, source: PromptSource, wanted: set[str]) -> None:
        self.source = source
        self.keys = source.words.keys
        self._at: dict[str, list[int]] = {}
        for position, key in enumerate(self.keys):
            if key in wanted:
                self._at.setdefault(key, []).append(position)

    def longest(self, keys: Sequence[str], start: int, end: int) -> tuple[int, bool, int, PromptSource]:
        """(words, previous word matches too, start, source) of the longest run from `start` on."""
        places, length = self._at.get(keys[start], []), 1
        if not places:
            return 0, False, 0, self.source
        while start + length < end:
            following = keys[start + length]
            further = [at for at in places if at + length < len(self.keys) and self.keys[at + length] == following]
            if not further:
                break
            places, length = further, length + 1
        near = [at for at in places if start and at and self.keys[at - 1] == keys[start - 1]]
        return length, bool(near), (near or places)[0], self.source


def part_of(piece: WordPiece, words: Span, before: TokenWords, after: TokenWords) -> WordPiece:
    if piece.source is None:
        return _piece(after, words, piece.origin, None)
    moved = piece.source.words[0] - piece.words[0]
    source = _located(PromptSource(piece.source.name, before), (words[0] + moved, words[1] + moved))
    return _piece(after, words, piece.origin, source)


def _dropped(before: TokenWords, runs: Sequence[EqualRun], size: int, lost: Mapping[int, Span]) -> Iterator[Dropped]:
    done = [0, 0]
    for run in [*runs, EqualRun(len(before), size, 0)]:
        yield from _dropped_runs(before, (done[0], run.before), done[1], lost)
        done = [run.before + run.length, run.after + run.length]


def _dropped_runs(before: TokenWords, words: Span, at: int, lost: Mapping[int, Span]) -> Iterator[Dropped]:
    if words[0] == words[1]:
        return
    evidence = [_lost_at(before, word, lost) for word in range(*words)]
    edges = [words[0] + n for n in range(1, len(evidence)) if evidence[n] != evidence[n - 1]]
    for start, end in pairwise([words[0], *edges, words[1]]):
        characters = before.characters((start, end))
        tokens, text = before.tokens((start, end)), before.text[slice(*characters)]
        yield Dropped((start, end), tokens, characters, text, at, evidence[start - words[0]])


def _lost_at(before: TokenWords, word: int, lost: Mapping[int, Span]) -> tuple[int, ...]:
    start, end = before.characters((word, word + 1))
    return tuple(number for number, span in lost.items() if start < span[1] and span[0] < end)


def _piece(after: TokenWords, words: Span, origin: WordOrigin, source: SourcePlace | None) -> WordPiece:
    tokens, characters = after.tokens(words), after.characters(words)
    return WordPiece(
        origin, words, tokens, characters, after.ids[slice(*tokens)], after.text[slice(*characters)], source
    )


def _located(source: PromptSource, words: Span) -> SourcePlace:
    return SourcePlace(source.name, words, source.words.tokens(words), source.words.characters(words))

"""Word origins of a memory: the step that first wrote each word, and earlier hallucinations.

The search follows each word back through the steps that kept or moved it, to the step that took it from another source:

    after turn 2    "Anna lives in Rome. Bob is 9."
                     turn 0, kept twice  turn 2, section

`Unfounded` marks words and sentences that an earlier turn hallucinated and later turns kept, which a single diff
misses:

    turn 3    "Anna lives in Oslo."                hallucinated: no visible text contains Oslo
    turn 4    "Anna lives in Oslo. Bob is 9."      the diff calls "Oslo." kept

Guaranteed: every id of the memory has exactly one origin; a hallucinated word keeps its mark and turn while memories
keep or move it, a sentence while memories contain it; the cost is linear in the memories so far, because only entering
words read a section and sentences are searched once per episode.
Not covered: words at a gap of the record, where a memory does not start as the one before ended (origin `unknown`); a
later section with the same content; memories edited by hand; anything before a turn with unknown visible texts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from palimpsest.text.sentences import flat
from palimpsest.types import Span
from palimpsest.viewer.analysis.episode_timeline import Story
from palimpsest.viewer.analysis.memory_diff import (
    EqualRun,
    MemoryDiff,
    SourcePlace,
    WordOrigin,
    WordPiece,
    aligned,
    part_of,
)


@dataclass(frozen=True, slots=True)
class Blamed:
    """Consecutive words of a memory that entered together."""

    words: Span
    tokens: Span
    characters: Span
    text: str
    turn: int
    """Index of the turn that wrote them; -1: present before the first turn."""
    age: int
    """Turns since then; the whole episode for words present before it."""
    origin: WordOrigin
    """`memory` for words present before the first turn."""
    offset: int | None
    """Tokens of the document before them; None if they are from no section."""
    source: SourcePlace | None


@dataclass(frozen=True, slots=True)
class _Followed:
    at: int
    length: int
    last: int
    """Position in the queried memory."""

    def part(self, start: int, end: int) -> _Followed:
        start, end = max(start, self.at), min(end, self.at + self.length)
        return _Followed(start, end - start, self.last + start - self.at)

    def moved(self, by: int) -> _Followed:
        return _Followed(self.at + by, self.length, self.last)


_Trace = tuple[_Followed, int, WordPiece | None]
"""Words, the number of the step where they entered, and their piece there."""


def blame(story: Story, number: int) -> tuple[Blamed, ...]:
    """Origins of the words of the memory after a step, in its order."""
    memory = story.words(story.steps[number].after)
    followed = [_Followed(0, len(memory), 0)] if len(memory) else []
    traced: list[_Trace] = []
    for at in range(number, -1, -1):
        if not followed:
            break
        followed = list(_through_step(story, at, followed, traced))
        if at:
            followed = list(_between_steps(story, at, followed, traced))
    traced += [(words, -1, None) for words in followed]
    return tuple(_blamed(story, number, trace) for trace in _merged(traced))


def _through_step(story: Story, at: int, followed: Sequence[_Followed], traced: list[_Trace]) -> Iterator[_Followed]:
    """The words at their position before the step; words that it added go to `traced`."""
    step = story.steps[at]
    if step.before.ids and step.before.ids == step.after.ids:
        yield from followed
        return
    carried, new = _carried(story.runs(at), followed)
    yield from carried
    for words in new:
        for piece in _pieces(story, at, words):
            part = words.part(*piece.words)
            if piece.origin in (WordOrigin.MEMORY, WordOrigin.KEPT) and piece.source is not None:
                yield part.moved(piece.source.words[0] - piece.words[0])
            else:
                traced.append((part, at, piece))


def _pieces(story: Story, at: int, words: _Followed) -> Iterator[WordPiece]:
    pieces = story.diff(at).pieces
    first = bisect_right(pieces, words.at, key=lambda piece: piece.words[0]) - 1
    for piece in pieces[first:]:
        if piece.words[0] >= words.at + words.length:
            return
        yield piece


def _between_steps(story: Story, at: int, followed: Sequence[_Followed], traced: list[_Trace]) -> Iterator[_Followed]:
    """From the memory before a step to the one after the previous step: equal, except at a gap of the record."""
    before, after = story.steps[at].before, story.steps[at - 1].after
    if before is after or (before.ids and before.ids == after.ids) or before.text == after.text:
        yield from followed
        return
    runs = aligned(story.words(after).words, story.words(before).words)
    carried, lost = _carried(runs, followed)
    yield from carried
    traced += [(words, at, None) for words in lost]


def _carried(runs: Sequence[EqualRun], followed: Sequence[_Followed]) -> tuple[list[_Followed], list[_Followed]]:
    carried, new = [], []
    for words in followed:
        done, end = words.at, words.at + words.length
        first = max(0, bisect_right(runs, words.at, key=lambda run: run.after) - 1)
        for run in runs[first:]:
            if run.after >= end:
                break
            part = words.part(run.after, run.after + run.length)
            if part.length <= 0:
                continue
            if done < part.at:
                new.append(words.part(done, part.at))
            carried.append(part.moved(run.before - run.after))
            done = part.at + part.length
        if done < end:
            new.append(words.part(done, end))
    return carried, new


def _merged(traced: Sequence[_Trace]) -> Iterator[_Trace]:
    last: _Trace | None = None
    for words, at, piece in sorted(traced, key=lambda trace: trace[0].last):
        if last is not None and _together(last, (words, at, piece)):
            last = (_Followed(last[0].at, last[0].length + words.length, last[0].last), at, last[2])
            continue
        if last is not None:
            yield last
        last = (words, at, piece)
    if last is not None:
        yield last


def _together(a: _Trace, b: _Trace) -> bool:
    same = a[1] == b[1] and a[2] is b[2]
    return same and a[0].last + a[0].length == b[0].last and (a[2] is None or a[0].at + a[0].length == b[0].at)


def _blamed(story: Story, number: int, trace: _Trace) -> Blamed:
    words, at, piece = trace
    memory, span = story.words(story.steps[number].after), (words.last, words.last + words.length)
    characters = memory.characters(span)
    turn = story.steps[at].turn if at >= 0 else -1
    origin = piece.origin if piece else (WordOrigin.MEMORY if at < 0 else WordOrigin.UNKNOWN)
    source = _source(story, at, words, piece) if piece and piece.source else None
    offset = story.steps[at].offset if at >= 0 else None
    return Blamed(
        words=span,
        tokens=memory.tokens(span),
        characters=characters,
        text=memory.text[slice(*characters)],
        turn=turn,
        age=story.steps[number].turn - max(turn, 0),
        origin=origin,
        offset=offset + source.tokens[0] if source and source.name == "section" and offset is not None else None,
        source=source,
    )


def _source(story: Story, at: int, words: _Followed, piece: WordPiece) -> SourcePlace | None:
    assert piece.source is not None
    text = next((text for name, text in story.sight(at) if name == piece.source.name), None)
    if text is None:
        return None
    start = piece.source.words[0] + words.at - piece.words[0]
    span, held = (start, start + words.length), story.words(text)
    return SourcePlace(piece.source.name, span, held.tokens(span), held.characters(span))


# ---- Text invented at an earlier turn and kept ---------------------------------------------------------------


class Unfounded:
    """Hallucinations of one episode that later memories keep."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._sentences: list[Mapping[str, tuple[str, int]]] = []

    def sentences(self, number: int) -> tuple[tuple[str, int], ...]:
        """Sentences of the memory after a step that an earlier turn hallucinated, each with the index of that turn."""
        while len(self._sentences) <= number:
            at = len(self._sentences)
            step = self._story.steps[at]
            held = frozenset(step.after.flat_sentences) if self._sentences and self._sentences[-1] else frozenset()
            surviving = {form: value for form, value in (self._sentences[-1].items() if held else ()) if form in held}
            new = {flat(sentence): (sentence, step.turn) for sentence in self._story.invented(at) or ()}
            self._sentences.append({**new, **surviving})
        now = self._story.steps[number].turn
        return tuple(value for value in self._sentences[number].values() if value[1] < now)

    def words(self, number: int) -> Mapping[int, int]:
        """Hallucinated words of the memory after a step, each to the index of the turn that wrote it."""
        if not self._story.readable:
            return {}
        origins = [one for one in blame(self._story, number) if one.origin is WordOrigin.NOWHERE]
        return {word: one.turn for one in origins if one.turn != self._story.edited for word in range(*one.words)}

    def marked(self, number: int) -> tuple[MemoryDiff, tuple[int | None, ...]]:
        """The difference of a step, cut at hallucinated words; and per piece the earlier turn that hallucinated it, or
        None.
        """
        diff, since = self._story.diff(number), self.words(number)
        pieces, turns = list[WordPiece](), list[int | None]()
        for piece in diff.pieces:
            carried = piece.origin in (WordOrigin.KEPT, WordOrigin.MEMORY) and any(
                word in since for word in range(*piece.words)
            )
            for part in self._cut(number, piece, since) if carried else (piece,):
                pieces.append(part)
                turns.append(since.get(part.words[0]) if carried else None)
        return replace(diff, pieces=tuple(pieces)), tuple(turns)

    def _cut(self, number: int, piece: WordPiece, since: Mapping[int, int]) -> list[WordPiece]:
        step, (start, end) = self._story.steps[number], piece.words
        edges = [word for word in range(start + 1, end) if since.get(word) != since.get(word - 1)]
        before, after = self._story.words(step.before), self._story.words(step.after)
        return [part_of(piece, words, before, after) for words in pairwise([start, *edges, end])]

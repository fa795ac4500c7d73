"""Sources of a memory's sentences in a document, by the longest shared run of words.

    memory     "Anna lives in Rome. She likes tea."
    document   "... In 1990 Anna lives in Rome, near ..."      -> "Anna lives in Rome"

A sentence of fewer than `RUN` words must occur whole, any other one by at least `RUN` of its words. Among equally long
runs, the section read when the sentence entered the memory has priority, then document order.

Guaranteed: an origin is a slice of the document, in a section that the agent read; time linear in the document.
Not covered: rewording that leaves fewer than `RUN` words in a row; meaning: "not in Rome" contains "in Rome".
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from palimpsest.metrics.reading_trace import ReadingTurn
from palimpsest.text.sentences import flat

RUN = 4
"""Words in a row that identify the source of a sentence."""
_WORD = re.compile(r"\w+(?:['’]\w+)*")

Span = tuple[int, int]
"""[start, end) in characters."""


@dataclass(frozen=True, slots=True)
class _Run:
    words: int
    start: int
    end: int


def origins(memory_sentences: Sequence[str], document: str, readings: Sequence[ReadingTurn] = ()) -> list[Span | None]:
    """[len(memory_sentences)] span of each sentence in the document; None if it has none.

    >>> text = "Bob drinks tea. In 1990 Anna lives in Rome, near the sea."
    >>> origins(["anna lives in rome.", "Bob drinks tea.", "Eve sings."], text), text[24:42]
    ([(24, 42), (0, 14), None], 'Anna lives in Rome')
    """
    sections = _sections(document, readings)
    came = [_came(sentence, readings) for sentence in memory_sentences]
    source_spans = [[] if index is None else sections[index] for index in came]
    words = [[word.casefold() for word in _WORD.findall(sentence)] for sentence in memory_sentences]
    best = list[_Run | None]([None] * len(memory_sentences))
    for span in _merged(sorted({span for spans in sections for span in spans})) or [(0, len(document))]:
        for number, run in _runs(words, document, span):
            if _better(run, best[number], source_spans[number]):
                best[number] = run
    return [None if run is None else (run.start, run.end) for run in best]


def _better(run: _Run, than: _Run | None, source: Sequence[Span]) -> bool:
    def rank(it: _Run) -> tuple[int, bool]:
        return it.words, any(start <= it.start < end for start, end in source)

    return than is None or rank(run) > rank(than)


def _came(sentence: str, readings: Sequence[ReadingTurn]) -> int | None:
    said = flat(sentence)
    for index in range(len(readings) - 1, -1, -1):
        if readings[index].changed and said not in readings[index].memory_before.flat:
            return index if said in readings[index].memory_after.flat else None
    return None


def _sections(document: str, readings: Sequence[ReadingTurn]) -> list[list[Span]]:
    """[readings] spans of the sections of each, in reading order; ignores characters cut at their ends."""
    spans, cursor = [list[Span]() for _ in readings], 0
    for number, reading in enumerate(readings):
        for section in reading.sections:
            text = section.text.strip("\ufffd")
            start = document.find(text, cursor) if text else -1
            if start < 0 and len(reading.sections) > 1:
                start = document.find(text) if text else -1  # read again
            if start >= 0:
                spans[number].append((start, start + len(text)))
                cursor = start + len(text)
    return spans


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Adjacent sections merged, so that a sentence across two sections is found whole.

    >>> _merged([(0, 5), (5, 9), (30, 35), (37, 40)])
    [(0, 9), (30, 40)]
    """
    merged = list[Span]()
    for start, end in spans:
        if merged and start <= merged[-1][1] + len("\ufffd" * 3):
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _runs(word_lists: Sequence[Sequence[str]], document: str, span: Span) -> Iterator[tuple[int, _Run]]:
    """(Index of a sentence, a longest run of its words) in one piece of the document."""
    grams = {
        length: _grams(word_lists, length)
        for length in sorted({min(RUN, len(words)) for words in word_lists if len(words) > 1})
    }
    wanted = {word for words in word_lists for word in words}
    window: deque[tuple[str, int, int]] = deque(maxlen=RUN)
    open_runs: dict[tuple[int, int], _Run] = {}  # by (sentence, its next word)
    for match in _WORD.finditer(document, *span):
        word = match.group().casefold()
        if word not in wanted:  # most words: it ends all open runs
            yield from ((number, run) for (number, _), run in open_runs.items())
            open_runs.clear()
            window.clear()
            continue
        window.append((word, match.start(), match.end()))
        going: dict[tuple[int, int], _Run] = {}
        for (number, following), run in open_runs.items():
            if following < len(word_lists[number]) and word_lists[number][following] == word:
                going[number, following + 1] = _Run(run.words + 1, run.start, match.end())
            else:
                yield number, run
        for length, places in grams.items():
            if len(window) >= length:
                recent = list(window)[-length:]
                for number, following in places.get(tuple(entry[0] for entry in recent), ()):
                    going.setdefault((number, following), _Run(length, recent[0][1], match.end()))
        open_runs = going
    yield from ((number, run) for (number, _), run in open_runs.items())


def _grams(word_lists: Sequence[Sequence[str]], length: int) -> Mapping[tuple[str, ...], list[tuple[int, int]]]:
    """(Sentence, index of the next word) by `length` words in a row, for sentences searched with that length."""
    places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for number, words in enumerate(word_lists):
        if min(RUN, len(words)) == length:
            for start in range(len(words) - length + 1):
                places.setdefault(tuple(words[start : start + length]), []).append((number, start + length))
    return places

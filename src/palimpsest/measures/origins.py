"""Where in a document what an agent kept stands: the longest run of its words that the document has.

    memory     "Anna lives in Rome. She likes tea."
    document   "... In 1990 Anna lives in Rome, near ..."      -> "Anna lives in Rome"

A sentence of fewer words than `RUN` has to stand there whole, another one by `RUN` of its words at the least. Of
equally long runs the first in the section that was read when the sentence came into the memory counts, then the first.

Guaranteed: what is given back is a slice of the document; only sections that were read are looked at; time grows with
the document, whatever its sections and the memory are.
Not covered: what was reworded so that fewer than `RUN` words in a row are left; meaning: "not in Rome" holds "in Rome".
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from palimpsest.measures.trace import Reading

RUN = 4
"""Words in a row that tell where a sentence is from."""
_WORD = re.compile(r"\w+(?:['’]\w+)*")

Span = tuple[int, int]
"""[start, end) in characters."""


@dataclass(frozen=True, slots=True)
class _Run:
    words: int
    start: int
    end: int


def origins(kept: Sequence[str], document: str, readings: Sequence[Reading] = ()) -> list[Span | None]:
    """[len(kept)] the place of each sentence in the document, None where it has none.

    >>> text = "Bob drinks tea. In 1990 Anna lives in Rome, near the sea."
    >>> origins(["anna lives in rome.", "Bob drinks tea.", "Eve sings."], text), text[24:42]
    ([(24, 42), (0, 14), None], 'Anna lives in Rome')
    """
    sections = _sections(document, readings)
    came = [_came(sentence, readings) for sentence in kept]
    own = [None if index is None else sections[index] for index in came]
    words = [[word.casefold() for word in _WORD.findall(sentence)] for sentence in kept]
    best = list[_Run | None]([None] * len(kept))
    for span in _merged([section for section in sections if section is not None]) or [(0, len(document))]:
        for number, run in _runs(words, document, span):
            if _better(run, best[number], own[number]):
                best[number] = run
    return [None if run is None else (run.start, run.end) for run in best]


def _better(run: _Run, than: _Run | None, own: Span | None) -> bool:
    def rank(it: _Run) -> tuple[int, bool]:
        return it.words, own is not None and own[0] <= it.start < own[1]

    return than is None or rank(run) > rank(than)


def _came(sentence: str, readings: Sequence[Reading]) -> int | None:
    """Index of the reading that brought a sentence of the last memory in, and it stayed."""
    flat = " ".join(sentence.casefold().split())
    for index in range(len(readings) - 1, -1, -1):
        if readings[index].changed and flat not in readings[index].memory_before.flat:
            return index if flat in readings[index].memory_after.flat else None
    return None


def _sections(document: str, readings: Sequence[Reading]) -> list[Span | None]:
    """[readings] where each section stands: they are read in order, and a cut character at an end is no text."""
    spans, cursor = list[Span | None](), 0
    for reading in readings:
        text = "" if reading.section is None else reading.section.text.strip("\ufffd")
        start = document.find(text, cursor) if text else -1
        spans.append((start, start + len(text)) if start >= 0 else None)
        cursor = start + len(text) if start >= 0 else cursor
    return spans


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Sections that stand next to each other as one, so that a sentence cut in two by them is found whole.

    >>> _merged([(0, 5), (5, 9), (30, 35), (37, 40)])
    [(0, 9), (30, 40)]
    """
    merged = list[Span]()
    for start, end in spans:
        if merged and start <= merged[-1][1] + len("\ufffd" * 3):
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _runs(kept: Sequence[Sequence[str]], document: str, span: Span) -> Iterator[tuple[int, _Run]]:
    """(index of a sentence, a run of its words) in one piece of the document, each as far as it goes."""
    grams = {
        length: _grams(kept, length) for length in sorted({min(RUN, len(words)) for words in kept if len(words) > 1})
    }
    wanted = {word for words in kept for word in words}
    window: deque[tuple[str, int, int]] = deque(maxlen=RUN)
    open_runs: dict[tuple[int, int], _Run] = {}  # by (sentence, its next word)
    for found in _WORD.finditer(document, *span):
        word = found.group().casefold()
        if word not in wanted:  # most words: it ends what is open, and no run holds it
            yield from ((number, run) for (number, _), run in open_runs.items())
            open_runs.clear()
            window.clear()
            continue
        window.append((word, found.start(), found.end()))
        going: dict[tuple[int, int], _Run] = {}
        for (number, following), run in open_runs.items():
            if following < len(kept[number]) and kept[number][following] == word:
                going[number, following + 1] = _Run(run.words + 1, run.start, found.end())
            else:
                yield number, run
        for length, places in grams.items():
            if len(window) >= length:
                recent = list(window)[-length:]
                for number, following in places.get(tuple(each[0] for each in recent), ()):
                    going.setdefault((number, following), _Run(length, recent[0][1], found.end()))
        open_runs = going
    yield from ((number, run) for (number, _), run in open_runs.items())


def _grams(kept: Sequence[Sequence[str]], length: int) -> Mapping[tuple[str, ...], list[tuple[int, int]]]:
    """Words in a row to (sentence, the word after them), of sentences that are looked for by so many."""
    places: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for number, words in enumerate(kept):
        if min(RUN, len(words)) == length:
            for start in range(len(words) - length + 1):
                places.setdefault(tuple(words[start : start + length]), []).append((number, start + length))
    return places

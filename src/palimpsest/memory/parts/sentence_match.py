"""Alignment of a unit with a few consecutive sentences of a source, by the rules of grounded.py."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, takewhile
from operator import eq

from palimpsest.text.sentences import flat
from palimpsest.text.word_forms import MONTHS, Sentence, WordKind, is_pair, worded

# ---- A source and a unit as words, in the form in which they are compared ------------------------------------


_QUOTED = re.compile('["“„«「『《]([^"“”„«»「」『』《》]{2,200})["”»」』》]')
_FIRST_NAME = re.compile(r"[^\W\d_a-z]\w*(?:[ .'’-]+(?:(?:of|the|de|van|von) )?[^\W\d_a-z]\w*)*")
_LINKS = frozenset(str.split("of the and for to in a"))
"""Words allowed within a name of several words."""
PRONOUNS = frozenset(str.split("he she it they his her its their"))


@dataclass(slots=True)
class SentenceSource:
    """A parsed source."""

    text: str
    """flat"""
    sentences: list[Sentence]
    having: dict[str, list[int]]
    """Sentences with each exact form and stem."""
    leads: list[int]
    """[sentences] the first sentence of each sentence's paragraph."""
    initials: dict[int, frozenset[str]] = field(default_factory=dict)
    """Per sentence, initials of consecutive names; computed on demand."""

    def initials_of(self, number: int) -> frozenset[str]:
        """Initials of each run of two or more names in a sentence."""
        if number not in self.initials:
            sentence = self.sentences[number]
            letters = [acronym(sentence, run) for run in name_runs(sentence)]
            self.initials[number] = frozenset(
                one[i:j] for one in letters for i in range(len(one)) for j in range(i + 2, min(i + 6, len(one)) + 1)
            )
        return self.initials[number]


@lru_cache(maxsize=32)
def read_source(text: str) -> SentenceSource:
    """The sentences of a source, each with its words."""
    sentences = worded(text)
    having: dict[str, list[int]] = {}
    leads = list[int]()
    for number, sentence in enumerate(sentences):
        new = not number or sentences[number - 1].paragraph != sentence.paragraph
        leads.append(number if new else leads[-1])
        for form in sentence.places:
            having.setdefault(form, []).append(number)
    return SentenceSource(flat(text), sentences, having, leads)


@dataclass(slots=True)
class UnitWords:
    """A parsed unit."""

    words: Sentence
    content: list[int]
    """Positions of content words."""
    quotes: list[list[str]]
    """The words of each quoted string."""
    runs: list[list[int]]
    """Positions of names, grouped where they may be one name."""
    subject: str
    """The first name."""

    @classmethod
    def of(cls, text: str) -> UnitWords:
        words = Sentence()
        for sentence in worded(text):
            words.extend(sentence)
        content = [i for i, kind in enumerate(words.kinds) if kind is not WordKind.FUNCTION]
        quotes = [content_of(worded(quote)) for quote in _QUOTED.findall(text.replace('""', '"'))]
        name = _FIRST_NAME.search(text)
        return cls(words, content, quotes, name_runs(words), name[0] if name else "")

    @property
    def lacks_a_subject(self) -> bool:
        """True if it starts with a verb or a pronoun, as the second part of a unit may."""
        return self.words.kinds[0] is WordKind.WORD or self.words.exact[0] in PRONOUNS


def name_runs(words: Sentence) -> list[list[int]]:
    """Positions of names, grouped where they may be one name."""
    runs: list[list[int]] = []
    for index, kind in enumerate(words.kinds):
        if kind is WordKind.NAME:
            near = runs and words.clauses[runs[-1][-1]] == words.clauses[index]
            between = words.exact[runs[-1][-1] + 1 : index] if near else ()
            if near and all(word in _LINKS for word in between):
                runs[-1].append(index)
            else:
                runs.append([index])
    return runs


def acronym(words: Sentence, run: Sequence[int]) -> str:
    return "".join(words.exact[index][0] for index in run)


def content_of(sentences: Sequence[Sentence]) -> list[str]:
    return [
        exact
        for sentence in sentences
        for exact, kind in zip(sentence.exact, sentence.kinds, strict=True)
        if kind is not WordKind.FUNCTION
    ]


# ---- A unit laid over a few consecutive sentences of a source ------------------------------------------------


HALF = 0.4
"""Share of a unit's words that a window needs before abbreviations can account for the rest."""
MOST = 12
"""Words of a unit that may be abbreviations or missing."""
WHOLE = 0.8
"""In unspaced scripts, parts of a unit may be reordered if it has at least this share of the window's size."""
LONGEST_TITLE = 12
"""Words of a paragraph's first line that may be a title."""
MISPLACED = 1
"""Pairs of neighbours, one a name or number, that may be in another order than in the source."""

_POINTERS = frozenset(str.split("the this these"))
"""First words of a phrase that replaces a name: "the film"."""


@dataclass(frozen=True, order=True, slots=True)
class Mismatch:
    """Why a window doesn't support a unit; ordered by how much of the unit the window has."""

    share: float
    why: str


class Match:
    """A unit aligned with a window of a source."""

    def __init__(self, unit: UnitWords, window: tuple[int, ...], source: SentenceSource) -> None:
        self.unit, self.window, self.source = unit, window, source
        self.sentences = [source.sentences[number] for number in window]
        words = unit.words
        self.found: dict[int, list[tuple[int, int]]] = {}
        """Counterparts of each word of the unit: (sentence of the window, word)."""
        for index in unit.content:
            if at := self._places(words.exact[index], words.stems[index], words.kinds[index]):
                self.found[index] = at
        for run in unit.runs:
            self._keep_together(run)
        used = {place for at in self.found.values() for place in at}
        for index, at in [*self.found.items()]:
            self.found[index] = [(n, p) for n, p in at if {(n, q) for q in self.sentences[n].needs.get(p, ())} <= used]
            if not self.found[index]:
                del self.found[index]
        self.title = self._title()
        """Positions of the words that name the paragraph's title in place of a pronoun of the window."""
        for index in self.title:
            self.found.pop(index, None)

    def fault(self, threshold: float) -> Mismatch | None:
        """None if the window supports the unit: at least `threshold` of its ordinary words, and all the rest."""
        words, kinds = self.unit.words, self.unit.words.kinds
        ordinary = [i for i in self.unit.content if kinds[i] is WordKind.WORD]
        missing = [i for i in self.unit.content if i not in self.found and i not in self.title]
        had = 1 - len(missing) / len(self.unit.content)
        if had < HALF or len(missing) > MOST:
            return Mismatch(had, f"nothing near says {words.exact[max(missing, key=kinds.__getitem__)]!r}")
        missing = [i for i in missing if not self._abbreviated(i)]
        had = 1 - len(missing) / len(self.unit.content)
        strict = [i for i in missing if kinds[i] is not WordKind.WORD]
        loose = [i for i in missing if kinds[i] is WordKind.WORD and not self._is_seam(i)]
        if strict and not self._replaces_a_pronoun(strict):
            unsaid = [i for i in strict if not self._is_ordinary(i)]
            if unsaid:
                return Mismatch(had, f"nothing near says {words.exact[unsaid[0]]!r}")
            loose += strict
        share = 1 - len(loose) / max(1, len(ordinary))
        if share < threshold:
            return Mismatch(had, f"{share:.2f} of its words are in the nearest sentence, not {words.exact[loose[0]]!r}")
        return self._order_fault(had)

    def _order_fault(self, had: float) -> Mismatch | None:
        window_words = content_of(self.sentences) if self.unit.quotes else []
        for quote in self.unit.quotes:
            if not _has_run(window_words, quote):
                return Mismatch(had, f"nothing near quotes {' '.join(quote)!r}")
        if self._negated_otherwise():
            return Mismatch(had, "it denies what the nearest sentence says, or the other way round")
        if not self._joined():
            return Mismatch(had, "a name from another sentence")
        if more := self._repeated_too_often():
            return Mismatch(had, f"it says {more!r} more often than the nearest sentence")
        content = [i for i in self.unit.content if i in self.found]
        wrong = self._misplaced(pairwise(content))
        if len(wrong) > MISPLACED or (wrong and self._exchanged(content, wrong[0])):
            return Mismatch(had, f"{len(wrong)} names or numbers are elsewhere in the nearest sentence")
        return None

    def _places(self, exact: str, form: str, kind: WordKind) -> list[tuple[int, int]]:
        strict = kind in (WordKind.NAME, WordKind.NUMBER)
        return [
            (number, index)
            for number, sentence in enumerate(self.sentences)
            for index in sentence.places.get(exact if kind is WordKind.NUMBER else "~" + form, ())
            if not strict or sentence.exact[index] == exact or sentence.kinds[index] is WordKind.WORD
        ]

    def _keep_together(self, run: Sequence[int]) -> None:
        """Keep only the positions of a name's words next to its other words, if there are any."""
        run = [i for i in run if i in self.found]
        adjacent = {i: set[tuple[int, int]]() for i in run}
        for a, b in pairwise(run):
            second = set(self.found[b])
            for number, index in self.found[a]:
                for step in (1, 2, 3):
                    if b - a <= 2 and (number, index + step) in second:
                        adjacent[a].add((number, index))
                        adjacent[b].add((number, index + step))
        for i, at in adjacent.items():
            if at:
                self.found[i] = sorted(at)

    def _is_seam(self, index: int) -> bool:
        """True if the pair is missing but both neighbours are present: parts of the sentence were moved."""
        if not is_pair(self.unit.words.exact[index]) or len(self.unit.content) < WHOLE * sum(map(len, self.sentences)):
            return False
        return index - 1 in self.found and index + 1 in self.found

    def _abbreviated(self, index: int) -> bool:
        words = self.unit.words
        exact, kind = words.exact[index], words.kinds[index]
        if kind not in (WordKind.NAME, WordKind.WORD):
            return False
        dotted = index in words.dotted and index + 1 < len(words)
        may_be_short = dotted or (len(exact) == 1 and kind is WordKind.NAME)
        if may_be_short and any(_shortens(exact, other) for one in self.sentences for other in one.exact):
            return True
        if any(
            _shortens(sentence.exact[at], exact)
            for sentence in self.sentences
            for at in sentence.dotted
            if at + 1 < len(sentence) and len(sentence.exact[at]) > 2
        ):
            return True
        if kind is not WordKind.NAME:
            return False
        if 2 <= len(exact) <= 6 and any(exact in self.source.initials_of(number) for number in self.window):
            return True
        return any(
            len(run) > 1 and index in run and acronym(words, run) in sentence.places
            for run in self.unit.runs
            for sentence in self.sentences
        )

    def _is_ordinary(self, index: int) -> bool:
        """True if a word is capitalised only because it starts the unit."""
        words = self.unit.words
        if words.kinds[index] is not WordKind.NAME or index != self.unit.content[0]:
            return False
        exact = words.exact[index]
        if exact.endswith(("ed", "ing", "ly")):
            return True
        having = self.source.having.get("~" + words.stems[index], ())
        return any(
            self.source.sentences[number].kinds[at] is WordKind.WORD
            for number in having[:8]
            for at in self.source.sentences[number].places["~" + words.stems[index]]
        )

    def _replaces_a_pronoun(self, missing: Sequence[int]) -> bool:
        """True if the missing words are one name from an earlier sentence, which the window calls "he"."""
        words = self.unit.words
        run = next((run for run in self.unit.runs if missing[0] in run), [])
        if not run or any(i not in run for i in missing):
            return False
        first = self.window[0]
        lead = self.source.leads[first]
        before = {lead, min(lead + 1, first), *range(max(lead, first - 2), first)} - {first} | {lead}
        if not any(all(_begins_with(self.source.sentences[n], words.exact[i]) for i in missing) for n in before):
            return False
        return self._has_pronoun_before(next((i for i in self.unit.content if i > run[-1]), -1))

    def _title(self) -> range:
        first, words = self.window[0], self.unit.words
        lead = self.source.leads[first]
        title = self.source.sentences[lead]
        if lead < first and len(title) <= LONGEST_TITLE:
            for start in words.places.get(title.exact[0], ()):
                size = len([*takewhile(bool, map(eq, title.exact, words.exact[start:]))])
                whole = size == len(title) or title.clauses[size] > title.clauses[size - 1]  # "Iván (singer)" is "Iván"
                if whole and self._has_pronoun_before(next((i for i in self.unit.content if i >= start + size), -1)):
                    return range(start, start + size)
        return range(0)

    def _has_pronoun_before(self, word: int) -> bool:
        return any(
            True
            for number, index in self.found.get(word, ())
            for at in range(max(0, index - 5), index)
            if self.sentences[number].exact[at] in (PRONOUNS if at else PRONOUNS | _POINTERS)
        )

    def _negated_otherwise(self) -> bool:
        content = [i for i in self.unit.content if i not in self.title]
        used = {at: i for i, places in self.found.items() for at in places}
        mine = {b for a, b in pairwise(content) if self.unit.words.kinds[a] is WordKind.NEGATION}
        theirs = set[int]()
        for number, sentence in enumerate(self.sentences):
            for at, kind in enumerate(sentence.kinds):
                if kind is WordKind.NEGATION:
                    after = (i for i in range(at + 1, len(sentence)) if sentence.kinds[i] > WordKind.FUNCTION)
                    theirs.add(used.get((number, next(after, -1)), -1))
        return bool(mine - theirs if mine else theirs - {-1})

    def _joined(self) -> bool:
        """True if each sentence of the window contributes more than a name or number."""
        if len(self.sentences) == 1:
            return True
        kinds = self.unit.words.kinds
        for number in range(len(self.sentences)):
            alone = [i for i, at in self.found.items() if all(n == number for n, _ in at)]
            if len(alone) < 2 or not any(kinds[i] is WordKind.WORD for i in alone):
                return False
        return True

    def _repeated_too_often(self) -> str | None:
        """A name or number more frequent in the unit than in the window; a name may replace a pronoun."""
        words, counts = self.unit.words, Counter[str]()
        spare = _pronouns(*self.sentences) - _pronouns(words)
        for i in self.found:
            if words.kinds[i] >= WordKind.NAME and not self._abbreviated(i):
                counts[form := "~" + words.stems[i]] += 1
                more = counts[form] - sum(len(sentence.places.get(form, ())) for sentence in self.sentences)
                if more > (spare if words.kinds[i] is WordKind.NAME else 0):
                    return words.exact[i]
        return None

    def _exchanged(self, content: Sequence[int], misplaced: tuple[int, int]) -> bool:
        """True if the unit has the window's order with one `misplaced` name or number replaced by another one."""
        words = self.unit.words
        for word in ("by", "'s"):
            if (word in words.exact) != any(word in sentence.exact for sentence in self.sentences):
                return False  # "by Anna" for "Anna": she may be elsewhere
        pairs = {*pairwise(content)}
        for kind in (WordKind.NAME, WordKind.NUMBER):
            values = list[list[int]]()
            for i in (i for i in content if words.kinds[i] is kind):
                joins = kind is WordKind.NAME and values and values[-1][-1] == i - 1
                if joins and words.clauses[i - 1] == words.clauses[i]:
                    values[-1].append(i)
                else:
                    values.append([i])
            for one in (value for value in values if not {*value}.isdisjoint(misplaced)):
                for other in values:
                    new = {*pairwise(_exchange(content, one, other))} if one is not other else pairs
                    if misplaced not in new and not self._misplaced(new - pairs):
                        return True
        return False

    def _misplaced(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Neighbours, at least one a name or number, whose order differs in the window.

        A moved part of the sentence yields one, two exchanged names yield one or two.
        """
        kinds = self.unit.words.kinds
        return [
            (a, b)
            for a, b in pairs
            if max(kinds[a], kinds[b]) >= WordKind.NAME and not self._either_way(a, b) and not self._in_order(a, b)
        ]

    def _either_way(self, a: int, b: int) -> bool:
        """True if they are a number and its unit, or a month and a day or year, adjacent in the window."""
        words = self.unit.words
        if b in words.needs.get(a, ()) and words.kinds[a] is not words.kinds[b]:
            return True
        if not any(words.exact[i] in MONTHS and words.kinds[j] is WordKind.NUMBER for i, j in ((a, b), (b, a))):
            return False
        return any(n == m and abs(p - q) == 1 for n, p in self.found[a][:8] for m, q in self.found[b][:8])

    def _in_order(self, a: int, b: int) -> bool:
        for number, index in self.found[a][:8]:
            for other, second in self.found[b][:8]:
                flipped = number == other and self._flipped(a, b, self.sentences[number], index, second)
                if (number, index) != (other, second) and ((number, index) < (other, second)) != flipped:
                    return True
        return False

    def _flipped(self, a: int, b: int, sentence: Sentence, p: int, q: int) -> bool:
        """True if exactly one of unit and sentence is passive, or a genitive."""
        mine, theirs = self.unit.words.exact, sentence.exact
        for x, y in ((a, p), (b, q)):
            if self.unit.words.kinds[x] is WordKind.WORD and ("by" in mine[x + 1 : x + 5]) != (
                "by" in theirs[y + 1 : y + 5]
            ):
                return True
        has, had = (form[i + 1 : i + 2] == ["'s"] for form, i in ((mine, a), (theirs, p)))
        if has and not had and "of" in theirs[max(0, p - 3) : p]:
            return True
        has, had = (form[i + 1 : i + 2] == ["'s"] for form, i in ((mine, b), (theirs, q)))
        return had and not has and "of" in mine[max(0, b - 3) : b]


def _pronouns(*sentences: Sentence) -> int:
    return sum(len(sentence.places.get(pronoun, ())) for sentence in sentences for pronoun in PRONOUNS)


def _exchange(content: Sequence[int], one: Sequence[int], other: Sequence[int]) -> Iterator[int]:
    for i in content:
        if i in (one[0], other[0]):
            yield from other if i == one[0] else one
        elif i not in one and i not in other:
            yield i


def _shortens(short: str, long: str) -> bool:
    if len(short) >= len(long) or short[:1] != long[:1]:
        return False
    if len(short) < 3:
        return len(short) == 1
    if long.startswith(short):
        return True
    rest = iter(long)
    return short[-1] == long[-1] and all(letter in rest for letter in short)


def _begins_with(sentence: Sentence, name: str) -> bool:
    return any(at < 8 for at in sentence.places.get(name, ()))


def _has_run(words: Sequence[str], run: Sequence[str]) -> bool:
    return any(words[at : at + len(run)] == run for at in range(len(words) - len(run) + 1))

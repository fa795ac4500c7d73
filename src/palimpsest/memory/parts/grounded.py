"""Grounded memory: keep only the units of a reply that its sources support.

    units of the reply      sentences, list items or lines (text/sentences.py)
    verbatim                a unit stays if it occurs, without regard to case and white space and as whole words and
                            numbers (text/sentences.py), in one of the sources: the section, the previous memory, an
                            earlier memory in the prompt
    close                   a unit stays if a sentence of a source paraphrases it

The question is not a source, and answers are not checked. For an agent with tools, the sources are its earlier notes
and the tool results, except errors, which may quote the agent.

    reply                                            effect
    a unit cut off by the reply's budget             dropped, unless it ends as a sentence does, not as "1." does
    the same supported unit twice                    both stay, as sampled
    empty, or only white space                       the memory does not change
    no unit stays                                    the memory does not change
    thinking, and text outside of a policy's tags    not part of the reply: neither checked nor kept

A merge of supported replies loses none of them to a paraphrase: if no unit of it stays, the units that it paraphrases
replace it (`quoted`).

`close` uses no model. It compares a unit with each window of one to three consecutive sentences of a source
(sentence_match.py). The unit stays if one window has

    every name and number     "U.S." is "United States", "1,200" is "1200", "Jan." is "January" (text/word_forms.py)
    every qualifier           modal verbs, "only", "all"
    every quoted string       in one piece
    its negations             of the same words, and no others
    the order of both         a part of the sentence may have been moved, if no exchange of two names or of two numbers
                              restores the order; none may occur more often, unless a name replaces a pronoun
    THRESHOLD of its other words, by their stems; in scripts without spaces, of its pairs of characters

A name may replace the window's pronoun if the paragraph started with that name; a title, with all its words. A unit
that merges two sentences is split at "and", ";" and the like. benchmarks/grounded_close.py measures the errors
(docs/explanation/length-and-accuracy.md). The threshold was chosen on 100 training questions of HotpotQA only.

Guaranteed: a memory contains sampled ids only, except where a unit ends inside a token (text/reply_tags.py); training
data does not change; a unit that occurs in a source stays. `close` is linear in the source and compares each sentence
of a unit with at most `CANDIDATES` * 6 * (1 + 2 * `SPLITS`) windows of a source. A section of 20,000 characters takes
30 ms once, then 4 ms per dropped unit, on one busy core.
Not covered: a tool that repeats its query; context of a unit ("He sells tea.", a negation before it); counting, and
facts that need several sources together; synonyms ("movie" for "film": 76 to 94 % of such sentences are dropped); a
name replaced by another one of its sentence (4 to 10 % are kept), two names exchanged (5 to 9 %), numbers likewise (0
to 5 %); a modal verb left out; a sentence cut down to the value of another part ("opened in 1908" of "opened in 1894
and closed in 1908"); a pronoun whose name is not at the start of the paragraph or of the two sentences before (0 to 2 %
are dropped); the number "one"; Chinese numerals; names in scripts without capital letters, which are compared as words.
Scripts other than Latin have tests of single sentences, and no figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from palimpsest.events import MemoryUngrounded
from palimpsest.memory.parts.sentence_match import Match, Mismatch, SentenceSource, UnitWords, read_source
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import Cutter
from palimpsest.text.sentences import NUMBER, Unit, flat, sentences, stands_in, unit_spans, units
from palimpsest.text.word_forms import worded

# ---- Whether a source says in other words what a unit says ---------------------------------------------------


THRESHOLD = 0.95
"""Share of a unit's ordinary words that its source must have."""

CANDIDATES = 4
"""Sentences of a source to compare: the ones that share most words with the unit."""
SPLITS = 6
"""Candidate split points of a unit that merges two sentences."""
LEAST = 3
"""Minimum words per part."""

_JOINTS = re.compile(r"[;；]|:(?!\d)|,?\s(?:and|while|whereas|but|who|which|where)\s|[,，]\s")


def supported(unit: str, sources: Sequence[str], threshold: float = THRESHOLD) -> str | None:
    """None if a source supports `unit`, otherwise the missing part in the nearest source."""
    if not any(letter.isalnum() for letter in unit):
        return "it has no word"
    read = [read_source(source) for source in sources]
    plain = flat(unit)
    if any(stands_in(plain, source.text, NUMBER) for source in read):
        return None
    copied = plain.rstrip(".!?")
    read = [one for one in read if not stands_in(copied, one.text, None) or stands_in(copied, one.text, NUMBER)]
    faults = list[Mismatch]()
    for source in read:
        fault = _unit_or_halves(unit, source, threshold)
        if fault is None:
            return None
        faults.append(fault)
    pieces = _sentences(unit)
    if 1 < len(pieces) < len(unit) and all(len(UnitWords.of(part).content) >= LEAST for part in pieces):
        return next((why for part in pieces if (why := supported(part, sources, threshold))), None)
    return max(faults).why if faults else "it cuts a number in two" if sources else "nothing is in sight"


def _sentences(unit: str) -> list[str]:
    """Sentences of a unit; an initial does not end one."""
    merged = list[str]()
    for part in sentences(unit):
        before = merged[-1] if merged and merged[-1].endswith(".") else ""
        if before and len(worded(f"{before} {part}")) < len(worded(before)) + len(worded(part)):
            merged[-1] += f" {part}"
        else:
            merged.append(part)
    return merged


def _unit_or_halves(unit: str, source: SentenceSource, threshold: float) -> Mismatch | None:
    fault, _ = _nearest(UnitWords.of(unit), source, threshold)
    if fault is None:
        return None
    for left, right in _halves(unit):
        first, second = UnitWords.of(left), UnitWords.of(right)
        if min(len(first.content), len(second.content)) < LEAST:
            continue
        fault_left, here = _nearest(first, source, threshold)
        if fault_left is None:
            if second.lacks_a_subject:
                second = UnitWords.of(f"{first.subject} {right}")
            fault_right, there = _nearest(second, source, threshold)
            if fault_right is None and not {*here} <= {*there} and not {*there} <= {*here}:
                return None
    return fault


def _halves(unit: str) -> list[tuple[str, str]]:
    joints = sorted(
        _JOINTS.finditer(unit), key=lambda joint: (-len(joint[0].strip()) // 4, abs(joint.start() - len(unit) // 2))
    )
    return [(unit[: joint.start()], unit[joint.end() :]) for joint in joints[:SPLITS]]


def _nearest(unit: UnitWords, source: SentenceSource, threshold: float) -> tuple[Mismatch | None, tuple[int, ...]]:
    """None if a window of `source` supports `unit`, otherwise the nearest window's mismatch; and the window."""
    best, nearest = Mismatch(0.0, "no sentence of the prompt supports it"), tuple[int, ...]()
    if not unit.content:
        return Mismatch(0.0, "it has no word of its own"), nearest
    visited = set[tuple[int, ...]]()
    for centre in _candidates(unit, source):
        for window in _windows(centre, len(source.sentences)):
            if window not in visited:
                visited.add(window)
                fault = Match(unit, window, source).fault(threshold)
                if fault is None:
                    return None, window
                if fault.share > best.share:
                    best, nearest = fault, window
    return best, nearest


def _candidates(unit: UnitWords, source: SentenceSource) -> list[int]:
    shared = Counter[int]()
    for form in {unit.words.stems[i] for i in unit.content}:
        shared.update(source.having.get("~" + form, ()))
    return sorted(shared, key=lambda number: (-shared[number], number))[:CANDIDATES]  # never by hash order


def _windows(centre: int, count: int) -> Iterator[tuple[int, ...]]:
    for before, after in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0)):
        if centre - before >= 0 and centre + after < count:
            yield tuple(range(centre - before, centre + after + 1))


# ---- A memory that holds only what its input says ------------------------------------------------------------


Grounded = Literal["off", "verbatim", "close"]

_CLOSERS = "\"'”’»)]}*_`"
_ENDS = (".", "!", "?", "。", "！", "？")


@dataclass(frozen=True, slots=True)
class GroundedRule:
    """The filter for replies that become memory."""

    how: Grounded = "off"
    unit: Unit = "sentence"


@dataclass(frozen=True, slots=True)
class Sifted:
    """A reply after the filter."""

    ids: list[int]
    """[T] the retained units; empty without one."""
    dropped: tuple[tuple[str, str], ...] = ()
    """(unit, reason) of each dropped unit."""

    def event(self, memory: Sequence[int] = ()) -> MemoryUngrounded:
        """Its record. `memory`: [T] what remains if no unit is retained."""
        units, reasons = zip(*self.dropped, strict=True) if self.dropped else ((), ())
        return MemoryUngrounded(units, reasons, tuple(self.ids or memory), changed=bool(self.ids))


def sift(
    written: Sequence[int], sources: Iterable[Sequence[int]], codec: Codec, rule: GroundedRule, *, cut_off: bool = False
) -> Sifted:
    """The units of `written` [T] that a source supports; `cut_off`: the reply ended at its budget."""
    text = codec.decode(written)
    spans, claims = unit_spans(text, rule.unit), units(text, rule.unit)
    faults = unsupported(claims, [codec.decode(ids, control=False) for ids in sources], rule)
    decimal = claims and re.search(r"\d\.$", claims[-1])  # "1." may be cut off "1.5"
    ended = claims and claims[-1].rstrip(_CLOSERS).endswith(_ENDS) and not decimal
    if cut_off and claims and not ended:
        faults[-1] = faults[-1] or "the reply's budget cut it off"
    if claims and not any(faults):
        return Sifted(list(written))
    dropped = tuple((unit, why) for unit, why in zip(claims, faults, strict=True) if why is not None)
    retained = [span for span, why in zip(spans, faults, strict=True) if why is None]
    cutter = Cutter.of(written, codec) if retained else None
    return Sifted([i for span in retained if cutter for i in cutter.cut(*span)], dropped)


def unrepeated(replies: Iterable[Sequence[int]], codec: Codec, unit: Unit) -> list[list[int]]:
    """Replies [N][T], each without the units that it or an earlier one has already said."""
    said, left = set[str](), list[list[int]]()
    for ids in replies:
        text, new = codec.decode(ids), list[tuple[int, int]]()
        spans = unit_spans(text, unit)
        for one, span in zip(map(flat, units(text, unit)), spans, strict=True):
            if one not in said:
                new.append(span)
                said.add(one)
        cutter = Cutter.of(ids, codec) if 0 < len(new) < len(spans) else None
        left.append(list(ids) if len(new) == len(spans) else [i for span in new if cutter for i in cutter.cut(*span)])
    return left


def quoted(claims: Iterable[str], sources: Iterable[Sequence[int]], codec: Codec, unit: Unit) -> list[int]:
    """[T] the units of `sources` that claims paraphrase: for each claim the unit that shares the most words with it.

    A claim quotes none if that is less than half of its words, or if two units share as many.
    """
    found = dict[str, list[int]]()
    for ids in sources:
        text = codec.decode(ids, control=False)
        if spans := unit_spans(text, unit):
            cutter = Cutter.of(ids, codec)
            found |= {one: cutter.cut(*span) for one, span in zip(units(text, unit), spans, strict=True)}
    words, best = {one: _words(one) for one in found}, dict[str, None]()
    for claim in map(_words, claims):
        shared = {one: len(claim & of) for one, of in words.items()}
        most = max(shared.values(), default=0)
        nearest = [one for one, count in shared.items() if count == most]
        if len(nearest) == 1 and 2 * most >= max(1, len(claim)):
            best[nearest[0]] = None
    return [i for one in best for i in found[one]]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", flat(text)))


def unsupported(claims: Sequence[str], sources: Sequence[str], rule: GroundedRule) -> list[str | None]:
    """[claims] the reason that no source supports a claim, or None.

    >>> unsupported(["Anna eats figs.", "Anna runs."], ["- anna  eats figs. Omar runs."], GroundedRule("verbatim"))
    [None, 'no sentence of the prompt supports it']
    """
    if rule.how == "close":
        checked = {unit: supported(unit, sources) for unit in dict.fromkeys(claims)}
    else:
        texts = [flat(source) for source in sources]
        checked = {unit: _fault(flat(unit), texts) for unit in dict.fromkeys(claims)}
    return [checked[unit] for unit in claims]


def _fault(unit: str, texts: Sequence[str]) -> str | None:
    if not any(letter.isalnum() for letter in unit):
        return "it has no word"
    return None if any(stands_in(unit, text, NUMBER) for text in texts) else "no sentence of the prompt supports it"

"""Sentences of a text, their form for comparison, and the units by which a memory is filtered.

A number is one token with its sign, currency, decimals, thousands, exponent and unit; so are a time (10:30), a fraction
(3/4), a range (1914-1918, 3–1) and a date (2010-05-12, 12/5/2010, 12 May 2010, May 12, 2010).

Guaranteed: standard library only; time is linear in the text, except for `stands_in`, which uses `str.find`.
A sentence ends after . ! ? before white space, after one of `ENDS` (。 । ؟ ։ ።) and the closing quotes that follow it,
after a question mark of Greek, and before a Thai ๏.
Not covered: abbreviations ("Dr. Ann" are two sentences); Thai sentences that only a space ends, as it also ends
phrases. Several tokens: numbers with other spaces or in words ("5 - 6", "five km"), units that `UNITS` doesn't list.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left
from functools import lru_cache
from typing import Literal

from palimpsest.text.word_forms import ENDS, MARKS, MONTHS, SCALES, SHORT, UNITS, UNSPACED, visible

Unit = Literal["sentence", "item", "line"]
"""`sentence`; `item` of a list, from its mark to the next; `line`."""

_CLOSING = "」』）】〉》〕”’»)"
_SENTENCE_END = re.compile(
    rf"(?<=[.!?;\u037e{ENDS}{_CLOSING}])(?:"  # fails fast in the middle of a word
    r"(?<=[.!?])(?:\s+|(?<=[\u3040-\u9fff].)(?=[\u3040-\u9fff]))"
    rf"|(?:(?<=[{ENDS}])|(?<=[{ENDS}][{_CLOSING}])|(?<=[{ENDS}][{_CLOSING}]{{2}}))"
    rf"(?![{ENDS}{_CLOSING}!?]|(?<=[։۔])\d)\s*"
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff]{2};)\s+|(?<=\u037e)\s+"
    r")|\n+|(?=๏)"
)
_UNIT_END = {
    "sentence": _SENTENCE_END,
    "item": re.compile(r"\n+(?=[ \t]*(?:[-*•]|\d+[.)])[ \t])|\n{2,}"),
    "line": re.compile(r"\n+"),
}
_MARKS = " \t\r-*•"
_FIRST_MARKS = re.compile(r"(?:[\s*•]|-(?!\d))+")
"""List marks, not the sign of a number."""
_WORD, _DIGIT, _UNSPACED = re.compile(rf"[\w{MARKS}]+"), re.compile(r"\d"), re.compile(f"[{UNSPACED}]")
_BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
"""ASCII white space except the space."""


def sentences(text: str) -> list[str]:
    """Sentences and lines of a text, each with its full stop, list marks taken off.

    >>> sentences("- Anna lives in Rome. She is 9.5 years\\nold.")
    ['Anna lives in Rome.', 'She is 9.5 years', 'old.']
    """
    return [piece for part in _SENTENCE_END.split(text) if (piece := _unmarked(part))]


def words(text: str) -> list[str]:
    """Words of a text, in order, without case and punctuation.

    >>> words("Polish-Russian War (Film). BOB's")
    ['polish', 'russian', 'war', 'film', 'bob', 's']
    """
    return _WORD.findall(text.casefold())


def _unmarked(piece: str) -> str:
    start = _FIRST_MARKS.match(piece)
    return piece[start.end() if start else 0 :].rstrip(_MARKS + _BLANKS)


def unit_spans(text: str, unit: Unit) -> list[tuple[int, int]]:
    """Characters [start, end) of each unit of `text`, in order and without gaps; [] for a blank text.

    White space and list marks belong to the unit after them, or at the end to the last unit.

    >>> text = " Anna eats figs. Omar runs.\\n"
    >>> [text[start:end] for start, end in unit_spans(text, "sentence")]
    [' Anna eats figs.', ' Omar runs.\\n']
    """
    ends = [end.start() for end in _UNIT_END[unit].finditer(text)]
    spans = list[tuple[int, int]]()
    start = 0
    for end in (*ends, len(text)):
        if text[start:end].strip(_MARKS + _BLANKS):
            spans.append((start, end))
            start = end
    return [*spans[:-1], (spans[-1][0], len(text))] if spans else []


def units(text: str, unit: Unit) -> list[str]:
    """The units of `text`, without the white space and list marks around them.

    >>> units("- Anna eats figs.\\n- Omar runs. He wins.", "line")
    ['Anna eats figs.', 'Omar runs. He wins.']
    """
    return [_unmarked(text[start:end]) for start, end in unit_spans(text, unit)]


def flat(text: str) -> str:
    """`text` without regard to case, white space and invisible characters.

    >>> flat(" Anna  lives\\nin ROME. ")
    'anna lives in rome.'
    """
    folded = visible(text).casefold()
    if not folded.isascii():
        return " ".join(folded.split())
    for blank in _BLANKS:  # three times as fast as split and join on thousands of words
        folded = folded.replace(blank, " ")
    while "  " in folded:
        folded = folded.replace("  ", " ")
    return folded.strip(" ")


_GROUP = r"(?:(?<!\w)\d{1,3}(?: \d{3})+(?!\w)|\d+ [¼-¾⅐-⅞↉]|\d\w*(?:(?<=\de)[-+−]\d+)?)"
_JOINED = rf"(?:\d+ (?=\d+[/⁄]\d))?{_GROUP}(?:[-.,:/^×*'’−–—٫٬．，：／⁄·]{_GROUP})*"
_DIGITS = rf"[-+−–±~<>≤≥=#$€£¥₹₩]*{_JOINED}"
_MONTH = rf"(?:(?:{'|'.join(MONTHS)})(?!\w)|(?:{'|'.join(one for one in SHORT if SHORT[one] in MONTHS)})(?!\w)\.?)"
_UNIT = "|".join((*(f"{one}(?:e?s)?" for one in (*UNITS, *SCALES)), *(one for one in SHORT if SHORT[one] in UNITS)))
_YEAR = rf"(?:(?:,? |-)(?=\d{{4}}(?!\w)){_JOINED})?"
_WORDS = rf"(?:per )?(?:{_UNIT})|[mglh]|(?<=/)s|[ap]\.?m|b\.c"
_MEASURE = rf"(?:[ /-]?(?:°(?: ?[cf](?!\w))?|[%‰]|[€$£¥₹₩](?!\d)|(?:{_WORDS})(?!\w)))+"
NUMBER = re.compile(rf"{_DIGITS}(?:[ -](?:of )?{_MONTH}{_YEAR}|{_MEASURE})?|(?<!\w){_MONTH} {_DIGITS}{_YEAR}")
"""A number as one token, in flat text."""
_WORD_START = re.compile(rf"(?<=\s)(?!(?:of|{_WORDS}|{_MONTH})(?!\w))[^\W\d]")
"""A word that is in no number."""
_NEAR, _FAR = 80, 400  # characters before an edge and after it that are looked at
DECIMAL = re.compile(r"\d+(?:[.,٫٬]\d+)+")  # the digits of one number


def stands_in(piece: str, text: str, whole: re.Pattern[str] | None = DECIMAL) -> bool:
    """True if `piece` is in `text` between word boundaries and cuts no token `whole` in two. Both flat.

    >>> stands_in("the code is 12.", "the code is 12. more."), stands_in("the code is 1", "the code is 12.")
    (True, False)
    """
    return offset_in(piece, text, whole) >= 0


def offset_in(piece: str, text: str, whole: re.Pattern[str] | None = DECIMAL) -> int:
    """The first position of `piece` in `text`, between word boundaries, in characters; -1 if absent. Both flat.

    >>> offset_in("ann ran.", "joann ran. ann ran."), offset_in("", "ann")
    (11, -1)
    """
    start = text.find(piece) if piece else -1
    while start >= 0:
        end = start + len(piece)
        before, after = text[start - 1 : start], text[end : end + 1]
        cut = _in_word(before, piece[0]) or _in_word(piece[-1], after)
        if not (cut or (whole and (_cuts(whole, text, start) or _cuts(whole, text, end)))):
            return start
        start = text.find(piece, start + 1)
    return -1


def _in_word(before: str, after: str) -> bool:
    """True if a word continues from one character to the next; in a script without spaces, only a mark continues."""
    if not before.isalnum() and not _is_mark(before):
        return False
    return _is_mark(after) or (after.isalnum() and not _UNSPACED.match(before) and not _UNSPACED.match(after))


def _is_mark(character: str) -> bool:
    return character > "\u02ff" and unicodedata.category(character)[0] == "M"


def _cuts(whole: re.Pattern[str], text: str, edge: int) -> bool:
    if not _DIGIT.search(text, max(0, edge - 40), edge + 40):  # the usual case
        return False
    word = _WORD_START.search(text, max(0, edge - _NEAR), edge + 40)
    if word and word.start() < edge:  # it is in no number
        near = whole.finditer(text, word.start(), edge + _FAR)
        return next((token.start() < edge for token in near if token.end() > edge), False)
    starts, ends = _tokens(whole.pattern, text)
    token = bisect_left(starts, edge) - 1
    return token >= 0 and edge < ends[token]


@lru_cache(maxsize=4)
def _tokens(whole: str, text: str) -> tuple[array[int], array[int]]:
    """Start and end of each token, in order: of a text of figures, where a piece may be found at each of them."""
    spans = [token.span() for token in re.finditer(whole, text)]
    return array("q", (start for start, _ in spans)), array("q", (end for _, end in spans))

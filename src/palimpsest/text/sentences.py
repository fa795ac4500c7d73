"""Sentences of a text, their form for comparison, and the units by which a memory is filtered.

Guaranteed: standard library only; time is linear in the text, except for `stands_in`, which uses `str.find`.
Not covered: abbreviations ("Dr. Ann" are two sentences); scripts with other sentence ends than . ! ? 。！？.
"""

from __future__ import annotations

import re
from typing import Literal

Unit = Literal["sentence", "item", "line"]
"""`sentence`; `item` of a list, from its mark to the next; `line`."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\n+")
_UNIT_END = {
    "sentence": _SENTENCE_END,
    "item": re.compile(r"\n+(?=[ \t]*(?:[-*•]|\d+[.)])[ \t])|\n{2,}"),
    "line": re.compile(r"\n+"),
}
_MARKS = " \t\r-*•"
_BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f"
"""ASCII white space except the space."""


def sentences(text: str) -> list[str]:
    """Sentences and lines of a text, each with its full stop, list marks taken off.

    >>> sentences("- Anna lives in Rome. She is 9.5 years\\nold.")
    ['Anna lives in Rome.', 'She is 9.5 years', 'old.']
    """
    pieces = (piece.strip(_MARKS) for piece in _SENTENCE_END.split(text))
    return [piece for piece in pieces if piece]


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
    return [text[start:end].strip(_MARKS + _BLANKS) for start, end in unit_spans(text, unit)]


def flat(text: str) -> str:
    """`text` without regard to case and white space.

    >>> flat(" Anna  lives\\nin ROME. ")
    'anna lives in rome.'
    """
    folded = text.casefold()
    if not folded.isascii():
        return " ".join(folded.split())
    for blank in _BLANKS:  # three times as fast as split and join on thousands of words
        folded = folded.replace(blank, " ")
    while "  " in folded:
        folded = folded.replace("  ", " ")
    return folded.strip(" ")


def stands_in(piece: str, text: str) -> bool:
    """Whether `piece` is in `text` between word boundaries. Both flat.

    >>> stands_in("the code is 12.", "the code is 12. more."), stands_in("the code is 1", "the code is 12.")
    (True, False)
    """
    return offset_in(piece, text) >= 0


def offset_in(piece: str, text: str) -> int:
    """The first position of `piece` in `text`, between word boundaries, in characters; -1 if absent. Both flat.

    >>> offset_in("ann ran.", "joann ran. ann ran."), offset_in("", "ann")
    (11, -1)
    """
    start = text.find(piece) if piece else -1
    while start >= 0:
        end = start + len(piece)
        before, after = text[start - 1 : start], text[end : end + 1]
        cut_left = piece[0].isalnum() and before.isalnum()
        cut_right = piece[-1].isalnum() and after.isalnum()
        if not (cut_left or cut_right):
            return start
        start = text.find(piece, start + 1)
    return -1

"""Foreign text in a report: nothing in it can hide or turn what stands beside it."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """`text` with control, format (bidirectional) and surrogate characters written as escapes; newlines stay.

    >>> visible("a\\x1b[31m\\u202eb")
    'a\\\\x1b[31m\\\\u202eb'
    """
    return "".join(_visible(c) for c in text)


def _visible(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}:
        return character
    return character.encode("unicode_escape").decode("ascii")

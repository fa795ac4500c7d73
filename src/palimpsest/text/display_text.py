"""Text for people: untrusted text made safe to show, numbers with their nouns."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` with unprintable characters escaped, line breaks included.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# ---- Foreign text in a report --------------------------------------------------------------------------------


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


# ---- Numbers with their nouns --------------------------------------------------------------------------------


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "chunk"), counted(4_096, "chunk")
    ('1 chunk', '4,096 chunks')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def ordinal(index: int) -> int:
    """Number of a turn, section or memory in every text and page, from 1; groups, rollouts and draws have their index.

    >>> ordinal(0)
    1
    """
    return index + 1


def size_of(count: int) -> str:
    """A count of bytes, in a readable unit.

    >>> size_of(1), size_of(912), size_of(34_200), size_of(999_600), size_of(1_260_000)
    ('1 byte', '912 bytes', '34 kB', '1.0 MB', '1.3 MB')
    """
    if count < 1000:
        return counted(count, "byte")
    return f"{count / 1e3:.0f} kB" if count < 999_500 else f"{count / 1e6:.1f} MB"

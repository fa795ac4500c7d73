"""Foreign text on a line of a terminal or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with what is no printable character escaped, line breaks included.

    >>> printable("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

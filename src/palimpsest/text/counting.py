"""Numbers of things, in words."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "chunk"), counted(4_096, "chunk")
    ('1 chunk', '4,096 chunks')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"

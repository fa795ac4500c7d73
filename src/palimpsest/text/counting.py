"""Numbers of things, in words."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "chunk"), counted(4_096, "chunk")
    ('1 chunk', '4,096 chunks')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size_of(count: int) -> str:
    """A count of bytes, in the unit that tells it.

    >>> size_of(1), size_of(912), size_of(34_200), size_of(999_600), size_of(1_260_000)
    ('1 byte', '912 bytes', '34 kB', '1.0 MB', '1.3 MB')
    """
    if count < 1000:
        return counted(count, "byte")
    return f"{count / 1e3:.0f} kB" if count < 999_500 else f"{count / 1e6:.1f} MB"

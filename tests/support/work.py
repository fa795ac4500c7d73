"""Amount of work as a count, whose bound also holds on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(work: Callable[[], object]) -> int:
    """Number of calls of functions, C functions included.

    >>> calls_of(lambda: [abs(i) for i in range(1000)]) - calls_of(lambda: [abs(i) for i in range(10)])
    990
    """
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls

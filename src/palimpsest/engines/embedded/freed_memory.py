"""Keeps freed memory in the process, so that the next tensor of that size needs no new pages.

The C library (glibc) gives the top of its heap back to the system whenever more than some 64 MB of it are free. A
forward and backward pass over a long forest frees and allocates that much many times over, and the kernel clears every
page again: 10 to 30% of the learner's time on a CPU. The price is that resident memory stays at its peak, until
`give_back_freed_memory`: without it a process that trains run after run grows, as its heap falls into pieces.

Not covered: single blocks of over 32 MB, which glibc always gives back; other C libraries, where nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # glibc takes blocks from its heap up to this size
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Apply to this process; whether the C library took it. Without it everything works, slower."""
    mallopt = _glibc("mallopt")
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) & bool(mallopt(_TRIM_THRESHOLD, _NEVER))


def give_back_freed_memory() -> bool:
    """Give every page that holds nothing back to the system; whether the C library had any to give."""
    malloc_trim = _glibc("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(0))


def _glibc(name: str) -> Any:
    """A function of the C library, None where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None

"""Keeps freed memory in the process, so that the next tensor of that size needs no new pages.

The C library (glibc) gives the top of its heap back to the system whenever more than some 64 MB of it are free. A
forward and backward pass over a long forest frees and allocates that much many times over, and the kernel clears every
page again: 10 to 30% of the learner's time on a CPU. The price is that resident memory stays at its peak.

Not covered: single blocks of over 32 MB, which glibc always gives back; other C libraries, where nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # glibc takes blocks from its heap up to this size
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Apply to this process; whether the C library took it. Without it everything works, slower."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) & bool(mallopt(_TRIM_THRESHOLD, _NEVER))

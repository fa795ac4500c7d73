"""Random draws keyed by their purpose, never by call order, hash order or clock.

A key is any sequence of integers and strings, for instance (run seed, "turn", step, problem id, rollout, turn). The
same key yields the same number on every machine; different keys are independent for all practical purposes (BLAKE2b).
Not covered: cryptographic use.
"""

from __future__ import annotations

import hashlib
import random
import struct

Key = int | str


def derive_seed(*key: Key) -> int:
    """A 63-bit seed for `key`.

    >>> derive_seed(0, "turn", 1) == derive_seed(0, "turn", 1)
    True
    >>> derive_seed(1, 23) == derive_seed(12, 3)
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in key:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else str(int(part)).encode("ascii")
        digest.update(b"s" if isinstance(part, str) else b"i")
        digest.update(struct.pack("<q", len(data)))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little") >> 1


def keyed_random(*key: Key) -> random.Random:
    """A separate generator for `key`.

    >>> keyed_random(0, "data").random() == keyed_random(0, "data").random()
    True
    """
    return random.Random(derive_seed(*key))

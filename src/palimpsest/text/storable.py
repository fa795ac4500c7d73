"""Values as JSON can hold them: what has no place in it becomes text, and it is told where.

Guaranteed: `storable` never raises and orjson writes what it gives; what JSON can hold comes back as it was.
Not covered: two keys of one object that are the same text (1 and "1"), of which the later one stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

MAX_DEPTH = 64
"""Of objects and lists inside each other; what lies deeper becomes text."""

Place = tuple[str, ...]


def is_wide(number: int) -> bool:
    """Whether 64 bits, signed or not, are too few for an integer.

    >>> is_wide(2**64 - 1), is_wide(2**64), is_wide(-(2**63))
    (False, True, False)
    """
    return not -(2**63) <= number < 2**64


def valid(text: str) -> str:
    """`text` with lone surrogates as U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def storable(value: Any, changed: list[str], place: Place = ()) -> Any:
    """`value` made of None, bool, integers of 64 bits, finite floats, strings, lists, tuples and dicts with such keys.

    Sets become sorted lists. `changed` gains the place of whatever became text.

    >>> changed = []
    >>> storable({"n": 10**20, "near": [1, float("nan")], "raw": b"x"}, changed)
    {'n': '100000000000000000000', 'near': [1, 'nan'], 'raw': "b'x'"}
    >>> changed
    ['n', 'near.1', 'raw']
    """
    if len(place) < MAX_DEPTH:
        if isinstance(value, Mapping):
            inner = {key: (*place, _text(key)) for key in value}
            return {_key(key, changed, inner[key]): storable(one, changed, inner[key]) for key, one in value.items()}
        if isinstance(value, set | frozenset):
            value = sorted(value, key=lambda one: (_text(type(one)), _text(one)))
        if isinstance(value, list | tuple):
            if set(map(type, value)) == {int} and not is_wide(min(value)) and not is_wide(max(value)):
                return value  # token ids: many, and walked in no time
            items = [storable(one, changed, (*place, str(at))) for at, one in enumerate(value)]
            return tuple(items) if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool) or (isinstance(value, int) and not is_wide(value)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)  # numpy's is a float too, but orjson doesn't know it
    if isinstance(value, str) and valid(value) == value:
        return value
    changed.append(".".join(place))
    return _text(value)


def to_json(value: object) -> bytes:
    """JSON, also of what no JSON holds: a file's name or a foreign text that is no Unicode, a wide integer.

    >>> to_json({"n": 10**20})
    b'{"n":"100000000000000000000"}'
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return orjson.dumps(storable(value, []))


def _key(key: Any, changed: list[str], place: Place) -> str:
    if not isinstance(key, str) or key != place[-1]:
        changed.append(".".join(place))
    return place[-1]


def _text(value: Any) -> str:
    try:
        return valid(str(value))
    except Exception:  # noqa: BLE001  the border around a value's own __str__; an integer may have too many digits for it
        return f"<{type(value).__name__}>"

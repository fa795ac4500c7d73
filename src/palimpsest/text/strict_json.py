r"""JSON out of text that a model wrote: read strictly, or refused with a reason that can be shown to the model.

Strict: keys once, no NaN, no infinity (1e999 is one), no integer beyond 64 bits unless asked for, no half of a
surrogate pair, no line breaks in strings but `\n`, no more than `MAX_DEPTH` levels.

Guaranteed: `Unreadable` is all that is raised; nothing recurses deeper than `MAX_DEPTH`; time is linear in the piece.
Not covered: a bound on the length, which the caller sets.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from palimpsest.text.storable import is_wide

MAX_DEPTH = 16
"""Of objects and arrays inside each other, the outermost being the first."""


class Unreadable(Exception):
    """Characters that are no JSON value; `bounded` if it is certain where they end."""

    def __init__(self, reason: str, *, bounded: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.bounded = reason, bounded


_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)


def end_of_value(text: str, start: int, stop: int) -> int:
    """Where the object or array at `start` closes; brackets are counted, not matched.

    >>> end_of_value('{"a": "}"} and more', 0, 19)
    10
    """
    depth = 0
    for match in _STRUCTURE.finditer(text, start, stop):
        mark = text[match.start()]  # not match[0], which would copy the string
        if mark == '"':
            if not match[1]:
                raise Unreadable("the JSON is cut short: a string is not closed")
        elif mark in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise Unreadable(f"the JSON is nested deeper than {MAX_DEPTH}")
        else:
            depth -= 1
            if depth == 0:
                return match.end()
    raise Unreadable("the JSON is cut short: a bracket is not closed", bounded=True)


def loaded(piece: str, *, wide: bool = False) -> Any:
    """The value of JSON whose depth and length are bounded. `wide` allows integers beyond 64 bits.

    >>> loaded('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    palimpsest.text.strict_json.Unreadable: the key "a" stands there twice
    """
    try:
        value = json.loads(
            piece,
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer if wide else _narrow,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as fault:
        what = fault.msg[:1].lower() + fault.msg[1:]
        raise Unreadable(f"not JSON: {what} at character {fault.pos} of it", bounded=True) from None
    except UnicodeEncodeError:
        raise Unreadable("a string holds half of a surrogate pair: write the character itself", bounded=True) from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Unreadable(f"the key {shown(twice)} stands there twice", bounded=True)
    return made


def _no_constant(name: str) -> Any:
    raise Unreadable(f"{name} is not JSON: give a number or null", bounded=True)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Unreadable(f"the number {shown(digits)} is too large", bounded=True)
    return number


def _narrow(digits: str) -> int:
    if len(digits) > 20 or is_wide(int(digits)):  # the longest that fit have 20 characters
        raise Unreadable(f"the integer {shown(digits)} does not fit 64 bits: write it as a string", bounded=True)
    return int(digits)


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # beyond the interpreter's limit of digits
        raise Unreadable("a number has too many digits", bounded=True) from None


def kind(value: Any) -> str:
    """A JSON value's type in words.

    >>> kind([]), kind(None)
    ('an array', 'null')
    """
    kinds = {
        bool: "a boolean",
        str: "a string",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), "null")


def shown(text: str) -> str:
    """A quotation short enough for a message, on one line."""
    short = text[:40]
    return json.dumps(short + "..." if len(text) > 40 else short) if text else "nothing"

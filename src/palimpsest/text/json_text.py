r"""JSON conversion of any value, and strict parsing of JSON that a model wrote.

Strict parsing rejects, with a reason for the model: repeated keys, NaN and infinity (also 1e999), integers beyond 64
bits unless allowed, half of a surrogate pair, raw line breaks in strings, more than `MAX_JSON_DEPTH` levels.

Guaranteed: `storable` never raises, orjson writes its result, and JSON values are unchanged; parsing raises
`Unreadable` only, recurses at most `MAX_JSON_DEPTH` levels and takes linear time.
Not covered: two keys of one object with the same text (1 and "1"), of which the later one stays; a bound on the length
of parsed text, which the caller sets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

MAX_DEPTH = 64
"""Maximum nesting of objects and lists; deeper values become text."""

KeyPath = tuple[str, ...]


def is_wide(number: int) -> bool:
    """True if 64 bits, signed or not, are too few for an integer.

    >>> is_wide(2**64 - 1), is_wide(2**64), is_wide(-(2**63))
    (False, True, False)
    """
    return not -(2**63) <= number < 2**64


def valid(text: str) -> str:
    """`text` with lone surrogates as U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def storable(value: Any, changed: list[str], path: KeyPath = ()) -> Any:
    """`value` made of None, bool, integers of 64 bits, finite floats, strings, lists, tuples and dicts with such keys.

    Sets become sorted lists. `changed` receives the path of each value that became text.

    >>> changed = []
    >>> storable({"n": 10**20, "near": [1, float("nan")], "raw": b"x"}, changed)
    {'n': '100000000000000000000', 'near': [1, 'nan'], 'raw': "b'x'"}
    >>> changed
    ['n', 'near.1', 'raw']
    """
    if len(path) < MAX_DEPTH:
        if isinstance(value, Mapping):
            inner = {key: (*path, _text(key)) for key in value}
            return {_key(key, changed, inner[key]): storable(one, changed, inner[key]) for key, one in value.items()}
        if isinstance(value, set | frozenset):
            value = sorted(value, key=lambda one: (_text(type(one)), _text(one)))
        if isinstance(value, list | tuple):
            if set(map(type, value)) == {int} and not is_wide(min(value)) and not is_wide(max(value)):
                return value  # token ids: many, so a fast path
            items = [storable(one, changed, (*path, str(at))) for at, one in enumerate(value)]
            return tuple(items) if isinstance(value, tuple) else items
    if value is None or isinstance(value, bool) or (isinstance(value, int) and not is_wide(value)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)  # numpy's is a float too, but orjson doesn't know it
    if isinstance(value, str) and valid(value) == value:
        return value
    changed.append(".".join(path))
    return _text(value)


def to_json(value: object) -> bytes:
    """JSON of any value, including invalid Unicode (a file's name, untrusted text) and wide integers.

    >>> to_json({"n": 10**20})
    b'{"n":"100000000000000000000"}'
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return orjson.dumps(storable(value, []))


def _key(key: Any, changed: list[str], path: KeyPath) -> str:
    if not isinstance(key, str) or key != path[-1]:
        changed.append(".".join(path))
    return path[-1]


def _text(value: Any) -> str:
    try:
        return valid(str(value))
    except Exception:  # noqa: BLE001  the border around a value's own __str__; an integer may have too many digits for it
        return f"<{type(value).__name__}>"


# ---- JSON out of text that a model wrote ---------------------------------------------------------------------


MAX_JSON_DEPTH = 16
"""Maximum nesting of objects and arrays; the outermost counts as 1."""


class Unreadable(Exception):
    """Text that is not a JSON value; `bounded` if its end is certain."""

    def __init__(self, reason: str, *, bounded: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.bounded = reason, bounded


_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)


def end_of_value(text: str, start: int, stop: int) -> int:
    """The end of the object or array at `start`; brackets are counted, not matched.

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
            if depth > MAX_JSON_DEPTH:
                raise Unreadable(f"the JSON is nested deeper than {MAX_JSON_DEPTH}")
        else:
            depth -= 1
            if depth == 0:
                return match.end()
    raise Unreadable("the JSON is cut short: a bracket is not closed", bounded=True)


_TOKENS = (
    r"""(?P<quoted>"(?:[^"\\]++|\\.)*+"?|'(?:[^'\\]++|\\.)*+'?)|\b(?P<key>\w++)\s*+%s"""
    r"|\b(?P<word>None|True|False)\b|[\[\](){}]"
)
GEMMA = re.compile(r'<\|"\|>(?P<raw>.*?)(?P<closed><\|"\|>|\Z)|' + _TOKENS % ":", re.DOTALL)
"""Gemma 4's notation of an object: {key:<|"|>text<|"|>}."""
PYTHON = re.compile("(?P<raw>(?P<closed>(?!)))|" + _TOKENS % "=", re.DOTALL)
"""The arguments of a call in Python: (key='text')."""
_OTHERS = {"None": "null", "True": "true", "False": "false", "(": "[", ")": "]"}
_ESCAPE = re.compile(r"\\(U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", **{sign: sign for sign in "\\'\"/"}}


def as_json(text: str, start: int, stop: int, notation: re.Pattern[str] | None = None) -> tuple[str, int]:
    """JSON of the object at `start`, and the object's end; a `notation` may use parentheses around it.

    >>> as_json("(a='x', b=[True]) and more", 0, 26, PYTHON)
    ('{"a":"x", "b":[true]}', 17)
    """
    if notation is None:
        end = end_of_value(text, start, stop)
        return text[start:end], end
    pieces, at, depth = list[str](), start, 0
    for token in notation.finditer(text, start, stop):
        pieces.append(text[at : token.start()])
        at, found = token.end(), token[0]
        if token["key"] is not None:
            found = json.dumps(token["key"]) + ":"
        elif token["raw"] is not None or token["quoted"] is not None:
            if token["closed"] == "" or (token["quoted"] and (len(found) < 2 or found[-1] != found[0])):
                raise Unreadable("the call ends within a string")
            found = json.dumps(_ESCAPE.sub(_unescaped, found[1:-1]) if token["raw"] is None else token["raw"])
        elif token["word"] is None:
            depth += 1 if found in "([{" else -1
            if depth == 0:
                return "".join([*pieces, "}" if found == ")" else found]), at
            if depth > MAX_JSON_DEPTH:
                raise Unreadable(f"the call has more levels than {MAX_JSON_DEPTH}")
        pieces.append("{" if token.start() == start else _OTHERS.get(found, found))
    raise Unreadable("the call ends before its last bracket")


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPES.get(escape[1], escape[0]) if len(escape[1]) == 1 else chr(int(escape[1][1:], 16))


def loaded(piece: str, *, wide: bool = False) -> Any:
    """The value of JSON whose depth and length are bounded. `wide` allows integers beyond 64 bits.

    >>> loaded('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    palimpsest.text.json_text.Unreadable: the key "a" occurs twice
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
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise Unreadable(f"the key {shown(twice)} occurs twice", bounded=True)
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


TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""Python's types of JSON Schema's."""


def is_a(value: Any, name: str) -> bool:
    """True if a JSON value has the type `name` of `TYPES`; true is not a number."""
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def kind(value: Any) -> str:
    """The type of a JSON value, with its article.

    >>> kind([]), kind(2), kind(None)
    ('an array', 'an integer', 'null')
    """
    return article(next((name for name in TYPES if is_a(value, name)), type(value).__name__))


def article(name: str) -> str:
    return name if name == "null" else f"an {name}" if name[0] in "aio" else f"a {name}"


def shown(text: str) -> str:
    """A quotation short enough for a message, on one line."""
    short = text[:40]
    return json.dumps(short + "..." if len(text) > 40 else short) if text else "nothing"

"""Validation of a call's arguments against a small part of JSON Schema, and values of arguments written as text.

    type         string, integer, number, boolean, array, object, null, or a list of them
    properties   of an object; any other key is rejected
    required     keys an object must have
    items        schema of every element of an array
    enum         the values allowed
    description, title, default: read by the model, not checked

A schema with any other keyword is rejected at start. Unlike in JSON Schema, `properties` closes an object: a function
takes no unknown argument. 3.0 is not an integer, true is not a number.

Guaranteed: the check recurses as deep as the schema, not the arguments; its message is short.
Not covered: checks by the tool, such as whether an id exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from palimpsest.errors import ConfigError, nearest
from palimpsest.text.json_text import TYPES, Unreadable, article, end_of_value, is_a, kind, loaded, valid

Schema = Mapping[str, Any]

_KEYWORDS = {"type", "properties", "required", "items", "enum", "description", "title", "default"}


def check_schema(schema: Schema, where: str = "parameters") -> None:
    """Raise ConfigError if a tool's schema uses unsupported keywords.

    >>> check_schema({"type": "object", "properties": {"query": {"type": "str"}}})
    Traceback (most recent call last):
    palimpsest.errors.ConfigError: tool schema parameters.query.type=str: not a type; did you mean string?
    """
    for keyword in schema:
        if keyword not in _KEYWORDS:
            keywords = ", ".join(sorted(_KEYWORDS))
            raise ConfigError(f"tool schema {where}.{keyword}: not supported; known are {keywords}")
    for name in _types(schema):
        if name not in TYPES:
            hint = nearest(str(name), TYPES) or f"; one of {', '.join(TYPES)}"
            raise ConfigError(f"tool schema {where}.type={name}: not a type{hint}")
    for key in schema.get("required", ()):
        if key not in schema.get("properties", {key: {}}):
            raise ConfigError(f"tool schema {where}.required={key}: describe it under {where}.properties too")
    for key, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{where}.{key}")
    if "items" in schema:
        check_schema(schema["items"], f"{where}[]")


def named_call(names: Iterable[str]) -> re.Pattern[str]:
    """Matches one of the tools' `names` where calls of any format have it, or JSON with a name and arguments.

    >>> found = named_call(["search"])
    >>> [bool(found.search(text)) for text in ('"tool": "search"', "search(query='x')", "search[ARGS]{", "to=search")]
    [True, True, True, True]
    """
    known = "|".join(map(re.escape, names)) or "(?!)"
    return re.compile(
        rf'"(?:name|tool|tool_name|function|action|recipient_name)"\s*+:\s*+"(?:{known})"|\bto=(?:\w+\.)?(?:{known})\b'
        rf"|\b(?:{known})(?:\[ARGS\]\s*+)?+(?:\{{|\((?:\w++\s*+=|[\"'{{]))|^[ \t*]*+Action:[ \t*]*+(?:{known})\b"
        r'|"name"\s*+:\s*+"[^"\n]{1,128}"\s*+,\s*+"(?:arguments|parameters)"',
        re.MULTILINE,
    )


def argument_fault(arguments: Any, schema: Schema) -> str | None:
    """The first fault of a call's arguments, naming key, value and fix; None if valid.

    >>> schema = {"type": "object", "required": ["query"],
    ...           "properties": {"query": {"type": "string"}, "topk": {"type": "integer"}}}
    >>> argument_fault({"query": "Oslo", "topk": "5"}, schema)
    'topk="5" is a string: give an integer'
    >>> argument_fault({"qeury": "Oslo"}, schema)
    'qeury is not an argument: give only query, topk; did you mean query?'
    >>> argument_fault({"topk": 5}, schema)
    'query is missing: add it (string)'
    >>> argument_fault({"query": "Oslo"}, schema) is None
    True
    """
    return _fault(arguments, schema, "")


_PYTHON = {"True": True, "False": False, "None": None}  # as templates write what isn't JSON


def value_of(text: str, schema: Schema) -> Any:
    """The value of an argument written as text without quotes: of a type of its schema, the text itself otherwise.

    >>> [value_of("42", {"type": name}) for name in ("string", "integer")], value_of("True", {}), value_of("[1", {})
    (['42', 42], True, '[1')
    """
    types, piece = _types(schema), text.strip()
    if types == ["string"]:
        return valid(text)
    try:
        if piece[:1] in ("{", "[") and end_of_value(piece, 0, len(piece)) < len(piece):  # bounds the depth
            return valid(text)
        value = _PYTHON[piece] if piece in _PYTHON else loaded(piece)
    except Unreadable:
        return valid(text)
    return valid(text) if "string" in types and not any(is_a(value, name) for name in types) else value


def _fault(value: Any, schema: Schema, path: str) -> str | None:
    shown = f"{path or 'arguments'}={_shown(value)}"
    types = _types(schema)
    if types and not any(is_a(value, name) for name in types):
        return f"{shown} is {kind(value)}: give {' or '.join(map(article, types))}"
    if "enum" in schema and not any(type(value) is type(one) and value == one for one in schema["enum"]):
        return f"{shown} is not allowed: give one of {', '.join(map(_shown, schema['enum']))}"
    if isinstance(value, dict):
        return _object_fault(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        faults = (_fault(one, schema["items"], f"{path}[{index}]") for index, one in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)
    return None


def _object_fault(value: Mapping[str, Any], schema: Schema, path: str) -> str | None:
    prefix = f"{path}." if path else ""
    properties: Mapping[str, Schema] | None = schema.get("properties")
    for key in value:
        if properties is not None and key not in properties:
            advice = f"give only {', '.join(properties)}" if properties else "give none"
            return f"{prefix}{_cut(key)} is not an argument: {advice}{nearest(key[:80], properties)}"
    for key in schema.get("required", ()):
        if key not in value:
            types = " or ".join(_types((properties or {}).get(key, {})))
            return f"{prefix}{key} is missing: add it{f' ({types})' if types else ''}"
    faults = (_fault(value[key], inner, prefix + key) for key, inner in (properties or {}).items() if key in value)
    return next((fault for fault in faults if fault is not None), None)


def _types(schema: Schema) -> list[str]:
    value = schema.get("type", [])
    return [value] if isinstance(value, str) else list(value)


def _shown(value: Any) -> str:
    return _cut(json.dumps(value, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."

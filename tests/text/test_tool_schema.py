"""Schemas of tools, and arguments checked against them."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.errors import ConfigError
from palimpsest.text.tool_schema import argument_fault, check_schema

SCHEMA = {
    "type": "object",
    "required": ["memory", "delete_ids"],
    "properties": {
        "memory": {"type": "string", "description": "what to keep"},
        "delete_ids": {"type": "array", "items": {"type": "string"}},
        "topk": {"type": ["integer", "null"]},
        "weight": {"type": "number"},
        "sure": {"type": "boolean"},
        "mode": {"enum": ["all", 1]},
        "at": {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]},
    },
}
GOOD = {"memory": "m", "delete_ids": ["a"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"topk": None, "weight": 3, "sure": False, "mode": 1, "at": {"page": 2}}, None),
        ({"weight": 0.5, "mode": "all", "delete_ids": []}, None),
        ({"delete_ids": "a"}, 'delete_ids="a" is a string: give an array'),
        ({"delete_ids": ["a", 3]}, "delete_ids[1]=3 is an integer: give a string"),
        ({"topk": True}, "topk=true is a boolean: give an integer or null"),
        ({"topk": 3.0}, "topk=3.0 is a number: give an integer or null"),
        ({"weight": True}, "weight=true is a boolean: give a number"),
        ({"sure": 1}, "sure=1 is an integer: give a boolean"),
        ({"mode": True}, 'mode=true is not allowed: give one of "all", 1'),
        ({"at": {}}, "at.page is missing: add it (integer)"),
        ({"at": {"page": "x"}}, 'at.page="x" is a string: give an integer'),
        ({"memori": 1}, "memori is not an argument: give only memory, delete_ids, topk, weight, sure, mode, at"),
        ({"memory": ["x" * 99]}, f'memory=["{"x" * 55}... is an array: give a string'),
    ],
)
def test_arguments_against_a_schema(changes: dict[str, Any], message: str | None) -> None:
    check_schema(SCHEMA)
    fault = argument_fault({**GOOD, **changes}, SCHEMA)
    assert fault == message or (fault is not None and message is not None and fault.startswith(message))


@pytest.mark.parametrize(
    ("arguments", "schema", "message"),
    [
        ({"memory": "m"}, SCHEMA, "delete_ids is missing: add it (array)"),
        ([], SCHEMA, "arguments=[] is an array: give an object"),
        ({"x": 1}, {"type": "object", "properties": {}}, "x is not an argument: give none"),
    ],
)
def test_missing_and_unknown_arguments(arguments: Any, schema: dict[str, Any], message: str) -> None:
    assert argument_fault(arguments, schema) == message


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"pattern": "a+"}, "parameters.pattern: not supported"),
        ({"type": "int"}, "parameters.type=int: not a type"),
        ({"properties": {"a": {"items": {"minimum": 1}}}}, "parameters.a[].minimum: not supported"),
        ({"properties": {}, "required": ["a"]}, "parameters.required=a"),
    ],
)
def test_an_unsupported_schema_is_rejected(schema: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match="tool schema") as caught:
        check_schema(schema)
    assert part in str(caught.value)

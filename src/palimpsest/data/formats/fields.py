"""Checked access to the fields of a row. Every function raises DataError naming file, row, key, value and fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.data.files.rows import Row
from palimpsest.errors import DataError, nearest, shown_names
from palimpsest.text.json_text import valid
from palimpsest.types import Question

IDS = ("_id", "id", "question_id", "query_id")
"""Columns of a row's id; the first nonempty one counts."""


class MissingGold(DataError):
    """A row's gold title, index or id is not among its paragraphs or sessions."""


def text(row: Row, value: Any, name: str, *, blank: bool = False) -> str:
    """`value` as a string; lone surrogates become U+FFFD. `blank` allows an empty string."""
    if not isinstance(value, str):
        raise DataError(f"{row.where}: {name} must be a string, is {type(value).__name__}: {value!r:.60}")
    if not blank and not value.strip():
        raise DataError(f"{row.where}: {name} is empty; remove the row or fill it in")
    return valid(value)


def golds(row: Row, value: Any, name: str) -> tuple[str, ...]:
    """The gold answers in a string or list; none for None, a blank string or an empty list."""
    if value is None or value == [] or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, str):
        return (text(row, value, name),)
    if not isinstance(value, list):
        raise DataError(f"{row.where}: {name} must be a string or a list of strings, is {value!r:.60}")
    return tuple(text(row, gold, f"{name}[{i}]") for i, gold in enumerate(value))


def golds_at(row: Row, values: Any, key: str, inside: str = "") -> tuple[str, ...]:
    """The gold answers under a required key, whose value may be None (see `golds`)."""
    held = values[key] if isinstance(values, Mapping) and key in values else get(row, values, key, inside)
    return golds(row, held, f"{inside}.{key}" if inside else key)


def get(row: Row, values: Any, key: str, inside: str = "") -> Any:
    """`values[key]` of the row, or of the object `inside` it."""
    if not isinstance(values, Mapping):
        raise DataError(f"{row.where}: {inside} must be an object with {key!r}, is {values!r:.60}")
    if values.get(key) is None:
        key_path = f"{inside}.{key}" if inside else key
        hint = nearest(key, (str(name) for name in values if name != key))
        raise DataError(f"{row.where}: {key_path} is missing{hint} (there: {shown_names(values) or 'nothing'})")
    return values[key]


def identity(row: Row, fallback: str) -> str:
    """The row's id, or `fallback` without one."""
    ids = (row.values.get(key) for key in IDS)
    return next((valid(str(value)) for value in ids if value is not None and value != ""), fallback)


def user_message(row: Row, value: Any, name: str) -> str:
    """The question of a prompt: a plain string, or the last user message of a chat."""
    if isinstance(value, list):
        messages = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        if not messages:
            raise DataError(f"{row.where}: {name} has no message with role 'user'")
        value = messages[-1]
    return text(row, value, name)


def rest(row: Row, *used: str) -> dict[str, Any]:
    """The row's other fields, for metadata."""
    return {key: value for key, value in row.values.items() if key not in used and value is not None}


def questions(row: Row, metadata: Mapping[str, Any]) -> list[Question]:
    """The question of a row, or all of `questions`."""
    listed = row.values.get("questions")
    if listed is None:
        return [_question(row, row.values)]
    for other in ("question", "answers"):
        if row.values.get(other) is not None:
            raise DataError(f"{row.where}: has both questions and {other}; move {other} into questions or remove it")
    if metadata.get("objectives"):
        raise DataError(f"{row.where}: has both questions and metadata.objectives; remove one of them")
    if not isinstance(listed, list) or not listed:
        raise DataError(
            f"{row.where}: questions must be a list of objects with question and answers, is {listed!r:.60}"
        )
    return [_question(row, entry, f"questions[{number}]") for number, entry in enumerate(listed)]


def _question(row: Row, values: Any, inside: str = "") -> Question:
    name = f"{inside}.question" if inside else "question"
    return Question(text(row, get(row, values, "question", inside), name), golds_at(row, values, "answers", inside))

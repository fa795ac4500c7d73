"""Fields of a row: the columns by their roles, and checked access to values.

`roles` finds the columns of question, answers and document by name, whatever case, `-`, `_`, spaces and final "s".
`ROLES` has the names of each role in groups: our own name precedes the first group, an earlier group a later one; two
columns of one group with different values are ambiguous.

Guaranteed: every function raises DataError naming file, row, key, value and fix; a document is never dropped for its
place in the row or its order of columns.
Not covered: columns with names outside `ROLES` (`data.columns` maps them).
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Any

from palimpsest.data.files.rows import Row
from palimpsest.data.files.text_files import unpacked_name
from palimpsest.errors import DataError, nearest, shown_names
from palimpsest.plugin_kinds import OBJECT
from palimpsest.text.json_text import valid
from palimpsest.types import Question

IDS = ("_id", "id", "question_id", "query_id", "qid")
"""Columns of a row's id; the first nonempty one counts."""
_CELL = 100_000  # characters of a cell with a list in Python's form, at most


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
    """The gold answers in a text, a number, an object (SQuAD's `text`, TriviaQA's `value` and `aliases`) or a list of
    these, in a table also as Python writes a list of texts; none for None, NaN, a blank text or an empty list."""
    if isinstance(value, str) and value[:1] == "[" and unpacked_name(row.path).suffix.lower() in (".csv", ".tsv"):
        listed = parsed(value[:_CELL])
        value = listed if repr(listed) == value and all(isinstance(item, str) for item in listed) else value
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    items = value if isinstance(value, list) else [value]
    names = [f"{name}[{i}]" if items is value else name for i in range(len(items))]
    found = [text for gold, at in zip(items, names, strict=True) for text in _golds_in(row, gold, at)]
    return tuple(dict.fromkeys(found) if any(isinstance(gold, Mapping) for gold in items) else found)


def _golds_in(row: Row, gold: Any, name: str) -> Iterator[str]:
    held: list[Any] = [gold]
    if isinstance(gold, Mapping):
        key = next((key for key in ("value", "answer", "text") if key in gold), "text")
        texts = gold[key] if key in gold else get(row, gold, key, name)
        aliases = gold.get("aliases") or []
        held = [one for some in (texts, aliases) for one in (some if isinstance(some, list) else [some])]
    for one in held:
        if isinstance(one, bool):
            raise DataError(f"{row.where}: {name} must be a string, is {one}: write what replies say, as 'yes'")
        number = isinstance(one, int) or (isinstance(one, float) and math.isfinite(one))
        if one is not None and one == one:  # NaN differs from itself
            yield text(row, str(one) if number else one, name)


def parsed(text: str) -> Any:
    """The object in a text, as JSON or a Python literal; None if it has neither."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text)
    return None


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
    """The question of a prompt: a plain string, an object's `text`, or the last user message of a chat."""
    if isinstance(value, Mapping):
        value, name = get(row, value, "text", name), f"{name}.text"
    if isinstance(value, list):
        messages = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        if not messages:
            raise DataError(f"{row.where}: {name} has no message with role 'user'")
        value = messages[-1]
    return text(row, value, name)


def questions(row: Row, taken: Roles, metadata: Mapping[str, Any]) -> list[Question]:
    """The question of a row, or all of `questions`."""
    listed = row.values.get("questions")
    if listed is None:
        question = user_message(row, get(row, row.values, taken.question), taken.question)
        return [Question(question, golds(row, row.values.get(taken.answers), taken.answers))]
    for other in ("question", "answers"):
        if row.values.get(other) is not None:
            raise DataError(f"{row.where}: has both questions and {other}; move {other} into questions or remove it")
    if metadata.get("objectives"):
        raise DataError(f"{row.where}: has both questions and metadata.objectives; remove one of them")
    if not isinstance(listed, list) or not listed:
        raise DataError(
            f"{row.where}: questions must be a list of objects with question and answers, is {listed!r:.60}"
        )
    several = list[Question]()
    for number, entry in enumerate(listed):
        name = f"questions[{number}]"
        question = text(row, get(row, entry, "question", name), f"{name}.question")
        held = entry["answers"] if "answers" in entry else get(row, entry, "answers", name)
        several.append(Question(question, golds(row, held, f"{name}.answers")))
    return several


# ---- Columns by their roles ----------------------------------------------------------------------------------


ROLES = {
    "question": ("question", "query problem q questiontext", "instruction prompt ask", "input"),
    "answers": (
        "answer gold goldanswer goldenanswer groundtruth correctanswer expectedanswer referenceanswer",
        "solution target label reference a",
        "output completion response",
    ),
    "context": (
        "context ctx positivectx passage positivepassage retrievedpassage document doc paragraph article story text "
        "body content page chunk transcript chat dialog dialogue conversation message session",
        "input background history",
    ),
}
"""Names of columns by our name of the role: in lower case, without separators and a final "s"."""
_LOOKED_AT = 1000
"""Maximum number of columns compared with names."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The column of each role; empty without one."""

    question: str = ""
    answers: str = ""
    document: str = ""


def roles(row: Row) -> Roles:
    """The columns of a row by their names. Raises DataError without a question or answers, and for two columns that
    suit equally.

    >>> roles(Row({"query": "Who?", "gold_answer": "Ann", "ctxs": ["Ann ran."], "title": "Runs"}, "a"))
    Roles(question='query', answers='gold_answer', document='ctxs')
    >>> roles(Row({"instruction": "Translate.", "input": "Oslo", "output": "Oslo"}, "a"))
    Roles(question='instruction', answers='output', document='input')
    """
    names = _names(row)
    if row.values.get("questions") is not None:
        return Roles(document=_document(row, names, ""))
    asks = [name for name in names if not isinstance(held := row.values[name], Mapping) or "text" in held]
    question = _column(row, "question", asks) or ("question" if "question" in names else "")
    answers = _column(row, "answers", names)
    document = _document(row, [name for name in names if name not in (question, answers)], question)
    chat = document in ("messages", "conversations")  # without answers, a row of supervised training
    others = row.values.keys() - {question, document, "metadata", "memory", "title", *IDS}
    missing = [] if question else ["question"]
    missing += ["answers"] if not answers and (chat or len(others) > len(missing)) else []
    if not document and not missing and _plain(question) == "input":
        missing = ["context"]
    if missing:
        raise lacks(row, "no column is known as", missing)
    return Roles(question, answers, document)


def lacks(row: Row, lead: str, missing: list[str]) -> DataError:
    """An error for columns of ours that `row` lacks."""
    names = {ours: nearest(ours, _names(row)).partition("did you mean ")[2].rstrip("?") for ours in missing}
    hints = ", ".join(f"{ours!r}" + (f" (did you mean {name!r}?)" if name else "") for ours, name in names.items())
    pairs = [(ours, name or "COLUMN") for ours, name in names.items()]
    fix = _fix(row, pairs)
    if {"messages", "conversations"} & row.values.keys():
        fix += "; a conversation alone is for supervised training: palimpsest sft RECIPE --data FILE"
    return DataError(
        f"{row.where}: {lead} {hints}; the row has {shown_names(row.values) or 'none'}; name the columns: {fix}"
    )


def _fix(row: Row, pairs: list[tuple[str, str]]) -> str:
    if str(row.path).startswith(OBJECT):  # rows passed in Python
        return f"rename {', '.join(f'{theirs} to {ours}' for ours, theirs in pairs)}"
    return f"data.columns={quote(','.join(map('='.join, pairs)))}"


def _names(row: Row) -> list[str]:
    return list(islice((name for name in row.values if isinstance(name, str)), _LOOKED_AT))


def _document(row: Row, names: list[str], question: str) -> str:
    """The column of the document. A question and its answer rendered as a chat or a text are no document."""
    asked = row.values.get(question)
    suits = [name for name in names if _is_document(row.values[name], asked)]
    suits = [name for name in suits if row.values[name] is not None] or suits
    plain = [
        name for name in suits if name != "text" or not isinstance(asked, str) or asked not in (row.values[name] or ())
    ]
    return _column(row, "context", plain) or _column(row, "context", suits)


def _is_document(value: Any, asked: Any) -> bool:
    turns = filter(None, map(turn_of, value if isinstance(value, list) else ()))
    first = next((text for speaker, text in turns if speaker != "system"), None)
    return isinstance(value, str | list | Mapping | None) and (asked is None or first != asked)


def turn_of(value: Any) -> tuple[Any, Any] | None:
    """(speaker, text) of a turn in a conversation; None for another value.

    >>> turn_of({"from": "human", "value": "Hi."}), turn_of({"title": "Rome", "text": "A city."})
    (('human', 'Hi.'), None)
    """
    if not isinstance(value, Mapping) or "title" in value:
        return None
    speaker = next((value[key] for key in ("role", "from", "speaker", "author") if value.get(key) is not None), None)
    keys = [key for key in ("content", "value", "text", "message", "utterance") if key in value]
    if speaker is None or not (keys or "role" in value):
        return None
    content = value[keys[0]] if keys else None  # a tool call has none
    if isinstance(content, list):  # parts
        content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return speaker, content or ""


def _column(row: Row, role: str, names: list[str]) -> str:
    for group in ("", *ROLES[role]):
        found = [name for name in names if (_plain(name) in group.split() if group else name == role)]
        if any(row.values[name] != row.values[found[0]] for name in found[1:]):
            choices = " or ".join(_fix(row, [(role, name)]) for name in found)
            raise DataError(f"{row.where}: {' and '.join(found)} may both be the {role}; choose one: {choices}")
        if found:
            return found[0]
    return ""


def _plain(name: str) -> str:
    """`name` in the form of `ROLES`: `goldAnswers` and `gold_answer` are equal."""
    return name.lower().translate(_SEPARATORS).removesuffix("s")


_SEPARATORS = str.maketrans("", "", "_- ")

r"""The answer of a search agent: what follows the last `FINAL_ANSWER:` of its last turn (MemAct, arXiv 2510.12635).

    one question        the text after the marker
    several questions   a JSON object after the marker, one key a question: {"Q1": "...", "Q2": "..."}

A space, a line break or nothing may stand after the marker; the authors' code asks for exactly one space, and gives
their own two-line form nothing.

Guaranteed: thinking is not looked at; the last marker counts, also with nothing after it, so that a flood of guesses
is one guess; JSON is read strictly, and not at all beyond `MAX_CHARS`; no text makes either function raise.
Not covered: a marker in the text of a tool, which the caller keeps out by giving the last sampled turn alone; what
follows a JSON object is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.text.strict_json import Unreadable, end_of_value, kind, loaded, shown
from palimpsest.text.thinking import spoken

MARKER = "FINAL_ANSWER:"
MAX_CHARS = 65_536
"""Characters of an object of answers."""
_DRESS = re.compile(r"^(\*\*|```(json)?)\s*", re.IGNORECASE)  # bold type, or a fence


def final_answer(text: str) -> str | None:
    r"""What follows the last marker, without the blanks around it; None if there is no marker.

    >>> final_answer("Summary: ...\n\nFINAL_ANSWER:\nOslo "), final_answer("**FINAL_ANSWER:** Oslo")
    ('Oslo', 'Oslo')
    >>> final_answer("<think>FINAL_ANSWER: Rome</think> It is Oslo.") is None
    True
    """
    _, marker, rest = spoken(text).rpartition(MARKER)
    return rest.removeprefix("**").strip() if marker else None


@dataclass(frozen=True, slots=True)
class NamedAnswers:
    """The answers of an object, by the name of the question."""

    answers: Mapping[str, str]
    """Those that were asked for and given."""
    missing: tuple[str, ...] = ()
    """Names asked for without an answer."""
    extra: tuple[str, ...] = ()
    """Names given that no one asked for."""
    fault: str | None = None
    """Why there is no object, or why one of its values is no answer; None if nothing is wrong."""


def named_answers(said: str | None, names: Sequence[str]) -> NamedAnswers:
    r"""The answers to the questions `names`, from what follows the marker.

    A number or a boolean is its JSON text; null is no answer, and an object or an array neither: which part of it would
    be meant?

    >>> named_answers('```json\n{"Q1": "Oslo", "Q2": 1905}\n```', ["Q1", "Q2"]).answers
    {'Q1': 'Oslo', 'Q2': '1905'}
    >>> named_answers('{"Q1": "Oslo", "Q3": "?"}', ["Q1", "Q2"])
    NamedAnswers(answers={'Q1': 'Oslo'}, missing=('Q2',), extra=('Q3',), fault=None)
    >>> named_answers("Oslo and 1905", ["Q1"]).fault
    'expected a JSON object, found "Oslo and 1905"'
    >>> named_answers('{"Q1": {"a": "Paris"}}', ["Q1"]).fault
    'the answer to Q1 is an object; expected text or a number'
    """
    try:
        given = _object(said)
    except Unreadable as unreadable:
        return NamedAnswers({}, tuple(names), fault=unreadable.reason)
    values = {name: given[name] for name in names if given.get(name) is not None}
    unclear = {name: kind(value) for name, value in values.items() if isinstance(value, dict | list)}
    return NamedAnswers(
        {name: _text(value) for name, value in values.items() if name not in unclear},
        tuple(name for name in names if name not in values or name in unclear),
        tuple(name for name in given if name not in names),
        next((f"the answer to {name} is {what}; expected text or a number" for name, what in unclear.items()), None),
    )


def _object(said: str | None) -> dict[str, Any]:
    if said is None:
        raise Unreadable(f"there is no {MARKER}")
    body = _DRESS.sub("", said)
    if not body.startswith("{"):
        raise Unreadable(f"expected a JSON object, found {shown(body)}")
    value = loaded(body[: end_of_value(body, 0, min(len(body), MAX_CHARS))], wide=True)
    assert isinstance(value, dict)  # it begins with a brace
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

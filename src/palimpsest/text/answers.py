r"""Answer extraction from a model's reply: `\boxed{}`, "the answer is", `FINAL_ANSWER:`.

Training and evaluation share it. The first rule that matches the text after the last thinking (reply_tags.py) wins:
`last_box`, then `stated_answer`. A box whose brace never closes is read to the end of its line: models drop it, or run
out of budget. Unclosed thinking contains no answer. A search agent's last turn has `FINAL_ANSWER:` and the answer, or a
JSON object with one key per question (MemAct, arXiv 2510.12635). A space, a line break or nothing may follow the
marker. The authors' code requires exactly one space.

Guaranteed: linear time; no search agent's text raises an error; the last box or marker counts, also an empty one, so
that many guesses are one guess; a box in a box is part of the outer one; JSON is read strictly, up to `MAX_CHARS`.
Not covered: which of several answers in one box is meant; a box in a quotation; `\boxed x` after a box with braces; a
marker in a tool's text (the caller passes only the last sampled turn); text after a JSON object, which is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from palimpsest.text.json_text import Unreadable, end_of_value, kind, loaded, shown
from palimpsest.text.reply_tags import spoken

_BRACED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE = re.compile(r"\\(?:boxed|fbox)[ \t]+((?:\\\$|[^$\n])*)")
_ANSWER_IS = re.compile(r"the (?:(?:final|correct|right) )?answer is\b[ \t]*:?(?:\*\*(?=\s*\n))?", re.IGNORECASE)
_DRESS = (("**", "**"), ("*", "*"), ("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»"), ("$", "$"))
PUBLISHED_WINDOW = 300
"""Characters at the end of a response that MemAgent's training reward reads."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """An answer and the rule that found it."""

    text: str
    rule: Literal["boxed", "answer_is"]


def extract(text: str) -> Extracted | None:
    r"""The answer in a text, or None.

    >>> extract("I first thought \\boxed{Rome}, but it is \\boxed{Paris}.")
    Extracted(text='Paris', rule='boxed')
    >>> extract("So the answer is **Paris**.")
    Extracted(text='Paris', rule='answer_is')
    >>> extract("It is Paris.") is None
    True
    """
    reply = spoken(text)
    box = last_box(reply)
    if box is not None:
        return Extracted(box, "boxed")
    stated = stated_answer(reply)
    return None if stated is None else Extracted(stated, "answer_is")


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}`; without one of the last `\boxed x`, to `$` or its line's end.

    >>> last_box(r"\boxed{a {nested} one}"), last_box(r"\boxed{cut sh"), last_box(r"$\boxed 5$"), last_box("none")
    ('a {nested} one', 'cut sh', '5', None)
    >>> last_box(r"\boxed{\boxed{Paris} or Rome}"), last_box(r"\boxed{\boxed{Paris}}"), last_box(r"\boxed{a \boxed{b}")
    ('{Paris} or Rome', 'Paris', 'b')
    """
    pairs, content, end = _pairs(text), None, -1
    for match in _BRACED.finditer(text):
        if match.start() > end:  # not in another closed box
            end = pairs.get(match.end() - 1, -1)
            content = text[match.end() : end] if end >= 0 else text[match.end() :].partition("\n")[0]
    if content is not None:
        return _unwrapped(_BRACED.sub("{", content)) if _BRACED.search(content) else content.strip()
    bare = _BARE.findall(text)
    return bare[-1].strip() if bare else None


def unboxed(text: str | None) -> str:
    r"""An answer for a table: the content of its last box, or all of it; a dash for None.

    >>> unboxed(r"So it is \boxed{Rome}."), unboxed("Rome"), unboxed(None)
    ('Rome', 'Rome', '–')
    """
    return (text and (last_box(text) or text)) or "–"


def _pairs(text: str) -> dict[int, int]:
    """Position of each closed opening brace to that of its closing brace."""
    pairs, opened = {}, list[int]()
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            pairs[opened.pop()] = brace.start()
    return pairs


def _unwrapped(content: str) -> str:
    content = content.strip()
    pairs, start, end = _pairs(content), 0, len(content)
    while end - start > 1 and content[start] == "{" and pairs.get(start) == end - 1:
        start, end = start + 1, end - 1
    return content[start:end].strip()


def only_box(text: str) -> str | None:
    r"""Content of a text's box if it has exactly one, which is closed and not blank.

    >>> only_box(r"\boxed{Oslo}"), only_box(r"\boxed{a} \boxed{b}"), only_box(r"\boxed{ }"), only_box(r"\boxed{Os")
    ('Oslo', None, None, None)
    """
    starts = [match.end() for match in _BRACED.finditer(text)]
    if len(starts) != 1:
        return None
    end = _pairs(text).get(starts[0] - 1, -1)
    return (text[starts[0] : end].strip() or None) if end >= 0 else None


def stated_answer(text: str) -> str | None:
    """The text after the last "the answer is" on its line, or the next line with text, without the emphasis, quotes and
    period around it.

    >>> [stated_answer(f"The answer is {said}") for said in ("**Paris.**", "$5.", "$5$", "3*4!", ":\\n\\nParis")]
    ['Paris', '$5', '5', '3*4', 'Paris']
    """
    ends = [match.end() for match in _ANSWER_IS.finditer(text)]
    if not ends:
        return None
    stated = _unended(text[ends[-1] :].lstrip().partition("\n")[0])
    for opening, closing in _DRESS * 2:
        if len(stated) > 1 and stated.startswith(opening) and stated.endswith(closing):
            stated = _unended(stated[len(opening) : -len(closing)])
    return stated


def _unended(sentence: str) -> str:
    return sentence.strip().rstrip(".!").strip()


def published_box(text: str) -> str | None:
    r"""The answer by the rule of MemAgent's training reward, its quirks included; lower case.

    Only the last 300 characters count, thinking included. `\boxed x` precedes any braces and runs to `$` or the end of
    the text; `\fbox{x}` is found and then rejected; an unclosed box is ignored.

    >>> published_box(r"\boxed{Paris}"), published_box(r"\fbox{Paris}"), published_box(r"\boxed{Paris")
    ('paris', None, None)
    >>> published_box(r"\boxed{Paris}" + " " * 300) is None
    True
    """
    window = text[-PUBLISHED_WINDOW:].lower()
    if "\\boxed " in window:
        return window.rpartition("\\boxed ")[2].partition("$")[0]
    start = window.rfind("\\boxed")
    if start < 0 or not window.startswith("\\boxed{", start):
        return None
    inner = start + len("\\boxed{")
    end = _pairs(window).get(inner - 1)
    return None if end is None else window[inner:end]


# ---- The answer of a search agent ----------------------------------------------------------------------------


MARKER = "FINAL_ANSWER:"
MAX_CHARS = 65_536
"""Longest object of answers, in characters."""
_FINAL_DRESS = re.compile(r"^(\*\*|```(json)?)\s*", re.IGNORECASE)  # bold type, or a fence


def final_answer(text: str) -> str | None:
    r"""The text after the last marker, without surrounding blanks; None without a marker.

    >>> final_answer("Summary: ...\n\nFINAL_ANSWER:\nOslo "), final_answer("**FINAL_ANSWER:** Oslo")
    ('Oslo', 'Oslo')
    >>> final_answer("<think>FINAL_ANSWER: Rome</think> It is Oslo.") is None
    True
    """
    _, marker, rest = spoken(text).rpartition(MARKER)
    return rest.removeprefix("**").strip() if marker else None


def gives_answer(text: str) -> bool:
    """Return whether any rule finds an answer."""
    return MARKER in text or extract(text) is not None


@dataclass(frozen=True, slots=True)
class NamedAnswers:
    """The answers of an object, by the name of the question."""

    answers: Mapping[str, str]
    """Answers to requested names."""
    missing: tuple[str, ...] = ()
    """Requested names without an answer."""
    extra: tuple[str, ...] = ()
    """Names that were not requested."""
    fault: str | None = None
    """Why the object is missing or one of its values is invalid; None if all is valid."""


def named_answers(text: str | None, names: Sequence[str]) -> NamedAnswers:
    r"""The answers to the questions `names`, from the text after the marker.

    A number or a boolean becomes its JSON text; null, objects and arrays are not answers.

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
        answers = _object(text)
    except Unreadable as unreadable:
        return NamedAnswers({}, tuple(names), fault=unreadable.reason)
    values = {name: answers[name] for name in names if answers.get(name) is not None}
    unclear = {name: kind(value) for name, value in values.items() if isinstance(value, dict | list)}
    return NamedAnswers(
        {name: _text(value) for name, value in values.items() if name not in unclear},
        tuple(name for name in names if name not in values or name in unclear),
        tuple(name for name in answers if name not in names),
        next((f"the answer to {name} is {what}; expected text or a number" for name, what in unclear.items()), None),
    )


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        raise Unreadable(f"there is no {MARKER}")
    body = _FINAL_DRESS.sub("", text)
    if not body.startswith("{"):
        raise Unreadable(f"expected a JSON object, found {shown(body)}")
    value = loaded(body[: end_of_value(body, 0, min(len(body), MAX_CHARS))], wide=True)
    assert isinstance(value, dict)  # it begins with a brace
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

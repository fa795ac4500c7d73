"""Layouts of published benchmarks that are questions on long texts, as their authors give them out.

    longbench_v2      LongBench v2 (arXiv 2412.15204): question, choice_A to choice_D, answer, context
    memoryagentbench  MemoryAgentBench (arXiv 2507.05257): context, questions, answers (a list a question), metadata
    locomo            LoCoMo (arXiv 2402.17753): conversation of dated sessions, qa
    beam              BEAM (arXiv 2510.27246): chat in batches of messages, probing_questions with rubrics

Guaranteed: every row becomes a record with a question that isn't blank, or raises DataError.
Not covered: LoCoMo's pictures, of which the caption is read alone, and its questions of category 5, which have no
answer and are left out; what else MemoryAgentBench's metadata holds.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from palimpsest.data import fields
from palimpsest.data.assemble import Record
from palimpsest.data.conversations import own_sessions
from palimpsest.data.rows import Row
from palimpsest.errors import DataError
from palimpsest.types import Problem, Question

LETTERS = "ABCD"
_UNANSWERABLE = 5  # LoCoMo's category of questions about what was never said
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D(\d+):\d+")


def longbench_v2(row: Row, fallback: str) -> Record:
    """The gold is the letter of the choice."""
    asked = fields.text(row, fields.get(row, row.values, "question"), "question")
    choices = [fields.text(row, fields.get(row, row.values, f"choice_{x}"), f"choice_{x}") for x in LETTERS]
    answer = fields.text(row, fields.get(row, row.values, "answer"), "answer").strip()
    if answer not in tuple(LETTERS):
        raise DataError(f"{row.where}: answer must be one of {', '.join(LETTERS)}, is {answer!r:.60}")
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    return Record(
        id=fields.identity(row, fallback),
        question=f"{asked}\n{listed}\nAnswer with the letter of the right choice alone: A, B, C or D.",
        answers=(answer,),
        context=fields.text(row, fields.get(row, row.values, "context"), "context", blank=True),
        metadata={k: row.values[k] for k in ("domain", "sub_domain", "difficulty", "length") if row.values.get(k)},
    )


def memoryagentbench(row: Row, fallback: str) -> Record:
    """All questions on one reading."""
    questions, answers = (fields.get(row, row.values, key) for key in ("questions", "answers"))
    if not (isinstance(questions, list) and isinstance(answers, list) and len(questions) == len(answers) > 0):
        raise DataError(f"{row.where}: questions and answers must be lists of one length, with one at least")
    metadata = row.values.get("metadata")
    known = metadata.get("source") if isinstance(metadata, Mapping) else None
    return _several(
        row,
        fields.identity(row, fallback),
        [
            Question(fields.text(row, asked, f"questions[{at}]"), fields.golds(row, golds, f"answers[{at}]"))
            for at, (asked, golds) in enumerate(zip(questions, answers, strict=True))
        ],
        fields.text(row, fields.get(row, row.values, "context"), "context", blank=True),
        {"source": known} if known else {},
    )


def is_memoryagentbench(values: Mapping[str, Any]) -> bool:
    """Whether `questions` are texts."""
    listed = values["questions"]
    return isinstance(listed, list) and bool(listed) and isinstance(listed[0], str)


def locomo(row: Row, fallback: str) -> Record:
    """A conversation and all of its questions that have an answer."""
    told = fields.get(row, row.values, "conversation")
    listed = fields.get(row, row.values, "qa")
    if not isinstance(told, Mapping) or not isinstance(listed, list):
        raise DataError(f"{row.where}: conversation must be an object and qa a list")
    numbers = sorted(int(match[1]) for key in told if (match := _SESSION.fullmatch(str(key))))
    sessions = [_session(row, told, number) for number in numbers]
    answered = [(at, each) for at, each in enumerate(listed) if not _without_answer(row, each, f"qa[{at}]")]
    needed = {int(match[1]) for _, each in answered for match in _TURN.finditer(str(each.get("evidence") or ""))}
    context, metadata = own_sessions(row, sessions, [str(number) for number in sorted(needed & set(numbers))])
    questions = [
        Question(
            fields.text(row, fields.get(row, each, "question", f"qa[{at}]"), f"qa[{at}].question"),
            (str(fields.get(row, each, "answer", f"qa[{at}]")),),
        )
        for at, each in answered
    ]
    left_out = len(listed) - len(answered)
    metadata = {**metadata, "categories": [each.get("category") for _, each in answered]}
    name = str(row.values.get("sample_id") or fields.identity(row, fallback))
    return _several(row, name, questions, context, metadata | ({"left_out": left_out} if left_out else {}))


def _session(row: Row, told: Mapping[str, Any], number: int) -> dict[str, Any]:
    """As the column `sessions` of our own layout has one."""
    turns = told[f"session_{number}"]
    if not isinstance(turns, list):
        raise DataError(f"{row.where}: conversation.session_{number} must be a list of turns, is {turns!r:.60}")
    read = [_turn(row, turn, f"conversation.session_{number}[{at}]") for at, turn in enumerate(turns)]
    return {"id": str(number), "date": str(told.get(f"session_{number}_date_time") or ""), "turns": read}


def _turn(row: Row, turn: Any, place: str) -> dict[str, str]:
    text, speaker = (fields.get(row, turn, key, place) for key in ("text", "speaker"))
    caption = turn.get("blip_caption")
    return {"role": speaker, "content": f"{text} [picture: {caption}]" if caption else text}


def _without_answer(row: Row, each: Any, place: str) -> bool:
    if not isinstance(each, Mapping):
        raise DataError(f"{row.where}: {place} must be an object with question and answer, is {each!r:.60}")
    return bool(each.get("category") == _UNANSWERABLE)


def beam(row: Row, fallback: str) -> Record:
    """A chat and all questions on it; the golds of each are the points of its rubric, all of which are wanted."""
    sessions = [
        _batch(row, batch, f"{place}[{at}]", number) for number, (place, at, batch) in enumerate(_batches(row), 1)
    ]
    asked = _by_ability(row)
    questions = [
        Question(
            fields.text(row, fields.get(row, each, "question", place), f"{place}.question"),
            _rubric(row, fields.get(row, each, "rubric", place), f"{place}.rubric"),
        )
        for place, _, each in asked
    ]
    context, metadata = own_sessions(row, sessions, None)
    name = str(row.values.get("conversation_id") or fields.identity(row, fallback))
    return _several(row, name, questions, context, {**metadata, "categories": [ability for _, ability, _ in asked]})


def _batches(row: Row) -> Iterator[tuple[str, int, Any]]:
    """(place, number there, batch) of a chat; of the longest ones, which are several chats in a row, of each."""
    plans = row.values.get("plans")
    if plans is not None and not (isinstance(plans, list) and plans):
        raise DataError(f"{row.where}: plans must be a list of objects with chat, is {plans!r:.60}")
    chats = {f"plans[{at}]": fields.get(row, plan, "chat", f"plans[{at}]") for at, plan in enumerate(plans or ())}
    for name, chat in (chats or {"": fields.get(row, row.values, "chat")}).items():
        place = f"{name}.chat".lstrip(".")
        if not isinstance(chat, list):
            raise DataError(f"{row.where}: {place} must be a list of batches of messages, is {chat!r:.60}")
        yield from ((place, at, batch) for at, batch in enumerate(chat))


def _batch(row: Row, batch: Any, place: str, number: int) -> dict[str, Any]:
    """As the column `sessions` of our own layout has one. A batch is a list of messages, or an object with `turns`,
    lists of them."""
    listed = batch
    if isinstance(batch, Mapping):
        turns = fields.get(row, batch, "turns", place)
        place = f"{place}.turns"
        listed = [each for turn in turns for each in turn] if _is_nested(turns) else None
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise DataError(f"{row.where}: {place} must hold messages with role and content, is {batch!r:.60}")
    messages = [{key: fields.get(row, each, key, place) for key in ("role", "content")} for each in listed]
    date = next((each["time_anchor"] for each in listed if each.get("time_anchor")), "")
    return {"id": str(number), "date": str(date), "turns": messages}


def _is_nested(turns: Any) -> bool:
    return isinstance(turns, list) and all(isinstance(turn, list) for turn in turns)


def _by_ability(row: Row) -> list[tuple[str, str, Any]]:
    """(place, ability, question) of each; the hub's table has them as the text of a Python object."""
    given = fields.get(row, row.values, "probing_questions")
    abilities = _parsed(given) if isinstance(given, str) else given
    if not isinstance(abilities, Mapping) or not all(isinstance(each, list) for each in abilities.values()):
        raise DataError(
            f"{row.where}: probing_questions must be an object with a list for each ability, is {given!r:.60}"
        )
    return [
        (f"probing_questions.{ability}[{at}]", ability, each)
        for ability, listed in abilities.items()
        for at, each in enumerate(listed)
    ]


def _parsed(text: str) -> Any:
    """The object that a text holds, as JSON or as Python writes it; None where it holds none."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text)
    return None


def _rubric(row: Row, given: Any, name: str) -> tuple[str, ...]:
    """Every point once."""
    points = fields.golds(row, given, name)
    if not points:
        raise DataError(f"{row.where}: {name} is empty; a question is graded by the points of its rubric")
    return tuple(dict.fromkeys(points))


def _several(row: Row, name: str, questions: list[Question], context: str, metadata: Mapping[str, Any]) -> Record:
    if not questions:
        raise DataError(f"{row.where}: no question that has an answer")
    asked = Problem.asking(name, questions)
    return Record(name, asked.question, asked.answers, context, metadata=metadata, questions=asked.questions)

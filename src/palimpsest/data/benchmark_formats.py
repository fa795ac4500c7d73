"""Layouts of published benchmarks that are questions on long texts, as their authors give them out.

    longbench_v2      LongBench v2 (arXiv 2412.15204): question, choice_A to choice_D, answer, context
    memoryagentbench  MemoryAgentBench (arXiv 2507.05257): context, questions, answers (a list a question), metadata
    locomo            LoCoMo (arXiv 2402.17753): conversation of dated sessions, qa

Guaranteed: every row becomes a record with a question that isn't blank, or raises DataError.
Not covered: LoCoMo's pictures, of which the caption is read alone, and its questions of category 5, which have no
answer and are left out; what else MemoryAgentBench's metadata holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def _several(row: Row, name: str, questions: list[Question], context: str, metadata: Mapping[str, Any]) -> Record:
    if not questions:
        raise DataError(f"{row.where}: no question that has an answer")
    asked = Problem.asking(name, questions)
    return Record(name, asked.question, asked.answers, context, metadata=metadata, questions=asked.questions)

"""Benchmark formats: published evaluation and training files with fixed contexts or none (format_registry.py).

LongBench v2 (arXiv 2412.15204), MemoryAgentBench (arXiv 2507.05257), LoCoMo (arXiv 2402.17753), BEAM (arXiv
2510.27246), and the files of MemAgent, ReMemR1, MemAct and vime.

Not covered: LoCoMo's pictures (only captions are read) and its unanswerable questions of category 5 (omitted); further
metadata of MemoryAgentBench.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from palimpsest.data import record
from palimpsest.data.assemble import Corpus
from palimpsest.data.files.rows import Row
from palimpsest.data.formats import fields
from palimpsest.data.formats.question_formats import by_roles, ids, sessions_context
from palimpsest.data.record import Record
from palimpsest.errors import DataError
from palimpsest.types import Problem, Question

LETTERS = "ABCD"
_UNANSWERABLE = 5  # LoCoMo's category of unanswerable questions
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D(\d+):\d+")


def longbench_v2(row: Row, fallback: str) -> Record:
    """A record whose gold is the letter of the right choice."""
    question = fields.text(row, fields.get(row, row.values, "question"), "question")
    choices = [fields.text(row, fields.get(row, row.values, f"choice_{x}"), f"choice_{x}") for x in LETTERS]
    answer = fields.text(row, fields.get(row, row.values, "answer"), "answer").strip()
    if answer not in tuple(LETTERS):
        raise DataError(f"{row.where}: answer={answer!r:.60} must be one of {', '.join(LETTERS)}")
    listed = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
    values = {key: value for key, value in row.values.items() if not key.startswith("choice_")}
    values["question"] = f"{question}\n{listed}\nAnswer with the letter of the right choice alone: A, B, C or D."
    return by_roles(replace(row, values=values | {"answer": answer, "metadata": {"choice_letters": LETTERS}}), fallback)


def memoryagentbench(row: Row, fallback: str) -> Record:
    """A record with all questions on one context."""
    questions, answers = (fields.get(row, row.values, key) for key in ("questions", "answers"))
    if not (isinstance(questions, list) and isinstance(answers, list) and len(questions) == len(answers) > 0):
        raise DataError(f"{row.where}: questions and answers must be nonempty lists of equal length")
    metadata = row.values.get("metadata")
    source = metadata.get("source") if isinstance(metadata, Mapping) else None
    return _several(
        row,
        fields.identity(row, fallback),
        [
            Question(fields.text(row, question, f"questions[{at}]"), fields.golds(row, golds, f"answers[{at}]"))
            for at, (question, golds) in enumerate(zip(questions, answers, strict=True))
        ],
        fields.text(row, fields.get(row, row.values, "context"), "context", blank=True),
        {"source": source} if source else {},
    )


def locomo(row: Row, fallback: str) -> Record:
    """A record of a conversation with its answerable questions."""
    conversation = fields.get(row, row.values, "conversation")
    listed = fields.get(row, row.values, "qa")
    if not isinstance(conversation, Mapping) or not isinstance(listed, list):
        raise DataError(f"{row.where}: conversation must be an object and qa a list")
    numbers = sorted(int(match[1]) for key in conversation if (match := _SESSION.fullmatch(str(key))))
    sessions = [_session(row, conversation, number) for number in numbers]
    answered = [(at, entry) for at, entry in enumerate(listed) if not _without_answer(row, entry, f"qa[{at}]")]
    needed = {int(match[1]) for _, entry in answered for match in _TURN.finditer(str(entry.get("evidence") or ""))}
    context, metadata = sessions_context(row, sessions, [str(number) for number in sorted(needed & set(numbers))])
    questions = [
        Question(
            fields.text(row, fields.get(row, entry, "question", f"qa[{at}]"), f"qa[{at}].question"),
            fields.golds(row, fields.get(row, entry, "answer", f"qa[{at}]"), f"qa[{at}].answer"),
        )
        for at, entry in answered
    ]
    left_out = len(listed) - len(answered)
    metadata = {**metadata, "categories": [entry.get("category") for _, entry in answered]}
    name = str(row.values.get("sample_id") or fields.identity(row, fallback))
    return _several(row, name, questions, context, metadata | ({"left_out": left_out} if left_out else {}))


def _session(row: Row, conversation: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A session as in the column `sessions` of our own layout, pictures by their captions."""
    turns = conversation[f"session_{number}"]
    if not isinstance(turns, list):
        raise DataError(f"{row.where}: conversation.session_{number} must be a list of turns, is {turns!r:.60}")
    captioned = [
        turn | {"text": f"{turn.get('text')} [picture: {turn['blip_caption']}]"}
        if isinstance(turn, dict) and turn.get("blip_caption")
        else turn
        for turn in turns
    ]
    return {"id": str(number), "date": str(conversation.get(f"session_{number}_date_time") or ""), "turns": captioned}


def _without_answer(row: Row, entry: Any, location: str) -> bool:
    if not isinstance(entry, Mapping):
        raise DataError(f"{row.where}: {location} must be an object with question and answer, is {entry!r:.60}")
    return bool(entry.get("category") == _UNANSWERABLE)


def beam(row: Row, fallback: str) -> Record:
    """A record of a chat with all its questions. The golds of a question are all points of its rubric."""
    sessions = [
        _batch(row, batch, f"{location}[{at}]", number) for number, (location, at, batch) in enumerate(_batches(row), 1)
    ]
    listed = _by_ability(row)
    questions = [
        Question(
            fields.text(row, fields.get(row, question, "question", location), f"{location}.question"),
            _rubric(row, fields.get(row, question, "rubric", location), f"{location}.rubric"),
        )
        for location, _, question in listed
    ]
    context, metadata = sessions_context(row, sessions, None)
    name = str(row.values.get("conversation_id") or fields.identity(row, fallback))
    return _several(row, name, questions, context, {**metadata, "categories": [ability for _, ability, _ in listed]})


def _batches(row: Row) -> Iterator[tuple[str, int, Any]]:
    """(location, index, batch) of a chat, or of each chat in `plans` (the longest conversations)."""
    plans = row.values.get("plans")
    if plans is not None and not (isinstance(plans, list) and plans):
        raise DataError(f"{row.where}: plans must be a list of objects with chat, is {plans!r:.60}")
    chats = {f"plans[{at}]": fields.get(row, plan, "chat", f"plans[{at}]") for at, plan in enumerate(plans or ())}
    for name, chat in (chats or {"": fields.get(row, row.values, "chat")}).items():
        location = f"{name}.chat".lstrip(".")
        if not isinstance(chat, list):
            raise DataError(f"{row.where}: {location} must be a list of batches of messages, is {chat!r:.60}")
        yield from ((location, at, batch) for at, batch in enumerate(chat))


def _batch(row: Row, batch: Any, location: str, number: int) -> dict[str, Any]:
    """A batch as a session of our own layout. A batch is a list of messages, or an object with `turns`, lists of
    messages."""
    listed = batch
    if isinstance(batch, Mapping):
        turns = fields.get(row, batch, "turns", location)
        location = f"{location}.turns"
        nested = isinstance(turns, list) and all(isinstance(turn, list) for turn in turns)
        listed = [message for turn in turns for message in turn] if nested else None
    if not isinstance(listed, list) or not all(isinstance(message, Mapping) for message in listed):
        raise DataError(f"{row.where}: {location} must be messages with role and content, is {batch!r:.60}")
    date = next((message["time_anchor"] for message in listed if message.get("time_anchor")), "")
    return {"id": str(number), "date": str(date), "turns": listed}


def _by_ability(row: Row) -> list[tuple[str, str, Any]]:
    """(location, ability, question) of each question; the hub's table stores them as text of a Python object."""
    value = fields.get(row, row.values, "probing_questions")
    abilities = fields.parsed(value) if isinstance(value, str) else value
    if not isinstance(abilities, Mapping) or not all(isinstance(entries, list) for entries in abilities.values()):
        raise DataError(f"{row.where}: probing_questions must be an object with a list per ability, is {value!r:.60}")
    return [
        (f"probing_questions.{ability}[{at}]", ability, question)
        for ability, listed in abilities.items()
        for at, question in enumerate(listed)
    ]


def _rubric(row: Row, value: Any, name: str) -> tuple[str, ...]:
    points = fields.golds(row, value, name)
    if not points:
        raise DataError(f"{row.where}: {name} is empty; grading needs the points of a rubric")
    return tuple(dict.fromkeys(points))


def _several(row: Row, name: str, questions: list[Question], context: str, metadata: Mapping[str, Any]) -> Record:
    if not questions:
        raise DataError(f"{row.where}: no question has an answer")
    problem = Problem.asking(name, questions)
    return Record(name, problem.question, problem.answers, context, metadata=metadata, questions=problem.questions)


# ---- Published files of memory agents, RULER and vime --------------------------------------------------------


INVALID_QUESTION = "the question is invalid."
"""Gold of MemAct's unanswerable questions: 45 of 2,048 training rows, 14 of 512 validation rows."""


def memagent(row: Row, fallback: str) -> Record:
    extra = row.values.get("extra_info") or {}
    if not isinstance(extra, Mapping):
        raise DataError(f"{row.where}: extra_info must be an object, is {extra!r:.60}")
    reward_model = fields.get(row, row.values, "reward_model")
    values = {
        "question": extra.get("question") or fields.get(row, row.values, "prompt"),
        "answers": fields.get(row, reward_model, "ground_truth", "reward_model"),
        "context": fields.get(row, row.values, "context"),
        "data_source": row.values.get("data_source"),
        **{key: extra[key] for key in ("num_docs", "index") if extra.get(key) is not None},
    }
    return by_roles(replace(row, values=ids(row) | values), fallback)


def memact(row: Row, fallback: str) -> Record:
    """The question without its prompt, which the policy writes. `metadata["invalid"]` names the golds "the question is
    invalid."."""
    reward_model = fields.get(row, row.values, "reward_model")
    truth = fields.text(row, fields.get(row, reward_model, "ground_truth", "reward_model"), "reward_model.ground_truth")
    question = fields.get(row, fields.get(row, row.values, "extra_info"), "question", "extra_info")
    question = fields.text(row, question, "extra_info.question")
    golds = _named_golds(row, truth)
    questions = record.listed_questions(question, tuple(golds)) if golds else (question.strip(),)
    if questions is None:
        raise DataError(
            f"{row.where}: extra_info.question must have one line for each of ground_truth's {', '.join(golds)}; is "
            f"{question!r:.60}"
        )
    answers = golds or {"Q1": truth}
    invalid = tuple(name for name, gold in answers.items() if gold.strip().lower() == INVALID_QUESTION)
    pairs = zip(questions, answers.values(), strict=True)
    problem = record.search_problem(
        fields.identity(row, fallback),
        [Question(question, (gold,)) for question, gold in pairs],
        {"invalid": invalid} if invalid else {},
    )
    return Record(problem.id, problem.question, problem.answers, metadata=problem.metadata)


def _named_golds(row: Row, truth: str) -> dict[str, str]:
    """Golds of several objectives by name; empty if the ground truth is a plain answer."""
    try:
        golds = json.loads(truth)
    except ValueError:
        return {}
    if not isinstance(golds, dict):
        return {}  # an answer such as 1996 is JSON too
    if list(golds) != [f"Q{number}" for number in range(1, len(golds) + 1)]:
        raise DataError(f"{row.where}: reward_model.ground_truth must name Q1, Q2... in order, has {list(golds)}")
    return {name: fields.text(row, gold, f"reward_model.ground_truth.{name}") for name, gold in golds.items()}


def memagent_eval(row: Row, fallback: str) -> Record:
    context = fields.get(row, row.values, "context")
    if isinstance(context, list) and context and isinstance(context[0], int):
        raise DataError(
            f"{row.where}: context has document indices, not text; put the hotpotqa_dev.json that they index "
            "(official distractor file) next to this file, or name it as corpus"
        )
    return by_roles(row, fallback)


def memagent_eval_by_index(corpus: Corpus) -> Callable[[Row, str], Record]:
    """Parser of files above 10,000 documents, whose `context` is a list of indices into the sorted corpus."""

    def parse(row: Row, fallback: str) -> Record:
        context = fields.get(row, row.values, "context")
        if not isinstance(context, list):
            return memagent_eval(row, fallback)
        size = len(corpus.paragraphs)
        for index in context:
            if not isinstance(index, int) or not 0 <= index < size:
                raise DataError(
                    f"{row.where}: context: document index {index!r} is not in the corpus of {size} paragraphs; "
                    "use the HotpotQA file from which this file was generated"
                )
        texts = [corpus.paragraphs[index] for index in context]
        return by_roles(replace(row, values={**row.values, "context": texts}), fallback)

    return parse


def vime(row: Row, fallback: str) -> Record:
    metadata = fields.get(row, row.values, "metadata")
    context = fields.get(row, metadata, "context", "metadata")
    truth = metadata.get("ground_truth")
    rest = {
        key: value for key, value in metadata.items() if key not in ("context", "ground_truth") and value is not None
    }
    values = {"question": fields.get(row, row.values, "prompt"), "context": context, "metadata": rest}
    values["answers"] = row.values.get("label") if truth is None else truth
    return by_roles(replace(row, values=ids(row) | values), fallback)

"""Layouts of the published training and evaluation files whose contexts are finished, or that have none.

memagent       MemAgent's train parquet: prompt, context, reward_model.ground_truth, extra_info
memact         MemAct's RL parquet: prompt, reward_model.ground_truth, extra_info.question; one question or several
memagent_eval  MemAgent's and ReMemR1's eval_{N}.json: context, input, answers, num_docs, index
ruler          RULER: input, outputs, context (all outputs are asked for: reward.name=fraction)
vime           vime JSONL: prompt, label, metadata{context, ground_truth}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from palimpsest.data import fields, objectives
from palimpsest.data.assemble import Corpus, Record
from palimpsest.data.rows import Row
from palimpsest.errors import DataError

INVALID_QUESTION = "the question is invalid."
"""Gold of MemAct's questions without an answer: in 45 of the 2,048 training rows, in 14 of the 512 for validation."""


def memagent(row: Row, fallback: str) -> Record:
    extra = row.values.get("extra_info") or {}
    if not isinstance(extra, Mapping):
        raise DataError(f"{row.where}: extra_info must be an object, is {extra!r:.60}")
    reward_model = fields.get(row, row.values, "reward_model")
    question = extra.get("question") or fields.user_message(row, fields.get(row, row.values, "prompt"), "prompt")
    kept = {key: extra[key] for key in ("num_docs", "index") if extra.get(key) is not None}
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, question, "extra_info.question"),
        answers=fields.golds_at(row, reward_model, "ground_truth", "reward_model"),
        context=fields.text(row, fields.get(row, row.values, "context"), "context", blank=True),
        metadata=kept | {key: row.values[key] for key in ("data_source",) if row.values.get(key)},
    )


def memact(row: Row, fallback: str) -> Record:
    """The question alone: the prompt around it belongs to the policy. Golds of "the question is invalid." are kept and
    named in `metadata["invalid"]`."""
    reward_model = fields.get(row, row.values, "reward_model")
    truth = fields.text(row, fields.get(row, reward_model, "ground_truth", "reward_model"), "reward_model.ground_truth")
    question = fields.get(row, fields.get(row, row.values, "extra_info"), "question", "extra_info")
    question = fields.text(row, question, "extra_info.question")
    golds = _named_golds(row, truth)
    asked = objectives.listed_questions(question, tuple(golds)) if golds else (question.strip(),)
    if asked is None:
        raise DataError(
            f"{row.where}: extra_info.question must ask {', '.join(golds)} on a line of its own each, as "
            f"ground_truth has them; is {question!r:.60}"
        )
    answers = golds or {"Q1": truth}
    invalid = tuple(name for name, gold in answers.items() if gold.strip().lower() == INVALID_QUESTION)
    pairs = zip(asked, answers.values(), strict=True)
    problem = objectives.search_problem(
        fields.identity(row, fallback),
        [objectives.Objective(question, (gold,)) for question, gold in pairs],
        {"invalid": invalid} if invalid else {},
    )
    return Record(problem.id, problem.question, problem.answers, metadata=problem.metadata)


def _named_golds(row: Row, truth: str) -> dict[str, str]:
    """The golds of several objectives by name; none where the ground truth is a plain answer."""
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
    if isinstance(context, list):
        raise DataError(
            f"{row.where}: context holds document indices, not text; put the hotpotqa_dev.json that they index "
            "(official distractor file) beside this one, or name it as corpus"
        )
    return _eval_record(row, fallback, context=fields.text(row, context, "context", blank=True))


def memagent_eval_by_index(corpus: Corpus) -> Callable[[Row, str], Record]:
    """Parser of the form used above 10,000 documents, where `context` holds indices into the sorted corpus."""

    def parse(row: Row, fallback: str) -> Record:
        context = fields.get(row, row.values, "context")
        if not isinstance(context, list):
            return memagent_eval(row, fallback)
        size = len(corpus.paragraphs)
        for index in context:
            if not isinstance(index, int) or not 0 <= index < size:
                raise DataError(
                    f"{row.where}: context: document index {index!r} is not in the corpus of {size} paragraphs; "
                    "the corpus must be the HotpotQA file that this one was made from"
                )
        return _eval_record(row, fallback, paragraphs=tuple(corpus.paragraphs[index] for index in context))

    return parse


def _eval_record(row: Row, fallback: str, **content: Any) -> Record:
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, row.values, "input"), "input"),
        answers=fields.golds_at(row, row.values, "answers"),
        metadata=fields.rest(row, "context", "input", "answers"),
        **content,
    )


def ruler(row: Row, fallback: str) -> Record:
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, row.values, "input"), "input"),
        answers=fields.golds_at(row, row.values, "outputs"),
        context=fields.text(row, fields.get(row, row.values, "context"), "context", blank=True),
        metadata=fields.rest(row, "context", "input", "outputs"),
    )


def vime(row: Row, fallback: str) -> Record:
    metadata = fields.get(row, row.values, "metadata")
    context = fields.get(row, metadata, "context", "metadata")
    truth = metadata.get("ground_truth")
    truth, name = (row.values.get("label"), "label") if truth is None else (truth, "metadata.ground_truth")
    return Record(
        id=fields.identity(row, fallback),
        question=fields.user_message(row, fields.get(row, row.values, "prompt"), "prompt"),
        answers=fields.golds(row, truth, name),
        context=fields.text(row, context, "metadata.context", blank=True),
        metadata={k: v for k, v in metadata.items() if k not in ("context", "ground_truth") and v is not None},
    )

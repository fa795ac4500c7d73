"""Published layouts, each turned into `Record`s by one small function.

    hotpotqa       HotpotQA, 2WikiMultiHopQA: official JSON ([[title, [sentence]]]) or hub ({title, sentences})
    musique        MuSiQue: paragraphs with is_supporting, question_decomposition in reasoning order
    memagent       MemAgent's train parquet: prompt, context, reward_model.ground_truth, extra_info
    memact         MemAct's RL parquet: prompt, reward_model.ground_truth, extra_info.question; one question or several
    memagent_eval  MemAgent's and ReMemR1's eval_{N}.json: context, input, answers, num_docs, index
    ruler          RULER: input, outputs, context (all outputs are asked for: reward.name=fraction)
    vime           vime JSONL: prompt, label, metadata{context, ground_truth}
    palimpsest     our own: question and answers, or questions; optionally id, context, metadata, memory

Guaranteed: a row either becomes a record with a question and at least one gold, neither blank, or raises DataError.
Not covered: whether the context holds the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from palimpsest.data import fields, objectives
from palimpsest.data.assemble import Corpus, Record
from palimpsest.data.rows import Row
from palimpsest.errors import DataError, nearest
from palimpsest.types import Problem

INVALID_QUESTION = "the question is invalid."
"""Gold of MemAct's questions without an answer: in 45 of the 2,048 training rows, in 14 of the 512 for validation."""


@dataclass(frozen=True, slots=True)
class Format:
    """A layout: the columns by which it is recognised, and its parser."""

    name: str
    needs: tuple[str, ...]
    parse: Callable[[Row, str], Record]
    """(row, id to use where the row has none) to record."""
    instead: str | None = None
    """A column that does in place of all of them."""


def hotpotqa(row: Row, fallback: str) -> Record:
    values = row.values
    titled = _titled_paragraphs(row, fields.get(row, values, "context"))
    titles = _supporting_titles(row, values.get("supporting_facts"))
    for title in titles:
        if not any(title == own for own, _ in titled):
            raise DataError(
                f"{row.where}: supporting title {title!r} is not among its paragraphs; "
                "use the distractor setting of the file, which holds every gold paragraph"
            )
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, values, "question"), "question"),
        answers=fields.golds(row, fields.get(row, values, "answer"), "answer"),
        paragraphs=tuple(dict.fromkeys(text for _, text in titled)),
        gold=tuple(dict.fromkeys(text for wanted in titles for title, text in titled if title == wanted)),
        metadata={
            **{key: values[key] for key in ("type", "level") if values.get(key) is not None},
            "supporting_titles": tuple(titles),
        },
    )


def _titled_paragraphs(row: Row, context: Any) -> list[tuple[str, str]]:
    """(title, "title\\nsentences") of each paragraph, from either layout."""
    pairs = _pairs(row, context, "context", "sentences")
    result = []
    for title, sentences in pairs:
        title = fields.text(row, title, "context title", blank=True)
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise DataError(f"{row.where}: context: paragraph {title!r} must be a list of sentences")
        body = fields.text(row, "".join(sentences), "context sentences", blank=True)
        result.append((title, f"{title}\n{body}"))
    if not result:
        raise DataError(f"{row.where}: context holds no paragraphs")
    return result


def _supporting_titles(row: Row, facts: Any) -> list[str]:
    if facts is None:
        return []
    pairs = _pairs(row, facts, "supporting_facts", "sent_id")
    return list(dict.fromkeys(fields.text(row, title, "supporting_facts title", blank=True) for title, _ in pairs))


def _pairs(row: Row, value: Any, name: str, second: str) -> list[tuple[Any, Any]]:
    """(title, second) pairs of [[title, x], ...], {title: [...], second: [...]} or [{title, second}, ...]."""
    if isinstance(value, Mapping):
        titles = fields.get(row, value, "title", name)
        others = fields.get(row, value, second, name)
        if not isinstance(titles, list) or not isinstance(others, list) or len(titles) != len(others):
            raise DataError(f"{row.where}: {name}.title and {name}.{second} must be lists of one length")
        return list(zip(titles, others, strict=True))
    if not isinstance(value, list):
        raise DataError(f"{row.where}: {name} must be a list of pairs or an object, is {value!r:.60}")
    pairs = []
    for item in value:
        if isinstance(item, Mapping):
            pairs.append((fields.get(row, item, "title", name), fields.get(row, item, second, name)))
        elif isinstance(item, list) and len(item) == 2:
            pairs.append((item[0], item[1]))
        else:
            raise DataError(f"{row.where}: {name} must hold [title, {second}] pairs, found {item!r:.60}")
    return pairs


def musique(row: Row, fallback: str) -> Record:
    values = row.values
    if values.get("answerable") is False:
        raise DataError(
            f"{row.where}: answerable is false; use the answerable set (musique_ans), which has an answer each"
        )
    listed = fields.get(row, values, "paragraphs")
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{row.where}: paragraphs must be a list of objects, is {listed!r:.60}")
    texts = [_musique_paragraph(row, paragraph) for paragraph in listed]
    hops = values.get("question_decomposition") or []
    if not isinstance(hops, list):
        raise DataError(f"{row.where}: question_decomposition must be a list of objects, is {hops!r:.60}")
    used = [fields.get(row, hop, "paragraph_support_idx", "question_decomposition") for hop in hops]
    if any(not isinstance(index, int) or not 0 <= index < len(texts) for index in used):
        raise DataError(
            f"{row.where}: question_decomposition.paragraph_support_idx {used!r:.60} is not in its paragraphs"
        )
    marked = [text for text, paragraph in zip(texts, listed, strict=True) if paragraph.get("is_supporting")]
    answers = fields.golds(row, fields.get(row, values, "answer"), "answer")
    aliases = values.get("answer_aliases") or []
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, values, "question"), "question"),
        answers=tuple(dict.fromkeys((*answers, *(fields.golds(row, aliases, "answer_aliases") if aliases else ())))),
        paragraphs=tuple(dict.fromkeys(texts)),
        gold=tuple(dict.fromkeys((*(texts[index] for index in used), *marked))),
        metadata={"hops": len(hops)} if hops else {},
    )


def _musique_paragraph(row: Row, paragraph: Any) -> str:
    title, body = (fields.get(row, paragraph, key, "paragraphs") for key in ("title", "paragraph_text"))
    return f"{fields.text(row, title, 'title', blank=True)}\n{fields.text(row, body, 'paragraph_text', blank=True)}"


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
        answers=fields.golds(
            row, fields.get(row, reward_model, "ground_truth", "reward_model"), "reward_model.ground_truth"
        ),
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
        answers=fields.golds(row, fields.get(row, row.values, "answers"), "answers"),
        metadata=fields.rest(row, "context", "input", "answers"),
        **content,
    )


def ruler(row: Row, fallback: str) -> Record:
    return Record(
        id=fields.identity(row, fallback),
        question=fields.text(row, fields.get(row, row.values, "input"), "input"),
        answers=fields.golds(row, fields.get(row, row.values, "outputs"), "outputs"),
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


def palimpsest(row: Row, fallback: str) -> Record:
    context, metadata = row.values.get("context"), row.values.get("metadata") or {}
    memory = row.values.get("memory")
    if not isinstance(metadata, Mapping):
        raise DataError(f"{row.where}: metadata must be an object, is {metadata!r:.60}")
    name = fields.identity(row, fallback)
    asked = Problem.asking(name, fields.questions(row, metadata))
    return Record(
        id=name,
        question=asked.question,
        answers=asked.answers,
        context=None if context is None else fields.text(row, context, "context", blank=True),
        metadata=metadata,
        questions=asked.questions,
        memory="" if memory is None else fields.text(row, memory, "memory", blank=True),
    )


FORMATS = {
    format.name: format
    for format in (
        Format("hotpotqa", ("question", "answer", "context"), hotpotqa),
        Format("musique", ("question", "answer", "paragraphs"), musique),
        Format("memagent", ("prompt", "context", "reward_model"), memagent),
        Format("memact", ("prompt", "reward_model", "extra_info", "agent_name"), memact),
        Format("memagent_eval", ("input", "context", "answers"), memagent_eval),
        Format("ruler", ("input", "context", "outputs"), ruler),
        Format("vime", ("prompt", "label", "metadata"), vime),
        Format("palimpsest", ("question", "answers"), palimpsest, instead="questions"),
    )
}


def named(name: str) -> Format:
    """The format of that name. Raises DataError."""
    if name not in FORMATS:
        raise DataError(f"unknown data format {name!r}{nearest(name, FORMATS)}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def recognise(row: Row) -> Format:
    """The format whose columns `row` has. Raises DataError naming the closest format and what it misses."""
    for format in FORMATS.values():
        if not missing(format, row.values):
            return format
    closest = max(FORMATS.values(), key=lambda format: _likeness(format, row.values))
    raise _lacks(row, closest, "no known format; the closest is")


def require(format: Format, row: Row) -> None:
    """Raise DataError if `row` lacks a column of `format`."""
    if missing(format, row.values):
        raise _lacks(row, format, "format")


def missing(format: Format, columns: Iterable[str]) -> list[str]:
    columns = set(columns)
    return [] if format.instead in columns else [name for name in format.needs if name not in columns]


def _likeness(format: Format, columns: Iterable[str]) -> float:
    """Share of the needed columns that are there, a misspelt one counting half."""
    names = list(columns)
    scores = [1.0 if need in names else 0.5 if nearest(need, names) else 0.0 for need in format.needs]
    return sum(scores) / len(scores)


def _lacks(row: Row, format: Format, lead: str) -> DataError:
    hints = [f"{name!r}{nearest(name, row.values)}" for name in missing(format, row.values)]
    return DataError(
        f"{row.where}: {lead} {format.name!r}, which needs column {', '.join(hints)}; "
        f"the row has {', '.join(row.values) or 'none'}"
    )

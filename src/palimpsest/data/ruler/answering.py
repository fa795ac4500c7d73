"""Questions among documents: SQuAD (qa_1) and HotpotQA (qa_2), from the user's own files.

The unit is a word of a distractor: whole documents as long as they fit, then a last one cut short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from palimpsest.data.assemble import Record, document_block
from palimpsest.data.problems import format_of, read_records
from palimpsest.data.ruler.definitions import PROMPTS
from palimpsest.data.ruler.needles import Key
from palimpsest.data.ruler.sample import Sample
from palimpsest.errors import DataError
from palimpsest.seeding import keyed_random


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its documents."""

    text: str
    answers: tuple[str, ...]
    needed: tuple[str, ...]
    """Documents that every context holds."""
    near: tuple[str, ...] = ()
    """Distractors that come first."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions of a file, in its order, and the documents of all of them."""

    asked: tuple[Question, ...]
    documents: tuple[str, ...]


def read_squad(path: Path) -> Questions:
    """SQuAD's own file, version 1.1 or 2.0, or its rows; questions without an answer are left out. Raises DataError."""
    if (found := format_of(path).name) != "squad":
        raise DataError(f"{path}: not SQuAD's file, an object with data, paragraphs and qas, or its rows; is {found}")
    records = list(read_records(path))
    articles = dict[object, dict[str, None]]()
    for record in records:
        articles.setdefault(record.metadata.get("title"), {})[record.context or ""] = None
    asked = tuple(_of_article(record, articles[record.metadata.get("title")]) for record in records if record.answers)
    return Questions(asked, tuple(sorted({text for texts in articles.values() for text in texts})))


def _of_article(record: Record, texts: Iterable[str]) -> Question:
    own = record.context or ""
    return Question(record.question, record.answers, (own,), tuple(text for text in texts if text != own))


def read_hotpot(path: Path) -> Questions:
    """Questions with their paragraphs, all of which every context holds, as published. Raises DataError."""
    asked = []
    for record in read_records(path):
        if record.paragraphs is None:
            raise DataError(f"{path}: problem {record.id} has no paragraphs; give HotpotQA's distractor setting")
        asked.append(Question(record.question, record.answers, record.paragraphs))
    documents = sorted({text for question in asked for text in question.needed})
    return Questions(tuple(asked), tuple(documents))


def answering(question: Question, questions: Questions, key: Key) -> Sample:
    """One item: the question's documents in drawn places among the others."""
    rng = keyed_random(*key)
    held = {*question.needed, *question.near}
    others = [text for text in questions.documents if text not in held]
    distractors = [*rng.sample(question.near, len(question.near)), *rng.sample(others, len(others))]
    ends = list(accumulate(len(text.split()) for text in distractors))

    def context(size: int) -> str:
        whole = bisect_right(ends, size)
        chosen = [*question.needed, *distractors[:whole]]
        if rest := size - (ends[whole - 1] if whole else 0):
            chosen.append(" ".join(distractors[whole].split()[:rest]))
        keyed_random(*key, "order", len(chosen)).shuffle(chosen)
        return document_block(chosen)

    most = ends[-1] if ends else 0
    return Sample(PROMPTS["qa"], {"query": question.text}, question.answers, question.needed, context, most)

"""Questions among documents: SQuAD (qa_1) and HotpotQA (qa_2), from the user's own files.

The unit is a word of a distractor: whole documents as long as they fit, then a last one cut short.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from palimpsest.data.assemble import document_block
from palimpsest.data.problems import read_records
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
    """SQuAD's own file, version 1.1 or 2.0; questions without an answer are left out. Raises DataError."""
    try:
        articles = json.loads(path.read_text("utf-8"))["data"]
        asked = tuple(question for article in articles for question in _of_article(article["paragraphs"]))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path}: not SQuAD's file, an object with data, paragraphs and qas ({error})") from None
    documents = sorted({paragraph["context"] for article in articles for paragraph in article["paragraphs"]})
    return Questions(asked, tuple(documents))


def _of_article(paragraphs: Sequence[Mapping[str, Any]]) -> Iterator[Question]:
    texts = [paragraph["context"] for paragraph in paragraphs]
    for paragraph in paragraphs:
        for each in paragraph["qas"]:
            golds = tuple(dict.fromkeys(answer["text"] for answer in each["answers"]))
            if golds and not each.get("is_impossible"):
                own = paragraph["context"]
                yield Question(each["question"], golds, (own,), tuple(text for text in texts if text != own))


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

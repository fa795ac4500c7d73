"""A file of documents beside files of problems whose contexts are numbers of its rows.

    documents.jsonl     {"title": "Rome", "text": "A city."}                   row 0
    eval_6400.jsonl     {"id": "q1", "question": "...", "answers": ["..."], "context": [0, 12, 7], "metadata": {...}}

The documents stand in code-point order of `title`, newline, `text`, each once, as MemAgent's own index files suppose. A
context of 6,400 documents of 700 bytes takes 40 kB so, not 4.5 MB.

Guaranteed: what was written reads back as the problem that `assemble` would give, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.data import fields
from palimpsest.data.assemble import Corpus, Record, placed
from palimpsest.data.question_formats import palimpsest
from palimpsest.data.rows import Row
from palimpsest.errors import DataError

DOCUMENTS = "documents.jsonl"


def write_documents(path: Path, corpus: Corpus) -> None:
    """The paragraphs of `corpus` as rows, whole or not at all."""
    with files.drafted(path) as file:
        for paragraph in corpus.paragraphs:
            file.write(document_row(paragraph))


def document_row(paragraph: str) -> str:
    r"""One line of the file; a paragraph without a title has none.

    >>> document_row("Rome\nA city."), document_row("A city.")
    ('{"title": "Rome", "text": "A city."}\n', '{"text": "A city."}\n')
    """
    title, newline, text = paragraph.partition("\n")
    row = {"title": title, "text": text} if newline else {"text": title}
    return json.dumps(row, ensure_ascii=False) + "\n"


def row_by_index(record: Record, paragraphs: Sequence[str], index: dict[str, int]) -> dict[str, Any]:
    """The row of a record whose context these paragraphs make; `index` gives their numbers."""
    return {
        "id": record.id,
        "question": record.question,
        "answers": list(record.answers),
        "context": [index[paragraph] for paragraph in paragraphs],
        "metadata": {**record.metadata, **placed(record, paragraphs)},
    }


def palimpsest_by_index(corpus: Corpus) -> Callable[[Row, str], Record]:
    """Parser of our own layout where `context` may be a list of numbers of documents."""

    def parse(row: Row, fallback: str) -> Record:
        numbers = row.values.get("context")
        if not isinstance(numbers, list):
            return palimpsest(row, fallback)
        record = palimpsest(replace(row, values={**row.values, "context": None}), fallback)
        paragraphs = tuple(_document(row, number, corpus) for number in numbers)
        places = record.metadata.get("evidence_positions") or ()
        if not all(isinstance(place, int) and 0 < place <= len(paragraphs) for place in places):
            raise DataError(f"{row.where}: metadata evidence_positions {places!r:.60} are not of its documents")
        return Record(
            record.id,
            record.question,
            record.answers,
            paragraphs=paragraphs,
            gold=tuple(paragraphs[place - 1] for place in places),
            metadata=record.metadata,
            questions=record.questions,
            memory=record.memory,
        )

    return parse


def _document(row: Row, number: Any, corpus: Corpus) -> str:
    size = len(corpus.paragraphs)
    if type(number) is not int or not 0 <= number < size:
        raise DataError(
            f"{row.where}: context: document {number!r:.20} is not in the corpus of {size}; it must be the "
            f"{DOCUMENTS} that was written with this file"
        )
    return fields.text(row, corpus.paragraphs[number], "document", blank=True)

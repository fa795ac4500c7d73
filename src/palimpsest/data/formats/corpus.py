"""Passages for search: one object per row, or the paragraphs of a question file.

    passages    {text} or {contents}, with title, id and any further fields; JSON array, JSON lines, parquet, CSV, TSV
    folder      of plain text: every .txt and .md file is a passage
    hotpotqa    HotpotQA, 2WikiMultiHopQA: the paragraphs of every question, each once
    musique     MuSiQue: likewise

Guaranteed: a passage has the fields of its row and an `id`, the row's own or its number in the corpus; an invalid row
is a one-line error with file and row.
Not covered: duplicate ids, and duplicate texts in files of passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from palimpsest.data.files.rows import Row, read_rows
from palimpsest.data.formats import fields
from palimpsest.data.formats.question_formats import corpus_paragraphs
from palimpsest.errors import DataError

BODIES = ("text", "contents")
"""Keys of a passage's text; the first that is not null counts."""


def read_corpus(path: Path) -> Iterator[dict[str, Any]]:
    """The passages of `path` in order. Raises DataError at an invalid row, not earlier."""
    visited: set[tuple[str, str]] = set()
    count = 0
    for row in read_rows(path):
        for passage in _passages(row, visited):
            yield _identified(row, passage, count)
            count += 1


def searched_text(passage: Any) -> str:
    """The searched part of a passage: title and text. Raises DataError if it has no text.

    >>> searched_text({"id": "7", "title": "Rome", "text": "A city."})
    'Rome\\nA city.'
    """
    body = text_of(passage)
    return f"{passage['title']}\n{body}" if passage.get("title") else body


def text_of(passage: Any) -> str:
    """A passage without its title. Raises DataError if it has no text."""
    if not isinstance(passage, Mapping):
        raise DataError(f"a passage must be an object with 'text' and maybe 'title', is {passage!r:.60}")
    body = next((passage[key] for key in BODIES if passage.get(key) is not None), None)
    if body is None:
        raise DataError(f"a passage needs its text under 'text' (there: {', '.join(map(str, passage)) or 'nothing'})")
    return str(body)


def document_passages(document: str, most_chars: int) -> list[dict[str, Any]]:
    """A document as passages: paragraphs, or lines if it has no blank line; longer ones are cut at a space.

    >>> [passage["text"] for passage in document_passages("Rome\\nA city.\\n\\nOslo", 100)]
    ['Rome\\nA city.', 'Oslo']
    >>> [passage["text"] for passage in document_passages("Ann drinks tea.\\nBob sells maps.", 10)]
    ['Ann drinks', 'tea.', 'Bob sells', 'maps.']
    """
    stripped = document.strip()
    paragraphs = re.split(r"\n\s*\n", stripped) if re.search(r"\n\s*\n", stripped) else stripped.splitlines()
    texts = [piece for part in paragraphs if part.strip() for piece in _pieces(part.strip(), most_chars)]
    return [{"id": str(number), "text": text} for number, text in enumerate(texts)]


def _pieces(text: str, most_chars: int) -> Iterator[str]:
    while len(text) > most_chars:
        space = text.rfind(" ", 1, most_chars + 1)
        end = space if space > 0 else most_chars
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    if text:
        yield text


def _passages(row: Row, visited: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    body = next((key for key in BODIES if row.values.get(key) is not None), None)
    if body is not None:
        yield _passage(row, body)
        return
    for paragraph in corpus_paragraphs(row):
        title, _, text = paragraph.partition("\n")
        if (title, text) not in visited:
            visited.add((title, text))
            yield {"title": title, "text": text}


def _passage(row: Row, body: str) -> dict[str, Any]:
    passage = {str(key): value for key, value in row.values.items() if value is not None}
    for key in ("title", body):
        if key in passage:
            passage[key] = fields.text(row, passage[key], key, blank=True)
    return passage


def _identified(row: Row, passage: dict[str, Any], count: int) -> dict[str, Any]:
    """`passage` with an id, after a round trip through JSON."""
    passage_id = passage.get("id", passage.get("_id"))
    identified = {"id": str(count) if passage_id is None else passage_id} | passage
    try:
        result: dict[str, Any] = orjson.loads(orjson.dumps(identified))
    except (TypeError, orjson.JSONDecodeError) as error:
        raise DataError(f"{row.where}: a field is not JSON ({error}); remove it from the corpus") from None
    return result

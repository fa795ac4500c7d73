"""SQuAD's own file, one object of articles, as the rows that the hub has of it: read as the format `squad`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def has_articles(values: Mapping[str, Any]) -> bool:
    """Whether an object is the whole of SQuAD's own file."""
    listed = values.get("data")
    return isinstance(listed, list) and bool(listed) and isinstance(listed[0], Mapping) and "paragraphs" in listed[0]


def article_rows(values: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """(values by column, place) of every question, in the order of the file. Raises LookupError or TypeError for what
    is no article.

    >>> asked = {"id": "q1", "question": "Who ran?", "answers": [{"text": "Ann", "answer_start": 0}]}
    >>> file = {"data": [{"title": "Runs", "paragraphs": [{"context": "Ann ran.", "qas": [asked]}]}]}
    >>> [(values["title"], values["context"], values["id"], place) for values, place in article_rows(file)]
    [('Runs', 'Ann ran.', 'q1', 'data[0].paragraphs[0].qas[0]')]
    """
    for a, article in enumerate(values["data"]):
        for p, paragraph in enumerate(article["paragraphs"]):
            for q, asked in enumerate(paragraph["qas"]):
                own = {"title": article.get("title"), "context": paragraph["context"]}
                yield {**asked, **own}, f"data[{a}].paragraphs[{p}].qas[{q}]"

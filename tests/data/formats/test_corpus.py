"""Passages of a corpus from every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palimpsest.data.formats.corpus import read_corpus
from palimpsest.errors import DataError
from palimpsest.retrieval.search import Bm25Index
from support.records import one_line_error, save

QUESTION = {"question": "q?", "answer": "a"}
PASSAGES: list[dict[str, Any]] = [{"id": 5, "title": "A", "text": "b", "url": "u"}, {"title": "C", "contents": "d"}]
LAYOUTS: dict[str, tuple[list[dict[str, Any]], list[tuple[Any, str, str]]]] = {
    "hotpotqa": (
        [
            QUESTION | {"context": [["A", ["b.", " c."]], ["D", ["e"]]]},
            QUESTION | {"context": {"title": ["D", "F"], "sentences": [["e"], ["g"]]}},
        ],
        [("0", "A", "b. c."), ("1", "D", "e"), ("2", "F", "g")],
    ),
    "musique": ([QUESTION | {"paragraphs": [{"title": "A", "paragraph_text": "b"}]}], [("0", "A", "b")]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_paragraphs_of_questions_are_passages(tmp_path: Path, layout: str, suffix: str) -> None:
    rows, passages = LAYOUTS[layout]
    expected = [{"id": id_, "title": title, "text": text} for id_, title, text in passages]
    assert list(read_corpus(save(tmp_path / f"corpus{suffix}", *rows))) == expected


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_passages_keep_their_columns_and_get_an_id(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"corpus{suffix}", *PASSAGES)
    assert list(read_corpus(path)) == [PASSAGES[0], {"id": "1", **PASSAGES[1]}]


def test_passages_of_parquet_drop_null_titles(tmp_path: Path) -> None:
    passages = [{"id": 1, "text": "a", "title": "t"}, {"id": 2, "text": "b"}]
    assert list(read_corpus(save(tmp_path / "c.parquet", *passages))) == passages


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"title": "A", "txt": "b"}', "line 1: no 'text' or 'contents' (there: title, txt); rename"),
        ('{"text": 3}', "text must be a string, is int"),
        ('{"text": "a", "title": ["x"]}', "title must be a string, is list"),
        ('{"text": "a"}\n{"text": "b"', "line 2"),
        ("", "the file is empty"),
        ('{"text": "!!"}', "no passage has a word"),
        (None, "can't be read"),
    ],
)
def test_an_unreadable_corpus_is_rejected_in_one_line(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_text(content)
    message = one_line_error(DataError, Bm25Index.of_corpus, path, tmp_path / "index")
    assert str(path) in message
    assert reason in message
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("name", ["hotpotqa_train_100.json", "hotpotqa_dev_50.json"])
def test_the_paragraphs_of_hotpotqa_are_a_corpus(real_data: Path, name: str) -> None:
    wanted = set()
    for row in json.loads((real_data / name).read_text("utf-8")):
        context = row["context"]
        pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
        wanted |= {(title, "".join(sentences)) for title, sentences in pairs}
    result = [(p["title"], p["text"]) for p in read_corpus(real_data / name)]
    assert (len(result), set(result)) == (len(wanted), wanted)

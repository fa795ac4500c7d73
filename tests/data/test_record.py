"""Long documents are stored on disk, so that memory does not grow with the number of problems."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from palimpsest.app.evaluate.evaluation_data import read_problems
from palimpsest.config.data import DataConfig
from palimpsest.config.load import parse_config
from palimpsest.data.formats.problem_files import ReadOptions
from palimpsest.data.record import LONG, DocumentStore
from palimpsest.data.sources.file_source import FileSource, SourceProblems, build_source, outlines, some_of
from palimpsest.errors import DataError
from support.records import save

MEGABYTE = 1 << 20


def documents(path: Path, count: int, size: int) -> Path:
    """Questions on different documents of `size` characters."""
    contexts = ((f"{number:9}" * (size // 9 + 1))[:size] for number in range(count))
    rows = (
        {"id": f"q{number}", "question": f"Who is {number}?", "answers": ["Ann"], "context": context}
        for number, context in enumerate(contexts)
    )
    return save(path, *rows)


def test_stored_texts_come_back_unchanged_and_equal_ones_are_stored_once() -> None:
    store = DocumentStore()
    texts = ["a" * 5000, "ä\udc80 \U0001f600" * 99, "", "a" * 5000]
    stored = [store.put(text) for text in texts]
    assert [store.text(item) for item in stored] == texts
    assert stored[0] == stored[3]
    assert stored[1].start == stored[0].size


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_is_an_error_with_the_fix() -> None:
    store = DocumentStore()
    store._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115
    with pytest.raises(DataError, match=r"No space left on device; long documents .*set TMPDIR to a folder"):
        store.put("a" * LONG)


@pytest.mark.parametrize("size", [LONG - 1, LONG, 10 * LONG])
def test_problems_do_not_depend_on_where_their_documents_are(size: int, tmp_path: Path) -> None:
    path = documents(tmp_path / "f.jsonl", 3, size)
    expected = [json.loads(line)["context"] for line in path.read_text().splitlines()]
    source = FileSource.open(path, split="eval")
    problems = SourceProblems.all_of(source)
    assert [problem.context for problem in source] == [problem.context for problem in problems] == expected
    assert problems[1] == source.problems(step=0, count=9)[1]
    assert [(item.id, item.answers) for item in outlines(problems)] == [(item.id, item.answers) for item in problems]
    assert [item.id for item in some_of(problems, [2, 0])] == ["q2", "q0"]
    assert [item.id for item in problems[1:]] == ["q1", "q2"]
    training = build_source(DataConfig(train_files=str(path)), split="train").problems(step=0, count=3)
    assert sorted(str(problem.context) for problem in training) == sorted(expected)


def test_problems_of_a_file_need_the_memory_of_a_few_documents(tmp_path: Path) -> None:
    path = documents(tmp_path / "f.jsonl", 24, MEGABYTE)
    config = parse_config(json.dumps({"data": {"train_files": str(path)}}))
    tracemalloc.start()
    try:
        (problems,) = read_problems(config).values()
        read = sum(len(problem.context or "") for _ in range(2) for problem in problems)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read > 46 * MEGABYTE
    assert peak < 10 * MEGABYTE


def test_questions_on_one_document_share_its_place(tmp_path: Path) -> None:
    questions = [{"question": f"Who is {number}?", "answers": ["Ann"]} for number in range(5)]
    path = save(tmp_path / "f.jsonl", {"questions": questions, "context": "Ann. " * LONG})
    source = FileSource.open(path, split="eval", reading=ReadOptions(split_questions=True))
    assert len({record.stored for record in source.records}) == 1
    assert {problem.context for problem in source} == {"Ann. " * LONG}

"""Long documents wait on a disk, so that memory doesn't grow with the number of problems."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.app.evaluate.evaluation_data import read_problems
from palimpsest.config.data import DataConfig
from palimpsest.config.load import parse_config
from palimpsest.data.formats.problem_files import ReadOptions
from palimpsest.data.record import LONG, DocumentStore
from palimpsest.data.sources.file_source import FileSource, SourceProblems, build_source, outlines, some_of
from palimpsest.errors import DataError

MEGABYTE = 1 << 20


def documents(path: Path, count: int, size: int) -> Path:
    """Questions on documents of so many characters, no two alike."""
    with path.open("w") as file:
        for number in range(count):
            context = (f"{number:9}" * (size // 9 + 1))[:size]
            row = {"id": f"q{number}", "question": f"Who is {number}?", "answers": ["Ann"], "context": context}
            file.write(json.dumps(row) + "\n")
    return path


def test_what_comes_back_is_what_went_in_and_equal_texts_lie_there_once() -> None:
    store = DocumentStore()
    texts = ["a" * 5000, "ä\udc80 \U0001f600" * 99, "", "a" * 5000]
    stored = [store.put(text) for text in texts]
    assert [store.text(each) for each in stored] == texts
    assert stored[0] == stored[3]
    assert stored[1].start == stored[0].size


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_disk_that_takes_no_more_is_told_with_the_way_out() -> None:
    store = DocumentStore()
    store._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115
    with pytest.raises(
        DataError, match=r"No space left on device; long documents are stored there.*set TMPDIR to a folder"
    ):
        store.put("a" * LONG)


@pytest.mark.parametrize("size", [LONG - 1, LONG, 10 * LONG])
def test_problems_are_the_same_wherever_their_documents_wait(size: int, tmp_path: Path) -> None:
    path = documents(tmp_path / "f.jsonl", 3, size)
    expected = [json.loads(line)["context"] for line in path.read_text().splitlines()]
    source = FileSource.open(path, split="eval")
    problems = SourceProblems.all_of(source)
    assert [problem.context for problem in source] == expected
    assert [problem.context for problem in problems] == expected
    assert problems[1] == source.problems(step=0, count=9)[1]
    assert [(each.id, each.answers) for each in outlines(problems)] == [(each.id, each.answers) for each in problems]
    assert [each.id for each in some_of(problems, [2, 0])] == ["q2", "q0"]
    assert [each.id for each in problems[1:]] == ["q1", "q2"]
    training = build_source(DataConfig(train_files=str(path)), split="train").problems(step=0, count=3)
    assert sorted(str(problem.context) for problem in training) == sorted(expected)


def test_problems_of_a_file_take_the_memory_of_a_document_not_of_all(tmp_path: Path) -> None:
    """24 documents of a megabyte: read, looked at twice, and never more than a few of them in memory."""
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


def test_several_numbers_of_documents_share_the_paragraphs_of_a_file(tmp_path: Path) -> None:
    rows = [
        {
            "_id": f"h{number}", "question": "Who?", "answer": "Ann", "supporting_facts": [[f"T{number}", 0]],
            "context": [[f"T{number}", ["Ann."]], [f"U{number}", ["Bob."]]],
        }
        for number in range(9)
    ]  # fmt: skip
    (tmp_path / "h.json").write_text(json.dumps(rows))
    config = parse_config(json.dumps({"data": {"train_files": str(tmp_path / "h.json"), "documents": 4}}))
    few, many = read_problems(config, documents=(4, 12)).values()
    assert isinstance(few, SourceProblems)
    assert isinstance(many, SourceProblems)
    assert few.source.records is many.source.records
    alone = FileSource.open(tmp_path / "h.json", split="eval", documents=12)
    assert list(many) == alone.problems(step=0, count=99)
    with pytest.raises(DataError, match=r"documents=99"):
        read_problems(config, documents=(4, 99))


def test_questions_of_one_document_share_its_place(tmp_path: Path) -> None:
    asked = [{"question": f"Who is {number}?", "answers": ["Ann"]} for number in range(5)]
    (tmp_path / "f.jsonl").write_text(json.dumps({"questions": asked, "context": "Ann. " * LONG}))
    source = FileSource.open(tmp_path / "f.jsonl", split="eval", reading=replace(ReadOptions(), split_questions=True))
    assert len({record.stored for record in source.records}) == 1
    assert {problem.context for problem in source} == {"Ann. " * LONG}

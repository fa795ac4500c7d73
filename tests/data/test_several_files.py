"""Several files as one source."""

from pathlib import Path

import pytest

from palimpsest.config.data import DataConfig
from palimpsest.data.formats.problem_files import write_problems
from palimpsest.data.sources.file_source import FileSource, build_source
from palimpsest.types import Problem


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    """Seven problems and five, all of them called by the same names."""
    for name, size in (("a", 7), ("b", 5)):
        problems = [Problem(f"p{i}", f"{name}{i}?", ("A",), f"{name} {i}") for i in range(size)]
        write_problems(tmp_path / f"{name}.jsonl", problems)
    return str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")


def asked(source: FileSource, step: int, count: int) -> list[str]:
    return [problem.question for problem in source.problems(step=step, count=count)]


def test_the_files_are_one(paths: tuple[str, str]) -> None:
    source = build_source(DataConfig(train_files=paths), split="train")
    assert isinstance(source, FileSource)
    epoch = [question for step in range(4) for question in asked(source, step, 3)]
    assert sorted(epoch) == sorted([f"a{i}?" for i in range(7)] + [f"b{i}?" for i in range(5)])
    ids = [problem.id for problem in source]
    assert len(set(ids)) == 12
    assert ids[6:9] == ["p6", "p0#2", "p1#2"]


def test_evaluation_reads_one_file_after_the_other(paths: tuple[str, str]) -> None:
    config = DataConfig(train_files=paths, limit=2)
    problems = build_source(config, split="eval").problems(step=0, count=99)
    assert [problem.question for problem in problems] == ["a0?", "a1?", "b0?", "b1?"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"train_files": ("a", "synthetic")}, "a list may contain only files"),
        ({"train_files": ("a", "a")}, "name a file, or a list of different files"),
        ({"train_files": ()}, "name a file, or a list of different files"),
    ],
)
def test_lists_that_have_no_meaning_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataConfig.model_validate(given)


def test_a_list_of_one_is_that_one() -> None:
    assert DataConfig.model_validate({"train_files": ["synthetic"]}) == DataConfig()

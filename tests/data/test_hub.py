"""The door to the hub: a fake package of ten lines, and the real one where it is installed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import DataError
from palimpsest.types import Problem

ROWS = [{"question": f"Q{i}?", "answers": ["A"], "context": f"C{i}"} for i in range(3)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the package was asked for; it has the splits train and test, and reads one row at a time."""
    seen: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str | None, streaming: bool) -> Any:
        seen.append((name, config, split, streaming))
        if name == "owner/absent":
            raise ConnectionError("no such\ndata set")
        return {"train": iter(ROWS), "test": iter(ROWS)} if split is None else iter(ROWS)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return seen


def test_a_split_is_streamed_and_read_by_its_columns(calls: list[tuple[Any, ...]]) -> None:
    problems = list(read_problems("hub:owner/name:small@test", limit=2))
    assert problems == [Problem(f"name:small@test-{i}", f"Q{i}?", ("A",), f"C{i}") for i in range(2)]
    assert set(calls) == {("owner/name", "small", "test", True)}


def test_without_a_split_the_splits_are_named(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(DataError, match=r"choose a split: hub:owner/name@train, hub:owner/name@test"):
        list(read_problems("hub:owner/name"))


def test_what_the_package_raises_is_one_line(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(DataError, match=r"hub:owner/absent@test: .* \(ConnectionError: no such data set\)"):
        list(read_problems("hub:owner/absent@test"))


def test_without_the_package_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"isn't installed: pip install .*\[datasets\]"):
        list(read_problems("hub:owner/name@test"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("datasets", reason="the package datasets isn't installed")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path / "set"


def test_the_real_package_reads_a_folder_as_it_reads_the_hub(folder: Path) -> None:
    expected = [problem.question for problem in read_problems(folder / "test.jsonl")]
    assert [problem.question for problem in read_problems(f"hub:{folder}@test")] == expected
    assert [problem.question for problem in read_problems(f"hub:{folder}")] == expected

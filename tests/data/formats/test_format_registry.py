"""The format of a row is found by its columns and their values."""

import contextlib
from typing import Any

import pytest

from palimpsest.data.files.rows import Row
from palimpsest.data.formats.format_registry import FORMATS, recognise
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import DataError
from support.records import save


@pytest.mark.parametrize(
    ("row", "format"),
    [
        ({"question": "Who?", "answer": "Ann", "context": [["A", ["Ann ran."]]]}, "hotpotqa"),
        ({"question": "Who?", "answer": "Ann", "context": "Ann ran."}, "qa"),
        ({"question": "Who?", "answers": ["Ann"], "context": "Ann ran."}, "palimpsest"),
    ],
)
def test_rows_of_the_same_columns_are_distinguished_by_their_values(row: dict[str, Any], format: str) -> None:
    assert recognise(Row(row, "f")).name == format


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_any_values_in_the_columns_of_a_format_raise_only_data_errors(format: str, tmp_path: Any) -> None:
    more: tuple[Any, ...] = ([], [3], ["text"], [[]], {}, {"text": 3}, {"title": [], "sentences": []})
    for value in (None, 3, "text", "", True, *more):
        path = save(tmp_path / "f.jsonl", dict.fromkeys(FORMATS[format].needs, value))
        with contextlib.suppress(DataError):
            assert all(problem.question for problem in read_problems(path, format=format))


def test_an_unknown_or_unsuitable_format_is_rejected_with_the_nearest(tmp_path: Any) -> None:
    path = save(tmp_path / "a.jsonl", {"question": "q", "answers": ["a"]})
    with pytest.raises(DataError, match=r"'hotpot_qa'; did you mean hotpotqa\?"):
        list(read_problems(path, format="hotpot_qa"))
    with pytest.raises(DataError, match=r"format 'ruler', which needs column 'input', 'context', 'outputs'"):
        list(read_problems(path, format="ruler"))

"""A rejected resume names the keys that differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.keys import difference
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import SampleLog, set_aside_other

LONG = {"source": "synthetic", "format": None, "files": ["a" * 40] * 9, "seed": 0}


def test_a_log_of_another_configuration_names_the_key_deep_in_it(tmp_path: Path) -> None:
    SampleLog(tmp_path, {"data": LONG}).close()
    with pytest.raises(RunError, match=r"another evaluation \(data\.seed was 0, is 2\): use another --out"):
        SampleLog(tmp_path, {"data": {**LONG, "seed": 2}})


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"data": {"seed": 0, "split_questions": False}}, None),
        ({"data": {"seed": 0, "split_questions": True}}, "data.split_questions was not there, is True"),
        ({"data": {"seed": 0}, "sampling": {"top_p": 1.0}}, None),
        ({"data": {"seed": 0}, "unknown": {"top_p": 1.0}}, "unknown.top_p was not there, is 1.0"),
    ],
)
def test_a_log_continues_when_new_settings_have_their_defaults(
    now: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    before = {"data": {"seed": 0}}
    SampleLog(tmp_path / "log", before).close()
    if message is None:
        SampleLog(tmp_path / "log", now).close()
        assert set_aside_other(tmp_path / "log", now) is None
    else:
        with pytest.raises(RunError, match=re.escape(message)):
            SampleLog(tmp_path / "log", now)
        assert set_aside_other(tmp_path / "log", now) == tmp_path / "log.old-1"


def test_long_values_are_shown_where_they_first_differ() -> None:
    text = difference({"prompt": "a" * 500 + "b" * 500}, {"prompt": "a" * 500 + "c" * 500})
    assert text is not None
    was, now = text.removeprefix("prompt was ").split(", is ")
    assert was != now
    assert len(text) < 200


def test_at_most_a_few_keys_are_named() -> None:
    assert difference({}, {str(n): n for n in range(5)}) == (
        "0 was not there, is 0; 1 was not there, is 1; 2 was not there, is 2; 2 more keys differ"
    )
    assert difference({"a": {}}, {"a": {}}) is None

"""Files of questions, read or rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.data.formats.problem_files import ReadOptions, read_problems
from palimpsest.errors import DataError
from palimpsest.types import Problem
from support.records import one_line_error, save


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Problem]]:
    """Problems of a file with these rows."""

    def read(*rows: Any, name: str = "f.jsonl", **options: Any) -> list[Problem]:
        return list(read_problems(save(tmp_path / name, *rows), reading=ReadOptions(**options)))

    return read


@pytest.fixture
def rejection(read: Callable[..., list[Problem]]) -> Callable[..., str]:
    """The one line that rejects a file with these rows."""

    def rejection(*rows: Any, **options: Any) -> str:
        return one_line_error(DataError, read, *rows, **options)

    return rejection

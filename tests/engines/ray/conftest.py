"""Runs on Ray, whose processes end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import ClusterRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ClusterRun]:
    made = ClusterRun(tmp_path / "run")
    yield made
    for process in made.processes():
        process.kill()

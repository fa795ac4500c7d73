"""The viewer as a service, in this process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from palimpsest.jobs.viewing import View, view
from support.view_folders import run_folder


def test_garbage_is_collected_rarely_while_it_serves_and_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, while_serving = gc.get_threshold(), list[int]()

    def served(server: Any) -> None:
        while_serving.append(gc.get_threshold()[0])

    monkeypatch.setattr("palimpsest.jobs.viewing.Server.run_here", served)
    view(View((run_folder(tmp_path / "run"),), port=0), on_ready=lambda url: None)
    assert while_serving[0] > 50 * before[0]
    assert gc.get_threshold() == before

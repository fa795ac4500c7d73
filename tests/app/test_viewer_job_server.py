"""The viewer as a service, in this process."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app.viewer_job import View, view
from palimpsest.errors import ConfigError
from palimpsest.servers.http_service import bound
from support.view_folders import run_folder


def test_garbage_is_collected_rarely_while_it_serves_and_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, while_serving = gc.get_threshold(), list[int]()

    def served(server: Any) -> None:
        while_serving.append(gc.get_threshold()[0])

    monkeypatch.setattr("palimpsest.app.viewer_job.Server.run", served)
    view(View((run_folder(tmp_path / "run"),), port=0), on_ready=lambda url: None)
    assert while_serving[0] > 50 * before[0]
    assert gc.get_threshold() == before


def test_a_viewer_whose_port_is_taken_leaves_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="can't listen there"):
            view(View((run_folder(tmp_path / "run"),), port=taken.getsockname()[1]), on_ready=lambda url: None)
    assert set(threading.enumerate()) <= before

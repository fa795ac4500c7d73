"""`palimpsest view`: its address, its end, what it refuses."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from support.command import Run
from support.serving_process import serving_process
from support.view_folders import run_folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_answers_and_ends_tidily(number: signal.Signals, tmp_path: Path) -> None:
    run_folder(tmp_path / "first", [{"step": 1, "reward/mean": 0.5}])
    with serving_process(["view", str(tmp_path), "--port", "0"], "/") as (url, process):
        assert httpx.get(f"{url}/").status_code == 200
        assert httpx.get(f"{url}/api/runs").json()["runs"][0]["name"] == "first"
        process.send_signal(number)
        assert process.wait(timeout=30) == 0


def test_help_has_examples(palimpsest: Run) -> None:
    told = palimpsest("view", "--help")
    assert told.returncode == 0
    assert "palimpsest view runs/quickstart" in told.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no such file or folder; give"),
        (["."], "holds no run"),
        (["first", "first"], "is given twice"),
        (["first", "--host", "0.0.0.0"], "--key-env"),
        (["first", "--key-env", "NO_SUCH_KEY"], "put the key there"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "first" in words:
        run_folder(tmp_path / "first")
    assert said in refused("view", *words)

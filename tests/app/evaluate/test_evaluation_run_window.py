"""A window that is less than the model's own is told of when work begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import palimpsest
from palimpsest.progress.reporter import Silent
from palimpsest.runs.signals import GracefulStop
from support.small_run import small_run

NOTE = "the window is 480 tokens of 512, because longrope rotates all positions differently once one is beyond 480"


class Shown(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def stretched(tiny_model_folder: Path, tmp_path: Path) -> Path:
    """The tiny model with longrope."""
    folder = tmp_path / "stretched"
    folder.mkdir()
    for file in tiny_model_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = rope | {"original_max_position_embeddings": 480}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_evaluation_tells_of_a_window_less_than_the_models(stretched: Path, tiny_model_folder: Path) -> None:
    problem = palimpsest.Problem("a", "Where?", ("Rome",), "Ann lives in Rome.")
    for folder, told in ((stretched, True), (tiny_model_folder, False)):
        shown = Shown()
        palimpsest.evaluate(str(folder), [problem], policy="full_context", progress=shown)
        assert (NOTE in shown.messages) == told


def test_a_training_tells_of_a_window_less_than_the_models(stretched: Path, tmp_path: Path) -> None:
    shown, stop = Shown(), GracefulStop()
    stop.request("test")
    settings = small_run(stretched)
    palimpsest.train("memagent-quickstart", settings, out=tmp_path / "run", progress=shown, stop=stop)
    assert NOTE in shown.messages
    with pytest.raises(palimpsest.PalimpsestError, match=rf"the model's context is 480 \({NOTE}\)"):
        palimpsest.train("memagent-quickstart", {**settings, "policy.options.chunk_size": 128}, out=tmp_path / "other")

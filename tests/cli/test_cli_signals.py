"""Signals outside a training loop: exit status, message and files."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.cli.options import NOT_STARTED, RERUN, START
from support.interrupting import interrupted, quickstart, small
from support.records import HOTPOT_ROW
from support.small_run import small_evaluation

PASSAGES = [{"id": str(n), "title": f"t{n}", "text": f"the colour of house {n} is red"} for n in range(9)]


def training(model: Path, out: Path) -> list[str]:
    return ["train", "memagent-quickstart", *small(model), "--out", str(out)]


def inspecting(model: Path, out: Path) -> list[str]:
    return ["data", "inspect", str(out.with_name("dev.json"))]


def building(model: Path, out: Path) -> list[str]:
    return ["data", "build", str(out.with_name("dev.json")), "--documents", "2", "--out", str(out)]


def serving(model: Path, out: Path) -> list[str]:
    return ["retrieval", "serve", "--port", "0", "--index", str(out), str(out.with_name("passages.json"))]


RESUME = "palimpsest quickstart --resume {out} resumes from the newest checkpoint"
MOMENTS: dict[str, tuple[Callable[[Path, Path], list[str]], str, str]] = {
    "eval loads": (small_evaluation, "palimpsest.app.evaluate.evaluation_run:open_engine", RERUN),
    "eval plays": (small_evaluation, "palimpsest.evaluation.sample_log:SampleLog.append", RERUN),
    "train loads": (training, "palimpsest.app.train.run_setup:open_engine", NOT_STARTED),
    "quickstart evaluates": (quickstart, "palimpsest.app.quickstart.quickstart_run:_evaluated", RESUME),
    "data is read": (inspecting, "palimpsest.data.files.rows:sniff", START),
    "data is written": (building, "palimpsest.data.formats.problem_files:problem_row", START),
    "an index is built": (serving, "palimpsest.retrieval.search:Bm25Index.of_corpus", START),
}
FAST = [("SIGINT", "eval plays"), ("SIGINT", "train loads"), ("SIGTERM", "data is read"), ("SIGHUP", "data is read")]
SLOW = [
    pytest.param(name, moment, marks=pytest.mark.slow)
    for moment in MOMENTS
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if (name, moment) not in FAST
]


@pytest.mark.parametrize(("name", "moment"), [*FAST, *SLOW])
def test_a_signal_ends_a_command_cleanly_and_names_how_to_continue(
    name: str, moment: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([HOTPOT_ROW, {**HOTPOT_ROW, "_id": "q1"}]))
    (tmp_path / "passages.json").write_text(json.dumps(PASSAGES))
    command, function, advice = MOMENTS[moment]
    ended = interrupted(name, function, command(tiny_model_folder, tmp_path / "out"))
    assert ended.status == 128 + signal.Signals[name], ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"{name}: ending; a second signal ends immediately" in ended.stderr
    assert ended.stderr.splitlines()[-1] == f"interrupted by {name}; {advice.format(out=tmp_path / 'out')}"
    assert ended.survivors == []
    assert {path.name for path in tmp_path.rglob(".*")} <= {".lock", ".out.lock"}
    assert advice != NOT_STARTED or ended.stderr.startswith("loading ")
    if advice in (START, NOT_STARTED):
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "moment"),
    [("SIGINT", "eval loads"), pytest.param("SIGTERM", "quickstart evaluates", marks=pytest.mark.slow)],
)
def test_a_second_signal_ends_a_command_immediately(
    name: str, moment: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    command, function, _ = MOMENTS[moment]
    ended = interrupted(name, function, command(tiny_model_folder, tmp_path / "out"), times=2)
    assert ended.status == -signal.Signals[name]
    assert "Traceback" not in ended.stderr

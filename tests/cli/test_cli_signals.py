"""Signals outside of a training loop: how a command ends, what it says, what it leaves."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.cli.options import NOT_STARTED, RERUN, START
from support.interrupting import interrupted, quickstart, small
from support.small_run import small_evaluation

PASSAGES = [{"id": str(n), "title": f"t{n}", "text": f"the colour of house {n} is red"} for n in range(9)]
HOTPOT = {
    "_id": "q0",
    "question": "What colour is the house?",
    "answer": "red",
    "supporting_facts": [["House", 0]],
    "context": [["House", ["The house is red. "]], ["Tree", ["The tree is tall."]]],
}


def training(model: Path, out: Path) -> list[str]:
    return ["train", "memagent-quickstart", *small(model), "--out", str(out)]


def inspecting(model: Path, out: Path) -> list[str]:
    return ["data", "inspect", str(out.with_name("dev.json"))]


def building(model: Path, out: Path) -> list[str]:
    return [
        "data",
        "build",
        str(out.with_name("dev.json")),
        "--documents",
        "2",
        "--out",
        str(out),
    ]


def serving(model: Path, out: Path) -> list[str]:
    return [
        "retrieval",
        "serve",
        "--port",
        "0",
        "--index",
        str(out),
        str(out.with_name("passages.json")),
    ]


RESUME, AGAIN, NOT_BEGUN = (
    "palimpsest quickstart --resume {out} resumes from the newest checkpoint",
    START,
    NOT_STARTED,
)
MOMENTS: dict[str, tuple[Callable[[Path, Path], list[str]], str, str]] = {
    "eval loads": (
        small_evaluation,
        "palimpsest.app.evaluate.evaluation_run:open_engine",
        RERUN,
    ),
    "eval plays": (
        small_evaluation,
        "palimpsest.evaluation.sample_log:SampleLog.append",
        RERUN,
    ),
    "train loads": (training, "palimpsest.app.train.run_setup:open_engine", NOT_BEGUN),
    "quickstart evaluates": (
        quickstart,
        "palimpsest.app.quickstart.quickstart_run:_evaluated",
        RESUME,
    ),
    "data is read": (inspecting, "palimpsest.data.files.rows:sniff", AGAIN),
    "data is written": (building, "palimpsest.data.formats.problem_files:problem_row", AGAIN),
    "an index is built": (
        serving,
        "palimpsest.retrieval.search:Bm25Index.of_corpus",
        AGAIN,
    ),
}
ONE_EACH = [
    ("SIGINT", "eval plays"),
    ("SIGINT", "train loads"),
    ("SIGTERM", "data is read"),
    ("SIGHUP", "data is read"),
]
EVERY = [(name, moment) for moment in MOMENTS for name in ("SIGINT", "SIGTERM", "SIGHUP")]


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        *ONE_EACH,
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in EVERY if pair not in ONE_EACH),
    ],
)
def test_a_signal_ends_a_command_tidily_and_says_how_to_go_on(
    name: str, moment: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([HOTPOT, {**HOTPOT, "_id": "q1"}]))
    (tmp_path / "passages.json").write_text(json.dumps(PASSAGES))
    command, place, again = MOMENTS[moment]
    ended = interrupted(name, place, command(tiny_model_folder, tmp_path / "out"))
    assert ended.status == 128 + signal.Signals[name], ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"{name}: ending; a second signal ends immediately" in ended.stderr
    assert ended.stderr.splitlines()[-1] == f"interrupted by {name}; {again.format(out=tmp_path / 'out')}"
    assert ended.survivors == []
    left = [path.name for path in tmp_path.rglob(".*") if path.name not in (".lock", ".out.lock")]
    assert left == []
    assert again != NOT_BEGUN or ended.stderr.startswith("loading ")
    if again in (AGAIN, NOT_BEGUN):
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("SIGINT", "eval loads"),
        pytest.param("SIGTERM", "quickstart evaluates", marks=pytest.mark.slow),
    ],
)
def test_a_second_signal_ends_at_once_what_the_first_could_not(
    name: str, moment: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    command, place, _ = MOMENTS[moment]
    ended = interrupted(name, place, command(tiny_model_folder, tmp_path / "out"), times=2)
    assert ended.status == -signal.Signals[name]
    assert "Traceback" not in ended.stderr

"""Errors of the system and extreme input: one line with the cause and the file, exit status 2."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.records import HOTPOT_ROW
from support.small_run import small_run

Refused = Callable[..., str]
LONG = "a" * 300


@pytest.fixture
def build(tmp_path: Path) -> list[str]:
    (tmp_path / "dev.json").write_text(json.dumps([HOTPOT_ROW]))
    return ["data", "build", str(tmp_path / "dev.json"), "--documents", "2", "--out", str(tmp_path / "sets" / "out")]


def failing(number: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free some room"),
        (errno.EIO, "the disk failed"),
        (errno.EROFS, "choose a writable folder"),
        (errno.EFBIG, "raise `ulimit -f`"),
        (errno.EMFILE, "raise `ulimit -n`"),
        (errno.ESTALE, "try again"),
    ],
)
def test_a_system_error_names_the_file_and_the_fix(
    number: int, fix: str, build: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.fsync", failing(number))
    message = refused(*build)
    assert "eval_2.jsonl" in message
    assert os.strerror(number) in message
    assert fix in message
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["dev.json"]


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_limits_of_file_size_and_descriptors_are_reported(build: list[str], refused: Refused, tmp_path: Path) -> None:
    with limited(resource.RLIMIT_FSIZE, 40):
        assert ": File too large" in refused(*build)
    refused(*build[:-1], str(tmp_path))  # everything is imported
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    with limited(resource.RLIMIT_NOFILE, free):
        assert "Too many open files" in refused(*build)


@pytest.mark.parametrize("sign", ["\n", "\x85", "\u2028", "\x1b[31m", "\u202e"])
@pytest.mark.parametrize("words", [["data", "inspect"], ["ask", "a.txt"], ["export", "--out", "x"], ["view"]])
def test_a_control_character_in_a_name_is_escaped_in_the_one_line(
    words: list[str], sign: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("Anna sells tea.")
    message = refused(*words, f"no{sign}error: all is lost.jsonl")
    assert message.isprintable()
    assert sign.encode("unicode_escape").decode() in message


TRAIN = ["train", "memagent-quickstart", "--out"]
EXTREME: list[tuple[list[str], str]] = [
    (["data", "inspect", LONG], LONG),
    (["train", LONG], "File name too long"),
    ([*TRAIN, LONG], "File name too long"),
    (["eval", "--out", LONG, "--limit", "1"], "File name too long"),
    ([*TRAIN, "link"], "link is a link to nothing"),
    (["eval", "--out", "link", "--limit", "1"], "link is a link to nothing"),
    (["train", "brackets.yaml"], "recipe brackets.yaml: not valid YAML (nested too deep)"),
    ([*TRAIN, "x", "train.max_steps=" + "[" * 3000], "override train.max_steps=["),
    (["data", "inspect", "deep.json"], "deep.json row 1: JSON that can't be read"),
    (["data", "inspect", "deep.jsonl"], "deep.jsonl row 1: JSON that can't be read"),
    (["retrieval", "serve", "deep.json", "--port", "0"], "deep.json row 1: JSON that can't be read"),
    (["eval", "--policy", ":"], "--policy :: not of the form my_module:MyPolicy"),
    (["check", ":"], "check=':': not of the form my_module:MyPolicy"),
]


@pytest.mark.parametrize(("command", "reason"), EXTREME, ids=map(str, itertools.count()))
def test_extreme_input_is_one_line(
    command: list[str], reason: str, refused: Refused, tmp_path: Path, tiny_model_folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("nowhere")
    Path("brackets.yaml").write_text("a: " + "[" * 3000 + "]" * 3000)
    Path("deep.json").write_text("[" * 50_000 + "]" * 50_000)
    Path("deep.jsonl").write_text('{"a":' * 50_000 + "1" + "}" * 50_000 + "\n")
    if command[:3] == TRAIN:
        command = [*command, *(f"{key}={json.dumps(value)}" for key, value in small_run(tiny_model_folder).items())]
    if command[0] == "eval" and "--policy" not in command:
        command = [*command, str(tiny_model_folder), "chunk_size=64", "--chunks", "1"]
    assert reason in refused(*command)


SINK = """import shutil

def delete_the_run(step, metrics, timings, folder=None):
    shutil.rmtree(folder)
"""


def test_a_run_whose_folder_is_deleted_ends_with_an_error_and_creates_no_new_one(
    refused: Refused, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deleting_sinks.py").write_text(SINK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = small_run(tiny_model_folder, max_steps=4, save_steps=2) | {
        "logging.report_to": ["deleting_sinks:delete_the_run", "jsonl"]
    }
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    message = refused(*TRAIN, "run", *words)
    assert "run/" in message
    assert "was deleted or moved" in message
    assert not Path("run").exists()

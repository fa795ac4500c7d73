"""Errors of the system and input that is out of all proportion: one line with what and where, exit status 2."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palimpsest.runs.jsonl_rows import append_row
from support.small_run import small_run

Refused = Callable[..., str]
ROW = {
    "_id": "q0",
    "question": "What colour is the house?",
    "answer": "red",
    "supporting_facts": [["House", 0]],
    "context": [["House", ["The house is red. "]], ["Tree", ["The tree is tall."]]],
}
LONG = "a" * 300


@pytest.fixture
def build(tmp_path: Path) -> list[str]:
    (tmp_path / "dev.json").write_text(json.dumps([ROW]))
    source = (str(tmp_path / "dev.json"),)
    return ["data", "build", *source, "--documents", "2", "--out", str(tmp_path / "sets" / "out")]


def failing(number: int) -> Callable[[int], None]:
    def call(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free some room"),
        (errno.EDQUOT, "free some room"),
        (errno.EIO, "the disk failed"),
        (errno.EROFS, "choose a writable folder"),
        (errno.EFBIG, "raise `ulimit -f`"),
        (errno.EMFILE, "raise `ulimit -n`"),
        (errno.ENFILE, "too many files open"),
        (errno.ESTALE, "try again"),
    ],
)
def test_an_error_of_the_system_is_a_line_with_file_and_fix(
    number: int, fix: str, build: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.fsync", failing(number))
    message = refused(*build)
    assert "eval_2.jsonl" in message
    assert os.strerror(number) in message
    assert fix in message
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["dev.json"]


def test_a_row_that_can_not_be_written_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.write", lambda *_: failing(errno.ENOSPC)(0))
    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
        append_row(tmp_path / "metrics.jsonl", {"step": 1})


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_a_file_that_may_not_grow_any_further_is_named(build: list[str], refused: Refused) -> None:
    with limited(resource.RLIMIT_FSIZE, 40):
        message = refused(*build)
    assert ": File too large" in message


def test_a_process_without_descriptors_says_so(build: list[str], refused: Refused, tmp_path: Path) -> None:
    refused(*build[:-1], str(tmp_path))  # everything is imported
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    with limited(resource.RLIMIT_NOFILE, free):
        message = refused(*build)
    assert "Too many open files" in message


@pytest.mark.parametrize("sign", ["\n", "\r", "\x85", "\u2028", "\x1b[31m", "\u202e"])
@pytest.mark.parametrize(
    "words", [["data", "inspect"], ["ask", "a.txt"], ["export", "--out", "x"], ["train"], ["view"]]
)
def test_a_control_character_in_a_name_is_escaped_in_the_one_line(
    words: list[str], sign: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("Anna sells tea.")
    message = refused(*words, f"no{sign}error: all is lost.jsonl")
    assert message.isprintable()
    assert sign.encode("unicode_escape").decode() in message


TRAIN = ["train", "memagent-quickstart", "--out"]
HUGE: list[tuple[list[str], str]] = [
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


@pytest.mark.parametrize(
    ("command", "what"), HUGE, ids=[f"{words[0]}-{number}" for number, (words, _) in enumerate(HUGE)]
)
def test_input_out_of_proportion_is_a_line(
    command: list[str],
    what: str,
    refused: Refused,
    tmp_path: Path,
    tiny_model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
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
    assert what in refused(*command)


SINK = """import shutil

def delete_the_run(step, metrics, timings, folder=None):
    shutil.rmtree(folder)
"""


def test_a_run_whose_folder_is_deleted_ends_with_a_line_and_makes_no_new_one(
    refused: Refused, tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sinks_of_mine.py").write_text(SINK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = small_run(tiny_model_folder, max_steps=4, save_steps=2) | {
        "logging.report_to": ["sinks_of_mine:delete_the_run", "jsonl"]
    }
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    message = refused(*TRAIN, "run", *words)
    assert "run/" in message
    assert "was deleted or moved" in message
    assert not Path("run").exists()

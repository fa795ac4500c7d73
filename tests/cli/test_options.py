"""Unknown options, and options of several values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.cli.options import numbers, stdout, table
from palimpsest.data.formats.problem_files import read_problems
from support.command import Run


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("train", "memagent-quickstart", "--learning-rate", "1"), "optim.learning_rate"),
        (("train", "memagent-quickstart", "--lr=1"), "optim.learning_rate"),
        (("plan", "memagent-quickstart", "--device", "cuda"), "model.device"),
        (("eval", "m", "--group-size", "4"), "train.group_size"),
        (("train", "memagent-quickstart", "--model", "smol"), "model.path"),
        (("train", "memagent-quickstart", "--data", "own.jsonl"), "data.train_files"),
        (("eval", "m", "--dataset", "own.jsonl"), "--data"),
        (("eval", "m", "--api-key=X"), "--api-key-env"),
        (("data", "build", "f.json", "--document", "4", "--out", "set"), "--documents"),
        (("eval", "m", "--nonsense"), None),
        (("recipes", "list", "--learning-rate", "1"), None),
    ],
)
def test_an_unknown_option_names_the_key_or_the_option_that_it_resembles(
    words: tuple[str, ...], key: str | None, palimpsest: Run
) -> None:
    done = palimpsest(*words)
    assert done.returncode == 2
    assert (words[2] if key is None else f"did you mean {key}") in done.stderr


def test_a_role_mapped_twice_is_rejected(refused: Callable[..., str]) -> None:
    assert "question can't be both a and b" in refused(
        "data", "inspect", "f.csv", "--map", "question=a", "--map", "question=b"
    )


def test_repeated_options_of_several_values_are_joined(palimpsest: Run, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("frage;antwort;text\nWho?;Ann;Ann ran.\n")
    command = ("data", "build", str(tmp_path / "f.csv"), "--map", "question=frage", "--map", "answers=antwort")
    assert palimpsest(*command, "--out", str(tmp_path / "set")).returncode == 0
    (problem,) = read_problems(tmp_path / "set" / "eval.jsonl")
    assert (problem.question, problem.answers, problem.context) == ("Who?", ("Ann",), "Ann ran.")
    assert numbers("--chunks", "lengths", ["4", "16,64"]) == (4, 16, 64)


@pytest.mark.parametrize(
    ("command", "map"),
    [
        (("data", "inspect"), "--map question=COLUMN,answers=COLUMN"),
        (("data", "build", "--out", "set"), "--map question=COLUMN,answers=COLUMN"),
        (("data", "combine", "--out", "set"), "data build FILE --out DIR --map question=COLUMN,answers=COLUMN"),
        (("data", "wiki", "--out", "set"), "rename the column"),
        (("retrieval", "index", "--out", "set"), "rename the column"),
    ],
)  # fmt: skip
def test_a_hint_about_columns_fits_the_command(
    command: tuple[str, ...], map: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "f.csv").write_text("frage;antwort\nWho?;Ann\n")
    assert map in refused(*command, str(tmp_path / "f.csv"))


def test_long_names_in_a_table_stay_distinct(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [f"run.evaluation.baselines.of_one_kind.{name}" for name in ("tokens", "prompts")]
    stdout(width=40).print(table("", ["", "side"], [[key, "0" * 20] for key in keys]))
    shown = capsys.readouterr().out
    assert all(key in "".join(line[:20].strip() for line in shown.splitlines()) for key in keys), shown

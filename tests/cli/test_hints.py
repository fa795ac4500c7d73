"""Options that do not exist: the fix names parts that the command has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

from palimpsest.cli.main import app
from palimpsest.cli.options import _HINTS, _hint, numbers
from palimpsest.config.keys import field_at
from palimpsest.data.formats.problem_files import read_problems
from palimpsest.errors import ConfigError
from support.command import Run

GUESSES = sorted({option for options in _HINTS.values() for option in options.split()})


def commands(group: Any) -> Iterator[Any]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield from commands(command) if hasattr(command, "list_commands") else [command]


COMMANDS = list(commands(typer.main.get_command(app)))


def fixes(command: Any) -> Iterator[str]:
    for guess in GUESSES:
        with suppress(ConfigError):
            _hint(command, [f"--{guess}"])
            continue
        with pytest.raises(ConfigError) as caught:
            _hint(command, [f"--{guess}"])
        yield str(caught.value).partition("; ")[2]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_a_hint_names_only_what_the_command_has(command: Any) -> None:
    """Options, keys of the configuration, and words."""
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    usage = " ".join(p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument")
    for fix in fixes(command):
        assert set(re.findall(r"--[a-z-]+", fix)) <= options, fix
        keys = re.findall(r"[a-z_]+\.[a-z_]+(?==)", fix)
        assert all(field_at(key) is not None for key in keys), fix
        assert not keys or "KEY=VALUE" in usage, fix
        words = re.findall(r"is the first word: palimpsest COMMAND (\w+)", fix)
        assert all(word in usage for word in words), fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("ask", "m", "f.txt", "Who?", "--api-key", "X"), "give --api-key-env NAME"),
        (("eval", "m", "--api-key=X"), "give --api-key-env NAME"),
        (("serve", "m", "--api-key", "X"), "give --server-key-env NAME"),
        (("train", "memagent-quickstart", "--model", "smol"), "write model.path=MODEL"),
        (("eval", "--model", "smol"), "the model is the first word"),
        (("plan", "memagent-quickstart", "--device", "a100"), "give --gpu NAME"),
        (("train", "memagent-quickstart", "--device", "cuda"), "write model.device=NAME"),
        (("train", "memagent-quickstart", "--dataset", "f.jsonl"), "write data.train_files=FILE"),
        (("eval", "m", "--config", "x"), "give --recipe eval/NAME"),
    ],
)
def test_a_guessed_option_has_the_fix_of_its_command(
    words: tuple[str, ...], fix: str, refused: Callable[..., str]
) -> None:
    assert fix in refused(*words)


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
def test_a_hint_about_columns_is_one_that_the_command_can_follow(
    command: tuple[str, ...], map: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "f.csv").write_text("frage;antwort\nWho?;Ann\n")
    assert map in refused(*command, str(tmp_path / "f.csv"))

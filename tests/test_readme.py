"""The README's commands, as they stand, to the end: three quickstarts among them, 8 to 17 minutes each on two cores."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.command import Run

ROOT = Path(__file__).parent.parent
READERS_OWN = ("hotpot", "my_recipe", "my_policy.yaml", "Qwen/")


def all_commands() -> list[str]:
    """Every `palimpsest ...` line of a shell block."""
    text = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("palimpsest ") for block in blocks for line in block.splitlines()]
    return [re.split(r"  +#", rest)[0].strip() for _, called, rest in lines if called]


def commands() -> list[str]:
    """Those that need no file of the reader's."""
    return [command for command in all_commands() if not any(own in command + " " for own in READERS_OWN)]


def test_the_readme_has_commands_that_anyone_can_run() -> None:
    kinds = {command.split()[0] for command in commands()}
    assert {"quickstart", "check", "train", "recipes"} <= kinds


@pytest.mark.readme
@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_runs(
    command: str, palimpsest: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))  # examples/
    done = palimpsest(*shlex.split(command))
    assert done.returncode == 0, done.stderr


def test_the_readme_evaluates_real_questions(
    palimpsest: Run, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = (command for command in all_commands() if command.startswith("eval ") and "hotpot_dev.json" in command)
    (tmp_path / "hotpot_dev.json").symlink_to(real_data / "hotpotqa_dev_50.json")
    done = palimpsest(*shlex.split(command.replace("runs/seed-1", "embedded")), "--limit=2", "--no-baselines")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "evals/hotpot-20/summary.json").is_file()

"""The README's commands, as they stand, to the end: three quickstarts among them, 8 to 17 minutes each on two cores."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.command import Run

ROOT = Path(__file__).parent.parent
READERS_OWN = ("hotpot", "my_recipe", "my_policy.yaml", "Qwen/")


def commands() -> list[str]:
    """Every `palimpsest ...` line of a shell block that needs no file of the reader's."""
    text = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("palimpsest ") for block in blocks for line in block.splitlines()]
    told = [re.split(r"  +#", rest)[0].strip() for _, called, rest in lines if called]
    return [command for command in told if not any(own in command + " " for own in READERS_OWN)]


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

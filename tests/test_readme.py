"""The README's commands, to the end: the quickstart among them, 7 to 10 minutes on two cores."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.command import Run

ROOT = Path(__file__).parent.parent
PLACEHOLDERS = ("hotpot", "Qwen/", "memagent-4b-lora", "view ")
"""Files, models and GPUs of the reader's own; the viewer serves until it is interrupted (tests/cli/test_view.py)."""


SMALL = ("--limit=2", "--no-baselines", "question_tokens=256")


def all_blocks() -> list[list[str]]:
    """The `palimpsest ...` lines of each shell block; `make quickstart` as the Makefile runs it."""
    text = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
    quickstart = re.findall(
        r"^\t\$\(BIN\)/(palimpsest quickstart .*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    text = text.replace("make quickstart ", f"{quickstart[0]}  ")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [
        [line.partition("palimpsest ") for line in block.splitlines() if "git clone" not in line] for block in blocks
    ]
    return [[re.split(r"  +#", rest)[0].strip() for _, called, rest in block if called] for block in lines]


def blocks() -> list[list[str]]:
    """Blocks without a file of the user."""
    ours = [
        [line for line in block if not any(placeholder in line + " " for placeholder in PLACEHOLDERS)]
        for block in all_blocks()
    ]
    return [block for block in ours if block]


def test_the_readme_has_commands_that_anyone_can_run() -> None:
    kinds = {command.split()[0] for block in blocks() for command in block}
    assert {"quickstart", "new", "check", "train", "recipes"} <= kinds


@pytest.mark.readme
@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block[0].split()[0])
def test_the_commands_of_a_block_of_the_readme_run_one_after_the_other(
    block: list[str], palimpsest: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in block:
        done = palimpsest(*shlex.split(command))
        assert done.returncode == 0, done.stderr


def test_the_readme_evaluates_real_questions(
    palimpsest: Run, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = (line for block in all_blocks() for line in block if line.startswith("eval "))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/hotpot_dev_distractor_v1.json").symlink_to(real_data / "hotpotqa_dev_50.json")
    done = palimpsest(*shlex.split(command.replace("Qwen/Qwen3-4B", "embedded")), *SMALL)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "evals/hotpot/summary.json").is_file()

"""The tutorials, run block by block: the quoted output is the printed output.

A ```console block has commands (`$ `) and their output, where a line `...` replaces any lines and every figure equals
any other. `<!-- not run -->` above one is for networks, GPUs and servers. ```python blocks below `<!-- run -->` are one
program; the ```text block after one quotes its output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
FENCE = re.compile(
    r"^(<!-- (?:not )?run -->\n)?```(console|python)\n(.*?)^```$(?:\s+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
NOT_RUN = "<!-- not run -->\n"
FIGURE = re.compile(r"\d(?:[\d.,:]*\d)?%?")


def calls(block: str) -> Iterator[tuple[str, list[str]]]:
    """(command, quoted lines) of a console block; a trailing backslash continues a command."""
    command, quoted = "", list[str]()
    for line in block.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            if command:
                yield command, quoted
            command, quoted = line[2:], []
        else:
            quoted.append(line)
    if command:
        yield command, quoted


def masked(line: str) -> str:
    return " ".join(FIGURE.sub("#", line).split())


def missing(quoted: Sequence[str], printed: str) -> str | None:
    """The first quoted line that isn't printed after the ones before it.

    >>> missing(["a 1", "...", "c"], "a 2\\nb\\nc\\n"), missing(["a", "c"], "a\\nb\\nc\\n")
    (None, 'c')
    """
    lines = [masked(line) for line in printed.replace("\r", "\n").splitlines() if line.strip()]
    at, anywhere = 0, True
    for wanted in (line for line in quoted if line.strip()):
        if wanted.strip() == "...":
            anywhere = True
            continue
        candidates = range(at, len(lines)) if anywhere else range(at, min(at + 1, len(lines)))
        at = next((line for line in candidates if lines[line] == masked(wanted)), -1) + 1
        if not at:
            return wanted
        anywhere = False
    return None


TERMINAL = {"COLUMNS": "120", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), **TERMINAL}


def run(command: Sequence[str], folder: Path) -> str:
    """Output of a command, in the order of a terminal."""
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.run(
        command, cwd=folder, env=environment(), stdout=pipe, stderr=both, text=True, timeout=1800, check=False
    ).stdout


def follow(name: str, folder: Path) -> None:
    """Run the blocks of a tutorial in `folder`."""
    program, output = "", list[str]()
    for mark, language, block, quoted_after in FENCE.findall((TUTORIALS / name).read_text("utf-8")):
        if language == "python" and mark:
            program += block + "\n"
            output += ["...", *quoted_after.splitlines()]
        if language == "python" or mark == NOT_RUN:
            continue
        for command, quoted in calls(block):
            printed = run(["bash", "-c", command], folder)
            assert (lost := missing(quoted, printed)) is None, f"{name}: {command}: not printed: {lost}\n{printed}"
    if program:
        printed = run([sys.executable, "-c", program], folder)
        assert (lost := missing(output, printed)) is None, f"{name}: not printed: {lost}\n{printed}"


@pytest.mark.readme
@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("first-agent.md", "your-questions.md", "why-it-failed.md"),  # the later ones use the first's run
        ("write-a-policy.md",),
        ("reward-in-python.md",),
        ("eight-gpus.md",),
    ],
    ids=lambda names: names[0],
)
def test_a_tutorial_prints_what_it_quotes(names: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in names:
        follow(name, tmp_path)


def test_every_tutorial_has_blocks_that_run() -> None:
    pages = list(TUTORIALS.glob("*.md"))
    assert len(pages) == 8
    for path in pages:
        assert FENCE.findall(path.read_text("utf-8")), path.name

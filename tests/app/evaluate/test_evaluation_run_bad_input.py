"""What would harm an evaluation is refused in a line, and foreign names reach no terminal and no figure as they are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import palimpsest
from palimpsest.app.evaluate.evaluation_run import evaluate
from palimpsest.cli.evaluate import show_evaluation
from palimpsest.cli.options import stdout, table
from palimpsest.errors import RunError
from palimpsest.evaluation.sample_log import IDENTITY
from palimpsest.progress.displays import Terminal
from support.command import Run
from support.evaluations import sample, write_evaluation

HOSTILE = "a\x1b[31m\x01[red]$x_$ $b"
BUDGETS = ["chunk_size=64", "memory_tokens=8", "question_tokens=64", "answer_tokens=8"]


def test_foreign_names_steer_no_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path, palimpsest: Run) -> None:
    stdout().print(table(HOSTILE, [HOSTILE, HOSTILE], [[HOSTILE, HOSTILE]]))
    Terminal(live=False).message(f"{HOSTILE}\nsecond line")
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert shown.out.count("\\x1b[31m\\x01[red]") == 5  # no markup either
    assert len(shown.err.splitlines()) == 2
    rows = [sample(name, value, set=HOSTILE, player=HOSTILE) for name, value in (("p0", 1.0), ("p1", 0.0))]
    sides = [write_evaluation(tmp_path / side, rows) for side in ("one", f"two{HOSTILE}")]
    done = palimpsest("compare", *map(str, sides), "--changed", "2", "--out", str(tmp_path / "figures"))
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\x01"} & set(done.stdout)
    for figure in ("accuracy.svg", "accuracy-cost.svg"):
        ElementTree.parse(tmp_path / "figures" / figure)
    show_evaluation(evaluate(regrade=sides[1], quiet=True))
    shown = capsys.readouterr()
    assert HOSTILE[-3:] in shown.out
    assert not {"\x1b", "\x01"} & set(shown.out + shown.err)


def test_an_identity_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    folders = [write_evaluation(tmp_path / side, [sample("p0", 1.0)]) for side in ("one", "two")]
    (folders[0] / IDENTITY).write_text("{torn")
    for call in (lambda: palimpsest.compare(*folders), lambda: evaluate(regrade=folders[0], quiet=True)):
        with pytest.raises(RunError, match=r"one/evaluation\.json is not valid JSON"):
            call()


def test_a_resume_counts_existing_episodes_and_only_documents_to_read(
    tiny_model_folder: Path, tmp_path: Path, palimpsest: Run
) -> None:
    command = ["eval", str(tiny_model_folder), "--chunks", "1", "--out", str(tmp_path / "e"), *BUDGETS, "--limit", "2"]
    first, again = palimpsest(*command).stderr, palimpsest(*command).stderr
    assert ("exist already" in first, "tokens of documents to read" in first) == (False, True)
    assert "8 of 8 episodes exist already" in again
    assert not [text for text in ("tokens of documents to read", "ETA ?") if text in again]
    other = palimpsest(*command, "--seed", "1")
    assert (other.returncode, "another evaluation" in other.stderr, "exist already" in other.stderr) == (2, True, False)

"""Agents of three methods on the same sets, in one report: what docs/evaluation.md says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import Run

READS = ("--set", "question_tokens=200", "--set", "chunk_size=128")
METHODS = {
    "memagent": READS,
    "rememr1": READS,
    "memact": ("--set", "policy.options.tools.search.source=document"),
}
SETS = ("niah_multikey_2_300", "vt_300", "now_1000", "then_1000", "count_1000")


@pytest.fixture
def sets(palimpsest: Run, tmp_path: Path) -> tuple[str, ...]:
    counted = ("--tokenizer", "embedded", "--n", "1")
    ruler = ("--tasks", "niah_multikey_2,vt", "--lengths", "300", "--out", str(tmp_path / "ruler"))
    updates = ("--lengths", "1000", "--changes", "2", "--out", str(tmp_path / "updates"))
    for words in (("ruler", *ruler), ("updates", *updates)):
        assert palimpsest("data", *words, *counted).returncode == 0
    return ("--data", str(tmp_path / "ruler"), "--data", str(tmp_path / "updates"))


@pytest.mark.slow
def test_agents_of_three_methods_stand_in_one_report(
    palimpsest: Run, tiny_model_folder: Path, tmp_path: Path, sets: tuple[str, ...]
) -> None:
    folders = []
    for method, settings in METHODS.items():
        folders.append(str(tmp_path / method))
        agent = ("--model", str(tiny_model_folder), "--recipe", f"{method}-quickstart", *settings)
        graded = ("--set", "reward.name=fraction", "--no-baselines", "--out", folders[-1])
        done = palimpsest("eval", *agent, *sets, *graded)
        assert done.returncode == 0, done.stderr
    done = palimpsest("compare", *folders, "--out", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "report" / "compare.json").read_text())
    assert {cell["set"]: list(cell["sides"]) for cell in told["cells"]} == {name: list(METHODS) for name in SETS}
    assert [(pair["second"], pair["problems"]) for pair in told["pairs"]] == [("rememr1", 5), ("memact", 5)]
    assert not [key for key in told["differs"] if key.startswith("reward.name")]
    page = (tmp_path / "report" / "compare.html").read_text()
    assert all(name in page for name in (*METHODS, *SETS))

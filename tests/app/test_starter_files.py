"""`palimpsest new`: its files pass their tests and train with the bundled model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

import palimpsest
from palimpsest.app.starter_files import SCAFFOLDS, write_scaffold
from palimpsest.config.load import load_recipe
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.run_folder import METRICS
from support.command import Run

SOURCE = Path(palimpsest.__file__).parents[1]
ROOT = SOURCE.parent


@pytest.mark.parametrize("kind", SCAFFOLDS)
def test_a_scaffold_is_a_file_a_recipe_and_a_test_under_the_users_name(kind: str, tmp_path: Path) -> None:
    module, recipe, test = write_scaffold(kind, "page_notes", tmp_path / "mine")
    assert [path.name for path in (module, recipe, test)] == ["page_notes.py", "page_notes.yaml", "test_page_notes.py"]
    text = "\n".join(path.read_text("utf-8") for path in (module, recipe, test))
    assert f"my_{kind}" not in text
    assert f"My{kind.capitalize()}" not in text
    assert load_recipe(recipe).recipe == "page_notes"
    assert "palimpsest train page_notes.yaml" in text


@pytest.mark.parametrize("kind", SCAFFOLDS)
def test_a_scaffold_is_written_as_the_library_is(kind: str, tmp_path: Path) -> None:
    module, _, test = write_scaffold(kind, f"my_{kind}", tmp_path)
    lint = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "I001", "-q"]
    done = subprocess.run([*lint, str(module), str(test)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("policies", "mine"), "no such kind; did you mean policy?"),
        (("policy", "My-Policy"), "use a name of small letters, digits and _, such as my_policy"),
        (("tool", "class"), "such as my_tool"),
        (("tool", "json"), "a module of that name already exists"),
        (("policy", "_"), "use a name of small letters, digits and _"),
        (("policy", "__init__"), "use a name of small letters, digits and _"),
        *(
            (("policy", name), "look for files of that name")
            for name in ("conftest", "setup", "sitecustomize", "test_x")
        ),
        (("reward", "torch"), "a module of that name already exists"),
        (("reward", "palimpsest"), "a module of that name already exists"),
        (("reward", "taken"), "taken.yaml already exists"),
        (("policy", "mine"), "mine.py already exists"),
    ],
)
def test_an_invalid_name_is_refused(
    words: tuple[str, str], message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "taken.yaml").write_text("mine")
    (tmp_path / "mine.py").symlink_to("nowhere.py")
    assert message in refused("new", *words, "--out", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "taken.yaml"]
    assert (tmp_path / "mine.py").is_symlink()


def test_the_command_prints_the_next_commands(palimpsest: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line.strip() for line in palimpsest("new", "policy", "my_policy").stdout.splitlines()]
    assert lines[:3] == ["my_policy.py", "my_policy.yaml", "test_my_policy.py"]
    assert {"palimpsest check my_policy:MyPolicy", "palimpsest train my_policy.yaml --out runs/my_policy"} <= {*lines}
    assert "my_policy:MyPolicy" in palimpsest("check", "my_policy").stderr


def python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCAFFOLDS)
def test_a_scaffold_passes_its_tests_and_learns(kind: str, tmp_path: Path) -> None:
    """The mean reward of the last ten steps exceeds that of the first ten by 0.1."""
    _, recipe, test = write_scaffold(kind, "mine", tmp_path)
    tested = python("-m", "pytest", "-q", "-p", "no:cacheprovider", test.name, folder=tmp_path)
    assert tested.returncode == 0, tested.stdout
    trained = python("-m", "palimpsest", "train", recipe.name, "--out", "run", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    rewards = [row["reward/mean"] for row in read_rows(tmp_path / "run" / METRICS)]
    assert fmean(rewards[-10:]) > fmean(rewards[:10]) + 0.1

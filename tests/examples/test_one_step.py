"""examples/one_step.py: the values of its parts against each other, and the same output from the same seed."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from palimpsest.rollout.segments import segments_of
from support.trained_once import trained_once

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "one_step.py"


def played() -> tuple[Any, str]:
    """Return value and output of the script."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        step = runpy.run_path(str(SCRIPT))["main"]()
    return step, shown.getvalue()


@pytest.fixture(scope="module")
def result() -> tuple[Any, str]:
    return played()


@pytest.fixture
def step(result: tuple[Any, str]) -> Any:
    return result[0]


def test_every_sampled_token_is_trained_once_with_the_credit_of_its_rollout(step: Any) -> None:
    rows = iter(step.batch.segments)
    rewards = [grade.value for grade in step.group.grades]
    mean = sum(rewards) / len(rewards)
    assert (len(rewards), len(set(rewards)) > 1) == (4, True)
    trained, weights = 0, 0.0
    for trajectory, reward in zip(step.group.trajectories, rewards, strict=True):
        trained_once(trajectory)
        for segment in segments_of(trajectory):
            row = next(rows)
            assert row.segment == segment
            assert set(row.advantages) == {reward - mean}
            trained += len(segment.positions)
            weights += sum(row.weights)
    assert next(rows, None) is None
    assert trained == sum(len(turn.completion.token_ids) for t in step.group.trajectories for turn in t.turns)
    assert weights == pytest.approx(1.0)


def test_the_forest_shown_is_the_one_that_was_learnt_from(result: tuple[Any, str]) -> None:
    step, shown = result
    figures = re.search(r"(\d+) tokens in rows, (\d+) computed", shown)
    assert figures
    tokens, distinct = map(int, figures.groups())
    assert (tokens, distinct) == (step.update.logical_tokens, step.update.physical_tokens)
    prefixes = {row.segment.token_ids[:end] for row in step.batch.segments for end in range(1, _read(row) + 1)}
    assert len(prefixes) <= distinct < tokens  # short prefixes are computed again
    assert tokens == sum(map(_read, step.batch.segments))


def _read(row: Any) -> int:
    """Tokens before the last trained one."""
    return int(row.segment.positions[-1])


def test_the_better_rollout_becomes_more_likely(step: Any) -> None:
    rewards = [grade.value for grade in step.group.grades]
    best = rewards.index(max(rewards))
    sampled = [sum(sum(t.completion.logprobs) for t in played.turns) for played in step.group.trajectories]
    assert step.before == pytest.approx(sampled, abs=1e-3)  # what the sampler recorded
    assert step.after[best] > step.before[best]
    assert step.update.grad_norm > 0
    assert not step.update.skipped


def test_the_same_seed_prints_the_same(result: tuple[Any, str]) -> None:
    assert played()[1] == result[1]


@pytest.mark.slow
def test_the_command_prints_the_same(result: tuple[Any, str]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, result[1]), done.stderr

"""`benchmarks/quickstart_seeds.py`: a table of seeds of one experiment, and of nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "quickstart_seeds.py"))


def summary(seed: int, right: float, **rest: Any) -> dict[str, Any]:
    return {"method": "memagent", "seed": seed, "wall_s": 60.0, "accuracy": {"agent": {"1": right}}, **rest}


def test_six_seeds_have_students_interval() -> None:
    shares = [0.5, 0.5, 0.5, 0.5, 0.5, 0.8]  # mean .55, standard error .05, t of five degrees of freedom 2.571
    table = SCRIPT["table"]([summary(seed, share) for seed, share in enumerate(shares)])
    assert "| agent | 55.0 [42, 68] |" in table


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (summary(0, 1.0), "seeds 0, 0: pass each once"),
        (summary(1, 1.0, planned_chunks=2), "differ in sizes"),
        (summary(1, 1.0) | {"accuracy": {"agent": {"2": 1.0}}}, "differ in sizes"),
        (summary(1, 1.0) | {"method": "memact"}, "several methods"),
    ],
)
def test_runs_that_are_no_seeds_of_one_experiment_are_refused(second: dict[str, Any], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        SCRIPT["table"]([summary(0, 1.0), second])

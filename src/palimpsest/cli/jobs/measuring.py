"""`palimpsest bench`: runs a measurement and prints it."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from typing import Any

from palimpsest.bench.rollout import run as run_rollout
from palimpsest.bench.train_step import run as run_train_step
from palimpsest.cli.jobs.show import stdout, table

RUNS: dict[str, Callable[..., dict[str, Any]]] = {"rollout": run_rollout, "train-step": run_train_step}


def run_bench(name: str, *, model: str, json: bool) -> None:
    """Measure, then print one JSON object or a table of the same figures."""
    result: dict[str, Any] = RUNS[name](model=model)
    if json:
        print(json_module.dumps(result))
        return
    stdout().print(table(f"bench {name}", ["", "value"], [[key, _shown(value)] for key, value in result.items()]))


def _shown(value: Any) -> str:
    if value is None:
        return "not installed"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)

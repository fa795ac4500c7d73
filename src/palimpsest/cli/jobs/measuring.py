"""`palimpsest bench`: runs a measurement and prints it."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.bench import forest
from palimpsest.bench.rollout import run as run_rollout
from palimpsest.bench.train_step import run as run_train_step
from palimpsest.cli.jobs.show import stdout, table
from palimpsest.errors import ConfigError
from palimpsest.evaluate.scaling_plot import plot_scaling

RUNS: dict[str, Callable[..., dict[str, Any]]] = {"rollout": run_rollout, "train-step": run_train_step}
BENCHES = (
    ("rollout", "1 minute", "sampling beside transformers and vLLM"),
    ("train-step", "20 seconds", "one optimiser step beside padded training, with peak memory"),
    ("forest", "4 minutes", "shared prefixes trained and sampled once beside one by one, and beside TRL"),
)


def list_benches() -> None:
    """The benchmarks by name, and about how long each takes."""
    stdout().print(table("palimpsest bench NAME", ["name", "takes about", "measures"], [list(row) for row in BENCHES]))


def run_bench(name: str, *, model: str, json: bool) -> None:
    """Measure, then print one JSON object or a table of the same figures."""
    _print(name, RUNS[name](model=model), json)


def run_forest(*, model: str, json: bool, size: tuple[str, ...], plot: Path | None) -> None:
    """`bench forest` with some of its sizes changed, and its plot if a file is named."""
    sizes = sized(size)
    if plot is not None and not plot.absolute().parent.is_dir():
        raise ConfigError(f"--plot {plot}: the folder does not exist; make it first")
    result = forest.run(model=model, sizes=sizes)
    if plot is not None:
        plot_scaling(result["scaling"], str(plot))
    _print("forest", result, json)


def sized(changes: tuple[str, ...]) -> forest.Sizes:
    """The default sizes with some NAME=VALUE changed; raises ConfigError for one that does not exist.

    >>> sized(("group=8",)).group
    8
    """
    sizes = forest.Sizes()
    chosen: dict[str, Any] = {}
    for change in changes:
        name, _, value = change.partition("=")
        known = {n: v for n in forest.Sizes.__slots__ if isinstance(v := getattr(sizes, n), int)}
        if name not in known:
            raise ConfigError(f"--size {change}: unknown size; choose one of {', '.join(known)}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"--size {change}: give a whole number of at least 1")
        chosen[name] = int(value)
    return replace(sizes, **chosen)


def _print(name: str, result: dict[str, Any], json: bool) -> None:
    if json:
        print(json_module.dumps(result))
        return
    rows = [[key, _shown(value)] for key, value in result.items()]
    stdout().print(table(f"bench {name}", ["", "value"], rows))


def _shown(value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, list):
        return "\n".join(" ".join(f"{number:,.4g}" for number in row) for row in value)
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
    return str(value)

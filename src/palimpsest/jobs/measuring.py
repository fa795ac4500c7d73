"""`palimpsest bench`: runs measurements and prints them."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from palimpsest.bench import forest, forest_cuda, retrieval, rollout, train_step
from palimpsest.bench.grpo_step import TRL_PYTHON
from palimpsest.bench.rollout import VLLM_PYTHON
from palimpsest.errors import ConfigError
from palimpsest.jobs.show import note, stdout, table
from palimpsest.report.scaling_plot import plot_scaling

S = TypeVar("S", forest.Sizes, retrieval.Sizes)
RUNS: dict[str, Callable[..., dict[str, Any]]] = {"rollout": rollout.run, "train-step": train_step.run}
BENCHES = (
    ("rollout", "2 minutes", "sampling beside transformers and vLLM"),
    ("train-step", "20 seconds", "one optimiser step beside padded training, with peak memory"),
    ("retrieval", "1 minute", "the retrieval server under 32 clients beside its index called directly"),
    ("forest", "4 minutes", "shared prefixes trained and sampled once beside one by one, and beside TRL"),
    ("all", "8 minutes", "every one of them, and forests on a GPU where there is one"),
)
MISSING = {  # figures that are null where a peer isn't there, and what names it
    "ratio_vllm": f"vLLM is not installed: name an interpreter that has it in {VLLM_PYTHON}",
    "trl_step_ratio": f"TRL is not installed: name an interpreter that has it in {TRL_PYTHON}",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """How one benchmark of several ended."""

    status: str
    """ok, failed or skipped."""
    figures: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    """Why it failed or was skipped, or which peers were missing."""


def list_benches() -> None:
    """The benchmarks by name, and about how long each takes."""
    stdout().print(table("palimpsest bench NAME", ["name", "takes about", "measures"], [list(row) for row in BENCHES]))


def run_all(*, model: str, json: bool, small: bool) -> int:
    """Each benchmark in turn, then all of it as one JSON object if wanted; 1 if any failed."""
    done: dict[str, Measured] = {}
    for name, run in _runs(model, small).items():
        note(f"bench {name}")
        done[name] = _tried(run)
        if not json:
            _print_measured(name, done[name])
    if json:
        shown = {name: {"status": m.status, "notes": list(m.notes), "figures": m.figures} for name, m in done.items()}
        print(json_module.dumps(shown))
    return int(any(measured.status == "failed" for measured in done.values()))


def _runs(model: str, small: bool) -> dict[str, Callable[[], dict[str, Any]] | str]:
    """What to run by name, or why it can't be."""
    rollout_sizes: dict[str, Any] = {"chunks": (1, 2), "group_size": 2, "rounds": 1} if small else {}
    step_sizes: dict[str, Any] = {"segments": 8, "repeats": 1} if small else {}
    gpu = partial(forest_cuda.run, sizes=forest_cuda.TINY_GPU if small else None)
    return {
        "rollout": partial(rollout.run, model=model, **rollout_sizes),
        "train-step": partial(train_step.run, model=model, **step_sizes),
        "retrieval": partial(retrieval.run, retrieval.TINY if small else retrieval.Sizes()),
        "forest": partial(forest.run, model=model, sizes=forest.TINY if small else None),
        "forest-cuda": gpu if forest_cuda.available() else "no CUDA device here",
    }


def _tried(run: Callable[[], dict[str, Any]] | str) -> Measured:
    """A benchmark's figures, or the reason that there are none."""
    if isinstance(run, str):
        return Measured("skipped", None, (run,))
    try:
        figures = run()
    except Exception as error:  # noqa: BLE001  # whatever it was, the others are still to be measured
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Measured("failed", None, (reason,))
    missing = (why for key, why in MISSING.items() if key in figures and figures[key] is None)
    return Measured("ok", figures, tuple(missing))


def _print_measured(name: str, measured: Measured) -> None:
    if measured.figures is None:
        stdout().print(f"bench {name}: {measured.status}: {measured.notes[0]}\n", markup=False, soft_wrap=True)
        return
    show_bench(name, measured.figures, json=False)
    for line in measured.notes:
        stdout().print(line, markup=False, soft_wrap=True)
    print()


def run_bench(name: str, *, model: str, json: bool) -> None:
    """Measure, then print one JSON object or a table of the same figures."""
    show_bench(name, RUNS[name](model=model), json)


def run_forest(*, model: str, json: bool, size: tuple[str, ...], plot: Path | None) -> None:
    """`bench forest` with some of its sizes changed, and its plot if a file is named."""
    sizes = sized(size, forest.Sizes())
    if plot is not None and not plot.absolute().parent.is_dir():
        raise ConfigError(f"--plot {plot}: the folder does not exist; make it first")
    result = forest.run(model=model, sizes=sizes)
    if plot is not None:
        plot_scaling(result["scaling"], str(plot))
    show_bench("forest", result, json)


def run_retrieval(*, json: bool, size: tuple[str, ...]) -> None:
    """`bench retrieval` with some of its sizes changed."""
    show_bench("retrieval", retrieval.run(sized(size, retrieval.Sizes())), json)


def sized(changes: tuple[str, ...], sizes: S) -> S:
    """`sizes` with some NAME=VALUE changed; raises ConfigError for one that does not exist.

    >>> sized(("group=8",), forest.Sizes()).group
    8
    """
    chosen: dict[str, Any] = {}
    for change in changes:
        name, _, value = change.partition("=")
        known = {n: v for n in type(sizes).__slots__ if isinstance(v := getattr(sizes, n), int)}
        if name not in known:
            raise ConfigError(f"--size {change}: unknown size; choose one of {', '.join(known)}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"--size {change}: give a whole number of at least 1")
        chosen[name] = int(value)
    return replace(sizes, **chosen)


def show_bench(name: str, result: dict[str, Any], json: bool) -> None:
    """One JSON object, or a table of the same figures."""
    if json:
        print(json_module.dumps(result))
        return
    rows = [[key, _shown(value)] for key, value in result.items()]
    stdout().print(table(f"bench {name}", ["", "value"], rows))


def _shown(value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, list):
        return "\n".join(_row(row) for row in value)
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
    return str(value)


def _row(row: Any) -> str:
    """A row of numbers, or of named ones."""
    if isinstance(row, dict):
        return ", ".join(f"{name} {_shown(value)}" for name, value in row.items())
    return " ".join(f"{number:,.4g}" for number in row)

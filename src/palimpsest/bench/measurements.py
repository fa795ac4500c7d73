"""The measurements behind the figures in the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from palimpsest.bench import forest, forest_cuda, retrieval, rollout, train_step
from palimpsest.bench.grpo_step import TRL_PYTHON
from palimpsest.config.sampler import PYTHON
from palimpsest.errors import ConfigError
from palimpsest.report.plots import plot_scaling

S = TypeVar("S", forest.Sizes, retrieval.Sizes)
RUNS: dict[str, Callable[..., dict[str, Any]]] = {"rollout": rollout.run, "train-step": train_step.run}
MISSING = {  # figures that are null where a peer isn't there, and what names it
    "ratio_vllm": f"vLLM is not installed: name an interpreter that has it in {PYTHON}",
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


def all_benches(*, model: str, small: bool) -> Iterator[tuple[str, Callable[[], Measured]]]:
    """Each benchmark by name, to be called in turn. One that fails or lacks what it needs says so."""
    for name, run in _runs(model, small).items():
        yield name, partial(_tried, run)


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


def measure(name: str, *, model: str) -> dict[str, Any]:
    """The figures of a benchmark that has no sizes to change."""
    return RUNS[name](model=model)


def measure_forest(*, model: str, size: tuple[str, ...], plot: Path | None) -> dict[str, Any]:
    """The forest with some of its sizes changed, and its plot if a file is named."""
    sizes = sized(size, forest.Sizes())
    if plot is not None and not plot.absolute().parent.is_dir():
        raise ConfigError(f"--plot {plot}: the folder does not exist; make it first")
    figures = forest.run(model=model, sizes=sizes)
    if plot is not None:
        plot_scaling(figures["scaling"], str(plot))
    return figures


def measure_retrieval(*, size: tuple[str, ...]) -> dict[str, Any]:
    """The retrieval server with some of its sizes changed."""
    return retrieval.run(sized(size, retrieval.Sizes()))


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

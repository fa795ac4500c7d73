"""`Run`, a handle of a run folder, and its metrics as a table."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.agents.episode_results import Asked, Episode
from palimpsest.app.agent.ask_files import Files, ask_async
from palimpsest.app.agent.play import play_async
from palimpsest.app.config_resolution import model_folder, newest_checkpoint
from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.app.evaluate.evaluation_run import evaluate_async
from palimpsest.app.python_calls import blocking
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, RunError, nearest
from palimpsest.plugins import named_objects
from palimpsest.runs.checkpoint import checkpoint_step
from palimpsest.runs.jsonl_rows import read_rows, with_number
from palimpsest.runs.resume_rules import reached
from palimpsest.runs.run_folder import METRICS, load_config
from palimpsest.text.display_text import Table
from palimpsest.types import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---- The metrics of a run as a table that draws itself -------------------------------------------------------


MAIN = (
    "step", "curriculum/chunks", "reward/mean", "reward/ungraded", "eval/accuracy",
    "episode/turns", "memory/copy_fidelity", "policy/loss", "policy/entropy", "optim/grad_norm", "optim/learning_rate",
)  # fmt: skip
"""Columns that a table shows; `columns` names all."""


@dataclass(frozen=True, repr=False)
class Metrics(Table):
    """One row per step; `columns` names all of them."""

    def plot(self, *columns: str) -> Figure:
        """Plot columns against the step, one panel each, as a matplotlib figure.

        The default is the mean reward, with the held-out accuracy if it was measured. Raises ConfigError for an unknown
        column and before the first step.
        """
        from palimpsest.report.plots import metrics_figure  # matplotlib takes a second to import

        wanted = columns or tuple(name for name in ("reward/mean", "eval/accuracy") if name in self.columns)
        if not wanted:
            raise ConfigError("run.metrics.plot(): no step is complete; plot after the first")
        for name in wanted:
            if name not in self.columns:
                raise ConfigError(f"run.metrics.plot({name!r}): no such column{nearest(name, self.columns)}")
        return metrics_figure(self.rows, wanted)


# ---- A run as an object --------------------------------------------------------------------------------------


class Run:
    """A finished or unfinished training run: `Run("runs/first")`. Its properties read the folder on each access.

    Every argument that takes a path also takes a `Run`: `palimpsest.evaluate(run)`. Raises RunError if the folder
    contains no run.
    """

    def __init__(
        self, folder: str | Path, given: Mapping[str, Any] | None = None, config: RunConfig | None = None
    ) -> None:
        """`given`: the objects that its configuration names as `object:NAME`; `train` passes them, and `config`."""
        self.folder = Path(folder)
        self.given = dict(given or {})
        self.config: RunConfig = config or load_config(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> Metrics:
        """One row per step; a table shows the main columns. It has `to_pandas()` and `plot()`."""
        return Metrics.of(read_rows(self.folder / METRICS), MAIN)

    @property
    def steps(self) -> int:
        """Completed steps, out of `config.train.max_steps`."""
        newest = newest_checkpoint(self.folder)
        return 0 if newest is None else checkpoint_step(newest)

    @property
    def finished(self) -> bool:
        """Whether training reached `train.max_steps` or `train.max_tokens`."""
        rows = read_rows(self.folder / METRICS) if self.config.train.max_tokens else ()
        return reached(self.config, self.steps, rows)

    @property
    def checkpoint(self) -> Path:
        """Newest intact checkpoint; damaged ones raise a Python warning. Raises RunError without any."""
        return Path(model_folder(self.folder, lambda line: warnings.warn(line, stacklevel=3)))

    @property
    def report(self) -> Path:
        """HTML report of the gains, written when training ends."""
        return self.folder / "report.html"

    @property
    def model(self) -> str:
        """Newest checkpoint, as the `model` of another call."""
        return str(self.checkpoint)

    async def evaluate_async(self, *, partial: bool = False, **options: Any) -> Evaluation:
        """`palimpsest.evaluate` with the trained agent and the run's configuration. Raises RunError for an interrupted
        training, unless `partial`."""
        self._check_finished(partial)
        with named_objects(self.given):
            return await evaluate_async(self.model, **self._options(options))

    async def play_async(
        self, problem: Problem | str | None = None, context: str | None = None, **options: Any
    ) -> Episode:
        """`palimpsest.play` with the trained agent and the run's configuration."""
        with named_objects(self.given):
            return await play_async(problem, context, model=self.model, **self._options(options))

    async def ask_async(self, files: Files, question: str | Sequence[str], **options: Any) -> Asked:
        """`palimpsest.ask` with the trained agent and the run's configuration."""
        with named_objects(self.given):
            return await ask_async(self.model, files, question, **self._options(options))

    evaluate, play, ask = blocking(evaluate_async), blocking(play_async), blocking(ask_async)
    """Ordinary calls of these coroutines."""

    def __repr__(self) -> str:
        reward = [row["reward/mean"] for row in with_number(read_rows(self.folder / METRICS), "reward/mean")]
        learnt = f", reward {reward[0]:.3f} at first, {reward[-1]:.3f} at last" if reward else ""
        state = "finished" if self.finished else "unfinished"
        return f"Run({str(self.folder)!r}: {self.steps} of {self.config.train.max_steps} steps, {state}{learnt})"

    def _check_finished(self, partial: bool) -> None:
        if not (partial or self.finished):
            done = f"{self.steps} of {self.config.train.max_steps} steps"
            raise RunError(
                f"{self.folder}: interrupted after {done}; resume it with train(resume={str(self.folder)!r}), "
                "or pass partial=True"
            )

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"recipe": self.config, "seed": self.config.seed, **options}

"""A run as an object: its folder, read; its metrics as a table."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest.app.agent.ask_files import Asked, Files, ask, ask_async
from palimpsest.app.agent.play import Episode, play, play_async
from palimpsest.app.config_resolution import model_folder, newest_checkpoint
from palimpsest.app.evaluate.evaluation_result import Evaluation
from palimpsest.app.evaluate.evaluation_run import evaluate, evaluate_async
from palimpsest.app.python_calls import Table
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError, nearest
from palimpsest.plugins import named_objects
from palimpsest.runs.checkpoint import checkpoint_step
from palimpsest.runs.jsonl_rows import read_rows, with_number
from palimpsest.runs.run_folder import METRICS, load_config
from palimpsest.types import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---- The metrics of a run as a table that draws itself -------------------------------------------------------


MAIN = (
    "step", "curriculum/chunks", "reward/mean", "reward/ungraded", "eval/accuracy",
    "episode/turns", "memory/copy_fidelity", "policy/loss", "policy/entropy", "optim/grad_norm", "optim/learning_rate",
)  # fmt: skip
"""Columns that are shown of the many."""


@dataclass(frozen=True, repr=False)
class Metrics(Table):
    """One row per step; `columns` names all of them."""

    def plot(self, *columns: str) -> Figure:
        """Columns against the step, each in a panel of its own: a matplotlib figure, which a notebook shows.

        Without columns the mean reward, and the accuracy of the held-out problems where there are any. Raises
        ConfigError for a column that isn't there, and before the first step.
        """
        from palimpsest.report.plots import metrics_figure  # matplotlib takes a second to import

        wanted = columns or tuple(name for name in ("reward/mean", "eval/accuracy") if name in self.columns)
        if not wanted:
            raise ConfigError("run.metrics.plot(): no step is done yet; plot after the first")
        for name in wanted:
            if name not in self.columns:
                raise ConfigError(f"run.metrics.plot({name!r}): no such column{nearest(name, self.columns)}")
        return metrics_figure(self.rows, wanted)


# ---- A run as an object --------------------------------------------------------------------------------------


class Run:
    """A run that was trained, here or elsewhere: `Run("runs/first")`. What it tells is read when it is asked.

    It stands for its folder wherever a path is taken: `palimpsest.evaluate(run)`. Raises RunError if the folder holds
    no run.
    """

    def __init__(self, folder: str | Path, given: Mapping[str, Any] | None = None) -> None:
        """`given`: the objects that its configuration names as `object:NAME`; a run that `train` returns has them."""
        self.folder = Path(folder)
        self.given = dict(given or {})
        self.config: RunConfig = load_config(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> Metrics:
        """One row per step, of which the main columns are shown; `to_pandas()` and `plot()`."""
        return Metrics.of(read_rows(self.folder / METRICS), MAIN)

    @property
    def steps(self) -> int:
        """Steps done, of `config.train.max_steps`."""
        newest = newest_checkpoint(self.folder)
        return 0 if newest is None else checkpoint_step(newest)

    @property
    def finished(self) -> bool:
        """Whether it was trained to its last step."""
        return self.steps >= self.config.train.max_steps

    @property
    def checkpoint(self) -> Path:
        """The newest that is intact, with a Python warning of damaged ones. Raises RunError if there is none."""
        return Path(model_folder(self.folder, lambda line: warnings.warn(line, stacklevel=3)))

    @property
    def report(self) -> Path:
        """What was gained, in a page to be opened in a browser; written when training ends."""
        return self.folder / "report.html"

    @property
    def model(self) -> str:
        """The newest checkpoint, as `model` of another call."""
        return str(self.checkpoint)

    def evaluate(self, **options: Any) -> Evaluation:
        """`palimpsest.evaluate` of the trained agent, under the run's own configuration."""
        with named_objects(self.given):
            return evaluate(self.model, **self._options(options))

    async def evaluate_async(self, **options: Any) -> Evaluation:
        """`evaluate`, to be awaited."""
        with named_objects(self.given):
            return await evaluate_async(self.model, **self._options(options))

    def play(self, problem: Problem | str | None = None, context: str | None = None, **options: Any) -> Episode:
        """`palimpsest.play` with the trained agent, under the run's own configuration."""
        with named_objects(self.given):
            return play(problem, context, model=self.model, **self._options(options))

    async def play_async(
        self, problem: Problem | str | None = None, context: str | None = None, **options: Any
    ) -> Episode:
        """`play`, to be awaited."""
        with named_objects(self.given):
            return await play_async(problem, context, model=self.model, **self._options(options))

    def ask(self, files: Files, question: str | Sequence[str], **options: Any) -> Asked:
        """`palimpsest.ask` with the trained agent, under the run's own configuration."""
        with named_objects(self.given):
            return ask(self.model, files, question, **self._options(options))

    async def ask_async(self, files: Files, question: str | Sequence[str], **options: Any) -> Asked:
        """`ask`, to be awaited."""
        with named_objects(self.given):
            return await ask_async(self.model, files, question, **self._options(options))

    def __repr__(self) -> str:
        reward = [row["reward/mean"] for row in with_number(read_rows(self.folder / METRICS), "reward/mean")]
        learnt = f", reward {reward[0]:.3f} at first, {reward[-1]:.3f} at last" if reward else ""
        state = "finished" if self.finished else "unfinished"
        return f"Run({str(self.folder)!r}: {self.steps} of {self.config.train.max_steps} steps, {state}{learnt})"

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"recipe": self.config, "seed": self.config.seed, **options}

"""Which run is meant, and how one that ended early goes on.

    train("memagent-7b", out="runs/first")                     a new run
    train("memagent-7b", out="runs/first", resume=True)        the run there if there is one, else a new one
    train(resume="runs/first")                                 the run there: recipe, overrides and seed are its own

Light on purpose, as jobs/settings.py is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from palimpsest.config.load import Overrides, recipe_names
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError
from palimpsest.jobs.settings import Recipe, default_folder, run_config
from palimpsest.progress.progress import Progress
from palimpsest.runs.origin import how_to_resume, origin_of, resume_command
from palimpsest.runs.run_folder import CONFIG, load_config

QUICKSTART = "quickstart"
SFT = "sft"
COLD_START = "cold-start"
"""The command, and the folder inside a run's own in which its lessons are."""

Resume = bool | str | os.PathLike[str]
"""True: go on with the run in the folder, if it holds one. A folder: go on with the run in it, as it was asked for."""


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run to begin or to go on with."""

    config: RunConfig
    folder: Path
    resume: bool


def asked_run(
    recipe: Recipe | None,
    overrides: Overrides | None = None,
    *,
    command: str = "train",
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
) -> AskedRun:
    """The run that these options of `palimpsest COMMAND` mean. Raises ConfigError, or RunError for a folder without
    one."""
    run = resumed_run(recipe, out, resume, command)
    if run is not None:
        return AskedRun(run_config(load_config(run), overrides, seed=seed), run, True)
    if recipe is None:
        raise ConfigError(f"{command}: give a recipe, or the run to go on with: palimpsest {command} --resume RUN")
    config = run_config(recipe, overrides, seed=seed, out=out, resume=bool(resume))
    return AskedRun(config, default_folder(config) if out is None else Path(out), bool(resume))


def asked_cold_start(
    recipe: Recipe | None,
    overrides: Overrides | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
) -> AskedRun:
    """The cold start that these options of `palimpsest cold-start` mean; the folder holds `cold-start` or will.

    Raises ConfigError, or RunError for a folder without one.
    """
    run = resumed_run(recipe, out, resume, COLD_START)
    if run is None:
        return asked_run(recipe, overrides, command=COLD_START, seed=seed, out=out)
    return AskedRun(run_config(load_config(run / COLD_START), overrides, seed=seed), run, True)


def resumed_run(recipe: Recipe | None, out: str | Path | None, resume: Resume, command: str) -> Path | None:
    """The run that is to go on with its own configuration: `resume`, or `recipe` where that is a run's folder. None:
    there is none, a recipe says what to do."""
    if isinstance(resume, bool):
        run = Path(recipe) if resume and isinstance(recipe, str | Path) and _may_be_run(recipe) else None
    else:
        run = Path(resume)
        if recipe is not None:
            raise ConfigError(
                f"resume={run}: the run has its recipe; leave out the recipe, keys to change are overrides"
            )
    if run is None:
        return None
    if out is not None and Path(out).resolve() != run.resolve():
        raise ConfigError(f"out={out}: {run} goes on in its own folder; leave out the other")
    if (run / CONFIG).is_file() and (begun := origin_of(run).command) != command:
        raise ConfigError(f"{run} was begun by palimpsest {begun}; {resume_command(run)} continues it")
    return run


def _may_be_run(recipe: str | Path) -> bool:
    """Whether a recipe's place names a folder, or nothing that is there."""
    return str(recipe) not in recipe_names() and not Path(recipe).is_file()


@contextmanager
def resumable(run: Path, progress: Progress) -> Iterator[None]:
    """Say how the run goes on where it ends by an error."""
    try:
        yield
    except BaseException:
        if (run / CONFIG).is_file():  # it may be what was deleted
            progress.message(how_to_resume(run))
        raise

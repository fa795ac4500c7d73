"""New or resumed run: which one a call of `train` means, and how its objects change the configuration.

    train("memagent-7b", out="runs/first")                     a new run
    train("memagent-7b", out="runs/first", resume=True)        the run there if there is one, else a new one
    train(resume="runs/first")                                 the run there: recipe, overrides and seed are its own

Keys that the objects change:

reward     reward.name; the recipe's layers go (config/load.py)
policy     policy.name with options of its own
data       data.train_files; a step takes all problems of a list that holds fewer than it asks for
callbacks  logging.report_to, besides those of the recipe that are no objects
model      model.path: the folder that a copy was written to

Imports are light, as in app/config_resolution.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palimpsest.app.config_resolution import Recipe, default_folder, run_config
from palimpsest.app.python_objects import Objects, objects_in, write_loaded
from palimpsest.config.load import Overrides, recipe_names, split_overrides
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError
from palimpsest.plugins import ARGUMENTS, DATA
from palimpsest.progress.reporter import Progress
from palimpsest.runs.resume_rules import how_to_resume, origin_of, resume_command
from palimpsest.runs.run_folder import CONFIG, load_config

QUICKSTART = "quickstart"
SFT = "sft"
COLD_START = "cold-start"
"""The folder inside a run's own in which its lessons are."""

Resume = bool | str | os.PathLike[str]
"""True: go on with the run in the folder, if it holds one. A folder: go on with the run in it, as it was asked for."""


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """A run to begin or to go on with."""

    config: RunConfig
    folder: Path
    resume: bool


def requested_run(
    recipe: Recipe | None,
    overrides: Overrides | None = None,
    *,
    command: str = "train",
    seed: int | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
) -> RequestedRun:
    """The run that these options of `palimpsest COMMAND` mean. Raises ConfigError, or RunError for a folder without
    one."""
    run = resumed_run(recipe, out, resume, command)
    if run is not None:
        return RequestedRun(run_config(load_config(run), overrides, seed=seed), run, True)
    if recipe is None:
        raise ConfigError(f"{command}: give a recipe, or the run to go on with: palimpsest {command} --resume RUN")
    config = run_config(recipe, overrides, seed=seed, out=out, resume=bool(resume))
    return RequestedRun(config, default_folder(config) if out is None else Path(out), bool(resume))


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
    if (run / CONFIG).is_file() and (started_by := origin_of(run).command) != command:
        raise ConfigError(f"{run} was begun by palimpsest {started_by}; {resume_command(run)} continues it")
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


# ---- Calls from Python with objects --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Things:
    """What `train` takes as objects; None: not given."""

    reward: Any = None
    data: Any = None
    policy: Any = None
    callbacks: Any = None
    model: Any = None
    tokenizer: Any = None

    @property
    def named(self) -> list[str]:
        """The arguments that were given."""
        return [name for name in self.__slots__ if getattr(self, name) is not None]


@dataclass(frozen=True, slots=True)
class Asking:
    """What a call of `train` asks for."""

    recipe: Recipe | None
    overrides: Overrides = ()
    seed: int | None = None
    out: str | Path | None = None
    resume: Resume = False
    adapted: list[str] = field(default_factory=list)
    """What is said of keys that were adapted to the objects."""

    def run(self, objects: Objects, things: Things) -> RequestedRun:
        """The run, with the objects named in its configuration. Raises ConfigError."""
        request = self._with(objects, things) if things.named else self._requested(self.overrides)
        missing = [argument for argument, name in objects_in(request.config).items() if name not in objects.held]
        if missing:
            again = ", ".join(f"{argument}=..." for argument in missing)
            first = f"resume={str(request.folder)!r}" if request.resume else "recipe"
            raise ConfigError(
                f"{request.folder}: its configuration names Python objects, which no file holds: give them again, "
                f"palimpsest.train({first}, {again})"
            )
        return request

    def _with(self, objects: Objects, things: Things) -> RequestedRun:
        changed = {key: value for key, value, _ in split_overrides(self.overrides)}
        self._refuse_doubles(objects, things, changed)
        base = self._base()
        if things.reward is not None:
            objects.take_reward(things.reward)
        if things.policy is not None:
            objects.take_policy(things.policy, None if base is None else base.policy)
        if things.data is not None:
            objects.take_data(things.data)
        if things.callbacks is not None:
            sinks = changed.pop("logging.report_to", base.logging.report_to if base else ())
            objects.take_callbacks(things.callbacks, sinks)
        if isinstance(things.model, str) or hasattr(things.model, "__fspath__"):
            changed["model.path"] = str(things.model)
        elif things.model is not None or things.tokenizer is not None:
            folder = self._requested(objects.changes | changed).folder
            changed["model.path"] = str(write_loaded(things.model, things.tokenizer, folder, objects.called))
        return self._fitted(objects, objects.changes | changed)

    def _requested(self, overrides: Overrides) -> RequestedRun:
        return requested_run(self.recipe, overrides, seed=self.seed, out=self.out, resume=self.resume)

    def _base(self) -> RunConfig | None:
        """The configuration without the objects; None where neither a recipe nor a run is named, which is refused."""
        run = resumed_run(self.recipe, self.out, self.resume, "train")
        if run is not None:
            return load_config(run)
        return None if self.recipe is None else run_config(self.recipe)

    def _refuse_doubles(self, objects: Objects, things: Things, changed: Mapping[str, Any]) -> None:
        """Raise ConfigError for what is given as an object and in the overrides."""
        keys = {argument: key for key, argument in ARGUMENTS.items() if argument != "callbacks"} | {
            "model": "model.path"
        }
        for argument in things.named:
            if keys.get(argument) in changed:
                raise ConfigError(
                    f"{objects.called}({argument}=...) and the override {keys[argument]} both name one: leave one out"
                )

    def _fitted(self, objects: Objects, changes: dict[str, Any]) -> RequestedRun:
        """With steps that take no more problems than a list holds."""
        request = self._requested(changes)
        train, problems = request.config.train, objects.held.get(DATA)
        if problems is None or "train.batch_size" in changes or len(problems) >= train.batch_size:
            return request
        count = len(problems)
        if (request.folder / CONFIG).is_file() and request.resume:
            raise ConfigError(
                f"{problems.called} holds {count} problems, a step of {request.folder} takes {train.batch_size}: "
                "give the data that the run started with"
            )
        self.adapted.append(f"{problems.called} holds {count}: train.batch_size is {count}, not {train.batch_size}")
        updates = min(train.num_minibatches, count)
        return self._requested({**changes, "train.batch_size": count, "train.num_minibatches": updates})

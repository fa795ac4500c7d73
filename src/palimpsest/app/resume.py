"""New or resumed run: which one a request means, and how Python objects change its configuration.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palimpsest.app.config_resolution import Recipe, default_folder, run_config
from palimpsest.app.python_objects import CallObjects, objects_in, write_loaded
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
class RunRequest:
    """What `palimpsest COMMAND` or a call of `train` asks for."""

    recipe: Recipe | None = None
    overrides: Overrides | None = None
    seed: int | None = None
    out: str | Path | None = None
    resume: Resume = False
    command: str = "train"


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A run to begin or to go on with."""

    config: RunConfig
    folder: Path
    resume: bool


def resolve_run(request: RunRequest) -> ResolvedRun:
    """The run that is meant. Raises ConfigError, or RunError for a folder without one."""
    run, command = resumed_run(request), request.command
    if run is not None:
        return ResolvedRun(run_config(load_config(run), request.overrides, seed=request.seed), run, True)
    if request.recipe is None:
        raise ConfigError(f"{command}: give a recipe, or the run to go on with: palimpsest {command} --resume RUN")
    resume, out = bool(request.resume), request.out
    config = run_config(request.recipe, request.overrides, seed=request.seed, out=out, resume=resume)
    return ResolvedRun(config, default_folder(config) if out is None else Path(out), resume)


def resumed_run(request: RunRequest) -> Path | None:
    """The run that is to go on with its own configuration: `resume`, or `recipe` where that is a run's folder. None:
    there is none, a recipe says what to do."""
    recipe, resume, out = request.recipe, request.resume, request.out
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
    if (run / CONFIG).is_file() and (started_by := origin_of(run).command) != request.command:
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


def resolve_call(
    request: RunRequest, objects: CallObjects, arguments: Mapping[str, Any], note: Callable[[str], None]
) -> ResolvedRun:
    """The run that a call of `train` means, its objects named in the configuration. Raises ConfigError.

    `arguments`: reward, data, policy, callbacks, model and tokenizer, those that were given. `note` gets what is said
    of keys that were adapted to them.
    """
    run = _with_objects(request, objects, arguments, note) if arguments else resolve_run(request)
    missing = [argument for argument, name in objects_in(run.config).items() if name not in objects.held]
    if missing:
        again = ", ".join(f"{argument}=..." for argument in missing)
        first = f"resume={str(run.folder)!r}" if run.resume else "recipe"
        raise ConfigError(
            f"{run.folder}: its configuration names Python objects, which no file holds: give them again, "
            f"palimpsest.train({first}, {again})"
        )
    return run


def _with_objects(
    request: RunRequest, objects: CallObjects, arguments: Mapping[str, Any], note: Callable[[str], None]
) -> ResolvedRun:
    changed = {key: value for key, value, _ in split_overrides(request.overrides or ())}
    for key, argument in {**ARGUMENTS, "model.path": "model"}.items():
        if argument in arguments and argument != "callbacks" and key in changed:
            raise ConfigError(f"{objects.called}({argument}=...) and the override {key} both name one: leave one out")
    base = _base_config(request)
    if "reward" in arguments:
        objects.take_reward(arguments["reward"])
    if "policy" in arguments:
        objects.take_policy(arguments["policy"], None if base is None else base.policy)
    if "data" in arguments:
        objects.take_data(arguments["data"])
    if "callbacks" in arguments:
        sinks = changed.pop("logging.report_to", base.logging.report_to if base else ())
        objects.take_callbacks(arguments["callbacks"], sinks)
    model, tokenizer = arguments.get("model"), arguments.get("tokenizer")
    if isinstance(model, str | os.PathLike):
        changed["model.path"] = str(model)
    elif model is not None or tokenizer is not None:
        folder = resolve_run(replace(request, overrides=objects.changes | changed)).folder
        changed["model.path"] = str(write_loaded(model, tokenizer, folder, objects.called))
    changes = objects.changes | changed
    run = resolve_run(replace(request, overrides=changes))
    smaller = {} if "train.batch_size" in changes else _fitting_batch(run, objects, note)
    return resolve_run(replace(request, overrides=changes | smaller)) if smaller else run


def _base_config(request: RunRequest) -> RunConfig | None:
    """The configuration without the objects; None where neither a recipe nor a run is named, which is refused."""
    run = resumed_run(request)
    if run is not None:
        return load_config(run)
    return None if request.recipe is None else run_config(request.recipe)


def _fitting_batch(run: ResolvedRun, objects: CallObjects, note: Callable[[str], None]) -> dict[str, int]:
    """Changes with which a step takes no more problems than the list holds; none where it doesn't."""
    train, problems = run.config.train, objects.held.get(DATA)
    if problems is None or len(problems) >= train.batch_size:
        return {}
    count = len(problems)
    if (run.folder / CONFIG).is_file() and run.resume:
        raise ConfigError(
            f"{problems.called} holds {count} problems, a step of {run.folder} takes {train.batch_size}: "
            "give the data that the run started with"
        )
    note(f"{problems.called} holds {count}: train.batch_size is {count}, not {train.batch_size}")
    return {"train.batch_size": count, "train.num_minibatches": min(train.num_minibatches, count)}

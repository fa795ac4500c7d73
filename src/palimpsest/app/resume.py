"""New or resumed run of a request, and the effect of Python objects on its configuration.

    train("memagent-7b", out="runs/first")                     a new run
    train("memagent-7b", out="runs/first", resume=True)        the run there if it exists, otherwise a new one
    train(resume="runs/first")                                 the run there, with its recipe, overrides and seed

Keys that the objects change:

    reward     reward.name; it removes the recipe's layers (config/load.py)
    policy     policy.name with its options
    data       data.train_files; a step takes all problems of a list shorter than a batch
    callbacks  logging.report_to, in addition to the recipe's sinks other than objects
    model      model.path: the folder of the written copy

Light imports, as in app/config_resolution.py.
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
from palimpsest.config.keys import with_keys
from palimpsest.config.load import Overrides, dump_config, parse_config, recipe_names, split_overrides
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import with_sampler
from palimpsest.engines.protocol import Objective
from palimpsest.errors import ConfigError
from palimpsest.plugins import ARGUMENTS, DATA
from palimpsest.progress.reporter import Progress
from palimpsest.runs.resume_rules import how_to_resume, origin_of, resume_command
from palimpsest.runs.run_folder import CONFIG, load_config
from palimpsest.text.display_text import counted

QUICKSTART = "quickstart"
SFT = "sft"
COLD_START = "cold-start"
"""Folder of the cold start, inside the run's."""

Resume = bool | str | os.PathLike[str]
"""True: resume the run in the output folder, if any. A folder: resume the run in it, with its configuration."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request of `palimpsest COMMAND` or a call of `train`."""

    recipe: Recipe | None = None
    overrides: Overrides | None = None
    seed: int | None = None
    out: str | Path | None = None
    resume: Resume = False
    command: str = "train"


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A run to start or to resume."""

    config: RunConfig
    folder: Path
    resume: bool


def resolve_run(request: RunRequest) -> ResolvedRun:
    """The run of a request. Raises ConfigError, or RunError for a folder without one."""
    run, command = resumed_run(request), request.command
    objective: Objective = "policy" if command == "train" else "nll"  # a quickstart samples in its own processes
    if run is not None:
        config = run_config(load_config(run), request.overrides, seed=request.seed)
        return ResolvedRun(with_sampler(config, objective), run, True)
    if request.recipe is None:
        raise ConfigError(f"{command}: pass a recipe, or resume a run: palimpsest {command} --resume RUN")
    resume, out = bool(request.resume), request.out
    config = run_config(request.recipe, request.overrides, seed=request.seed, out=out, resume=resume)
    folder = default_folder(config) if out is None else Path(out)
    if resume and config.sampler.name == "auto" and (folder / CONFIG).is_file():
        was = load_config(folder)  # it samples as it started
        keys = {"sampler": was.sampler, "cluster.placement": was.cluster.placement}
        config = parse_config(dump_config(with_keys(config, keys)), name="overrides", read_files=False)
    return ResolvedRun(with_sampler(config, objective), folder, resume)


def resumed_run(request: RunRequest) -> Path | None:
    """The run to resume with its own configuration: `resume`, or `recipe` if that is a run's folder; otherwise None."""
    recipe, resume, out = request.recipe, request.resume, request.out
    if isinstance(resume, bool):
        run = Path(recipe) if resume and isinstance(recipe, str | Path) and _may_be_run(recipe) else None
    else:
        run = Path(resume)
        if recipe is not None:
            raise ConfigError(f"resume={run}: the run has its recipe; omit the recipe, and change keys with overrides")
    if run is None:
        words = request.overrides if isinstance(request.overrides, list) else []
        if resume and words and "=" not in words[0]:
            raise ConfigError(f"--resume: omit {recipe}: palimpsest {request.command} --resume {words[0]}")
        return None
    if out is not None and Path(out).resolve() != run.resolve():
        raise ConfigError(f"out={out}: {run} resumes in its own folder; omit out")
    if (run / CONFIG).is_file() and (started_by := origin_of(run).command) != request.command:
        raise ConfigError(f"palimpsest {started_by} started {run}; resume it with {resume_command(run)}")
    return run


def _may_be_run(recipe: str | Path) -> bool:
    """True if a recipe may be a folder: not a shipped name, not a file."""
    return str(recipe) not in recipe_names() and not Path(recipe).is_file()


@contextmanager
def resumable(run: Path, progress: Progress) -> Iterator[None]:
    """Report how to resume the run after an error."""
    try:
        yield
    except BaseException:
        if (run / CONFIG).is_file():  # it may have been deleted
            progress.message(how_to_resume(run))
        raise


# ---- Calls from Python with objects --------------------------------------------------------------------------


def resolve_call(
    request: RunRequest, objects: CallObjects, arguments: Mapping[str, Any], note: Callable[[str], None]
) -> ResolvedRun:
    """The run of a `train` call, with its objects named in the configuration. Raises ConfigError.

    `arguments`: the passed ones of reward, data, policy, callbacks, model and tokenizer. `note` gets messages about
    keys adapted to them.
    """
    run = _with_objects(request, objects, arguments, note) if arguments else resolve_run(request)
    missing = [argument for argument, name in objects_in(run.config).items() if name not in objects.held]
    if missing:
        again = ", ".join(f"{argument}=..." for argument in missing)
        first = f"resume={str(run.folder)!r}" if run.resume else "recipe"
        raise ConfigError(
            f"{run.folder}: its configuration names Python objects, which no file stores: pass them again, "
            f"palimpsest.train({first}, {again})"
        )
    return run


def _with_objects(
    request: RunRequest, objects: CallObjects, arguments: Mapping[str, Any], note: Callable[[str], None]
) -> ResolvedRun:
    changed = {key: value for key, value, _ in split_overrides(request.overrides or ())}
    for key, argument in {**ARGUMENTS, "model.path": "model"}.items():
        if argument in arguments and argument != "callbacks" and key in changed:
            raise ConfigError(f"{objects.called}({argument}=...) and the override {key} both name one: omit one")
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
    return run if "train.batch_size" in changes else _fitting_batch(run, objects, note)


def _base_config(request: RunRequest) -> RunConfig | None:
    """The configuration without the objects; None without recipe and run, an error later."""
    run = resumed_run(request)
    if run is not None:
        return load_config(run)
    return None if request.recipe is None else run_config(request.recipe)


def _fitting_batch(run: ResolvedRun, objects: CallObjects, note: Callable[[str], None]) -> ResolvedRun:
    """`run` with steps of at most the problems of the list."""
    train, problems = run.config.train, objects.held.get(DATA)
    if problems is None or len(problems) >= train.batch_size:
        return run
    count = len(problems)
    if (run.folder / CONFIG).is_file() and run.resume:
        raise ConfigError(
            f"{problems.called} has {counted(count, 'problem')}, a step of {run.folder} takes {train.batch_size}: "
            "pass the data that the run started with"
        )
    note(f"{problems.called} has {count}: train.batch_size is {count}, not {train.batch_size}")
    keys = {"train.batch_size": count, "train.num_minibatches": min(train.num_minibatches, count)}
    return replace(run, config=with_keys(run.config, keys))

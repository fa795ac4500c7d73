"""RL training: from a recipe to a run folder, with cold start, restarts (restarts.py) and held-out evaluations.

Keys that the objects of a call from Python change:

    reward     reward.name; it removes the recipe's layers (config/load.py)
    policy     policy.name with its options
    data       data.train_files; a step takes all problems of a list shorter than a batch
    callbacks  logging.report_to, in addition to the recipe's sinks other than objects
    model      model.path: the folder of the written copy
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.app.config_resolution import (
    COLD_START,
    Recipe,
    ResolvedRun,
    Resume,
    RunRequest,
    resolve_run,
    resumable,
    resumed_run,
    run_config,
)
from palimpsest.app.evaluate.evaluator import Evaluator
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import CallObjects, objects_in, write_loaded
from palimpsest.app.train.restarts import restarting
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.run_setup import Setup, open_setup
from palimpsest.app.train.supervised_training import run_cold_start
from palimpsest.app.train.training_summary import report_training
from palimpsest.config.load import Overrides, split_overrides
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import with_keys
from palimpsest.data.sources.file_source import left_out
from palimpsest.engines.open import check_state, using
from palimpsest.errors import ConfigError
from palimpsest.evaluation.runner import Entry, summaries_of
from palimpsest.evaluation.sample_log import Cell
from palimpsest.memory.registry import build_policy, evaluated
from palimpsest.plugins import ARGUMENTS, DATA
from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.report.run_reports import TrainingResults
from palimpsest.reward.grading import Grades, build_reward, closing, layers_note
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths
from palimpsest.runs.driver import Evaluate, Finished
from palimpsest.runs.jsonl_rows import read_rows
from palimpsest.runs.loggers import build_loggers
from palimpsest.runs.resume_rules import GIVEN, RunOrigin, how_to_resume
from palimpsest.runs.run_folder import CONFIG, METRICS, RunFolder, check_folder, load_config, open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.display_text import counted
from palimpsest.training.loop import Trainer
from palimpsest.types import Problem


async def train_async(
    recipe: Recipe | None = None,
    overrides: Overrides = (),
    *,
    reward: Any = None,
    data: Any = None,
    policy: Any = None,
    model: Any = None,
    tokenizer: Any = None,
    callbacks: Any = None,
    out: str | Path | None = None,
    seed: int | None = None,
    resume: Resume = False,
    force: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
    stop: GracefulStop | None = None,
) -> Run:
    """Train an agent with reinforcement learning. The first SIGINT or SIGTERM finishes the current step; the call then
    returns an unfinished run (`run.finished`).

    `train` is an ordinary call and works in a notebook; `train_async` is a coroutine.

    - `recipe`: a shipped recipe's name, a YAML file, or a configuration
    - `overrides`: keys to change, as a mapping (`{"train.max_steps": 10}`, `{"train": {"max_steps": 10}}`) or as texts
      (`["train.max_steps=10"]`, values as YAML)
    - `reward`: a function `(problem, trajectory)` that returns a number or a `Grade`, or an object with such a method
      `grade`; it replaces the recipe's reward and its layers (docs/how-to/custom-reward.md)
    - `data`: a list of `Problem`s or of dicts with question, answers and context, a `datasets.Dataset`, or a file
    - `policy`: a class or an object with a coroutine `run(problem, model)`; it replaces the recipe's policy and options
    - `model`, `tokenizer`: both loaded by transformers; palimpsest writes a copy next to `out`. A folder or hub id
      needs no tokenizer
    - `callbacks`: functions `(step, metrics, timings)`, or objects with such a method `log`, called after every step
    - `out`: the run folder; the default is `runs/RECIPE-seedS`
    - `seed`: of the run and of the data
    - `resume`: a `Run` or run folder to resume; recipe, overrides and seed are the run's, and `overrides` may change
      what a resumed run may change. A `Run` also brings its objects; for a folder, pass them again. True: resume the
      run in `out`
    - `force`: rename an existing folder and start over
    - `quiet`: show nothing but a stop before the last step; `progress`: where to show progress
    - `stop`: requests the end, from any thread

    Raises ConfigError, DataError, ModelError or RunError with a message that names key, value and fix.
    """
    shown = progress or suitable_progress(quiet=quiet)
    objects = CallObjects("palimpsest.train", resume)
    arguments = {
        "reward": reward, "data": data, "policy": policy, "callbacks": callbacks, "model": model, "tokenizer": tokenizer
    }  # fmt: skip
    with objects.in_scope():
        request = RunRequest(recipe, overrides, seed, out, resume)
        given = {name: value for name, value in arguments.items() if value is not None}
        run = resolve_call(request, objects, given, shown.message)
        finished, _ = await run_training_async(run, force=force, progress=shown, stop=stop)
        if finished.interrupted and quiet:
            Terminal().message(f"{run.folder}: stopped after step {finished.step}; {how_to_resume(run.folder)}")
    return Run(run.folder, objects.held, run.config)


train = blocking(train_async)


async def run_training_async(
    run: ResolvedRun, *, force: bool, progress: Progress, stop: GracefulStop | None = None
) -> tuple[Finished, TrainingResults]:
    """`train` of a resolved run, and what its report contains."""
    config, out, resume = run.config, run.folder, run.resume
    if resume and (saved := checkpoint_paths(out / CHECKPOINTS)):
        check_state(config, saved[-1])  # a rejected resume changes nothing
    check_folder(out, config, resume=resume, force=force)  # before the model is loaded
    setup = await asyncio.to_thread(open_setup, config, out)  # before the folder: a corrected mistake is a new run
    arguments = objects_in(config)
    origin = RunOrigin(detail={GIVEN: list(arguments)} if arguments else {})
    with (
        open_run(out, config, resume=resume, force=force, on_warning=progress.message, origin=origin) as folder,
        resumable(out, progress),
    ):

        async def attempt(again: bool) -> Finished:
            current = await asyncio.to_thread(open_setup, config, out) if again else setup
            return await train_in_folder(folder, config, current, progress=progress, stop=stop)

        finished = await restarting(folder, config.cluster.max_restarts, attempt)
        return finished, await asyncio.to_thread(report_training, out, config)


run_training = blocking(run_training_async)


async def train_in_folder(
    folder: RunFolder,
    config: RunConfig,
    setup: Setup,
    *,
    progress: Progress | None = None,
    stop: GracefulStop | None = None,
    on_start: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Train in an open run folder, after its cold start; `on_start` gets the path of the model that RL starts from."""
    progress, stop, spent = progress or Silent(), stop or GracefulStop(), 0
    if note := layers_note(config.reward):
        progress.message(note)
    if config.cold_start is not None:
        policy, codec = setup.policy, setup.engine.codec
        await setup.close()
        cold_start = await run_cold_start(
            config,
            policy,
            codec,
            folder.path / COLD_START,
            progress=progress,
            stop=stop,
            warn=folder.warn,
        )
        if cold_start.interrupted:
            return Finished(0, True, cold_start.checkpoint)
        spent = _spent(folder.path / COLD_START, config)
        model = config.model.model_copy(update={"path": str(cold_start.checkpoint)})
        config = config.model_copy(update={"model": model})
        setup = await asyncio.to_thread(open_setup, config, folder.path)
    if setup.skipped:
        folder.warn(left_out(setup.skipped))
    on_start(config.model.path)
    with folder.keeping_warnings():
        return await _train_with_rewards(folder, config, setup, progress, stop, spent)


def _spent(cold_start: Path, config: RunConfig) -> int:
    """Tokens that a cold start computed. Raises ConfigError if they leave none for RL."""
    spent = sum(int(row.get("policy/physical_tokens", 0)) for row in read_rows(cold_start / METRICS))
    if config.train.max_tokens is not None and spent >= config.train.max_tokens:
        raise ConfigError(
            f"train.max_tokens={config.train.max_tokens}: the cold start computed {spent} tokens, which leaves none "
            "for RL: raise it, or lower cold_start.max_steps"
        )
    return spent


async def _train_with_rewards(
    folder: RunFolder, config: RunConfig, setup: Setup, progress: Progress, stop: GracefulStop, spent: int
) -> Finished:
    engine = setup.engine
    assert engine.learner is not None
    if note := engine.limits.note:
        progress.message(note)
    reward = build_reward(config.reward, engine.codec, folder.path)
    trainer = Trainer(
        config=config,
        folder=folder,
        codec=engine.codec,
        sampler=engine.sampler,
        learner=engine.learner,
        policy=setup.policy,
        source=setup.source,
        contents=setup.contents,
        grader=reward,
        roles=setup.roles.samplers,
        environment=setup.roles.environment,
        loggers=build_loggers(config, folder, progress),
        evaluate=None if setup.held_out is None else _held_out(config, setup, reward.answer, setup.held_out),
        stop=stop,
        spent=spent,
    )
    return await using(engine, using(setup.roles, closing(reward, trainer.run())))


def _held_out(config: RunConfig, setup: Setup, grader: Grades, problems: Sequence[Problem]) -> Evaluate:
    """Hook that evaluates held-out problems every `train.eval_steps` steps."""
    evaluator = Evaluator(config, setup.engine, grader, roles=setup.roles, training=True)
    cell = Cell("eval", None, None, config.policy.name)
    entries = [Entry(cell, build_policy(evaluated(config.policy)), problems, config.eval_draws)]

    async def measure(step: int) -> dict[str, float]:
        (summary,) = summaries_of(entries, await evaluator.play(entries))
        accuracy = {} if summary.accuracy.mean is None else {"accuracy": summary.accuracy.mean}
        counts = {"problems": summary.problems, "ungraded": summary.ungraded, "documents_cut": summary.documents_cut}
        return {**accuracy, **summary.metrics, **{name: float(count) for name, count in counts.items()}}

    return measure


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

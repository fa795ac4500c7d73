"""RL training: from a recipe to a run folder, with cold start, restarts (restarts.py) and held-out evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from palimpsest.app.config_resolution import Recipe
from palimpsest.app.evaluate.evaluator import Evaluator
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import CallObjects, objects_in
from palimpsest.app.resume import COLD_START, ResolvedRun, Resume, RunRequest, resolve_call, resumable
from palimpsest.app.train.restarts import restarting
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.run_setup import Setup, open_setup
from palimpsest.app.train.supervised_training import run_cold_start
from palimpsest.app.train.training_summary import report_training
from palimpsest.config.load import Overrides
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import left_out
from palimpsest.engines.open import check_state, using
from palimpsest.evaluation.runner import Entry, summaries_of
from palimpsest.evaluation.sample_log import Cell
from palimpsest.memory.registry import build_policy, evaluated
from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.report.run_reports import TrainingResults
from palimpsest.reward.grading import Grades, build_reward, closing, layers_note
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths
from palimpsest.runs.driver import Evaluate, Finished
from palimpsest.runs.loggers import build_loggers
from palimpsest.runs.resume_rules import GIVEN, RunOrigin, how_to_resume
from palimpsest.runs.run_folder import RunFolder, check_folder, open_run
from palimpsest.runs.signals import GracefulStop
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
    progress, stop = progress or Silent(), stop or GracefulStop()
    if note := layers_note(config.reward):
        progress.message(note)
    if config.cold_start is not None:
        cold_start = await run_cold_start(
            config,
            setup.policy,
            setup.engine.codec,
            folder.path / COLD_START,
            progress=progress,
            stop=stop,
            warn=folder.warn,
        )
        if cold_start.interrupted:
            return Finished(0, True, cold_start.checkpoint)
        model = config.model.model_copy(update={"path": str(cold_start.checkpoint)})
        config = config.model_copy(update={"model": model})
        await setup.engine.close()
        await setup.roles.close()
        setup = await asyncio.to_thread(open_setup, config, folder.path)
    if setup.skipped:
        folder.warn(left_out(setup.skipped))
    on_start(config.model.path)
    with folder.keeping_warnings():
        return await _train_with_rewards(folder, config, setup, progress, stop)


async def _train_with_rewards(
    folder: RunFolder, config: RunConfig, setup: Setup, progress: Progress, stop: GracefulStop
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
        loggers=build_loggers(config, folder, progress),
        evaluate=None if setup.held_out is None else _held_out(config, setup, reward.answer, setup.held_out),
        stop=stop,
    )
    return await using(engine, using(setup.roles, closing(reward, trainer.run())))


def _held_out(config: RunConfig, setup: Setup, grader: Grades, problems: Sequence[Problem]) -> Evaluate:
    """Hook that evaluates held-out problems every `train.eval_steps` steps."""
    evaluator = Evaluator(config, setup.engine, grader, roles=setup.roles, training=True)
    cell = Cell("eval", None, None, config.policy.name)
    samples = config.train.eval_samples if config.eval_sampling.temperature else 1
    entries = [Entry(cell, build_policy(evaluated(config.policy)), problems, samples)]

    async def measure(step: int) -> dict[str, float]:
        (summary,) = summaries_of(entries, await evaluator.play(entries))
        accuracy = {} if summary.accuracy.mean is None else {"accuracy": summary.accuracy.mean}
        counts = {"ungraded": float(summary.ungraded), "documents_cut": float(summary.documents_cut)}
        return {**accuracy, **summary.metrics, **counts}

    return measure

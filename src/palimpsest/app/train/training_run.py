"""RL training: from a recipe to a run folder, with cold start and restarts.

A training that loses its processes restarts automatically, at most `cluster.max_restarts` times.

Guaranteed: only transient failures restart (ProcessesLost), not errors of settings, a model, a checkpoint or a full
disk. events.jsonl records every restart. A restart after an attempt without a completed step waits 1 s, then twice as
long each time, at most `LONGEST_S`.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from palimpsest.app.composition import Evaluator, OpenRoles, open_roles, policy_of
from palimpsest.app.config_resolution import Recipe
from palimpsest.app.python_calls import blocking, suitable_progress
from palimpsest.app.python_objects import CallObjects, objects_in
from palimpsest.app.resume import COLD_START, ResolvedRun, Resume, RunRequest, resolve_call, resumable
from palimpsest.app.train.run_handle import Run
from palimpsest.app.train.supervised_training import run_cold_start
from palimpsest.app.train.training_summary import report_training
from palimpsest.config.data import listed
from palimpsest.config.engine import EmbeddedEngineConfig, model_path
from palimpsest.config.load import Overrides, load_recipe, recipe_names
from palimpsest.config.schema import RunConfig, suspicious
from palimpsest.credit.assign import build_rule
from palimpsest.data.files.rows import sniff
from palimpsest.data.sources.file_source import (
    FileSource,
    ProblemSource,
    SearchFileSource,
    build_source,
    left_out,
    rows_left_out,
)
from palimpsest.engines.open import check_engine, check_models, check_state, open_engine, using
from palimpsest.engines.protocol import Engine
from palimpsest.errors import PalimpsestError, ProcessesLost
from palimpsest.evaluation.runner import Entry, summaries_of
from palimpsest.evaluation.sample_log import Cell
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy, evaluated
from palimpsest.models.model_folder import local_folder
from palimpsest.notes import Note
from palimpsest.plugins import check_all
from palimpsest.progress.displays import Terminal
from palimpsest.progress.reporter import Progress, Silent
from palimpsest.provenance import Contents
from palimpsest.reward.grading import Grades, build_reward, check_reward, closing, layers_note
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step
from palimpsest.runs.driver import Evaluate, Finished
from palimpsest.runs.jsonl_rows import read_rows, whole
from palimpsest.runs.loggers import build_loggers, check_sinks
from palimpsest.runs.resume_rules import GIVEN, RunOrigin, how_to_resume
from palimpsest.runs.run_folder import CONFIG, METRICS, RunFolder, check_folder, open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import counted
from palimpsest.training.loop import Trainer
from palimpsest.types import Problem

# ---- Restarts after lost processes ----------------------------------------------------------------------------


T = TypeVar("T")


LONGEST_S = 60.0
"""The longest wait before a restart."""


async def restarting(folder: RunFolder, most: int, attempt: Callable[[bool], Awaitable[T]]) -> T:
    """Await `attempt(restarted)`; restart it up to `most` times if processes are lost. The error after the last restart
    has the first one as a note."""
    first: ProcessesLost | None = None
    fruitless = 0  # attempts in a row that completed no step
    for number in range(most + 1):
        stands = [Stand.of(path) for path in (folder.path, folder.path / COLD_START)]
        try:
            return await attempt(number > 0)
        except ProcessesLost as error:
            if number == most:
                if first is not None:
                    error.add_note(f"restarts: {number} (cluster.max_restarts={most}); the first followed: {first}")
                raise
            first = first or error
            fruitless = 0 if any(stand.left() for stand in stands) else fruitless + 1
            wait_s = wait_before(fruitless)
            folder.warn(Note("restart", error=str(error), number=number + 1, most=most, wait_s=wait_s))
            await asyncio.sleep(wait_s)
        except PalimpsestError as error:
            if first is not None:
                error.add_note(f"raised after a restart; the restart followed: {first}")
            raise
    raise AssertionError("the last attempt returns or raises")


def wait_before(fruitless: int) -> float:
    """Seconds before a restart, after `fruitless` consecutive attempts without a completed step.

    >>> [wait_before(number) for number in (0, 1, 2, 3, 7, 100)]
    [0.0, 1.0, 2.0, 4.0, 60.0, 60.0]
    """
    return min(LONGEST_S, 2.0 ** min(fruitless - 1, 10)) if fruitless else 0.0


@dataclass(frozen=True, slots=True)
class Stand:
    """Progress of a run at the start of an attempt."""

    folder: Path
    saved: int
    """Step of the newest checkpoint; 0: none."""
    changed: int | None
    """Time of the last change of its metrics file, in ns."""

    @classmethod
    def of(cls, folder: Path) -> Stand:
        saved = max(map(checkpoint_step, checkpoint_paths(folder / CHECKPOINTS)), default=0)
        return cls(folder, saved, _changed(folder))

    def left(self) -> bool:
        """True if a step completed since then. Rows of an earlier attempt stay until the next one truncates them."""
        if _changed(self.folder) == self.changed:
            return False
        return any(whole(row, "step", 0) > self.saved for row in read_rows(self.folder / METRICS))


def _changed(folder: Path) -> int | None:
    file = folder / METRICS
    return file.stat().st_mtime_ns if file.exists() else None


# ---- From a recipe to a run folder ---------------------------------------------------------------------------


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
        finished = await run_training(
            run.config, run.folder, resume=run.resume, force=force, progress=shown, stop=stop or GracefulStop()
        )
        if finished.interrupted and quiet:
            Terminal().message(f"{run.folder}: stopped after step {finished.step}; {how_to_resume(run.folder)}")
    return Run(run.folder, objects.held)


train = blocking(train_async)


async def run_training(
    config: RunConfig, out: Path, *, resume: bool, force: bool, progress: Progress, stop: GracefulStop
) -> Finished:
    """`train` of a configuration."""
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
        await asyncio.to_thread(report_training, out)
        return finished


@dataclass(frozen=True, slots=True)
class Inputs:
    """A run's policy and problems, read before its model."""

    policy: MemoryPolicy
    source: ProblemSource
    held_out: Sequence[Problem] | None
    """Problems of the evaluation during training; None: no evaluation."""
    skipped: tuple[str, ...]
    """One message per skipped row of the files."""

    @classmethod
    def of(cls, config: RunConfig) -> Inputs:
        """Read what `config` names and check it, except for the model."""
        policy = policy_checked(config)
        source = build_source(config.data, config.seed, split="train")
        source.problems(step=0, count=config.train.batch_size)
        held_out, skipped = None, dict.fromkeys(rows_left_out(source))
        if config.train.eval_steps:
            evaluated = build_source(config.data, config.seed, split="eval")
            held_out = evaluated.problems(step=0, count=config.evaluation.problems)
            skipped |= dict.fromkeys(rows_left_out(evaluated))
        return cls(policy, source, held_out, tuple(skipped))

    def admitted(self, config: RunConfig, codec: Codec, window: int, note: str = "") -> Mapping[str, Any]:
        """`Setup.contents`, once the budgets fit the window and all problems of a file, or those of the first step,
        fit the budgets."""
        source = self.source
        read, held = Contents(source.questions if isinstance(source, SearchFileSource) else ()), Contents()
        train: Iterable[Problem] = source.problems(step=0, count=config.train.batch_size)
        train = read.watching(source) if isinstance(source, FileSource) else train
        for problems in (train, held.watching(self.held_out or ())):
            admit_all(self.policy, problems, codec, window, note)
        contents = {} if self.held_out is None else {"held_out": held.to_json()}
        return contents | ({"train": read.to_json()} if isinstance(source, FileSource | SearchFileSource) else {})


@dataclass(frozen=True, slots=True)
class Setup(Inputs):
    """Everything a run needs next to its folder, loaded and checked."""

    engine: Engine
    roles: OpenRoles
    contents: Mapping[str, Any]
    """`Contents.to_json` of the problems of files (`train`) and of `held_out`; generated problems have no `train`."""


def open_setup(config: RunConfig, out: Path) -> Setup:
    """Load what `config` names and check it.

    `out` is the run's folder, which may not exist yet; servers write their logs there. Cheap checks come first, so a
    wrong option fails before a model loads.
    """
    check_models(config)
    inputs = Inputs.of(config)
    engine = open_engine(config, objective="policy", folder=out)
    roles, limits = open_roles(config, engine.codec), engine.limits
    contents = inputs.admitted(config, engine.codec, limits.max_context, limits.note)
    return Setup(inputs.policy, inputs.source, inputs.held_out, inputs.skipped, engine, roles, contents)


def policy_checked(config: RunConfig) -> MemoryPolicy:
    """The policy, after the checks that need neither model nor data."""
    check_all(config)
    for reason in suspicious(config):
        warnings.warn(reason, stacklevel=2)
    policy = policy_of(config)
    check_sinks(config)
    build_rule(config.credit)
    check_reward(config.reward)
    return policy


@dataclass(frozen=True, slots=True)
class DryRun:
    """Results of the checks of a dry run."""

    inputs: Inputs | None
    """None: the data is not on this machine."""
    window: int | None
    gpus: str = ""
    """What was not checked of them."""
    missing: tuple[str, ...] = ()
    """What is not on this machine."""

    @classmethod
    def of(cls, run: ResolvedRun, *, elsewhere: bool) -> DryRun:
        """`elsewhere`: the recipe's model and files may be missing."""
        config = run.config
        files = missing_files(config) if elsewhere else []
        model = not elsewhere or local_folder(model_path(config.model)) is not None
        missing = [f"{', '.join(files)} (palimpsest data download --for {config.recipe})"] if files else []
        missing += [] if model else [f"{config.model.path}, so its window was not checked"]
        alone = isinstance(config.engine, EmbeddedEngineConfig) and config.sampler.name == config.engine.name
        if alone and not missing:
            setup = open_setup(config, run.folder)
            asyncio.run(setup.engine.close())
            asyncio.run(setup.roles.close())
            return cls(setup, setup.engine.limits.max_context)
        if model:
            check_models(config)
        inputs = None if files else Inputs.of(config)
        policy = inputs.policy if inputs else policy_checked(config)
        window, unchecked = check_engine(config) if model else (None, "the layout was not checked")
        if window is not None:
            codec = Codec.load(config.model)
            if inputs is None:
                admit_all(policy, (), codec, window)
            else:
                inputs.admitted(config, codec, window)
        return cls(inputs, window, unchecked, tuple(missing))


def missing_files(config: RunConfig) -> list[str]:
    """Files that a shipped recipe names itself and that are not on this machine. Raises DataError for other ones."""
    if config.recipe not in recipe_names():
        return []
    named = load_recipe(config.recipe, read_files=False).data.files
    missing = [name for name in config.data.files if name in named and not Path(name).exists()]
    for name in config.data.files:
        if name not in missing:
            sniff(Path(name))
    return missing


def check_run(run: ResolvedRun, *, force: bool = False, elsewhere: bool = False) -> dict[str, str]:
    """What `train` would do, in words, after its checks. Starts no process and loads no model on several devices.

    `elsewhere`: the run is planned for another machine, so the recipe's model and files may be missing here; the row
    `missing` then names them. Raises ConfigError, DataError, ModelError, or RunError for a folder in use.
    """
    config, train = run.config, run.config.train
    check_folder(run.folder, config, resume=run.resume, force=force)
    checked = DryRun.of(run, elsewhere=elsewhere)
    window, held_out, held = checked.window, checked.inputs.held_out if checked.inputs else None, ""
    if held_out is not None and train.eval_steps:
        held = f"; {counted(len(held_out), 'held-out problem')} every {counted(train.eval_steps, 'step')}"
    options = ", ".join(f"{name}={value}" for name, value in config.policy.options.items() if len(str(value)) < 40)
    cold_start = f"{config.cold_start.max_steps} steps of cold start, then " if config.cold_start else ""
    size, rollouts = counted(train.batch_size, "problem"), counted(train.group_size, "rollout")
    return {
        "recipe": config.recipe,
        "folder": f"{run.folder}, {'resumed' if run.resume and (run.folder / CONFIG).is_file() else 'new'}",
        "model": config.model.path if window is None else f"{config.model.path}, window {window:,} tokens",
        "policy": f"{config.policy.name}: {options}" if options else config.policy.name,
        "reward": config.reward.name,
        "data": f"{', '.join(listed(config.data.train_files))}{held}",
        "step": f"{size} x {rollouts}, {counted(train.num_minibatches, 'optimizer step')}",
        "steps": f"{cold_start}{train.max_steps}",
        "engine": f"{config.engine.name}, sampled by {config.sampler.name}",
        **({"gpus": checked.gpus} if checked.gpus else {}),
        **({"missing": "; ".join(checked.missing)} if checked.missing else {}),
    }


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

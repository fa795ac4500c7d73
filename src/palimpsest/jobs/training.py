"""`palimpsest train` and `palimpsest sft`: from a recipe to a run folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palimpsest.config.models import model_path
from palimpsest.config.schema import RunConfig
from palimpsest.data.source import FileSource, ProblemSource, build_source
from palimpsest.engines.open import open_engine, using
from palimpsest.evaluate.run import evaluate
from palimpsest.imitate.conversations import load_conversations
from palimpsest.imitate.supervised import (
    Selection,
    SupervisedTrainer,
    audible,
    check_fit,
    fingerprint,
    read_trajectories,
)
from palimpsest.jobs.cold_start import run_cold_start
from palimpsest.jobs.parts import Parts, build_parts, policy_of
from palimpsest.jobs.requests import SftRequest, TrainRequest
from palimpsest.jobs.show import note
from palimpsest.memory.registry import admit_all
from palimpsest.reward.compose import build_reward
from palimpsest.reward.grading import Grades, closing
from palimpsest.runs.driver import Evaluate, Finished
from palimpsest.runs.loggers import build_loggers
from palimpsest.runs.run_folder import RunFolder, open_run
from palimpsest.text.codec import Codec
from palimpsest.train.loop import Trainer
from palimpsest.types import Problem, Trajectory


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs besides its folder, loaded and checked."""

    parts: Parts
    source: ProblemSource
    held_out: Sequence[Problem] | None
    """Problems of the evaluation during training; None: there is none."""


def run_training(request: TrainRequest) -> Finished:
    """Train to the end or to the first signal."""
    config = request.config
    prepared = prepare(config)  # before the folder: a mistake corrected is a run begun, not one to resume
    with open_run(request.out, config, resume=request.resume, force=request.force, on_warning=note) as folder:
        finished = train_run(folder, config, prepared)
    again = f"; palimpsest train {request.recipe} --out {request.out} --resume goes on" if finished.interrupted else ""
    note(f"{finished.step} of {config.train.steps} steps, newest checkpoint {finished.checkpoint}{again}")
    return finished


def prepare(config: RunConfig) -> Prepared:
    """Load what `config` names and refuse what it can't do: the whole of a file, the first step of drawn problems."""
    policy_of(config)  # cheap refusals come before the model is loaded
    source = build_source(config.data, split="train")
    first = source.problems(step=0, count=config.train.prompts_per_step)
    held_out = None
    if config.train.eval_every:
        held_out = build_source(config.data, split="eval").problems(step=0, count=config.train.eval_problems)
    parts = build_parts(config)
    for problems in (source if isinstance(source, FileSource) else first, held_out or ()):
        admit_all(parts.policy, problems, parts.engine.codec, parts.engine.sampler.max_context)
    return Prepared(parts, source, held_out)


def train_run(
    folder: RunFolder, config: RunConfig, prepared: Prepared, on_start: Callable[[str], None] = lambda _: None
) -> Finished:
    """Train `config` in an open run folder, after its cold start if it has one.

    `on_start` is told the model that training with rewards starts from.
    """
    if config.cold_start is not None:
        parts = prepared.parts
        begun = run_cold_start(config, config.cold_start, parts.policy, parts.engine.codec, folder.path, folder.warn)
        if begun.interrupted:
            return Finished(0, True, begun.checkpoint)
        model = config.model.model_copy(update={"path": str(begun.checkpoint)})
        config = config.model_copy(update={"model": model})
        prepared = prepare(config)
    on_start(config.model.path)
    return train_in(folder, config, prepared)


def train_in(folder: RunFolder, config: RunConfig, prepared: Prepared) -> Finished:
    """Train `config` in an open run folder."""
    parts = prepared.parts
    assert parts.engine.learner is not None
    reward = build_reward(config.reward, parts.engine.codec, folder.path)
    trainer = Trainer(
        config=config,
        folder=folder,
        codec=parts.engine.codec,
        sampler=parts.engine.sampler,
        learner=parts.engine.learner,
        policy=parts.policy,
        source=prepared.source,
        grader=reward,
        loggers=build_loggers(config, folder),
        evaluate=None if prepared.held_out is None else _evaluation(config, parts, reward.answer, prepared.held_out),
    )
    return asyncio.run(using(parts.engine, closing(reward, trainer.run())))


def _evaluation(config: RunConfig, parts: Parts, grader: Grades, problems: Sequence[Problem]) -> Evaluate:
    """The hook that measures held-out problems every `train.eval_every` steps."""

    async def measure(step: int) -> dict[str, float]:
        summary = await evaluate(
            problems=problems,
            policy=parts.policy,
            sampler=parts.engine.sampler,
            codec=parts.engine.codec,
            grader=grader,
            sampling=config.eval_sampling,
            key=(config.seed, "eval"),
            concurrency=parts.engine.limits.concurrency,
        )
        accuracy = {} if summary.accuracy.mean is None else {"accuracy": summary.accuracy.mean}
        return {**accuracy, **summary.metrics, "ungraded": float(summary.ungraded)}

    return measure


def run_sft(request: TrainRequest, lessons: SftRequest) -> Finished:
    """Imitate trajectories; `train.steps` counts optimiser steps, `train.prompts_per_step` trajectories."""
    config = request.config
    chosen = _recorded(lessons)  # before the model: what is wrong with the records is said at once
    engine = open_engine(config, objective="nll")
    assert engine.learner is not None
    limits = engine.limits
    trajectories = audible(chosen.trajectories if chosen else _conversations(config, lessons, limits.max_context))
    check_fit(trajectories, vocab=limits.vocab, max_context=limits.max_context)
    if chosen:
        note(f"{lessons.records}: {chosen}")
    with open_run(request.out, config, resume=request.resume, force=request.force, on_warning=note) as folder:
        trainer = SupervisedTrainer(
            config=config,
            folder=folder,
            learner=engine.learner,
            trajectories=trajectories,
            loggers=build_loggers(config, folder),
            fingerprint=fingerprint(trajectories),
        )
        finished = asyncio.run(using(engine, trainer.run()))
    note(f"{finished.step} of {config.train.steps} steps, newest checkpoint {finished.checkpoint}")
    return finished


def _recorded(lessons: SftRequest) -> Selection | None:
    """The recorded episodes that were asked for, if any were."""
    if lessons.records is None:
        return None
    return read_trajectories(lessons.records, min_grade=lessons.min_grade, per_problem=lessons.per_problem, warn=note)


def _conversations(config: RunConfig, lessons: SftRequest, max_context: int) -> Sequence[Trajectory]:
    """The conversations that were asked for, in the model's tokens."""
    assert lessons.data is not None
    return load_conversations(
        lessons.data,
        Codec.load(model_path(config.model)),
        max_tokens=max_context,
        drop_too_long=lessons.drop_too_long,
        memory_first=lessons.memory_first,
        warn=note,
    )

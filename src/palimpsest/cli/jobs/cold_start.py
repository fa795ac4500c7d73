"""The cold start of a run: lessons in the form of the policy's replies, in a run folder inside the run's own.

Guaranteed: interrupted, it goes on where it was; finished, it is not done again; the same configuration and seed give
the same weights. Not covered: a cold start on one's own records, which is `palimpsest sft`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from palimpsest.cli.jobs.parts import supervised_learner
from palimpsest.config.schema import ColdStartConfig, CreditConfig, OptimConfig, RewardConfig, RunConfig, TrainConfig
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.text.codec import Codec
from palimpsest.train.driver import Finished
from palimpsest.train.lessons import Lessons
from palimpsest.train.loggers import build_loggers
from palimpsest.train.run_folder import open_run
from palimpsest.train.sft import SupervisedTrainer, check_fit

FOLDER = "cold-start"


def run_cold_start(
    config: RunConfig,
    wanted: ColdStartConfig,
    policy: MemoryPolicy,
    codec: Codec,
    run: Path,
    warn: Callable[[str], None],
) -> Finished:
    """Train on the lessons in `run`/cold-start, or find it done."""
    settings = _settings(config, wanted)
    lessons = Lessons(policy, codec, config.data.synthetic, config.seed)
    trajectories = lessons.trajectories(wanted.steps * wanted.lessons_per_step)
    learner = supervised_learner(settings)
    check_fit(trajectories, vocab=learner.vocab, max_context=learner.max_context)
    with open_run(run / FOLDER, settings, resume=True, on_warning=warn) as folder:
        loggers = build_loggers(settings, folder)
        trainer = SupervisedTrainer(
            config=settings, folder=folder, learner=learner, trajectories=trajectories, loggers=loggers
        )
        return asyncio.run(trainer.run())


def _settings(config: RunConfig, wanted: ColdStartConfig) -> RunConfig:
    """The run's configuration as that of supervised training."""
    train = TrainConfig(
        steps=wanted.steps, prompts_per_step=wanted.lessons_per_step, save_every=wanted.steps, keep_checkpoints=1
    )
    optim = OptimConfig(learning_rate=wanted.learning_rate, warmup_steps=wanted.warmup_steps, schedule="linear")
    return config.model_copy(
        update={
            "recipe": f"{config.recipe}-cold-start",
            "reward": RewardConfig(),
            "credit": CreditConfig(aggregate="token"),
            "train": train,
            "optim": optim,
            "cold_start": None,
        }
    )

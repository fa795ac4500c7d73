"""Supervised training: on recorded episodes, on conversations, or on the SFT examples of a recipe.

The SFT examples (`cold_start`) have the form of the policy's replies. An RL run with a cold start trains on them in a
run folder inside its own.

Guaranteed: an interrupted training resumes; a finished one is not repeated; the same configuration and seed give the
same weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from palimpsest.app.config_resolution import COLD_START, SFT, resumable
from palimpsest.app.python_calls import blocking
from palimpsest.config.data import GENERATED, SearchDataConfig
from palimpsest.config.reward import RewardConfig
from palimpsest.config.schema import CreditConfig, RunConfig
from palimpsest.config.training_steps import ColdStartConfig, OptimConfig, TrainConfig
from palimpsest.data.formats.problem_files import is_question_file
from palimpsest.data.sources.file_source import FileSource, SourceProblems, build_source
from palimpsest.data.synthetic.search_problems import SOURCE as SYNTHETIC_SEARCH
from palimpsest.engines.open import check_models, open_engine, using
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError, DataError
from palimpsest.evaluation.sample_log import read_identity
from palimpsest.memory.lead import LeadPolicy
from palimpsest.memory.parts.tool_agent import ToolAgentPolicy
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.progress.reporter import Progress
from palimpsest.rollout.trajectory_file import NO_TOKENIZER
from palimpsest.rollout.variant import policy_of
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths
from palimpsest.runs.driver import Finished
from palimpsest.runs.loggers import build_loggers, check_sinks
from palimpsest.runs.resume_rules import Imitated, RunOrigin
from palimpsest.runs.run_folder import RunFolder, open_run
from palimpsest.runs.signals import GracefulStop
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.training.supervised.conversations import load_conversations
from palimpsest.training.supervised.lessons import Lessons, taught_by
from palimpsest.training.supervised.scripted_episodes import EvidenceLessons, LeadLessons, ToolLessons
from palimpsest.training.supervised.supervised_loop import (
    Selection,
    SupervisedTrainer,
    Trajectories,
    audible,
    check_fit,
    fingerprint,
    read_trajectories,
)
from palimpsest.training.supervised.walkthroughs import WalkthroughLessons
from palimpsest.types import Trajectory


async def imitate_async(
    config: RunConfig,
    imitated: Imitated | None,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    progress: Progress,
    stop: GracefulStop | None = None,
) -> Finished:
    """Train on `imitated`; `train.max_steps` counts optimizer steps, `train.batch_size` trajectories. None: only on the
    SFT examples of the configuration."""
    check_sinks(config)
    check_models(config)
    stop, warn = stop or GracefulStop(), progress.message
    if imitated is None:
        opening = {"resume": resume, "force": force}
        with resumable(out, progress):
            policy, codec = policy_of(config), Codec.load(config.model)
            return await run_cold_start(config, policy, codec, out, **opening, progress=progress, stop=stop, warn=warn)
    _check_ends(config.train, progress)
    chosen = _recorded(imitated, progress)  # before the model: bad records fail early
    engine = await asyncio.to_thread(open_engine, config, objective="nll")
    window = engine.limits.max_context
    if note := engine.limits.note:
        progress.message(note)
    if chosen:
        _refuse_other_tokenizer(imitated, chosen, engine.codec.digest)
    trajectories = audible(chosen.trajectories if chosen else _made(config, imitated, engine.codec, window, progress))
    check_fit(trajectories, vocab=engine.limits.vocab, max_context=window)
    if chosen:
        progress.message(f"{imitated.records}: {chosen}")
    origin = RunOrigin(SFT, imitated.to_json())
    with (
        open_run(out, config, resume=resume, force=force, on_warning=warn, origin=origin) as folder,
        resumable(out, progress),
    ):
        return await _trained(folder, engine, trajectories, progress, stop, fingerprint(trajectories))


imitate = blocking(imitate_async)


def _check_ends(train: TrainConfig, progress: Progress) -> None:
    if train.max_tokens is not None:
        message = "ends RL; sft ends after train.max_steps: set it to null"
        raise ConfigError(message, key="train.max_tokens", value=train.max_tokens)
    if train.eval_steps is not None:
        progress.message(f"train.eval_steps={train.eval_steps}: sft does not evaluate; palimpsest eval RUN does")


async def _trained(
    folder: RunFolder,
    engine: Engine,
    trajectories: Trajectories,
    progress: Progress,
    stop: GracefulStop,
    mark: str | None = None,
) -> Finished:
    assert engine.learner is not None
    trainer = SupervisedTrainer(
        config=folder.config,
        folder=folder,
        learner=engine.learner,
        trajectories=trajectories,
        loggers=build_loggers(folder.config, folder, progress),
        fingerprint=mark,
        stop=stop,
    )
    return await using(engine, trainer.run())


def _recorded(imitated: Imitated, progress: Progress) -> Selection | None:
    if imitated.records is None or is_question_file(imitated.records):
        return None
    return read_trajectories(
        imitated.records,
        min_grade=imitated.min_grade,
        per_problem=imitated.per_problem,
        warn=progress.message,
    )


def _made(
    config: RunConfig, imitated: Imitated, codec: Codec, max_context: int, progress: Progress
) -> Sequence[Trajectory]:
    """Conversations, or one scripted episode per question of a file that names its evidence."""
    if imitated.data is not None:
        return _conversations(config, imitated, max_context, progress)
    if imitated.min_grade is not None or imitated.per_problem is not None:
        raise ConfigError(f"{imitated.records}: questions have no grade: leave out --min-grade and --best")
    lessons = EvidenceLessons(policy_of(config), codec, lambda index: problems[index])  # rejects agents with tools
    data = config.data.model_copy(update={"train_files": str(imitated.records), "val_files": None})
    source = build_source(data, config.seed, split="train")
    assert isinstance(source, FileSource)
    problems = SourceProblems.all_of(source)
    return [lessons.draw(index) for index in range(len(problems))]


def _refuse_other_tokenizer(imitated: Imitated, chosen: Selection, digest: str) -> None:
    """Raise DataError if another tokenizer than the model's (`digest`) made the records' ids.

    Records without a digest take it from the files around them: an endpoint's evaluation, a run with a checkpoint.
    """
    records, named = Path(imitated.records or ""), chosen.tokenizers - {NO_TOKENIZER}
    fix = "train the model that sampled them, or sample them again with palimpsest eval FOLDER --out DIR"
    if other := sorted(named - {digest}):
        raise DataError(
            f"{records}: its token ids belong to another tokenizer ({other[0]}) than the model's ({digest}); {fix}"
        )
    if NO_TOKENIZER not in chosen.tokenizers:
        return
    around = (records, *records.absolute().parents[:2])
    endpoint = next((address for folder in around if (address := read_identity(folder).get("endpoint"))), None)
    if endpoint is not None:
        raise DataError(
            f"{records}: an endpoint (mode {endpoint.get('mode')}) sampled it, and it names no tokenizer for its "
            f"token ids; {fix}"
        )
    saved = [path for folder in around for path in checkpoint_paths(folder / CHECKPOINTS)]
    checkpoint = next((path for path in reversed(saved) if (path / "tokenizer.json").is_file()), None)
    if checkpoint is None:
        raise DataError(
            f"{records}: names no tokenizer for its token ids, and no checkpoint is near; pass the folder of the run "
            f"that recorded them, or {fix}"
        )
    if (theirs := Codec.for_reading(checkpoint).digest) != digest:
        raise DataError(
            f"{records}: its token ids belong to the tokenizer of {checkpoint} ({theirs}), not to the model's "
            f"({digest}); {fix}"
        )


def _conversations(config: RunConfig, imitated: Imitated, max_context: int, progress: Progress) -> Sequence[Trajectory]:
    assert imitated.data is not None
    return load_conversations(
        imitated.data,
        Codec.load(config.model),
        max_tokens=max_context,
        drop_too_long=imitated.drop_too_long,
        memory_first=imitated.memory_first,
        warn=progress.message,
    )


# ---- The cold start of a run ---------------------------------------------------------------------------------


SAVE_EVERY = 250
_SUFFIX = f"-{COLD_START}"


Examples = Lessons | EvidenceLessons | ToolLessons | LeadLessons | WalkthroughLessons
"""Sources of SFT examples."""


class Drawn:
    """SFT examples of a cold start, drawn on first use: the first step and a resumed run start immediately."""

    def __init__(
        self,
        lessons: Examples,
        wanted: ColdStartConfig,
        check: Callable[[Sequence[Trajectory]], None],
    ) -> None:
        self._lessons, self._check = lessons, check
        self._count = wanted.max_steps * wanted.batch_size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Trajectory:
        lesson = self._lessons.draw(index)
        self._check([lesson])
        return lesson


async def run_cold_start(
    config: RunConfig,
    policy: MemoryPolicy,
    codec: Codec,
    out: Path,
    *,
    resume: bool = True,
    force: bool = False,
    progress: Progress,
    stop: GracefulStop,
    warn: Callable[[str], None],
) -> Finished:
    """Train on the SFT examples of `config.cold_start` in the run folder `out`, unless that is done. Raises ConfigError
    without `cold_start`."""
    if (wanted := config.cold_start) is None:
        raise ConfigError(
            f"recipe {config.recipe}: has no cold_start, so it needs data: --from RUN (recorded episodes), "
            "--data FILE (conversations), or e.g. 'cold_start={max_steps: 400}'"
        )
    settings = _settings(config, wanted)
    engine = await asyncio.to_thread(open_engine, settings, objective="nll")
    limits = engine.limits
    check = partial(check_fit, vocab=limits.vocab, max_context=limits.max_context)
    lessons = Drawn(build_lessons(config, wanted, policy, codec, limits.max_context), wanted, check)
    with open_run(out, settings, resume=resume, force=force, on_warning=warn, origin=RunOrigin(SFT)) as folder:
        return await _trained(folder, engine, lessons, progress, stop)


def check_lessons(config: RunConfig, policy: MemoryPolicy) -> None:
    """Raise ConfigError if `cold_start` is set and has no SFT examples in the policy's form."""
    source = config.data.train_files
    if not config.cold_start or config.environment or (source == "synthetic" and isinstance(policy, LeadPolicy)):
        return
    if source != SYNTHETIC_SEARCH:
        taught_by(policy)
    elif not isinstance(policy, ToolAgentPolicy):
        raise ConfigError(
            f"cold_start of search problems needs an agent with tools; {type(policy).__name__} has none: "
            "set cold_start=null, or start from palimpsest sft on your records"
        )


def build_lessons(
    config: RunConfig, wanted: ColdStartConfig, policy: MemoryPolicy, codec: Codec, window: int
) -> Examples:
    """SFT examples in the policy's form, for a model of `window` tokens. Raises ConfigError if none exist for it."""
    check_lessons(config, policy)
    if config.environment is not None:
        source = build_source(config.data, config.seed, split="train", golds=False)
        environment = OpenEnvironment(config.environment)
        return WalkthroughLessons(
            policy, codec, environment, lambda index: source.problems(step=index, count=1)[0], config.seed
        )
    if config.data.train_files == "synthetic" and isinstance(policy, LeadPolicy):
        return LeadLessons(policy, codec, config.seed, config.data.synthetic.task)
    if config.data.train_files == "synthetic":
        return Lessons(policy, codec, config.data.synthetic, config.seed, wanted.insight)
    if config.data.train_files not in GENERATED:
        source = build_source(config.data, config.seed, split="train")
        return EvidenceLessons(policy, codec, lambda index: source.problems(step=index, count=1)[0])
    assert isinstance(policy, ToolAgentPolicy)
    return ToolLessons(policy, codec, config.data.search or SearchDataConfig(), config.seed, window)


def _settings(config: RunConfig, wanted: ColdStartConfig) -> RunConfig:
    """The run's configuration for supervised training; it retains `cold_start`, so the folder can be resumed."""
    train = TrainConfig(
        max_steps=wanted.max_steps,
        batch_size=wanted.batch_size,
        save_steps=min(wanted.max_steps, SAVE_EVERY),
        save_total_limit=1,
    )
    optim = OptimConfig(
        learning_rate=wanted.learning_rate, warmup_steps=wanted.warmup_steps, lr_scheduler_type="linear"
    )
    return config.model_copy(
        update={
            "recipe": f"{config.recipe.removesuffix(_SUFFIX)}{_SUFFIX}",
            "reward": RewardConfig(),
            "credit": CreditConfig(agg_mode="token"),
            "train": train,
            "optim": optim,
        }
    )

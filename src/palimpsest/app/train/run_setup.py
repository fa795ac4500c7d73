"""What a run needs next to its folder, loaded and checked: policy, problems, engine, roles."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest.agents.roles import OpenRoles, open_roles
from palimpsest.app.train.supervised_training import check_lessons
from palimpsest.config.schema import RunConfig, suspicious
from palimpsest.credit.assign import build_rule
from palimpsest.data.sources.file_source import (
    FileSource,
    ProblemSource,
    SearchFileSource,
    build_source,
    rows_left_out,
)
from palimpsest.engines.open import check_models, open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, check_roles
from palimpsest.plugin_kinds import KINDS
from palimpsest.plugins import check_all
from palimpsest.provenance import Contents
from palimpsest.reward.grading import check_reward
from palimpsest.rollout.variant import policy_of
from palimpsest.runs.loggers import check_sinks
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import OpenEnvironment
from palimpsest.types import Problem


@dataclass(slots=True)
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
        source = build_source(config.data, config.seed, split="train", golds=config.needs_golds)
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
            admit_all(self.policy, problems, codec, window, note, config.environment)
        contents = {} if self.held_out is None else {"held_out": held.to_json()}
        return contents | ({"train": read.to_json()} if isinstance(source, FileSource | SearchFileSource) else {})


@dataclass(slots=True)
class Setup(Inputs):
    """Everything a run needs next to its folder, loaded and checked."""

    engine: Engine
    roles: OpenRoles
    contents: Mapping[str, Any]
    """`Contents.to_json` of the problems of files (`train`) and of `held_out`; generated problems have no `train`."""

    async def close(self) -> None:
        """Close and drop engine and roles, which frees their memory."""
        await self.engine.close()
        await self.roles.close()
        del self.engine, self.roles


def open_setup(config: RunConfig, out: Path) -> Setup:
    """Load what `config` names and check it.

    `out` is the run's folder, which may not exist yet; servers write their logs there. Cheap checks come first, so a
    wrong option fails before a model loads.
    """
    check_models(config)
    inputs = Inputs.of(config)
    engine = open_engine(config, objective="policy", folder=out)
    roles, limits = open_roles(config, engine.codec, engine.sampler), engine.limits
    contents = inputs.admitted(config, engine.codec, limits.max_context, limits.note)
    return Setup(inputs.policy, inputs.source, inputs.held_out, inputs.skipped, engine, roles, contents)


def unearned(config: RunConfig, policy: MemoryPolicy) -> Iterator[str]:
    """Settings of reward and credit that the policy's episodes hardly or never earn, each with the reason."""
    name, reward = config.policy.name, config.reward
    if (
        policy.reward is not None
        and config.environment is None
        and reward.name in KINDS["reward"].shipped.keys() - {policy.reward}
    ):
        answer = f"the prompts of {name} ask for the answer form of {policy.reward}, unless yours differ"
        yield f"reward.name={reward.name}: {answer}"
    if name not in KINDS["policy"].shipped:
        return
    if reward.pass_bonus and getattr(policy, "passes", 1) < 2:
        yield f"reward.pass_bonus={reward.pass_bonus:g}: {name} makes one pass; parallel may make several"
    if config.credit.adv_estimator == "success_gated" and policy.reads_documents:
        yield f"credit.adv_estimator=success_gated: {name} never edits its context; prune, edit and summary do"


def policy_checked(config: RunConfig) -> MemoryPolicy:
    """The policy, after the checks that need neither model nor data."""
    policy = policy_of(config)
    check_all(config)
    if config.environment is not None:
        OpenEnvironment(config.environment).check()
    for reason in suspicious(config):
        warnings.warn(reason, stacklevel=2)
    check_roles(config)
    check_lessons(config, policy)
    for reason in unearned(config, policy):
        warnings.warn(reason, stacklevel=2)
    check_sinks(config)
    build_rule(config.credit)
    check_reward(config.reward)
    return policy

"""Composition of a configuration's parts into a run, an evaluation or an agent.

run           policy, engine, data, reward with its layers -> Trainer         (app/train/training_run.py)
evaluation    engine, reward of the answer, sampling, draws -> `Evaluator`    (evaluate, held-out problems of a
                                                                               training, a quickstart's shards)
agent         engine, a sampler for each role with its own model -> `OpenAgent`, which fits the policy to each problem

`fitted` adapts a shipped policy to the model's window. It sets only unset options: from the recipes for small models if
the window is below `SMALL_WINDOW`, otherwise from the policy's published defaults. Then `question_tokens` grows to the
longest question and `chunk_size` shrinks to the remaining room. The chosen values are printed and are part of the
evaluation's identity.

Guaranteed: a role's model with another tokenizer is an error before any episode, as the same ids would mean other text.
Not covered: fitting policies without these options, which stay unchanged; placing models on devices (all load on
`model.device`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from palimpsest import plugins
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.open import open_engine, start_servers, using
from palimpsest.engines.protocol import Engine, Sampler
from palimpsest.errors import ConfigError
from palimpsest.evaluation.episode_files import EpisodeFile
from palimpsest.evaluation.runner import Arena, Entry, Measure, Samples, play_entries
from palimpsest.evaluation.sample_log import Sample
from palimpsest.memory.overwrite import question_length
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import REPLIES, admit_all, build_policy, policy_class
from palimpsest.metrics.memory_metrics import evidence_position, memory_metrics
from palimpsest.metrics.reading_trace import GroupTexts
from palimpsest.plugin_kinds import KINDS
from palimpsest.plugin_options import options_of
from palimpsest.reward.grading import Grades
from palimpsest.rollout.episode import Roles, play
from palimpsest.rollout.speculation import Speculation
from palimpsest.rollout.variant import build_variant
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.training.step_metrics import tool_measures
from palimpsest.types import Grade, Group, Problem, Trajectory

# ---- Policy options fitted to the model's window -------------------------------------------------------------


SMALL_WINDOW = 4096
PUBLISHED_WINDOW = 32_768
"""Window of the models with published budgets. Replies get less in a smaller one: small models repeat themselves to the
end of a budget."""
SMALL_RECIPES = ("memagent-quickstart", "rememr1-quickstart", "memact-quickstart")


def fitted(config: PolicyConfig, *, problems: Sequence[Problem], codec: Codec, max_context: int) -> PolicyConfig:
    """`config` with its unset options chosen for these problems and this window; options of a Python object stay."""
    if not isinstance(plugins.load("policy", config.name), type):
        return config
    options = dict(config.options)
    if max_context < SMALL_WINDOW:
        options = {**_small_options(config.name), **options}
    chosen = PolicyConfig(name=config.name, options=options)
    names = options_of(policy_class(config.name))
    shipped = config.name in KINDS["policy"].shipped
    for name in [name for name in REPLIES if shipped and name in names and name not in options]:
        published = _value(chosen, name)
        chosen = _with(chosen, **{name: min(published, published * max_context // PUBLISHED_WINDOW)})
    if "question_tokens" in names and "question_tokens" not in config.options:
        longest = max((question_length(problem, codec) for problem in problems), default=0)
        chosen = _with(chosen, question_tokens=max(longest, _value(chosen, "question_tokens")))
    if "chunk_size" in names and "chunk_size" not in config.options:
        over = build_policy(chosen).required_context(codec) - max_context
        size = _value(chosen, "chunk_size")
        if 0 < over < size:
            chosen = _with(chosen, chunk_size=size - over)
    return chosen


_RULES = ("grounded", "unit")
"""Options other than sizes; they come only from the request or the training."""


@lru_cache(maxsize=64)
def _small_options(name: str) -> dict[str, Any]:
    """Options of the first policy called `name` in the small models' recipes; `closed_book`: those of
    `full_context`."""
    if name == "closed_book":
        options = _small_options("full_context")
        return {option: value for option, value in options.items() if option in options_of(policy_class(name))}
    for recipe in map(load_recipe, SMALL_RECIPES):
        for policy in (
            recipe.policy,
            *recipe.evaluation.baselines.values(),
            *recipe.evaluation.trained_baselines.values(),
        ):
            if policy.name == name:
                return {name: value for name, value in policy.options.items() if name not in _RULES}
    return {}


def _value(config: PolicyConfig, option: str) -> int:
    return int(config.options.get(option, options_of(policy_class(config.name))[option].default))


def _with(config: PolicyConfig, **options: Any) -> PolicyConfig:
    return PolicyConfig(name=config.name, options={**config.options, **options})


def options_line(policy: PolicyConfig) -> str:
    """A line with a policy's options; of prompt texts, their number."""
    shown = {k: f"({len(v)} texts)" if isinstance(v, dict) and "system" in v else v for k, v in policy.options.items()}
    return f"{policy.name}: " + ", ".join(f"{name}={value}" for name, value in shown.items())


# ---- Roles and their samplers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenRoles:
    """Samplers by role, and the engines opened for them."""

    samplers: Roles
    engines: tuple[Engine, ...]

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()


def open_roles(config: RunConfig, codec: Codec) -> OpenRoles:
    """The roles under `roles`; `codec` is that of the run's model."""
    samplers, engines = dict[str, Sampler | None](), list[Engine]()
    for name, role in config.roles.items():
        samplers[name] = None
        if role.model is not None:
            engine = open_engine(_with_model(config, role.model), objective=None)
            engines.append(engine)
            _check_tokenizer(name, role.model, engine.codec, codec)
            samplers[name] = engine.sampler
    return OpenRoles(samplers, tuple(engines))


def _with_model(config: RunConfig, path: str) -> RunConfig:
    model = config.model.model_copy(update={"path": path, "lora": None, "chat_template_kwargs": {}})
    return config.model_copy(update={"model": model})


def _check_tokenizer(name: str, path: str, theirs: Codec, ours: Codec) -> None:
    if theirs.tokenizer.get_vocab() != ours.tokenizer.get_vocab() or theirs.stop_ids != ours.stop_ids:
        raise ConfigError(
            f"roles.{name}.model={path!r} has another tokenizer than model.path: prompts pass between them as token "
            "ids; choose a model of the same family"
        )


# ---- Evaluations ---------------------------------------------------------------------------------------------


def policy_of(config: RunConfig) -> MemoryPolicy:
    """The configured policy. Raises ConfigError for a wrong option, also of its training variant."""
    build_variant(config)
    return build_policy(config.policy)


@dataclass(frozen=True)
class Evaluator:
    """Runs entries under one configuration."""

    config: RunConfig
    engine: Engine
    grader: Grades
    """Grades only the answer, without training's reward layers."""
    key: str = "eval"
    """Key of the random draws, next to the seed."""
    measure: Measure | None = None
    roles: OpenRoles | None = None
    """Samplers of turns with a role; None: opened and closed by `play`."""
    training: bool = False
    """Reads ahead only if the configuration says so."""

    @cached_property
    def speculation(self) -> Speculation | None:
        """Counts of the sections read ahead; None: off."""
        return Speculation.of(self.config.engine, self.engine.limits.concurrency, training=self.training)

    async def play(
        self,
        entries: Sequence[Entry],
        *,
        out: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        on_sample: Callable[[Sample], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> Samples:
        """Run every problem and return the samples, logged in `out`; finished ones come from that log."""
        await start_servers(self.engine)
        episodes, opened, roles = self._episodes(out, on_warning), None, self.roles
        if roles is None:
            roles = opened = await asyncio.to_thread(open_roles, self.config, self.engine.codec)
        arena = Arena(
            sampler=self.engine.sampler,
            codec=self.engine.codec,
            grader=self.grader,
            sampling=self.config.eval_sampling,
            key=(self.config.seed, self.key),
            measure=self.measure,
            roles=roles.samplers,
            episodes=episodes,
            speculation=self.speculation,
        )
        playing = play_entries(
            entries,
            arena,
            out=out,
            concurrency=self.engine.limits.concurrency,
            identity=identity,
            on_sample=on_sample,
            on_warning=on_warning,
        )
        return await (playing if opened is None else using(opened, playing))

    def _episodes(self, out: Path | None, warn: Callable[[str], None] | None) -> EpisodeFile | None:
        selection = self.config.evaluation.record
        if out is None or selection == "none":
            return None
        return EpisodeFile(out, selection, warn, self.engine.codec.digest)


def measure_memory(problem: Problem, trajectory: Trajectory, grade: Grade, texts: GroupTexts) -> dict[str, float]:
    """Measures of an episode apart from its grade: copy fidelity, memory length, prunes, evidence position..."""
    measured = memory_metrics(Group(problem, (trajectory,), (grade,)), texts) | tool_measures(trajectory)
    return {name: value for name, value in measured.items() if value is not None} | evidence_position(problem)


# ---- Agent ---------------------------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenAgent:
    """A configuration with its opened engine and roles."""

    config: RunConfig
    engine: Engine
    roles: OpenRoles
    speculation: Speculation | None = None

    def fitted_to(self, problem: Problem) -> PolicyConfig:
        """The configuration of its policy with options for the problem."""
        window = self.engine.sampler.max_context
        return fitted(self.config.policy, problems=[problem], codec=self.engine.codec, max_context=window)

    def policy_for(self, problem: Problem, most: int | None = None) -> MemoryPolicy:
        """Its policy, fitted to the problem; an answer has at most `most` tokens. Raises ConfigError or DataError if it
        does not fit."""
        chosen = self.fitted_to(problem)
        if most is not None and "answer_tokens" in options_of(policy_class(chosen.name)):
            chosen = _with(chosen, answer_tokens=min(most, _value(chosen, "answer_tokens")))
        policy = build_policy(chosen)
        admit_all(policy, [problem], self.engine.codec, self.engine.sampler.max_context)
        return policy

    async def play(self, problem: Problem, policy: MemoryPolicy, name: Key, **how: Any) -> Trajectory:
        """Run one episode with the sampling of evaluations; the key of draws is (seed, name, problem, turn). `how`:
        other arguments of `rollout.episode.play`."""
        sampling, key = self.config.eval_sampling, (self.config.seed, name)
        how = {"sampling": sampling, "key": key, "group_id": str(name), "rollout": 0, **how}
        return await play(
            problem,
            policy=policy,
            sampler=self.engine.sampler,
            codec=self.engine.codec,
            roles=self.roles.samplers,
            speculation=self.speculation,
            **how,
        )

    async def close(self) -> None:
        """Close its models; a second call does nothing."""
        await self.roles.close()
        await self.engine.close()


async def open_agent(config: RunConfig) -> OpenAgent:
    """Open the agent of a configuration; the caller closes it."""
    engine = await asyncio.to_thread(open_engine, config, objective=None)
    try:
        roles = await asyncio.to_thread(open_roles, config, engine.codec)
        await start_servers(engine)
        return OpenAgent(config, engine, roles, Speculation.of(config.engine, engine.limits.concurrency))
    except BaseException:
        await engine.close()
        raise


async def with_agent(config: RunConfig, work: Callable[[OpenAgent], Coroutine[Any, Any, T]]) -> T:
    """Result of `work` with the agent of `config`, which is closed afterwards."""
    agent = await open_agent(config)
    return await using(agent, work(agent))

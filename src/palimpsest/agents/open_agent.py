"""An agent of a configuration: opened with its engine and roles, its policy's options fitted to the model's window.

`fitted` adapts a shipped policy. It sets only unset options: from the recipes for small models if the window is below
`SMALL_WINDOW`, otherwise from the policy's published defaults. Then `question_tokens` grows to the longest question and
`chunk_size` shrinks to the remaining room. The chosen values are printed and are part of the evaluation's identity.
Not covered: policies without these options, which stay unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from palimpsest import plugins
from palimpsest.agents.roles import OpenRoles, open_roles
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.open import open_engine, start_servers, using
from palimpsest.engines.protocol import Engine
from palimpsest.memory.overwrite import question_length
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import REPLIES, admit_all, build_policy, policy_class
from palimpsest.plugin_kinds import KINDS
from palimpsest.plugin_options import options_of
from palimpsest.rollout.episode import play
from palimpsest.rollout.speculation import Speculation
from palimpsest.seeding import Key
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Trajectory

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
            chosen = with_options(chosen, answer_tokens=min(most, option_value(chosen, "answer_tokens") or most))
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
            environment=self.roles.environment,
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
        roles = await asyncio.to_thread(open_roles, config, engine.codec, engine.sampler)
        await start_servers(engine)
        return OpenAgent(config, engine, roles, Speculation.of(config.engine, engine.limits.concurrency))
    except BaseException:
        await engine.close()
        raise


async def with_agent(config: RunConfig, work: Callable[[OpenAgent], Coroutine[Any, Any, T]]) -> T:
    """Result of `work` with the agent of `config`, which is closed afterwards."""
    agent = await open_agent(config)
    return await using(agent, work(agent))


# ---- A policy's options fitted to a window -------------------------------------------------------------------


SMALL_WINDOW = 4096
PUBLISHED_WINDOW = 32_768
"""Window of the models with published budgets. Replies get less in a smaller one: small models repeat themselves to the
end of a budget."""
SMALL_METHODS = ("memagent", "rememr1", "memact", "edit", "parallel", "lead")
SMALL_RECIPES = tuple(f"{method}-quickstart" for method in SMALL_METHODS)


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
        if published := option_value(chosen, name):
            chosen = with_options(chosen, **{name: min(published, published * max_context // PUBLISHED_WINDOW)})
    if "question_tokens" in names and "question_tokens" not in config.options:
        longest = max((question_length(problem, codec) for problem in problems), default=0)
        if (own := option_value(chosen, "question_tokens")) is not None:
            chosen = with_options(chosen, question_tokens=max(longest, own))
    if "chunk_size" in names and "chunk_size" not in config.options:
        over = build_policy(chosen).required_context(codec) - max_context
        size = option_value(chosen, "chunk_size")
        if size is not None and 0 < over < size:
            chosen = with_options(chosen, chunk_size=size - over)
    return chosen


_RULES = ("grounded", "unit")
"""Options other than sizes; they come only from the request or the training."""


_recipe = lru_cache(maxsize=len(SMALL_RECIPES))(load_recipe)


@lru_cache(maxsize=64)
def _small_options(name: str) -> dict[str, Any]:
    """Options of the first policy called `name` in the small models' recipes; `closed_book`: those of
    `full_context`."""
    if name == "closed_book":
        options = _small_options("full_context")
        return {option: value for option, value in options.items() if option in options_of(policy_class(name))}
    for recipe in map(_recipe, SMALL_RECIPES):
        others = recipe.evaluation
        for policy in (recipe.policy, *others.baselines.values(), *others.trained_baselines.values()):
            if policy.name == name:
                return {name: value for name, value in policy.options.items() if name not in _RULES}
    return {}


def option_value(config: PolicyConfig, option: str) -> int | None:
    value = config.options.get(option, options_of(policy_class(config.name))[option].default)
    return value if isinstance(value, int) else None


def with_options(config: PolicyConfig, **options: Any) -> PolicyConfig:
    return PolicyConfig(name=config.name, options={**config.options, **options})


def options_line(name: str, options: Mapping[str, Any]) -> str:
    """A line with a policy's options; of prompt texts, their number.

    >>> options_line("overwrite", {"chunk_size": 9, "prompts": {"read": "Read {section}.", "answer": "Answer."}})
    'overwrite: chunk_size=9, prompts=(2 texts)'
    """
    prompts = options.get("prompts")
    shown = {**options, "prompts": f"({len(prompts)} texts)"} if isinstance(prompts, dict) else options
    values = ", ".join(f"{key}={value}" for key, value in shown.items())
    return f"{name}: {values}" if values else name

"""An agent of a configuration: opened with its engine and roles, its policy fitted to each problem."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from palimpsest.agents.fitted_policy import fitted, option_value, with_options
from palimpsest.agents.roles import OpenRoles, open_roles
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.engines.open import open_engine, start_servers, using
from palimpsest.engines.protocol import Engine
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy, policy_class
from palimpsest.plugin_options import options_of
from palimpsest.rollout.episode import play
from palimpsest.rollout.speculation import Speculation
from palimpsest.seeding import Key
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
            chosen = with_options(chosen, answer_tokens=min(most, option_value(chosen, "answer_tokens")))
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

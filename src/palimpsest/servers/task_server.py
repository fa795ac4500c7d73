"""Tasks of a recipe as an OpenEnv environment: any trainer that plays one trains a memory agent on our tasks.

    palimpsest serve-openenv memagent-quickstart

Every prompt of the recipe's policy is an observation, and the action is the model's reply. The last observation has the
recipe's reward, the outcome and the metrics. Prompts are chat messages, for any model: budgets in tokens count with the
tokenizer of `model.path`.

    reset(seed=7)                       {"messages": [...], "max_tokens": 64}
    step({"text": "Anna lives ..."})    the next prompt, or {"done": true, "reward": 1.0, "metadata": {...}}

A reply that the trainer cut has `"truncated": true`. Without a seed, `reset` takes the next problem.

Guaranteed: a session plays one episode at a time, with a policy of the recipe, unchanged; a new reset or the end of the
connection ends the episode; the same seed gives the same problem. Sessions are bounded.
Not covered: tokens and log-probabilities, which the trainer has; tool results in the role `tool` (they arrive as user
messages); the window of the trainer's chat template, since budgets count our markers; OpenEnv's HTTP calls, which have
no session; authentication, which OpenEnv lacks, so the server
listens on loopback unless `--host` names another address.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import uvicorn

from palimpsest.agents.roles import OpenRoles, open_roles
from palimpsest.config.install_hints import install_line
from palimpsest.config.schema import RunConfig
from palimpsest.data.sources.file_source import ProblemSource, build_source
from palimpsest.engines.protocol import Sampler
from palimpsest.errors import ConfigError
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import admit_all, build_policy
from palimpsest.reward.grading import Reward, build_reward, graded
from palimpsest.rollout.episode import play
from palimpsest.servers.http_service import bound
from palimpsest.text.chat import messages_of, neutral_codec
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Problem, SamplingParams, StopReason

LONGEST = 1 << 20
"""Characters of a reply that are read."""
PATIENCE_S = 3600.0
"""Silence of a client that learns, before its connection counts as lost."""


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """The next prompt, or the end of the episode."""

    messages: tuple[Mapping[str, str], ...] = ()
    max_tokens: int = 0
    """Budget of the reply."""
    done: bool = False
    reward: float | None = None
    """Reward of the episode; None for an ungraded one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tasks:
    """A recipe's policy, problems and reward."""

    config: RunConfig
    codec: Codec
    policy: MemoryPolicy
    source: ProblemSource
    reward: Reward
    roles: OpenRoles
    stops: tuple[str, ...]
    """Texts that end a reply of the model."""
    seeds: Iterator[int] = field(default_factory=itertools.count)
    """Seeds of episodes without one."""

    @classmethod
    def open(cls, config: RunConfig) -> Tasks:
        """Raises ConfigError, DataError or ModelError."""
        for name, role in config.roles.items():
            if role.model is not None and role.url is None:
                raise ConfigError(
                    "served tasks have no model of their own: set url, or model=null to ask the trainer's model",
                    key=f"roles.{name}.model",
                    value=role.model,
                )
        own = Codec.load(config.model)
        codec, stops = neutral_codec(own), tuple(own.decode([stop]) for stop in own.stop_ids)
        policy = build_policy(config.policy)
        source = build_source(config.data, config.seed, split="train", golds=config.needs_golds)
        admit_all(policy, source.problems(step=0, count=1), codec, 1 << 30, environment=config.environment)
        return cls(config, codec, policy, source, build_reward(config.reward, codec), open_roles(config, codec), stops)

    def problem(self, seed: int) -> Problem:
        """Raises ValueError for a negative seed, or another type."""
        if type(seed) is not int or not 0 <= seed < 1 << 63:
            raise ValueError(f"seed={seed!r:.40}: give a whole number from 0")
        return self.source.problems(step=seed, count=1)[0]


_Reply = tuple[str, bool]
"""Text, and whether it was cut."""


class _Asking(Sampler):
    """A sampler whose completions come from outside."""

    max_context = 1 << 30
    version = 0

    def __init__(self, codec: Codec, stops: Sequence[str]) -> None:
        self.codec, self.stops = codec, stops
        self.asked: asyncio.Queue[tuple[Sequence[int], SamplingParams, asyncio.Future[_Reply]]] = asyncio.Queue()

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, **_: Any) -> Completion:
        reply: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((prompt_ids, params, reply))
        text, truncated = await reply
        for stop in self.stops:
            text = text.removesuffix(stop)
        ids = self.codec.encode(text[:LONGEST]) + ([] if truncated else [self.codec.stop_ids[-1]])
        reason = StopReason.LENGTH if truncated or len(ids) > params.max_tokens else StopReason.STOP
        ids = ids[: params.max_tokens]
        return Completion(tuple(ids), (0.0,) * len(ids), reason)

    def stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the model is outside")

    score = stats = stream


class TaskSession:
    """One episode after the other."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._playing: asyncio.Task[Any] | None = None
        self._sampler = _Asking(tasks.codec, tasks.stops)
        self._reply: asyncio.Future[_Reply] | None = None
        self._problem = Problem()

    async def reset(self, seed: int | None = None) -> TaskPrompt:
        """Begin an episode of problem `seed`, None for the next one; returns its first prompt. Raises ValueError."""
        await self.close()
        tasks, self._sampler = self.tasks, _Asking(self.tasks.codec, self.tasks.stops)
        seed = next(tasks.seeds) if seed is None else seed
        self._problem = tasks.problem(seed)
        episode = play(
            self._problem,
            policy=tasks.policy,
            sampler=self._sampler,
            codec=tasks.codec,
            sampling=tasks.config.sampling,
            key=(tasks.config.seed, "served"),
            group_id="served",
            rollout=seed,
            roles=tasks.roles.samplers,
            environment=tasks.roles.environment,
        )
        self._playing = asyncio.create_task(episode)
        return await self._next()

    async def step(self, text: str, *, truncated: bool = False) -> TaskPrompt:
        """The prompt after the reply `text`, cut at its budget if `truncated`, or the end.

        Raises ValueError without an episode.
        """
        if self._reply is None:
            raise ValueError("no episode: call reset first")
        self._reply.set_result((text, truncated))
        return await self._next()

    async def close(self) -> None:
        self._reply = None
        if self._playing is not None:
            self._playing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._playing
            self._playing = None

    async def _next(self) -> TaskPrompt:
        assert self._playing is not None
        asked, self._reply = asyncio.ensure_future(self._sampler.asked.get()), None
        await asyncio.wait({asked, self._playing}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            prompt, params, self._reply = asked.result()
            return TaskPrompt(tuple(messages_of(prompt, self.tasks.codec)), params.max_tokens)
        asked.cancel()
        trajectory = self._playing.result()
        grade = await graded(self.tasks.reward, self._problem, trajectory)
        about = {"outcome": trajectory.outcome.value, "answer": trajectory.answer, "reason": grade.reason}
        return TaskPrompt(done=True, reward=grade.value, metadata={**about, "metrics": dict(grade.breakdown)})


def openenv_app(tasks: Tasks, sessions: int) -> Any:
    """The FastAPI application of OpenEnv, with at most `sessions` sessions. Raises ConfigError without the package."""
    try:
        from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    except ImportError:
        raise ConfigError(f"serve-openenv needs openenv: {install_line('openenv')}") from None

    class Reply(Action):  # type: ignore[misc]
        text: str
        truncated: bool = False

    class Prompt(Observation):  # type: ignore[misc]
        messages: tuple[dict[str, str], ...] = ()
        max_tokens: int = 0

    class Served(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.session, self.about = TaskSession(tasks), State()
            self.loop: asyncio.AbstractEventLoop | None = None

        async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Prompt:
            self.loop = asyncio.get_running_loop()
            self.about = State(episode_id=episode_id)
            return Prompt(**asdict(await self.session.reset(seed)))

        async def step_async(self, action: Reply, timeout_s: float | None = None, **_: Any) -> Prompt:
            self.about.step_count += 1
            return Prompt(**asdict(await self.session.step(action.text, truncated=action.truncated)))

        def reset(self, *_: Any, **__: Any) -> Prompt:
            raise NotImplementedError("the server calls reset_async and step_async")

        step = reset

        def close(self) -> None:  # on a thread
            if self.loop is not None:
                asyncio.run_coroutine_threadsafe(self.session.close(), self.loop)

        @property
        def state(self) -> State:
            return self.about

    return create_fastapi_app(Served, Reply, Prompt, max_concurrent_envs=sessions, env_name="palimpsest")


def serve_tasks(tasks: Tasks, host: str, port: int, sessions: int, *, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM. Raises ConfigError for an address in use."""
    app = openenv_app(tasks, sessions)
    with bound(host, port) as taken:
        taken.listen(1024)
        address = f"[{host}]" if ":" in host else host
        on_ready(f"http://{address}:{taken.getsockname()[1]}  an OpenEnv environment of {tasks.config.recipe}")
        limits: dict[str, Any] = {"ws_max_size": 4 * LONGEST, "ws_ping_timeout": PATIENCE_S}
        # http_service.Server has no WebSockets
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **limits))
        asyncio.run(server.serve([taken]))

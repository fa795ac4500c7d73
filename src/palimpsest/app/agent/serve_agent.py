"""A memory agent as a service: open it, serve concurrent requests, close it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from palimpsest.app.agent.ask_files import result_of
from palimpsest.app.composition import OpenAgent, fitted, open_agent
from palimpsest.app.config_resolution import Agent
from palimpsest.app.python_calls import finish
from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.schema import PolicyConfig, RunConfig, SamplingConfig
from palimpsest.data.synthetic.world import unknown_to_bundled
from palimpsest.engines.process_guard import give_back_freed_memory
from palimpsest.engines.protocol import SamplerStats
from palimpsest.errors import ConfigError, PromptTooLong
from palimpsest.events import DocumentTruncated
from palimpsest.memory.document_baselines import FullContextPolicy, PassagesPolicy, SlidingWindowPolicy
from palimpsest.memory.overwrite import question_length
from palimpsest.memory.registry import build_policy, policy_class
from palimpsest.notes import Note
from palimpsest.plugin_options import options_of
from palimpsest.provenance import model_identity, source_digests
from palimpsest.rollout.episode import OnToken, OnTurn
from palimpsest.servers.http_service import Server, bound, check_host
from palimpsest.servers.openai.agent_app import AgentService, ServerOptions, check_model_name, check_origins
from palimpsest.servers.openai.episode_log import Store
from palimpsest.servers.openai.served_agent import Card, EpisodePlan, Query
from palimpsest.servers.openai.served_episodes import ServerLimits
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Question, Trajectory, Turn

T = TypeVar("T")

MAIN = "palimpsest"
"""Default model name of the agent in the API."""
_CHARACTERS = 16
"""Upper bound of characters per token, rarely exceeded."""
_LARGE = 50_000
"""Document tokens above which memory is released after encoding, which briefly takes some 640 bytes per token."""
_READS_CHUNKS = (SlidingWindowPolicy, PassagesPolicy)
"""Policies that skip most of a long document by design; `full_context` rejects one that does not fit."""
_TRIED = Problem("question", "Why?", (), "A text.")


@dataclass(frozen=True, slots=True)
class Service:
    """Address, access and storage of a served agent."""

    host: str = "127.0.0.1"
    port: int = 8400
    token: str | None = None
    store: Path | None = None
    """None: nothing is stored on disk."""
    drain_seconds: int = 30
    """For running requests after a signal."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    model_name: str = MAIN
    options: ServerOptions = field(default_factory=ServerOptions)


def default_store() -> Path:
    """Store folder of this user."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "palimpsest" / "serve"


def serve_agent(agent: Agent, service: Service, announce: Callable[[str], None]) -> None:
    """Bind the address, open the agent, serve until a signal; `announce` gets the address.

    Raises ConfigError for an invalid address, token or policy, RunError for a store in use.
    """
    check_host(service.host, service.token)
    check_model_name(service.model_name)
    check_origins(service.options.cors_origins, service.token)
    config = agent.config({})
    if not policy_class(config.policy.name).reads_documents:
        raise ConfigError(f"--policy {config.policy.name}: reads no documents; choose one that does, e.g. overwrite")
    with ExitStack() as stack:
        taken = stack.enter_context(bound(service.host, service.port))
        store = None if service.store is None else Store(service.store)
        if store is not None:
            stack.callback(store.close)
        finish(lambda: _serve(agent, config, service, taken, store, announce))


async def _serve(
    agent: Agent,
    config: RunConfig,
    service: Service,
    taken: socket.socket,
    store: Store | None,
    announce: Callable[[str], None],
) -> None:
    async with _episode_loop() as loop:
        open_one = await _on(loop, _opened_agent(config, loop))
        try:
            served = AgentService(
                open_one,
                store,
                model=service.model_name,
                token=service.token,
                limits=service.limits,
                options=service.options,
            )
            server = Server(served.app(), taken, grace_seconds=service.drain_seconds)
            announce(f"{os.fspath(agent.model)} at {server.url}/v1")
            await server.serve_here()
            await served.close()
        finally:
            await _on(loop, open_one.close())


@asynccontextmanager
async def _episode_loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """An event loop on a thread, for episodes: their work grows with prompts, and requests don't wait for it."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def wait() -> None:
        ended = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), ended))
        await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(wait(),), name="episodes", daemon=True)
    thread.start()
    loop, ended = await asyncio.wrap_future(started)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(ended.set)
        await asyncio.to_thread(thread.join)


async def _on(loop: asyncio.AbstractEventLoop | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` on another loop; None: on this one."""
    return await (work if loop is None else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop)))


async def _opened_agent(config: RunConfig, loop: asyncio.AbstractEventLoop | None = None) -> ServedAgent:
    """Open the agent and freeze its objects for Python's collector: scanning them would block everything for 200 ms."""
    opened = await asyncio.to_thread(ServedAgent, await open_agent(config), loop)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return opened


class ServedAgent:
    """An open agent."""

    def __init__(self, opened: OpenAgent, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: where it was opened, and runs episodes; None: the caller's. Raises ConfigError for a policy that does
        not fit the window."""
        self._loop = loop
        self._opened, self._config, self._policy = opened, opened.config, opened.config.policy
        self._window = opened.engine.sampler.max_context
        opened.policy_for(_TRIED)
        served = isinstance(self._config.engine, EndpointEngineConfig)
        self._identity = model_identity(self._config, opened.engine.limits.endpoint if served else None)
        code = source_digests(self._policy.model_dump(mode="json"))
        self.settings = json.dumps([self._identity, self._policy.model_dump(mode="json"), code], sort_keys=True)
        """Everything except the query that decides on the tokens of an episode, as text."""

    @property
    def codec(self) -> Codec:
        return self._opened.engine.codec

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights' files; name and address of a served model, and what the endpoint calls it."""
        if isinstance(self._config.engine, EndpointEngineConfig):
            endpoint = self._opened.engine.limits.endpoint
            served = f" ({endpoint.served})" if endpoint is not None and endpoint.served else ""
            return f"{self._config.model.path} at {self._config.engine.url}{served}"
        return str(self._identity["weights"])

    @property
    def stats(self) -> SamplerStats:
        return self._opened.engine.sampler.stats()

    @property
    def sampling(self) -> SamplingConfig:
        return self._config.eval_sampling

    @property
    def seed(self) -> int:
        return self._config.seed

    @cached_property
    def card(self) -> Card:
        policy = self._opened.policy_for(_TRIED)
        chunk = getattr(policy, "chunk_size", None)
        longest = None if chunk is not None or isinstance(policy, _READS_CHUNKS) else self._window
        if longest is not None and isinstance(policy, FullContextPolicy):
            longest -= policy.required_context(self.codec) - (policy.window_tokens or 1)
            longest = min(longest, policy.window_tokens or longest)
        return Card(self._policy.name, self._window, chunk, getattr(policy, "memory_tokens", None), longest)

    async def close(self) -> None:
        await self._opened.close()

    def takes(self, questions: Sequence[str]) -> bool:
        most = self._question_room
        if sum(map(len, questions)) > _CHARACTERS * most:
            return False
        return (
            question_length(Problem.asking("question", [Question(text, ()) for text in questions]), self.codec) <= most
        )

    def plan(self, query: Query) -> EpisodePlan:
        text = query.document.text
        problem = Problem.asking("question", [Question(question, ()) for question in query.prompts], text)
        if (tokens := question_length(problem, self.codec)) > (most := self._question_room):
            raise PromptTooLong(f"the question has {tokens} tokens, at most {most} fit")
        if check := getattr(self._opened.engine.sampler, "check_text", None):
            check(text, problem.question)
        policy = self._opened.policy_for(problem, query.answer_tokens)
        prepared = policy.prepare(problem, self.codec)
        if isinstance(policy, FullContextPolicy) and not isinstance(policy, _READS_CHUNKS):
            room = policy.room(problem, self.codec, self._window)
            if prepared is not None and len(prepared) > room:
                raise PromptTooLong(f"the document has {len(prepared)} tokens, at most {room} fit")
        chunks = getattr(prepared, "chunks", ())
        read = sum(map(len, chunks)) if chunks else len(self.codec.encode(text))
        if read > _LARGE:
            give_back_freed_memory()
        tokens = read + len(self.codec.encode(problem.question))
        return EpisodePlan(query, problem, policy, prepared, len(chunks), tokens)

    async def play(
        self,
        plan: EpisodePlan,
        on_turn: OnTurn,
        on_token: OnToken | None,
        recorded: Sequence[Turn],
        timeout_s: float | None,
    ) -> Trajectory:
        playing = self._opened.play(
            plan.problem,
            plan.policy,
            "ask",
            sampling=plan.query.sampling,
            key=(plan.query.seed, "ask"),
            timeout_s=timeout_s,
            prepare=lambda: plan.prepared,
            on_turn=on_turn,
            on_token=on_token,
            recorded=recorded,
        )
        return await _on(self._loop, playing)

    def rest(self) -> None:
        give_back_freed_memory()

    def facts(self, plan: EpisodePlan, trajectory: Trajectory) -> dict[str, Any]:
        cuts = [event.detail for event in trajectory.events if event.kind == DocumentTruncated.kind]
        cut: dict[str, Any] = {"truncated": {"tokens": cuts[0]["tokens"], "kept": cuts[0]["kept"]}} if cuts else {}
        result = result_of(self._config, plan.problem, plan.query.document, trajectory, self.codec)
        values = result.to_json()
        names = ("answer", "answers", "quotes", "unsupported", "kept_out")
        if unknown_to_bundled(self.codec.vocab_size, filter(str.strip, [plan.query.document.text])):
            cut["notes"] = [Note("unknown_to_bundled").to_json()]
        return {name: values[name] for name in names if name in values} | {"failure": result.failure} | cut

    @cached_property
    def _question_room(self) -> int:
        """Tokens of the longest question that the policy takes in this window; a set option is the bound."""
        config = self._policy
        if "question_tokens" not in options_of(policy_class(config.name)):
            return self._window
        if "question_tokens" in config.options:
            return int(config.options["question_tokens"])

        def beyond(tokens: int) -> bool:
            policy = PolicyConfig(name=config.name, options={**config.options, "question_tokens": tokens})
            chosen = fitted(policy, problems=[], codec=self.codec, max_context=self._window)
            return build_policy(chosen).required_context(self.codec) > self._window

        return bisect_left(range(1, self._window), True, key=beyond)

"""A memory agent as a service: opened, asked by many at once, exchanged while it runs, closed.

The agent that is served, and how another takes its place while episodes of the first still run.

Guaranteed: an episode ends with the agent it began with; an agent that was replaced is closed once its last episode
has ended; a checkpoint that can't be opened is told, and the agent before it goes on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from palimpsest.app.agent.ask_files import MemoryChanges, asked_of
from palimpsest.app.composition import OpenAgent, fitted, open_agent, weights_fingerprint
from palimpsest.app.config_resolution import Agent, newest_checkpoint
from palimpsest.app.python_calls import finish
from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.model import model_path
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.data.files.text_files import Document
from palimpsest.engines.open import give_back_freed_memory
from palimpsest.engines.protocol import SamplerStats
from palimpsest.errors import ConfigError, DataError, PalimpsestError, PromptTooLong
from palimpsest.events import DocumentTruncated, Event
from palimpsest.memory.document_baselines import FullContextPolicy, PassagesPolicy, SlidingWindowPolicy
from palimpsest.memory.overwrite import question_length
from palimpsest.memory.policy import MemoryPolicy
from palimpsest.memory.registry import POLICIES, admit_all, build_policy, policy_class
from palimpsest.plugin_options import options_of
from palimpsest.retrieval.search import check_token
from palimpsest.rollout.episode import failure, play
from palimpsest.runs.run_folder import CONFIG
from palimpsest.servers.http_service import Server, bound, check_host
from palimpsest.servers.openai.agent_app import AgentService, Limits, ServerOptions, check_model_name, check_origins
from palimpsest.servers.openai.episode_store import Store
from palimpsest.servers.openai.request_bodies import openai_error
from palimpsest.servers.openai.request_inputs import PLAIN, Input, PlainChat
from palimpsest.servers.openai.request_resolver import plain_budget
from palimpsest.servers.openai.served_agent import AgentInterface, Card, Change, Draws, Plan, Told, Watch
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Question, Trajectory, Turn

# ---- The agent that is served, and how another takes its place while episodes of the first still run ---------


EVERY_S = 5.0
"""Between two looks for a new checkpoint."""


class Closable(AgentInterface, Protocol):
    """An agent that holds a model."""

    async def close(self) -> None: ...


class Lending:
    """The agent that new episodes begin with, and those that are still in use."""

    def __init__(self, agent: Closable) -> None:
        self.current = agent
        self._leases: Counter[int] = Counter()  # by identity

    def lease(self) -> Lease:
        """The current agent, from this call on until it is given back."""
        self._leases[id(self.current)] += 1
        return Lease(self, self.current)

    async def replace(self, agent: Closable) -> None:
        """Have new episodes begin with `agent`."""
        before, self.current = self.current, agent
        await self._close_unused(before)

    async def give_back(self, agent: Closable) -> None:
        self._leases[id(agent)] -= 1
        await self._close_unused(agent)

    async def _close_unused(self, agent: Closable) -> None:
        if agent is not self.current and not self._leases[id(agent)]:
            del self._leases[id(agent)]
            await agent.close()


class Lease:
    """An agent in use."""

    def __init__(self, lending: Lending, agent: Closable) -> None:
        self._lending, self._agent = lending, agent

    async def __aenter__(self) -> AgentInterface:
        return self._agent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lending.give_back(self._agent)


async def follow(
    lending: Lending,
    newest: Callable[[], str | None],
    opened: Callable[[], Awaitable[Closable]],
    told: Callable[[str], None],
    *,
    seen: str | None,
    every_s: float = EVERY_S,
) -> None:
    """Serve what `opened` gives whenever `newest` names another than `seen`. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        name = newest()
        if name is None or name == seen:
            continue
        seen = name
        try:
            agent = await opened()
        except (PalimpsestError, OSError) as error:  # damaged, or pruned meanwhile
            told(f"{name}: {error}; the checkpoint before it goes on")
            continue
        await lending.replace(agent)
        told(f"{name}: served from now on")


# ---- A memory agent as a service (servers/openai/) -----------------------------------------------------------


MAIN = "palimpsest"
"""The run's policy as a model's name, if no other is given; others are `NAME/POLICY`, the model alone `NAME/plain`."""
_CHARACTERS = 16
"""A token has hardly ever more."""
_LARGE = 50_000
"""Tokens of a document after whose encoding, which takes some 640 bytes a token for a moment, memory is given back."""
_READS_PARTS = (SlidingWindowPolicy, PassagesPolicy)
"""Policies that leave out most of a long document on purpose; `full_context` rejects one that doesn't fit."""
_TRIED = Problem("question", "Why?", (), "A text.")


@dataclass(frozen=True, slots=True)
class Service:
    """Where and for whom an agent is served, and what is kept."""

    host: str = "127.0.0.1"
    port: int = 8400
    token: str | None = None
    store: Path | None = None
    """None: nothing is kept on disk."""
    follow: bool = False
    """Whether a run's new checkpoints are taken."""
    drain_seconds: int = 30
    """For running requests, once a signal came."""
    limits: Limits = field(default_factory=Limits)
    model_name: str = MAIN
    """Of the run's policy, as clients ask for it."""
    options: ServerOptions = field(default_factory=ServerOptions)


def default_store() -> Path:
    """Of this user."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "palimpsest" / "serve"


def serve_agent(agent: Agent, service: Service, told: Callable[[str], None]) -> None:
    """Take the address, open the agent, serve until a signal; `told` is told the address, and of new checkpoints.

    Raises ConfigError for an address, a token or a policy that can't be served, RunError for a store in use.
    """
    check_host(service.host, service.token, "--api-key-env NAME")
    check_token(service.token, "--api-key-env")
    check_model_name(service.model_name)
    check_origins(service.options.cors_origins, service.token)
    if service.follow and not (Path(agent.model) / CONFIG).is_file():
        raise ConfigError(f"--follow: {os.fspath(agent.model)} is no run; give the folder of one")
    config = agent.config({})
    if not policy_class(config.policy.name).reads_documents:
        raise ConfigError(f"--policy {config.policy.name}: reads no documents; choose one that does, overwrite say")
    with ExitStack() as stack:
        taken = stack.enter_context(bound(service.host, service.port))
        store = None if service.store is None else Store(service.store, service.limits.quota)
        if store is not None:
            stack.callback(store.close)
        finish(lambda: _serve(agent, config, service, _Opened(taken, store, told)))


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is there before the model is."""

    taken: socket.socket
    store: Store | None
    told: Callable[[str], None]


async def _serve(agent: Agent, config: RunConfig, service: Service, opened: _Opened) -> None:
    lending = Lending(await _opened_agent(config, service.model_name))
    follower = None
    try:
        served = AgentService(
            lending,
            opened.store,
            token=service.token,
            limits=service.limits,
            options=service.options,
        )
        server = Server(
            served.app(),
            opened.taken,
            service.limits.connection,
            form=openai_error,
            grace_seconds=service.drain_seconds,
        )
        if service.follow:
            follower = asyncio.create_task(_follow(agent, lending, config.model.path, service.model_name, opened.told))
        opened.told(f"{os.fspath(agent.model)} at {server.url}/v1")
        await server.serve_here()
        await served.close()
    finally:
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        await lending.current.close()


async def _opened_agent(config: RunConfig, name: str = MAIN) -> ServedAgent:
    """What is there once it is open, modules above all, is kept from Python's collector: looking through it takes 200
    ms, in which nothing else runs."""
    opened = ServedAgent(await open_agent(config), name)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return opened


async def _follow(agent: Agent, lending: Lending, seen: str, name: str, told: Callable[[str], None]) -> None:
    async def newer() -> ServedAgent:
        return await _opened_agent(await asyncio.to_thread(agent.config, {}), name)

    def newest() -> str | None:
        found = newest_checkpoint(Path(agent.model))
        return None if found is None else str(found)

    await follow(lending, newest, newer, told, seen=seen)


class ServedAgent:
    """An open agent, and every policy that its weights allow."""

    def __init__(self, opened: OpenAgent, name: str = MAIN) -> None:
        """`name`: of its own policy as a model. Raises ConfigError if that doesn't fit the window."""
        self._opened, self._config = opened, opened.config
        self._rooms: dict[str, int] = {}
        self._policies: dict[str, PolicyConfig] = {name: self._config.policy}
        self._policies |= {
            f"{name}/{kind}": self._config.policy if kind == self._config.policy.name else PolicyConfig(name=kind)
            for kind, cls in POLICIES.items()
            if cls.reads_documents
        }
        self._fitted(self._policies[name], _TRIED, None)

    @property
    def codec(self) -> Codec:
        return self._opened.engine.codec

    @property
    def window(self) -> int:
        return self._opened.engine.sampler.max_context

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights' files; of a model of the hub its name, of one at an endpoint what that says of it, too."""
        if isinstance(self._config.engine, EndpointEngineConfig):
            told = self._opened.engine.limits.endpoint
            served = f" ({told.served})" if told is not None and told.served else ""
            return f"{self._config.model.path} at {self._config.engine.url}{served}"
        return weights_fingerprint(model_path(self._config.model)) or self._config.model.path

    @property
    def stats(self) -> SamplerStats:
        return self._opened.engine.sampler.stats()

    @property
    def draws(self) -> Draws:
        return Draws(self._config.eval_sampling, self._config.seed)

    @cached_property
    def cards(self) -> Mapping[str, Card]:
        """Of the policies that fit the window."""
        cards = dict[str, Card]()
        for name, config in self._policies.items():
            try:
                cards[name] = self._card(name, self._fitted(config, _TRIED, None), config.name)
            except ConfigError:
                continue  # its budgets are beyond this window
        plain = f"{next(iter(self._policies))}/{PLAIN}"
        return {**cards, plain: Card(plain, PLAIN, self.window, None, None, self.window)}

    async def close(self) -> None:
        await self._opened.close()

    def settings(self, model: str) -> str:
        return PLAIN if self.cards[model].policy == PLAIN else self._policies[model].model_dump_json()

    def takes(self, model: str, questions: Sequence[str]) -> bool:
        most = self._question_room(model)
        if sum(map(len, questions)) > _CHARACTERS * most:
            return False
        return (
            question_length(Problem.asking("question", [Question(each, ()) for each in questions]), self.codec) <= most
        )

    def plan(self, model: str, given: Input, limit: int | None) -> Plan:
        asked, document = [Question(each, ()) for each in given.asked], given.document
        if self.cards[model].policy == PLAIN:
            budget = plain_budget(self.window, limit)
            chat = PlainChat(answer_tokens=budget, instructions=given.instructions, earlier=given.earlier)
            problem = Problem.asking("question", asked)
            prompt, _ = chat.prompt(problem.question, self.codec)
            return Plan(problem, chat, None, 0, len(prompt))
        if document is None:
            raise DataError(f"{model}: there is nothing to read")
        problem = Problem.asking("question", asked, document.text)
        if (tokens := question_length(problem, self.codec)) > (most := self._question_room(model)):
            raise PromptTooLong(f"the question has {tokens} tokens, at most {most} fit")
        policy = self._fitted(self._policies[model], problem, limit)
        prepared = policy.prepare(problem, self.codec)
        if isinstance(policy, FullContextPolicy) and not isinstance(policy, _READS_PARTS):
            room = policy.room(problem, self.codec, self.window)
            if prepared is not None and len(prepared) > room:
                raise PromptTooLong(f"the document has {len(prepared)} tokens, {model} takes {room} with it")
        chunks = getattr(prepared, "chunks", ())
        read = sum(map(len, chunks)) if chunks else len(self.codec.encode(document.text))
        if read > _LARGE:
            give_back_freed_memory()
        return Plan(problem, policy, prepared, len(chunks), read + len(self.codec.encode(problem.question)))

    def watch(self, plan: Plan) -> Watch:
        changes = MemoryChanges(self.codec, plan.sections)

        def watched(turn: Turn, events: Sequence[Event]) -> Change | None:
            change = changes.of(turn, events)
            return None if change is None else Change(change.turn + 1, change.turns, change.added, change.dropped)

        return watched

    async def play(self, plan: Plan, draws: Draws, told: Told, timeout_s: float | None) -> Trajectory:
        return await play(
            plan.problem,
            policy=plan.policy,
            sampler=self._opened.engine.sampler,
            codec=self.codec,
            sampling=draws.sampling,
            key=(draws.seed, "ask"),
            group_id="ask",
            rollout=0,
            timeout_s=timeout_s,
            roles=self._opened.cast.roles,
            prepare=lambda: plan.prepared,
            on_turn=told.turn,
            on_token=told.token,
            recorded=told.recorded,
        )

    def rest(self) -> None:
        give_back_freed_memory()

    def facts(self, plan: Plan, document: Document | None, trajectory: Trajectory) -> dict[str, Any]:
        read = document or Document("", ())
        if document is None:
            return {"quotes": [], "unsupported": [], "failure": failure(trajectory)}
        cuts = [event.detail for event in trajectory.events if event.kind == DocumentTruncated.kind]
        cut = {"truncated": {"tokens": cuts[0]["tokens"], "kept": cuts[0]["kept"]}} if cuts else {}
        asked = asked_of(self._config, plan.problem, read, trajectory, self.codec)
        told = asked.to_json()
        kept = ("answer", "answers", "quotes", "unsupported", "kept_out")
        return {name: told[name] for name in kept if name in told} | {"failure": asked.failure} | cut

    def _question_room(self, model: str) -> int:
        """Tokens of the longest question that the policy takes in this window; an option that is set is the bound."""
        if model not in self._rooms:
            self._rooms[model] = self._room_of(self._policies[model])
        return self._rooms[model]

    def _room_of(self, config: PolicyConfig) -> int:
        if "question_tokens" not in options_of(policy_class(config.name)):
            return self.window
        if "question_tokens" in config.options:
            return int(config.options["question_tokens"])

        def beyond(tokens: int) -> bool:
            asked = PolicyConfig(name=config.name, options={**config.options, "question_tokens": tokens})
            chosen = fitted(asked, problems=[], codec=self.codec, max_context=self.window)
            return build_policy(chosen).required_context(self.codec) > self.window

        return bisect_left(range(1, self.window), True, key=beyond)

    def _fitted(self, config: PolicyConfig, problem: Problem, limit: int | None) -> MemoryPolicy:
        """The policy with budgets for this window; an answer has at most `limit` tokens."""
        chosen = fitted(config, problems=[problem], codec=self.codec, max_context=self.window)
        option = options_of(policy_class(config.name)).get("answer_tokens")
        if limit is not None and option is not None:
            budget = min(limit, int(chosen.options.get("answer_tokens", option.default)))
            chosen = PolicyConfig(name=chosen.name, options={**chosen.options, "answer_tokens": budget})
        policy = build_policy(chosen)
        admit_all(policy, [problem], self.codec, self.window)
        return policy

    def _card(self, name: str, policy: MemoryPolicy, kind: str) -> Card:
        chunk = getattr(policy, "chunk_size", None)
        longest = None if chunk is not None or isinstance(policy, _READS_PARTS) else self.window
        if longest is not None and isinstance(policy, FullContextPolicy):
            longest -= policy.required_context(self.codec) - (policy.window_tokens or 1)
            longest = min(longest, policy.window_tokens or longest)
        return Card(name, kind, self.window, chunk, getattr(policy, "memory_tokens", None), longest)

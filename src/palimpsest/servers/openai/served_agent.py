"""The agent that a server serves: a query, its encoded plan, and the agent's side of an episode."""

from __future__ import annotations

import asyncio
import hashlib
import json
from bisect import bisect_left
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from palimpsest.agents.episode_results import result_of
from palimpsest.agents.open_agent import OpenAgent, fitted
from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.schema import PolicyConfig, SamplingConfig
from palimpsest.data.files.text_files import TextDocument
from palimpsest.data.synthetic.world import unknown_to_bundled
from palimpsest.engines.process_guard import give_back_freed_memory
from palimpsest.engines.protocol import SamplerStats
from palimpsest.errors import PromptTooLong
from palimpsest.events import DocumentTruncated
from palimpsest.memory.document_baselines import FullContextPolicy, PassagesPolicy, SlidingWindowPolicy
from palimpsest.memory.overwrite import question_length
from palimpsest.memory.registry import build_policy, policy_class
from palimpsest.notes import Note
from palimpsest.plugin_options import options_of
from palimpsest.provenance import model_identity, source_digests
from palimpsest.rollout.episode import OnToken, OnTurn
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Question, Trajectory, Turn


@dataclass(frozen=True)
class Query:
    """Document, questions and sampling: all inputs that decide on tokens, except the agent."""

    document: TextDocument
    questions: tuple[str, ...]
    instructions: str
    sampling: SamplingConfig
    seed: int
    answer_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def prompts(self) -> tuple[str, ...]:
        """The questions with the instructions, which an agent can't receive separately."""
        if not self.instructions:
            return self.questions
        return tuple(f"{self.instructions}\n\n{question}" for question in self.questions)

    def key(self, agent: str) -> str:
        """Id of the query's episode; `agent`: equal for agents that return the same tokens."""
        sampled = (self.sampling.temperature, self.sampling.top_p, self.seed, self.answer_tokens, self.stop)
        return "ep_" + _sha256(repr((agent, self.digest, sampled)))[:32]

    @cached_property
    def digest(self) -> str:
        """Digest of document, questions and instructions; time is linear in their length."""
        spans = tuple((part.file, part.start, part.end) for part in self.document.parts)
        return _sha256(repr((_sha256(self.document.text), spans, self.questions, self.instructions)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An encoded query within the limits."""

    query: Query
    problem: Problem
    policy: Any
    prepared: Any
    sections: int
    """0: unknown."""
    prompt_tokens: int
    """Tokens of document, instructions and questions."""


T = TypeVar("T")
_CHARACTERS = 16
"""Upper bound of characters per token, rarely exceeded."""
_LARGE = 50_000
"""Document tokens above which memory is released after encoding, which briefly takes some 640 bytes per token."""
_READS_CHUNKS = (SlidingWindowPolicy, PassagesPolicy)
"""Policies that skip most of a long document by design; `full_context` rejects one that does not fit."""
_TRIED = Problem("question", "Why?", (), "A text.")


async def on_loop(loop: asyncio.AbstractEventLoop | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` on another loop; None: on this one."""
    return await (work if loop is None else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop)))


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
        """Statistics of the policy's model."""
        return self._opened.engine.sampler.stats()

    @property
    def sampling(self) -> SamplingConfig:
        """Defaults for requests."""
        return self._config.eval_sampling

    @property
    def seed(self) -> int:
        """Seed of greedy requests without one."""
        return self._config.seed

    @cached_property
    def card(self) -> dict[str, Any]:
        """Public facts, in tokens: `window` of one prompt and its completion, `chunk_size` of a section (None: it reads
        in one call), `max_model_len` of the longest document (None: only the body's limit bounds it)."""
        policy = self._opened.policy_for(_TRIED)
        chunk = getattr(policy, "chunk_size", None)
        longest = None if chunk is not None or isinstance(policy, _READS_CHUNKS) else self._window
        if longest is not None and isinstance(policy, FullContextPolicy):
            longest -= policy.required_context(self.codec) - (policy.window_tokens or 1)
            longest = min(longest, policy.window_tokens or longest)
        facts = {"policy": self._policy.name, "window": self._window, "chunk_size": chunk}
        return {**facts, "memory_tokens": getattr(policy, "memory_tokens", None), "max_model_len": longest}

    async def close(self) -> None:
        await self._opened.close()

    def takes(self, questions: Sequence[str]) -> bool:
        """Return whether the policy has room for these questions. Called on a thread for long ones."""
        most = self._question_room
        if sum(map(len, questions)) > _CHARACTERS * most:
            return False
        return (
            question_length(Problem.asking("question", [Question(text, ()) for text in questions]), self.codec) <= most
        )

    def plan(self, query: Query) -> EpisodePlan:
        """Encode and check. Raises ConfigError, DataError, and PromptTooLong for a question or a document beyond the
        model's limits. Called on a thread."""
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
        """`recorded`: turns from an earlier attempt. May call `on_turn` and `on_token` on another thread."""
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
        return await on_loop(self._loop, playing)

    def rest(self) -> None:
        """Return freed memory to the system after an idle time. Called on a thread."""
        give_back_freed_memory()

    def facts(self, plan: EpisodePlan, trajectory: Trajectory) -> dict[str, Any]:
        """`answer`, `quotes`, `unsupported`, `failure`; `truncated` for a partly read document. Called on a thread."""
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

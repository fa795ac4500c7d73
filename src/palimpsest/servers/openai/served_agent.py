"""The server's view of an agent: a query, and the agent's side of an episode."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import TextDocument
from palimpsest.engines.protocol import SamplerStats
from palimpsest.rollout.episode import OnToken, OnTurn
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Trajectory, Turn


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
class Card:
    """Public facts about the agent."""

    policy: str
    window: int
    """Tokens of one prompt and its completion."""
    chunk_size: int | None
    """Tokens of a section; None: it reads in one call."""
    memory_tokens: int | None
    max_model_len: int | None
    """Tokens of the longest document; None: only the body's limit bounds it."""


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


class AgentInterface(Protocol):
    """Weights with a policy."""

    @property
    def codec(self) -> Codec: ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights."""
        ...

    @property
    def settings(self) -> str:
        """Everything except the query that decides on tokens: model, template, policy and their code, as text."""
        ...

    @property
    def card(self) -> Card: ...

    @property
    def sampling(self) -> SamplingConfig:
        """Defaults for requests."""
        ...

    @property
    def seed(self) -> int:
        """Seed of greedy requests without one."""
        ...

    @property
    def stats(self) -> SamplerStats:
        """Statistics of the policy's model."""
        ...

    def takes(self, questions: Sequence[str]) -> bool:
        """Return whether the policy has room for these questions. Called on a thread for long ones."""
        ...

    def plan(self, query: Query) -> EpisodePlan:
        """Encode and check. Raises ConfigError, DataError, and PromptTooLong for a question or a document beyond the
        model's limits. Called on a thread."""
        ...

    async def play(
        self,
        plan: EpisodePlan,
        on_turn: OnTurn,
        on_token: OnToken | None,
        recorded: Sequence[Turn],
        timeout_s: float | None,
    ) -> Trajectory:
        """`recorded`: turns from an earlier attempt. May call `on_turn` and `on_token` on another thread."""
        ...

    def facts(self, plan: EpisodePlan, trajectory: Trajectory) -> dict[str, Any]:
        """`answer`, `quotes`, `unsupported`, `failure`; `truncated` for a partly read document. Called on a thread."""
        ...

    def rest(self) -> None:
        """Return freed memory to the system after an idle time. Called on a thread."""
        ...

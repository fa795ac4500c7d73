"""What the server asks of the agent behind it: a query, and the agent's side of an episode."""

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
    """What is read and asked, and how it is sampled: everything next to the agent that decides on tokens."""

    document: TextDocument
    questions: tuple[str, ...]
    instructions: str
    sampling: SamplingConfig
    seed: int
    answer_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @property
    def prompts(self) -> tuple[str, ...]:
        """The questions as an agent gets them, which has no place of its own for instructions."""
        if not self.instructions:
            return self.questions
        return tuple(f"{self.instructions}\n\n{question}" for question in self.questions)

    def key(self, agent: str) -> str:
        """The id of its episode; `agent`: what is the same of two agents that give the same tokens."""
        sampled = (self.sampling.temperature, self.sampling.top_p, self.seed, self.answer_tokens, self.stop)
        return "ep_" + _sha256(repr((agent, self.digest, sampled)))[:32]

    @cached_property
    def digest(self) -> str:
        """Of document, questions and instructions, in time that grows with them."""
        spans = tuple((part.file, part.start, part.end) for part in self.document.parts)
        return _sha256(repr((_sha256(self.document.text), spans, self.questions, self.instructions)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class Card:
    """What clients may know of the agent."""

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
    """A query that fits, encoded."""

    query: Query
    problem: Problem
    policy: Any
    prepared: Any
    sections: int
    """0: not known."""
    prompt_tokens: int
    """Of document, instructions and questions."""


class AgentInterface(Protocol):
    """Weights, and a policy that plays on them."""

    @property
    def codec(self) -> Codec: ...

    @property
    def fingerprint(self) -> str:
        """Of the weights."""
        ...

    @property
    def settings(self) -> str:
        """The policy and its options, as text."""
        ...

    @property
    def card(self) -> Card: ...

    @property
    def sampling(self) -> SamplingConfig:
        """Where a request gives none."""
        ...

    @property
    def seed(self) -> int:
        """Of a greedy request that gives none."""
        ...

    @property
    def stats(self) -> SamplerStats:
        """Of the model that the policy asks."""
        ...

    def takes(self, questions: Sequence[str]) -> bool:
        """Whether the policy has room for these questions. Called on a thread where they are long."""
        ...

    def plan(self, query: Query) -> EpisodePlan:
        """Encode and check. Raises ConfigError, DataError, and PromptTooLong for a question or a document beyond what
        the model takes. Called on a thread."""
        ...

    async def play(
        self,
        plan: EpisodePlan,
        on_turn: OnTurn,
        on_token: OnToken | None,
        recorded: Sequence[Turn],
        timeout_s: float | None,
    ) -> Trajectory:
        """`recorded`: turns that are known already."""
        ...

    def facts(self, plan: EpisodePlan, trajectory: Trajectory) -> dict[str, Any]:
        """`answer`, `quotes`, `unsupported`, `failure`, and `truncated` where not all was read. Called on a thread."""
        ...

    def rest(self) -> None:
        """Give back freed memory: nothing has run for a while. Called on a thread."""
        ...

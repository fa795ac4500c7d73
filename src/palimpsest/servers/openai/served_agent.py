"""What the server knows of the agent behind it, and an episode that is to be played."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import TextDocument
from palimpsest.engines.protocol import SamplerStats
from palimpsest.events import Event
from palimpsest.rollout.episode import OnToken, OnTurn
from palimpsest.servers.openai.request_inputs import Input
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Trajectory, Turn


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
class Change:
    """What a section did to the memory."""

    section: int
    """From 1."""
    sections: int
    """0: not known."""
    added: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An episode that can begin: it fits."""

    problem: Problem
    policy: Any
    prepared: Any
    sections: int
    prompt_tokens: int
    """Of document, instructions and questions."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What decides on an episode's tokens, next to its agent and its input."""

    sampling: SamplingConfig
    seed: int


Watch = Callable[[Turn, Sequence[Event]], Change | None]
"""Is asked of each turn of an episode, in order, what it did to the memory."""


class AgentInterface(Protocol):
    """Weights, and a policy that plays on them."""

    @property
    def codec(self) -> Codec: ...

    @property
    def fingerprint(self) -> str:
        """Of the weights."""
        ...

    @property
    def card(self) -> Card: ...

    @property
    def draws(self) -> Draws:
        """Where a request says nothing."""
        ...

    @property
    def stats(self) -> SamplerStats:
        """Of the model that the policy asks."""
        ...

    @property
    def settings(self) -> str:
        """The policy and its options, as text: a part of what makes two episodes the same."""
        ...

    def takes(self, questions: Sequence[str]) -> bool:
        """Whether the policy has room for these questions. Called on a thread where they are long."""
        ...

    def plan(self, given: Input, limit: int | None) -> EpisodePlan:
        """Encode and check; `limit`: tokens of an answer. Raises ConfigError, DataError, and PromptTooLong for a
        question or a document beyond what the model takes. Called on a thread."""
        ...

    def watch(self, plan: EpisodePlan) -> Watch: ...

    async def play(
        self,
        plan: EpisodePlan,
        draws: Draws,
        on_turn: OnTurn,
        on_token: OnToken | None,
        recorded: Sequence[Turn],
        timeout_s: float | None,
    ) -> Trajectory:
        """`recorded`: turns that are known already."""
        ...

    def rest(self) -> None:
        """Nothing has run for a while: let go of memory that nothing needs. Called on a thread."""
        ...

    def facts(self, plan: EpisodePlan, document: TextDocument, trajectory: Trajectory) -> dict[str, Any]:
        """`answer`, `quotes`, `unsupported`, `failure`, and `truncated` where not all was read. Called on a thread."""
        ...


# ---- An episode that is to be played -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """An episode to be played."""

    input: Input
    draws: Draws
    input_digest: str
    """As `digest_of` gives it."""
    answer_tokens: int | None = None
    stops: tuple[str, ...] = ()
    request: str = ""
    """Digest of its body, by which a retry is known."""

    def key(self, agent: AgentInterface) -> str:
        """The id of its episode: everything its tokens depend on."""
        sampling = (self.draws.sampling.temperature, self.draws.sampling.top_p, self.draws.seed)
        asked = (self.input_digest, self.answer_tokens, self.stops)
        return "ep_" + _sha256(repr((agent.fingerprint, agent.settings, asked, sampling)))[:32]


def digest_of(given: Input) -> str:
    """Of all that an agent gets, in time that grows with it; by which rule it was told apart is no part of it."""
    parts = tuple((part.file, part.start, part.end) for part in given.document.parts)
    return _sha256(repr((_sha256(given.document.text), parts, given.questions, given.instructions)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()

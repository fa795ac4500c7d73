"""The contract of a memory policy: all that the rest of the library knows about it.

A policy is a class of options with one coroutine, `run`. It builds prompts in token space with `model.codec` and calls
`model.generate`, which records every call as a turn. It knows nothing of training, so the same object runs in training,
in evaluation and behind a server. One policy object serves many episodes concurrently and stores no state of them.

    class MyPolicy(MemoryPolicy):       inherits defaults for everything else
    class MyPolicy:                     the same: memory/registry.py adds the defaults

Its options are the parameters of its constructor (the fields of a dataclass), checked by their annotations.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from palimpsest.errors import ConfigError
from palimpsest.events import What
from palimpsest.memory.parts.prompts import Wording
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template
from palimpsest.tools.environment import EpisodeEnvironment
from palimpsest.types import Completion, Outcome, Problem, numbered


class Model(Protocol):
    """The interface of an episode to its policy."""

    codec: Codec
    max_context: int
    """Longest prompt plus completion, in tokens."""
    prepared: Any
    """Result of the policy's `prepare` for this problem. All episodes of a group share it: do not change it."""
    environment: EpisodeEnvironment | None = None
    """The task it acts in (tools/environment.py); None without `environment` in the configuration."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        name: str,
        max_tokens: int,
        role: str | None = None,
        ahead: Callable[[int], Sequence[int] | None] | None = None,
        **notes: Any,
    ) -> Completion:
        """Complete `prompt_ids` and record the turn under `name`, with `notes` for metrics and the viewer.

        A `Prompt`, made by `Template.fill`, carries the positions of its named pieces: `Turn.spans`. Memory metrics use
        its pieces `memory` and `section` (metrics/reading_trace.py).

        `role`: the role under `roles` in the configuration that takes the turn, e.g. an untrained one; None: the agent.
        Raises ConfigError for an unknown role.

        `ahead(n)`: prompt of the n-th turn after this one, n >= 1, with the same name, budget and role, if no reply
        changes the policy's state; None: there is none. Such turns may be sampled early, and count only if they get
        exactly that prompt (`engine.speculative_reads`). Passing `ahead` changes no result.

        Raises PromptTooLong if prompt and budget exceed `max_context`: the episode ends as out_of_context.
        """

    async def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        name: str,
        max_tokens: int,
        role: str | None = None,
        notes: Sequence[Mapping[str, Any]] = (),
    ) -> list[Completion]:
        """[len(prompts)] completions of independent prompts, sampled side by side; turns are recorded in their order.

        `notes`: [len(prompts)] the notes of each turn, or none. `Completion.turn` is the turn's number, for `event` and
        `MemoryWritten.sources`. If a call fails, the others are cancelled and its error is raised.
        """
        shared: dict[str, Any] = {"name": name, "max_tokens": max_tokens, "role": role}
        pairs = zip(prompts, notes or [{}] * len(prompts), strict=True)
        return list(await asyncio.gather(*(self.generate(prompt, **shared, **note) for prompt, note in pairs)))

    def event(self, what: What | str, /, *, turn: int | None = None, **detail: Any) -> None:
        """Record an event between turns: one of events.py, or a custom name with details.

        `turn`: number of the turn that it belongs to (`Completion.turn`); None: the latest call. Raises ValueError for
        a declared name with other fields, or a turn that has not started.
        """


class Teachable(Protocol):
    """Interface of a reading policy to the supervised warm-up (training/supervised/lessons.py)."""

    @property
    def memory_tokens(self) -> int:
        """Tokens of the longest memory."""

    @property
    def texts(self) -> Any:
        """Has `empty_memory` and, if prompts have a slot `recalled`, `nothing_recalled`: their initial contents."""

    @property
    def may_keep(self) -> bool:
        """Whether a reply can leave the memory unchanged; `reply` returns that reply for an empty `memory`."""

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        """The read prompt, with the slots question, memory, section and perhaps recalled; the answer prompt."""

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a reply that writes `memory` and requests `query`, without the stop token."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of an episode."""

    text: str | None
    """Decoded answer, None if there is none."""
    outcome: Outcome = Outcome.ANSWERED
    answers: tuple[str | None, ...] = ()
    """[questions] one answer per question if a problem has several; empty for one question or without any answer."""

    @classmethod
    def all(cls, answers: Sequence[Answered]) -> Answered:
        """The end of an episode with several questions, from the answer to each.

        >>> Answered.all([Answered("Anna"), Answered("Ro", Outcome.ANSWER_TRUNCATED)])
        Answered(text='1. Anna\\n2. Ro', outcome=<Outcome.ANSWER_TRUNCATED: 'answer_truncated'>, answers=('Anna', 'Ro'))
        """
        outcomes = [one.outcome for one in answers]
        outcome = next((other for other in outcomes if other is not Outcome.ANSWERED), Outcome.ANSWERED)
        return cls(numbered(one.text or "" for one in answers), outcome, tuple(one.text for one in answers))


def ended(answered: Any, problem: Problem) -> Answered:
    """What `run` returned. Raises TypeError unless it is a valid end of an episode of `problem`."""
    if not isinstance(answered, Answered):
        raise TypeError(f"run() must return Answered, returned {type(answered).__name__}")
    if not isinstance(answered.text, str | None):
        raise TypeError(f"Answered.text must be a string or None, is {type(answered.text).__name__}")
    if not isinstance(answered.outcome, Outcome):
        raise TypeError(f"Answered.outcome must be an Outcome, is {answered.outcome!r:.60}")
    if answered.answers and len(answered.answers) != len(problem.questions):
        raise TypeError(f"Answered.answers has {len(answered.answers)}, the problem asks {len(problem.questions)}")
    if problem.questions and answered.text is not None and not answered.answers:
        raise TypeError(f"Answered.answers is empty, the problem asks {len(problem.questions)} questions")
    return answered


def require_positive(policy: Any, *names: str) -> None:
    """Raise ConfigError unless each option is at least 1, or null where that is its default. `policy`: a dataclass."""
    for name in names:
        value, optional = getattr(policy, name), policy.__dataclass_fields__[name].default is None
        if not (value is None and optional) and not value >= 1:
            message = f"must be at least 1{', or null' if optional else ''}"
            raise ConfigError(message, key=f"policy.options.{name}", value=value)


class MemoryPolicy(ABC):
    """A policy's optional declarations with defaults, and its one required method."""

    __slots__ = ()

    reads_documents: ClassVar[bool] = True
    """False: it finds information with tools and takes problems without a document."""

    reads_to_end: ClassVar[bool] = True
    """False: it may stop before a document ends, regardless of the model; `palimpsest check` then accepts that."""

    answers_questions: ClassVar[bool] = False
    """True: it answers each of `Problem.questions`; False: problems with several questions are rejected."""

    takes_memory: ClassVar[bool] = False
    """True: an episode starts with `Problem.memory`; False: problems with a memory are rejected."""

    training_limits: ClassVar[tuple[str, ...]] = ()
    """Names of options that limit how much of a document training reads. Evaluation resets them to their defaults,
    unless its own options set them."""

    reward: ClassVar[str | None] = None
    """Default `reward.name`, which reads the answer form of its prompts; None: any reward does."""

    acts: ClassVar[bool] = False
    """True: it acts in an environment; False: a configuration with one is rejected."""

    roles: ClassVar[tuple[str, ...] | None] = None
    """All roles of its turns, which `roles` of a training must have; None: not declared."""

    @property
    def shares_prefixes(self) -> bool:
        """False: only the first prompts of a group begin alike, so any server may sample the others."""
        return True

    @property
    def readings(self) -> int:
        """Usual number of readings of a section, for estimates of turns and time."""
        return 1

    def wording(self) -> Wording | None:
        """Its texts, if its option `prompts` takes a file of them (parts/prompts.py); otherwise None."""
        return None

    def teachable(self) -> Teachable | None:
        """The policy that the supervised warm-up teaches to read, usually itself; None: warm-up is unsupported."""
        return None

    def required_context(self, codec: Codec) -> int:
        """Window the model needs, in tokens: the longest prompt of any episode plus its completion.

        A run on a model with a smaller window is rejected at start. 0: unknown.
        """
        return 0

    def admit(self, problem: Problem, codec: Codec) -> None:  # noqa: B027  most policies reject nothing
        """Raise DataError for a problem that breaks a budget. Called for every problem before its episodes run."""

    def prepare(self, problem: Problem, codec: Codec) -> Any:
        """Shared input of all episodes of `problem`, e.g. its document as token ids: `model.prepared`.

        Training calls it once per group, on a thread next to the event loop, before any episode of the batch starts.
        An exception ends each of those episodes as if `run` had raised it. None: nothing.
        """
        return None

    @abstractmethod
    async def run(self, problem: Problem, model: Model) -> Answered:
        """Run one episode."""

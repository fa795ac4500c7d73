"""The contract of a memory policy: all that the rest of the library knows of one.

A policy is a class of options with one coroutine, `run`. It builds prompts in token space with `model.codec` and calls
`model.generate`; every call is recorded as a turn. It knows nothing of training, so the same object runs in training,
in evaluation and behind a server. One policy object serves many episodes at once: it keeps no state of an episode on
itself.

    class MyPolicy(MemoryPolicy):       inherits the default of whatever it doesn't say
    class MyPolicy:                     the same: memory/registry.py completes it, where it is named

Its options are the parameters of its constructor (the fields of a dataclass), checked by their annotations when
it is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from palimpsest.events import What
from palimpsest.memory.parts.prompts import Wording
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template
from palimpsest.types import Completion, Outcome, Problem, numbered


class Model(Protocol):
    """What an episode offers its policy."""

    codec: Codec
    max_context: int
    """Longest prompt plus completion, in tokens."""
    prepared: Any
    """What the policy's `prepare` returned for this problem. All episodes of a group share it: look, don't change."""

    async def generate(
        self, prompt_ids: Sequence[int], *, name: str, max_tokens: int, role: str | None = None, **notes: Any
    ) -> Completion:
        """Complete `prompt_ids` and record the turn under `name`, with `notes` for metrics and the viewer.

        A `Prompt`, which `Template.fill` makes, brings where its named pieces stand: `Turn.spans`. What is measured of
        a memory is measured of its pieces `memory` and `section` (metrics/reading_trace.py).

        `role` names who takes the turn, of those under `roles` in the configuration, e.g. one that isn't trained;
        None: the agent itself. Raises ConfigError for a role that isn't there.

        Raises PromptTooLong if prompt and budget exceed `max_context`: the episode ends as out_of_context.
        """
        ...

    def event(self, what: What | str, /, **detail: Any) -> None:
        """Record something that happened between turns: one of events.py, or a name of your own with its details.

        Raises ValueError for a name that is declared there, given with other fields.
        """
        ...


class Teachable(Protocol):
    """What the lessons of a cold start need of a policy that reads (training/supervised/lessons.py)."""

    @property
    def memory_tokens(self) -> int:
        """Tokens that a memory holds at the most."""
        ...

    @property
    def texts(self) -> Any:
        """With `empty_memory` and, where prompts have a slot `recalled`, `nothing_recalled`: what stands there at
        first."""
        ...

    @property
    def may_keep(self) -> bool:
        """Whether a reply can leave the memory as it is; `reply` gives that one for an empty `memory`."""
        ...

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        """The read prompt, with the slots question, memory, section and perhaps recalled; the answer prompt."""
        ...

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a reply that writes `memory` and asks for `query`, without the stop token."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """How a policy ends an episode."""

    text: str | None
    """Decoded answer, None if there is none."""
    outcome: Outcome = Outcome.ANSWERED
    answers: tuple[str | None, ...] = ()
    """[questions] one a question, of a problem that asks several; empty where it asks one, or nothing was answered."""

    @classmethod
    def all(cls, answers: Sequence[Answered]) -> Answered:
        """The end of an episode that answered several questions, from the answer to each.

        >>> Answered.all([Answered("Anna"), Answered("Ro", Outcome.ANSWER_TRUNCATED)])
        Answered(text='1. Anna\\n2. Ro', outcome=<Outcome.ANSWER_TRUNCATED: 'answer_truncated'>, answers=('Anna', 'Ro'))
        """
        outcomes = [one.outcome for one in answers]
        outcome = next((other for other in outcomes if other is not Outcome.ANSWERED), Outcome.ANSWERED)
        return cls(numbered(one.text or "" for one in answers), outcome, tuple(one.text for one in answers))


class MemoryPolicy(ABC):
    """What a policy may say of itself, with what holds where it doesn't, and the one thing it must do."""

    __slots__ = ()

    reads_documents: ClassVar[bool] = True
    """False: it finds out what it needs to know, with tools say, and takes problems that have no document."""

    reads_to_end: ClassVar[bool] = True
    """False: it may stop before a document ends, whatever the model says; `palimpsest check` then asks for no more."""

    answers_questions: ClassVar[bool] = False
    """True: it answers each of `Problem.questions` from what it read once; False: problems of several are refused."""

    takes_memory: ClassVar[bool] = False
    """True: an episode begins with `Problem.memory`; False: problems that bring one are refused."""

    training_limits: ClassVar[tuple[str, ...]] = ()
    """Names of options that bound how much of a document training reads. Evaluation reads everything: it leaves them at
    their defaults, unless an option of the evaluation says otherwise."""

    reward: ClassVar[str | None] = None
    """The `reward.name` that reads the form of answer its prompts ask for, where nobody names one; None: any does."""

    def wording(self) -> Wording | None:
        """Its texts, where its option `prompts` takes a file with others (parts/prompts.py); None: it has none."""
        return None

    def teachable(self) -> Teachable | None:
        """What a cold start draws reading lessons from, most often the policy itself; None: it can't be taught so."""
        return None

    def required_context(self, codec: Codec) -> int:
        """Window the model needs, in tokens: the longest prompt of any episode plus its completion.

        A run on a model with less is refused at its start. 0: not known.
        """
        return 0

    def admit(self, problem: Problem, codec: Codec) -> None:  # noqa: B027  most policies refuse nothing
        """Refuse, with DataError, a problem that breaks a budget. Called for every problem before it is played."""

    def prepare(self, problem: Problem, codec: Codec) -> Any:
        """What every episode of `problem` needs in the same way, its document as token ids say: `model.prepared`.

        Training calls it once a group, on a thread beside the event loop, before any episode of the batch begins.
        What it raises ends each of those episodes as if `run` had. None: nothing.
        """
        return None

    @abstractmethod
    async def run(self, problem: Problem, model: Model) -> Answered:
        """Play one episode."""

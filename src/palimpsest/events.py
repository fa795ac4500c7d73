"""Events between the turns of an episode: a type for each kind of the library, `Plain` for others.

    model.event(MemoryCut(tokens=40, kept=32))      one of the kinds below
    model.event("looked_up", pages=3)               a custom kind: `Plain`, with its details

Guaranteed: standard library only; every value is immutable; a kind of the library always has the fields declared here:
`event_of` rejects others from policies and records.
Not covered: types of the fields' values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, get_args


@dataclass(frozen=True, slots=True)
class DocumentTruncated:
    """A document was longer than the policy reads."""

    kind: ClassVar[str] = "document_truncated"
    tokens: int
    kept: int
    """Tokens of it that are read."""
    how: str
    """`centre` or `tail` of the option `overlong`; for a baseline the name of its class."""


@dataclass(frozen=True, slots=True)
class MemoryWritten:
    """The new memory, where it differs from the previous turn's reply."""

    kind: ClassVar[str] = "memory"
    token_ids: tuple[int, ...]
    """[T] ids in the next prompt."""
    text: str
    """Decoded text of `token_ids`."""
    changed: bool
    """False: the reply wrote none, so this is the memory of before."""
    update: str | None = None
    """Text between the tags of the reply, if the whole text became the memory."""
    sources: tuple[int, ...] = ()
    """Turns whose named pieces are its sources (`Completion.turn`); (): those of the turn before it."""


@dataclass(frozen=True, slots=True)
class PassEnded:
    """A reading of the whole document ended."""

    kind: ClassVar[str] = "reading_pass"
    number: int
    """0 for the first."""
    of: int
    """Most readings."""
    sections: int
    found: int
    """Sections that added something."""


@dataclass(frozen=True, slots=True)
class MemoryCut:
    """A memory exceeded its budget and lost its end."""

    kind: ClassVar[str] = "memory_cut"
    tokens: int
    kept: int


@dataclass(frozen=True, slots=True)
class EmptyMemoryKept:
    """A reply was empty, or said that there is nothing to add: the memory is unchanged."""

    kind: ClassVar[str] = "empty_memory_kept"


@dataclass(frozen=True, slots=True)
class MemoryUngrounded:
    """The grounding rule dropped units of a reply, each with its reason (memory/parts/grounded.py)."""

    kind: ClassVar[str] = "memory_ungrounded"
    dropped: tuple[str, ...]
    reasons: tuple[str, ...]
    token_ids: tuple[int, ...]
    """[T] the memory from here on; empty for a prune, rejected whole."""
    changed: bool
    """False: no unit remained, so the memory is the previous one."""


@dataclass(frozen=True, slots=True)
class ReplyMalformed:
    """A reply in tags was not parseable."""

    kind: ClassVar[str] = "malformed"
    reason: str
    accepted: bool = False
    """True if its text became the memory anyway (`malformed: accept`)."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A query over earlier memories; its hit is in the next prompt."""

    kind: ClassVar[str] = "recall"
    query: str
    chunk: int | None
    """Index of the chunk after which the memory was written; None: no hit."""
    text: str | None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class PastShown:
    """The program, not the model, put a past memory into the next prompt."""

    kind: ClassVar[str] = "retrieved"
    chunk: int
    """Index of the chunk after which it was written."""
    text: str


@dataclass(frozen=True, slots=True)
class ReadingEnded:
    """A policy ended the reading before the document did, or with it."""

    kind: ClassVar[str] = "exit"
    chunk: int
    """Index of the last chunk read."""
    unread: int


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A successful tool call."""

    kind: ClassVar[str] = "tool_call"
    id: str
    """Id of the result; `Turn.spans` of later turns contain `result:ID` while it is in the prompt."""
    tool: str | None
    tokens: int
    """Tokens of the shown result."""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolFailed:
    """A tool call failed; the model saw the error."""

    kind: ClassVar[str] = "tool_error"
    error: str
    """malformed, unreadable (in another format), unknown_tool, bad_arguments, too_many, timeout or exception."""
    id: str
    tool: str | None
    """None: the call was not parseable."""
    tokens: int
    message: str
    """At most 400 characters."""


@dataclass(frozen=True, slots=True)
class EnvironmentStepped:
    """An action in the environment."""

    kind: ClassVar[str] = "environment_step"
    action: str
    """At most 400 characters."""
    reward: float
    done: bool
    info: Mapping[str, Any] = field(default_factory=dict)
    """Numbers by name."""


@dataclass(frozen=True, slots=True)
class EnvironmentFailed:
    """The environment raised an error, or gave no answer in time, and ended the episode."""

    kind: ClassVar[str] = "environment_error"
    message: str
    where: str = ""
    """FILE:LINE of its code."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The model deleted results from its context."""

    kind: ClassVar[str] = "prune"
    id: str
    """Id of the prune's result."""
    deleted: tuple[str, ...]
    """Ids of the results."""
    memory: str
    """Memory that replaces the pruned results."""
    context_tokens: int
    """Tokens of the prompt after all prunes of the reply, before its results."""
    verb: str = "merge"
    """Of an agent that edits its context (memory/edit.py); a prune merges."""
    tokens: tuple[int, int] = (0, 0)
    """Position of the call in its reply's tokens: start, end."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Results left no room for another turn and were taken back."""

    kind: ClassVar[str] = "rolled_back"
    ids: tuple[str, ...]
    count: int
    """Roll-backs of the episode so far."""


@dataclass(frozen=True, slots=True)
class PruneRefused:
    """A prune without effect: it named something that can't be deleted, or had no memory."""

    kind: ClassVar[str] = "prune_refused"
    id: str
    reason: str
    """At most 400 characters."""


@dataclass(frozen=True, slots=True)
class ExchangesDropped:
    """The oldest replies left the window with their results."""

    kind: ClassVar[str] = "window"
    exchanges: int


@dataclass(frozen=True, slots=True)
class SummedUp:
    """A summary replaced the history."""

    kind: ClassVar[str] = "summary"
    tokens: int
    text: str
    left_out: int
    """Latest exchanges that had no room next to the request, so the summary omits them."""


@dataclass(frozen=True, slots=True)
class SamplerFailed:
    """A failed request; retries use the same seed."""

    kind: ClassVar[str] = "sampler_error"
    attempt: int
    """0 for the first."""
    message: str


@dataclass(frozen=True, slots=True)
class OnlyReasoned:
    """A reply from an endpoint had reasoning but no text."""

    kind: ClassVar[str] = "only_reasoned"


@dataclass(frozen=True, slots=True)
class PromptCut:
    """An endpoint counted clearly fewer tokens than the prompt has, so it read only a part."""

    kind: ClassVar[str] = "prompt_cut"
    tokens: int
    read: int
    """The endpoint's count."""


@dataclass(frozen=True, slots=True)
class PromptOverflowed:
    """A prompt and its budget exceed the model's window: the end of the episode."""

    kind: ClassVar[str] = "prompt_too_long"
    message: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The episode exceeded its time and ended."""

    kind: ClassVar[str] = "timed_out"
    limit_s: float | None


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """The policy's code raised an error and ended the episode."""

    kind: ClassVar[str] = "policy_error"
    type: str
    """Name of the exception's class."""
    message: str
    where: str = ""
    """FILE:LINE of the policy's code; "" in records of earlier versions."""


@dataclass(frozen=True, slots=True)
class VariantPlayed:
    """The episode used other options of the policy (`train.variant`)."""

    kind: ClassVar[str] = "variant"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Differences from the run's options."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The episode continues a recorded one from one of its turns (`palimpsest replay`)."""

    kind: ClassVar[str] = "replayed"
    of: str
    """Group and rollout of the recorded episode."""
    turn: int
    """First newly sampled turn, counted from 0."""
    memory: str | None
    """Memory that replaces this turn's memory, "" for none; None: the recorded one."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Something of a policy's own; `kind` is none of the library's."""

    kind: str
    detail: Mapping[str, Any] = field(default_factory=dict)


_Memories = DocumentTruncated | MemoryWritten | MemoryCut | EmptyMemoryKept | MemoryUngrounded
_Replies = ReplyMalformed | Recalled | PastShown | ReadingEnded | PassEnded
_Tools = ToolCalled | ToolFailed | Pruned | PruneRefused | RolledBack | ExchangesDropped | SummedUp
_Environments = EnvironmentStepped | EnvironmentFailed
_Samplers = SamplerFailed | OnlyReasoned | PromptCut | PromptOverflowed
_Library = _Samplers | TimedOut | PolicyFailed | VariantPlayed | Replayed
Declared = _Memories | _Replies | _Tools | _Environments | _Library
What = Declared | Plain

KINDS: Mapping[str, type[Declared]] = {event.kind: event for event in get_args(Declared)}
"""Kinds in records, with their types."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened between turns."""

    what: What
    before_turn: int
    """`step` of the turn that it happened before; the number of turns, if it happened after the last."""

    @property
    def kind(self) -> str:
        return self.what.kind

    @property
    def detail(self) -> Mapping[str, Any]:
        """Its fields by name.

        >>> Event(MemoryCut(tokens=40, kept=32), 1).detail
        {'tokens': 40, 'kept': 32}
        """
        if isinstance(self.what, Plain):
            return self.what.detail
        return {one.name: getattr(self.what, one.name) for one in fields(self.what)}


def event_of(kind: str, detail: Mapping[str, Any]) -> What:
    """The event of a kind's name and its details. Raises ValueError if a declared kind has other fields.

    >>> event_of("memory_cut", {"tokens": 40, "kept": 32}), event_of("looked_up", {"pages": 3})
    (MemoryCut(tokens=40, kept=32), Plain(kind='looked_up', detail={'pages': 3}))
    """
    declared = KINDS.get(kind)
    if declared is None:
        return Plain(kind, detail)
    values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in detail.items()}
    try:
        return declared(**values)
    except TypeError:
        names = ", ".join(one.name for one in fields(declared)) or "no fields"
        raise ValueError(f"event {kind!r}: it has {names}, not {', '.join(detail) or 'none'}") from None


def as_event(what: What | str, detail: Mapping[str, Any]) -> What:
    """The event that `Model.event(what, **detail)` means. Raises ValueError for a whole event with further details."""
    if isinstance(what, str):
        return event_of(what, detail)
    if detail:
        raise ValueError(f"event {what.kind!r}: pass its details to {type(what).__name__}")
    return what


E = TypeVar("E")


def of_type(events: Iterable[Event], kind: type[E]) -> list[E]:
    """The events of one type, in order.

    >>> of_type([Event(MemoryCut(40, 32), 1), Event(EmptyMemoryKept(), 2)], EmptyMemoryKept)
    [EmptyMemoryKept()]
    """
    return [event.what for event in events if isinstance(event.what, kind)]

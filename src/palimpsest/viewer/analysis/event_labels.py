"""What happened between turns, in a line, and what a turn is called by what happened after it.

A turn has all marks that fit, and one state, the gravest of them, which colours it in the strip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.events import (
    DocumentTruncated,
    EmptyMemoryKept,
    Event,
    ExchangesDropped,
    MemoryCut,
    MemoryUngrounded,
    MemoryWritten,
    PastShown,
    PolicyFailed,
    PromptOverflowed,
    Pruned,
    PruneRefused,
    ReadingEnded,
    Recalled,
    Replayed,
    ReplyMalformed,
    SamplerFailed,
    SummedUp,
    TimedOut,
    ToolCalled,
    ToolFailed,
    VariantPlayed,
    of_type,
)
from palimpsest.types import StopReason, Turn
from palimpsest.viewer.analysis.episode_timeline import TimelineStep

STATES = {
    "failed": "something failed: the sampler, the policy, the time or the window",
    "malformed": "the reply could not be read",
    "refused": "a prune was refused",
    "tool error": "a tool call brought an error",
    "truncated": "the reply was cut by its budget",
    "invented": "wrote a sentence that nothing in sight says",
    "sifted": "wrote what nothing in sight says, which was kept out of the memory",
    "edited": "its memory was put in by hand before the episode was played on",
    "pruned": "deleted results, wrote a memory",
    "summed up": "the history gave way to a summary",
    "recalled": "asked for an earlier memory, and one came up",
    "wrote": "wrote a memory that differs",
    "kept": "kept the memory as it was",
    "called": "called a tool",
    "answered": "gave the answer",
    "sampled": "sampled a reply",
}
"""From the gravest on, with what they mean."""

_FAILURES = SamplerFailed | TimedOut | PolicyFailed | PromptOverflowed
_MARKS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("failed", lambda what: isinstance(what, _FAILURES)),
    ("malformed", lambda what: isinstance(what, ReplyMalformed)),
    ("refused", lambda what: isinstance(what, PruneRefused)),
    ("sifted", lambda what: isinstance(what, MemoryUngrounded)),
    ("tool error", lambda what: isinstance(what, ToolFailed)),
    ("pruned", lambda what: isinstance(what, Pruned)),
    ("summed up", lambda what: isinstance(what, SummedUp)),
    ("recalled", lambda what: isinstance(what, Recalled) and what.chunk is not None),
    ("called", lambda what: isinstance(what, ToolCalled)),
)


def marks(
    turn: Turn, happened: Sequence[Event], step: TimelineStep | None, invented: bool, last: bool, edited: bool = False
) -> list[str]:
    """All that fit a turn, from the gravest on."""
    found = {name for name, fits in _MARKS for event in happened if fits(event.what)}
    if turn.completion.stop_reason is StopReason.LENGTH or of_type(happened, MemoryCut):
        found.add("truncated")
    if step is not None and step.reading is not None:
        found.add("wrote" if step.changed and _differs(step) else "kept")
    if invented:
        found.add("invented")
    if edited:
        found.add("edited")
    if turn.name == "answer" or (last and not found & {"wrote", "kept", "pruned", "called"}):
        found.add("answered")
    return [name for name in STATES if name in found] or ["sampled"]


def _differs(step: TimelineStep) -> bool:
    return step.before.ids != step.after.ids if step.after.ids else step.before.text != step.after.text


def in_words(event: Event) -> str:
    """An event in a line."""
    say = _SAID.get(type(event.what))
    if say is None:
        detail = ", ".join(f"{name}: {value}" for name, value in event.detail.items())
        return f"{event.kind}: {detail}" if detail else event.kind
    return say(event.what)


def replayed_in_words(what: Replayed) -> str:
    """Turns are counted from 1, as on the page.

    >>> replayed_in_words(Replayed("g, rollout 0", turn=2, memory="Ann."))
    'replayed from turn 3 with another memory'
    """
    return f"replayed from turn {what.turn + 1}" + ("" if what.memory is None else " with another memory")


def _recalled(what: Recalled) -> str:
    if what.chunk is None:
        return f'looked for "{what.query}": nothing came up'
    return f'looked for "{what.query}": the memory after chunk {what.chunk} came up'


def _written(what: MemoryWritten) -> str:
    return "the memory was written" if what.changed else "the memory stays as it was"


def _ungrounded(what: MemoryUngrounded) -> str:
    units = "; ".join(f'"{unit}" ({why})' for unit, why in zip(what.dropped, what.reasons, strict=True))
    return f"kept out of the memory: {units or 'a reply without a word'}" + (
        "" if what.changed else "; it stays as it was"
    )


def _malformed(what: ReplyMalformed) -> str:
    return f"the reply could not be read: {what.reason}" + ("; its text became the memory" if what.accepted else "")


def _failed(what: ToolFailed) -> str:
    return f"{what.tool or 'a call'} failed ({what.error}), result {what.id}: {what.message}"


def _called(what: ToolCalled) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in what.arguments.items())
    return f"{what.tool}({given}) brought result {what.id}, {what.tokens} tokens"


_SAID: Mapping[type, Callable[[Any], str]] = {
    DocumentTruncated: lambda it: f"of {it.tokens} tokens of the document {it.kept} are read ({it.how})",
    MemoryWritten: _written,
    MemoryCut: lambda it: f"the memory was cut from {it.tokens} tokens to {it.kept}",
    MemoryUngrounded: _ungrounded,
    EmptyMemoryKept: lambda it: "the reply was empty: the memory stays as it was",
    ReplyMalformed: _malformed,
    Recalled: _recalled,
    PastShown: lambda it: f"the memory after chunk {it.chunk} is put into the next prompt",
    ReadingEnded: lambda it: f"reading ends after chunk {it.chunk}, {it.unread} left unread",
    ToolCalled: _called,
    ToolFailed: _failed,
    Pruned: lambda it: f"deleted {', '.join(it.deleted)}; {it.context_tokens} tokens of the prompt are left",
    PruneRefused: lambda it: f"prune refused: {it.reason}",
    ExchangesDropped: lambda it: f"the {it.exchanges} oldest exchanges left the window",
    SummedUp: lambda it: f"the history gave way to a summary of {it.tokens} tokens",
    SamplerFailed: lambda it: f"the sampler failed (attempt {it.attempt}): {it.message}",
    PromptOverflowed: lambda it: f"the prompt has no room in the model's window: {it.message}",
    TimedOut: lambda it: "the episode took longer than it may",
    PolicyFailed: lambda it: f"the policy raised {it.type}: {it.message}" + (f" ({it.where})" if it.where else ""),
    VariantPlayed: lambda it: f"played with other options: {dict(it.options)}",
    Replayed: replayed_in_words,
}

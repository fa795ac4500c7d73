"""Event labels: one line per event, the marks of a turn, and the blocks of a context.

A turn has all marks that apply and one state, the most severe mark, which colours it in the strip. The context of an
agent with tools appears as blocks over turns, with the tokens that each deletion freed and whether a later turn missed
them:

    turn 2    opening 25   question 40   reply of turn 0: 19   result a: 71   reply of turn 1: 19   frame 9
    turn 3    opening 25   question 40   memory of turn 2: 48   result d: 25   frame 9     freed: result a, 109 tokens

Guaranteed: the blocks of a turn form its prompt: each token is in one block, in order.
Not covered: agents whose prompts have no common end, whose replies count as frame; a deleted text that a differently
worded call returns in a different form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.events import (
    DocumentTruncated,
    EmptyMemoryKept,
    EnvironmentFailed,
    EnvironmentStepped,
    Event,
    ExchangesDropped,
    MemoryCut,
    MemoryUngrounded,
    MemoryWritten,
    OnlyReasoned,
    PassEnded,
    PastShown,
    PolicyFailed,
    PromptCut,
    PromptOverflowed,
    Pruned,
    PruneRefused,
    ReadingEnded,
    Recalled,
    Replayed,
    ReplyMalformed,
    RolledBack,
    SamplerFailed,
    SummedUp,
    TimedOut,
    ToolCalled,
    ToolFailed,
    VariantPlayed,
    of_type,
)
from palimpsest.rollout.segments import surviving
from palimpsest.text.display_text import ordinal
from palimpsest.text.sentences import flat
from palimpsest.types import RESULT, Span, StopReason, Turn
from palimpsest.viewer.analysis.episode_timeline import Story, TimelineStep

# ---- Events in words, marks of turns -------------------------------------------------------------------------


STATES = {
    "failed": "the sampler, the policy or the environment failed, or a time or window limit",
    "malformed": "unreadable reply",
    "refused": "palimpsest rejected a prune",
    "tool error": "a tool call returned an error",
    "truncated": "the reply reached its budget",
    "invented": "hallucinated a sentence",
    "sifted": "hallucinated text that the grounding rule dropped",
    "edited": "memory edited by hand before the replay",
    "pruned": "deleted results, wrote a memory",
    "summed up": "a summary replaced the history",
    "recalled": "recalled an earlier memory",
    "wrote": "wrote a different memory",
    "kept": "kept the memory unchanged",
    "called": "called a tool",
    "answered": "gave the answer",
    "sampled": "sampled a reply",
}
"""States and their meaning, most severe first."""

_FAILURES = SamplerFailed | TimedOut | PolicyFailed | EnvironmentFailed | PromptOverflowed
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


def marks(story: Story, index: int) -> list[str]:
    """All marks of a turn, most severe first."""
    turn, happened, number = story.trajectory.turns[index], story.events_after[index + 1], story.step_at.get(index)
    labels = {name for name, fits in _MARKS for event in happened if fits(event.what)}
    if turn.completion.stop_reason is StopReason.LENGTH or of_type(happened, MemoryCut):
        labels.add("truncated")
    if number is not None and (step := story.steps[number]).reading is not None:
        labels.add("wrote" if step.changed and _differs(step) else "kept")
    if number is not None and story.invented(number):
        labels.add("invented")
    if index == story.edited:
        labels.add("edited")
    last = index == len(story.trajectory.turns) - 1
    if turn.name == "answer" or (last and not labels & {"wrote", "kept", "pruned", "called"}):
        labels.add("answered")
    return [name for name in STATES if name in labels] or ["sampled"]


def _differs(step: TimelineStep) -> bool:
    return step.before.ids != step.after.ids if step.after.ids else step.before.text != step.after.text


def in_words(event: Event) -> str:
    """One line per event."""
    say = _DESCRIPTIONS.get(type(event.what))
    if say is None:
        detail = ", ".join(f"{name}: {value}" for name, value in event.detail.items())
        return f"{event.kind}: {detail}" if detail else event.kind
    return say(event.what)


def replayed_in_words(what: Replayed) -> str:
    """The turns of a replay, counted from 1 as on the page.

    >>> replayed_in_words(Replayed("g, rollout 0", turn=2, memory="Ann."))
    'replayed from turn 3 with another memory'
    """
    return f"replayed from turn {ordinal(what.turn)}" + ("" if what.memory is None else " with another memory")


def _recalled(what: Recalled) -> str:
    if what.chunk is None:
        return f'recall of "{what.query}": no match'
    return f'recall of "{what.query}": the memory after section {ordinal(what.chunk)}'


def _ungrounded(what: MemoryUngrounded) -> str:
    units = "; ".join(f'"{unit}" ({why})' for unit, why in zip(what.dropped, what.reasons, strict=True))
    return f"dropped from the memory: {units or 'a reply without words'}" + (
        "" if what.changed else "; it stays unchanged"
    )


def _called(what: ToolCalled) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in what.arguments.items())
    return f"{what.tool}({arguments}) returned result {what.id}, {what.tokens} tokens"


_DESCRIPTIONS: Mapping[type, Callable[[Any], str]] = {
    DocumentTruncated: lambda it: f"the agent reads {it.kept} of the document's {it.tokens} tokens ({it.how})",
    MemoryWritten: lambda it: "wrote the memory" if it.changed else "the memory stays unchanged",
    PassEnded: lambda it: (
        f"pass {ordinal(it.number)} of at most {it.of}: {it.found} of {it.sections} sections added something"
    ),
    MemoryCut: lambda it: f"the memory budget cut {it.tokens} tokens to {it.kept}",
    MemoryUngrounded: _ungrounded,
    EmptyMemoryKept: lambda it: "nothing written: the memory stays unchanged",
    ReplyMalformed: lambda it: f"unreadable reply: {it.reason}{'; its text became the memory' if it.accepted else ''}",
    Recalled: _recalled,
    PastShown: lambda it: f"the next prompt contains the memory after section {ordinal(it.chunk)}",
    ReadingEnded: lambda it: f"reading ends after section {ordinal(it.chunk)}; {it.unread} unread",
    ToolCalled: _called,
    EnvironmentStepped: lambda it: f"did {it.action!r}: reward {it.reward:g}{', the end' if it.done else ''}",
    EnvironmentFailed: lambda it: f"the environment failed: {it.message}{it.where and f' ({it.where})'}",
    ToolFailed: lambda it: f"{it.tool or 'a call'} failed ({it.error}), result {it.id}: {it.message}",
    Pruned: lambda it: (
        f"{it.verb}: deleted {', '.join(it.deleted) or 'nothing'}; {it.context_tokens} tokens of the prompt remain"
    ),
    RolledBack: lambda it: f"no room for {', '.join(it.ids)}: taken back ({it.count} so far)",
    PruneRefused: lambda it: f"prune rejected: {it.reason}",
    ExchangesDropped: lambda it: f"the {it.exchanges} oldest exchanges left the window",
    SummedUp: lambda it: f"a summary of {it.tokens} tokens replaced the history",
    SamplerFailed: lambda it: f"the sampler failed (attempt {it.attempt}): {it.message}",
    OnlyReasoned: lambda it: "the reply had reasoning but no text",
    PromptCut: lambda it: f"the endpoint read {it.read} of the prompt's {it.tokens} tokens",
    PromptOverflowed: lambda it: f"the prompt exceeds the model's window: {it.message}",
    TimedOut: lambda it: "the episode exceeded its time limit",
    PolicyFailed: lambda it: f"the policy raised {it.type}: {it.message}" + (f" ({it.where})" if it.where else ""),
    VariantPlayed: lambda it: f"run with different options: {dict(it.options)}",
    Replayed: replayed_in_words,
}


# ---- The context of an agent with tools ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tokens of a prompt."""

    kind: str
    """opening, question, reply, memory (a reply that pruned), result, another piece's name, or frame: the template."""
    tokens: Span
    turn: int | None = None
    """The turn that sampled a reply."""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class NeededAgain:
    """A deleted result that was needed later."""

    turn: int
    """The turn after which it returned."""
    how: str
    """`same call` or `same text`."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A result that a prune deleted."""

    id: str
    tokens: int | None
    """None if no prompt showed it."""
    again: NeededAgain | None


@dataclass(frozen=True, slots=True)
class Freed:
    """Tokens that left the context after a turn."""

    turn: int
    how: str
    """`prune`, `summary` or `window`."""
    tokens: int
    """Tokens of the turn's prompt that the next prompt lacks; new tokens of the next prompt do not count."""
    deleted: tuple[Deleted, ...]


def context_blocks(story: Story) -> tuple[tuple[Block, ...], ...]:
    """[turns] the blocks of each prompt."""
    turns = story.trajectory.turns
    pruned = {index for index in range(len(turns)) if of_type(story.events_after[index + 1], Pruned)}
    return tuple(tuple(_blocks(turns[:index], turn, pruned)) for index, turn in enumerate(turns))


def freed(story: Story) -> tuple[Freed, ...]:
    """Tokens removed by prunes, summaries and windows, in order."""
    turns, result = story.trajectory.turns, []
    for index, turn in enumerate(turns):
        happened = story.events_after[index + 1]
        how = next((name for kind, name in _HOW.items() if of_type(happened, kind)), None)
        if how is None:
            continue
        deleted = [one for prune in of_type(happened, Pruned) for one in prune.deleted]
        left = [prune.context_tokens for prune in of_type(happened, Pruned)]
        after = turns[index + 1] if index + 1 < len(turns) else None
        tokens = len(turn.prompt_ids) - left[-1] if left else _gone(turn, after)
        result.append(Freed(index, how, tokens, tuple(_deleted(story, index, one) for one in deleted)))
    return tuple(result)


_HOW: dict[type, str] = {Pruned: "prune", SummedUp: "summary", ExchangesDropped: "window"}


def _blocks(earlier: Sequence[Turn], turn: Turn, pruned: set[int]) -> Iterator[Block]:
    owners: list[Block | None] = [None] * len(turn.prompt_ids)
    for position, index, _ in surviving(earlier, turn.prompt_ids):
        owners[position] = Block("memory" if index in pruned else "reply", (0, 0), turn=index)
    for name, (start, end) in sorted(turn.spans.items(), key=lambda it: it[1][0] - it[1][1]):
        is_result = name.startswith(RESULT)
        kind, id_ = ("result", name.removeprefix(RESULT)) if is_result else (name, None)
        owners[start:end] = [Block(kind, (0, 0), id=id_)] * (end - start)
    spoken = [position for position, owner in enumerate(owners) if owner is not None and owner.kind != "question"]
    begins = spoken[0] if spoken else len(owners)
    for position, owner in enumerate(owners):
        if owner is None:
            owners[position] = Block("opening" if position < begins else "frame", (0, 0))
    start = 0
    for end in range(1, len(owners) + 1):
        if end == len(owners) or owners[end] != owners[start]:
            owner = owners[start]
            assert owner is not None
            yield Block(owner.kind, (start, end), owner.turn, owner.id)
            start = end


def _gone(turn: Turn, after: Turn | None) -> int:
    """Tokens of a prompt after the prefix that the next one shares, minus tokens that occur there again."""
    if after is None:
        return 0
    repeated = sum(end - start for name, (start, end) in turn.spans.items() if after.piece(name) == turn.piece(name))
    shared = next(
        (n for n, (a, b) in enumerate(zip(turn.prompt_ids, after.prompt_ids, strict=False)) if a != b),
        min(len(turn.prompt_ids), len(after.prompt_ids)),
    )
    return max(0, len(turn.prompt_ids) - max(shared, repeated))


def _deleted(story: Story, index: int, id_: str) -> Deleted:
    ids = next((ids for turn in story.trajectory.turns[: index + 1] if (ids := turn.piece(RESULT + id_))), None)
    call = next((one for one in of_type(story.trajectory.events, ToolCalled) if one.id == id_), None)
    text = None if ids is None else _result_text(story, ids, id_)
    return Deleted(id_, None if ids is None else len(ids), _again(story, index, call, text))


def _again(story: Story, index: int, call: ToolCalled | None, text: str | None) -> NeededAgain | None:
    turns = story.trajectory.turns
    for later in range(index, len(turns)):
        for one in of_type(story.events_after[later + 1], ToolCalled):
            if call is not None and (one.tool, _plain(one)) == (call.tool, _plain(call)):
                return NeededAgain(later, "same call")
            ids = turns[later + 1].piece(RESULT + one.id) if later + 1 < len(turns) else None
            if text and ids is not None and _result_text(story, ids, one.id) == text:
                return NeededAgain(later, "same text")
    return None


def _plain(call: ToolCalled) -> str:
    return flat(repr(sorted((str(name), str(value)) for name, value in call.arguments.items())))


def _result_text(story: Story, ids: Sequence[int], id_: str) -> str:
    return flat(story.texts.of(ids).text.replace(id_, "", 1))

"""MemAct's policy: an agent with tools that deletes parts of its own context with a tool call.

Source: MemAct (arXiv 2510.12635) and its code (docs/project/differences.md). The tool is
prune_context(memory, delete_ids). It removes the results with these ids together with the calls that made them; the
prune_context call stays, with its memory. Its result has an id too, so that a later prune can delete an older memory.

A prune is applied as a whole or rejected with a message that names the fault; several in one reply are applied in
order. Other calls of the same reply have no id yet and cannot be named.

Guaranteed: a prune removes exactly the named results and their calls (memory/parts/history.py covers replies with
several calls). Without a prune the prompt only grows. With `prune: false` the tool is unknown to the same agent.
Not covered: completeness of the memory. `grounded`, our addition, rejects unsupported memories.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from palimpsest.errors import ConfigError
from palimpsest.events import MemoryUngrounded, Pruned, PruneRefused
from palimpsest.memory.parts import tool_agent
from palimpsest.memory.parts.grounded import Grounded, GroundedRule, unsupported
from palimpsest.memory.parts.prompts import Slots, shared
from palimpsest.memory.parts.tool_agent import QUERY, Found, Said, ToolAgentPolicy, ToolEpisode, ToolPrompts
from palimpsest.text.sentences import Unit, units
from palimpsest.text.template import insert
from palimpsest.text.tool_calls import ToolCall
from palimpsest.text.tool_schema import argument_fault
from palimpsest.tools.tool import ToolSpec

_REFUSED = "prune_refused"

PRUNE = ToolSpec(
    name="prune_context",
    description="Delete results of earlier tool calls from the context, after writing down what they are needed for.",
    parameters={
        "type": "object",
        "properties": {
            "memory": {"type": "string", "description": "all that must be remembered of what is deleted"},
            "delete_ids": {
                "type": "array",
                "items": {"type": "string"},
                "description": "ids of the results to delete, as they stand in [id: ...] at their beginning",
            },
        },
        "required": ["memory", "delete_ids"],
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePrompts(ToolPrompts):
    """Texts of the tool agent, plus the texts on pruning, which are omitted without the tool."""

    system_prune: Annotated[str, Slots(may_be_empty=True)] = ""
    """Addition to the system message."""
    user_prune: Annotated[str, Slots("question", optional=("tools",))] = ""
    """The user message instead of `user`."""
    pruned: Annotated[str, Slots(optional=("ids",))] = ""
    """Result of a successful prune."""


_SYSTEM_PRUNE = """## Managing your context

Your context is limited, and long contexts make for poor reasoning. With prune_context you delete results you no \
longer need: name their ids and write a memory that replaces them. The results and the calls that made them are then \
gone for good; the call of prune_context with its memory stays in their place, until you prune that too.

- Prune whenever results are used up, repeat each other or led nowhere; do not wait until the context is full.
- Write the memory before anything is lost: it must make sense by itself to a reader who sees nothing else.
- After a prune there are gaps in the conversation. That is intended: go on from the latest memory. What isn't in it \
is not known; look it up again if it is needed, and mark what you only suppose as an assumption."""

_ANSWER_FIRST = "\n- Answering comes first: when you know the answer, give it instead of pruning."

_GUIDE = """<developer_message>
Guide to prune_context

1. Find the ids of results that are superseded, redundant, failed, or whose conclusion is drawn.
2. Write `memory` in this form:
[OBJECTIVE] what is asked
[CONCLUSIONS] the facts established so far, each with what it rests on
[STATUS] what is done, and the next step
3. Call prune_context with `memory` and these ids in `delete_ids`.

Copy ids exactly as they stand at the beginning of the results; never make one up, never name one twice. Prune little \
and often. Keep results whose facts you haven't written down yet.
</developer_message>

"""

STANDARD = PrunePrompts(
    **shared(tool_agent.STANDARD),
    system_prune=_SYSTEM_PRUNE + _ANSWER_FIRST,
    user_prune=_GUIDE + QUERY,
    pruned="Deleted: {ids}. Go on from the memory.",
)
"""Our wording, after the structure of MemAct's."""

SHORT = PrunePrompts(**shared(tool_agent.SHORT), user_prune=tool_agent.SHORT.user, pruned="done")
"""For the embedded model."""

PLAY = PrunePrompts(
    **shared(tool_agent.PLAY), system_prune=_SYSTEM_PRUNE, user_prune=tool_agent.PLAY.user, pruned=STANDARD.pruned
)
PLAY_SHORT = PrunePrompts(**shared(tool_agent.PLAY_SHORT), user_prune=tool_agent.PLAY_SHORT.user, pruned="done")


@dataclass(frozen=True, slots=True)
class PrunePolicy(ToolAgentPolicy):
    """Options of the tool agent, and whether it may prune."""

    prompt_sets: ClassVar[Mapping[str, PrunePrompts]] = {
        "standard": STANDARD,
        "short": SHORT,
        "play": PLAY,
        "play_short": PLAY_SHORT,
    }
    texts: PrunePrompts = field(init=False, repr=False, compare=False)
    prune: bool = True
    """False: the plain agent with tools, without any mention of pruning in its prompt."""
    grounded: Grounded = "off"
    """Filter for a prune's memory: `off`, none (published); `verbatim`, units in a result or an earlier memory of
    the context; `close`, also paraphrases of these. A memory with any other unit rejects the whole prune."""
    unit: Unit = "sentence"
    """Unit that `grounded` checks: each `sentence`, each `item` of a list or each `line`."""

    def __post_init__(self) -> None:
        ToolAgentPolicy.__post_init__(self)
        if any(tool.spec.name == PRUNE.name for tool in self.built):
            message = f"can't have {PRUNE.name}, which is the policy's own; rename yours"
            raise ConfigError(message, key="policy.options.tools")

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return (*(tool.spec for tool in self.built), *([PRUNE] if self.prune else []))

    def messages(self) -> tuple[str, str]:
        texts = self.texts
        if not self.prune:
            return texts.system, texts.user
        return "\n\n".join(part for part in (texts.system, texts.system_prune) if part), texts.user_prune

    def shown_texts(self) -> tuple[str, ...]:
        return ("user_prune", "pruned", "result") if self.prune else ("user", "result")

    def immediate_result(self, episode: ToolEpisode, call: Found, number: int) -> Said | None:
        """Apply a prune immediately, to the history before this reply."""
        mine = self.prune and isinstance(call, ToolCall) and call.name == PRUNE.name
        if not mine or number >= self.parallel_calls:
            return ToolAgentPolicy.immediate_result(self, episode, call, number)
        assert isinstance(call, ToolCall)
        fault = prune_fault(call.arguments, episode.history.result_ids())
        fault = fault or ungrounded_note(episode, call.arguments["memory"], self.grounded, self.unit)
        if fault is not None:
            return Said(fault, _REFUSED)
        ids = call.arguments["delete_ids"]
        episode.history = episode.history.without(ids, episode.model.codec)
        return Said(insert(self.texts.pruned, {"ids": ", ".join(ids)}))

    def record(self, episode: ToolEpisode, call: Found, answer: Said, about: Mapping[str, Any]) -> None:
        mine = self.prune and isinstance(call, ToolCall) and call.name == PRUNE.name
        if mine and answer.error == _REFUSED:
            episode.model.event(PruneRefused(about["id"], answer.text[:400]))
        elif mine and answer.error is None:
            assert isinstance(call, ToolCall)
            episode.prunes += 1
            left = len(episode.history.ids())  # all prunes of this reply, before its results
            memory, deleted = call.arguments["memory"], tuple(call.arguments["delete_ids"])
            episode.notes[about["id"]] = memory
            episode.model.event(Pruned(about["id"], deleted, memory, left, tokens=episode.tokens_of(call)))
        else:
            ToolAgentPolicy.record(self, episode, call, answer, about)


def ungrounded_note(episode: ToolEpisode, text: str, grounded: Grounded, unit: Unit) -> str | None:
    """Why a note is rejected by the option `grounded`, with an event; None if it is not."""
    if grounded == "off":
        return None
    codec = episode.model.codec
    results = [result for result in episode.history.results() if result.id not in episode.errors]
    texts = [episode.notes.get(result.id) or codec.decode(result.ids, control=False) for result in results]
    claims = units(text, unit)
    faults = unsupported(claims, texts, GroundedRule(grounded, unit))
    bad = [(unit, why) for unit, why in zip(claims, faults, strict=True) if why is not None]
    if not bad:
        return None
    dropped, reasons = zip(*bad, strict=True)
    episode.model.event(MemoryUngrounded(dropped, reasons, (), changed=False))
    return f'memory: "{bad[0][0][:80]}": {bad[0][1]}; write down what the results say, in their words'


def prune_fault(arguments: Mapping[str, Any], in_sight: list[str]) -> str | None:
    """Why a prune is rejected, or None.

    >>> prune_fault({"memory": "Oslo", "delete_ids": ["a1", "c3"]}, ["a1", "b2"])
    'delete_ids: "c3" is no id in sight; there is a1, b2'
    >>> prune_fault({"memory": "Oslo", "delete_ids": "a1"}, ["a1"])
    'delete_ids="a1" is a string: give an array'
    >>> prune_fault({"memory": "Oslo", "delete_ids": ["a1"]}, ["a1"]) is None
    True
    """
    fault = argument_fault(arguments, PRUNE.parameters)
    if fault is not None:
        return fault
    ids: list[str] = arguments["delete_ids"]
    if not arguments["memory"].strip():
        return "memory is empty: write down what must be remembered"
    if not ids:
        return "delete_ids is empty: name at least one id"
    allowed, visited = set(in_sight), set[str]()
    for one in ids:
        if one not in allowed:
            there = f"there is {', '.join(in_sight[:20])}" if in_sight else "there is none yet"
            return f'delete_ids: "{one[:40]}" is no id in sight; {there}'
        if one in visited:
            return f'delete_ids: "{one}" occurs twice'
        visited.add(one)
    return None

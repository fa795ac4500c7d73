"""What an agent that edits its context reads: the verbs as tools, prompts, errors about blocks (memory/edit.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from palimpsest.memory.parts import tool_agent
from palimpsest.memory.parts.prompts import Slots, shared
from palimpsest.memory.parts.tool_agent import ToolPrompts
from palimpsest.text.tool_calls import ToolCall
from palimpsest.tools.tool import ToolSpec


def _verb(name: str, about: str, **properties: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(name, about, {"type": "object", "properties": properties, "required": list(properties)})


_BLOCKS = {"type": "array", "items": {"type": "string"}, "description": "numbers of blocks"}
_TEXT = {"type": "string", "description": "everything to remember"}
VERBS = {
    spec.name: spec
    for spec in (
        _verb("drop", "Remove blocks and the calls that made them.", blocks=_BLOCKS),
        _verb(
            "keep",
            "Cut a block down to a part of it.",
            block={"type": "string", "description": "its number"},
            text={"type": "string", "description": "the part to keep, word for word"},
        ),
        _verb("note", "Write something down, and remove nothing.", text=_TEXT),
        _verb("merge", "Remove blocks, after writing down what you need them for.", blocks=_BLOCKS, text=_TEXT),
        _verb("compact", "Remove all blocks so far, after writing down the state of the work.", text=_TEXT),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPrompts(ToolPrompts):
    """Texts of the tool agent, and those about edits."""

    system_edit: Annotated[str, Slots(may_be_empty=True)] = ""
    """Addition to the system message."""
    receipt: Annotated[str, Slots(optional=("freed", "used", "limit"))] = ""
    """Result of an edit: tokens freed, tokens in use, the limit."""
    notice: Annotated[str, Slots(optional=("percent", "used", "limit"), may_be_empty=True)] = ""
    """After the result that fills the context beyond a level."""
    repeated: Annotated[str, Slots(may_be_empty=True)] = ""
    """After the last result of a reply that the episode already had, unless its results were taken back."""
    rolled_back: Annotated[str, Slots()] = ""
    """Instead of results without room."""


_GUIDE = """## Editing your context

Your context has a limit. Every result is a block with a number. Drop blocks that led nowhere, keep the part of a \
block that matters, merge blocks into a note of what they say, or compact everything into a summary. Write down what \
you need before you remove it: nothing brings it back."""

STANDARD = EditPrompts(
    **{**shared(tool_agent.STANDARD), "result": "[block {id}] {text}"},
    system_edit=_GUIDE,
    receipt="Done: {freed} tokens freed, {used} of {limit} in use.",
    notice="\n[context: {percent} % of {limit} tokens in use]",
    repeated="\n[you wrote this same reply before]",
    rolled_back="Not shown: the context is full. Free some of it with an edit, then call again.",
)
"""Our wording, for instruction models."""

SHORT = EditPrompts(**shared(tool_agent.SHORT), receipt="done", repeated=" same", rolled_back="full")
"""For the embedded model."""

PLAY = EditPrompts(
    **{**shared(tool_agent.PLAY), "result": STANDARD.result},
    system_edit=_GUIDE,
    receipt=STANDARD.receipt,
    notice=STANDARD.notice,
    rolled_back="Done, but what it showed has no room: free some of your context with an edit, then look again.",
)
PLAY_SHORT = EditPrompts(**shared(tool_agent.PLAY_SHORT), receipt="done", rolled_back="full")


def blocks_of(call: ToolCall) -> list[str]:
    """The blocks that a call names, in its order."""
    blocks: list[str] = call.arguments.get("blocks") or []
    return [call.arguments["block"]] if "block" in call.arguments else blocks


def blocks_fault(blocks: Sequence[str], there: Sequence[str], *, needed: bool) -> str | None:
    """Why `blocks` can't be edited, or None. `there`: numbers of the blocks in the context.

    >>> blocks_fault(["3"], ["1", "2"], needed=True), blocks_fault([], ["1"], needed=False)
    ('no block "3"; there is 1, 2', None)
    """
    if needed and not blocks:
        return "blocks is empty: name at least one"
    for number, one in enumerate(blocks):
        if one not in there:
            return f'no block "{one[:40]}"; there is {", ".join(there[-20:]) or "none yet"}'
        if one in blocks[:number]:
            return f'block "{one}" occurs twice'
    return None

"""An agent with tools that edits its own context, block by block.

Sources: Context Language Models (arXiv 2609.37725), whose agent edits its context as a file, and AutoCompact (arXiv
2610.02163), which compacts by a tool call. Here each edit is a call, so replies, results and their order remain a
conversation. MemAct's prune (arXiv 2510.12635) is the case with the one verb `merge`.

Every result is a block with a number. The verbs, each a tool:

    drop(blocks)         removes blocks and the calls that made them
    keep(block, text)    cuts a block down to `text`, a part of it word for word
    note(text)           removes nothing: the call stays, with its text
    merge(blocks, text)  removes blocks; the call stays, with its text
    compact(text)        removes all blocks so far; the call stays, with its text

The result of an edit, its receipt, has a number too, so a later edit can remove a note with its call. A `drop` or
`keep` goes with its receipt at once if its reply made other calls, since its effect is there to see.

    notice      a result ends with the fill of the context when it first exceeds 25, 50 or 75 %; again after a shrink
    repeat      a reply that the episode already had gets a remark after its last result: an edit may have removed every
                trace of the first one, and the same context brings the same reply
    roll-back   results that leave less than `reserve_tokens` are taken back, at most `rollbacks` times: the model reads
                `rolled_back` instead, and has to edit before it calls again

Guaranteed: an edit applies as a whole or not at all, and an error names the fault; `keep` never adds a word; a header
in the text of a tool loses its first character, so no result can pose as another block.
Not covered: completeness of notes. `grounded` rejects those with unsupported units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeGuard

from palimpsest.errors import ConfigError, nearest
from palimpsest.events import Pruned, PruneRefused, RolledBack
from palimpsest.memory.parts.edit_texts import (
    PLAY,
    PLAY_SHORT,
    SHORT,
    STANDARD,
    VERBS,
    EditPrompts,
    blocks_fault,
    blocks_of,
)
from palimpsest.memory.parts.grounded import Grounded
from palimpsest.memory.parts.tool_agent import Found, Said, ToolAgentPolicy, ToolEpisode
from palimpsest.memory.policy import require_positive
from palimpsest.memory.prune import ungrounded_note
from palimpsest.text.sentences import NUMBER, Unit, flat, stands_in
from palimpsest.text.template import insert
from palimpsest.text.tool_calls import ToolCall
from palimpsest.text.tool_schema import argument_fault
from palimpsest.tools.tool import ToolSpec
from palimpsest.types import Completion, Problem

_REFUSED = "edit_refused"
_LEVELS = (25, 50, 75)  # percent of the context


@dataclass(frozen=True, slots=True)
class EditPolicy(ToolAgentPolicy):
    """Options of the tool agent, and the verbs."""

    prompt_sets: ClassVar[Mapping[str, EditPrompts]] = {
        "standard": STANDARD,
        "short": SHORT,
        "play": PLAY,
        "play_short": PLAY_SHORT,
    }
    texts: EditPrompts = field(init=False, repr=False, compare=False)
    verbs: tuple[str, ...] = tuple(VERBS)
    """Any of drop, keep, note, merge, compact; none: the plain agent with tools."""
    reserve_tokens: int | None = None
    """Room for a reply, which results must leave; null: turn_tokens."""
    rollbacks: int = 6
    """Most roll-backs of an episode, 0 or more; then it ends as out_of_context where a turn does not fit."""
    grounded: Grounded = "off"
    """Filter for notes: `off`, none; `verbatim`, units in a result or an earlier note of the context; `close`, also
    paraphrases of these. A note with any other unit rejects the whole edit."""
    unit: Unit = "sentence"
    """Unit that `grounded` checks: each `sentence`, each `item` of a list or each `line`."""

    def __post_init__(self) -> None:
        ToolAgentPolicy.__post_init__(self)
        require_positive(self, "reserve_tokens")
        if self.rollbacks < 0:
            raise ConfigError("must be at least 0", key="policy.options.rollbacks", value=self.rollbacks)
        if unknown := next((verb for verb in self.verbs if verb not in VERBS), None):
            hint = f"choose from {', '.join(VERBS)}{nearest(unknown, VERBS)}"
            raise ConfigError(hint, key="policy.options.verbs", value=unknown)
        if len(set(self.verbs)) < len(self.verbs):
            raise ConfigError("name each verb once", key="policy.options.verbs", value=list(self.verbs))
        if self.reserve >= self.context_tokens:
            message = f"must be less than context_tokens={self.context_tokens}"
            raise ConfigError(message, key="policy.options.reserve_tokens", value=self.reserve)
        head, _, tail = self._header("\0").partition("\0")
        if not (head and tail):
            message = "put characters before and after {id}, such as [{id}]: they tell a block from other text"
            raise ConfigError(message, key="policy.options.prompts.result", value=self.texts.result)
        if taken := next((tool.spec.name for tool in self.built if tool.spec.name in self.verbs), None):
            raise ConfigError(f"can't have {taken}, which is a verb; rename yours", key="policy.options.tools")

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return (*(tool.spec for tool in self.built), *(VERBS[verb] for verb in self.verbs))

    def messages(self) -> tuple[str, str]:
        guide = self.texts.system_edit if self.verbs else ""
        return "\n\n".join(part for part in (self.texts.system, guide) if part), self.texts.user

    def shown_texts(self) -> tuple[str, ...]:
        return ("user", "result", "receipt", "rolled_back")

    def result_id(self, problem: Problem, number: int) -> str:
        return ToolAgentPolicy.result_id(self, problem, number) if self.texts.short_ids else str(number + 1)

    @property
    def reserve(self) -> int:
        """Tokens that results must leave."""
        return self.reserve_tokens or self.turn_tokens

    def _header(self, result_id: str) -> str:
        return insert(self.texts.result, {"id": result_id, "text": ""}).strip()

    def shown(self, result_id: str, text: str) -> str:
        """A result as the model sees it; headers in its text are broken."""
        header = self._header("\0")
        forged = f"{re.escape(header[0])}+({re.escape(header[1:])})".replace(re.escape("\0"), r"\w+")
        return ToolAgentPolicy.shown(self, result_id, re.sub(forged, lambda match: match[1], text))

    # --- edits ---------------------------------------------------------------------------------------------------

    def _edit(self, call: Found) -> TypeGuard[ToolCall]:
        return isinstance(call, ToolCall) and call.name in self.verbs

    def immediate_result(self, episode: ToolEpisode, call: Found, number: int) -> Said | None:
        """Apply an edit immediately, to the history before this reply."""
        if not self._edit(call) or number >= self.parallel_calls:
            return ToolAgentPolicy.immediate_result(self, episode, call, number)
        fault = argument_fault(call.arguments, VERBS[call.name].parameters) or self._fault(episode, call)
        if fault is not None:
            return Said(fault, _REFUSED)
        before = len(episode.history.ids())
        self._apply(episode, call)
        used = len(episode.history.ids())
        values = {"freed": before - used, "used": used, "limit": self.context_tokens}
        return Said(insert(self.texts.receipt, {name: str(value) for name, value in values.items()}))

    def _fault(self, episode: ToolEpisode, call: ToolCall) -> str | None:
        """Why an edit is invalid, or None."""
        arguments, there = call.arguments, episode.history.result_ids()
        if fault := blocks_fault(blocks_of(call), there, needed=call.name in ("drop", "keep", "merge")):
            return fault
        if call.name == "drop":
            return None
        if not arguments["text"].strip():
            return "text is empty: write down what to remember"
        if call.name == "keep":
            fits = self._part(episode, arguments["block"], arguments["text"])
            return None if fits else f"text is not a part of block {arguments['block']}: copy it word for word"
        return ungrounded_note(episode, arguments["text"], self.grounded, self.unit)

    def _part(self, episode: ToolEpisode, block: str, text: str) -> str:
        """The block's own characters for `text`, without header, after the text's first space; empty without any."""
        (ids,) = [one.ids for one in episode.history.results() if one.id == block]
        body = episode.model.codec.decode(ids, control=False).removeprefix(self._header(block))
        words = text.removeprefix(self._header(block)).split()
        if not words or not stands_in(flat(" ".join(words)), flat(body), NUMBER):
            return ""
        found = re.search(r"(?<!\w)" + r"\s+".join(map(re.escape, words)) + r"(?!\w)", body, re.IGNORECASE)
        return ("" if text[:1].strip() else text[:1]) + found[0] if found else ""

    def _apply(self, episode: ToolEpisode, call: ToolCall) -> None:
        history, codec = episode.history, episode.model.codec
        if call.name == "keep":
            block = call.arguments["block"]
            part = self._part(episode, block, call.arguments["text"])
            episode.history = history.with_result(block, tuple(codec.encode(self.shown(block, part))))
        elif call.name == "compact":
            episode.history = replace(history, exchanges=())
        elif call.name != "note":
            episode.history = history.without(call.arguments["blocks"], codec)
        for gone in {*history.result_ids()} - {*episode.history.result_ids()}:
            episode.notes.pop(gone, None)

    def record(self, episode: ToolEpisode, call: Found, answer: Said, about: Mapping[str, Any]) -> None:
        if not self._edit(call) or answer.error not in (None, _REFUSED):
            return ToolAgentPolicy.record(self, episode, call, answer, about)
        if answer.error is not None:
            return episode.model.event(PruneRefused(about["id"], answer.text[:400]))
        episode.prunes += 1
        if call.name != "keep":
            episode.notes[about["id"]] = call.arguments.get("text", "")
        memory = "\n".join(note for note in episode.notes.values() if note)
        deleted = tuple(blocks_of(call)) if call.name in ("drop", "merge") else ()
        left, tokens = len(episode.history.ids()), episode.tokens_of(call)
        episode.model.event(Pruned(about["id"], deleted, memory, left, verb=call.name, tokens=tokens))
        return None

    # --- remarks and roll-backs ----------------------------------------------------------------------------------

    async def answer_calls(self, episode: ToolEpisode, completion: Completion, calls: Sequence[Found]) -> None:
        await ToolAgentPolicy.answer_calls(self, episode, completion, calls)
        if self.verbs:
            taken_back = self._roll_back(episode, calls)
            self._clear(episode, calls)
            self._remark(episode)
            if not taken_back:
                episode.replies.add(episode.reply)

    def _clear(self, episode: ToolEpisode, calls: Sequence[Found]) -> None:
        """Remove the applied edits of the latest reply that left no text, unless it made no other call."""
        made = list(zip(episode.history.exchanges[-1].results, calls, strict=True))
        traceless = [
            one.id
            for one, call in made
            if self._edit(call) and call.name in ("drop", "keep") and one.id not in episode.errors
        ]
        if len(traceless) < len(made):
            episode.history = episode.history.without(traceless, episode.model.codec)

    def _roll_back(self, episode: ToolEpisode, calls: Sequence[Found]) -> bool:
        """Take back the results of the latest reply if they leave no room for a turn; return whether."""
        full = len(episode.history.ids()) + self.reserve > self.context_tokens
        last = episode.history.exchanges[-1].results
        brought = [one.id for one, call in zip(last, calls, strict=True) if not self._edit(call)]
        if not (full and brought and episode.rollbacks < self.rollbacks):
            return False
        for one in brought:
            ids = tuple(episode.model.codec.encode(self.shown(one, self.texts.rolled_back)))
            episode.history = episode.history.with_result(one, ids)
        episode.errors.update(brought)
        episode.rollbacks += 1
        episode.model.event(RolledBack(tuple(brought), episode.rollbacks))
        return True

    def _remark(self, episode: ToolEpisode) -> None:
        """Add to the latest result that its reply is a repeat, or that the context now exceeds a level."""
        used = len(episode.history.ids())
        percent = 100 * used // self.context_tokens
        level = max((one for one in _LEVELS if one <= percent), default=0)
        text = self.texts.repeated if episode.reply in episode.replies else ""
        if level > episode.level:
            values = {"percent": percent, "used": used, "limit": self.context_tokens}
            text += insert(self.texts.notice, {name: str(value) for name, value in values.items()})
        if added := episode.model.codec.encode(text):
            if used + len(added) + self.reserve > self.context_tokens:
                return
            latest = episode.history.exchanges[-1].shown[1][-1]
            episode.history = episode.history.with_result(latest.id, (*latest.ids, *added))
        episode.level = level

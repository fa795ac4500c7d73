"""GRU-Mem's policy: MemAgent with an update gate that skips writing and an exit gate that stops reading.

Source: GRU-Mem, "When to Memorize and When to Stop" (arXiv 2602.10560). At step t the agent gives

    U_t, M^_t, E_t = model(question, C_t, M_{t-1})
    M_t = M^_t if U_t else M_{t-1};   E_t ends the loop, and the answer comes from M_t

The form of the reply is our reading of "text-controlled gates":

    <check>yes</check><update>the new memory</update><next>continue</next>
    <check>no</check><next>end</next>

with thinking before it if the model wants. A closed update gate writes nothing, so a skipped turn samples a few tokens
instead of a memory; an open exit gate saves every prompt of the rest of the document.

A malformed reply (a gate missing, doubled or saying something else; an open gate without exactly one update) keeps the
memory and reads on, and an event gives the reason.

Guaranteed: a prompt never exceeds `required_context`; `early_exit: false` reads every chunk whatever the gate says.
Not covered: the authors' prompts and weights of their rewards, which were not at hand (reward/turn_rewards.py is ours).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from palimpsest.events import GatesDecided, ReadingEnded, ReplyMalformed
from palimpsest.memory import overwrite
from palimpsest.memory.overwrite import Document, OverwritePolicy, ReadingPrompts
from palimpsest.memory.policy import Answered, Model
from palimpsest.memory.tagged_memory import TaggedPolicy, blocks
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import Cutter, Fault, find_parts, the_one
from palimpsest.types import Completion, Problem

_GATES = {"check": ("no", "yes"), "next": ("continue", "end")}
"""Tag to what it says closed and open."""

_GATED = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article and the memory you have kept of the earlier sections. Read the section and reply in this form:

<thinking>what the section adds to the problem</thinking>
<check>yes or no</check>
<update>...</update>
<next>continue or end</next>

Check says whether the memory has to change. If yes, put the new memory between the update tags: every detail of the \
old memory that still matters and what the section adds. If no, leave the update out; the memory stays as it is. Next \
says whether to read on, or to end because the memory holds all that the problem needs."""

STANDARD = replace(
    overwrite.STANDARD,
    read=f"{_GATED}\n\n{blocks('question', 'memory', 'section')}\n\nYour reply:",
    read_section_first=f"{_GATED}\n\n{blocks('section', 'question', 'memory')}\n\nYour reply:",
)
"""In our own words, for instruction models."""

SHORT = replace(
    overwrite.SHORT,
    read="Problem: {question}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory or end.",
    read_section_first="Section:\n{section}\nProblem: {question}\nMemory:{memory}\nUpdate the memory or end.",
)
"""What the embedded model was made for."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a reply decided."""

    memory: list[int] | None
    """None: the update gate is closed."""
    exit: bool


@dataclass(frozen=True, slots=True)
class GatedPolicy(TaggedPolicy):
    """Options of `overwrite`, and the gates'; all lengths in tokens."""

    prompt_sets: ClassVar[Mapping[str, ReadingPrompts]] = {"standard": STANDARD, "short": SHORT}
    early_exit: bool = True
    """Whether the exit gate ends the reading; False for tasks in which every chunk counts."""

    def required_context(self, codec: Codec) -> int:
        """Window the model needs: the longest prompt any document can lead to, plus its completion."""
        return OverwritePolicy.required_context(self, codec) + max(0, self.written_tokens - self.memory_tokens)

    @property
    def may_keep(self) -> bool:
        """By the update gate."""
        return True

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a reply that writes and reads on, or for an empty `memory` skips, without the stop token."""
        if not memory:
            return codec.encode("<check>no</check><next>continue</next>")
        return [
            *codec.encode("<check>yes</check><update>"),
            *memory,
            *codec.encode("</update><next>continue</next>"),
        ]

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        """Read until the exit gate opens or the document ends, then answer."""
        codec = model.codec
        read, _ = self.templates(codec)
        question = codec.encode(problem.question)
        memory = self.first_memory(problem, codec)
        chunks = self.document_chunks(document, model)
        for index, chunk in enumerate(chunks):
            values = {"question": question, "memory": memory, "section": chunk}
            prompt = read.fill(values)
            completion = await self.read(prompt, index, model)
            decision = self._decide(completion, model, read.pieces[-1])
            memory = self.next_memory_of(memory, decision.memory, model, (chunk,))
            if decision.exit and self.early_exit:
                model.event(ReadingEnded(index, unread=len(chunks) - index - 1))
                break
        return await self.answer(problem, {"memory": memory}, model)

    def _decide(self, completion: Completion, model: Model, before: Sequence[int]) -> Decision:
        decision = read_gates(completion.token_ids, model.codec, before)
        if isinstance(decision, Fault):
            model.event(ReplyMalformed(decision.reason))
            return Decision(None, False)
        model.event(GatesDecided(update=decision.memory is not None, exit=decision.exit))
        return decision


def read_gates(ids: Sequence[int], codec: Codec, before: Sequence[int] = ()) -> Decision | Fault:
    """Both gates of a reply, and the memory it writes where the first is open."""
    cutter = Cutter.of(ids, codec, before)
    parts = find_parts(cutter.text, ("check", "update", "next"))
    if isinstance(parts, Fault):
        return parts
    open_gates = {}
    for name, words in _GATES.items():
        part = the_one(parts, name)
        if isinstance(part, Fault):
            return part
        said = part.text.strip().casefold()
        if said not in words:
            return Fault(f"<{name}> says {said!r:.40}, not {' or '.join(words)}")
        open_gates[name] = said == words[1]
    if not open_gates["check"]:
        return Decision(None, open_gates["next"])
    update = the_one(parts, "update")
    return update if isinstance(update, Fault) else Decision(cutter.cut(*update.inner), open_gates["next"])

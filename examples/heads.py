"""MHM-LRU in one file: a memory of several heads, of which each section rewrites the least recently updated.

    palimpsest check examples.heads:HeadsPolicy
    palimpsest eval Qwen/Qwen3-4B --policy examples.heads:HeadsPolicy --data hotpot_dev.json --documents 50

Source: "Multi-Head Recurrent Memory Agents" (arXiv 2607.01523). For chunks c_t of a document and H heads

    for each chunk c_t:  heads[t mod H] = model(question, all heads, c_t)      # the others stay as they are
    answer = model(question, all heads)

The least recently updated head is head t mod H, so no turn is needed for the choice, and a turn can't change other
heads. The authors' prompts and code were not available: the wording is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from palimpsest.errors import ConfigError
from palimpsest.events import MemoryWritten
from palimpsest.memory import overwrite
from palimpsest.memory.overwrite import Document, OverwritePolicy, ReadingPrompts
from palimpsest.memory.parts.prompts import Slots
from palimpsest.memory.policy import Answered, Model
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import without_thinking
from palimpsest.types import Problem, StopReason

SLOTS = ("question", "other_heads", "memory", "section")
"""`memory` is the head that the turn rewrites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsPrompts(ReadingPrompts):
    """Texts of reading into several heads."""

    read: Annotated[str, Slots(*SLOTS, when="layout=memory_first")] = ""
    read_section_first: Annotated[str, Slots(*SLOTS, when="layout=section_first")] = ""


_TASK = """You are answering a problem about an article that is too long to read at once. You keep several memories of \
it, and with each section you rewrite one of them; the others stay as they are. Write that memory: keep what still \
matters of it, and add what the section says that helps to solve the problem."""
_SECTION = "\n\nSection:\n{section}"
_REST = "\n\nProblem: {question}\n\nOther memories:\n{other_heads}\n\nThe memory to rewrite:\n{memory}"

STANDARD = HeadsPrompts(
    read=_TASK + _REST + _SECTION,
    read_section_first=_TASK + _SECTION + _REST,
    answer=overwrite.STANDARD.answer,
    empty_memory=overwrite.STANDARD.empty_memory,
)


@dataclass(frozen=True, slots=True)
class HeadsPolicy(OverwritePolicy):
    """Options of `overwrite`, and the heads; all lengths in tokens."""

    prompt_sets: ClassVar[Mapping[str, HeadsPrompts]] = {"standard": STANDARD}
    texts: HeadsPrompts = field(init=False, repr=False, compare=False)
    memory_tokens: int = 1024
    """Tokens per head."""
    heads: int = 4

    def __post_init__(self) -> None:
        OverwritePolicy.__post_init__(self)
        if self.heads < 1:
            raise ConfigError("must be at least 1", key="policy.options.heads", value=self.heads)

    def required_context(self, codec: Codec) -> int:
        """Window the model needs: the longest prompt any document can lead to, plus its completion."""
        read, answer = self.templates(codec)
        empty, gap = len(codec.encode(self.texts.empty_memory)), len(codec.encode("\n"))
        shown = self.question_tokens + self.heads * (self.memory_tokens + gap) + 2 * empty
        reading = read.literal_length + shown + self.chunk_size + self.memory_tokens
        return max(reading, answer.literal_length + shown + self.answer_tokens)

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        """Read every chunk, each into the next head, then answer from all. A memory that the problem brings is the last
        head's, which is rewritten last."""
        codec = model.codec
        read, _ = self.templates(codec)
        question, empty = codec.encode(problem.question), codec.encode(self.texts.empty_memory)
        heads = [*([] for _ in range(self.heads - 1)), codec.encode(problem.memory)]
        chunks = self.document_chunks(document, model)

        def others_of(own: int) -> list[int]:
            return together([*heads[:own], *heads[own + 1 :]], codec)

        def slots(number: int) -> dict[str, Sequence[int]]:
            own = number % self.heads
            return {"question": question, "other_heads": others_of(own) or empty, "memory": heads[own] or empty}

        for index, chunk in enumerate(chunks):
            own = index % self.heads
            before, others = heads[own], others_of(own)
            completion = await self.read(index, chunks, slots, read, model)
            written = without_thinking(completion.token_ids, codec, read.pieces[-1])[: self.memory_tokens]
            cut_off = completion.stop_reason is StopReason.LENGTH
            heads[own] = self.sifted(before, written, (chunk, others, before), model, cut_off)
            held = together(heads, codec)
            model.event(MemoryWritten(tuple(held), codec.decode(held), changed=heads[own] is not before))
        return await self.answer(problem, {"memory": together(heads, codec) or empty}, model)


def together(heads: Sequence[list[int]], codec: Codec) -> list[int]:
    """[T] the non-empty heads, in order, with line breaks between them."""
    gap = codec.encode("\n")
    said = [head for head in heads if head]
    return [i for number, head in enumerate(said) for i in (*(gap if number else ()), *head)]

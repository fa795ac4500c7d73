"""MHM-LRU: a memory of several heads, of which each section rewrites one, the least recently updated.

Source: "Multi-Head Recurrent Memory Agents" (arXiv 2607.01523), by its abstract and its authors' pages,
multihead-recurrent-memory.github.io and github.com/deeplearning-wisc/multi-head-memory. For a document of chunks c_t:

    heads = H times "No previous memory"
    for each chunk c_t:  heads[t mod H] = model(question, heads, c_t)      # the others stay as they are
    answer = model(question, heads)

The head that was updated least recently, of several the first, is head t mod H: no turn is spent on choosing. "Read all
heads, write to one": as published the update has question, chunk and the full memory in sight (`shown: all`), and there
are 4 heads of 1024 tokens. With `shown: own` a reading turn sees the head it rewrites alone, by the prompts of
`overwrite`, so that an agent trained to overwrite one memory can be played with several. One head is `overwrite`, turn
by turn.

Heads that stand together, as in the answer prompt, stand in their order with `between` between them; one that is empty,
or says what the empty memory says, is left out.

The authors' prompts and code were not at hand: the wording and how heads are joined are ours. Other differences are
those of memory/overwrite.py. Under `empty_memory: keep` an empty response leaves its head as it was, and the next chunk
goes to the next head all the same.

Guaranteed: a turn changes no head but its own; a prompt never exceeds `required_context`.
Not covered: heads chosen by relevance or by the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from palimpsest.errors import ConfigError
from palimpsest.events import HeadWritten
from palimpsest.memory import overwrite
from palimpsest.memory.overwrite import Document, OverwritePolicy, ReadingPrompts
from palimpsest.memory.parts.prompts import Slots, has_text, shared
from palimpsest.memory.policy import Answered, Model
from palimpsest.memory.tagged_memory import blocks
from palimpsest.text.codec import Codec
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsPrompts(ReadingPrompts):
    """Texts of reading into several heads."""

    read: Annotated[str, Slots("question", "memory", "section", when="shown=own and layout=memory_first")] = ""
    read_section_first: Annotated[
        str, Slots("question", "memory", "section", when="shown=own and layout=section_first")
    ] = ""
    read_all: Annotated[
        str, Slots("question", "other_heads", "memory", "section", when="shown=all and layout=memory_first")
    ] = ""
    """`memory` is the head to be rewritten."""
    read_all_section_first: Annotated[
        str, Slots("question", "other_heads", "memory", "section", when="shown=all and layout=section_first")
    ] = ""
    between: Annotated[str, Slots(may_be_empty=True)] = ""
    """What stands between two heads that are shown together."""


_ALL = """You are answering a problem about an article that is too long to read at once. You keep several memories of \
it, and with each section you write one of them anew. You get the problem, one section of the article, the memory that \
you write anew and the other memories, which stay as they are. Read them and write that memory: keep every detail of \
it that still matters and add what the section says that helps to solve the problem. Only the new memory will be kept \
in its place."""

STANDARD = HeadsPrompts(
    **shared(overwrite.STANDARD),
    read_all=f"{_ALL}\n\n{blocks('question', 'other_heads', 'memory', 'section')}\n\nUpdated memory:",
    read_all_section_first=f"{_ALL}\n\n{blocks('section', 'question', 'other_heads', 'memory')}\n\nUpdated memory:",
    between="\n\n",
)
"""Those of `overwrite`, and in our own words what shows all heads."""

SHORT = HeadsPrompts(**shared(overwrite.SHORT))
"""What the embedded model was made for: one memory in sight."""

_SHOW_ALL = {"read": "read_all", "read_section_first": "read_all_section_first"}


@dataclass(frozen=True, slots=True)
class HeadsPolicy(OverwritePolicy):
    """Options of `overwrite`, and the heads, with the published defaults; all lengths in tokens."""

    prompt_sets: ClassVar[Mapping[str, HeadsPrompts]] = {"standard": STANDARD, "short": SHORT}
    texts: HeadsPrompts = field(init=False, repr=False, compare=False)
    memory_tokens: int = 1024
    """Of each head."""
    heads: int = 4
    """Of the memory, rewritten in turn."""
    shown: Literal["all", "own"] | None = None
    """Heads in sight of a reading turn: `all`, as published, or its `own` alone; null: `all` where the prompts have a
    text for that, which the `short` ones haven't."""
    shows_all: bool = field(init=False, repr=False, compare=False)
    """Whether a reading turn has other heads in sight: what `shown` comes to."""

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ConfigError(f"policy.options.heads={self.heads}: must be at least 1 head; 1 is what overwrite does")
        shown = self.shown or ("all" if has_text(self.prompts, self.prompt_sets, _SHOW_ALL.values()) else "own")
        object.__setattr__(self, "shows_all", shown == "all" and self.heads > 1)
        OverwritePolicy.__post_init__(self)
        read, _ = self.shown_texts()
        if not getattr(self.texts, read):
            raise ConfigError(
                f"policy.options.shown={self.shown!r}: the {self.prompts} prompts have no text {read}; set "
                "policy.options.shown=own, or give policy.options.prompts a file with that text"
            )

    def shown_texts(self) -> tuple[str, ...]:
        """Names of the texts that these options show."""
        read, answer = OverwritePolicy.shown_texts(self)
        return (_SHOW_ALL[read] if self.shows_all else read), answer

    def required_context(self, codec: Codec) -> int:
        """Window the model needs: the longest prompt any document can lead to, plus its completion."""
        read, answer = self.templates(codec)
        slots = {
            "question": self.question_tokens,
            "other_heads": self._together_tokens(self.heads - 1, codec),
            "memory": self._together_tokens(1, codec),
            "section": self.chunk_size,
        }
        reading = read.literal_length + sum(slots[name] for name in read.slots) + self.memory_tokens
        memory = self._together_tokens(self.heads, codec)
        return max(reading, answer.literal_length + self.question_tokens + memory + self.answer_tokens)

    def _together_tokens(self, count: int, codec: Codec) -> int:
        """The most that so many heads can be together."""
        between = max(count - 1, 0) * len(codec.encode(self.texts.between))
        return max(count * self.memory_tokens + between, len(codec.encode(self.texts.empty_memory)))

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        """Read every chunk, each into the next head, then answer from all.

        A memory that the problem brings is the last head's: the newest, to be rewritten last.
        """
        codec = model.codec
        read, _ = self.templates(codec)
        question, between = codec.encode(problem.question), codec.encode(self.texts.between)
        empty = codec.encode(self.texts.empty_memory)
        heads = [*[empty] * (self.heads - 1), self.first_memory(problem, codec)]
        memory = together(heads, empty, between)
        for index, chunk in enumerate(self.document_chunks(document, model)):
            own = index % self.heads
            others = together([*heads[:own], *heads[own + 1 :]], empty, between)
            values = {"question": question, "other_heads": others, "memory": heads[own], "section": chunk}
            prompt = read.fill(values)
            completion = await self.read(prompt, index, model)
            sources = (chunk, others) if self.shows_all else (chunk,)
            heads[own] = self._next_memory(heads[own], completion, model, read.pieces[-1], sources)
            memory = together(heads, empty, between)
            model.event(HeadWritten(own, tuple(heads[own]), tuple(memory)))
        return await self.answer(problem, {"memory": memory}, model)


def together(heads: Sequence[list[int]], empty: Sequence[int], between: Sequence[int]) -> list[int]:
    """[T] what stands in a slot that shows `heads`: those that say something, in order, `between` between two of them.

    If none does it is the `empty` memory while a head still holds that, and nothing once all were emptied.

    >>> together([[1], [9], [], [2, 3]], empty=[9], between=[0])
    [1, 0, 2, 3]
    >>> together([[9], []], empty=[9], between=[0]), together([[], []], empty=[9], between=[0])
    ([9], [])
    """
    empty = list(empty)
    first, *others = [head for head in heads if head and head != empty] or [empty if empty in heads else []]
    return [*first, *(i for head in others for i in (*between, *head))]

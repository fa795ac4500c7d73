"""ReMemR1's policy, an overwritten memory with recall of earlier memories; MemAgent with retrieval.

Source: ReMemR1 (arXiv 2509.23040) and its code (docs/project/differences.md); the budgets below are its defaults. For
chunks c of a document:

    memory = "No previous memory"; recalled = "No memory was recalled."; history = []
    for each chunk c_t:
        reply = model(question, recalled, memory, c_t)
        query = text in <recall>...</recall>, if any
        recalled = the earlier memory most similar to the query, else "No memory was recalled."
        memory = text in <update>...</update>;  history += [(t, memory)]
    answer = model(question, recalled, memory)

A malformed reply (docs/reference/policies.md) keeps the old memory: guessing its meaning would train the guess.

`RetrievalPolicy` is the baseline `recurrent-rag` of ReMemR1's evaluation: the question is the query, and the past
memory most similar by the Jaccard index is appended to the memory. Our reading: it is appended in every prompt, unless
it equals the present memory.

Guaranteed: a prompt never exceeds `required_context`, with two memories in `RetrievalPolicy`; only replies are parsed.
Not covered: several recalls in a turn; several questions on one reading in `RetrievalPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from palimpsest import events
from palimpsest.errors import ConfigError
from palimpsest.events import MemoryCut, MemoryWritten, PastShown, ReplyMalformed
from palimpsest.memory.overwrite import Document, OverwritePolicy, ReadingPrompts
from palimpsest.memory.parts.prompts import Slots, blocks
from palimpsest.memory.parts.retrievers import RETRIEVERS, MemoryHistory, Retriever
from palimpsest.memory.policy import Answered, Model, require_positive
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import Fault, RecallReply, read_recall_reply
from palimpsest.types import Completion, Problem, Prompt, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPrompts(ReadingPrompts):
    """Texts of a policy with recall."""

    read: Annotated[str, Slots("question", "recalled", "memory", "section", when="layout=memory_first")] = ""
    read_section_first: Annotated[
        str, Slots("question", "recalled", "memory", "section", when="layout=section_first")
    ] = ""
    answer: Annotated[str, Slots("question", "recalled", "memory")] = ""
    nothing_recalled: Annotated[str, Slots(may_be_empty=True)] = ""
    """The recalled slot when nothing is recalled."""


_TAGGED = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article, the memory you have kept of the earlier sections and, where you asked for one, a recalled \
memory that you wrote at an earlier section. Read them and reply in this form:

<thinking>what the section adds to the problem, and what is still missing</thinking>
<update>...</update>
<recall>...</recall>

Put the new memory between the update tags, exactly once: every detail of the old and the recalled memory that still \
matters and what the section adds. Only that will be kept. If you miss something that an earlier memory may hold, name \
it in a few words between the recall tags; otherwise leave them out. At most one recall."""

STANDARD = RecallPrompts(
    read=f"{_TAGGED}\n\n{blocks('question', 'recalled', 'memory', 'section')}\n\nYour reply:",
    read_section_first=f"{_TAGGED}\n\n{blocks('section', 'question', 'recalled', 'memory')}\n\nYour reply:",
    answer=f"""You have read an article section by section and kept a memory of it. Solve the problem from that \
memory, and from the recalled one, and put the final answer in \\boxed{{}}.

{blocks("question", "recalled", "memory")}

Your answer:""",
    empty_memory="No previous memory",
    nothing_recalled="No memory was recalled.",
)
"""Our wording, for instruction models."""

SHORT = RecallPrompts(
    read="Problem: {question}\nrecall:{recalled}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory.",
    read_section_first="Section:\n{section}\nProblem: {question}\nrecall:{recalled}\nMemory:{memory}\n"
    "Update the memory.",
    answer="Problem: {question}\nrecall:{recalled}\nMemory:{memory}\nAnswer in \\boxed{}.",
    empty_memory=" none",
    nothing_recalled=" none",
)
"""For the embedded model."""


@dataclass(frozen=True, slots=True)
class RecallPolicy(OverwritePolicy):
    """Options, with ReMemR1's published defaults; all lengths in tokens."""

    prompt_sets: ClassVar[Mapping[str, RecallPrompts]] = {"standard": STANDARD, "short": SHORT}
    texts: RecallPrompts = field(init=False, repr=False, compare=False)
    empty_memory: Literal["overwrite", "keep"] = "overwrite"
    """`overwrite` only: an empty reply is malformed here."""
    reply_tokens: int | None = None
    """Budget of a whole reply, tags and thinking included; None: memory_tokens."""
    question_tokens: int = 2048
    memory_tokens: int = 2048
    """Limit of a memory, and of a recalled one: the end beyond it is cut off, with an event."""
    answer_tokens: int = 2048
    retriever: Retriever = "words"
    """`words`: share of the query's words, the paper's; `tfidf`: the code's; `bm25`; `jaccard`."""
    min_similarity: float | None = 0.0
    """A recalled memory must be more similar than this; null takes the top one even at 0, as the code does."""
    query: Literal["model", "question"] = "model"
    """`model`: the query in its reply; `question`: the question, in each turn (rule-based recall)."""
    next_memory: Literal["update", "reply"] = "update"
    """Contents of the next prompt: the `update` only, or the whole `reply` without its recall (the code)."""
    malformed: Literal["keep", "accept"] = "keep"
    """`keep` the old memory; `accept` a reply without exactly one update as the memory (the code; needs `reply`)."""

    def __post_init__(self) -> None:
        OverwritePolicy.__post_init__(self)
        require_positive(self, "reply_tokens")
        if self.empty_memory != "overwrite":
            message = "has no effect, since tags contain the memory; use overwrite"
            raise ConfigError(message, key="policy.options.empty_memory", value=self.empty_memory)
        if self.malformed == "accept" and self.next_memory == "update":
            message = "needs policy.options.next_memory=reply: without exactly one update no memory is defined"
            raise ConfigError(message, key="policy.options.malformed", value="accept")
        if self.grounded != "off" and self.next_memory == "reply":
            why = "the memory is a whole reply, tags and thinking included, which no section supports"
            message = f"with policy.options.next_memory=reply {why}; set next_memory=update, or grounded=off"
            raise ConfigError(message, key="policy.options.grounded", value=self.grounded)

    def slot_tokens(self, codec: Codec) -> int:
        recalled = max(self.memory_tokens, len(codec.encode(self.texts.nothing_recalled)))
        return OverwritePolicy.slot_tokens(self, codec) + recalled

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Reject, at load, the problems that `overwrite` rejects, and budgets that the tags fill."""
        OverwritePolicy.admit(self, problem, codec)
        tags = len(self.reply(codec, ()))
        if self.written_tokens <= tags:
            option = "reply_tokens=null, which is memory_tokens" if self.reply_tokens is None else "reply_tokens"
            most = f"set policy.options.reply_tokens to {2 * tags + self.memory_tokens} or more"
            message = f"the tags of a reply take {tags} tokens of this model's; {most}"
            raise ConfigError(message, key=f"policy.options.{option}", value=self.written_tokens)

    @property
    def written_tokens(self) -> int:
        return self.reply_tokens or self.memory_tokens

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a well-formed reply, without the stop token: an SFT target."""
        ids = [*codec.encode("<update>"), *memory, *codec.encode("</update>")]
        return ids if query is None else [*ids, *codec.encode("<recall>"), *query, *codec.encode("</recall>")]

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        codec, prompts = model.codec, self.texts
        read, _ = self.templates(codec)
        question, nothing = codec.encode(problem.question), codec.encode(prompts.nothing_recalled)
        memory, recalled, shown = self.first_memory(problem, codec), None, nothing
        history = MemoryHistory(RETRIEVERS[self.retriever](), self.min_similarity)
        chunks = self.document_chunks(document, model)
        for index, chunk in enumerate(chunks):
            values = {"question": question, "recalled": shown, "memory": memory}
            completion = await self.read(index, chunks, values, read, model)
            reply = self._read_reply(completion, model, read.pieces[-1])
            sources = (chunk,) if recalled is None else (chunk, recalled)
            forced = completion.stop_reason is StopReason.GIVEN
            recalled = self._look_back(reply, problem.question, history, model)
            shown = nothing if recalled is None else recalled
            memory = self._next(memory, reply, index, history, model, None if forced else sources)
        return await self.answer(problem, {"recalled": shown, "memory": memory}, model)

    def _read_reply(self, completion: Completion, model: Model, before: Sequence[int]) -> RecallReply | None:
        lenient = self.malformed == "accept"
        reply = read_recall_reply(completion.token_ids, model.codec, before=before, lenient=lenient)
        if isinstance(reply, Fault):
            model.event(ReplyMalformed(reply.reason))
            return None
        if reply.fault is not None:
            model.event(ReplyMalformed(reply.fault, accepted=True))
        return reply

    def _look_back(
        self, reply: RecallReply | None, question: str, history: MemoryHistory, model: Model
    ) -> list[int] | None:
        query = question if self.query == "question" else reply.query if reply else None
        if query is None:
            return None
        hit = history.look_up(query)
        if hit is None:
            model.event(events.Recalled(query, None, None))
            return None
        text, step = history.texts[hit.place], history.steps[hit.place]
        model.event(events.Recalled(query, step, text, hit.similarity))
        return history.memories[hit.place]

    def _next(
        self,
        memory: list[int],
        reply: RecallReply | None,
        step: int,
        history: MemoryHistory,
        model: Model,
        sources: Sequence[Sequence[int]] | None,
    ) -> list[int]:
        """The next memory: `written`, cut to its budget, or the old one if the reply is malformed. A new memory
        joins the history. `sources`: the rest of the prompt; None: `written` is not filtered."""
        written = None if reply is None else reply.update if self.next_memory == "update" else reply.rest
        cut = written is not None and len(written) > self.memory_tokens
        if written is not None and cut:
            model.event(MemoryCut(len(written), self.memory_tokens))
            written = written[: self.memory_tokens]
        result = memory if written is None else written
        if written is not None and sources is not None:
            result = self.sifted(memory, written, (*sources, memory), model, cut)
        changed = written is not None and (self.grounded == "off" or result is not memory)
        text = model.codec.decode(result)
        accepted = reply if self.malformed == "accept" else None
        update = model.codec.decode(accepted.update) if accepted else None
        model.event(MemoryWritten(tuple(result), text, changed, update))
        if written is not None:
            history.add(step, result, text)
        return result


# ---- MemAgent with retrieval over its own memories -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetrievalPolicy(OverwritePolicy):
    """Options of `overwrite`, and how it looks back; all lengths in tokens."""

    answers_questions: ClassVar[bool] = False
    retriever: Retriever = "jaccard"
    """`jaccard`: the published baseline's; `words`, `tfidf`, `bm25`."""
    min_similarity: float | None = 0.0
    """A memory must be more similar to the question than this; null takes the top one even at 0."""

    def slot_tokens(self, codec: Codec) -> int:
        """Those of `overwrite` plus one more memory, on a separate line."""
        return OverwritePolicy.slot_tokens(self, codec) + len(codec.encode("\n")) + self.memory_tokens

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        codec = model.codec
        read, _ = self.templates(codec)
        question = codec.encode(problem.question)
        memory = self.first_memory(problem, codec)
        history = MemoryHistory(RETRIEVERS[self.retriever](), self.min_similarity)
        chunks = self.document_chunks(document, model)
        for index, chunk in enumerate(chunks):
            past = self._past(problem.question, memory, history, model)
            values = {"question": question, "memory": _both(memory, past)}
            completion = await self.read(index, chunks, values, read, model)
            if index:  # the overwritten memory becomes a past one
                history.add(index - 1, memory, codec.decode(memory))
            memory = self._next_memory(memory, completion, model, read.pieces[-1], (chunk, past))
        past = self._past(problem.question, memory, history, model)
        return await self.answer(problem, {"memory": _both(memory, past)}, model)

    def _past(self, question: str, memory: list[int], history: MemoryHistory, model: Model) -> Prompt:
        """The past memory to append, after a line break; empty without one, or if it equals the present memory."""
        hit = history.look_up(question)
        if hit is None or history.memories[hit.place] == memory:
            return Prompt(())
        model.event(PastShown(history.steps[hit.place], history.texts[hit.place]))
        return Prompt.joined([model.codec.encode("\n"), Prompt.named("recalled", history.memories[hit.place])])


def _both(memory: list[int], past: Prompt) -> Prompt:
    return Prompt.joined([Prompt.named("memory", memory), past])

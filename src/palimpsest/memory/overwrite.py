"""MemAgent's policy: read a document chunk by chunk, overwrite a fixed-size memory, answer from it.

Source: MemAgent (arXiv 2507.02259) and its code (docs/project/differences.md); the budgets below are its defaults.
For a document c of L tokens:

    memory = "No previous memory"
    for each chunk:  memory = model(question, memory, chunk)      # the whole response overwrites
    answer = model(question, memory)                              # without the document

If a problem has several questions, every reading prompt contains all of them, and each gets its own answer turn.
`grounded`, our addition, admits only units that the section or previous memory supports (parts/grounded.py).

Guaranteed: a prompt never exceeds `required_context`; only `overlong` drops document tokens, and none is repeated.
Not covered: stopping before the document ends (examples/gated.py does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from palimpsest.errors import DataError
from palimpsest.events import DocumentTruncated, EmptyMemoryKept
from palimpsest.memory.parts.chunks import Boundary, Overlong, split, truncate
from palimpsest.memory.parts.grounded import Grounded, GroundedRule, quoted, sift
from palimpsest.memory.parts.prompts import Layout, PromptSet, Slots, Wording, blocks, chosen
from palimpsest.memory.policy import Answered, MemoryPolicy, Model, require_positive
from palimpsest.text.codec import Codec, cached_on_codec
from palimpsest.text.reply_tags import thoughtful, without_thinking
from palimpsest.text.sentences import Unit
from palimpsest.text.template import Template
from palimpsest.types import Completion, Outcome, Problem, Prompt, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPrompts(PromptSet):
    """Texts of a policy that reads section by section into a memory."""

    read: Annotated[str, Slots("question", "memory", "section", when="layout=memory_first")] = ""
    read_section_first: Annotated[str, Slots("question", "memory", "section", when="layout=section_first")] = ""
    """`read` with `layout=section_first`."""
    answer: Annotated[str, Slots("question", "memory")] = ""
    empty_memory: Annotated[str, Slots(may_be_empty=True)] = ""
    """The memory before the first turn."""


_TASK = """You are answering a problem about an article that is too long to read at once. You get the problem, one \
section of the article and the memory you have kept of the earlier sections. Read the section and write the memory \
anew: keep every detail of the old memory that still matters and add what the section says that helps to solve the \
problem. Only the new memory will be kept."""

STANDARD = ReadingPrompts(
    read=f"{_TASK}\n\n{blocks('question', 'memory', 'section')}\n\nUpdated memory:",
    read_section_first=f"{_TASK}\n\n{blocks('section', 'question', 'memory')}\n\nUpdated memory:",
    answer="""You have read an article section by section and kept a memory of it. Solve the problem from that memory \
and put the final answer in \\boxed{}.

<problem>
{question}
</problem>

<memory>
{memory}
</memory>

Your answer:""",
    empty_memory="No previous memory",
)
"""Our wording, after the structure of MemAgent's (arXiv 2507.02259, table 1), for instruction models."""

FINAL = replace(
    STANDARD,
    answer="""You have read an article section by section and kept a memory of it. Solve the problem from that memory. \
End with a line that begins with FINAL_ANSWER: and holds the answer alone.

<problem>
{question}
</problem>

<memory>
{memory}
</memory>""",
)
"""For `reward.name=final_answer`."""

SHORT = ReadingPrompts(
    read="Problem: {question}\nMemory:{memory}\nSection:\n{section}\nUpdate the memory.",
    read_section_first="Section:\n{section}\nProblem: {question}\nMemory:{memory}\nUpdate the memory.",
    answer="Problem: {question}\nMemory:{memory}\nAnswer in \\boxed{}.",
    empty_memory=" none",
)
"""For the embedded model."""


@cached_on_codec
def newline_ids(codec: Codec, count: int = 1) -> frozenset[int]:
    """Tokens with at least `count` line breaks in a row."""
    return frozenset(i for i in range(codec.vocab_size) if "\n" * count in codec.decode([i]))


def cut(ids: Sequence[int], codec: Codec, chunk_size: int, boundary: Boundary) -> list[list[int]]:
    """The chunks of a document, each of at most `chunk_size` tokens."""
    newlines = newline_ids(codec) if boundary != "token" else frozenset()
    blank_lines = newline_ids(codec, 2) if boundary == "paragraph" else None
    return [list(chunk) for chunk in split(ids, chunk_size, newlines, blank_lines)]


@dataclass(frozen=True, slots=True)
class Document:
    """A document as the episodes of its group read it."""

    tokens: int
    """Length before truncation."""
    chunks: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class OverwritePolicy(MemoryPolicy):
    """Options, with MemAgent's published defaults; all lengths in tokens."""

    answers_questions: ClassVar[bool] = True
    takes_memory: ClassVar[bool] = True
    training_limits: ClassVar[tuple[str, ...]] = ("max_chunks",)
    prompt_sets: ClassVar[Mapping[str, ReadingPrompts]] = {"standard": STANDARD, "short": SHORT, "final": FINAL}
    chunk_size: int = 5000
    """Most document tokens per turn."""
    question_tokens: int = 1024
    """Data loading rejects longer questions; several questions count together."""
    memory_tokens: int = 1024
    """Budget of a reply that becomes the memory."""
    answer_tokens: int = 1024
    """Budget of the answer."""
    max_chunks: int | None = None
    """`overlong` truncates documents beyond max_chunks * chunk_size tokens; None reads all, as in evaluation."""
    overlong: Overlong = "centre"
    """A longer document: `centre` drops its middle, `tail` its end, `refuse` is an error."""
    layout: Layout = "memory_first"
    """`section_first` shares every section's prefix among all rollouts of a group and all questions on a document."""
    chunk_boundary: Boundary = "token"
    """`token` cuts at exactly chunk_size, as published; `line` after the last line break that fits; `paragraph` after
    the last blank line that fits, otherwise as `line`."""
    empty_memory: Literal["overwrite", "keep"] = "overwrite"
    """After an empty response: `overwrite` empties the memory (MemAgent), `keep` retains it (vime port)."""
    grounded: Grounded = "off"
    """Filter for replies: `off` stores all (published); `verbatim`, units in the section or the previous memory;
    `close`, also paraphrases of these. If no unit passes, the memory stays."""
    unit: Unit = "sentence"
    """Unit that `grounded` stores or drops whole: a `sentence`, an `item` of a list or a `line`."""
    prompts: str | Mapping[str, Any] = "standard"
    """`standard`, `short` for the embedded model, `final` for `reward.name=final_answer`, or a YAML file of texts
    (docs/how-to/custom-policy.md)."""
    texts: ReadingPrompts = field(init=False, repr=False, compare=False)
    """The texts that `prompts` selects."""

    def __post_init__(self) -> None:
        require_positive(self, "chunk_size", "question_tokens", "memory_tokens", "answer_tokens", "max_chunks")
        object.__setattr__(self, "texts", chosen(self.prompts, self.prompt_sets, self.shown_texts()))

    def wording(self) -> Wording:
        return Wording(self.texts, self.shown_texts())

    def teachable(self) -> OverwritePolicy:
        return self

    @property
    def written_tokens(self) -> int:
        return self.memory_tokens

    @property
    def shares_prefixes(self) -> bool:
        return self.layout == "section_first"

    def shown_texts(self) -> tuple[str, ...]:
        return ("read" if self.layout == "memory_first" else "read_section_first", "answer")

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        """The read and the answer prompt, tokenised once per codec."""
        read, answer, *_ = self.shown_texts()
        return self.texts.template(codec, read), self.texts.template(codec, answer)

    def required_context(self, codec: Codec) -> int:
        """Window the model needs, in tokens: the longest possible prompt plus its completion."""
        read, answer = self.templates(codec)
        slots = self.slot_tokens(codec)
        reading = read.literal_length + slots + self.chunk_size + self.written_tokens
        return max(reading, answer.literal_length + slots + self.answer_tokens)

    def slot_tokens(self, codec: Codec) -> int:
        """Most tokens of all slots except the section."""
        return self.question_tokens + max(self.memory_tokens, len(codec.encode(self.texts.empty_memory)))

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Reject, at load, a problem that breaks a budget."""
        admit_question(problem, codec, self.question_tokens)
        if (length := len(codec.encode(problem.memory))) > self.memory_tokens:
            raise DataError(
                f"problem {problem.id}: its memory has {length} tokens, policy.options.memory_tokens="
                f"{self.memory_tokens}; raise that budget, shorten it, or begin without (data.synthetic.starts=null)"
            )
        if self.overlong == "refuse" and self.max_chunks is not None and problem.context is not None:
            length, limit = len(codec.encode(problem.context)), self.max_chunks * self.chunk_size
            if length > limit:
                raise DataError(
                    f"problem {problem.id}: its document has {length} tokens, max_chunks * chunk_size = {limit}; "
                    f"raise policy.options.max_chunks or set policy.options.overlong=centre"
                )

    def chunks(self, ids: list[int], codec: Codec) -> list[list[int]]:
        """The chunks an episode reads, in order."""
        if self.max_chunks is not None:
            ids = truncate(ids, self.max_chunks * self.chunk_size, self.overlong)
        return cut(ids, codec, self.chunk_size, self.chunk_boundary)

    def prepare(self, problem: Problem, codec: Codec) -> Document | None:
        self.admit(problem, codec)
        if not problem.context or not problem.context.strip():
            return None
        ids = codec.encode(problem.context)
        return Document(len(ids), self.chunks(ids, codec))

    def first_memory(self, problem: Problem, codec: Codec) -> list[int]:
        return codec.encode(problem.memory or self.texts.empty_memory)

    def document_chunks(self, document: Document, model: Model) -> Sequence[Sequence[int]]:
        """The chunks of a document; records an event if it was truncated."""
        if (remaining := sum(map(len, document.chunks))) < document.tokens:
            model.event(DocumentTruncated(document.tokens, remaining, self.overlong))
        return document.chunks

    @property
    def may_keep(self) -> bool:
        """Whether a reply can leave the memory unchanged."""
        return self.empty_memory == "keep"

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a reply that writes `memory`, without the stop token: an SFT target."""
        return list(memory)

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Read the document, if there is one, then answer."""
        if model.prepared is None:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        return await self.read_document(problem, model.prepared, model)

    async def read_document(self, problem: Problem, document: Document, model: Model) -> Answered:
        """Read every chunk, then answer."""
        codec = model.codec
        read, _ = self.templates(codec)
        question = codec.encode(problem.question)
        memory, chunks = self.first_memory(problem, codec), self.document_chunks(document, model)
        for index, chunk in enumerate(chunks):
            values = {"question": question, "memory": memory}
            completion = await self.read(index, chunks, values, read, model)
            memory = self._next_memory(memory, completion, model, read.pieces[-1], (chunk,))
        return await self.answer(problem, {"memory": memory}, model)

    async def read(
        self,
        index: int,
        chunks: Sequence[Sequence[int]],
        slots: Mapping[str, Sequence[int]] | Callable[[int], Mapping[str, Sequence[int]]],
        template: Template,
        model: Model,
    ) -> Completion:
        """The turn that reads chunk number `index`. `slots`: contents of the prompt's other slots while no reply
        changes the state, or a function of the chunk's number that returns them."""

        def prompt(at: int) -> Prompt:
            return template.fill({**(slots(at) if callable(slots) else slots), "section": chunks[at]})

        def ahead(number: int) -> Prompt | None:
            return prompt(index + number) if index + number < len(chunks) else None

        notes = {"chunk": index} | self._rule_note
        return await model.generate(prompt(index), name="read", max_tokens=self.written_tokens, ahead=ahead, **notes)

    @property
    def _rule_note(self) -> dict[str, Any]:
        return {"grounded": self.grounded} if self.grounded != "off" else {}

    async def answer(self, problem: Problem, values: Mapping[str, Sequence[int]], model: Model) -> Answered:
        """One answer turn per question, all from the same `values` of the other slots."""
        template, shown = self.templates(model.codec)[1], [values] * len(problem.by_question)
        return await answer_each(problem, model, template, shown, self.answer_tokens)

    def _next_memory(
        self,
        memory: list[int],
        completion: Completion,
        model: Model,
        before: Sequence[int],
        read: Sequence[Sequence[int]],
        quotes: bool = False,
    ) -> list[int]:
        """The memory after a reading turn whose prompt ends with `before`: its reply without thinking.

        `read`: sources in the prompt other than `memory`. `quotes`: as for `sifted`.
        """
        turn = completion.turn
        written = without_thinking(completion.token_ids, model.codec, before)[: self.memory_tokens]
        if completion.stop_reason is StopReason.GIVEN:
            return written
        if not written and (self.empty_memory == "keep" or self.grounded != "off"):
            model.event(EmptyMemoryKept(), turn=turn)
            return memory
        cut_off = completion.stop_reason is StopReason.LENGTH
        return self.sifted(memory, written, (*read, memory), model, cut_off, turn, quotes)

    def sifted(
        self,
        memory: list[int],
        written: list[int],
        sources: Sequence[Sequence[int]],
        model: Model,
        cut_off: bool,
        turn: int | None = None,
        quotes: bool = False,
    ) -> list[int]:
        """The part of `written` that passes the option `grounded`; `memory` if nothing passes.

        `cut_off`: a budget ended `written`. `turn`: the turn that wrote it; None: the latest. `quotes`: if nothing
        passes, the units of the sources that it paraphrases replace it, if they fit (`grounded.quoted`).
        """
        if self.grounded == "off":
            return written
        left = sift(written, sources, model.codec, GroundedRule(self.grounded, self.unit), cut_off=cut_off)
        if quotes and not left.ids:
            units = quoted((unit for unit, _ in left.dropped), sources, model.codec, self.unit)
            left = replace(left, ids=units if len(units) <= self.memory_tokens else [])
        if left.dropped or not left.ids:
            model.event(left.event(memory), turn=turn)
        return left.ids or memory


class LongQuestion(DataError):
    """A question, or several together, of more than `policy.options.question_tokens`; `tokens`: its length."""

    def __init__(self, problem: Problem, tokens: int, budget: int) -> None:
        subject = f"{len(problem.questions)} questions have" if problem.questions else "question has"
        split = ", or data.split_questions=true," if problem.questions else ""
        super().__init__(
            f"problem {problem.id}: its {subject} {tokens} tokens, policy.options.question_tokens={budget}; "
            f"set policy.options.question_tokens={tokens}{split} or drop the problem"
        )
        self.tokens = tokens


def admit_question(problem: Problem, codec: Codec, budget: int) -> None:
    """Raise LongQuestion for a question of more than `budget` tokens, or several that have more together."""
    length = question_length(problem, codec)
    if length > budget:
        raise LongQuestion(problem, length, budget)


def question_length(problem: Problem, codec: Codec) -> int:
    """Tokens of the longest text in a question slot: all questions, or a single one."""
    return max(len(codec.encode(text)) for text in (problem.question, *(one.text for one in problem.questions)))


async def answer_each(
    problem: Problem,
    model: Model,
    template: Template,
    shown: Sequence[Mapping[str, Sequence[int]]],
    max_tokens: int,
) -> Answered:
    """One answer turn per question. `shown`: [questions] contents of the slots other than the question's."""
    answers = []
    for number, (item, values) in enumerate(zip(problem.by_question, shown, strict=True)):
        prompt = template.fill({"question": model.codec.encode(item.question), **values})
        notes: dict[str, Any] = {"question": number} if problem.questions else {}
        completion = await model.generate(prompt, name="answer", max_tokens=max_tokens, **notes)
        answers.append(answered(completion, model.codec, template.pieces[-1]))
    return Answered.all(answers) if problem.questions else answers[0]


def answered(completion: Completion, codec: Codec, before: Sequence[int] = ()) -> Answered:
    """The end of an episode whose last completion is the answer; its prompt ends with our text `before`.

    Thinking stays in the text, between its tags, so the answer is never read from it.
    """
    truncated = completion.stop_reason is StopReason.LENGTH
    text = codec.decode(thoughtful(completion.token_ids, codec, before))
    return Answered(text, Outcome.ANSWER_TRUNCATED if truncated else Outcome.ANSWERED)

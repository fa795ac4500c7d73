r"""Baselines without a memory: the question with as much of the document as fits, or without the document.

    full_context      drops the middle of a document that does not fit (as the published direct baselines do)
    sliding_window    reads its last `window_tokens` only
    passages          ranks passages of the document by the words of the question (BM25), reads the first that fit, in
                      the order of the document
    closed_book       reads the question only, in one call

A model that is right under `closed_book` knew the answer. Only the margin over this baseline measures reading, so
`palimpsest eval` runs it with every agent.

Prompt sets: `standard` and `short` request \boxed{}, `final` and `short_final` the form that
`reward.name=final_answer` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from palimpsest.events import DocumentTruncated
from palimpsest.memory.overwrite import admit_question, answer_each, newline_ids
from palimpsest.memory.parts.chunks import split, truncate
from palimpsest.memory.parts.prompts import PromptSet, Slots, Wording, chosen
from palimpsest.memory.parts.retrievers import RETRIEVERS, MemoryIndex, Retriever
from palimpsest.memory.policy import Answered, MemoryPolicy, Model, require_positive
from palimpsest.text.codec import Codec, cached_on_codec
from palimpsest.types import Outcome, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectPrompts(PromptSet):
    """Texts of a policy with one prompt."""

    answer: Annotated[str, Slots("question", "document")] = ""


STANDARD = DirectPrompts(
    answer="""Solve the problem from the article below and put the final answer in \\boxed{}.

<article>
{document}
</article>

<problem>
{question}
</problem>

Your answer:"""
)
"""Our wording, for instruction models."""

SHORT = DirectPrompts(answer="Problem: {question}\nDocument:\n{document}\nAnswer in \\boxed{}.")
"""For the embedded model."""

FINAL = DirectPrompts(
    answer="""Answer the problem from the article below. End with a line that begins with FINAL_ANSWER: and holds the \
answer alone. If the problem has several parts named Q1, Q2 and so on, write after FINAL_ANSWER: one JSON object with \
these names as keys and the answers as strings.

<article>
{document}
</article>

<problem>
{question}
</problem>"""
)
"""For `reward.name=final_answer`."""

SHORT_FINAL = DirectPrompts(answer="Problem: {question}\nDocument:\n{document}\nAnswer after FINAL_ANSWER:")

_CHARS_A_TOKEN = 16  # above the average of any natural text
_SEAM = 64  # tokens by which a prefix may be encoded differently from the whole text


@dataclass(frozen=True, slots=True)
class DirectPolicy(MemoryPolicy):
    """One call per question."""

    answers_questions: ClassVar[bool] = True
    prompt_sets: ClassVar[Mapping[str, PromptSet]] = {}
    question_tokens: int = 1024
    """Data loading rejects longer questions."""
    answer_tokens: int = 1024
    """Budget of the answer."""
    prompts: str | Mapping[str, Any] = "standard"
    """`standard`, `short` for the embedded model, `final` and `short_final` for `reward.name=final_answer`, or a
    YAML file of texts (docs/how-to/custom-policy.md)."""
    texts: PromptSet = field(init=False, repr=False, compare=False)
    """The texts that `prompts` selects."""

    def __post_init__(self) -> None:
        require_positive(self, "question_tokens", "answer_tokens")
        object.__setattr__(self, "texts", chosen(self.prompts, self.prompt_sets, ("answer",)))

    def wording(self) -> Wording:
        return Wording(self.texts, ("answer",))

    def required_context(self, codec: Codec) -> int:
        return self.texts.template(codec, "answer").literal_length + self.question_tokens + self.answer_tokens

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Reject, at load, a question over its budget."""
        admit_question(problem, codec, self.question_tokens)


@dataclass(frozen=True, slots=True)
class FullContextPolicy(DirectPolicy):
    """One call per question over the whole document. Drops the middle of a document that exceeds the window."""

    prompt_sets: ClassVar[Mapping[str, DirectPrompts]] = {
        "standard": STANDARD,
        "short": SHORT,
        "final": FINAL,
        "short_final": SHORT_FINAL,
    }
    window_tokens: int | None = None
    """Document tokens per prompt; None: all tokens that fit in the model's context."""

    def __post_init__(self) -> None:
        DirectPolicy.__post_init__(self)
        require_positive(self, "window_tokens")

    def required_context(self, codec: Codec) -> int:
        return DirectPolicy.required_context(self, codec) + (self.window_tokens or 1)

    def keep(self, ids: list[int], room: int) -> list[int]:
        """The document ids that enter the prompt."""
        return truncate(ids, room, "centre")

    def shown(self, document: Any, question: str, room: int, codec: Codec) -> list[int]:
        """At most `room` ids from `prepare`'s result, for the prompt of one question."""
        return self.keep(document, room)

    def prepare(self, problem: Problem, codec: Codec) -> Any:
        """The ids of the document; None without one."""
        self.admit(problem, codec)
        return codec.encode(problem.context) if problem.context and problem.context.strip() else None

    def room(self, problem: Problem, codec: Codec, max_context: int) -> int:
        """Document tokens that fit in the prompt of each of the problem's questions."""
        taken = self.texts.template(codec, "answer").literal_length + self.answer_tokens
        longest = max(len(codec.encode(item.question)) for item in problem.by_question)
        room = max_context - taken - longest
        return max(0, room if self.window_tokens is None else min(room, self.window_tokens))

    def fitting_tokens(self, problem: Problem, codec: Codec, max_context: int) -> int | None:
        """Tokens of the document if it fits whole, otherwise None. Stops early far beyond the window."""
        if not problem.context or not problem.context.strip():
            return None
        room, text = self.room(problem, codec, max_context), problem.context
        head = text[: (room + 1) * _CHARS_A_TOKEN]
        if len(head) < len(text) and len(codec.encode(head)) > room + _SEAM:
            return None
        tokens = len(codec.encode(text))
        return tokens if tokens <= room else None

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Answer each question in a separate call, after the same document."""
        codec, document = model.codec, model.prepared
        if document is None:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        room = self.room(problem, codec, model.max_context)
        documents = [self.shown(document, item.question, room, codec) for item in problem.by_question]
        if (fewest := min(map(len, documents))) < len(document):
            model.event(DocumentTruncated(len(document), fewest, type(self).__name__))
        template, shown = self.texts.template(codec, "answer"), [{"document": read} for read in documents]
        return await answer_each(problem, model, template, shown, self.answer_tokens)


@dataclass(frozen=True, slots=True)
class SlidingWindowPolicy(FullContextPolicy):
    """One call over the last tokens of the document."""

    def keep(self, ids: list[int], room: int) -> list[int]:
        """The last `room` ids.

        >>> SlidingWindowPolicy().keep([1, 2, 3], 2)
        [2, 3]
        """
        return ids[len(ids) - min(room, len(ids)) :]


@cached_on_codec
def sentence_ids(codec: Codec) -> frozenset[int]:
    """Ids of tokens whose text ends a sentence or contains a line break."""
    ending = (i for i in range(codec.vocab_size) if codec.decode([i]).rstrip().endswith((".", "!", "?")))
    return newline_ids(codec).union(ending)


@dataclass(frozen=True, slots=True)
class DocumentPassages:
    """Passages of a document, with an index of their words. `len` is the document's length in tokens."""

    pieces: Sequence[Sequence[int]]
    index: MemoryIndex

    def __len__(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class PassagesPolicy(FullContextPolicy):
    """One call per question over the most similar passages: retrieval without an agent.

    Reads a document that fits whole, like `full_context`. Not covered: retrieval by meaning; follow-up searches.
    """

    passage_tokens: int = 128
    """Longest passage."""
    passage_boundary: Literal["sentence", "line", "token"] = "sentence"
    """`sentence` cuts after the last full stop, question or exclamation mark, or line break that fits, `line` after
    the last line break; `token` at exactly passage_tokens."""
    retriever: Retriever = "bm25"
    """Ranking: `bm25`, `tfidf`, `words`, `jaccard`."""

    def __post_init__(self) -> None:
        FullContextPolicy.__post_init__(self)
        require_positive(self, "passage_tokens")

    def prepare(self, problem: Problem, codec: Codec) -> DocumentPassages | None:
        ids = FullContextPolicy.prepare(self, problem, codec)
        if ids is None:
            return None
        ends = {"sentence": sentence_ids, "line": newline_ids}.get(self.passage_boundary)
        pieces = list(split(ids, self.passage_tokens, frozenset() if ends is None else ends(codec)))
        index = RETRIEVERS[self.retriever]()
        for piece in pieces:
            index.add(codec.decode(piece))
        return DocumentPassages(pieces, index)

    def shown(self, document: DocumentPassages, question: str, room: int, codec: Codec) -> list[int]:
        """The ids of the best passages that fit, in document order, with a line break at each gap."""
        if len(document) <= room:
            return [i for piece in document.pieces for i in piece]
        ranked, gap, newlines = document.index.ranked(question), codec.encode("\n"), newline_ids(codec)
        taken, left = set[int](), room
        for index in ranked:
            piece = document.pieces[index]
            if (needed := len(piece) + (0 if piece[-1] in newlines else len(gap))) <= left:
                taken.add(index)
                left -= needed
        ids = [] if taken else list(document.pieces[ranked[0]][:room])
        for index in sorted(taken):
            if ids and index - 1 not in taken and ids[-1] not in newlines:
                ids += gap
            ids += document.pieces[index]
        return ids


# ---- A baseline without a document ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedBookPrompts(PromptSet):
    """Texts of a policy without a document."""

    answer: Annotated[str, Slots("question")] = ""


CLOSED_BOOK_STANDARD = ClosedBookPrompts(
    answer="""Answer the problem from what you know and put the final answer in \\boxed{}. If you don't know it, guess.

<problem>
{question}
</problem>

Your answer:"""
)
CLOSED_BOOK_SHORT = ClosedBookPrompts(answer="Problem: {question}\nAnswer in \\boxed{}.")
CLOSED_BOOK_FINAL = ClosedBookPrompts(
    answer="""Answer the problem from what you know; if you don't know it, guess. End with a line that begins with \
FINAL_ANSWER: and holds the answer alone. If the problem has several parts named Q1, Q2 and so on, write after \
FINAL_ANSWER: one JSON object with these names as keys and the answers as strings.

<problem>
{question}
</problem>"""
)
CLOSED_BOOK_SHORT_FINAL = ClosedBookPrompts(answer="Problem: {question}\nAnswer after FINAL_ANSWER:")


@dataclass(frozen=True, slots=True)
class ClosedBookPolicy(DirectPolicy):
    """One call per question, without the document."""

    reads_documents: ClassVar[bool] = False
    reads_to_end: ClassVar[bool] = False
    prompt_sets: ClassVar[Mapping[str, ClosedBookPrompts]] = {
        "standard": CLOSED_BOOK_STANDARD,
        "short": CLOSED_BOOK_SHORT,
        "final": CLOSED_BOOK_FINAL,
        "short_final": CLOSED_BOOK_SHORT_FINAL,
    }

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Answer each question in a separate call."""
        template = self.texts.template(model.codec, "answer")
        return await answer_each(problem, model, template, [{}] * len(problem.by_question), self.answer_tokens)

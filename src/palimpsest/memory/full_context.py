"""Baselines without a memory: the question and as much of the document as the window takes, in one call.

`full_context` drops the middle of a document that does not fit (as the published direct baselines do);
`sliding_window` reads its last `window_tokens` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from palimpsest.errors import ConfigError
from palimpsest.events import DocumentTruncated
from palimpsest.memory.overwrite import admit_question, answered
from palimpsest.memory.parts.chunks import truncate
from palimpsest.memory.parts.prompts import PromptSet, Slots, Wording, chosen
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.text.codec import Codec
from palimpsest.types import Outcome, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectPrompts(PromptSet):
    """The text of a policy that asks once."""

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
"""In our own words, for instruction models."""

SHORT = DirectPrompts(answer="Problem: {question}\nDocument:\n{document}\nAnswer in \\boxed{}.")
"""What the embedded model was made for."""


@dataclass(frozen=True, slots=True)
class FullContextPolicy(MemoryPolicy):
    """One call over the whole document, its middle left out where it exceeds the window."""

    prompt_sets: ClassVar[Mapping[str, DirectPrompts]] = {"standard": STANDARD, "short": SHORT}
    window_tokens: int | None = None
    """Document tokens per prompt; None: all that the model's context leaves."""
    question_tokens: int = 1024
    answer_tokens: int = 1024
    prompts: str | Mapping[str, Any] = "standard"
    """`standard`, `short` for the embedded model, or a YAML file of texts (docs/own-policy.md)."""
    texts: DirectPrompts = field(init=False, repr=False, compare=False)
    """What `prompts` comes to."""

    def __post_init__(self) -> None:
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ConfigError(f"policy.options.window_tokens={self.window_tokens}: must be at least 1, or null")
        object.__setattr__(self, "texts", chosen(self.prompts, self.prompt_sets, ("answer",)))

    def wording(self) -> Wording:
        """Its texts, of which a file may give others."""
        return Wording(self.texts, ("answer",))

    def required_context(self, codec: Codec) -> int:
        """Window the model needs, in tokens."""
        template = self.texts.template(codec, "answer")
        return template.literal_length + self.question_tokens + (self.window_tokens or 1) + self.answer_tokens

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Refuse, at load, a question over its budget."""
        admit_question(problem, codec, self.question_tokens)

    def keep(self, ids: list[int], room: int) -> list[int]:
        """The document ids that enter the prompt."""
        return truncate(ids, room, "centre")

    def prepare(self, problem: Problem, codec: Codec) -> list[int] | None:
        """The ids of the document; None without one."""
        self.admit(problem, codec)
        return codec.encode(problem.context) if problem.context and problem.context.strip() else None

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Ask once."""
        codec, document = model.codec, model.prepared
        if document is None:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        template = self.texts.template(codec, "answer")
        question = codec.encode(problem.question)
        room = model.max_context - template.literal_length - len(question) - self.answer_tokens
        kept = self.keep(document, max(0, min(room, self.window_tokens or room)))
        if len(kept) < len(document):
            model.event(DocumentTruncated(len(document), len(kept), type(self).__name__))
        prompt = template.fill({"question": question, "document": kept})
        completion = await model.generate(prompt, name="answer", max_tokens=self.answer_tokens)
        return answered(completion, codec, template.pieces[-1])


@dataclass(frozen=True, slots=True)
class SlidingWindowPolicy(FullContextPolicy):
    """One call over the last tokens of the document."""

    def keep(self, ids: list[int], room: int) -> list[int]:
        """The last `room` ids.

        >>> SlidingWindowPolicy().keep([1, 2, 3], 2)
        [2, 3]
        """
        return ids[len(ids) - min(room, len(ids)) :]

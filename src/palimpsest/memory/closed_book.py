r"""A baseline without a document: the question alone, in one call.

What a model answers right so, it knew: a score on the same problems says something of reading only by what it is above
this one. The document of a problem is never put into a prompt, nor looked at. `palimpsest eval` plays it beside every
agent.

Prompt sets: `standard` and `short` ask for \boxed{}, `final` and `short_final` for what `reward.name=final_answer`
reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from palimpsest.errors import ConfigError
from palimpsest.memory.overwrite import admit_question, answered
from palimpsest.memory.parts.prompts import PromptSet, Slots, Wording, chosen
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.text.codec import Codec
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedBookPrompts(PromptSet):
    """The text of a policy that asks without a document."""

    answer: Annotated[str, Slots("question")] = ""


STANDARD = ClosedBookPrompts(
    answer="""Answer the problem from what you know and put the final answer in \\boxed{}. If you don't know it, guess.

<problem>
{question}
</problem>

Your answer:"""
)
SHORT = ClosedBookPrompts(answer="Problem: {question}\nAnswer in \\boxed{}.")
FINAL = ClosedBookPrompts(
    answer="""Answer the problem from what you know; if you don't know it, guess. End with a line that begins with \
FINAL_ANSWER: and holds the answer alone. If the problem has several parts named Q1, Q2 and so on, write after \
FINAL_ANSWER: one JSON object with these names as keys and the answers as strings.

<problem>
{question}
</problem>"""
)
SHORT_FINAL = ClosedBookPrompts(answer="Problem: {question}\nAnswer after FINAL_ANSWER:")


@dataclass(frozen=True, slots=True)
class ClosedBookPolicy(MemoryPolicy):
    """One call a question, without the document."""

    reads_documents: ClassVar[bool] = False
    reads_to_end: ClassVar[bool] = False
    answers_questions: ClassVar[bool] = True
    prompt_sets: ClassVar[Mapping[str, ClosedBookPrompts]] = {
        "standard": STANDARD,
        "short": SHORT,
        "final": FINAL,
        "short_final": SHORT_FINAL,
    }
    question_tokens: int = 1024
    answer_tokens: int = 1024
    prompts: str | Mapping[str, Any] = "standard"
    """`standard`, `short` for the embedded model, `final` and `short_final` where `reward.name` is final_answer, or a
    YAML file of texts (docs/own-policy.md)."""
    texts: ClosedBookPrompts = field(init=False, repr=False, compare=False)
    """What `prompts` comes to."""

    def __post_init__(self) -> None:
        for name in ("question_tokens", "answer_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"policy.options.{name}={getattr(self, name)}: must be at least 1 token")
        object.__setattr__(self, "texts", chosen(self.prompts, self.prompt_sets, ("answer",)))

    def wording(self) -> Wording:
        """Its texts, of which a file may give others."""
        return Wording(self.texts, ("answer",))

    def required_context(self, codec: Codec) -> int:
        """Window the model needs, in tokens."""
        return self.texts.template(codec, "answer").literal_length + self.question_tokens + self.answer_tokens

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Refuse, at load, a question over its budget."""
        admit_question(problem, codec, self.question_tokens)

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Ask; of several questions each by itself."""
        template = self.texts.template(model.codec, "answer")
        answers = []
        for number, asked in enumerate(problem.by_question):
            prompt = template.fill({"question": model.codec.encode(asked.question)})
            notes: dict[str, Any] = {"question": number} if problem.questions else {}
            completion = await model.generate(prompt, name="answer", max_tokens=self.answer_tokens, **notes)
            answers.append(answered(completion, model.codec, template.pieces[-1]))
        return Answered.all(answers) if problem.questions else answers[0]

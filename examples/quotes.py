"""A memory that quotes: the model copies from each section what matters, and the oldest quotes fall out.

    palimpsest check examples.quotes:QuotesPolicy
    palimpsest eval --policy examples.quotes:QuotesPolicy --data synthetic --chunks 4,16

A quote enters later prompts as the ids that were sampled. The slots are called memory and section, so that metrics know
what was kept, lost and invented; the turns are called "quote", for the completion of a "read" is the whole memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.memory.overwrite import admit_question, answered
from palimpsest.memory.parts.chunks import split
from palimpsest.memory.policy import Answered, Model
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template, user_turn
from palimpsest.types import Outcome, Problem

QUOTE = "Section:\n{section}\nProblem: {question}\nQuotes so far:\n{memory}\nQuote what the section adds, or nothing."
ANSWER = "Problem: {question}\nQuotes:\n{memory}\nAnswer in \\boxed{}."


@dataclass(frozen=True, slots=True)
class QuotesPolicy:
    """Options, all lengths in tokens; the command line sets them by name."""

    chunk_size: int = 256
    quotes: int = 6
    """Quotes kept."""
    quote_tokens: int = 32
    question_tokens: int = 128
    answer_tokens: int = 32

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        quote = user_turn(codec, QUOTE, ("section", "question", "memory"))
        return quote, user_turn(codec, ANSWER, ("question", "memory"))

    def required_context(self, codec: Codec) -> int:
        """Longest prompt plus completion; the run is refused at start if the model's window is shorter."""
        quote, answer = self.templates(codec)
        kept = self.question_tokens + self.quotes * (self.quote_tokens + 1)
        reading = quote.literal_length + kept + self.chunk_size + self.quote_tokens
        return max(reading, answer.literal_length + kept + self.answer_tokens)

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Called for every problem before any is played."""
        admit_question(problem, codec, self.question_tokens)

    def prepare(self, problem: Problem, codec: Codec) -> list[Sequence[int]]:
        """Once for all episodes of a group, beside the event loop; `run` finds it as `model.prepared`."""
        if not problem.context or not problem.context.strip():
            return []
        return list(split(codec.encode(problem.context), self.chunk_size))

    async def run(self, problem: Problem, model: Model) -> Answered:
        codec = model.codec
        if not model.prepared:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        quote, answer = self.templates(codec)
        question, newline = codec.encode(problem.question), codec.encode("\n")
        kept: deque[tuple[int, ...]] = deque(maxlen=self.quotes)
        for index, section in enumerate(model.prepared):
            quotes = [i for each in kept for i in (*each, *newline)]
            prompt = quote.fill({"section": section, "question": question, "memory": quotes})
            completion = await model.generate(prompt, name="quote", max_tokens=self.quote_tokens, chunk=index)
            if said := codec.strip_stop(completion.token_ids):
                kept.append(said)
        prompt = answer.fill({"question": question, "memory": [i for each in kept for i in (*each, *newline)]})
        return answered(await model.generate(prompt, name="answer", max_tokens=self.answer_tokens), codec)

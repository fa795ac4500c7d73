"""A memory of quotes: the model copies important text from each section, and the oldest quotes are dropped.

    palimpsest check examples.quotes:QuotesPolicy
    palimpsest eval --policy examples.quotes:QuotesPolicy --data synthetic --chunks 4,16

A quote enters later prompts as its sampled ids. The slots are called memory and section, so that metrics find retained,
lost and hallucinated facts; the turns are called "quote", because the completion of a "read" is the whole memory.
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
    """Number of quotes in the memory."""
    quote_tokens: int = 32
    question_tokens: int = 128
    answer_tokens: int = 32

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        quote = user_turn(codec, QUOTE, ("section", "question", "memory"))
        return quote, user_turn(codec, ANSWER, ("question", "memory"))

    def required_context(self, codec: Codec) -> int:
        """Longest prompt plus completion; the run rejects a model with a shorter context window at the start."""
        quote, answer = self.templates(codec)
        kept = self.question_tokens + self.quotes * (self.quote_tokens + 1)
        reading = quote.literal_length + kept + self.chunk_size + self.quote_tokens
        return max(reading, answer.literal_length + kept + self.answer_tokens)

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Called for every problem before any episode."""
        admit_question(problem, codec, self.question_tokens)

    def prepare(self, problem: Problem, codec: Codec) -> list[Sequence[int]]:
        """Called once per group, outside the event loop; `run` finds the result as `model.prepared`."""
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

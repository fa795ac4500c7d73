"""MemAgent's policy: read a document chunk by chunk, overwrite a memory of fixed size, answer from it.

Source: MemAgent (arXiv 2507.02259) and its code; the budgets below are its defaults. For a document c of L tokens:

    memory = "No previous memory"
    for each chunk:  memory = model(question, memory, chunk)      # the whole response overwrites
    answer = model(question, memory)                              # no document in sight

Differences from the authors' code, each on purpose: the memory enters the next prompt as the ids that were sampled
(only control ids are taken out, wherever the model put them), document tokens equal to the padding id are kept, the
answer turn has its own budget, episodes do not wait for each other, an empty document is an outcome.

Guaranteed: a prompt never exceeds `required_context`; no document token is dropped or repeated but by `overlong`.
Not covered: stopping before the document ends (memory/gated policies do that).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from palimpsest.errors import ConfigError, DataError
from palimpsest.events import DocumentTruncated, EmptyMemoryKept
from palimpsest.memory.parts.chunks import Boundary, Overlong, split, truncate
from palimpsest.memory.parts.prompts import Layout, prompt_set
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template, user_turn
from palimpsest.types import Completion, Outcome, Problem, Prompt, StopReason


@lru_cache(maxsize=32)
def newline_ids(codec: Codec) -> frozenset[int]:
    """Ids of tokens whose text holds a line break."""
    return frozenset(i for i in range(codec.vocab_size) if "\n" in codec.decode([i]))


@dataclass(frozen=True, slots=True)
class OverwritePolicy(MemoryPolicy):
    """Options, with MemAgent's published defaults; all lengths in tokens."""

    chunk_size: int = 5000
    question_tokens: int = 1024
    """A longer question is refused when its data is loaded."""
    memory_tokens: int = 1024
    answer_tokens: int = 1024
    max_chunks: int | None = None
    """Documents beyond max_chunks * chunk_size tokens are cut as `overlong` says; None reads everything."""
    overlong: Overlong = "centre"
    layout: Layout = "memory_first"
    """`section_first` lets all rollouts of a group, and all questions on a document, share every section's prefix."""
    chunk_boundary: Boundary = "token"
    """`line` cuts after the last line break that fits; `token` at exactly chunk_size, as published."""
    empty_memory: Literal["overwrite", "keep"] = "overwrite"
    """What an empty response does: `overwrite` empties the memory (MemAgent), `keep` leaves it (vime port)."""
    prompts: str = "standard"

    def __post_init__(self) -> None:
        for name in ("chunk_size", "question_tokens", "memory_tokens", "answer_tokens"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"policy.options.{name}={getattr(self, name)}: must be at least 1 token")
        if self.max_chunks is not None and self.max_chunks < 1:
            raise ConfigError(f"policy.options.max_chunks={self.max_chunks}: must be at least 1, or null for no limit")
        prompt_set(self.prompts)

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        """The read and the answer prompt, tokenised once per codec."""
        prompts = prompt_set(self.prompts)
        read = user_turn(codec, prompts.read[self.layout], ("question", "memory", "section"))
        return read, user_turn(codec, prompts.answer, ("question", "memory"))

    def required_context(self, codec: Codec) -> int:
        """Window the model needs: the longest prompt any document can lead to, plus its completion."""
        read, answer = self.templates(codec)
        memory = max(self.memory_tokens, len(codec.encode(prompt_set(self.prompts).empty_memory)))
        reading = read.literal_length + self.question_tokens + memory + self.chunk_size + self.memory_tokens
        return max(reading, answer.literal_length + self.question_tokens + memory + self.answer_tokens)

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Refuse, at load, a problem that breaks a budget."""
        admit_question(problem, codec, self.question_tokens)
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
        newlines = newline_ids(codec) if self.chunk_boundary == "line" else frozenset()
        return [list(chunk) for chunk in split(ids, self.chunk_size, newlines)]

    def document_chunks(self, context: str, model: Model) -> list[list[int]]:
        """The chunks of a document, and an event if it was cut."""
        document = model.codec.encode(context)
        chunks = self.chunks(document, model.codec)
        if (kept := sum(map(len, chunks))) < len(document):
            model.event(DocumentTruncated(len(document), kept, self.overlong))
        return chunks

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a reply that writes `memory`, without the stop token: what a cold start imitates."""
        return list(memory)

    async def run(self, problem: Problem, model: Model) -> Answered:
        """Read the document as `read_document` does, then answer; without a document there is nothing to read."""
        self.admit(problem, model.codec)
        if not problem.context or not problem.context.strip():
            return Answered(None, Outcome.EMPTY_CONTEXT)
        return await self.read_document(problem, problem.context, model)

    async def read_document(self, problem: Problem, context: str, model: Model) -> Answered:
        """Read every chunk, then answer."""
        codec = model.codec
        read, answer = self.templates(codec)
        question = codec.encode(problem.question)
        memory = codec.encode(prompt_set(self.prompts).empty_memory)
        for index, chunk in enumerate(self.document_chunks(context, model)):
            prompt = read.fill({"question": question, "memory": memory, "section": chunk})
            completion = await model.generate(prompt, name="read", max_tokens=self.memory_tokens, chunk=index)
            memory = self._next_memory(memory, completion, model)
        prompt = answer.fill({"question": question, "memory": memory})
        return await self.answer(prompt, model)

    async def answer(self, prompt: Prompt, model: Model) -> Answered:
        """The last turn."""
        completion = await model.generate(prompt, name="answer", max_tokens=self.answer_tokens)
        return answered(completion, model.codec)

    def _next_memory(self, memory: list[int], completion: Completion, model: Model) -> list[int]:
        written = list(model.codec.strip_stop(completion.token_ids))
        if not written and self.empty_memory == "keep":
            model.event(EmptyMemoryKept())
            return memory
        return written


def admit_question(problem: Problem, codec: Codec, budget: int) -> None:
    """Raise DataError for a question of more than `budget` tokens."""
    length = len(codec.encode(problem.question))
    if length > budget:
        raise DataError(
            f"problem {problem.id}: its question has {length} tokens, policy.options.question_tokens={budget}; "
            f"raise that budget or drop the problem"
        )


def answered(completion: Completion, codec: Codec) -> Answered:
    """The end of an episode whose last completion is the answer."""
    truncated = completion.stop_reason is StopReason.LENGTH
    text = codec.decode(completion.token_ids, control=False)
    return Answered(text, Outcome.ANSWER_TRUNCATED if truncated else Outcome.ANSWERED)

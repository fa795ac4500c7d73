"""Sections are read side by side, each on its own; the answer sees the notes that fit.

    palimpsest check examples.notes:NotesPolicy
    palimpsest eval --policy examples.notes:NotesPolicy --data synthetic --chunks 4,16

No prompt depends on another reply, so a server reads all sections at once. One note can't correct another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from palimpsest.memory.overwrite import admit_question, answered, newline_ids
from palimpsest.memory.parts.chunks import split
from palimpsest.memory.policy import Answered, Model
from palimpsest.text.codec import Codec
from palimpsest.text.template import Template, user_turn
from palimpsest.types import Outcome, Problem

NOTE = "Section:\n{section}\nProblem: {question}\nMemory: none\nUpdate the memory."
ANSWER = "Problem: {question}\nMemory:{notes}\nAnswer in \\boxed{}."


@dataclass(frozen=True, slots=True)
class NotesPolicy:
    """Options, all lengths in tokens."""

    chunk_size: int = 36
    note_tokens: int = 16
    notes_tokens: int = 64
    """Notes in the last prompt; later ones are dropped, with an event."""
    question_tokens: int = 32
    answer_tokens: int = 8

    def templates(self, codec: Codec) -> tuple[Template, Template]:
        return user_turn(codec, NOTE, ("section", "question")), user_turn(codec, ANSWER, ("question", "notes"))

    def required_context(self, codec: Codec) -> int:
        note, answer = (template.literal_length + self.question_tokens for template in self.templates(codec))
        return max(note + self.chunk_size + self.note_tokens, answer + self.notes_tokens + self.answer_tokens)

    def admit(self, problem: Problem, codec: Codec) -> None:
        admit_question(problem, codec, self.question_tokens)

    def prepare(self, problem: Problem, codec: Codec) -> list[Sequence[int]]:
        if not problem.context or not problem.context.strip():
            return []
        return list(split(codec.encode(problem.context), self.chunk_size, newline_ids(codec)))

    async def run(self, problem: Problem, model: Model) -> Answered:
        codec = model.codec
        if not model.prepared:
            return Answered(None, Outcome.EMPTY_CONTEXT)
        template, answer = self.templates(codec)
        question = codec.encode(problem.question)

        async def note(at: int, section: Sequence[int]) -> tuple[int, ...]:
            prompt = template.fill({"section": section, "question": question})
            reply = await model.generate(prompt, name="note", max_tokens=self.note_tokens, chunk=at)
            said = codec.strip_stop(reply.token_ids)
            model.event("noted", turn=reply.turn, tokens=len(said))
            return said

        notes = await asyncio.gather(*(note(at, section) for at, section in enumerate(model.prepared)))
        ids = [i for said in notes if codec.decode(said).strip() != "none" for i in said]
        if len(ids) > self.notes_tokens:
            model.event("notes_cut", tokens=len(ids), kept=self.notes_tokens)
        prompt = answer.fill({"question": question, "notes": ids[: self.notes_tokens]})
        return answered(await model.generate(prompt, name="answer", max_tokens=self.answer_tokens), codec)

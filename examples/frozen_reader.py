"""A frozen reader answers from the memory that the trained model wrote: `overwrite`, with a role in its last turn.

    palimpsest train memagent-quickstart policy.name=examples.frozen_reader:FrozenReaderPolicy \
        roles.reader.model=embedded

The reader's answer determines the reward, so training teaches the writer to write for another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from palimpsest.memory.overwrite import OverwritePolicy, answered
from palimpsest.memory.policy import Answered, Model
from palimpsest.types import Problem


@dataclass(frozen=True, slots=True)
class FrozenReaderPolicy(OverwritePolicy):
    """Options of `overwrite`."""

    answers_questions: ClassVar[bool] = False
    roles: ClassVar[tuple[str, ...]] = ("reader",)

    async def answer(self, problem: Problem, values: Mapping[str, Sequence[int]], model: Model) -> Answered:
        """The last turn, by the reader; `values`: the memory."""
        _, template = self.templates(model.codec)
        prompt = template.fill({"question": model.codec.encode(problem.question), **values})
        completion = await model.generate(prompt, name="answer", max_tokens=self.answer_tokens, role="reader")
        return answered(completion, model.codec, template.pieces[-1])

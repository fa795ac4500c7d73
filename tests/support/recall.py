"""A small ReMemR1 agent's options, document and scripted replies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from palimpsest.types import Completion, StopReason

SMALL: dict[str, Any] = {
    "chunk_size": 14,
    "chunk_boundary": "line",
    "question_tokens": 60,
    "memory_tokens": 40,
    "reply_tokens": 120,
    "answer_tokens": 12,
    "prompts": "short",
}


DOCUMENT = "Bob has a cat.\nIt is cold.\nAnna is blue.\nNo one ran.\n"


WINDOW = 900


@dataclass
class Script:
    """A sampler that gives its replies in turn, whatever the prompt says."""

    codec: Any
    replies: Sequence[str]
    max_context: int = WINDOW
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    async def generate(self, prompt_ids: Sequence[int], params: Any, **options: Any) -> Completion:
        await asyncio.sleep(0)
        text = self.replies[len(self.prompts)] if len(self.prompts) < len(self.replies) else "\\boxed{x}"
        self.prompts.append(tuple(prompt_ids))
        ids = (*self.codec.encode(text), self.codec.stop_ids[0])[: params.max_tokens]
        return Completion(ids, (-1.0,) * len(ids), StopReason.STOP)

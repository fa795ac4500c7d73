"""What reading policies share whose reply holds the memory between tags, among other things (recall.py, gated.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from palimpsest.errors import ConfigError
from palimpsest.events import MemoryCut, MemoryWritten
from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.policy import Model
from palimpsest.text.codec import Codec
from palimpsest.types import Problem

_BLOCK = "<{0}>\n{{{0}}}\n</{0}>".format


def blocks(*names: str) -> str:
    """Tagged blocks, one a slot; the question stands in a block called problem.

    >>> blocks("question", "memory")
    '<problem>\\n{question}\\n</problem>\\n\\n<memory>\\n{memory}\\n</memory>'
    """
    return (
        "\n\n".join(_BLOCK(name) for name in names)
        .replace("<question>", "<problem>")
        .replace("</question>", "</problem>")
        .replace("recalled>", "recalled_memory>")
        .replace("other_heads>", "other_memories>")
    )


@dataclass(frozen=True, slots=True)
class TaggedPolicy(OverwritePolicy):
    """Options of `overwrite`, and the budget of a reply; all lengths in tokens."""

    empty_memory: Literal["overwrite", "keep"] = "overwrite"
    """`overwrite` only: an empty reply is malformed here."""
    reply_tokens: int | None = None
    """Budget of a whole reply, tags and thinking included; None: memory_tokens."""

    def __post_init__(self) -> None:
        OverwritePolicy.__post_init__(self)
        if self.reply_tokens is not None and self.reply_tokens < 1:
            raise ConfigError(f"policy.options.reply_tokens={self.reply_tokens}: must be at least 1 token, or null")
        if self.empty_memory != "overwrite":
            raise ConfigError(
                f"policy.options.empty_memory={self.empty_memory!r}: does nothing where tags hold the memory; "
                "leave it at overwrite"
            )

    def admit(self, problem: Problem, codec: Codec) -> None:
        """Refuse, at load, what `overwrite` refuses, and a reply that the tags alone fill: none could ever be read."""
        OverwritePolicy.admit(self, problem, codec)
        tags = len(self.reply(codec, ()))
        if self.written_tokens <= tags:
            said = "reply_tokens=null, which is memory_tokens" if self.reply_tokens is None else "reply_tokens"
            raise ConfigError(
                f"policy.options.{said}={self.written_tokens}: the tags of a reply take {tags} tokens of this model's; "
                f"set policy.options.reply_tokens to {2 * tags + self.memory_tokens} or more"
            )

    def reply(self, codec: Codec, memory: Sequence[int], query: Sequence[int] | None = None) -> list[int]:
        """The ids of a well-formed reply that makes `memory` the memory, without the stop token."""
        raise NotImplementedError

    @property
    def written_tokens(self) -> int:
        """Budget of a reply, its tags included."""
        return self.reply_tokens or self.memory_tokens

    def next_memory_of(
        self,
        memory: list[int],
        written: list[int] | None,
        model: Model,
        read: Sequence[Sequence[int]],
        update: str | None = None,
    ) -> list[int]:
        """The memory from here on: what was written, cut to its budget, or the old one if that is None.

        `read`: what else than `memory` the prompt has that a memory may be written from. Events have a cut, what was
        dropped, and what the memory now is; `update` is what the tags held, if not all of it.
        """
        cut = written is not None and len(written) > self.memory_tokens
        if written is not None and cut:
            model.event(MemoryCut(len(written), self.memory_tokens))
            written = written[: self.memory_tokens]
        kept = memory if written is None else self.sifted(memory, written, (*read, memory), model, cut)
        changed = written is not None and (self.grounded == "off" or kept is not memory)
        model.event(MemoryWritten(tuple(kept), model.codec.decode(kept), changed, update))
        return kept

"""Prompts assembled in token space from pre-tokenised pieces.

A template is a user message with `{slots}`. It is rendered once through the model's chat template, cut at its
slots, and each literal piece is tokenised once; filling it concatenates ids, so a memory that was sampled as ids
enters the next prompt as the same ids, and where each slot's ids stand is known exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.text.codec import Codec
from palimpsest.types import Prompt

_SLOT = re.compile(r"\{([a-z_]+)\}")
_MARK = "\ue000%s\ue001"  # private-use characters: no template text holds them
_MARKED = re.compile("\ue000([a-z_]+)\ue001")


@dataclass(frozen=True, slots=True)
class Template:
    """Literal pieces and the slots between them: pieces[0] slot[0] pieces[1] ... slot[n-1] pieces[n]."""

    pieces: tuple[tuple[int, ...], ...]
    slots: tuple[str, ...]

    @property
    def literal_length(self) -> int:
        """Tokens of the template itself."""
        return sum(len(piece) for piece in self.pieces)

    def fill(self, values: Mapping[str, Sequence[int]]) -> Prompt:
        """[P] prompt ids, in which each slot is a piece of its name. `values` holds the ids of each slot.

        >>> prompt = Template(pieces=((1, 2), (3,)), slots=("memory",)).fill({"memory": [7, 8]})
        >>> prompt, prompt.spans
        ((1, 2, 7, 8, 3), {'memory': (2, 4)})
        """
        parts: list[Sequence[int]] = [self.pieces[0]]
        for slot, piece in zip(self.slots, self.pieces[1:], strict=True):
            parts += [Prompt.named(slot, values[slot]), piece]
        return Prompt.joined(parts)


@lru_cache(maxsize=256)
def user_turn(codec: Codec, message: str, slots: tuple[str, ...], **chat_options: Any) -> Template:
    """Template of one user message followed by the model's turn to speak.

    `slots` are the names that must occur in `message`, each exactly once as `{name}`; other braces are text.
    Without a chat template the message is taken as it stands.
    """
    marked = marked_slots(message, slots)
    if getattr(codec.tokenizer, "chat_template", None):
        marked = codec.tokenizer.apply_chat_template(
            [{"role": "user", "content": marked}], tokenize=False, add_generation_prompt=True, **chat_options
        )
    return cut_at_marks(codec, marked)


def mark(name: str) -> str:
    """What stands for a slot while a chat template is rendered."""
    return _MARK % name


def marked_slots(message: str, slots: tuple[str, ...]) -> str:
    """`message` with a mark for each slot. Raises ConfigError unless it holds each exactly once."""
    found = [name for name in _SLOT.findall(message) if name in slots]
    if sorted(found) != sorted(slots):
        wanted = ", ".join("{" + name + "}" for name in slots)
        raise ConfigError(f"prompt template must hold each of {wanted} exactly once, it has {found}: {message!r:.80}")
    return _SLOT.sub(lambda m: mark(m[1]) if m[1] in slots else m[0], message)


def cut_at_marks(codec: Codec, marked: str) -> Template:
    """The template of a rendered text: cut at its marks, each literal piece tokenised as our own text."""
    parts = _MARKED.split(marked)
    pieces = tuple(tuple(codec.encode_trusted(part)) if part else () for part in parts[0::2])
    return Template(pieces, tuple(parts[1::2]))

"""Prompts assembled in token space from pre-tokenised pieces.

A template is a user message with `{slots}`. It is rendered once through the model's chat template, cut at its
slots, and each literal piece is tokenised once. Filling it concatenates ids, so a memory that was sampled as ids
enters the next prompt as the same ids, and the position of each slot's ids is known exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from palimpsest.errors import ConfigError, ModelError
from palimpsest.text.chat_template import Refusal
from palimpsest.text.codec import Codec, cached_on_codec
from palimpsest.types import Prompt

_SLOT = re.compile(r"\{\{(?P<text>\w+)\}\}|\{(?P<slot>[a-z_]+)\}")
MARKS = "\ue000\ue001"
"""Characters reserved for marking slots during rendering; prompt texts must not contain them."""
_MARK = "\ue000%s\ue001"  # private-use characters: no template text contains them
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
        """[P] prompt ids, in which each slot is a piece of its name. `values` maps slots to ids.

        >>> prompt = Template(pieces=((1, 2), (3,)), slots=("memory",)).fill({"memory": [7, 8]})
        >>> prompt, prompt.spans
        ((1, 2, 7, 8, 3), {'memory': (2, 4)})
        """
        pieces: list[Sequence[int]] = [self.pieces[0]]
        for slot, piece in zip(self.slots, self.pieces[1:], strict=True):
            pieces += [values[slot], piece]
        return Prompt.joined(pieces, {2 * index + 1: slot for index, slot in enumerate(self.slots)})


@cached_on_codec
def user_turn(codec: Codec, message: str, slots: tuple[str, ...], system: str = "") -> Template:
    """Template of one user message followed by the start of the model's turn, after a nonempty `system` message.

    `slots` are the names that must occur in `message`, each exactly once as `{name}`; `{{name}}` is the text {name};
    other braces are text. Without a chat template the message is used verbatim. Raises ConfigError if the model's
    chat template shows no system message.
    """
    marked = marked_slots(message, slots)
    if not codec.has_template:
        if system:
            raise ConfigError("the model has no chat template, so no system message: remove it, or put it before")
        return cut_at_marks(codec, marked)
    messages = [{"role": "user", "content": marked}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    try:
        text = codec.render(messages, add_generation_prompt=True)
    except Refusal as refusal:
        if not system:
            raise ModelError(f"the model's chat template rejects a user message ({refusal})") from None
        text = ""
    if system.strip() not in text:
        raise ConfigError("the model's chat template shows no system message: move the system text into the others")
    template = cut_at_marks(codec, text)
    if sorted(template.slots) != sorted(slots):
        raise ModelError("the model's chat template does not render a user message: check its chat_template")
    return template


def mark(name: str) -> str:
    return _MARK % name


def marked_slots(message: str, slots: tuple[str, ...]) -> str:
    """`message` with a mark for each slot. Raises ConfigError unless it contains each exactly once."""
    present = [match["slot"] for match in _SLOT.finditer(message) if match["slot"] in slots]
    if sorted(present) != sorted(slots):
        wanted = ", ".join("{" + name + "}" for name in slots)
        raise ConfigError(f"prompt template needs each of {wanted} exactly once, it has {present}: {message!r:.80}")
    return insert(message, {name: mark(name) for name in slots})


def insert(text: str, values: Mapping[str, str]) -> str:
    """`text` with {name} replaced by its value, in one pass, and {{name}} by {name}.

    >>> insert("[{id}] {text} {{id}} {}", {"id": "a", "text": "{id}"})
    '[a] {id} {id} {}'
    """

    def shown(match: re.Match[str]) -> str:
        return f"{{{match['text']}}}" if match["text"] else values.get(match["slot"], match[0])

    return _SLOT.sub(shown, text)


def escaped(text: str) -> str:
    """`text` as `insert` shows it without values.

    >>> escaped("{id} {}"), insert(escaped("{id} {}"), {"id": "a"})
    ('{{id}} {}', '{id} {}')
    """
    return re.sub(r"\{(\w+)\}", r"{{\1}}", text)


def cut_at_marks(codec: Codec, marked: str) -> Template:
    """The template of a rendered text: cut at its marks, each literal piece tokenised as trusted text."""
    texts = _MARKED.split(marked)
    pieces = tuple(tuple(codec.encode_trusted(part)) if part else () for part in texts[0::2])
    return Template(pieces, tuple(texts[1::2]))

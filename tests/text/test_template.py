"""Templates of a prompt with slots for ids."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.errors import ConfigError
from palimpsest.text.template import user_turn


def test_a_filled_template_is_the_chat_prompt(tiny_codec: Any) -> None:
    template = user_turn(tiny_codec, "Q {question}\nM {memory}\n{literal}", ("question", "memory"))
    ids = template.fill({"question": tiny_codec.encode("who?"), "memory": tiny_codec.encode("blue")})
    text = "<|im_start|>user\nQ who?\nM blue\n{literal}<|im_end|>\n<|im_start|>assistant\n"
    assert tiny_codec.decode(ids) == text
    assert len(ids) == template.literal_length + len(tiny_codec.encode("who?")) + len(tiny_codec.encode("blue"))


@pytest.mark.parametrize("message", ["no slot", "{memory} {memory} {question}", "{memory}"])
def test_a_template_needs_each_slot_exactly_once(message: str, tiny_codec: Any) -> None:
    with pytest.raises(ConfigError, match="exactly once"):
        user_turn(tiny_codec, message, ("question", "memory"))

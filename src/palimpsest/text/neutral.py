"""Prompts for endpoints that take messages: token ids with role markers of our own, turned back into messages.

    <|palimpsest:system|>Be brief.<|palimpsest:end|><|palimpsest:user|>Who?<|palimpsest:end|><|palimpsest:assistant|>
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]

A policy builds prompts out of ids, whatever the model. Over any tokenizer a codec is made whose control tokens are
these markers and nothing else, with a chat template that writes them; the tokenizer counts and cuts, no more.

Guaranteed: a marker comes out of the template alone, so no text of a document, a question, a tool or a reply begins or
ends a message; with a byte-level tokenizer a message's content is its text, character by character.
Not covered: what an endpoint makes of a text that looks like a marker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.text.codec import Codec, without_added_tokens

ROLES = ("system", "user", "assistant")
_MARKER = "<|palimpsest:%s|>"
_END = _MARKER % "end"
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|palimpsest:' + message['role'] + '|>' + message['content'] + '<|palimpsest:end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|palimpsest:assistant|>{% endif %}"
)


def neutral_codec(codec: Codec) -> Codec:
    """A codec over the tokenizer of `codec`, with our markers in the place of its control tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=without_added_tokens(codec.tokenizer.backend_tokenizer),
        eos_token=_END,
        additional_special_tokens=[_MARKER % role for role in ROLES],
        chat_template=_TEMPLATE,
    )
    return Codec(tokenizer)


def messages_of(ids: Sequence[int], codec: Codec) -> list[dict[str, str]]:
    """The messages of a prompt that was built with a `neutral_codec`. Raises ValueError for a prompt that is none: one
    with text outside of messages, or whose reply is begun already."""
    roles = {codec.encode_trusted(_MARKER % role)[0]: role for role in ROLES}
    (end,) = codec.encode_trusted(_END)
    messages: list[dict[str, str]] = []
    rest = tuple(ids)
    while end in rest:
        at = rest.index(end)
        role, content = roles.get(rest[0]), rest[1:at]
        if role is None or not codec.control_ids.isdisjoint(content):
            raise ValueError("the prompt is no row of whole messages, which chat endpoints need")
        messages.append({"role": role, "content": codec.decode(content)})
        rest = rest[at + 1 :]
    if not messages or [roles.get(each) for each in rest] != ["assistant"]:
        raise ValueError("the prompt doesn't end where a reply begins, which chat endpoints need")
    return messages

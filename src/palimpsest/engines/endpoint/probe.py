"""What an endpoint can do, found out once before anything is played: by asking it for a word.

    auto: tokens, completions (both with the model's tokenizer alone), chat; of each the most fields that it takes

Guaranteed: a form is taken only if a request of it was answered as it should be, with as many prompt tokens as were
sent where the endpoint counts them; a tokenizer that disagrees with the server's own, where it can be asked (vLLM,
SGLang, llama.cpp), is refused with the text they disagree on.
Not covered: an endpoint that changes while it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.endpoints import Again
from palimpsest.engines.endpoint.client import Client, Unavailable
from palimpsest.engines.endpoint.forms import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    Answered,
    ChatForm,
    Form,
    TextForm,
    TokenForm,
)
from palimpsest.errors import ConfigError, EngineError, ModelError, SamplerError, nearest
from palimpsest.text.codec import Codec
from palimpsest.text.neutral import neutral_codec
from palimpsest.text.template import user_turn
from palimpsest.types import SamplingParams

_WORD = "Say yes."
_TOKENS = 16  # models that think refuse to say less
_ATTEMPTS = 4
_MOST_NAMES = 8  # of models, in a message
HOSTILE = (
    "The quick brown fox jumped over 13 lazy dogs, didn't it?",
    "  two spaces\n\n\ttab\r\nend  ",
    "Zürich, naïve, 東京, Ελλάδα, עברית, 🙂👩‍👩‍👧",
    "e\u0301 \u00a0\u200b\ufeff \ufb01",
    "1234567890 3.14159 1,000,000 0x7fff",
    "def f(x):\n    return {'a': [x**2, -1]}  # done",
    "<|im_start|>user\n<|im_end|> <s></s> <think></think> [INST] <|eot_id|>",
)
"""Texts on which tokenizers differ."""


@dataclass(frozen=True, slots=True)
class Found:
    """How an endpoint is asked."""

    form: Form
    answered: Answered
    """To the word."""
    window: int | None
    """Tokens, as the endpoint says; None: it doesn't."""
    checked: bool
    """Whether its tokenizer was compared with ours."""
    model: str | None = None
    """What its reply calls the model; None: nothing."""
    served: str = ""
    """What it says of the model behind the name, in words."""

    @property
    def exact_prompt(self) -> bool:
        """Whether prompts reach it as token ids."""
        return isinstance(self.form, TokenForm)


async def probe(
    client: Client,
    settings: EndpointEngineConfig,
    model: str,
    own: Codec | None,
    counting: Codec,
    more: Mapping[str, Any],
) -> Found:
    """How `model` is asked there. `own`: the model's tokenizer, None: it isn't known; `counting`: any tokenizer;
    `more`: variables of its chat template.

    Raises EngineError for an endpoint that isn't there, has no time or wants another key, ConfigError for a mode or a
    model that it hasn't, ModelError for a tokenizer that is not the model's.
    """
    models = await client.look("GET", f"{client.url}/models")
    reasons = dict[str, str]()
    for form in _forms(settings, model, own, counting, more):
        try:
            answered, name = await _asked(client, form)
        except Unavailable as error:
            raise EngineError(f"{error}; try again later") from None  # another mode would be another evaluation
        except (Again, SamplerError) as error:
            reasons[form.mode] = str(error)
            continue
        window = _window(models, model)
        checked = isinstance(form, TokenForm | TextForm) and await _agrees(client, model, form.codec)
        return Found(form, answered, window, checked, name, _served(models, model, name))
    raise ConfigError(_why_not(client.url, model, models, reasons))


def _forms(
    settings: EndpointEngineConfig, model: str, own: Codec | None, counting: Codec, more: Mapping[str, Any]
) -> Iterator[Form]:
    """What to try, the best first."""
    modes = ("tokens", "completions", "chat") if settings.mode == "auto" else (settings.mode,)
    logprobs = {"logprobs": 1} if settings.logprobs else {}
    if "tokens" in modes and own is not None:
        yield from (TokenForm(own, model, fields, {**logprobs}) for fields in COMPLETION_FIELDS)
        if logprobs:
            yield from (TokenForm(own, model, fields, {}) for fields in COMPLETION_FIELDS)
    if "completions" in modes and own is not None:
        yield from (TextForm(own, model, fields, {}) for fields in COMPLETION_FIELDS)
    if "chat" in modes:
        codec = neutral_codec(counting)
        options = {"chat_template_kwargs": dict(more)} if more else {}
        for fields in CHAT_FIELDS:
            yield ChatForm(codec, model, replace(fields, spare=settings.thinking_tokens), options)


async def _asked(client: Client, form: Form) -> tuple[Answered, str | None]:
    """Its answer to a word, and what it calls the model. Raises SamplerError or Again where it is not understood."""
    prompt = user_turn(form.codec, _WORD, ()).fill({})
    params = SamplingParams(max_tokens=_TOKENS, temperature=0.0, stop_ids=form.codec.stop_ids)
    body = form.body(prompt, params)
    answer = await client.post(form.path, body, lambda answer: answer, key="probe", attempts=_ATTEMPTS)
    answered = form.read(answer, prompt, params)
    if isinstance(form, TokenForm) and answered.prompt_tokens not in (0, len(prompt)):
        raise SamplerError(f"it read {answered.prompt_tokens} tokens where {len(prompt)} were sent")
    return answered, model_of(answer)


def model_of(answer: Any) -> str | None:
    """What a reply calls the model that gave it; None where it says nothing."""
    name = answer.get("model") if isinstance(answer, dict) else None
    return name if isinstance(name, str) and name else None


def _window(models: Any, model: str) -> int | None:
    """Tokens of the longest prompt plus completion, where the list of models says it (vLLM, llama.cpp)."""
    card, meta = _card(models, model)
    tokens = card.get("max_model_len") or meta.get("n_ctx")
    return tokens if isinstance(tokens, int) and tokens > 1 else None


def _card(models: Any, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the list of models says of one, and its `meta`; nothing where it says nothing."""
    listed = _listed(models)
    card = next((each for each in listed if each.get("id") == model or len(listed) == 1), {})
    meta = card.get("meta")
    return card, meta if isinstance(meta, dict) else {}


def _served(models: Any, model: str, name: str | None) -> str:
    """What tells one model behind a name from another: the folder it was loaded from, without where that lies (vLLM,
    SGLang), parameters and bytes (llama.cpp), the name in a reply. `created` tells nothing: servers give the time.

    >>> _served({"data": [{"id": "m", "root": "/a/Qwen3-8B", "created": 1}]}, "m", "m-2026-01")
    'root=Qwen3-8B, model=m-2026-01'
    """
    card, meta = _card(models, model)
    root = card.get("root")
    facts = {
        "root": root.rstrip("/").rpartition("/")[2] if isinstance(root, str) else None,
        "parameters": meta.get("n_params"),
        "bytes": meta.get("size"),
        "model": name if name != model else None,
    }
    return ", ".join(f"{key}={value!s:.100}" for key, value in facts.items() if isinstance(value, str | int) and value)


def _listed(models: Any) -> list[dict[str, Any]]:
    data = models.get("data") if isinstance(models, dict) else None
    return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []


async def _agrees(client: Client, model: str, codec: Codec) -> bool:
    """Whether the server's tokenizer was asked and is ours. Raises ModelError if it is another."""
    root = client.url.removesuffix("/v1")
    for text in HOSTILE:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        body |= {"content": text, "add_special": False, "parse_special": True}  # llama.cpp's names
        told = await client.look("POST", f"{root}/tokenize", body)
        theirs = told.get("tokens") if told is not None else None
        if not isinstance(theirs, list):
            return False
        ours = codec.encode_trusted(text)
        if theirs != ours:
            at = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
            raise ModelError(
                f"{client.url}: its tokenizer is not the one here: of {text!r:.60} it makes {len(theirs)} tokens, "
                f"ours {len(ours)}, and they differ from token {at}; give the model's own by engine.tokenizer "
                "(--tokenizer)"
            )
    return True


def _why_not(url: str, model: str, models: Any, reasons: Mapping[str, str]) -> str:
    """What to do about an endpoint that answered nothing as it should."""
    names = [str(each.get("id")) for each in _listed(models)]
    if names and model not in names:
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        return f"{url}: no model {model}{nearest(model, names)}; it has {shown}: name one by --model (model.path)"
    if not reasons:
        return (
            f"engine.mode needs the tokenizer of {model}: give its folder or hub id by engine.tokenizer (--tokenizer)"
        )
    hint = "" if url.endswith("/v1") else "; does engine.url (--base-url) lack /v1?"
    return f"{url}: answers no mode that was tried ({'; '.join(f'{m}: {r}' for m, r in reasons.items())}){hint}"

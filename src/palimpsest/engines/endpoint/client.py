"""HTTP client of an OpenAI-compatible endpoint, and a probe of what the endpoint supports.

The probe runs once, before any episode, and requests one word in each form:

    auto: tokens, completions (both need the model's tokenizer), chat; each without the fields that errors name

Guaranteed: a request is sent at most `attempts` times, and again only after time-outs, dropped connections, 408, 429
and 5xx. Failures that no retry can fix (a rejected key, an unknown model or path, a redirect, an exhausted quota)
immediately raise an EngineError that names the fix; so does an endpoint silent for `patience_s`. A reply larger than
the limit, or one that contains the key, is rejected; no message contains the key. Cancelling the caller closes the
connection. Redirects are not followed; proxies of the environment serve only other machines. A form is chosen only if a
request in it was answered correctly, with the right number of prompt tokens where the endpoint counts them; a tokenizer
that disagrees with the server's (vLLM, SGLang, llama.cpp) is rejected with the text in question.
Not covered: endpoints that want more than a key in a header; streams; an endpoint that changes during the probe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.config.engine import EndpointEngineConfig, SamplingConfig
from palimpsest.engines.endpoint.wire_formats import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    ChatForm,
    Fields,
    Form,
    RequestResult,
    TextForm,
    TokenForm,
)
from palimpsest.errors import (
    ConfigError,
    EngineError,
    ModelError,
    PalimpsestError,
    PromptTooLong,
    SamplerError,
    nearest,
)
from palimpsest.http_connections import JsonClient
from palimpsest.http_services import (
    Breaker,
    Busy,
    Down,
    GaveUp,
    HttpReply,
    RetryableError,
    ServiceDown,
    Unanswered,
    check_address,
    redacted,
    retry_after,
    token_from,
)
from palimpsest.text.chat import neutral_codec
from palimpsest.text.codec import Codec
from palimpsest.text.template import user_turn
from palimpsest.types import SamplingParams

_IN_A_ROW = 8  # unanswered attempts, over at least `patience_s`: then it is down
_TOO_LONG = re.compile(r"context[ _-]?(?:length|size|window)|maximum context|max_model_len", re.IGNORECASE)
_NO_QUOTA = re.compile(r"insufficient[_ ]quota|billing", re.IGNORECASE)
_EXAMPLE = "one like http://127.0.0.1:8000/v1"
_URL = "engine.url (--base-url)"
"""Names under which a user sets the address."""


class Unavailable(SamplerError):
    """No attempt was answered: the server is down or busy. The request itself may be valid."""


class _Broken(Down):
    """Server error that may concern this request (500, 501)."""


class EndpointClient(JsonClient):
    """One endpoint. `close` it. `post` raises PromptTooLong or SamplerError for failures of a request, EngineError for
    failures of the endpoint."""

    error, expected, reply_bytes = SamplerError, "JSON", 32 << 20

    def __init__(self, config: EndpointEngineConfig) -> None:
        """Raises ConfigError if the address is invalid or the key's environment variable is not set."""
        address = check_address(config.url, _URL, example=_EXAMPLE)
        if "/openai/deployments/" in address.path:
            root = config.url.partition("/openai/deployments/")[0]
            raise ConfigError(f"{_URL}: {config.url:.200}: give Azure's address for every client, {root}/openai/v1")
        if address.query or address.fragment:
            raise ConfigError(f"{_URL}: the address has a query or a fragment, which may be secrets; give {_EXAMPLE}")
        url = config.url.rstrip("/")
        if url.endswith("/completions"):
            stem = url.removesuffix("/completions").removesuffix("/chat")
            raise ConfigError(f"{_URL}: {config.url}: give what stands before it, {stem}")
        breaker = Breaker(_IN_A_ROW, probe_s=float("inf"), patience_s=config.patience_s)
        token = token_from(config.api_key_env, "engine.api_key_env")
        super().__init__(url, token, config.timeout_s, config.attempts, config.concurrency, breaker)

    def gave_up(self, end: GaveUp) -> PalimpsestError:
        if isinstance(end, ServiceDown):
            return EngineError(f"{self.url}: {end}, the last one: {end.last}; is the server running?")
        passing = isinstance(end.last, Down | Busy) and not isinstance(end.last, _Broken)
        return (Unavailable if passing else SamplerError)(f"{self.url}: {end}")

    async def look(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON object at another path of the endpoint, requested once; None for any other reply. Raises EngineError if
        the server is unreachable, rejects the key or redirects."""
        try:
            async with self._places:
                answer = (await self.sent(method, url, body)).json()
        except Unanswered as nobody:
            raise EngineError(f"{self.url}: unreachable ({nobody}); check {_URL}, and that it runs") from None
        except (SamplerError, PromptTooLong, RetryableError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    async def sent(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> HttpReply:
        reply = await super().sent(method, url, body)
        if redacted(text := reply.body.decode("utf-8", "replace"), self.token) != text:
            raise SamplerError(f"{self.url}: the reply contains the key; palimpsest rejects it")
        return reply

    def failure(self, reply: HttpReply, message: str) -> Exception:
        failure, status = super().failure(reply, message), message
        message = f"{self.url}: {status}"
        if 300 <= reply.status < 400:
            target = redacted(reply.headers.get("location", "nowhere"), self.token)
            return EngineError(f"{self.url}: rejected a redirect to {target:.200}; set {_URL} to that")
        if reply.status in (401, 403):
            fix = "check the key in" if self.token else "name the environment variable that contains the key:"
            return EngineError(f"{message}; {fix} engine.api_key_env (--api-key-env)")
        if reply.status == 429 and _NO_QUOTA.search(status):
            return EngineError(f"{message}; the account's quota is exhausted")
        if reply.status in (500, 501):
            return _Broken(status, retry_after(reply.headers))
        if reply.status in (400, 413, 422) and _TOO_LONG.search(status):
            return PromptTooLong(f"{message}; lower the budgets, or set its window in engine.max_model_len")
        return failure


# ---- Probe of what an endpoint supports ----------------------------------------------------------------------


_WORD = "Say yes."
_TOKENS = 16  # reasoning models can't reply with less
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
    """How to query an endpoint."""

    form: Form
    answered: RequestResult
    """Reply to the one-word prompt."""
    window: int | None
    """Tokens, as reported by the endpoint; None: not reported."""
    checked: bool
    """True if its tokenizer was compared with ours."""
    model: str | None = None
    """Model name in its reply; None: missing."""
    served: str = ""
    """Its description of the model behind the name."""
    sent: tuple[str, ...] = ()
    """Names of the fields of a request."""

    @property
    def exact_prompt(self) -> bool:
        """True if prompts reach it as token ids."""
        return isinstance(self.form, TokenForm)


async def probe(
    client: EndpointClient,
    settings: EndpointEngineConfig,
    model: str,
    native: Codec | None,
    counting: Codec,
    more: Mapping[str, Any],
    sampling: SamplingConfig,
) -> Found:
    """Find out how to query `model`. `native`: the model's tokenizer, None: unknown; `counting`: any tokenizer; `more`:
    variables of its chat template; `sampling`: settings of later requests, which the endpoint may reject.

    Raises EngineError for an endpoint that is unreachable, busy or rejects the key, ConfigError for a mode or model
    that it lacks, ModelError for a tokenizer that is not the model's.
    """
    models = await client.look("GET", f"{client.url}/models")
    reasons = dict[str, list[str]]()
    for form in _forms(settings, model, native, counting, more):
        found = await _accepted(client, form, sampling, reasons.setdefault(form.mode, []))
        if found is None:
            continue
        checked = isinstance(form, TokenForm | TextForm) and await _agrees(client, model, form.codec)
        window, served = _window(models, model), _served(models, model, found.model)
        return replace(found, window=window, checked=checked, served=served)
    raise ConfigError(_why_not(client.url, model, models, reasons))


async def _accepted(client: EndpointClient, form: Form, sampling: SamplingConfig, reasons: list[str]) -> Found | None:
    """`form` with the fields that the endpoint takes; None, with the `reasons`, if it answers none of the requests."""
    fields: Fields | None = form.fields
    while fields is not None:
        form = replace(form, fields=fields)
        try:
            return await _try_form(client, form, sampling)
        except Unavailable as error:
            raise EngineError(f"{error}; try again later") from None  # another mode would change the evaluation
        except (RetryableError, SamplerError) as error:
            reasons.append(str(error).removeprefix(f"{client.url}: "))
            fields = fields.without(reasons[-1])
    return None


def _forms(
    settings: EndpointEngineConfig, model: str, native: Codec | None, counting: Codec, more: Mapping[str, Any]
) -> Iterator[Form]:
    modes = ("tokens", "completions", "chat") if settings.mode == "auto" else (settings.mode,)
    logprobs = {"logprobs": 1} if settings.logprobs else {}
    if "tokens" in modes and native is not None:
        yield from (TokenForm(native, model, fields, {**logprobs}) for fields in COMPLETION_FIELDS)
        if logprobs:
            yield from (TokenForm(native, model, fields, {}) for fields in COMPLETION_FIELDS)
    if "completions" in modes and native is not None:
        yield from (TextForm(native, model, fields, {}) for fields in COMPLETION_FIELDS)
    if "chat" in modes:
        codec = neutral_codec(counting)
        options = {"chat_template_kwargs": dict(more)} if more else {}
        for fields in CHAT_FIELDS:
            yield ChatForm(codec, model, replace(fields, spare=settings.thinking_tokens), options)


async def _try_form(client: EndpointClient, form: Form, sampling: SamplingConfig) -> Found:
    """`form`, with its reply to one word. Raises SamplerError or RetryableError."""
    prompt = user_turn(form.codec, _WORD, ()).fill({})
    params = SamplingParams(_TOKENS, sampling.temperature, sampling.top_p, form.codec.stop_ids)
    body = form.body(prompt, params)
    answer = await client.post(form.path, body, lambda answer: answer, key=("probe",), attempts=_ATTEMPTS)
    answered = form.read(answer, prompt, params)
    if isinstance(form, TokenForm) and answered.prompt_tokens not in (0, len(prompt)):
        raise SamplerError(f"it read {answered.prompt_tokens} tokens instead of {len(prompt)}")
    return Found(form, answered, None, checked=False, model=model_of(answer), sent=tuple(sorted(body)))


def model_of(answer: Any) -> str | None:
    """Model name in a reply; None if missing."""
    name = answer.get("model") if isinstance(answer, dict) else None
    return name if isinstance(name, str) and name else None


def _window(models: Any, model: str) -> int | None:
    """Tokens of the longest prompt plus completion, if the list of models reports it (vLLM, llama.cpp)."""
    card, meta = _card(models, model)
    tokens = card.get("max_model_len") or meta.get("n_ctx")
    return tokens if isinstance(tokens, int) and tokens > 1 else None


def _card(models: Any, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Entry of one model in the list of models, and its `meta`; empty if missing."""
    listed = _listed(models)
    card = next((entry for entry in listed if entry.get("id") == model or len(listed) == 1), {})
    meta = card.get("meta")
    return card, meta if isinstance(meta, dict) else {}


def _served(models: Any, model: str, name: str | None) -> str:
    """Identity of the model behind a name: the name of its folder (vLLM, SGLang), parameters and bytes (llama.cpp), the
    name in a reply. `created` is ignored: servers set it to the current time.

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
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


async def _agrees(client: EndpointClient, model: str, codec: Codec) -> bool:
    """True if the server's tokenizer was queried and is ours. Raises ModelError if it differs."""
    root = client.url.removesuffix("/v1")
    for text in HOSTILE:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        body |= {"content": text, "add_special": False, "parse_special": True}  # llama.cpp's names
        answer = await client.look("POST", f"{root}/tokenize", body)
        theirs = answer.get("tokens") if answer is not None else None
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


def _why_not(url: str, model: str, models: Any, reasons: Mapping[str, list[str]]) -> str:
    names = [str(entry.get("id")) for entry in _listed(models)]
    if names and model not in names:
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        fix = "set model.path, another first word or roles.NAME.model"
        return f"{url}: no model {model}{nearest(model, names)}; it has {shown}: {fix}"
    if not reasons:
        return f"engine.mode needs the tokenizer of {model}: set engine.tokenizer (--tokenizer) to its folder or hub id"
    hint = "" if url.endswith("/v1") else "; does engine.url (--base-url) lack /v1?"
    tried = "; ".join(f"{mode}: {', then '.join(dict.fromkeys(errors))}" for mode, errors in reasons.items())
    return f"{url}: no mode works ({tried}){hint}"

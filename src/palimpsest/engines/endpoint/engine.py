"""Engine that samples from a model behind an OpenAI-compatible address; it has no learner.

It probes the endpoint once (client.py) and reports the result in `limits`.

Guaranteed: `limits.endpoint` reports which figures are exact; the same request has the same seed.
Not covered: the same reply to the same request, which the endpoint decides; scores of given tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from palimpsest.config.engine import SHIPPED, EndpointEngineConfig, ModelConfig, model_path
from palimpsest.config.schema import RunConfig
from palimpsest.engines.endpoint.client import EndpointClient, Found, model_of, probe
from palimpsest.engines.endpoint.wire_formats import SAMPLING, RequestResult, TextForm
from palimpsest.engines.protocol import CompletionDelta, Endpoint, Limits, SamplerStats, check_prompt
from palimpsest.errors import ConfigError, DataError, EngineError, ModelError, SamplerError
from palimpsest.events import OnlyReasoned, PromptCut, What
from palimpsest.http_services import RetryableError
from palimpsest.models.model_files import read_object
from palimpsest.models.model_folder import tokenizer_folder
from palimpsest.provenance import short_digest
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, SamplingParams

_LONG = 512  # prompt tokens that take over 1 ms to encode
_THREADS = 2
_WHOLE, _FRAME = 0.9, 16
"""An endpoint that counts fewer tokens than this share of a prompt's, less those of role markers, has cut it."""


class EndpointSampler:
    """Satisfies `palimpsest.engines.protocol.Sampler`."""

    version = 0

    def __init__(self, client: EndpointClient, result: Found, *, vocab: int, max_context: int, counts: bool) -> None:
        """`counts`: prompts are counted by the model's tokenizer."""
        self._client, self._result, self._vocab, self._comparable = client, result, vocab, counts
        self.max_context = max_context
        self._counts = SamplerStats()
        self.threads = ThreadPoolExecutor(_THREADS, "prompts")

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        """See `Sampler.generate`. Missing log-probabilities are 0.0.

        Raises EngineError if the endpoint is down or rejects every request.
        """
        check_prompt(prompt_ids, params.max_tokens, vocab=self._vocab, max_context=self.max_context)
        form = self._result.form
        if len(prompt_ids) < _LONG:
            body = form.body(prompt_ids, params)
        else:  # on a thread: tokenizers let other threads run
            body = await asyncio.wrap_future(self.threads.submit(form.body, prompt_ids, params))
        with self._counts.counted():
            answered = await self._client.post(
                form.path,
                body,
                lambda answer: self._as_probed(answer, form.read(answer, prompt_ids, params)),
                key=(params.seed,),
            )
        self._counts.prompt_tokens += answered.prompt_tokens or len(prompt_ids)
        self._counts.computed_prompt_tokens += (answered.prompt_tokens or len(prompt_ids)) - answered.cached_tokens
        self._counts.generated_tokens += answered.generated_tokens or len(answered.token_ids)
        if answered.token_ids and max(answered.token_ids) >= self._vocab:
            raise SamplerError(f"an id outside the vocabulary of {self._vocab} came back: wrong tokenizer?")
        logprobs = answered.logprobs or (0.0,) * len(answered.token_ids)
        events: tuple[What, ...] = (OnlyReasoned(),) if answered.only_reasoned else ()
        if self._comparable and 0 < answered.prompt_tokens < _WHOLE * len(prompt_ids) - _FRAME:
            events = (*events, PromptCut(len(prompt_ids), answered.prompt_tokens))
        return Completion(answered.token_ids, logprobs, answered.stop_reason, events=events)

    def _as_probed(self, answer: Any, answered: RequestResult) -> RequestResult:
        """Return `answered` if the probed model sent it, as exact as `limits.endpoint` states. Raises RetryableError,
        and EngineError for another model."""
        probed, name = self._result.answered, model_of(answer)
        if name and self._result.model and name != self._result.model:
            raise EngineError(
                f"{self._client.url}: model {name!r:.80} now replies instead of {self._result.model!r:.80}; "
                "finished episodes stay saved, but can't be mixed with another model's: set one model in "
                "model.path"
            )
        if probed.exact and not answered.exact:
            raise RetryableError("the reply lacks token ids, unlike earlier ones")
        if answered.token_ids and probed.logprobs is not None and answered.logprobs is None:
            raise RetryableError("the reply lacks log-probabilities, unlike earlier ones")
        return answered

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """See `Sampler.stream`; all tokens arrive in one delta."""
        completion = await self.generate(prompt_ids, params, session=session)
        yield CompletionDelta(completion.token_ids, completion.logprobs)
        yield CompletionDelta(completion=completion)

    def check_text(self, *texts: str) -> None:
        """Raise DataError for data that no prompt of the endpoint can contain."""
        form = self._result.form
        if not isinstance(form, TextForm):
            return
        try:
            form.body([i for text in texts for i in form.codec.encode(text)], SamplingParams(1))
        except SamplerError as error:
            raise DataError(str(error)) from None

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        """Raises SamplerError: endpoints score no given tokens."""
        raise SamplerError("engine.name=endpoint scores no given tokens; take the embedded engine for that")

    def stats(self) -> SamplerStats:
        """See `SamplerStats`; tokens as counted by the endpoint, if it counts."""
        return replace(self._counts)


class EndpointEngine:
    """Satisfies `palimpsest.engines.protocol.Engine`."""

    learner = None

    def __init__(self, config: RunConfig) -> None:
        """Probe the endpoint. Raises ConfigError, ModelError, or EngineError if it is unreachable."""
        settings = config.engine
        assert isinstance(settings, EndpointEngineConfig)
        native, folder = _tokenizer(settings, config.model)
        counting = native or Codec.load(ModelConfig())
        more = config.model.chat_template_kwargs
        probing = _probe(settings, config.model.path, native, counting, more, config.eval_sampling)
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(asyncio.run, probing).result()
        self.codec = result.form.codec
        window, vocab = _window(settings, result, folder, config.model.path), _vocabulary(folder, self.codec)
        self._client = EndpointClient(settings)
        self.sampler = EndpointSampler(self._client, result, vocab=vocab, max_context=window, counts=native is not None)
        endpoint = Endpoint(
            url=self._client.url,
            model=config.model.path,
            mode=result.form.mode,
            exact_prompt_ids=result.exact_prompt,
            exact_ids=result.exact_prompt and result.answered.exact,
            logprobs=result.answered.logprobs is not None,
            tokenizer=_fingerprint(counting),
            served=result.served,
            sent=result.sent,
            dropped=result.form.fields.missing,
        )
        note = describe(endpoint, result, window, counting_only=native is None)
        self.limits = Limits(vocab, window, concurrency=settings.concurrency, note=note, endpoint=endpoint)

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self.sampler.threads.shutdown(wait=False)
        await self._client.close()


async def _probe(settings: EndpointEngineConfig, *asked: Any) -> Found:
    client = EndpointClient(settings)  # separate client: this event loop is not the one that runs episodes
    try:
        return await probe(client, settings, *asked)
    finally:
        await client.close()


def _tokenizer(settings: EndpointEngineConfig, model: ModelConfig) -> tuple[Codec | None, Path | None]:
    """The model's tokenizer and its folder; None if none is configured and the mode allows that."""
    named = settings.tokenizer is not None
    if model.path in SHIPPED and not named:
        return None, None  # the default, which names no tokenizer of an endpoint's model
    try:
        folder = tokenizer_folder(model_path(ModelConfig(path=settings.tokenizer or model.path)))
        codec = Codec.load(model.model_copy(update={"path": str(folder)}))
    except ModelError as error:
        if not named and settings.mode in ("auto", "chat"):
            return None, None
        fix = "" if named else "; engine.tokenizer (--tokenizer) names the model's own"
        raise ModelError(f"engine.mode={settings.mode}: {error}{fix}") from None
    return codec, folder


def _window(settings: EndpointEngineConfig, result: Found, folder: Path | None, model: str) -> int:
    """Tokens of prompt plus completion. Raises ConfigError if unknown."""
    size = result.window
    if size is None and folder is not None:
        size = _size(read_object(model, folder / "config.json"), "max_position_embeddings")
    if settings.max_model_len is not None and result.window is not None and settings.max_model_len > result.window:
        raise ConfigError(
            f"engine.max_model_len={settings.max_model_len}: the endpoint's window is {result.window} tokens; lower it"
        )
    window = settings.max_model_len or size
    if window is None:
        raise ConfigError(
            f"engine.max_model_len: {settings.url} reports no window for {model}; set it in tokens, "
            "e.g. engine.max_model_len=131072"
        )
    return window


def _vocabulary(folder: Path | None, codec: Codec) -> int:
    """Exclusive upper bound of token ids; a model may have more rows than its tokenizer names."""
    rows = _size(read_object(str(folder), folder / "config.json"), "vocab_size") if folder is not None else None
    return max(rows or 0, codec.vocab_size)


def _size(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and value > 1 else None


def _fingerprint(codec: Codec) -> str:
    template = str(getattr(codec.tokenizer, "chat_template", "") or "")
    return short_digest(f"{codec.tokenizer.backend_tokenizer.to_str()}\0{template}")


def describe(endpoint: Endpoint, result: Found, window: int, *, counting_only: bool) -> str:
    """One line: how the endpoint is queried and which figures are exact."""
    exact = {
        (True, True): "prompts and replies are exact token ids",
        (True, False): "prompts are exact token ids, replies are re-encoded text",
        (False, False): "prompts and replies pass as text, no token ids are exact",
    }[endpoint.exact_prompt_ids, endpoint.exact_ids]
    notes = [
        f"mode {endpoint.mode}: {exact}",
        f"{'with' if endpoint.logprobs else 'no'} log-probabilities",
    ]
    if counting_only:
        notes.append(f"counted by the packaged tokenizer, as {endpoint.model} names no usable one (set --tokenizer)")
    elif endpoint.mode != "chat":
        notes.append("tokenizer " + ("compared with the server's" if result.checked else "taken on trust"))
    if chosen := [name for name in SAMPLING if name in endpoint.dropped]:
        notes.append(f"the endpoint sets {', '.join(sorted(chosen))}")
    return f"{endpoint.url}, {', '.join(notes)}, window {window}"

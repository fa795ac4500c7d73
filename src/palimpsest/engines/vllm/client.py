"""HTTP client of one vLLM server: sampling, scoring, weight updates, and checks of its answers.

The client checks every field of an answer from `/inference/v1/generate`. A probe then detects stale weights: learner
and server score the same ids. Both of vLLM's silent faults (docs/how-to/vllm.md) show as scores that differ from the
learner's, or that stay bit-identical while the learner's change.

Guaranteed: a result belongs to its request and was sampled by the weights published last, or an error is raised; a
reply never exceeds the size limit; no message contains a key. Rejected are: an answer to another request or from other
weights, a completion that continues after its stop token, ends early or reports a wrong end, an id without its
log-probability, a log-probability that is not finite or above 0, more cached tokens than prompt tokens, and probe
scores off by more than rounding in the weights' dtype. The checks raise WrongAnswer, or LookupError, TypeError,
ValueError or AttributeError for an answer of another shape.
Not covered: time limits, which the caller sets; streams; plausible but wrong numbers; slightly stale weights.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
import orjson

from palimpsest.config.engine import LogprobsMode
from palimpsest.errors import SamplerError
from palimpsest.http_connections import Connections
from palimpsest.http_services import BadReply, Unanswered, redacted
from palimpsest.types import SamplingParams, StopReason

# ---- Answers of /inference/v1/generate, checked --------------------------------------------------------------


_STOPS = {"stop": StopReason.STOP, "length": StopReason.LENGTH}
_ROUNDING = 1e-3
"""Nats by which rounding may lift a log-probability above 0."""
_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Struct(msgspec.Struct, gc=False):
    """Part of an answer. Parsing skips the fields that it doesn't name: each token comes with a copy of itself."""


class _Logprob(_Struct):
    logprob: float


class _Token(_Logprob):
    token_id: _Natural


class _Logprobs(_Struct):
    content: tuple[_Token, ...]


class _Choice(_Struct):
    token_ids: tuple[_Natural, ...]
    finish_reason: str
    weight_versions: tuple[dict[str, Any], ...]
    logprobs: _Logprobs | None = None


class Answer(_Struct):
    """An answer of /inference/v1/generate."""

    request_id: str
    choices: Annotated[tuple[_Choice, ...], msgspec.Meta(min_length=1, max_length=1)]
    usage: dict[str, Any] | None = None
    prompt_logprobs: tuple[dict[str, _Logprob] | None, ...] | None = None


_parse = msgspec.json.Decoder(Answer).decode


class WrongAnswer(ValueError):
    """A well-formed answer with impossible values."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Result of one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    cached: int
    """Prompt tokens found in the server's prefix cache."""


def check_origin(answer: Answer, request_id: str, version: str) -> None:
    """Reject an answer to another request or from weights other than `version`."""
    versions = {span["version"] for span in answer.choices[0].weight_versions}
    if not answer.request_id.endswith(request_id):
        raise WrongAnswer("answered another request")
    if versions != {version}:
        raise WrongAnswer(f"sampled with weights {sorted(map(str, versions))}, {version} is published")


def read_completion(answer: Answer, prompt_tokens: int, params: SamplingParams) -> Sampled:
    """Completion of a prompt of `prompt_tokens` tokens."""
    (choice,) = answer.choices
    ids, content = choice.token_ids, choice.logprobs.content if choice.logprobs else ()
    if not ids or tuple([token.token_id for token in content]) != ids:
        raise WrongAnswer("tokens and log-probabilities don't match")
    logprobs = _nats([token.logprob for token in content])
    if choice.finish_reason not in _STOPS:
        raise WrongAnswer(f"ended the request by {choice.finish_reason!r}")
    reason = _STOPS[choice.finish_reason]
    _check_end(ids, reason, params)
    cached = ((answer.usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if type(cached) is not int or not 0 <= cached <= prompt_tokens:
        raise WrongAnswer(f"found {cached!r} tokens of a prompt of {prompt_tokens} in its cache")
    return Sampled(ids, logprobs, reason, cached)


def _check_end(ids: Sequence[int], reason: StopReason, params: SamplingParams) -> None:
    """Reject a completion that ends neither at its first stop token nor at its length."""
    first_stop = min((ids.index(id_) for id_ in params.stop_ids if id_ in ids), default=None)
    if len(ids) > params.max_tokens:
        raise WrongAnswer(f"sampled {len(ids)} tokens, more than max_tokens={params.max_tokens}")
    if first_stop is not None and first_stop < len(ids) - 1:
        raise WrongAnswer(f"continued after the stop token {ids[first_stop]}")
    if reason is not (StopReason.LENGTH if first_stop is None else StopReason.STOP):
        last = f"{ids[-1]}, not a stop token" if first_stop is None else f"the stop token {ids[-1]}"
        raise WrongAnswer(f"reports an end by {reason.value}, but the last token is {last}")
    if first_stop is None and len(ids) < params.max_tokens:
        raise WrongAnswer(f"ended after {len(ids)} of {params.max_tokens} tokens, without a stop token")


def read_scores(answer: Answer, prompt_tokens: int, ids: Sequence[int]) -> tuple[float, ...]:
    """[T] nats of `ids` after a prompt of `prompt_tokens` tokens."""
    rows = answer.prompt_logprobs or ()
    if len(rows) != prompt_tokens + len(ids):
        raise WrongAnswer(f"scored {len(rows)} tokens of {prompt_tokens + len(ids)}")
    return _nats((row or {})[str(id_)].logprob for row, id_ in zip(rows[prompt_tokens:], ids, strict=True))


def read_likeliest(answer: Any) -> dict[int, float]:
    """Nats of the most likely tokens after a prompt, by id."""
    (token,) = answer["choices"][0]["logprobs"]["content"]
    top = token["top_logprobs"]
    return dict(zip((int(entry["token_id"]) for entry in top), _nats(entry["logprob"] for entry in top), strict=True))


def _nats(values: Iterable[Any]) -> tuple[float, ...]:
    logprobs = tuple(map(float, values))
    if not math.isfinite(sum(logprobs)):
        raise WrongAnswer("a log-probability is not finite")
    if (highest := max(logprobs, default=0.0)) > _ROUNDING:
        raise WrongAnswer(f"a log-probability is {highest:.3g}, above 0")
    return logprobs


# ---- Probe for stale weights ---------------------------------------------------------------------------------


_TOLERANCE = {"float32": 0.02, "bfloat16": 0.5}
"""Mean difference between kernels, nats per token, by the weights' dtype."""
_MOVED = 0.02
"""Share of the tolerance by which the learner must move before the servers' scores must also move."""
_IDS = 32
_LARGE, _SPECIAL = 4000, 1000  # a large vocabulary has its special tokens at either end
_STRIDE = 7919  # a prime: the ids are spread over the vocabulary


def probe_ids(vocab: int, window: int) -> tuple[int, ...]:
    """Ids to score; a server samples one more.

    >>> probe_ids(10, 5)
    (0, 9, 8, 7)
    """
    first, last = (_SPECIAL, vocab // 2) if vocab > _LARGE else (0, vocab)
    return tuple(first + index * _STRIDE % (last - first) for index in range(min(_IDS, window - 1)))


@dataclass(frozen=True, slots=True)
class Probe:
    """The learner's scores of some ids under the published weights."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[T - 1] nats of each of `ids` after those before it, at temperature 1."""
    dtype: str
    """Version of the weights."""

    @property
    def tolerance(self) -> float:
        return _TOLERANCE[self.dtype]


Scored = tuple[Probe, tuple[float, ...]]
"""A probe, and a server's scores of its ids."""


def check_scores(now: Scored, before: Scored | None) -> None:
    """Raise WrongAnswer for scores of other weights than the learner's; `before`: scores of the previous weights."""
    probe, scores = now
    if (off := _distance(probe.logprobs, scores)) > probe.tolerance:
        raise WrongAnswer(
            f"is {off:.2g} nats per token off the learner: it samples from other weights than the published ones, or "
            f"computes in another --dtype than model.dtype={probe.dtype}"
        )
    if before is None or before[1] != scores:
        return
    if (moved := _distance(before[0].logprobs, probe.logprobs)) > probe.tolerance * _MOVED:
        raise WrongAnswer(f"scores as before the new weights, which moved the learner by {moved:.2g} nats")


def _distance(these: Sequence[float], those: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(these, those, strict=True))


def check_loaded(answer: Any) -> None:
    """Raise WrongAnswer if `reload_weights` reports a failure; success is null for each worker of vLLM."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if results is None:
        return
    failed = [result for result in results if result in (False, "False") or "error" in str(result).lower()]
    if not results or failed:
        raise WrongAnswer(f"answered {failed or results!r} to a reload of weights")


def is_tied(model: str) -> bool:
    """True if the config of a server's initial folder ties its output projection to its embeddings.

    False if unknown: a folder that this machine doesn't see.
    """
    try:
        described = json.loads((Path(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    sections = [described, described.get("text_config")] if isinstance(described, dict) else []
    return any(isinstance(section, dict) and section.get("tie_word_embeddings") is True for section in sections)


# ---- HTTP client ---------------------------------------------------------------------------------------------


_REPLY_BYTES = 64 << 20
_TOP = 10
"""Number of tokens whose log-probabilities reveal a server's mode."""


class ServerFailed(SamplerError):
    """The server did not answer, or answered wrongly: check it before the next request."""


class VllmClient:
    """One server. `close` it."""

    def __init__(
        self,
        name: str,
        url: str,
        connections: Connections | None = None,
        *,
        key: str | None = None,
        place: Callable[[Path], Path] = lambda folder: folder,
    ) -> None:
        """`name` is for messages; `connections`: another way to the server than by its address; `place`: where its
        machine has a folder of weights."""
        self.name, self._key, self._place = name, key, place
        self._url = url.rstrip("/")
        self.connections = connections or Connections(token=key)

    async def close(self) -> None:
        await self.connections.close()

    async def check_health(self) -> None:
        """Raises ServerFailed if the server or its engine is down."""
        await self._ask("GET", "/health")

    async def model(self) -> tuple[int, str]:
        """Tokens of its longest prompt plus completion, and its initial model: a folder or a hub id."""
        models = await self._ask("GET", "/v1/models")
        with self._reading():
            return int(models["data"][0]["max_model_len"]), str(models["data"][0].get("root") or "")

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, version: str) -> Sampled:
        """Complete one prompt with the weights of `version`. Raises SamplerError."""
        wanted = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "stop_token_ids": list(params.stop_ids),
            "logprobs": 0,
            "seed": params.seed,
        }
        answer = await self._complete(prompt_ids, wanted, version)
        with self._reading():
            return read_completion(answer, len(prompt_ids), params)

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int], *, version: str) -> tuple[float, ...]:
        """[T] nats of `ids` after the prompt by `version`, at temperature 1 in either mode. Raises SamplerError."""
        answer = await self._complete([*prompt_ids, *ids], {"max_tokens": 1, "prompt_logprobs": 0}, version)
        with self._reading():
            return read_scores(answer, len(prompt_ids), ids)

    async def check_mode(self, mode: LogprobsMode) -> None:
        """Raise ServerFailed unless its log-probabilities are of `mode`: at half the temperature the distance between
        two tokens doubles in processed ones and stays the same in raw ones."""
        warm, cold = [await self._likeliest(temperature) for temperature in (1.0, 0.5)]
        both = sorted(warm.keys() & cold.keys(), key=lambda id_: warm[id_])
        distance = warm[both[-1]] - warm[both[0]] if both else 0.0
        if distance < 1e-3:
            raise ServerFailed(f"{self.name}: the model finds every token equally likely, so its mode is unknown")
        actual = "processed_logprobs" if cold[both[-1]] - cold[both[0]] > 1.5 * distance else "raw_logprobs"
        if actual != mode:
            raise ServerFailed(f"{self.name} gives {actual}, this run needs --logprobs-mode {mode}: start it with that")

    async def sleep(self) -> None:
        """Free the GPU: drop weights and prefix cache until `load`. vLLM's CPU build only pauses."""
        await self._ask("POST", "/sleep?level=2&mode=abort", {})

    async def load(self, folder: Path, version: str, *, asleep: bool = False) -> None:
        """Replace the weights and empty the prefix cache. Raises ServerFailed.

        A server that is `asleep` takes its memory back, for the cache only once it has the weights.
        """
        await self._ask("POST", "/wake_up?tags=weights" if asleep else "/pause?mode=abort", {})
        wanted = {"method": "reload_weights", "kwargs": {"weights_path": str(self._place(folder))}}
        loaded = await self._ask("POST", "/collective_rpc", wanted)
        with self._reading():
            check_loaded(loaded)
        if asleep:
            awake = await self._ask("POST", "/wake_up?tags=kv_cache", {})
            if not isinstance(awake, dict) or awake.get("status") != "awake":
                raise self._failure(f"doesn't wake up: {awake!r}")
        reset = await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true", {})
        if not isinstance(reset, dict) or reset.get("success") is not True:
            raise ServerFailed(f"{self.name}: emptying its prefix cache failed; it still has prompts of old weights")
        await self.set_version(version)
        await self._ask("POST", "/resume", {})

    async def check_weights(self, probe: Probe, version: str, before: Scored | None) -> Scored:
        """Raise ServerFailed unless scores of `probe` match. `before`: the result for the previous weights."""
        scored = probe, await self.score(probe.ids[:1], probe.ids[1:], version=version)
        with self._reading():
            check_scores(scored, before)
        return scored

    async def set_version(self, version: str) -> None:
        """Set the `version` in every answer."""
        await self._ask("POST", "/update_weight_version", {"new_version": version})
        await self.check_version(version)

    async def check_version(self, version: str) -> None:
        """Raise ServerFailed unless its weights have `version`."""
        answer = await self._ask("GET", "/weight_info")
        if not isinstance(answer, dict) or answer.get("weight_version") != version:
            raise self._failure(f"reports weights {answer!r} instead of {version}")

    async def _likeliest(self, temperature: float) -> dict[int, float]:
        wanted = {"max_tokens": 1, "temperature": temperature, "logprobs": _TOP}
        answer = await self._complete([0, 1, 2], wanted)
        with self._reading():
            return read_likeliest(answer)

    async def _complete(self, ids: Sequence[int], wanted: Mapping[str, Any], version: str | None = None) -> Any:
        """The answer, checked for `version` if set. Switches off options not in `wanted`."""
        request_id = secrets.token_hex(8)
        body = {"request_id": request_id, "token_ids": ids, "sampling_params": {**_PLAIN, **wanted}}
        parse = orjson.loads if version is None else _parse
        answer = await self._ask("POST", "/inference/v1/generate", body, parse)
        if version is not None:
            with self._reading():
                check_origin(answer, request_id, version)
        return answer

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except WrongAnswer as error:
            raise self._failure(str(error)) from None
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._failure(f"not the answer of a server of vLLM ({error!r})") from None

    def _failure(self, message: str) -> ServerFailed:
        """The quoted reply is redacted: a server may quote its key."""
        return ServerFailed(f"{self.name}: {redacted(message, self._key):.300}")

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        parse: Callable[[bytes], Any] = orjson.loads,
    ) -> Any:
        try:
            reply = await self.connections.ask(method, f"{self._url}{path}", body, limit=_REPLY_BYTES)
        except (Unanswered, BadReply) as error:
            raise ServerFailed(f"{self.name}{path.partition('?')[0]}: {error or type(error).__name__}") from None
        if reply.status != 200:
            message = f"{self.name}{path.partition('?')[0]}: status {reply.status}: {reply.quoted(300, self._key)}"
            raise (SamplerError if reply.status in (400, 422) else ServerFailed)(message)
        with self._reading():
            return parse(reply.body) if reply.body else None


_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": True,  # the stop ids set the end
    "detokenize": False,
}

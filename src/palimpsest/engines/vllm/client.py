"""HTTP client of one vLLM server: sampling, scoring, weight updates, and checks of its answers.

A server's answer from `/inference/v1/generate` is checked field by field. A probe then detects stale weights: learner
and server score the same ids. Both of vLLM's silent faults (docs/vllm.md) show as scores that differ from the
learner's, or that stay the same to the last bit while the learner's move.

Guaranteed: a result belongs to its request and was sampled by the weights published last, or an error is raised; a
reply never exceeds the size limit; no message holds a key. Rejected are: another request's answer, one sampled by other
weights, a completion that continues after its stop token, ends before its length or says otherwise, an id without its
log-probability, a log-probability that is not finite or above 0, more cached tokens than the prompt has, and probe
scores that are off by more than rounding in the weights' dtype. The checks raise WrongAnswer, or a LookupError,
TypeError, ValueError or AttributeError where the answer has another shape.
Not covered: time limits, which the caller sets; streams; numbers that are plausible and wrong; weights that are only
partly old, where that part hardly differs from the new one.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from palimpsest.config.engine import LogprobsMode
from palimpsest.errors import SamplerError
from palimpsest.http_connections import BadReply, Connections, Unanswered
from palimpsest.http_services import redacted
from palimpsest.types import SamplingParams, StopReason

# ---- Answers of /inference/v1/generate, checked --------------------------------------------------------------


_STOPS = {"stop": StopReason.STOP, "length": StopReason.LENGTH}
_ROUNDING = 1e-3
"""Nats that a log-probability may lie above 0, by rounding."""


class WrongAnswer(ValueError):
    """It has the shape of an answer, and can't be one."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of one request."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    cached: int
    """Tokens of the prompt that were in the server's prefix cache."""


def check_origin(answer: Any, request_id: str, version: str) -> None:
    """Refuse what isn't the answer to this request, by the weights of `version`."""
    (choice,) = answer["choices"]
    versions = {span["version"] for span in choice["weight_versions"]}
    if not answer["request_id"].endswith(request_id):
        raise WrongAnswer("answered another request than it was asked")
    if versions != {version}:
        raise WrongAnswer(f"sampled with weights {sorted(map(str, versions))}, {version} is published")


def read_completion(answer: Any, prompt_tokens: int, params: SamplingParams) -> Sampled:
    """The completion of a prompt of so many tokens."""
    (choice,) = answer["choices"]
    ids, content = tuple(choice["token_ids"]), choice["logprobs"]["content"]
    if not ids or [token["token_id"] for token in content] != list(ids):
        raise WrongAnswer("tokens and log-probabilities don't belong together")
    if not all(type(id_) is int and id_ >= 0 for id_ in ids):
        raise WrongAnswer("a token is no id")
    logprobs = tuple(_nats(token["logprob"]) for token in content)
    if choice["finish_reason"] not in _STOPS:
        raise WrongAnswer(f"ended the request by {choice['finish_reason']!r}")
    reason = _STOPS[choice["finish_reason"]]
    _check_end(ids, reason, params)
    cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if type(cached) is not int or not 0 <= cached <= prompt_tokens:
        raise WrongAnswer(f"found {cached!r} tokens of a prompt of {prompt_tokens} in its cache")
    return Sampled(ids, logprobs, reason, cached)


def _check_end(ids: Sequence[int], reason: StopReason, params: SamplingParams) -> None:
    """Refuse a completion that ends neither by its first stop token nor by its length."""
    first_stop = next((index for index, id_ in enumerate(ids) if id_ in params.stop_ids), None)
    if len(ids) > params.max_tokens:
        raise WrongAnswer(f"sampled {len(ids)} tokens where at most {params.max_tokens} were asked for")
    if first_stop is not None and first_stop < len(ids) - 1:
        raise WrongAnswer(f"went on after the stop token {ids[first_stop]}")
    if reason is not (StopReason.LENGTH if first_stop is None else StopReason.STOP):
        last = f"{ids[-1]}, which is no stop token" if first_stop is None else f"the stop token {ids[-1]}"
        raise WrongAnswer(f"says it ended by {reason.value}, but the last token is {last}")
    if first_stop is None and len(ids) < params.max_tokens:
        raise WrongAnswer(f"ended after {len(ids)} of {params.max_tokens} tokens, without a stop token")


def read_scores(answer: Any, prompt_tokens: int, ids: Sequence[int]) -> tuple[float, ...]:
    """[T] nats of `ids` after a prompt of so many tokens."""
    rows = answer["prompt_logprobs"]
    if len(rows) != prompt_tokens + len(ids):
        raise WrongAnswer(f"scored {len(rows)} tokens of {prompt_tokens + len(ids)}")
    return tuple(_nats(row[str(id_)]["logprob"]) for row, id_ in zip(rows[prompt_tokens:], ids, strict=True))


def read_likeliest(answer: Any) -> dict[int, float]:
    """Nats of the likeliest tokens after a prompt, by their ids."""
    (token,) = answer["choices"][0]["logprobs"]["content"]
    return {int(entry["token_id"]): _nats(entry["logprob"]) for entry in token["top_logprobs"]}


def _nats(value: Any) -> float:
    logprob = float(value)
    if not math.isfinite(logprob):
        raise WrongAnswer("a log-probability is not finite")
    if logprob > _ROUNDING:
        raise WrongAnswer(f"a log-probability is {logprob:.3g}, above 0")
    return logprob


# ---- Probe for stale weights ---------------------------------------------------------------------------------


_TOLERANCE = {"float32": 0.02, "bfloat16": 0.5}
"""Nats a token, in the mean, that kernels may be apart, by the weights' dtype."""
_MOVED = 0.02
"""Share of the tolerance by which the learner must have moved before a server must have, too."""
_IDS = 32
_LARGE, _SPECIAL = 4000, 1000  # a large vocabulary has its special tokens at either end
_STRIDE = 7919  # a prime: the ids are spread over the vocabulary


def probe_ids(vocab: int, window: int) -> tuple[int, ...]:
    """Ids that a model is scored on; a server samples one more.

    >>> probe_ids(10, 5)
    (0, 9, 8, 7)
    """
    first, last = (_SPECIAL, vocab // 2) if vocab > _LARGE else (0, vocab)
    return tuple(first + index * _STRIDE % (last - first) for index in range(min(_IDS, window - 1)))


@dataclass(frozen=True, slots=True)
class Probe:
    """What the learner says of some ids under the weights that are published."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[T - 1] nats of each of `ids` after those before it, at temperature 1."""
    dtype: str
    """Of the weights."""

    @property
    def tolerance(self) -> float:
        return _TOLERANCE[self.dtype]


Scored = tuple[Probe, tuple[float, ...]]
"""A probe, and what a server said of its ids."""


def check_scores(now: Scored, before: Scored | None) -> None:
    """Refuse scores of other weights than the learner's; `before`: of the weights published before. Raises
    WrongAnswer."""
    probe, scores = now
    if (off := _distance(probe.logprobs, scores)) > probe.tolerance:
        raise WrongAnswer(
            f"is {off:.2g} nats a token off the learner: it samples from other weights than it was given, or "
            f"computes in another --dtype than model.dtype={probe.dtype}"
        )
    if before is None or before[1] != scores:
        return
    if (moved := _distance(before[0].logprobs, probe.logprobs)) > probe.tolerance * _MOVED:
        raise WrongAnswer(f"scores as before it was given new weights, which moved the learner by {moved:.2g} nats")


def _distance(these: Sequence[float], those: Sequence[float]) -> float:
    """Nats a token."""
    return fmean(abs(a - b) for a, b in zip(these, those, strict=True))


def check_loaded(answer: Any) -> None:
    """Refuse what `reload_weights` answered where it says that it failed: vLLM's says null for each of its workers.
    Raises WrongAnswer."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if results is None:
        return
    failed = [result for result in results if result in (False, "False") or "error" in str(result).lower()]
    if not results or failed:
        raise WrongAnswer(f"answered {failed or results!r} when it was to load new weights")


def is_tied(model: str) -> bool:
    """Whether the folder that a server was started on says that its output projection is its embeddings.

    False where that isn't known: a folder that this machine doesn't see.
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
"""Tokens whose log-probabilities tell the mode of a server."""


class ServerFailed(SamplerError):
    """The server did not answer, or not as a sound one: it is to be looked at before it is asked again."""


class VllmClient:
    """One server. `close` it."""

    def __init__(self, name: str, url: str, *, socket: Path | None = None, key: str | None = None) -> None:
        """`name` is for messages; `socket`: a Unix socket in the place of the address in `url`."""
        self.name, self._key = name, key
        self._url = url.rstrip("/")
        self._connections = Connections(token=key, keep=False, socket=socket)
        """One a request: one that is kept may be what the server closes just now. The pool bounds their number."""

    async def close(self) -> None:
        await self._connections.close()

    async def check_health(self) -> None:
        """Raises ServerFailed if the server, or the engine behind it, is gone."""
        await self._ask("GET", "/health")

    async def model(self) -> tuple[int, str]:
        """Tokens of its longest prompt plus completion, and what it was started on: a folder, or a hub id."""
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
        """[T] nats of `ids` after the prompt, at temperature 1 in either mode of the server, by the weights of
        `version`. Raises SamplerError."""
        answer = await self._complete([*prompt_ids, *ids], {"max_tokens": 1, "prompt_logprobs": 0}, version)
        with self._reading():
            return read_scores(answer, len(prompt_ids), ids)

    async def check_mode(self, mode: LogprobsMode) -> None:
        """Raise ServerFailed unless its log-probabilities are of `mode`: at half the temperature the distance between
        two tokens is twice as large in processed ones, and the same in raw ones."""
        warm, cold = [await self._likeliest(temperature) for temperature in (1.0, 0.5)]
        both = sorted(warm.keys() & cold.keys(), key=lambda id_: warm[id_])
        distance = warm[both[-1]] - warm[both[0]] if both else 0.0
        if distance < 1e-3:
            raise ServerFailed(f"{self.name}: the model finds every token equally likely, so nothing tells its mode")
        actual = "processed_logprobs" if cold[both[-1]] - cold[both[0]] > 1.5 * distance else "raw_logprobs"
        if actual != mode:
            raise ServerFailed(f"{self.name} gives {actual}, this run needs --logprobs-mode {mode}: start it with that")

    async def load(self, folder: Path, version: str) -> None:
        """Sample from the weights in `folder` from now on, with nothing left of those before. Raises ServerFailed."""
        await self._ask("POST", "/pause?mode=abort", {})
        wanted = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        loaded = await self._ask("POST", "/collective_rpc", wanted)
        with self._reading():
            check_loaded(loaded)
        reset = await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true", {})
        if not isinstance(reset, dict) or reset.get("success") is not True:
            raise ServerFailed(f"{self.name}: its prefix cache could not be emptied, prompts there are of old weights")
        await self.set_version(version)
        await self._ask("POST", "/resume", {})

    async def check_weights(self, probe: Probe, version: str, before: Scored | None) -> Scored:
        """Raise ServerFailed unless it finds the ids of `probe` as likely as the learner does, who found them so with
        the weights of `version`. `before`: what this returned of the weights before."""
        scored = probe, await self.score(probe.ids[:1], probe.ids[1:], version=version)
        with self._reading():
            check_scores(scored, before)
        return scored

    async def set_version(self, version: str) -> None:
        """Have every answer say `version`."""
        await self._ask("POST", "/update_weight_version", {"new_version": version})
        await self.check_version(version)

    async def check_version(self, version: str) -> None:
        """Raise ServerFailed unless it says `version` of its weights."""
        answer = await self._ask("GET", "/weight_info")
        if not isinstance(answer, dict) or answer.get("weight_version") != version:
            raise self._failure(f"says {answer!r} of its weights instead of {version}")

    async def _likeliest(self, temperature: float) -> dict[int, float]:
        """Nats of some of the likeliest tokens after a prompt."""
        wanted = {"max_tokens": 1, "temperature": temperature, "logprobs": _TOP}
        answer = await self._complete([0, 1, 2], wanted)
        with self._reading():
            return read_likeliest(answer)

    async def _complete(self, ids: Sequence[int], wanted: Mapping[str, Any], version: str | None = None) -> Any:
        """The answer, where `version` is given by those weights. What isn't `wanted` is switched off, whatever the
        server's defaults."""
        request_id = secrets.token_hex(8)
        body = {"request_id": request_id, "token_ids": list(ids), "sampling_params": {**_PLAIN, **wanted}}
        answer = await self._ask("POST", "/inference/v1/generate", body)
        if version is not None:
            with self._reading():
                check_origin(answer, request_id, version)
        return answer

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """While an answer is read: whatever doesn't look as expected is the server's failure."""
        try:
            yield
        except WrongAnswer as error:
            raise self._failure(str(error)) from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._failure(f"not the answer of a server of vLLM ({error!r})") from None

    def _failure(self, message: str) -> ServerFailed:
        """A server may quote the key that it was sent."""
        return ServerFailed(f"{self.name}: {redacted(message, self._key):.300}")

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            reply = await self._connections.ask(method, f"{self._url}{path}", body, limit=_REPLY_BYTES)
            if reply.status != 200:
                message = f"{self.name}{path.partition('?')[0]}: status {reply.status}: {reply.quoted(300, self._key)}"
                raise (SamplerError if reply.status in (400, 422) else ServerFailed)(message)
            return reply.json() if reply.body else None
        except (Unanswered, BadReply, ValueError) as error:
            raise ServerFailed(f"{self.name}{path.partition('?')[0]}: {error or type(error).__name__}") from None


_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": True,  # the stop ids say where to end
    "detokenize": False,
}

"""What `/inference/v1/generate` of a server of vLLM answered, read and checked.

Guaranteed: refused is another request's answer, one sampled by other weights, a completion that goes on after its stop
token, ends before its length or says otherwise, an id without its log-probability, a log-probability that isn't finite
or lies above 0, more cached tokens than the prompt has.
Not covered: numbers that are plausible and wrong.

All raise WrongAnswer, or a LookupError, TypeError, ValueError or AttributeError where the answer has another shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.types import SamplingParams, StopReason

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
    if not ids or [each["token_id"] for each in content] != list(ids):
        raise WrongAnswer("tokens and log-probabilities don't belong together")
    if not all(type(id_) is int and id_ >= 0 for id_ in ids):
        raise WrongAnswer("a token is no id")
    logprobs = tuple(_nats(each["logprob"]) for each in content)
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
    first_stop = next((place for place, id_ in enumerate(ids) if id_ in params.stop_ids), None)
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
    return {int(each["token_id"]): _nats(each["logprob"]) for each in token["top_logprobs"]}


def _nats(value: Any) -> float:
    logprob = float(value)
    if not math.isfinite(logprob):
        raise WrongAnswer("a log-probability is not finite")
    if logprob > _ROUNDING:
        raise WrongAnswer(f"a log-probability is {logprob:.3g}, above 0")
    return logprob

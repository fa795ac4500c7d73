"""Interface of engines: `Engine`, its `Sampler` and its `Learner`, and their data types.

Computing methods are coroutines, and an engine must never block the event loop, which runs episodes, judges and tools.
Callers use only these protocols, so any object that satisfies them is an engine (docs/how-to/custom-engine.md).
`engines/open.py` opens the engine of a configuration.

No torch, so that any layer may name these types.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from palimpsest.errors import PromptTooLong, SamplerError
from palimpsest.types import Completion, SamplingParams, Segment

if TYPE_CHECKING:
    from palimpsest.text.codec import Codec

Objective = Literal["policy", "nll"]
"""Loss of a learner: the clipped policy gradient, or the negative log-likelihood of imitation."""


def kv_bytes(gigabytes: float | None, memory: float) -> int:
    """Bytes for keys and values of the embedded sampler: `engine.kv_cache_gb`, or a quarter of its device's memory."""
    return int(memory / 4 if gigabytes is None else gigabytes * 1e9)


def kv_rows(pool: int, sequence: float) -> int:
    """Sequences of `sequence` bytes that fit half of `pool` bytes, at least 1; the other half is for cached prefixes.

    >>> kv_rows(80_000_000_000 // 4, 7000 * 147_456)  # Qwen3-4B on 80 GB
    9
    """
    return max(1, int(pool // 2 // sequence))


def state_of(output: Any) -> tuple[str, Any]:
    """Argument name and value of the state of earlier tokens in a decoder's output; "" and None if it has none."""
    names = ("past_key_values", "cache_params", "state")  # by family
    return next(((name, value) for name in names if (value := getattr(output, name, None)) is not None), ("", None))


def state_bytes(decoder: Any, ids: Any) -> tuple[int, int]:
    """Bytes of a sequence's state in a decoder of transformers: fixed, and per token. `ids`: any two tokens [1, 2]."""
    one, two = (_bytes(state_of(decoder(input_ids=ids[:, :n], use_cache=True))[1]) for n in (1, 2))
    return 2 * one - two, two - one


def _bytes(state: Any) -> int:
    """Bytes of all tensors in a state, without its counters."""
    if hasattr(state, "nbytes"):
        return state.nbytes if state.ndim else 0
    if isinstance(state, list | tuple):
        return sum(map(_bytes, state))
    return sum(map(_bytes, (state if isinstance(state, dict) else getattr(state, "__dict__", {})).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint that samples for an engine, and which of its figures are exact."""

    url: str
    model: str
    """The model's name there."""
    mode: str
    """tokens, completions or chat: how prompts reach it."""
    exact_prompt_ids: bool
    """True if it reads exactly the token ids that the policy built."""
    exact_ids: bool
    """True if a reply also contains the sampled token ids."""
    logprobs: bool
    """True if it returns their log-probabilities; otherwise each is 0.0."""
    tokenizer: str
    """Hash of the tokenizer that counts and cuts prompts."""
    served: str = ""
    """Its description of the model behind the name; "": none."""
    sent: tuple[str, ...] = ()
    """Names of the fields of each request."""
    dropped: tuple[str, ...] = ()
    """The sampling fields that it rejected, and sets as it likes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine."""

    vocab: int
    """Exclusive upper bound of token ids."""
    max_context: int
    """Longest prompt plus completion, and longest segment, in tokens."""
    concurrency: int = 64
    """Useful number of requests in flight."""
    note: str = ""
    """Note for the user at the start, e.g. that the window is smaller than the model's."""
    endpoint: Endpoint | None = None
    """Set if an endpoint samples."""


# ---- sampling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """Next item of a stream: one or several tokens, or the end of the completion."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Nats, one per id in `token_ids`."""
    completion: Completion | None = None
    """The whole completion: only in the last delta, which has no tokens."""


@dataclass(slots=True, kw_only=True)
class SamplerStats:
    """Counters of a sampler since it was opened; none ever decreases. `Sampler.stats` returns a copy."""

    requests: int = 0
    """Requests started."""
    failed: int = 0
    cancelled: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of all started requests."""
    computed_prompt_tokens: int = 0
    """Prompt tokens that were computed, not found in the prefix cache."""
    evicted_tokens: int = 0
    """Tokens evicted from the prefix cache."""
    steps: int = 0
    """Model calls."""
    busy_s: float = 0.0
    """Seconds of computing, or for servers with a request in flight; summed over copies and servers."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one request."""
        self.requests += 1
        try:
            yield
        except Exception:
            self.failed += 1
            raise
        except BaseException:
            self.cancelled += 1
            raise


def check_prompt(prompt_ids: Sequence[int], max_tokens: int, *, vocab: int, max_context: int, reason: str = "") -> None:
    """Reject prompts that no sampler can complete; `reason`: why the window is smaller than the model's.

    Raises PromptTooLong or SamplerError.

    >>> check_prompt([5, 6, 7], 2, vocab=100, max_context=4)
    Traceback (most recent call last):
    palimpsest.errors.PromptTooLong: prompt of 3 tokens and max_tokens=2 exceed the window of 4: shorten the prompt \
or the budget
    """
    if not prompt_ids:
        raise SamplerError("empty prompt: pass at least one token")
    if max_tokens < 1:
        raise SamplerError(f"max_tokens={max_tokens}: set it to at least 1")
    if len(prompt_ids) + max_tokens > max_context:
        window = f"{max_context} ({reason})" if reason else str(max_context)
        raise PromptTooLong(
            f"prompt of {len(prompt_ids)} tokens and max_tokens={max_tokens} exceed the window of {window}: shorten "
            "the prompt or the budget"
        )
    numbers = np.fromiter(prompt_ids, np.int64, len(prompt_ids))  # half the time of min and max
    if not 0 <= numbers.min() <= numbers.max() < vocab:
        raise SamplerError(f"prompt contains an id outside the vocabulary of {vocab}: wrong tokenizer?")


class Turns:
    """Lets samplers of one process that serve the same episodes step one after the other.

    Otherwise what is in a step would depend on which of two threads ends first.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def lock(self) -> asyncio.Lock:
        """To hold during a step; of the running event loop."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


class Sampler(Protocol):
    """Completes prompts of tokens. Any number of requests may be in flight."""

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion, in tokens."""

    @property
    def version(self) -> int:
        """Optimizer steps taken by the weights in use."""

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        """Complete one prompt. Cancelling the caller frees the request's resources.

        `session` is the same for all requests of an episode, and up to its last slash for all of a group, whose prompts
        often share a prefix; an engine may route them to one replica. None: it shares none. It changes no token.
        Raises PromptTooLong if prompt and budget exceed `max_context`, SamplerError if the engine failed.
        """

    def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """Stream the same ids and log-probabilities as `generate`, in deltas as they are sampled.

        Leaving the iteration early, by `aclose` or by cancelling the caller, frees the request's resources.
        """

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        """[T] nats of each of `ids` [T] after the prompt and its predecessors, at temperature 1.

        Raises as `generate` does.
        """

    def stats(self) -> SamplerStats:
        """Counters since the engine was opened."""


# ---- learning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainSegment:
    """A segment with the credit of its N trained tokens."""

    segment: Segment
    advantages: tuple[float, ...]
    """[N]"""
    weights: tuple[float, ...]
    """[N] weight of each token's loss, which includes the denominator of `agg_mode`, global over the optimizer step: a
    step's loss is the plain sum of weight times token loss over its segments."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All segments of one optimizer step, and metrics to log with the learner's."""

    segments: tuple[TrainSegment, ...]
    counts: Mapping[str, float] = field(default_factory=dict)
    """Metrics summed over the optimizer steps of a rollout batch."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Metrics averaged over the steps that have them."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Metrics of which the maximum over steps is logged."""
    minima: Mapping[str, float] = field(default_factory=dict)
    """Metrics of which the minimum over steps is logged."""


FOREST_REUSE = "learner/forest_reuse"
"""Metric of a learner that computes segments apart: their tokens per distinct prefix token, which a forest saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """Statistics of one optimizer step.

    An engine may skip segments whose gradient is exactly 0; these are not counted.
    """

    loss: float = 0.0
    """Loss of the step; the segments' weights include its denominators."""
    tokens: int = 0
    """Trained tokens."""
    segments: int = 0
    logical_tokens: int = 0
    """Tokens of the segments."""
    physical_tokens: int = 0
    """Computed tokens: a shared prefix counts once."""
    token_sums: Mapping[str, float] = field(default_factory=dict)
    """Sums over the trained tokens, logged as means per token: ratio, kl, entropy, clip_fraction..."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest values over the trained tokens, e.g. logprob_gap."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Before clipping; None if not finite."""
    skipped: bool = False
    """True if the gradient was not finite: the step was dropped, weights and `version` are unchanged."""
    skipped_total: int = 0
    """Steps skipped since training started, including resumed runs."""
    seconds: float = 0.0
    """Seconds spent on the gradient."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Other metrics, averaged over the steps that have them. A name without a slash is logged under `optim/`."""

    @property
    def reuse(self) -> float:
        """Segments' tokens per computed token; 1 if none was computed."""
        return self.logical_tokens / self.physical_tokens if self.physical_tokens else 1.0


class Learner(Protocol):
    """Turns batches into weights."""

    @property
    def version(self) -> int:
        """Optimizer steps taken, without skipped ones."""

    @property
    def limits(self) -> Limits: ...

    async def update(self, steps: Sequence[StepBatch]) -> Sequence[UpdateStats]:
        """Take all optimizer steps of one rollout batch, in order; returns one `UpdateStats` per step.

        With `loss.old_logprobs=recompute`, the old log-probabilities of all `steps` are of the weights before the first
        step. A non-finite gradient is skipped and counted, never applied.
        """

    async def save(self, folder: Path) -> Mapping[str, str]:
        """Write weights and optimizer state into an existing folder, without pickle.

        Returns the hex SHA-256 of every written file, by its path relative to `folder` (`files.hashes` does).
        """

    async def load(self, folder: Path) -> None:
        """Restore a save bit for bit. Raises CheckpointError."""

    async def publish(self) -> int:
        """Give the current weights to the sampler; returns its new version."""


class Engine(Protocol):
    """A model that can be sampled from and, if opened with an objective, trained."""

    @property
    def codec(self) -> Codec: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def learner(self) -> Learner | None:
        """None if the engine was opened only for sampling."""

    @property
    def limits(self) -> Limits: ...

    async def close(self) -> None:
        """Release threads, processes and devices. A second call does nothing."""

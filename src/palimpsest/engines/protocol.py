"""What every other part knows of an engine: `Engine`, its `Sampler` and its `Learner`, and what passes between.

Everything that computes is awaited, and nothing an engine does may stop the event loop, on which episodes, judges and
tools live. What these protocols don't name isn't used by anybody, so an engine is whatever satisfies them
(docs/own-engine.md). `engines/open.py` opens the one that a configuration names.

Standard library only, so that any layer may name these types without importing torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from palimpsest.errors import PromptTooLong, SamplerError
from palimpsest.types import Completion, SamplingParams, Segment

if TYPE_CHECKING:
    from palimpsest.text.codec import Codec

Objective = Literal["policy", "nll"]
"""What a learner descends: the clipped policy gradient, or the negative log-likelihood of imitation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What is known of an endpoint that samples for an engine, and how far its figures are exact."""

    url: str
    model: str
    """Its name there."""
    mode: str
    """tokens, completions or chat: how prompts reach it."""
    exact_prompt_ids: bool
    """Whether it reads the very token ids that the policy built."""
    exact_ids: bool
    """Whether, besides, a reply's token ids are those that it sampled."""
    logprobs: bool
    """Whether it gives their log-probabilities; 0.0 stands for each where it doesn't."""
    tokenizer: str
    """The one that prompts are counted and cut by: a hash of it."""
    served: str = ""
    """What it says of the model behind the name; "": nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can take."""

    vocab: int
    """Token ids are below it."""
    max_context: int
    """Longest prompt plus completion, and longest segment, in tokens."""
    concurrency: int = 64
    """Requests that are worth having in flight at once."""
    note: str = ""
    """What a user is to be told of them when work begins, that the window is less than the model's, say."""
    endpoint: Endpoint | None = None
    """Where the model is somebody else's server."""


# ---- sampling -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What a stream gives next: one or several tokens, or how the completion ended."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Nats, one for each of `token_ids`."""
    completion: Completion | None = None
    """The whole of it: in the last delta, which has no tokens of its own, and in no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStats:
    """What a sampler has done since it was opened; every counter only grows."""

    requests: int = 0
    """Requests begun."""
    failed: int = 0
    cancelled: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    """Tokens of the prompts of all requests begun."""
    computed_prompt_tokens: int = 0
    """Those of them that were computed: the others were in the prefix cache."""
    evicted_tokens: int = 0
    """Tokens that left the prefix cache to make room."""
    steps: int = 0
    """Calls of the model."""
    busy_s: float = 0.0
    """Seconds spent computing, or, of servers, with a request in flight; summed over copies and servers."""


@dataclass
class Counts:
    """Those counters of `SamplerStats` that a sampler which asks servers keeps."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around one request."""
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
    """Refuse what no sampler can complete; `reason`: why its window is less than the model's.

    Raises PromptTooLong or SamplerError.

    >>> check_prompt([5, 6, 7], 2, vocab=100, max_context=4)
    Traceback (most recent call last):
    palimpsest.errors.PromptTooLong: prompt of 3 tokens and max_tokens=2 exceed the window of 4: shorten the prompt \
or the budget
    """
    if not prompt_ids:
        raise SamplerError("empty prompt: give at least one token")
    if max_tokens < 1:
        raise SamplerError(f"max_tokens={max_tokens}: at least 1 is needed")
    if len(prompt_ids) + max_tokens > max_context:
        window = f"{max_context} ({reason})" if reason else str(max_context)
        raise PromptTooLong(
            f"prompt of {len(prompt_ids)} tokens and max_tokens={max_tokens} exceed the window of {window}: shorten "
            "the prompt or the budget"
        )
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocab:
        raise SamplerError(f"prompt holds an id outside the vocabulary of {vocab}: wrong tokenizer?")


class Sampler(Protocol):
    """Tokens in, tokens out. Any number of requests may be in flight."""

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    @property
    def version(self) -> int:
        """Optimiser steps that the weights now sampled from have seen."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> Completion:
        """Complete one prompt. Cancelling the caller frees what the request holds.

        `session` is the same for the requests of one episode, and up to its last slash for those of a group, whose
        prompts often begin alike; an engine with several replicas may send them to one. It changes no token.
        Raises PromptTooLong if prompt and budget exceed `max_context`, SamplerError if the engine failed.
        """
        ...

    def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str | None = None
    ) -> AsyncIterator[CompletionDelta]:
        """`generate`, token by token: the same ids and log-probabilities, in deltas as they are sampled.

        Leaving the iteration early, by `aclose` or by cancelling the caller, frees what the request holds.
        """
        ...

    async def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[float, ...]:
        """[T] nats of each of `ids` [T], where it follows the prompt and those before it, at temperature 1.

        Raises as `generate` does.
        """
        ...

    def stats(self) -> SamplerStats:
        """Counters since the engine was opened."""
        ...


# ---- learning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainSegment:
    """A segment with its credit."""

    segment: Segment
    advantages: tuple[float, ...]
    """[T] advantage of each token; ignored where the loss mask is False."""
    weights: tuple[float, ...]
    """[T] weight of each token's loss; the denominator of `agg_mode` is already in it, global over the optimiser
    step, so the loss of a step is the plain sum of weight times token loss over all its segments."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All segments of one optimiser step, and the metrics its maker wants logged beside the learner's."""

    segments: tuple[TrainSegment, ...]
    counts: Mapping[str, float] = field(default_factory=dict)
    """Metrics that add up over the optimiser steps of a rollout batch."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Metrics that are averaged over those steps that have them."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Metrics of which the largest of the steps counts."""
    minima: Mapping[str, float] = field(default_factory=dict)
    """Metrics of which the smallest of the steps counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one optimiser step did.

    Segments whose gradient is exactly 0 need not be computed, and then count nowhere here.
    """

    loss: float = 0.0
    """The step's; its denominators are in the segments' weights."""
    tokens: int = 0
    """Trained tokens."""
    segments: int = 0
    logical_tokens: int = 0
    """Tokens of the segments."""
    physical_tokens: int = 0
    """Tokens computed: what segments share from their start counts once."""
    token_sums: Mapping[str, float] = field(default_factory=dict)
    """Sums over the trained tokens, of which means over tokens are logged: ratio, kl, entropy, clip_fraction..."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest values over the trained tokens, e.g. logprob_gap."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Before clipping; None where it was not finite."""
    skipped: bool = False
    """The gradient was not finite: it was dropped, the weights are as before, and `version` did not grow."""
    skipped_total: int = 0
    """Steps skipped since training began, resumed runs included."""
    seconds: float = 0.0
    """Spent on the gradient."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Whatever else an engine wants logged; averaged over the steps that have it. Under `optim/`, or, with a slash in
    its name, under that name."""

    @property
    def reuse(self) -> float:
        """Segments' tokens for each computed one; 1 where nothing was computed."""
        return self.logical_tokens / self.physical_tokens if self.physical_tokens else 1.0


class Learner(Protocol):
    """Turns batches into weights."""

    @property
    def version(self) -> int:
        """Optimiser steps taken; skipped ones don't count."""
        ...

    @property
    def limits(self) -> Limits: ...

    async def update(self, steps: Sequence[StepBatch]) -> Sequence[UpdateStats]:
        """Take all optimiser steps of one rollout batch, in order; one `UpdateStats` for each.

        Where the loss takes its old log-probabilities from the learner (`loss.old_logprobs=recompute`), those of all
        `steps` are of the weights before the first. A non-finite gradient is skipped and counted, never applied.
        """
        ...

    async def save(self, folder: Path) -> Mapping[str, str]:
        """Write weights and optimiser state into an existing folder, without pickle.

        Returns the SHA-256, in hex, of every file written by its path relative to `folder` (`files.hashes` does).
        """
        ...

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit. Raises CheckpointError if it can't."""
        ...

    async def publish(self) -> int:
        """Make the present weights the sampler's; returns the version now sampled from."""
        ...


class Engine(Protocol):
    """A model that can be sampled from and, if it was opened for that, trained."""

    @property
    def codec(self) -> Codec: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def learner(self) -> Learner | None:
        """None where the engine was opened for sampling alone."""
        ...

    @property
    def limits(self) -> Limits: ...

    async def close(self) -> None:
        """Let go of threads, processes and devices. A second call does nothing."""
        ...

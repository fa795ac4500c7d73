"""Speculative reading: sample the next reads of a document together, as if the replies left the memory unchanged.

A policy passes `ahead` to `model.generate`: the prompts of its next turns if no reply changes its state. The reply to
such a guess counts if the turn turns out to have the guessed prompt; otherwise it is discarded, with all later guesses.
Draws are keyed by the turn's number, so the trajectory is the sequential one, token for token, at any temperature.

Guaranteed: turns, events and failures are recorded in sequential order, and only of turns that count. The number of
guesses depends on the order of requests, never on a clock.
Not covered: engines whose arithmetic depends on the batch differ as they do between batches (up to 1e-5 nats on CPUs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from palimpsest.events import SamplerFailed
from palimpsest.types import Completion

AUTO_MOST = 64
"""Largest block of `auto`: larger ones discard more and gain nothing on CPUs (benchmarks/speculative_reading.py)."""

Ahead = Callable[[int], Sequence[int] | None]
"""Prompt of the n-th turn after this one, n >= 1, if no reply changes the policy's state; None: there is none."""


@dataclass(slots=True)
class Speculation:
    """The setting, and the counts of all episodes that share a sampler."""

    reads: int | Literal["auto"]
    capacity: int
    """Useful number of requests in flight, which `auto` never exceeds."""
    in_flight: int = 0
    episodes: int = 0
    """Running episodes."""
    read: int = 0
    """Reads that counted."""
    steps: int = 0
    """Sequential steps of these reads."""
    tokens: int = 0
    """Prompt and sampled tokens of these reads."""
    discarded: int = 0
    """Prompt and sampled tokens of discarded reads; a cancelled one counts its prompt."""
    wasted: int = 0
    """Discarded reads."""

    @classmethod
    def of(cls, engine: Any, capacity: int, *, training: bool = False) -> Speculation | None:
        """From the section `engine` of the configuration; None: off."""
        reads: int | Literal["auto", "off"] | None = getattr(engine, "speculative_reads", "off")
        reads = reads or ("off" if training else "auto")
        return None if reads == "off" or reads == 1 else cls(reads, capacity)

    @property
    def most(self) -> int:
        """Largest block that an episode may start now, its first read included."""
        if self.reads != "auto":
            return self.reads
        free = min(self.capacity, AUTO_MOST) - self.in_flight
        return max(1, free // max(1, self.episodes))

    def summary(self) -> str | None:
        """A line for the user; None if no guess counted."""
        if self.steps == self.read:
            return None
        share = self.discarded / max(1, self.tokens + self.discarded)
        return f"speculative reading: {self.read / self.steps:.1f} sections per step, {share:.1%} of tokens discarded"

    def take_metrics(self) -> dict[str, float]:
        """`reading/sections_per_step` and `reading/discarded_tokens` since the last call; empty without a read."""
        read, steps, discarded = self.read, self.steps, self.discarded
        self.read = self.steps = self.tokens = self.discarded = 0
        if not steps:
            return {}
        return {"reading/sections_per_step": read / steps, "reading/discarded_tokens": float(discarded)}

    @contextmanager
    def episode(self) -> Iterator[None]:
        self.episodes += 1
        try:
            yield
        finally:
            self.episodes -= 1

    @contextmanager
    def request(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


@dataclass(frozen=True, slots=True)
class Call:
    """Everything that decides the tokens of a turn."""

    step: int
    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    role: str | None


Attempts = Callable[[Call, list[SamplerFailed]], Coroutine[Any, Any, Completion]]
"""Samples a call with retries, and appends failed attempts to the list."""


@dataclass(frozen=True, slots=True)
class Guess:
    call: Call
    task: asyncio.Task[Completion]
    failures: list[SamplerFailed]


class Guesses:
    """The guesses of one episode. Its block doubles if every guess counted, and halves otherwise."""

    def __init__(self, shared: Speculation) -> None:
        self.shared = shared
        self._block = 1
        self._pending: dict[int, Guess] = {}
        """By turn number, in order."""

    def take(self, call: Call) -> Guess | None:
        """The guess of this call. Without one, all others are discarded."""
        guess = self._pending.get(call.step)
        if guess is None or guess.call != call:
            if self._pending:
                self._block = max(1, self._block // 2)
                self.discard()
            return None
        del self._pending[call.step]
        self.shared.in_flight -= 1
        if not self._pending:
            self._block *= 2
        return guess

    def start(self, call: Call, ahead: Ahead, attempts: Attempts) -> None:
        """Start a block: the guesses after `call`, which the caller awaits next."""
        self.shared.steps += 1
        size = self._block = min(self._block, self.shared.most)
        for number in range(1, size):
            if (prompt := ahead(number)) is None:
                break
            later, failures = replace(call, step=call.step + number, prompt=tuple(prompt)), list[SamplerFailed]()
            task = asyncio.create_task(attempts(later, failures))
            task.add_done_callback(_seen)
            self.shared.in_flight += 1
            self._pending[later.step] = Guess(later, task, failures)
        if not self._pending:
            self._block = 2  # no guess, so none was wrong

    def count(self, call: Call, completion: Completion) -> None:
        self.shared.read += 1
        self.shared.tokens += len(call.prompt) + len(completion.token_ids)

    def discard(self) -> None:
        for guess in self._pending.values():
            self.shared.discarded += len(guess.call.prompt) + _sampled(guess.task)
            guess.task.cancel()
        self.shared.in_flight -= len(self._pending)
        self.shared.wasted += len(self._pending)
        self._pending.clear()


def _seen(task: asyncio.Task[Completion]) -> None:
    """Retrieve the exception of a task that no one may await."""
    if not task.cancelled():
        task.exception()


def _sampled(task: asyncio.Task[Completion]) -> int:
    ended = task.done() and not task.cancelled() and task.exception() is None
    return len(task.result().token_ids) if ended else 0

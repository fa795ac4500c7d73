"""Episode: a policy runs on one problem against samplers, and every model call is recorded.

A policy lets another role take a turn with `model.generate(..., role="reader")`; `roles` in the configuration maps it
to a model. The turn is recorded with its role and whether it is trained, so segments, credit and imitation need only
the record. Turns without a role belong to the agent: sampled from the run's model and trained.

Guaranteed: every episode ends with a named `Outcome`; no exception of a policy or a sampler escapes. The random draws
of a turn depend only on (key, problem, rollout, turn), so a retried request, or the same episode in another batch,
yields the same tokens as far as the sampler's arithmetic does. Turns recorded before a failure are kept. A frozen
role's tokens have no weight; in later prompts of the agent they are context. An unknown role is an error.
Not covered: `timeout_s` reads the clock, so runs may time out different episodes; training two models together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.engines.protocol import CompletionDelta, Sampler
from palimpsest.errors import ConfigError, EngineError, PromptTooLong, SamplerError, being_cancelled, nearest, raised_at
from palimpsest.events import Event, PolicyFailed, PromptOverflowed, SamplerFailed, TimedOut, ToolFailed, What, as_event
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.rollout.speculation import Ahead, Call, Guesses, Speculation
from palimpsest.seeding import Key, derive_seed
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Outcome, Problem, SamplingParams, Trajectory, Turn, spans_of

# ---- Why an episode was lost ---------------------------------------------------------------------------------


def failure(trajectory: Trajectory) -> str | None:
    """The first error that the episode recorded, of a tool only without others, on one line; None without an error."""
    whats = sorted((event.what for event in trajectory.events), key=lambda what: isinstance(what, ToolFailed))
    for what in whats:  # an episode survives errors of tools
        if isinstance(what, PolicyFailed):
            return _error_text(what.type, what.message) + (f" ({what.where})" if what.where else "")
        if isinstance(what, SamplerFailed | PromptOverflowed | ToolFailed):
            return _error_text(what.kind, what.message)
    return None


def _error_text(kind: str, message: str) -> str:
    return f"{kind}: {message.splitlines()[0] if message else 'no message'}"


# ---- Roles ---------------------------------------------------------------------------------------------------


Roles = Mapping[str, Sampler | None]
"""Name to the sampler of a separate model; None: the run's model."""


def sampler_of(role: str | None, roles: Roles, default: Sampler) -> Sampler:
    """The sampler that takes a turn of `role`; None is the agent. Raises ConfigError for an unknown role."""
    if role is None:
        return default
    if role not in roles:
        available = f"known: {', '.join(roles)}" if roles else "there are none"
        raise ConfigError(
            f"role {role!r} of a turn is unknown{nearest(role, roles)}; {available}: name it in the recipe, e.g. "
            f"roles: {{{role}: {{}}}}"
        )
    theirs = roles[role]
    return default if theirs is None else theirs


# ---- One episode ---------------------------------------------------------------------------------------------


_FIRST_PAUSE_S = 0.05  # before the first retry; doubles with each

OnTurn = Callable[[Turn, Sequence[Event]], None]
"""Called with each turn once the next starts or the episode ends, and the events since the turn before it."""
OnToken = Callable[[int], None]
"""Called with each sampled token of turns called answer; retries do not repeat tokens."""
ANSWER = "answer"


class Recorder:
    """The `memory.policy.Model` of one episode: samples, retries, records."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        codec: Codec,
        sampling: SamplingConfig,
        key: tuple[Key, ...],
        retries: int = 2,
        roles: Roles | None = None,
        on_turn: OnTurn | None = None,
        on_token: OnToken | None = None,
        recorded: Sequence[Turn] = (),
        speculation: Speculation | None = None,
        shares_prefixes: bool = True,
    ) -> None:
        """`key` names the episode; the draws of turn t are keyed by (*key, t). `roles`: the available roles.
        `recorded`: turns of the same episode from an earlier process, reused for the same prompts. `speculation`:
        samples reads ahead. `shares_prefixes`: the policy's."""
        self.codec = codec
        self.max_context = sampler.max_context
        self.prepared: Any = None
        self.turns: list[Turn] = []
        self.events: list[Event] = []
        self._sampler = sampler
        self._sampling = sampling
        self._key = key
        self._session = "/".join(map(str, key))
        self._shares_prefixes = shares_prefixes
        self._retries = retries
        self._roles = roles or {}
        self._on_turn = on_turn
        self._on_token = on_token
        self._recorded = {turn.step: turn for turn in recorded}
        self._reported = (0, 0)  # turns and events
        self._calls = 0
        self._guesses = None if speculation is None else Guesses(speculation)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        name: str,
        max_tokens: int,
        role: str | None = None,
        ahead: Ahead | None = None,
        **notes: Any,
    ) -> Completion:
        """Complete `prompt_ids` [P] and record the turn, with the spans of its pieces if it is a `Prompt`.

        Raises PromptTooLong, SamplerError once the retries are used up, or ConfigError for an unknown role.
        """
        sampler_of(role, self._roles, self._sampler)
        self.notify()
        call = Call(self._calls, name, tuple(prompt_ids), max_tokens, role)
        self._calls += 1
        recorded = self._recorded.get(call.step)
        if recorded is not None and (recorded.name, recorded.role, recorded.prompt_ids) == (name, role, call.prompt):
            completion = _checked(recorded.completion, self._params(call))
            if self._on_token is not None and name == ANSWER:
                _emit_tokens(completion.token_ids, self._on_token)
        else:
            completion = await self._complete(call, ahead)
            for what in completion.events:
                self.event(what)
        spans = spans_of(prompt_ids)
        self.turns.append(Turn(call.prompt, completion, call.step, name, notes, spans, role=role, trained=role is None))
        return completion

    async def _complete(self, call: Call, ahead: Ahead | None) -> Completion:
        """The completion of a turn, sampled now or guessed before; failed attempts become events."""
        guesses, failures = self._guesses, list[SamplerFailed]()
        guess = guesses.take(call) if guesses else None
        if guesses and ahead and not guess:
            guesses.start(call, ahead, self._attempts)
        try:
            with guesses.shared.request() if guesses else nullcontext():
                if guess:
                    failures = guess.failures
                    completion = await guess.task
                else:
                    completion = await self._attempts(call, failures)
        finally:
            for failed in failures:
                self.event(failed)
        if guesses and ahead:
            guesses.count(call, completion)
        return completion

    def close(self) -> None:
        """Cancel requests that no turn awaits."""
        if self._guesses is not None:
            self._guesses.discard()

    def event(self, what: What | str, /, **detail: Any) -> None:
        """Record something that happened before the next turn."""
        self.events.append(Event(as_event(what, detail), self._calls))

    def notify(self) -> None:
        """Pass the turns not yet reported to `on_turn`; pending events go with the last of them."""
        turns, events = self._reported
        self._reported = len(self.turns), len(self.events)
        if self._on_turn is not None:
            for number in range(turns, len(self.turns)):
                last = number == len(self.turns) - 1
                self._on_turn(self.turns[number], self.events[events:] if last else [])

    def _params(self, call: Call) -> SamplingParams:
        return SamplingParams(
            max_tokens=call.max_tokens,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            stop_ids=self.codec.stop_ids,
            seed=derive_seed(*self._key, call.step),
        )

    async def _attempts(self, call: Call, failures: list[SamplerFailed]) -> Completion:
        sampler, params = sampler_of(call.role, self._roles, self._sampler), self._params(call)
        on_token = self._on_token if call.name == ANSWER else None
        session = self._session if self._shares_prefixes or not call.step else None
        streamed = list[int]()  # a second attempt samples the same ones
        for attempt in range(self._retries + 1):
            try:
                if on_token is None:
                    completion = await sampler.generate(call.prompt, params, session=session)
                else:
                    deltas = sampler.stream(call.prompt, params, session=session)
                    completion = await _streamed(deltas, streamed, on_token)
                return _checked(completion, params)
            except SamplerError as error:
                failures.append(SamplerFailed(attempt, str(error)))
                if attempt == self._retries:
                    raise
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")


async def _streamed(deltas: AsyncIterator[CompletionDelta], streamed: list[int], on_token: OnToken) -> Completion:
    """The completion of a stream; `on_token` gets the tokens beyond those in `streamed`, which grows."""
    received = 0
    async for delta in deltas:
        if delta.completion is not None:
            return delta.completion
        received += len(delta.token_ids)
        new = delta.token_ids[-(received - len(streamed)) :] if received > len(streamed) else ()
        streamed += new
        _emit_tokens(new, on_token)
    raise SamplerError("a stream ended without its completion")


def _emit_tokens(token_ids: Sequence[int], on_token: OnToken) -> None:
    for token in token_ids:
        on_token(token)


def _checked(completion: Completion, params: SamplingParams) -> Completion:
    """`completion`, or SamplerError if it breaks the request: such tokens must never be trained."""
    if not isinstance(completion, Completion):
        raise SamplerError(f"a {type(completion).__name__} came back instead of a Completion")
    if len(completion.logprobs) != len(completion.token_ids):
        raise SamplerError(f"{len(completion.token_ids)} tokens came with {len(completion.logprobs)} log-probabilities")
    if len(completion.token_ids) > params.max_tokens:
        raise SamplerError(f"{len(completion.token_ids)} tokens came back, max_tokens is {params.max_tokens}")
    if not math.isfinite(sum(completion.logprobs)):
        raise SamplerError("a log-probability is not finite")
    return completion


async def play(
    problem: Problem,
    *,
    policy: MemoryPolicy,
    sampler: Sampler,
    codec: Codec,
    sampling: SamplingConfig,
    key: tuple[Key, ...],
    group_id: str,
    rollout: int,
    timeout_s: float | None = None,
    retries: int = 2,
    roles: Roles | None = None,
    prepare: Callable[[], Any] | None = None,
    on_turn: OnTurn | None = None,
    on_token: OnToken | None = None,
    recorded: Sequence[Turn] = (),
    speculation: Speculation | None = None,
) -> Trajectory:
    """Run one episode of `problem`; the seed of turn t is derive_seed(*key, problem.id, rollout, t).

    A request that fails with SamplerError is retried `retries` times, with the same seed. `prepare` returns, or
    raises, the result of the policy's `prepare`; None: it is called here. An exception of `on_turn` ends the episode
    as a failure of the policy. With `on_token` answers are streamed; for `recorded` and `speculation` see Recorder.
    """
    recorder = Recorder(
        sampler=sampler,
        codec=codec,
        sampling=sampling,
        key=(*key, problem.id, rollout),
        retries=retries,
        roles=roles,
        on_turn=on_turn,
        on_token=on_token,
        recorded=recorded,
        speculation=speculation,
        shares_prefixes=policy.shares_prefixes,
    )
    prepare = prepare or partial(policy.prepare, problem, codec)
    with speculation.episode() if speculation else nullcontext():
        try:
            answered = await _ending(problem, policy, recorder, prepare, timeout_s)
        finally:
            recorder.close()
    return Trajectory(
        problem_id=problem.id,
        group_id=group_id,
        rollout=rollout,
        turns=tuple(recorder.turns),
        outcome=answered.outcome,
        answer=answered.text,
        events=tuple(recorder.events),
        answers=answered.answers,
    )


async def _ending(
    problem: Problem,
    policy: MemoryPolicy,
    recorder: Recorder,
    prepare: Callable[[], Any],
    timeout_s: float | None,
) -> Answered:
    """Run the policy; any failure of this episode becomes an outcome. Raises EngineError if the engine is lost."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            recorder.prepared = prepare()
            ended = _ended(await policy.run(problem, recorder), problem)
            recorder.notify()
            return ended
    except PromptTooLong as error:
        recorder.event(PromptOverflowed(str(error)))
        return Answered(None, Outcome.OUT_OF_CONTEXT)
    except EngineError:
        raise  # lost for every episode
    except SamplerError:
        return Answered(None, Outcome.SAMPLER_FAILED)  # every failed attempt is an event already
    except (Exception, asyncio.CancelledError) as error:  # policy code may raise anything
        if being_cancelled():
            raise
        if limit.expired():
            recorder.event(TimedOut(timeout_s))
            return Answered(None, Outcome.TIMED_OUT)
        recorder.event(PolicyFailed(type(error).__name__, str(error), raised_at(error)))
        return Answered(None, Outcome.POLICY_FAILED)


def _ended(answered: Any, problem: Problem) -> Answered:
    if not isinstance(answered, Answered):
        raise TypeError(f"run() must return Answered, returned {type(answered).__name__}")
    if not isinstance(answered.text, str | None):
        raise TypeError(f"Answered.text must be a string or None, is {type(answered.text).__name__}")
    if not isinstance(answered.outcome, Outcome):
        raise TypeError(f"Answered.outcome must be an Outcome, is {answered.outcome!r:.60}")
    if answered.answers and len(answered.answers) != len(problem.questions):
        raise TypeError(f"Answered.answers has {len(answered.answers)}, the problem asks {len(problem.questions)}")
    if problem.questions and answered.text is not None and not answered.answers:
        raise TypeError(f"Answered.answers is empty, the problem asks {len(problem.questions)} questions")
    return answered

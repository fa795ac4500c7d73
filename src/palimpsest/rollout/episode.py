"""Episode: a policy runs on one problem against samplers, and every model call is recorded.

A policy lets another role take a turn with `model.generate(..., role="reader")`; `roles` in the configuration maps it
to a model. The turn is recorded with its role and whether it is trained, so segments, credit and imitation need only
the record. Turns without a role belong to the agent: sampled from the run's model and trained.

Guaranteed: every episode ends with a named `Outcome`; no exception of a policy or a sampler escapes. The random draws
of a turn depend only on (key, problem, rollout, turn), so a retried request, or the same episode in another batch,
yields the same tokens as far as the sampler's arithmetic does. Turns are recorded in the order in which their calls
start, whichever ends first; calls in flight when the episode ends are cancelled. Turns before a failure are kept. A
frozen role's tokens have no weight; in later prompts of the agent they are context. An unknown role is an error.
Not covered: `timeout_s` reads the clock, so runs may time out different episodes; which turns side by side end before
a failure; the order of calls that start after a reply side by side with others; training two models together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.engines.protocol import CompletionDelta, Sampler
from palimpsest.errors import (
    ConfigError,
    EngineError,
    PromptTooLong,
    SamplerError,
    being_cancelled,
    deciding,
    nearest,
    raised_at,
)
from palimpsest.events import (
    EnvironmentFailed,
    Event,
    PolicyFailed,
    PromptOverflowed,
    SamplerFailed,
    TimedOut,
    ToolFailed,
    What,
    as_event,
)
from palimpsest.memory.policy import Answered, MemoryPolicy, ended
from palimpsest.rollout.speculation import Ahead, Call, Guesses, Speculation
from palimpsest.seeding import Key, derive_seed
from palimpsest.text.codec import Codec
from palimpsest.tools.environment import EnvironmentLost, OpenEnvironment
from palimpsest.types import Completion, Outcome, Problem, SamplingParams, Span, Trajectory, Turn, spans_of

# ---- Why an episode was lost ---------------------------------------------------------------------------------


def failure(trajectory: Trajectory) -> str | None:
    """The first error that the episode recorded, of a tool only without others, on one line; None without an error."""
    whats = sorted((event.what for event in trajectory.events), key=lambda what: isinstance(what, ToolFailed))
    for what in whats:  # an episode survives errors of tools
        if isinstance(what, PolicyFailed | SamplerFailed | PromptOverflowed | EnvironmentFailed | ToolFailed):
            kind, where = getattr(what, "type", what.kind), getattr(what, "where", "")
            first = what.message.splitlines()[0] if what.message else "no message"
            return f"{kind}: {first}" + (f" ({where})" if where else "")
    return None


# ---- Roles ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Role:
    """What takes the turns of a role."""

    sampler: Sampler | None = None
    """Of a separate model; None: the run's model."""
    temperature: float | None = None
    """None: the agent's."""
    max_tokens: int | None = None
    """Most tokens of a reply, if the policy's budget is larger."""


Roles = Mapping[str, Role]


def role_of(name: str | None, roles: Roles) -> Role:
    """What takes a turn of role `name`; None is the agent. Raises ConfigError for an unknown role."""
    if name is None:
        return Role()
    if name not in roles:
        available = f"known: {', '.join(roles)}" if roles else "there are none"
        raise ConfigError(
            f"role {name!r} of a turn is unknown{nearest(name, roles)}; {available}: name it in the recipe, e.g. "
            f"roles: {{{name}: {{}}}}"
        )
    return roles[name]


# ---- One episode ---------------------------------------------------------------------------------------------


_FIRST_PAUSE_S = 0.05  # before the first retry; doubles with each

OnTurn = Callable[[Turn, Sequence[Event]], None]
"""Called with each turn, in order, once no earlier call is in flight and a later one starts or ends, or the episode
ends; and with the events since the turn before it."""
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
        environment: OpenEnvironment | None = None,
    ) -> None:
        """`key` names the episode; the draws of turn t are keyed by (*key, t). `roles`: the available roles.
        `recorded`: turns of the same episode from an earlier process, reused for the same prompts. `speculation`:
        samples reads ahead. `shares_prefixes`: the policy's. `environment`: the run's."""
        self.codec = codec
        self.max_context = sampler.max_context
        self.prepared: Any = None
        self.environment = environment.episode(self.event) if environment else None
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
        self._turns: dict[int, Turn] = {}
        self._events: list[Event] = []
        self._calls = 0
        self._flight = _Flight()
        self._reported = 0  # calls
        self._unreported: list[Event] = []
        self._guesses = None if speculation is None else Guesses(speculation)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """In order of their numbers."""
        return tuple(turn for _, turn in sorted(self._turns.items()))

    @property
    def events(self) -> tuple[Event, ...]:
        """In order of the turns they belong to."""
        return tuple(sorted(self._events, key=lambda event: event.before_turn))

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
        call = self._begin(prompt_ids, name, max_tokens, role)
        return await self._take(call, spans_of(prompt_ids), notes, ahead)

    async def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        name: str,
        max_tokens: int,
        role: str | None = None,
        notes: Sequence[Mapping[str, Any]] = (),
    ) -> list[Completion]:
        """[len(prompts)] completions of prompts sampled side by side; see `memory.policy.Model`."""
        if notes and len(notes) != len(prompts):
            raise ValueError(f"notes has {len(notes)} entries, prompts {len(prompts)}")
        calls = [self._begin(prompt, name, max_tokens, role) for prompt in prompts]
        try:
            async with asyncio.TaskGroup() as running:
                for call, prompt, note in zip(calls, prompts, notes or [{}] * len(calls), strict=True):
                    turn = self._take(call, spans_of(prompt), note)
                    self._flight.tasks[call.step] = running.create_task(turn)
            return [self._turns[call.step].completion for call in calls]
        except BaseExceptionGroup as failures:
            error = deciding(failures)
            raise error from error.__cause__  # the others were cancelled because of it
        finally:
            for call in calls:
                self._flight.end(call.step)  # failed, or cancelled before it started

    def _begin(self, prompt_ids: Sequence[int], name: str, max_tokens: int, role: str | None) -> Call:
        """The next call, with its number."""
        most = role_of(role, self._roles).max_tokens
        self._flight.begin(self._calls)
        self.notify(self._calls)
        call = Call(self._calls, name, tuple(prompt_ids), min(max_tokens, most or max_tokens), role)
        self._calls += 1
        return call

    async def _take(
        self, call: Call, spans: Mapping[str, Span], notes: Mapping[str, Any], ahead: Ahead | None = None
    ) -> Completion:
        """The completion of a call, recorded as a turn."""
        recorded = self._recorded.get(call.step)
        try:
            if recorded and (recorded.name, recorded.role, recorded.prompt_ids) == (call.name, call.role, call.prompt):
                completion = _checked(recorded.completion, self._params(call))
                if on_token := self._listener(call):
                    _emit_tokens(completion.token_ids, on_token)
            else:
                completion = await self._complete(call, ahead)
                for what in completion.events:
                    self.event(what, turn=call.step)
        except BaseException:
            self._flight.failed.add(call.step)
            raise
        self._flight.end(call.step)
        self.notify(call.step)
        completion = replace(completion, turn=call.step)
        trained = call.role is None
        self._turns[call.step] = Turn(
            call.prompt, completion, call.step, call.name, notes, spans, role=call.role, trained=trained
        )
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
                self.event(failed, turn=call.step)
        if guesses and ahead:
            guesses.count(call, completion)
        return completion

    def finish(self) -> None:
        """Report the last turns, also after failed calls."""
        for step in [*self._flight.failed]:
            self._flight.end(step)
        self.notify(self._calls)

    def close(self) -> None:
        """End the episode: cancel calls in flight and guesses; later calls are cancelled at once."""
        if self._guesses is not None:
            self._guesses.discard()
        self._flight.close()

    def event(self, what: What | str, /, *, turn: int | None = None, **detail: Any) -> None:
        """Record something that happened after a turn, by default the latest call's."""
        if turn is not None and not 0 <= turn < self._calls:
            raise ValueError(f"event {what!r:.60}: turn={turn}, the episode has {self._calls} calls")
        event = Event(as_event(what, detail), self._calls if turn is None else turn + 1)
        self._events.append(event)
        self._unreported.append(event)

    def notify(self, before: int) -> None:
        """Pass the turns not yet reported to `on_turn`, each with the events until then, up to the first call in flight
        and up to `before`, a turn whose events are still to come."""
        for step in range(self._reported, min(self._flight.first(before), before)):
            self._reported = step + 1
            if step in self._turns and self._on_turn is not None:
                events = [event for event in self._unreported if event.before_turn <= step + 1]
                self._unreported = [event for event in self._unreported if event.before_turn > step + 1]
                self._on_turn(self._turns[step], events)

    def _listener(self, call: Call) -> OnToken | None:
        """`on_token` for an answer, unless an earlier call is in flight: answers never mix."""
        first = call.name == ANSWER and self._flight.first(call.step) == call.step
        return self._on_token if first else None

    def _params(self, call: Call) -> SamplingParams:
        temperature = role_of(call.role, self._roles).temperature
        return SamplingParams(
            max_tokens=call.max_tokens,
            temperature=self._sampling.temperature if temperature is None else temperature,
            top_p=self._sampling.top_p,
            stop_ids=self.codec.stop_ids,
            seed=derive_seed(*self._key, call.step),
        )

    async def _attempts(self, call: Call, failures: list[SamplerFailed]) -> Completion:
        sampler, params = role_of(call.role, self._roles).sampler or self._sampler, self._params(call)
        on_token = self._listener(call)
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


class _Flight:
    """The calls of an episode without a reply, in order of their numbers, and the tasks that await them."""

    def __init__(self) -> None:
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.failed: set[int] = set()
        """Calls that stay in flight until their tasks begin another one: so their errors were handled."""
        self._closed = False

    def begin(self, step: int) -> None:
        """Raises CancelledError after `close`."""
        task = asyncio.current_task()
        if self._closed or task is None:
            raise asyncio.CancelledError("the episode has ended")
        for other in [other for other in self.failed if self.tasks.get(other) is task]:
            self.end(other)
        self.tasks[step] = task

    def end(self, step: int) -> None:
        self.failed.discard(step)
        self.tasks.pop(step, None)

    def first(self, default: int) -> int:
        return next(iter(self.tasks), default)

    def close(self) -> None:
        self._closed = True
        for task in self.tasks.values():
            task.cancel()


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
    environment: OpenEnvironment | None = None,
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
        environment=environment,
    )
    prepare = prepare or partial(policy.prepare, problem, codec)
    with speculation.episode() if speculation else nullcontext():
        try:
            answered = await _ending(problem, policy, recorder, prepare, timeout_s)
        finally:
            recorder.close()
            if recorder.environment is not None:
                await recorder.environment.close()
    return Trajectory(
        problem_id=problem.id,
        group_id=group_id,
        rollout=rollout,
        turns=recorder.turns,
        outcome=answered.outcome,
        answer=answered.text,
        events=recorder.events,
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
            # a task of its own, since a TaskGroup of the policy may leave the state of being cancelled behind
            answered = ended(await asyncio.ensure_future(policy.run(problem, recorder)), problem)
            recorder.finish()
            return answered
    except (Exception, BaseExceptionGroup, asyncio.CancelledError) as raised:  # noqa: BLE001  policies raise anything
        error = deciding(raised)
        if isinstance(error, PromptTooLong):
            recorder.event(PromptOverflowed(str(error)))
            return Answered(None, Outcome.OUT_OF_CONTEXT)
        if isinstance(error, EnvironmentLost):
            recorder.event(EnvironmentFailed(str(error), error.where))
            return Answered(None, Outcome.ENVIRONMENT_FAILED)
        if isinstance(error, SamplerError):
            return Answered(None, Outcome.SAMPLER_FAILED)  # every failed attempt is an event already
        if (
            isinstance(error, EngineError)
            or being_cancelled()
            or not isinstance(error, Exception | asyncio.CancelledError)
        ):
            raise error from error.__cause__  # for every episode
        if limit.expired():
            recorder.event(TimedOut(timeout_s))
            return Answered(None, Outcome.TIMED_OUT)
        recorder.event(PolicyFailed(type(error).__name__, str(error), raised_at(error)))
        return Answered(None, Outcome.POLICY_FAILED)

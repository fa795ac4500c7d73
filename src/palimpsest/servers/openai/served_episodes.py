"""Episodes of the server: started, joined, followed, cancelled, continued.

Guaranteed: equal requests at the same time share one episode, and a finished one is answered from the store; without a
seed, at a temperature above 0, only a retry is equal; at most `running` episodes run and `waiting` wait, further ones
get 429; an episode without a follower for `linger_s` is cancelled; every episode ends, after any failure; the store has
every turn before the next one starts, and an episode continues from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from palimpsest.errors import UNSENDABLE, ConfigError, DataError, PalimpsestError, PromptTooLong
from palimpsest.events import Event
from palimpsest.metrics.reading_trace import MemoryChange, MemoryChanges
from palimpsest.rollout.trajectory_file import turn_to_json
from palimpsest.servers.http_service import ReadingThreads, Refused
from palimpsest.servers.openai.answer_text import AnswerText, final_text
from palimpsest.servers.openai.episode_log import Store, StoreFailed
from palimpsest.servers.openai.served_agent import EpisodePlan, Query, ServedAgent
from palimpsest.text.chat_template import Refusal
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import left_open
from palimpsest.types import Outcome, Trajectory, Turn

SILENCE_S = 5.0
"""Seconds without news before a stream sends a sign of life."""
_REQUESTS = 100_000
"""Requests with a stored seed for retries; the oldest are dropped first."""
_STORABLE = frozenset({"answered", "answer_truncated", "out_of_turns", "out_of_context", "empty_context"})
"""Outcomes that a repetition would reproduce."""
_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of the server."""

    body_bytes: int = 64 << 20
    body_seconds: float = 300.0
    """Seconds for a complete body."""
    running: int = 64
    """Concurrent episodes."""
    waiting: int = 256
    linger_s: float = 10.0
    """An episode continues so long after the last client left: one that timed out comes back to it."""
    episode_s: float | None = None
    """Seconds per episode; None: no limit."""
    rest_s: float = 5.0
    """Seconds without an episode before freed memory returns to the system."""


# ---- One episode ---------------------------------------------------------------------------------------------


T = TypeVar("T")

News = tuple[str, str]
"""(`reasoning` or `content`, text)."""


class ServedEpisode:
    """One that runs, or has ended: its news, and who follows it.

    Computing news takes time (it decodes and compares memories) and delays the next turns of other episodes. With a
    follower it happens immediately, otherwise on a thread at the episode's end. The news and their order are the same.
    """

    def __init__(self, name: str) -> None:
        self.id = name
        self.news: list[News] = []
        self.result: dict[str, Any] | None = None
        """The end: `outcome`, `content`, `finish_reason`, counts and quotes."""
        self.stored = False
        """True for an episode from the store."""
        self.started = False
        self.progress = ""
        """Reading progress as text."""
        self.task: asyncio.Task[None] | None = None
        self.followers = 0
        self.lingers: asyncio.TimerHandle | None = None
        """Ends the episode unless a client returns."""
        self._late: list[Callable[[], News]] = []
        self._followed = False
        self._changed = asyncio.Event()

    def later(self, work: Callable[[], News]) -> None:
        """Add news, computed for the first follower."""
        self._late.append(work)
        if self._followed:
            self.publish(*(work() for work in self.late()))

    def late(self) -> list[Callable[[], News]]:
        """Pending computations, in order; the caller publishes their results."""
        late, self._late = self._late, []
        return late

    def publish(self, *news: News) -> None:
        self.news += [entry for entry in news if entry[1]]
        self._wake()

    def end(self, result: dict[str, Any]) -> None:
        self.result = result
        self._wake()

    async def follow(self) -> AsyncIterator[News | None]:
        """All news until the end; None after each silence."""
        self._followed, position = True, 0
        self.publish(*(work() for work in self.late()))
        while True:
            while position < len(self.news):
                yield self.news[position]
                position += 1
            if self.result is not None:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), SILENCE_S)
            except TimeoutError:
                yield None

    async def ended(self) -> dict[str, Any]:
        while self.result is None:
            await self._changed.wait()
        return self.result

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# ---- All episodes --------------------------------------------------------------------------------------------


class Episodes:
    """Episodes of a server. For one event loop."""

    def __init__(self, agent: ServedAgent, store: Store | None, limits: ServerLimits, threads: ReadingThreads) -> None:
        """`threads`: for work that grows with a document, which no request is to wait behind."""
        self.agent, self.store, self.limits, self._threads = agent, store, limits, threads
        self.counts: Counter[str] = Counter()
        """`begun`, `joined`, `stored`, `outcome:NAME`, and sums over finished episodes."""
        self._running: dict[str, ServedEpisode] = {}
        self._seeds = {} if store is None else {head["request"]: head["seed"] for head in store.heads()}
        self._slots = asyncio.Semaphore(limits.running)
        self._draining = False
        self._rest: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return sum(episode.started for episode in self._running.values())

    @property
    def waiting(self) -> int:
        return len(self._running) - self.running

    def seed_of(self, request: str) -> int | None:
        """Seed of the episode that the same request started; None without one."""
        return self._seeds.get(request)

    def begin(self, query: Query, request: str) -> ServedEpisode:
        """The episode of a query: a running, a stored, or a new one. Raises Refused.

        `request`: digest of the body, which identifies a retry.
        """
        name = query.key(f"{self.agent.fingerprint} {self.agent.settings}")
        if (episode := self._running.get(name)) is not None:
            self.counts["joined"] += 1
            self._linger(episode)
            return episode
        if self.store is not None and (result := self.store.result(name)) is not None:
            self.counts["stored"] += 1
            ended = ServedEpisode(name)
            ended.news, ended.result, ended.stored = [(kind, text) for kind, text in result["news"]], result, True
            return ended
        most = self.limits.running + self.limits.waiting
        if len(self._running) >= most or self._draining:
            why = "the server is stopping" if self._draining else f"{most} episodes are running or waiting already"
            raise Refused(429, f"{why}; try again later", code="queue_full", headers={"Retry-After": "5"})
        return self._start(name, query, request)

    def _start(self, name: str, query: Query, request: str) -> ServedEpisode:
        episode = self._running[name] = ServedEpisode(name)
        if self._rest is not None:
            self._rest.cancel()
        self._seeds[request] = query.seed
        if len(self._seeds) > _REQUESTS:
            del self._seeds[next(iter(self._seeds))]
        self.counts["begun"] += 1
        episode.task = asyncio.create_task(self._run(episode, query, request))
        episode.task.add_done_callback(lambda _: self._end(episode, _CANCELLED))  # one cancelled before it began
        return episode

    def join(self, episode: ServedEpisode) -> None:
        episode.followers += 1
        self._linger(episode)

    def leave(self, episode: ServedEpisode) -> None:
        """Remove a follower; the last one may return within `linger_s`."""
        episode.followers -= 1
        self._linger(episode)

    def _linger(self, episode: ServedEpisode) -> None:
        if episode.lingers is not None:
            episode.lingers.cancel()
            episode.lingers = None
        if not episode.followers and episode.result is None:
            loop = asyncio.get_running_loop()
            episode.lingers = loop.call_later(self.limits.linger_s, self._cancel_unfollowed, episode)

    def _cancel_unfollowed(self, episode: ServedEpisode) -> None:
        if not episode.followers:
            self.cancel(episode)

    def cancel(self, episode: ServedEpisode) -> None:
        if episode.task is not None and episode.result is None:
            episode.task.cancel()

    async def drain(self) -> None:
        """Cancel running episodes; a client's retry continues them from the store."""
        self._draining = True
        tasks = [episode.task for episode in self._running.values() if episode.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, episode: ServedEpisode, query: Query, request: str) -> None:
        """The episode ends after any failure, because its followers wait for the end."""
        result = _failed("failed", "the server failed; see its log")
        try:
            result = _without_internals(episode, await self._outcome(episode, query, request))
            if self.store is not None and result["outcome"] in _STORABLE:
                self.store.append(episode.id, {"result": {**result, "news": episode.news}})
        except StoreFailed as error:
            result = _failed("store_failed", str(error))
        except Exception:  # noqa: BLE001  the border around an episode: a defect ends it alone
            _log.exception("episode %s failed", episode.id)
        finally:
            self._end(episode, result)

    def _end(self, episode: ServedEpisode, result: dict[str, Any]) -> None:
        if episode.result is None:
            self.counts[f"outcome:{result['outcome']}"] += 1
            self._running.pop(episode.id, None)
            episode.end(result)
            if not self._running:
                loop = asyncio.get_running_loop()
                self._rest = loop.call_later(self.limits.rest_s, lambda: loop.run_in_executor(None, self.agent.rest))

    async def _outcome(self, episode: ServedEpisode, query: Query, request: str) -> dict[str, Any]:
        try:
            async with self._slots:
                episode.started = True
                return await self._played(episode, query, request)
        except asyncio.CancelledError:
            return _CANCELLED
        except PromptTooLong as error:
            return _failed("out_of_context", str(error))
        except PalimpsestError as error:  # over budget, or a lost engine
            refused = isinstance(error, ConfigError | DataError)
            return _failed("refused" if refused else "sampler_failed", str(error))

    async def _played(self, episode: ServedEpisode, query: Query, request: str) -> dict[str, Any]:
        agent, store, on_thread = self.agent, self.store, self._threads.run
        head = {"created": int(time.time()), "started_ns": time.time_ns(), "request": request, "seed": query.seed}
        recorded = [] if store is None else await on_thread(lambda: store.recover(episode.id, head))
        plan = await on_thread(lambda: agent.plan(query))
        text = AnswerText(agent.codec, query.stop, _thinks_first(agent.codec))
        changes = MemoryChanges(agent.codec, plan.sections)
        recorded_steps, broken = {turn.step for turn in recorded}, list[StoreFailed]()

        later = _on_this_loop(episode.later)

        def on_turn(turn: Turn, events: Sequence[Event]) -> None:
            try:
                if store is not None and turn.step not in recorded_steps:
                    store.append(episode.id, {"turn": turn_to_json(turn)})
            except StoreFailed as error:
                broken.append(error)  # `play` takes it for a failure of the policy
                raise
            later(lambda: ("reasoning", _change_text(episode, changes.of(turn, events))))

        def on_token(token: int) -> None:
            later(lambda: ("content", text.feed((token,))))

        streamed = on_token if len(query.questions) == 1 else None
        trajectory = await agent.play(plan, on_turn, streamed, recorded, self.limits.episode_s)
        if broken:
            raise broken[0]
        if trajectory.answer is not None and (cut := final_text(trajectory.answer, query.stop))[1]:
            trajectory = replace(trajectory, answer=cut[0], outcome=Outcome.ANSWERED)
        late = episode.late()
        news, facts = await on_thread(lambda: ([work() for work in late], agent.facts(plan, trajectory)))
        result = _result(plan, trajectory, facts)
        episode.publish(*news, ("content", text.rest(result["content"] or "")))
        for name in ("turns", "tokens_in", "tokens_sampled"):
            self.counts[name] += result[name]
        return result


def _on_this_loop(call: Callable[[T], None]) -> Callable[[T], None]:
    """`call`, run on the running event loop, also where another thread calls it."""
    here = asyncio.get_running_loop()

    def called(value: T) -> None:
        if asyncio.get_running_loop() is here:
            call(value)
        else:
            here.call_soon_threadsafe(call, value)

    return called


def _change_text(episode: ServedEpisode, change: MemoryChange | None) -> str:
    if change is None:
        return ""
    episode.progress = change.where(" of ")
    lines = [f"- {sentence}" for sentence in change.dropped] + [f"+ {sentence}" for sentence in change.added]
    return "\n".join([episode.progress, *lines, ""])


def _without_internals(episode: ServedEpisode, result: dict[str, Any]) -> dict[str, Any]:
    """`result` for clients: errors of the policy or the engine may quote paths, addresses or other requests, so the log
    gets the text and the client only the class."""
    if result["outcome"] not in (Outcome.POLICY_FAILED, Outcome.SAMPLER_FAILED):
        return result
    why = result.get("failure") or "no reason"
    _log.error("episode %s: %s: %s", episode.id, result["outcome"], why)
    if UNSENDABLE in why:
        return {**result, "outcome": "refused", "failure": UNSENDABLE}
    kind = why.partition(":")[0] if result["outcome"] == Outcome.POLICY_FAILED else "the engine failed"
    return {**result, "failure": f"no answer: {kind}; see the server's log"}


def _failed(outcome: str, why: str) -> dict[str, Any]:
    return {"outcome": outcome, "failure": why}


_CANCELLED = _failed("cancelled", "the client left, or the server is stopping")


def _result(plan: EpisodePlan, trajectory: Trajectory, facts: dict[str, Any]) -> dict[str, Any]:
    answers = [turn for turn in trajectory.turns if turn.name == "answer"] or list(trajectory.turns[-1:])
    truncated = trajectory.outcome in (Outcome.ANSWER_TRUNCATED, Outcome.OUT_OF_TURNS)
    return {
        "outcome": str(trajectory.outcome),
        "content": None if trajectory.answer is None else final_text(trajectory.answer)[0],
        "finish_reason": "length" if truncated else "stop",
        "turns": len(trajectory.turns),
        "tokens_in": trajectory.prompt_tokens,
        "tokens_sampled": trajectory.sampled_tokens,
        "prompt_tokens": plan.prompt_tokens,
        "completion_tokens": sum(len(turn.completion.token_ids) for turn in answers),
        **facts,
    }


def _thinks_first(codec: Codec) -> str:
    """The thinking tag at the end of the model's prompts, or ""."""
    if not codec.has_template:
        return ""
    try:
        return left_open(codec.render([{"role": "user", "content": "a"}], add_generation_prompt=True))
    except Refusal:
        return ""

"""Episodes of the server: started, joined, followed, cancelled, continued.

Guaranteed: equal requests that run at the same time are one episode, and an equal one that ended is told from the
store; without a seed, at a temperature above 0, only a retry is equal; at most `Bounds.running` run, at most
`Bounds.waiting` wait, further ones are refused with 429; one that nobody follows for `Bounds.linger_s` is cancelled;
every one ends, whatever fails; every turn is in the store before the next one starts, and an episode continues from
there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.errors import ConfigError, DataError, PalimpsestError, PromptTooLong
from palimpsest.events import Event
from palimpsest.servers.http_service import ReadingThreads, Refused
from palimpsest.servers.openai.episode_log import Store, StoreFailed
from palimpsest.servers.openai.episode_progress import AnswerText, ServedEpisode, Telling, whole
from palimpsest.servers.openai.served_agent import AgentInterface, EpisodePlan, Order
from palimpsest.text.chat_template import Refusal
from palimpsest.text.reply_tags import left_open
from palimpsest.types import Outcome, Trajectory, Turn

_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What runs and waits at the most."""

    running: int = 64
    waiting: int = 256
    linger_s: float = 10.0
    """An episode goes on so long after the last client left: one that timed out comes back to it."""
    episode_s: float | None = None
    """For an episode; None: however long it takes."""
    rest_s: float = 5.0
    """After so long without an episode memory is given back."""


class Episodes:
    """All of a server's. For one event loop."""

    def __init__(self, agent: AgentInterface, store: Store | None, bounds: Bounds, threads: ReadingThreads) -> None:
        """`threads`: for work that grows with a document, which no request is to wait behind."""
        self.agent, self.store, self.bounds, self._threads = agent, store, bounds, threads
        self.counts: Counter[str] = Counter()
        """`begun`, `joined`, `stored`, `outcome:NAME`, and sums over the episodes that were played to an end."""
        self._running: dict[str, ServedEpisode] = {}
        self._seeds: dict[str, int] = {}  # of the episodes that requests started
        self._slots = asyncio.Semaphore(bounds.running)
        self.draining = False
        self._rest: asyncio.TimerHandle | None = None
        for head in store.heads() if store is not None else ():
            self._seeds[head["request"]] = head["seed"]

    @property
    def running(self) -> int:
        return sum(each.started for each in self._running.values())

    @property
    def waiting(self) -> int:
        return len(self._running) - self.running

    def seed_of(self, request: str) -> int | None:
        """Of the episode that the same request started; None where there is none."""
        return self._seeds.get(request)

    def begin(self, order: Order) -> ServedEpisode:
        """The episode of an order: one that runs already, one that ended, or a new one. Raises Refused."""
        name = order.key(self.agent)
        if (known := self._running.get(name)) is not None:
            self.counts["joined"] += 1
            self._linger(known)
            return known
        if (ended := self.ended(name)) is not None:
            self.counts["stored"] += 1
            return ended
        if self.waiting >= self.bounds.waiting or self.draining:
            why = "the server is ending" if self.draining else f"{self.waiting} episodes are waiting already"
            raise Refused(429, f"{why}; try again later", code="queue_full", headers={"Retry-After": "5"})
        return self._start(name, order)

    def _start(self, name: str, order: Order) -> ServedEpisode:
        episode = ServedEpisode(name)
        self._running[name] = episode
        if self._rest is not None:
            self._rest.cancel()
        self._seeds[order.request] = order.draws.seed
        if len(self._seeds) > _REQUESTS:
            del self._seeds[next(iter(self._seeds))]
        self.counts["begun"] += 1
        episode.task = asyncio.create_task(self._run(episode, order))
        episode.task.add_done_callback(lambda _: self._end(episode, _CANCELLED))  # one cancelled before it began
        return episode

    def ended(self, name: str) -> ServedEpisode | None:
        """One that the store holds the end of, if it ended well."""
        result = None if self.store is None else self.store.result(name)
        if result is None:
            return None
        episode = ServedEpisode(name)
        episode.news = [(kind, text) for kind, text in result["news"]]
        episode.result, episode.stored = result, True
        return episode

    def join(self, episode: ServedEpisode) -> None:
        episode.followers += 1
        self._linger(episode)

    def leave(self, episode: ServedEpisode) -> None:
        """Of the last follower: it may come back for a while."""
        episode.followers -= 1
        self._linger(episode)

    def _linger(self, episode: ServedEpisode) -> None:
        """Count anew from now, if nobody waits for it."""
        if episode.lingers is not None:
            episode.lingers.cancel()
            episode.lingers = None
        if not episode.followers and episode.result is None:
            loop = asyncio.get_running_loop()
            episode.lingers = loop.call_later(self.bounds.linger_s, self._cancel_unfollowed, episode)

    def cancel(self, episode: ServedEpisode) -> None:
        if episode.task is not None and episode.result is None:
            episode.task.cancel()

    async def drain(self) -> None:
        """Cancel what runs; what a store holds of it goes on with the client's retry."""
        self.draining = True
        tasks = [each.task for each in self._running.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel_unfollowed(self, episode: ServedEpisode) -> None:
        if not episode.followers:
            self.cancel(episode)

    async def _run(self, episode: ServedEpisode, order: Order) -> None:
        """Whatever happens, the episode ends: those who follow it wait for that."""
        result = _failed("failed", "the server failed; its log says why")
        try:
            result = _without_internals(episode, await self._outcome(episode, order))
            self._keep(episode, result)
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
                self._rest = loop.call_later(self.bounds.rest_s, lambda: loop.run_in_executor(None, self.agent.rest))

    async def _outcome(self, episode: ServedEpisode, order: Order) -> dict[str, Any]:
        try:
            async with self._slots:
                episode.started = True
                return await self._played(episode, order)
        except asyncio.CancelledError:
            return _CANCELLED
        except PromptTooLong as error:
            return _failed("out_of_context", str(error))
        except PalimpsestError as error:  # refused by its budgets, or the engine is lost
            refused = isinstance(error, ConfigError | DataError)
            return _failed("refused" if refused else "sampler_failed", str(error))

    def _keep(self, episode: ServedEpisode, result: dict[str, Any]) -> None:
        """Store how an episode ended. Raises StoreFailed."""
        if self.store is not None and result["outcome"] in _KEPT:
            self.store.append(episode.id, {"result": {**result, "news": episode.news}})

    async def _played(self, episode: ServedEpisode, order: Order) -> dict[str, Any]:
        agent, store, wanted, on_thread = self.agent, self.store, order.input, self._threads.run
        recorded = list[Turn]()
        if store is not None:
            recorded = await on_thread(lambda: store.recover(episode.id, _head(order)))
        plan = await on_thread(lambda: agent.plan(wanted, order.answer_tokens))
        text = AnswerText(agent.codec, order.stops, _thinks_first(agent))
        telling = Telling(episode, agent.watch(plan), text)
        kept = _Kept(store, episode.id, {turn.step for turn in recorded})

        def on_turn(turn: Turn, events: Sequence[Event]) -> None:
            kept.turn(turn)
            telling.turn(turn, events)

        on_token = telling.token if len(wanted.questions) == 1 else None
        trajectory = await agent.play(plan, order.draws, on_turn, on_token, recorded, self.bounds.episode_s)
        if kept.broken is not None:
            raise kept.broken
        if trajectory.answer is not None and (cut := whole(trajectory.answer, order.stops))[1]:
            trajectory = replace(trajectory, answer=cut[0], outcome=Outcome.ANSWERED)
        late = telling.late()
        news, facts = await on_thread(
            lambda: ([work() for work in late], agent.facts(plan, wanted.document, trajectory))
        )
        result = _result(plan, trajectory, facts)
        telling.tell(news)
        telling.end(result["content"] or "")
        for name in ("turns", "tokens_in", "tokens_sampled"):
            self.counts[name] += result[name]
        return result


class _Kept:
    """Stores the turns of an episode that aren't yet."""

    def __init__(self, store: Store | None, episode: str, known: Set[int]) -> None:
        self._store, self._episode, self._known = store, episode, known
        self.broken: StoreFailed | None = None
        """Why a turn could not be stored: `play` tells it as a failure of the policy."""

    def turn(self, turn: Turn) -> None:
        if self._store is None or turn.step in self._known:
            return
        try:
            self._store.append_turn(self._episode, turn)
        except StoreFailed as error:
            self.broken = error
            raise


def _without_internals(episode: ServedEpisode, result: dict[str, Any]) -> dict[str, Any]:
    """`result` as clients may see it: an error of the policy or the engine, which may quote paths, addresses or what
    others asked, goes to the log; of it the client is told the class."""
    if result["outcome"] not in (Outcome.POLICY_FAILED, Outcome.SAMPLER_FAILED):
        return result
    why = result.get("failure") or "no reason was told"
    _log.error("episode %s: %s: %s", episode.id, result["outcome"], why)
    kind = why.partition(":")[0] if result["outcome"] == Outcome.POLICY_FAILED else "the engine failed"
    return {**result, "failure": f"no answer: {kind}; the server's log says more"}


def _failed(outcome: str, why: str) -> dict[str, Any]:
    return {"outcome": outcome, "failure": why}


_CANCELLED = _failed("cancelled", "the client went away, or the server is ending")
_REQUESTS = 100_000
"""Requests that a retry is known by; the oldest are forgotten first."""
_KEPT = frozenset({"answered", "answer_truncated", "out_of_turns", "out_of_context", "empty_context"})
"""Ends that would be the same another time."""


def _head(order: Order) -> dict[str, Any]:
    """What a log starts with."""
    return {
        "created": int(time.time()),
        "request": order.request,
        "rule": order.input.rule,
        "questions": list(order.input.questions),
        "instructions": order.input.instructions,
        "temperature": order.draws.sampling.temperature,
        "top_p": order.draws.sampling.top_p,
        "seed": order.draws.seed,
    }


def _result(plan: EpisodePlan, trajectory: Trajectory, facts: dict[str, Any]) -> dict[str, Any]:
    answers = [turn for turn in trajectory.turns if turn.name == "answer"] or list(trajectory.turns[-1:])
    truncated = trajectory.outcome in (Outcome.ANSWER_TRUNCATED, Outcome.OUT_OF_TURNS)
    return {
        "outcome": str(trajectory.outcome),
        "content": None if trajectory.answer is None else whole(trajectory.answer)[0],
        "finish_reason": "length" if truncated else "stop",
        "turns": len(trajectory.turns),
        "tokens_in": sum(len(turn.prompt_ids) for turn in trajectory.turns),
        "tokens_sampled": sum(len(turn.completion.token_ids) for turn in trajectory.turns),
        "prompt_tokens": plan.prompt_tokens,
        "completion_tokens": sum(len(turn.completion.token_ids) for turn in answers),
        **facts,
    }


def _thinks_first(agent: AgentInterface) -> str:
    """The tag of thinking that the model's prompts end on, "" if they don't."""
    if not agent.codec.has_template:
        return ""
    try:
        return left_open(agent.codec.render([{"role": "user", "content": "a"}], add_generation_prompt=True))
    except Refusal:
        return ""

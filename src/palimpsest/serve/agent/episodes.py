"""Episodes of the server: begun, joined, followed, cancelled, gone on with.

Guaranteed: equal requests that run at the same time are one episode, and an equal one that ended is told from the
store; without a seed, at a temperature above 0, only a retry is equal; at most `Bounds.running` run, at most
`Bounds.waiting` wait, further ones are refused with 429; one that nobody follows for `Bounds.linger_s` is cancelled,
unless it runs in the background; every turn is in the store before the next begins, and an episode goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from palimpsest.errors import PalimpsestError
from palimpsest.serve.agent.agents import Agent, Agents, Change, Plan, Told
from palimpsest.serve.agent.answer_text import AnswerText, whole
from palimpsest.serve.agent.order import Order, order_of
from palimpsest.serve.agent.store import Store
from palimpsest.serve.http import Refused
from palimpsest.text.rendering import Refusal
from palimpsest.text.thinking import left_open
from palimpsest.types import Outcome, Trajectory

SILENCE_S = 5.0
"""After so long without news a stream says that it is alive."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What runs and waits at the most."""

    running: int = 64
    waiting: int = 256
    linger_s: float = 10.0
    """An episode goes on so long after the last client left: one that timed out comes back to it."""
    episode_s: float | None = None
    """For an episode; None: however long it takes."""


News = tuple[str, str]
"""(`reasoning` or `content`, text)."""


class Episode:
    """One that runs, or has ended: what is told of it, and who listens."""

    def __init__(self, name: str, rule: str) -> None:
        self.id, self.rule = name, rule
        self.created = int(time.time())
        self.news: list[News] = []
        self.head: dict[str, Any] = {}
        self.result: dict[str, Any] | None = None
        """How it ended: `outcome`, `content`, `finish_reason`, counts and quotes."""
        self.stored = False
        """Whether it was told from the store."""
        self.started = False
        self.place = ""
        """How far it has read, in words."""
        self.holders: set[str] = set()
        """Responses in the background, for which it goes on without a follower."""
        self.task: asyncio.Task[None] | None = None
        self.followers = 0
        self._changed = asyncio.Event()

    def tell(self, kind: str, text: str) -> None:
        if text:
            self.news.append((kind, text))
            self._wake()

    def end(self, result: dict[str, Any]) -> None:
        self.result = result
        self._wake()

    async def follow(self) -> AsyncIterator[News | None]:
        """All news from the first on, until it ends; None where there were none for a while."""
        place = 0
        while True:
            while place < len(self.news):
                yield self.news[place]
                place += 1
            if self.result is not None:
                return
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), SILENCE_S)
            except TimeoutError:
                yield None

    async def ended(self) -> dict[str, Any]:
        while self.result is None:
            await self._changed.wait()
        return self.result

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Episodes:
    """All of a server's. For one event loop."""

    def __init__(self, agents: Agents, store: Store | None, bounds: Bounds) -> None:
        self.agents, self.store, self.bounds = agents, store, bounds
        self.counts: Counter[str] = Counter()
        self._running: dict[str, Episode] = {}
        self._requests: dict[str, str] = {}  # of begun episodes
        self._slots = asyncio.Semaphore(bounds.running)
        self.draining = False
        for name, head in store.heads() if store is not None else ():
            self._requests[str(head.get("request"))] = name

    @property
    def running(self) -> int:
        return sum(each.started for each in self._running.values())

    @property
    def waiting(self) -> int:
        return len(self._running) - self.running

    def of_request(self, request: str) -> dict[str, Any] | None:
        """The head of the episode that the same request began; None where there is none."""
        name = self._requests.get(request)
        if name in self._running:
            return self._running[name].head
        if name is None or self.store is None:
            return None
        return next((line["head"] for line in self.store.lines(name) if "head" in line), None)

    def get(self, name: str) -> Episode | None:
        return self._running.get(name)

    def begin(self, order: Order, holder: str | None = None) -> Episode:
        """The episode of an order: one that runs already, one that ended, or a new one; it goes on without a client for
        `holder`, a response in the background. Raises Refused."""
        name = order.key(self.agents.current)
        if (known := self._running.get(name)) is not None:
            self.counts["joined"] += 1
            self._hold(known, order, holder)
            return known
        if (ended := self.ended(name)) is not None:
            self.counts["stored"] += 1
            return ended
        if self.waiting >= self.bounds.waiting or self.draining:
            why = "the server is ending" if self.draining else f"{self.waiting} episodes are waiting already"
            raise Refused(429, f"{why}; try again later", code="queue_full", headers={"Retry-After": "5"})
        return self._start(name, order, holder)

    def resume(self, name: str, holder: str) -> Episode | None:
        """Go on with an episode in the background that the server's end broke off; None where nothing is kept of it, or
        the weights or the policy are others now."""
        if (known := self._running.get(name)) is not None:
            known.holders.add(holder)
            return known
        data = None if self.store is None else self.store.get("documents", name)
        if data is None:
            return None
        order = order_of(data)
        same = order.model in self.agents.current.cards and order.key(self.agents.current) == name
        return self._start(name, order, holder) if same else None

    def _start(self, name: str, order: Order, holder: str | None) -> Episode:
        episode = Episode(name, str(order.input.rule))
        episode.head = _head(episode, order)
        if self.store is not None:
            self.store.begin(name, episode.head)
        self._hold(episode, order, holder)
        self._running[name] = episode
        self._requests[order.request] = name
        if len(self._requests) > _REQUESTS:
            del self._requests[next(iter(self._requests))]
        self.counts["begun"] += 1
        episode.task = asyncio.create_task(self._run(episode, order, self.agents.lease()))
        return episode

    def _hold(self, episode: Episode, order: Order, holder: str | None) -> None:
        """Have an episode go on for a response; what it needs for that after a kill is stored."""
        if holder is None:
            return
        if not episode.holders and self.store is not None:
            self.store.put("documents", episode.id, order.to_json())
        episode.holders.add(holder)

    def ended(self, name: str) -> Episode | None:
        """One that the store holds the end of, if it ended well."""
        result = None if self.store is None else self.store.result(name)
        if result is None or result["outcome"] not in _KEPT:
            return None
        episode = Episode(name, result["rule"])
        episode.news = [(kind, text) for kind, text in result["news"]]
        episode.result, episode.stored = result, True
        return episode

    def join(self, episode: Episode) -> None:
        episode.followers += 1

    def leave(self, episode: Episode) -> None:
        """Of the last follower: it may come back for a while."""
        episode.followers -= 1
        if not episode.followers and episode.result is None and not episode.holders:
            asyncio.get_running_loop().call_later(self.bounds.linger_s, self._cancel_unfollowed, episode)

    def cancel(self, episode: Episode) -> None:
        if episode.task is not None and episode.result is None:
            episode.task.cancel()

    async def drain(self) -> None:
        """Cancel what runs; what a store holds of it goes on at the next start, or with the client's retry."""
        self.draining = True
        tasks = [each.task for each in self._running.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel_unfollowed(self, episode: Episode) -> None:
        if not episode.followers and not episode.holders:
            self.cancel(episode)

    async def _run(self, episode: Episode, order: Order, lease: AbstractAsyncContextManager[Agent]) -> None:
        try:
            async with lease as agent, self._slots:
                episode.started = True
                result = await self._played(episode, order, agent)
        except asyncio.CancelledError:
            result = {"outcome": "cancelled", "failure": "the client went away, or the server is ending"}
        except PalimpsestError as error:  # refused by its budgets, or the engine is lost
            code = 400 if type(error).__name__ in ("ConfigError", "DataError") else 503
            result = {"outcome": "refused" if code == 400 else "sampler_failed", "failure": str(error)}
        self.counts[f"outcome:{result['outcome']}"] += 1
        self._running.pop(episode.id, None)
        if self.store is not None and not (result["outcome"] == "cancelled" and self.draining):
            self.store.delete("documents", episode.id)
        if self.store is not None and result["outcome"] in _KEPT:
            self.store.append(episode.id, {"result": {**result, "rule": episode.rule, "news": episode.news}})
        episode.end(result)

    async def _played(self, episode: Episode, order: Order, agent: Agent) -> dict[str, Any]:
        store, wanted = self.store, order.input
        plan = await asyncio.to_thread(
            agent.plan, order.model, wanted.asked, wanted.document, wanted.instructions, order.answer_tokens
        )
        recorded = [] if store is None else await asyncio.to_thread(store.turns, episode.id)
        text = AnswerText(agent.codec, order.stops, _thinks_first(agent))
        known = {turn.step for turn in recorded}
        told = Told(
            turn=lambda turn: store.append_turn(episode.id, turn) if store and turn.step not in known else None,
            change=lambda change: _tell_change(episode, change),
            token=(lambda token: episode.tell("content", text.feed((token,)))) if len(wanted.questions) == 1 else None,
            recorded=recorded,
        )
        trajectory = await agent.play(plan, order.draws, told, self.bounds.episode_s)
        if trajectory.answer is not None and (cut := whole(trajectory.answer, order.stops))[1]:
            trajectory = replace(trajectory, answer=cut[0], outcome=Outcome.ANSWERED)
        facts = await asyncio.to_thread(agent.facts, plan, wanted.document, trajectory)
        result = _result(plan, trajectory, facts)
        episode.tell("content", text.rest(result["content"] or ""))
        for name in ("turns", "tokens_in", "tokens_sampled"):
            self.counts[name] += result[name]
        return result


_REQUESTS = 100_000
"""Requests that a retry is known by; the oldest are forgotten first."""
_KEPT = frozenset({"answered", "answer_truncated", "out_of_turns", "out_of_context", "empty_context"})
"""Ends that would be the same another time."""


def _head(episode: Episode, order: Order) -> dict[str, Any]:
    """What a log begins with."""
    return {
        "created": episode.created,
        "model": order.model,
        "request": order.request,
        "rule": episode.rule,
        "questions": list(order.input.questions),
        "instructions": order.input.instructions,
        "temperature": order.draws.sampling.temperature,
        "top_p": order.draws.sampling.top_p,
        "seed": order.draws.seed,
    }


def _tell_change(episode: Episode, change: Change) -> None:
    episode.place = f"{change.section}/{change.sections}" if change.sections else str(change.section)
    lines = [f"- {each}" for each in change.dropped] + [f"+ {each}" for each in change.added]
    of = f" of {change.sections}" if change.sections else ""
    episode.tell("reasoning", "\n".join([f"section {change.section}{of}", *lines, ""]))


def _result(plan: Plan, trajectory: Trajectory, facts: dict[str, Any]) -> dict[str, Any]:
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


def _thinks_first(agent: Agent) -> str:
    """The tag of thinking that the model's prompts end on, "" if they don't."""
    if not agent.codec.has_template:
        return ""
    try:
        return left_open(agent.codec.render([{"role": "user", "content": "a"}], add_generation_prompt=True))
    except Refusal:
        return ""

"""From what a client asks to an episode that can be played: its model, its files, its draws.

Files are parsed on threads of their own, which an exit doesn't wait for.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import text_of
from palimpsest.errors import DataError
from palimpsest.servers.http_service import ReadingThreads, Refused, shown
from palimpsest.servers.openai.request_bodies import Ask, Bodies, FilePart
from palimpsest.servers.openai.request_inputs import PLAIN, Input, input_of, plain_input, shown_name
from palimpsest.servers.openai.served_agent import AgentInterface, Agents, Draws, Order, digest_of, request_key
from palimpsest.servers.openai.served_episodes import Episodes

_THREADS = 2
"""Requests whose files are parsed at once."""


@dataclass(frozen=True, slots=True)
class _Given:
    """What takes time that grows with a request."""

    input: Input
    input_digest: str
    body_digest: str


def plain_budget(window: int, limit: int | None) -> int:
    """Tokens of an answer without a document: what is asked for, at most a quarter of the window where nothing is.

    >>> plain_budget(2048, None), plain_budget(2048, 64), plain_budget(100_000, None)
    (512, 64, 1024)
    """
    return limit if limit is not None else max(1, min(1024, window // 4))


class Orders:
    """Makes orders of requests."""

    def __init__(self, agents: Agents, episodes: Episodes, bodies: Bodies) -> None:
        self._agents, self._episodes, self._bodies = agents, episodes, bodies
        self._threads = ReadingThreads(_THREADS, "file")

    def close(self) -> None:
        """What is under way is not waited for."""
        self._threads.close()

    async def of(self, ask: Ask, body: bytes, headers: Mapping[str, str]) -> Order:
        """Raises Refused."""
        agent = self._agents.current
        check_model(agent, ask.model)
        if any(each.files for each in ask.messages):
            given = await self._threads.run(lambda: self._given(ask, agent, body))
        else:
            said = sum(len(each.text) for each in ask.messages) + len(ask.own.document or "")  # may exceed the body
            given = await self._bodies.look(max(len(body), said), lambda: self._given(ask, agent, body))
        key = headers.get("idempotency-key")
        request = request_key("key", key) if key else request_key(given.body_digest)
        again = bool(key) or _count(headers.get("x-stainless-retry-count")) > 0
        return Order(
            model=ask.model,
            input=given.input,
            draws=self._draws(ask, agent, request if again else None),
            input_digest=given.input_digest,
            answer_tokens=ask.answer_tokens,
            stops=ask.stop,
            request=request,
        )

    def _draws(self, ask: Ask, agent: AgentInterface, known: str | None) -> Draws:
        usual = agent.draws
        sampling = SamplingConfig(
            temperature=usual.sampling.temperature if ask.temperature is None else ask.temperature,
            top_p=usual.sampling.top_p if ask.top_p is None else ask.top_p,
        )
        if ask.seed is not None:
            return Draws(sampling, ask.seed)
        if sampling.temperature == 0:
            return Draws(sampling, usual.seed)
        before = None if known is None else self._episodes.of_request(known)
        return Draws(sampling, secrets.randbits(62) if before is None else int(before["seed"]))

    def _given(self, ask: Ask, agent: AgentInterface, body: bytes) -> _Given:
        if agent.cards[ask.model].policy == PLAIN:
            given = plain_input(ask)
        else:
            given = input_of(ask, _text, lambda questions: agent.takes(ask.model, questions))
        return _Given(given, digest_of(given), hashlib.sha256(body).hexdigest())


def _text(part: FilePart) -> tuple[str, str]:
    name = shown_name(part.name)
    try:
        return name, text_of(Path(name), part.data)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_file") from None


def check_model(agent: AgentInterface, name: str) -> None:
    if name not in agent.cards:
        known = ", ".join(agent.cards)
        raise Refused(404, f"model: {shown(name)} is not served; known: {known}", code="model_not_found", param="model")


def _count(given: str | None) -> int:
    return int(given) if given is not None and given.isascii() and given.isdigit() and len(given) < 6 else 0

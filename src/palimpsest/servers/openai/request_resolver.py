"""From what a client asks to an episode that can be played: its model, its files, its draws.

Files are parsed on threads of their own, which an exit doesn't wait for.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import text_of
from palimpsest.errors import DataError
from palimpsest.servers.http_service import ReadingThreads, Refused, shown
from palimpsest.servers.openai.request_bodies import Ask, Bodies, FilePart
from palimpsest.servers.openai.request_inputs import input_of, shown_name
from palimpsest.servers.openai.served_agent import AgentInterface, Draws, Order, digest_of
from palimpsest.servers.openai.served_episodes import Episodes

_THREADS = 2
"""Requests whose files are parsed at once."""


class Orders:
    """Makes orders of requests."""

    def __init__(self, agent: AgentInterface, model: str, episodes: Episodes, bodies: Bodies) -> None:
        """`model`: the agent's name as clients ask for it."""
        self._agent, self._model, self._episodes, self._bodies = agent, model, episodes, bodies
        self._threads = ReadingThreads(_THREADS, "file")

    def close(self) -> None:
        """What is under way is not waited for."""
        self._threads.close()

    async def of(self, ask: Ask, body: bytes, headers: Mapping[str, str]) -> Order:
        """Raises Refused."""
        check_model(ask.model, self._model)
        again = _count(headers.get("x-stainless-retry-count")) > 0
        if any(each.files for each in ask.messages):
            return await self._threads.run(lambda: self._order(ask, body, again))
        said = sum(len(each.text) for each in ask.messages) + len(ask.own.document or "")  # may exceed the body
        return await self._bodies.look(max(len(body), said), lambda: self._order(ask, body, again))

    def _order(self, ask: Ask, body: bytes, again: bool) -> Order:
        """Takes time that grows with the request. `again`: whether it repeats an earlier one."""
        given, request = input_of(ask, _text, self._agent.takes), hashlib.sha256(body).hexdigest()
        return Order(
            input=given,
            draws=self._draws(ask, request if again else None),
            input_digest=digest_of(given),
            answer_tokens=ask.answer_tokens,
            stops=ask.stop,
            request=request,
        )

    def _draws(self, ask: Ask, known: str | None) -> Draws:
        usual = self._agent.draws
        sampling = SamplingConfig(
            temperature=usual.sampling.temperature if ask.temperature is None else ask.temperature,
            top_p=usual.sampling.top_p if ask.top_p is None else ask.top_p,
        )
        if ask.seed is not None:
            return Draws(sampling, ask.seed)
        if sampling.temperature == 0:
            return Draws(sampling, usual.seed)
        before = None if known is None else self._episodes.seed_of(known)
        return Draws(sampling, secrets.randbits(62) if before is None else before)


def _text(part: FilePart) -> tuple[str, str]:
    name = shown_name(part.name)
    try:
        return name, text_of(Path(name), part.data)
    except DataError as error:
        raise Refused(400, str(error), code="invalid_file") from None


def check_model(name: str, served: str) -> None:
    """Raises Refused for another name than the one that is served."""
    if name != served:
        said = f"model: {shown(name)} is not served; {served} is"
        raise Refused(404, said, code="model_not_found", param="model")


def _count(given: str | None) -> int:
    return int(given) if given is not None and given.isascii() and given.isdigit() and len(given) < 6 else 0

"""From what a client asks to an episode that can be played: its model, its files, its draws.

Files are parsed on threads that an exit doesn't wait for.

Guaranteed: at most `PARSERS` hold a place at once, so that other requests go on; who gets none in time is told to come
later. After `LIMIT_S` a place is given to the next, and who waits is told which files took too long.
Not covered: a thread can't be ended; one that never ends goes with the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from palimpsest.config.schema import SamplingConfig
from palimpsest.data.files.text_files import text_of
from palimpsest.errors import DataError
from palimpsest.servers.http_service import Refused, shown
from palimpsest.servers.openai.episode_store import Store
from palimpsest.servers.openai.request_bodies import Ask, Bodies, FilePart
from palimpsest.servers.openai.request_inputs import PLAIN, Input, input_of, plain_input, shown_name
from palimpsest.servers.openai.served_agent import AgentInterface, Agents, Draws, Order, digest_of, request_key
from palimpsest.servers.openai.served_episodes import Episodes

# ---- Files are parsed on threads that an exit doesn't wait for -----------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")

PARSERS = 2
WAIT_S = 60.0
"""For a place."""
LIMIT_S = 1200.0
"""For the files of one request."""


class Parsers:
    """The places of one event loop."""

    def __init__(self, count: int = PARSERS, wait_s: float = WAIT_S, limit_s: float = LIMIT_S) -> None:
        self._places, self._wait_s, self._limit_s = asyncio.Semaphore(count), wait_s, limit_s

    async def run(self, names: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises of files called `names`. Raises Refused where no place is left for too long, or
        it takes too long."""
        await self._take_place()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                self._places.release()
            given_back = True

        overdue = loop.call_later(self._limit_s, give_back)

        def body() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  raised again by whoever waits
                failure = error
            with suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(finish, result, failure)

        def finish(result: T, failure: BaseException | None) -> None:
            overdue.cancel()
            give_back()
            if ended.done():
                return  # nobody waits any more
            if failure is None:
                ended.set_result(result)
            else:
                ended.set_exception(failure)

        threading.Thread(target=body, name="palimpsest-parser", daemon=True).start()
        if not (await asyncio.wait((ended,), timeout=self._limit_s))[0]:
            raise Refused(400, f"{names}: not read within {self._limit_s:g} s; send its text", code="invalid_file")
        return ended.result()

    async def _take_place(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError:
            said = "other files are being read; try again later"
            raise Refused(503, said, code="busy", headers={"Retry-After": "5"}) from None


# ---- From what a client asks to an episode that can be played ------------------------------------------------


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

    def __init__(self, agents: Agents, episodes: Episodes, store: Store | None, bodies: Bodies) -> None:
        self._agents, self._episodes, self._store, self._bodies = agents, episodes, store, bodies
        self._parsers = Parsers()

    async def of(self, ask: Ask, body: bytes, headers: Mapping[str, str]) -> Order:
        """Raises Refused."""
        agent = self._agents.current
        check_model(agent, ask.model)
        names = [
            *(ask.own.file_ids or ()),
            *(part.file_id or part.name for each in ask.messages for part in each.files),
        ]
        if names:
            given = await self._parsers.run(shown(", ".join(names)), self._given, ask, agent, body)
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
            given = input_of(ask, self._text, lambda questions: agent.takes(ask.model, questions))
        return _Given(given, digest_of(given), hashlib.sha256(body).hexdigest())

    def _text(self, part: FilePart) -> tuple[str, str]:
        if part.data is not None:
            name, data = shown_name(part.name), part.data
        else:
            facts = needed(self._store).file(part.file_id or "")
            name = facts["filename"]
            data = needed(self._store).content(part.file_id or "").read_bytes()
        try:
            return name, text_of(Path(name), data)
        except DataError as error:
            raise Refused(400, str(error), code="invalid_file") from None


def needed(store: Store | None) -> Store:
    """Raises Refused where the server keeps nothing."""
    if store is None:
        raise Refused(404, "this server stores nothing (--no-store); send the file as file_data", code="no_store")
    return store


def check_model(agent: AgentInterface, name: str) -> None:
    if name not in agent.cards:
        known = ", ".join(agent.cards)
        raise Refused(404, f"model: {shown(name)} is not served; known: {known}", code="model_not_found", param="model")


def _count(given: str | None) -> int:
    return int(given) if given is not None and given.isascii() and given.isdigit() and len(given) < 6 else 0

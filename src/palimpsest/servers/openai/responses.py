"""POST /v1/responses, what becomes of a response, and conversations by `previous_response_id`.

Guaranteed: a response in the background goes on without a client and, after a kill, with the server's next start, at
the turn that was being taken; what `store` keeps is told after the episode ended, too.

`previous_response_id`: what was said before, put together from the responses that a store keeps.

Each response keeps its own input and the id of the one before, so that a conversation takes disk in proportion to what
was said. Instructions are not carried over (as OpenAI's); a document or files given under `palimpsest` are, unless the
new request gives its own.

Guaranteed: at most `LINKS` responses and `most` bytes of inputs are read for a request; a link that is gone, damaged or
without an answer is an error, never left out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from palimpsest.servers.http_service import Refused, json_response, shown
from palimpsest.servers.openai.chat_completions import (
    SSE,
    content_of,
    ended_or_gone,
    failure_of,
    ignored_headers,
    input_headers,
    note_episode,
)
from palimpsest.servers.openai.episode_progress import Episode
from palimpsest.servers.openai.episode_store import Store, StoreFailed, damaged, ended_or_cancelled, is_id
from palimpsest.servers.openai.request_bodies import (
    MESSAGES,
    Ask,
    Bodies,
    Message,
    Metadata,
    Own,
    Strict,
    checked,
    invalid,
    json_object,
    message_of,
)
from palimpsest.servers.openai.request_resolver import Orders, needed
from palimpsest.servers.openai.response_events import events_of, reasoning_of, response_of, status_of
from palimpsest.servers.openai.served_agent import Order
from palimpsest.servers.openai.served_episodes import Episodes

# ---- previous_response_id ------------------------------------------------------------------------------------


LINKS = 1000
_PARAM = "previous_response_id"
Input = str | Sequence[Mapping[str, Any]]
AnswerOf = Callable[[dict[str, Any]], str | None]
"""The text of a response, of its record; None where it has none (yet)."""


@dataclass(frozen=True, slots=True)
class Link:
    """A response of the conversation."""

    id: str
    answer: str


def messages_of(given: Input, ignored: list[str] | None = None) -> list[Message]:
    """The messages of an `input`. Raises Refused."""
    if isinstance(given, str):
        return [Message("user", given)]
    found = list[Message]()
    for at, item in enumerate(given):
        if item.get("type", "message") != "message":
            raise invalid(f"input.{at}.type", f"{shown(item['type'])} is not possible here; items are messages")
        found.append(message_of(item, f"input.{at}", ignored))
    return found


def kept_input(given: Input, own: Own) -> dict[str, Any]:
    """What is kept with a response for those that follow it."""
    return {"input": given, "own": own.model_dump(include={"document"}, exclude_none=True)}


def links_of(store: Store | None, last: str, answer_of: AnswerOf, most: int) -> list[Link]:
    """The responses up to `last`, the oldest first; of inputs of `most` bytes together. Raises Refused."""
    found, size, name = list[Link](), 0, last
    while name:
        record = store.get("responses", name) if store is not None and is_id(name) else None
        if store is None or record is None or not store.holds("inputs", name):
            said = f"{_PARAM}: response {shown(name)} is not kept; send the messages as input"
            raise Refused(400, said, code="previous_response_not_found", param=_PARAM)
        if (answer := answer_of(record)) is None:
            raise Refused(400, f"{_PARAM}: response {name} has no answer", code="invalid_value", param=_PARAM)
        found.append(Link(name, answer))
        size += store.size("inputs", name)
        if len(found) > LINKS or size > most:
            said = f"{_PARAM}: beyond {LINKS} responses, or {most} bytes of their inputs; begin a new conversation"
            raise Refused(400, said, code="conversation_too_long", param=_PARAM)
        name = record["echo"].get(_PARAM) or ""
    return found[::-1]


def continued(ask: Ask, links: Sequence[Link], store: Store) -> Ask:
    """`ask` after what was said before; takes time that grows with that. Raises Refused."""
    said, own = list[Message](), dict[str, Any]()
    for link in links:
        kept = store.get("inputs", link.id)
        if kept is None:
            why = f"{_PARAM}: the input of response {link.id} is gone or damaged; send the messages as input"
            raise Refused(400, why, code="previous_response_not_found", param=_PARAM)
        said += [*messages_of(kept["input"], []), Message("assistant", link.answer)]
        own = kept["own"] or own
    merged = ask.own if ask.own.document is not None or not own else ask.own.model_copy(update=own)
    return replace(ask, messages=(*said, *ask.messages), own=merged)


# ---- POST /v1/responses, and what becomes of one -------------------------------------------------------------


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "text": ({}, {"format": {"type": "text"}}),
    "truncation": ("disabled",),
    "include": ([],),
    "reasoning": ({}, {"summary": "auto"}),
    "max_tool_calls": (),
    "conversation": (),
    "prompt": (),
}


_log = logging.getLogger("uvicorn.error")
_UNKEPT = 1000
"""Responses whose end is told from memory because it could not be stored; the oldest are forgotten first."""


class ResponseStreamOptions(Strict):
    include_obfuscation: bool = False


class ResponseBody(Strict):
    model: str
    input: str | Annotated[list[dict[str, Any]], Field(max_length=MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    metadata: Metadata | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    background: bool = False
    store: bool = True
    palimpsest: Own = Field(default_factory=Own)


def response_ask(body: bytes, lenient: bool = False) -> tuple[ResponseBody, Ask]:
    """The body of POST /v1/responses, and what it asks; `lenient`: what is unsupported is ignored. Raises Refused."""
    ignored: list[str] | None = [] if lenient else None
    given: ResponseBody = checked(ResponseBody, json_object(body), NEUTRAL, ignored)
    messages = [Message("system", given.instructions)] if given.instructions else []
    messages += messages_of(given.input, ignored)
    return given, Ask(
        field="input",
        model=given.model,
        messages=tuple(messages),
        own=given.palimpsest,
        answer_tokens=given.max_output_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        seed=given.palimpsest.seed,
        stream=given.stream,
        ignored=tuple(ignored or ()),
    )


class Responses:
    """The routes of /v1/responses."""

    def __init__(self, orders: Orders, episodes: Episodes, bodies: Bodies, store: Store | None, lenient: bool) -> None:
        """`lenient`: unsupported parameters are ignored."""
        self._orders, self._episodes, self._bodies, self._store = orders, episodes, bodies, store
        self._lenient = lenient
        self._watching: set[asyncio.Task[None]] = set()
        self._unkept: dict[str, Episode] = {}  # that ended while the store failed, by response

    async def create(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        given, ask, order = await self._ordered(body, request.headers)
        record = _record(given, order)
        headers = {**input_headers(record["given"]), **ignored_headers(request, ask)}
        store = self._store if given.store else None
        if store is not None:
            store.keep_within(())  # those that run are known by their documents
            kept = kept_input(given.input, given.palimpsest)
            await self._bodies.look(len(body), lambda: store.put("inputs", record["id"], kept))
        try:
            episode = self._episodes.begin(order, record["id"] if given.background else None)
            record |= {"episode": episode.id, "from_store": episode.stored}
            note_episode(request, order, episode)
            if store is not None:
                store.put("responses", record["id"], record)
        except Refused:
            if store is not None:
                store.delete("inputs", record["id"])
            raise
        if store is not None:
            self._watch(record, episode)
        if given.stream:
            return self._streamed(record, episode, -1, headers)
        if not given.background:
            result = await ended_or_gone(request, episode, self._episodes)
            if (failed := failure_of(result, "input")) is not None:
                raise failed
        whole = response_of(record, episode, reasoning_of(episode, record["progress"]))
        return json_response(whole, headers=headers)

    async def _ordered(self, body: bytes, headers: Mapping[str, str]) -> tuple[ResponseBody, Ask, Order]:
        given, ask = await self._bodies.look(len(body), lambda: response_ask(body, self._lenient))
        if given.background and (self._store is None or not given.store):
            raise Refused(400, "background: what runs without a client has to be stored", param="background")
        if given.previous_response_id:
            store, now = self._store, ask
            links = links_of(store, given.previous_response_id, self._answer, self._bodies.most)
            size = sum(needed(store).size("inputs", link.id) for link in links)
            ask = await self._bodies.look(size, lambda: continued(now, links, needed(store)))
        return given, ask, await self._orders.of(ask, body, headers)

    def _answer(self, record: dict[str, Any]) -> str | None:
        """The text of a response that has ended with one."""
        episode = self._episode(record)
        if status_of(record, episode) not in ("completed", "incomplete"):
            return None
        assert episode is not None
        assert episode.result is not None
        return content_of(episode.result, record.get("raw", False)) or ""

    def get(self, request: Request) -> Response:
        record = self._known(request)
        episode = self._episode(record)
        if request.query_params.get("stream") == "true":
            after = request.query_params.get("starting_after", "-1")
            if not after.removeprefix("-").isdecimal() or len(after) > 9:
                raise invalid("starting_after", f"a sequence_number is needed, is {shown(after)}")
            if episode is None:
                raise Refused(404, f"{record['id']}: nothing is kept of its episode", code="not_found")
            return self._streamed(record, episode, int(after))
        reasoning = "" if episode is None else reasoning_of(episode, record["progress"])
        return json_response(response_of(record, episode, reasoning))

    def cancel(self, request: Request) -> Response:
        record = self._known(request)
        if not record["background"]:
            raise Refused(
                400, f"{record['id']}: only a response in the background can be cancelled", code="not_background"
            )
        self._release(record)
        return json_response(response_of(self._known(request), self._episode(record)))

    def delete(self, request: Request) -> Response:
        record = self._known(request)
        self._release(record)
        for kind in ("responses", "inputs"):
            needed(self._store).delete(kind, record["id"])
        return json_response({"id": record["id"], "object": "response", "deleted": True})

    def resume(self) -> None:
        """Go on with what ran in the background when the server ended."""
        store = self._store
        if store is None:
            return
        for name in store.names("responses"):
            record = store.get("responses", name)
            if record is None or not record["background"] or ended_or_cancelled(record):
                continue
            try:
                episode = self._episodes.resume(record["episode"], record["id"])
                if episode is not None:
                    self._watch(record, episode)
                    continue
                known = self._episode(record)  # the end of the server may have come between the two
                ended = {"cancelled": True} if known is None else {"ended": known.result}
                store.put("responses", name, {**record, **ended})
            except Refused as refused:
                _log.error("response %s doesn't go on: %s", name, refused)

    def _release(self, record: dict[str, Any]) -> None:
        """Of a response that runs: nobody waits for its episode any more."""
        episode = self._episodes.get(record["episode"])
        if episode is None or record["id"] not in episode.holders:
            return
        needed(self._store).put("responses", record["id"], {**record, "cancelled": True})
        episode.holders.discard(record["id"])
        if not episode.followers and not episode.holders:
            self._episodes.cancel(episode)

    def _known(self, request: Request) -> dict[str, Any]:
        name = request.path_params["response"]
        record = needed(self._store).get("responses", name)
        if record is None:
            if needed(self._store).holds("responses", name):
                raise damaged(f"response {shown(name)}", "send the request again")
            raise Refused(404, f"response {shown(name)}: no such response", code="not_found")
        return record

    def _episode(self, record: dict[str, Any]) -> Episode | None:
        """The episode of a response: it runs, or its end is stored, here or with the response."""
        name = record["episode"]
        found = self._episodes.get(name) or self._episodes.ended(name) or self._unkept.get(record["id"])
        if found is None and "ended" in record:
            found = Episode(name)
            found.result = record["ended"]
        return found

    def _watch(self, record: dict[str, Any], episode: Episode) -> None:
        """Keep with the response how its episode failed: an end that isn't kept with the episode."""

        self._unkept[record["id"]] = episode  # between its end and what is kept of it somebody may ask

        async def watch() -> None:
            result = await episode.ended()
            store = needed(self._store)
            known = store.get("responses", record["id"])
            if known is None and store.holds("responses", record["id"]):
                known = record  # damaged meanwhile
            if known is not None and not (result["outcome"] == "cancelled" and self._episodes.draining):
                with suppress(StoreFailed):
                    store.put("responses", record["id"], {**known, "ended": result})
                    self._unkept.pop(record["id"], None)
                    return
                if len(self._unkept) > _UNKEPT:
                    del self._unkept[next(iter(self._unkept))]
            else:
                self._unkept.pop(record["id"], None)

        task = asyncio.create_task(watch())
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    def _streamed(
        self, record: dict[str, Any], episode: Episode, after: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            self._episodes.join(episode)
            try:
                async for each in events_of(record, episode):
                    if isinstance(each, str):
                        yield f": {each}\n\n".encode()
                    elif each["sequence_number"] > after:
                        yield f"event: {each['type']}\n".encode() + b"data: " + orjson.dumps(each) + b"\n\n"
            finally:
                self._episodes.leave(episode)

        return StreamingResponse(lines(), media_type="text/event-stream", headers={**SSE, **(headers or {})})


def _record(given: ResponseBody, order: Order) -> dict[str, Any]:
    echo = {
        "model": given.model,
        "instructions": given.instructions,
        "previous_response_id": given.previous_response_id,
        "max_output_tokens": given.max_output_tokens,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "metadata": given.metadata or {},
        "background": given.background,
        "store": given.store,
    }
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "created_at": int(time.time()),
        "background": given.background,
        "progress": given.palimpsest.progress,
        "raw": given.palimpsest.raw,
        "given": order.input.facts(),
        "echo": echo,
    }

"""POST /v1/responses: a chat completion in another form, whole and streamed.

The body is rewritten into the request of a chat completion; rules, parameters and episodes are the same.

Not covered: responses in the background, by their id or after a previous one, of which nothing is kept; tools; what
changed in the memory, which a stream of chat completions says.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping
from itertools import count
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from palimpsest.servers.http_service import json_response, shown
from palimpsest.servers.openai.chat_completions import (
    SSE,
    content_of,
    ended_or_gone,
    failure_of,
    ignored_headers,
    input_headers,
    note_episode,
    own_facts,
    timely,
    usage,
)
from palimpsest.servers.openai.episode_progress import ServedEpisode
from palimpsest.servers.openai.request_bodies import (
    MESSAGES,
    Ask,
    Bodies,
    Message,
    Metadata,
    Own,
    StrictBody,
    checked,
    invalid,
    json_object,
    message_of,
)
from palimpsest.servers.openai.request_resolver import Orders
from palimpsest.servers.openai.served_episodes import Episodes

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "text": ({}, {"format": {"type": "text"}}),
    "truncation": ("disabled",),
    "include": ([],),
    "reasoning": ({}, {"summary": "auto"}),
    "max_tool_calls": (),
    "conversation": (),
    "prompt": (),
    "previous_response_id": (),
    "background": (False,),
}
"""What can't be done here, and the values that ask for nothing."""


class ResponseStreamOptions(StrictBody):
    include_obfuscation: bool = False


class ResponseBody(StrictBody):
    model: str
    input: str | Annotated[list[dict[str, Any]], Field(max_length=MESSAGES)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    metadata: Metadata | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    palimpsest: Own = Field(default_factory=Own)


def response_ask(body: bytes, lenient: bool = False) -> tuple[ResponseBody, Ask]:
    """The body of POST /v1/responses, and what it asks; `lenient`: what is unsupported is ignored. Raises Refused."""
    ignored: list[str] | None = [] if lenient else None
    given: ResponseBody = checked(ResponseBody, json_object(body), _NEUTRAL, ignored)
    messages = [Message("system", given.instructions)] if given.instructions else []
    messages += [Message("user", given.input)] if isinstance(given.input, str) else _messages_of(given.input, ignored)
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


def _messages_of(items: list[dict[str, Any]], ignored: list[str] | None) -> list[Message]:
    for at, item in enumerate(items):
        if item.get("type", "message") != "message":
            raise invalid(f"input.{at}.type", f"{shown(item['type'])} is not possible here; items are messages")
    return [message_of(item, f"input.{at}", ignored) for at, item in enumerate(items)]


class Responses:
    """The route and what it needs."""

    def __init__(self, orders: Orders, episodes: Episodes, bodies: Bodies, lenient: bool) -> None:
        """`lenient`: unsupported parameters are ignored."""
        self._orders, self._episodes, self._bodies, self._lenient = orders, episodes, bodies, lenient

    async def create(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        asked, ask = await self._bodies.look(len(body), lambda: response_ask(body, self._lenient))
        order = await self._orders.of(ask, body, request.headers)
        episode = self._episodes.begin(order)
        note_episode(request, order, episode)
        reply = _Reply(asked, episode, order.input.facts())
        headers = {**input_headers(reply.given), **ignored_headers(request, ask)}
        if asked.stream:
            lines = self._events(reply, episode)
            return StreamingResponse(lines, media_type="text/event-stream", headers={**SSE, **headers})
        result = await ended_or_gone(request, episode, self._episodes)
        if (failed := failure_of(result, "input")) is not None:
            raise failed
        return json_response(reply.ended(result), headers=headers)

    async def _events(self, reply: _Reply, episode: ServedEpisode) -> AsyncIterator[bytes]:
        numbers, said = count(), ""

        def event(kind: str, **more: Any) -> bytes:
            numbered = {"type": kind, "sequence_number": next(numbers), **more}
            return f"event: {kind}\n".encode() + b"data: " + orjson.dumps(numbered) + b"\n\n"

        place: dict[str, Any] = {"item_id": reply.message_id, "output_index": 0, "content_index": 0}
        self._episodes.join(episode)
        try:
            for kind in ("response.created", "response.in_progress"):
                yield event(kind, response=reply.of("in_progress"))
            yield event("response.output_item.added", output_index=0, item=reply.message(None, "in_progress"))
            yield event("response.content_part.added", **place, part=_text_part(""))
            async for kind, text in timely(episode, False, reply.asked.palimpsest.raw):
                if kind == "comment":
                    yield f": {text}\n\n".encode()
                    continue
                said += text
                yield event("response.output_text.delta", **place, delta=text, logprobs=[])
            whole = reply.ended(await episode.ended())
            status = "completed" if whole["status"] == "completed" else "incomplete"
            yield event("response.output_text.done", **place, text=said, logprobs=[])
            yield event("response.content_part.done", **place, part=_text_part(said))
            yield event("response.output_item.done", output_index=0, item=reply.message(said, status))
            yield event(f"response.{whole['status']}", response=whole)
        finally:
            self._episodes.leave(episode)


class _Reply:
    """One response as an object."""

    def __init__(self, asked: ResponseBody, episode: ServedEpisode, given: Mapping[str, str]) -> None:
        """`given`: what `Input.facts` gives of the request."""
        self.asked, self.given, self._episode = asked, given, episode
        token = secrets.token_hex(16)
        self._id, self.message_id, self._created = f"resp_{token}", f"msg_{token}", int(time.time())

    def of(self, status: str) -> dict[str, Any]:
        """Without an answer."""
        echoed = ("model", "instructions", "max_output_tokens", "temperature", "top_p")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "metadata": self.asked.metadata or {},
            **{name: getattr(self.asked, name) for name in echoed},
        }

    def ended(self, result: dict[str, Any]) -> dict[str, Any]:
        own = {"palimpsest": own_facts(self._episode, result, self.given)}
        if (failed := failure_of(result, "input")) is not None:
            error = {"code": failed.code or "server_error", "message": str(failed)}
            return {**self.of("failed"), **own, "error": error}
        counts, short = usage(result, self._episode.stored), result["finish_reason"] == "length"
        base = self.of("incomplete" if short else "completed")
        text = content_of(result, self.asked.palimpsest.raw) or ""
        return {
            **base,
            **own,
            "incomplete_details": {"reason": "max_output_tokens"} if short else None,
            "output": [self.message(text, base["status"])],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": counts["completion_tokens_details"],
                "total_tokens": counts["total_tokens"],
            },
        }

    def message(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [_text_part(text)]
        item = {"id": self.message_id, "type": "message", "role": "assistant"}
        return {**item, "status": status, "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

"""POST /v1/chat/completions, whole and streamed; POST /v1/responses uses the same code with another reply form.

A body becomes a `ChatBody`, then a `Query`; a `ChatReply` formats the query's episode.

Guaranteed: work that grows with a request runs on threads, file parsing on separate threads, so no request waits behind
a long one.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from palimpsest.servers.http_service import Intake, ReadingThreads, Refused, json_response, shown
from palimpsest.servers.openai.answer_text import UnboxedText, unboxed
from palimpsest.servers.openai.request_bodies import ChatBody, openai_error
from palimpsest.servers.openai.request_query import query_of
from palimpsest.servers.openai.served_agent import Query, ServedAgent
from palimpsest.servers.openai.served_episodes import SILENCE_S, Episodes, News, ServedEpisode
from palimpsest.servers.request_log import note

T = TypeVar("T")
Parse = Callable[[bytes, bool], ChatBody]
"""Parses a body; True ignores unsupported parameters. Raises Refused."""

_SHORT = 16 << 10
"""Bodies up to this size are parsed on the event loop: it takes a millisecond, less than a switch to a busy thread."""
_THREADS = 2
"""Bodies, and files, parsed at the same time."""
_SSE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Makes proxies forward each event immediately."""


class ChatRoutes:
    """Answers requests in any form."""

    def __init__(self, agent: ServedAgent, model: str, episodes: Episodes, lenient: bool) -> None:
        """`model`: the agent's name for clients; `lenient`: ignore unsupported parameters."""
        self._agent, self._model, self._episodes, self._lenient = agent, model, episodes, lenient
        self._intake = Intake()
        self._bodies, self._files = ReadingThreads(_THREADS, "body"), ReadingThreads(_THREADS, "file")

    def close(self) -> None:
        """Close without waiting for running work."""
        self._bodies.close()
        self._files.close()

    async def answer(self, request: Request, parse: Parse, form: type[ChatReply]) -> Response:
        """Answer a request. Raises Refused."""
        limits = self._episodes.limits
        data = await self._intake.body(
            request, most=limits.body_bytes, seconds=limits.body_seconds, advice="divide the document"
        )
        body = await self._look(len(data), lambda: parse(data, self._lenient))
        check_model(body.model, self._model)
        query, parsing, digest = await self._query(request, data, body)
        episode = self._episodes.begin(query, digest)
        note(
            request, input=parsing["input"], episode=episode.id, outcome=lambda: (episode.result or _RUNNING)["outcome"]
        )
        headers = {f"X-Palimpsest-{name.capitalize()}": value for name, value in parsing.items()}
        headers |= _ignored_headers(request, body)
        reply = form(body, parsing, episode, self._agent.fingerprint)
        if body.stream:
            events = self._followed(reply, episode)
            return StreamingResponse(events, media_type="text/event-stream", headers={**_SSE, **headers})
        result = await self._ended(request, episode)
        if (failed := failure_of(result)) is not None:
            raise failed
        return json_response(reply.response(result), headers=headers)

    async def _query(self, request: Request, data: bytes, body: ChatBody) -> tuple[Query, dict[str, str], str]:
        retries = request.headers.get("x-stainless-retry-count", "0")

        def work() -> tuple[Query, dict[str, str], str]:
            digest = hashlib.sha256(data).hexdigest()
            return *query_of(body, self._agent, None if retries == "0" else self._episodes.seed_of(digest)), digest

        if any(message.files for message in body.messages):
            return await self._files.run(work)
        return await self._look(len(data), work)

    async def _look(self, size: int, work: Callable[[], T]) -> T:
        """Result of `work`, whose time grows with `size` bytes."""
        return work() if size <= _SHORT else await self._bodies.run(work)

    async def _followed(self, reply: ChatReply, episode: ServedEpisode) -> AsyncIterator[bytes]:
        self._episodes.join(episode)
        try:
            async for event in reply.events():
                yield event
        finally:
            self._episodes.leave(episode)

    async def _ended(self, request: Request, episode: ServedEpisode) -> dict[str, Any]:
        """The episode's end. Raises ClientDisconnect if the client leaves earlier."""
        self._episodes.join(episode)
        ended, gone = asyncio.create_task(episode.ended()), asyncio.create_task(_gone(request))
        try:
            await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
            if episode.result is None:
                raise ClientDisconnect
            return episode.result
        finally:
            ended.cancel()
            gone.cancel()
            self._episodes.leave(episode)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_model(name: str, served: str) -> None:
    """Raise Refused for a model that is not served."""
    if name != served:
        message = f"model: unknown model {shown(name)}; use {served}"
        raise Refused(404, message, code="model_not_found", param="model")


_RUNNING = {"outcome": "running"}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAMES = 16


def _ignored_headers(request: Request, body: ChatBody) -> dict[str, str]:
    """A header with the names of ignored parameters, also for the log line; invalid names become `other`."""
    if not body.ignored:
        return {}
    names = [name if _NAME.fullmatch(name) else "other" for name in body.ignored]
    value = ",".join([*dict.fromkeys(names)][:_NAMES])
    note(request, ignored=value)
    return {"X-Palimpsest-Ignored": value}


# ---- What every form tells -----------------------------------------------------------------------------------


_FAILURES: dict[str, tuple[int, str | None]] = {
    "refused": (400, "invalid_value"),
    "out_of_context": (400, "context_length_exceeded"),
    "empty_context": (400, "invalid_document"),
    "timed_out": (504, "timed_out"),
    "sampler_failed": (503, "engine_failed"),
    "cancelled": (503, "cancelled"),
    "policy_failed": (500, "policy_failed"),
    "store_failed": (507, "store_failed"),
    "failed": (500, "server_failed"),
}
"""Error outcomes, with status and code."""


def failure_of(result: dict[str, Any]) -> Refused | None:
    """The error of an episode without an answer."""
    if result["outcome"] not in _FAILURES:
        return None
    status, code = _FAILURES[result["outcome"]]
    headers = {"Retry-After": "5"} if status == 503 else {}
    param = "messages" if code == "context_length_exceeded" else None
    message = result.get("failure") or f"no answer: {result['outcome']}"
    return Refused(status, message, code=code, param=param, headers=headers)


def content_of(body: ChatBody, result: dict[str, Any]) -> str | None:
    content: str | None = result["content"]
    return content if content is None or body.palimpsest.raw else unboxed(content)


def usage(episode: ServedEpisode, result: dict[str, Any]) -> dict[str, Any]:
    """Tokens that the model read and sampled in all turns: repeated prompts, memories and the answer.

    A stored episode computed nothing. The share of one request in the engine's prefix cache is unknown.
    """
    read, sampled = result["tokens_in"], result["tokens_sampled"]
    return {
        "prompt_tokens": read,
        "completion_tokens": sampled,
        "total_tokens": read + sampled,
        "prompt_tokens_details": {"cached_tokens": read if episode.stored else 0},
        "completion_tokens_details": {"reasoning_tokens": sampled - result["completion_tokens"]},
    }


_FACT_NAMES = (
    *("outcome", "turns", "tokens_in", "tokens_sampled"),
    *("answer", "answers", "quotes", "unsupported", "kept_out", "truncated", "notes"),
)


def palimpsest_facts(episode: ServedEpisode, result: dict[str, Any], parsing: Mapping[str, str]) -> dict[str, Any]:
    """Facts without a field in OpenAI's interface."""
    facts = {name: result[name] for name in _FACT_NAMES if name in result}
    if "prompt_tokens" in result:
        facts["request_tokens"] = result["prompt_tokens"]
    return {"episode": episode.id, **parsing, **facts, "stored": episode.stored}


async def timely(episode: ServedEpisode, progress: bool, raw: bool) -> AsyncIterator[News]:
    """An episode's news, and a `comment` after each silence."""
    last_event, answer = time.monotonic(), UnboxedText()
    async for news in episode.follow():
        if news is not None and news[0] == "content":
            if not (text := news[1] if raw else answer.feed(news[1])):
                continue
            yield "content", text
        elif news is not None and progress:
            yield news
        elif time.monotonic() - last_event >= SILENCE_S:
            yield "comment", f"reading {episode.progress}" if episode.progress else "waiting"
        else:
            continue
        last_event = time.monotonic()
    if rest := answer.rest():
        yield "content", rest


def event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


# ---- A chat completion ---------------------------------------------------------------------------------------


class ChatReply:
    """An episode as a chat completion."""

    def __init__(self, body: ChatBody, parsing: Mapping[str, str], episode: ServedEpisode, fingerprint: str) -> None:
        """`parsing`: second result of `query_of`."""
        self._body, self._parsing, self._episode = body, parsing, episode
        self._facts: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": fingerprint,
        }

    def response(self, result: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": content_of(self._body, result), "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": result["finish_reason"], "logprobs": None}
        return {
            **self._facts,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(self._episode, result),
            "metadata": self._body.metadata,
            "palimpsest": palimpsest_facts(self._episode, result, self._parsing),
        }

    async def events(self) -> AsyncIterator[bytes]:
        """The chat completion as a stream of server-sent events."""
        options = self._body.palimpsest
        yield self._chunk({"role": "assistant", "content": ""})
        async for kind, text in timely(self._episode, options.progress, options.raw):
            if kind == "comment":
                yield f": {text}\n\n".encode()
            else:
                yield self._chunk(
                    {"content": text} if kind == "content" else {"reasoning": text, "reasoning_content": text}
                )
        result = await self._episode.ended()
        if (failed := failure_of(result)) is not None:
            yield event(openai_error(failed))
        else:
            yield self._chunk(
                {}, result["finish_reason"], palimpsest=palimpsest_facts(self._episode, result, self._parsing)
            )
            if self._body.stream_options.include_usage:
                yield self._event([], usage=usage(self._episode, result))
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return self._event([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}], **more)

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        counted = {"usage": None} if self._body.stream_options.include_usage else {}
        return event({**self._facts, "object": "chat.completion.chunk", "choices": choices, **counted, **more})

r"""POST /v1/chat/completions, whole and streamed, with `\boxed{}` removed from answers.

The content of a box stays in place; the commands and their braces are removed.

Guaranteed: the outputs of `feed`, and `rest` at the end, concatenate to `unboxed` of the whole text, however it is cut
into pieces; time grows with its length. An unclosed box is open to the end. Other braces and other LaTeX stay.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from palimpsest.servers.http_service import Refused, json_response
from palimpsest.servers.openai.episode_progress import SILENCE_S, ServedEpisode
from palimpsest.servers.openai.request_bodies import (
    Ask,
    Bodies,
    chat_ask,
    openai_error,
)
from palimpsest.servers.openai.request_resolver import Orders
from palimpsest.servers.openai.served_agent import AgentInterface, Order
from palimpsest.servers.openai.served_episodes import Episodes
from palimpsest.servers.request_log import note

# ---- An answer without \boxed{} ------------------------------------------------------------------------------


_TOKEN = re.compile(r"\\(?:boxed|fbox)(?:\s*(?P<open>\{)|[ \t]+(?=[^\s{]))|(?P<brace>[{}])")
_UNSURE = re.compile(r"\\(?:b(?:o(?:x(?:e(?:d\s*)?)?)?)?|f(?:b(?:o(?:x\s*)?)?)?)?\Z")
"""The end of a piece that the next one decides on: a part of a command."""


def unboxed(text: str) -> str:
    r"""
    >>> unboxed(r"It is \boxed{a {nested} one}."), unboxed(r"\boxed{\boxed{tea}"), unboxed(r"$\boxed 5$"), unboxed("{}")
    ('It is a {nested} one.', 'tea', '$5$', '{}')
    """
    whole = Unboxed()
    return whole.feed(text) + whole.rest()


class Unboxed:
    """One answer, piece by piece."""

    def __init__(self, raw: bool = False) -> None:
        r"""`raw`: leave it as it is, `\boxed{}` and all."""
        self._raw = raw
        self._held = self._space = ""
        self._boxes = list[bool]()  # of every open brace, whether it is a box's
        self._began = False

    def feed(self, text: str) -> str:
        """What is sure of a text up to the end of this piece."""
        if self._raw:
            return text
        text = self._held + text
        unsure = _UNSURE.search(text)
        end = len(text) if unsure is None else unsure.start()
        self._held = text[end:]
        return self._given(text[:end])

    def rest(self) -> str:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        return self._given(held)

    def _given(self, text: str) -> str:
        """Without space at the beginning, and at the end for as long as nothing follows it."""
        found = self._space + _TOKEN.sub(self._token, text)
        if not self._began:
            found = found.lstrip()
        said = found.rstrip()
        self._space = found[len(said) :]
        self._began = self._began or bool(said)
        return said

    def _token(self, match: re.Match[str]) -> str:
        if match["brace"] == "}":
            return "" if self._boxes and self._boxes.pop() else "}"
        if match["brace"] or match["open"]:
            self._boxes.append(match["brace"] is None)
        return match["brace"] or ""


# ---- POST /v1/chat/completions, whole and streamed -----------------------------------------------------------


SSE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Proxies are to hand on each event at once."""


class ChatRoutes:
    """The route and what it needs."""

    def __init__(
        self, orders: Orders, episodes: Episodes, bodies: Bodies, agent: AgentInterface, lenient: bool
    ) -> None:
        """`lenient`: unsupported parameters are ignored."""
        self._orders, self._episodes, self._bodies = orders, episodes, bodies
        self._agent, self._lenient = agent, lenient

    async def completions(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        ask = await self._bodies.look(len(body), lambda: chat_ask(body, self._lenient))
        order = await self._orders.of(ask, body, request.headers)
        episode, given = self._episodes.begin(order), order.input.facts()
        note_episode(request, order, episode)
        headers = {**input_headers(given), **ignored_headers(request, ask)}
        facts = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": ask.model,
            "system_fingerprint": self._agent.fingerprint,
        }
        if ask.stream:
            events = self._events(ask, episode, given, {**facts, "object": "chat.completion.chunk"})
            return StreamingResponse(events, media_type="text/event-stream", headers={**SSE, **headers})
        result = await ended_or_gone(request, episode, self._episodes)
        if (failed := failure_of(result, ask.field)) is not None:
            raise failed
        message = {"role": "assistant", "content": content_of(result, ask.own.raw), "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": result["finish_reason"], "logprobs": None}
        whole = {
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(result, episode.stored),
            "metadata": ask.metadata,
        }
        return json_response({**facts, **whole, "palimpsest": own_facts(episode, result, given)}, headers=headers)

    async def _events(
        self, ask: Ask, episode: ServedEpisode, given: Mapping[str, str], facts: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        usage_key = {"usage": None} if ask.include_usage else {}

        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return _event({**facts, "choices": [choice], **usage_key, **more})

        self._episodes.join(episode)
        try:
            yield chunk({"role": "assistant", "content": ""})
            async for kind, text in timely(episode, ask.own.progress, ask.own.raw):
                if kind == "comment":
                    yield f": {text}\n\n".encode()
                else:
                    yield chunk(
                        {"content": text} if kind == "content" else {"reasoning": text, "reasoning_content": text}
                    )
            result = await episode.ended()
            if (failed := failure_of(result, ask.field)) is not None:
                yield _event(openai_error(failed))
            else:
                yield chunk({}, result["finish_reason"], palimpsest=own_facts(episode, result, given))
                if ask.include_usage:
                    yield _event({**facts, "choices": [], "usage": usage(result, episode.stored)})
            yield b"data: [DONE]\n\n"
        finally:
            self._episodes.leave(episode)


def note_episode(request: Request, order: Order, episode: ServedEpisode) -> None:
    """Have the log line of a request name its rule and its episode, and how that ended."""
    note(request, input=str(order.input.rule), episode=episode.id, outcome=_Ending(episode))


class _Ending:
    """How an episode has ended when it is printed."""

    def __init__(self, episode: ServedEpisode) -> None:
        self._episode = episode

    def __str__(self) -> str:
        return str(self._episode.result["outcome"]) if self._episode.result is not None else "running"


def _event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def timely(episode: ServedEpisode, progress: bool, raw: bool) -> AsyncIterator[tuple[str, str]]:
    """An episode's news, and a `comment` wherever nothing else was to be told for a while."""
    told, answer = time.monotonic(), Unboxed(raw)
    async for news in episode.follow():
        if news is not None and news[0] == "content":
            if not (text := answer.feed(news[1])):
                continue
            yield "content", text
        elif news is not None and progress:
            yield news
        elif time.monotonic() - told >= SILENCE_S:
            yield "comment", f"reading {episode.place}" if episode.place else "waiting"
        else:
            continue
        told = time.monotonic()
    if rest := answer.rest():
        yield "content", rest


async def ended_or_gone(request: Request, episode: ServedEpisode, episodes: Episodes) -> dict[str, Any]:
    """How an episode ended. Raises ClientDisconnect if the client leaves before."""
    episodes.join(episode)
    ended, gone = asyncio.create_task(episode.ended()), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if episode.result is None:
            raise ClientDisconnect
        return episode.result
    finally:
        ended.cancel()
        gone.cancel()
        episodes.leave(episode)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


FAILURES: dict[str, tuple[int, str | None]] = {
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
"""Outcomes that are errors: status and code."""


def failure_of(result: dict[str, Any], field: str = "messages") -> Refused | None:
    """What an episode without an answer is told as, to a client who said everything in `field`; None where there is
    one."""
    status, code = FAILURES.get(result["outcome"], (200, None))
    if status == 200:
        return None
    headers = {"Retry-After": "5"} if status == 503 else {}
    param = field if code == "context_length_exceeded" else None
    return Refused(
        status, result.get("failure") or f"no answer: {result['outcome']}", code=code, param=param, headers=headers
    )


def content_of(result: dict[str, Any], raw: bool) -> str | None:
    r"""The answer; `raw`: with its `\boxed{}`."""
    content: str | None = result["content"]
    return content if raw or content is None else unboxed(content)


def usage(result: dict[str, Any], stored: bool) -> dict[str, Any]:
    """What the model read and sampled in all turns: prompts as often as they were given, memories and the answer.

    `stored`: nothing was computed for this reply. What the engine had in its prefix cache isn't known of one request.
    """
    read, sampled = result["tokens_in"], result["tokens_sampled"]
    return {
        "prompt_tokens": read,
        "completion_tokens": sampled,
        "total_tokens": read + sampled,
        "prompt_tokens_details": {"cached_tokens": read if stored else 0},
        "completion_tokens_details": {"reasoning_tokens": sampled - result["completion_tokens"]},
    }


def input_headers(given: Mapping[str, str]) -> dict[str, str]:
    """`given`, as `Input.facts` gives it, for clients that show no fields of ours."""
    return {f"X-Palimpsest-{name.capitalize()}": value for name, value in given.items()}


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAMES = 16


def ignored_headers(request: Request, ask: Ask) -> dict[str, str]:
    """A header with the names of parameters that were ignored, which the log line has, too. Names that a header can't
    hold are `other`."""
    if not ask.ignored:
        return {}
    names = [name if _NAME.fullmatch(name) else "other" for name in ask.ignored]
    said = ",".join([*dict.fromkeys(names)][:_NAMES])
    note(request, ignored=said)
    return {"X-Palimpsest-Ignored": said}


def own_facts(episode: ServedEpisode, result: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """What OpenAI's interface has no place for; `given`: what `Input.facts` gives of the request."""
    names = (
        "outcome",
        "turns",
        "tokens_in",
        "tokens_sampled",
        "answer",
        "answers",
        "quotes",
        "unsupported",
        "kept_out",
        "truncated",
    )
    known = {name: result[name] for name in names if name in result}
    if "prompt_tokens" in result:
        known["request_tokens"] = result["prompt_tokens"]
    return {"episode": episode.id, **given, **known, "stored": episode.stored}

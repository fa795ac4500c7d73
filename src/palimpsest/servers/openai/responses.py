"""POST /v1/responses: a chat completion in another form, whole and streamed.

The body is rewritten into that of a chat completion; rules, parameters and episodes are the same.

Not covered: responses in the background, by id or after a previous one (none are stored); tools; changes of the memory,
which only chat completions stream.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping
from itertools import count
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from palimpsest.servers.http_service import Refused, shown
from palimpsest.servers.openai.chat_completions import (
    ChatReply,
    ChatRoutes,
    content_of,
    event,
    failure_of,
    palimpsest_facts,
    timely,
    usage,
)
from palimpsest.servers.openai.request_bodies import (
    NEUTRAL,
    ChatBody,
    Message,
    Neutral,
    invalid,
    json_object,
    supported,
    validated,
)
from palimpsest.servers.openai.served_episodes import ServedEpisode

_NEUTRAL: Neutral = {
    **NEUTRAL,
    "text": ({}, {"format": {"type": "text"}}),
    "truncation": ("disabled",),
    "include": ([],),
    "reasoning": ({}, {"summary": "auto"}),
    "max_tool_calls": (),
    "conversation": (),
    "prompt": (),
    "previous_response_id": (),
    "background": (False,),
    **dict.fromkeys(("max_tokens", "seed", "stop"), ()),  # of chat completions
}
_NAMES = {"input": "messages", "max_output_tokens": "max_completion_tokens"}
"""Keys of a response, with their names in a chat completion."""


async def answer_response(routes: ChatRoutes, request: Request) -> Response:
    """Answer a request. Raises Refused, with the key names of /v1/responses."""
    try:
        return await routes.answer(request, response_body, ResponseReply)
    except Refused as refused:
        raise _renamed(refused) from None


def _renamed(refused: Refused) -> Refused:
    for theirs, ours in _NAMES.items():
        if (refused.param or "").startswith(ours) and refused.param not in _NEUTRAL:
            message, param = (text.replace(ours, theirs, 1) for text in (str(refused), str(refused.param)))
            return Refused(refused.status, message, code=refused.code, param=param, headers=refused.headers)
    return refused


def response_body(body: bytes, lenient: bool = False) -> ChatBody:
    """Parse the body of POST /v1/responses; `lenient`: ignore unsupported parameters. Raises Refused."""
    ignored: list[str] | None = [] if lenient else None
    fields = supported(json_object(body), _NEUTRAL, ignored)
    instructions, request_input = fields.pop("instructions", ""), fields.get("input")
    if not isinstance(instructions, str):
        raise invalid("instructions", f"a text, is {shown(instructions)}")
    if isinstance(request_input, str):
        fields["input"] = [{"role": "user", "content": request_input}]
    elif isinstance(request_input, list):
        _check_items(request_input)
    chat = validated({_NAMES.get(name, name): value for name, value in fields.items()}, ignored)
    if instructions:
        chat.messages.insert(0, Message("system", instructions))
    return chat


def _check_items(items: list[Any]) -> None:
    for at, item in enumerate(items):
        if isinstance(item, dict) and item.get("type", "message") != "message":
            raise invalid(f"input.{at}.type", f"{shown(item['type'])} is not supported; items are messages")


class ResponseReply(ChatReply):
    """An episode as a response."""

    def __init__(self, body: ChatBody, parsing: Mapping[str, str], episode: ServedEpisode, fingerprint: str) -> None:
        super().__init__(body, parsing, episode, fingerprint)
        token = secrets.token_hex(16)
        self._message_id = f"msg_{token}"
        self._facts = {
            "id": f"resp_{token}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": body.model,
            "max_output_tokens": body.answer_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "metadata": body.metadata,
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }

    def response(self, result: dict[str, Any]) -> dict[str, Any]:
        facts = {**self._facts, "palimpsest": palimpsest_facts(self._episode, result, self._parsing)}
        if (failed := failure_of(result)) is not None:
            return {**facts, "status": "failed", "error": {"code": failed.code, "message": str(failed)}}
        counts, short = usage(self._episode, result), result["finish_reason"] == "length"
        status = "incomplete" if short else "completed"
        return {
            **facts,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if short else None,
            "output": [self._message(status, content_of(self._body, result) or "")],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": counts["completion_tokens_details"],
                "total_tokens": counts["total_tokens"],
            },
        }

    async def events(self) -> AsyncIterator[bytes]:
        numbers, answer = count(), ""
        item = {"output_index": 0}
        part = {"item_id": self._message_id, "output_index": 0, "content_index": 0}

        def numbered(kind: str, **more: Any) -> bytes:
            value = {"type": kind, "sequence_number": next(numbers), **more}
            return f"event: {kind}\n".encode() + event(value)

        yield numbered("response.created", response=self._facts)
        yield numbered("response.in_progress", response=self._facts)
        yield numbered("response.output_item.added", **item, item=self._message("in_progress"))
        yield numbered("response.content_part.added", **part, part=_text_part(""))
        async for kind, text in timely(self._episode, False, self._body.palimpsest.raw):
            if kind == "comment":
                yield f": {text}\n\n".encode()
            else:
                answer += text
                yield numbered("response.output_text.delta", **part, delta=text, logprobs=[])
        response = self.response(await self._episode.ended())
        status = "completed" if response["status"] == "completed" else "incomplete"
        yield numbered("response.output_text.done", **part, text=answer, logprobs=[])
        yield numbered("response.content_part.done", **part, part=_text_part(answer))
        yield numbered("response.output_item.done", **item, item=self._message(status, answer))
        yield numbered(f"response.{response['status']}", response=response)

    def _message(self, status: str, *texts: str) -> dict[str, Any]:
        content = [_text_part(text) for text in texts]
        return {"id": self._message_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

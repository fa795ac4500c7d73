"""A chat endpoint on loopback that judges answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.endpoint_server import Raw, Server, endpoint_server
from support.endpoint_server import reply as raw

Reply = str | tuple[int, str] | tuple[int, str, dict[str, str]]
"""The text of a completion, or status, body and headers."""
Speak = Callable[[dict[str, Any], int], Reply]
"""(request, number of earlier requests) to reply."""


def case_of(request: dict[str, Any]) -> dict[str, Any]:
    """The JSON object that the judge reads."""
    case: dict[str, Any] = json.loads(request["messages"][-1]["content"])
    return case


def verdict(request: dict[str, Any], value: str) -> str:
    """A reply in the required form."""
    return json.dumps({"reason": "so", "case": case_of(request)["case"], "verdict": value})


def honest(request: dict[str, Any], _: int = 0) -> str:
    """An answer that contains a reference is correct."""
    case = case_of(request)
    return verdict(request, "correct" if any(r in case["answer"] for r in case["references"]) else "incorrect")


def completion(text: str | None, ended: str = "stop") -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": ended}]})


@contextmanager
def judge_server(speak: Speak = honest, *, delay: float = 0.0) -> Iterator[Server]:
    def answer(number: int) -> Raw:
        if server.paths[-1] != "/v1/chat/completions":
            return raw(404, b"no such path")
        reply = speak(server.requests[number], number)
        status, body, headers = (*((200, completion(reply)) if isinstance(reply, str) else reply), {})[:3]
        return raw(status, body.encode(), **headers)

    server = Server(takes="chat", fault=answer, delay=delay)
    with endpoint_server(server):
        yield server

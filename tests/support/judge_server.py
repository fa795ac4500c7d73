"""A chat endpoint on loopback that answers as it is told, in a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.listening import listening

Reply = str | tuple[int, str] | tuple[int, str, dict[str, str]]
"""The text of a completion, or status, body and headers."""
Speak = Callable[[dict[str, Any], int], Reply]
"""(request, how many came before) to reply."""


def case_of(request: dict[str, Any]) -> dict[str, Any]:
    """The JSON object that the judge was shown."""
    case: dict[str, Any] = json.loads(request["messages"][-1]["content"])
    return case


def verdict(request: dict[str, Any], said: str) -> str:
    """What a judge replies who keeps to the form."""
    return json.dumps({"reason": "so", "case": case_of(request)["case"], "verdict": said})


def honest(request: dict[str, Any], _: int = 0) -> str:
    """Right is what names a reference."""
    case = case_of(request)
    return verdict(request, "correct" if any(r in case["answer"] for r in case["references"]) else "incorrect")


def completion(text: str | None, ended: str = "stop") -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": ended}]})


@dataclass
class Server:
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0


@contextmanager
def judge_server(speak: Speak = honest, *, delay: float = 0.0) -> Iterator[Server]:
    server, lock, under_way = Server(), threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(request)
                server.headers.append({key.lower(): value for key, value in self.headers.items()})
                under_way[0] += 1
                server.most_at_once = max(server.most_at_once, under_way[0])
            time.sleep(delay)
            reply = (404, "no such path") if self.path != "/v1/chat/completions" else speak(request, number)
            if isinstance(reply, str):
                reply = (200, completion(reply))
            status, body, headers = (*reply, {})[:3]
            with lock:
                under_way[0] -= 1
            try:
                self.send_response(status)
                for name, value in {"content-length": str(len(body.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body.encode())
            except OSError:
                pass  # the client had enough of waiting

        def log_message(self, *_: Any) -> None: ...

    with listening(Handler) as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server

"""An OpenAI-compatible endpoint on loopback that answers by the hash of the request, or fails."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.listening import listening

Raw = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""
Fault = Callable[[int], "Raw | str | None"]
"""Number of a completion to its replacement: a reply, hang, reset or endless; None: it is not replaced."""

MODEL, WINDOW = "served", 4096
WORDS = ("blue", "Anna", "cat", "Rome", "baker", "unknown", "the answer is \\boxed{blue}")


def reply(status: int, body: Any = None, **headers: str) -> Raw:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, content, {"content-length": str(len(content)), **headers}


def drawn(body: dict[str, Any]) -> random.Random:
    """Keyed by prompt and seed."""
    key = json.dumps([body.get("prompt"), body.get("messages"), body.get("seed")])
    return random.Random(hashlib.sha256(key.encode()).digest())


def token_choice(body: dict[str, Any], *, ids: bool = True, logprobs: bool = True) -> dict[str, Any]:
    """As vLLM's: a few ids and a stop token."""
    rng = drawn(body)
    sampled = [*rng.choices(range(3, 260), k=min(5, body["max_tokens"] - 1)), 2]
    choice: dict[str, Any] = {"index": 0, "text": "some text", "finish_reason": "stop", "logprobs": None}
    if ids:
        choice |= {"token_ids": sampled, "prompt_token_ids": body["prompt"]}
    if logprobs:
        choice["logprobs"] = {"token_logprobs": [-rng.random() for _ in sampled]}
    return choice


def text_of(body: dict[str, Any]) -> str:
    return " ".join(drawn(body).choices(WORDS, k=3))


def completion(path: str, body: dict[str, Any], server: Server) -> Raw:
    if body["model"] != MODEL:
        return reply(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": server.speak(body)}
        choice: dict[str, Any] = {"message": message, "finish_reason": "stop"}
        prompt_tokens = 7
    elif server.takes == "chat":
        return reply(404, {"detail": "Not Found"})
    elif isinstance(body["prompt"], list):
        if server.takes != "tokens":
            return reply(400, {"error": "prompt must be a string"})
        choice = token_choice(body, ids=server.gives_ids, logprobs="logprobs" in body)
        prompt_tokens = len(body["prompt"])
    else:
        choice = {"text": server.speak(body), "finish_reason": "stop"}
        prompt_tokens = 7
    if server.plain and {"top_k", "return_token_ids"} & set(body):
        return reply(400, {"error": {"message": "Unrecognized request argument supplied: top_k"}})
    if server.refuses & set(body):
        return reply(400, {"error": {"message": f"Unsupported parameter: {sorted(server.refuses & set(body))[0]}"}})
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    return reply(200, {"choices": [choice], "usage": usage} | ({"model": server.name} if server.name else {}))


@dataclass
class Server:
    takes: str = "tokens"
    """tokens, completions or chat: the best of the modes it has."""
    gives_ids: bool = True
    plain: bool = False
    """True if it rejects fields that OpenAI lacks."""
    refuses: frozenset[str] = frozenset()
    window: int | None = WINDOW
    name: str | None = None
    """Name of the model in replies."""
    root: str | None = None
    """The model's folder in the list of models."""
    tokenize: Callable[[str], list[int]] | None = None
    speak: Callable[[dict[str, Any]], str] = text_of
    fault: Fault = lambda number: None
    delay: float = 0.0
    url: str = ""
    paths: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of completions."""
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    cut_off: int = 0
    """Number of requests whose client disconnected."""

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.asked


@contextmanager
def endpoint_server(settings: Server | None = None) -> Iterator[Server]:
    server, lock = settings or Server(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.paths.append(self.path)
            card = {"id": MODEL} | ({"max_model_len": server.window} if server.window else {})
            card |= {"created": len(server.paths)} | ({"root": server.root} if server.root else {})
            self.answer(reply(200, {"data": [card]}) if self.path == "/v1/models" else reply(404))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.paths.append(self.path)
            if self.path == "/tokenize":
                encode = server.tokenize
                self.answer(reply(404) if encode is None else reply(200, {"tokens": encode(body["prompt"])}))
                return
            with lock:
                number = len(server.asked)
                server.asked.append(body)
                server.headers.append({key.lower(): value for key, value in self.headers.items()})
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            time.sleep(server.delay)
            result = server.fault(number) or completion(self.path, body, server)
            with lock:
                server.at_once -= 1
            self.answer(result)

        def answer(self, result: Raw | str) -> None:
            try:
                if isinstance(result, str):
                    getattr(self, result)()
                    return
                status, content, headers = result
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                server.cut_off += 1

        def hang(self) -> None:
            self.close_connection = True
            self.connection.settimeout(30)
            if not self.connection.recv(1):  # until the client goes away
                server.cut_off += 1

        def reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def endless(self) -> None:
            self.close_connection = True
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b" " * (1 << 20))

        def log_message(self, *_: Any) -> None: ...

    with listening(Handler) as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server

"""A scripted server on loopback with recorded answers of vLLM 0.32."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Fault = Callable[[dict[str, Any]], bytes | None]
"""The raw reply to a request's body; None: no reply."""


def token(id_: int, logprob: float, top: int = 0, spread: float = 1.0) -> dict[str, Any]:
    top_logprobs = [{"token_id": n, "logprob": logprob - spread * n, "rank": n + 1} for n in range(top)]
    return {"token_id": id_, "logprob": logprob, "rank": 1, "top_logprobs": top_logprobs}


def eighths(ids: list[int]) -> list[float]:
    """Nats of each id but the first."""
    return [-id_ / 8 for id_ in ids[1:]]


def answer(
    request: dict[str, Any], version: str, *, raw: bool = True, score: Callable[[list[int]], list[float]] = eighths
) -> dict[str, Any]:
    """Of `/inference/v1/generate`: the last token of the prompt `max_tokens` times, or once if it is a stop token."""
    wanted, prompt = request["sampling_params"], request["token_ids"]
    stops = prompt[-1] in wanted.get("stop_token_ids", ())
    ids = prompt[-1:] * (1 if stops else wanted["max_tokens"])
    spread = 1.0 if raw else 1.0 / wanted.get("temperature", 1.0)
    choice = {
        "index": 0,
        "finish_reason": "stop" if stops else "length",
        "stop_reason": ids[-1] if stops else None,
        "token_ids": ids,
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
        "logprobs": {"content": [token(id_, -1.5, wanted.get("logprobs", 0), spread) for id_ in ids]},
    }
    return {
        "request_id": f"generate-tokens-{request['request_id']}",
        "usage": {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": 1}},
        "prompt_logprobs": None if wanted.get("prompt_logprobs") is None else scored(prompt, score(prompt)),
        "output_mode": "tokens",
        "choices": [choice],
    }


def scored(prompt: list[int], nats: list[float]) -> list[dict[str, Any] | None]:
    rows = zip(prompt[1:], nats, strict=True)
    return [None, *({str(id_): {"logprob": logprob, "rank": 1}} for id_, logprob in rows)]


def reply(status: int, body: object) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(content), content)


@dataclass
class Wire:
    """A server's state and requests."""

    url: str = ""
    version: str = "default"
    raw: bool = True
    root: str = "somewhere"
    score: Callable[[list[int]], list[float]] = eighths
    window: int = 512
    loaded: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    wanted: list[dict[str, Any]] = field(default_factory=list)
    """Sampling parameters of each prompt."""
    authorizations: set[str] = field(default_factory=set)
    faults: dict[str, Fault] = field(default_factory=dict)
    """By path."""
    asleep: set[str] = field(default_factory=set)
    """Kinds of memory that are not on the GPU."""
    gate: asyncio.Event | None = None
    """Completions wait for it."""
    in_flight: int = 0
    most_in_flight: int = 0

    async def reply_to(self, path: str, body: dict[str, Any]) -> bytes | None:
        path, _, query = path.partition("?")
        self.asked.append(path)
        if fault := self.faults.get(path):
            return fault(body)
        match path:
            case "/v1/models":
                return reply(200, {"data": [{"id": "policy", "root": self.root, "max_model_len": self.window}]})
            case "/sleep":
                self.asleep = {"weights", "kv_cache"}
                return reply(200, {"status": "sleeping", "level": 2})
            case "/wake_up":
                self.asleep -= {query.removeprefix("tags=")}
                return reply(200, {"status": "sleeping" if self.asleep else "awake", "tags": [query]})
            case "/collective_rpc":
                if "weights" in self.asleep:
                    return reply(500, {"error": "an illegal memory access was encountered"})
                self.loaded.append(body["kwargs"]["weights_path"])
            case "/update_weight_version":
                self.version = body["new_version"]
            case "/inference/v1/generate" if self.asleep:
                return None  # it waits until the server wakes up
            case "/inference/v1/generate":
                self.prompts.append(body["token_ids"])
                self.wanted.append(body["sampling_params"])
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                if self.gate is not None:
                    await self.gate.wait()
                self.in_flight -= 1
                return reply(200, answer(body, self.version, raw=self.raw, score=self.score))
        return reply(200, {"success": True, "weight_version": self.version})


@asynccontextmanager
async def wire(socket: str | None = None) -> AsyncIterator[Wire]:
    """A server on loopback, or at a Unix socket."""
    state = Wire()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        length = int(fields.get("content-length", 0))
        state.authorizations |= {fields["authorization"]} if "authorization" in fields else set()
        body = json.loads(await reader.readexactly(length) or b"{}")
        if (content := await state.reply_to(head[0].split()[1], body)) is None:
            await reader.read()  # until the client gives up
        else:
            writer.write(content)
        writer.close()

    if socket is None:
        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        state.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    else:
        listening = await asyncio.start_unix_server(handle, socket)
    try:
        yield state
    finally:
        listening.close()

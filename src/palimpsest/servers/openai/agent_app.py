"""OpenAI-compatible agent server: routes, metrics and options.

    POST /v1/chat/completions           POST /v1/responses
    GET /v1/models   /  (this list)     GET /health  /ready  /metrics (Prometheus text)

Guaranteed: all guarantees of servers/http_service.py and servers/request_log.py; with a key, every path but /health and
/ready requires it; every error is OpenAI's error object; bodies, their sum, and running and waiting episodes are
bounded; client input never becomes a control token, a path or a fetched address; metric labels are outcomes and
statuses, never client text, so their number is bounded.
Not covered: TLS, slow clients, fair shares between clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from palimpsest.errors import ConfigError
from palimpsest.servers.http_service import ReadingThreads, RequestGuard, json_response
from palimpsest.servers.openai.chat_completions import ChatReply, ChatRoutes, check_model
from palimpsest.servers.openai.episode_log import Store
from palimpsest.servers.openai.request_bodies import chat_body, openai_error
from palimpsest.servers.openai.responses import answer_response
from palimpsest.servers.openai.served_agent import ServedAgent
from palimpsest.servers.openai.served_episodes import Episodes, ServerLimits
from palimpsest.servers.request_log import RequestLog

# ---- What the operator of the server chooses -----------------------------------------------------------------


_CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST"),
    "allow_headers": ("*",),
    "expose_headers": ("X-Palimpsest-Input", "X-Palimpsest-Instructions", "X-Palimpsest-Ignored", "Retry-After"),
}
"""Settings of starlette's middleware, except the origins. Credentials (here cookies) are not allowed."""
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Choices of the server's operator."""

    log_requests: bool = True
    ignore_unsupported: bool = False
    """Ignore unsupported parameters and name them in a header, instead of rejecting them."""
    cors_origins: tuple[str, ...] = ()
    """Origins of pages that may send requests from a browser; `*`: any page."""


def check_origins(origins: Sequence[str], token: str | None) -> None:
    """Raise ConfigError for an impossible origin, and for `*` without a key.

    >>> check_origins(["https://chat.example", "http://localhost:3000"], None)
    """
    for origin in origins:
        if origin == "*" and not token:
            raise ConfigError("--cors-origin '*': any page could use this server; name pages, or set --server-key-env")
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--cors-origin {origin!r:.60}: use scheme, host and port, e.g. https://chat.example:8443"
            )


def check_model_name(name: str) -> None:
    """Raise ConfigError for a name that is invalid in a path or a log line."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--served-model-name {name!r:.60}: use at most 128 ASCII letters, digits, '.', '_', ':', '/' and '-', "
            "a letter or a digit first"
        )


# ---- The agent server ----------------------------------------------------------------------------------------


_THREADS = 2
"""Documents to encode or search for quotes at the same time."""
_OPEN = ("/health", "/ready")
"""Paths without the key: probes have none, and learn only that the server runs."""
_DOCS = "https://github.com/palimpsest-rl/palimpsest/blob/main/docs/reference/server-api.md"


class AgentService:
    """The routes and their state. For one event loop."""

    def __init__(
        self,
        agent: ServedAgent,
        store: Store | None,
        *,
        model: str,
        token: str | None,
        limits: ServerLimits,
        options: ServerOptions | None = None,
    ) -> None:
        """`model`: the agent's name for clients."""
        self.agent, self.store, self.limits, self._model = agent, store, limits, model
        self._token, self._options = token, options or ServerOptions()
        self._threads = ReadingThreads(_THREADS, "document")
        self.episodes = Episodes(agent, store, limits, self._threads)
        origins = self._options.cors_origins
        self._guard = RequestGuard(token, form=openai_error, pages=False, open_paths=_OPEN, origins=origins)
        self._chat = ChatRoutes(agent, model, self.episodes, self._options.ignore_unsupported)

    def app(self) -> Starlette:
        routes = (
            ("/v1/chat/completions", "POST", lambda request: self._chat.answer(request, chat_body, ChatReply)),
            ("/v1/responses", "POST", lambda request: answer_response(self._chat, request)),
            ("/v1/models", "GET", lambda _: json_response({"object": "list", "data": [self._shown()]})),
            ("/v1/models/{model:path}", "GET", self._named),
            ("/health", "GET", lambda _: json_response({"status": "ok"})),
            ("/ready", "GET", lambda _: json_response({"status": "ready"})),
            ("/metrics", "GET", self._metrics),
        )
        about = {
            "service": "palimpsest: an agent behind the API of OpenAI",
            "models": [self._model],
            "paths": [f"{method} {path}" for path, method, _ in routes],
            "documentation": _DOCS,
        }
        app = self._guard.app((("/", "GET", lambda _: json_response(about)), *routes))
        if self._options.cors_origins:
            app.add_middleware(CORSMiddleware, allow_origins=self._options.cors_origins, **_CORS)
        if self._options.log_requests:
            app.add_middleware(RequestLog, secret=self._token)
        return app

    async def close(self) -> None:
        """Cancel running episodes. Does not wait for work on threads: its results are dropped."""
        await self.episodes.drain()
        self._threads.close()
        self._chat.close()

    def _named(self, request: Request) -> Response:
        check_model(request.path_params["model"], self._model)
        return json_response(self._shown())

    def _shown(self) -> dict[str, object]:
        card = dict(self.agent.card)
        longest = card.pop("max_model_len") or self.limits.body_bytes  # a token has at least a byte
        facts = {"id": self._model, "object": "model", "created": 0, "owned_by": "palimpsest"}
        return {**facts, "max_model_len": longest, "palimpsest": {**card, "fingerprint": self.agent.fingerprint}}

    def _metrics(self, _: Request) -> Response:
        text = "".join(f"{line}\n" for line in self._metric_lines())
        return Response(text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _metric_lines(self) -> Iterator[str]:
        """Metrics in Prometheus' text format 0.0.4."""
        episodes, statuses = self.episodes, self._guard.statuses
        by_status = {f'{{status="{code}"}}': number for code, number in sorted(statuses.items())}
        ended = {name.partition(":")[2]: number for name, number in sorted(episodes.counts.items()) if ":" in name}
        by_outcome = {f'{{outcome="{name}"}}': number for name, number in ended.items()}
        yield from _family("requests_total", "Requests by the status of their answer.", by_status)
        yield from _family("episodes_total", "Episodes that have ended.", by_outcome)
        for name, description in _COUNTERS.items():
            yield from _family(f"{name}_total", description, {"": episodes.counts[name.removeprefix("episodes_")]})
        for name, description in _ENGINE_COUNTERS.items():
            yield from _family(f"engine_{name}_total", description, {"": getattr(self.agent.stats, name)})
        yield from _family("episodes_running", "Episodes that run.", {"": episodes.running})
        yield from _family("episodes_waiting", "Waiting episodes.", {"": episodes.waiting})


_COUNTERS = {
    "episodes_begun": "Started episodes.",
    "episodes_joined": "Requests that joined a running episode.",
    "episodes_stored": "Requests answered from the store.",
    "turns": "Turns of episodes that have ended.",
    "tokens_in": "Prompt tokens of episodes that have ended.",
    "tokens_sampled": "Sampled tokens of episodes that have ended.",
}
_ENGINE_COUNTERS = {
    "prompt_tokens": "Requested prompt tokens.",
    "computed_prompt_tokens": "Computed prompt tokens, without tokens shared with another prompt.",
    "generated_tokens": "Tokens that the model sampled.",
}


def _family(name: str, description: str, samples: dict[str, int]) -> Iterator[str]:
    """
    >>> list(_family("a_total", "Of a.", {'{b="c"}': 2}))
    ['# HELP palimpsest_a_total Of a.', '# TYPE palimpsest_a_total counter', 'palimpsest_a_total{b="c"} 2']
    """
    yield f"# HELP palimpsest_{name} {description}"
    yield f"# TYPE palimpsest_{name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in samples.items():
        yield f"palimpsest_{name}{labels} {value}"

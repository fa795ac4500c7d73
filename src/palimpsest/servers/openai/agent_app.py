"""The agent server: routes, limits and options.

    POST /v1/chat/completions           POST /v1/responses
    GET /v1/models                      GET /health  /ready  /metrics (Prometheus text)

Guaranteed: what servers/http_service.py and servers/request_log.py do; with a key every
path but /health and /ready asks for it; every error is OpenAI's error object; bodies, their sum, episodes that run
and that wait are bounded; what a client sends never becomes a control token, a path or an address that is asked for.
Not covered: TLS, slow clients, shares of the places between clients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from palimpsest.errors import ConfigError
from palimpsest.servers.http_service import Guard, Intake, ReadingThreads, json_response
from palimpsest.servers.openai.chat_completions import Chat
from palimpsest.servers.openai.episode_log import Store
from palimpsest.servers.openai.request_bodies import Bodies, openai_error
from palimpsest.servers.openai.request_resolver import Orders, check_model
from palimpsest.servers.openai.responses import Responses
from palimpsest.servers.openai.served_agent import AgentInterface
from palimpsest.servers.openai.served_episodes import Bounds, Episodes
from palimpsest.servers.openai.server_metrics import CONTENT_TYPE, metrics_text
from palimpsest.servers.request_log import RequestLog

# ---- What the operator of the server chooses -----------------------------------------------------------------


CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST"),
    "allow_headers": ("*",),
    "expose_headers": ("X-Palimpsest-Input", "X-Palimpsest-Instructions", "X-Palimpsest-Ignored", "Retry-After"),
}
"""For starlette's middleware, with the origins. Credentials, which are cookies here, are not allowed."""
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the server does that clients don't choose."""

    log_requests: bool = True
    ignore_unsupported: bool = False
    """Whether parameters that can't be followed are ignored, and named in a header, instead of rejected."""
    cors_origins: tuple[str, ...] = ()
    """Of pages that may ask from a browser; `*`: of any page."""


def check_origins(origins: Sequence[str], token: str | None) -> None:
    """Raises ConfigError for what no browser sends as an origin, and for all pages where there is no key.

    >>> check_origins(["https://chat.example", "http://localhost:3000"], None)
    """
    for origin in origins:
        if origin == "*" and not token:
            raise ConfigError(
                "--cors-origin '*': any page could ask this server; name the pages, or give --api-key-env"
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"--cors-origin {origin!r:.60}: give scheme, host and port, as https://chat.example:8443")


def check_model_name(name: str) -> None:
    """Raises ConfigError for one that can't be in a path or a log line."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--served-model-name {name!r:.60}: give at most 128 ASCII letters, digits, '.', '_', ':', '/' and '-', "
            "a letter or a digit first"
        )


# ---- The agent server ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes at most."""

    body_bytes: int = 64 << 20
    body_seconds: float = 300.0
    """For a body to arrive whole."""
    bounds: Bounds = field(default_factory=Bounds)


_THREADS = 2
"""Documents that are encoded, or looked through for quotes, at once."""
_OPEN = ("/health", "/ready")
"""Answered without the key: a probe has none, and learns nothing but that the server runs."""


class AgentService:
    """The routes and what they share. One event loop."""

    def __init__(
        self,
        agent: AgentInterface,
        store: Store | None,
        *,
        model: str,
        token: str | None,
        limits: Limits,
        options: ServerOptions | None = None,
    ) -> None:
        """`model`: the agent's name as clients ask for it."""
        self.agent, self.store, self.limits, self._model = agent, store, limits, model
        self._token, self._options = token, options or ServerOptions()
        self._threads = ReadingThreads(_THREADS, "document")
        self.episodes = Episodes(agent, store, limits.bounds, self._threads)
        origins = self._options.cors_origins
        self._guard = Guard(token, form=openai_error, pages=False, open_paths=_OPEN, origins=origins)
        self._bodies = Bodies(Intake(), most=limits.body_bytes, seconds=limits.body_seconds)
        self._orders = orders = Orders(agent, model, self.episodes, self._bodies)
        lenient = self._options.ignore_unsupported
        self._chat = Chat(orders, self.episodes, self._bodies, agent, lenient)
        self._responses = Responses(orders, self.episodes, self._bodies, lenient)

    def app(self) -> Starlette:
        app = self._guard.app(
            (
                ("/v1/chat/completions", "POST", self._chat.completions),
                ("/v1/responses", "POST", self._responses.create),
                ("/v1/models", "GET", self._models),
                ("/v1/models/{model:path}", "GET", self._named),
                ("/health", "GET", lambda _: json_response({"status": "ok"})),
                ("/ready", "GET", lambda _: json_response({"status": "ready"})),
                ("/metrics", "GET", self._metrics),
            )
        )
        if self._options.cors_origins:
            app.add_middleware(CORSMiddleware, allow_origins=self._options.cors_origins, **CORS)
        if self._options.log_requests:
            app.add_middleware(RequestLog, secret=self._token)
        return app

    async def close(self) -> None:
        """Cancel what runs. What is under way on threads is not waited for: only the event loop keeps what it gives."""
        await self.episodes.drain()
        self._threads.close()
        self._bodies.close()
        self._orders.close()

    def _models(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [self._shown()]})

    def _named(self, request: Request) -> Response:
        check_model(request.path_params["model"], self._model)
        return json_response(self._shown())

    def _shown(self) -> dict[str, object]:
        own = asdict(self.agent.card)
        longest = own.pop("max_model_len") or self.limits.body_bytes  # a token has at least a byte
        facts = {"id": self._model, "object": "model", "created": 0, "owned_by": "palimpsest"}
        return {**facts, "max_model_len": longest, "palimpsest": {**own, "fingerprint": self.agent.fingerprint}}

    def _metrics(self, _: Request) -> Response:
        episodes = self.episodes
        text = metrics_text(
            self._guard.statuses,
            episodes.counts,
            self.agent.stats,
            running=episodes.running,
            waiting=episodes.waiting,
        )
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

"""OpenAI-compatible agent server: routes, limits and options.

    POST /v1/chat/completions           POST /v1/responses
    GET /v1/models                      GET /health  /ready  /metrics (Prometheus text)

Guaranteed: all guarantees of servers/http_service.py and servers/request_log.py; with a key, every path but /health and
/ready requires it; every error is OpenAI's error object; bodies, their sum, and running and waiting episodes are
bounded; client input never becomes a control token, a path or an address that is fetched; metric labels are outcomes
and statuses, never text of a client, so that their number is bounded.
Not covered: TLS, slow clients, fair shares between clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from palimpsest.engines.protocol import SamplerStats
from palimpsest.errors import ConfigError
from palimpsest.servers.http_service import Intake, ReadingThreads, RequestGuard, json_response
from palimpsest.servers.openai.chat_completions import ChatRoutes
from palimpsest.servers.openai.episode_log import Store
from palimpsest.servers.openai.request_bodies import Bodies, openai_error
from palimpsest.servers.openai.request_resolver import Orders, check_model
from palimpsest.servers.openai.responses import Responses
from palimpsest.servers.openai.served_agent import AgentInterface
from palimpsest.servers.openai.served_episodes import Bounds, Episodes
from palimpsest.servers.request_log import RequestLog

# ---- What the server counts, in Prometheus' text format 0.0.4 ------------------------------------------------


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EPISODE_COUNTERS = {
    "episodes_begun": "Episodes that were started.",
    "episodes_joined": "Requests whose episode was running already.",
    "episodes_stored": "Requests whose episode was in the store.",
    "turns": "Turns of episodes that have ended.",
    "tokens_in": "Prompt tokens of episodes that have ended.",
    "tokens_sampled": "Sampled tokens of episodes that have ended.",
}
_ENGINE_COUNTERS = {
    "prompt_tokens": "Prompt tokens that the model was asked for.",
    "computed_prompt_tokens": "Prompt tokens that were computed, not shared with another prompt.",
    "generated_tokens": "Tokens that the model sampled.",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name."""

    name: str
    kind: str
    """`counter` or `gauge`."""
    help: str
    samples: Sequence[tuple[str, float]]
    """(labels as they are printed, value)."""

    def lines(self) -> Iterator[str]:
        """
        >>> list(Family("a_total", "counter", "Of a.", [('{b="c"}', 2)]).lines())
        ['# HELP a_total Of a.', '# TYPE a_total counter', 'a_total{b="c"} 2']
        """
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            yield f"{self.name}{labels} {value:.15g}"


def metrics_text(
    statuses: Mapping[int, int], counts: Mapping[str, int], stats: SamplerStats, *, running: int, waiting: int
) -> str:
    """`counts`: of episodes, as `Episodes.counts` has them."""

    def families() -> Iterator[Family]:
        by_status = [(f'{{status="{code}"}}', n) for code, n in sorted(statuses.items())]
        yield Family("palimpsest_requests_total", "counter", "Requests by the status of their answer.", by_status)
        outcomes = [(name.removeprefix("outcome:"), n) for name, n in sorted(counts.items()) if ":" in name]
        by_outcome = [(f'{{outcome="{name}"}}', n) for name, n in outcomes]
        yield Family("palimpsest_episodes_total", "counter", "Episodes that have ended.", by_outcome)
        for name, said in _EPISODE_COUNTERS.items():
            value = counts.get(name.removeprefix("episodes_"), 0)
            yield Family(f"palimpsest_{name}_total", "counter", said, [("", value)])
        for name, said in _ENGINE_COUNTERS.items():
            yield Family(f"palimpsest_engine_{name}_total", "counter", said, [("", getattr(stats, name))])
        yield Family("palimpsest_episodes_running", "gauge", "Episodes that run.", [("", running)])
        yield Family("palimpsest_episodes_waiting", "gauge", "Episodes that wait for a place.", [("", waiting)])

    return "".join(f"{line}\n" for family in families() for line in family.lines())


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
class ServerLimits:
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
        limits: ServerLimits,
        options: ServerOptions | None = None,
    ) -> None:
        """`model`: the agent's name as clients ask for it."""
        self.agent, self.store, self.limits, self._model = agent, store, limits, model
        self._token, self._options = token, options or ServerOptions()
        self._threads = ReadingThreads(_THREADS, "document")
        self.episodes = Episodes(agent, store, limits.bounds, self._threads)
        origins = self._options.cors_origins
        self._guard = RequestGuard(token, form=openai_error, pages=False, open_paths=_OPEN, origins=origins)
        self._bodies = Bodies(Intake(), most=limits.body_bytes, seconds=limits.body_seconds)
        self._orders = orders = Orders(agent, model, self.episodes, self._bodies)
        lenient = self._options.ignore_unsupported
        self._chat = ChatRoutes(orders, self.episodes, self._bodies, agent, lenient)
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

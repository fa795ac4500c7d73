"""The agent server: routes, limits, options, and its OpenAPI description.

    POST /v1/chat/completions           POST /v1/completions
    GET /v1/models                      GET DELETE /v1/episodes/ID
    POST /v1/responses
    POST /tokenize                      GET /health  /ready  /version  /metrics (Prometheus text)
    GET /view/ID (a page)               GET /openapi.json

Guaranteed: what servers/http_service.py, servers/connection_limits.py and servers/request_log.py do; with a key every
path but /health and
/ready asks for it; every error is OpenAI's error object; bodies, files, their sum, episodes that run
and that wait are bounded; what a client sends never becomes a control token, a path or an address that is asked for.
Not covered: TLS; shares of the places between clients.

GET /openapi.json: the routes and bodies as OpenAPI 3.1 describes them.

Bodies come from the models that check them; a route and its line here are kept the same by a test.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from palimpsest.errors import ConfigError
from palimpsest.servers.connection_limits import ConnectionLimits
from palimpsest.servers.http_service import Guard, Intake, ReadingThreads, Refused, json_response, shown
from palimpsest.servers.openai.chat_completions import Chat, CompletionBody, TokenizeBody
from palimpsest.servers.openai.episode_store import Quota, Store, damaged
from palimpsest.servers.openai.request_bodies import Bodies, ChatBody, checked, invalid, json_object, openai_error
from palimpsest.servers.openai.request_resolver import Orders, check_model, needed
from palimpsest.servers.openai.responses import ResponseBody, Responses
from palimpsest.servers.openai.served_agent import Agents
from palimpsest.servers.openai.served_episodes import Bounds, Episodes
from palimpsest.servers.openai.server_metrics import CONTENT_TYPE, RequestMeasures, families_of, gauge, text_of
from palimpsest.servers.request_log import EndedRequest, RequestLog, log_request

# ---- GET /openapi.json ---------------------------------------------------------------------------------------


_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponseBody,
    "/tokenize": TokenizeBody,
}
OPERATIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("/v1/chat/completions", "post"): ("createChatCompletion", "Ask the agent, with messages."),
    ("/v1/completions", "post"): ("createCompletion", "Ask the agent, with a prompt."),
    ("/v1/responses", "post"): ("createResponse", "Ask the agent, in the form of responses."),
    ("/v1/models", "get"): ("listModels", "The policies, as models that can be asked."),
    ("/v1/models/{model}", "get"): ("getModel", "One policy."),
    ("/v1/episodes/{episode}", "get"): ("getEpisode", "An episode turn by turn, in tokens."),
    ("/v1/episodes/{episode}", "delete"): ("deleteEpisode", "Forget an episode that has ended."),
    ("/view/{episode}", "get"): ("viewEpisode", "A page that shows an episode that has ended."),
    ("/tokenize", "post"): ("tokenize", "The tokens of a text."),
    ("/health", "get"): ("health", "Whether the server runs."),
    ("/ready", "get"): ("ready", "Whether the server takes requests."),
    ("/version", "get"): ("version", "The version of palimpsest."),
    ("/metrics", "get"): ("metrics", "Measures, in Prometheus' text format."),
    ("/openapi.json", "get"): ("openapi", "This document."),
}
"""(path, method): (id, what it does)."""
_ANSWERS = {"viewEpisode": "text/html", "metrics": "text/plain"}
_STREAMED = ("createChatCompletion", "createCompletion", "createResponse")
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def document(version: str, *, key: bool, open_paths: tuple[str, ...]) -> dict[str, Any]:
    """`key`: whether the server asks for one, but of `open_paths`."""
    models = list(_BODIES.values())
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), (name, summary) in OPERATIONS.items():
        paths.setdefault(path, {})[method] = _operation(path, method, name, summary)
        if path in open_paths:
            paths[path][method]["security"] = []
    components: dict[str, Any] = {"schemas": {**schemas["$defs"], "Error": _ERROR}}
    if key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    info = {"title": "palimpsest", "version": version, "description": "OpenAI's interface over a memory agent."}
    secured = {"security": [{"key": list[str]()}]} if key else {}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components, **secured}


def _operation(path: str, method: str, name: str, summary: str) -> dict[str, Any]:
    kind = _ANSWERS.get(name, "application/json")
    content: dict[str, Any] = {kind: {}, **({"text/event-stream": {}} if name in _STREAMED else {})}
    told = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    parameters: list[dict[str, Any]] = [
        {"name": each, "in": "path", "required": True, "schema": {"type": "string"}}
        for each in re.findall(r"\{(\w+)\}", path)
    ]
    found = {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": summary, "content": content},
            "default": {"description": "Why not.", "content": told},
        },
    }
    if method == "post" and path in _BODIES:
        schema = {"$ref": f"#/components/schemas/{_BODIES[path].__name__}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


# ---- What the operator of the server chooses -----------------------------------------------------------------


CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST", "DELETE"),
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
    quota: Quota = field(default_factory=Quota)
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


_THREADS = 2
"""Documents that are encoded, or looked through for quotes, at once."""
_TOKENIZED = 1 << 20
"""Characters that /tokenize encodes."""
_OPEN = ("/health", "/ready")
"""Answered without the key: a probe has none, and learns nothing but that the server runs."""
_SEALED = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page names the hashes of all that may run in it
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AgentService:
    """The routes and what they share. One event loop."""

    def __init__(
        self,
        agents: Agents,
        store: Store | None,
        *,
        token: str | None,
        limits: Limits,
        version: Callable[[], str],
        options: ServerOptions | None = None,
    ) -> None:
        self.agents, self.store, self.limits = agents, store, limits
        self._token, self._options = token, options or ServerOptions()
        self._threads = ReadingThreads(_THREADS, "document")
        self.episodes = Episodes(agents, store, limits.bounds, self._threads)
        self._version = version
        self._page_place = asyncio.Semaphore(1)  # a page is computed from a whole episode
        self._measures = RequestMeasures()
        origins = self._options.cors_origins
        self._guard = Guard(token, form=openai_error, pages=False, open_paths=_OPEN, origins=origins)
        self._bodies = Bodies(Intake(limits.connection), most=limits.body_bytes, seconds=limits.body_seconds)
        self._orders = orders = Orders(agents, self.episodes, self._bodies)
        lenient = self._options.ignore_unsupported
        self._chat = Chat(orders, self.episodes, self._bodies, lambda: agents.current.fingerprint, lenient)
        self._responses = Responses(orders, self.episodes, self._bodies, lenient)

    def app(self) -> Starlette:
        app = self._guard.app(
            (
                ("/v1/chat/completions", "POST", self._chat.completions),
                ("/v1/completions", "POST", self._chat.text_completions),
                ("/v1/responses", "POST", self._responses.create),
                ("/v1/models", "GET", self._models),
                ("/v1/models/{model:path}", "GET", self._model),
                ("/v1/episodes/{episode}", "GET", self._episode),
                ("/v1/episodes/{episode}", "DELETE", self._forget),
                ("/view/{episode}", "GET", self._view),
                ("/tokenize", "POST", self._tokenize),
                ("/health", "GET", lambda _: json_response({"status": "ok"})),
                ("/ready", "GET", lambda _: json_response({"status": "ready"})),
                ("/version", "GET", lambda _: json_response({"version": self._version()})),
                ("/metrics", "GET", self._metrics),
                ("/openapi.json", "GET", self._openapi),
            )
        )
        if self._options.cors_origins:
            app.add_middleware(CORSMiddleware, allow_origins=self._options.cors_origins, **CORS)
        app.add_middleware(RequestLog, ended=self._ended)
        return app

    def _ended(self, request: EndedRequest) -> None:
        self._measures.ended(request.route, request.seconds, request.first_byte)
        if self._options.log_requests:
            log_request(request, self._token)

    async def close(self) -> None:
        """Cancel what runs. What is under way on threads is not waited for: only the event loop keeps what it gives."""
        await self.episodes.drain()
        self._threads.close()
        self._bodies.close()
        self._orders.close()

    def _models(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [self._shown(name) for name in self.agents.current.cards]})

    def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        check_model(self.agents.current, name)
        return json_response(self._shown(name))

    def _shown(self, name: str) -> dict[str, object]:
        agent = self.agents.current
        card = agent.cards[name].to_json()
        own = {name: value for name, value in card.items() if name not in ("id", "max_model_len")}
        facts = {"id": name, "object": "model", "created": 0, "owned_by": "palimpsest"}
        return {**facts, "max_model_len": self._longest(name), "palimpsest": {**own, "fingerprint": agent.fingerprint}}

    def _longest(self, name: str) -> int:
        """Tokens of the longest document that the model takes in one request: what every route reports."""
        return self.agents.current.cards[name].max_model_len or self.limits.body_bytes  # a token has at least a byte

    async def _episode(self, request: Request) -> Response:
        name, store = request.path_params["episode"], needed(self.store)
        running = self.episodes.get(name) is not None

        def told() -> Response:
            if (found := store.record(name)) is None:
                raise Refused(404, f"episode {shown(name)}: nothing is kept of it", code="not_found")
            return json_response({**found, "running": running})

        return await self._threads.run(told)

    def _forget(self, request: Request) -> Response:
        name = request.path_params["episode"]
        if self.episodes.get(name) is not None:
            raise Refused(409, f"episode {name}: it runs; delete it when it has ended", code="running")
        needed(self.store).forget(name)
        return json_response({"id": name, "object": "episode", "deleted": True})

    async def _view(self, request: Request) -> Response:
        name = request.path_params["episode"]
        async with self._page_place:
            record = await self._threads.run(lambda: needed(self.store).record(name))
            if record is None or record["result"] is None:
                raise Refused(404, f"episode {shown(name)}: none that has ended is kept", code="not_found")
            if "damaged_lines" in record:
                raise damaged(f"episode {shown(name)}", "delete it and send the request again")
            page = await self._threads.run(lambda: self.agents.current.page(record))
        return Response(page, media_type="text/html", headers=_SEALED)

    async def _tokenize(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        asked: TokenizeBody = await self._bodies.look(len(body), lambda: checked(TokenizeBody, json_object(body)))
        agent = self.agents.current
        name = asked.model if asked.model is not None else next(iter(agent.cards))
        check_model(agent, name)
        if len(asked.prompt) > _TOKENIZED:
            raise invalid("prompt", f"{len(asked.prompt)} characters, at most {_TOKENIZED} are encoded")
        ids = await self._threads.run(lambda: agent.codec.encode(asked.prompt))
        return json_response({"count": len(ids), "max_model_len": self._longest(name), "tokens": ids})

    def _openapi(self, _: Request) -> Response:
        return json_response(document(self._version(), key=bool(self._token), open_paths=_OPEN))

    def _metrics(self, _: Request) -> Response:
        stats, episodes = self.agents.current.stats, self.episodes
        families = (
            *families_of(self._guard.statuses, self._measures, episodes.measures, stats),
            gauge("palimpsest_episodes_running", "Episodes that run.", episodes.running),
            gauge("palimpsest_episodes_waiting", "Episodes that wait for a place.", episodes.waiting),
        )
        return Response(text_of(families), headers={"Content-Type": CONTENT_TYPE})

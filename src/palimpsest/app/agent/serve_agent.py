"""A memory agent as a service: open it, serve concurrent requests, close it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from palimpsest.agents.open_agent import open_agent
from palimpsest.app.config_resolution import Agent
from palimpsest.app.python_calls import finish
from palimpsest.config.schema import RunConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.registry import policy_class
from palimpsest.servers.http_service import Server, bound, check_host
from palimpsest.servers.openai.agent_app import AgentService, ServerOptions, check_model_name, check_origins
from palimpsest.servers.openai.episode_log import Store
from palimpsest.servers.openai.served_agent import ServedAgent, on_loop
from palimpsest.servers.openai.served_episodes import ServerLimits

MAIN = "palimpsest"
"""Default model name of the agent in the API."""


@dataclass(frozen=True, slots=True)
class Service:
    """Address, access and storage of a served agent."""

    host: str = "127.0.0.1"
    port: int = 8400
    token: str | None = None
    store: Path | None = None
    """None: nothing is stored on disk."""
    drain_seconds: int = 30
    """For running requests after a signal."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    model_name: str = MAIN
    options: ServerOptions = field(default_factory=ServerOptions)


def default_store() -> Path:
    """Store folder of this user."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "palimpsest" / "serve"


def serve_agent(agent: Agent, service: Service, announce: Callable[[str], None]) -> None:
    """Bind the address, open the agent, serve until a signal; `announce` gets the address.

    Raises ConfigError for an invalid address, token or policy, RunError for a store in use.
    """
    check_host(service.host, service.token)
    check_model_name(service.model_name)
    check_origins(service.options.cors_origins, service.token)
    config = agent.config({})
    if not policy_class(config.policy.name).reads_documents:
        raise ConfigError(f"--policy {config.policy.name}: reads no documents; choose one that does, e.g. overwrite")
    with ExitStack() as stack:
        taken = stack.enter_context(bound(service.host, service.port))
        store = None if service.store is None else Store(service.store)
        if store is not None:
            stack.callback(store.close)
        finish(lambda: _serve(agent, config, service, taken, store, announce))


async def _serve(
    agent: Agent,
    config: RunConfig,
    service: Service,
    taken: socket.socket,
    store: Store | None,
    announce: Callable[[str], None],
) -> None:
    async with _episode_loop() as loop:
        open_one = await on_loop(loop, _opened_agent(config, loop))
        try:
            served = AgentService(
                open_one,
                store,
                model=service.model_name,
                token=service.token,
                limits=service.limits,
                options=service.options,
            )
            server = Server(served.app(), taken, grace_seconds=service.drain_seconds)
            announce(f"{os.fspath(agent.model)} at {server.url}/v1")
            await server.serve()
            await served.close()
        finally:
            await on_loop(loop, open_one.close())


@asynccontextmanager
async def _episode_loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """An event loop on a thread, for episodes: their work grows with prompts, and requests don't wait for it."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def wait() -> None:
        ended = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), ended))
        await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(wait(),), name="episodes", daemon=True)
    thread.start()
    loop, ended = await asyncio.wrap_future(started)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(ended.set)
        await asyncio.to_thread(thread.join)


async def _opened_agent(config: RunConfig, loop: asyncio.AbstractEventLoop | None = None) -> ServedAgent:
    """Open the agent and freeze its objects for Python's collector: scanning them would block everything for 200 ms."""
    opened = await asyncio.to_thread(ServedAgent, await open_agent(config), loop)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return opened

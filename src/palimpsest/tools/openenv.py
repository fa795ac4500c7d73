"""An OpenEnv server's environment (github.com/huggingface/OpenEnv) as ours.

    environment: {name: openenv, options: {url: "http://127.0.0.1:8000"}}

`metadata.reset` of a problem has the arguments of `reset`, such as a seed; problems of `data.train_files=seeds` have
one. `action` names the field of the server's actions that holds the text, by default the only one that its schema
requires; `observation` the field of its observations that is shown, by default all of them as JSON.

Not covered: tools of MCP environments; observations that are no text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from palimpsest.config.install_hints import install_line
from palimpsest.errors import ConfigError
from palimpsest.http_connections import Connections
from palimpsest.http_services import check_address
from palimpsest.tools.environment import Environment, Step
from palimpsest.types import Problem

_OWN = ("done", "reward", "metadata")
"""Fields of every observation."""
_SCHEMA_BYTES, _SCHEMA_S = 1 << 20, 30.0


class OpenEnvEnvironment(Environment):
    """A session with the server."""

    def __init__(self, url: str, action: str | None = None, observation: str | None = None) -> None:
        """`url` of the server; `action`, `observation`: names of their text fields."""
        try:
            from openenv.core.generic_client import GenericEnvClient
        except ImportError:
            message = f"needs openenv: {install_line('openenv')}"
            raise ConfigError(message, key="environment.name", value="openenv") from None
        check_address(url, "environment.options.url")
        self.url, self.action, self.observation = url, action, observation
        self._client: Any = GenericEnvClient(base_url=url)

    async def reset(self, problem: Problem) -> str:  # type: ignore[override]
        if self.action is None:
            self.action = await only_field(self.url)
        await self._client.connect()
        result = await self._client.reset(**problem.metadata.get("reset", {}))
        return self._shown(result.observation)

    async def step(self, action: str) -> Step:  # type: ignore[override]
        result = await self._client.step({str(self.action): action})
        return Step(self._shown(result.observation), float(result.reward or 0.0), bool(result.done))

    async def close(self) -> None:  # type: ignore[override]
        await self._client.close()

    def _shown(self, observation: Mapping[str, Any]) -> str:
        if self.observation is not None:
            if self.observation not in observation:
                there = ", ".join(observation)
                raise ConfigError(f"is no field of {there}", key="environment.options.observation")
            return str(observation[self.observation])
        fields = {name: value for name, value in observation.items() if name not in _OWN}
        if len(fields) == 1 and isinstance(only := next(iter(fields.values())), str):
            return only
        return json.dumps(fields, ensure_ascii=False)


async def only_field(url: str) -> str:
    """The only required field of the server's actions. Raises ConfigError for several, Unanswered without a reply."""
    connections = Connections()
    try:
        reply = await connections.ask("GET", f"{url.rstrip('/')}/schema", limit=_SCHEMA_BYTES, timeout_s=_SCHEMA_S)
        schema = reply.json()["action"]
        required = [name for name in schema.get("required", ()) if name != "metadata"]
        fields = [str(name) for name in schema.get("properties", ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        required, fields = [], []
    finally:
        await connections.close()
    if len(required) != 1:
        message = f"name the text field of an action: {', '.join(fields) or f'{url}/schema names none'}"
        raise ConfigError(message, key="environment.options.action")
    return str(required[0])

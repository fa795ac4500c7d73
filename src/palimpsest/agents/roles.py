"""Roles and their samplers: turns of a role with its own model are sampled by that model (`roles` in the recipe).

Guaranteed: a model with another tokenizer is an error before any episode, as the same ids would mean other text.
With `roles.NAME.url`, a server samples them (engines/endpoint), without retraining or weights in this process.
Not covered: placing models on devices (all load on `model.device`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from palimpsest.config.engine import EndpointEngineConfig
from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine, Sampler
from palimpsest.errors import ConfigError
from palimpsest.rollout.episode import Role, Roles
from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class OpenRoles:
    """The roles, and the engines opened for them."""

    samplers: Roles
    engines: tuple[Engine, ...]

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()


def open_roles(config: RunConfig, codec: Codec) -> OpenRoles:
    """The roles under `roles`; `codec` is that of the run's model."""
    samplers, engines = dict[str, Role](), list[Engine]()
    for name, role in config.roles.items():
        sampler: Sampler | None = None
        if role.url is not None and role.model is None:
            raise ConfigError("set the name of the model at the url", key=f"roles.{name}.model", value=None)
        if role.model is not None:
            engine = open_engine(_with_model(config, role.model, role.url), objective=None)
            engines.append(engine)
            _check_tokenizer(name, role.model, engine.codec, codec)
            sampler = engine.sampler
        samplers[name] = Role(sampler, role.temperature, role.max_tokens)
    return OpenRoles(samplers, tuple(engines))


def _with_model(config: RunConfig, path: str, url: str | None) -> RunConfig:
    model = config.model.model_copy(update={"path": path, "lora": None, "chat_template_kwargs": {}})
    changes: dict[str, Any] = {"model": model}
    if url is not None:
        tokenizer = getattr(config.engine, "tokenizer", None) or config.model.path
        changes["engine"] = EndpointEngineConfig(url=url, tokenizer=tokenizer)
    return config.model_copy(update=changes)


def _check_tokenizer(name: str, path: str, theirs: Codec, ours: Codec) -> None:
    if theirs.tokenizer.get_vocab() != ours.tokenizer.get_vocab() or theirs.stop_ids != ours.stop_ids:
        raise ConfigError(
            f"roles.{name}.model={path!r} has another tokenizer than model.path: prompts pass between them as token "
            "ids; choose a model of the same family"
        )

"""The roles that a configuration names, with a sampler for each that has a model of its own.

Guaranteed: a model with another tokenizer is refused before anything is played, for the ids of a prompt would mean
other words to it.
Not covered: placing models on devices; each is opened on `model.device`.
"""

from __future__ import annotations

from dataclasses import dataclass

from palimpsest.config.schema import RunConfig
from palimpsest.engines.open import open_engine
from palimpsest.engines.protocol import Engine
from palimpsest.errors import ConfigError
from palimpsest.rollout.roles import Role, Roles
from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes which turns, and what was opened for it."""

    roles: Roles
    engines: tuple[Engine, ...]

    async def close(self) -> None:
        """Close what was opened."""
        for engine in self.engines:
            await engine.close()


def open_roles(config: RunConfig, codec: Codec) -> Cast:
    """The roles under `roles`; `codec` is that of the run's own model."""
    roles, engines = {}, []
    for name, role in config.roles.items():
        sampler = None
        if role.model is not None:
            engine = open_engine(_with_model(config, role.model), objective=None)
            engines.append(engine)
            _check_tokenizer(name, role.model, engine.codec, codec)
            sampler = engine.sampler
        roles[name] = Role(sampler, role.trained)
    return Cast(roles, tuple(engines))


def _with_model(config: RunConfig, path: str) -> RunConfig:
    model = config.model.model_copy(update={"path": path, "lora": None, "chat_template_kwargs": {}})
    return config.model_copy(update={"model": model})


def _check_tokenizer(name: str, path: str, theirs: Codec, ours: Codec) -> None:
    if theirs.tokenizer.get_vocab() != ours.tokenizer.get_vocab() or theirs.stop_ids != ours.stop_ids:
        raise ConfigError(
            f"roles.{name}.model={path!r} has another tokenizer than model.path: prompts pass between them as token "
            "ids; choose a model of the same family"
        )

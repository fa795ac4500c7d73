"""The one door to engines: the only module that imports one. What comes out is known by engines/protocol.py alone."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from palimpsest import plugins
from palimpsest.config.engine import SHIPPED, EndpointEngineConfig, OwnEngineConfig, RayEngineConfig, model_path
from palimpsest.config.install_hints import install_line
from palimpsest.config.schema import ModelConfig, RunConfig, is_served
from palimpsest.engines.protocol import Engine, Objective
from palimpsest.errors import ConfigError, closed_after
from palimpsest.models.model_folder import check_name, opened

if TYPE_CHECKING:
    from palimpsest.engines.embedded.encoder import TextEncoder
    from palimpsest.engines.embedded.engine import EmbeddedEngine
    from palimpsest.engines.ray.engine import RayEngine

T = TypeVar("T")
_NEEDED = ("codec", "sampler", "learner", "limits", "close")


def open_engine(config: RunConfig, *, objective: Objective | None, folder: Path | None = None) -> Engine:
    """The engine that `config.engine` names, on the model that `config.model` names.

    `objective` is what its learner descends; None opens it for sampling alone, which the engine does itself, whatever
    `config.sampler` names. `folder` is the run's, for what servers print. Raises ConfigError for an engine that
    isn't there or isn't one, and for GPUs that two processes would take or that are too small; ModelError for a model
    that can't be used. Whoever opens it closes it (`using`).
    """
    check_models(config)
    if isinstance(config.engine, EndpointEngineConfig):
        return _endpoint(config, objective)
    for path in _models(config):
        if Path(path).is_dir() or not isinstance(config.engine, OwnEngineConfig):
            opened(path)  # those of roles too, before the first is loaded
    if isinstance(config.engine, OwnEngineConfig):
        return _plugin_engine(config.engine, config, objective)
    from palimpsest.engines.preflight import check_gpus, with_dtype  # torch looks for GPUs

    config = with_dtype(config, objective)
    for warning in check_gpus(config, objective):
        warnings.warn(warning, stacklevel=2)
    served = is_served(config, objective)
    if isinstance(config.engine, RayEngineConfig):
        on_ray = _on_ray(config, objective)
        return _served(on_ray, config, folder) if served else on_ray
    from palimpsest.engines.embedded.engine import EmbeddedEngine

    separate = objective == "policy" and config.train.max_off_policy_steps > 0 and not served
    engine = EmbeddedEngine(config, objective=objective, separate=separate)
    return _served(engine, config, folder) if served else engine


def _served(engine: EmbeddedEngine | RayEngine, config: RunConfig, folder: Path | None) -> Engine:
    """`engine` with servers that sample in its place."""
    from palimpsest.engines.vllm.engine import ServedEngine

    assert engine.learner is not None
    return ServedEngine(engine, engine.learner, config, folder)


def _endpoint(config: RunConfig, objective: Objective | None) -> Engine:
    if objective is not None:
        raise ConfigError("engine.name=endpoint samples alone: train with engine.name=embedded or ray")
    from palimpsest.engines.endpoint.engine import EndpointEngine

    return EndpointEngine(config)


def _on_ray(config: RunConfig, objective: Objective | None) -> RayEngine:
    if find_spec("ray") is None:
        raise ConfigError(f"engine.name=ray needs Ray: {install_line('ray')}")
    from palimpsest.engines.ray.engine import RayEngine

    return RayEngine(config, objective=objective)


def check_models(config: RunConfig) -> None:
    """Refuse at once a model that isn't there, of the run or of a role; what a user's own engine opens is its affair,
    and what an endpoint calls its models.

    Raises ModelError.
    """
    if not isinstance(config.engine, OwnEngineConfig | EndpointEngineConfig):
        for path in _models(config):
            check_name(path, SHIPPED)


def check_state(config: RunConfig, checkpoint: Path) -> None:
    """Refuse at once an engine that can't take up what another saved in `checkpoint`. Raises CheckpointError."""
    from palimpsest.engines.embedded.checkpoint_state import facts_of_shares

    if isinstance(config.engine, RayEngineConfig):
        with suppress(OSError, ValueError):  # it is damaged: the one before it may be taken up
            facts_of_shares(checkpoint)


def _models(config: RunConfig) -> list[str]:
    named = [config.model.path, *(role.model for role in config.roles.values() if role.model is not None)]
    return [model_path(ModelConfig(path=path)) for path in named]


def open_encoder(model: str, preset: str, changes: Mapping[str, Any], *, device: str) -> TextEncoder:
    """An encoder of texts into vectors, for dense retrieval; `changes` are to the preset's way of reading."""
    from palimpsest.engines.embedded.encoder import TextEncoder, reading_of

    return TextEncoder(model, reading_of(model, preset, **changes), device=device)


def cast(folder: Path, dtype: str) -> None:
    """Round the weights in `folder` to `dtype`, float32 or bfloat16."""
    from palimpsest.engines.embedded.model_export import cast as cast_weights

    cast_weights(folder, dtype)


def write_merged(config: ModelConfig, folder: Path, *, untied: bool) -> None:
    """Write the model that `config` names, adapters merged, in `config.dtype` into `folder`; `untied`: its output
    projection too where it is tied to the embeddings."""
    from palimpsest.engines.embedded.model_export import write_merged as write

    write(config, folder, untied=untied)


def give_back_freed_memory() -> None:
    """Give memory that the embedded engine keeps for its next tensors back to the system."""
    from palimpsest.engines.embedded import compute

    compute.give_back_freed_memory()


class Closes(Protocol):
    async def close(self) -> None: ...


async def using(opened: Closes, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, then close what was opened for it, an engine say."""
    return await closed_after(work, opened.close, type(opened).__name__)


def _plugin_engine(section: OwnEngineConfig, config: RunConfig, objective: Objective | None) -> Engine:
    """The user's engine, made with the run's configuration, the objective and `engine.options`."""
    engine: Engine = plugins.build("engine", section.name, section.options, config=config, objective=objective)
    if missing := [name for name in _NEEDED if not hasattr(engine, name)]:
        message = f"has no {' and no '.join(missing)}; see docs/own-engine.md"
        raise ConfigError(message, key="engine.name", value=section.name)
    if objective is not None and engine.learner is None:
        message = f"has no learner for objective={objective!r}, so it can't train"
        raise ConfigError(message, key="engine.name", value=section.name)
    return engine

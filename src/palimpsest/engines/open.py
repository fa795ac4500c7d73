"""Opens engines: the only module that imports them. Callers know only engines/protocol.py."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Mapping, Sequence
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
from palimpsest.models.model_folder import adapters_of, check_name, open_model, opened

if TYPE_CHECKING:
    from palimpsest.engines.embedded.encoder import TextEncoder
    from palimpsest.engines.embedded.engine import EmbeddedEngine
    from palimpsest.engines.ray.engine import RayEngine
    from palimpsest.engines.vllm.engine import Hosts

T = TypeVar("T")
_NEEDED = ("codec", "sampler", "learner", "limits", "close")


def open_engine(config: RunConfig, *, objective: Objective | None, folder: Path | None = None) -> Engine:
    """Open the engine `config.engine` on the model `config.model`.

    `objective`: the learner's loss; None opens the engine only for sampling. `folder`: for server logs. Raises
    ConfigError for a missing or invalid engine, and for GPUs that two processes would share or that are too small;
    ModelError for a model that can't be used. The caller closes the engine (`using`).
    """
    check_models(config)
    if isinstance(config.engine, EndpointEngineConfig):
        return _endpoint(config, objective)
    for path in _models(config):
        if Path(path).is_dir() or not isinstance(config.engine, OwnEngineConfig):
            opened(path)  # those of roles too, before the first is loaded
    if isinstance(config.engine, OwnEngineConfig):
        return _plugin_engine(config.engine, config, objective)
    from palimpsest.engines.embedded.model_loading import with_dtype  # torch looks for GPUs
    from palimpsest.engines.preflight import check_gpus, with_share

    config = with_sampler(config, objective)
    _check_packages(config, objective)
    config = with_dtype(config, objective)
    for warning in check_gpus(config, objective):
        warnings.warn(warning, stacklevel=2)
    served = is_served(config, objective)
    if served and objective is None:
        return _served_model(config, folder)
    config = with_share(config) if served else config
    if isinstance(config.engine, RayEngineConfig):
        from palimpsest.engines.ray.engine import RayEngine

        on_ray = RayEngine(config, objective=objective)
        return _served(on_ray, config, folder, on_ray.hosts) if served else on_ray
    from palimpsest.engines.embedded.engine import EmbeddedEngine

    separate = objective == "policy" and config.train.max_off_policy_steps > 0 and not served
    engine = EmbeddedEngine(config, objective=objective, separate=separate)
    return _served(engine, config, folder) if served else engine


def _served(
    engine: EmbeddedEngine | RayEngine, config: RunConfig, folder: Path | None, hosts: Hosts | None = None
) -> Engine:
    from palimpsest.engines.vllm.engine import ServedEngine

    assert engine.learner is not None
    return ServedEngine(engine, engine.learner, config, folder, hosts)


def _served_model(config: RunConfig, folder: Path | None) -> Engine:
    if config.sampler.urls:
        fix = "for servers that have the model use --base-url URL/v1; otherwise omit sampler.urls"
        raise ConfigError(f"sampler.urls={list(config.sampler.urls)}: these servers get weights from training; {fix}")
    from palimpsest.engines.embedded.engine import check_vocabulary
    from palimpsest.engines.embedded.model_loading import described_limits
    from palimpsest.engines.vllm.engine import ServedEngine, StoredModel
    from palimpsest.text.codec import Codec

    adapters, base = adapters_of(model_path(config.model))
    limits, codec = described_limits(config.model), Codec.load(config.model)
    check_vocabulary(codec, limits.vocab, config.model.path)
    stored = StoredModel(config.model, codec, limits, write_merged if adapters else open_model(base)[0])
    return ServedEngine(stored, stored, config, folder)


def with_sampler(config: RunConfig, objective: Objective | None) -> RunConfig:
    """`config` with sampler.name=auto resolved for this machine."""
    if config.sampler.name != "auto":
        return config
    from palimpsest.engines.preflight import resolve_sampler  # torch looks for GPUs

    return resolve_sampler(config, objective)


async def start_servers(engine: Engine) -> None:
    """Start the vLLM servers of an engine without a learner, once. Raises SamplerError."""
    if (start := getattr(engine, "start_servers", None)) is not None:
        await start()


def _endpoint(config: RunConfig, objective: Objective | None) -> Engine:
    if objective is not None:
        raise ConfigError("engine.name=endpoint samples alone: train with engine.name=embedded or ray")
    from palimpsest.engines.endpoint.engine import EndpointEngine

    return EndpointEngine(config)


def _check_packages(config: RunConfig, objective: Objective | None) -> None:
    if config.engine.name == "ray" and find_spec("ray") is None:
        raise ConfigError(f"engine.name=ray needs Ray: {install_line('ray')}")
    if is_served(config, objective) and not config.sampler.urls:
        from palimpsest.engines.vllm.server_process import check_python

        check_python(config.sampler)


def check_engine(config: RunConfig) -> tuple[int | None, str]:
    """(window for training in tokens, what was not checked), without loading the model or starting a process.

    The window is None for a custom engine. On a machine without GPUs, a missing vLLM is only reported. Raises
    ConfigError for an engine that can't train, missing packages, and GPUs that are missing, too small or assigned
    twice; ModelError for an unusable model.
    """
    if isinstance(config.engine, EndpointEngineConfig):
        _endpoint(config, "policy")
    if isinstance(config.engine, OwnEngineConfig):
        return None, f"engine.name={config.engine.name} is custom: budgets and GPUs were not checked"
    from palimpsest.engines.embedded import compute
    from palimpsest.engines.embedded.model_loading import described_limits, with_dtype
    from palimpsest.engines.preflight import check_gpus

    unchecked = "" if compute.memories() else "none on this machine: the layout was not checked"
    if config.cluster.address is not None:
        unchecked = "those of cluster.address: the layout was not checked"
    try:
        _check_packages(config, "policy")
    except ConfigError as error:
        if not unchecked or (config.engine.name == "ray" and find_spec("ray") is None):
            raise
        unchecked += f"; {error}"
    for warning in check_gpus(with_dtype(config, "policy"), "policy"):
        warnings.warn(warning, stacklevel=2)
    window = described_limits(config.model).max_context
    return min(window, config.sampler.max_model_len or window), unchecked


def layout_on(
    gpus: int, objective: Objective | None, overrides: Sequence[str] = (), *, key: str = "--gpus"
) -> list[str]:
    """Overrides for `gpus` GPUs of this machine: a learner rank on each; for `objective` None a vLLM server, or a copy
    of the embedded sampler without vLLM or with sampler.name=embedded in `overrides`.

    Raises ConfigError, which names `key`, if this process sees fewer.
    """
    from palimpsest.engines.embedded.compute import gpus_but
    from palimpsest.engines.vllm.server_process import on_cpu

    names = gpus_but(())
    if (there := len(names)) < gpus:
        fix = f"give {key} {there}" if there else "omit it to compute on the CPU"
        raise ConfigError(f"{key} {gpus}: this process sees {there} GPUs; {fix}, or set CUDA_VISIBLE_DEVICES")
    if gpus == 1:
        return []
    if objective is None and "sampler.name=embedded" not in overrides and names[-1].isdecimal():
        with suppress(ConfigError):  # no vLLM
            if not on_cpu():
                return ["sampler.name=vllm", f"sampler.servers={gpus}", f"sampler.devices=[{','.join(names[:gpus])}]"]
    role = "sampler" if objective is None else "learner"
    return ["engine.name=ray", f"cluster.{role}s={gpus}", f"cluster.gpus_per_{role}=1"]


def check_models(config: RunConfig) -> None:
    """Reject missing models of the run and its roles. Models of a custom engine or an endpoint are not checked.

    Raises ModelError.
    """
    if not isinstance(config.engine, OwnEngineConfig | EndpointEngineConfig):
        for path in _models(config):
            check_name(path, SHIPPED)


def check_state(config: RunConfig, checkpoint: Path) -> None:
    """Raise CheckpointError if the engine can't load `checkpoint`, which another engine saved."""
    from palimpsest.engines.embedded.checkpoint_state import facts_of_shares

    if isinstance(config.engine, RayEngineConfig):
        with suppress(OSError, ValueError):  # damaged: resume may fall back to the one before it
            facts_of_shares(checkpoint)


def _models(config: RunConfig) -> list[str]:
    named = [config.model.path, *(role.model for role in config.roles.values() if role.model and not role.url)]
    return [model_path(ModelConfig(path=path)) for path in named]


def open_encoder(model: str, preset: str, changes: Mapping[str, Any], *, device: str) -> TextEncoder:
    """Text encoder for dense retrieval; `changes` override fields of the preset."""
    from palimpsest.engines.embedded.encoder import TextEncoder, reading_of

    return TextEncoder(model, reading_of(model, preset, **changes), device=device)


def cast(folder: Path, dtype: str) -> None:
    """Round the weights in `folder` to `dtype`, float32 or bfloat16."""
    from palimpsest.engines.embedded.model_export import cast as cast_weights

    cast_weights(folder, dtype)


def write_merged(config: ModelConfig, folder: Path, *, untied: bool) -> None:
    """Write the model of `config`, adapters merged, in `config.dtype` into `folder`; `untied`: also write an output
    projection that is tied to the embeddings."""
    from palimpsest.engines.embedded.model_export import write_merged as write

    write(config, folder, untied=untied)


class Closes(Protocol):
    async def close(self) -> None: ...


async def using(opened: Closes, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, then close the opened resource."""
    return await closed_after(work, opened.close, type(opened).__name__)


def _plugin_engine(section: OwnEngineConfig, config: RunConfig, objective: Objective | None) -> Engine:
    engine: Engine = plugins.build("engine", section.name, section.options, config=config, objective=objective)
    if missing := [name for name in _NEEDED if not hasattr(engine, name)]:
        message = f"has no {' and no '.join(missing)}; see docs/how-to/custom-engine.md"
        raise ConfigError(message, key="engine.name", value=section.name)
    if objective is not None and engine.learner is None:
        message = f"has no learner for objective={objective!r}, so it can't train"
        raise ConfigError(message, key="engine.name", value=section.name)
    return engine

"""The one door to engines: the only module that imports one. What comes out is known by engines/protocol.py alone."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from palimpsest.config.schema import RunConfig
from palimpsest.engines.protocol import Engine, Objective

if TYPE_CHECKING:
    from palimpsest.engines.embedded.encoder import TextEncoder

T = TypeVar("T")


def open_engine(config: RunConfig, *, objective: Objective | None) -> Engine:
    """The engine that `config.engine` names, on the model that `config.model` names.

    `objective` is what its learner descends; None opens it for sampling alone. Raises ConfigError for an engine that
    isn't there, ModelError for a model that can't be used. Whoever opens it closes it.
    """
    from palimpsest.engines.embedded.engine import EmbeddedEngine

    return EmbeddedEngine(config, objective=objective, separate=objective == "policy" and config.train.ahead > 0)


def open_encoder(model: str, preset: str, changes: Mapping[str, Any], *, device: str) -> TextEncoder:
    """An encoder of texts into vectors, for dense retrieval; `changes` are to the preset's way of reading."""
    from palimpsest.engines.embedded.encoder import TextEncoder, reading_of

    return TextEncoder(model, reading_of(model, preset, **changes), device=device)


class Closes(Protocol):
    async def close(self) -> None: ...


async def using(opened: Closes, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, then close what was opened for it, an engine say."""
    try:
        return await work
    finally:
        await opened.close()

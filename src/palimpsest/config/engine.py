"""`engine`: which engine samples and learns. Its name decides which keys the section has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from palimpsest.config.strict import Strict
from palimpsest.plugins import check_name, is_own

ENGINES = ("embedded", "ray")
"""Names of the engines inside the package."""
OWN = "own"  # the tag of the section of a user's own engine; no key


class _ShippedEngineConfig(Strict):
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads of one process. One where the cores are shared: two collapse under other load."""
    batch_slots: int = Field(128, ge=1)
    """Sequences the sampler decodes at once."""
    prefill_tokens: int = Field(8192, ge=1)
    """Prompt tokens (padding included) of one prefill call."""
    cache_tokens: int = Field(65_536, ge=0)
    """Tokens whose keys and values the sampler keeps for prompts that begin alike; least recently used ones make room.
    Their memory comes on top of the rows in use. 0 computes every prompt whole."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens of one prefix forest: one forward and backward pass of the learner, which bounds its memory. Larger ones
    share more; where little is shared, 2,048 are fastest for a small model on a CPU (they stay in caches)."""

    @field_validator("name", mode="before", check_fields=False)
    @classmethod
    def _known(cls, name: Any) -> Any:
        if not isinstance(name, str):
            raise ValueError(f"engine.name={name!r}: choose one of {', '.join(ENGINES)}, or my_module:MyEngine")
        return check_name(name, ENGINES, "engine.name", "engine", "my_module:MyEngine")


class EmbeddedEngineConfig(_ShippedEngineConfig):
    """PyTorch in this process, on a CPU or one GPU."""

    name: Literal["embedded"] = "embedded"
    """embedded; ray, in processes of their own (`cluster`); or my_module:MyEngine, which takes `options` alone."""


class RayEngineConfig(_ShippedEngineConfig):
    """The same in processes of their own, on one machine or many, as `cluster` says."""

    name: Literal["ray"] = "ray"


class OwnEngineConfig(Strict):
    """An engine from a user's own file."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    """What its class is called with."""


def _tag(section: Any) -> str:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    if isinstance(name, str) and is_own(name):
        return OWN
    return str(name) if name in ENGINES else "embedded"


EngineConfig = Annotated[
    Annotated[EmbeddedEngineConfig, Tag("embedded")]
    | Annotated[RayEngineConfig, Tag("ray")]
    | Annotated[OwnEngineConfig, Tag(OWN)],
    Discriminator(_tag),
]

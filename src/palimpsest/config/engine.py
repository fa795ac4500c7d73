"""`engine`: which engine samples and learns. Its name decides which keys the section has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from palimpsest.config.strict import MAX_WAIT_S, MIN_REPLY_S, Strict
from palimpsest.plugins import check_name, is_own

ENGINES = ("embedded", "ray", "endpoint")
"""Names of the engines inside the package."""
ALIKE = ("embedded", "ray")
"""Those whose sections have the same keys."""
OWN = "own"  # the tag of the section of a user's own engine; no key


class _NamedEngineConfig(Strict):
    @field_validator("name", mode="before", check_fields=False)
    @classmethod
    def _known(cls, name: Any) -> Any:
        if not isinstance(name, str):
            raise ValueError(f"engine.name={name!r}: choose one of {', '.join(ENGINES)}, or my_module:MyEngine")
        return check_name(name, ENGINES, "engine.name", "engine", "my_module:MyEngine")


class _ShippedEngineConfig(_NamedEngineConfig):
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


class EmbeddedEngineConfig(_ShippedEngineConfig):
    """PyTorch in this process, on a CPU or one GPU."""

    name: Literal["embedded"] = "embedded"
    """embedded; ray, in processes of their own (`cluster`); endpoint, an address that is evaluated (docs/endpoints.md
    has its keys); or my_module:MyEngine, which takes `options` alone."""


class RayEngineConfig(_ShippedEngineConfig):
    """The same in processes of their own, on one machine or many, as `cluster` says."""

    name: Literal["ray"] = "ray"


class EndpointEngineConfig(_NamedEngineConfig):
    """An OpenAI-compatible endpoint that samples, and learns nothing; `model.path` is the model's name there."""

    name: Literal["endpoint"] = "endpoint"
    url: str
    """What stands before /completions and /chat/completions, e.g. http://127.0.0.1:8000/v1."""
    api_key_env: str | None = None
    """Environment variable with the key."""
    mode: Literal["auto", "tokens", "completions", "chat"] = "auto"
    """tokens: prompts as token ids; completions: as text; chat: as messages; auto: the first of them that works."""
    tokenizer: str | None = None
    """Folder or hub id of the model's tokenizer; null: what `model.path` names, if that is a folder or a hub id."""
    max_context: int | None = Field(None, ge=2)
    """Window in tokens; null: what the endpoint, or the model's config.json, says."""
    logprobs: bool = True
    """Ask for log-probabilities, in mode tokens; nothing in an evaluation needs them."""
    thinking_tokens: int = Field(0, ge=0)
    """Tokens that a reply in mode chat may have beyond its budget: for thinking, which endpoints keep to themselves."""
    concurrency: int = Field(64, ge=1)
    """Requests at once, and episodes."""
    timeout_s: float = Field(600.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Until a request must be answered."""
    attempts: int = Field(8, ge=1)
    """Requests for one reply; between them pauses that double, from half a second to 20."""
    patience_s: float = Field(120.0, ge=0, le=MAX_WAIT_S)
    """How long nobody may answer before the evaluation ends."""


class OwnEngineConfig(Strict):
    """An engine from a user's own file."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    """What its class is called with."""


def engines_with(key: str) -> list[str]:
    """Names of the shipped engines whose section has `key`.

    >>> engines_with("url"), engines_with("threads"), engines_with("other")
    (['endpoint'], ['embedded', 'ray'], [])
    """
    sections = (EmbeddedEngineConfig, RayEngineConfig, EndpointEngineConfig)
    return [str(each.model_fields["name"].default) for each in sections if key in each.model_fields]


def _tag(section: Any) -> str:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    if isinstance(name, str) and is_own(name):
        return OWN
    return str(name) if name in ENGINES else "embedded"


EngineConfig = Annotated[
    Annotated[EmbeddedEngineConfig, Tag("embedded")]
    | Annotated[RayEngineConfig, Tag("ray")]
    | Annotated[EndpointEngineConfig, Tag("endpoint")]
    | Annotated[OwnEngineConfig, Tag(OWN)],
    Discriminator(_tag),
]

"""Sections `engine` and `cluster`: which engine samples and learns, and in which processes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from palimpsest.config.section import MAX_WAIT_S, MIN_REPLY_S, Strict
from palimpsest.plugin_kinds import KINDS, check_name

ENGINES = tuple(KINDS["engine"].shipped)
"""Names of the engines inside the package."""
ALIKE = ("embedded", "ray")
"""Those whose sections have the same keys."""
CUSTOM = "own"  # the tag of the section of a user's own engine; no key


class _NamedEngineConfig(Strict):
    @field_validator("name", mode="before", check_fields=False)
    @classmethod
    def _check_name(cls, name: Any) -> Any:
        if not isinstance(name, str):
            raise ValueError(f"engine.name={name!r}: choose one of {', '.join(ENGINES)}, or my_module:MyEngine")
        return check_name("engine", name)


class _ShippedEngineConfig(_NamedEngineConfig):
    num_threads: int = Field(1, ge=1, le=1024)
    """CPU threads of one process. One where the cores are shared: two collapse under other load."""
    max_num_seqs: int = Field(128, ge=1)
    """Sequences the sampler decodes at once."""
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
    max_model_len: int | None = Field(None, ge=2)
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


class OwnEngineConfig(_NamedEngineConfig):
    """An engine from a user's own file."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    """What its class is called with."""


def engines_with(key: str) -> list[str]:
    """Names of the shipped engines whose section has `key`.

    >>> engines_with("url"), engines_with("num_threads"), engines_with("other")
    (['endpoint'], ['embedded', 'ray'], [])
    """
    sections = (EmbeddedEngineConfig, RayEngineConfig, EndpointEngineConfig)
    return [str(section.model_fields["name"].default) for section in sections if key in section.model_fields]


def _tag(section: Any) -> str:
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    if isinstance(name, str) and ":" in name:
        return CUSTOM
    return str(name) if name in ENGINES else "embedded"


EngineConfig = Annotated[
    Annotated[EmbeddedEngineConfig, Tag("embedded")]
    | Annotated[RayEngineConfig, Tag("ray")]
    | Annotated[EndpointEngineConfig, Tag("endpoint")]
    | Annotated[OwnEngineConfig, Tag(CUSTOM)],
    Discriminator(_tag),
]


# ---- cluster -------------------------------------------------------------------------------------------------


_HOST = re.compile(r"[a-z0-9.-]+|\[[0-9a-f:.]+\]", re.IGNORECASE | re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}")
COPIES = ("samplers", "gpus_per_sampler", "placement")
"""Keys of the copies of the embedded sampler."""


class ClusterConfig(Strict):
    address: str | None = None
    """A Ray cluster to join, HOST:PORT of its head; None: one is started on this machine, and ended with the run."""
    learners: int = Field(1, ge=1, le=1024)
    """Ranks that share the weights (FSDP2). More than 1,024 are refused: one process deals the batch and asks
    each."""
    samplers: int = Field(1, ge=1, le=256)
    """Copies of the embedded sampler. More than 256 are refused: each takes a thread of the process that asks them."""
    gpus_per_learner: float | None = Field(None, ge=0)
    """null: 1 where there are GPUs, 0 otherwise; 0: ranks compute on CPUs."""
    gpus_per_sampler: float = Field(0.0, ge=0)
    """0: copies of the sampler compute on CPUs."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Ranks that divide each layer among them; the batch is dealt to learners / tensor_parallel."""
    placement: Literal["separate", "colocated"] = "separate"
    """colocated: learners and samplers share GPUs, each with a fraction."""
    folder: str | None = None
    """Where weights lie on their way to the samplers; None: /dev/shm of this machine. Every node must see it."""
    cpu_offload: bool = False
    """Weights, gradients and moments of the learners lie in the machines' own memory."""
    timeout_s: float = Field(600.0, ge=1, le=MAX_WAIT_S)
    """Until all processes must be there with their model loaded, ranks that wait for each other give up, and every
    sampler must sample from new weights."""
    max_restarts: int = Field(0, ge=0, le=100)
    """Times that a training whose processes were lost is restarted from its newest checkpoint by itself. Every restart
    counts; one after an attempt that completed no step waits first, 1 s and then twice as long each time, at most
    60 s. More than 100 are rejected: what is lost that often has a cause that no restart fixes."""

    @model_validator(mode="after")
    def _fits_together(self) -> ClusterConfig:
        if self.learners % self.tensor_parallel_size:
            raise ValueError(
                f"cluster.tensor_parallel_size={self.tensor_parallel_size} does not divide "
                f"cluster.learners={self.learners}"
            )
        if self.address is not None:
            _check_address(self.address)
        if self.address is not None and self.folder is None:
            raise ValueError(
                f"cluster.address={self.address}: set cluster.folder to a folder that every node of the cluster sees"
            )
        for name, share in (("learner", self.gpus_per_learner or 0), ("sampler", self.gpus_per_sampler)):
            if share > 1 or (share not in (0, 1) and self.placement == "separate"):
                raise ValueError(
                    f"cluster.gpus_per_{name}={share:g}: a process computes on one GPU; give 0 or 1, or a fraction "
                    "with cluster.placement=colocated"
                )
        if self.placement == "colocated" and not 0 < (self.gpus_per_learner or 0) + self.gpus_per_sampler <= 1:
            raise ValueError(
                "cluster.placement=colocated: learner and sampler share a GPU, so cluster.gpus_per_learner + "
                "cluster.gpus_per_sampler must be above 0 and at most 1, e.g. 0.6 and 0.4"
            )
        return self

    def rank_gpus(self, gpus: float, device: str) -> float:
        """GPUs of each rank, where there are so many for ranks and samplers, and model.device is `device`."""
        if self.gpus_per_learner is not None:
            return self.gpus_per_learner
        there = device == "cuda" or (gpus and device != "cpu")
        return 1.0 if there and self.placement == "separate" else 0.0

    def no_default(self) -> list[str]:
        """`changed`, without a share of no GPU: it was the default of learners once, and leaves nothing to do."""
        return [name for name in self.changed() if not (name.startswith("gpus_per_") and getattr(self, name) == 0)]


def _check_address(address: str) -> None:
    """`local` would have Ray start a cluster that asks for no token, ray:// and others are other protocols."""
    host, _, port = address.rpartition(":")
    if address == "auto" or (_HOST.fullmatch(host) and _PORT.fullmatch(port) and 0 < int(port) < 1 << 16):
        return
    raise ValueError(f"cluster.address={address!r:.80}: give HOST:PORT of the head, e.g. 10.0.0.1:6379")

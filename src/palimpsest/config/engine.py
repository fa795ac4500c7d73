"""Sections `engine` and `cluster`: which engine samples and learns, and in which processes."""

from __future__ import annotations

import ipaddress
import math
import re
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from palimpsest.config.section import MAX_WAIT_S, MIN_REPLY_S, Strict, check_name
from palimpsest.plugin_kinds import KINDS

ENGINES = tuple(KINDS["engine"].shipped)
"""Names of the engines inside the package."""
ALIKE = ("embedded", "ray")
"""Engines whose sections have the same keys."""
MOST_RANKS, MOST_SERVERS = 1024, 256
CUSTOM = "own"  # the tag of the section of a user's own engine; no key


class _NamedEngineConfig(Strict):
    @field_validator("name", mode="before", check_fields=False)
    @classmethod
    def _check_name(cls, name: Any) -> Any:
        if not isinstance(name, str):
            raise ValueError(f"engine.name={name!r}: choose one of {', '.join(ENGINES)}, or my_module:MyEngine")
        return check_name("engine", name)


SpeculativeReads = Annotated[int, Field(ge=1, le=4096)] | Literal["auto", "off"]


class _ShippedEngineConfig(_NamedEngineConfig):
    num_threads: int = Field(1, ge=1, le=1024)
    """CPU threads per process. Use 1 where other processes share the cores: two threads collapse under other load."""
    max_num_seqs: int = Field(128, ge=1, le=65_536)
    """Sequences that the sampler decodes concurrently."""
    cache_tokens: int = Field(65_536, ge=0)
    """Tokens whose keys and values the sampler caches for shared prompt prefixes (least recently used are evicted).
    Their memory adds to the rows in use. 0 computes every prompt whole."""
    kv_cache_gb: float | None = Field(None, gt=0, le=1e6)
    """Memory for keys and values in GB, half for sequences in flight and half for cached prefixes. Long sequences wait
    for each other if it is full. null: a quarter of the device's memory."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens per prefix forest: one forward and backward pass of the learner, which bounds its memory. Larger forests
    share more; with little to share, 2,048 is fastest for a small model on a CPU (it fits the caches)."""
    speculative_reads: SpeculativeReads | None = None
    """Sections of a document that are read at once, as if the memory stayed unchanged; replies after a change are
    discarded. The result is that of sequential reading. `auto`: as many as the batch has room for; null: `auto`, but
    `off` in training."""


class EmbeddedEngineConfig(_ShippedEngineConfig):
    """PyTorch in this process, on a CPU or one GPU."""

    name: Literal["embedded"] = "embedded"
    """embedded; ray, in separate processes (`cluster`); endpoint, an address to evaluate, with other keys; or
    my_module:MyEngine, which takes only `options`."""


class RayEngineConfig(_ShippedEngineConfig):
    """The embedded engine in separate processes on one or more machines (`cluster`)."""

    name: Literal["ray"] = "ray"


class EndpointEngineConfig(_NamedEngineConfig):
    """An OpenAI-compatible endpoint that samples, and learns nothing; `model.path` is the model's name there."""

    name: Literal["endpoint"] = "endpoint"
    """Selects this engine."""
    url: str
    """Base URL before /completions and /chat/completions, e.g. http://127.0.0.1:8000/v1."""
    api_key_env: str | None = None
    """Environment variable with the key."""
    mode: Literal["auto", "tokens", "completions", "chat"] = "auto"
    """tokens: prompts as token ids; completions: as text; chat: as messages; auto: the first of them that works."""
    tokenizer: str | None = None
    """Folder or hub id of the model's tokenizer; null: `model.path`, if that is a folder or a hub id."""
    max_model_len: int | None = Field(None, ge=2)
    """Context window in tokens; null: the value of the endpoint, or of the model's config.json."""
    logprobs: bool = True
    """Request log-probabilities, in mode tokens; evaluations don't need them."""
    thinking_tokens: int = Field(0, ge=0)
    """Tokens that a reply in mode chat may use for hidden thinking, in addition to its budget."""
    concurrency: int = Field(64, ge=1)
    """Concurrent requests, and episodes."""
    timeout_s: float = Field(600.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Time limit of a request, in seconds."""
    attempts: int = Field(8, ge=1)
    """Requests for one reply; between them pauses that double, from half a second to 20."""
    speculative_reads: SpeculativeReads = "off"
    """As for other engines. Discarded replies are billed."""
    patience_s: float = Field(120.0, ge=0, le=MAX_WAIT_S)
    """Seconds without any reply before the evaluation ends."""


class OwnEngineConfig(_NamedEngineConfig):
    """An engine from a user's own file."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the engine's constructor."""


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
COPIES = ("samplers", "gpus_per_sampler")
"""Keys of the copies of the embedded sampler."""


class ClusterConfig(Strict):
    address: str | None = None
    """Ray cluster to join, HOST:PORT of its head; None: start one on this machine and end it with the run."""
    learners: int = Field(1, ge=1, le=MOST_RANKS)
    """Ranks that share the weights (FSDP2). At most 1,024: one process splits the batch and calls each rank."""
    samplers: int = Field(1, ge=1, le=256)
    """Copies of the embedded sampler. At most 256: each needs a thread in the calling process."""
    gpus_per_learner: float | None = Field(None, ge=0)
    """null: 1 where there are GPUs, 0 otherwise; 0: ranks compute on CPUs."""
    gpus_per_sampler: float = Field(0.0, ge=0)
    """0: copies of the sampler compute on CPUs."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Ranks on one machine that divide each layer among them; the batch is dealt to learners / tensor_parallel."""
    placement: Literal["separate", "colocated"] = "separate"
    """colocated: learners and samplers share GPUs, in turns with sampler.name=vllm, otherwise each with a fraction."""
    folder: str | None = None
    """Folder for weights on their way to copies of the embedded sampler, visible to every node; None: /dev/shm of this
    machine."""
    cpu_offload: bool = False
    """Weights, gradients and moments of the learners lie in the machines' own memory."""
    timeout_s: float = Field(600.0, ge=1, le=MAX_WAIT_S)
    """Seconds for processes to load their model, ranks to wait for each other (on GPUs four times as long, as they
    compile kernels), and samplers to switch to new weights."""
    max_restarts: int = Field(0, ge=0, le=100)
    """Automatic restarts from the newest checkpoint after lost processes. Every restart counts. After an attempt
    without a completed step the restart waits 1 s, doubling up to 60 s. At most 100: no restart fixes a cause that
    recurs so often."""

    @model_validator(mode="after")
    def _fits_together(self) -> ClusterConfig:
        if self.learners % self.tensor_parallel_size:
            raise ValueError(
                f"cluster.tensor_parallel_size={self.tensor_parallel_size} does not divide "
                f"cluster.learners={self.learners}"
            )
        if self.address is not None:
            _check_address(self.address)
        for name, share in (("learner", self.gpus_per_learner or 0), ("sampler", self.gpus_per_sampler)):
            if share > 1 or (share not in (0, 1) and self.placement == "separate"):
                raise ValueError(
                    f"cluster.gpus_per_{name}={share:g}: a process computes on one GPU; use 0 or 1, or a fraction "
                    "with cluster.placement=colocated"
                )
        return self

    def check_copies(self) -> None:
        """Reject what copies of the embedded sampler can't work with. Raises ValueError."""
        if self.address is not None and self.folder is None:
            raise ValueError(
                f"cluster.address={self.address}: set cluster.folder to a folder that every node of the cluster sees"
            )
        if self.placement == "separate":
            return
        if not 0 < (self.gpus_per_learner or 0) + self.gpus_per_sampler <= 1:
            raise ValueError(
                "cluster.placement=colocated: learner and sampler share a GPU, so cluster.gpus_per_learner + "
                "cluster.gpus_per_sampler must be above 0 and at most 1, e.g. 0.6 and 0.4"
            )
        if self.tensor_parallel_size > 1:  # Ray may give two fractions of one GPU to ranks of a group
            raise ValueError(
                f"cluster.tensor_parallel_size={self.tensor_parallel_size} with cluster.placement=colocated: set "
                "sampler.name=vllm, or cluster.placement=separate"
            )

    def rank_gpus(self, gpus: float, device: str) -> float:
        """GPUs per rank, if enough exist for ranks and samplers and model.device is `device`."""
        if self.gpus_per_learner is not None:
            return self.gpus_per_learner
        there = device == "cuda" or (gpus and device != "cpu")
        return 1.0 if there and not self.shares_fractions else 0.0

    @property
    def shares_fractions(self) -> bool:
        """True if a rank and a copy of the embedded sampler each have a fraction of a GPU."""
        return self.placement == "colocated" and self.gpus_per_sampler > 0

    def no_default(self) -> list[str]:
        """`changed`, without a share of no GPU: it was the default of learners once, and leaves nothing to do."""
        return [name for name in self.changed() if not (name.startswith("gpus_per_") and getattr(self, name) == 0)]


def _check_address(address: str) -> None:
    """Reject `local`, with which Ray starts a cluster without a token, and other protocols such as ray://."""
    host, _, port = address.rpartition(":")
    if address == "auto" or (_HOST.fullmatch(host) and _PORT.fullmatch(port) and 0 < int(port) < 1 << 16):
        return
    raise ValueError(f"cluster.address={address!r:.80}: use HOST:PORT of the head, e.g. 10.0.0.1:6379")


# ---- sampler -------------------------------------------------------------------------------------------------


RESERVED_ARGS = (
    "model", "host", "port", "uds", "api-key", "served-model-name", "enable-scale-out", "language-model-only",
    "skip-tokenizer-init", "generation-config", "dtype", "max-model-len", "logprobs-mode", "load-format",
    "tensor-parallel-size", "gpu-memory-utilization", "device-memory-utilization", "device-ids", "trust-remote-code",
    "enable-prompt-tokens-details", "disable-uvicorn-access-log", "config",
)  # fmt: skip
"""Server options that follow from the run, under all their names, and config files, which could contain any of them."""
_ONE_PROCESS = "a server is one process of the run on the GPUs of sampler.devices (sampler.servers starts more)"
_LAYERS = "servers would compute differently from the learner"
_TOKENS = "servers receive token ids; the tokenizer is that of model.path"
_SAMPLING = "`sampling` decides how tokens are drawn, and log-probabilities must be the model's"
_OLD_CACHE = "keys and values outside the server would outlive their weights"
_OVER_SOCKET = "the run reaches servers by HTTP on a private socket"
_ENDS = "the server would print and exit"
BREAKING = {
    **dict.fromkeys(("quantization", "allow-deprecated-quantization", "model-class-overrides"), _LAYERS),
    **dict.fromkeys(("hf-config-path", "revision", "code-revision", "runner", "convert"), _LAYERS),
    **dict.fromkeys(("data-parallel", "pipeline-parallel", "prefill-context-parallel", "elastic-ep"), _ONE_PROCESS),
    **dict.fromkeys(("headless", "nnodes", "node-rank", "master-addr", "master-port"), _ONE_PROCESS),
    **dict.fromkeys(("api-server-count", "enable-elastic-ep"), _ONE_PROCESS),
    "tokenizer": _TOKENS,
    **dict.fromkeys(("logits-processors", "watermark", "override-generation-config"), _SAMPLING),
    "max-logprobs": "palimpsest reads the mode of each server from the likeliest tokens' log-probabilities",
    **dict.fromkeys(("kv-transfer", "kv-offloading"), _OLD_CACHE),
    **dict.fromkeys(("grpc", "ssl", "root-path"), _OVER_SOCKET),
    **dict.fromkeys(("help", "version"), _ENDS),
    "hf-token": "the run folder would store this secret; model.path is on this disk",
}
"""Options that the engine can't work with, and the reason. data-parallel also covers data-parallel-size."""
_OPTION = re.compile(r"--([a-z0-9][a-z0-9_-]*)(?:[.+=].*)?", re.DOTALL)
"""A long option with its value: no short form (-tp), and no separate word, which could be another value."""
_ADDRESS = re.compile(r"http://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::([0-9]+))?/?", re.IGNORECASE | re.ASCII)
PYTHON = "PALIMPSEST_VLLM_PYTHON"
"""Environment variable that names the Python with vLLM for the servers; default: the one that runs palimpsest."""
STARTED = ("servers", "devices", "tensor_parallel_size", "gpu_memory_utilization", "args")
"""Keys of the servers that palimpsest starts."""

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]


class SamplingConfig(Strict):
    temperature: float = Field(1.0, ge=0)
    """0 takes the most likely token."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability."""


def logprobs_mode(sampling: SamplingConfig) -> LogprobsMode:
    """Log-probability mode of a server: at the sampling temperature, before top-p.

    vLLM's raw values ignore the temperature; its processed values include top-p. Raw values are right at temperature 1
    with any top-p, processed values at other temperatures without top-p.
    """
    return "raw_logprobs" if sampling.temperature in (0.0, 1.0) else "processed_logprobs"


def top_p_gap(sampling: SamplingConfig) -> float:
    """Nats that top-p can add to a server's log-probabilities."""
    return 0.0 if logprobs_mode(sampling) == "raw_logprobs" else -math.log(sampling.top_p)


class SamplerConfig(Strict):
    name: Literal["auto", "embedded", "vllm"] = "auto"
    """vllm: vLLM servers in separate processes; embedded: the engine samples; auto: vllm on GPUs, if it is installed
    (docs/how-to/vllm.md#choice-of-the-sampler). A run records its choice."""
    urls: tuple[str, ...] = ()
    """Your vLLM servers on this machine, e.g. [http://127.0.0.1:8000]; $VLLM_API_KEY contains their key (--api-key).
    []: palimpsest starts servers."""
    servers: int = Field(1, ge=1, le=MOST_SERVERS)
    """Servers to start; with engine.name=ray on any machine of the cluster."""
    devices: tuple[int, ...] = ()
    """GPUs of the servers here, in groups of `tensor_parallel`; []: CUDA_VISIBLE_DEVICES, or with Ray its choice."""
    tensor_parallel_size: int = Field(1, ge=1, le=64)
    """GPUs of one machine that share one server's weights."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """Share of a GPU's memory that a server takes; if not set with cluster.placement=colocated, what ranks leave.
    A CPU build takes VLLM_CPU_KVCACHE_SPACE, in GiB."""
    max_in_flight: int = Field(256, ge=1, le=4096)
    """Requests that a server gets at once; further ones wait. It queues those beyond its batch (--max-num-seqs)."""
    max_model_len: int | None = Field(None, ge=2)
    """Window of the servers in tokens, at most the model's; null: the model's."""
    folder: str | None = None
    """Folder for files of new weights, e.g. /dev/shm; null: the run folder, or /dev/shm of each machine where Ray
    starts the servers."""
    args: tuple[str, ...] = ()
    """Further options of vLLM's server by their long names, values with them, e.g. [--enforce-eager,
    --max-num-seqs=64]."""
    timeout_s: float = Field(900.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Seconds for a new server to answer, for a request, and for a server to switch to new weights."""

    @field_validator("args", mode="before")
    @classmethod
    def _options_of_ours(cls, args: Any) -> Any:
        for arg in args if isinstance(args, list | tuple) else ():
            _check_arg(arg)
        return args

    @model_validator(mode="after")
    def _fits_together(self) -> SamplerConfig:
        changed = [name for name in self.changed() if name != "name"]
        if self.name != "vllm" and changed:
            raise ValueError(f"sampler.{changed[0]} is for servers: set sampler.name=vllm, or leave it out")
        if self.urls and (theirs := [name for name in changed if name in STARTED]):
            raise ValueError(
                f"sampler.{theirs[0]} is for servers that palimpsest starts: leave out one of it and sampler.urls"
            )
        if len({_address_of(url) for url in self.urls}) < len(self.urls):
            raise ValueError(f"sampler.urls={list(self.urls)} names a server twice (localhost is 127.0.0.1)")
        needed = self.servers * self.tensor_parallel_size
        if any(device < 0 for device in self.devices):
            raise ValueError(f"sampler.devices={list(self.devices)}: GPU numbers start at 0")
        if self.devices and (len(self.devices) != needed or len(set(self.devices)) != needed):
            raise ValueError(
                f"sampler.devices={list(self.devices)} names {len(set(self.devices))} different GPUs; sampler.servers="
                f"{self.servers} x sampler.tensor_parallel_size={self.tensor_parallel_size} needs exactly {needed}"
            )
        return self


def _address_of(url: str) -> tuple[str, int]:
    """Host and port of a server on this machine: access to the endpoints that change weights allows running code.

    >>> _address_of("http://LOCALHOST:8000/"), _address_of("http://[0:0:0::1]")
    (('127.0.0.1', 8000), ('::1', 80))
    """
    shown = f"={url!r:.80}" if "@" not in url else ""  # an address with a password in it
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError(f"sampler.urls{shown}: use only the address, like http://127.0.0.1:8000")
    host, port = match[1].strip("[]").lower(), int(match[2] or 80)
    if not 0 < port < 1 << 16:
        raise ValueError(f"sampler.urls{shown}: no port {port}; ports go from 1 to 65535")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise ValueError(
            f"sampler.urls{shown}: vLLM changes weights without a key, so the server must not be on a network: start "
            "it on 127.0.0.1, and reach another machine through a tunnel (ssh -L)"
        )
    return str(address), port


def _check_arg(arg: Any) -> None:
    """Reject options that the run sets, under any name vLLM accepts: `a_b` for `a-b`, a prefix, `--no-` before it."""
    option = _OPTION.fullmatch(arg) if isinstance(arg, str) else None
    if option is None:
        raise ValueError(
            f"sampler.args: {arg!r:.60} must be a long option of vLLM's server with its value, like --enforce-eager or "
            "--max-num-seqs=64"
        )
    name = option[1].replace("_", "-").removeprefix("no-")
    taken = next((reserved for reserved in RESERVED_ARGS if reserved.startswith(name)), None)
    breaking = next((prefix for prefix in BREAKING if prefix.startswith(name) or name.startswith(f"{prefix}-")), None)
    if taken == "config":
        raise ValueError(f"sampler.args: {arg:.60} reads options from a file; name them in sampler.args instead")
    if taken is not None:
        raise ValueError(f"sampler.args: {arg:.60} sets --{taken}, which the run sets; omit it")
    if breaking is not None:
        flag = "--" + name if name.startswith(breaking) else f"--{breaking}"
        raise ValueError(f"sampler.args: {flag} is not allowed ({BREAKING[breaking]}); omit it")


# ---- Section model -------------------------------------------------------------------------------------------


_OURS_IN_TEMPLATES = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "messages",
    "return_dict", "tokenize", "tools",
)  # fmt: skip

Dtype = Literal["float32", "bfloat16"]
"""Number type of weights."""


class AdapterConfig(Strict):
    """Train low-rank adapters instead of the weights (LoRA, arXiv 2106.09685); needs the extra `lora`."""

    rank: int = Field(16, ge=1)
    """Rank of each adapter's two matrices."""
    alpha: float = Field(32.0, gt=0)
    """Adapters scale by alpha / rank."""
    target_modules: tuple[str, ...] | None = None
    """Names of the layers that get one, such as q_proj; None: every linear layer but the output projection."""


class ModelConfig(Strict):
    path: str = "embedded"
    """`embedded`: the bundled model; `embedded-tools`, `embedded-lead`, `embedded-edit`: the same model after SFT on
    tool calls, on queries for readers and their replies, on edits of the context; or a Hugging Face folder or hub id
    such as Qwen/Qwen3-4B."""
    dtype: Dtype | Literal["auto"] = "float32"
    """Number type for storing weights and computing; auto: bfloat16 if the model's files use it, on a GPU or a CPU
    with avx512_bf16 or AMX; otherwise float32. auto is for models that only sample: the default of eval, ask and serve
    unless a run or recipe sets another."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1"""
    gradient_checkpointing: bool | Literal["every_second"] = False
    """Recompute activations in the backward pass, for less memory; every_second: those of every second layer."""
    lora: AdapterConfig | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the model's chat template for every prompt, such as {enable_thinking: false}."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _variables(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not key.isidentifier() or key in _OURS_IN_TEMPLATES:
                why = "is the prompt itself" if key in _OURS_IN_TEMPLATES else "is not a variable name"
                raise ValueError(f"model.chat_template_kwargs.{key} {why}; use names like enable_thinking")
        return value


# ---- Location of the configured model ----------------------------------------------------------------------


SHIPPED = {
    "embedded": "base-model",
    "embedded-tools": "tool-model",
    "embedded-lead": "lead-model",
    "embedded-edit": "edit-model",
}
"""Names of the models inside the package, and their folders."""


def model_path(config: ModelConfig) -> str:
    """Folder or hub id for `config.path`."""
    return named(config.path)


def named(path: str) -> str:
    """Folder or hub id for a model's name."""
    return str(files("palimpsest").joinpath("assets", SHIPPED[path])) if path in SHIPPED else path


def check_turns(cluster: ClusterConfig, sampler: SamplerConfig, ahead: int) -> None:
    """Reject settings with which servers can't take turns with the ranks on their GPUs. Raises ValueError."""
    width, group, where = sampler.tensor_parallel_size, cluster.tensor_parallel_size, "with cluster.placement=colocated"
    if ahead:
        fix = "set train.max_off_policy_steps=0, or cluster.placement=separate"
        raise ValueError(f"train.max_off_policy_steps={ahead} {where}: servers sleep while the learner learns; {fix}")
    for key, value in (("urls", sampler.urls), ("devices", sampler.devices)):
        if value:
            raise ValueError(f"sampler.{key}={list(value)} {where}: servers use the GPUs of ranks; omit it")
    if cluster.gpus_per_learner not in (None, 0, 1):
        share = f"cluster.gpus_per_learner={cluster.gpus_per_learner:g}"
        raise ValueError(f"{share} {where}: GPUs are shared whole; omit it")
    if max(width, group) % min(width, group) or cluster.learners % width:
        fix = f"{cluster.learners} ranks in groups of cluster.tensor_parallel_size={group}"
        raise ValueError(f"sampler.tensor_parallel_size={width} {where}: doesn't fit {fix}; set it to 1")
    if sampler.servers * width != cluster.learners:
        fix = f"needs one per {width} of {cluster.learners} ranks; set sampler.servers={cluster.learners // width}"
        raise ValueError(f"sampler.servers={sampler.servers} {where}: {fix}")

"""`sampler`: who samples for the learner, the engine itself or servers of vLLM; refuses what neither can do."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from palimpsest.config.section import MAX_WAIT_S, MIN_REPLY_S, Strict

RESERVED_ARGS = (
    "model",
    "host",
    "port",
    "uds",
    "api-key",
    "served-model-name",
    "enable-scale-out",
    "skip-tokenizer-init",
    "generation-config",
    "dtype",
    "max-model-len",
    "logprobs-mode",
    "load-format",
    "tensor-parallel-size",
    "gpu-memory-utilization",
    "device-memory-utilization",
    "device-ids",
    "trust-remote-code",
    "enable-prompt-tokens-details",
    "disable-uvicorn-access-log",
    "config",
)
"""Options of a server that follow from the run, under each of their names; and a file, which could hold any of them."""
_ONE_PROCESS = "a server is one of the run's own processes on the GPUs of sampler.devices (sampler.servers starts more)"
_LAYERS = "servers would compute otherwise than the learner, whose weights they are sent"
_TOKENS = "servers are sent token ids and encode nothing; the tokenizer is that of model.path"
_SAMPLING = "how tokens are drawn follows from `sampling`, and log-probabilities are read of the model alone"
_OLD_CACHE = "keys and values that are kept outside the server would outlive the weights they are of"
_OVER_SOCKET = "servers are asked by HTTP on a socket of the run's own"
_ENDS = "the server would print and end"
BREAKING = {
    **dict.fromkeys(("quantization", "allow-deprecated-quantization", "model-class-overrides"), _LAYERS),
    **dict.fromkeys(("hf-config-path", "revision", "code-revision", "runner", "convert"), _LAYERS),
    **dict.fromkeys(("data-parallel", "pipeline-parallel", "prefill-context-parallel", "elastic-ep"), _ONE_PROCESS),
    **dict.fromkeys(("headless", "nnodes", "node-rank", "master-addr", "master-port"), _ONE_PROCESS),
    **dict.fromkeys(("api-server-count", "enable-elastic-ep"), _ONE_PROCESS),
    "tokenizer": _TOKENS,
    **dict.fromkeys(("logits-processors", "watermark", "override-generation-config"), _SAMPLING),
    "max-logprobs": "log-probabilities of the likeliest tokens tell the server's mode, which is asked of each",
    **dict.fromkeys(("kv-transfer", "kv-offloading"), _OLD_CACHE),
    **dict.fromkeys(("grpc", "ssl", "root-path"), _OVER_SOCKET),
    **dict.fromkeys(("help", "version"), _ENDS),
    "hf-token": "it is a secret, which the run folder would keep; model.path is on this disk",
}
"""Options that the engine could not work with, and why. Each stands for those that begin with its words too:
data-parallel for data-parallel-size."""
_OPTION = re.compile(r"--([a-z0-9][a-z0-9_-]*)(?:[.+=].*)?", re.DOTALL)
"""An option by a long name, its value with it: no short form (-tp), and no word of its own, which may be a value of the
option before it or the model."""
_ADDRESS = re.compile(r"http://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::([0-9]+))?/?", re.IGNORECASE | re.ASCII)
PYTHON = "PALIMPSEST_VLLM_PYTHON"
"""Environment variable that names the Python that has vLLM and starts the servers; without it, the one that runs
palimpsest."""
STARTED = ("servers", "devices", "tensor_parallel_size", "gpu_memory_utilization", "args")
"""Keys of the servers that palimpsest starts."""

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]


class SamplerConfig(Strict):
    name: Literal["embedded", "vllm"] = "embedded"
    """embedded: the engine samples itself; vllm: servers of vLLM, in processes of their own (docs/vllm.md)."""
    urls: tuple[str, ...] = ()
    """Servers that you run on this machine, e.g. [http://127.0.0.1:8000], whose key (--api-key) is read from
    $VLLM_API_KEY; []: palimpsest starts its own."""
    servers: int = Field(1, ge=1, le=64)
    """Servers to start."""
    devices: tuple[int, ...] = ()
    """GPUs of the servers, `tensor_parallel` each, one after the other; []: what CUDA_VISIBLE_DEVICES says."""
    tensor_parallel_size: int = Field(1, ge=1, le=64)
    """GPUs of this machine that share one server's weights."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """Share of a GPU's memory that a server takes; a CPU build takes VLLM_CPU_KVCACHE_SPACE, in GiB."""
    max_model_len: int | None = Field(None, ge=2)
    """Window of the servers in tokens, at most the model's; null: the model's."""
    folder: str | None = None
    """Where the files of new weights are written, e.g. /dev/shm; null: the run folder."""
    args: tuple[str, ...] = ()
    """Further options of vLLM's server by their long names, values with them, e.g. [--enforce-eager,
    --max-num-seqs=64]."""
    timeout_s: float = Field(900.0, ge=MIN_REPLY_S, le=MAX_WAIT_S)
    """Until a server that was started must answer, a request be answered, and a server sample from new weights."""

    @field_validator("args", mode="before")
    @classmethod
    def _options_of_ours(cls, args: Any) -> Any:
        for arg in args if isinstance(args, list | tuple) else ():
            _check_arg(arg)
        return args

    @model_validator(mode="after")
    def _fits_together(self) -> SamplerConfig:
        changed = self.changed()
        if self.name == "embedded" and changed:
            raise ValueError(f"sampler.{changed[0]} is for servers: set sampler.name=vllm, or leave it out")
        if self.urls and (theirs := [name for name in changed if name in STARTED]):
            raise ValueError(
                f"sampler.{theirs[0]} is for servers that palimpsest starts: leave out one of it and sampler.urls"
            )
        if len({_address_of(url) for url in self.urls}) < len(self.urls):
            raise ValueError(f"sampler.urls={list(self.urls)} names a server twice (localhost is 127.0.0.1)")
        needed = self.servers * self.tensor_parallel_size
        if any(device < 0 for device in self.devices):
            raise ValueError(f"sampler.devices={list(self.devices)}: GPUs are numbered from 0")
        if self.devices and (len(self.devices) != needed or len(set(self.devices)) != needed):
            raise ValueError(
                f"sampler.devices={list(self.devices)}: {self.servers} servers of {self.tensor_parallel_size} need "
                f"{needed} different GPUs"
            )
        return self


def _address_of(url: str) -> tuple[str, int]:
    """Host and port of a server on this machine: whoever reaches the endpoints that change weights may run code, key or
    no key.

    >>> _address_of("http://LOCALHOST:8000/"), _address_of("http://[0:0:0::1]")
    (('127.0.0.1', 8000), ('::1', 80))
    """
    shown = f"={url!r:.80}" if "@" not in url else ""  # an address with a password in it
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError(f"sampler.urls{shown}: give the address alone, like http://127.0.0.1:8000")
    host, port = match[1].strip("[]").lower(), int(match[2] or 80)
    if not 0 < port < 1 << 16:
        raise ValueError(f"sampler.urls{shown}: no port {port}; ports go from 1 to 65535")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise ValueError(
            f"sampler.urls{shown}: vLLM asks for no key where weights are changed, so such a server must not be on a "
            "network: start it on 127.0.0.1, and reach another machine's through a tunnel (ssh -L)"
        )
    return str(address), port


def _check_arg(arg: Any) -> None:
    """Refuse what the run decides itself, under whatever name vLLM takes it by: `a_b` for `a-b`, the beginning of a
    name, `--no-` before it."""
    option = _OPTION.fullmatch(arg) if isinstance(arg, str) else None
    if option is None:
        raise ValueError(
            f"sampler.args: {arg!r:.60} is no option of vLLM's server by its long name, with its value in the same "
            "text; write it like --enforce-eager or --max-num-seqs=64"
        )
    name = option[1].replace("_", "-").removeprefix("no-")
    taken = next((reserved for reserved in RESERVED_ARGS if reserved.startswith(name)), None)
    breaking = next((prefix for prefix in BREAKING if prefix.startswith(name) or name.startswith(f"{prefix}-")), None)
    if taken == "config":
        raise ValueError(f"sampler.args: {arg:.60} reads options from a file; name them in sampler.args instead")
    if taken is not None:
        raise ValueError(f"sampler.args: {arg:.60} sets --{taken}, which follows from the run; leave it out")
    if breaking is not None:
        flag = "--" + name if name.startswith(breaking) else f"--{breaking}"
        raise ValueError(f"sampler.args: {flag} can't be set, for {BREAKING[breaking]}; leave it out")

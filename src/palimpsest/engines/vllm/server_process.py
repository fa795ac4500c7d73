"""One server of vLLM as a process of this run: started on a folder of weights, watched, ended without leftovers.

It listens on a Unix socket in a folder that only this user may enter, since vLLM requires no key for weight updates;
its random key is passed in the environment, so that no process list shows it.

Guaranteed: it ends with this process for any reason (engines/process_guard.py); its output is in a file of the run
folder.
Not covered: other users with the rights of this one.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path

from palimpsest.config.engine import PYTHON, LogprobsMode, SamplerConfig
from palimpsest.config.install_hints import install_line
from palimpsest.engines import process_guard
from palimpsest.engines.vllm.client import VllmClient
from palimpsest.errors import ConfigError, SamplerError
from palimpsest.http_connections import Connections
from palimpsest.models.model_files import read_object, sections
from palimpsest.planning.model_shape import RECURRENT

_CPU_ARGS = ("--enforce-eager", "--no-enable-chunked-prefill")
"""For vLLM's CPU build: compiling gains nothing, and chunked prefill of a seeded prompt crashes it."""
_CPU_CACHE_GIB = "2"
_HEAD = "--hf-overrides.head_dtype=float32"
"""bfloat16 logits would differ from the learner's; on a CPU, vLLM would cast the whole projection at every step."""
_STARTING = ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_ENGINE_READY_TIMEOUT_S")
"""vLLM's limits of the first request and of a start; 300 s and 600 s by default."""
_TAIL = 4000  # bytes of a log searched for a reason


class ServerProcess:
    """One server; `start` it, also again after it ended."""

    def __init__(
        self,
        settings: SamplerConfig,
        index: int,
        *,
        mode: LogprobsMode,
        dtype: str,
        window: int,
        folder: Path,
        sleeps: bool = False,
    ) -> None:
        """Server number `index` of the run, with a window of `window` tokens; its log is in `folder`. `sleeps`: it can
        free its GPU (vLLM's CPU build can't, and needs no GPU)."""
        self._settings, self._index, self._sleeps = settings, index, sleeps
        self._mode, self._dtype, self._window = mode, dtype, window
        self._log = folder / f"vllm-{index}.log"
        self._key = secrets.token_hex(16)
        self._cpu = False
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: process_guard.ProcessGuard | None = None
        self._mark = ""
        self._folder = Path()
        self._held = ExitStack()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, model: Path) -> VllmClient:
        """Start it on the weights in `model`; returns its client. It answers some time later. Raises ConfigError."""
        self._cpu = on_cpu()
        self._folder = Path(tempfile.mkdtemp(prefix="palimpsest-"))  # for its owner alone
        socket = self._folder / "http"
        self._mark = secrets.token_hex(8)
        self._guard = process_guard.start(self._mark, [self._folder])
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(stable_name(model, self._held), socket),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,  # the terminal's Ctrl-C is for this process
            )
        connections = Connections(token=self._key, socket=socket)
        return VllmClient(f"vLLM server {self._index}", "http://localhost", connections, key=self._key)

    def stop(self) -> None:
        """End it and its children, and wait; a second call does nothing."""
        process, self._process = self._process, None
        watching, self._guard = self._guard, None
        if watching is not None:
            watching.finish()
        if process is not None:
            process.kill()
            process.wait()
        self._held.close()

    def check(self) -> None:
        """Raise SamplerError with the reason from its log if it ended."""
        if self.running:
            return
        reason = "see its log"
        if self._log.is_file():
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - _TAIL))
                lines = log.read().decode("utf-8", "replace").splitlines()
            filled = [line.strip() for line in lines if line.strip()]
            reason = next((line for line in reversed(filled) if "Error" in line), (filled or [reason])[-1])
        if self._process is not None and (number := -self._process.returncode) > 0:  # its log can't contain it
            reason = f"signal {number} ({signal.strsignal(number)})"
        raise SamplerError(f"vLLM server {self._index} ended: {reason:.300}; its log is {self._log}")

    def _command(self, model: Path, socket: Path) -> list[str]:
        settings = self._settings
        flags = [arg.partition("=")[0].replace("_", "-") for arg in settings.args]
        whole = any(flag.startswith("--hf-o") and "." not in flag for flag in flags)  # as JSON, which a key would drop
        return [
            *(os.environ.get(PYTHON, sys.executable), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", "policy", "--uds", str(socket)),
            *("--enable-scale-out", "--skip-tokenizer-init", "--language-model-only", "--generation-config", "vllm"),
            *("--load-format", "safetensors", "--dtype", self._dtype, "--max-model-len", str(self._window)),
            *("--logprobs-mode", self._mode, "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
            *("--tensor-parallel-size", str(settings.tensor_parallel_size)),
            *("--gpu-memory-utilization", str(settings.gpu_memory_utilization)),
            *(_CPU_ARGS if self._cpu else ("--enable-sleep-mode",) if self._sleeps else ()),
            *(("--no-enable-prefix-caching",) if self._cpu and _has_states(model) else ()),  # needs chunked prefill
            *(() if whole or self._cpu or self._dtype != "bfloat16" else (_HEAD,)),
            *settings.args,
        ]

    def _environment(self) -> dict[str, str]:
        settings, folder = self._settings, str(self._folder)
        compiled = str(Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}")  # shared by all servers
        environment = {
            **os.environ,
            process_guard.MARK: self._mark,
            "VLLM_SERVER_DEV_MODE": "1",  # the endpoints that change weights
            "VLLM_API_KEY": self._key,
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_RPC_BASE_PATH": folder,
            "TMPDIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or compiled,
            "VLLM_NO_USAGE_STATS": "1",
            **{name: str(math.ceil(settings.timeout_s)) for name in _STARTING},
            "HF_HUB_OFFLINE": "1",
        }
        if self._cpu:
            environment.setdefault("VLLM_CPU_KVCACHE_SPACE", _CPU_CACHE_GIB)
            environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # bound, servers would share the first cores
        if settings.devices:
            first = self._index * settings.tensor_parallel_size
            visible = settings.devices[first : first + settings.tensor_parallel_size]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible))
        if os.environ.get(PYTHON):
            environment.pop("PYTHONPATH", None)  # of another environment
        return environment


def stable_name(model: Path, held: ExitStack) -> Path:
    """A link to `model` under a name that earlier servers had, as vLLM compiles again under another path; `model` if
    another user owns the folder of links.

    Models with equal config.json share names; `held` locks one, so that the servers of another run take others.
    """
    config, folder = model / "config.json", Path(tempfile.gettempdir()) / f"palimpsest_models_{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    if not own or not config.is_file():
        return model
    digest = sha256(config.read_bytes()).hexdigest()[:16]
    for link in (folder / f"{digest}-{number}" for number in count()):
        lock = os.open(f"{link}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.callback(os.close, lock)
            break
        os.close(lock)
    link.unlink(missing_ok=True)
    link.symlink_to(model.resolve())
    return link


def _has_states(model: Path) -> bool:
    """True if layers of the model in a folder keep a state of one size: convolutions, linear attention, Mamba."""
    config = read_object(model.name, model / "config.json")
    return any(RECURRENT.search(key) for _, section in sections(config) for key in section)


def on_cpu() -> bool:
    """True if servers compute on a CPU. Raises ConfigError if their Python has no vLLM."""
    return _torch_of().endswith("+cpu")


def check_python(settings: SamplerConfig) -> None:
    """Raise ConfigError unless the servers' Python has vLLM, with CUDA if `sampler.devices` is set."""
    if on_cpu() and settings.devices:
        python = os.environ.get(PYTHON, sys.executable)
        raise ConfigError(
            f"sampler.devices={list(settings.devices)}: the vLLM of {python} computes on a CPU; set another "
            f"in ${PYTHON}, or remove sampler.devices"
        )


def _torch_of() -> str:
    """Version of torch in the servers' Python. Raises ConfigError if vLLM is missing."""
    named = os.environ.get(PYTHON)
    python = named or sys.executable
    other = f"set ${PYTHON} to the Python of an environment with vLLM"
    fix = other if named else f"{install_line('vllm')}, or {other}"
    code = "from importlib import metadata, util; print(util.find_spec('vllm') is not None, metadata.version('torch'))"
    try:
        ended = subprocess.run([python, "-c", code], check=False, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"sampler.name=vllm: {python}: {error}; {fix}") from None
    found = re.search(rb"^(True|False) (\d\S*)$", ended.stdout, re.MULTILINE)  # other lines: a wrapper's
    if ended.returncode or found is None:
        said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ConfigError(f"sampler.name=vllm: {python} failed (status {ended.returncode}) {said:.200}; {fix}")
    if found[1] == b"False":
        raise ConfigError(f"sampler.name=vllm: {python} has no vLLM: {fix}")
    return found[2].decode(errors="replace")

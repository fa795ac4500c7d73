"""Services that a recipe asks over HTTP, as processes of this machine.

    judge      reward.judge.url                       vllm serve MODEL
    search     policy.options.tools.search.source     palimpsest retrieval serve CORPUS
    sampler    sampler.urls                           two commands to type: vLLM serves an exported model

Guaranteed: loopback addresses alone; a service that answers already stays; all end with this process for any reason
(engines/process_guard.py), or as soon as one of them ends.
Not covered: other machines; restarts; vLLM servers that `palimpsest train` starts (no `sampler.urls`).
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from palimpsest.config.engine import PYTHON, logprobs_mode
from palimpsest.config.install_hints import install_line
from palimpsest.config.schema import RunConfig
from palimpsest.engines import process_guard
from palimpsest.errors import EngineError

_JUDGES = {"gpt-oss": "openai/gpt-oss-120b"}
"""Models by their name in recipes."""
_LOOK_S, _END_S = 0.5, 10.0  # between two looks; until services that end are killed
_LONGEST = 1 << 20  # bytes of an answer


@dataclass(frozen=True, slots=True)
class NeededService:
    """A service of a recipe."""

    name: str
    key: str
    """Configuration key of its address."""
    url: str
    health: str
    """Path that it answers once it is ready."""
    states: str
    """Key of its JSON answer there, which tells it from another program on its port; empty: none."""
    command: tuple[str, ...]
    problem: str = ""
    """Why palimpsest can't start it; empty if it can."""

    @property
    def line(self) -> str:
        """The command to type."""
        return shlex.join(self.command)

    def answers(self) -> bool:
        """True if it answers now, also if it wants a key."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(self.url.rstrip("/") + self.health, timeout=2 * _LOOK_S) as answer:
                return not self.states or self.states in json.loads(answer.read(_LONGEST))
        except urllib.error.HTTPError as error:
            return error.code in (401, 403)
        except (OSError, ValueError, TypeError, HTTPException):
            return False


def services_of(config: RunConfig, *, corpus: Path | None = None, judge: str | None = None) -> Iterator[NeededService]:
    """The services of a recipe; `judge`: the judge's model, a folder or hub id."""
    if (asked := config.reward.judge) is not None:
        model = judge or _JUDGES.get(asked.model, asked.model)
        words = ("vllm", "serve", model, *_address(asked.url), "--served-model-name", asked.model)
        missing = "" if _vllm() else f"no vLLM here: {install_line('vllm')}, or set ${PYTHON}"
        yield NeededService(
            "judge", "reward.judge.url", asked.url, "/models", "data", words, _refusal(asked.url) or missing
        )
    source = str(((config.policy.options.get("tools") or {}).get("search") or {}).get("source", ""))
    if source.startswith(("http://", "https://")):
        words = ("palimpsest", "retrieval", "serve", str(corpus or "CORPUS"), *_address(source))
        missing = "" if corpus else "name its passages: --corpus FILE"
        key = "policy.options.tools.search.source"
        yield NeededService("search", key, source, "/queue_status", "max_waiting", words, _refusal(source) or missing)
    for url in config.sampler.urls:
        words = ("env", "VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "EXPORTED", *_address(url), "--enable-scale-out")
        words += ("--load-format", "safetensors", "--generation-config", "vllm", "--dtype", config.model.dtype)
        words += ("--logprobs-mode", logprobs_mode(config.sampling))
        first = f"first palimpsest export {config.model.path} --untied --out EXPORTED"
        yield NeededService("sampler", "sampler.urls", url, "/health", "", words, first)


def _address(url: str) -> tuple[str, ...]:
    try:
        port = str(urlsplit(url).port or 80)
    except ValueError:
        port = "PORT"
    return ("--host", "127.0.0.1", "--port", port)


def _refusal(url: str) -> str:
    """Why no service of this machine can have that address; empty if one can."""
    try:
        scheme, host, port = urlsplit(url).scheme, urlsplit(url).hostname, urlsplit(url).port
    except ValueError as error:
        return f"{url}: {error}; use http://127.0.0.1:PORT"
    if host not in ("127.0.0.1", "localhost", "::1"):
        return f"{url} is on another machine: start it there"
    return (
        "" if scheme == "http" and port != 0 else f"{url}: not started for https or port 0; use http://127.0.0.1:PORT"
    )


def _vllm() -> str | None:
    beside = Path(os.environ.get(PYTHON, sys.executable)).with_name("vllm")
    return str(beside) if beside.is_file() else shutil.which("vllm")


def supervise(
    services: Sequence[NeededService], logs: Path, tell: Callable[[str], None], ready: Callable[[], None]
) -> None:
    """Start services, call `ready` once all answer, and watch them until an interrupt. Raises EngineError if one
    ends."""
    mark = secrets.token_hex(8)
    guard = process_guard.start(mark, [])
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        waiting = list(services)
        for service in services:
            if not service.answers():
                log = logs / f"{service.name}.log"
                processes[service.name] = _started(service, log, mark)
                tell(f"{service.name} starts; its log is {log}")
        while True:
            for name, code in [
                (name, code) for name, process in processes.items() if (code := process.poll()) is not None
            ]:
                log = logs / f"{name}.log"
                last = (log.read_text("utf-8", "replace").split("\n")[-2:] or [""])[0]
                why = last[:300] if code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"
                raise EngineError(f"{name} ended: {why}; its log is {log}")
            for service in [service for service in waiting if service.answers()]:
                waiting.remove(service)
                tell(f"{service.name} answers at {service.url}")
                if not waiting:
                    ready()
            time.sleep(_LOOK_S)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        guard.finish()


def _started(service: NeededService, log: Path, mark: str) -> subprocess.Popen[bytes]:
    """Start a service in a session apart from the terminal's, whose Ctrl-C is for this process."""
    program = [_vllm() or "vllm"] if service.command[0] == "vllm" else [sys.executable, "-m", "palimpsest"]
    log.parent.mkdir(parents=True, exist_ok=True)
    environment, silent = {**os.environ, process_guard.MARK: mark}, subprocess.DEVNULL
    with log.open("wb") as output:
        return subprocess.Popen(
            [*program, *service.command[1:]],
            stdin=silent,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

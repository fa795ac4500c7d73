"""Checks of a machine and of a run folder, each with its reason and the command that fixes it.

    packages  working_folder  shared_memory  loopback  ray_token  gpu  collectives  threads      the machine
    run  health  disk  resume                                                                     a run's folder
    judge  ROLE  search  sampler                                  servers of a run or recipe, as far as it has any

A healthy run has the check `health`, others one per alarm, under its name in viewer/records/alarms.py.

Guaranteed: only the two processes of `collectives` import torch; a run's folder stays unchanged, also while its process
runs.
Not covered: other machines of a cluster; SHA-256 of a checkpoint, which a resume compares.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Literal

import psutil
from packaging.requirements import Requirement

from palimpsest import files
from palimpsest.app.config_resolution import searched_source
from palimpsest.config.engine import logprobs_mode
from palimpsest.config.install_hints import DISTRIBUTION
from palimpsest.config.load import load_recipe
from palimpsest.config.schema import RunConfig
from palimpsest.config.section import leaves
from palimpsest.engines.open import check_models
from palimpsest.errors import ConfigError, DataError, PalimpsestError, RunError
from palimpsest.http_services import check_address
from palimpsest.models.checkpoint_manifest import MANIFEST, read_manifest
from palimpsest.provenance import environment, installed
from palimpsest.runs.checkpoint import CHECKPOINTS, checkpoint_paths, checkpoint_step
from palimpsest.runs.folder_guard import FolderLock, refuse_in_use
from palimpsest.runs.jsonl_rows import read_rows, whole
from palimpsest.runs.resume_rules import EVENTS, command_of_whole, has_checkpoint, longer, reached, resume_command
from palimpsest.runs.run_folder import CONFIG, FAILED, METRICS, TIMINGS, load_config, refuse_lost_checkpoints
from palimpsest.viewer.records.alarms import Watched, alarms
from palimpsest.viewer.records.run_status import Status, status_of_run

Outcome = tuple[Literal["ok", "warn", "fail"], str, str]
"""Status, reason and fix of a check."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of one check."""

    name: str
    status: Literal["ok", "warn", "fail"]
    reason: str
    fix: str
    """The command that helps; empty if the status is ok."""


def examine(target: Path | None = None) -> Iterator[DoctorCheck]:
    """Checks of this machine, then of the run in a folder, or of the services of a recipe. Raises RunError for a folder
    without a run, ConfigError for an unknown recipe."""
    run = target if target is not None and target.is_dir() else None
    config = None if target is None else load_config(run) if run else load_recipe(target, read_files=False)
    address = os.environ.get("RAY_ADDRESS") or (None if config is None else config.cluster.address)
    gpus = 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else len(environment()["machine"]["gpus"])
    machine: Mapping[str, Callable[[], Outcome]] = {
        "packages": _packages,
        "working_folder": partial(_working_folder, Path() if run is None else run.parent),
        "shared_memory": _shared_memory,
        "loopback": _loopback,
        "ray_token": partial(_ray_token, address),
        "gpu": partial(_gpu, gpus),
        "collectives": partial(_collectives, "nccl" if gpus > 1 else "gloo"),
        "threads": _threads,
    }
    for name, check in machine.items():
        yield DoctorCheck(name, *check())
    if config is not None:
        yield from _of_run(run, config) if run else _services(config)


# ---- The machine ---------------------------------------------------------------------------------------------


_NETWORK = re.compile(r"nfs|cifs|smb|fuse|lustre|gpfs|beegfs|ceph|9p")
_LEAST_FREE, _LEAST_SHARED = 10e9, 1e9  # bytes
_PORTS = {8000: "retrieval serve", 8400: "serve", 9527: "the judge"}
_DRIVERS, _DRIVER = {11: 450, 12: 525, 13: 580}, Path("/proc/driver/nvidia/version")
"""Oldest driver by the major version of CUDA; the driver's file."""
_SUM = """
import sys, torch, torch.distributed as d
rank, backend, meeting = int(sys.argv[1]), sys.argv[2], sys.argv[3]
d.init_process_group(backend, init_method=meeting, rank=rank, world_size=2)
x = torch.ones(2, device=f"cuda:{rank}" if backend == "nccl" else "cpu") * (rank + 1)
d.all_reduce(x)
assert x.tolist() == [3.0, 3.0], x
d.destroy_process_group()
"""
_SUM_S = 120.0


def _packages() -> Outcome:
    """Versions against the bounds of pyproject.toml; of extras only installed packages."""
    try:
        needed = [Requirement(line) for line in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:
        return "warn", f"{DISTRIBUTION} is not installed", "pip install -e ."
    wrong = {}
    for requirement in needed:
        found, marker = installed(requirement.name), str(requirement.marker or "")
        if "dev" in marker or (found is None and "extra" in marker):
            continue
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong[f"{requirement.name}{requirement.specifier}"] = f"{requirement.name} {found or 'is missing'}"
    if wrong:
        return "fail", ", ".join(wrong.values()), shlex.join(["pip", "install", *wrong])
    return "ok", f"versions within their bounds, Python {sys.version.split()[0]}", ""


def _working_folder(folder: Path) -> Outcome:
    """Renames, flushes and locks as a run needs them, free space, and the kind of file system."""
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(part.mountpoint)]
    kind = max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"
    free, fix = shutil.disk_usage(folder).free, "cd to a folder on a local disk"
    told = f"{kind}, {free / 1e9:.0f} GB free"
    try:
        with tempfile.TemporaryDirectory(prefix=".palimpsest-doctor-", dir=folder) as name:
            place = Path(name) / "run"
            for content in (b"1", b"2"):
                hidden = files.hidden_folder(place)
                files.write_file(hidden / "file", content)
                files.publish_folder(hidden, place)
            lock = FolderLock(place)
            try:
                refuse_in_use(place)
                return "fail", f"{told}; locks have no effect", fix
            except RunError:
                lock.release()
    except OSError as error:
        return "fail", f"{told}; {error.strerror}", fix
    if _NETWORK.search(kind):
        return "warn", f"{told}; a network file system may lose a run", fix
    return ("ok", told, "") if free >= _LEAST_FREE else ("warn", told, "df -h .")


def _shared_memory() -> Outcome:
    folder = Path("/dev/shm")
    size = shutil.disk_usage(folder).total if folder.is_dir() else 0
    told = f"/dev/shm has {size / 1e9:.1f} GB" if size else "no /dev/shm here; files replace it"
    return ("warn", told, "docker run --shm-size=8g") if 0 < size < _LEAST_SHARED else ("ok", told, "")


def _loopback() -> Outcome:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return "fail", f"127.0.0.1 takes no connection: {error}", "ip link set lo up"
    taken = []
    for port, user in _PORTS.items():
        with socket.socket() as probe:
            taken += [f"{port} ({user})"] if probe.connect_ex(("127.0.0.1", port)) == 0 else []
    return "ok", f"ports in use: {', '.join(taken)}" if taken else "default ports are free", ""


def _ray_token(address: str | None) -> Outcome:
    if not address or (os.environ.get("RAY_AUTH_MODE") == "token" and os.environ.get("RAY_AUTH_TOKEN")):
        return "ok", f"set for {address}" if address else "no cluster to join", ""
    reason = f"anyone who reaches {address} runs code there as you"
    return "fail", reason, "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=SECRET"


def _gpu(gpus: int) -> Outcome:
    """The CUDA version of torch's build against the driver, from their files."""
    found = importlib.util.find_spec("torch")
    text = Path(found.origin).with_name("version.py").read_text("utf-8") if found and found.origin else ""
    build = re.search(r"^cuda\b[^=]*= '(\d+)", text, re.MULTILINE)
    driver = re.search(r"Kernel Module\D*(\d+)", _DRIVER.read_text("utf-8", "replace") if _DRIVER.exists() else "")
    if not gpus:
        return "ok", "no GPU; palimpsest computes on the CPU", ""
    if build is None:
        return "fail", f"{gpus} GPUs, but torch is a build for CPUs", "pip install -U torch"
    told, least = f"{gpus} GPUs, torch for CUDA {build[1]}", _DRIVERS.get(int(build[1]), 0)
    if driver is not None and int(driver[1]) < least:
        return "fail", f"{told}, driver {driver[1]}, which is too old", f"install NVIDIA driver {least} or newer"
    return "ok", f"{told}, driver {driver[1] if driver else 'unknown'}", ""


def _collectives(backend: str) -> Outcome:
    """All-reduce of two processes over loopback, with NCCL between two GPUs."""
    interface = "lo0" if sys.platform == "darwin" else "lo"
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        start = partial(
            subprocess.Popen[str], env={**os.environ, **variables}, stdout=2, stderr=subprocess.PIPE, text=True
        )
        ranks = [start([sys.executable, "-c", _SUM, rank, backend, f"file://{folder}/meeting"]) for rank in ("0", "1")]
        until = time.monotonic() + _SUM_S
        while time.monotonic() < until and [rank.poll() for rank in ranks] in ([None, None], [0, None], [None, 0]):
            time.sleep(0.05)
        for rank in ranks:
            rank.kill()  # the other waits for one that failed
        told = [rank.communicate()[1].strip() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        reason = next((text.splitlines()[-1] for text in told if text), f"no end within {_SUM_S:g} s")
        return "fail", f"{backend}: {reason:.200}", "NCCL_DEBUG=INFO palimpsest doctor"
    return "ok", f"{backend}: two processes summed over loopback", ""


def _threads() -> Outcome:
    threads, cores = os.environ.get("OMP_NUM_THREADS", ""), os.cpu_count() or 1
    told = f"OMP_NUM_THREADS={threads or 'unset'} on {cores} cores"
    if threads.isdecimal() and 1 <= int(threads) <= cores:
        return "ok", told, ""
    reason = "processes slow each other down" if threads.isdecimal() or not threads else "not a number"
    return "warn", f"{told}: {reason}", "export OMP_NUM_THREADS=1"


# ---- A run's folder ------------------------------------------------------------------------------------------


_ENDS = ("finished", "interrupted", FAILED, "resumed", "started")
_SHOWN = "reward/ungraded groups/with_signal policy/entropy sampler/logprob_gap_mean optim/grad_skipped"
"""Metrics of the last step that a healthy run shows."""


def _of_run(run: Path, config: RunConfig) -> Iterator[DoctorCheck]:
    rows, events = read_rows(run / METRICS), read_rows(run / EVENTS)
    done = max((whole(row, "step", 0) for row in rows), default=0)
    status = status_of_run(run, rows, events, config.train.max_steps)
    watched = Watched(rows, read_rows(run / TIMINGS), status, config=dict(leaves(config.model_dump())))
    raised = [alarm for alarm in alarms(watched) if alarm.severity != "advice" and alarm.key != "dead"]
    yield DoctorCheck("run", *_why_it_stopped(run, status, events, f"step {done} of {config.train.max_steps}"))
    for alarm in raised:
        reason, _, fix = alarm.text.partition(". ")
        yield DoctorCheck(alarm.key, "fail" if alarm.severity == "red" else "warn", reason, fix)
    if not raised:
        told = [f"{key} {values[-1]:.3g}" for key in _SHOWN.split() if (values := watched.values(key))]
        yield DoctorCheck("health", "ok", ", ".join(["no alarm", *told]), "")
    intact, damaged = _checkpoints(run)
    free, size = shutil.disk_usage(run).free, max(intact.values(), default=0)
    room = f"{free / 1e9:.1f} GB free, the next checkpoint takes {size / 1e9:.2f} GB"
    yield DoctorCheck("disk", "fail" if free < size else "ok", room, f"df -h {run}" if free < size else "")
    running = status in (Status.RUNNING, Status.WAITING)
    newest = max(intact, default=0)
    if running or reached(config, newest, rows):
        more = "" if running else f"; {resume_command(run, **longer(config, newest))} trains on"
        yield DoctorCheck("resume", "ok", f"nothing to resume{more}", "")
    else:
        yield DoctorCheck("resume", *_resume(run, config, newest, done, damaged))
        yield from _services(config)


def _why_it_stopped(run: Path, status: Status, events: list[dict[str, Any]], steps: str) -> Outcome:
    last: dict[str, Any] = next((row for row in reversed(events) if row.get("kind") in _ENDS), {})
    if status in (Status.RUNNING, Status.WAITING, Status.FINISHED):
        return "ok", f"{status}, {steps}", ""
    if last.get("kind") == FAILED:
        return "fail", f"ended by an error, {steps}: {last.get('error')}", command_of_whole(run)
    if last.get("kind") == "interrupted":
        return "warn", f"interrupted by a signal, {steps}", command_of_whole(run)
    return "fail", f"killed, or the machine went down, {steps}", command_of_whole(run)


def _checkpoints(run: Path) -> tuple[dict[int, int], list[str]]:
    """(bytes of complete checkpoints by step, names of damaged ones), by manifests and sizes."""
    intact, damaged = dict[int, int](), list[str]()
    for path in checkpoint_paths(run / CHECKPOINTS):
        try:
            sizes = {name: entry["size"] for name, entry in read_manifest(path / MANIFEST)["files"].items()}
            if any((path / name).stat().st_size != size for name, size in sizes.items()):
                raise DataError(f"{path}: a file has another size")
            intact[checkpoint_step(path)] = sum(sizes.values())
        except (PalimpsestError, OSError):
            damaged.append(path.name)
    return intact, damaged


def _resume(run: Path, config: RunConfig, step: int, done: int, damaged: list[str]) -> Outcome:
    """Start of a resume, or the reason for its rejection."""
    fix = resume = command_of_whole(run)
    try:
        check_models(config)
        if missing := [file for file in sorted(config.data.files) if ":" not in file and not Path(file).exists()]:
            raise DataError(f"{missing[0]}: no such file; resume in the folder where the run started")
        start_over = shlex.join(["palimpsest", "train", str(run / CONFIG), "--out", str(run), "--force"])
        fix = start_over if resume == shlex.join(["palimpsest", "train", "--resume", str(run)]) else ""
        refuse_lost_checkpoints(run)
        if damaged and not step:
            raise DataError(f"damaged: {', '.join(damaged)}; start over with --force")
    except PalimpsestError as error:
        return "fail", f"would be rejected: {error}", fix
    begins = "continues the cold start" if has_checkpoint(run) else "starts over, without a checkpoint"
    starts = f"starts after step {step}" if step else begins
    lost = f"{step + 1}-{done}" if done > step + 1 else str(done)
    again = f"; steps {lost} run again" if done > step else ""
    skips = f"; {', '.join(damaged)} damaged" if damaged else ""
    return "warn" if damaged else "ok", f"{starts}{again}{skips}: {resume}", ""


# ---- Services that a recipe queries ---------------------------------------------------------------------------


_JUDGES = {"gpt-oss": "openai/gpt-oss-120b"}
"""Models by their name in recipes."""
_LOOK_S, _LONGEST = 1.0, 1 << 20  # seconds and bytes of an answer


def _services(config: RunConfig) -> Iterator[DoctorCheck]:
    """Judge, roles, search server and vLLM servers with an address in the configuration, each with its command."""
    if (judge := config.reward.judge) is not None:
        words = ["vllm", "serve", _JUDGES.get(judge.model, judge.model), "--served-model-name", judge.model]
        yield _service("judge", "reward.judge.url", judge.url, "/models", "data", words)
    for name, role in config.roles.items():
        if role.url:
            served = role.model or config.model.path
            yield _service(name, f"roles.{name}.url", role.url, "/models", "data", ["vllm", "serve", served])
    source = str(searched_source(config.policy))
    if source.startswith(("http://", "https://")):
        words = ["palimpsest", "retrieval", "serve", "CORPUS"]
        yield _service("search", "policy.options.tools.search.source", source, "/queue_status", "max_waiting", words)
    for url in config.sampler.urls:
        words = ["env", "VLLM_SERVER_DEV_MODE=1", "vllm", "serve", "EXPORTED", "--enable-scale-out", "--load-format"]
        words += ["safetensors", "--generation-config", "vllm", "--dtype", config.model.dtype]
        words += ["--logprobs-mode", logprobs_mode(config.sampling)]
        first = f"palimpsest export {shlex.quote(config.model.path)} --untied --out EXPORTED && "
        yield _service("sampler", "sampler.urls", url, "/health", "", words, first)


def _service(name: str, key: str, url: str, health: str, states: str, words: list[str], first: str = "") -> DoctorCheck:
    """`states`: key of the JSON at the path `health`, which tells the service from another program on its port."""
    try:
        parsed = check_address(url, key)
    except ConfigError as error:
        return DoctorCheck(name, "fail", str(error), f"set {key}=http://127.0.0.1:PORT")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url.rstrip("/") + health, timeout=_LOOK_S) as answer:
            up = not states or states in json.loads(answer.read(_LONGEST))
    except urllib.error.HTTPError as error:
        up = error.code in (401, 403)  # it requires a key
    except (OSError, ValueError, TypeError, HTTPException):
        up = False
    if up:
        return DoctorCheck(name, "ok", f"answers at {url}", "")
    command = shlex.join([*words, "--host", str(parsed.hostname), "--port", str(parsed.port or 80)])
    return DoctorCheck(name, "fail", f"no {name} server answers at {key}={url}", first + command)

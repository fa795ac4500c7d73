"""Origin of a run, a checkpoint, an evaluation or a report: versions, machine, command line.

    versions    palimpsest, its git commit in a checkout, Python, PyTorch, transformers and other numerical packages
    machine     processor, cores, GPUs
    command     the command line without secrets

Guaranteed: no import, network request or process; unavailable facts are left out.
Not covered: uncommitted changes of a checkout; a secret in a command line under an unsuspicious name.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from palimpsest._version import __version__
from palimpsest.config.install_hints import CHECKOUT
from palimpsest.config.load import without_secrets

MADE_WITH = "made_with"
"""Key of `provenance` in files."""
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "vllm", "ray", "peft")
_CPUINFO, _GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")


def provenance() -> dict[str, Any]:
    """`versions`, `machine` and `command`, as JSON."""
    return {**environment(), "command": command_line(sys.argv)}


@cache
def environment() -> Mapping[str, Any]:
    """`versions` and `machine`: the same in every process of one installation on one machine."""
    packages = {name: version for name in _PACKAGES if (version := installed(name)) is not None}
    commit = commit_of(CHECKOUT)
    package = {"palimpsest": __version__, **({} if commit is None else {"commit": commit})}
    machine = {"processor": _processor(), "cores": os.cpu_count(), "gpus": _gpus()}
    return {"versions": {**package, "python": platform.python_version(), **packages}, "machine": machine}


def command_line(arguments: Sequence[str]) -> str:
    """A command line to type, without the program's folder.

    >>> command_line(["/usr/bin/palimpsest", "eval", "--token", "s3cret", "reward.judge.url=http://me:pw@host/v1"])
    "palimpsest eval --token '***' 'reward.judge.url=http://***@host/v1'"
    """
    return shlex.join([Path(argument).name for argument in arguments[:1]] + without_secrets(arguments[1:]))


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Different versions or machines of two `provenance` values as text; None without a difference.

    >>> differences({"versions": {"torch": "2.12.0"}}, {"versions": {"torch": "2.13.0"}})
    'torch 2.12.0 -> 2.13.0'
    """
    changes = []
    for part in ("versions", "machine"):
        before, after = was.get(part), now.get(part)
        if isinstance(before, dict) and isinstance(after, Mapping):
            keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
            changes += [f"{key} {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in keys]
    return ", ".join(changes) or None


def facts(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values for a page; empty without known facts.

    >>> facts({"versions": {"palimpsest": "0.1.0", "torch": "2.13.0"}, "command": "palimpsest eval"})
    [('command', 'palimpsest eval'), ('made with', 'palimpsest 0.1.0, torch 2.13.0')]
    """
    machine = dict(made.get("machine", {}))
    cores = f"{machine['cores']} cores" if machine.get("cores") else ""
    rows = {
        "command": str(made.get("command", "")),
        "made with": ", ".join(f"{name} {version}" for name, version in dict(made.get("versions", {})).items()),
        "machine": ", ".join(
            part for part in (machine.get("processor") or "", cores, *machine.get("gpus", ())) if part
        ),
    }
    return [(name, value) for name, value in rows.items() if value]


def commit_of(checkout: Path) -> str | None:
    """Current commit of a git checkout; None without a checkout, or if unreadable."""
    git = checkout / ".git"
    try:
        if git.is_file():  # of a further worktree
            git = checkout / git.read_text("utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head
        shared = git / "commondir"
        common = git / shared.read_text("utf-8").strip() if shared.is_file() else git
        return _resolved(head.removeprefix("ref: "), (git, common))
    except (OSError, UnicodeDecodeError):
        return None


def _resolved(ref: str, folders: Sequence[Path]) -> str | None:
    for folder in folders:
        if (folder / ref).is_file():
            return (folder / ref).read_text("utf-8").strip()
    packed = folders[-1] / "packed-refs"
    lines = packed.read_text("utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), None)


def installed(package: str) -> str | None:
    """Installed version of a package; None without one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    return next(_values(_CPUINFO, "model name"), platform.processor() or platform.machine())


def _gpus() -> list[str]:
    """Names of NVIDIA GPUs, from the Linux driver."""
    return [name for file in sorted(_GPUS.glob("*/information")) for name in _values(file, "Model")]


def _values(file: Path, key: str) -> Iterator[str]:
    """Text after `key` and a colon in the lines of a file."""
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return iter(())
    return (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == key)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)

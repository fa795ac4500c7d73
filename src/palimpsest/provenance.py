"""Origin of a result, and the one definition of inputs that count as the same.

    versions    palimpsest, its git commit in a checkout, Python, PyTorch, transformers and other numerical packages
    machine     processor, cores, GPUs
    command     the command line without secrets
    inputs      digests of whole contents: weights, an adapter's base, configuration, tokenizer and template files of
                a model; users' modules with the modules of their folder that they import; problems

The digest of a large file is cached in memory and in `~/.cache/palimpsest`, by device, inode, size and times.

Guaranteed: no network request or process; unavailable facts are left out; a damaged cache is ignored.
Not covered: uncommitted changes of a checkout; a secret in a command line under an unsuspicious name; a file whose
content changes while its size and both times stay.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import shlex
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palimpsest import files
from palimpsest._version import __version__
from palimpsest.config.engine import model_path, named
from palimpsest.config.install_hints import CHECKOUT
from palimpsest.config.load import without_secrets
from palimpsest.config.reward import JUDGE_OPERATION
from palimpsest.config.schema import PolicyConfig, RunConfig
from palimpsest.config.section import leaves
from palimpsest.models.model_files import ADAPTER_SETTINGS, INDEX, read_object
from palimpsest.models.model_folder import local_folder
from palimpsest.types import Problem

if TYPE_CHECKING:
    from palimpsest.engines.protocol import Endpoint

MADE_WITH = "made_with"
"""Key of `provenance` in files."""
INPUTS = "inputs"
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "vllm", "ray", "peft")
_CPUINFO, _GPUS = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")


def provenance(config: RunConfig | None = None) -> dict[str, Any]:
    """`versions`, `machine`, `command`, and the `inputs` of a run's configuration other than data, as JSON."""
    if config is None:
        return {**environment(), "command": command_line(sys.argv)}
    inputs = model_identity(config) | {"modules": source_digests(config.model_dump(mode="json"))}
    return provenance() | {INPUTS: dict(leaves(inputs))}


@cache
def environment() -> Mapping[str, Any]:
    """`versions` and `machine`: the same in every process of one installation on one machine."""
    packages = {name: version for name in _PACKAGES if (version := installed(name)) is not None}
    commit = commit_of(CHECKOUT)
    package = {"palimpsest": __version__, **({} if commit is None else {"commit": commit})}
    processor = next(_values(_CPUINFO, "model name"), platform.processor() or platform.machine())
    gpus = [name for file in sorted(_GPUS.glob("*/information")) for name in _values(file, "Model")]  # NVIDIA's
    machine = {"processor": processor, "cores": os.cpu_count(), "gpus": gpus}
    return {"versions": {**package, "python": platform.python_version(), **packages}, "machine": machine}


def command_line(arguments: Sequence[str]) -> str:
    """A command line to type, without the program's folder.

    >>> command_line(["/usr/bin/palimpsest", "eval", "--token", "s3cret", "reward.judge.url=http://me:pw@host/v1"])
    "palimpsest eval --token '***' 'reward.judge.url=http://***@host/v1'"
    """
    return shlex.join([Path(argument).name for argument in arguments[:1]] + without_secrets(arguments[1:]))


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Different versions, machines or inputs of two `provenance` values as text; None without a difference.

    >>> differences({"versions": {"torch": "2.12.0"}}, {"versions": {"torch": "2.13.0"}})
    'torch 2.12.0 -> 2.13.0'
    """
    changes = []
    for part in ("versions", "machine", INPUTS):
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


def _values(file: Path, key: str) -> Iterator[str]:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return iter(())
    return (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == key)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


# ---- Contents of files ---------------------------------------------------------------------------------------


_LARGE = 1 << 24  # bytes; smaller files take at most 20 ms
_SETTLED_NS = 2_000_000_000  # a file younger than this may change again without a new time
_HELD = 1024
_READERS = 8
_known: dict[str, str] = {}
"""SHA-256 of large files by `_stamp`, the last `_HELD`."""


def sha256s(paths: Sequence[Path]) -> list[str]:
    """SHA-256 of each file, read in threads unless its digest is known. Raises OSError."""
    stamps = [_stamp(path) for path in paths]
    if any(stamp and stamp not in _known for stamp in stamps):
        _known.update(_stored())
    with ThreadPoolExecutor(_READERS) as readers:
        found = list(readers.map(lambda path, stamp: _known.get(stamp) or files.sha256(path), paths, stamps))
    read = [row for row in zip(paths, stamps, found, strict=True) if row[1] and row[1] not in _known]
    if new := {stamp: digest for path, stamp, digest in read if stamp == _stamp(path)}:
        _store(new)
    return found


def _stamp(path: Path) -> str:
    """Key of the content of a large file; "" for other files, and for one that has just changed."""
    state = path.stat()
    settled = time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns) > _SETTLED_NS
    fields = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return ":".join(map(str, fields)) if settled and state.st_size >= _LARGE else ""


def _cache_file() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))  # XDG: ignore a relative path
    return (folder if folder.is_absolute() else Path.home() / ".cache") / "palimpsest" / "digests.json"


def _stored() -> dict[str, str]:
    try:
        checksum, _, body = files.read_regular(_cache_file(), 1 << 20).partition(b"\n")
        known = json.loads(body) if checksum == b"%08x" % zlib.crc32(body) else None
        return known if isinstance(known, dict) and all(isinstance(each, str) for each in known.values()) else {}
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no home
        return {}


def _store(new: Mapping[str, str]) -> None:
    """Add digests for later processes; errors of writing the cache are ignored."""
    _known.update(new)
    for stamp in list(_known)[:-_HELD]:
        del _known[stamp]
    body = json.dumps(_known).encode()
    with suppress(OSError, RuntimeError):
        _cache_file().parent.mkdir(parents=True, exist_ok=True)
        files.write_file(_cache_file(), b"%08x\n" % zlib.crc32(body) + body)


# ---- Models, code and data that count as the same ------------------------------------------------------------

WHOLE = "sha256:"
"""Start of a fingerprint over whole files. Earlier versions hashed the ends of each file, or stored a hub id."""


def weights_digest(folder: Path) -> str:
    """SHA-256 over names and contents of the weight files in a folder."""
    weights = sorted(folder.glob("*.safetensors"))
    lines = (f"{file.name}:{digest}\n" for file, digest in zip(weights, sha256s(weights), strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def weights_fingerprint(name: str) -> str | None:
    """Fingerprint of the weight files of a model, with the base of an adapter; None for a model that is not here."""
    parts, folder = list[str](), local_folder(name)
    if folder is None or not any(folder.glob("*.safetensors")):
        return None
    while folder is not None and (digest := weights_digest(folder)) not in parts:
        parts += [digest, *(text_digests(folder).values() if parts else ())]
        base = read_object(name, folder / ADAPTER_SETTINGS).get("base_model_name_or_path")
        folder = local_folder(named(base)) if isinstance(base, str) else None
        parts += [base] if isinstance(base, str) and folder is None else []
    return WHOLE + short_digest("".join(parts))


def same_weights(identity: Mapping[str, Any], weights: str | None) -> bool | None:
    """True if a stored identity has these weights; None if an earlier version stored it, so that this is unknown."""
    stored = str(identity.get("weights"))
    if "endpoint" in identity or stored.startswith(WHOLE) or not str(weights).startswith(WHOLE):
        return stored == weights
    return None


def short_digest(text: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "additional_chat_templates/*",
    "special_tokens_map.json",
    "added_tokens.json",
    INDEX,
)


def text_digests(folder: Path) -> dict[str, str]:
    """16 hexadecimal digits per configuration, tokenizer, template and index file of a model, by path in `folder`."""
    texts = sorted(file for pattern in (*_TEXT_FILES, "vocab.*", "merges.txt") for file in folder.glob(pattern))
    return {file.relative_to(folder).as_posix(): files.sha256(file)[:16] for file in texts if file.is_file()}


_NAMED = re.compile(r'"([\w./-]+):[A-Za-z_]\w*"')


def source_digests(settings: Any) -> dict[str, str]:
    """16 hex digits of each imported module or file that `settings` names as `my_module:MyThing`, with the modules of
    its folder that it imports.

    >>> list(source_digests({"reward": {"name": "json:loads", "state": "no_module:x"}}))
    ['json']
    """
    digests = dict[str, str]()
    for name in sorted(set(_NAMED.findall(json.dumps(settings, default=str)))):
        file = name if name.endswith(".py") else getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).is_file():
            hashes = [files.sha256(path) for path in _with_imports(Path(file).resolve(), name)]
            digests[name] = hashes[0][:16] if len(hashes) == 1 else short_digest("".join(hashes))
    return digests


def _with_imports(file: Path, name: str) -> list[Path]:
    """A module's file, and the sorted files that it imports from below the folder of its top package."""
    inside = 0 if name.endswith(".py") else name.count(".") + (file.name == "__init__.py")
    root, found, waiting = file.parents[inside], {file}, [file]
    while waiting and not file.is_relative_to(sys.base_prefix):
        imported = set(_imports(waiting.pop(), root)) - found
        found |= imported
        waiting += imported
    return [file, *sorted(found - {file})]


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """Files in or below `root` that a module may import."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            level, module = getattr(node, "level", 0), getattr(node, "module", None)
            base = file.parents[level - 1] if level else root
            for alias in node.names:
                parts = f"{module or ''}.{alias.name}".strip(".").split(".")
                stems = [base.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
                tried = (path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py"))
                yield from (path for path in tried if path.is_file())


def model_identity(config: RunConfig, endpoint: Endpoint | None = None) -> dict[str, Any]:
    """Properties of a model, of its template and of the models of roles that decide on the tokens of an episode.
    `endpoint`: the sampling endpoint, whose address may change."""
    models = {name: role.model for name, role in config.roles.items()}
    roles = {name: model and (weights_fingerprint(named(model)) or model) for name, model in models.items()}
    identity: dict[str, Any] = {
        **({"template": config.model.chat_template_kwargs} if config.model.chat_template_kwargs else {}),
        **({"roles": roles} if roles else {}),
    }
    if endpoint is not None:
        optional = {"served": endpoint.served, "dropped": ", ".join(endpoint.dropped)}
        sampled = {"mode": endpoint.mode, "tokenizer": endpoint.tokenizer}
        sampled |= {name: value for name, value in optional.items() if value}
        return identity | {"weights": endpoint.model, "endpoint": sampled}
    path = model_path(config.model)
    folder = local_folder(path)
    texts = {} if folder is None else text_digests(folder)
    weights = weights_fingerprint(path) or config.model.path
    return identity | {"weights": weights} | ({"model_files": texts} if texts else {})


def evaluation_identity(
    config: RunConfig,
    policies: Mapping[str, PolicyConfig],
    problems: Sequence[Problem] | None = None,
    endpoint: Endpoint | None = None,
) -> dict[str, Any]:
    """Properties that samples of one log must share. Number and sizes of the problems may differ: a log may grow.
    `problems`: problems that the caller passed."""
    data = config.data.model_dump(mode="json", exclude={"synthetic": {"chunks"}, "search": {"objectives"}})
    identity = model_identity(config, endpoint) | {
        "policies": {name: policy.model_dump(mode="json") for name, policy in policies.items()},
        "data": {key: value for key, value in data.items() if key not in ("limit", "curriculum")},
        "reward": config.reward.model_dump(mode="json", exclude={"judge": set(JUDGE_OPERATION), "timeout_s": True}),
        "sampling": config.eval_sampling.model_dump(mode="json", exclude=set(endpoint.dropped) if endpoint else None),
        "seed": config.seed,
        **({} if config.environment is None else {"environment": config.environment.model_dump(mode="json")}),
        **({} if problems is None else {"problems": Contents(problems).to_json()}),
    }
    modules = source_digests(identity)
    return identity | ({"modules": modules} if modules else {})


# ---- Problems ------------------------------------------------------------------------------------------------


PARTS = ("questions", "golds", "documents", "metadata")
"""Parts with separate digests in `Contents`."""


def document_digest(document: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.blake2b(document.encode("utf-8", "replace"), digest_size=8).hexdigest()


class Contents:
    """Digests of the problems that passed through `watching`, in order."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self._problems = 0
        self._digests = {part: hashlib.blake2b(digest_size=8) for part in PARTS}
        for problem in problems:
            self._add(problem)

    def watching(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        """Yield `problems` unchanged and add each to the digests."""
        for problem in problems:
            self._add(problem)
            yield problem

    def to_json(self) -> dict[str, Any]:
        """The number of problems, and 16 hexadecimal digits per part."""
        return {"problems": self._problems} | {part: digest.hexdigest() for part, digest in self._digests.items()}

    def _add(self, problem: Problem) -> None:
        self._problems += 1
        questions = problem.by_question
        held = {
            "questions": [problem.id, [item.question for item in questions], problem.memory],
            "golds": [list(item.answers) for item in questions],
            "documents": None if problem.context is None else document_digest(problem.context),
            "metadata": dict(problem.metadata),
        }
        for part, value in held.items():
            self._digests[part].update(json.dumps(value, sort_keys=True, default=str).encode() + b"\n")


def changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Message on the difference between two `Contents.to_json`; None if they are equal.

    >>> one, two = (Contents([Problem("p", "Who?", (gold,), "A text.")]).to_json() for gold in ("Ann", "Bob"))
    >>> changed(one, two), changed(one, one)
    ('golds changed', None)
    """
    names = [part for part in PARTS if was.get(part) != now.get(part)]
    if was.get("problems") != now.get("problems"):
        return f"{was.get('problems')} problems then, {now.get('problems')} now"
    return f"{' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)} changed" if names else None

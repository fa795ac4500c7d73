"""Provenance of results: versions, commit, machine, command line; no secret."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import palimpsest
from palimpsest import files, provenance
from palimpsest.config.schema import RunConfig
from palimpsest.models.checkpoint_manifest import read_manifest
from palimpsest.provenance import (
    commit_of,
    evaluation_identity,
    sha256s,
    source_digests,
    text_digests,
    weights_fingerprint,
)
from palimpsest.runs.jsonl_rows import read_rows
from support.changed_models import change_the_middle, copied_base, rewrite_template, scale_positions
from support.command import Run
from support.fakes import small_config
from support.small_run import small_evaluation, small_run
from support.training import train


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", str(folder), *settings, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check(made: dict[str, Any]) -> None:
    assert made["versions"]["palimpsest"] == palimpsest._version.__version__
    assert made["versions"]["torch"] == version("torch")
    assert made["versions"]["transformers"] == version("transformers")
    assert made["versions"]["python"] == platform.python_version()
    assert made["machine"]["processor"]


def test_a_run_its_checkpoints_and_its_report_say_with_what_they_were_made(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    run = palimpsest.train("memagent-quickstart", small_run(tiny_model_folder), out=tmp_path / "run", quiet=True)
    started = read_rows(run.folder / "events.jsonl")[0]
    check(started["made_with"])
    assert started["made_with"]["command"]
    manifest = read_manifest(run.checkpoint / "manifest.json")
    check(manifest["made_with"])
    assert "command" not in manifest["made_with"]  # a resumed run's checkpoints are the same bytes
    assert f"torch {version('torch')}" in run.report.read_text()


def test_an_evaluation_says_with_what_it_was_made(tmp_path: Path, tiny_model_folder: Path, palimpsest: Run) -> None:
    command = small_evaluation(tiny_model_folder, tmp_path / "e")
    done = palimpsest(*command)
    assert done.returncode == 0, done.stderr
    for name in ("evaluation.json", "summary.json"):
        made = json.loads((tmp_path / "e" / name).read_text())["made_with"]
        check(made)
        assert "palimpsest eval " in made["command"]
    report = (tmp_path / "e" / "report.html").read_text()
    assert "<dt>command</dt>" in report
    assert f"torch {version('torch')}" in report
    again = palimpsest(*command)
    assert "4 of 4 episodes exist already" in again.stderr
    assert "with other versions" not in again.stderr


def test_a_resume_under_other_versions_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, small_config(max_steps=2))
    _, warnings = train(tmp_path, small_config(max_steps=4), resume=True)
    assert not [line for line in warnings if "other versions" in line]
    now = dict(provenance.environment())
    changed = {**now, "versions": {**now["versions"], "torch": "0.0.1"}}
    monkeypatch.setattr(provenance, "environment", lambda: changed)
    _, warnings = train(tmp_path, small_config(max_steps=6), resume=True)
    warning = f"resumed with other versions or inputs, or on another machine (torch {version('torch')} -> 0.0.1)"
    assert [line for line in warnings if line.startswith(warning)]
    assert read_rows(tmp_path / "events.jsonl")[-1]["kind"] == "finished"


def test_a_run_of_an_earlier_version_resumes_without_a_warning_of_versions(tmp_path: Path) -> None:
    train(tmp_path, small_config(max_steps=2))
    events = tmp_path / "events.jsonl"
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    bare = [{key: value for key, value in row.items() if key != "made_with"} for row in rows]
    events.write_text("".join(json.dumps(row) + "\n" for row in bare if row["kind"] != "continued"))
    _, warnings = train(tmp_path, small_config(max_steps=4), resume=True)
    assert not [line for line in warnings if "other versions" in line]


def test_the_commit_is_that_of_git_in_a_checkout_a_worktree_and_with_packed_refs(tmp_path: Path) -> None:
    checkout, tree = tmp_path / "checkout", tmp_path / "tree"
    checkout.mkdir()
    assert commit_of(checkout) is None
    git(checkout, "init", "-q")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "one")
    git(checkout, "worktree", "add", "-q", str(tree))
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    for folder in (checkout, tree):
        assert commit_of(folder) == git(folder, "rev-parse", "HEAD")
    git(checkout, "pack-refs", "--all")
    for folder in (checkout, tree):
        assert commit_of(folder) == git(folder, "rev-parse", "HEAD")
    git(checkout, "checkout", "-q", "--detach")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")


# ---- What counts as the same ---------------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache file of digests, for files of any size and age."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(provenance, "_LARGE", 1)
    monkeypatch.setattr(provenance, "_SETTLED_NS", -(10**10))
    return tmp_path / "cache" / "palimpsest" / "digests.json"


def later_process(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Forget what this process knows. Returns a list that grows with each file read."""
    read, digest = list[Path](), files.sha256
    monkeypatch.setattr(provenance, "_known", {})

    def reading(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(files, "sha256", reading)
    return read


def test_a_later_process_does_not_read_a_file_again(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    first = sha256s(paths)
    assert first == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    read = later_process(monkeypatch)
    assert (sha256s(paths), read) == (first, [])
    times = paths[0].stat()
    paths[0].write_bytes(b"A" + b"a" * 99)
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert sha256s(paths)[0] == hashlib.sha256(paths[0].read_bytes()).hexdigest() != first[0]
    assert read == paths[:1]


@pytest.mark.parametrize("damage", [b"", b"[]", b"{" * 10_000, b"\xff" * 100, "digit", "folder"])
def test_a_damaged_cache_of_digests_is_read_as_empty(
    tmp_path: Path, cached: Path, damage: bytes | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (digest,) = sha256s([tmp_path / "a"])
    content = cached.read_bytes()
    if damage == "folder":
        cached.unlink()
        cached.mkdir()
    else:
        other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
        cached.write_bytes(damage if isinstance(damage, bytes) else content.replace(digest.encode(), other.encode()))
    read = later_process(monkeypatch)
    assert sha256s([tmp_path / "a"]) == [digest]
    assert read == [tmp_path / "a"]


@pytest.mark.parametrize("other", [None, ["a"], [["a", "b"]], "text", 5, {"STAMP": 5}, {"STAMP": None, "b": "c"}])
def test_a_cache_of_other_values_than_digests_is_read_as_empty(
    tmp_path: Path, cached: Path, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_known", {})
    (tmp_path / "a").write_bytes(b"a")
    (digest,) = sha256s([tmp_path / "a"])
    (stamp,) = json.loads(cached.read_bytes().partition(b"\n")[2])
    body = json.dumps(other).replace("STAMP", stamp).encode()
    cached.write_bytes(b"%08x\n" % zlib.crc32(body) + body)
    read = later_process(monkeypatch)
    assert (sha256s([tmp_path / "a"]), read) == ([digest], [tmp_path / "a"])


@pytest.mark.parametrize("folder", ["cache", "./cache", ""])
def test_a_relative_folder_of_caches_is_ignored(
    tmp_path: Path, cached: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "_known", {})
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "a").write_bytes(b"a")
    sha256s([tmp_path / "a"])
    assert [file.relative_to(tmp_path) for file in tmp_path.rglob("digests.json")] == [
        Path("home/.cache/palimpsest/digests.json")
    ]


def test_every_template_and_the_index_of_weights_count_by_their_paths(tmp_path: Path) -> None:
    names = ("chat_template.jinja", "additional_chat_templates/chat_template.jinja", "model.safetensors.index.json")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    before = text_digests(tmp_path)
    assert set(before) == set(names)
    for name in names:
        (tmp_path / name).write_text("{ }")
        after = text_digests(tmp_path)
        assert {key for key in before if before[key] != after[key]} == {name}
        before = after


def test_the_cache_of_digests_keeps_the_last_ones(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_HELD", 3)
    later_process(monkeypatch)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_text(path.name)
        sha256s([path])
    stored = json.loads(cached.read_bytes().partition(b"\n")[2])
    assert list(stored.values()) == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths[2:]]


def test_a_file_that_has_just_changed_is_read_again(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_SETTLED_NS", 10**12)
    (tmp_path / "a").write_bytes(b"a")
    read = later_process(monkeypatch)
    assert sha256s([tmp_path / "a"]) == sha256s([tmp_path / "a"])
    assert len(read) == 2


def test_weights_are_compared_by_all_their_bytes(tmp_path: Path) -> None:
    one, two = copied_base(tmp_path / "one"), copied_base(tmp_path / "two")
    assert weights_fingerprint(str(one)) == weights_fingerprint(str(two))
    change_the_middle(two)
    assert weights_fingerprint(str(one)) != weights_fingerprint(str(two))
    assert weights_fingerprint(str(tmp_path)) is None


@pytest.mark.parametrize("change", [change_the_middle, scale_positions])
def test_an_adapter_is_the_same_only_on_the_same_base(tmp_path: Path, change: Callable[[Path], None]) -> None:
    base, adapter = copied_base(tmp_path / "base"), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    before = weights_fingerprint(str(adapter))
    change(base)
    assert weights_fingerprint(str(adapter)) != before
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(adapter)}))
    assert weights_fingerprint(str(adapter)) not in (before, None)  # an adapter of itself ends too


def test_another_model_of_a_role_is_another_evaluation(tmp_path: Path) -> None:
    role = copied_base(tmp_path / "role")
    config = RunConfig.model_validate({"roles": {"reader": {"model": str(role)}}})
    before = evaluation_identity(config, {})
    assert before == evaluation_identity(config, {}) != evaluation_identity(RunConfig(), {})
    change_the_middle(role)
    assert evaluation_identity(config, {}) != before


def test_another_environment_is_another_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worlds.py").write_text("class World:\n    reward = 0.25\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "worlds", raising=False)

    def identity(**options: Any) -> dict[str, Any]:
        environment = {"name": f"{importlib.import_module('worlds').__name__}:World", "options": options}
        return evaluation_identity(RunConfig.model_validate({"environment": environment}), {})

    before = identity(left=5)
    assert before == identity(left=5) != identity(left=3)
    (tmp_path / "worlds.py").write_text("class World:\n    reward = 0.5\n")
    assert identity(left=5) != before


MODULES = {
    "mine.py": "import json\nimport nearby\nfrom inner.part import x\nx = 1\n",
    "nearby.py": "def f():\n    import late\n",
    "late.py": "",
    "inner/__init__.py": "",
    "inner/part.py": "from . import more\nx = 2\n",
    "inner/more.py": "",
    "other.py": "",
    "broken.py": "def",
}


@pytest.mark.parametrize("changed", MODULES)
def test_a_users_module_counts_with_those_of_its_folder_that_it_imports(tmp_path: Path, changed: str) -> None:
    for name, source in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    settings = {"reward": {"name": f"{tmp_path / 'mine.py'}:x"}}
    before = source_digests(settings)
    (tmp_path / changed).write_text(MODULES[changed] + "\n# changed\n")
    assert (source_digests(settings) == before) == (changed in ("other.py", "broken.py"))


def test_a_resume_with_another_template_or_base_is_a_warning(tmp_path: Path) -> None:
    model = copied_base(tmp_path / "model")
    config = small_config(max_steps=2)
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": str(model)})})
    train(tmp_path / "run", config)
    change_the_middle(model)
    rewrite_template(model)
    again = config.model_copy(update={"train": config.train.model_copy(update={"max_steps": 4})})
    _, warnings = train(tmp_path / "run", again, resume=True)
    (note,) = [line for line in warnings if "other versions or inputs" in line]
    assert "weights sha256:" in note
    assert "model_files.chat_template.jinja" in note

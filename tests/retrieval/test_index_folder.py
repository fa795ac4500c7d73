"""Folders of an index: built once, replaced atomically, verified, never written over other files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palimpsest.errors import DataError
from palimpsest.retrieval import index_folder
from palimpsest.retrieval.search import Bm25Index
from support.records import one_line_error, save

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
PASSAGES = [
    {"title": "Rome", "text": "Rome is the capital of Italy."},
    {"title": "Tiber", "text": "The Tiber flows through Rome, Rome and again Rome."},
    {"title": "", "text": ""},
]
BUILD = """
import sys
from pathlib import Path
from palimpsest.retrieval.search import Bm25Index
Bm25Index.of_corpus(*map(Path, sys.argv[1:]))
"""
KILLED = """
import os, sys, signal
from pathlib import Path
from palimpsest import files
from palimpsest.retrieval import search as bm25, index_folder as passages
for n in range(100):
    pid = os.fork()
    if pid == 0:
        left = [n]
        def mortal(function):
            def run(*a, **k):
                if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return function(*a, **k)
            return run
        passages.np.save = mortal(passages.np.save)
        files.sha256 = mortal(files.sha256)
        files.sync = mortal(files.sync)
        files.os.replace = mortal(os.replace)
        files.shutil.rmtree = mortal(files.shutil.rmtree)
        found = bm25.Bm25Index.of_corpus(Path(sys.argv[1]), Path(sys.argv[2]))
        os._exit(0 if left[0] else 1)
    _, status = os.waitpid(pid, 0)
    if os.path.exists(sys.argv[2]):
        bm25.Bm25Index.open(Path(sys.argv[2]))
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) in (0, 1), status
        break
print(n)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_index_is_built_once_and_again_when_the_corpus_changes(tmp_path: Path) -> None:
    corpus, folder = save(tmp_path / "c.jsonl", *PASSAGES), tmp_path / "index"
    first = Bm25Index.of_corpus(corpus, folder)
    inode = (folder / "manifest.json").stat().st_ino
    assert len(Bm25Index.of_corpus(corpus, folder)) == len(first) == 3
    assert (folder / "manifest.json").stat().st_ino == inode
    save(corpus, *PASSAGES[:2])
    assert len(Bm25Index.of_corpus(corpus, folder)) == 2
    assert first.search(["Tiber"], 1)[0][0].document["title"] == "Tiber"  # an open index stays usable


def test_an_index_replaced_by_another_process_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, other = save(tmp_path / "c.jsonl", *PASSAGES), save(tmp_path / "d.jsonl", *PASSAGES[:2])
    ensure = index_folder.ensure

    def replaced(folder: Path, *rest: Any) -> Path:
        built = ensure(folder, *rest)
        monkeypatch.undo()
        Bm25Index.of_corpus(other, folder)
        return built

    monkeypatch.setattr(index_folder, "ensure", replaced)
    with pytest.raises(DataError, match="of another corpus there"):
        Bm25Index.of_corpus(corpus, tmp_path / "index")


def test_an_index_behind_a_symbolic_link_is_built_at_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "index"
    link.symlink_to(tmp_path / "disk", target_is_directory=True)
    for count in (2, 3, 3):
        index = Bm25Index.of_corpus(save(tmp_path / "c.jsonl", *PASSAGES[:count]), link)
        assert (len(index), len(Bm25Index.open(link))) == (count, count)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".disk.lock", "c.jsonl", "disk", "index"]


def test_an_index_may_be_built_in_an_empty_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = save(tmp_path / "c.jsonl", *PASSAGES)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert len(Bm25Index.of_corpus(corpus, Path())) == 3
    assert len(Bm25Index.open(tmp_path / "here")) == 3


def test_a_link_left_by_an_older_removal_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / ".palimpsest-trash-index").symlink_to(tmp_path / "kept", target_is_directory=True)
    Bm25Index.of_corpus(save(tmp_path / "c.jsonl", *PASSAGES), tmp_path / "index")
    assert (tmp_path / "kept" / "file").exists()
    assert not (tmp_path / ".palimpsest-trash-index").is_symlink()


def test_the_same_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    corpus = save(tmp_path / "c.jsonl", *PASSAGES)
    for name in ("a", "b"):
        Bm25Index.of_corpus(corpus, tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_folder_that_is_no_index_is_never_overwritten(tmp_path: Path) -> None:
    corpus = save(tmp_path / "c.jsonl", *PASSAGES)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"not an index .*choose another folder"):
        Bm25Index.of_corpus(corpus, mine)
    with pytest.raises(DataError, match=r"not an index .*choose another folder"):
        Bm25Index.build(PASSAGES, mine)
    assert contents(mine) == {"thesis.txt": b"years of work"}


@pytest.mark.parametrize(
    "changes",
    [{"files": []}, {"files": {}}, {"files": {"../a": "0"}}, {"files": {"a": 1}}, {"made_of": "x"}, {"kind": ["bm25"]}],
)
def test_a_manifest_of_another_shape_is_rejected_in_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    corpus = save(tmp_path / "c.jsonl", *PASSAGES)
    Bm25Index.of_corpus(corpus, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    for act in (lambda: Bm25Index.open(manifest.parent), lambda: Bm25Index.of_corpus(corpus, manifest.parent)):
        message = one_line_error(DataError, act)
        assert message.endswith("manifest.json: damaged; delete the folder and build it again")


def test_a_changed_byte_is_detected_in_any_file(tmp_path: Path) -> None:
    index = Bm25Index.build(PASSAGES, tmp_path / "index")
    for path in sorted(index.folder.iterdir()):
        if path.name == "manifest.json":
            continue
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(DataError, match=f"{path.name}: missing or changed"):
            Bm25Index.open(index.folder)
        path.write_bytes(good)
    Bm25Index.open(index.folder)


@pytest.mark.parametrize("older", [False, True])
def test_a_build_killed_anywhere_leaves_a_complete_index_or_none(tmp_path: Path, older: bool) -> None:
    """A process kills itself before its n-th file operation, for every n until the build succeeds."""
    corpus, folder = save(tmp_path / "c.jsonl", *PASSAGES[:2]), tmp_path / "index"
    if older:
        Bm25Index.of_corpus(corpus, folder)
        save(corpus, *PASSAGES)
    command = [sys.executable, "-c", KILLED, str(corpus), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10  # it was killed at several places
    assert len(Bm25Index.of_corpus(corpus, folder)) == (3 if older else 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".index.lock", "c.jsonl", "index"]


def test_a_build_killed_while_it_reads_the_corpus_leaves_no_index(tmp_path: Path) -> None:
    rows = ({"id": i, "text": f"word{i % 997} common number{i}"} for i in range(60_000))
    corpus = save(tmp_path / "c.jsonl", *rows)
    child = subprocess.Popen([sys.executable, "-c", BUILD, str(corpus), str(tmp_path / "index")], env=ENVIRONMENT)
    aside = tmp_path / ".index.palimpsest-partial" / "passages.jsonl"
    deadline = time.monotonic() + 30
    while not (aside.exists() and aside.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert aside.exists()
    assert not (tmp_path / "index").exists()
    index = Bm25Index.of_corpus(corpus, tmp_path / "index")
    assert index.search(["number4711"], 5)[0][0].document["id"] == 4711
    assert not aside.exists()


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
def test_the_top_scores_are_those_of_a_full_sort(size: int) -> None:
    rng = np.random.default_rng(size)
    for scores in (rng.normal(size=size), rng.integers(0, 3, size).astype(np.float32), np.zeros(size), -np.ones(size)):
        for topk in (1, 5, 40):
            expected = sorted(range(size), key=lambda i: (-scores[i], i))[:topk]
            assert index_folder.top(scores, topk).tolist() == expected

"""Temporary names next to a file or folder that is being written, which a user may have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest import files
from palimpsest.errors import DataError, RunError
from palimpsest.progress.reporter import Silent
from palimpsest.retrieval.search import Bm25Index
from palimpsest.runs.folder_guard import new_folder


def _drafted(out: Path) -> None:
    with files.drafted(out) as file:
        file.write("x")


def _folder(out: Path) -> None:
    with new_folder(out, force=True, progress=Silent()) as hidden:
        (hidden / "x").write_text("x")


def _index(out: Path) -> None:
    for texts in (["Rome"], ["Oslo"]):  # the second takes the place of the first
        Bm25Index.build([{"text": text} for text in texts], out)


WAYS: list[Callable[[Path], object]] = [lambda out: files.write_file(out, b"x"), _drafted, _folder, _index]


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_hidden_files_and_folders_of_the_user_s_stay(make: Callable[[Path], object], kind: str, tmp_path: Path) -> None:
    mine = [tmp_path / name for name in (".out.partial", ".trash-out", ".out.lock")]
    for path in mine:
        if kind == "folder" and path.suffix != ".lock":
            path.mkdir()
            path = path / "mine"
        path.write_text("mine")
    make(tmp_path / "out")
    assert (tmp_path / "out").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", *(path.name for path in mine)}
    assert [next(iter((*path.rglob("*"), path))).read_text() for path in mine] == ["mine"] * 3


def test_a_second_writer_is_refused_and_the_first_one_s_content_stays(tmp_path: Path) -> None:
    with files.drafted(tmp_path / "file") as file, new_folder(tmp_path / "a", force=True, progress=Silent()) as folder:
        with pytest.raises(DataError, match="another process"):
            _drafted(tmp_path / "file")
        with pytest.raises(RunError, match="in use by process"):
            _folder(tmp_path / "a")
        file.write("1")
        (folder / "x").write_text("1")
    assert [(tmp_path / name).read_text() for name in ("file", "a/x")] == ["1", "1"]
    assert len([*tmp_path.iterdir()]) == 2
    _drafted(tmp_path / "file")
    _folder(tmp_path / "a")
    assert [(tmp_path / name).read_text() for name in ("file", "a/x")] == ["x", "x"]


def test_a_file_that_is_none_is_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some text")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_regular(tmp_path / "file") == b"some text"
    assert files.read_regular(tmp_path / "file", 4) == b"some"
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(files.NoRegularFile, match=re.escape(str(path))):
            files.open_regular(path)
    with pytest.raises(FileNotFoundError):
        files.open_regular(tmp_path / "none")


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT, os.O_RDONLY])
def test_a_pipe_is_not_waited_for_in_any_mode(flags: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(files.NoRegularFile) as error:
        files.open_descriptor(tmp_path / "pipe", flags)
    assert error.value.filename == str(tmp_path / "pipe")


@pytest.mark.parametrize("target", ["out", "file", "none"])
def test_a_folder_replaces_a_link_of_its_name_and_not_the_target(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "out").symlink_to(target)
    hidden = files.hidden_folder(tmp_path / "out")
    (hidden / "new").write_text("new")
    files.publish_folder(hidden, tmp_path / "out")
    assert not (tmp_path / "out").is_symlink()
    assert (tmp_path / "out" / "new").read_text() == "new"
    assert (tmp_path / "file").read_text() == "mine"

"""Checkpoints under crashes, full disks and damaged bytes."""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from palimpsest import files
from palimpsest.errors import CheckpointError
from palimpsest.runs.checkpoint import Checkpoints, Write, verify
from support.faults import Crash, failing_at


def content(step: int) -> bytes:
    return random.Random(step).randbytes(3000)


def write_state(step: int) -> Write:
    """Write a learner's state: two files, one of them in a folder."""

    async def write(folder: Path) -> dict[str, str]:
        files.write_plain(folder / "model.safetensors", content(step))
        (folder / "learner").mkdir()
        files.write_plain(folder / "learner" / "optimizer.safetensors", content(-step))
        return files.hashes(folder)

    return write


def checkpoints(folder: Path, warnings: list[str] | None = None, **options: Any) -> Checkpoints:
    warn = (lambda _: None) if warnings is None else warnings.append
    return Checkpoints(folder, **{"identity": "run", "keep": 2, "warn": warn, **options})


def save(store: Checkpoints, *steps: int) -> None:
    for step in steps:
        asyncio.run(store.save(step, write_state(step), {"stage": step}))


def newest_is(folder: Path, step: int) -> bool:
    found = checkpoints(folder).latest()
    assert found is not None
    assert found.state == {"stage": found.step}
    assert (found.path / "model.safetensors").read_bytes() == content(found.step)
    assert (found.path / "learner" / "optimizer.safetensors").read_bytes() == content(-found.step)
    return found.step == step


def test_a_saved_checkpoint_is_found_with_its_state(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "none").latest() is None
    save(checkpoints(tmp_path), 20)
    found = checkpoints(tmp_path).latest()
    assert found is not None
    assert (found.step, found.path.name, found.size) == (20, "step-000020", 6000)
    assert newest_is(tmp_path, 20)


def test_only_the_newest_remain_and_step_numbers_sort_as_numbers(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 20, 999_999, 1_000_000)
    assert [path.name for path in checkpoints(tmp_path).paths()] == ["step-999999", "step-1000000"]


def test_a_crash_at_any_file_operation_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    """A save with its prune, stopped at every operation with writes cut at 0, 50 and 100 %."""
    tried = 0
    for part in (0.0, 0.5, 1.0):
        for operation in range(100):
            folder = tmp_path / f"{part}-{operation}"
            save(checkpoints(folder), 20, 40)
            with failing_at(operation, Crash(), part=part) as done:
                try:
                    save(checkpoints(folder), 60)
                    crashed = False
                except Crash:
                    crashed = True
            assert newest_is(folder, 60 if "rename" in done else 40)
            save(checkpoints(folder), 80)  # and the next save cleans up what the crash left
            assert sorted(path.name for path in folder.iterdir())[-1] == "step-000080"
            assert not [path for path in folder.iterdir() if path.name.startswith(".")]
            tried += crashed
            if not crashed:
                break
    assert tried >= 3 * 10


def test_a_crash_while_a_damaged_checkpoint_is_replaced_leaves_an_older_one(tmp_path: Path) -> None:
    for operation in range(100):
        folder = tmp_path / str(operation)
        save(checkpoints(folder), 20, 40)
        (folder / "step-000040" / "model.safetensors").write_bytes(b"")
        with failing_at(operation, Crash(), part=0.5):
            try:
                save(checkpoints(folder), 40)
                break
            except Crash:
                pass
        assert newest_is(folder, 20) or newest_is(folder, 40)
    assert newest_is(folder, 40)


def test_a_resume_prunes_after_a_kill_between_the_last_save_and_its_prune(tmp_path: Path) -> None:
    """No save follows that would do it."""
    tried = 0
    for part in (0.0, 0.5):
        for operation in range(100):
            folder = tmp_path / f"{part}-{operation}"
            save(checkpoints(folder), 20, 40)
            with failing_at(operation, Crash(), part=part) as done:
                try:
                    save(checkpoints(folder), 60)
                    break
                except Crash:
                    tried += 1
            store = checkpoints(folder)
            store.tidy(store.latest())
            expected = [40, 60] if "rename" in done else [20, 40]
            assert sorted(path.name for path in folder.iterdir()) == [f"step-{step:06d}" for step in expected]
    assert tried >= 2 * 8


def test_a_damaged_checkpoint_never_replaces_a_good_one(tmp_path: Path) -> None:
    """The run continues from 20 and stops at 30; a prune by number would leave 40, which doesn't load."""
    (two_checkpoints(tmp_path) / "model.safetensors").write_bytes(b"")
    store = checkpoints(tmp_path, keep=1)
    store.tidy(store.latest())
    save(store, 30)
    assert newest_is(tmp_path, 30)
    save(store, 40)
    assert [path.name for path in store.paths()] == ["step-000040"]
    assert newest_is(tmp_path, 40)


def two_checkpoints(folder: Path) -> Path:
    """The newest of two checkpoints, to be damaged."""
    save(checkpoints(folder), 20, 40)
    return folder / "step-000040"


@pytest.mark.parametrize("flips_a_file", [50, pytest.param(700, marks=pytest.mark.slow)])
def test_no_flipped_bit_loads_silently(tmp_path: Path, flips_a_file: int) -> None:
    target = two_checkpoints(tmp_path)
    rng = random.Random(0)
    files = [path for path in target.rglob("*") if path.is_file()]
    flips = [(file, rng.randrange(file.stat().st_size * 8)) for file in files for _ in range(flips_a_file)]
    for file, place in flips:
        good = file.read_bytes()
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        file.write_bytes(bad)
        with pytest.raises(CheckpointError):
            verify(target)
        file.write_bytes(good)
    assert newest_is(tmp_path, 40)


def test_no_truncation_loads_silently_and_the_checkpoint_before_is_loaded(tmp_path: Path) -> None:
    target = two_checkpoints(tmp_path)
    for file in [path for path in target.rglob("*") if path.is_file()]:
        good = file.read_bytes()
        for length in range(0, len(good), 97):
            file.write_bytes(good[:length])
            assert newest_is(tmp_path, 20)
        file.unlink()
        warnings: list[str] = []
        found = checkpoints(tmp_path, warnings).latest()
        assert found is not None
        assert found.step == 20
        assert str(file) in warnings[0]
        file.write_bytes(good)


def test_files_of_another_checkpoint_or_a_renamed_folder_are_rejected(tmp_path: Path) -> None:
    target = two_checkpoints(tmp_path)
    shutil.copy(tmp_path / "step-000020" / "model.safetensors", target / "model.safetensors")
    assert newest_is(tmp_path, 20)
    shutil.rmtree(target)
    shutil.copytree(tmp_path / "step-000020", tmp_path / "step-000060")
    assert newest_is(tmp_path, 20)


def test_a_checkpoint_of_another_configuration_is_rejected(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 20)
    with pytest.raises(CheckpointError, match="belongs to another configuration"):
        checkpoints(tmp_path, identity="other").latest()


def test_a_run_does_not_start_over_silently_if_no_checkpoint_verifies(tmp_path: Path) -> None:
    target = two_checkpoints(tmp_path)
    for folder in (target, tmp_path / "step-000020"):
        (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="none of 2 checkpoints verifies"):
        checkpoints(tmp_path).latest()


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """The disk takes `limit` bytes a file, then says no."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        ({}, "model.safetensors lacks its SHA-256"),
        ({"model.safetensors": "0" * 64}, "its SHA-256"),
        ({"model.safetensors": None, "more": "0" * 64}, "more has a SHA-256 but is missing"),
    ],
)
def test_wrong_hashes_from_a_learner_save_nothing(tmp_path: Path, claimed: dict[str, Any], reason: str) -> None:
    async def write(folder: Path) -> dict[str, str]:
        (folder / "model.safetensors").write_bytes(b"weights")
        true = files.hashes(folder)
        return {name: digest or true[name] for name, digest in claimed.items()}

    save(checkpoints(tmp_path), 20)
    with pytest.raises(CheckpointError, match=reason):
        asyncio.run(checkpoints(tmp_path).save(40, write, {}))
    assert newest_is(tmp_path, 20)


def test_a_full_disk_leaves_the_old_checkpoint_and_no_temporary_files(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 20)
    before = sorted(tmp_path.rglob("*"))
    for limit in range(0, 3000, 3000 // 32):
        with pytest.raises(CheckpointError, match="about 6,") as error, file_size_limit(limit):
            save(checkpoints(tmp_path), 40)
        assert str(tmp_path / "step-000040") in str(error.value)
        assert "ulimit" in str(error.value)  # the limit of a file's size, not the disk's room
        assert sorted(tmp_path.rglob("*")) == before
    assert newest_is(tmp_path, 20)


def test_a_full_disk_in_safetensors_is_an_error_of_one_line(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    async def write(folder: Path) -> dict[str, str]:
        save_file({"weights": np.zeros(4000, np.float32)}, folder / "model.safetensors")
        return files.hashes(folder)

    save(checkpoints(tmp_path), 20)
    with pytest.raises(CheckpointError, match="can't be written") as error, file_size_limit(5000):
        asyncio.run(checkpoints(tmp_path).save(40, write, {}))
    assert "\n" not in str(error.value)
    assert newest_is(tmp_path, 20)

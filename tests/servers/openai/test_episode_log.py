"""The store of episodes: bounds, damage, what is continued, and behind a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import RunError
from palimpsest.files import NoRegularFile
from palimpsest.servers.openai.episode_log import Store, StoreFailed, sealed
from support.changed_models import change_the_middle, copied_base, rewrite_template, scale_positions
from support.serving import CHAT, body, scripted

LONG = body(f"<document>{'Anna sells tea. ' * 8}</document> Who sells tea?")
FLIPS = 40


def name(number: int) -> str:
    return f"ep_{number:032x}"


def test_the_oldest_logs_are_deleted_when_the_store_is_opened(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(6):
        store.append(name(number), {"result": {"content": "a" * 1000}})
        os.utime(tmp_path / f"{name(number)}.jsonl", (number, number))
    store.close()
    store = Store(tmp_path, most_bytes=3500)
    assert sorted(path.stem for path in tmp_path.glob("ep_*")) == [name(n) for n in (3, 4, 5)]  # each has 1,050 bytes
    with pytest.raises(RunError, match="in use"):
        Store(tmp_path)


def test_the_result_is_read_from_the_last_line_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / f"{name(1)}.jsonl").write_bytes(b"no JSON\n" * 3 + sealed({"result": {"outcome": "answered"}}))
    assert store.result(name(1)) == {"outcome": "answered"}
    assert store.result(name(2)) is None


HEAD = {"created": 1}


@pytest.mark.parametrize(
    ("log", "stored"),
    [
        (b"", [{"head": HEAD}]),
        (sealed({"head": 5})[:-4], [{"head": HEAD}]),
        (b"\0" * 20 + b"\n", [{"head": HEAD}]),
        (sealed({"head": 5}) + sealed({"other": 6})[:-1], [{"head": 5}]),
        (sealed({"head": 5}) + sealed({"other": 6}), [{"head": 5}, {"other": 6}]),
    ],
    ids=["empty", "cut in its head", "damaged", "cut in a line", "whole"],
)
def test_a_log_continues_after_its_last_complete_line(tmp_path: Path, log: bytes, stored: list[Any]) -> None:
    store = Store(tmp_path)
    path = tmp_path / f"{name(1)}.jsonl"
    path.write_bytes(log)
    assert store.recover(name(1), HEAD) == []
    assert path.read_bytes().count(b"\n") == len(stored)
    assert list(store.lines(name(1))) == stored


def test_complete_lines_that_are_cut_off_are_stored_next_to_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path, damaged = tmp_path / f"{name(1)}.jsonl", b"\0" * 20 + b"\n" + sealed({"other": 6})
    path.write_bytes(sealed({"head": 5}) + damaged)
    store.recover(name(1), HEAD)
    aside = tmp_path / f"{name(1)}.jsonl.damaged"
    assert (path.read_bytes(), aside.read_bytes()) == (sealed({"head": 5}), damaged)
    assert aside.stat().st_mode & 0o777 == 0o600
    store.close()
    Store(tmp_path, most_bytes=0)
    assert not list(tmp_path.glob("ep_*"))


@pytest.mark.parametrize("kind", ["link", "loop", "device", "pipe", "folder"])
def test_a_log_that_is_no_file_is_rejected_and_its_target_stays(kind: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    victim, path = tmp_path / "victim", tmp_path / "store" / f"{name(1)}.jsonl"
    victim.write_text("mine")
    store = Store(tmp_path / "store")
    if kind in ("pipe", "folder"):
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
    else:
        path.symlink_to({"link": victim, "loop": path, "device": "/dev/zero"}[kind])
    for use in (lambda: store.append(name(1), {"turn": 1}), lambda: store.recover(name(1), HEAD)):
        with pytest.raises(StoreFailed) as failed:
            use()
        assert failed.value.status == 507
    store.close()
    with pytest.raises(NoRegularFile) as error:
        Store(tmp_path / "store")
    assert error.value.filename == str(path)
    assert victim.read_text() == "mine"
    path.rmdir() if kind == "folder" else path.unlink()
    Store(tmp_path / "store").close()  # the lock was released


def flipped(data: bytes, trial: int) -> bytes:
    """One of the bits of `data` flipped, another one for each trial, from the first byte to the last."""
    bit = (len(data) * 8 - 1) * trial // (FLIPS - 1)
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def content_of(response: Any) -> tuple[Any, ...]:
    """The content of a reply, without ids, times and whether it is from the store."""
    value = response.json()
    used = {**value["usage"], "prompt_tokens_details": None}
    return response.status_code, value["choices"], used, {**value["palimpsest"], "stored": None}


@pytest.mark.parametrize("lines", [6, 4], ids=["ended", "to be continued"])
async def test_no_flipped_bit_of_an_episode_changes_the_answer(tmp_path: Path, lines: int) -> None:
    client, service, sampler = scripted(tmp_path)
    first = await client.post(CHAT, json=LONG)
    episode = first.json()["palimpsest"]["episode"]
    stored = list(service.store.lines(episode))
    service.store.close()
    log = tmp_path / f"{episode}.jsonl"
    complete = b"".join(log.read_bytes().splitlines(keepends=True)[:lines])
    for trial in range(FLIPS):
        log.write_bytes(flipped(complete, trial))
        client, service, sampler = scripted(tmp_path)
        assert all(line in stored for line in service.store.lines(episode))
        assert content_of(await client.post(CHAT, json=LONG)) == content_of(first)
        assert len(sampler.prompts) <= len(stored) - 2
        service.store.close()


@pytest.mark.parametrize("change", [change_the_middle, rewrite_template, scale_positions])
async def test_a_server_of_a_changed_model_does_not_answer_from_the_store(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    model, replies = copied_base(tmp_path / "model"), []
    for before in (None, None, change):
        if before is not None:
            before(model)
        client, service, _ = scripted(tmp_path / "store", model=model)
        replies.append((await client.post(CHAT, json=LONG)).json())
        await service.close()
        service.store.close()
    assert [reply["palimpsest"]["stored"] for reply in replies] == [False, True, False]
    prints = [reply["system_fingerprint"] for reply in replies]
    assert (prints[0] == prints[1], prints[1] == prints[2]) == (True, change is not change_the_middle)

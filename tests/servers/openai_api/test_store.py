"""The store of the server on its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from palimpsest.servers.http_service import Refused
from palimpsest.servers.openai import episode_store as store_module
from palimpsest.servers.openai.episode_store import Quota, Store
from support.serving import scripted


def name(number: int) -> str:
    return f"ep_{number:032x}"


def ended(store: Store, number: int, size: int = 1000) -> None:
    store.begin(name(number), {"created": number})
    store.append(name(number), {"result": {"outcome": "answered", "content": "a" * size}})
    os.utime(store.folder / "episodes" / f"{name(number)}.jsonl", (number, number))


def kept(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "episodes").iterdir())


def test_beyond_the_quota_the_oldest_ended_episodes_go(tmp_path: Path) -> None:
    store = Store(tmp_path, Quota(episodes=5000))
    for number in (0, 7):  # they have no end
        store.begin(name(number), {"created": number})
        os.utime(tmp_path / "episodes" / f"{name(number)}.jsonl", (0, 0))
    for number in range(1, 6):
        ended(store, number)
    assert len(kept(tmp_path)) == 7
    store.begin(name(6), {"created": 6}, running={name(0)})
    assert kept(tmp_path) == [name(n) for n in (0, 2, 3, 4, 5, 6)]  # each has 1,070 bytes
    store.close()
    again = Store(tmp_path, Quota(episodes=10))
    again.forget(name(5))
    with pytest.raises(Refused, match="full of episodes that run"):
        again.begin(name(7), {}, running={name(0)})
    assert kept(tmp_path) == [name(0)]


def test_within_the_quota_an_episode_begins_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looks, size = Store(tmp_path), list[Path](), store_module._size

    def counted(folder: Path) -> int:
        looks.append(folder)
        return size(folder)

    monkeypatch.setattr(store_module, "_size", counted)
    for number in range(3):
        ended(store, number)
    assert looks == []


def test_the_end_is_told_from_the_last_line_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "episodes" / f"{name(1)}.jsonl").write_bytes(
        b"no JSON\n" * 3 + b'{"result": {"outcome": "answered"}}\n'
    )
    assert store.result(name(1)) == {"outcome": "answered"}
    assert store.result(name(2)) is None


async def test_what_was_damaged_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    asked = {"model": "palimpsest", "input": "<document>Anna.</document> Who?"}
    assert (await client.post("/v1/responses", json=asked)).status_code == 200
    service.store.close()
    for path in tmp_path.glob("*/*.json*"):
        path.write_bytes(b"\0" * 20 + b"\n")
    client, service, _ = scripted(tmp_path)
    again = await client.post("/v1/responses", json=asked)
    assert (again.status_code, again.json()["palimpsest"]["stored"]) == (200, False)
    assert service.store.result(again.json()["palimpsest"]["episode"]) is not None


LONG = {"model": "palimpsest", "input": f"<document>{'Anna sells tea. ' * 8}</document> Who sells tea?"}
FLIPS = 60


def flipped(data: bytes, trial: int) -> bytes:
    """One of the bits of `data` flipped, another one for each trial, from the first byte to the last."""
    bit = (len(data) * 8 - 1) * trial // (FLIPS - 1)
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def answered(response: Any) -> tuple[Any, ...]:
    """What a response says, without ids, times and whether it is from the store."""
    value = response.json()
    output = [each.get("content") or each["summary"] for each in value["output"]]
    used = {**value["usage"], "input_tokens_details": None}
    return response.status_code, output, used, {**value["palimpsest"], "stored": None}


@pytest.mark.parametrize("lines", [6, 4], ids=["ended", "to be continued"])
async def test_no_flipped_bit_of_an_episode_changes_what_is_answered(tmp_path: Path, lines: int) -> None:
    client, service, sampler = scripted(tmp_path)
    first = await client.post("/v1/responses", json=LONG)
    name = first.json()["palimpsest"]["episode"]
    kept = list(service.store.lines(name))
    service.store.close()
    log = tmp_path / "episodes" / f"{name}.jsonl"
    whole = b"".join(log.read_bytes().splitlines(keepends=True)[:lines])
    for trial in range(FLIPS):
        log.write_bytes(flipped(whole, trial))
        client, service, sampler = scripted(tmp_path)
        assert all(line in kept for line in service.store.lines(name))
        assert answered(await client.post("/v1/responses", json=LONG)) == answered(first)
        assert len(sampler.prompts) <= len(kept) - 2
        service.store.close()


async def test_a_store_without_checksums_still_opens_and_gets_them_with_what_is_added(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    first = await client.post("/v1/responses", json=LONG)
    service.store.close()
    for path in tmp_path.glob("*/*.json*"):  # as earlier versions wrote them
        path.write_bytes(b"".join(line.partition(b"\t")[0] + b"\n" for line in path.read_bytes().splitlines()))
    log = tmp_path / "episodes" / f"{first.json()['palimpsest']['episode']}.jsonl"
    client, service, sampler = scripted(tmp_path)
    again = await client.post("/v1/responses", json=LONG)
    assert again.json()["palimpsest"]["stored"] is True
    assert answered(again) == answered(first)
    service.store.close()
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))  # killed after two turns
    client, service, sampler = scripted(tmp_path)
    assert answered(await client.post("/v1/responses", json=LONG)) == answered(first)
    assert len(sampler.prompts) == 1
    assert [b"\t" in line for line in log.read_bytes().splitlines()] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("log", "goes_on", "lines"),
    [
        (None, False, [{"head": {"created": 1}}]),
        (b"", False, [{"head": {"created": 1}}]),
        (b'{"head": {"cr', False, [{"head": {"created": 1}}]),
        (b'{"head": 5}\n{"turn"', True, [{"head": 5}]),
        (b'{"head": 5}\n{"turn": 6}\n', True, [{"head": 5}, {"turn": 6}]),
    ],
    ids=["new", "empty", "cut in its head", "cut in a turn", "whole"],
)
def test_a_log_goes_on_after_its_last_whole_line(tmp_path: Path, log: Any, goes_on: bool, lines: list[Any]) -> None:
    store = Store(tmp_path)
    if log is not None:
        (tmp_path / "episodes" / f"{name(1)}.jsonl").write_bytes(log)
    assert store.begin(name(1), {"created": 1}) is goes_on
    assert list(store.lines(name(1))) == lines

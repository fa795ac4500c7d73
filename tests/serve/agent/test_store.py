"""The store of the server on its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from palimpsest.serve.agent import store as store_module
from palimpsest.serve.agent.store import Quota, Store
from palimpsest.serve.http import Refused
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


def test_responses_and_documents_take_of_the_same_quota(tmp_path: Path) -> None:
    store, long = Store(tmp_path, Quota(episodes=5000)), {"text": "a" * 2000}
    ids = [f"resp_{number:032x}" for number in range(4)]
    records: list[dict[str, Any]] = [{"ended": {}}, {"background": True}, {"background": True, "ended": {}}]
    for number, record in enumerate(records):
        store.put("responses", ids[number], {**record, **long})
        os.utime(tmp_path / "responses" / f"{ids[number]}.json", (number, number))
    store.begin(name(1), {})
    assert store.names("responses") == ids[1:3]
    store.put("documents", name(2), long)
    store.begin(name(3), {}, running={name(1)})
    assert store.names("responses") == ids[1:2]
    assert store.names("documents") == [name(2)]


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
    name = (await client.post("/v1/responses", json=asked)).json()["id"]
    file = (await client.post("/v1/files", files={"file": ("a", b"Anna")})).json()["id"]
    service.store.close()
    for path in tmp_path.glob("*/*.json*"):
        path.write_bytes(b"\0" * 20 + b"\n")
    client, _, _ = scripted(tmp_path)
    for gone in (f"/v1/responses/{name}", f"/v1/files/{file}"):
        assert (await client.get(gone)).status_code == 404
    again = await client.post("/v1/responses", json=asked)
    assert (again.status_code, again.json()["palimpsest"]["stored"]) == (200, False)
    assert (await client.get(f"/v1/episodes/{again.json()['palimpsest']['episode']}")).json()["result"] is not None


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

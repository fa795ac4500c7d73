"""The viewer's API as a whole: nothing is written, few groups stay open, a slow group blocks no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palimpsest.rollout import trajectory_file
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.text.codec import Codec
from palimpsest.types import Group
from palimpsest.viewer.records import record_index
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens import group_screen
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample, state_of


def test_only_the_last_few_groups_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = ViewerApi(Library([run_folder(tmp_path / "first", records={1: [group(f"p{at}") for at in range(6)]})]))
    for position in range(6):
        api.get(f"/api/runs/first/steps/1/groups/{position}")
    assert len(api.opened._groups) == group_screen.MOST_GROUPS
    monkeypatch.setattr(group_screen, "MOST_TOKENS", 1)
    api.get("/api/runs/first/steps/1/groups/0")
    assert len(api.opened._groups) == 1


def test_a_slow_group_blocks_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(encode_groups([group("slow"), group("good")]))
    api = ViewerApi(Library([path]))
    at = f"/api/runs/{api.library.sources()[0].key}/steps/all"
    api.get(f"{at}/episodes")
    entered, released, groups_in = threading.Event(), threading.Event(), trajectory_file.groups_in

    def waiting(path: Path, frame: bytes) -> list[Group]:
        if b"g-slow" in frame:
            entered.set()
            assert released.wait(20)
        return groups_in(path, frame)

    monkeypatch.setattr(record_index, "groups_in", waiting)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(api.get, f"{at}/groups/0")
        assert entered.wait(20)
        try:
            assert threads.submit(api.get, f"{at}/groups/1").result(10)
        finally:
            released.set()
        assert slow.result(20)


def test_no_request_changes_the_folder(tmp_path: Path, tiny_codec: Codec) -> None:
    rows = [{"step": 1, "reward/mean": 0.5}]
    run = run_folder(tmp_path / "first", rows, records={1: [group("a")]}, events=[{"kind": "x"}])
    tiny_codec.save(run / "checkpoints" / "step-000001")
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1", [sample("set", "a", 1.0)])
    before = state_of(run)
    api = ViewerApi(Library([run]))
    episode = "/steps/1/groups/0/rollouts/0"
    paths = ["", *(f"/{name}" for name in ("metrics", "timings", "events", "alarms", "items", "steps"))]
    paths += ["/steps/1/episodes", "/steps/1/decoder", "/steps/1/groups/0"]
    for path in ("/api/runs", *(f"/api/runs/first{item}" for item in paths)):
        api.get(path)
    for path in (episode, f"{episode}/turns/0", f"{episode}/turns/0/tokens"):
        api.get(f"/api/runs/first{path}")
    api.get("/api/runs/first/steps/1/measures", {"groups": "0"})
    assert state_of(run) == before

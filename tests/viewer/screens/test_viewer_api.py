"""The viewer's API as a whole: nothing is written, few groups stay open, a slow group blocks no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palimpsest.rollout import trajectory_file
from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.types import Group
from palimpsest.viewer.records import record_index
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens import group_screen
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import group, run_folder


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

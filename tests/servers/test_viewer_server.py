"""The viewer's server: routes, headers, keys; it never writes."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from palimpsest.rollout.trajectory_file import encode_groups
from palimpsest.servers.viewer_server import HEADERS, ViewerService
from palimpsest.text.codec import Codec
from palimpsest.viewer.records.sources import Library
from palimpsest.viewer.screens.viewer_api import ViewerApi
from support.view_folders import evaluation_folder, group, run_folder, sample, state_of

ROWS = [{"step": step, "reward/mean": 0.5} for step in (1, 2)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "first", ROWS, records={1: [group("a")]})


async def send(run: Path, path: str, token: str | None = None, **options: Any) -> httpx2.Response:
    service = ViewerService(ViewerApi(Library([run])), token=token)
    transport = httpx2.ASGITransport(service.app(), raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:7800") as client:
            return await client.request(options.pop("method", "GET"), path, **options)
    finally:
        service.close()


async def test_the_page_is_one_file_and_asks_its_server_alone(run: Path) -> None:
    page = await send(run, "/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r'(?:src|href)="(?!data:,|#)', page.text)
    assert "connect-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/main.js",
        "/../answers.py",
        "/%2e%2e/answers.py",
        "/..%2fanswers.py",
        "//etc/passwd",
        "/api/runs/%2e%2e/config.yaml",
        "/api/runs/first/../../config.yaml",
        "/config.yaml",
        "/api/",
        "/api/runs/first/metrics?since=zzz",
    ],
)
async def test_unknown_paths_and_paths_out_of_the_folder_are_json_errors(path: str, run: Path) -> None:
    answer = await send(run, path)
    assert answer.status_code == 404
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/nowhere", "/api/nowhere"])
async def test_every_answer_forbids_other_origins(path: str, run: Path) -> None:
    answer = await send(run, path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_other_methods_than_get_are_rejected(method: str, run: Path) -> None:
    assert (await send(run, "/api/runs", method=method)).status_code == 405


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"host": "evil.example:7800"}, {"origin": "http://evil.example"}]
)
async def test_pages_of_other_sites_are_rejected(headers: dict[str, str], run: Path) -> None:
    for path in ("/", "/api/runs"):
        assert (await send(run, path, headers=headers)).status_code == 403


async def test_with_a_key_every_path_asks_for_it_as_a_browser_can(run: Path) -> None:
    for path in ("/", "/api/runs", "/nowhere"):
        refused = await send(run, path, token="secret")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
    coded = {
        text: base64.b64encode(text.encode()).decode() for text in ("any:secret", ":secret", "secret:", "any:other")
    }
    for header, status in (
        (f"Basic {coded['any:secret']}", 200),
        (f"Basic {coded[':secret']}", 200),
        (f"Basic {coded['secret:']}", 401),
        (f"Basic {coded['any:other']}", 401),
        ("Basic %%", 401),
        ("Bearer secret", 200),
    ):
        answer = await send(run, "/api/runs", token="secret", headers={"authorization": header})
        assert answer.status_code == status, header


async def test_a_run_that_is_moved_while_it_is_shown_is_a_404(run: Path) -> None:
    service = ViewerService(ViewerApi(Library([run])))
    transport = httpx2.ASGITransport(service.app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/api/runs/first")).status_code == 200
        run.rename(run.with_name("moved"))
        answer = await client.get("/api/runs/first")
    service.close()
    assert answer.status_code == 404
    assert "moved or deleted" in answer.json()["error"]


@pytest.mark.parametrize(("names", "opened"), [(["a"], [0]), (["a", "b"], []), (["first"], [])])
def test_a_single_file_is_read_ahead(
    names: list[str], opened: list[int], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl.zst").write_bytes(encode_groups([group(name)]))
    answers = ViewerApi(Library([run if name == "first" else tmp_path / f"{name}.jsonl.zst" for name in names]))
    steps: list[int] = []
    look = answers.opened.look

    def noted(*given: Any) -> Any:
        steps.append(given[2])
        return look(*given)

    monkeypatch.setattr(answers.opened, "look", noted)
    answers.read_ahead()
    assert steps == opened


async def test_names_and_texts_that_are_not_unicode_are_shown(tmp_path: Path) -> None:
    run = run_folder(tmp_path / os.fsdecode(b"run-\xff"), ROWS, config='"\\ud800": "\\udfff"\n')
    key = (await send(run, "/api/runs")).json()["runs"][0]["key"]
    answer = await send(run, f"/api/runs/{key}")
    assert (answer.status_code, answer.json()["step"]) == (200, 2)


EPISODE = "/steps/1/groups/0/rollouts/0"
ROUTES = (
    *("", "/metrics", "/timings", "/events", "/alarms", "/items", "/steps"),
    *("/steps/1/episodes", "/steps/1/measures?groups=0", "/steps/1/decoder", "/steps/1/groups/0"),
    *(EPISODE, f"{EPISODE}/turns/0", f"{EPISODE}/turns/0/tokens"),
)


async def test_every_route_leaves_the_folder_as_it_was(run: Path, tiny_codec: Codec) -> None:
    tiny_codec.save(run / "checkpoints" / "step-000001")
    evaluation_folder(run / "evaluations" / "after" / "shard-1-of-1", [sample("set", "a", 1.0)])
    before = state_of(run)
    for path in ("/", "/api/runs", *(f"/api/runs/first{route}" for route in ROUTES)):
        assert (await send(run, path)).status_code == 200, path
    assert state_of(run) == before

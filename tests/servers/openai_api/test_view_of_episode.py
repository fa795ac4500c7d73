"""GET /view/ID: an episode of the store in the viewer's page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from palimpsest.app import viewer_job
from support.serving import body, scripted

PATH = "/v1/chat/completions"
HOSTILE = "</script><script>alert(1)</script> Anna sells tea."


def held(page: str) -> dict[str, Any]:
    """What the page holds, by the path that a server of the viewer would be asked for."""
    packed = re.search(r'<script type="application/octet-stream" id="answers">([\w+/=]+)</script>', page)
    assert packed
    answers: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    return answers


async def test_a_page_shows_an_episode_that_has_ended(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    asked = body("", palimpsest={"document": HOSTILE * 4, "questions": ["Who sells <b>tea</b>?", "Why?"]})
    told = (await client.post(PATH, json=asked)).json()["palimpsest"]
    answer = await client.get(f"/view/{told['episode']}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert "alert(1)" not in answer.text
    answers = held(answer.text)
    (episode,) = [value for path, value in answers.items() if path.endswith("/groups/0/rollouts/0")]
    assert len(episode["turns"]) == told["turns"]
    assert "Who sells <b>tea</b>?" in json.dumps(answers)
    service.store.close()


async def test_there_is_no_page_of_what_has_not_ended_or_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service, _ = scripted(tmp_path)
    for name in ("x", "ep_" + "0" * 32):
        assert (await client.get(f"/view/{name}")).status_code == 404
    told = (await client.post(PATH, json=body("Who?", palimpsest={"document": HOSTILE}))).json()["palimpsest"]
    log = tmp_path / "episodes" / f"{told['episode']}.jsonl"
    whole = log.read_bytes()
    log.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    unended = await client.get(f"/view/{told['episode']}")
    assert (unended.status_code, unended.json()["error"]["code"]) == (404, "not_found")
    log.write_bytes(whole)
    monkeypatch.setattr(viewer_job, "MOST_BYTES", 1000)
    refused = await client.get(f"/view/{told['episode']}")
    assert (refused.status_code, "the most" in refused.json()["error"]["message"]) == (400, True)
    service.store.close()

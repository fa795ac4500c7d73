"""`previous_response_id`: a question after an answer, without sending again what was said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from palimpsest.errors import SamplerError
from palimpsest.servers.openai import responses
from palimpsest.servers.openai.agent_app import Limits, ServerOptions
from palimpsest.servers.openai.episode_store import Quota, Store
from support.serving import scripted

PATH = "/v1/responses"
STORY = "Anna sells tea. Bob sells honey."
PARAM = "previous_response_id"


async def said(client: Any, text: Any, **more: Any) -> dict[str, Any]:
    answer = await client.post(PATH, json={"model": "palimpsest", "input": text, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_further_response_is_that_of_the_whole_conversation(tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path, answer="Anna.")
    first = await said(client, f"<document>{STORY}</document> Who sells tea?", instructions="Be brief.")
    second = await said(client, "And honey?", previous_response_id=first["id"])
    third = await said(client, [{"role": "user", "content": "And mead?"}], previous_response_id=second["id"])
    messages = [
        {"role": "user", "content": f"<document>{STORY}</document> Who sells tea?"},
        {"role": "assistant", "content": "Anna."},
        {"role": "user", "content": "And honey?"},
        {"role": "assistant", "content": "Anna."},
        {"role": "user", "content": "And mead?"},
    ]
    whole = await client.post("/v1/chat/completions", json={"model": "palimpsest", "messages": messages})
    assert third["palimpsest"]["episode"] == whole.json()["palimpsest"]["episode"]
    assert (first[PARAM], second[PARAM], third[PARAM]) == (None, first["id"], second["id"])
    assert (await client.get(f"{PATH}/{third['id']}")).json()[PARAM] == second["id"]


async def test_a_conversation_goes_on_after_a_restart_and_in_the_background(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path, answer="Anna.")
    first = await said(client, f"<document>{STORY}</document> Who sells tea?")
    whole = await said(client, "And honey?", previous_response_id=first["id"])
    await service.close()
    service.store.close()
    client, _, _ = scripted(tmp_path, answer="Anna.")
    again = await said(client, "And honey?", previous_response_id=first["id"], background=True)
    while again["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.01)
        again = (await client.get(f"{PATH}/{again['id']}")).json()
    assert again["palimpsest"]["episode"] == whole["palimpsest"]["episode"]


async def test_a_document_that_was_given_apart_is_read_for_the_next_question_too(tmp_path: Path) -> None:
    client, _, sampler = scripted(tmp_path)
    first = await said(client, "Who sells tea?", palimpsest={"document": STORY})
    second = await said(client, "Who sells honey?", previous_response_id=first["id"])
    assert second["palimpsest"]["input"] == "palimpsest_field"
    assert any("Bob sells honey" in prompt and "Who sells honey?" in prompt for prompt in sampler.prompts)
    other = await said(
        client, "Who sells mead?", previous_response_id=second["id"], palimpsest={"document": "Roy plays harp."}
    )
    assert other["palimpsest"]["request_tokens"] < second["palimpsest"]["request_tokens"]


async def test_what_is_gone_unfinished_or_failed_can_not_be_followed(tmp_path: Path) -> None:
    client, _, sampler = scripted(tmp_path, gate=(gate := asyncio.Event()))

    async def refusal(previous: str) -> tuple[int, str, str]:
        answer = await client.post(PATH, json={"model": "palimpsest", "input": "And?", PARAM: previous})
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["param"]

    running = await said(client, "Who sells tea?", background=True)
    assert await refusal(running["id"]) == (400, "invalid_value", PARAM)
    gate.set()
    for unknown in ("resp_1", "resp_" + "0" * 32, "../responses/x", "ep_" + "0" * 32, "x" * 5000):
        assert await refusal(unknown) == (400, "previous_response_not_found", PARAM)
    gone = await said(client, "Who sells honey?")
    assert (await client.delete(f"{PATH}/{gone['id']}")).status_code == 200
    assert not (tmp_path / "inputs" / f"{gone['id']}.json").exists()
    assert await refusal(gone["id"]) == (400, "previous_response_not_found", PARAM)
    damaged = await said(client, "Who sells mead?")
    path = tmp_path / "inputs" / f"{damaged['id']}.json"
    path.write_bytes(path.read_bytes().replace(b"mead", b"beer"))
    assert await refusal(damaged["id"]) == (400, "previous_response_not_found", PARAM)
    sampler.failure = SamplerError("server gone")
    failed = await said(client, "Who sells ale?", background=True)
    while (await client.get(f"{PATH}/{failed['id']}")).json()["status"] != "failed":
        await asyncio.sleep(0.01)
    assert await refusal(failed["id"]) == (400, "invalid_value", PARAM)


@pytest.mark.parametrize("store", [True, False])
async def test_what_is_not_stored_can_not_be_followed(store: bool, tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path if store else None)
    first = await said(client, "Who sells tea?", store=False)
    answer = await client.post(PATH, json={"model": "palimpsest", "input": "And?", PARAM: first["id"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert not list(tmp_path.glob("inputs/*"))


async def test_a_conversation_is_bounded_in_bytes_and_in_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _, _ = scripted(tmp_path, limits=Limits(body_bytes=1000))
    first = await said(client, f"Who sells tea? {STORY * 15}")
    second = await said(client, f"Who sells ale? {STORY * 15}")
    known = {"model": "palimpsest", "input": f"And? {STORY * 15}", PARAM: first["id"]}
    third = await client.post(PATH, json=known)
    assert third.status_code == 200
    answer = await client.post(PATH, json={**known, PARAM: third.json()["id"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conversation_too_long")
    monkeypatch.setattr(responses, "LINKS", 0)
    answer = await client.post(PATH, json={**known, PARAM: second["id"]})
    assert answer.json()["error"]["code"] == "conversation_too_long"


async def test_inputs_take_of_the_quota_and_go_with_their_responses(tmp_path: Path) -> None:
    client, service, _ = scripted(tmp_path)
    for n in range(4):
        await said(client, f"Who is {n}? {STORY * 50}")
    assert len(list(tmp_path.glob("inputs/*"))) == 4
    service.store.quota = Quota(episodes=service.store._size_of_episodes() // 2)
    await said(client, "Who is it?")
    kept = {path.name for path in tmp_path.glob("responses/resp_*")}
    assert len(kept) < 5
    assert {path.name for path in tmp_path.glob("inputs/resp_*")} == kept


async def test_an_input_without_a_response_is_removed_at_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("inputs", "resp_" + "0" * 32, {"input": "Who?", "own": {}})
    store.close()
    Store(tmp_path).close()
    assert not list(tmp_path.glob("inputs/*"))


async def test_what_a_lenient_server_ignored_is_ignored_in_the_conversation_too(tmp_path: Path) -> None:
    client, _, _ = scripted(tmp_path, options=ServerOptions(ignore_unsupported=True))
    first = await said(client, [{"role": "user", "content": f"Who sells tea?\n\n{STORY}", "x": 1}])
    assert (await said(client, "And honey?", previous_response_id=first["id"]))["status"] == "completed"

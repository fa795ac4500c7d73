"""The requests that Open WebUI and LibreChat send by default, chats on a document and the calls around them.

Their bodies are as their programs make them: Open WebUI's routers/openai.py takes its own `metadata` out before it
asks, and its task calls (title, tags, follow-ups) aren't streamed; LibreChat sends every parameter of its panel.
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from palimpsest.servers.openai.agent_app import ServerOptions
from support.chat_templates import LIBRECHAT, OPEN_WEBUI, QUESTION, SOURCES, STORY
from support.serving import scripted

PATH = "/v1/chat/completions"
HISTORY = f"<chat_history>\nUSER: {QUESTION}\nASSISTANT: tea\n</chat_history>"
TASK = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\n"
    f'JSON format: {{ "title": "your concise title here" }}\n### Chat History:\n{HISTORY}'
)


def open_webui(*, system: bool) -> dict[str, Any]:
    """A chat with a file, its template in the system message or the user's."""
    context = OPEN_WEBUI.format(context=SOURCES)
    roles = [("system", context), ("user", QUESTION)] if system else [("user", f"{context}\n{QUESTION}")]
    return {
        "stream": True,
        "model": "palimpsest",
        "messages": [{"role": role, "content": text} for role, text in roles],
        "stream_options": {"include_usage": True},
    }


LIBRECHAT_BODY = {
    "model": "palimpsest",
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "stream": True,
    "user": "67f0c0ffee",
    "messages": [
        {"role": "system", "content": LIBRECHAT.format(story=STORY)},
        {"role": "user", "content": QUESTION},
    ],
}


def streamed(text: str) -> tuple[str, list[dict[str, Any]]]:
    """(the answer, all chunks) of a stream."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas), chunks


@pytest.mark.parametrize(
    "body",
    [open_webui(system=False), open_webui(system=True), LIBRECHAT_BODY],
    ids=["Open WebUI", "Open WebUI, as a system message", "LibreChat"],
)
async def test_a_chat_on_a_file_is_read_and_answered_in_a_stream(body: dict[str, Any]) -> None:
    client, _, sampler = scripted(None, answer=r"\boxed{tea}")
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    answer, chunks = streamed(response.text)
    assert answer == "tea"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [each["choices"][0]["finish_reason"] for each in chunks if each["choices"]][-1] == "stop"
    assert any("Omar sells tea" in prompt for prompt in sampler.prompts)
    assert QUESTION in sampler.prompts[-1]
    if "stream_options" in body:
        assert chunks[-1]["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("limit", [{"max_completion_tokens": 1000}, {"max_tokens": 1000}, {}])
async def test_a_task_call_is_answered(limit: dict[str, int]) -> None:
    client, _, _ = scripted(None, answer="A title")
    body = {"model": "palimpsest", "messages": [{"role": "user", "content": TASK}], "stream": False, **limit}
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "A title"


async def test_the_list_of_models_names_the_agent_first() -> None:
    client, _, _ = scripted(None)
    models = (await client.get("/v1/models")).json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == "palimpsest"
    assert {"id", "object", "created", "owned_by"} <= models["data"][0].keys()


NESTED = {"task": "title_generation", "task_body": {"model": "x", "messages": []}, "chat_id": None}


async def test_metadata_of_a_client_that_is_no_texts_is_ignored_where_that_is_wanted() -> None:
    body = {"model": "palimpsest", "messages": [{"role": "user", "content": TASK}], "metadata": NESTED}
    client, _, _ = scripted(None)
    assert (await client.post(PATH, json=body)).status_code == 400
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=True))
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-palimpsest-ignored"] == "metadata"


async def test_the_word_for_no_memory_is_no_claim() -> None:
    client, _, _ = scripted(None)
    reply = (
        await client.post(PATH, json={"model": "palimpsest", "messages": [{"role": "user", "content": "x?"}]})
    ).json()
    assert "none" not in reply["palimpsest"]["unsupported"]


@pytest.mark.parametrize(
    "more",
    [
        {"stop": [1] * 100_000},
        {str(number): 1 for number in range(100_000)},
        {"metadata": {str(number): 1 for number in range(100_000)}},
    ],
    ids=["stop", "keys", "metadata"],
)
@pytest.mark.parametrize("lenient", [False, True])
async def test_very_many_wrong_values_cost_one_error(more: dict[str, Any], lenient: bool) -> None:
    client, _, _ = scripted(None, options=ServerOptions(ignore_unsupported=lenient))
    tracemalloc.start()
    response = await client.post(PATH, json={**LIBRECHAT_BODY, **more})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert response.status_code == 400
    assert peak < 60 << 20  # the body and its objects; an error for each value is four times as much

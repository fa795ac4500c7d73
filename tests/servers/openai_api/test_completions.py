"""/v1/completions: the chat completion of a prompt, in the older form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.serving import body, scripted

PATH = "/v1/completions"
PROMPT = "<document>Anna sells tea. Bob sells honey.</document> Who sells tea?"


def asked(prompt: Any = PROMPT, **more: Any) -> dict[str, Any]:
    return {"model": "palimpsest", "prompt": prompt, **more}


@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT]])
async def test_a_completion_is_the_chat_completion_of_its_prompt(prompt: Any) -> None:
    client, _, _ = scripted(None)
    chat = (await client.post("/v1/chat/completions", json=body(PROMPT, max_tokens=20, seed=3))).json()
    answer = (await client.post(PATH, json=asked(prompt, max_tokens=20, seed=3))).json()
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": chat["choices"][0]["message"]["content"],
        "finish_reason": "stop",
        "logprobs": None,
    }
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    assert answer["usage"]["total_tokens"] == chat["usage"]["total_tokens"]
    assert answer["palimpsest"]["episode"] == chat["palimpsest"]["episode"]


async def test_a_streamed_completion_is_the_whole_one_without_reasoning() -> None:
    client, _, _ = scripted(None)
    whole = (await client.post(PATH, json=asked())).json()
    text = (await client.post(PATH, json=asked(stream=True, stream_options={"include_usage": True}))).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [each["choices"][0] for each in events if each["choices"]]
    assert "".join(each["text"] for each in choices) == whole["choices"][0]["text"]
    assert all(set(each) == {"index", "text", "finish_reason", "logprobs"} for each in choices)
    assert [each["finish_reason"] for each in choices][-1] == "stop"
    assert events[-1]["usage"] == whole["usage"]
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt.str"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "   "}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"logprobs": 1}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_is_not_possible_is_rejected_by_name(more: dict[str, Any], param: str) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(PATH, json=asked(**more))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_values_that_ask_for_nothing_are_as_if_left_out() -> None:
    client, _, _ = scripted(None)
    more = {"suffix": "", "echo": False, "best_of": 1, "n": 1, "logprobs": None, "user": "me"}
    assert (await client.post(PATH, json=asked(**more))).status_code == 200


async def test_a_prompt_beyond_the_window_names_the_prompt() -> None:
    client, _, _ = scripted(None)
    answer = await client.post(PATH, json={**asked("why " * 2000), "model": "palimpsest/plain"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")

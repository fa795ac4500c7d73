"""Request bodies that are accepted, and the errors for others."""

from __future__ import annotations

import base64
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from palimpsest.servers.http_service import Refused, shown
from palimpsest.servers.openai.request_bodies import chat_body, openai_error
from palimpsest.servers.openai.responses import response_body
from support.serving import body, scripted


def send(**more: Any) -> Any:
    return chat_body(orjson.dumps(body("Who?", **more)))


def rejected(data: Any, parse: Callable[[bytes], Any] = chat_body) -> Refused:
    """The error of a body: bytes, or a value to be encoded."""
    with pytest.raises(Refused) as error:
        parse(data if isinstance(data, bytes) else orjson.dumps(data))
    return error.value


def test_parameters_are_read() -> None:
    result = send(
        max_tokens=9, max_completion_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop="x", metadata={"a": "b"}
    )
    assert (result.answer_tokens, result.temperature, result.top_p, result.seed) == (7, 0.5, 0.9, 3)
    assert (result.stop, result.metadata, result.stream) == (["x"], {"a": "b"}, False)


def test_null_and_values_without_effect_equal_a_missing_key() -> None:
    none = {"n": 1, "tools": [], "logprobs": False, "frequency_penalty": 0.0, "seed": None, "presence_penalty": 0}
    assert send(**none, response_format={"type": "text"}, user="me", tool_choice="none") == send()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 2),
        ("n", True),
        ("tools", [{"type": "function"}]),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("audio", {"voice": "a"}),
        ("modalities", ["text", "audio"]),
        ("response_format", {"type": "json_object"}),
        ("frequency_penalty", 0.5),
        ("logit_bias", {"1": 2}),
    ],
)
def test_an_unsupported_parameter_is_named(key: str, value: Any) -> None:
    refused = rejected(body("Who?", **{key: value}))
    error = openai_error(refused)["error"]
    assert (error["param"], error["code"], error["type"]) == (key, "unsupported_parameter", "invalid_request_error")
    if key == "logprobs":
        assert str(refused) == "logprobs: not supported; omit it or use false"


MANY = [{"role": "user", "content": "a"}] * 10_001
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 10_001}]


@pytest.mark.parametrize(
    ("data", "parse", "param"),
    [
        (b"{}", chat_body, "messages"),
        ({"messages": None}, chat_body, "messages"),
        ({"messages": []}, chat_body, "messages"),
        ({"model": "palimpsest", "messages": MANY}, chat_body, "messages"),
        ({"model": "palimpsest", "messages": PARTS}, chat_body, "messages.0.content"),
        ({"model": "palimpsest", "input": MANY}, response_body, "messages"),
        ({"model": "palimpsest", "input": PARTS}, response_body, "messages.0.content"),
    ],
    ids=["no key", "null", "none", "many", "many parts", "many of a response", "many parts of a response"],
)
def test_no_message_and_very_many_messages_are_rejected(data: Any, parse: Any, param: str) -> None:
    error = rejected(data, parse)
    assert (error.param, error.code) == (param, "invalid_value")


@pytest.mark.parametrize(
    "piece", [b"[],", b"{},", b"0,", b'"",', b'{"a":"b"},', b'"\\",', b'"', b'"\\"'], ids=lambda piece: piece.decode()
)
def test_flat_json_needs_little_more_memory_than_its_bytes(piece: bytes) -> None:
    """Also where it ends early, or within a text."""
    complete = b'{"model": "palimpsest", "messages": [' + piece * (4_000_000 // len(piece)) + b"0]}"
    tracemalloc.start()
    error = rejected(complete)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (error.status, error.code) == (400, "invalid_json")
    assert peak < 2 * len(complete)


def test_a_text_may_contain_any_number_of_commas_and_quotes() -> None:
    text = 'a, "b", [c] {d}\n\\' * 300_000
    (message,) = chat_body(orjson.dumps(body(text))).messages
    assert message.text == text


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"palimpsest": {"documnt": "x"}}, "palimpsest.documnt", "unknown_parameter"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"temperature": ["x"] * 1000}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"seed": 2**64 - 1}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "Who?", "tool_calls": [1]}]},
            "messages.0.tool_calls",
            "unsupported_parameter",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_value_or_name_is_reported_in_a_short_line(more: dict[str, Any], param: str, code: str) -> None:
    error = rejected(body("Who?", **more))
    assert (error.status, error.param, error.code) == (400, param, code)
    assert "\n" not in str(error)
    assert len(str(error)) < 200


def test_an_error_shows_a_large_value_without_its_repr() -> None:
    class Large(list[int]):
        def __repr__(self) -> str:
            raise AssertionError("the whole repr")

    assert shown(Large(range(9))) == "a list of 9"
    assert len(shown("x" * 10**6)) == 60


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "http://a/b.png"}}, ".type"),
        ({"type": "input_audio"}, ".type"),
        ({"type": "file", "file": {}}, ""),
        ({"type": "file", "file": {"file_id": "file-1"}}, ".file_id"),
        ({"type": "file", "file": {"file_data": "not base64"}}, ".file_data"),
        ({"type": "file", "file": {"file_data": "data:text/plain,a"}}, ".file_data"),
        ({"type": "input_file", "file_url": "http://a/b"}, ".file_url"),
        ({"type": "text", "text": 1}, ".text"),
        ("text", ""),
    ],
)
def test_content_other_than_texts_and_files_are_rejected_and_no_address_is_fetched(part: Any, param: str) -> None:
    assert rejected(body([part])).param == f"messages.0.content.0{param}"


def test_a_file_comes_as_a_data_url_or_base64() -> None:
    data = base64.b64encode(b"Anna").decode()
    for url, name in ((data, "file.txt"), (f"data:application/pdf;base64,{data}", "file.pdf")):
        result = chat_body(orjson.dumps(body([{"type": "file", "file": {"file_data": url}}]))).messages[0].files[0]
        assert (result.data, result.name) == (b"Anna", name)


def test_mutated_bodies_give_client_errors_only() -> None:
    """Five hundred: cut, with bytes changed, or with values of other kinds in any place."""
    draw = random.Random(7)
    complete = body(
        [{"type": "text", "text": "Who?"}], stream=True, temperature=0.5, stop=["a"], palimpsest={"seed": 1}
    )
    odd: list[Any] = [None, True, -1, 1e308, "", "x" * 99, [], {}, [[]], {"a": {"b": []}}, "\x00", "<|im_end|>"]

    def mutated(value: Any) -> Any:
        if draw.random() < 0.2:
            return draw.choice(odd)
        if isinstance(value, dict):
            return {
                draw.choice([key, key + "x"]) if draw.random() < 0.1 else key: mutated(v) for key, v in value.items()
            }
        return [mutated(item) for item in value] if isinstance(value, list) else value

    errors = list[Refused]()
    for number in range(500):
        data = orjson.dumps(mutated(complete))
        if number % 3 == 1:
            data = data[: draw.randrange(len(data))]
        elif number % 3 == 2:
            position = draw.randrange(len(data))
            data = data[:position] + draw.randbytes(2) + data[position + 2 :]
        try:
            chat_body(data)
        except Refused as error:
            errors.append(error)
    assert len(errors) > 300
    assert all(400 <= error.status < 500 for error in errors)
    assert all(set(openai_error(error)["error"]) == {"message", "type", "param", "code"} for error in errors)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("depth", [65, 990, 1005, 1020, 99_999])
@pytest.mark.parametrize(
    ("path", "complete"),
    [
        ("/v1/chat/completions", b'{"model": %s, "messages": [{"role": "user", "content": "Who?"}]}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "messages": %s}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "messages": [{"role": %s, "content": "Who?"}]}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "messages": [{"role": "user", "content": [{"type": %s}]}]}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "metadata": %s, "messages": []}'),
        ("/v1/responses", b'{"model": "palimpsest", "input": [{"type": %s}]}'),
    ],
)
async def test_deeply_nested_json_is_rejected(path: str, complete: bytes, depth: int) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(path, content=complete % nested(depth))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")

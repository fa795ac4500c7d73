"""What a body may hold, and how the rest is refused."""

from __future__ import annotations

import base64
import random
import tracemalloc
from typing import Any

import orjson
import pytest

from palimpsest.servers.http_service import Refused, shown
from palimpsest.servers.openai.request_bodies import chat_body, openai_error
from palimpsest.servers.openai.responses import response_body
from support.serving import body, scripted


def ask(**more: Any) -> Any:
    return chat_body(orjson.dumps(body("Who?", **more)))


def test_parameters_are_taken_over() -> None:
    found = ask(
        max_tokens=9, max_completion_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop="x", metadata={"a": "b"}
    )
    assert (found.answer_tokens, found.temperature, found.top_p, found.seed) == (7, 0.5, 0.9, 3)
    assert (found.stop, found.metadata, found.stream) == (["x"], {"a": "b"}, False)


def test_null_and_what_asks_for_nothing_is_as_if_left_out() -> None:
    plain = ask()
    assert (
        ask(n=1, tools=[], logprobs=False, frequency_penalty=0.0, seed=None, response_format={"type": "text"}) == plain
    )
    assert ask(user="me", tool_choice="none", presence_penalty=0) == plain


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
def test_what_is_not_possible_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        ask(**{key: value})
    error = openai_error(refused.value)["error"]
    assert (error["param"], error["code"], error["type"]) == (key, "unsupported_parameter", "invalid_request_error")


def test_a_request_without_messages_names_the_field() -> None:
    for given in (b"{}", b'{"messages": null}', b'{"messages": []}'):
        with pytest.raises(Refused) as refused:
            chat_body(given)
        assert (refused.value.param, refused.value.code) == ("messages", "invalid_value")


def test_more_messages_or_parts_than_any_conversation_has_are_refused() -> None:
    many = [{"role": "user", "content": "a"}] * 10_001
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 10_001}]
    for parse, key in ((chat_body, "messages"), (response_body, "input")):
        for given, param in ((many, "messages"), (parts, "messages.0.content")):
            with pytest.raises(Refused) as refused:
                parse(orjson.dumps({"model": "palimpsest", key: given}))
            assert (refused.value.param, refused.value.code) == (param, "invalid_value")


@pytest.mark.parametrize(
    "piece", [b"[],", b"{},", b"0,", b'"",', b'{"a":"b"},', b'"\\",', b'"', b'"\\"'], ids=lambda piece: piece.decode()
)
def test_flat_json_costs_little_more_memory_than_its_bytes(piece: bytes) -> None:
    """Also where it ends early, or within a text."""
    whole = b'{"model": "palimpsest", "messages": [' + piece * (8_000_000 // len(piece)) + b"0]}"
    tracemalloc.start()
    with pytest.raises(Refused) as refused:
        chat_body(whole)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")
    assert peak < 2 * len(whole)


def test_a_text_may_hold_any_number_of_commas_and_quotes() -> None:
    text = 'a, "b", [c] {d}\n\\' * 300_000
    (message,) = chat_body(orjson.dumps(body(text))).messages
    assert message.text == text


def test_what_may_be_given_is_told_as_json() -> None:
    with pytest.raises(Refused, match=r"^logprobs: not supported; omit it or use false$"):
        ask(logprobs=True)


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"palimpsest": {"documnt": "x"}}, "palimpsest.documnt", "unknown_parameter"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"seed": 2**64 - 1}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "Who?", "tool_calls": [1]}]},
            "messages.0.tool_calls",
            "unsupported_parameter",
        ),
    ],
)
def test_a_wrong_value_or_name_is_told(more: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        ask(**more)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "http://a/b.png"}}, "messages.0.content.0.type"),
        ({"type": "input_audio"}, "messages.0.content.0.type"),
        ({"type": "file", "file": {}}, "messages.0.content.0"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "messages.0.content.0.file_id"),
        ({"type": "file", "file": {"file_data": "not base64"}}, "messages.0.content.0.file_data"),
        ({"type": "file", "file": {"file_data": "data:text/plain,a"}}, "messages.0.content.0.file_data"),
        ({"type": "input_file", "file_url": "http://a/b"}, "messages.0.content.0.file_url"),
        ({"type": "text", "text": 1}, "messages.0.content.0.text"),
        ("text", "messages.0.content.0"),
    ],
)
def test_parts_that_are_no_text_or_file_are_refused_and_no_address_is_fetched(part: Any, param: str) -> None:
    with pytest.raises(Refused) as refused:
        chat_body(orjson.dumps(body([part])))
    assert refused.value.param == param


def test_a_file_comes_as_a_data_url_or_base64() -> None:
    data = base64.b64encode(b"Anna").decode()
    for given, name in ((data, "file.txt"), (f"data:application/pdf;base64,{data}", "file.pdf")):
        found = chat_body(orjson.dumps(body([{"type": "file", "file": {"file_data": given}}]))).messages[0].files[0]
        assert (found.data, found.name) == (b"Anna", name)


def test_malformed_bodies_are_refused_and_nothing_else() -> None:
    """Five hundred: cut, with bytes changed, or with values of other kinds in any place."""
    draw = random.Random(7)
    whole = body([{"type": "text", "text": "Who?"}], stream=True, temperature=0.5, stop=["a"], palimpsest={"seed": 1})
    odd: list[Any] = [None, True, -1, 1e308, "", "x" * 99, [], {}, [[]], {"a": {"b": []}}, "\x00", "<|im_end|>"]

    def mutated(value: Any) -> Any:
        if draw.random() < 0.2:
            return draw.choice(odd)
        if isinstance(value, dict):
            return {
                draw.choice([key, key + "x"]) if draw.random() < 0.1 else key: mutated(v) for key, v in value.items()
            }
        return [mutated(each) for each in value] if isinstance(value, list) else value

    errors = list[Refused]()
    for number in range(500):
        data = orjson.dumps(mutated(whole))
        if number % 3 == 1:
            data = data[: draw.randrange(len(data))]
        elif number % 3 == 2:
            place = draw.randrange(len(data))
            data = data[:place] + draw.randbytes(2) + data[place + 2 :]
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
    ("path", "whole"),
    [
        ("/v1/chat/completions", b'{"model": %s, "messages": [{"role": "user", "content": "Who?"}]}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "messages": %s}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "messages": [{"role": %s, "content": "Who?"}]}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "messages": [{"role": "user", "content": [{"type": %s}]}]}'),
        ("/v1/chat/completions", b'{"model": "palimpsest", "metadata": %s, "messages": []}'),
        ("/v1/responses", b'{"model": "palimpsest", "input": [{"type": %s}]}'),
    ],
)
async def test_deeply_nested_json_is_refused(path: str, whole: bytes, depth: int) -> None:
    client, _, _ = scripted(None)
    answer = await client.post(path, content=whole % nested(depth))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_a_refusal_shows_little_of_a_large_value() -> None:
    """A megabyte of a list that is no text; `shown` never makes its whole repr."""

    class Large(list[int]):
        def __repr__(self) -> str:
            raise AssertionError("the whole of it")

    assert shown(Large(range(9))) == "a list of 9"
    assert len(shown("x" * 10**6)) == 60
    with pytest.raises(Refused) as refused:
        ask(temperature=["x"] * 10**6)
    assert len(str(refused.value)) < 200

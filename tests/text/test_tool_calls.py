"""Tool calls in replies: each format by hand, and mutations that must neither crash nor invent a call."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from palimpsest.seeding import keyed_random
from palimpsest.text import tool_calls
from palimpsest.text.json_text import MAX_JSON_DEPTH
from palimpsest.text.tool_calls import (
    FORMATS,
    MAX_CALLS,
    MAX_JSON_CHARS,
    CallStyle,
    Malformed,
    ToolCall,
    calls_in,
    calls_text,
    find_calls,
)
from support.mutations import mutated

STYLES: tuple[CallStyle, ...] = tuple(FORMATS)
JSON_STYLES: tuple[CallStyle, ...] = ("hermes", "llama3", "mistral")


def calls(text: str, style: CallStyle = "hermes") -> list[tuple[str, Any]]:
    result = find_calls(text, style)
    assert all(isinstance(one, ToolCall) for one in result), result
    return [(one.name, one.arguments) for one in result if isinstance(one, ToolCall)]


def reasons(text: str, style: CallStyle = "hermes") -> list[str]:
    result = find_calls(text, style)
    assert all(isinstance(one, Malformed) for one in result), result
    return [one.reason for one in result if isinstance(one, Malformed)]


def tagged(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


SEARCH = '{"name": "search", "arguments": {"query": "Oslo", "topk": 3}}'
PRUNE = '{"name": "prune_context", "arguments": {"memory": "a {brace} and \\"quotes\\"", "delete_ids": ["a1"]}}'
EXPECTED = [
    ("search", {"query": "Oslo", "topk": 3}),
    ("prune_context", {"memory": 'a {brace} and "quotes"', "delete_ids": ["a1"]}),
]


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", f"Let me look.\n{tagged(SEARCH)}\n{tagged(PRUNE)}"),
        ("hermes", f"<think>{tagged(SEARCH)}?</think>{tagged(SEARCH)}{tagged(PRUNE)} done"),
        ("hermes", f"{tagged(SEARCH)} no, better both </think>{tagged(SEARCH)}{tagged(PRUNE)}"),
        ("llama3", f"{SEARCH}; {PRUNE}".replace('"arguments"', '"parameters"')),
        ("llama3", f"<|python_tag|>{SEARCH}\n{PRUNE}".replace('"arguments"', '"parameters"')),
        ("llama3", f"I search. <|python_tag|>{SEARCH};{PRUNE}<|eom_id|>"),
        ("mistral", f"[TOOL_CALLS] [{SEARCH}, {PRUNE}]</s>"),
        ("mistral", f"I search.[TOOL_CALLS][{SEARCH}][TOOL_CALLS][{PRUNE}]"),
        (
            "mistral",
            f"[TOOL_CALLS]search[ARGS]{json.dumps(EXPECTED[0][1])}"
            f"[TOOL_CALLS]prune_context[CALL_ID]a1B2c3D4e[ARGS] {json.dumps(EXPECTED[1][1])}",
        ),
        ("mistral", f"[TOOL_CALLS]search{json.dumps(EXPECTED[0][1])}[TOOL_CALLS][{PRUNE}]"),
        (
            "qwen_coder",
            "<tool_call>\n<function=search>\n<parameter=query>\nOslo\n</parameter>\n<parameter=topk>\n3\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call><function=prune_context><parameter=memory>"
            'a {brace} and "quotes"</parameter><parameter=delete_ids>["a1"]</parameter></function></tool_call>',
        ),
        (
            "glm",
            "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>topk</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call><tool_call>prune_context<arg_key>memory</arg_key><arg_value>"
            'a {brace} and "quotes"</arg_value><arg_key>delete_ids</arg_key><arg_value>["a1"]</arg_value></tool_call>',
        ),
        (
            "gemma4",
            '<|tool_call>call:search{query:<|"|>Oslo<|"|>,topk:3}<tool_call|> <|tool_call>call:prune_context{memory:'
            '<|"|>a {brace} and "quotes"<|"|>,delete_ids:[<|"|>a1<|"|>]}<tool_call|><|tool_response>',
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>to=functions.x?<|end|><|start|>assistant<|channel|>commentary "
            'to=functions.search <|constrain|>json<|message|>{"query": "Oslo", "topk": 3}<|call|><|start|>assistant '
            f"to=functions.prune_context<|channel|>commentary json<|message|>{json.dumps(EXPECTED[1][1])}",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[search(query='Oslo', topk=3), prune_context(memory='a {brace} and \"quotes\"', "
            'delete_ids=["a1"])]<|tool_call_end|> done',
        ),
    ],
)
def test_complete_calls_of_every_format(style: CallStyle, text: str) -> None:
    assert calls(text, style) == EXPECTED


WORDS = st.from_regex(r"\A[a-z_]\w{0,8}\Z", fullmatch=True).filter(str.isascii)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=50)
@given(data=st.data())
def test_written_calls_are_read_back(style: CallStyle, data: st.DataObject) -> None:
    name, arguments = data.draw(WORDS), data.draw(st.dictionaries(WORDS, VALUES, max_size=4))
    properties = {key: {"type": TYPES.get(type(value), "null")} for key, value in arguments.items()}
    written = calls_text([(name, arguments), ("second", {})], style)
    assume(not re.search(r"</?(?:think|thinking|tool_call|parameter|arg_value)>|<\|\"\|>|<channel\|>", str(arguments)))
    result = find_calls(written, style, {name: {"type": "object", "properties": properties}})
    read = [(one.name, dict(one.arguments)) for one in result if isinstance(one, ToolCall)]
    assert json.dumps(read) == json.dumps([(name, arguments), ("second", {})])


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("qwen_coder", tagged("<function=f>\n<parameter=a>\n1\n</parameter>\n")),
        ("qwen_coder", tagged("<function=f>\n<parameter=a>\n1\n</function>")),
        ("qwen_coder", tagged("<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>")),
        ("qwen_coder", tagged(SEARCH)),
        ("glm", tagged(SEARCH)),
        ("glm", tagged("f<arg_key>a</arg_key>")),
        ("gemma4", '<|tool_call>call:f{a:<|"|>b}<tool_call|>'),
        ("gemma4", "<|tool_call>call:f{a:b}<tool_call|>"),
        ("gemma4", "<|tool_call>call:f{a:1}"),
        ("gemma4", '<|tool_call>{"name": "f"}<tool_call|>'),
        ("gemma4", "<|tool_call>call:f{a:" + "[" * 20 + "]" * 20 + "}<tool_call|>"),
        ("harmony", "<|channel|>commentary to=functions.f json"),
        ("harmony", " to=functions.f<|channel|>commentary json<|end|>"),
        ("harmony", " to=functions.f<|message|>[1]<|call|>"),
        ("lfm2", "<|tool_call_start|>[f(a='b)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f('b')]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>f(a=1)<|tool_call_end|>"),
    ],
)
def test_a_call_that_breaks_its_format_is_malformed(style: CallStyle, text: str) -> None:
    (reason,) = reasons(text, style)
    assert "\n" not in reason


def test_values_in_tags_have_the_type_of_the_schema() -> None:
    text = calls_text([("f", dict.fromkeys("abcde", "42"))], "glm").replace("42", "True", 1)
    types = {"a": "boolean", "b": "integer", "c": "string", "d": ["string", "null"], "e": ["integer", "string"]}
    (result,) = find_calls(text, "glm", {"f": {"properties": {key: {"type": of} for key, of in types.items()}}})
    assert isinstance(result, ToolCall)
    assert dict(result.arguments) == {"a": True, "b": 42, "c": "42", "d": "42", "e": 42}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", ["", " ", "The answer is Oslo.", "<think>so: ", 'FINAL_ANSWER: {"Q1": "Oslo"}'])
def test_a_reply_in_words_has_no_calls(style: CallStyle, text: str) -> None:
    assert find_calls(text, style) == calls_in(text, style, {"search": {}}) == ()


@pytest.mark.parametrize(
    ("style", "opening"),
    [("hermes", "<tool_call>"), ("llama3", "<|python_tag|>"), ("mistral", "[TOOL_CALLS]"), ("gemma4", "<|tool_call>")],
)
@pytest.mark.parametrize("tag", ["think", "thinking"])
def test_a_call_in_thinking_that_never_ends_is_malformed(style: CallStyle, opening: str, tag: str) -> None:
    text = f" <{tag}>I look. {opening}{SEARCH}, {opening}{PRUNE}"
    (one,) = find_calls(text, style)
    reason = f"<{tag}> is not closed; the rest of the reply was not read"
    assert one == Malformed(reason, text.index(opening), len(text))


def test_a_thinking_tag_quoted_by_a_call_is_no_thinking() -> None:
    assert calls(tagged(SEARCH.replace("Oslo", "<think>"))) == [("search", {"query": "<think>", "topk": 3})]
    assert calls(f"<think>a</think>{tagged(SEARCH.replace('Oslo', '</think>'))}")[0][1]["query"] == "</think>"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "value", ["a</think>b", "</thinking>", "<think>a</think>b", "a</think>b<think>c", "</think></think>"]
)
def test_the_end_of_thinking_inside_a_complete_call_is_part_of_the_call(style: CallStyle, value: str) -> None:
    call = calls_text([("s", {"q": value})], style)
    for reply in (call, calls_text([("s", {"q": value}), ("s", {"q": "x"})], style)):
        result = calls_in(reply, style, {"s": {}})
        assert [(one.name, one.arguments["q"]) for one in result if isinstance(one, ToolCall)][:1] == [("s", value)]


@pytest.mark.parametrize("style", STYLES)
def test_a_call_drafted_in_thinking_opened_by_the_prompt_is_no_call(style: CallStyle) -> None:
    draft, spoken = (calls_text([("s", {"q": value})], style) for value in ("draft", "spoken"))
    unfinished = draft[: draft.index("aft")]
    for thinking in (f"{draft} or", f"so: {draft}", unfinished, f"<think>{draft}", f"<think>{unfinished}"):
        result = find_calls(f"{thinking}</think>{spoken}", style)
        assert [one.arguments["q"] for one in result if isinstance(one, ToolCall)] == ["spoken"]
        assert len(result) == 1


def test_spans_cut_the_calls_out_of_the_reply() -> None:
    text = f"a {tagged(SEARCH)} b {tagged('{}')} c"
    first, second = find_calls(text, "hermes")
    assert (text[first.start : first.end], text[second.start : second.end]) == (tagged(SEARCH), tagged("{}"))
    assert text[: first.start] + text[first.end : second.start] + text[second.end :] == "a  b  c"
    text = f"x[TOOL_CALLS][{SEARCH}, {PRUNE}]"
    first, second = find_calls(text, "mistral")
    assert (first.start, text[second.start : second.end]) == (1, PRUNE)


def arguments(text: str) -> str:
    return f'{{"name": "search", "arguments": {text}}}'


@pytest.mark.parametrize(
    ("inner", "part"),
    [
        ("", "expected a JSON object, found nothing"),
        ("search(query='Oslo')", 'expected a JSON object, found "search(query='),
        (f"[{SEARCH}]", "expected a JSON object"),
        (f"{SEARCH} {PRUNE}", "there is text after the JSON of a call: "),
        (SEARCH[:-1], "a bracket is not closed"),
        (SEARCH[:36], "a string is not closed"),
        ('{"name": "search" "arguments": {}}', "expecting ',' delimiter at character 18"),
        ("{'name': 'search', 'arguments': {}}", "not JSON"),
        ('{"arguments": {}}', '"name" is missing'),
        ('{"name": "search"}', '"arguments" is missing'),
        ('{"name": "search", "arguments": {}, "delete_ids": []}', 'no key "delete_ids"'),
        ('{"name": 5, "arguments": {}}', '"name" must be a string, not an integer'),
        ('{"name": " ", "arguments": {}}', '"name" is empty'),
        ('{"name": "%s", "arguments": {}}' % ("n" * 129), "129 characters, at most 128"),
        (arguments('"{}"'), "must be a JSON object, not a string"),
        (arguments("null"), "must be a JSON object, not null"),
        (arguments('{"a": 1, "a": 2}'), 'the key "a" occurs twice'),
        (arguments('{"a": NaN}'), "NaN is not JSON"),
        (arguments('{"a": 1e999}'), 'the number "1e999" is too large'),
        (arguments('{"a": %s}' % ("9" * 9999)), "does not fit 64 bits"),
        (arguments('{"a": "\\ud800"}'), "surrogate"),
        (arguments('{"a": "\n"}'), "invalid control character"),
        (arguments('{"a": %s}' % ("[" * 20 + "]" * 20)), "nested deeper than 16"),
        (arguments('{"a": "%s"}' % ("x" * MAX_JSON_CHARS)), "may have 65536 characters"),
        (f"<tool_call>{SEARCH}", "<tool_call> inside <tool_call>"),
    ],
)
def test_every_malformed_call_has_a_reason(inner: str, part: str) -> None:
    (reason,) = reasons(tagged(inner))
    assert part in reason
    assert "\n" not in reason
    assert len(reason) < 200


@pytest.mark.parametrize(
    ("style", "text", "part"),
    [
        ("hermes", f"<tool_call>{SEARCH}", "is not closed"),
        ("hermes", f"{SEARCH}</tool_call>", "</tool_call> without <tool_call>"),
        ("llama3", '{"name": "search", "parameters": {}, "arguments": {}}', 'no key "arguments"'),
        ("llama3", "<|python_tag|>search('Oslo')", "expected a JSON object"),
        ("mistral", "[TOOL_CALLS]", "neither an array"),
        ("mistral", "[TOOL_CALLS][]", "expected a JSON object"),
        ("mistral", "[TOOL_CALLS]search[ARGS]Oslo", "neither an array"),
    ],
)
def test_faults_of_a_single_format_have_a_reason(style: CallStyle, text: str, part: str) -> None:
    (reason,) = reasons(text, style)
    assert part in reason


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", tagged(SEARCH) + tagged(PRUNE)[:-30]),
        ("llama3", f"{SEARCH};{PRUNE[:-5]}"),
        ("mistral", f"[TOOL_CALLS][{SEARCH}, {PRUNE[:-5]}"),
        ("mistral", f"[TOOL_CALLS]search[ARGS]{json.dumps(EXPECTED[0][1])}[TOOL_CALLS]prune_context[ARGS]{{"),
    ],
)
def test_a_cut_reply_keeps_the_calls_before_the_cut(style: CallStyle, text: str) -> None:
    first, second = find_calls(text, style)
    assert isinstance(first, ToolCall)
    assert (first.name, first.arguments) == EXPECTED[0]
    assert isinstance(second, Malformed)
    assert second.end == len(text)


def test_a_call_after_a_malformed_one_is_recovered() -> None:
    wrong, right = find_calls(tagged('{"name": "search"') + tagged(SEARCH), "hermes")
    assert isinstance(wrong, Malformed)
    assert isinstance(right, ToolCall)


@pytest.mark.parametrize(
    "text",
    [
        tagged('{"name": "note", "arguments": {"text": "' + tagged(PRUNE) + '"}}'),
        tagged('{"name": "note", "arguments": {"text": "</tool_call>' + tagged(PRUNE)),
        tagged('"</tool_call><tool_call>' + PRUNE),
        tagged('{"name": "note", "arguments": {}} "</tool_call>' + tagged(PRUNE)),
        tagged("[" * 20 + '"</tool_call>' + tagged(PRUNE)),
    ],
)
def test_a_quoted_call_is_never_made(text: str) -> None:
    assert reasons(text)


@pytest.mark.parametrize("style", STYLES)
def test_a_flood_of_calls_ends_in_one_malformed(style: CallStyle) -> None:
    item = calls_text([("f", {})], style) + {"llama3": "; ", "harmony": "<|call|><|start|>assistant"}.get(style, "")
    result = find_calls(item * 200, style)
    assert isinstance(result[-1], Malformed)
    assert [type(call) for call in result] == [ToolCall] * MAX_CALLS + [Malformed]
    assert result[-1].reason == "more than 64 calls in one reply"
    assert result[-1].end == len(item) * 200


def original(draw: random.Random, style: CallStyle) -> str:
    values = [1, -2.5, True, None, "Oslo", 'a "quoted" \\ one', ["a1", "b2"], {"deep": [{"er": 1}]}, "\n\t", "é😀"]
    names = ["search", "prune_context", "x.y-z"]
    several = [
        (draw.choice(names), {key: draw.choice(values) for key in "abc"[: draw.randrange(4)]})
        for _ in range(draw.randrange(1, 4))
    ]
    if style not in JSON_STYLES:
        return "I look. " * (style != "harmony") + calls_text(several, style)
    key = "parameters" if style == "llama3" else "arguments"
    full = [json.dumps({"name": name, key: arguments}) for name, arguments in several]
    if style == "hermes":
        return "I look. " + " ".join(map(tagged, full))
    if style == "llama3":
        return draw.choice(["", "<|python_tag|>"]) + "; ".join(full)
    if draw.random() < 0.5:
        return f"[TOOL_CALLS][{', '.join(full)}]"
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in several)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def contains(span: str, call: ToolCall) -> bool:
    """True if the span, cut at its outer braces and loaded as JSON, is this call."""
    value = json.loads(span[span.index("{") : span.rindex("}") + 1], object_pairs_hook=unique)
    if re.match(r"\[TOOL_CALLS\]\s*[\w.-]", span):
        return value == call.arguments and call.name in span[: span.index("{")]
    return value["name"] == call.name and call.arguments in (value.get("arguments"), value.get("parameters"))


def check(text: str, style: CallStyle, monkeypatch: pytest.MonkeyPatch) -> tuple[ToolCall | Malformed, ...]:
    readers: list[Any] = []
    full = tool_calls._CallReader

    def spying(*args: Any) -> Any:
        readers.append(full(*args))
        return readers[-1]

    with monkeypatch.context() as patch:
        patch.setattr(tool_calls, "_CallReader", spying)
        result = find_calls(text, style)
    assert readers[0].visited <= MAX_JSON_CHARS
    assert len(result) <= MAX_CALLS + 1
    end = 0
    for one in result:
        assert end <= one.start <= one.end <= len(text)
        end = one.end
        if isinstance(one, ToolCall):
            span = text[one.start : one.end]
            assert contains(span, one) if style in JSON_STYLES else one.name in span
            json.dumps([one.name, one.arguments], allow_nan=False, ensure_ascii=False).encode()
        else:
            assert "\n" not in one.reason
            assert len(one.reason) < 250
            one.reason.encode()
    return result


@pytest.mark.parametrize("style", STYLES)
def test_mutated_replies_neither_crash_nor_invent_a_call(style: CallStyle, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {ToolCall: 0, Malformed: 0}
    for number in range(2000):
        draw = keyed_random(0, "mutations", style, number)
        for one in check(mutated(draw, original(draw, style)), style, monkeypatch):
            kinds[type(one)] += 1
    assert min(kinds.values()) > 500  # neither check was idle


FLOOD = 4 * MAX_JSON_CHARS
UNITS = (
    *("<tool_call>", "</tool_call>", "<", "</", "[TOOL_CALLS]", "[", "{", '"', "\\", " ", "a", '{"a":', "[{},", "a("),
    *("a=", "<|tool_call>call:a{", "to=functions.a", "<|message|>", '<|"|>', "'", "\\'", "<arg_key>a</arg_key>"),
    *("</think", ";", "<parameter=a>", "<|tool_call_start|>[", "<tool_call></tool_call>", "[TOOL_CALLS]a"),
    *('{"name":{}},', "<tool_call>{</tool_call>"),
)
HEADS = (
    *("", "<tool_call>", "[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]f[ARGS]", '{"name": "', '{"name": ['),
    *("<|tool_call>call:f{", "<|tool_call_start|>[f("),
)


@pytest.mark.parametrize("style", STYLES)
def test_a_reply_beyond_the_limits_is_read_within_them(style: CallStyle, monkeypatch: pytest.MonkeyPatch) -> None:
    floods = [head + unit * (FLOOD // len(unit)) for head in HEADS for unit in UNITS]
    for text in floods:
        check(text, style, monkeypatch)
    for text in floods[::60]:
        assert len(calls_in(text, style, {"search": {}})) <= MAX_CALLS + 1


def test_a_call_at_the_limits_is_still_read() -> None:
    assert calls(tagged(arguments('{"a": %s}' % ("[" * (MAX_JSON_DEPTH - 2) + "]" * (MAX_JSON_DEPTH - 2)))))
    room = MAX_JSON_CHARS - len(arguments('{"a": ""}'))
    assert calls(tagged(arguments('{"a": "%s"}' % ("x" * room))))

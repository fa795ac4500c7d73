"""Deletions from a history of exchanges remove exactly the named results, in any format of calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.memory.parts.history import Exchange, History, Result, sampled_text
from palimpsest.text.chat import chat_pieces
from palimpsest.text.codec import Codec
from palimpsest.text.tool_calls import CallStyle, ToolCall, call_text, find_calls
from support.agents import base_codec, call, family_codec, search
from support.histories import concatenated, exchange, is_subsequence

STYLES: dict[CallStyle, str] = {"hermes": "qwen", "llama3": "llama3", "mistral": "mistral"}


def left(codec: Codec, one: Exchange | None) -> str:
    assert one is not None
    return sampled_text(one.shown[0], codec)


@pytest.mark.parametrize(
    ("style", "reply", "gone", "expected"),
    [
        ("hermes", "I look. {A}\n{B}", "0", "I look. {B}"),
        ("hermes", "I look. {A}\n{B}", "1", "I look. {A}"),
        ("hermes", "{A} and {B} then.", "1", "{A} and  then."),
        ("hermes", "{A}\n{B}\n{C}", "02", "{B}"),
        ("hermes", "{A} and {B}, {C}", "1", "{A} and {C}"),
        ("hermes", "<tool_call>{</tool_call>\n{B}", "0", "{B}"),
        ("llama3", "{A}; {B}; {C}", "1", "{A}; {C}"),
        ("llama3", "<|python_tag|>{A}; {B}", "1", "<|python_tag|>{A}"),
        ("llama3", "I look. <|python_tag|>{A}; {B}; {C}", "0", "I look. <|python_tag|>{B}; {C}"),
        ("llama3", "I look. <|python_tag|> {A}; {B}; {C}", "01", "I look. <|python_tag|> {C}"),
        ("mistral", "[TOOL_CALLS][{A}, {B}, {C}]", "0", "[TOOL_CALLS][{B}, {C}]"),
        ("mistral", "[TOOL_CALLS][{A}, {B}, {C}]", "12", "[TOOL_CALLS][{A}]"),
        ("mistral", "[TOOL_CALLS][{A}][TOOL_CALLS][{B}]", "0", "[TOOL_CALLS][{B}]"),
        ("mistral", "[TOOL_CALLS][{A}][TOOL_CALLS] [ {B}, {C} ]", "12", "[TOOL_CALLS][{A}]"),
        ("mistral", "[TOOL_CALLS][{A}][TOOL_CALLS][{B}, {C}]", "1", "[TOOL_CALLS][{A}][TOOL_CALLS][{C}]"),
        ("mistral", "[TOOL_CALLS][{A}] [TOOL_CALLS]look[ARGS]{}", "0", " [TOOL_CALLS]look[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS][{B}, {C}]", "1", "[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS][{C}]"),
        ("mistral", "[TOOL_CALLS]search[ARGS]{}[TOOL_CALLS]look[ARGS]{}", "0", "[TOOL_CALLS]look[ARGS]{}"),
    ],
)  # fmt: skip
def test_a_deleted_call_leaves_the_others_as_they_were(style: CallStyle, reply: str, gone: str, expected: str) -> None:
    codec = family_codec(STYLES[style])
    key = "parameters" if style == "llama3" else "arguments"
    for letter in "ABC":
        written = f'{{"name": "search", "{key}": {{"query":  "{letter}"}}}}'  # two blanks: not how it would be rendered
        written = f"<tool_call>{written}</tool_call>" if style == "hermes" else written
        reply, expected = reply.replace(f"{{{letter}}}", written), expected.replace(f"{{{letter}}}", written)
    one = exchange(codec, reply, style)
    assert left(codec, one.without({f"r{at}" for at in gone}, codec)) == expected


def test_an_edge_inside_a_token_moves_to_where_the_cut_leaves_the_same_text() -> None:
    codec = family_codec("llama3")
    assert [codec.decode([i]) for i in codec.encode('"}}; {"')] == ['"}}', ";", ' {"']
    calls = [f'{{"name": "search", "parameters": {{"query": "{letter}"}}}}' for letter in "ABC"]
    one = exchange(codec, "; ".join(calls), "llama3")
    for gone, remaining in (("1", calls[::2]), ("0", calls[1:]), ("01", calls[2:]), ("12", calls[:1])):
        cut = one.without({f"r{at}" for at in gone}, codec)
        assert left(codec, cut) == "; ".join(remaining)
        assert cut is not None
        assert is_subsequence(list(cut.shown[0]), list(one.reply))


def test_a_token_across_an_edge_stays_where_no_move_helps() -> None:
    codec = base_codec()
    reply = tuple(codec.encode(" Alice drinks tea"))
    assert len(reply) == 3
    one = Exchange(reply, (Result("x", (), (3, 15)), Result("y", (), (15, 17))))  # "ce drinks te"
    assert (cut := one.without({"x"}, codec)) is not None
    assert cut.shown[0] == (reply[0], reply[2])


@pytest.mark.parametrize("name", ["qwen", "spm"])
def test_characters_of_several_tokens_around_a_call_survive(name: str) -> None:
    codec = family_codec(name)
    one = exchange(codec, f"日本😀{search('ö😀')}\n{search('b')}😀é", "hermes")
    assert left(codec, one.without({"r0"}, codec)) == f"日本😀{search('b')}😀é"
    assert left(codec, one.without({"r1"}, codec)) == f"日本😀{search('ö😀')}😀é"


def test_a_tokenizer_that_falls_back_to_bytes_loses_the_call_that_is_deleted() -> None:
    codec = family_codec("spm")
    smile = codec.encode("😀")[-4:]
    assert [len(codec.decode(smile[:count])) for count in range(5)] == [0, 1, 2, 3, 1]
    words = ("a😀é", "日日", "日é")
    one = exchange(codec, f"{words[0]}{search('a')}{words[1]}{search('b')}{words[2]}", "hermes")
    assert left(codec, one.without({"r0"}, codec)) == f"{words[0]}{words[1]}{search('b')}{words[2]}"
    assert left(codec, one.without({"r1"}, codec)) == f"{words[0]}{search('a')}{words[1]}{words[2]}"


def test_deleting_many_calls_decodes_few_tokens_twice() -> None:
    class Counting(Codec):
        decoded = 0

        def decode(self, ids: Any, *, control: bool = True) -> str:
            Counting.decoded += len(ids)
            return Codec.decode(self, ids, control=control)

    codec = Counting(base_codec().tokenizer)
    one = exchange(codec, "\n".join(search(f"fact {number}") for number in range(64)), "hermes")
    Counting.decoded = 0
    one.without({f"r{number}" for number in range(0, 64, 2)}, codec)
    assert Counting.decoded < 6 * len(one.reply)


def test_two_equal_exchanges_are_distinguished_by_their_ids() -> None:
    codec = base_codec()
    made = History(chat_pieces(codec), (1, 2))
    same = [exchange(codec, search("a"), "hermes", prefix) for prefix in ("x", "y")]
    made = reduce(History.append, same, made)
    assert made.without({"y0"}, codec).result_ids() == ["x0"]
    assert made.without({"x0"}, codec).result_ids() == ["y0"]


def test_an_id_that_is_part_of_others_deletes_only_itself() -> None:
    codec = base_codec()
    results = tuple(Result(name, tuple(codec.encode(f"1 {name} 11")), (0, 0)) for name in ("1", "11", "a1", "1a"))
    made = History(chat_pieces(codec), ()).append(Exchange((5, 2), results))
    assert made.without({"1"}, codec).result_ids() == ["11", "a1", "1a"]


@dataclass(frozen=True)
class Case:
    style: CallStyle
    family: str
    replies: list[list[str]]
    """Queries of each reply's calls."""
    words: list[str]
    marked: list[bool]
    """Per reply, whether Llama's words and tag begin it; per call, whether an array of Mistral's begins with it."""
    deletions: list[set[str]]


WORDS = st.text(st.characters(codec="utf-8", exclude_characters='<>{}[]\\"'), max_size=6)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    replies = draw(st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4))
    names = [f"{number}.{at}" for number, queries in enumerate(replies) for at in range(len(queries))]
    deletions = draw(st.lists(st.sets(st.sampled_from(names)), max_size=3))
    style = draw(st.sampled_from(list(STYLES)))
    family = draw(st.sampled_from([STYLES[style], "spm"])) if style == "hermes" else STYLES[style]
    words = draw(st.lists(WORDS, min_size=4, max_size=4))
    marked = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    return Case(style, family, replies, words, marked, deletions)


def reply_text(case: Case, number: int) -> str:
    calls = [call_text("search", {"query": query}, case.style) for query in case.replies[number]]
    if case.style == "llama3":
        opening = f"{case.words[number]}<|python_tag|>" if case.marked[number] else ""
        return opening + "; ".join(calls)
    if case.style == "mistral":
        arrays = [
            f"][TOOL_CALLS][{one[13:-1]}" if opens else f", {one[13:-1]}"
            for one, opens in zip(calls, [True, *case.marked[1:]], strict=False)
        ]
        return f"{case.words[number]}{''.join(arrays)[1:]}]"
    return f"{case.words[number]}{chr(10).join(calls)}{case.words[-1 - number]}"


def build(case: Case, codec: Codec) -> History:
    made = History(chat_pieces(codec), tuple(codec.encode("question")))
    for number in range(len(case.replies)):
        made = made.append(exchange(codec, reply_text(case, number), case.style, f"{number}."))
    return made


@settings(max_examples=50)
@given(cases())
def test_deletions_remove_exactly_the_named_results(case: Case) -> None:
    codec = family_codec(case.family)
    full = build(case, codec)
    assert [len(one.results) for one in full.exchanges] == list(map(len, case.replies))
    now = reduce(lambda made, names: made.without(names, codec), case.deletions, full)
    gone = set().union(*case.deletions)
    assert now.result_ids() == [name for name in full.result_ids() if name not in gone]
    for number, queries in enumerate(case.replies):
        survivors = [query for at, query in enumerate(queries) if f"{number}.{at}" not in gone]
        here = [one for one in now.exchanges if one.results[0].id.startswith(f"{number}.")]
        assert bool(here) is bool(survivors)
        if not here:
            continue
        reply, results = here[0].shown
        calls = find_calls(sampled_text(reply, codec), case.style)
        assert [one.arguments["query"] for one in calls if isinstance(one, ToolCall)] == survivors  # and still readable
        assert len(calls) == len(results) == len(survivors)
        assert is_subsequence(list(reply), list(full.exchanges[number].reply))
    assert list(now.ids()) == concatenated(now)
    assert now == full.without(gone, codec)  # one deletion or several


def test_a_reply_in_which_a_control_token_ends_a_sentence_is_not_cut() -> None:
    codec = base_codec()
    stop = codec.stop_ids[-1]
    reply = (*codec.encode(search("a")), stop, *codec.encode(search("b")), stop)
    results = (Result("x", (7,), (0, 10)), Result("y", (8,), (10, 20)))
    assert (cut := Exchange(reply, results).without({"x"}, codec)) is not None
    assert cut.shown == (reply, results[1:])


def test_a_call_quoted_in_another_call_stays() -> None:
    codec = base_codec()
    text = f"{search('a')}\n{call('note', text='search a')}"
    assert left(codec, exchange(codec, text, "hermes").without({"r0"}, codec)) == call("note", text="search a")

"""Replies in tags: their contents, their faults, and the ids between tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.text.reply_tags import Cutter, Fault, RecallReply, find_tags, read_recall_reply
from support.agents import family_codec
from support.fakes import LetterCodec

LETTERS: Any = LetterCodec()


def read(text: str, codec: Any = LETTERS, **options: Any) -> RecallReply | Fault:
    return read_recall_reply([*codec.encode(text), codec.stop_ids[0]], codec, **options)


def valid(reply: RecallReply | Fault) -> RecallReply:
    assert isinstance(reply, RecallReply)
    return reply


@pytest.mark.parametrize(
    ("text", "update", "query"),
    [
        ("<update>a fact</update>", "a fact", None),
        ("<thinking>hm</thinking>\n<update>\na\nfact\n</update>\n<recall>\nBob\n</recall>", "\na\nfact\n", "Bob"),
        ("<recall>Bob</recall><update>a</update>", "a", "Bob"),
        ("<thinking>say <recall>x</recall>?</thinking><update>a</update>", "a", None),
        ("I think <update>no</update> is wrong</think><update>a</update>", "a", None),
        ("I need an <update> here</think><update>a</update>", "a", None),
        ("</update>? <think>or</think> <recall></think><update>a</update>", "a", None),
        ("<thinking>an <update></think><update>a</update>", "a", None),
        ("<update>a</update><recall> \n </recall>", "a", None),
        ("<update>1 < 2 </memory></update>", "1 < 2 </memory>", None),
        # the expression of ReMemR1's code stops at the line break and finds no query
        ("<update>a</update><recall>Bob\nand Ann</recall>", "a", "Bob\nand Ann"),
    ],
)
def test_one_update_and_at_most_one_recall_are_read(text: str, update: str, query: str | None) -> None:
    reply = valid(read(text))
    assert (LETTERS.decode(reply.update), reply.query) == (update, query)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a plain memory", "no <update>"),
        ("", "no <update>"),
        ("<update>a</update><update>b</update>", "2 times <update>"),
        ("<update> \n</update>", "<update> is empty"),
        ("<update>cut by its budg", "<update> is not closed"),
        ("<thinking>on and on", "<thinking> is not closed"),
        ("<update>a</update><think>on and on", "<think> is not closed"),
        ("<update>a <think>b</think> c</update>", "thinking inside <update>"),
        ("a</update>", "</update> without <update>"),
        ("<update>a<recall>b</recall></update>", "<recall> inside <update>"),
        ("<update>a<update>b</update>", "<update> inside <update>"),
        ("<update>a</update><recall>b</recall><recall>c</recall>", "2 times <recall>"),
    ],
)
def test_a_malformed_reply_has_a_reason(text: str, reason: str) -> None:
    assert read(text) == Fault(reason)


@pytest.mark.parametrize(
    ("text", "update", "fault"),
    [
        ("<update>a</update> or <update>b</update>", "a", "2 times <update>"),
        ("<update> </update><update>b</update>", "b", "2 times <update>"),
        ("<update> </update><update></update>", "", "2 times <update>"),
        ("<update> </update>", "", "<update> is empty"),
        ("nothing", "", "no <update>"),
        ("<update>a</update>", "a", None),
    ],
)
def test_a_lenient_reader_takes_the_first_update(text: str, update: str, fault: str | None) -> None:
    """ReMemR1's code searches for the first update; its reward for the format needs exactly one."""
    reply = valid(read(text, lenient=True))
    assert (LETTERS.decode(reply.update), reply.fault) == (update, fault)


def test_two_recall_tags_are_never_merged_into_one_query() -> None:
    """ReMemR1's greedy expression reads "Bob</recall> and <recall>Ann"."""
    text = "<update>a</update><recall>Bob</recall> and <recall>Ann</recall>"
    assert read(text) == Fault("2 times <recall>")
    lenient = valid(read(text, lenient=True))
    assert (lenient.query, LETTERS.decode(lenient.rest)) == (None, "<update>a</update> and ")


def test_the_rest_is_the_reply_without_its_recall() -> None:
    reply = valid(read("<thinking>t</thinking><update>a</update> <recall>q</recall>!"))
    assert LETTERS.decode(reply.rest) == "<thinking>t</thinking><update>a</update> !"


def test_ids_between_tags_are_the_sampled_ones(tiny_codec: Any) -> None:
    letters = [i for letter in "the color of Anna" for i in tiny_codec.encode(letter)]
    assert tiny_codec.encode(tiny_codec.decode(letters)) != letters
    ids = [*tiny_codec.encode("<update>"), *letters, *tiny_codec.encode("</update>"), tiny_codec.stop_ids[0]]
    assert valid(read_recall_reply(ids, tiny_codec)).update == letters


class PairCodec(LetterCodec):
    """Has a few tokens that straddle a tag's boundary."""

    merged: ClassVar = {200_001: ".</", 200_002: "> B", 200_003: ">x<"}

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        return "".join(self.merged.get(i) or chr(i) for i in ids if i != 0)


def test_only_a_token_that_straddles_a_boundary_is_encoded_again() -> None:
    codec: Any = PairCodec()
    ids = [*map(ord, "<update"), 200_002, *map(ord, "ob ran"), 200_001, *map(ord, "update>")]
    assert valid(read_recall_reply(ids, codec)).update == [*map(ord, " B"), *map(ord, "ob ran"), ord(".")]
    inside = read_recall_reply([*map(ord, "<update"), 200_003, *map(ord, "/update>")], codec)
    assert valid(inside).update == [ord("x")]


def test_a_memory_in_bytes_is_cut_at_characters() -> None:
    codec = family_codec("spm")
    text = "a 日本😀 fact"
    reply = valid(read(f"<thinking>é😀</thinking><update>{text}</update>", codec))
    assert reply.update == codec.encode(f"<{text}")[-len(reply.update) :]  # the sampled ids
    assert codec.decode(reply.update) == text


@settings(max_examples=100)
@given(text=st.text(max_size=40), start=st.integers(0, 40), end=st.integers(0, 40))
def test_a_cut_decodes_to_its_characters(tiny_codec: Any, text: str, start: int, end: int) -> None:
    cutter = Cutter.of(tiny_codec.encode(text), tiny_codec)
    start, end = sorted((min(start, len(cutter.text)), min(end, len(cutter.text))))
    assert tiny_codec.decode(cutter.cut(start, end)) == cutter.text[start:end]


@given(st.lists(st.sampled_from(["<update>", "</update>", "<recall>", "</recall>", "<think>", "</think>", "a", "\n"])))
def test_tags_in_any_order_are_read_at_most_once(pieces: list[str]) -> None:
    text = "".join(pieces)
    tags = find_tags(text, ("update", "recall"))
    if not isinstance(tags, Fault):
        ends = [position for tag in tags for position in tag.outer]
        assert ends == sorted(ends)
        assert all(text[slice(*tag.inner)] == tag.text for tag in tags)
        assert not any("<update>" in tag.text or "<recall>" in tag.text for tag in tags)

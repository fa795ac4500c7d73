"""Thinking is sampled and trained like everything else, and is no memory and no answer."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.memory.overwrite import OverwritePolicy
from palimpsest.memory.recall import RecallPolicy
from palimpsest.rollout.segments import segments_of
from palimpsest.text.codec import Codec
from palimpsest.text.reply_tags import RecallReply, read_recall_reply, spoken, without_thinking
from palimpsest.types import Problem
from support.agents import family_codec, played

SMALL: dict[str, Any] = {"chunk_size": 60, "memory_tokens": 60, "answer_tokens": 60, "question_tokens": 60}
DOCUMENT = Problem("p", "Who?", ("Bob",), context="Bob drinks tea. " * 4)


@pytest.fixture
def codec() -> Codec:
    """Its vocabulary holds <think> and </think> as control tokens, as Qwen3's."""
    return family_codec("qwen3")


@pytest.mark.parametrize(
    ("reply", "memory"),
    [
        ("<think>\nIs it Bob?\n</think>\n\nBob drinks tea.", "Bob drinks tea."),
        ("<think>Is it Bob? I wonder", ""),
        ("Bob. <think>Or Ann?</think> Tea.", "Bob. Tea."),
        ("as above</think>Bob.", "Bob."),
        ("<thinking>Is it Bob?</thinking>Bob.", "Bob."),
        (" Bob\n", " Bob\n"),
    ],
)
def test_thinking_is_no_memory_but_sampled_and_trained(reply: str, memory: str, codec: Codec) -> None:
    trajectory, _ = played(OverwritePolicy(**SMALL), [reply] * 9, DOCUMENT, codec)
    read, after = trajectory.turns[:2]
    assert codec.decode(after.piece("memory") or ()) == memory
    ids = (*codec.encode_trusted(reply), codec.stop_ids[-1])
    assert read.completion.token_ids == ids
    assert sum(segments_of(trajectory)[0].loss_mask) == len(ids)


def test_thinking_that_the_prompt_opens_is_no_memory_either(codec: Codec) -> None:
    header = codec.encode_trusted("<|im_start|>assistant\n<think>\n")
    cut, whole = codec.encode_trusted("Is it Bob? I"), codec.encode_trusted("Is it?</think>\n\nBob.")
    assert without_thinking(cut, codec, header) == []
    assert without_thinking(cut, codec, codec.encode_trusted("Write <think> first:")) == cut
    assert codec.decode(without_thinking(whole, codec, header)) == "Bob."


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
@pytest.mark.parametrize("reply", ["<think>a < b</think>Bob < c", "a</think>Bob", "1 < 2", "<thinking>a", "Bob é"])
def test_thinking_is_found_in_any_split_into_tokens(reply: str, family: str) -> None:
    codec = family_codec(family)
    ids = [i for character in reply for i in codec.encode(character)]
    assert codec.decode(without_thinking([*ids, codec.stop_ids[-1]], codec)) == spoken(reply)


def test_an_answer_keeps_its_thinking_between_tags(codec: Codec) -> None:
    said = "<think>\\boxed{Ann}?</think>\\boxed{Bob}"
    replies = [lambda prompt: said if "Your answer" in prompt else "Bob."] * 20
    trajectory, _ = played(OverwritePolicy(**SMALL), replies, DOCUMENT, codec)
    assert trajectory.answer == said
    assert spoken(trajectory.answer) == "\\boxed{Bob}"


def test_tags_in_native_thinking_are_not_read(codec: Codec) -> None:
    reply = codec.encode_trusted("<think><update>a</update></think><update>b</update> <recall>c</recall>!")
    found = read_recall_reply(reply, codec)
    assert isinstance(found, RecallReply)
    assert (codec.decode(found.update), found.query, codec.decode(found.rest)) == ("b", "c", "<update>b</update> !")


def test_a_reply_that_is_the_memory_holds_no_native_thinking(codec: Codec) -> None:
    policy = RecallPolicy(**SMALL, next_memory="reply", malformed="accept")
    trajectory, _ = played(policy, ["<think>hm</think><update>Bob.</update>"] * 9, DOCUMENT, codec)
    assert codec.decode(trajectory.turns[1].piece("memory") or ()) == "<update>Bob.</update>"

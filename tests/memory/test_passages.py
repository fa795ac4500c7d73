"""The policy `passages`: which passages of a document it shows, in which order, and what it leaves out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.memory.document_baselines import FullContextPolicy, PassagesPolicy
from palimpsest.memory.policy import Answered
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.types import Outcome, Problem, Question
from support.agents import played

OPTIONS: dict[str, Any] = {"question_tokens": 60, "answer_tokens": 8, "prompts": "short"}
RAIN = [f"It rained in week {week}.\n" for week in range(40)]
FACTS = ["Anna lives in Rome.\n", "Rome has a tower.\n"]
LINES = ["Anna ran. ", "Rome.\n", "It rains\n\n", "a b c d e f g h "]
DOCUMENT = "".join([*RAIN[:20], FACTS[0], *RAIN[20:30], FACTS[1], *RAIN[30:]])


def shown(codec: Any, problem: Problem, **options: Any) -> list[str]:
    """The document of every prompt."""
    policy = build_policy(PolicyConfig(name="passages", options={**OPTIONS, **options}))
    trajectory, _ = played(policy, ["x"] * 9, problem, codec)
    return [codec.decode(turn.piece("document") or ()) for turn in trajectory.turns]


def asked(question: str, document: str | None = DOCUMENT) -> Problem:
    return Problem("p", question, ("x",), document)


def line(codec: Any) -> int:
    """Tokens of the longest line, and of a break."""
    return max(len(codec.encode(text)) for text in (*RAIN, *FACTS)) + 1


def test_the_passages_like_the_question_are_shown_in_the_order_of_the_document(tiny_codec: Any) -> None:
    size = line(tiny_codec)
    (text,) = shown(tiny_codec, asked("Tower of Rome: where lives Anna?"), passage_tokens=size, window_tokens=2 * size)
    assert text == "".join(FACTS)


def test_the_window_is_filled_and_never_exceeded(tiny_codec: Any) -> None:
    size = line(tiny_codec)
    (text,) = shown(tiny_codec, asked("Anna?"), passage_tokens=size, window_tokens=5 * size)
    assert FACTS[0] in text
    assert 3 * size < len(tiny_codec.encode(text)) <= 5 * size


def test_a_document_that_fits_is_shown_whole(tiny_codec: Any) -> None:
    problem = asked("Where does Anna live?", "".join(FACTS))
    full = FullContextPolicy(**OPTIONS)
    policy = PassagesPolicy(**OPTIONS, passage_tokens=3)
    models = [ScriptedModel(tiny_codec, lambda prompt, limit: [2], max_context=512) for _ in range(2)]
    for each, model in zip((full, policy), models, strict=True):
        asyncio.run(model.play(each, problem))
    assert models[0].prompts == models[1].prompts


def test_each_of_several_questions_has_passages_of_its_own(tiny_codec: Any) -> None:
    size = line(tiny_codec)
    questions = (Question("Where does Anna live?", ("Rome",)), Question("Which tower?", ("x",)))
    problem = Problem.asking("p", questions, DOCUMENT)
    texts = shown(tiny_codec, problem, passage_tokens=size, window_tokens=size + 1)
    assert texts == FACTS


def test_passages_that_are_cut_within_a_line_are_parted_by_a_break(tiny_codec: Any) -> None:
    document = "Anna lives here. " + "It rained. " * 60 + "Bob lives there."
    (text,) = shown(
        tiny_codec, asked("Anna, Bob?", document), passage_tokens=16, window_tokens=36, passage_boundary="token"
    )
    first, _, last = text.partition("\n")
    assert "Anna" in first
    assert "Bob" in last


def test_what_is_left_out_is_an_event(tiny_codec: Any) -> None:
    policy = build_policy(PolicyConfig(name="passages", options={**OPTIONS, "window_tokens": 40}))
    trajectory, _ = played(policy, ["x"], asked("Anna?"), tiny_codec)
    (event,) = trajectory.events
    assert event.kind == "document_truncated"
    assert event.detail["tokens"] == len(tiny_codec.encode(DOCUMENT))
    assert event.detail["how"] == "PassagesPolicy"


def test_a_window_smaller_than_any_passage_shows_the_beginning_of_the_best(tiny_codec: Any) -> None:
    (text,) = shown(tiny_codec, asked("Anna?"), passage_tokens=200, window_tokens=12)
    assert len(tiny_codec.encode(text)) == 12


@pytest.mark.parametrize("text", [None, "", " \n "])
def test_an_empty_document_is_an_outcome(text: str | None, tiny_codec: Any) -> None:
    model = ScriptedModel(tiny_codec, lambda prompt, limit: [2], max_context=512)
    result = asyncio.run(model.play(PassagesPolicy(**OPTIONS), asked("Anna?", text)))
    assert result == Answered(None, Outcome.EMPTY_CONTEXT)


def test_it_keeps_the_contract_where_the_document_fits(tiny_codec: Any) -> None:
    findings = check_policy(PassagesPolicy(**OPTIONS), tiny_codec, 20_480)
    assert [finding.message for finding in findings if not finding.passed] == []


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"passage_tokens": 0}, "policy.options.passage_tokens=0: must be at least 1"),
        ({"retriever": "dense"}, "choose one of words, jaccard, tfidf, bm25"),
        ({"window_tokens": 0}, "policy.options.window_tokens=0"),
    ],
)
def test_a_wrong_option_is_rejected(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_policy(PolicyConfig(name="passages", options=option))


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(["Anna ran. ", "Rome.\n", "It rains\n\n", "a b c d e f g h "]), min_size=1, max_size=40
    ),
    passage=st.integers(1, 40),
    room=st.integers(0, 120),
    boundary=st.sampled_from(["line", "token"]),
)
def test_what_is_shown_fits_and_comes_from_the_document(
    tiny_codec: Any, lines: list[str], passage: int, room: int, boundary: Any
) -> None:
    policy = PassagesPolicy(**OPTIONS, passage_tokens=passage, passage_boundary=boundary)
    document = policy.prepare(asked("Where is Anna?", "".join(lines)), tiny_codec)
    assert document is not None
    ids = policy.shown(document, "Where is Anna?", room, tiny_codec)
    assert len(ids) <= room
    kept = [word for word in tiny_codec.decode(ids).split() if len(word) > 1]
    assert set("".join(kept)) <= set("".join(lines))
    if len(tiny_codec.encode("".join(lines))) <= room:
        assert tiny_codec.decode(ids) == "".join(lines)

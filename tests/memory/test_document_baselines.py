"""Baselines without a memory: closed book, full context, sliding window, passages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.config.schema import PolicyConfig
from palimpsest.memory.document_baselines import (
    ClosedBookPolicy,
    FullContextPolicy,
    PassagesPolicy,
    SlidingWindowPolicy,
)
from palimpsest.memory.policy import Answered
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.text.codec import Codec
from palimpsest.types import Outcome, Problem, Question
from support.agents import played

OPTIONS: dict[str, Any] = {"question_tokens": 60, "answer_tokens": 8, "prompts": "short"}
RAIN = [f"It rained in week {week}.\n" for week in range(40)]
FACTS = ["Anna lives in Rome.\n", "Rome has a tower.\n"]
DOCUMENT = "".join([*RAIN[:20], FACTS[0], *RAIN[20:30], FACTS[1], *RAIN[30:]])


def problem(question: str = "Anna?", document: str | None = DOCUMENT) -> Problem:
    return Problem("p", question, ("x",), document)


def play(policy: Any, codec: Any, text: str | None = DOCUMENT) -> tuple[Answered, ScriptedModel]:
    model = ScriptedModel(codec, lambda prompt, limit: [2], max_context=512)
    return asyncio.run(model.play(policy, problem(document=text))), model


@pytest.mark.parametrize("prompts", list(ClosedBookPolicy.prompt_sets))
def test_a_closed_book_never_shows_the_document(prompts: str) -> None:
    trajectory, script = played(ClosedBookPolicy(prompts=prompts), ["\\boxed{Bob}"], problem())
    assert len(trajectory.turns) == 1
    assert ("Anna?" in script.text(0), "tower" in script.text(0)) == (True, False)


@pytest.mark.parametrize("policy", [ClosedBookPolicy(), FullContextPolicy()])
def test_several_questions_are_answered_separately(policy: Any) -> None:
    questions = [Question("Who sings?", ("Bob",)), Question("Where?", ("Rome",))]
    trajectory, script = played(policy, ["\\boxed{Bob}"] * 2, Problem.asking("p", questions, FACTS[0]))
    assert ["Who sings?" in script.text(number) for number in (0, 1)] == [True, False]
    assert [turn.notes for turn in trajectory.turns] == [{"question": 0}, {"question": 1}]
    assert len(trajectory.answers) == 2


def test_a_document_fits_if_its_prompt_is_at_most_the_window(tiny_codec: Codec) -> None:
    policy, tokens = FullContextPolicy(answer_tokens=8), len(tiny_codec.encode(DOCUMENT))
    template = policy.texts.template(tiny_codec, "answer")
    window = template.literal_length + len(tiny_codec.encode("Anna?")) + tokens + 8
    assert policy.fitting_tokens(problem(), tiny_codec, window) == tokens
    assert policy.fitting_tokens(problem(), tiny_codec, window - 1) is None
    long = problem(document=DOCUMENT * 1000)
    assert policy.fitting_tokens(long, tiny_codec, window) is None  # without encoding all of it
    assert policy.fitting_tokens(problem(document=None), tiny_codec, window) is None


@pytest.mark.parametrize("policy", [FullContextPolicy(**OPTIONS), PassagesPolicy(**OPTIONS)])
@pytest.mark.parametrize("text", [None, "", " \n "])
def test_an_empty_document_is_an_outcome(policy: Any, text: str | None, tiny_codec: Any) -> None:
    result, model = play(policy, tiny_codec, text)
    assert result == Answered(None, Outcome.EMPTY_CONTEXT)
    assert not model.prompts


def test_a_long_document_is_shown_by_its_ends_or_its_last_window(tiny_codec: Any) -> None:
    ids = tiny_codec.encode(DOCUMENT)
    for kind, shown in ((FullContextPolicy, ids[:5] + ids[-5:]), (SlidingWindowPolicy, ids[-10:])):
        _, model = play(kind(window_tokens=10, **OPTIONS), tiny_codec)
        assert any(list(model.prompts[0][at : at + 10]) == shown for at in range(len(model.prompts[0])))


def shown(codec: Any, asking: Problem, **options: Any) -> list[str]:
    """The document of every prompt."""
    policy = build_policy(PolicyConfig(name="passages", options={**OPTIONS, **options}))
    trajectory, _ = played(policy, ["x"] * 9, asking, codec)
    return [codec.decode(turn.piece("document") or ()) for turn in trajectory.turns]


@pytest.fixture
def line(tiny_codec: Any) -> int:
    """Tokens of the longest line, and of a break."""
    return max(len(tiny_codec.encode(text)) for text in (*RAIN, *FACTS)) + 1


def test_the_passages_like_the_question_are_in_the_order_of_the_document(tiny_codec: Any, line: int) -> None:
    question = problem("Tower of Rome: where lives Anna?")
    assert shown(tiny_codec, question, passage_tokens=line, window_tokens=2 * line) == ["".join(FACTS)]
    questions = (Question("Where does Anna live?", ("Rome",)), Question("Which tower?", ("x",)))
    several = Problem.asking("p", questions, DOCUMENT)
    assert shown(tiny_codec, several, passage_tokens=line, window_tokens=line + 1) == FACTS


def test_the_window_is_filled_and_never_exceeded(tiny_codec: Any, line: int) -> None:
    (text,) = shown(tiny_codec, problem(), passage_tokens=line, window_tokens=5 * line)
    assert FACTS[0] in text
    assert 3 * line < len(tiny_codec.encode(text)) <= 5 * line
    (text,) = shown(tiny_codec, problem(), passage_tokens=200, window_tokens=12)  # smaller than any passage
    assert len(tiny_codec.encode(text)) == 12


def test_a_document_that_fits_makes_the_prompt_of_full_context(tiny_codec: Any) -> None:
    policies = (FullContextPolicy(**OPTIONS), PassagesPolicy(**OPTIONS, passage_tokens=3))
    full, passages = (play(policy, tiny_codec, "".join(FACTS))[1].prompts for policy in policies)
    assert passages == full


def test_passages_cut_within_a_line_are_separated_by_a_break(tiny_codec: Any) -> None:
    document = "Anna lives here. " + "It rained. " * 60 + "Bob lives there."
    options: dict[str, Any] = {"passage_tokens": 16, "window_tokens": 36, "passage_boundary": "token"}
    (text,) = shown(tiny_codec, problem("Anna, Bob?", document), **options)
    first, _, last = text.partition("\n")
    assert ("Anna" in first, "Bob" in last) == (True, True)


def test_a_truncated_document_is_an_event(tiny_codec: Any) -> None:
    policy = build_policy(PolicyConfig(name="passages", options={**OPTIONS, "window_tokens": 40}))
    (event,) = played(policy, ["x"], problem(), tiny_codec)[0].events
    assert event.kind == "document_truncated"
    assert (event.detail["tokens"], event.detail["how"]) == (len(tiny_codec.encode(DOCUMENT)), "PassagesPolicy")


def test_passages_fulfil_the_contract_if_the_document_fits(tiny_codec: Any) -> None:
    findings = check_policy(PassagesPolicy(**OPTIONS), tiny_codec, 20_480)
    assert [finding.message for finding in findings if not finding.passed] == []


LINES = st.lists(
    st.sampled_from(["Anna ran. ", "Rome.\n", "It rains\n\n", "a b c d e f g h "]), min_size=1, max_size=40
)


@settings(max_examples=50)
@given(lines=LINES, passage=st.integers(1, 40), room=st.integers(0, 120), boundary=st.sampled_from(["line", "token"]))
def test_passages_fit_and_come_from_the_document(
    tiny_codec: Any, lines: list[str], passage: int, room: int, boundary: Any
) -> None:
    text, policy = "".join(lines), PassagesPolicy(**OPTIONS, passage_tokens=passage, passage_boundary=boundary)
    document = policy.prepare(problem("Where is Anna?", text), tiny_codec)
    assert document is not None
    ids = policy.shown(document, "Where is Anna?", room, tiny_codec)
    assert len(ids) <= room
    words = [word for word in tiny_codec.decode(ids).split() if len(word) > 1]
    assert set("".join(words)) <= set(text)
    if len(tiny_codec.encode(text)) <= room:
        assert tiny_codec.decode(ids) == text

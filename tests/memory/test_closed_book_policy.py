"""The baselines that ask once: without the document, and with the whole of it."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.memory.document_baselines import ClosedBookPolicy, FullContextPolicy
from palimpsest.text.codec import Codec
from palimpsest.types import Problem, Question
from support.agents import played

DOCUMENT = "Bob likes green tea. " * 8


@pytest.mark.parametrize("prompts", list(ClosedBookPolicy.prompt_sets))
def test_a_closed_book_never_shows_the_document(prompts: str) -> None:
    problem = Problem("p", "Who?", ("Bob",), DOCUMENT)
    trajectory, script = played(ClosedBookPolicy(prompts=prompts), ["\\boxed{Bob}"], problem)
    assert len(trajectory.turns) == 1
    text = script.text(0)
    assert "Who?" in text
    assert "green tea" not in text


@pytest.mark.parametrize("policy", [ClosedBookPolicy(), FullContextPolicy()])
def test_each_of_several_questions_is_asked_alone(policy: Any) -> None:
    questions = [Question("Who sings?", ("Bob",)), Question("Where?", ("Rome",))]
    trajectory, script = played(policy, ["\\boxed{Bob}"] * 2, Problem.asking("p", questions, DOCUMENT))
    first, second = script.text(0), script.text(1)
    assert "Who sings?" in first
    assert "Who sings?" not in second
    assert [turn.notes for turn in trajectory.turns] == [{"question": 0}, {"question": 1}]
    assert len(trajectory.answers) == 2


def test_a_document_fits_where_its_prompt_is_the_window_and_not_a_token_more(tiny_codec: Codec) -> None:
    policy = FullContextPolicy(answer_tokens=8)
    problem = Problem("p", "Who?", ("Bob",), DOCUMENT)
    tokens = len(tiny_codec.encode(DOCUMENT))
    template = policy.texts.template(tiny_codec, "answer")
    window = template.literal_length + len(tiny_codec.encode("Who?")) + tokens + 8
    assert policy.fitting_tokens(problem, tiny_codec, window) == tokens
    assert policy.fitting_tokens(problem, tiny_codec, window - 1) is None
    long = Problem("p", "Who?", ("Bob",), DOCUMENT * 5000)
    assert policy.fitting_tokens(long, tiny_codec, window) is None  # found out from its beginning
    assert policy.fitting_tokens(Problem("p", "Who?", ("Bob",)), tiny_codec, window) is None

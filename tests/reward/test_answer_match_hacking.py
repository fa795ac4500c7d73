"""Answers that try to be taken for right: what each comparison accepts is in the docs, and the default accepts none."""

from __future__ import annotations

import pytest

from palimpsest.reward.answer_match import METRICS, measure
from palimpsest.text.answers import extract, last_box
from support.hacking import ACCEPTED, HACKS, REWORDED, Hack, accepted_by, counts, rejections

SAFE = ("boxed", "em")
"""Comparisons that no hack may pass: those to train with, but f1, which pays for a part of the words."""


@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_no_hack_passes_the_default_comparison(hack: Hack) -> None:
    values = measure(hack.text, hack.golds)
    assert {name: values[name] for name in SAFE} == dict.fromkeys(SAFE, 0.0)
    assert values["f1"] < 1


@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_the_honest_answer_passes_where_the_hack_does_not(hack: Hack) -> None:
    """That the default refuses is the hack's doing, not its golds'."""
    assert measure(f"\\boxed{{{hack.golds[0]}}}", hack.golds)["boxed"] == 1


def test_there_are_sixty_of_many_kinds() -> None:
    assert len(HACKS) >= 60
    assert len({hack.name for hack in HACKS}) == len({hack.text for hack in HACKS}) == len(HACKS)


def test_comparisons_that_contain_are_fooled_and_the_table_says_so() -> None:
    """As published: none of these is one to train with."""
    known = counts()
    assert set(known) == {*METRICS} - {"answered"}
    assert known["boxed"] == known["em"] == 0
    assert min(known[name] for name in ("sub_em", "sub_em_either", "fraction", "string_match_all")) > 20
    options = next(hack for hack in HACKS if hack.name.startswith("every option, comma"))
    assert {"sub_em", "string_match_all"} <= set(accepted_by(options))
    assert 0 < ACCEPTED < 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\boxed{Paris} or Rome}", "{Paris} or Rome"),
        (r"\boxed{\boxed{\boxed{Paris}}}", "Paris"),
        (r"\boxed{\text{\boxed{Paris}}}", r"\text{{Paris}}"),
        (r"\boxed{Rome \boxed{Paris}", "Paris"),  # the outer one never closes: dropped, not nested
        (r"\boxed{a} \boxed{b \boxed{c}}", "b {c}"),
        (r"\boxed{\boxed{a}} \boxed{b}", "b"),
        (r"} \boxed{{a} b}", "{a} b"),
    ],
)
def test_a_box_in_a_box_is_a_part_of_the_outer_one(text: str, answer: str) -> None:
    assert last_box(text) == answer
    assert (found := extract(text)) is not None
    assert found.text == answer


def test_a_box_in_a_box_with_the_same_answer_is_right() -> None:
    for text in (r"\boxed{\boxed{Paris}}", r"\boxed{\text{\boxed{Paris}}}"):
        assert measure(text, ["Paris"])["boxed"] == 1


def test_strictness_costs_right_answers_in_other_words_and_leniency_doesnt_save_them_all() -> None:
    known = rejections()
    assert known["boxed"] > known["sub_em"] > 0
    assert known["boxed"] == known["em"]


CONSTANTS = ("the", ".", "a", "yes", "no", "1", "it", "unknown", "I don't know", "Paris", "Yes or no", "x", "the city")


def test_no_constant_answer_is_worth_anything_by_default_and_an_article_is_always_right_as_published() -> None:
    """An agent that always says the same, over questions of many kinds."""
    golds = [(gold,) for gold in REWORDED]

    def score(metric: str, constant: str) -> float:
        return sum(measure(f"\\boxed{{{constant}}}", each)[metric] for each in golds) / len(golds)

    best = {name: max((score(name, constant), constant) for constant in CONSTANTS) for name in ("boxed", "em", "f1")}
    assert all(share <= 1 / len(golds) for share, _ in best.values())  # "no" answers "Is a whale a fish?"
    assert score("sub_em_either", "the") == 1.0

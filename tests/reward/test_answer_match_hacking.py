"""Answers that try to pass without being right; docs/how-to/evaluate.md lists what each comparison accepts."""

from __future__ import annotations

import pytest

from palimpsest.reward.answer_match import measure
from palimpsest.text.answers import extract, last_box
from support.hacking import HACKS, Hack


@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_no_hack_passes_a_comparison_for_training(hack: Hack) -> None:
    values = measure(hack.text, hack.golds)
    assert (values["boxed"], values["em"]) == (0.0, 0.0)
    assert values["f1"] < 1
    assert measure(f"\\boxed{{{hack.golds[0]}}}", hack.golds)["boxed"] == 1


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
def test_a_box_inside_a_box_belongs_to_the_outer_one(text: str, answer: str) -> None:
    assert last_box(text) == answer
    assert (extracted := extract(text)) is not None
    assert extracted.text == answer


@pytest.mark.parametrize("text", [r"\boxed{\boxed{Paris}}", r"\boxed{\text{\boxed{Paris}}}"])
def test_a_box_inside_a_box_with_the_same_answer_is_right(text: str) -> None:
    assert measure(text, ["Paris"])["boxed"] == 1

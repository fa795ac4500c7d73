"""Answers that try to pass without being right; docs/how-to/evaluate.md lists what each comparison accepts."""

from __future__ import annotations

import pytest

from palimpsest.reward.answer_match import measure
from support.hacking import HACKS, Hack


@pytest.mark.parametrize("hack", HACKS, ids=lambda hack: hack.name)
def test_no_hack_passes_a_comparison_for_training(hack: Hack) -> None:
    values = measure(hack.text, hack.golds)
    assert (values["boxed"], values["em"]) == (0.0, 0.0)
    assert values["f1"] < 1
    assert measure(f"\\boxed{{{hack.golds[0]}}}", hack.golds)["boxed"] == 1


@pytest.mark.parametrize("text", [r"\boxed{\boxed{Paris}}", r"\boxed{\text{\boxed{Paris}}}"])
def test_a_box_inside_a_box_with_the_same_answer_is_right(text: str) -> None:
    assert measure(text, ["Paris"])["boxed"] == 1

"""Grades in many scripts, against values that a reader of the script gives."""

from __future__ import annotations

import pytest

from palimpsest.reward.answer_match import letter_of, lists_all, measure
from support.answer_scripts import LIMITS, SCRIPTS, Answers, Row


def misgraded(row: Row) -> dict[str, float]:
    """The metrics of a row that have another value than the expected one."""
    values = measure(f"\\boxed{{{row.answer}}}", row.golds)
    expected = {"em": row.em, "boxed": row.em, "sub_em": row.sub_em, "f1": row.f1}
    clear = {name: value for name, value in expected.items() if value is not None}
    return {name: values[name] for name, value in clear.items() if values[name] != pytest.approx(value)}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_reader_of_the_script_agrees_with_the_grades(script: str) -> None:
    assert [(ascii(row), wrong) for row in SCRIPTS[script].rows if (wrong := misgraded(row))] == []


@pytest.mark.parametrize("reason", LIMITS)
def test_the_known_limits_are_still_limits(reason: str) -> None:
    """A row that is right now moves to its script."""
    assert [row for row in Answers((), LIMITS[reason]).rows if not misgraded(row)] == []


def test_the_rows_cover_ten_scripts_with_right_and_wrong_answers() -> None:
    assert len(SCRIPTS) >= 10
    assert sum(len(answers.same) + len(answers.other) for answers in SCRIPTS.values()) >= 200
    assert all(answers.same and answers.other for answers in SCRIPTS.values())


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("（B）拜伦", "B"),
        ("B、拜伦", "B"),
        ("B．拜伦", "B"),
        ("Ｂ", "B"),
        ("(B)서울", "B"),
        ("A、B", ""),
        ("A或B", ""),
        ("（A）或（B）", ""),
        ("A.北京 B.上海", ""),
        ("A.北京B.上海", ""),
        ("B级", ""),
    ],
)
def test_a_choice_letter_before_an_unspaced_text(answer: str, letter: str) -> None:
    assert letter_of(answer, "ABCD") == (letter or answer)


@pytest.mark.parametrize(
    ("answer", "golds"),
    [
        ("茶和酒", ["酒", "茶"]),
        ("τσάι και ρύζι", ["ρύζι", "τσάι"]),
        ("ชา และ ข้าว", ["ข้าว", "ชา"]),
        ("चाय, पानी और चावल", ["चावल", "चाय", "पानी"]),
        ("Թեյ և բրինձ", ["բրինձ", "թեյ"]),
        ("trà và gạo", ["gạo", "trà"]),
        ("A and B", ["B", "A"]),
        ("* A\n* B", ["A", "B"]),
        ("- 3\n- 5", ["5", "3"]),
    ],
)
def test_a_list_of_all_golds_in_any_script(answer: str, golds: list[str]) -> None:
    assert lists_all(answer, golds) == 1
    assert lists_all(answer, golds[1:]) == 0

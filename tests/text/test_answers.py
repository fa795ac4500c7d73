"""Extraction: which part of a response is its answer. Expected values are worked by hand."""

import pytest

from palimpsest.text.answers import extract, last_box, published_box, stated_answer
from palimpsest.text.reply_tags import spoken


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{Paris}", "Paris"),
        (r"\boxed {Paris}", "Paris"),
        (r"\fbox{Paris}", "Paris"),
        (r"\boxed{a} then \fbox{b}", "b"),
        (r"\boxed{\boxed{Paris}}", "Paris"),
        (r"\boxed{\text{New {York}}}", r"\text{New {York}}"),
        (r"$\boxed{5}$, so 5.", "5"),
        (r"\boxed Paris", "Paris"),
        (r"$\boxed 5$ apples", "5"),
        (r"$\boxed \$5$ each", r"\$5"),
        (r"I use \boxed as asked: \boxed{Paris}", "Paris"),
        (r"\boxed{Paris}, put in a \boxed as asked", "Paris"),
        (r"\boxed{Paris} and then \boxed{}", ""),
        ("\\boxed{Paris\nmore talk", "Paris"),
        (r"\boxed{Paris}}}}", "Paris"),
        (r"\boxed{a {b}", "a {b}"),
        ("\\boxed{two\nlines}", "two\nlines"),
        (r"boxed{Paris}", None),
        (r"\boxed", None),
        ("", None),
    ],
)
def test_the_last_box_is_read_by_its_braces(text: str, box: str | None) -> None:
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is Paris.", "Paris"),
        ("the answer is: **Paris**.\nThat is in France.", "Paris"),
        ("The answer is Rome. No, the answer is Paris", "Paris"),
        ('the answer is "Paris".', "Paris"),
        ("the answer isn't known", None),
        ("THE ANSWER IS U.S.A.", "U.S.A"),
        ("The answer is $5.", "$5"),
        ("The answer is $5$.", "5"),
        ("The answer is 3*4!", "3*4"),
        ("The answer is ***Paris***", "Paris"),
        ("the answer is", ""),
        ("The correct answer is (B).", "(B)"),
        ("The final answer is Paris.", "Paris"),
        ("THE RIGHT ANSWER IS: Paris", "Paris"),
        ("The answer is:\n\nParis\nThat is in France.", "Paris"),
        ("**The final answer is:**\n\n**Paris**", "Paris"),
        ("The answer is\n \t\n", ""),
        ("The first answer is Rome.", None),
        ("Paris", None),
    ],
)
def test_a_stated_answer_runs_to_the_end_of_its_line(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer


def test_a_box_goes_before_a_statement_and_names_its_rule() -> None:
    found = extract(r"The answer is Rome. \boxed{Paris}")
    assert found is not None
    assert (found.text, found.rule) == ("Paris", "boxed")
    stated = extract("The answer is Rome.")
    assert stated is not None
    assert (stated.text, stated.rule) == ("Rome", "answer_is")
    assert extract("Rome, surely.") is None


def test_thinking_is_not_an_answer() -> None:
    assert extract(r"<think>maybe \boxed{Rome}</think> It is \boxed{Paris}").text == "Paris"  # type: ignore[union-attr]
    assert extract(r"maybe \boxed{Rome}</think> no idea") is None
    assert extract(r"<think>maybe \boxed{Rome}") is None
    assert extract(r"<thinking>maybe \boxed{Rome}</thinking> It is Paris.") is None
    assert extract(r"<thinking>maybe \boxed{Rome}") is None
    assert spoken("a</think>b</think>c") == "c"


def test_the_published_window_and_quirks() -> None:
    assert published_box(r"\boxed{Paris}" + "x" * 287) == "paris"  # 13 + 287 = 300 characters
    assert published_box(r"\boxed{Paris}" + "x" * 288) is None
    assert published_box(r"\boxed early $ and \boxed{Paris}") == "early "  # the bare form goes first
    assert published_box(r"\fbox{Paris}") is None
    assert published_box(r"\boxed {Paris}") == "{paris}"


@pytest.mark.parametrize("flood", [r"\boxed{", r"\boxed{a}", r"\boxed ", "{", "the answer is ", "<think>", "</think>"])
def test_a_flood_takes_linear_time(flood: str) -> None:
    """About 0.3 s; with a quadratic rule this test would not end for hours."""
    text = flood * (1_000_000 // len(flood))
    extract(text)
    published_box(text)

"""The part of a response that is its answer; expected values are worked by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palimpsest.text.answers import (
    MAX_CHARS,
    extract,
    final_answer,
    last_box,
    named_answers,
    published_box,
    stated_answer,
)


def pairs(table: Mapping[Any, Sequence[str]]) -> list[tuple[str, Any]]:
    """(text, result) of a table of results and the texts that have them."""
    return [(text, result) for result, texts in table.items() for text in texts]


BOXES: dict[str | None, list[str]] = {
    "Paris": [
        *(r"\boxed{Paris}", r"\boxed {Paris}", r"\fbox{Paris}", r"\boxed{\boxed{Paris}}", r"\boxed Paris"),
        r"I use \boxed as asked: \boxed{Paris}",
        r"\boxed{Paris}, put in a \boxed as asked",
        "\\boxed{Paris\nmore talk",
        r"\boxed{Paris}}}}",
        *(r"\boxed{\boxed{\boxed{Paris}}}", r"\boxed{Rome \boxed{Paris}"),
    ],
    "b": [r"\boxed{a} then \fbox{b}", r"\boxed{\boxed{a}} \boxed{b}"],
    "{Paris} or Rome": [r"\boxed{\boxed{Paris} or Rome}"],  # an inner box belongs to the outer one
    r"\text{{Paris}}": [r"\boxed{\text{\boxed{Paris}}}"],
    "b {c}": [r"\boxed{a} \boxed{b \boxed{c}}"],
    r"\text{New {York}}": [r"\boxed{\text{New {York}}}"],
    "5": [r"$\boxed{5}$, so 5.", r"$\boxed 5$ apples"],
    r"\$5": [r"$\boxed \$5$ each"],
    "": [r"\boxed{Paris} and then \boxed{}"],
    "a {b}": [r"\boxed{a {b}"],
    "{a} b": [r"} \boxed{{a} b}"],
    "two\nlines": ["\\boxed{two\nlines}"],
    None: [r"boxed{Paris}", r"\boxed", ""],
}


@pytest.mark.parametrize(("text", "box"), pairs(BOXES))
def test_the_last_box_is_read_by_its_braces(text: str, box: str | None) -> None:
    assert last_box(text) == box


STATED: dict[str | None, list[str]] = {
    "Paris": [
        *("The answer is Paris.", "the answer is: **Paris**.\nThat is in France.", "The answer is ***Paris***"),
        *("The answer is Rome. No, the answer is Paris", 'the answer is "Paris".', "The final answer is Paris."),
        *("THE RIGHT ANSWER IS: Paris", "The answer is:\n\nParis\nThat is in France."),
        "**The final answer is:**\n\n**Paris**",
    ],
    "U.S.A": ["THE ANSWER IS U.S.A."],
    "$5": ["The answer is $5."],
    "5": ["The answer is $5$."],
    "3*4": ["The answer is 3*4!"],
    "": ["the answer is", "The answer is\n \t\n"],
    "(B)": ["The correct answer is (B)."],
    None: ["the answer isn't known", "The first answer is Rome.", "Paris"],
}


@pytest.mark.parametrize(("text", "answer"), pairs(STATED))
def test_a_stated_answer_ends_with_its_line(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer", "rule"),
    [
        (r"The answer is Rome. \boxed{Paris}", "Paris", "boxed"),
        ("The answer is Rome.", "Rome", "answer_is"),
        (r"<think>maybe \boxed{Rome}</think> It is \boxed{Paris}", "Paris", "boxed"),
        ("Rome, surely.", None, None),
        (r"maybe \boxed{Rome}</think> no idea", None, None),
        (r"<think>maybe \boxed{Rome}", None, None),
        (r"<thinking>maybe \boxed{Rome}</thinking> It is Paris.", None, None),
        (r"<thinking>maybe \boxed{Rome}", None, None),
    ],
)
def test_a_box_precedes_a_statement(text: str, answer: str | None, rule: str | None) -> None:
    outcome = extract(text)
    assert (outcome and outcome.text, outcome and outcome.rule) == (answer, rule)


PUBLISHED: dict[str | None, list[str]] = {
    "paris": [r"\boxed{Paris}" + "x" * 287],  # 13 + 287 = 300 characters
    None: [r"\boxed{Paris}" + "x" * 288, r"\fbox{Paris}"],
    "early ": [r"\boxed early $ and \boxed{Paris}"],  # the bare form has priority
    "{paris}": [r"\boxed {Paris}"],
}


@pytest.mark.parametrize(("text", "box"), pairs(PUBLISHED))
def test_the_published_box_has_its_window_and_quirks(text: str, box: str | None) -> None:
    assert published_box(text) == box


@pytest.mark.parametrize("flood", [r"\boxed{", r"\boxed{a}", r"\boxed ", "{", "the answer is ", "<think>", "</think>"])
def test_a_flood_takes_linear_time(flood: str) -> None:
    """A quadratic rule would take hours."""
    text = flood * (300_000 // len(flood))
    extract(text)
    published_box(text)


FINAL: dict[str | None, list[str]] = {
    "Oslo": [
        "FINAL_ANSWER: Oslo",  # the only form that the authors' code reads
        "FINAL_ANSWER:Oslo",
        "FINAL_ANSWER:\nOslo\n",
        "Summary: a city.\n\nFINAL_ANSWER: \nOslo",
        "**FINAL_ANSWER:** Oslo",
        "FINAL_ANSWER: Rome\nNo: FINAL_ANSWER: Oslo",
        "<think>FINAL_ANSWER: Rome</think>\nFINAL_ANSWER: Oslo",
        "<think>a</think> FINAL_ANSWER: Oslo <thinking>FINAL_ANSWER: Rome",
    ],
    "": ["FINAL_ANSWER: Rome\nFINAL_ANSWER:"],
    None: [
        "<think>FINAL_ANSWER: Rome",
        "<thinking>FINAL_ANSWER: Rome</thinking> It is Oslo.",
        "It is Oslo.",
        "final answer: Oslo",
    ],
}


@pytest.mark.parametrize(("text", "answer"), pairs(FINAL))
def test_the_final_answer_follows_the_last_marker_outside_of_thinking(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


TWO = '{"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}'


@pytest.mark.parametrize(
    "text",
    [
        f"FINAL_ANSWER: {TWO}",
        f"FINAL_ANSWER:\n{TWO}",
        'FINAL_ANSWER: \n{\n  "Q1": "Brian Virtue",\n  "Q2": "The Seldom Scene"\n}\n\n',  # the published prompt's form
        'FINAL_ANSWER:{"Q2": "The Seldom Scene", "Q1": "Brian Virtue"}',
        f"FINAL_ANSWER:\n```json\n{TWO}\n```",
        f"FINAL_ANSWER:\n```JSON\n{TWO}\n```",
        f"FINAL_ANSWER: **{TWO}**",
        f"FINAL_ANSWER:\n```\n{TWO}\n```\nThat is all.",
    ],
)
def test_an_object_of_answers_is_read_in_the_published_and_similar_forms(text: str) -> None:
    named = named_answers(final_answer(text), ["Q1", "Q2"])
    assert named.answers == {"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}
    assert (named.missing, named.extra, named.fault) == ((), (), None)


def test_numbers_and_booleans_become_their_json_text_and_arrays_are_no_answer() -> None:
    text = '{"Q1": 1834, "Q2": ["a", "é"], "Q3": true, "Q4": [null], "Q5": 1.5}'
    named = named_answers(text, ["Q1", "Q2", "Q3", "Q4", "Q5"])
    assert named.answers == {"Q1": "1834", "Q3": "true", "Q5": "1.5"}
    assert named.missing == ("Q2", "Q4")
    assert named.fault == "the answer to Q2 is an array; expected text or a number"


@pytest.mark.parametrize("value", ['{"a": "Paris"}', '["Paris"]', '[["Paris"]]', "{}", "[]"])
def test_an_object_or_array_is_no_answer(value: str) -> None:
    named = named_answers(f'{{"Q1": {value}, "Q2": "Rome"}}', ["Q1", "Q2"])
    assert (dict(named.answers), named.missing) == ({"Q2": "Rome"}, ("Q1",))
    assert (named.fault or "").startswith("the answer to Q1 is a")


@pytest.mark.parametrize(
    ("text", "extra"), [('{"Q1": null, "Q2": "x", "Q3": null}', "Q3"), ('{"Q2": "x", "q1": "y"}', "q1")]
)
def test_null_is_missing_and_other_names_are_extra(text: str, extra: str) -> None:
    named = named_answers(text, ["Q1", "Q2"])
    assert (dict(named.answers), named.missing, named.extra, named.fault) == ({"Q2": "x"}, ("Q1",), (extra,), None)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "Oslo and 1905", '["Oslo"]', '{"Q1": "Oslo"', '{"Q1": "Oslo", "Q1": "Rome"}', '{"Q1": NaN}'),
        *("{'Q1': 'Oslo'}", '{"Q1": "Oslo"]', '{"Q1": "\\ud800"}'),
        '{"Q1": ' + "[" * 100_000,
        '{"Q1": "' + "x" * MAX_CHARS + '"}',
    ],
)
def test_text_without_a_valid_object_gives_no_answer_and_the_reason(text: str | None) -> None:
    named = named_answers(text, ["Q1"])
    assert (named.answers, named.missing) == ({}, ("Q1",))
    assert named.fault
    assert "\n" not in named.fault


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@settings(max_examples=50)
@example({"Q1": 2**64}, False)
@given(st.dictionaries(st.sampled_from(["Q1", "Q2", "Q3"]), JSON), st.booleans())
def test_written_json_is_read_back(values: dict[str, object], ascii_only: bool) -> None:
    named = named_answers(json.dumps(values, ensure_ascii=ascii_only), ["Q1", "Q2", "Q3"])
    assert (named.fault is not None) == any(isinstance(value, dict | list) for value in values.values())
    plain = {name: value for name, value in values.items() if value is not None and not isinstance(value, dict | list)}
    expected = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in plain.items()}
    assert named.answers == expected

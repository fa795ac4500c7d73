"""Where the answer of a search agent stands."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palimpsest.text.answers import MAX_CHARS, final_answer, named_answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("FINAL_ANSWER: Oslo", "Oslo"),  # the only form that the authors' code reads
        ("FINAL_ANSWER:Oslo", "Oslo"),
        ("FINAL_ANSWER:\nOslo\n", "Oslo"),
        ("Summary: a city.\n\nFINAL_ANSWER: \nOslo", "Oslo"),
        ("**FINAL_ANSWER:** Oslo", "Oslo"),
        ("FINAL_ANSWER: Rome\nNo: FINAL_ANSWER: Oslo", "Oslo"),
        ("FINAL_ANSWER: Rome\nFINAL_ANSWER:", ""),
        ("<think>FINAL_ANSWER: Rome</think>\nFINAL_ANSWER: Oslo", "Oslo"),
        ("<think>FINAL_ANSWER: Rome", None),
        ("<thinking>FINAL_ANSWER: Rome</thinking> It is Oslo.", None),
        ("<think>a</think> FINAL_ANSWER: Oslo <thinking>FINAL_ANSWER: Rome", "Oslo"),
        ("It is Oslo.", None),
        ("final answer: Oslo", None),
    ],
)
def test_the_answer_is_what_follows_the_last_marker_outside_of_thinking(text: str, answer: str | None) -> None:
    """C9.13: a marker without the trailing space is a marker."""
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        'FINAL_ANSWER: {"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}',
        'FINAL_ANSWER:\n{"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}',
        'FINAL_ANSWER: \n{\n  "Q1": "Brian Virtue",\n  "Q2": "The Seldom Scene"\n}\n\n',
        'FINAL_ANSWER:{"Q2": "The Seldom Scene", "Q1": "Brian Virtue"}',
        'FINAL_ANSWER:\n```json\n{"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}\n```',
        'FINAL_ANSWER:\n```JSON\n{"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}\n```',
        'FINAL_ANSWER: **{"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}**',
        'FINAL_ANSWER:\n```\n{"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}\n```\nThat is all.',
    ],
)
def test_an_object_of_answers_is_read_in_the_published_form_and_beside_it(text: str) -> None:
    """C9.13: the published prompt's own two-line form got 0 from the published reward."""
    named = named_answers(final_answer(text), ["Q1", "Q2"])
    assert named.answers == {"Q1": "Brian Virtue", "Q2": "The Seldom Scene"}
    assert (named.missing, named.extra, named.fault) == ((), (), None)


def test_numbers_and_booleans_become_their_json_text_and_arrays_are_no_answer() -> None:
    said = '{"Q1": 1834, "Q2": ["a", "é"], "Q3": true, "Q4": [null], "Q5": 1.5}'
    named = named_answers(said, ["Q1", "Q2", "Q3", "Q4", "Q5"])
    assert named.answers == {"Q1": "1834", "Q3": "true", "Q5": "1.5"}
    assert named.missing == ("Q2", "Q4")
    assert named.fault == "the answer to Q2 is an array; expected text or a number"


@pytest.mark.parametrize("value", ['{"a": "Paris"}', '["Paris"]', '[["Paris"]]', "{}", "[]"])
def test_an_answer_inside_an_object_or_an_array_is_none(value: str) -> None:
    named = named_answers(f'{{"Q1": {value}, "Q2": "Rome"}}', ["Q1", "Q2"])
    assert (dict(named.answers), named.missing) == ({"Q2": "Rome"}, ("Q1",))
    assert named.fault is not None
    assert named.fault.startswith("the answer to Q1 is a")


def test_null_is_a_missing_answer() -> None:
    named = named_answers('{"Q1": null, "Q2": "x", "Q3": null}', ["Q1", "Q2"])
    assert (dict(named.answers), named.missing, named.extra, named.fault) == ({"Q2": "x"}, ("Q1",), ("Q3",), None)


def test_missing_and_extra_names_are_told_apart_from_a_fault() -> None:
    named = named_answers('{"Q2": "x", "q1": "y"}', ["Q1", "Q2"])
    assert (dict(named.answers), named.missing, named.extra, named.fault) == ({"Q2": "x"}, ("Q1",), ("q1",), None)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "Oslo and 1905",
        '["Oslo"]',
        '{"Q1": "Oslo"',
        '{"Q1": "Oslo", "Q1": "Rome"}',
        '{"Q1": NaN}',
        "{'Q1': 'Oslo'}",
        '{"Q1": "Oslo"]',
        '{"Q1": ' + "[" * 100_000,
        '{"Q1": "' + "x" * MAX_CHARS + '"}',
        '{"Q1": "\\ud800"}',
    ],
)
def test_what_is_no_object_gives_no_answer_and_says_why(said: str | None) -> None:
    named = named_answers(said, ["Q1"])
    assert named.answers == {}
    assert named.missing == ("Q1",)
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
def test_whatever_is_written_as_json_is_read_back(values: dict[str, object], ascii_only: bool) -> None:
    named = named_answers(json.dumps(values, ensure_ascii=ascii_only), ["Q1", "Q2", "Q3"])
    assert (named.fault is not None) == any(isinstance(value, dict | list) for value in values.values())
    given = {name: value for name, value in values.items() if value is not None and not isinstance(value, dict | list)}
    expected = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in given.items()}
    assert named.answers == expected


@given(st.text())
def test_no_text_raises(text: str) -> None:
    named_answers(final_answer(text), ["Q1"])
    named_answers("{" + text, ["Q1"])

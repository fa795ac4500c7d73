"""The evidence of a problem and its place in a text."""

from __future__ import annotations

from palimpsest.types import Problem, Question
from palimpsest.viewer.analysis.episode_timeline import evidence_of, span_of


def test_paragraphs_and_missing_evidence_are_matched_by_gold_answers() -> None:
    paragraph = {"evidence": ["Rome\nRome is old. It lies in Italy."]}
    assert [one.forms for one in evidence_of(Problem("p", "?", ("Italy", "Italia"), None, paragraph))] == [
        ("italy", "italia")
    ]
    assert [one.kind for one in evidence_of(Problem("p", "?", ("Italy",)))] == ["answer"]
    assert evidence_of(Problem("p", "?", ("yes",))) == ()
    problem = Problem.asking("p", (Question("Who?", ("Bo",)), Question("Old?", ("yes",))))
    assert [one.text for one in evidence_of(problem)] == ["Bo"]


def test_a_sentence_is_matched_across_white_space_and_case() -> None:
    text = "Joann lives. ANN\n  lives in Rome."
    assert span_of("ann lives in rome.", text) == (13, len(text))
    assert span_of("ann lived", text) is None

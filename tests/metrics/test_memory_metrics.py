"""Memory metrics against cases worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import CreditConfig
from palimpsest.events import EmptyMemoryKept, Event, MemoryWritten
from palimpsest.metrics.memory_metrics import evidence_position, evidence_retention, memory_metrics, unsupported
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.training.step_metrics import group_metrics
from palimpsest.types import Grade, Group, Outcome, Problem, Question, StopReason, Trajectory, Turn
from support.groups import CODEC, reading_turn

QUESTION = "Where does Ann live?"


def read(step: int, section: str, memory: str, written: str, stop: StopReason = StopReason.STOP) -> Turn:
    return reading_turn(step, section, memory, written, QUESTION, stop)


def measured(played: Group) -> dict[str, Any]:
    return memory_metrics(played, GroupTexts(CODEC))


def group(*turns: Turn, evidence: list[str] | None = None, events: tuple[Event, ...] = ()) -> Group:
    metadata = {} if evidence is None else {"evidence": evidence}
    trajectory = Trajectory("p", "g", 0, turns, Outcome.ANSWERED, "Rome", events)
    return Group(Problem("p", QUESTION, ("Rome",), None, metadata), (trajectory,), (Grade(1.0, breakdown={"em": 1.0}),))


def test_copy_fidelity_counts_sentences_of_section_or_memory() -> None:
    played = group(
        read(0, "Ann lives in Rome. Bo has a cat.", "none", "Ann lives in Rome. Bo has a dog."),
        read(1, "It rains.", "Ann lives in Rome. Bo has a dog.", "Ann lives in Rome.\nIt rains."),
    )
    assert measured(played)["copy_fidelity"] == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("section", "written", "hits"),
    [
        ("-5 degrees were measured.", "5 degrees were measured.", 0),
        ("12-5 degrees were measured.", "5 degrees were measured.", 0),
        ("It rains.", QUESTION, 0),  # the question is not a fact
        ("First. The code is 12. Last.", "The code is 12.", 1),
        ("First. The code is 12. Last.", "The code is 1.", 0),
    ],
)
def test_a_copied_fact_is_a_sentence_other_than_the_question(section: str, written: str, hits: int) -> None:
    assert measured(group(read(0, section, "none", written)))["copy_fidelity"] == hits


def test_overwrite_rate_is_the_share_of_changed_tokens_between_memories() -> None:
    played = group(read(0, "", "", "abcd"), read(1, "", "abcd", "abce"), read(2, "", "abce", "wxyz"))
    assert measured(played)["overwrite_rate"] == pytest.approx((1 / 4 + 1) / 2)


def test_evidence_retention_is_of_the_final_memory_and_unknown_without_evidence() -> None:
    first = "Ann lives in Rome. Bo has a cat."
    turns = (read(0, "", "", first), read(1, "", first, "ann lives in Rome."))
    both = group(*turns, evidence=["Ann lives in Rome.", "Bo has a cat."])
    assert measured(both)["evidence_retention"] == 0.5
    assert measured(group(*turns))["evidence_retention"] is None


def test_evidence_is_lost_where_no_turn_changed_the_memory() -> None:
    kept = Event(MemoryWritten((), "none", changed=False), 1)
    assert measured(group(read(0, "", "", ""), events=(kept,), evidence=["It rains."]))["evidence_retention"] == 0


@pytest.mark.parametrize(
    ("answers", "memory", "retained"),
    [
        (("Rome", "Roma"), "She lives in roma.", 1.0),
        (("Rome",), "She lives in Romeville.", 0.0),
        (("Rome",), "", 0.0),
        (("yes",), "Yes, she does.", None),  # the word alone shows nothing
    ],
)
def test_retention_of_paragraphs_is_that_of_the_answer(
    answers: tuple[str, ...], memory: str, retained: float | None
) -> None:
    metadata = {"evidence": ["Ann\nAnn lives in Rome. She is 40.", "Bo sings."]}
    assert evidence_retention(Problem("p", QUESTION, answers, None, metadata), memory) == retained


def test_retention_of_several_questions_is_the_mean_of_their_answers() -> None:
    questions = [Question("Who?", ("Anna",)), Question("Where?", ("Rome",))]
    problem = Problem.asking(
        "p", questions, "Anna lives in Rome.", {"evidence": ["Anna\nAnna lives in Rome. She is old."]}
    )
    assert evidence_retention(problem, "It is Anna.") == 0.5


@pytest.mark.parametrize(
    ("written", "fidelity"),
    [
        ("Bo sings. Ann lives in Rome.", 1.0),  # one of the memory, one of the section
        ("Bo sings. section: Here is.", 0.5),  # words of the template
        (QUESTION, 0.0),
    ],
)
def test_text_copied_from_the_template_is_no_fact(written: str, fidelity: float) -> None:
    turn = read(0, "Ann lives in Rome.", "Bo sings.", written)
    assert measured(group(turn))["copy_fidelity"] == fidelity
    unnamed = group(replace(turn, spans={}))
    assert measured(unnamed)["copy_fidelity"] is None


def test_an_empty_response_does_not_replace_the_memory() -> None:
    turns = (read(0, "", "", "abcd"), read(1, "", "abcd", ""), read(2, "", "abcd", "abcd"))
    retained = group(*turns, events=(Event(EmptyMemoryKept(), before_turn=2),))
    assert measured(retained)["overwrite_rate"] == 0.0
    assert measured(retained)["tokens"] == 4.0
    emptied = (turns[0], turns[1], read(2, "", "", "abcd"))
    assert measured(group(*emptied))["overwrite_rate"] == 1.0


def test_unknown_metrics_are_absent_and_not_zero() -> None:
    metrics = group_metrics([group(read(0, "", "", "abcd", StopReason.LENGTH))], CODEC, CreditConfig())
    assert metrics["memory/truncated"] == 1.0
    assert metrics["memory/tokens"] == 4.0
    assert metrics["grade/em"] == 1.0
    assert "memory/overwrite_rate" not in metrics
    assert "memory/evidence_retention" not in metrics


def test_ungraded_episodes_are_counted_and_leave_the_mean_alone() -> None:
    one = group(read(0, "", "", "a"))
    two = Group(one.problem, one.trajectories * 2, (Grade(1.0), Grade(None, "judge down")))
    metrics = group_metrics([two], CODEC, CreditConfig())
    assert (metrics["reward/mean"], metrics["reward/ungraded"]) == (1.0, 1.0)


def test_facts_retained_and_invented_by_a_turn() -> None:
    first, second = "Ann lives in Rome. Bo has a cat.", "Ann lives in Rome. Cid is red."
    turns = (read(0, "Ann lives in Rome. Bo has a cat.", "none", first), read(1, "Cid is blue.", first, second))
    played = group(*turns, evidence=["Bo has a cat.", "Ann lives in Rome."])
    one, two = readings(played.trajectories[0], GroupTexts(CODEC))
    assert [evidence_retention(played.problem, read.memory_after.text) for read in (one, two)] == [1.0, 0.5]
    assert (unsupported(one), unsupported(two)) == ((), ("Cid is red.",))
    assert two.memory_after.sentences == ("Ann lives in Rome.", "Cid is red.")
    assert (two.turn, str(two.section)) == (turns[1], "Cid is blue.")


def test_every_rollout_of_a_group_is_measured() -> None:
    true = group(read(0, "It rains.", "none", "It rains.")).trajectories[0]
    false = group(read(0, "It rains.", "none", "It snows.")).trajectories[0]
    episodes = tuple(replace(one, rollout=number) for number, one in enumerate((*[true] * 4, *[false] * 12)))
    played = Group(Problem("p", QUESTION, ("x",)), episodes, (Grade(1.0),) * 16)
    assert measured(played)["copy_fidelity"] == 0.25


def placed(document: str | None, *evidence: str) -> dict[str, float]:
    return evidence_position(Problem("p", QUESTION, (), document, {"evidence": list(evidence)}))


def test_the_position_of_the_evidence_is_a_share_of_the_document() -> None:
    lines = [f"It rains in week {week:02}.\n" for week in range(11)]
    document = "".join(lines)
    assert placed(document, "It rains in week 00.") == {"evidence_first": 0.0, "evidence_last": 0.0}
    assert placed(document, "It rains in week 10.") == {"evidence_first": 1.0, "evidence_last": 1.0}
    halves = placed(document, "it rains\nin week 05.", "It rains in week 00.")  # case and white space don't matter
    assert halves == {"evidence_first": 0.0, "evidence_last": 0.5}


def test_evidence_that_the_document_lacks_has_no_position() -> None:
    assert placed("Joann ran.", "Ann ran.") == {}
    assert placed(None, "Ann ran.") == {}
    assert placed("Ann ran.") == {}
    assert placed("It rains. Ann ran.", "Bo ran.", "Ann ran.") == {"evidence_first": 1.0, "evidence_last": 1.0}

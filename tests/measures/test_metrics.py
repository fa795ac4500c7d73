"""Memory metrics against cases worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from palimpsest.measures.memory import copied, evidence_retention, memory_metrics
from palimpsest.memory.parts.prompts import prompt_set
from palimpsest.training.metrics import group_metrics
from palimpsest.types import Completion, Event, Grade, Group, Outcome, Problem, StopReason, Trajectory, Turn
from support.fakes import LetterCodec

CODEC: Any = LetterCodec()
QUESTION = "Where does Ann live?"


def read(step: int, section: str, memory: str, written: str, stop: StopReason = StopReason.STOP) -> Turn:
    prompt = f"Question: {QUESTION}\nMemory: {memory}\nSection: {section}"
    ids = tuple(CODEC.encode(written)) + ((0,) if stop is StopReason.STOP else ())
    completion = Completion(ids, (-0.1,) * len(ids), stop)
    return Turn(tuple(CODEC.encode(prompt)), completion, step, "read", {"chunk": step, "memory_tokens": len(memory)})


def group(*turns: Turn, evidence: list[str] | None = None, events: tuple[Event, ...] = ()) -> Group:
    metadata = {} if evidence is None else {"evidence": evidence}
    trajectory = Trajectory("p", "g", 0, turns, Outcome.ANSWERED, "Rome", events)
    return Group(Problem("p", QUESTION, ("Rome",), None, metadata), (trajectory,), (Grade(1.0, breakdown={"em": 1.0}),))


def test_copy_fidelity_counts_sentences_that_stand_in_section_or_memory() -> None:
    played = group(
        read(0, "Ann lives in Rome. Bo has a cat.", "none", "Ann lives in Rome. Bo has a dog."),
        read(1, "It rains.", "Ann lives in Rome. Bo has a dog.", "Ann lives in Rome.\nIt rains."),
    )
    assert memory_metrics(played, CODEC)["copy_fidelity"] == pytest.approx(3 / 4)


def test_repeating_the_question_is_not_a_copied_fact() -> None:
    assert memory_metrics(group(read(0, "It rains.", "none", QUESTION)), CODEC)["copy_fidelity"] == 0.0


@pytest.mark.parametrize(
    ("memory", "hits"),
    [
        ("The code is 12.", 1),
        ("the CODE is  12.", 1),  # case and white space don't matter
        ("The code is 1.", 0),
        ("The code is 1", 0),  # cut in the middle of a value
        ("he code is 12.", 0),
        ("- The code is 12.", 1),  # a list mark is not part of the sentence
    ],
)
def test_a_sentence_must_stand_there_whole(memory: str, hits: int) -> None:
    assert copied(memory, "First. The code is 12. Last.") == (hits, 1)


def test_overwrite_rate_is_the_share_of_changed_tokens_between_memories() -> None:
    played = group(read(0, "", "", "abcd"), read(1, "", "", "abce"), read(2, "", "", "wxyz"))
    assert memory_metrics(played, CODEC)["overwrite_rate"] == pytest.approx((1 / 4 + 1) / 2)


def test_evidence_retention_looks_at_the_final_memory_and_is_unknown_without_evidence() -> None:
    turns = (read(0, "", "", "Ann lives in Rome. Bo has a cat."), read(1, "", "", "ann lives in Rome."))
    both = group(*turns, evidence=["Ann lives in Rome.", "Bo has a cat."])
    assert memory_metrics(both, CODEC)["evidence_retention"] == 0.5
    assert memory_metrics(group(*turns), CODEC)["evidence_retention"] is None


@pytest.mark.parametrize(
    ("answers", "memory", "kept"),
    [
        (("Rome", "Roma"), "She lives in roma.", 1.0),
        (("Rome",), "She lives in Romeville.", 0.0),
        (("Rome",), "", 0.0),
        (("yes",), "Yes, she does.", None),  # a memory that holds the word shows nothing
    ],
)
def test_of_whole_paragraphs_the_answer_is_what_must_be_kept(
    answers: tuple[str, ...], memory: str, kept: float | None
) -> None:
    metadata = {"evidence": ["Ann\nAnn lives in Rome. She is 40.", "Bo sings."]}
    assert evidence_retention(Problem("p", QUESTION, answers, None, metadata), memory) == kept


@pytest.mark.parametrize("prompts", ["standard", "short"])
@pytest.mark.parametrize("layout", ["memory_first", "section_first"])
@pytest.mark.parametrize(
    ("written", "fidelity"),
    [
        ("Bo sings. Ann lives in Rome.", 1.0),  # one of the memory, one of the section
        ("Update the memory. Only the new memory will be kept.", 0.0),  # our own words
        (QUESTION, 0.0),
    ],
)
def test_what_is_copied_from_the_template_is_no_fact(prompts: str, layout: Any, written: str, fidelity: float) -> None:
    text = prompt_set(prompts).read[layout].format(question=QUESTION, memory="Bo sings.", section="Ann lives in Rome.")
    ids = tuple(CODEC.encode(f"user\n{text}\nassistant\n"))
    turn = Turn(ids, Completion(tuple(CODEC.encode(written)), (), StopReason.LENGTH), 0, "read", {})
    assert memory_metrics(group(turn), CODEC)["copy_fidelity"] == fidelity


def test_an_empty_response_that_kept_the_memory_is_not_a_memory() -> None:
    turns = (read(0, "", "", "abcd"), read(1, "", "", ""), read(2, "", "", "abcd"))
    kept = group(*turns, events=(Event("empty_memory_kept", 2),))
    assert memory_metrics(kept, CODEC)["overwrite_rate"] == 0.0
    assert memory_metrics(kept, CODEC)["tokens"] == 4.0
    assert memory_metrics(group(*turns), CODEC)["overwrite_rate"] == 1.0


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    metrics = group_metrics([group(read(0, "", "", "abcd", StopReason.LENGTH))], CODEC)
    assert metrics["memory/truncated"] == 1.0
    assert metrics["memory/tokens"] == 4.0
    assert metrics["grade/em"] == 1.0
    assert "memory/overwrite_rate" not in metrics
    assert "memory/evidence_retention" not in metrics


def test_ungraded_episodes_are_counted_and_leave_the_mean_alone() -> None:
    one = group(read(0, "", "", "a"))
    two = Group(one.problem, one.trajectories * 2, (Grade(1.0), Grade(None, "judge down")))
    metrics = group_metrics([two], CODEC)
    assert (metrics["reward/mean"], metrics["reward/ungraded"]) == (1.0, 1.0)

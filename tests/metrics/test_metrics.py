"""Memory metrics against cases worked by hand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import CreditConfig, SamplingConfig
from palimpsest.events import EmptyMemoryKept, Event
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.metrics.memory_metrics import evidence_position, evidence_retention, memory_metrics, memory_steps
from palimpsest.metrics.reading_trace import GroupTexts, last_memory, readings
from palimpsest.rollout.episode import play
from palimpsest.text.sentences import flat, sentences, stands_in
from palimpsest.training.step_metrics import group_metrics
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Prompt, StopReason, Trajectory, Turn
from support.fakes import LetterCodec, SeedSampler

CODEC: Any = LetterCodec()
QUESTION = "Where does Ann live?"


def read(step: int, section: str, memory: str, written: str, stop: StopReason = StopReason.STOP) -> Turn:
    pieces = {"question": QUESTION, "memory": memory, "section": section}
    prompt = Prompt.joined(
        part
        for name, text in pieces.items()
        for part in (CODEC.encode(f" {name}: "), Prompt.named(name, CODEC.encode(text)))
    )
    ids = tuple(CODEC.encode(written)) + ((0,) if stop is StopReason.STOP else ())
    completion = Completion(ids, (-0.1,) * len(ids), stop)
    return Turn(tuple(prompt), completion, step, "read", {"chunk": step}, prompt.spans)


def group(*turns: Turn, evidence: list[str] | None = None, events: tuple[Event, ...] = ()) -> Group:
    metadata = {} if evidence is None else {"evidence": evidence}
    trajectory = Trajectory("p", "g", 0, turns, Outcome.ANSWERED, "Rome", events)
    return Group(Problem("p", QUESTION, ("Rome",), None, metadata), (trajectory,), (Grade(1.0, breakdown={"em": 1.0}),))


def test_copy_fidelity_counts_sentences_that_stand_in_section_or_memory() -> None:
    played = group(
        read(0, "Ann lives in Rome. Bo has a cat.", "none", "Ann lives in Rome. Bo has a dog."),
        read(1, "It rains.", "Ann lives in Rome. Bo has a dog.", "Ann lives in Rome.\nIt rains."),
    )
    assert memory_metrics(played, GroupTexts(CODEC))["copy_fidelity"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("section", ["-5 degrees were measured.", "12-5 degrees were measured."])
def test_a_part_of_a_number_is_not_a_copied_fact(section: str) -> None:
    played = group(read(0, section, "none", "5 degrees were measured."))
    assert memory_metrics(played, GroupTexts(CODEC))["copy_fidelity"] == 0.0


def test_repeating_the_question_is_not_a_copied_fact() -> None:
    assert memory_metrics(group(read(0, "It rains.", "none", QUESTION)), GroupTexts(CODEC))["copy_fidelity"] == 0.0


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
    assert (
        memory_metrics(group(read(0, "First. The code is 12. Last.", "none", memory)), GroupTexts(CODEC))[
            "copy_fidelity"
        ]
        == hits
    )
    (sentence,) = sentences(memory)
    assert stands_in(flat(sentence), "first. the code is 12. last.") == bool(hits)


def test_overwrite_rate_is_the_share_of_changed_tokens_between_memories() -> None:
    played = group(read(0, "", "", "abcd"), read(1, "", "abcd", "abce"), read(2, "", "abce", "wxyz"))
    assert memory_metrics(played, GroupTexts(CODEC))["overwrite_rate"] == pytest.approx((1 / 4 + 1) / 2)


def test_evidence_retention_looks_at_the_final_memory_and_is_unknown_without_evidence() -> None:
    first = "Ann lives in Rome. Bo has a cat."
    turns = (read(0, "", "", first), read(1, "", first, "ann lives in Rome."))
    both = group(*turns, evidence=["Ann lives in Rome.", "Bo has a cat."])
    assert memory_metrics(both, GroupTexts(CODEC))["evidence_retention"] == 0.5
    assert memory_metrics(group(*turns), GroupTexts(CODEC))["evidence_retention"] is None


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


@pytest.mark.parametrize(
    ("written", "fidelity"),
    [
        ("Bo sings. Ann lives in Rome.", 1.0),  # one of the memory, one of the section
        ("Bo sings. section: Here is.", 0.5),  # words of the template
        (QUESTION, 0.0),
    ],
)
def test_what_is_copied_from_the_template_is_no_fact(written: str, fidelity: float) -> None:
    turn = read(0, "Ann lives in Rome.", "Bo sings.", written)
    assert memory_metrics(group(turn), GroupTexts(CODEC))["copy_fidelity"] == fidelity
    unnamed = group(replace(turn, spans={}))
    assert memory_metrics(unnamed, GroupTexts(CODEC))["copy_fidelity"] is None


def test_an_empty_response_that_kept_the_memory_is_not_a_memory() -> None:
    turns = (read(0, "", "", "abcd"), read(1, "", "abcd", ""), read(2, "", "abcd", "abcd"))
    kept = group(*turns, events=(Event(EmptyMemoryKept(), before_turn=2),))
    assert memory_metrics(kept, GroupTexts(CODEC))["overwrite_rate"] == 0.0
    assert memory_metrics(kept, GroupTexts(CODEC))["tokens"] == 4.0
    emptied = (turns[0], turns[1], read(2, "", "", "abcd"))
    assert memory_metrics(group(*emptied), GroupTexts(CODEC))["overwrite_rate"] == 1.0


def test_what_is_not_known_is_absent_and_not_zero() -> None:
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


def test_what_each_turn_kept_lost_and_invented_worked_by_hand() -> None:
    first, second = "Ann lives in Rome. Bo has a cat.", "Ann lives in Rome. Cid is red."
    turns = (read(0, "Ann lives in Rome. Bo has a cat.", "none", first), read(1, "Cid is blue.", first, second))
    played = group(*turns, evidence=["Bo has a cat.", "Ann lives in Rome."])
    one, two = memory_steps(played.problem, played.trajectories[0], CODEC)
    assert (one.held, one.retention, one.unsupported, one.lost) == ((0, 1), 1.0, (), ("none",))
    assert (two.held, two.retention) == ((1,), 0.5)
    assert two.written == ("Ann lives in Rome.", "Cid is red.")
    assert two.unsupported == ("Cid is red.",)
    assert two.lost == ("Bo has a cat.",)
    assert (two.reading.turn, str(two.reading.section)) == (turns[1], "Cid is blue.")


def test_every_rollout_of_a_group_is_measured() -> None:
    true = group(read(0, "It rains.", "none", "It rains.")).trajectories[0]
    false = group(read(0, "It rains.", "none", "It snows.")).trajectories[0]
    episodes = tuple(replace(one, rollout=number) for number, one in enumerate((*[true] * 4, *[false] * 12)))
    played = Group(Problem("p", QUESTION, ("x",)), episodes, (Grade(1.0),) * 16)
    assert memory_metrics(played, GroupTexts(CODEC))["copy_fidelity"] == 0.25


class NotesPolicy(MemoryPolicy):
    """A user's: the program appends each reply to notes; turns are called what it likes."""

    async def run(self, problem: Problem, model: Any) -> Answered:
        encode = model.codec.encode
        notes: list[int] = []
        for section in str(problem.context).split("|"):
            parts = [encode("Notes: "), Prompt.named("memory", notes), Prompt.named("section", encode(section))]
            notes = [*notes, *(await model.generate(Prompt.joined(parts), name="note", max_tokens=8)).token_ids[:-1]]
        await model.generate(Prompt.named("memory", notes), name="say", max_tokens=8)
        return Answered("yes")


def test_a_users_policy_is_measured_by_the_pieces_it_names() -> None:
    problem = Problem("p", "?", ("x",), "yes|no ", {"evidence": ["yes"]})
    given = {"codec": CODEC, "sampling": SamplingConfig(), "key": (3,), "group_id": "g", "rollout": 2}
    trajectory = asyncio.run(play(problem, policy=NotesPolicy(), sampler=SeedSampler(), **given))
    said = [CODEC.decode(turn.completion.token_ids) for turn in trajectory.turns[:2]]
    reads = readings(trajectory, GroupTexts(CODEC))
    assert [str(reading.memory_before) for reading in reads] == ["", said[0]]
    assert [str(reading.memory_after) for reading in reads] == [said[0], said[0] + said[1]]
    assert [str(reading.section) for reading in reads] == ["yes", "no "]
    metrics = memory_metrics(Group(problem, (trajectory,), (Grade(1.0),)), GroupTexts(CODEC))
    assert metrics["tokens"] == 4.5
    assert metrics["copy_fidelity"] is not None
    assert str(last_memory(trajectory, GroupTexts(CODEC))) == said[0] + said[1]


def test_no_prompt_is_decoded_but_in_the_pieces_that_are_asked_for() -> None:
    decoded = []

    class Counting(LetterCodec):
        def decode(self, ids: Any, *, control: bool = True) -> str:
            decoded.append(tuple(ids))
            return super().decode(decoded[-1], control=control)

    codec = Counting()
    turns = (read(0, "It rains.", "none", "It rains."), read(1, "It snows.", "It rains.", "It rains."))
    memory_metrics(group(*turns, evidence=["It rains."]), GroupTexts(codec))
    assert sorted(codec.encode(text) for text in ("It rains.", "none")) == sorted(map(list, set(decoded)))
    assert len(decoded) == len(set(decoded))


def placed(document: str | None, *evidence: str) -> dict[str, float]:
    return evidence_position(Problem("p", QUESTION, (), document, {"evidence": list(evidence)}))


def test_the_place_of_the_evidence_is_a_share_of_the_document() -> None:
    lines = [f"It rains in week {week:02}.\n" for week in range(11)]
    document = "".join(lines)
    assert placed(document, "It rains in week 00.") == {"evidence_first": 0.0, "evidence_last": 0.0}
    assert placed(document, "It rains in week 10.") == {"evidence_first": 1.0, "evidence_last": 1.0}
    halves = placed(document, "it rains\nin week 05.", "It rains in week 00.")  # case and white space don't matter
    assert halves == {"evidence_first": 0.0, "evidence_last": 0.5}


def test_evidence_that_the_document_lacks_has_no_place() -> None:
    assert placed("Joann ran.", "Ann ran.") == {}
    assert placed(None, "Ann ran.") == {}
    assert placed("Ann ran.") == {}
    assert placed("It rains. Ann ran.", "Bo ran.", "Ann ran.") == {"evidence_first": 1.0, "evidence_last": 1.0}

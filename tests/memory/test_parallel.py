"""The parallel reader with scripted models: selection, merges in rounds, passes, grounding, records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from palimpsest.config.schema import PolicyConfig
from palimpsest.errors import ConfigError
from palimpsest.events import Event, MemoryUngrounded, MemoryWritten, PassEnded, of_type
from palimpsest.memory.parallel import ParallelPolicy
from palimpsest.memory.policy_check import ScriptedModel, check_policy
from palimpsest.memory.registry import build_policy
from palimpsest.metrics.memory_metrics import copy_fidelity, memory_metrics
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.reward.turn_rewards import PassLayer
from palimpsest.types import Grade, Group, Outcome, Problem, Question, Trajectory
from support.agents import Script, base_codec, played

SMALL: dict[str, Any] = {
    "chunk_size": 14, "chunk_boundary": "line", "question_tokens": 60, "memory_tokens": 30, "merge_tokens": 80,
    "answer_tokens": 12, "prompts": "short", "passes": 2,
}  # fmt: skip
DOCUMENT = "Bob has a cat.\nIt is cold.\nAnna is blue.\nNo one ran.\n"
PROBLEM = Problem("p", "Who is blue?", ("Anna",), DOCUMENT)


def play(codec: Any, replies: Sequence[str], problem: Problem = PROBLEM, **options: Any) -> tuple[Trajectory, Script]:
    return played(ParallelPolicy(**{**SMALL, **options}), replies, problem, codec)


def turns(trajectory: Trajectory) -> list[str]:
    return [turn.name for turn in trajectory.turns]


def memories(trajectory: Trajectory) -> list[tuple[str, bool]]:
    return [(event.text, event.changed) for event in of_type(trajectory.events, MemoryWritten)]


def passes(trajectory: Trajectory) -> list[PassEnded]:
    return of_type(trajectory.events, PassEnded)


def two_a_merge(codec: Any, found: Sequence[str]) -> dict[str, int]:
    """Options with which a merge has room for exactly two of the replies."""
    longest = max(len(codec.encode(text)) for text in found)
    item = longest + len(codec.encode("- ")) + len(codec.encode("\n"))
    return {"memory_tokens": longest, "merge_tokens": 2 * item, "passes": 1}


def test_every_section_is_read_alone_and_the_replies_that_say_something_are_merged(tiny_codec: Any) -> None:
    trajectory, script = play(tiny_codec, ["a cat", "", "blue", " none", "cat, blue", *[""] * 4, "Anna"])
    assert turns(trajectory) == ["note"] * 4 + ["merge"] + ["note"] * 4 + ["answer"]
    assert [script.text(at).count("Memory: none") for at in range(5)] == [1] * 5
    assert "- a cat\n- blue\n" in script.text(4)
    assert all("Memory:cat, blue" in script.text(at) for at in range(5, 10))
    assert memories(trajectory) == [("cat, blue", True), ("cat, blue", False)]
    assert passes(trajectory) == [PassEnded(0, 2, 4, 2), PassEnded(1, 2, 4, 0)]
    assert "No one ran." in script.text(3)
    assert "Bob" not in script.text(3)


def test_one_reply_of_the_first_pass_is_the_memory_and_a_later_one_is_merged_with_it(tiny_codec: Any) -> None:
    trajectory, script = play(tiny_codec, ["", "", "blue", "", "", "cold", "", "", "blue, cold", "Anna"])
    assert turns(trajectory) == ["note"] * 8 + ["merge", "answer"]
    assert "Memory:blue\n" in script.text(8)
    assert "- cold\n" in script.text(8)
    assert memories(trajectory) == [("blue", True), ("blue, cold", True)]


def test_an_initial_memory_is_merged_with_the_first_reply(tiny_codec: Any) -> None:
    problem = Problem("p", "Who is blue?", ("Anna",), DOCUMENT, memory="a cat")
    trajectory, script = play(tiny_codec, ["", "", "blue", "", "both", "Anna"], problem, passes=1)
    assert turns(trajectory) == ["note"] * 4 + ["merge", "answer"]
    assert "Memory:a cat" in script.text(0)
    assert "Memory:both" in script.text(5)


def test_words_of_the_text_for_no_memory_repeat_nothing(tiny_codec: Any) -> None:
    trajectory, _ = play(tiny_codec, ["No", "", "", "", "no"], prompts="standard", question_tokens=200, passes=1)
    assert memories(trajectory) == [("No", True)]


def test_a_reply_that_repeats_the_memory_adds_nothing(tiny_codec: Any) -> None:
    replies = ["", "", "Anna is blue.", "", " anna is blue.", "", "", "", "Anna"]
    trajectory, _ = play(tiny_codec, replies)
    assert [one.found for one in passes(trajectory)] == [1, 0]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<check>no</check>", None),
        ("well <check> NO </check> blue", None),
        ("<check>yes</check>\nblue", "blue"),
        ("<check>YES</check> blue", "blue"),
        ("blue", "blue"),
        ("<think>no</think>blue", "blue"),
        ("<check>yes</check>", None),
        ("<check>no</check", "<check>no</check"),
        ("<check>yes</check> blue <check>no</check>", None),
        ("<check>yes</check> blue<check>yes</check>", "blue"),
        ("<think><check>no</check></think>blue", "blue"),
        ("None", None),
        ("- none.", None),
        ("none of them", "none of them"),
    ],
)
def test_the_tag_decides_and_is_removed(tiny_codec: Any, reply: str, said: str | None) -> None:
    trajectory, _ = play(tiny_codec, [reply, "", "", "", "Anna"], passes=1, memory_tokens=60, merge_tokens=160)
    assert memories(trajectory) == [(" none" if said is None else said, said is not None)]


@pytest.mark.parametrize("prompts", ["short", "standard"])
def test_a_reply_that_says_none_adds_nothing_in_any_pass(tiny_codec: Any, prompts: str) -> None:
    replies = [
        "none",
        "No previous memory" if prompts == "standard" else " none",
        "blue",
        "None.",
        *["none"] * 4,
        "Anna",
    ]
    trajectory, _ = play(
        tiny_codec, replies, prompts=prompts, question_tokens=200, grounded="verbatim", unit="sentence"
    )
    assert [one.found for one in passes(trajectory)] == [1, 0]
    assert not of_type(trajectory.events, MemoryUngrounded)


def test_shares_count_every_reply_of_a_pass_and_its_merges(tiny_codec: Any) -> None:
    notes = ["Bob has a cat.", "It is hot.", "Anna is blue.", "none"]
    trajectory, _ = play(tiny_codec, [*notes, "Anna is blue. It is wet.", "Anna"], grounded="verbatim", passes=1)
    group = Group(PROBLEM, (trajectory,), (Grade(1.0),))
    assert memory_metrics(group, GroupTexts(tiny_codec))["dropped_share"] == pytest.approx(2 / 5)
    long = [tiny_codec.decode(tiny_codec.encode("blue " * 40)[:31]), "blue", "", ""]
    trajectory, _ = play(tiny_codec, [*long, "blue", "Anna"], passes=1)
    (reading,) = readings(trajectory, GroupTexts(tiny_codec))
    assert [turn.name for turn in reading.writers] == ["note"] * 4 + ["merge"]
    group = Group(PROBLEM, (trajectory,), (Grade(1.0),))
    assert memory_metrics(group, GroupTexts(tiny_codec))["truncated"] == pytest.approx(1 / 5)


def test_more_replies_than_a_prompt_has_room_for_are_merged_in_rounds(tiny_codec: Any) -> None:
    document = "".join(f"Line {letter} is one.\n" for letter in "abcdefgh")
    found = [f"note {letter}" for letter in "abcdefgh"]
    problem = Problem("p", "Who?", ("x",), document)
    options = {**two_a_merge(tiny_codec, found), "chunk_size": 20}
    replies = [*found, *(f"m{n}" for n in range(4)), "q", "r", "last", "Anna"]
    trajectory, script = play(tiny_codec, replies, problem, **options)
    merges = [turn for turn in trajectory.turns if turn.name == "merge"]
    assert [(turn.notes["round"], turn.notes["bundle"]) for turn in merges] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0),
    ]  # fmt: skip
    assert "- note c\n- note d\n" in script.text(9)
    assert "- q\n- r\n" in script.text(14)
    assert memories(trajectory) == [("last", True)]


def test_a_round_of_merges_without_any_text_keeps_the_memory(tiny_codec: Any) -> None:
    found = ["note a", "note b", "note c", "note d"]
    problem = Problem("p", "Who?", ("x",), DOCUMENT, memory="old")
    trajectory, _ = play(tiny_codec, [*found, "", "", "x"], problem, **two_a_merge(tiny_codec, found))
    assert memories(trajectory) == [("old", False)]


def test_an_empty_merge_empties_the_memory_unless_it_is_kept(tiny_codec: Any) -> None:
    for how, left in (("overwrite", ""), ("keep", " none")):
        trajectory, _ = play(tiny_codec, ["cat", "", "blue", "", "", "x"], passes=1, empty_memory=how)
        assert [text for text, _ in memories(trajectory)] == [left]


def test_reads_copy_from_their_own_section_and_merges_from_their_replies(tiny_codec: Any) -> None:
    replies = ["Bob has a cat. Anna is blue.", "It is hot.", "Anna is blue.", "", "Anna is blue. It is cold.", "Anna"]
    trajectory, script = play(tiny_codec, replies, passes=1, grounded="verbatim")
    assert "- Bob has a cat.\n- Anna is blue.\n" in script.text(4).replace(". \n", ".\n")
    assert [text.strip() for text, _ in memories(trajectory)] == ["Anna is blue."]
    dropped = [(event.before_turn - 1, event.what.dropped) for event in trajectory.events
               if isinstance(event.what, MemoryUngrounded)]  # fmt: skip
    assert [(turn, [unit.strip() for unit in units]) for turn, units in dropped] == [
        (0, ["Anna is blue."]), (1, ["It is hot."]), (4, ["It is cold."]),
    ]  # fmt: skip


def test_a_grounded_round_has_each_sentence_once(tiny_codec: Any) -> None:
    twice = "Anna is blue.\nIt is cold.\nAnna is blue.\nNo one ran.\n"
    replies = ["Anna is blue.", "It is cold.", "anna is blue.", "", "Anna is blue. Anna is blue.", "Anna"]
    trajectory, script = play(tiny_codec, replies, replace(PROBLEM, context=twice), passes=1, grounded="verbatim")
    assert "- Anna is blue.\n- It is cold.\n\n" in script.text(4)
    assert memories(trajectory) == [("Anna is blue.", True)]
    published, script = play(tiny_codec, replies, replace(PROBLEM, context=twice), passes=1)
    assert "- Anna is blue.\n- It is cold.\n- anna is blue.\n" in script.text(4)
    assert memories(published) == [("Anna is blue. Anna is blue.", True)]


@pytest.mark.parametrize(
    ("merge", "memory"),
    [
        ("Anna wears blue.", "Anna is blue."),  # two of its words are one reply's
        ("Anna wears blue. It was cold.", "Anna is blue. It is cold."),
        ("It is hot. Anna is blue.", "Anna is blue."),  # one supported unit is enough
        ("It was what it was.", " none"),  # one of three words
        ("Cold Anna.", " none"),  # as near to one reply as to the other
    ],
)
def test_a_merge_that_only_paraphrases_its_replies_quotes_them(tiny_codec: Any, merge: str, memory: str) -> None:
    replies = ["", "It is cold.", "Anna is blue.", "", merge]
    trajectory, _ = play(tiny_codec, [*replies, *[""] * 4, "Anna"], grounded="verbatim")
    text = memories(trajectory)[-1][0]
    assert " ".join(text.replace(".", ". ").split()) == memory.strip()
    assert len(passes(trajectory)) == (1 if memory == " none" else 2)


def test_a_pass_that_leaves_the_memory_is_the_last(tiny_codec: Any) -> None:
    problem = Problem("p", "Who?", ("x",), DOCUMENT, memory="old")
    trajectory, _ = play(tiny_codec, ["a", "b", "", "", "old", "x"], problem, passes=3)
    assert passes(trajectory) == [PassEnded(0, 3, 4, 2)]


def test_a_pass_is_one_reading_of_all_its_sections(tiny_codec: Any) -> None:
    trajectory, _ = play(tiny_codec, ["a cat", "", "blue", "", "Anna is blue. It is hot.", *[""] * 4, "Anna"])
    texts = GroupTexts(tiny_codec)
    first, second = readings(trajectory, texts)
    assert "".join(map(str, first.sections)) == DOCUMENT == "".join(map(str, second.sections))
    assert (first.changed, second.changed) == (True, False)
    assert copy_fidelity(readings(trajectory, texts)) == 0.5


def test_the_bonus_is_for_correct_answers_after_fewer_passes() -> None:
    def graded(used: int, of: int, value: float | None) -> Grade:
        events = tuple(Event(PassEnded(number, of, 4, 1), 1) for number in range(used))
        trajectory = Trajectory("p", "g", 0, (), Outcome.ANSWERED, events=events)
        return PassLayer(0.2)(PROBLEM, trajectory, Grade(value))

    assert [graded(used, 3, 1.0).value for used in (1, 2, 3)] == [1.2, 1.1, 1.0]
    assert [graded(1, 3, value).value for value in (0.0, -0.5, None)] == [0.0, -0.5, None]
    assert graded(1, 1, 1.0) == Grade(1.0) == graded(0, 3, 1.0)
    assert graded(2, 3, 0.0).breakdown == {"passes": 2.0}


def test_several_questions_share_one_reading(tiny_codec: Any) -> None:
    problem = Problem.asking("p", [Question("Who?", ("Anna",)), Question("What?", ("cat",))], DOCUMENT)
    trajectory, _ = play(tiny_codec, ["", "", "blue", "", "Anna", "cat"], problem, passes=1)
    assert turns(trajectory) == ["note"] * 4 + ["answer"] * 2
    assert trajectory.answers == ("Anna", "cat")


def test_the_contract_holds_with_many_sections() -> None:
    for options in (SMALL, {**SMALL, "layout": "memory_first", "grounded": "close", "empty_memory": "keep"}):
        findings = check_policy(build_policy(PolicyConfig(name="parallel", options=options)), base_codec(), 2048)
        assert [one for one in findings if not one.passed] == []
        assert any(one.name == "order" for one in findings)


def test_no_prompt_exceeds_the_required_context(tiny_codec: Any) -> None:
    policy = ParallelPolicy(**{**SMALL, "memory_tokens": 20, "merge_tokens": 50})
    needed = policy.required_context(tiny_codec)

    def fills(prompt: Sequence[int], budget: int) -> Sequence[int]:
        return list(tiny_codec.encode("cat ") * budget)[:budget]

    model = ScriptedModel(tiny_codec, fills, needed)
    asyncio.run(model.play(policy, Problem("p", "Who is blue?", ("x",), DOCUMENT * 20)))
    assert len(model.prompts) > 100
    assert not model.overflows


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"passes": 0}, "policy.options.passes"),
        ({"merge_tokens": 0}, "policy.options.merge_tokens"),
        ({"merge_tokens": 60}, "policy.options.merge_tokens"),
        ({"merge_tokens": None}, "policy.options.merge_tokens=null, which is chunk_size"),
    ],
)
def test_bad_options_of_the_parallel_reader_name_their_key(tiny_codec: Any, options: dict[str, Any], key: str) -> None:
    def admit() -> None:
        build_policy(PolicyConfig(name="parallel", options={**SMALL, **options})).admit(PROBLEM, tiny_codec)

    with pytest.raises(ConfigError) as error:
        admit()
    assert error.value.key == key

"""Turns that read, and the origins of kept sentences compared with a plain search of every run of words."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace
from functools import partial
from typing import Any

from palimpsest.config.schema import SamplingConfig
from palimpsest.events import EmptyMemoryKept, Event, MemoryWritten
from palimpsest.memory.policy import Answered, MemoryPolicy
from palimpsest.metrics.memory_metrics import memory_metrics, unsupported
from palimpsest.metrics.reading_trace import GroupTexts, MemoryChanges, ReadingTurn, Text, last_memory, readings
from palimpsest.metrics.sentence_origins import RUN, origins
from palimpsest.rollout.episode import play
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Prompt, StopReason, Trajectory, Turn
from support.fakes import LetterCodec, SeedSampler
from support.groups import CODEC, reading_turn

WORD = re.compile(r"\w+(?:['’]\w+)*")


def longest_run(sentence: str, document: str) -> int:
    """Words of the longest run."""
    words = [word.casefold() for word in WORD.findall(sentence)]
    there = [word.casefold() for word in WORD.findall(document)]
    least = min(RUN, len(words))
    for length in range(len(words), max(least, 2) - 1, -1):
        runs = {tuple(there[start : start + length]) for start in range(len(there) - length + 1)}
        if any(tuple(words[start : start + length]) in runs for start in range(len(words) - length + 1)):
            return length
    return 0


def test_the_longest_run_is_a_slice_of_the_document() -> None:
    rng = random.Random(5)
    vocabulary = ["Anna", "Bob", "eats", "sells", "tea", "honey", "in", "Rome", "the"]
    for _ in range(300):
        document = " ".join(rng.choices(vocabulary, k=rng.randrange(1, 60))) + "."
        retained = [" ".join(rng.choices(vocabulary, k=rng.randrange(1, 9))) for _ in range(3)]
        for sentence, span in zip(retained, origins(retained, document), strict=True):
            result = "" if span is None else document[slice(*span)]
            assert len(WORD.findall(result)) == longest_run(sentence, document), (sentence, document, result)
            assert result.casefold() in sentence.casefold()


def reading(section: str | tuple[str, ...], before: str, after: str) -> ReadingTurn:
    """A turn that read `section`, or several, and wrote `after` over `before`."""
    sections = (section,) if isinstance(section, str) else section
    texts = {text: Text((), partial(str, text)) for text in (*sections, before, after, "")}
    rest: dict[str, Any] = dict.fromkeys(("sources", "query", "malformed"))
    return ReadingTurn(
        turn=Turn((1,), Completion((2,), (0.0,), StopReason.STOP), 0, "read"),
        **{"memory_before": texts[before], "memory_after": texts[after], "update": texts[after]},
        **{"changed": before != after, "recalled": texts[""], "recall_result": ""},
        sections=tuple(texts[section] for section in sections),
        **{"in_tags": False, "asks": False},
        **rest,
    )


def test_an_origin_is_in_the_section_that_added_the_sentence() -> None:
    fact = "Anna lives in Rome."
    sections = [f"{fact} One.\n", f"{fact} Two.\n", f"{fact} Three.\n"]
    document = "".join(sections)
    read = [reading(sections[0], "", ""), reading(sections[1], "", fact), reading(sections[2], fact, fact)]
    assert origins([fact], document, read) == [(len(sections[0]), len(sections[0]) + len(fact) - 1)]
    assert origins([fact], document) == [(0, len(fact) - 1)]


def test_an_origin_is_in_any_of_the_sections_of_a_reading_also_when_they_are_read_again() -> None:
    sections = ("Anna eats tea in Oslo. One.\n", "It rains.\n", "Anna lives in Rome. Two.\n", "Anna lives in Rome.\n")
    document = "".join(sections)
    first = reading(sections[:3], "", "Anna lives in Rome.")
    again = reading(sections[:3], "Anna lives in Rome.", "Anna lives in Rome. Anna eats tea in Oslo.")
    for read in ([first], [first, again]):
        found = origins(["Anna lives in Rome.", "Anna eats tea in Oslo.", "Bob eats honey today."], document, read)
        spans = [None if span is None else document[slice(*span)] for span in found]
        assert spans == ["Anna lives in Rome", "Anna eats tea in Oslo", None]
        assert found[0] == (document.index("Anna lives"), document.index("Anna lives") + 18)


def merged(event: MemoryWritten | None) -> Trajectory:
    """Three sections are read side by side and merged; the second reply is hallucinated."""
    replies = ("Ann lives in Rome.", "Bo sings.", "none")
    reads = [
        reading_turn(step, section, "none", reply, "Who?")
        for step, (section, reply) in enumerate(zip(("Ann lives in Rome.", "It rains.", "Fog."), replies, strict=True))
    ]
    merge = reading_turn(3, "".join(replies[:2]), "none", "Ann lives in Rome. Bo sings.", "Who?")
    named = [replace(turn, name="look") for turn in (*reads, merge)]
    events = () if event is None else (Event(event, 4),)
    return Trajectory("p", "g", 0, tuple(named), Outcome.ANSWERED, "Rome", events)


def test_a_memory_has_the_sources_that_its_event_names() -> None:
    text = "Ann lives in Rome. Bo sings."
    written = MemoryWritten(tuple(CODEC.encode(text)), text, changed=True)
    for event, sources, invented in (
        (written, ["Ann lives in Rome.Bo sings."], ()),
        (replace(written, sources=(0, 1, 2)), ["Ann lives in Rome.", "It rains.", "Fog."], ("Bo sings.",)),
        (replace(written, sources=(0, 9)), ["Ann lives in Rome."], ("Bo sings.",)),
    ):
        *_, read = readings(merged(event), GroupTexts(CODEC))
        assert [section.text for section in read.sections] == sources
        assert unsupported(read) == invented
    episodes = readings(merged(replace(written, sources=(0, 1, 2))), GroupTexts(CODEC))
    assert [(one.turn.step, one.memory_after.text, str(one.section)) for one in episodes] == [
        (3, text, "Ann lives in Rome.It rains.Fog.")
    ]


def test_a_memory_shown_turn_by_turn_has_only_what_turns_wrote() -> None:
    turns = [reading_turn(step, "Fog.", "none", reply, "Who?") for step, reply in enumerate(("", "Bo sings.", ""))]
    written = MemoryWritten(tuple(CODEC.encode("none")), "none", changed=False)
    events = [[Event(EmptyMemoryKept(), 1)], [], [Event(written, 3)]]
    changes = MemoryChanges(CODEC, 3)
    shown = [change for pair in zip(turns, events, strict=True) if (change := changes.of(*pair)) is not None]
    assert [(change.added, change.dropped) for change in shown] == [((), ()), (("Bo sings.",), ()), ((), ())]


def test_a_memory_that_stayed_or_was_edited_by_hand_is_not_hallucinated() -> None:
    written = replace(reading("It rains.", "", "Bo sings."), sources=())
    assert unsupported(written) == ("Bo sings.",)
    assert unsupported(replace(written, changed=False)) == ()
    assert unsupported(replace(written, substituted=True)) == ()
    assert unsupported(replace(written, sources=None)) is None


def test_only_text_that_was_read_has_origins() -> None:
    document = "Anna lives in Rome by the sea. Bob drinks tea at noon every day."
    cut = document.index("by")
    read = [reading(document[:cut], "", "x"), reading(document[cut:31], "x", "Anna lives in Rome by the sea.")]
    retained = ["Anna lives in Rome by the sea.", "Bob drinks tea at noon."]
    assert origins(retained, document, read) == [(0, 29), None]


def test_a_section_may_start_inside_a_character() -> None:
    document = "Ärger in Ölhausen. Anna lives in Rome today."
    read = [reading("�rger in Ölhausen. Anna lives in Rome today.", "", "Anna lives in Rome today.")]
    assert origins(["Anna lives in Rome today."], document, read) == [(19, 43)]


# ---- custom policies -------------------------------------------------------------------------------------------


class NotesPolicy(MemoryPolicy):
    """A custom policy that appends each reply to notes; its turns have other names."""

    async def run(self, problem: Problem, model: Any) -> Answered:
        encode = model.codec.encode
        notes: list[int] = []
        for section in str(problem.context).split("|"):
            pieces = [encode("Notes: "), Prompt.named("memory", notes), Prompt.named("section", encode(section))]
            notes = [*notes, *(await model.generate(Prompt.joined(pieces), name="note", max_tokens=8)).token_ids[:-1]]
        await model.generate(Prompt.named("memory", notes), name="say", max_tokens=8)
        return Answered("yes")


def test_a_custom_policy_is_measured_by_the_pieces_that_it_names() -> None:
    problem = Problem("p", "?", ("x",), "yes|no ", {"evidence": ["yes"]})
    options = {"codec": CODEC, "sampling": SamplingConfig(), "key": (3,), "group_id": "g", "rollout": 2}
    trajectory = asyncio.run(play(problem, policy=NotesPolicy(), sampler=SeedSampler(), **options))
    replies = [CODEC.decode(turn.completion.token_ids) for turn in trajectory.turns[:2]]
    reads = readings(trajectory, GroupTexts(CODEC))
    assert [str(reading.memory_before) for reading in reads] == ["", replies[0]]
    assert [str(reading.memory_after) for reading in reads] == [replies[0], replies[0] + replies[1]]
    assert [str(reading.section) for reading in reads] == ["yes", "no "]
    metrics = memory_metrics(Group(problem, (trajectory,), (Grade(1.0),)), GroupTexts(CODEC))
    assert metrics["tokens"] == 4.5
    assert metrics["copy_fidelity"] is not None
    assert str(last_memory(trajectory, GroupTexts(CODEC))) == replies[0] + replies[1]


def test_only_the_needed_pieces_of_a_prompt_are_decoded() -> None:
    decoded = []

    class Counting(LetterCodec):
        def decode(self, ids: Any, *, control: bool = True) -> str:
            decoded.append(tuple(ids))
            return super().decode(decoded[-1], control=control)

    codec = Counting()
    problem = Problem("p", "Where?", ("Rome",), None, {"evidence": ["It rains."]})
    sections = (("It rains.", "none"), ("It snows.", "It rains."))
    turns = (reading_turn(step, *texts, "It rains.", "Where?") for step, texts in enumerate(sections))
    played = Trajectory("p", "g", 0, tuple(turns), Outcome.ANSWERED, "Rome")
    memory_metrics(Group(problem, (played,), (Grade(1.0),)), GroupTexts(codec))
    assert sorted(codec.encode(text) for text in ("It rains.", "none")) == sorted(map(list, set(decoded)))
    assert len(decoded) == len(set(decoded))
